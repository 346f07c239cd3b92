"""A row for each head, a column for each statistic: what `measure` returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from numpy.typing import DTypeLike

from manyheads.base import Json, brief, few
from manyheads.corpora import NONE_FAILED, Failures
from manyheads.errors import HeadError, StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.recording import PerHeadResult
from manyheads.spec import Site, counted_layers
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums.intervals import MIN_BURSTY, MIN_WORTH
from manyheads.statistics.sums.sums import Sums
from manyheads.statistics.sums.token_kinds import TokenKinds
from manyheads.texts import Sinks

if TYPE_CHECKING:  # pandas takes half a second to import: only who asks for a frame waits for it
    import pandas as pd


@dataclass(frozen=True, eq=False)
class HeadTable(PerHeadResult):
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
    _values: dict[int | None, ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # Of a recording, or of sums, that an earlier manyheads wrote: the numbers in a head's name mean something else.
        if counted := counted_layers(self.sites):
            object.__setattr__(self, "notes", {**self.notes, "layers": counted})

    missing = "in this table: it holds {first} to {last}."

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        return tuple(head for site in self.sites for head in site.heads)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(statistic.name for statistic in self.statistics)

    @cached_property
    def _shares(self) -> tuple[bool, ...]:
        return tuple(statistic.unit == "share" for statistic in self.statistics)

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in reversed([*enumerate(self.names)])}

    def column(self, name: str, half: int | None = None) -> Float64[ndarray, "head"]:
        """One statistic of every head (NaN where nothing was counted), over all texts or one half of them."""
        return self._of_half(half)[:, self._column_index(name)].copy()

    def interval(self, name: str, half: int | None = None) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """The 95 % interval over texts (`statistics.sums.intervals`); NaN where there is none, as `no_interval` says
        why."""
        column = self._column_index(name)
        low, high = (end[:, column] for end in self.sums.interval(half, self._shares))
        if self.statistics[column].bursty:
            enough = self.sums.spread(half)[1].num_texts[:, column] >= MIN_BURSTY
            low, high = np.where(enough, low, np.nan), np.where(enough, high, np.nan)
        return low, high

    def no_interval(self, name: str, head: HeadLike, half: int | None = None) -> str:
        """Why a head's figure has no interval; "" where it has one."""
        index, column = self.head_place(head), self._column_index(name)
        num_texts, texts, largest = (float(part[index, column]) for part in self.sums.spread(half)[1])
        if not num_texts:
            return "no text has a case of it"
        if self.statistics[column].maximum:
            return "a maximum over texts has no interval"
        if texts < MIN_WORTH:
            return (
                f"its cases are worth {texts:.1f} texts of equal length (one text has {largest:.0%} of them), and an "
                f"interval needs {MIN_WORTH:.0f}"
            )
        if not self.sums.spread(half)[0].error[index, column] > 0:
            return "all texts agree, and their spread says nothing of others"
        if self.statistics[column].bursty and num_texts < MIN_BURSTY:
            return f"a few texts may hold most of it: {num_texts:.0f} have cases, and an interval needs {MIN_BURSTY}"
        return ""

    def _of_half(self, half: int | None) -> Float64[ndarray, "head statistic"]:
        if half not in self._values:
            self._values[half] = self.sums.value(half, replicates=False)[..., 0]
        return self._values[half]

    def _column_index(self, name: str) -> int:
        if (column := self._columns.get(str(name))) is not None:
            return column
        try:
            head = Head.parse(str(name))
        except HeadError:
            raise StatisticError(
                f"this table has no {name!r}, only {few(self.names, 8)}: measure it by name, or 'all'."
            ) from None
        self.head_place(head)
        raise StatisticError(
            f"'{head}' is a head, and a column is a statistic: write table['{head}', {self.names[0]!r}] for one number."
        )

    @overload
    def __getitem__(self, key: str) -> Float64[ndarray, "head"]: ...
    @overload
    def __getitem__(self, key: tuple[HeadLike, str]) -> float: ...
    def __getitem__(self, key: str | tuple[HeadLike, str]) -> Float64[ndarray, "head"] | float:
        """`table["entropy"]` is a column; `table["L0H2", "previous_mass"]` one number.

        Errors: HeadError for a head that is not in the table, StatisticError for a statistic that is not.
        """
        if isinstance(key, str | Head):
            return self.column(str(key))
        if not isinstance(key, tuple) or len(key) != 2:
            raise StatisticError(
                f"table[{key!r}]: a table is read by names: write table[{self.names[0]!r}] for a column, or "
                f"table['{self.heads[0]}', {self.names[0]!r}] for one number."
            )
        head, name = key
        return float(self.column(name)[self.head_place(head)])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> ndarray:
        """What `np.asarray(table)` gives: a row for each of `heads`, a column for each of `names`."""
        return np.array(self._of_half(None), dtype)  # a copy, whatever was asked for: `column` gives copies too

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with columns head, stack, layer, index, module, then the statistics."""
        import pandas as pd  # half a second: not for who never asks for a frame

        modules = [site.module for site in self.sites for _ in range(site.num_heads)]
        frame = pd.DataFrame({**self.head_columns(), "module": modules})
        return pd.concat([frame, pd.DataFrame(self._of_half(None), columns=list(self.names))], axis=1)

    def statistic_rows(self) -> list[Json]:
        """For each statistic: what it means, what it rests on, and every head's value and interval, as plain data."""
        rows: list[Json] = []
        for statistic in self.statistics:
            columns = (self.column(statistic.name), *self.interval(statistic.name))
            heads: dict[str, Json] = {
                str(head): dict(zip(("value", "low", "high"), map(number, values), strict=True))
                for head, *values in zip(self.heads, *columns, strict=True)
            }
            for head, figures in heads.items():
                if figures["low"] is None:
                    figures["no_interval"] = self.no_interval(statistic.name, head)
            about = {"name": statistic.name, "unit": statistic.unit, "kind": statistic.kind, "is": statistic.meaning}
            rows.append({**about, "texts": self.sums.num_texts, "tokens": self.sums.num_tokens, "heads": heads})
        return rows

    def to_dict(self) -> Json:
        """Plain data for JSON: `statistic_rows`, and the notes."""
        return {"statistics": self.statistic_rows(), "notes": self.notes}

    @property
    def without_cases(self) -> dict[str, str]:
        """Why each statistic that is NaN for every head is NaN."""
        return {
            statistic.name: self.sinks.because
            if "sinks" in statistic.asks and not self.sinks.names
            else "no row was counted"
            for statistic, column in zip(self.statistics, self._of_half(None).T, strict=True)
            if bool(np.isnan(column).all())
        }

    def __str__(self) -> str:
        reasons: dict[str, list[str]] = {}
        for name, reason in self.without_cases.items():
            reasons.setdefault(reason, []).append(name)
        return "\n".join([repr(self), *(f"NaN: {', '.join(names)}: {reason}" for reason, names in reasons.items())])

    def __repr__(self) -> str:
        size = f"{len(self.heads)} heads x {len(self.names)} statistics"
        return brief(f"HeadTable({size} over {self.sums.num_texts} texts, {self.sums.num_tokens:,} tokens)")

    def __len__(self) -> int:
        return len(self.heads)


def number(value: float) -> float | None:
    """The number for JSON, which has neither NaN nor infinity."""
    return float(value) if abs(value) < math.inf else None
