"""What results with one entry for each head share: how a head is found, and its table."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pandas has no types here.

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from manyheads.base import Json, plain
from manyheads.errors import HeadError
from manyheads.heads import Head, HeadLike
from manyheads.results import NotIterated, Tabular, figure_of

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd
    from matplotlib.figure import Figure


def head_place(head: HeadLike, heads: Sequence[Head], missing: str = "here: there are {first} to {last}.") -> int:
    """The place of a head, or of the head that a name such as "L0H2" means, among `heads`.

    `missing` ends the message for a head that is not among them. Errors: HeadError, also for what names no head.
    """
    head = Head.parse(head)
    if head not in heads:
        raise HeadError(f"there is no head {head} {missing.format(first=heads[0], last=heads[-1])}")
    return heads.index(head)


class PerHeadResult(Tabular, NotIterated):
    """Base of results with one entry for each head. A subclass has `heads` and `to_pandas`; `missing` words its error.

    `heads` are in the model's order (a ranking's are in its own), and entry number i of every array of the result
    belongs to head number i.
    """

    missing: ClassVar[str] = "here: there are {first} to {last}."
    instead = "its heads are .heads, and to_pandas() has a row for each. Write `for head in result.heads`"

    if TYPE_CHECKING:  # a field in some subclasses and computed in others: a base class can declare only one of the two

        @property
        def heads(self) -> tuple[Head, ...]: ...

    def head_place(self, head: HeadLike) -> int:
        """The place of a head, given as a `Head` or by its name ("L0H2"), in `heads`. Errors: HeadError."""
        return head_place(head, self.heads, self.missing)

    def __contains__(self, head: object) -> bool:
        """Whether there is an entry for a head, a `Head` or its name. Errors: HeadError for any other text."""
        return (Head.parse(cast("HeadLike", head)) if isinstance(head, str | tuple) else head) in self.heads

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> ndarray:
        """Refused where a subclass is neither an array nor iterated: numpy would hide it whole in an array of one
        object. Errors: HeadError."""
        if type(self).__iter__ is not NotIterated.__iter__:
            return np.array([*self], dtype)
        raise HeadError(f"{type(self).__name__} is not an array: to_pandas() has its numbers, a row for each head.")

    def head_columns(self) -> dict[str, list[str] | list[int]]:
        """The columns with which every table of heads begins: the name, then stack, layer and index."""
        return {
            "head": [str(head) for head in self.heads],
            "stack": [head.stack for head in self.heads],
            "layer": [head.layer for head in self.heads],
            "index": [head.index for head in self.heads],
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each head; the columns are those of `head_columns`, then those of the result."""
        raise NotImplementedError

    def plot(self, column: str | None = None) -> Figure:
        """The result as a matplotlib figure: the one of its own, where it has one, or a grid of layers and heads.

        `column`: of the grid's numbers, a column of `to_pandas`; None: the result's own figure, or its first column of
        numbers. `.savefig("grid.svg")` writes it. Errors: StatisticError for what is not a column of numbers.
        """
        return figure_of(self, column=column)

    def rows(self) -> list[Json]:
        """The table as plain data for JSON: a mapping from columns to values for each row, None where one is NaN."""
        return [{str(name): plain(value) for name, value in row.items()} for row in self.to_pandas().to_dict("records")]
