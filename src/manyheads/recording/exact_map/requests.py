"""What can be asked of an attention map: the reductions that one pass over its tiles computes together.

A request is a small frozen value, so that statistics can ask for the same thing and it is computed once. A request
that hangs on the tokens holds a *function of the tokens*, not the numbers: it can be planned before a text is read.
Shapes: b texts, h query heads, q rows, k keys. Rows that see nothing, and padding, come out as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.recording.tokens import Tokens

Column = Callable[[Tokens], Float[Tensor, "b k"]]
WordsOf = Callable[[Tokens], Int[Tensor, "b k"]]
Labels = Callable[[Tokens], tuple[Int[Tensor, "b q"], Int[Tensor, "b k"]]]


@dataclass(frozen=True)
class Mass:
    """`[b h q]` sum_j w: 1, or less where a sink takes its share. Unit: share, range 0..1."""


@dataclass(frozen=True)
class Entropy:
    """`[b h q]` -sum_j w ln w, in nats."""


@dataclass(frozen=True)
class Square:
    """`[b h q]` sum_j w^2: 1 where all weight is on one key, 1/n where it is spread evenly over n."""


@dataclass(frozen=True)
class Maximum:
    """`[b h q]` the row's largest weight."""


@dataclass(frozen=True)
class Strongest:
    """`[b h q]` the key of the row's largest weight (the first of equals); -1 in rows that see nothing."""


@dataclass(frozen=True)
class Distance:
    """`[b h q]` sum_j w |j - i|, in tokens."""


@dataclass(frozen=True)
class Linear:
    """`[b h q]` sum_j w c_j for a column c over the keys."""

    column: Column


@dataclass(frozen=True)
class Match:
    """`[b h q]` sum of w where the row's label equals the key's. Labels below 0 match nothing.

    `earlier` counts keys `j <= i - apart` only, `elsewhere` leaves out `j = i`.
    """

    labels: Labels
    earlier: bool = False
    elsewhere: bool = False
    apart: int = 0


@dataclass(frozen=True)
class MatchReceived:
    """`[b h k]` column sums over the cells of a match alone: what each key receives from rows that carry its label."""

    match: Match


@dataclass(frozen=True)
class RowsReceived:
    """`[b h k]` column sums over the rows that see a match: all that they give, to its keys and to others."""

    match: Match


@dataclass(frozen=True)
class Band:
    """`[b h q o]` the weight at each offset `j - i` of `offsets`; 0 where there is no such key."""

    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Received:
    """`[b h k]` column sums, sum_i w: how much attention each key receives in all."""


@dataclass(frozen=True)
class WordRows:
    """`[b h w k]` the mean of the rows of each word: who looks is a word, what is looked at are still tokens.

    `words` numbers the word of each token from 0, -1 for none. For texts of a treebank's length: the answer is a map.
    """

    words: WordsOf


@dataclass(frozen=True)
class Pooled:
    """`[b h p p]` the map in `size` x `size` blocks (fewer for shorter texts), by mean or by max of the visible cells.

    Position i of a text of n falls in block `i * p // n`. Blocks in which nothing is visible are NaN: absent, not zero.
    """

    size: int
    how: str = "mean"

    def __post_init__(self) -> None:
        if self.how not in ("mean", "max") or self.size < 1:
            raise StatisticError(f"{self}: pool by how='mean' or 'max', into at least one block.")


Request = (
    Mass
    | Entropy
    | Square
    | Maximum
    | Strongest
    | Distance
    | Linear
    | Match
    | MatchReceived
    | RowsReceived
    | Band
    | Received
    | WordRows
    | Pooled
)
