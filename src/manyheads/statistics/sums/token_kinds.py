"""How much each kind of token (each vocabulary entry) receives from each head, beside its even share.

A class of tokens is mostly one or two of its kinds: four marks in five are a comma or a full stop. A head that favours
one such kind, as some random head always does, has a high mass on the whole class. Whether the *class* is favoured
shows only when each kind counts once: `favour` ranks kinds inside the class against kinds outside it.

Sums over texts, apart for the two halves. They are counted for one layer, then one batch (`KindCounts`), then any
number of batches, added in place (`KindTally`). What a batch adds is as large as the batch; what is held is as large as
the vocabulary that was seen, and adding to it touches the batch's own kinds alone. The even share is the same for all
heads of a layer and is held once for each layer. Memory: two numbers a kind seen and head while texts are read, four in
the end.
Source of the rank statistic: Mann and Whitney 1947, as the share of pairs (the area under the ROC curve).
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from numpy import ndarray
from torch import Tensor

from manyheads.statistics.sums.sums import HALVES
from manyheads.texts import Tokens

MIN_EVEN = 3.0  # a kind counts from an even share of three rows' attention on: below it, its share is one place's luck
MIN_KINDS = 6  # inside the class, and outside it: 6 against 6 are the fewest whose ranks can reach p = 0.001
ARRAYS = ("ids", "mark", "mass", "even")  # of what is counted, by the name under which each is written down
LEAST_ROOM = 1024  # kinds that there is room for from the start; it doubles


@dataclass(frozen=True, eq=False)
class TokenKinds:
    """The `mass` that each kind received, and `even`, its mass if every row spread its weight evenly."""

    ids: Int64[ndarray, "kind"]
    mark: Bool[ndarray, "kind"]
    mass: Float64[ndarray, "half head kind"]
    even: Float64[ndarray, "half head kind"]

    def favour(self, half: int) -> Float64[ndarray, "head"]:
        """The share of pairs (a mark, a word) of which the mark is read more for its even share; 0.5 is no favour.

        NaN where there are too few kinds of either.
        """
        out = np.full(self.mass.shape[1], np.nan)
        for head, (mass, even) in enumerate(zip(self.mass[half], self.even[half], strict=True)):
            # By the even share, not by what was received: a choice by mass would keep the kinds that a head favours.
            frequent = even >= MIN_EVEN
            mark, lift = self.mark[frequent], mass[frequent] / even[frequent]
            marks, words = lift[mark], np.sort(lift[~mark])
            if min(len(marks), len(words)) >= MIN_KINDS:
                below, upto = (np.searchsorted(words, marks, side).mean() for side in ("left", "right"))
                out[head] = (below + upto) / 2 / len(words)  # ties count half
        return out


class Places(NamedTuple):
    """The kinds of a batch's ordinary tokens, and which cell, `half + HALVES * kind`, each token counts in."""

    ids: Int[Tensor, "kind"]
    mark: Bool[Tensor, "kind"]
    cell: Int[Tensor, "token"]

    @staticmethod
    def of(tokens: Tokens) -> Places:
        """The kinds of a batch. Special tokens and padding are no kind."""
        assert tokens.ids is not None
        ids, kind = tokens.ids[tokens.ordinary].unique(return_inverse=True)
        half = torch.tensor([seed & 1 for seed in tokens.seeds])[:, None].expand(tokens.real.shape)[tokens.ordinary]
        mark = torch.zeros(len(ids), dtype=torch.bool).index_put_((kind,), tokens.punctuation[tokens.ordinary])
        return Places(ids, mark, half + HALVES * kind)


@dataclass(frozen=True, eq=False)
class KindCounts:
    """What one batch adds: `mass` for each head and `even` for each layer, of every kind in it and either half."""

    ids: Int64[Tensor, "kind"]
    mark: Bool[Tensor, "kind"]
    mass: Float[Tensor, "kind half head"]
    even: Float[Tensor, "kind half layer"]

    @staticmethod
    def of(tokens: Tokens, places: Places, received: Float[Tensor, "b h k"], even: Float[Tensor, "b k"]) -> KindCounts:
        """The counts of one layer."""
        size = HALVES * len(places.ids)
        of_heads = received.double().transpose(1, 2)[tokens.ordinary]  # token head
        mass = torch.zeros(size, received.shape[1], dtype=torch.float64).index_add_(0, places.cell, of_heads)
        share = torch.zeros(size, dtype=torch.float64).index_add_(0, places.cell, even.double()[tokens.ordinary])
        narrow = received.dtype  # sums are made in float64 and handed on as precise as what they are sums of
        return KindCounts(
            places.ids, places.mark, mass.unflatten(0, (-1, HALVES)).to(narrow), share.view(-1, HALVES, 1).to(narrow)
        )

    @staticmethod
    def beside(layers: Sequence[KindCounts]) -> KindCounts:
        """Layers of one batch, their heads one after another. Those of several stacks may read different tokens."""
        return _joined(layers, lambda tensors: torch.cat(tensors, 2))

    @staticmethod
    def after(parts: Sequence[KindCounts]) -> KindCounts:
        """Texts of one batch that were read one by one."""
        return _joined(parts, lambda tensors: torch.stack(tensors).sum(0))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to write to the disk, by names that no other part of a batch uses."""
        return {f"kinds.{name}": getattr(self, name) for name in ARRAYS}

    @staticmethod
    def read(tensors: dict[str, Tensor]) -> KindCounts | None:
        """The counts among all tensors of a file; None where it has none. Raises KeyError where some are missing."""
        if not any(name.startswith("kinds.") for name in tensors):
            return None
        return KindCounts(*(tensors[f"kinds.{name}"] for name in ARRAYS))

    def over(self, ids: Int64[Tensor, "kind"]) -> KindCounts:
        """These counts over more kinds (sorted), 0 for the new ones."""
        if ids is self.ids:
            return self
        rows = torch.searchsorted(ids, self.ids)
        mark = torch.zeros(len(ids), dtype=torch.bool).index_put_((rows,), self.mark)
        mass, even = (x.new_zeros(len(ids), *x.shape[1:]).index_copy_(0, rows, x) for x in (self.mass, self.even))
        return KindCounts(ids, mark, mass, even)


def _joined(parts: Sequence[KindCounts], join: Callable[[list[Tensor]], Tensor]) -> KindCounts:
    """All parts, each over the kinds of any of them, joined."""
    ids = parts[0].ids
    if any(part.ids is not ids for part in parts):
        ids = torch.cat([part.ids for part in parts]).unique()
    wide = [part.over(ids) for part in parts]
    mark = torch.stack([part.mark for part in wide]).any(0)
    return KindCounts(ids, mark, join([part.mass for part in wide]), join([part.even for part in wide]))


@dataclass(eq=False)
class KindTally:
    """Any number of batches, added in place. Rows are kinds in the order in which they came; room for more doubles."""

    layers: tuple[int, ...]  # how many heads each has
    count: int = 0
    row_of: Int64[ndarray, "id"] = field(default_factory=lambda: np.full(LEAST_ROOM, -1))
    ids: Int64[ndarray, "room"] = field(default_factory=lambda: np.zeros(LEAST_ROOM, np.int64))
    mark: Bool[ndarray, "room"] = field(default_factory=lambda: np.zeros(LEAST_ROOM, bool))
    mass: Float64[ndarray, "room half head"] = field(init=False)
    even: Float64[ndarray, "room half layer"] = field(init=False)

    def __post_init__(self) -> None:
        self.mass = np.zeros((LEAST_ROOM, HALVES, sum(self.layers)))
        self.even = np.zeros((LEAST_ROOM, HALVES, len(self.layers)))

    def add(self, counts: KindCounts) -> None:
        ids = counts.ids.numpy()
        if len(ids) and ids.max() >= len(self.row_of):
            wider = np.full(max(2 * len(self.row_of), int(ids.max()) + 1), -1)
            wider[: len(self.row_of)] = self.row_of
            self.row_of = wider
        new = ids[self.row_of[ids] < 0]
        # Room doubles, so that adding a batch copies nothing most of the time, whatever the vocabulary.
        while self.count + len(new) > len(self.ids):
            for name in ARRAYS:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.row_of[new] = np.arange(self.count, self.count + len(new))
        self.ids[self.count : self.count + len(new)] = new
        self.count += len(new)
        rows = self.row_of[ids]
        self.mark[rows] |= counts.mark.numpy()
        self.mass[rows] += counts.mass.numpy()
        self.even[rows] += counts.even.numpy()

    def counts(self) -> KindCounts:
        """The counts so far, without a copy of them."""
        return KindCounts(*(torch.from_numpy(getattr(self, name)[: self.count]) for name in ARRAYS))

    @staticmethod
    def of(layers: tuple[int, ...], counts: KindCounts) -> KindTally:
        out = KindTally(layers)
        out.add(counts)
        return out

    def kinds(self) -> TokenKinds:
        """The counts in the order of the vocabulary, for every head."""
        order = np.argsort(self.ids[: self.count])
        mass, even = (x[order].transpose(1, 2, 0) for x in (self.mass, self.even))
        # Only now by head: while texts are read, one number a layer serves all of its heads.
        by_head = np.repeat(even, self.layers, axis=1)
        return TokenKinds(self.ids[order], self.mark[order], np.ascontiguousarray(mass), by_head)
