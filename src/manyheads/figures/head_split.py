"""A split of heads: every key/value head's score with the kept ones marked, and what each share of heads loses.

On the left layers go down and key/value heads across; the darker a cell, the higher its score (on a square-root scale:
a few heads have most of it). On the right the ink line is the split, the grey ones as many heads at random.
"""

from __future__ import annotations

import os
import re

import numpy as np

from manyheads.errors import StatisticError
from manyheads.figures.palette import FADED, PAPER, inked
from manyheads.figures.paper import BODY, SMALL, Sheet, even_ticks, kind_of
from manyheads.long_context import HeadSplit
from manyheads.roles.words import INK

WIDTH, MARGIN, TOP, BOTTOM = 1000, 36, 112, 104
MAP_LEFT, MAP_WIDTH, CHART_LEFT = 84, 330, 540
CELL = (3, 24)  # the least and the most height of a layer
BAND = "#DCE4EC"  # the interval: paler than any line
NAMED = 12  # layers whose number stands beside them


def save_split(split: HeadSplit, path: str | os.PathLike[str]) -> None:
    """Draw a split; .png, .svg or .pdf. Errors: FileAccessError; StatisticError for a split without a curve."""
    kind_of(path)
    draw_split(split).save(path)


def draw_split(split: HeadSplit) -> Sheet:
    """The drawing that `save_split` writes."""
    if not (curve := split.evidence.get("curve")):
        raise StatisticError(f"this split of {split.model} has no curve to draw: mh.split_heads measures it.")
    rows, columns = len(split.layers), max(layer.num_kv_heads for layer in split.layers)
    cell = min(max(300 // rows, CELL[0]), CELL[1])
    height = max(cell * rows, 280)
    sheet = Sheet(WIDTH, TOP + height + BOTTOM)
    sheet.heading(MARGIN, f"{split.model}: which heads need the whole context")
    sheet.text(MARGIN, MARGIN + 40, str(split), BODY, width=WIDTH - 2 * MARGIN, colour=FADED)

    # Left: a cell a head, as dark as its score, with a square where the head is kept whole.
    most = max((score for layer in split.layers for score in layer.scores), default=0.0)
    shares = np.full((rows, columns), np.nan)
    for row, layer in enumerate(split.layers):
        shares[row, : layer.num_kv_heads] = np.sqrt(np.clip(layer.scores, 0, None) / (most if most > 0 else 1.0))
    width, below = MAP_WIDTH / columns, TOP + cell * rows
    sheet.picture(MAP_LEFT, TOP, MAP_WIDTH, cell * rows, inked(shares))
    side = min(cell, width) / 3  # of the mark, which stands on paper and on ink alike
    for row, layer in enumerate(split.layers):
        for column, is_whole in enumerate(layer.kept):
            if is_whole:
                x, y = MAP_LEFT + (column + 0.5) * width - side / 2, TOP + (row + 0.5) * cell - side / 2
                sheet.box(x, y, side, side, fill=PAPER if shares[row, column] > 0.5 else INK)
    attending = [row for row, layer in enumerate(split.layers) if layer.kept]
    for row in attending[:: -(-len(attending) // NAMED)]:
        sheet.text(MAP_LEFT - 10, TOP + (row + 0.5) * cell + 4, f"L{row}", SMALL, colour=FADED, align="right")
    sheet.text(MAP_LEFT, below + 20, "0", SMALL, colour=FADED)
    last = f"key/value head {columns - 1}"
    sheet.text(MAP_LEFT + MAP_WIDTH, below + 20, last, SMALL, colour=FADED, align="right")
    key = f"Darkest: {split.by} of {most:.3g} {split.unit}. Squares: kept whole."
    sheet.text(MAP_LEFT, below + 40, key, SMALL, colour=FADED)

    # Right: what is lost by how many heads are kept, beside the same at random.
    keeps, losses = [point["keep"] for point in curve], [point["loss"] for point in curve]
    line = [loss["change"] for loss in losses]
    sides = [[loss[end] if loss[end] is not None else loss["change"] for loss in losses] for end in ("low", "high")]
    # Random splits may have been compared at the split's own share alone.
    at_random = [(share, loss["random"]) for share, loss in zip(keeps, losses, strict=True) if loss["random"]]
    values = np.concatenate([line, *sides, *(changes for _, changes in at_random)])
    low, high = float(values.min()), float(values.max())
    axes = sheet.chart(
        CHART_LEFT, TOP, WIDTH - CHART_LEFT - MARGIN - 20, height, (keeps[0], 1.0),
        {tick: f"{tick:.4g}" for tick in even_ticks(min(0.0, low), high)},
        ticks={share: f"{share:.0%}" for share in (0.1, 0.25, 0.5, 0.75, 1.0)},
    )  # fmt: skip
    axes.fill_between(keeps, np.array(sides[0]), np.array(sides[1]), color=BAND, linewidth=0, clip_on=False)
    for order in range(min((len(changes) for _, changes in at_random), default=0)):
        points = [(share, changes[order]) for share, changes in at_random]
        sheet.dots(axes, points, FADED, 3, 0.8)
        sheet.curve(points, FADED, 1.2, alpha=0.8, axes=axes)
    sheet.curve(zip(keeps, line, strict=True), INK, 2.4, axes=axes)
    sheet.curve([(split.keep, low), (split.keep, high)], FADED, 1, dashed=True, axes=axes)
    sheet.text(CHART_LEFT, TOP - 14, "rise of the next-token loss (nats a token), mean of the texts that report", SMALL)
    named = len(keeps) // 4
    x, y = sheet.place(axes, keeps[named], line[named])
    sheet.text(x, y + 24, f"by {split.by}", BODY, weight="bold")
    if at_random:
        share, changes = at_random[len(at_random) // 4]
        x, y = sheet.place(axes, share, max(changes))
        sheet.text(x, y - 10, "at random", BODY, colour=FADED)
    middle = (CHART_LEFT + WIDTH - MARGIN - 20) / 2
    sheet.text(middle, TOP + height + 40, "share of key/value heads that keep everything", BODY, align="center")

    words = split.evidence.get("verdict", {}).get("words", "")
    sheet.notes(MARGIN, TOP + height + BOTTOM - 32, re.split(r"(?<=\.) ", words), 18)
    return sheet
