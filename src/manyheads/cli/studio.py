"""The commands of the studio: `studio`, the local page, until Ctrl-C; `publish`, a folder that any static host serves.

`studio --get PATH` gives one answer of the page's server, without a socket.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from manyheads import cards as head_cards
from manyheads import studio as local_page
from manyheads.cli import start
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    NoCache,
    chosen_place,
    label_heads,
    load_model,
)
from manyheads.cli.cards import make_cards
from manyheads.cli.terminal.console import emit, emit_document
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import FileAccessError, ModelError, RecordingError, TextError

RECORDINGS_HELP = "Recordings (.heads), watched trainings (heads.parquet), or folders with these or models."
MODEL_HELP = "Also offer this model: a folder or a hub name."
FOLDER_HELP = "Where pruned checkpoints may be written."
HOST_HELP = "The address to listen on. Any other than the default needs the token that is printed."
PORT_HELP = "The port. Default: the first free one from 8765."
GET_HELP = "Print the answer to one path, such as /api/workspace, and exit."

SERVER = ("fastapi", "uvicorn")


def studio(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="RECORDINGS OR FOLDER", help=RECORDINGS_HELP)] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)] = None,
    folder: Annotated[Path | None, typer.Option("--folder", metavar="DIR", help=FOLDER_HELP)] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help=HOST_HELP)] = "127.0.0.1",
    port: Annotated[int | None, typer.Option("--port", metavar="N", min=0, max=65535, help=PORT_HELP)] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    get: Annotated[str | None, typer.Option("--get", metavar="PATH", help=GET_HELP)] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """A local page: every head of a model on your text, any recording at any length, experiments, sizes, lessons.

    For example: manyheads studio recordings/ --folder pruned/
    """
    talk = ProgressLine()
    with talk.step("starting the studio"):
        desk = desk_of(paths or [], model, folder, device, dtype)
    if get is not None:
        print_answer(desk, get)
        return
    only_trainings = bool(desk.workspace.histories) and not desk.workspace.files
    open_studio(talk, desk, host=host, port=port, browser=browser, view="#/training" if only_trainings else "")


def desk_of(
    paths: list[Path], model: str | None, folder: Path | None, device: str | None, dtype: str | None
) -> local_page.StudioSession:
    """What the studio works with. Errors: ModelError where its extra or the device is missing, FileAccessError."""
    if lacking := [name for name in SERVER if find_spec(name) is None]:
        raise ModelError(f'the studio needs {" and ".join(lacking)}: pip install "manyheads[studio]".')
    chosen_place(device)
    # A bundled model that is not here yet stays in the list, and the page starts with the next one that is.
    workspace = local_page.Workspace.of(paths, model or DEFAULT_MODEL, folder, device=device, dtype=dtype)
    first = next(iter(workspace.files), None) if len(paths) == 1 and paths[0].is_file() else None
    return local_page.StudioSession(workspace, None if first is None else workspace.file_id(first))


def print_answer(desk: local_page.StudioSession, path: str) -> None:
    """One answer on stdout: JSON as text, arrays as bytes. Raises TextError for what is no 200."""
    if not path.startswith("/"):
        raise TextError(f"--get {path}: give a path, as /api/workspace.")
    response = local_page.answer(local_page.create_app(desk), "GET", path)
    desk.close()
    if response.status != 200:
        message = response.json().get("words", "") if "json" in response.kind else ""
        raise TextError(f"--get {path}: {response.status}. {message}".strip())
    if response.kind.startswith(("application/json", "text/")):
        emit(response.body.decode())
    else:
        sys.stdout.buffer.write(response.body)


def open_studio(
    talk: ProgressLine,
    desk: local_page.StudioSession,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    view: str = "",
) -> None:
    """Serve until Ctrl-C, and say where. `view` is the fragment that the page opens at."""
    serving = local_page.bind(desk, host, port)
    local_page.warm(desk)
    address = f"{serving.address}{view}"

    def ready() -> None:
        emit(f"The studio is at {address}")
        talk.note("Ctrl-C stops it.")
        if browser:
            import webbrowser

            webbrowser.open(address)

    start.end()
    local_page.serve(serving, ready=ready)


SITE_HELP = "The folder to write: new, empty, or an earlier site, which is replaced."
CARDS_HELP = "Instead of recordings, a card for every head of this model; may be repeated."


def publish(
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", help=SITE_HELP, show_default=False)] = None,
    recordings: Annotated[list[Path] | None, typer.Argument(metavar="RECORDINGS", help="Files (.heads).")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="A text to record; may be repeated.")
    ] = None,
    cards: Annotated[list[str] | None, typer.Option("--cards", metavar="MODEL", help=CARDS_HELP)] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="FOLDER, said as an option.")] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="WORDS", help="The title of the index.", show_default=False)
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Store q, k and lse in the pages, so that they compute any cell.")
    ] = False,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    no_cache: NoCache = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Write recordings as a static site: an index with search, a page for each. Any web host serves it, below any path.

    An earlier site in FOLDER is replaced as a whole, not added to. Recordings of the chosen model have its roles; those
    of others are shown without.

    With --cards: a card for every head of the models named, an index with a picture of each model and a search.
    Each head is left out on its own, which takes most of the time: many minutes for smollm2.

    For example: manyheads publish site/ novel.heads --text "The cat sat on the mat."
    """
    if (folder is None) == (out is None):
        named = "none was given" if folder is None else f"{folder} and --out {out} were given"
        raise FileAccessError(f"publish writes one folder, and {named}: name it once, as in manyheads publish site/.")
    folder = out if folder is None else folder
    assert folder is not None
    if cards:
        if recordings or text or exact:
            other = str(recordings[0]) if recordings else "--text" if text else "--exact"
            raise RecordingError(f"--cards makes a site of cards alone, and {other} was given: publish that by itself.")
        publish_cards(folder, cards, title or "", as_json, not no_cache, device, dtype)
        return
    if find_spec("fastapi") is None:
        raise ModelError('publish needs the studio: pip install "manyheads[studio]".')
    if not recordings and not text:
        raise RecordingError('there is nothing to publish: give recordings (.heads), or --text "a text", or both.')
    # Before the model is loaded: a mistyped path is no reason to wait.
    local_page.require_publishable(folder, recordings or (), text or ())
    talk = ProgressLine()
    lm = load_model(talk, ModelChoice(model, device, dtype))
    labels = label_heads(talk, lm, remember=not no_cache)
    with talk.step(f"writing {folder.name}") as progress:
        words = local_page.publish(
            folder,
            recordings or (),
            texts=text or (),
            lm=lm,
            labels={lm.name: labels} if labels.roles else {},
            exact=exact,
            title=title or "Attention, head by head",
            progress=lambda _, done, total: progress(done, total),
        )
    if as_json:
        emit_document({"folder": str(folder), "written": words, "open": "index.html"})
        return
    emit(f"Wrote {folder}: {words}")
    emit(f"Look at it:  python -m http.server -d {folder}")


def publish_cards(
    folder: Path, names: list[str], title: str, as_json: bool, remember: bool, device: str | None, dtype: str | None
) -> None:
    """`publish --cards`: the cards of one model after another, then the site. Each argument as of `publish`."""
    if len(set(names)) < len(names):
        raise ModelError(f"--cards {' --cards '.join(names)}: a model is named twice. Name each once.")
    # Before a model is loaded: a mistyped path is no reason to wait.
    head_cards.require_writable(folder)
    talk = ProgressLine()
    made: list[head_cards.Card] = []
    for name in names:
        made += make_cards(talk, load_model(talk, ModelChoice(name, device, dtype)), remember=remember)
    with talk.step(f"writing {folder.name}"):
        words = head_cards.write_cards(folder, made, title=title)
    if as_json:
        emit_document({"folder": str(folder), "written": words, "open": "index.html"})
        return
    emit(f"Wrote {folder}: {words}")
    emit(f"Look at it:  python -m http.server -d {folder}")
