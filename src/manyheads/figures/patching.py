"""Patching as a picture: a grid of layers and heads, or of heads and positions, each cell inked by its effect.

Read for the dark cells: these heads carry the answer. Ink goes by the size of the effect, from none to the largest of
the grid, in the ramp of all maps; a cell with an orange frame works against the answer, more than any control.
"""

from __future__ import annotations

import os

import numpy as np

from manyheads.circuits import Patching
from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.figures.paper import SMALL, Sheet, kind_of, text_width
from manyheads.heads import layer_name
from manyheads.roles.words import INK, role_style

CELL, ROW = 46, 30
MARGIN, TOP, LINE = 32, 116, 20
LEAST_WIDTH, MOST_WIDTH = 620, 2_400
AGAINST = role_style("duplicate token").colour  # vermilion: in no part of the ramp
TOLD = 0.05  # of the largest effect: below it a cell has no number
PALE = 0.5  # from this ink on, numbers are in the paper's colour
SIDES = {
    "denoise": "The share of the gap that one {}'s clean {} brings back to the corrupted text.",
    "noise": "The share of the gap that one {}'s corrupted {} takes from the clean text.",
}


def save_patching(patching: Patching, path: str | os.PathLike[str]) -> None:
    """Draw a patching, all heads or heads by positions; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    rows, columns, grid = [str(head) for head in patching.chosen], patching.positions, patching.values
    if columns is None and not patching.heads:
        columns, grid = ["all positions"], patching.values[:, None]
    if columns is None:  # a row a layer; NaN where it has no such head
        layers = list(dict.fromkeys((head.stack, head.layer) for head in patching.heads))
        columns = [f"H{index}" for index in range(max(head.index for head in patching.heads) + 1)]
        grid = np.full((len(layers), len(columns)), np.nan)
        for head, value in zip(patching.heads, patching.values.tolist(), strict=True):
            grid[layers.index((head.stack, head.layer)), head.index] = value
        rows = [layer_name(stack, layer) for stack, layer in layers]
    things = "heads" if patching.heads else "layers"
    ruler = max(text_width(name, SMALL) for name in rows) + 14
    turned = max(text_width(name, SMALL) for name in columns) > CELL - 6
    head_room = min(110, max(text_width(name, SMALL) for name in columns)) if turned else 14
    width = min(MOST_WIDTH, max(LEAST_WIDTH, 2 * MARGIN + ruler + CELL * len(columns)))
    top = TOP + head_room
    bottom = top + ROW * len(rows)
    sheet = Sheet(width, bottom + 4 * LINE + MARGIN)
    many = f"{patching.num_texts} pair{'s' * (patching.num_texts > 1)}"
    sheet.heading(
        MARGIN,
        f"{patching.notes['model']}: which {things} carry the answer",
        f"{patching.metric}, {many}; {patching.what}, {patching.direction}",
    )
    largest = float(np.nanmax(np.abs(grid))) or 1.0
    shares = np.abs(grid) / largest
    beyond = min([0.0, *patching.control])
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
                if value < beyond:
                    sheet.box(x + 2, y + 2, CELL - 4, ROW - 4, edge=AGAINST, line=2)
                colour = PAPER if share > PALE else INK
                sheet.text(x + CELL / 2, y + ROW / 2 + 4, f"{value:.2f}", SMALL, colour=colour, align="center")
    levels = f"{patching.clean.mean():.3g} clean, {patching.corrupted.mean():.3g} corrupted"
    control = "No control was made."
    if patching.control:
        control = (
            f"Controls, {things} with numbers of an unrelated text: {min(patching.control):.2f} to "
            f"{max(patching.control):.2f} ({len(patching.control)} drawn)."
        )
    sheet.notes(
        MARGIN,
        bottom + LINE + 10,
        [
            SIDES[patching.direction].format(things[:-1], patching.what),
            f"1 is the whole gap: {patching.metric} {levels}.",
            f"Orange frames: {things} that work against the answer, more than all controls.",
            control,
        ],
        LINE,
    )
    sheet.save(path)
