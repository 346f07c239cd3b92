"""Which cycles each head reads, a small panel a head; below, predicted against true cycles left, a square a way.

All heads' panels share one scale, so that a head that reads one place stands out from one that reads evenly.
"""

from __future__ import annotations

import os

import numpy as np
from matplotlib.lines import Line2D

from manyheads.figures.palette import FADED, INK
from manyheads.figures.paper import POINT, Pixels, Point, Sheet
from manyheads.figures.removal_curve import even_step
from manyheads.training import RulChart
from manyheads.training.charts import Reading, Scatter

WIDTH, MARGIN = 1000, 36
TITLE, BODY, SMALL = 21, 12.5, 11
COLUMNS, GAP = 4, 26
AXIS = 40  # left of the first panel, for its numbers
TOP, HEAD_HEIGHT, STRIP = 134, 118, 44  # STRIP: from one row of heads to the next
SQUARE_GAP, LINE = 56, 20
WORN_LINE, SOUND_LINE, DOT = 2.4, 1.2, 2.6


def save_rul(chart: RulChart, path: str | os.PathLike[str]) -> None:
    """Draw it; .png, .svg or .pdf. Errors: FileAccessError."""
    rows = -(-len(chart.readings) // COLUMNS)
    squares = TOP + rows * (HEAD_HEIGHT + STRIP) + 74
    side = (WIDTH - 2 * MARGIN - AXIS - (len(chart.scatters) - 1) * SQUARE_GAP) / max(len(chart.scatters), 1)
    notes = squares + side + 70
    sheet = Sheet(WIDTH, notes + LINE * len(chart.notes) + 12)
    room = WIDTH - 2 * MARGIN
    sheet.text(MARGIN, MARGIN + 14, chart.title, TITLE, width=room, weight="bold")
    sheet.text(MARGIN, MARGIN + 38, chart.subtitle, BODY, width=room, colour=FADED)
    _legend(sheet, chart)
    _heads(sheet, chart)
    sheet.text(MARGIN + AXIS, squares - 32, "Cycles left: predicted (up) against true (across)", BODY, weight="bold")
    for index, scatter in enumerate(chart.scatters):
        _square(sheet, scatter, MARGIN + AXIS + index * (side + SQUARE_GAP), squares, side, chart.cap, index == 0)
    for index, note in enumerate(chart.notes):
        sheet.text(MARGIN, notes + index * LINE, note, SMALL, width=room, colour=FADED)
    sheet.save(path)


def _legend(sheet: Sheet, chart: RulChart) -> None:
    x, y = MARGIN + AXIS, MARGIN + 64
    for text, colour, wide in ((chart.worn, INK, WORN_LINE), (chart.sound, FADED, SOUND_LINE)):
        sheet.curve([(x, y - 4), (x + 26, y - 4)], colour, wide)
        x += 34 + sheet.text(x + 34, y, text, BODY) + 28


def _heads(sheet: Sheet, chart: RulChart) -> None:
    values = [value for entry in chart.readings for value in (*entry.worn, *entry.sound)]
    step = even_step(max(values, default=1.0))
    top = np.ceil(max(values, default=1.0) / step) * step
    width = (WIDTH - 2 * MARGIN - AXIS - (COLUMNS - 1) * GAP) / COLUMNS
    for index, reading in enumerate(chart.readings):
        row, column = divmod(index, COLUMNS)
        place = (MARGIN + AXIS + column * (width + GAP), TOP + row * (HEAD_HEIGHT + STRIP))
        _head(sheet, reading, place, width, (step, top), column == 0)
    rows = -(-len(chart.readings) // COLUMNS)
    sheet.text(MARGIN + AXIS, TOP + rows * (HEAD_HEIGHT + STRIP) - 4, chart.x_title, SMALL, colour=FADED)


def _head(sheet: Sheet, reading: Reading, at: Point, width: Pixels, scale: tuple[float, float], numbered: bool) -> None:
    """One head's two lines over a rule for each tick, and a fine one where an even reading would be."""
    (x, y), (step, top), count = at, scale, len(reading.worn)

    def place(cycle: int, value: Pixels) -> Point:
        return x + width * cycle / (count - 1), y + HEAD_HEIGHT * (1 - value / top)

    sheet.text(x, y - 8, reading.head, BODY, weight="bold")
    for tick in np.arange(0, top + step / 2, step).tolist():
        sheet.lines([(place(0, tick), place(count - 1, tick))])
        if numbered:
            sheet.text(x - 8, place(0, tick)[1] + 4, f"{tick:.3g}", SMALL, align="right", colour=FADED)
    sheet.curve([place(0, 1 / count), place(count - 1, 1 / count)], FADED, 0.7)
    for values, colour, wide in ((reading.sound, FADED, SOUND_LINE), (reading.worn, INK, WORN_LINE)):
        sheet.curve([place(cycle, value) for cycle, value in enumerate(values)], colour, wide)
    for cycle in (0, count - 1):
        sheet.text(place(cycle, 0)[0], y + HEAD_HEIGHT + 15, str(cycle + 1), SMALL, align="center", colour=FADED)


def _square(sheet: Sheet, scatter: Scatter, x: Pixels, y: Pixels, side: Pixels, cap: float, numbered: bool) -> None:
    def place(true: Pixels, said: Pixels) -> Point:
        return x + side * true / cap, y + side * (1 - said / cap)

    sheet.text(x, y - 10, scatter.title, BODY, width=side + SQUARE_GAP - 8)
    for tick in np.arange(0, cap + 1, 25).tolist():
        sheet.lines([(place(0, tick), place(cap, tick)), (place(tick, 0), place(tick, cap))])
        sheet.text(place(tick, 0)[0], y + side + 16, f"{tick:.0f}", SMALL, align="center", colour=FADED)
        if numbered:
            sheet.text(x - 8, place(0, tick)[1] + 4, f"{tick:.0f}", SMALL, align="right", colour=FADED)
    sheet.curve([place(0, 0), place(cap, cap)], FADED, 1.2)
    xs, ys = zip(*(place(*point) for point in scatter.points), strict=True)
    # one shape that is used again for every point: an SVG of circles would be three times as large
    dots = Line2D(xs, ys, linestyle="none", marker="o", markersize=2 * DOT * POINT, color=INK, markeredgewidth=0)
    dots.set(alpha=0.75, zorder=4)
    sheet.axes.add_line(dots)
