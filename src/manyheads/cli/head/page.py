"""One head as a page to read: what it does and how that is known, a small map, where each word looks, its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.text import Text

from manyheads import recording, statistics
from manyheads.cli.look.page import hanging, home, hue, offered
from manyheads.cli.role_words import UNLABELLED, figure, span, unit_of
from manyheads.cli.steps import model_arguments
from manyheads.cli.terminal.console import (
    Column,
    Row,
    cells_of,
    clean,
    drawn,
    lay_out,
    legend,
    print_sections,
    shades_of,
    shortened,
    stdout_console,
)

if TYPE_CHECKING:
    from manyheads.cli.head.looked import HeadLooked


MOST_WORDS = 40  # a text of more tokens is shown by its strongest rows, and its map in blocks
BLOCKS = 32
STRONG_ROWS = 20
WORD_WIDTH = 12
LABEL = WORD_WIDTH + 6


def print_page(looked: HeadLooked, top: int) -> None:
    console = stdout_console()
    links = find_links(looked.layer, looked.head.index, top)
    sections = [
        _headline(looked, console),
        _map(looked, console),
        _looks(looked, links, top, console),
        _strongest(looked, links, console),
        _numbers(looked, console),
        _next(looked, console),
    ]
    print_sections(sections, console)


def _headline(looked: HeadLooked, console: Console) -> list[Text]:
    name = clean(looked.role.name) if looked.role is not None else "no role"
    title = Text.assemble(
        (str(looked.head), "bold"), "  ", (name, f"bold {hue(name)}"), f"  in {clean(looked.lm.name)}"
    )
    lines = [title]
    for label, value in (*_known(looked), *_given(looked, console)):
        lines += hanging(Text(f"{label:<10}", style="dim"), clean(value), console.width)
    return lines


def _known(looked: HeadLooked) -> list[tuple[str, str]]:
    """How the role is known."""
    role, labels, site = looked.role, looked.labels, looked.layer.site
    if role is None:
        return [("role", f"none: {labels.because}")]
    about, unit = role.evidence, unit_of(role.evidence.statistic)
    interval = f"95% interval {span(about.low, about.high, unit)}, over {about.num_queries:,} tokens"
    basis = f"{labels.num_texts:,} {labels.texts_are}, {labels.num_tokens:,} tokens; {home(labels.because)}"
    facts = [("because", f"{about.words}; {interval}"), ("rests on", basis)]
    if site.num_kv_heads != site.num_heads:
        group = f"{site.kv_head_of(looked.head.index)} of {site.num_kv_heads}, counted from 0"
        facts.append(("shares", f"its keys and values with the other heads of group {group}"))
    return facts


def _given(looked: HeadLooked, console: Console) -> list[tuple[str, str]]:
    """What was read."""
    origin = f", {looked.source.origin}" if looked.source.own else ""
    count = f" · {int(looked.layer.lengths[0]):,} tokens{origin}"
    facts = [("text", f'"{shortened(looked.layer.tokens.texts[0], console.width - 12 - len(count))}"{count}')]
    if looked.num_windows > 1:
        which = f"{looked.window:,} of {looked.num_windows:,}"
        facts.append(("window", f"{which}: the text is longer than the model's positions. --window N shows another"))
    return facts + [("wrote", path) for path in looked.written]


# ---------------------------------------------------------------------------------------------------------- the map


def _map(looked: HeadLooked, console: Console) -> list[Text]:
    """Rows look at columns."""
    fits = (console.width - LABEL) // 2
    weights = small_map(looked.layer, looked.head.index, min(MOST_WORDS, fits), min(BLOCKS, fits)).tolist()
    length, cells = int(looked.layer.lengths[0]), len(weights)
    largest = max((x for row in weights for x in row if not math.isnan(x)), default=0.0)
    shades = shades_of(console)
    side = f"{length / cells:.0f}"
    cell_meaning = "one weight" if cells == length else f"the mean of about {side} x {side} weights"
    starts = [-(-i * length // cells) for i in range(cells)]
    step = 5 if cells == length else 4
    marks = "".join(f"{starts[i]:<{2 * step}}" for i in range(0, cells, step))
    colour = hue(looked.role.name) if looked.role is not None and looked.role.name != UNLABELLED else ""
    return [
        Text.assemble(("Map", "bold"), f"  rows look at columns; a cell is {cell_meaning}"),
        legend(largest, shades),
        Text(" " * LABEL + marks.rstrip(), style="dim"),
        *(
            Text.assemble(_label(looked, start), drawn(cells_of(values, largest, shades), shades, colour))
            for start, values in zip(starts, weights, strict=True)
        ),
    ]


def _label(looked: HeadLooked, at: int) -> Text:
    """A row's number and word, `LABEL` columns wide."""
    name = Text(shortened(word(looked.layer.tokens, at), WORD_WIDTH))
    return Text.assemble((f"{at:>4} ", "dim"), name, " " * (LABEL - 5 - name.cell_len))


# ------------------------------------------------------------------------------------------------ where each word looks


def _looks(looked: HeadLooked, links: Links, top: int, console: Console) -> list[Text]:
    length = len(links.looks)
    rows, note = list(range(length)), ""
    if length > MOST_WORDS:
        rows = sorted(link.query for link in links.strongest[:STRONG_ROWS])
        note = f"  the {len(rows)} tokens with the strongest links, of {length:,}"
    columns = [Column("", right=True), Column("token", right=False, most=WORD_WIDTH)]
    for index in range(top):
        title = "looks at" if not index else "then at"
        columns += [
            Column(title, f"{index}", right=False, most=WORD_WIDTH + 5, spare=2 * index),
            Column("", f"{index}", spare=2 * index),
        ]
    cells: list[Row] = [_look(looked, row, links.looks[row], top) for row in rows]
    lines = lay_out(columns, cells, console.width, bar="   ")[1:]
    return [Text.assemble(("Where each token looks", "bold"), note), *lines]


def _look(looked: HeadLooked, row: int, looks: tuple[Link, ...], top: int) -> list[Text]:
    wide = len(str(int(looked.layer.lengths[0]) - 1))
    cells = [Text(str(row), style="dim"), Text(clean(word(looked.layer.tokens, row)), style="bold")]
    for index in range(top):
        if index < len(looks):
            faint = "" if not index else "dim"
            cells += [
                _token(looked, looks[index].key, faint, wide),
                Text(figure(looks[index].weight, "share"), style=faint),
            ]
        else:
            cells += [Text(""), Text("")]
    return cells


def _token(looked: HeadLooked, at: int, style: str = "", wide: int = 0) -> Text:
    return Text.assemble((f"{at:>{wide}} ", "dim"), (clean(word(looked.layer.tokens, at)), style))


def _strongest(looked: HeadLooked, links: Links, console: Console) -> list[Text]:
    sinks = clean(" and ".join(looked.layer.tokens.sinks.names))
    title = Text.assemble(("Strongest links", "bold"), f"  without those to {sinks}, the sink" if sinks else "")
    lines = [Text(" ")]
    for link in links.strongest[:NUM_LINKS]:
        weight = Text(f" {figure(link.weight, 'share')}")
        part = Text.assemble(" ", _token(looked, link.query), " → ", _token(looked, link.key), weight)
        if lines[-1].cell_len > 1 and lines[-1].cell_len + part.cell_len + 2 > console.width:
            lines.append(Text(" "))
        lines[-1].append_text(part if lines[-1].cell_len == 1 else Text.assemble("  ", part))
    return [title, *lines] if links.strongest else [title, Text("  none: all of its attention goes to the sink")]


# ----------------------------------------------------------------------------------------------------------- numbers


def _numbers(looked: HeadLooked, console: Console) -> list[Text]:

    page = looked.labels.values.get(str(looked.head), {})
    row = looked.table.heads.index(looked.head)
    columns = [
        Column("", right=False),
        Column("page"),
        Column("your text"),
        Column("", right=False, most=54, spare=1),
    ]
    rows: list[Row] = []
    for statistic in looked.table.statistics:
        if statistic.name in statistics.DEFAULT:
            values = page.get(statistic.name), float(looked.table.column(statistic.name)[row])
            name = statistic.name if statistic.unit.startswith("share") else f"{statistic.name} ({statistic.unit})"
            figures = [Text(figure(value, statistic.unit)) for value in values]
            rows.append([Text(name), *figures, Text(statistic.meaning, style="dim")])
    basis = "  page: over all texts of ours, also those the role was chosen on"
    title = Text.assemble(("Its numbers", "bold"), basis)
    return [title, *lay_out(columns, rows, console.width)]


def _next(looked: HeadLooked, console: Console) -> list[Text]:
    arguments = looked.source.arguments and f" {looked.source.arguments}"
    model = model_arguments(looked.model)
    offers = [(f"manyheads head {looked.head}{arguments}{model} --plot map.png", "the map as a picture")]
    if looked.window < looked.num_windows and arguments:
        following = f"manyheads head {looked.head}{arguments}{model} --window {looked.window + 1}"
        offers.append((following, "the next window"))
    offers.append((f"manyheads look{arguments}{model}", "every head"))
    return offered(offers, console)


# ---------------------------------------------------------------------------------------------------------------------
# Where the words of one text look, for one head: read off its record row by row, never as a whole map.


ROWS = 256  # rows of the map held at once
NUM_LINKS = 10


@dataclass(frozen=True)
class Link:
    """Token `query` gives `weight` of its attention to token `key`. Both count from 0."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Links:
    """`looks[i]`: the strongest keys of token i. `strongest`: each token's best link but those to sinks, best first."""

    looks: tuple[tuple[Link, ...], ...]
    strongest: tuple[Link, ...]


def find_links(layer: Any, head: int, top: int) -> Links:
    """One reading of a head's map, `ROWS` rows at a time. Keys that cannot be seen are left out."""
    length = int(layer.lengths[0])
    sinks = layer.tokens.sink[0, :length] if layer.tokens.ids is not None else torch.zeros(length, dtype=torch.bool)
    looks: list[tuple[Link, ...]] = []
    best: list[Link] = []
    for begin in range(0, length, ROWS):
        weights = layer.weights(head=head, queries=slice(begin, begin + ROWS))
        values, keys = weights.topk(min(top, length), dim=-1)
        for row, (value, key) in enumerate(zip(values.tolist(), keys.tolist(), strict=True)):
            pairs = zip(key, value, strict=True)
            looks.append(tuple(Link(begin + row, k, v) for k, v in pairs if v > 0))
        value, key = weights.masked_fill(sinks, 0).max(-1)
        links = zip(range(begin, begin + ROWS), key.tolist(), value.tolist(), strict=False)
        best += [Link(query, k, v) for query, k, v in links if v > 0]
    strongest = sorted(best, key=lambda link: -link.weight)
    return Links(tuple(looks), tuple(strongest))


def small_map(layer: Any, head: int, most: int, blocks: int) -> torch.Tensor:
    """The map in at most `blocks` x `blocks` blocks, by mean, or whole up to `most` tokens. NaN: nothing visible."""

    length = int(layer.lengths[0])
    request = recording.Pooled(length if length <= most else blocks)
    return layer.reduce([request])[request][0, head]


def word(tokens: Any, position: int) -> str:
    """What stands at a token in the text, or the token's own name where nothing does."""
    return tokens.surface(0, position) or tokens.pieces[0][position]


def document(looked: HeadLooked, top: int) -> dict[str, Any]:
    """Everything about one head: what the page says, its numbers on the text, where every token looks."""
    from manyheads.cli.look.page import evidence_of
    from manyheads.statistics.head_table import number

    links = find_links(looked.layer, looked.head.index, top)
    tokens, table = looked.layer.tokens, looked.table
    head_row = table.heads.index(looked.head)
    return {
        "model": {"asked": looked.model, "name": looked.lm.name, "because": looked.lm.because},
        "head": str(looked.head),
        "role": None if looked.role is None else looked.role.name,
        "evidence": None if looked.role is None else evidence_of(looked.role),
        "page": looked.labels.values.get(str(looked.head)),
        "text": {name: number(table.column(name)[head_row]) for name in table.names},
        "window": {"shown": looked.window, "of": looked.num_windows},
        "tokens": [word(tokens, i) for i in range(int(looked.layer.lengths[0]))],
        "sinks": list(tokens.sinks.names),
        "looks": [[{"key": link.key, "weight": link.weight} for link in row] for row in links.looks],
        "strongest": [vars(link) for link in links.strongest[:NUM_LINKS]],
        "notes": {"labels": looked.labels.because, **table.notes, "backend": looked.layer.because},
        "written": list(looked.written),
        "seconds": round(looked.seconds, 3),
    }
