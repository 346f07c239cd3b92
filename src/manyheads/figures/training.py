"""What a training shows: panels of lines over the same steps, so that a head's birth stands below the loss's fall.

Lines that the panel is about are ink, with their names at their ends; the others are grey. Lines are thinned to the
panel's pixels: of many steps that share one, the mean is drawn.
"""

from __future__ import annotations

import math
import os

import numpy as np

from manyheads.figures.palette import FADED, INK
from manyheads.figures.paper import Pixels, Sheet, kind_of
from manyheads.figures.points import save_points
from manyheads.figures.removal_curve import even_step
from manyheads.figures.rul import save_rul
from manyheads.training import Chart, Panel, PointsChart, RulChart
from manyheads.training.charts import AnyChart, Line

WIDTH, PANEL, MARGIN = 860, 220, 36
TITLE, BODY, SMALL = 21, 12.5, 11
LEFT, RIGHT, TOP, BOTTOM, GAP = 84, 150, 92, 62, 58
NAME_GAP = 15  # between the baselines of two names


def save_chart(chart: AnyChart, path: str | os.PathLike[str]) -> None:
    """Draw it; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    if isinstance(chart, RulChart):
        return save_rul(chart, path)
    if isinstance(chart, PointsChart):
        return save_points(chart, path)
    count = len(chart.panels)
    sheet = Sheet(WIDTH, TOP + count * PANEL + (count - 1) * GAP + BOTTOM)
    room = WIDTH - 2 * MARGIN
    sheet.text(MARGIN, MARGIN + 14, chart.title, TITLE, width=room, weight="bold")
    sheet.text(MARGIN, MARGIN + 38, chart.subtitle, BODY, width=room, colour=FADED)
    last = max((x for panel in chart.panels for line in panel.lines for x in line.x), default=1.0) or 1.0
    for number, panel in enumerate(chart.panels):
        _panel(sheet, panel, TOP + number * (PANEL + GAP), last)
    _steps(sheet, chart, TOP + count * PANEL + (count - 1) * GAP, last)
    sheet.save(path)


def _panel(sheet: Sheet, panel: Panel, top: Pixels, last: Pixels) -> None:
    """One panel's rules, lines and names; `top` is where its title's strip begins."""
    values = [value for line in panel.lines for value in line.y]
    low = min(values, default=0.0) if panel.bottom is None else panel.bottom
    high = max(values, default=1.0) if panel.top is None else panel.top
    step = even_step((high - low) or 1.0)
    low, high = math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step
    begin, height, width = top + 24, PANEL - 24, WIDTH - LEFT - RIGHT

    def place(x: Pixels, y: Pixels) -> tuple[float, float]:
        return LEFT + width * x / last, begin + height * (high - y) / ((high - low) or 1.0)

    sheet.text(LEFT, top + 8, panel.title, BODY, width=WIDTH - LEFT - MARGIN, weight="bold")
    ticks = np.arange(low, high + step / 2, step).tolist()
    sheet.lines([(place(0, tick), place(last, tick)) for tick in ticks])
    for tick in ticks:
        sheet.text(LEFT - 10, place(0, tick)[1] + 4, f"{tick:.4g}", SMALL, align="right", colour=FADED)
    for line in sorted(panel.lines, key=lambda each: each.bold):
        points = [place(x, y) for x, y in _thinned(line, last, width)]
        colour, wide, alpha = (INK, 2.2, 1.0) if line.bold else (FADED, 1, 0.6)
        sheet.curve(points, colour, wide, alpha)
    _names(sheet, [(line, place(line.x[-1], line.y[-1])) for line in panel.lines if line.name and line.x])


def _names(sheet: Sheet, ends: list[tuple[Line, tuple[float, float]]]) -> None:
    """Names at the lines' ends, moved down where two would touch."""
    below = -math.inf
    for line, (x, y) in sorted(ends, key=lambda each: each[1][1]):
        below = max(y + 4, below + NAME_GAP)
        colour, weight = (INK, "bold") if line.bold else (FADED, "normal")
        sheet.text(x + 8, below, line.name, SMALL, width=WIDTH - x - 16, colour=colour, weight=weight)


def _steps(sheet: Sheet, chart: Chart, y: Pixels, last: Pixels) -> None:
    width = WIDTH - LEFT - RIGHT
    for step in np.arange(0, last + 1, max(1, even_step(last))).astype(int).tolist():
        sheet.text(LEFT + width * step / last, y + 20, f"{step:,}", SMALL, align="center", colour=FADED)
    sheet.text(LEFT + width / 2, y + 44, chart.x_title, BODY, align="center")


def _thinned(line: Line, last: Pixels, width: Pixels) -> list[tuple[float, float]]:
    """At most one point every second pixel: the mean of those that share it."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for x, y in zip(line.x, line.y, strict=True):
        bins.setdefault(int(x / last * width / 2), []).append((x, y))
    return [(sum(x for x, _ in each) / len(each), sum(y for _, y in each) / len(each)) for each in bins.values()]
