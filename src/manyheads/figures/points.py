"""Trainings side by side: a small dot a seed, a stroke at their mean, a bar of one standard deviation either way.
Of times: a dot a round, their median, their quartiles.

Panels lie below each other, each with an axis of its own. A way that has one value has its stroke alone.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable

import numpy as np
from matplotlib.patches import Circle

from manyheads.figures.palette import FADED, INK
from manyheads.figures.paper import Pixels, Sheet
from manyheads.figures.removal_curve import even_step
from manyheads.training import PointsChart
from manyheads.training.charts import Points, PointsPanel

WIDTH, MARGIN = 860, 36
TITLE, BODY, SMALL = 21, 12.5, 11
LEFT, TOP, PANEL, STRIP, LINE = 84, 100, 190, 34, 18
STROKE, BAR, DOT, ASIDE = 18, 1.6, 2.4, 10  # half of a mean's stroke; dots stand beside the bar


def save_points(chart: PointsChart, path: str | os.PathLike[str]) -> None:
    """Draw it; .png, .svg or .pdf. Errors: FileAccessError."""
    heights = [PANEL + STRIP + LINE * _label_lines(panel) for panel in chart.points]
    sheet = Sheet(WIDTH, TOP + sum(heights) + LINE * len(chart.notes) + MARGIN - 16)
    room = WIDTH - 2 * MARGIN
    sheet.text(MARGIN, MARGIN + 14, chart.title, TITLE, width=room, weight="bold")
    sheet.text(MARGIN, MARGIN + 38, chart.subtitle, BODY, width=room, colour=FADED)
    top: Pixels = TOP
    for panel, height in zip(chart.points, heights, strict=True):
        _panel(sheet, panel, top)
        top += height
    for index, note in enumerate(chart.notes):
        sheet.text(MARGIN, top + index * LINE + 6, note, SMALL, width=room, colour=FADED)
    sheet.save(path)


def _label_lines(panel: PointsPanel) -> int:
    return max((len(group.label.split("\n")) for group in panel.groups), default=1)


def _panel(sheet: Sheet, panel: PointsPanel, top: Pixels) -> None:
    """`top` is where the title's strip begins."""
    low, high, step = _axis(panel)
    begin, height, width = top + 22, PANEL - 22, WIDTH - LEFT - MARGIN

    def up(value: float) -> Pixels:
        return begin + height * (high - value) / ((high - low) or 1.0)

    sheet.text(LEFT, top + 6, panel.title, BODY, width=width, weight="bold")
    for tick in np.arange(low, high + step / 2, step).tolist():
        sheet.lines([((LEFT, up(tick)), (LEFT + width, up(tick)))])
        sheet.text(LEFT - 10, up(tick) + 4, f"{tick:.4g}", SMALL, align="right", colour=FADED)
    group_width = width / max(len(panel.groups), 1)
    for index, group in enumerate(panel.groups):
        x = LEFT + group_width * (index + 0.5)
        _group(sheet, group, x, up, panel.by_rank)
        for line, words in enumerate(group.label.split("\n")):
            sheet.text(x, begin + height + 18 + LINE * line, words, SMALL, align="center", width=group_width - 6)


def _axis(panel: PointsPanel) -> tuple[float, float, float]:
    """The axis' ends, whole steps that hold every value and bar, and the step."""
    reached = [end for group in panel.groups for end in (*group.values, *_middle_and_bar(group.values, panel.by_rank))]
    low = min(reached, default=0.0) if panel.bottom is None else panel.bottom
    high = max(reached, default=1.0) if panel.top is None else panel.top
    step = even_step((high - low) or abs(high) or 1.0)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _middle_and_bar(values: tuple[float, ...], by_rank: bool) -> tuple[float, float, float]:
    """The stroke, and the bar's lower and upper end."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    if by_rank:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return middle, low, high
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    return mean, mean - spread, mean + spread


def _group(sheet: Sheet, group: Points, x: Pixels, up: Callable[[float], Pixels], by_rank: bool) -> None:
    colour = INK if group.bold else FADED
    middle, low, high = map(up, _middle_and_bar(group.values, by_rank))
    if len(group.values) > 1:
        sheet.curve([(x, low), (x, high)], colour, BAR)
        for y in map(up, group.values):
            sheet.axes.add_artist(Circle((x + ASIDE, y), DOT, facecolor=colour, edgecolor="none", alpha=0.6, zorder=4))
    sheet.curve([(x - STROKE, middle), (x + STROKE, middle)], colour, 2 * BAR)
