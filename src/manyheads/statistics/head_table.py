"""A row a head, a column a statistic: what `measure` returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import html_table, replacing
from manyheads.corpora import NONE_FAILED, Failures
from manyheads.errors import FileAccessError, StatisticError
from manyheads.heads import Head
from manyheads.recording import Sinks
from manyheads.spec import Site
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums import Sums
from manyheads.statistics.token_kinds import TokenKinds

if TYPE_CHECKING:
    import pandas as pd


TABLE_KINDS = (".parquet", ".csv", ".json")
SHOWN_COLUMNS = 10  # of a table in a notebook: what a cell is wide enough for


@dataclass(frozen=True, eq=False)
class HeadTable:
    """Statistics of every head. `notes` says what they rest on: model, backend and why, windows, rarity, sinks.

    `kinds`: what each kind of token received, where that was asked for. `failures`: texts of a corpus that could not be
    measured, counted, the first of them by name.
    """

    sites: tuple[Site, ...]
    statistics: tuple[Statistic, ...]
    sums: Sums
    sinks: Sinks
    notes: dict[str, str]
    kinds: TokenKinds | None = None
    failures: Failures = NONE_FAILED

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        return tuple(head for site in self.sites for head in site.heads)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.statistics)

    def column(self, name: str, half: int | None = None) -> Float64[ndarray, "head"]:
        """One statistic of every head (NaN where nothing was counted), over all texts or one half of them."""
        return self._values(half)[:, self._index(name)].copy()

    def interval(self, name: str, half: int | None = None) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """The 95 % interval over texts, by Poisson bootstrap."""
        low, high = self._intervals(half)
        index = self._index(name)
        return low[:, index], high[:, index]

    def _values(self, half: int | None) -> ndarray:
        if half not in self._values_of_half:
            self._values_of_half[half] = self.sums.value(half)[..., 0]
        return self._values_of_half[half]

    @cached_property
    def _values_of_half(self) -> dict[int | None, ndarray]:
        return {}

    def _intervals(self, half: int | None) -> tuple[ndarray, ndarray]:
        if half not in self._intervals_of_half:
            self._intervals_of_half[half] = self.sums.interval(half)
        return self._intervals_of_half[half]

    @cached_property
    def _intervals_of_half(self) -> dict[int | None, tuple[ndarray, ndarray]]:
        return {}

    def __getitem__(self, key: str | tuple[str, str]) -> Float64[ndarray, "head"] | float:
        """`table["entropy"]` is a column; `table["L0H2", "previous_mass"]` one number."""
        if isinstance(key, str):
            return self.column(key)
        head, name = key
        wanted = Head.parse(head)
        if wanted not in self.heads:
            raise StatisticError(
                f"there is no head {head} in this table: it holds {self.heads[0]} to {self.heads[-1]}."
            )
        return float(self.column(name)[self.heads.index(wanted)])

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise StatisticError(
                f"this table has no {name!r}, only {', '.join(self.names[:8])} ...: measure it by name, or 'all'."
            )
        return self.names.index(name)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with columns head, stack, layer, index, module, then the statistics."""
        import pandas as pd

        rows = [(str(h), h.stack, h.layer, h.index) for h in self.heads]
        frame = pd.DataFrame(rows, columns=["head", "stack", "layer", "index"])
        frame["module"] = [site.module for site in self.sites for _ in range(site.num_heads)]
        return pd.concat([frame, pd.DataFrame(self._values(None), columns=list(self.names))], axis=1)

    def save(self, path: str | Path) -> None:
        """Write a table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    def __repr__(self) -> str:
        size = f"{len(self.heads)} heads x {len(self.names)} statistics"
        return f"HeadTable({size} over {self.sums.num_texts} texts, {self.sums.num_tokens:,} tokens)"

    def _repr_html_(self) -> str:
        """A notebook's view: the first heads and statistics, and how many more there are."""
        names = self.names[:SHOWN_COLUMNS]
        columns = ["head", *(name.replace("_", " ") for name in names)]
        values = self._values(None)[:, : len(names)]
        rows = [[str(head), *map(float, row)] for head, row in zip(self.heads, values, strict=True)]
        more = len(self.names) - len(names)
        rest = f"{more} more statistics: to_pandas() has them all." if more else ""
        return html_table(columns, rows, caption=repr(self), note=rest)

    def __len__(self) -> int:
        return len(self.heads)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """A frame to a file by its ending, whole or not at all."""
    if path.suffix not in TABLE_KINDS:
        raise FileAccessError(f"cannot tell what kind of table {path.name!r} is: end it in {', '.join(TABLE_KINDS)}.")
    with replacing(path, path.suffix) as temporary:
        if path.suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_json(temporary, orient="records")


def number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return float(value) if abs(value) < math.inf else None
