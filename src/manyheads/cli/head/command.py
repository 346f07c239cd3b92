"""`manyheads head L0H2 "text"`: one head in words, where each word of a text looks, and a small map.

One text, or one window of a longer one (`--window`): `look` reads all of it. A picture (`--image`): `head_picture`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from manyheads import figures, models, statistics
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    AsJson,
    ModelName,
    NoCache,
    Source,
    TextFile,
    TextWords,
    check_output,
    read_source,
    source_note,
    to_file,
)
from manyheads.cli.head.looked import HeadLooked, head_of
from manyheads.cli.role_words import UNLABELLED, role_of
from manyheads.cli.steps import label_heads, load_model
from manyheads.cli.terminal.console import emit_document
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, TextError
from manyheads.heads import Head
from manyheads.spec import CROSS

MOST_CELLS, BLOCKS = 512, 256  # a picture shows every weight of up to 512 tokens, the means of blocks of a longer text
TOP_HELP = "How many keys to show for each word."
WINDOW_HELP = "Which window of a long text, from 1."
IMAGE_HELP = "Look at this picture, with a model of pictures."
PATCH_HELP = "Whose look, row and column from 0; else the class token's."


def head(
    name: Annotated[str, typer.Argument(metavar="HEAD", help="Layer and head, both from 0: L0H2.", show_default=False)],
    text: TextWords = None,
    file: TextFile = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    plot: Annotated[Path | None, to_file("--plot", "Draw the head's map: .png, .svg or .pdf.")] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=10, help=TOP_HELP)] = 3,
    window: Annotated[int, typer.Option("--window", metavar="N", min=1, help=WINDOW_HELP)] = 1,
    no_cache: NoCache = False,
    image: Annotated[str | None, typer.Option("--image", metavar="FILE", help=IMAGE_HELP)] = None,
    patch: Annotated[str | None, typer.Option("--patch", metavar="R,C", help=PATCH_HELP)] = None,
) -> None:
    """One head: its role with the evidence, where each word looks, the strongest links, a small map.

    For example: manyheads head L2H9 "Ada gave Grace the key, and Grace kept the key."
    """
    words = text or []
    Head.parse(name)
    if image is not None:
        from manyheads.cli.head.picture import look_at_picture

        if words or file is not None:
            raise TextError("a text and --image were given: give one of them.")
        return look_at_picture(name, image, patch, model, plot, as_json)
    if patch is not None:
        raise TextError(f"--patch {patch} is a place in a picture: give the picture too, --image.")
    check_output(plot, "--plot", PICTURE_ENDINGS)
    source, talk = read_source(words, file, model), Talk()
    if note := source_note(words, file, model):
        talk.note(note)
    looked = gather(talk, source, name, model, window, plot=plot, remember=not no_cache)
    if as_json:
        from manyheads.cli.head.page import document

        emit_document(document(looked, top))
    else:
        from manyheads.cli.head.page import print_page

        print_page(looked, top)


def gather(
    talk: Talk, source: Source, name: str, model: str, window: int, *, plot: Path | None = None, remember: bool = True
) -> HeadLooked:
    """Load, label, record and measure one text or window, and draw the picture that was asked for."""
    from manyheads.models.describe import TEXT
    from manyheads.models.inputs.media import require_reader

    begun = time.perf_counter()
    lm = load_model(talk, model)
    require_reader(lm, TEXT)
    head = head_of(lm, name)
    if head.stack == CROSS:
        raise ModelError(
            f"{head} is cross-attention, from what is written to what was read, and this shows a text's attention to "
            f"itself: manyheads look --html draws its map; in Python, mh.record(lm, text, generate=20).stacks['cross']."
        )
    text, long, num_windows = _window(lm, source, window)
    labels = label_heads(talk, lm, remember=remember)
    role = role_of(labels, head)
    with talk.step("reading your text"):
        layer, table = _read(lm, head, text, long, labels)
    written = []
    if plot is not None:
        written.append(_plot(talk, lm, layer, head, role, plot))
    seconds = time.perf_counter() - begun
    return HeadLooked(lm, model, source, head, role, labels, layer, table, window, num_windows, tuple(written), seconds)


def _window(lm: Any, source: Source, window: int) -> tuple[str, str, int]:
    """The text of the window asked for, how to read it, and how many windows there are."""

    pieces = models.read_texts(lm, source.text).pieces
    if window > len(pieces):
        count = f"{len(pieces)} windows" if len(pieces) > 1 else "one window: it fits the model's positions"
        raise TextError(f"--window {window}: the text has {count}.")
    if len(pieces) == 1:
        return source.text, "whole", 1
    return pieces[window - 1].text, "truncate", len(pieces)


def _read(lm: Any, wanted: Any, text: str, long: str, labels: Any) -> tuple[Any, Any]:
    """The record of the head's layer, sinks marked in its tokens, and the statistics of every head."""
    from dataclasses import replace

    recording = models.record(lm, text, long=long)
    layer = next(stack for stack in recording.stacks[wanted.stack] if stack.site.layer == wanted.layer)
    about = (role.evidence.statistic for role in labels.roles)
    names = tuple(dict.fromkeys((*statistics.DEFAULT, *about)))
    table = statistics.measure(lm, text, names, long=long, sinks=labels.sinks if labels.roles else None)
    return replace(layer, tokens=layer.tokens.with_sinks(table.sinks)), table


def _plot(talk: Talk, lm: Any, layer: Any, wanted: Any, role: Any, path: Path) -> str:
    """Draw the head's map; what it shows, in words."""
    from manyheads.cli.head.page import small_map, word

    with talk.step(f"drawing {path.name}"):
        weights, length = small_map(layer, wanted.index, MOST_CELLS, BLOCKS), int(layer.lengths[0])
        complete = len(weights) == length
        role_words = f", {role.name}" if role is not None and role.name != UNLABELLED else ""
        figures.save_head(
            weights,
            [word(layer.tokens, position) for position in range(length)] if complete else None,
            path,
            title=f"{wanted}{role_words}, in {lm.name}",
            subtitle=role.evidence.words if role is not None and role_words else "",
            note=""
            if complete
            else f"means of blocks of about {length / len(weights):.0f} x {length / len(weights):.0f}",
        )
    return f"{path}, the map of {wanted} on this text"
