"""What an architecture costs in one picture: where its parameters and FLOPs are, and how its cache grows.

Read across: a part's share of the parameters, of a whole text's FLOPs, of one more token's. Below, the cache by the
length of a text, as it is (ink) beside the same model as MHA, GQA and MQA (grey), and the size of the weights: where a
line crosses it, the cache is the larger half of what has to fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from matplotlib.colors import to_hex

from manyheads import units
from manyheads.figures.palette import FADED, ramp
from manyheads.figures.paper import BODY, POINT, SMALL, Pixels, Sheet, kind_of, text_width
from manyheads.roles.words import INK
from manyheads.sizing import OPERATIONS, Sizing, layers_in_words, shape_in_words

WIDTH, MARGIN = 1_040, 36
LINE, ROW = 22, 24
LABELS = 112  # pixels for the names of parts
GAP = 28  # between the columns of bars
FIGURES = 132  # right of each bar, for its number and share
BAR = 13
CHART_HEIGHT = 250
CHART_LEFT, CHART_RIGHT = 76, 150  # for the figures of the axis, and the names of the lines
SHORTEST, LONGEST = 8, 17  # powers of 2 that the axis of lengths runs over
CAPTION = (
    "Bars are shares of their column, on one scale. FLOPs: multiply and add are 2; matrix products, visible pairs."
)
BAR_COLOUR = to_hex(ramp()[150])


@dataclass(frozen=True)
class _Column:
    """One column of bars: its heading, its figures by part, and how they are written."""

    title: str
    values: Mapping[str, int]
    words: Mapping[str, str]


def save_sizing(sizing: Sizing, path: str | os.PathLike[str]) -> None:
    """Draw a sizing; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    draw_sizing(sizing).save(path)


def draw_sizing(sizing: Sizing) -> Sheet:
    """The drawing that `save_sizing` writes."""
    counts = {part: units.count(number) for part, number in sizing.parameters.items()}
    columns = [_Column(f"{units.count(sizing.num_parameters)} parameters", sizing.parameters, counts)]
    text = "an image" if sizing.architecture.num_tokens else "a text"
    for flops, read in ((sizing.prefill, f"{text} of {sizing.ask.context:,}"), (sizing.decode, "one more token")):
        if flops is not None:
            labels = {part: units.flops(spent) for part, spent in flops.operations.items()}
            columns.append(_Column(f"{units.flops(flops.total)} for {read}", flops.operations, labels))
    parts = [part for part in OPERATIONS if any(column.values.get(part) for column in columns)]
    layers = layers_in_words(sizing.architecture)
    top = MARGIN + 4 * LINE + LINE * bool(layers)
    chart_top = top + 64 + ROW * len(parts)
    charted = bool(sizing.variants) and sizing.cache is not None and sizing.cache.growth > 0
    sheet = Sheet(WIDTH, chart_top + (CHART_HEIGHT + 110 if charted else 30) + MARGIN)
    sheet.heading(MARGIN, sizing.name)
    weights = f"{units.gib(sizing.weight_bytes)} ({units.gb(sizing.weight_bytes)}) {sizing.ask.in_dtype}"
    active = f" {units.count(sizing.num_active)} of them active," if sizing.num_active < sizing.num_parameters else ""
    words = f"{units.count(sizing.num_parameters)} parameters,{active} {weights}"
    sheet.notes(MARGIN, MARGIN + 40, [words], LINE, BODY, INK)
    sheet.notes(MARGIN, MARGIN + 40 + LINE, [shape_in_words(sizing.architecture), layers], LINE, BODY)

    # A row a part, a column of bars for each thing that is counted; every bar is a share of its column.
    first = top + 20 + 32  # the first row's baseline
    room = (WIDTH - 2 * MARGIN - LABELS - GAP * (len(columns) - 1)) / len(columns)
    totals = [sum(column.values.values()) for column in columns]
    # one scale for all columns: bars of different columns may be compared
    most = max(max(column.values.values()) / total for column, total in zip(columns, totals, strict=True))
    full = (room - FIGURES) / most  # pixels of a share of 1: the longest bar just fits
    for row, part in enumerate(parts):
        sheet.text(MARGIN + LABELS - 14, first + ROW * row, part, BODY, align="right")
    for index, (column, total) in enumerate(zip(columns, totals, strict=True)):
        left = MARGIN + LABELS + index * (room + GAP)
        sheet.text(left, top + 20, column.title, BODY, weight="bold", width=room)
        for row, part in enumerate(parts):
            if not column.values.get(part):
                continue
            y, share = first + ROW * row, column.values[part] / total
            # a part that is there has at least a line of a pixel, however small its share
            length = max(share * full, 1)
            sheet.box(left, y - BAR + 2, length, BAR, fill=BAR_COLOUR)
            label = f"{column.words[part]}  {share:.1%}" if share >= 0.0005 else column.words[part]
            sheet.text(left + length + 8, y, label, SMALL)
        sheet.lines([((left - 0.5, top + 34), (left - 0.5, top + 38 + ROW * len(parts)))])

    sheet.notes(MARGIN, chart_top, [CAPTION], LINE)
    if charted:
        _draw_chart(sheet, sizing, chart_top + 74)
    return sheet


def _draw_chart(sheet: Sheet, sizing: Sizing, top: Pixels) -> None:
    """Bytes of the cache by the length of a text, both in powers of 2, and the bytes of the weights."""
    cache, context = sizing.cache, sizing.ask.context
    assert cache is not None
    # up to what the model has positions for, and far enough to hold the length that was asked for
    limit = min(sizing.architecture.max_positions or 2**LONGEST, 2**LONGEST)
    last = max(limit, context, 2 ** (SHORTEST + 2))
    powers = range(SHORTEST, math.ceil(math.log2(last)) + 1)
    # the curves have corners where a window is full
    windows = {attention.window for attention in sizing.architecture.attention if attention.window}
    lengths = {2**power for power in powers}
    curves: dict[str, list[tuple[float, float]]] = {variant.name: [] for variant in sizing.variants}
    for length in sorted(lengths | {window for window in windows if min(lengths) < window < max(lengths)}):
        for variant in replace(sizing, ask=replace(sizing.ask, context=length)).variants:
            curves[variant.name].append((math.log2(length), math.log2(variant.cache.steady)))
    weights = math.log2(sizing.weight_bytes)
    heights = [height for curve in curves.values() for _, height in curve] + [weights]
    low, high = math.floor(min(heights)), math.ceil(max(heights))
    texts = f"{sizing.ask.batch:,} text{'s' * (sizing.ask.batch != 1)}"
    heading = f"KV cache of {texts} by their length in tokens, in {sizing.ask.cache_dtype}"
    sheet.text(MARGIN, top - 26, heading, BODY, weight="bold", width=WIDTH - 2 * MARGIN)
    bytes_shown = range(low, high + 1, max(1, round((high - low) / 6)))
    left, right, bottom = MARGIN + CHART_LEFT, WIDTH - MARGIN - CHART_RIGHT, top + CHART_HEIGHT
    axes = sheet.chart(
        left, top, right - left, CHART_HEIGHT, (powers[0], powers[-1]),
        {power: units.gib(2**power).replace(".00", "").replace(".0", "") for power in bytes_shown},
        ticks={power: f"{2**power:,}" for power in powers}, up=(low, high),
    )  # fmt: skip
    axes.tick_params("x", length=5 * POINT, width=POINT, color=FADED, pad=7 * POINT)
    sheet.lines([((left, bottom), (right, bottom))], colour=FADED)
    names = [(sheet.place(axes, powers[-1], weights)[1], "the weights", False)]
    for variant in sizing.variants:
        name, curve = variant.name, curves[variant.name]
        colour, wide = (INK, 2.5) if variant.own else (FADED, 1.2)
        sheet.curve(curve, colour, wide, axes=axes)
        if variant.own:
            name = f"{name} (as it is)" if name else "as it is"
        names.append((sheet.place(axes, *curve[-1])[1], name, variant.own))
    sheet.curve([(powers[0], weights), (powers[-1], weights)], BAR_COLOUR, 1.2, dashed=True, axes=axes)
    # the names of the lines from top to bottom, none over another
    below = -math.inf
    for y, name, bold in sorted(names):
        below = max(y, below + 15)
        sheet.text(right + 10, below + 4, name, SMALL, weight="bold" if bold else "normal")
    x, y = sheet.place(axes, math.log2(context), math.log2(cache.steady))
    sheet.lines([((x, y), (x, bottom))], colour=FADED)
    sheet.box(x - 4, y - 4, 8, 8, fill=INK)
    label = f"{context:,} tokens: {units.gib(cache.steady)} ({units.gb(cache.steady)})"
    beyond = x + 12 + text_width(label, SMALL) > right
    x_of_label, side = (x - 10, "right") if beyond else (x + 10, "left")
    sheet.text(x_of_label, bottom - 12, label, SMALL, align=side)  # low down, where curves seldom are
