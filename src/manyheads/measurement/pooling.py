"""Every head's map, small: block means (or maxima) of the exact weights, for pictures of a whole model.

A map of n x n weights is read in `p x p` blocks while its layer's tensors are there; no map and no recording is held.
One text gives its own map. Several texts, or the windows of a long one, give the mean over them, block by block: the
blocks are places relative to each text's length, so what a head does by position stays sharp and what it does by
content blurs. `because` says which it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float32, Float64
from numpy import ndarray

from manyheads.base import Json, brief, one_of, plain, plural
from manyheads.errors import ShapeError, StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.inputs import Batch, Inputs, InputsLike, Long, Piece, Reading, read
from manyheads.measurement.loop import by_model
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import Aligner, Observer, unwatched
from manyheads.progress import ShowProgress, shows_progress
from manyheads.recording import head_place, prepare
from manyheads.recording.exact_map import Pooled
from manyheads.results import Plotted, Shown
from manyheads.spec import Site

Pooling = Literal["mean", "max"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


@dataclass(frozen=True, eq=False)
class PooledMaps(Shown, Plotted):
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

    def to_dict(self) -> Json:
        """Plain data for JSON: each head's map, rows first; None where no row sees a key."""
        return {
            "tokens_read": self.num_tokens,
            "tokens": list(self.tokens),
            "maps": {str(head): plain(self[head]) for head in self.heads},
            "because": self.because,
        }

    def __repr__(self) -> str:
        size = self.maps.shape[-1]
        return brief(f"PooledMaps({plural(len(self.heads), 'head')}, {size} x {size}: {self.because})")

    def __getitem__(self, head: HeadLike) -> Float32[ndarray, "p p"]:
        """One head's map. Errors: HeadError for what names no head, or one that has no map here."""
        return self.maps[head_place(head, self.heads, "in these maps: they hold {first} to {last}.")]


@shows_progress("drawing maps")
def pooled_maps(
    lm: LoadedModel,
    given: InputsLike,
    *,
    size: int = 32,
    how: Pooling = "mean",
    progress: ShowProgress = None,
) -> PooledMaps:
    """The maps of every head of a loaded model, in at most `size` x `size` blocks.

    `how` is "mean" (of the visible cells of a block; over texts, the mean of that) or "max" (the largest weight, in all
    texts). A text read in windows counts by its full-length windows; several texts share the blocks of the shortest.

    Cost: one forward pass and one pass over the maps' tiles; O(tile + heads * size^2) memory besides the model's.
    Errors: TextError, ShapeError, StatisticError, ModelError, GuardError.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    inputs = Inputs.of(given)
    reading = read(lm, inputs, pairs=False, only_texts=True)
    pooling = MapPooling(reading, size, how)
    done = 0
    for group in pooling.pooled.groups():
        batch = reading.batch([pooling.places[index] for index in group])
        by_model(lm)(batch, pooling(batch))
        done += sum(len(pooling.pooled.pieces[index].ids) for index in group)
        if progress is not None:
            progress(done, pooling.pooled.num_tokens)
    return pooling.maps(inputs.long)


def full_length(pieces: Sequence[Piece]) -> list[int]:
    """The places of every text that was read in one, and of the full-length windows of those that were not."""
    # A short last window would be stretched over all blocks: its tokens would stand beside places they are not at.
    longest: dict[int, int] = {}
    for piece in pieces:
        longest[piece.source] = max(longest.get(piece.source, 0), len(piece.ids))
    return [place for place, piece in enumerate(pieces) if len(piece.ids) == longest[piece.source]]


class MapPooling:
    """Pools the maps of the full-length pieces of a reading, batch by batch, while the model reads them.

    Called with a batch, it returns the observer of its calls, as `study` takes it; `maps` are the maps in the end.
    Errors: StatisticError for another `how`, ShapeError.
    """

    def __init__(self, reading: Reading, size: int = 32, how: Pooling = "mean") -> None:
        one_of("how", how, POOLINGS, StatisticError, "is not a way to pool")
        if size < 1:
            raise ShapeError(f"{size=}: a map has at least one block a side.")
        self.reading, self.places = reading, full_length(reading.pieces)
        self.pooled = replace(reading, pieces=tuple(reading.pieces[place] for place in self.places))
        # No more blocks than the shortest text has tokens: a block without a token would be absent in that text alone.
        self.request = Pooled(min(size, *(len(piece.ids) for piece in self.pooled.pieces)), how)
        # Sums (or maxima) of the texts' maps, and how many texts each block is made of; a few numbers a head.
        self.totals: dict[str, tuple[Site, Float64[ndarray, "h p p"], Float64[ndarray, "h p p"]]] = {}

    def __call__(self, batch: Batch) -> Observer:
        tokens = batch.tokens
        plan, aligner = prepare(tokens, [self.request]), Aligner(torch.zeros_like(tokens.lengths), tokens.lengths)
        texts = [text for text, place in enumerate(batch.places) if place in self.places]
        called: set[str] = set()

        def observe(call: AttentionCall) -> None:
            """Pool one layer's maps and drop its tensors. Cross-attention, whose rows and keys differ, is left out."""
            if call.crosses or not texts:
                return
            module = call.site.module
            if module in called:
                raise StatisticError(f"{module} attended twice in one call: its maps cannot be told apart.")
            called.add(module)
            with unwatched():  # many small operations, none of them the model's
                maps = plan.run(aligner.layer(call))[self.request][texts].double().cpu().numpy()
            visible = ~np.isnan(maps)
            combine = np.add if self.request.how == "mean" else np.maximum
            # 0 for what nobody can see changes neither: it adds nothing to a sum, and no weight is below it in a
            # maximum.
            total, count = combine.reduce(np.where(visible, maps, 0)), visible.sum(0).astype(np.float64)
            if module in self.totals:
                _, before, times = self.totals[module]
                total, count = combine(before, total), times + count
            self.totals[module] = (call.site, total, count)

        return observe

    def maps(self, long: Long = "windows") -> PooledMaps:
        """The maps of all batches. Errors: StatisticError for a model without self-attention."""
        if not self.totals:
            raise StatisticError("no layer of this model attends from a text to itself: there is no map to show.")
        maps = []
        for _, total, count in self.totals.values():
            pooled = total / np.maximum(count, 1) if self.request.how == "mean" else total
            maps.append(np.where(count > 0, pooled, np.nan))
        sites = tuple(site for site, _, _ in self.totals.values())
        heads = tuple(head for site in sites for head in site.heads)
        pieces, words = self.pooled.pieces, ()
        if len(pieces) == 1:  # as it was written; pieces of which nothing is written (line breaks) as they are
            tokens = self.pooled.tokens([0])
            words = tuple(tokens.surface(0, place) or piece for place, piece in enumerate(pieces[0].pieces))
        joined = np.concatenate(maps).astype(np.float32)
        return PooledMaps(sites, heads, joined, self.pooled.num_tokens, words, self._because(long))

    def _because(self, long: Long) -> str:
        """What a cell of the maps is, in words."""
        pieces, blocks, how = self.pooled.pieces, self.request.size, self.request.how
        lengths = sorted({len(piece.ids) for piece in pieces})
        if len(lengths) > 1:
            because = f"each in {blocks} x {blocks} blocks"
        elif lengths[0] == blocks:
            because = "every cell"
        else:
            few, more = lengths[0] // blocks, -(-lengths[0] // blocks)
            one_size = few == more
            because = (
                f"{how} of {few} x {few} cells" if one_size else f"{how} of blocks of {few} or {more} cells a side"
            )
        if len(pieces) > 1:
            times = Counter(piece.source for piece in self.reading.pieces)
            windowed = sum(count > 1 for count in times.values())
            noun = "windows" if windowed == len(times) else "texts and windows" if windowed else "texts"
            span = " to ".join(map(str, dict.fromkeys([lengths[0], lengths[-1]])))
            because = f"{how} over {len(pieces)} {noun} of {span} tokens, {because}"
            if left := len(self.reading.pieces) - len(pieces):
                because += f" ({left} shorter window{'s' * (left > 1)} left out)"
        return f"{because}; {self.reading.windows}" if long == "truncate" and self.reading.windows else because
