"""One pass over exact tiles of an attention map computes every requested reduction; each tile is used and dropped.

`tiles` computes them; here is the plan: which requests, of which tokens, over which groups of texts.

The contract that any other backend of the pass must keep is `prepare(tokens, requests)` and `Pass.run(layer)`:
the same requests in, the same tensors out. Oracle: `reference.reductions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from manyheads.nn.masks import Mask
from manyheads.nn.masks import Rule
from manyheads.recording import tiles
from manyheads.recording.requests import (
    Band,
    Linear,
    Match,
    MatchReceived,
    Pooled,
    Received,
    Request,
    RowsReceived,
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
            tiles.GroupPass(self, layer, mask, values, texts, dtype).run()
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
                if longest > tiles.TILE_KEYS or (end + 1 - begin) * num_heads * longest**2 > tiles.TILE_CELLS:
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
        of_rows, of_keys = (tiles.bins(side, size) for side in sides)
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
