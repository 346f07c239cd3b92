"""What an architecture costs in one picture: where its parameters and FLOPs are, and how its cache grows.

Read across: a part's share of the parameters, of a whole text's FLOPs, of one more token's. Below, the cache by the
length of a text, as it is (ink) beside the same model as MHA, GQA and MQA (grey), and the size of the weights: where a
line crosses it, the cache is the larger half of what has to fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex

from manyheads.figures.palette import FADED, HAIRLINE, INK, ramp
from manyheads.figures.paper import POINT, Pixels, Sheet, kind_of, text_width
from manyheads.sizing import OPERATIONS, Sizing, layers_in_words, shape_in_words, units

WIDTH, MARGIN = 1_040, 36
TITLE, BODY, SMALL = 21, 12.5, 11
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


def save_sizing(sizing: Sizing, path: str | os.PathLike[str]) -> None:
    """Draw a sizing; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    columns = _columns(sizing)
    parts = [part for part in OPERATIONS if any(column.values.get(part) for column in columns)]
    top = MARGIN + 4 * LINE + LINE * bool(layers_in_words(sizing.architecture))
    chart_top = top + 64 + ROW * len(parts)
    charted = bool(sizing.variants) and sizing.cache is not None and sizing.cache.growth > 0
    sheet = Sheet(WIDTH, chart_top + (CHART_HEIGHT + 110 if charted else 30) + MARGIN)
    _draw_title(sheet, sizing)
    _draw_parts(sheet, columns, parts, top + 20)
    sheet.text(MARGIN, chart_top, CAPTION, SMALL, colour=FADED, width=WIDTH - 2 * MARGIN)
    if charted:
        _draw_chart(sheet, sizing, chart_top + 74)
    sheet.save(path)


@dataclass(frozen=True)
class _Column:
    """One column of bars: its heading, its figures by part, and how they are written."""

    title: str
    values: Mapping[str, int]
    said: Mapping[str, str]

    @property
    def total(self) -> int:
        return sum(self.values.values())


def _columns(sizing: Sizing) -> list[_Column]:
    counts = {part: units.count(number) for part, number in sizing.parameters.items()}
    columns = [_Column(f"{units.count(sizing.num_parameters)} parameters", sizing.parameters, counts)]
    text = "an image" if sizing.architecture.num_tokens else "a text"
    for flops, what in ((sizing.prefill, f"{text} of {sizing.ask.context:,}"), (sizing.decode, "one more token")):
        if flops is not None:
            labels = {part: units.flops(spent) for part, spent in flops.operations.items()}
            columns.append(_Column(f"{units.flops(flops.total)} for {what}", flops.operations, labels))
    return columns


def _draw_title(sheet: Sheet, sizing: Sizing) -> None:
    architecture, room = sizing.architecture, WIDTH - 2 * MARGIN
    weights = f"{units.gib(sizing.weight_bytes)} ({units.gb(sizing.weight_bytes)}) in {sizing.ask.dtype}"
    active = f" {units.count(sizing.num_active)} of them active," if sizing.num_active < sizing.num_parameters else ""
    sheet.text(MARGIN, MARGIN + 14, sizing.name, TITLE, width=room, weight="bold")
    words = f"{units.count(sizing.num_parameters)} parameters,{active} {weights}"
    for row, line in enumerate((words, shape_in_words(architecture), layers_in_words(architecture))):
        sheet.text(MARGIN, MARGIN + 40 + LINE * row, line, BODY, colour=FADED if row else INK, width=room)


def _draw_parts(sheet: Sheet, columns: Sequence[_Column], parts: Sequence[str], top: Pixels) -> None:
    """A row a part, a column of bars for each thing that is counted; every bar is a share of its column."""
    room = (WIDTH - 2 * MARGIN - LABELS - GAP * (len(columns) - 1)) / len(columns)
    most = max(count / column.total for column in columns for count in column.values.values())
    full = (room - FIGURES) / most  # pixels of a share of 1: the longest bar just fits
    for index, column in enumerate(columns):
        left = MARGIN + LABELS + index * (room + GAP)
        sheet.text(left, top, column.title, BODY, weight="bold", width=room)
        for row, part in enumerate(parts):
            y = top + 32 + ROW * row
            if index == 0:
                sheet.text(MARGIN + LABELS - 14, y, part, BODY, align="right")
            if not column.values.get(part):
                continue
            share = column.values[part] / column.total
            length = max(share * full, 1)
            sheet.box(left, y - BAR + 2, length, BAR, fill=BAR_COLOUR)
            label = f"{column.said[part]}  {share:.1%}" if share >= 0.0005 else column.said[part]
            sheet.text(left + length + 8, y, label, SMALL)
        sheet.lines([((left - 0.5, top + 14), (left - 0.5, top + 18 + ROW * len(parts)))])


# ----------------------------------------------------------------------------------------------------------- the chart


@dataclass(frozen=True)
class _Scale:
    """Powers of 2 along both axes, in pixels."""

    lengths: tuple[int, ...]
    low: int
    high: int
    top: Pixels

    def x(self, length: int) -> float:
        first, last = math.log2(self.lengths[0]), math.log2(self.lengths[-1])
        room = WIDTH - 2 * MARGIN - CHART_LEFT - CHART_RIGHT
        return MARGIN + CHART_LEFT + (math.log2(length) - first) / (last - first) * room

    def y(self, size: int | float) -> float:
        share = (math.log2(max(size, self.low)) - math.log2(self.low)) / (math.log2(self.high) - math.log2(self.low))
        return self.top + (1 - share) * CHART_HEIGHT


def _lengths(sizing: Sizing) -> tuple[int, ...]:
    """Powers of 2 up to what the model has positions for, and far enough to hold the one that was asked for."""
    limit = min(sizing.architecture.max_positions or 2**LONGEST, 2**LONGEST)
    last = max(limit, sizing.ask.context, 2 ** (SHORTEST + 2))
    return tuple(2**power for power in range(SHORTEST, math.ceil(math.log2(last)) + 1))


def _draw_chart(sheet: Sheet, sizing: Sizing, top: Pixels) -> None:
    """Bytes of the cache by the length of a text, both in powers of 2, and the bytes of the weights."""
    lengths, own = _lengths(sizing), next(variant.name for variant in sizing.variants if variant.own)
    curves: dict[str, list[tuple[int, float]]] = {variant.name: [] for variant in sizing.variants}
    windows = {
        attention.window for attention in sizing.architecture.attention if attention.window
    }  # where the curves have corners
    for length in sorted({*lengths, *(window for window in windows if lengths[0] < window < lengths[-1])}):
        for variant in replace(sizing, ask=replace(sizing.ask, context=length)).variants:
            curves[variant.name].append((length, variant.cache.steady))
    sizes = [size for curve in curves.values() for _, size in curve if size] + [sizing.weight_bytes]
    low, high = 2 ** math.floor(math.log2(min(sizes))), 2 ** math.ceil(math.log2(max(sizes)))
    scale = _Scale(lengths, low, high, top)
    texts = f"{sizing.ask.batch:,} text{'s' * (sizing.ask.batch != 1)}"
    heading = f"KV cache of {texts} by their length in tokens, in {sizing.ask.cache_dtype}"
    sheet.text(MARGIN, top - 26, heading, BODY, weight="bold", width=WIDTH - 2 * MARGIN)
    _draw_axes(sheet, scale)
    names = [(scale.y(curve[-1][1]), _called(name, name == own), name == own) for name, curve in curves.items()]
    names.append((scale.y(sizing.weight_bytes), "the weights", False))
    for name, curve in curves.items():
        points = [(scale.x(length), scale.y(size)) for length, size in curve]
        _draw_curve(sheet, points, INK if name == own else FADED, 2.5 if name == own else 1.2)
    weights = scale.y(sizing.weight_bytes)
    _draw_curve(sheet, [(scale.x(lengths[0]), weights), (scale.x(lengths[-1]), weights)], BAR_COLOUR, 1.2, dashed=True)
    _draw_asked(sheet, sizing, scale)
    for y, label, bold in _apart(names):
        sheet.text(scale.x(lengths[-1]) + 10, y + 4, label, SMALL, weight="bold" if bold else "normal")


def _called(name: str, own: bool) -> str:
    return (f"{name} (as it is)" if name else "as it is") if own else name


def _apart(names: list[tuple[float, str, bool]]) -> list[tuple[float, str, bool]]:
    """The same, from top to bottom, none over another."""
    placed: list[tuple[float, str, bool]] = []
    for y, label, bold in sorted(names):
        placed.append((max(y, placed[-1][0] + 15) if placed else y, label, bold))
    return placed


def _draw_asked(sheet: Sheet, sizing: Sizing, scale: _Scale) -> None:
    """A dot where it was asked, with what it comes to."""
    cache = sizing.cache
    if cache is None:
        return
    x, y = scale.x(sizing.ask.context), scale.y(cache.steady)
    sheet.lines([((x, y), (x, scale.top + CHART_HEIGHT))], colour=FADED)
    sheet.box(x - 4, y - 4, 8, 8, fill=INK)
    label = f"{sizing.ask.context:,} tokens: {units.gib(cache.steady)} ({units.gb(cache.steady)})"
    left_of_it = x + 12 + text_width(label, SMALL) > WIDTH - MARGIN - CHART_RIGHT
    x_of_label, side = (x - 10, "right") if left_of_it else (x + 10, "left")
    sheet.text(x_of_label, scale.top + CHART_HEIGHT - 12, label, SMALL, align=side)  # low down, where curves seldom are


def _draw_axes(sheet: Sheet, scale: _Scale) -> None:
    """Hairlines at every fourth power of 2 of bytes; the lengths below."""
    left, right, bottom = scale.x(scale.lengths[0]), scale.x(scale.lengths[-1]), scale.top + CHART_HEIGHT
    low, high = round(math.log2(scale.low)), math.floor(math.log2(scale.high))
    step = max(1, round((high - low) / 6))
    for power in range(low, high + 1, step):
        y = scale.y(2**power)
        sheet.lines([((left, y), (right, y))], colour=HAIRLINE)
        label = units.gib(2**power).replace(".00", "").replace(".0", "")
        sheet.text(left - 10, y + 4, label, SMALL, colour=FADED, align="right")
    for length in scale.lengths:
        x = scale.x(length)
        sheet.lines([((x, bottom), (x, bottom + 5))], colour=FADED)
        sheet.text(x, bottom + 20, f"{length:,}", SMALL, colour=FADED, align="center")
    sheet.lines([((left, bottom), (right, bottom))], colour=FADED)


def _draw_curve(
    sheet: Sheet, points: Sequence[tuple[float, float]], colour: str, width: Pixels, *, dashed: bool = False
) -> None:
    curve = LineCollection([list(points)], colors=colour, linewidths=width * POINT, zorder=3)
    curve.set(linestyle=(0, (4, 3)) if dashed else "solid", capstyle="round")
    sheet.axes.add_artist(curve)
