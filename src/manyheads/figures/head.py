"""One head's map with its words on both axes: where each word looks, and a scale that says what ink means.

Every cell is a whole number of pixels and none is left out: a map too large for that is shown by the means of its
blocks, and says so. Few words get their weights written in the cells; many get as many labels as fit, with positions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.figures.paper import SMALL, Sheet, fitted, kind_of, on_host, text_width
from manyheads.roles.words import INK

MOST = 1_040  # pixels of a map's longer side, and so the most cells that are drawn one by one: two for each of 512
LARGEST_CELL = 46
NUMBERED = 36  # pixels from which on a cell holds its weight in figures
LEAST_NUMBER = 0.005  # rounds to 0.01: below, the cell stays without
DARK = 0.5  # share of ink from which on figures are paper on ink
MARGIN, LINE = 32, 20
NEEDED_WIDTH = 560  # for title and notes
LABEL_WIDTH = 150
LABEL_PITCH = 14  # pixels that a label takes
STEPS = tuple(head * 10**zeros for zeros in range(9) for head in (1, 2, 5))
TICKS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
TICK_PITCH = 22
BAR, BAR_HEIGHT, BAR_ROOM = 14, 260, 110
TITLE = 19
CORNER = "who looks ↓   at what →"
SCALE = "Ink goes by the square root of the weight, so that small ones show; full ink is this map's largest."
NUMBERS = f"Figures are weights, rounded; below {LEAST_NUMBER} there is none."
BARE = "bare paper: nothing visible there, which is not 0"


@dataclass(frozen=True)
class _Axis:
    """The labels of one axis: at which cells, and what they say."""

    at: tuple[int, ...]
    words: tuple[str, ...]
    width: float

    @staticmethod
    def of(labels: Sequence[str] | None, count: int, cell: int, block: int) -> _Axis:
        """Every label where they fit, else every second, fifth, tenth ... with its position, from 0."""
        # 1, 2, 5, 10 ...: the smallest step at which labels do not touch
        step = next(step for step in STEPS if step >= block and step * cell >= LABEL_PITCH * block)
        positions = range(0, count, step)
        names = [str(i) if labels is None else labels[i] if step == 1 else f"{i} {labels[i]}" for i in positions]
        words = tuple(fitted(name, LABEL_WIDTH, SMALL, mono=True) for name in names)
        width = max((text_width(word, SMALL, mono=True) for word in words), default=0.0)
        return _Axis(tuple(i // block for i in positions), words, width)


@dataclass(frozen=True, eq=False)
class _Plot:
    """The map as it is drawn, and where; pixels from the top left."""

    shown: Float64[ndarray, "row column"]
    rows: _Axis
    keys: _Axis
    cell: int
    left: int
    top: int
    notes: tuple[str, ...]
    bare: bool

    @staticmethod
    def of(
        weights: Float64[ndarray, "q k"], rows: Sequence[str] | None, keys: Sequence[str] | None, note: str, head: int
    ) -> _Plot:
        # rounded up: one pixel a cell at the least, and never a map beyond MOST
        block = -(-max(weights.shape) // MOST)
        blocks = block_means(weights, block)
        cell = min(MOST // max(blocks.shape), LARGEST_CELL)
        of_rows = _Axis.of(rows, len(weights), cell, block)
        of_keys = _Axis.of(keys, weights.shape[1], cell, block)
        left = MARGIN + max(of_rows.width, text_width(CORNER, SMALL)) + 12
        top = head + of_keys.width + 14
        pooled = f"The map is too large for one pixel a cell: shown by means of {block} x {block}." if block > 1 else ""
        cells = f"Cells: {note}{'; the axes count them' if keys is None else ''}." if note else ""
        remarks = (cells, pooled, SCALE, NUMBERS if cell >= NUMBERED else "")
        notes = tuple(line for line in remarks if line)
        return _Plot(blocks, of_rows, of_keys, cell, round(left), round(top), notes, bool(np.isnan(blocks).any()))

    @property
    def width(self) -> int:
        return self.shown.shape[1] * self.cell

    @property
    def height(self) -> int:
        return self.shown.shape[0] * self.cell

    @property
    def bar_height(self) -> int:
        return min(max(self.height, 100), BAR_HEIGHT)

    @property
    def bottom(self) -> int:
        return self.top + max(self.height, self.bar_height) + 28

    @property
    def peak(self) -> float:
        """The largest weight; 1 where there is none above 0, so that the scale has an end."""
        visible = self.shown[~np.isnan(self.shown)]
        return float(visible.max(initial=0.0)) or 1.0

    @property
    def shares(self) -> Float64[ndarray, "row column"]:
        return np.sqrt((self.shown / self.peak).clip(0, 1))


def save_head(
    weights: object,
    labels: Sequence[str] | None,
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str = "",
    row_labels: Sequence[str] | None = None,
    note: str = "",
) -> None:
    """Draw one map `Float[q k]`, an array or a tensor, NaN where a row does not see a key; .png, .svg or .pdf.

    - `weights`: one for each row and key, 0 to 1.
    - `labels`: name the keys, and the rows too where there are as many and `row_labels` is None; None counts from 0.
    - `path`: the file.
    - `title`: above the drawing.
    - `subtitle`: below the title.
    - `row_labels`: name the rows.
    - `note`: what a cell is where it is not a single weight (`PooledMaps.because`).

    Maps over 1,040 a side are pooled.
    Errors: FileAccessError; ShapeError for anything but a map, or labels that are not one for each of its rows or keys.
    """
    kind_of(path)
    draw_head(weights, labels, title=title, subtitle=subtitle, row_labels=row_labels, note=note).save(path)


def draw_head(
    weights: object,
    labels: Sequence[str] | None,
    *,
    title: str,
    subtitle: str = "",
    row_labels: Sequence[str] | None = None,
    note: str = "",
) -> Sheet:
    """The drawing that `save_head` writes."""
    array = np.asarray(on_host(weights), dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ShapeError(f"weights has the shape {array.shape}: give one head's map, rows x keys, at least one cell.")
    num_rows, num_keys = array.shape
    if row_labels is None and num_rows == num_keys:
        row_labels = labels
    axes = (("labels", labels, num_keys, "keys"), ("row_labels", row_labels, num_rows, "rows"))
    for name, words, count, noun in axes:
        if words is not None and len(words) != count:
            raise ShapeError(
                f"{name} has {len(words)} words, but the map has {count} {noun}: give one for each, or None."
            )
    plot = _Plot.of(array, row_labels, labels, note, MARGIN + 30 + 22 * bool(subtitle))
    width = max(plot.left + plot.width + BAR_ROOM, MARGIN + NEEDED_WIDTH) + MARGIN
    sheet = Sheet(width, plot.bottom + LINE * (len(plot.notes) + plot.bare) + MARGIN - 12)
    sheet.heading(MARGIN, title, subtitle, size=TITLE, below=37)
    sheet.picture(plot.left, plot.top, plot.width, plot.height, inked(plot.shares))
    sheet.box(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1, edge=HAIRLINE)
    # Labels at the middle of their cells; ticks where not every cell has one.
    ticks = []
    for position, label in zip(plot.rows.at, plot.rows.words, strict=True):
        y = plot.top + (position + 0.5) * plot.cell
        sheet.text(plot.left - 10, y + 4, label, SMALL, mono=True, align="right")
        ticks.append(((plot.left - 6, y), (plot.left - 2, y)))
    for position, label in zip(plot.keys.at, plot.keys.words, strict=True):
        x = plot.left + (position + 0.5) * plot.cell
        sheet.text(x + 4, plot.top - 10, label, SMALL, mono=True, turned=True)
        ticks.append(((x, plot.top - 6), (x, plot.top - 2)))
    if plot.cell < LABEL_PITCH:
        sheet.lines(ticks, colour=FADED)
    sheet.text(plot.left - 10, plot.top - 10, CORNER, SMALL, colour=FADED, align="right")
    if plot.cell >= NUMBERED:
        shares = plot.shares
        for row, column in zip(*np.nonzero(np.nan_to_num(plot.shown) >= LEAST_NUMBER), strict=True):
            x, y = plot.left + (column + 0.5) * plot.cell, plot.top + (row + 0.5) * plot.cell + 4
            colour = PAPER if shares[row, column] >= DARK else INK
            number = f"{plot.shown[row, column]:.2f}".removeprefix("0")
            sheet.text(x, y, number, SMALL, mono=True, colour=colour, align="center")
    # The scale: full ink on top, and the weight at each tick.
    x, height, peak = plot.left + plot.width + 28, plot.bar_height, plot.peak
    sheet.picture(x, plot.top, BAR, height, inked(np.linspace(1, 0, height)[:, None]))
    marks = [(height, f"{peak:.2g}"), (0.0, "0")]
    for tick in TICKS:
        offset = height * float(np.sqrt(tick / peak))
        if tick < peak and all(abs(offset - earlier) >= TICK_PITCH for earlier, _ in marks):
            marks.append((offset, f"{tick:g}"))
    for offset, tick_label in marks:
        y = plot.top + height - offset
        sheet.text(x + BAR + 9, y + 4, tick_label, SMALL)
        sheet.lines([((x + BAR + 1, y), (x + BAR + 5, y))], FADED)
    sheet.text(x, plot.top - 10, "weight", SMALL, colour=FADED)
    if plot.bare:
        sheet.box(MARGIN + 0.5, plot.bottom - 9.5, 10, 10, fill=PAPER, edge=HAIRLINE)
        sheet.text(MARGIN + 19, plot.bottom, BARE, SMALL, colour=FADED, width=sheet.width - 2 * MARGIN)
    sheet.notes(MARGIN, plot.bottom + LINE * plot.bare, plot.notes, LINE)
    return sheet


def block_means(weights: Float64[ndarray, "q k"], block: int) -> Float64[ndarray, "row column"]:
    """Means of the visible cells of each `block` x `block` (the last ones smaller); NaN where none is visible."""
    if block == 1:
        return weights
    visible = ~np.isnan(weights)
    totals, counts = np.where(visible, weights, 0.0), visible.astype(np.float64)
    for axis, size in enumerate(weights.shape):
        totals, counts = (np.add.reduceat(part, np.arange(0, size, block), axis=axis) for part in (totals, counts))
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
