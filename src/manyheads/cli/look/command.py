"""`manyheads look`: what every head of a model does, and what it does on your text.

Roles come from the bundled page (hundreds of texts, measured once for each model), never from one sentence; the
numbers of your text stand beside them.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from manyheads import figures, statistics, studio
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    TABLE_ENDINGS,
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
    way_to_read,
)
from manyheads.cli.look.looked import SHOWN, Looked
from manyheads.cli.steps import label_heads, load_model
from manyheads.cli.terminal.console import emit_document
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, TextError

PAGE_ENDINGS = (".html", ".htm")


def look(
    text: TextWords = None,
    file: TextFile = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    save: Annotated[Path | None, to_file("--save", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw every head's map: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, to_file("--html", "Write one page with every head, for any browser.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Then open the studio at this text, until Ctrl-C.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text longer than the model's positions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Refuse a text longer than the model's positions.")] = False,
    statistics: Annotated[
        str, typer.Option("--statistics", metavar="NAMES", help="default, all, or names separated by commas.")
    ] = "default",
    no_cache: NoCache = False,
) -> None:
    """What every head of a model does, with the evidence, and its numbers on your text.

    A text longer than the model's positions is read in overlapping windows.

    Roles rest on hundreds of texts that come with manyheads, measured once for each model and remembered.

    For example: manyheads look --file novel.txt --plot grid.png
    """
    words, long = text or [], way_to_read(truncate, whole)
    check_output(save, "--save", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    check_output(html, "--html", PAGE_ENDINGS)
    _check_studio(html is not None, open_page, as_json)
    source, talk = read_source(words, file, model), Talk()
    if note := source_note(words, file, model):
        talk.note(note)
    looked = gather(talk, source, model, statistics, long, save=save, plot=plot, html=html, remember=not no_cache)
    if as_json:
        from manyheads.cli.look.page import document

        emit_document(document(looked))
    else:
        from manyheads.cli.look.page import print_page

        print_page(looked)
    if open_page:
        _open(talk, looked)


def gather(
    talk: Talk,
    source: Source,
    model: str,
    statistics: str,
    long: str,
    *,
    save: Path | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    remember: bool = True,
) -> Looked:
    """Load, label and measure, and write the files that were asked for."""
    times = [time.perf_counter()]
    statistic_names = _asked(talk, statistics)
    lm = load_model(talk, model)
    times.append(time.perf_counter())
    labels = label_heads(talk, lm, remember=remember)
    times.append(time.perf_counter())
    table = _measure(talk, lm, source, labels, statistic_names, long)
    times.append(time.perf_counter())
    written = []
    if save is not None:
        from manyheads.cli.look.page import frame
        from manyheads.statistics import write_frame

        write_frame(frame(labels, table, statistic_names), save)
        written.append(f"{save}, a row a head: its role, and {len(statistic_names)} statistics of your text")
    if plot is not None:
        written.append(_plot(talk, lm, source, labels, plot, long))
    if html is not None:
        written.append(_report(talk, lm, source, labels, html, long))
    steps = dict(zip(("model", "labels", "text"), map(operator.sub, times[1:], times), strict=True))
    seconds = {**steps, "all": time.perf_counter() - times[0]}
    options = tuple(name for name, path in (("--save", save), ("--plot", plot), ("--html", html)) if path is not None)
    return Looked(lm, model, source, labels, table, statistic_names, tuple(written), seconds, options)


def _asked(talk: Talk, statistics: str) -> tuple[str, ...]:
    """The names of what is to be measured, checked before a model is loaded."""
    with talk.step("starting"):
        from manyheads.statistics.table import choose

        names = [name.strip() for name in statistics.split(",") if name.strip()]
        return tuple(statistic.name for statistic in choose(names[0] if names in (["default"], ["all"]) else names))


def _measure(talk: Talk, lm: Any, source: Source, labels: Any, asked: Sequence[str], long: str) -> Any:
    """The table of the text: what was asked for, what the page shows, and what each head's role is about."""
    about = (role.evidence.statistic for role in labels.roles)
    names = tuple(dict.fromkeys((*asked, *SHOWN, *about)))
    sinks = labels.sinks if labels.roles else None
    with talk.step("reading your text") as progress:
        return statistics.measure(lm, source.text, names, long=long, sinks=sinks, progress=progress)


def _plot(talk: Talk, lm: Any, source: Source, labels: Any, path: Path, long: str) -> str:
    """Draw the grid of pooled maps; what it shows, in words."""

    with talk.step("reading your text for the maps") as progress:
        maps = statistics.pooled_maps(lm, source.text, long=long, progress=progress)
    with talk.step(f"drawing {path.name}"):
        note = f"Roles rest on {labels.num_texts:,} {labels.texts_are}." if labels.roles else ""
        figures.save_grid(maps, labels.roles or None, path, title=f"{lm.name}: {len(maps.heads)} heads", note=note)
    return f"{path}, the map of every head: {maps.because}"


def _check_studio(html: bool, open_page: bool, as_json: bool) -> None:
    """Whether the page can be written or opened at all, known before the model is loaded."""
    from importlib.util import find_spec

    if (html or open_page) and find_spec("fastapi") is None:
        option = "--html" if html else "--open"
        raise ModelError(f'{option} needs the studio: pip install "manyheads[studio]".')
    if open_page and as_json:
        raise TextError("--json writes data to stdout and ends, --open stays until Ctrl-C: give one of them.")


def _report(talk: Talk, lm: Any, source: Source, labels: Any, path: Path, long: str) -> str:
    """Write the page; what it holds, in words."""

    with talk.step(f"writing {path.name}") as progress:
        words = studio.write_report(path, lm, source.text, labels=labels, long=long, progress=progress)
    return f"{path}, a page for any browser, without a network: {words}"


def _open(talk: Talk, found: Looked) -> None:
    """Serve the studio with this model, its roles and this text, and open it there."""
    from manyheads.cli.studio import open_studio

    with talk.step("starting the studio"):
        desk = studio.desk_with(found.lm, found.labels)
        studio.open_text(desk, found.lm, found.source.text)
    open_studio(talk, desk, view=studio.address_of(found.lm.name, found.source.text))
