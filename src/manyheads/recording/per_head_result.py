"""What results with one entry for each head share: looking a head up, a table file, and the view in a notebook."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pandas has no types here.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from manyheads.base import Json, html_table, plain, replacing
from manyheads.errors import FileAccessError, HeadError
from manyheads.heads import Head, NotIterated

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

TABLE_KINDS = (".parquet", ".csv", ".json")
SHOWN_COLUMNS = 11  # of a table in a notebook: the head's name and what else a cell is wide enough for


def head_place(head: str | Head, heads: Sequence[Head], missing: str = "here: there are {first} to {last}.") -> int:
    """The place of a head, or of the head that a name such as "L0H2" means, among `heads`.

    `missing` ends the message for a head that is not among them. Errors: HeadError, also for what names no head.
    """
    head = Head.parse(head) if isinstance(head, str) else head
    if head not in heads:
        raise HeadError(f"there is no head {head} {missing.format(first=heads[0], last=heads[-1])}")
    return heads.index(head)


class PerHeadResult(NotIterated):
    """Base of results with one entry for each head. A subclass has `heads` and `to_pandas`; `missing` words its error.

    `heads` are in the model's order (a ranking's are in its own), and entry number i of every array of the result
    belongs to head number i.
    """

    missing: ClassVar[str] = "here: there are {first} to {last}."
    instead = "its heads are .heads, and to_pandas() has a row for each. Write `for head in result.heads`"

    if TYPE_CHECKING:  # a field in some subclasses and computed in others: a base class can declare only one of the two

        @property
        def heads(self) -> tuple[Head, ...]: ...

    def head_place(self, head: str | Head) -> int:
        """The place of a head, given as a `Head` or by its name ("L0H2"), in `heads`. Errors: HeadError."""
        return head_place(head, self.heads, self.missing)

    def __contains__(self, head: object) -> bool:
        """Whether there is an entry for a head, a `Head` or its name. Errors: HeadError for any other text."""
        return (Head.parse(head) if isinstance(head, str) else head) in self.heads

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> ndarray:
        """Refused where a subclass is neither an array nor a sequence: numpy would hide it whole in an array of one
        object. Errors: HeadError."""
        if isinstance(self, Sequence):
            return np.array([*self], dtype)
        raise HeadError(f"{type(self).__name__} is no array: to_pandas() has its numbers, a row for each head.")

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

    def rows(self) -> list[Json]:
        """The table as plain data for JSON: a mapping from columns to values for each row, None where one is NaN."""
        return [{str(name): plain(value) for name, value in row.items()} for row in self.to_pandas().to_dict("records")]

    def save(self, path: str | Path) -> None:
        """Write the table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    def _repr_html_(self) -> str:
        """A notebook's view: the first heads and columns, and how many more there are."""
        frame = self.to_pandas().drop(columns=["stack", "layer", "index"], errors="ignore")
        table = frame.iloc[:, :SHOWN_COLUMNS]
        more = frame.shape[1] - table.shape[1]
        note = f"{more} more columns: to_pandas() has them all." if more else ""
        columns = [str(name).replace("_", " ") for name in table.columns]
        return html_table(columns, table.values.tolist(), caption=str(self), note=note)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame to a file by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
    if path.suffix not in TABLE_KINDS:
        raise FileAccessError(f"cannot tell what kind of table {path.name!r} is: end it in {', '.join(TABLE_KINDS)}.")
    with replacing(path, path.suffix) as temporary:
        if path.suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_json(temporary, orient="records")
