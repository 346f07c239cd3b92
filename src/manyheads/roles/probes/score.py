"""One number of each head, and what it takes to believe it: chance, an interval, and how many queries it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import HeadError
from manyheads.heads import Head


class HeadScore(NamedTuple):
    """One head's. NaN where nothing was counted."""

    head: Head
    score: float
    chance: float
    low: float
    high: float
    num_queries: int


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Every head's score in the model's order; `scores["L1H4"]` is one of them, and so are those that it iterates over.

    `chance` is the highest of `chances`, which has each by name. `low` to `high` is a 95 % interval of the score.
    `num_queries` are the rows (or pairs, or trials) counted.
    """

    heads: tuple[Head, ...]
    score: Float64[ndarray, "head"]
    low: Float64[ndarray, "head"]
    high: Float64[ndarray, "head"]
    chances: Mapping[str, Float64[ndarray, "head"]]
    num_queries: Float64[ndarray, "head"]

    @property
    def chance(self) -> Float64[ndarray, "head"]:
        return np.maximum.reduce(list(self.chances.values()))

    def __getitem__(self, head: str | Head) -> HeadScore:
        """Errors: HeadError for a head that is not there."""
        wanted = Head.parse(head) if isinstance(head, str) else head
        if wanted not in self.heads:
            raise HeadError(f"there is no head {wanted} here: there are {self.heads[0]} to {self.heads[-1]}.")
        at = self.heads.index(wanted)
        score, chance, low, high = (float(each[at]) for each in (self.score, self.chance, self.low, self.high))
        return HeadScore(wanted, score, chance, low, high, int(self.num_queries[at]))

    def __iter__(self) -> Iterator[HeadScore]:
        return (self[head] for head in self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def top(self, count: int = 5) -> list[HeadScore]:
        """The heads furthest above chance, first the furthest; those of which nothing was counted are left out."""
        known = [each for each in self if each.score == each.score]
        return sorted(known, key=lambda each: each.chance - each.score)[:count]
