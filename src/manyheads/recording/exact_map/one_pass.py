"""One pass over exact tiles of an attention map computes every requested reduction; each tile is used and dropped.

`tiles` computes them; here is the plan: which requests, of which tokens, over which groups of texts.

The contract that any other backend of the pass must keep is `prepare(tokens, requests)` and `Pass.run(layer)`:
the same requests in, the same tensors out. Oracle: `reference.reductions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from manyheads.nn import Mask, Rule, grouped_scores
from manyheads.recording.exact_map.requests import (
    Band,
    Distance,
    Entropy,
    Linear,
    Mass,
    Match,
    MatchReceived,
    Maximum,
    Pooled,
    Received,
    Request,
    RowsReceived,
    Square,
    Strongest,
    WordRows,
)
from manyheads.recording.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Layer:
    """What the pass reads of one attention layer, texts left-aligned: q, k, each row's lse, the mask, the rule."""

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    lse: Float[Tensor, "b h q"]
    mask: Mask
    rule: Rule
    crosses: bool = False  # keys are other tokens than queries

    @property
    def reads_itself(self) -> bool:
        return not self.crosses and self.q.shape[2] == self.k.shape[2]

    def one_text(self, text: int, rows: slice | Int[Tensor, "r"], num_keys: int) -> Layer:
        """One text alone: some of its rows, as if there were no others, and its first keys."""
        at, keys = slice(text, text + 1), slice(num_keys)
        mask, rule = self.mask.expand(len(self.q)).texts(at), self.rule.texts(at)
        dense = None if mask.dense is None else mask.dense[:, :, rows, keys]
        bias = None if rule.bias is None else rule.bias[:, :, rows, keys]
        mask = Mask(mask.start[:, rows], mask.stop[:, rows], num_keys, dense)
        q, k, lse = self.q[at][:, :, rows], self.k[at, :, keys], self.lse[at][:, :, rows]
        return Layer(q, k, lse, mask, replace(rule, bias=bias), self.crosses)


@dataclass(frozen=True, eq=False)
class Reduced:
    """The answers: `reduced[request]`, and the facts about rows that statistics need to finish them."""

    values: dict[Request, Tensor]
    plan: Pass
    mask: Mask

    @property
    def tokens(self) -> Tokens:
        return self.plan.tokens

    def __getitem__(self, request: Request) -> Tensor:
        return self.values[request]

    @property
    def rows(self) -> Bool[Tensor, "b q"]:
        """Rows that see at least one key; padding is none."""
        return (self.mask.counts() > 0).expand(self.tokens.num_texts, -1)

    def matches(self, request: Match) -> Float[Tensor, "b q"]:
        """How many visible keys each row's label matches; counted once for all layers that share a mask."""
        return self.plan.matches(request, self.mask)


@dataclass(eq=False)
class Pass:
    """A plan for one batch of tokens, run on as many layers as there are; what hangs on the tokens is computed once."""

    tokens: Tokens
    requests: tuple[Request, ...]
    columns: dict[Request, Tensor] = field(default_factory=dict)
    known: dict[tuple[object, object], Any] = field(default_factory=dict)

    def _kept(self, what: object, of: object, compute: Callable[[], Any]) -> Any:
        if (what, of) not in self.known:
            self.known[what, of] = compute()
        return self.known[what, of]

    def once(self, mask: Mask, what: object, compute: Callable[[], Any]) -> Any:
        """Something that hangs on tokens and mask alone, computed for the first layer and kept for the others."""
        return self._kept(what, id(mask), compute)

    def labels_of(self, request: Match) -> tuple[Tensor, Tensor]:
        return self._kept("labels", request, lambda: ranked(*request.labels(self.tokens)))

    def matches(self, request: Match, mask: Mask) -> Float[Tensor, "b q"]:
        """How many keys that it sees each row's label matches."""
        return self.once(mask, request, lambda: count_matches(self.labels_of(request), request, mask))

    def shares_of(self, request: WordRows) -> Float[Tensor, "b w q"]:
        """What share of a word's row each token's row is: one over the word's tokens."""
        return self._kept("shares", request, lambda: shares_of_words(request.words(self.tokens)))

    def compact(self, request: Match) -> tuple[Tensor, Tensor]:
        """Labels as the tiles compare them: half as wide, and such that what matches nothing is never equal."""
        rows, keys = self.labels_of(request)
        return self._kept("narrow", request, lambda: (rows.int(), torch.where(keys < 0, -2, keys).int()))

    def _expanded(self, mask: Mask) -> Mask:
        """The same object for the same mask: the memory of `once` goes by identity, and holds the masks it goes by."""
        return self._kept("expanded", id(mask), lambda: (mask, mask.expand(self.tokens.num_texts)))[1]

    def run(self, layer: Layer) -> Reduced:
        """Every request's answer for this layer, float32 (float64 for float64 layers)."""
        dtype = torch.float64 if layer.q.dtype == torch.float64 else torch.float32
        mask = self._expanded(layer.mask)
        values = {request: self._empty(request, layer, dtype) for request in self.requests}
        for texts in self._groups(layer):
            GroupPass(self, layer, mask, values, texts, dtype).run()
        for request in self.requests:
            if isinstance(request, Pooled) and request.how == "mean":
                values[request] /= visible_cells(mask, self.tokens.lengths.tolist(), request.size)
        return Reduced(values, self, mask)

    def _empty(self, request: Request, layer: Layer, dtype: torch.dtype) -> Tensor:
        num_texts, num_heads, num_rows, _ = layer.q.shape
        shape: tuple[int, ...] = (num_texts, num_heads, num_rows)
        if isinstance(request, Band):
            shape = (*shape, len(request.offsets))
        elif isinstance(request, (Received, MatchReceived, RowsReceived)):
            shape = (num_texts, num_heads, layer.k.shape[2])
        elif isinstance(request, WordRows):
            shape = (num_texts, num_heads, self.shares_of(request).shape[1], layer.k.shape[2])
        elif isinstance(request, Pooled):
            shape = (num_texts, num_heads, request.size, request.size)
            return torch.full(shape, torch.nan if request.how == "max" else 0.0, dtype=dtype)
        elif isinstance(request, Strongest):
            return torch.full(shape, -1, dtype=torch.long)
        return torch.zeros(shape, dtype=dtype)

    def _groups(self, layer: Layer) -> Iterator[slice]:
        """Neighbouring texts whose whole maps share one tile; a longer text is a group of its own."""
        num_texts, num_heads, _, _ = layer.q.shape
        lengths = self.tokens.lengths.tolist()
        pooled = any(isinstance(request, Pooled) for request in self.requests)
        begin = 0
        while begin < num_texts:
            end, longest = begin + 1, lengths[begin]
            while end < num_texts and not pooled:
                longest = max(longest, lengths[end])
                if longest > TILE_KEYS or (end + 1 - begin) * num_heads * longest**2 > TILE_CELLS:
                    break
                end += 1
            yield slice(begin, end)
            begin = end


def prepare(tokens: Tokens, requests: Iterable[Request]) -> Pass:
    """Plan a pass: each request once, columns and labels read off the tokens."""
    wanted = tuple(dict.fromkeys(requests))
    plan = Pass(tokens, wanted)
    for request in wanted:
        if isinstance(request, Linear):
            plan.columns[request] = request.column(tokens).to(torch.float64)
        elif isinstance(request, Match):
            plan.labels_of(request)
        elif isinstance(request, (MatchReceived, RowsReceived)):
            plan.labels_of(request.match)
    return plan


def visible_cells(mask: Mask, lengths: Sequence[int], size: int) -> Float[Tensor, "b h p p"]:
    """How many cells of each block are visible, NaN for none. Cost: O(n * size) by runs. `h` is 1 where heads agree."""
    num_heads = 1 if mask.dense is None else mask.dense.shape[1]
    out = torch.zeros(len(lengths), num_heads, size, size, dtype=torch.float64)
    for text, length in enumerate(lengths):
        sides = (length, length) if mask.num_queries == mask.num_keys else (mask.num_queries, mask.num_keys)
        of_rows, of_keys = (bins(side, size) for side in sides)
        out[text] = visible_blocks(mask.texts(slice(text, text + 1)), of_rows, of_keys, (size, size))
    return torch.where(out > 0, out, torch.nan)


def visible_blocks(
    mask: Mask, of_rows: Int[Tensor, "r"], of_keys: Int[Tensor, "k"], shape: tuple[int, int]
) -> Float64[Tensor, "h row_blocks key_blocks"]:
    """How many cells of each block one text's mask leaves visible: by runs, or by looking where it is dense."""
    if mask.dense is None:
        edges = torch.searchsorted(of_keys, torch.arange(shape[1] + 1))
        start, stop = mask.start[0, : len(of_rows), None], mask.stop[0, : len(of_rows), None]
        counts = (torch.minimum(stop, edges[1:]) - torch.maximum(start, edges[:-1])).clamp_min(0).double()[None]
    else:
        seen = mask.dense[0, :, : len(of_rows), : len(of_keys)].double()
        counts = seen.new_zeros(*seen.shape[:2], shape[1]).index_add_(2, of_keys, seen)
    return counts.new_zeros(len(counts), *shape).index_add_(1, of_rows, counts)


def shares_of_words(of_token: Int[Tensor, "b q"]) -> Float[Tensor, "b w q"]:
    """One over the tokens of its word at each of them; 0 elsewhere."""
    words = torch.arange(max(1, 1 + max(of_token.flatten().tolist(), default=0)))
    member = (of_token[:, None] == words[:, None]).double()
    return member / member.sum(-1, keepdim=True).clamp_min(1)


def ranked(rows: Int[Tensor, "b q"], keys: Int[Tensor, "b k"]) -> tuple[Int[Tensor, "b q"], Int[Tensor, "b k"]]:
    """The same labels as small numbers: equal ones stay equal, and hashes fit where 32 bits or products are used."""
    _, ranks = torch.cat([rows, keys], 1).unique(return_inverse=True)
    of_rows, of_keys = ranks.split([rows.shape[1], keys.shape[1]], 1)
    return torch.where(rows < 0, -1, of_rows), torch.where(keys < 0, -1, of_keys)


def count_matches(labels: tuple[Tensor, Tensor], request: Match, mask: Mask) -> Float[Tensor, "b q"]:
    """How many visible keys carry each row's label. Keys sorted by label and place: a row's matches are one interval.

    Cost: O(n log n), where the mask is runs; a dense mask is compared cell by cell.
    """
    if mask.dense is not None:
        return _count_dense(labels, request, mask.dense)
    of_rows, of_keys = labels
    num_rows, num_keys = of_rows.shape[1], of_keys.shape[1]
    row = torch.arange(num_rows)[None]
    start, stop = mask.start[:, :num_rows], mask.stop[:, :num_rows]
    if request.earlier:
        stop = torch.minimum(stop, row + 1 - request.apart)
    stride = num_keys + 1
    order = (of_keys * stride + torch.arange(num_keys)[None]).sort(-1).values
    low = torch.searchsorted(order, of_rows * stride + start)
    high = torch.searchsorted(order, of_rows * stride + torch.maximum(stop, start))
    count = high - low
    if request.elsewhere:
        count = count - ((of_rows == of_keys[:, :num_rows]) & (row >= start) & (row < stop)).long()
    return torch.where(of_rows >= 0, count, 0).double()


def _count_dense(
    labels: tuple[Tensor, Tensor], request: Match, dense: Bool[Tensor, "#b h q k"]
) -> Float[Tensor, "b q"]:
    row, key = (torch.arange(x.shape[1]) for x in labels)
    same = (labels[0][:, :, None] == labels[1][:, None]) & (labels[0] >= 0)[:, :, None]
    if request.earlier:
        same &= key[None] <= row[:, None] - request.apart
    if request.elsewhere:
        same &= key[None] != row[:, None]
    return (same & dense.any(1)).sum(-1).double()


# ---------------------------------------------------------------------------------------------------------------------
# The tiles of one pass: a block of exact weights is made, every request reads it, and it is dropped.
#
# A tile of scores is one matrix product (keys read once for all query heads of a group), minus the rows' lse, and one
# `exp2` in place of `exp` (four times faster in torch's vectorised loops; the change of base costs nothing, it goes
# into the scale). Everything else is a cheap read of a tile that lies in cache. The map is never written to memory.
# Tiles that no row sees are skipped; only tiles on the border of a mask look at it.


TILE_CELLS = 400_000  # cells of one tile over all heads: three float32 buffers of it fit a 2-core L2 + L3 slice
TILE_KEYS = 256
HIDDEN = -1e4  # log2 of a hidden cell's weight: exp2 gives exactly 0, and unlike -inf it survives 0 * x
LOG2_E = math.log2(math.e)


@dataclass(eq=False)
class GroupPass:
    """The tiles of one group of texts, row block by row block."""

    plan: Pass
    layer: Layer
    mask: Mask
    values: dict[Request, Tensor]
    texts: slice
    dtype: torch.dtype
    best: Tensor | None = None
    whole: bool = False  # one tile holds the whole group: what hangs on its place alone is kept for the other layers

    def __post_init__(self) -> None:
        lengths = self.plan.tokens.lengths[self.texts]
        same = self.layer.reads_itself
        longest = int(lengths.max()) if len(lengths) else 0
        self.num_rows = min(longest, self.layer.q.shape[2]) if same else self.layer.q.shape[2]
        self.num_keys = min(longest, self.layer.k.shape[2]) if same else self.layer.k.shape[2]
        self.q = self.layer.q[self.texts, :, : self.num_rows].to(self.dtype)
        self.k = self.layer.k[self.texts, :, : self.num_keys].to(self.dtype).contiguous()
        self.group_mask, self.rule = self.mask.texts(self.texts), self.layer.rule.texts(self.texts)
        lse = self.layer.lse[self.texts, :, : self.num_rows].to(self.dtype)
        self.lse = torch.where(lse == -torch.inf, 0, lse)
        asked = (getattr(request, "match", request) for request in self.plan.requests)
        self.labels = {match: self.plan.compact(match) for match in asked if isinstance(match, Match)}
        columns = [self.plan.columns[r][self.texts, : self.num_keys].to(self.dtype) for r in self.plan.columns]
        self.columns = torch.stack(columns, -1) if columns else None
        self.of_rows = [request for request in self.values if isinstance(request, RowsReceived)]
        seen = [
            self.plan.matches(request.match, self.mask)[self.texts, : self.num_rows] > 0 for request in self.of_rows
        ]
        self.seen = torch.stack(seen, 1).to(self.dtype) if seen else None
        sides = (self.num_rows, self.num_keys)
        self.pools = {r: [bins(n, r.size) for n in sides] for r in self.values if isinstance(r, Pooled)}

    def run(self) -> None:
        num_texts, num_heads = self.q.shape[:2]
        width = min(TILE_KEYS, max(self.num_keys, 1))
        if num_texts * num_heads * self.num_rows * self.num_keys <= TILE_CELLS:
            step, width, self.whole = max(self.num_rows, 1), max(self.num_keys, 1), True
        else:
            step = max(8, TILE_CELLS // (num_texts * num_heads * width))
        cells = num_texts * num_heads * min(step, self.num_rows) * width
        self.logs, self.weights, self.work = (torch.empty(cells, dtype=self.dtype) for _ in range(3))
        for row in range(0, self.num_rows, step):
            rows = slice(row, min(row + step, self.num_rows))
            start, stop = self.group_mask.start[:, rows], self.group_mask.stop[:, rows]
            alive = stop > start
            if not bool(alive.any()):
                continue
            first, last = int(start[alive].min()), min(int(stop[alive].max()), self.num_keys)
            inner = (int(start.max()), int(stop.min())) if self.mask.dense is None else (0, 0)
            for key in range(first - first % width, last, width):
                keys = slice(key, min(key + width, self.num_keys))
                self._tile(rows, keys, border=not inner[0] <= keys.start < keys.stop <= inner[1])

    def _tile(self, rows: slice, keys: slice, border: bool) -> None:
        """Compute one tile of exact weights and hand it to every request."""
        num_texts, num_heads = self.q.shape[:2]
        shape = (num_texts, num_heads, rows.stop - rows.start, keys.stop - keys.start)
        q, k = self.q[:, :, rows], self.k[:, :, keys]
        if self.rule.plain:
            logs = grouped_scores(q, k, self.rule.scale * LOG2_E, self.logs)
            logs.sub_(self.lse[:, :, rows, None] * LOG2_E)
        else:
            logs = self.rule.finish(grouped_scores(q, k, self.rule.scale, self.logs), rows, keys)
            logs.sub_(self.lse[:, :, rows, None]).mul_(LOG2_E).clamp_min_(HIDDEN)  # a bias may hide keys with -inf
        hidden = None
        if border:
            hidden = self._kept("hidden", lambda: ~self.group_mask.visible(rows, keys))
            logs.masked_fill_(hidden, HIDDEN)
        cells = math.prod(shape)
        weights = torch.exp2(logs, out=self.weights[:cells].view(shape))
        tile = _Tile(weights, logs, self.work[:cells].view(shape), hidden, rows, keys)
        if self.columns is not None:
            self._linear(tile)
        if self.of_rows:
            self._rows_received(tile)
        for request, value in self.values.items():
            if not isinstance(request, Linear | RowsReceived):
                self._reduce(request, tile, value)

    def _linear(self, tile: _Tile) -> None:
        """All columns at once, as one matrix product."""
        assert self.columns is not None
        num_texts, num_heads, num_rows, num_keys = tile.weights.shape
        got = torch.bmm(tile.weights.view(num_texts, num_heads * num_rows, num_keys), self.columns[:, tile.keys])
        got = got.view(num_texts, num_heads, num_rows, -1)
        for index, request in enumerate(self.plan.columns):
            self.values[request][self.texts, :, tile.rows] += got[..., index]

    def _rows_received(self, tile: _Tile) -> None:
        """All sets of rows at once, as one matrix product."""
        assert self.seen is not None
        got = self.seen[:, None, :, tile.rows] @ tile.weights
        for index, request in enumerate(self.of_rows):
            self.values[request][self.texts, :, tile.keys] += got[:, :, index]

    def _reduce(self, request: Request, tile: _Tile, value: Tensor) -> None:
        at = (self.texts, slice(None), tile.rows)
        match request:
            case Mass():
                value[at] += tile.weights.sum(-1)
            case Entropy():
                value[at] -= torch.mul(tile.weights, tile.logs, out=tile.work).sum(-1).mul_(math.log(2))
            case Square():
                value[at] += torch.mul(tile.weights, tile.weights, out=tile.work).sum(-1)
            case Maximum():
                value[at] = torch.maximum(value[at], tile.weights.amax(-1))
            case Strongest():
                self._strongest(tile, value[at])
            case Distance():
                value[at] += self._distance(tile)
            case Match():
                self._match(request, tile, value[at], self.values.get(MatchReceived(request)))
            case MatchReceived():
                if request.match not in self.values:  # else both were summed at once
                    self._match(request.match, tile, None, value)
            case Band():
                self._band(request, tile, value[at])
            case Received():
                value[self.texts, :, tile.keys] += tile.weights.sum(-2)
            case WordRows():
                shares = self.plan.shares_of(request)[self.texts, None, :, tile.rows].to(self.dtype)
                value[self.texts, ..., tile.keys] += shares @ tile.weights
            case Pooled():
                self._pool(request, tile, value[self.texts])

    def _strongest(self, tile: _Tile, value: Tensor) -> None:
        """The best key so far is compared by its weight, which is kept beside the answer under the same request."""
        best, where = tile.logs.max(-1)
        if self.best is None:
            self.best = torch.full((*self.q.shape[:2], self.num_rows), HIDDEN, dtype=self.dtype)
        known = self.best[:, :, tile.rows]
        better = best > known
        value[better] = (where + tile.keys.start)[better]
        known[better] = best[better]

    def _kept(self, what: object, compute: Callable[[], Any]) -> Any:
        """What hangs on a tile's place alone, for whole groups kept for other layers: O(n^2 / h) of a short text."""
        place = (self.texts.start, self.texts.stop, what)  # a layer of fewer heads has larger groups
        return self.plan.once(self.mask, place, compute) if self.whole else compute()

    def _distance(self, tile: _Tile) -> Tensor:
        """sum_j w |j - i|."""

        def away() -> Tensor:
            row = torch.arange(tile.rows.start, tile.rows.stop)[:, None]
            return (torch.arange(tile.keys.start, tile.keys.stop)[None] - row).abs().to(self.dtype)

        return torch.mul(tile.weights, self._kept("distance", away), out=tile.work).sum(-1)

    def _match(self, request: Match, tile: _Tile, by_row: Tensor | None, by_key: Tensor | None) -> None:
        """The weights of the matching cells, summed for each row, for each key, or both."""
        same = self._kept(request, lambda: self._same(request, tile))
        if same is None:
            return
        found = torch.mul(tile.weights, same, out=tile.work)
        if by_row is not None:
            by_row += found.sum(-1)
        if by_key is not None:
            by_key[self.texts, :, tile.keys] += found.sum(-2)

    def _same(self, request: Match, tile: _Tile) -> Float[Tensor, "b one r c"] | None:
        """1 where the row's label equals the key's, else 0: one equality test, shared by all heads. None for none."""
        of_rows, of_keys = self.labels[request]
        if request.earlier and tile.keys.start >= tile.rows.stop:
            return None
        same = of_rows[self.texts, tile.rows, None] == of_keys[self.texts, None, tile.keys]
        if tile.keys.start < tile.rows.stop and tile.rows.start < tile.keys.stop + request.apart:  # else all one way
            i = torch.arange(tile.rows.start, tile.rows.stop)[:, None]
            j = torch.arange(tile.keys.start, tile.keys.stop)[None]
            if request.earlier:
                same &= j <= i - request.apart
            if request.elsewhere:
                same &= j != i
        return same[:, None].to(self.dtype) if bool(same.any()) else None

    def _band(self, request: Band, tile: _Tile, value: Tensor) -> None:
        """Diagonals of the tile: the weight at key `i + offset` lies on diagonal `rows.start + offset - keys.start`."""
        num_rows, num_keys = tile.weights.shape[-2:]
        for index, offset in enumerate(request.offsets):
            shift = tile.rows.start + offset - tile.keys.start
            if -num_rows < shift < num_keys:
                cells = tile.weights.diagonal(shift, -2, -1)
                begin = max(0, -shift)
                value[:, :, begin : begin + cells.shape[-1], index] = cells

    def _pool(self, request: Pooled, tile: _Tile, value: Tensor) -> None:
        """Sums (or maxima) of blocks: first over the rows of each block of rows, then over its keys."""
        of_rows, of_keys = self.pools[request]
        row_blocks, key_blocks = of_rows[tile.rows], of_keys[tile.keys]
        blocks, counts = row_blocks.unique_consecutive(return_counts=True)
        stops = counts.cumsum(0).tolist()
        for block, start, stop in zip(blocks.tolist(), [0, *stops], stops, strict=False):
            chosen = tile.weights[:, :, start:stop]
            if request.how == "mean":
                value[:, :, block].index_add_(-1, key_blocks, chosen.sum(-2))
            else:
                top = chosen.amax(-2)
                if tile.hidden is not None:
                    unseen = tile.hidden[:, :, start:stop].all(-2).expand_as(top)
                    top = top.masked_fill(unseen, -1)
                known = value[:, :, block].nan_to_num(nan=-1)
                known.scatter_reduce_(-1, key_blocks.expand_as(top), top, "amax")
                value[:, :, block] = torch.where(known < 0, torch.nan, known)


@dataclass(frozen=True, eq=False)
class _Tile:
    """One tile: its weights, their base-2 logarithms, a buffer to work in, and what of it is hidden."""

    weights: Float[Tensor, "b h r c"]
    logs: Float[Tensor, "b h r c"]
    work: Float[Tensor, "b h r c"]
    hidden: Bool[Tensor, "#b #h r c"] | None
    rows: slice
    keys: slice


def bins(length: int, size: int) -> Tensor:
    """The block of each position: `i * p // n` with `p = min(size, n)` blocks."""
    return torch.arange(length) * min(size, length) // max(length, 1)
