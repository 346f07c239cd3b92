"""How far a model can be cut: what is lost against the number of heads removed, by importance and at random.

Read from the left: while the ink line lies on the floor, heads go for nothing. The grey lines are random orders of as
many heads: where ink and grey part, importance knew something.
"""

from __future__ import annotations

import os

import numpy as np

from manyheads.figures.palette import FADED
from manyheads.figures.paper import BODY, SMALL, Sheet, even_ticks, kind_of
from manyheads.interventions import Curve
from manyheads.roles.words import INK

WIDTH, HEIGHT, MARGIN = 860, 520, 36
LEFT, RIGHT, TOP, BOTTOM = 100, 130, 120, 86
BAND = "#DCE4EC"  # the interval: paler than any line
MEANING = {
    "cosine": "1 - cosine of each text's embedding with the whole model's",
    "loss": "rise of the next-token loss",
    "kl": "KL of the next token's distribution from the whole model's",
}


def save_curve(curve: Curve, path: str | os.PathLike[str]) -> None:
    """Draw a curve; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    draw_curve(curve).save(path)


def draw_curve(curve: Curve) -> Sheet:
    """The drawing that `save_curve` writes."""
    sheet, most, bottom = Sheet(WIDTH, HEIGHT), curve.counts[-1], HEIGHT - BOTTOM
    sheet.heading(MARGIN, f"{curve.model}: how many heads can go")
    unit = f" ({curve.unit})" if curve.unit else ""
    sheet.text(MARGIN, MARGIN + 40, f"{MEANING.get(curve.metric, curve.metric)}{unit}; {curve.notes['curve']}", BODY)
    sides = [] if np.isnan(curve.low).any() else [curve.low, curve.high]  # of fewer than 5 texts there are none
    values = np.concatenate([curve.ranked, *sides, *curve.random])
    axes = sheet.chart(
        LEFT, TOP, WIDTH - LEFT - RIGHT, bottom - TOP, (0, most),
        {tick: f"{tick:.4g}" for tick in even_ticks(min(0.0, float(values.min())), float(values.max()))},
        ticks={float(count): str(count) for count in np.unique(np.linspace(0, most, 7).round().astype(int))},
    )  # fmt: skip
    if sides:
        axes.fill_between(curve.counts, curve.low, curve.high, color=BAND, linewidth=0, clip_on=False)
    for line in curve.random:
        sheet.curve(zip(curve.counts, line.tolist(), strict=True), FADED, 1.2, alpha=0.8, axes=axes)
    sheet.curve(zip(curve.counts, curve.ranked.tolist(), strict=True), INK, 2.4, axes=axes)
    # each line's name stands at its middle, where the lines lie apart
    middle = len(curve.counts) // 2
    x, y = sheet.place(axes, curve.counts[middle], float(curve.ranked[middle]))
    sheet.text(x + 10, y + 18, "by importance", BODY, weight="bold")
    if len(curve.random):
        x, y = sheet.place(axes, curve.counts[middle], float(curve.random[:, middle].max()))
        sheet.text(x - 10, y - 10, "at random", BODY, align="right", colour=FADED)
    sheet.text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, f"heads removed, of {most}", BODY, align="center")
    words = f"Ink: least important first, {curve.notes['order']}; its band: 95 % over texts."
    sheet.text(MARGIN, HEIGHT - 24, words, SMALL, colour=FADED, width=WIDTH - 2 * MARGIN)
    return sheet
