"""`manyheads look`: what every head of a model does, and what it does on your text.

Roles come from the bundled texts (some 300, measured once for each model), never from one sentence; the
numbers of your text stand beside them. Shown as a page to read, as one JSON document, or as a frame with a row a head.
"""

from __future__ import annotations

import math
import operator
import re
import shlex
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from manyheads import figures, inputs, measurement, recording, studio
from manyheads import statistics as measures
from manyheads.base import Json, plural, quoted, users_home
from manyheads.cli.arguments import (
    DEFAULT_MODEL,
    PICTURE_ENDINGS,
    QUOTED_WIDTH,
    TABLE_ENDINGS,
    YOURS,
    AsJson,
    DeviceName,
    DtypeName,
    ModelChoice,
    ModelName,
    NoCache,
    Source,
    TargetText,
    TextFile,
    TextWords,
    check_output,
    label_heads,
    load_model,
    to_file,
    typed_source,
    way_to_read,
)
from manyheads.cli.look.ask_word import ask_word, show_word
from manyheads.cli.studio import open_studio
from manyheads.cli.terminal.console import (
    Column,
    clean,
    emit_document,
    hanging,
    lay_out_heads,
    link_colour,
    linked_sentence,
    offered,
    print_sections,
    shortened,
    stdout_console,
    wrapped,
)
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import ModelError, TextError
from manyheads.heads import layer_name
from manyheads.results import write_frame
from manyheads.roles.words import (
    ABSENT,
    CAVEAT,
    UNLABELLED,
    column_figures,
    figure,
    hue,
    letter_of,
    span,
)
from manyheads.spec import ModelSpec, sharing_words

if TYPE_CHECKING:
    import pandas as pd

    from manyheads.models import LoadedModel
    from manyheads.roles import HeadRole, PageLabels
PAGE_ENDINGS = (".html", ".htm")
STATISTICS_HELP = "default, all, or names and patterns, separated by commas."
FROM_HELP = "A word of the text: where it looks, in every head. 'it#2' is the second 'it'."
TO_HELP = "A word of the text: which words look at it. With --from: the heads that link the two."
SHOWN = ("entropy", "distance", "sink_mass", "duplicate_mass")
"""Statistics of your text that stand beside the roles unless others are asked for by name."""
TITLES = {"sink_mass": "sink", "duplicate_mass": "repeat"}
PAGE_WORDS, TEXT_WORDS = "on the bundled texts", "on your text"
LABEL_WIDTH = 9  # columns
GRID_ROWS = (
    12,
    16,
)  # layers in one block of the grid, at most: more stand beside it; the second where that is too wide
SHOWN_NUMBERS = 8  # of layers that attend, where not all do
SAMPLE_LENGTH = 300  # characters of a text in which the telling link is looked for


@dataclass(frozen=True)
class LookResult:
    """All that one look found: the labels from the page, the table of your text, a sentence of it, and what it took.

    `names` are the statistics that were asked for; the table may hold more. `written` are the files, in words, and
    `options` those that asked for them; `seconds` are those of the steps: loading the model, the labels, the text, and
    all. `recording` is that of the text, where something that was asked for needs one; `next`, what a language
    model writes after it.
    """

    lm: LoadedModel
    model: ModelChoice
    source: Source
    labels: PageLabels
    table: measures.HeadTable
    names: tuple[str, ...]
    written: tuple[str, ...]
    seconds: dict[str, float]
    options: tuple[str, ...] = ()
    sample: Sample | None = None
    recording: recording.Recording | None = None
    next: tuple[measurement.NextToken, ...] = ()

    def to_dict(self) -> Json:
        """Everything; null where there is no number."""
        lm, labels, table, source = self.lm, self.labels, self.table, self.source
        columns = {name: table.column(name) for name in table.names}
        heads = []
        for index, head in enumerate(table.heads):
            role = labels.role_of(head)
            heads.append({
                "head": str(head),
                "stack": head.stack,
                "layer": head.layer,
                "index": head.index,
                "role": None if role is None else role.name,
                "evidence": None if role is None else role.evidence.to_dict(),
                "page": labels.values.get(str(head)),
                "text": {name: measures.number(column[index]) for name, column in columns.items()},
            })  # fmt: skip
        return {
            "model": {"asked": self.model.name, "because": lm.because, **lm.spec.to_dict()},
            "text": {
                "origin": source.origin,
                "text": source.text,
                "tokens_read": table.sums.num_tokens,
                "texts_or_windows": table.sums.num_texts,
            },
            "page": labels.basis,
            "statistics": {
                statistic.name: {"unit": statistic.unit, "meaning": statistic.meaning, "source": statistic.source}
                for statistic in table.statistics
            },
            "next": [{"token": token, "probability": measures.number(chance)} for token, chance in self.next],
            "heads": heads,
            "notes": {**table.notes, "caveat": CAVEAT},
            "written": list(self.written),
            "seconds": {step: round(value, 3) for step, value in self.seconds.items()},
        }


def look(
    text: TextWords = None,
    file: TextFile = None,
    target: TargetText = None,
    model: ModelName = DEFAULT_MODEL,
    as_json: AsJson = False,
    out: Annotated[Path | None, to_file("--out", "Write the table: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, to_file("--plot", "Draw every head's map: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, to_file("--html", "Write one page with every head, for any browser.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Store q, k and lse in that page, so that it computes any cell.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Then open the studio on this text, until Ctrl-C.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text longer than the model's positions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Refuse a text longer than the model's positions.")] = False,
    statistics: Annotated[
        str,
        typer.Option("--statistics", metavar="NAMES", help="default, all, or names and patterns, separated by commas."),
    ] = "default",
    from_word: Annotated[str | None, typer.Option("--from", metavar="WORD", help=FROM_HELP)] = None,
    to_word: Annotated[str | None, typer.Option("--to", metavar="WORD", help=TO_HELP)] = None,
    complete: Annotated[bool, typer.Option("--all", help="Also print a row for each head, and the evidence.")] = False,
    no_cache: NoCache = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """What every head of a model does, with the evidence, and its numbers on your text.

    A text longer than the model's positions is read in overlapping windows.

    Roles rest on hundreds of texts that come with manyheads, measured once for each model and remembered.

    For example: manyheads look "The cat sat because it was tired." --from it --to cat
    """
    words, long = text or [], way_to_read(truncate, whole)
    check_output(out, "--out", TABLE_ENDINGS)
    check_output(plot, "--plot", PICTURE_ENDINGS)
    check_output(html, "--html", PAGE_ENDINGS)
    if exact and html is None:
        raise TextError("--exact needs a page to write: also give --html page.html.")
    if (html is not None or open_page) and find_spec("fastapi") is None:
        option = "--html" if html is not None else "--open"
        raise ModelError(f'{option} needs the studio: pip install "manyheads[studio]".')
    if open_page and as_json:
        raise TextError("--json writes data to stdout and ends, --open stays until Ctrl-C: give one of them.")
    about_words = from_word is not None or to_word is not None
    drawn = {"--plot": plot is not None, "--html": html is not None, "--open": open_page}
    drawn["--statistics"] = statistics != "default"
    if about_words and any(drawn.values()):
        option = next(name for name, is_given in drawn.items() if is_given)
        raise TextError(f"--from and --to rank the heads by one link, {option} shows all links: give one or the other.")
    if target is not None and (about_words or plot is not None or html is not None or open_page):
        raise TextError(
            "--target is for the table alone: leave out --from, --to, --plot, --html and --open. In Python, "
            "mh.record(lm, [(text, target)]) holds the maps."
        )
    talk, choice = ProgressLine(), ModelChoice(model, device, dtype)
    source = typed_source(talk, words, file, model, target)
    if about_words:
        answer = ask_word(talk, source, choice, from_word, to_word, long, out=out, remember=not no_cache)
        return show_word(answer, as_json, complete)
    looked = gather(
        talk, source, choice, statistics, long, out=out, plot=plot, html=html, exact=exact, open_page=open_page,
        remember=not no_cache,
    )  # fmt: skip
    if as_json:
        emit_document(looked.to_dict())
    else:
        print_page(looked, complete or statistics != "default")
    if open_page:
        with talk.step("starting the studio"):
            desk = studio.desk_with(looked.lm, looked.labels)
            # The page reads a text in windows: one that was cut is read anew.
            known = looked.recording if long == "windows" else None
            studio.open_text(desk, looked.lm, looked.source.text, recording=known)
        open_studio(talk, desk, view=studio.address_of(looked.lm.name, looked.source.text))


def gather(
    talk: ProgressLine,
    source: Source,
    model: ModelChoice,
    statistics: str,
    long: inputs.Long,
    *,
    out: Path | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    exact: bool = False,
    open_page: bool = False,
    remember: bool = True,
) -> LookResult:
    """Load, label and read the text once, and write the files that were asked for.

    - `talk`: the line on stderr.
    - `source`: the text, and what names it on a command line.
    - `model`: which model to load, and where.
    - `statistics`: those of --statistics, as typed.
    - `long`: what becomes of a text over the model's positions.
    - `save`: where the table goes.
    - `plot`: where the picture of all maps goes.
    - `html`: where the page with every head goes.
    - `exact`: that page holds q, k and lse.
    - `open_page`: the whole text is recorded, for a page that opens.
    - `remember`: take labels that are known, and store those that are not.
    """
    times = [time.perf_counter()]
    with talk.step("starting"):  # misspelt statistics are refused before a model is loaded
        # Imports torch, for which --help is not to wait: within the step, so that the wait is announced.
        from manyheads.statistics import choose

        listed = [name.strip() for name in statistics.split(",") if name.strip()]
        chosen = choose(listed[0] if listed in (["default"], ["all"]) else listed)
        names = tuple(statistic.name for statistic in chosen)
    lm = load_model(talk, model)
    source = source.shown_to(lm)
    times.append(time.perf_counter())
    labels = label_heads(talk, lm, remember=remember)
    times.append(time.perf_counter())
    # What was asked for, what the page shows, and what each head's role is about: broad heads are held to evenness.
    about = tuple(role.evidence.statistic for role in labels.roles)
    evenness = ("entropy.uniform",) if "entropy" in about else ()
    measured = tuple(dict.fromkeys((*names, *SHOWN, *about, *evenness)))
    sinks = labels.sinks if labels.roles else None
    with talk.step("reading your text") as progress:
        reading = inputs.read(lm, inputs.Inputs(source.given, long=long))
        begin = beginning_of(reading.pieces[0].text)
        sentence, pooling = measurement.SampleLink(len(begin)), None
        following = measurement.NextTokens(reading)
        watching: list[measurement.Beside] = [sentence]
        if plot is not None:
            watching.append(pooling := measurement.MapPooling(reading))
        # Longer texts are read by the page by themselves, as far as it reads them.
        records = html is not None and len(source.text) <= studio.MOST_CHARS
        records |= open_page and long == "windows" and len(source.text) <= studio.MAX_TEXT
        keep = studio.keep_for(lm, reading.num_tokens) if records else ()
        table, record = measurement.study(
            lm, reading, measured, keep=keep, sinks=sinks, beside=watching, following=following, progress=progress
        )
        sample = None
        if sentence.link is not None:
            sample = Sample(begin, tuple(sentence.words), sentence.link, begin == source.text)
    times.append(time.perf_counter())
    written = []
    if out is not None:
        write_frame(frame(labels, table, names), out)
        written.append(f"{out}, a row a head: its role, and {len(names)} statistics of your text")
    if plot is not None and pooling is not None:
        with talk.step(f"drawing {plot.name}"):
            maps = pooling.maps(long)
            note = f"Roles rest on {labels.num_texts:,} {labels.texts_are}." if labels.roles else ""
            figures.save_grid(maps, labels.roles or None, plot, title=f"{lm.name}: {len(maps.heads)} heads", note=note)
        written.append(f"{plot}, the map of every head: {maps.because}")
    if html is not None:
        with talk.step(f"writing {html.name}") as progress:
            words = studio.write_report(
                html, lm, source.text, labels=labels, long=long, progress=progress, exact=exact, recording=record
            )
        written.append(f"{html}, a page for any browser, without a network: {words}")
    steps = dict(zip(("model", "labels", "text"), map(operator.sub, times[1:], times), strict=True))
    seconds = {**steps, "all": time.perf_counter() - times[0]}
    options = tuple(name for name, path in (("--out", out), ("--plot", plot), ("--html", html)) if path is not None)
    return LookResult(
        lm, model, source, labels, table, names, tuple(written), seconds, options, sample, record, following.tokens
    )


# ---------------------------------------------------------------------------------------------------------------------
# The page. First what heads do, as a grid and a line for each role; a sentence of the text with the link that tells
# most; what to try next. The evidence, a row for each head, and where all numbers are from: with --all.


@dataclass(frozen=True)
class Sample:
    """A short text read for its most telling link: its words, and the link. `whole`: whether it is all of the text."""

    text: str
    words: tuple[recording.SpacedWord, ...]
    link: recording.HeadLink
    whole: bool


def beginning_of(text: str) -> str:
    """The text, or the first sentences of a long one, for a sentence to show."""
    if len(text) <= SAMPLE_LENGTH:
        return text
    sentences = re.match(r".*[.!?](?=\s)", text[:SAMPLE_LENGTH], re.DOTALL)
    return sentences[0] if sentences else text[:SAMPLE_LENGTH].rsplit(None, 1)[0]


def print_page(looked: LookResult, complete: bool) -> None:
    """`complete`: with the evidence, a row for each head, and where every number is from."""
    console, sample = stdout_console(), looked.sample
    labels, table, source, spec = looked.labels, looked.table, looked.source, looked.lm.spec
    # Which model it is, and all that whoever reads on must know: what was cut or written, and why there is no role.
    millions = spec.num_parameters / 1e6
    size = f"{millions:,.1f} million parameters" if millions >= 0.1 else f"{spec.num_parameters:,} parameters"
    title = Text.assemble((clean(looked.lm.name), "bold"), f" · {shape_in_words(spec)} · {size}")
    facts = [
        ("windows", table.notes.get("windows", "")),
        ("decoder", table.notes.get("decoder", "")),
        ("roles", "" if labels.roles else f"none: {labels.because}"),
        *(("wrote", path) for path in looked.written),
    ]
    sections = [[title, *_facts(facts, console)], finding_lines(looked, console)]
    if sample is not None:  # the sentence, with its most telling link
        where = f"In {source.origin}" if source.own else "In your text" if sample.whole else "Where your text begins"
        link = sample.link
        words = (
            f"{where}, {link.head} looks from {quoted(link.query)} to {quoted(link.key)} with "
            f"{link.weight:.0%} of its attention ({link.chance:.0%} by chance)."
        )
        lines = wrapped(clean(words), console, "bold")
        colour = link_colour(labels.role_of(link.head))
        label = f"{link.head} {link.weight:.0%}"
        sections.append([*lines, *linked_sentence(sample.words, link, label, colour, console)])
    if looked.next:
        shown = [looked.next[0], *(token for token in looked.next[1:] if token.probability >= 0.005)]
        guesses = ", ".join(f"{quoted(token.strip() or token)} {chance:.0%}" for token, chance in shown)
        sections.append(hanging(Text("Next comes ", style="bold"), clean(guesses), console.width))
    if complete:
        sections += [_remarks(looked, console), _table(looked, console)]
    sections.append(offered(_offers(looked, sample, complete), console))
    if complete:
        # What was read, what the roles rest on, where the model is from, and how long it took.
        seconds, error = looked.seconds, table.notes.get("guard_error", "?")
        count = f" · {table.sums.num_tokens:,} tokens{f', {source.origin}' if source.own else ''}"
        text = shortened(source.text, console.width - LABEL_WIDTH - len(count) - 2)
        page = f"{seconds['labels']:.1f} to read the page, " if seconds["labels"] >= 0.05 else ""
        steps = f"{seconds['model']:.1f} to load the model, {page}{seconds['text']:.1f} to read the text"
        basis = f"rest on {labels.num_texts:,} {labels.texts_are}, {labels.num_tokens:,} tokens; {labels.because}"
        origin = [
            ("text", f'"{text}"{count}'),
            ("roles", basis if labels.roles else ""),
            ("weights", f"exact: {table.notes.get('backend')}; error against the model's own output at most {error}"),
            ("took", f"{seconds['all']:.1f} seconds: {steps}"),
            ("loaded", looked.lm.because),
        ]
        sections.append(_facts(origin, console))
    else:  # where the numbers are from, in one line
        known = [words for words in ("remembered", "shipped") if f"{words} " in labels.because.partition(",")[0]]
        remembered = known[0] if known else "measured now"
        parts = [
            plural(table.sums.num_tokens, "token"),
            f"roles {remembered}" if labels.roles else "",
            f"weights exact, error at most {table.notes.get('guard_error', '?')}",
            f"{looked.seconds['all']:.1f} seconds",
        ]
        lines = [Text(" · ".join(filter(None, parts)), style="dim")]
        if "not remembered" in labels.because:  # so every look takes as long: its reason is not for --all alone
            lines += _facts([("roles", labels.because)], console)
        sections.append(lines)
    print_sections(sections, console)


def _facts(facts: list[tuple[str, str]], console: Console) -> list[Text]:
    labelled = ((Text(f"{name:<{LABEL_WIDTH}}", style="dim"), home(value)) for name, value in facts if value)
    return [line for label, value in labelled for line in hanging(label, value, console.width)]


def finding_lines(looked: LookResult, console: Console) -> list[Text]:
    """The grid of role letters, with a line for each role beside it, or below where there is no room."""
    labels = looked.labels
    if not labels.roles:
        return []
    grid, about_grid = _grid(looked, console)
    lines = _summary(looked, "chance")
    wide = max((line.cell_len for line in grid), default=0)
    column = max(line.cell_len for line in lines)
    if wide + 3 + column <= console.width:
        grid += [Text()] * (len(lines) - len(grid))
        lines += [Text()] * (len(grid) - len(lines))
        pairs = zip(grid, lines, strict=True)
        body = [Text.assemble(cells, " " * (wide + 3 - cells.cell_len), line) for cells, line in pairs]
    elif 2 * (column := max(line.cell_len for line in _summary(looked, "vs"))) + 2 <= console.width:
        lines = _summary(looked, "vs")
        half = -(-len(lines) // 2)
        pairs = zip_longest(lines[:half], lines[half:], fillvalue=Text())
        body = [*grid, *(Text.assemble(left, " " * (column + 2 - left.cell_len), right) for left, right in pairs)]
    else:
        body = [*grid, *lines]
    for line in body:
        line.rstrip()
    basis = (
        f"Beside each role its strongest head: score and chance on texts on which it was not chosen. Roles rest on "
        f"{labels.num_texts:,} {labels.texts_are}: on others some heads have another role (manyheads roles). {CAVEAT}"
    )
    legend = "Rows are layers, columns heads; a letter is a role, a dot none." if grid else ""
    remarks = " ".join(filter(None, (legend, about_grid, basis)))
    title = Text(f"What the {len(labels.roles)} heads do", style="bold")
    return [title, *body, *wrapped(clean(remarks), console)]


def _grid(looked: LookResult, console: Console) -> tuple[list[Text], str]:
    """A letter for each head, coloured as its role, and a gap before heads of another key/value head; then, in words,
    what a gap means and what had no room."""
    names = {role.head: role.name for role in looked.labels.roles}
    by_layer: dict[tuple[str, int], dict[int, str]] = {}
    for head, name in names.items():
        by_layer.setdefault((head.stack, head.layer), {})[head.index] = name
    sites = {(site.stack, site.layer): site for site in looked.lm.spec.sites}
    sharing = {key: sites[key].num_heads // sites[key].num_kv_heads for key in by_layer}  # query heads of a group
    stacks: dict[str, list[int]] = {}
    for stack, layer in by_layer:
        stacks.setdefault(stack, []).append(layer)
    label = 1 + max(len(f"L{layer}") for _, layer in by_layer)

    def group_before(head: int, key: tuple[str, int]) -> int:
        """How many gaps are left of a head."""
        return head // sharing[key] if sharing[key] > 1 else 0

    def widths(blocks: list[tuple[str, list[int]]], cell: int, gap: int) -> list[int]:
        """The width of the first block, the first two, ..."""
        ends, end = [], -2
        for stack, layers in blocks:
            rows = [(1 + max(by_layer[stack, layer]), (stack, layer)) for layer in layers]
            end += label + 2 + max(heads * cell + gap * group_before(heads - 1, key) for heads, key in rows)
            ends.append(end)
        return ends

    def blocks_of(most: int) -> list[tuple[str, list[int]]]:
        """The layers of each stack in as few blocks as hold `most` of them, all but the last of one height."""
        heights = {stack: -(-len(layers) // -(-len(layers) // most)) for stack, layers in stacks.items()}
        return [
            (stack, layers[begin : begin + heights[stack]])
            for stack, layers in stacks.items()
            for begin in range(0, len(layers), heights[stack])
        ]

    # Low blocks before wide cells, but letters apart before low blocks; the gaps of groups go last.
    styles = [(most, cell, 1) for cells in ((3, 2), (1,)) for most in GRID_ROWS for cell in cells]
    styles.append((GRID_ROWS[-1], 1, 0))
    fitting = (style for style in styles if widths(blocks_of(style[0]), *style[1:])[-1] <= console.width)
    most, cell, gap = next(fitting, styles[-1])
    blocks = blocks_of(most)
    ends = widths(blocks, cell, gap)
    count = sum(end <= console.width for end in ends)
    remarks = []
    shared = sharing_words(sites[key] for key in by_layer)
    if shared and gap:
        parted = any(1 < sharing[key] < sites[key].num_heads for key in by_layer)
        remarks.append(f"{'Between gaps ' if parted else ''}{shared}.")
    if count < len(blocks):
        stack, layers = blocks[count]
        first = layer_name(stack, layers[0])
        remarks.append(f"No room here for {first} and the layers after it: --all lists every head, --plot draws all.")
    lines: list[Text] = []
    step = {3: 1, 2: 5, 1: 10}[cell]
    rows = max((len(layers) for _, layers in blocks[:count]), default=-2) + 1 + (len(stacks) > 1)
    for row in range(rows):
        line = Text()
        for place, (stack, layers) in enumerate(blocks[:count]):
            line.append(" " * (ends[place - 1] + 2 - line.cell_len) if place else "")
            index = row - 1 - (len(stacks) > 1)
            if index == -2:
                line.append(stack or "layers", style="dim")
                continue
            key = (stack, layers[max(index, 0)]) if index < len(layers) else (stack, layers[-1])
            heads = 1 + max(max(by_layer[stack, layer]) for layer in layers)
            places = [label + head * cell + gap * group_before(head, key) for head in range(heads)]
            left = line.cell_len
            if index == -1:
                # Where groups stand apart and not every head has its number, each group's first head has one.
                numbered = range(0, heads, sharing[key] if step > 1 and gap and 1 < sharing[key] < heads else step)
                for head in numbered:
                    line.append(" " * (left + places[head] + (cell == 3) - line.cell_len))
                    line.append(str(head), style="dim")
            elif index < len(layers):
                line.append(f"{f'L{layers[index]}':<{label}}", style="dim")
                of_layer = by_layer[key]
                for head in range(heads):
                    line.append(" " * (left + places[head] - line.cell_len))
                    name = of_layer.get(head)
                    letter = " " if name is None else letter_of(name)
                    line.append(letter.center(cell) if cell != 2 else f"{letter} ", style=badge(name or UNLABELLED))
        lines.append(line)
    return lines, " ".join(remarks)


def badge(name: str) -> str:
    """How a role's letter stands on its colour; heads that rest stand back, as they are half of a language model's."""
    if name == UNLABELLED:
        return "dim"
    return hue(name) if name.startswith("sink") else f"bold #ffffff on {hue(name)}"


def _summary(looked: LookResult, against: str) -> list[Text]:
    """A line for each role: how many heads have it, its letter, the strongest of them, and what chance would give."""
    groups = looked.labels.by_role()
    wide = max(len(clean(name)) for name in groups)
    head_width = max(len(str(role.head)) for role in looked.labels.roles)
    tight = against == "vs"  # beside another column of lines
    lines = []
    for name, roles in groups.items():
        line = Text.assemble(
            f"{len(roles):>{3 if tight else 4}} ", (f" {letter_of(name)} ", badge(name)), f" {clean(name):<{wide}}  "
        )
        evidence = roles[0].evidence
        if name == UNLABELLED:
            line.append("too little evidence", style="dim")
        else:
            line.append(f"{roles[0].head!s:<{head_width}} ", style="bold")
            if evidence.statistic == "entropy":
                line.append(f"{evidence.score / evidence.chance:>{4 if tight else 5}.0%} of even")
            else:
                line.append(f"{evidence.score:>{4 if tight else 5}.0%}").append(
                    f" ({against} {evidence.chance:.0%})", style="dim"
                )
        lines.append(line)
    return lines


def _offers(looked: LookResult, sample: Sample | None, complete: bool) -> list[tuple[str, str]]:
    """What to type next, with this text and a telling head."""
    source, model = looked.source, looked.model.arguments
    arguments = source.arguments and f" {source.arguments}"
    head = sample.link.head if sample else looked.labels.surest_head or looked.table.heads[0]
    offers = []
    if sample and (source.own or len(sample.text) <= QUOTED_WIDTH):
        text = "" if source.own else f" {quoted(sample.text)}"
        links = {(sample.link.query, sample.link.key): "every head, by that link"}
        # A model that copies its next word from the text: who looks there?
        likeliest = looked.next[0].text.strip() if looked.next and sample.whole else ""
        copied = [word.name for word in sample.words if word.text == likeliest and likeliest.isalnum()]
        if copied:
            links[sample.words[-1].name, copied[0]] = "the heads that look at the word that comes next"
        for (query, key), words in links.items():
            link = f"--from {shlex.quote(query)} --to {shlex.quote(key)}"
            offers.append((f"manyheads look{text}{model} {link}", words))
        offers.append((f"manyheads head {head}{text}{model}", "where each word looks, in one head"))
    else:
        offers.append((f"manyheads head {head}{arguments}{model}", "where each word looks, in one head"))
    if not complete:
        offers.append((f"manyheads look{arguments}{model} --all", "every head, with the evidence and its numbers"))
    elif "--out" not in looked.options:
        offers.append((f"manyheads look{arguments}{model} --out heads.parquet", "the table, for pandas"))
    if complete and "--plot" not in looked.options:
        offers.append((f"manyheads look{arguments}{model} --plot grid.png", "every head's map in one picture"))
    if source.own:
        offers.append((f"manyheads look {YOURS}{model}", "the same on a text of your own"))
    return offers


def shape_in_words(spec: ModelSpec) -> str:
    """ "6 layers x 12 heads"; where layers differ or there are several stacks, as much as is true.

    Where layers lie between that do not attend, with the numbers of those that do: "3 layers (L1, L3, L4) x 6 heads".
    """
    phrases = []
    for name, by_layer in spec.shape.items():
        counts = [count for count in by_layer if count]
        numbers = [f"L{layer}" for layer, count in enumerate(by_layer) if count]
        if len(numbers) > SHOWN_NUMBERS:
            numbers = [*numbers[: SHOWN_NUMBERS - 1], "...", numbers[-1]]
        gaps = "" if all(by_layer) else f" ({', '.join(numbers)})"
        heads_in_words = f"{counts[0]} heads" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} heads"
        phrases.append(f"{name} {len(counts)} layers{gaps} x {heads_in_words}".strip())
    return ", ".join(phrases)


def home(text: str) -> str:
    """Paths in the user's own folder, as people write them."""
    folder = users_home()
    return clean(text) if folder is None else clean(text).replace(f"{folder}/", "~/")


def _remarks(looked: LookResult, console: Console) -> list[Text]:
    """The evidence of the strongest head of each role, in words, and where the model parks attention."""
    labels = looked.labels
    if not labels.roles:
        return []
    lines = [Text("The evidence for the strongest of each role", style="bold")]
    groups = {name: roles[0] for name, roles in labels.by_role().items() if name != UNLABELLED}
    wide = max((len(clean(name)) for name in groups), default=0)
    head_width = max(len(str(role.head)) for role in labels.roles)
    for name, role in groups.items():
        start = Text.assemble((f"{clean(name):<{wide}}", hue(name)), f"  {role.head!s:<{head_width}}  ")
        lines += hanging(start, clean(role.evidence.words), console.width)
    sinks = labels.sinks
    parked = f"found, not assumed: {sinks.because}" if sinks.names else sinks.because
    rows = max(role.evidence.num_queries for role in labels.roles)
    remarks = (
        f"Roles are chosen on one half of the texts; all figures are from the other half ({rows:,} tokens).",
        f"Sink, a token that draws attention although it says nothing: {parked}.",
    )
    return [*lines, Text(), *(line for remark in remarks for line in wrapped(clean(remark), console, ""))]


def _table(looked: LookResult, console: Console) -> list[Text]:
    """A row for each head, a rule before each layer; what the columns mean stands above, what had no room below."""
    labels, table = looked.labels, looked.table
    everything = set(looked.names) in (set(measures.DEFAULT), set(measures.STATISTICS))
    names = list(SHOWN if everything else looked.names)  # those asked for by name, else a handful
    columns = [Column("head", PAGE_WORDS if labels.roles else "", right=False)]
    if labels.roles:
        columns += [
            Column("role", PAGE_WORDS, right=False, most=26),
            Column("score", PAGE_WORDS),
            Column("chance", PAGE_WORDS),
            Column("95% interval", PAGE_WORDS, spare=1),
            Column("score", TEXT_WORDS),
        ]
    columns += [Column(TITLES.get(name, name), TEXT_WORDS, spare=2 + index) for index, name in enumerate(names)]
    cells: list[list[Text]] = []
    values = {name: table.column(name) for name in table.names}
    defined = {name: statistic for name in names if (statistic := measures.named(name)) is not None}
    units = {name: statistic.unit for name, statistic in defined.items()}
    figures_of = [column_figures(values[name].tolist(), units.get(name, "")) for name in names]
    for index, head in enumerate(table.heads):
        yours = {name: float(column[index]) for name, column in values.items()}
        of_role = _role_cells(labels.role_of(head), yours, bool(labels.roles))
        cells.append([*of_role, *(Text(figures[index]) for figures in figures_of)])
    lines, remark = lay_out_heads(columns, table.heads, cells, console)
    if not remark and set(names) < set(looked.names):
        remark = f"Shown are {len(names)} of {len(looked.names)} statistics of your text: --json and --out hold all."
    # What the columns mean.
    entries = []
    if labels.roles:
        entries += [
            ("score", "share of its attention on what the role names (broad: its entropy, as a share of even)"),
            (
                "chance",
                "the same with attention spread evenly, or with the words shuffled: the higher of the two (broad: "
                "100 %, an even spread, the most that can be)",
            ),
            ("(local?)", "unlabelled; in brackets the role that it came nearest to"),
        ]
    if names == list(SHOWN):
        entries += [
            ("your text", "the same score there; distance in tokens; the shares on the sink and on repeated tokens")
        ]
    else:
        entries += [(name, statistic.meaning) for name, statistic in defined.items()]
    wide = 2 + max(len(label) for label, _ in entries)
    legend = [line for label, words in entries for line in hanging(Text(f"{label:<{wide}}"), words, console.width)]
    for line in legend:
        line.stylize("dim")
    return [Text("Every head", style="bold"), *legend, Text(), *lines, *wrapped(remark, console)]


def _role_cells(role: HeadRole | None, yours: dict[str, float], labelled: bool) -> list[Text]:
    """A head's role with its figures on the page, and the role's statistic on your text; none without labels.

    Cross-attention has no roles: its cells are empty.
    """
    if role is None:
        return [Text(ABSENT, style="dim")] * 5 if labelled else []
    near, evidence = role.nearest, role.evidence
    style, faint = hue(role.name), "dim" if near else ""
    # A column has one unit: entropy, in nats, stands as a share of that of an even spread.
    is_entropy = evidence.statistic == "entropy"
    full, yours_full = (evidence.chance, yours.get("entropy.uniform", math.nan)) if is_entropy else (1.0, 1.0)
    score = yours.get(evidence.statistic, math.nan)
    return [
        Text(f"{UNLABELLED} ({near}?)" if near else clean(role.name), style=style),
        Text(figure(evidence.score / full, "share"), style=faint or style),
        Text(figure(evidence.chance / full, "share"), style=faint),
        # Entropy's interval is of texts of other lengths as well; no spread is more even than an even one.
        Text(span(evidence.low / full, evidence.high / full, "share"), style=faint),
        Text(figure(score / yours_full if yours_full else math.nan, "share"), style=faint or style),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The same as data: one JSON document, and a frame with a row a head.


def frame(labels: PageLabels, table: measures.HeadTable, names: tuple[str, ...]) -> pd.DataFrame:
    """A row a head: role and evidence from the page, then the statistics of the text by these names."""
    import pandas as pd

    # Imports torch, for which --help is not to wait.
    from manyheads.roles import Evidence

    columns = table.to_pandas()
    roles = [labels.role_of(head) for head in table.heads]
    evidence = pd.DataFrame([{} if role is None else asdict(role.evidence) for role in roles])
    evidence = evidence.reindex(columns=list(Evidence.__dataclass_fields__)).add_prefix("page_")
    evidence.insert(0, "role", [None if role is None else role.name for role in roles])
    return pd.concat([columns[["head", "stack", "layer", "index", "module"]], evidence, columns[list(names)]], axis=1)
