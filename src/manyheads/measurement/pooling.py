"""Every head's map, small: block means (or maxima) of the exact weights, for pictures of a whole model.

A map of n x n weights is read in `p x p` blocks while its layer's tensors are there; no map and no recording is held.
One text gives its own map. Several texts, or the windows of a long one, give the mean over them, block by block: the
blocks are places relative to each text's length, so what a head does by position stays sharp and what it does by
content blurs. `because` says which it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float32, Float64
from numpy import ndarray

from manyheads.base import one_of
from manyheads.errors import ShapeError, StatisticError
from manyheads.heads import Head
from manyheads.inputs import Long, Piece, read_batches, read_texts, tokens_of
from manyheads.models import AttentionCall
from manyheads.models.taps.call import Aligner
from manyheads.recording import Pooled, head_place, prepare
from manyheads.recording.exact_map.one_pass import Pass
from manyheads.spec import Site
from manyheads.statistics.sums.one_batch import Progress
from manyheads.texts import Tokens

Pooling = Literal["mean", "max"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


@dataclass(frozen=True, eq=False)
class PooledMaps:
    """A small map for each head, in the model's order. NaN: nothing is visible there, which is not a weight of 0.

    `num_tokens` counts the tokens read (the overlap of windows twice). `tokens` are the words of the text where it was
    a single one; where they are as many as the map has blocks, each block is one weight. `because` says what a cell is.
    """

    sites: tuple[Site, ...]
    heads: tuple[Head, ...]
    maps: Float32[ndarray, "head p p"]
    num_tokens: int
    tokens: tuple[str, ...]
    because: str

    @property
    def exact(self) -> bool:
        """Whether each cell is one weight of one text."""
        return len(self.tokens) == self.maps.shape[-1]

    def __getitem__(self, head: str | Head) -> Float32[ndarray, "p p"]:
        """One head's map. Errors: HeadError for what names no head, or one that has no map here."""
        return self.maps[head_place(head, self.heads, "in these maps: they hold {first} to {last}.")]


def pooled_maps(
    lm: Any,
    texts: str | Sequence[str],
    *,
    size: int = 32,
    how: Pooling = "mean",
    long: Long = "windows",
    progress: Progress | None = None,
) -> PooledMaps:
    """The maps of every head of a loaded model, in at most `size` x `size` blocks.

    `how` is "mean" (of the visible cells of a block; over texts, the mean of that) or "max" (the largest weight, in all
    texts). A text read in windows counts by its full-length windows; several texts share the blocks of the shortest.
    `long` as in `record`.

    Cost: one forward pass and one pass over the maps' tiles; O(tile + heads * size^2) memory besides the model's.
    Errors: TextError, ShapeError, StatisticError, ModelError, GuardError.
    """
    one_of("how", how, POOLINGS, StatisticError, "is not a way to pool")
    if size < 1:
        raise ShapeError(f"{size=}: a map has at least one block a side.")
    reading = read_texts(lm, texts, long)
    pieces = full_length(reading.pieces)
    chosen = replace(reading, pieces=pieces)
    # No more blocks than the shortest text has tokens: a block without a token would be absent in that text alone.
    blocks = min(size, *(len(piece.ids) for piece in pieces))
    sums = _Sums(Pooled(blocks, how))
    for _ in read_batches(lm, chosen, sums.begin, progress=progress):
        pass  # `sums` has observed the batch
    sites, maps = sums.maps()
    heads = tuple(head for site in sites for head in site.heads)
    # What a cell of the maps is, in words.
    lengths = sorted({len(piece.ids) for piece in pieces})
    if len(lengths) > 1:
        because = f"each in {blocks} x {blocks} blocks"
    elif lengths[0] == blocks:
        because = "every cell"
    else:
        few, more = lengths[0] // blocks, -(-lengths[0] // blocks)
        because = f"{how} of {few} x {few} cells" if few == more else f"{how} of blocks of {few} or {more} cells a side"
    if len(pieces) > 1:
        times = Counter(piece.source for piece in reading.pieces)
        windowed = sum(count > 1 for count in times.values())
        noun = "windows" if windowed == len(times) else "texts and windows" if windowed else "texts"
        span = " to ".join(map(str, dict.fromkeys([lengths[0], lengths[-1]])))
        because = f"{how} over {len(pieces)} {noun} of {span} tokens, {because}"
        if left := len(reading.pieces) - len(pieces):
            because += f" ({left} shorter window{'s' * (left > 1)} left out)"
    if long == "truncate" and reading.because:
        because = f"{because}; {reading.because}"
    words: tuple[str, ...] = ()
    if len(pieces) == 1:  # as it was written; pieces of which nothing is written (line breaks) as they are
        tokens = tokens_of(chosen, [0], None, "")
        words = tuple(tokens.surface(0, place) or piece for place, piece in enumerate(pieces[0].pieces))
    return PooledMaps(sites, heads, maps, chosen.num_tokens, words, because)


def full_length(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Every text that was read in one, and the full-length windows of those that were not."""
    # A short last window would be stretched over all blocks: its tokens would stand beside places they are not at.
    longest: dict[int, int] = {}
    for piece in pieces:
        longest[piece.source] = max(longest.get(piece.source, 0), len(piece.ids))
    return tuple(piece for piece in pieces if len(piece.ids) == longest[piece.source])


@dataclass(eq=False)
class _Sums:
    """Sums (or maxima) of the texts' maps, and how many texts each block is made of; a few numbers a head."""

    request: Pooled
    totals: dict[str, tuple[Site, Float64[ndarray, "h p p"], Float64[ndarray, "h p p"]]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    plan: Pass | None = None
    aligner: Aligner | None = None

    def begin(self, tokens: Tokens) -> _Sums:
        """Turn to the next batch."""
        self.plan = prepare(tokens, [self.request])
        self.aligner = Aligner(torch.zeros_like(tokens.lengths), tokens.lengths)
        self.called = set()
        return self

    def observe(self, call: AttentionCall) -> None:
        """Pool one layer's maps and drop its tensors. Cross-attention, whose rows and keys differ, is left out."""
        assert self.plan is not None and self.aligner is not None
        if call.crosses:
            return
        module = call.site.module
        if module in self.called:
            raise StatisticError(f"{module} attended twice in one call: its maps cannot be told apart.")
        self.called.add(module)
        maps = self.plan.run(self.aligner.layer(call))[self.request].double().cpu().numpy()
        visible = ~np.isnan(maps)
        combine = np.add if self.request.how == "mean" else np.maximum
        # 0 for what nobody can see changes neither: it adds nothing to a sum, and no weight is below it in a maximum.
        total, count = combine.reduce(np.where(visible, maps, 0)), visible.sum(0).astype(np.float64)
        if module in self.totals:
            _, before, times = self.totals[module]
            total, count = combine(before, total), times + count
        self.totals[module] = (call.site, total, count)

    def maps(self) -> tuple[tuple[Site, ...], Float32[ndarray, "head p p"]]:
        if not self.totals:
            raise StatisticError("no layer of this model attends from a text to itself: there is no map to show.")
        maps = []
        for _, total, count in self.totals.values():
            pooled = total / np.maximum(count, 1) if self.request.how == "mean" else total
            maps.append(np.where(count > 0, pooled, np.nan))
        return tuple(site for site, _, _ in self.totals.values()), np.concatenate(maps).astype(np.float32)
