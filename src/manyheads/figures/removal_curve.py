"""How far a model can be cut: what is lost against the number of heads removed, by importance and at random.

Read from the left: while the ink line lies on the floor, heads go for nothing. The grey lines are random orders of as
many heads: where ink and grey part, importance knew something.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from matplotlib.collections import LineCollection
from matplotlib.patches import Polygon
from numpy import ndarray

from manyheads.figures.palette import FADED, INK
from manyheads.figures.paper import POINT, Sheet, kind_of
from manyheads.interventions import Curve

WIDTH, HEIGHT, MARGIN = 860, 520, 36
TITLE, BODY, SMALL = 21, 12.5, 11
LEFT, RIGHT, TOP, BOTTOM = 100, 130, 120, 86
BAND = "#DCE4EC"  # the interval: paler than any line
TICKS = 5
MEANING = {
    "cosine": "1 - cosine of each text's embedding with the whole model's",
    "loss": "rise of the next-token loss",
    "kl": "KL of the next token's distribution from the whole model's",
}
Place = Callable[[float, float], tuple[float, float]]


def save_curve(curve: Curve, path: str | os.PathLike[str]) -> None:
    """Draw a curve; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    sheet = Sheet(WIDTH, HEIGHT)
    sides = [] if np.isnan(curve.low).any() else [curve.low, curve.high]  # of a single text there are none
    lines = [curve.ranked, *sides, *curve.random]
    highest, lowest = max(float(line.max()) for line in lines), min(0.0, *(float(line.min()) for line in lines))
    step = even_step((highest - lowest) or 1.0)
    top, bottom = math.ceil(highest / step) * step, math.floor(lowest / step) * step
    span = (top - bottom) or 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(count: float, value: float) -> tuple[float, float]:
        return LEFT + width * count / curve.counts[-1], TOP + height * (top - value) / span

    room = WIDTH - 2 * MARGIN
    unit = f" ({curve.unit})" if curve.unit else ""
    sheet.text(MARGIN, MARGIN + 14, f"{curve.model}: how many heads can go", TITLE, width=room, weight="bold")
    sheet.text(MARGIN, MARGIN + 40, f"{MEANING.get(curve.metric, curve.metric)}{unit}; {curve.notes['curve']}", BODY)
    _axes(sheet, curve, place, np.arange(bottom, top + step / 2, step))
    if sides:
        edge = [place(float(c), float(v)) for c, v in zip(curve.counts, curve.high, strict=True)]
        edge += [place(float(c), float(v)) for c, v in zip(curve.counts[::-1], curve.low[::-1], strict=True)]
        sheet.axes.add_patch(Polygon(edge, closed=True, facecolor=BAND, edgecolor="none"))
    grey = [[place(float(c), float(v)) for c, v in zip(curve.counts, line, strict=True)] for line in curve.random]
    sheet.axes.add_collection(LineCollection(grey, colors=FADED, linewidths=1.2 * POINT, alpha=0.8))
    ink = [place(float(c), float(v)) for c, v in zip(curve.counts, curve.ranked, strict=True)]
    sheet.axes.add_collection(LineCollection([ink], colors=INK, linewidths=2.4 * POINT))
    _names(sheet, curve, place)
    sheet.text(
        MARGIN, HEIGHT - 24, f"Ink: least important first, {curve.notes['order']}; its band: 95 % over texts.", SMALL,
        colour=FADED, width=room,
    )  # fmt: skip
    sheet.save(path)


def even_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that some five lines cross the span."""
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)


def _axes(sheet: Sheet, curve: Curve, place: Place, values: Float[ndarray, "tick"]) -> None:
    rules, bottom = [], float(values[0])
    for value in values.tolist():
        (left, y), (right, _) = place(0.0, value), place(float(curve.counts[-1]), value)
        rules.append(((left, y), (right, y)))
        sheet.text(left - 10, y + 4, f"{value:.4g}", SMALL, align="right", colour=FADED)
    sheet.lines(rules)
    for count in np.unique(np.linspace(0, curve.counts[-1], 7).round().astype(int)):
        x, y = place(float(count), bottom)
        sheet.text(x, y + 20, str(count), SMALL, align="center", colour=FADED)
    x, y = place(curve.counts[-1] / 2, bottom)
    sheet.text(x, y + 42, f"heads removed, of {curve.counts[-1]}", BODY, align="center")


def _names(sheet: Sheet, curve: Curve, place: Place) -> None:
    """The lines' names at their middles, where they lie apart."""
    middle = len(curve.counts) // 2
    x, y = place(float(curve.counts[middle]), float(curve.ranked[middle]))
    sheet.text(x + 10, y + 18, "by importance", BODY, weight="bold")
    if len(curve.random):
        highest = float(curve.random[:, middle].max())
        x, y = place(float(curve.counts[middle]), highest)
        sheet.text(x - 10, y - 10, "at random", BODY, align="right", colour=FADED)
