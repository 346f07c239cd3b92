"""What a training shows: lines over its steps, and trainings side by side.

Lines stand in panels over the same steps, so that a head's birth stands below the loss's fall. Those that a panel is
about are ink, with their names at their ends; the others are grey. They are thinned to the panel's pixels: of many
steps that share one, the mean is drawn.

Trainings side by side have a small dot a seed, a stroke at their mean, and a bar of one standard deviation either way;
of times, a dot a round, their median and their quartiles. Each panel has an axis of its own. A way to train that has
one value has its stroke alone. Where their course counts, each has a column of small panels, a row a quantity, with
one axis a row.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes

from manyheads.figures import BODY, FADED, SMALL, Pixels, Sheet, even_step, even_ticks, kind_of
from manyheads.lab.training import Chart, GridChart, Panel
from manyheads.lab.training.charts import AnyChart, Line, PointsPanel
from manyheads.roles.words import INK

WIDTH, MARGIN, LEFT = 860, 36, 84


def save_chart(chart: AnyChart, path: str | os.PathLike[str]) -> None:
    """Draw it; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    sheet = _grid(chart) if isinstance(chart, GridChart) else _panels(chart)
    sheet.heading(MARGIN, chart.title, chart.subtitle)
    sheet.save(path)


# ------------------------------------------------------------------------------------------- panels one below the other

RIGHT, TOP, PANEL, GAP, BOTTOM = 150, 92, 220, 58, 62
STRIP = 24  # above a panel's axes, for its title
NAME_GAP = 15  # between the baselines of two names
POINTS_TOP, POINTS_PANEL, POINTS_STRIP, LABEL_LINE = 100, 190, 22, 18
STROKE, BAR, DOT, ASIDE = 18, 1.6, 2.4, 10  # half of a mean's stroke; dots stand beside the bar


def _panels(chart: Chart) -> Sheet:
    """Panels of lines above, those of points below them, then the notes."""
    lines = [panel for panel in chart.panels if isinstance(panel, Panel)]
    points = [panel for panel in chart.panels if isinstance(panel, PointsPanel)]
    lines_end = TOP + len(lines) * (PANEL + GAP) - GAP
    label_lines = [max((group.label.count("\n") + 1 for group in panel.groups), default=1) for panel in points]
    heights = [POINTS_PANEL + 34 + LABEL_LINE * count for count in label_lines]
    top = lines_end + BOTTOM + POINTS_STRIP if lines else POINTS_TOP
    notes = top + sum(heights)
    end = notes + LABEL_LINE * len(chart.notes) + MARGIN - 16 if points or chart.notes else lines_end + BOTTOM
    sheet = Sheet(WIDTH, end)
    if lines:
        _draw_lines(sheet, chart.x_title, lines, lines_end)
    for panel, height in zip(points, heights, strict=True):
        _draw_points(sheet, panel, top)
        top += height
    sheet.notes(MARGIN, notes + 6, chart.notes, LABEL_LINE)
    return sheet


def _draw_lines(sheet: Sheet, x_title: str, panels: Sequence[Panel], bottom: Pixels) -> None:
    width = WIDTH - LEFT - RIGHT
    # the same end for all panels: a head's birth must stand below the loss's fall
    last = max((x for panel in panels for line in panel.lines for x in line.x), default=1.0) or 1.0
    for number, panel in enumerate(panels):
        top = TOP + number * (PANEL + GAP)
        sheet.text(LEFT, top + 8, panel.title, BODY, width=WIDTH - LEFT - MARGIN, weight="bold")
        rules = _rules(panel, [value for line in panel.lines for value in line.y])
        axes = sheet.chart(LEFT, top + STRIP, width, PANEL - STRIP, (0, last), rules)
        for line in sorted(panel.lines, key=lambda line: line.bold):
            colour, wide, alpha = (INK, 2.2, 1.0) if line.bold else (FADED, 1, 0.6)
            sheet.curve(_thinned(line, last, width), colour, wide, alpha=alpha, axes=axes)
        _write_names(sheet, axes, panel.lines)
    # all panels are over the same steps, so that their figures stand once, below the last
    for step in np.arange(0, last + 1, max(1, even_step(last))).astype(int).tolist():
        sheet.text(LEFT + width * step / last, bottom + 20, f"{step:,}", SMALL, align="center", colour=FADED)
    sheet.text(LEFT + width / 2, bottom + 44, x_title, BODY, align="center")


def _draw_points(sheet: Sheet, panel: PointsPanel, top: Pixels) -> None:
    width = WIDTH - LEFT - MARGIN
    sheet.text(LEFT, top + 6, panel.title, BODY, width=width, weight="bold")
    bars = []  # of each group the stroke, and the bar's lower and upper end
    for values in (group.values for group in panel.groups):
        if len(values) == 1:
            bars.append((values[0],) * 3)
        elif panel.by_rank:
            low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
            bars.append((middle, low, high))
        else:
            mean, spread = statistics.fmean(values), statistics.stdev(values)
            bars.append((mean, mean - spread, mean + spread))
    reached = [end for group, bar in zip(panel.groups, bars, strict=True) for end in (*group.values, *bar)]
    # across, a pixel is a unit: strokes and dots keep their widths however many groups there are
    begin, high = top + POINTS_STRIP, POINTS_PANEL - POINTS_STRIP
    axes = sheet.chart(LEFT, begin, width, high, (0, width), _rules(panel, reached))
    group_width = width / max(len(panel.groups), 1)
    for index, (group, (middle, *ends)) in enumerate(zip(panel.groups, bars, strict=True)):
        x, colour = group_width * (index + 0.5), INK if group.bold else FADED
        if len(group.values) > 1:
            sheet.curve([(x, end) for end in ends], colour, BAR, axes=axes)
            sheet.dots(axes, [(x + ASIDE, value) for value in group.values], colour, DOT, 0.6)
        sheet.curve([(x - STROKE, middle), (x + STROKE, middle)], colour, 2 * BAR, axes=axes)
        for line, words in enumerate(group.label.split("\n")):
            baseline = top + POINTS_PANEL + 18 + LABEL_LINE * line
            sheet.text(LEFT + x, baseline, words, SMALL, align="center", width=group_width - 6)


def _write_names(sheet: Sheet, axes: Axes, lines: Iterable[Line], room: Pixels | None = None) -> None:
    """Names at the lines' ends, moved down where two would touch; in the room to the sheet's end unless it is given."""
    ends = [(sheet.place(axes, line.x[-1], line.y[-1]), line) for line in lines if line.name and line.x]
    below = -math.inf
    for (x, y), line in sorted(ends, key=lambda end: end[0][1]):
        below = max(y + 4, below + NAME_GAP)
        colour, weight = (INK, "bold") if line.bold else (FADED, "normal")
        width = sheet.width - x - 16 if room is None else room
        sheet.text(x + (8 if room is None else 4), below, line.name, SMALL, width=width, colour=colour, weight=weight)


def _rules(panel: Panel | PointsPanel, values: Sequence[float]) -> dict[Pixels, str]:
    """A panel's y axis: the ends that it was given, else those of the values."""
    low = min(values, default=0.0) if panel.bottom is None else panel.bottom
    high = max(values, default=1.0) if panel.top is None else panel.top
    return {tick: f"{tick:.4g}" for tick in even_ticks(low, high)}


def _thinned(line: Line, last: float, width: Pixels) -> list[tuple[float, float]]:
    """At most one point every second pixel: the mean of those that share it."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for x, y in zip(line.x, line.y, strict=True):
        bins.setdefault(int(x / last * width / 2), []).append((x, y))
    return [(sum(x for x, _ in bin) / len(bin), sum(y for _, y in bin) / len(bin)) for bin in bins.values()]


# ------------------------------------------------------------------------------- lines over steps, ways side by side

GRID_WIDTH, GRID_TOP, GRID_ROW, GRID_STRIP, GRID_GAP, COLUMN_GAP = 1000, 152, 150, 26, 30, 30


def _grid(chart: GridChart) -> Sheet:
    bottom = GRID_TOP + len(chart.rows) * (GRID_ROW + GRID_GAP) - GRID_GAP
    sheet = Sheet(GRID_WIDTH, bottom + BOTTOM)
    pitch = (GRID_WIDTH - LEFT - MARGIN + COLUMN_GAP) / max(len(chart.columns), 1)
    width = pitch - COLUMN_GAP
    last = max((x for row in chart.rows for cell in row.cells for line in cell for x in line.x), default=1.0) or 1.0
    for column, words in enumerate(chart.columns):
        for number, line in enumerate(words.split("\n")):
            y = GRID_TOP - 46 + LABEL_LINE * number
            sheet.text(LEFT + pitch * column, y, line, BODY, width=pitch - 6, weight="bold")
        sheet.text(LEFT + pitch * column, bottom + 20, "0", SMALL, colour=FADED)
        sheet.text(LEFT + pitch * column + width, bottom + 20, f"{last:,.0f}", SMALL, align="right", colour=FADED)
    for number, row in enumerate(chart.rows):
        top = GRID_TOP + number * (GRID_ROW + GRID_GAP)
        sheet.text(LEFT, top + 8, row.title, SMALL, width=GRID_WIDTH - LEFT - MARGIN, colour=FADED)
        lines = [[_by_powers(line) if row.powers else line for line in cell] for cell in row.cells]
        values = [value for cell in lines for line in cell for value in line.y]
        low, high = min(values, default=0.0) if row.bottom is None else row.bottom, max(values, default=1.0)
        rules: dict[Pixels, str]
        if row.powers:
            rules = {power: f"{10.0**power:,g}" for power in range(math.floor(low), math.ceil(high) + 1)}
        else:
            rules = {tick: f"{tick:.4g}" for tick in even_ticks(low, high)}
        for column, cell in enumerate(lines):
            place = (LEFT + pitch * column, top + GRID_STRIP, width, GRID_ROW - GRID_STRIP)
            # The same rules in every column: numbered once.
            axes = sheet.chart(*place, (0, last), rules if column == 0 else dict.fromkeys(rules, ""))
            for line in sorted(cell, key=lambda line: line.bold):
                colour, wide, alpha = (INK, 1.8, 1.0) if line.bold else (FADED, 0.8, 0.5)
                sheet.curve(_thinned(line, last, width), colour, wide, alpha=alpha, axes=axes)
            _write_names(sheet, axes, cell, COLUMN_GAP - 6)
    sheet.text(LEFT + (GRID_WIDTH - LEFT - MARGIN) / 2, bottom + 44, chart.x_title, BODY, align="center")
    return sheet


def _by_powers(line: Line) -> Line:
    """The line with the powers of ten in the place of its values. Those of 0 and below have none, and are left out."""
    points = [(x, math.log10(y)) for x, y in zip(line.x, line.y, strict=True) if y > 0]
    return replace(line, x=tuple(x for x, _ in points), y=tuple(power for _, power in points))
