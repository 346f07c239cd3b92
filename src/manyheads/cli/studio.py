"""`manyheads studio`: the local page, until Ctrl-C; or one answer of it, without a socket."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from manyheads.cli.terminal.console import emit
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, TextError

SERVER = ("fastapi", "uvicorn")


def studio(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RECORDINGS OR FOLDER", help="Recordings (.heads), or folders with recordings or models."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Also offer this model: a folder or a hub name.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where pruned checkpoints may be written.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Another address than this machine's own needs the token that is printed."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="The first free one from 8765, unless said."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    get: Annotated[
        str | None, typer.Option("--get", metavar="PATH", help="Print one answer, as of /api/workspace, and end.")
    ] = None,
) -> None:
    """A local page: every head of a model on your text, any recording at any length, experiments, sizes, lessons.

    For example: manyheads studio recordings/ --folder pruned/
    """
    talk = Talk()
    with talk.step("starting the studio"):
        desk = desk_of(paths or [], model, folder)
    if get is not None:
        print_answer(desk, get)
        return
    open_studio(talk, desk, host=host, port=port, browser=browser)


def desk_of(paths: list[Path], model: str | None, folder: Path | None) -> Any:
    """What the studio works with. Errors: ModelError where its extra is missing, FileAccessError."""
    if lacking := [name for name in SERVER if find_spec(name) is None]:
        raise ModelError(f'the studio needs {" and ".join(lacking)}: pip install "manyheads[studio]".')
    from manyheads.studio import Desk, Workspace

    workspace = Workspace.of(paths, model, folder)
    first = next(iter(workspace.files), None) if len(paths) == 1 and paths[0].is_file() else None
    return Desk(workspace, None if first is None else workspace.file_id(first))


def print_answer(desk: Any, path: str) -> None:
    """One answer on stdout: JSON as text, arrays as bytes. Raises TextError for what is no 200."""
    from manyheads.studio import answer, create_app

    if not path.startswith("/"):
        raise TextError(f"--get {path}: give a path, as /api/workspace.")
    response = answer(create_app(desk), "GET", path)
    desk.close()
    if response.status != 200:
        message = response.json().get("words", "") if "json" in response.kind else ""
        raise TextError(f"--get {path}: {response.status}. {message}".strip())
    if response.kind.startswith(("application/json", "text/")):
        emit(response.body.decode())
    else:
        sys.stdout.buffer.write(response.body)


def open_studio(
    talk: Talk, desk: Any, *, host: str = "127.0.0.1", port: int | None = None, browser: bool = True, view: str = ""
) -> None:
    """Serve until Ctrl-C, and say where. `view` is the fragment that the page opens at."""
    from manyheads.studio import bind, serve, warm

    serving = bind(desk, host, port)
    warm(desk)
    address = f"{serving.address}{view}"

    def ready() -> None:
        emit(f"The studio is at {address}")
        talk.note("Ctrl-C stops it.")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(serving, ready=ready)
