"""Patching as a picture: a grid of layers and heads, or of heads and positions, each cell inked by its effect.

Read for the dark cells: these heads carry the answer. Ink goes by the size of the effect, from none to the largest of
the grid, in the ramp of all maps; a cell with an orange frame works against the answer, more than any control.
"""

from __future__ import annotations

import os

from manyheads.circuits import Patching
from manyheads.figures.head_grid import draw_cells, layers_of
from manyheads.figures.paper import Sheet, kind_of

SIDES = {
    "denoise": "The share of the gap that one {}'s clean {} brings back to the corrupted text.",
    "noise": "The share of the gap that one {}'s corrupted {} takes from the clean text.",
}


def save_patching(patching: Patching, path: str | os.PathLike[str]) -> None:
    """Draw a patching, all heads or heads by positions; .png, .svg or .pdf. Errors: FileAccessError."""
    kind_of(path)
    draw_patching(patching).save(path)


def draw_patching(patching: Patching) -> Sheet:
    """The drawing that `save_patching` writes."""
    things = "heads" if patching.heads else "layers"
    if patching.positions is not None:
        rows, columns, grid = [str(row) for row in patching.chosen], list(patching.positions), patching.values
    elif patching.heads:  # a row a layer
        rows, columns, grid = layers_of(patching.heads, patching.values)
    else:
        rows, columns, grid = [str(row) for row in patching.chosen], ["all positions"], patching.values[:, None]
    levels = f"{patching.clean.mean():.3g} clean, {patching.corrupted.mean():.3g} corrupted"
    control = "No control was made."
    if patching.control:
        control = (
            f"Controls, {things} with numbers from an unrelated text: {min(patching.control):.2f} to "
            f"{max(patching.control):.2f} ({len(patching.control)} drawn)."
        )
    many = f"{patching.num_texts} pair{'s' * (patching.num_texts > 1)}"
    return draw_cells(
        rows,
        columns,
        grid,
        f"{patching.notes['model']}: which {things} carry the answer",
        f"{patching.metric}, {many}; {patching.what}, {patching.direction}",
        [
            SIDES[patching.direction].format(things[:-1], patching.what),
            f"1 is the whole gap: {patching.metric} {levels}.",
            f"Orange frames: {things} that work against the answer, more than all controls.",
            control,
        ],
        framed_below=min([0.0, *patching.control]),
    )
