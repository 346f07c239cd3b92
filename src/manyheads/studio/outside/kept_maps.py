"""Maps as a saved page keeps them: how much of each fits, one head's read in one pass, and a layer's packed small.

A short text's maps are exact; of a longer one each head's map is kept in blocks, by mean and by largest (those a level
coarser), beside the exact strongest links of every row. web/src/lib/api/snapshot.ts reads what `packed` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from manyheads.recording import LayerRecord
from manyheads.recording.exact_map.zoom import read_region
from manyheads.studio.schema.recordings import LayerInfo
from manyheads.studio.views.envelope import MIN_MISSING, in_steps

__all__ = ["HeadMap", "Held", "held_of", "packed", "read_map"]


MAP_CELLS = 1_200_000  # of all heads' maps together: 72 maps of 128 x 128 are 0.75 MB, packed
FLOAT_CELLS = 150_000  # up to so many exact weights are kept as they are; more, to 1/65,534
NUM_LINKS, MOST_LINKS = 200_000, 10  # of all heads together; of one row
WHOLE_CELLS = 1 << 22  # of one head's map: up to 2,048 tokens every cell is read, beyond there are no links of rows
SAMPLED_CELLS = 1 << 25  # of one head's map; of a longer text rows are sampled
COARSEST = 40
STEPS, ABSENT, LINK_STEPS = 65_534, 65_535, 65_535


@dataclass(frozen=True)
class Held:
    """How much of a text is kept: the level of its maps (0: exact), their cells in all, and links a row (0: none)."""

    level: int
    cells: int
    links: int

    @property
    def coding(self) -> str:
        return "steps8" if self.level else "float32" if self.cells <= FLOAT_CELLS else "steps16"

    @property
    def words(self) -> str:
        return self._maps + (f"; {self.links_words}" if self.links else "")

    @property
    def _maps(self) -> str:
        if self.level == 0:
            return "every weight, exact" + ("" if self.coding == "float32" else f" to 1/{STEPS:,}")
        mean, largest = 1 << self.level, 2 << self.level
        return (
            f"every head's map by the mean of {mean} x {mean} cells and by the largest of {largest} x {largest}, to "
            f"0.4 % of the map's largest"
        )

    @property
    def links_words(self) -> str:
        most = f"the {self.links} strongest of each row" if self.links > 1 else "the strongest of each row"
        return f"{most}, exact to 1/{LINK_STEPS:,}" if self.links else ""

    def map_words(self, how: str, sampled: str) -> str:
        """What a cell of the maps by "mean" or "max" is; `sampled` as in `HeadMap`."""
        if self.level == 0:
            return "exact weights" if self.coding == "float32" else f"weights, exact to 1/{STEPS:,}"
        said, side = ("mean", 1 << self.level) if how == "mean" else ("largest", 2 << self.level)
        return f"{said} of {side} x {side} cells, to 0.4 % of the map's largest{sampled}"


@dataclass(frozen=True, eq=False)
class HeadMap:
    """One head's map as it is kept. `visible` and `missing` of each row are None where not every cell was read, the
    `keys` and `weights` of its links where there are none."""

    mean: ndarray
    max: ndarray
    sampled: str = ""  # in words, where not every row was read
    visible: ndarray | None = None
    missing: ndarray | None = None
    keys: ndarray | None = None
    weights: ndarray | None = None


def held_of(layers: Sequence[LayerInfo]) -> Held:
    """The finest level at which all maps together are small enough, and the links that fit beside it."""

    def cells(level: int) -> int:
        side = 1 << level
        return sum(layer.num_heads * -(-layer.num_queries // side) * -(-layer.num_keys // side) for layer in layers)

    level = next(level for level in range(COARSEST + 1) if cells(level) <= MAP_CELLS or level == COARSEST)
    rows = sum(layer.num_heads * layer.num_queries for layer in layers)
    whole = max(layer.num_queries * layer.num_keys for layer in layers) <= WHOLE_CELLS
    links = min(MOST_LINKS, NUM_LINKS // max(1, rows)) if level and whole else 0
    return Held(level, cells(level), links)


def read_map(layer: LayerRecord, head: int, text: int, held: Held) -> HeadMap:
    """What is kept of one head's map. Cost: one pass over its exact weights, or over sampled rows of a long text."""
    rows, keys = slice(0, layer.num_queries(text)), slice(0, layer.num_keys(text))
    level, whole = held.level, rows.stop * keys.stop <= WHOLE_CELLS
    levels, most = (range(0, level + 1), None) if whole else (range(level, level + 1), SAMPLED_CELLS)
    region = read_region(layer, head, rows, keys, levels, text=text, most_cells=most)
    mean, coarser = region.levels[-1].mean.numpy(), _halved(region.levels[-1].max.numpy())
    if not whole:
        sampled = "" if region.exact else f", {region.rows_read:,} of {region.rows_in_all:,} rows read"
        return HeadMap(mean, coarser, sampled)
    cells = region.levels[0].mean
    seen = cells.isfinite()
    weights = cells.nan_to_num(0.0)
    visible = seen.sum(-1).numpy().astype(np.uint32)
    missing = (1.0 - weights.double().sum(-1)).clamp_min(0).masked_fill(~seen.any(-1), 0).float().numpy()
    if not held.links:
        return HeadMap(mean, coarser, "", visible, missing)
    best, found = weights.topk(min(held.links, keys.stop), dim=-1)
    order = found.argsort(-1)
    chosen, strengths = found.gather(-1, order).numpy(), best.gather(-1, order).numpy()
    return HeadMap(mean, coarser, "", visible, missing, chosen, strengths)


def _halved(values: ndarray) -> ndarray:
    """The next coarser level of maxima; what is absent is NaN."""
    padded = np.pad(values, [(0, size % 2) for size in values.shape], constant_values=np.nan)
    return np.fmax(np.fmax(padded[::2, ::2], padded[1::2, ::2]), np.fmax(padded[::2, 1::2], padded[1::2, 1::2]))


def packed(heads: Sequence[HeadMap], held: Held) -> dict[str, ndarray]:
    """One layer's arrays. What is kept in steps lies as differences, and high bytes before low: that packs better."""

    def stacked(name: str) -> ndarray:
        return np.stack([getattr(head, name) for head in heads])

    out: dict[str, ndarray] = {}
    for name in ("mean", "max") if held.level else ("mean",):
        maps = stacked(name)
        if held.coding == "steps8":
            steps, out[f"{name}_peaks"] = in_steps(maps.astype(np.float32))
            out[name] = _down(steps)
        elif held.coding == "steps16":
            steps = np.rint(np.nan_to_num(maps).clip(0, 1) * STEPS)
            out[name] = _planes(np.where(np.isnan(maps), ABSENT, steps).astype(np.uint16))
        else:
            out[name] = maps.astype(np.float32)
    if held.links:
        keys = stacked("keys").astype(np.uint16)
        out["keys"] = _planes(np.diff(keys, axis=-1, prepend=np.uint16(0)).astype(np.uint16))
        out["links"] = _planes(np.rint(stacked("weights").clip(0, 1) * LINK_STEPS).astype(np.uint16))
    if heads[0].visible is not None:
        visible, missing = stacked("visible"), stacked("missing")
        out["visible"] = visible[:1] if (visible == visible[:1]).all() else visible
        if missing.max(initial=0.0) > MIN_MISSING:
            out["missing"] = missing
    return out


def _down(values: ndarray) -> ndarray:
    """Each row less the one above it, modulo 256."""
    out = values.copy()
    out[:, 1:] -= values[:, :-1]
    return out


def _planes(values: ndarray) -> ndarray:
    """uint16 as all high bytes, then all low bytes."""
    return np.stack([values >> 8, values & 255]).astype(np.uint8)
