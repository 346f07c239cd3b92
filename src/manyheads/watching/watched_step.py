"""One watched step: every head's numbers, as a table, as a column, and as the few that a logger gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from manyheads.base import Json
from manyheads.errors import StatisticError
from manyheads.heads import Head, HeadLike, HeadsLike, parse_heads, written
from manyheads.recording import PerHeadResult
from manyheads.spec import Site
from manyheads.watching.alert_rules import DEAD
from manyheads.watching.head_numbers import MAXIMA

if TYPE_CHECKING:  # half a second to import: only who asks for a frame waits for it
    import pandas as pd

SINK = 0.3  # a head whose mean weight on the first token is more counts as a sink head (Gu et al. 2024)
SUMMARY = {"max_logit": ("max",), "entropy": ("mean", "min"), "output_share": ("min",)}
"""How a logger sees a statistic: over a layer's heads, and over all. Others have mean and max; maxima have max."""


@dataclass(frozen=True, eq=False)
class WatchedStep(PerHeadResult):
    """The numbers of one watched step: `values[head, statistic]`, NaN where there is none, or where a run diverges.

    Means are over all tokens that the step trained on, maxima over all its rows. `counted`: where there was a case of
    the statistic. `because`: how they were read. `loss`: what the passes returned as theirs, or `step` was given; NaN
    where neither is so.
    """

    step: int
    sites: tuple[Site, ...]
    names: tuple[str, ...]
    values: Float64[ndarray, "head statistic"]
    counted: Bool[ndarray, "head statistic"]
    because: str
    loss: float = np.nan

    missing = "in this model: it has {first} to {last}."

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        return tuple(head for site in self.sites for head in site.heads)

    @overload
    def __getitem__(self, key: str) -> Float64[ndarray, "head"]: ...
    @overload
    def __getitem__(self, key: tuple[HeadLike, str]) -> float: ...
    def __getitem__(self, key: str | tuple[HeadLike, str]) -> Float64[ndarray, "head"] | float:
        """`step["entropy"]` is a column; `step["L0H2", "entropy"]` one number. Errors: HeadError, StatisticError."""
        head, name = (None, key) if isinstance(key, str) else key
        if name not in self.names:
            raise StatisticError(f"this watch has no {name!r}, only {', '.join(self.names)}: name it in statistics=.")
        column = self.values[:, self.names.index(name)]
        return column.copy() if head is None else float(column[self.head_place(head)])

    def to_dict(self) -> Json:
        """Plain data for JSON: a row for each head, None where it has no number."""
        loss = self.loss if np.isfinite(self.loss) else None
        return {"step": self.step, "loss": loss, "heads": self.rows(), "because": self.because}

    def summary(self, layers: bool = True, heads: HeadsLike = ()) -> dict[str, float]:
        """Numbers for a logger: each statistic over all heads, over each layer's, and of these heads alone, as
        `heads/L3H5/entropy`. Errors: HeadError for heads that there are not."""
        out: dict[str, float] = {}
        places: dict[str, slice] = {"": slice(None)}
        begin = 0
        for site in self.sites:
            places[f"{site}/"] = slice(begin, begin + site.num_heads)
            begin += site.num_heads
        sizes = np.array([site.num_heads for site in self.sites])
        even = 1 / np.repeat(sizes, sizes)  # each head's even share of its layer's output
        for place, members in places.items() if layers else [("", slice(None))]:
            for index, name in enumerate(self.names):
                counted = self.counted[members, index]
                column = self.values[members, index][counted]
                if not len(column):  # as an offset has no meaning in cross-attention
                    continue
                for kind in SUMMARY.get(name, ("max",) if name in MAXIMA else ("mean", "max")):
                    out[f"heads/{place}{name}.{kind}"] = float(getattr(column, kind)())
                # A head without a number is neither under a limit nor over it: as a mean, a share is then NaN.
                known = not np.isnan(column).any()
                if name == "first_mass":
                    out[f"heads/{place}sink_heads"] = float((column > SINK).mean()) if known else np.nan
                if name == "output_share":
                    dead = column < DEAD * even[members][counted]
                    out[f"heads/{place}dead_heads"] = float(dead.mean()) if known else np.nan
        for head in self.select(heads):
            row = self.head_place(head)
            for index in np.flatnonzero(self.counted[row]).tolist():
                out[f"heads/{head}/{self.names[index]}"] = float(self.values[row, index])
        return out

    def select(self, heads: HeadsLike) -> list[Head]:
        """These heads, of those that were read; none of (). Errors: HeadError for heads that there are not."""
        shape: dict[str, list[int]] = {}  # stack -> heads of each layer: a layer that is not watched has none
        for site in self.sites:
            counts = shape.setdefault(site.stack, [])
            counts += [0] * (site.layer + 1 - len(counts))
            counts[site.layer] = max(counts[site.layer], site.num_heads)
        return list(parse_heads(heads, shape)) if written(heads) else []

    def to_pandas(self) -> pd.DataFrame:
        """Columns head, stack, layer, index, then the statistics."""
        import pandas as pd  # half a second: not for who never asks for a frame

        return pd.concat(
            [pd.DataFrame(self.head_columns()), pd.DataFrame(self.values, columns=list(self.names))], axis=1
        )

    def __repr__(self) -> str:
        return f"WatchedStep({self.step:,}: {len(self.heads)} heads x {len(self.names)} statistics)"
