"""One head's map at every zoom: exact cells, and means or maxima of blocks of them, a region at a time.

Level 0 is the map's own cells; a cell of level L stands for the visible ones among `2^L x 2^L`. A region is read
in one pass of exact tiles, finest level first, and the coarser ones are derived from it, so that a picture zoomed
into has been computed already. Nothing visible is NaN: absent, which is not a weight of 0. Nothing n x n is held.

Cost: `rows * keys * d` multiplications for a region, whatever the level; a level has a quarter of the cells below it.
Where that is too much, rows are sampled evenly and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention import exact_arithmetic, finite
from manyheads.errors import ShapeError
from manyheads.recording.exact_map.one_pass import LOG2_E
from manyheads.recording.layer import LayerRecord, spread_evenly

HOWS = ("mean", "max")
DEEPEST = 40  # levels: a map of 2^40 tokens a side in one cell
STRIP_CELLS = 1 << 20  # cells of the tile held at once: 4 MB of float32, which stays in a cache
WIDE_CELLS = 1 << 18  # up to so many, scores are made in float64: what a person reads off is exact to 1e-6


@dataclass(frozen=True, eq=False)
class Level:
    """One level of a region: `mean` and `max` of the visible cells of each block; NaN where none is visible."""

    level: int
    mean: Float[Tensor, "r c"]
    max: Float[Tensor, "r c"]


@dataclass(frozen=True, eq=False)
class Region:
    """A region at several levels, the finest first. `rows_read` of `rows_in_all` rows were read: all, or a sample."""

    levels: tuple[Level, ...]
    rows_read: int
    rows_in_all: int

    @property
    def exact(self) -> bool:
        return self.rows_read == self.rows_in_all


def read_region(
    layer: LayerRecord,
    head: int,
    rows: slice,
    keys: slice,
    levels: range,
    *,
    text: int = 0,
    most_cells: int | None = None,
    on_strip: Callable[[int, int], None] | None = None,
) -> Region:
    """A region of one head's map at some levels, on the host, whatever the layer's device.

    - `layer`: the layer of a recording.
    - `head`: its number in the layer.
    - `rows`: a slice of its rows, which begins at a whole block.
    - `keys`: likewise of its keys.
    - `levels`: a run of them, the finest first.
    - `text`: which of the recording's texts.
    - `most_cells`: above so many visible cells, rows are sampled evenly and only the coarsest level is given.
    - `on_strip`: called with rows done and rows in all; may raise to stop the work.

    Errors: ShapeError for a region that does not begin at whole blocks of the coarsest level, or lies outside.
    """
    if not levels or levels.step != 1 or not 0 <= levels[0] <= levels[-1] <= DEEPEST:
        raise ShapeError(f"{levels=}: give a run of levels from 0 to {DEEPEST}, the finest first.")
    if not 0 <= text < len(layer.lengths):
        raise ShapeError(f"{text=} is not in this recording: it holds {len(layer.lengths)} texts, counted from 0.")
    if not 0 <= head < layer.site.num_heads:
        raise ShapeError(f"{head=} is not in layer {layer.site.layer}: it has heads 0 to {layer.site.num_heads - 1}.")
    block = 1 << levels[-1]
    for name, span, limit in (("rows", rows, layer.num_queries(text)), ("keys", keys, layer.num_keys(text))):
        if not 0 <= span.start < span.stop <= limit or span.start % block:
            raise ShapeError(
                f"{name} {span.start} to {span.stop} cannot be read: text {text} has {limit} of them, and a region of "
                f"level {levels[-1]} begins at a multiple of {block}."
            )
    num_rows = rows.stop - rows.start
    strips = _Strips(layer, head, text, keys)
    chosen = strips.chosen(rows, 1 << levels[-1], most_cells)
    finest = levels[0] if len(chosen) == num_rows else levels[-1]
    block = 1 << finest
    rows_a_block = ((chosen - rows.start) // block).bincount(minlength=-(-num_rows // block)).tolist()
    sums, tops, counts = strips.pooled(chosen, rows_a_block, block, on_strip)
    out = [_level(finest, sums, tops, counts)]
    for level in range(finest + 1, levels[-1] + 1):
        # Sums and counts, not means: blocks at the border of the mask hold fewer visible cells than their neighbours.
        sums, counts, tops = _halved(sums, torch.sum), _halved(counts, torch.sum), _halved(tops, torch.amax)
        out.append(_level(level, sums, tops, counts))
    return Region(tuple(out), len(chosen), num_rows)


class _Strips:
    """Reads one head's weights over some keys, a strip of rows at a time."""

    def __init__(self, layer: LayerRecord, head: int, text: int, keys: slice) -> None:
        self.layer, self.head, self.text, self.keys = layer, head, text, keys
        self.mask, self.rule = layer.mask_of(text), layer.rule.texts(slice(text, text + 1))
        # A dense mask has one plane for all heads, or one for each: index 0 is right for the first kind alone.
        self.mask_head = 0 if self.mask.dense is None or self.mask.dense.shape[1] == 1 else head

    def chosen(self, rows: slice, block: int, most_cells: int | None) -> Int[Tensor, "r"]:
        """All rows, or as many of each block as `most_cells` lets read, spread evenly within it."""
        start = self.mask.start[0, rows].clamp(self.keys.start, self.keys.stop)
        stop = self.mask.stop[0, rows].clamp(self.keys.start, self.keys.stop)
        cells = int((stop - start).clamp_min(0).sum())
        if most_cells is None or cells <= most_cells or block == 1:
            return torch.arange(rows.start, rows.stop, device="cpu")
        count = max(1, min(block, int(block * most_cells / cells)))
        blocks = torch.arange(rows.start, rows.stop, block, device="cpu")
        chosen = (blocks[:, None] + spread_evenly(count, block)).flatten()
        chosen = chosen[chosen < rows.stop]
        # A last block shorter than the others keeps at least its first row, else it would look absent.
        last = rows.start + (rows.stop - 1 - rows.start) // block * block
        return chosen if bool((chosen >= last).any()) else torch.cat([chosen, torch.tensor([last], device="cpu")])

    @exact_arithmetic()
    def pooled(
        self, rows: Tensor, rows_a_block: list[int], block: int, on_strip: Callable[[int, int], None] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums, maxima and numbers of visible cells, by `block` keys and by runs of `rows_a_block` rows."""
        width = self.keys.stop - self.keys.start
        wide = torch.float64 in (self.layer.q.dtype, self.layer.lse.dtype) or len(rows) * width <= WIDE_CELLS
        self.dtype = torch.float64 if wide else torch.float32
        group = self.head // (self.layer.site.num_heads // self.layer.site.num_kv_heads)
        self.k = self.layer.k[self.text, group, self.keys].to(self.dtype).T
        shape = (len(rows_a_block), -(-width // block))
        # Cells are counted on the host, where the mask's runs are.
        sums, tops = (torch.zeros(shape, dtype=self.dtype, device=self.k.device) for _ in range(2))
        counts = torch.zeros(shape, dtype=self.dtype, device="cpu")
        # A strip is whole blocks of rows, so that no block is summed in two parts: at least one, however large.
        blocks_a_strip = max(1, STRIP_CELLS // max(1, max(rows_a_block) * min(width, STRIP_CELLS)))
        begin = 0
        for first in range(0, len(rows_a_block), blocks_a_strip):
            sizes = rows_a_block[first : first + blocks_a_strip]
            end, strip = begin + sum(sizes), slice(first, first + len(sizes))
            # Before the strip is read: whoever stops the work by raising does not wait for one strip more.
            if on_strip is not None:
                on_strip(begin, len(rows))
            self._read(rows[begin:end], sizes, block, sums[strip], tops[strip], counts[strip])
            begin = end
        return sums.cpu(), tops.cpu(), counts

    def _read(self, rows: Tensor, sizes: list[int], block: int, sums: Tensor, tops: Tensor, counts: Tensor) -> None:
        """One strip of rows: keys that all of them see, and the borders of the mask on either side of those."""
        start, stop = self.mask.start[0, rows], self.mask.stop[0, rows]
        rows = rows.to(self.k.device)
        q = self.layer.q[self.text, self.head, rows].to(self.dtype)
        lse = finite(self.layer.lse[self.text, self.head, rows].to(self.dtype))[:, None]
        # Whole blocks of keys, as of rows: a block that two pieces share would get two maxima and two counts.
        step = max(block, STRIP_CELLS // len(rows) // block * block)
        for keys, all_visible in self._pieces(start, stop, block, step):
            k = self.k[:, keys.start - self.keys.start : keys.stop - self.keys.start]
            # As if every cell were visible; what is hidden becomes 0 below.
            if self.rule.plain:  # one call makes product, scale, lse and the change to base 2
                weights = torch.addmm(lse, q, k, beta=-LOG2_E, alpha=self.rule.scale * LOG2_E).exp2_()
            else:
                bias = self.rule.bias
                if bias is not None:
                    bias = bias[0, self.head if bias.shape[1] > 1 else 0, rows, keys]
                scores = self.rule.finish_cells(self.rule.scale * (q @ k), bias)
                weights = scores.sub_(lse).mul_(LOG2_E).exp2_()
            columns = slice((keys.start - self.keys.start) // block, -(-(keys.stop - self.keys.start) // block))
            if all_visible:
                visible_keys = torch.ones(1, keys.stop - keys.start, dtype=self.dtype, device="cpu")
                rows_a_block = torch.tensor(sizes, dtype=self.dtype, device="cpu")
                counts[:, columns] += rows_a_block[:, None] * _pool(visible_keys, [1], block, torch.sum)
            elif self.mask.dense is not None:
                visible = self.mask.dense[0, self.mask_head, rows][:, keys]
                weights.masked_fill_(~visible, 0)
                counts[:, columns] += _pool(visible.to(self.dtype), sizes, block, torch.sum).cpu()
            else:
                key = torch.arange(keys.start, keys.stop, device=weights.device)
                begins, ends = (run[:, None].to(weights.device) for run in (start, stop))
                weights.masked_fill_(~((key >= begins) & (key < ends)), 0)
                # Of runs, visible cells are counted by their ends instead of by looking at cells.
                edges = torch.arange(keys.start, keys.stop, block, device="cpu")
                ends = (edges + block).clamp_max(keys.stop)
                cells = (torch.minimum(stop[:, None], ends) - torch.maximum(start[:, None], edges)).clamp_min(0)
                counts[:, columns] += _pool_rows(cells.to(self.dtype), sizes, torch.sum)
            sums[:, columns] += _pool(weights, sizes, block, torch.sum)
            tops[:, columns] = torch.maximum(tops[:, columns], _pool(weights, sizes, block, torch.amax))

    def _pieces(self, start: Tensor, stop: Tensor, block: int, step: int) -> Iterator[tuple[slice, bool]]:
        """The keys that some row of a strip sees, cut at whole blocks, and whether every row sees all of a piece."""
        alive = stop > start
        if not bool(alive.any()):
            return
        origin, end = self.keys.start, self.keys.stop

        def down(key: int) -> int:
            return origin + (min(max(key, origin), end) - origin) // block * block

        def up(key: int) -> int:
            return min(end, origin - (origin - min(max(key, origin), end)) // block * block)

        low, high = down(int(start[alive].min())), up(int(stop[alive].max()))
        # Rows that see nothing are no part of `alive`, but they keep the middle from being visible to all.
        first, last = up(int(start.max())), end if int(stop.min()) >= end else down(int(stop.min()))
        cuts = [low, first, last, high] if self.mask.dense is None and low <= first < last <= high else [low, high]
        for begin, until in pairwise(cuts):
            all_visible = len(cuts) == 4 and begin == first
            for key in range(begin, until, step):
                yield slice(key, min(key + step, until)), all_visible


def _pool(values: Tensor, sizes: list[int], block: int, reduce: Callable[..., Tensor]) -> Tensor:
    """Runs of rows by `sizes` and of `block` keys, reduced. Rows first: that runs along memory, and leaves little."""
    by_row = _pool_rows(values, sizes, reduce)
    if block == 1:
        return by_row
    end = by_row.shape[1] // block * block
    out = reduce(by_row[:, :end].unflatten(1, (-1, block)), -1) if end else by_row[:, :0]
    return out if end == by_row.shape[1] else torch.cat([out, reduce(by_row[:, end:], -1, keepdim=True)], 1)


def _pool_rows(values: Tensor, sizes: list[int], reduce: Callable[..., Tensor]) -> Tensor:
    """Runs of `sizes` rows, reduced. All sizes but the last ones are alike: those are one call."""
    if max(sizes) == 1:
        return values
    alike = next((index for index, size in enumerate(sizes) if size != sizes[0]), len(sizes))
    out = [reduce(values[: alike * sizes[0]].unflatten(0, (alike, sizes[0])), 1)]
    begin = alike * sizes[0]
    for size in sizes[alike:]:
        out.append(reduce(values[begin : begin + size], 0, keepdim=True))
        begin += size
    return torch.cat(out) if len(out) > 1 else out[0]


def _halved(values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """The next coarser level of sums, of counts or of maxima: of weights, so that a padding of 0 changes none."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, columns % 2, 0, rows % 2))
    return reduce(reduce(padded.unflatten(0, (-1, 2)), 1).unflatten(1, (-1, 2)), 2)


def _level(level: int, sums: Tensor, tops: Tensor, counts: Tensor) -> Level:
    absent = counts == 0
    return Level(
        level,
        (sums / counts).masked_fill(absent, torch.nan).float(),
        tops.masked_fill(absent, torch.nan).float(),
    )
