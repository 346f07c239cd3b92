"""One text of a layer's record, whole or some of its rows: what the pass reads of it, and its heads' maps, small.

Small maps are for a grid of all heads: each layer takes one more attention call, with a column a block of keys where
the values stood. Cost: as attention itself; of a long text some rows a block are read, and the answer says how many.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.recording.passes import Layer, visible_blocks
from manyheads.recording.records import LayerRecord
from manyheads.recording.tiles import bins

__all__ = ["SmallMaps", "one_text", "small_maps"]


class SmallMaps(NamedTuple):
    """The maps of a layer's heads in blocks, by the mean of the visible cells; NaN where nothing is visible.

    Position i of n falls in block `i * p // n`. `rows_read` of `rows_in_all` rows were read.
    """

    maps: Float[Tensor, "h row_blocks key_blocks"]
    rows_read: int
    rows_in_all: int


def one_text(layer: LayerRecord, text: int, rows: Int[Tensor, "r"] | None = None) -> Layer:
    """One text of a layer as the pass reads it, trimmed; with `rows`, those rows alone, as if queries of their own."""
    chosen = slice(layer.num_queries(text)) if rows is None else rows
    whole = Layer(layer.q, layer.k, layer.lse, layer.mask, layer.rule, layer.crosses or rows is not None)
    return whole.one_text(text, chosen, layer.num_keys(text))


def small_maps(layer: LayerRecord, size: int, text: int = 0, rows_a_block: int | None = None) -> SmallMaps:
    """Every head's map of one text in at most `size x size` blocks, by mean. `rows_a_block`: no more rows than that.

    Errors: ShapeError for a size below 1, or a text that is not there.
    """
    if size < 1 or not 0 <= text < len(layer.lengths):
        raise ShapeError(f"{size=}, {text=}: a map has at least one block, and there are {len(layer.lengths)} texts.")
    num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
    of_rows, of_keys = bins(num_rows, size), bins(num_keys, size)
    row_blocks, key_blocks = min(size, num_rows), min(size, num_keys)
    rows = None
    if rows_a_block is not None and num_rows > rows_a_block * row_blocks:
        place = (torch.arange(row_blocks * rows_a_block, dtype=torch.float64) + 0.5) / (row_blocks * rows_a_block)
        rows = (place * num_rows).long()
        of_rows = of_rows[rows]
    columns = torch.nn.functional.one_hot(of_keys, key_blocks).float()
    mass = layer.project(columns, text, rows)
    sums = mass.new_zeros(len(mass), row_blocks, key_blocks).index_add_(1, of_rows, mass)
    visible = visible_blocks(one_text(layer, text, rows).mask, of_rows, of_keys, (row_blocks, key_blocks)).float()
    maps = (sums / visible).masked_fill(visible == 0, torch.nan)
    return SmallMaps(maps, num_rows if rows is None else len(rows), num_rows)
