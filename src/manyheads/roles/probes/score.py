"""One number for each head, and what it takes to believe it: chance, an interval, and the number of queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.heads import Head
from manyheads.recording import head_place


class HeadScore(NamedTuple):
    """The score of one head. NaN where nothing was counted."""

    head: Head
    score: float
    chance: float
    low: float
    high: float
    num_queries: int


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Every head's score in the model's order; `scores["L1H4"]` is the `HeadScore` of one head, as in iteration.

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
        index = head_place(head, self.heads)
        score, chance, low, high = (float(column[index]) for column in (self.score, self.chance, self.low, self.high))
        return HeadScore(self.heads[index], score, chance, low, high, int(self.num_queries[index]))

    def __iter__(self) -> Iterator[HeadScore]:
        return (self[head] for head in self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def top(self, count: int = 5) -> list[HeadScore]:
        """The heads furthest above chance, first the furthest; those of which nothing was counted are left out."""
        # NaN is not itself, and would make the order of the others arbitrary.
        counted = [head for head in self if head.score == head.score]
        return sorted(counted, key=lambda head: head.chance - head.score)[:count]
