"""`manyheads publish`: recordings and texts as a folder that any static host serves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from manyheads import studio
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    NoCache,
    label_heads,
    load_model,
)
from manyheads.cli.terminal.console import emit, emit_document
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, RecordingError

FOLDER_HELP = "The folder to write: new, empty, or an earlier site, which is replaced."


def publish(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help=FOLDER_HELP)],
    recordings: Annotated[list[Path] | None, typer.Argument(metavar="RECORDINGS", help="Files (.heads).")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="A text to record; may be repeated.")
    ] = None,
    title: Annotated[str, typer.Option("--title", metavar="WORDS", help="The title of the index.")] = (
        "Attention, head by head"
    ),
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

    For example: manyheads publish site/ novel.heads --text "The cat sat on the mat."
    """
    if find_spec("fastapi") is None:
        raise ModelError('publish needs the studio: pip install "manyheads[studio]".')
    if not recordings and not text:
        raise RecordingError('there is nothing to publish: give recordings (.heads), or --text "a text", or both.')
    # Before the model is loaded: a mistyped path is no reason to wait.
    studio.require_publishable(folder, recordings or (), text or ())
    talk = Talk()
    lm = load_model(talk, ModelChoice(model, device, dtype))
    labels = label_heads(talk, lm, remember=not no_cache)
    with talk.step(f"writing {folder.name}") as progress:
        words = studio.publish(
            folder,
            recordings or (),
            texts=text or (),
            lm=lm,
            labels={lm.name: labels} if labels.roles else {},
            exact=exact,
            title=title,
            progress=lambda _, done, total: progress(done, total),
        )
    if as_json:
        emit_document({"folder": str(folder), "written": words, "open": "index.html"})
        return
    emit(f"Wrote {folder}: {words}")
    emit(f"Look at it:  python -m http.server -d {folder}")
