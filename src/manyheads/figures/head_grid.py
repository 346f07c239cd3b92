"""A grid of cells, layers by heads or heads by positions, each inked by the size of its number, which stands in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.figures.paper import SMALL, Sheet, text_width
from manyheads.heads import Head, layer_name
from manyheads.roles.words import INK, role_style

CELL, ROW = 46, 30
MARGIN, TOP, LINE = 32, 116, 20
LEAST_WIDTH, MOST_WIDTH = 620, 2_400
FRAME = role_style("duplicate token").colour  # vermilion: in no part of the ramp
TOLD = 0.05  # of the largest number: below it a cell is not told
PALE = 0.5  # from this ink on, numbers are in the paper's colour


def layers_of(
    heads: Sequence[Head], values: Float64[ndarray, "head"]
) -> tuple[list[str], list[str], Float64[ndarray, "row column"]]:
    """A number for each head as a grid: the rows' names, which are layers, the columns', and NaN where no head is."""
    layers = list(dict.fromkeys((head.stack, head.layer) for head in heads))
    columns = [f"H{index}" for index in range(max(head.index for head in heads) + 1)]
    grid = np.full((len(layers), len(columns)), np.nan)
    for head, value in zip(heads, values.tolist(), strict=True):
        grid[layers.index((head.stack, head.layer)), head.index] = value
    return [layer_name(stack, layer) for stack, layer in layers], columns, grid


def draw_cells(
    rows: Sequence[str],
    columns: Sequence[str],
    grid: Float64[ndarray, "row column"],
    title: str,
    subtitle: str,
    notes: Sequence[str],
    framed_below: float = -np.inf,
) -> Sheet:
    """Draw a grid; numbers below `framed_below` get a frame.

    - `rows`: the name of each row.
    - `columns`: the name of each column.
    - `grid`: the numbers, NaN where there is no cell.
    - `title`: above the drawing.
    - `subtitle`: below the title.
    - `notes`: lines below the grid.
    - `framed_below`: numbers below it get a frame.
    """
    ruler = max(text_width(name, SMALL) for name in rows) + 14
    turned = max(text_width(name, SMALL) for name in columns) > CELL - 6
    head_room = min(110, max(text_width(name, SMALL) for name in columns)) if turned else 14
    width = min(MOST_WIDTH, max(LEAST_WIDTH, 2 * MARGIN + ruler + CELL * len(columns)))
    top = TOP + head_room
    bottom = top + ROW * len(rows)
    sheet = Sheet(width, bottom + LINE * len(notes) + MARGIN)
    sheet.heading(MARGIN, title, subtitle)
    largest = float(np.nanmax(np.abs(grid), initial=0.0)) or 1.0
    shares = np.abs(grid) / largest
    left = MARGIN + ruler
    sheet.picture(left, top, CELL * len(columns), ROW * len(rows), inked(shares))
    for index, name in enumerate(columns):
        x = left + CELL * (index + 0.5)
        if turned:
            sheet.text(x + 4, top - 8, name, SMALL, width=head_room, colour=FADED, turned=True)
        else:
            sheet.text(x, top - 8, name, SMALL, colour=FADED, align="center")
    for row, name in enumerate(rows):
        y = top + ROW * row
        sheet.text(left - 10, y + ROW / 2 + 4, name, SMALL, colour=FADED, align="right")
        for column, value in enumerate(grid[row].tolist()):
            x, share = left + CELL * column, shares[row, column]
            if np.isnan(value):
                continue
            sheet.box(x, y, CELL, ROW, edge=HAIRLINE)
            if share >= TOLD:
                if value < framed_below:
                    sheet.box(x + 2, y + 2, CELL - 4, ROW - 4, edge=FRAME, line=2)
                colour = PAPER if share > PALE else INK
                words = f"{value:.2f}" if 0.005 <= largest < 1000 else f"{value:.1g}"
                sheet.text(x + CELL / 2, y + ROW / 2 + 4, words, SMALL, colour=colour, align="center")
    sheet.notes(MARGIN, bottom + LINE + 10, notes, LINE)
    return sheet
