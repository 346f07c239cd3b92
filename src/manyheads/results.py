"""What results share: their view in a notebook, their figure, their table.

A result's line is its `repr`, and its plain data `to_dict`. Three bases stand here: `Shown`; `Tabular`, a result that
is a table; `NotIterated`, one that is not a list. Figures are drawn above everything that has one
(`manyheads.figures`): `figure_of` finds them by name.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pandas and matplotlib have no types here.

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from manyheads.base import html_table, replacing
from manyheads.errors import FileAccessError, HeadError

if TYPE_CHECKING:  # each takes half a second to import: only who asks for a table or a figure waits for it
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["NotIterated", "Plotted", "Shown", "Tabular", "figure_of", "write_frame"]

FIGURES = "manyheads.figures"  # it stands above all results: by its name
TABLE_KINDS = (".parquet", ".csv", ".json")
SHOWN_ROWS = 20  # of a table in a notebook
SHOWN_COLUMNS = 11  # ... the head's name and what else a cell is wide enough for


class Shown:
    """Base of results. `_repr_html_` is a notebook's view of those that have `to_dict`."""

    def _repr_html_(self) -> str:
        """A notebook's view: the result in words, and below them its numbers by name."""
        rows = [[name.replace("_", " "), value] for name, value in self._named_values().items()]
        return html_table(["", ""], rows, caption=str(self))

    def _named_values(self) -> dict[str, str | int | float | None]:
        """What a notebook shows by name: of the plain data all that is one number or one text."""
        data = cast("Mapping[str, object]", getattr(self, "to_dict")())  # noqa: B009 a base declares no `to_dict`
        return {name: value for name, value in data.items() if isinstance(value, str | int | float | None)}


class Plotted:
    """Base of results that have a figure."""

    def plot(self) -> Figure:
        """The result as a matplotlib figure, as `manyheads.figures` draws it: a notebook shows it, and
        `.plot().savefig("figure.svg")` writes it."""
        return figure_of(self)


def figure_of(result: object, **options: object) -> Figure:
    """The figure of a result, drawn by the function that `manyheads.figures.drawings` has for its class."""
    return importlib.import_module(f"{FIGURES}.drawings").draw(result, **options).figure


class Tabular(Shown):
    """Base of results that are a table. A subclass has `to_pandas`; the file, Arrow and the notebook's view follow.

    polars, DuckDB, pyarrow and all else that speaks the Arrow PyCapsule protocol read a result as it is:
    `pl.DataFrame(table)`, `pyarrow.table(table)`. None is a `collections.abc.Sequence`, of which polars would make a
    frame of entries.
    """

    def to_pandas(self) -> pd.DataFrame:
        """The table as a DataFrame."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table of `to_pandas` as an Arrow stream, without its index. Cost: that of the frame, and a copy of text.

        Source: the Arrow PyCapsule interface.
        """
        return self.to_pandas().reset_index(drop=True).__arrow_c_stream__(requested_schema)

    def save(self, path: str | Path) -> None:
        """Write the table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    def _repr_html_(self) -> str:
        """A notebook's view: the first rows and columns, and how many more there are."""
        frame = self.to_pandas().drop(columns=["stack", "layer", "index", "module"], errors="ignore")
        table = frame.iloc[:, :SHOWN_COLUMNS]
        more = frame.shape[1] - table.shape[1]
        note = f"{more} more columns: to_pandas() has them all." if more else ""
        columns = [str(name).replace("_", " ") for name in table.columns]
        rows = table.head(SHOWN_ROWS).values.tolist()  # not of all rows: a table of pairs has a hundred thousand
        return html_table(columns, rows, caption=str(self), note=note, total=len(frame))


class NotIterated:
    """Base of results that are not a list. `instead` of a subclass says where its parts are.

    Without it Python would name no other way, and ask one that is read by head for entry 0, 1, ...
    """

    instead: ClassVar[str]

    def __iter__(self) -> Iterator[object]:
        """Refused, unless a subclass iterates. Errors: HeadError."""
        raise HeadError(f"{type(self).__name__} is not iterated: {self.instead}.")


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
