"""What comes of comparing heads: families, a map, each layer's diversity. Plain data, with a table and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from manyheads.errors import HeadError
from manyheads.heads import Head
from manyheads.roles.clusters import average_linkage, best_cut, cut, medoid, silhouettes
from manyheads.statistics.head_table import write_frame

if TYPE_CHECKING:
    import pandas as pd

CLEAR = 0.25  # a mean silhouette below it: families run into each other (Kaufman and Rousseeuw 1990, table 4)


@dataclass(frozen=True)
class Family:
    """Heads that look at like keys. `medoid` is the one nearest to all the others; `spread` the mean divergence of two
    of its heads in nats, 0 for one alone; `silhouette` how much nearer its heads are to each other than to the next
    family (-1 to 1; 0 for one alone)."""

    heads: tuple[Head, ...]
    medoid: Head
    spread: float
    silhouette: float


@dataclass(frozen=True)
class LayerDiversity:
    """How different a layer's heads look: the mean divergence of two of them as a share of ln 2, the largest possible.

    0: all the same; 1: no two ever look at the same key. None for a layer of one head. `low` and `high`: the 95 %
    interval over texts (bootstrap), None where there is but one text.
    """

    layer: str
    num_heads: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class HeadFamilies:
    """How far apart the heads of a model are, and what follows.

    `divergences[i, j]` is the mean Jensen-Shannon divergence of heads i and j over `num_rows` rows, in nats (0 to
    ln 2); `distances` its root, a metric (0 to 0.833), by which families are made. `families` come largest first.
    `map` has a place in the plane for each head, and `explained` the share of all squared distances that it shows.
    `tried`: the mean silhouette of each number of families that was looked at. `because` says which rows, and why so
    many families.
    """

    model: str
    heads: tuple[Head, ...]
    divergences: Float64[ndarray, "h h"]
    families: tuple[Family, ...]
    map: Float64[ndarray, "h 2"]
    explained: float
    diversity: tuple[LayerDiversity, ...]
    tried: dict[int, float]
    num_texts: int
    num_rows: int
    because: str

    @cached_property
    def distances(self) -> Float64[ndarray, "h h"]:
        """The roots of the divergences: a metric."""
        return np.sqrt(self.divergences)

    @cached_property
    def groups(self) -> Int64[ndarray, "h"]:
        """The number of each head's family, by its place in `families`."""
        of_head = {head: at for at, family in enumerate(self.families) for head in family.heads}
        return np.array([of_head[head] for head in self.heads], dtype=np.int64)

    def family_of(self, head: str | Head) -> Family:
        """Errors: HeadError for a head that was not compared."""
        return self.families[self.groups[self._at(head)]]

    def nearest(self, head: str | Head, count: int = 5) -> list[tuple[Head, float]]:
        """The heads that look most like one, and their divergences from it in nats. Errors: HeadError."""
        at = self._at(head)
        order = [other for other in self.divergences[at].argsort(kind="stable") if other != at]
        return [(self.heads[other], float(self.divergences[at, other])) for other in order[:count]]

    def __getitem__(self, pair: tuple[str | Head, str | Head]) -> float:
        """`found["L0H2", "L1H8"]`: the divergence of two heads, in nats. Errors: HeadError."""
        first, second = pair
        return float(self.divergences[self._at(first), self._at(second)])

    def _at(self, head: str | Head) -> int:
        wanted = Head.parse(head) if isinstance(head, str) else head
        if wanted not in self.heads:
            raise HeadError(f"there is no head {wanted} here: {self.heads[0]} to {self.heads[-1]} were compared.")
        return self.heads.index(wanted)

    def to_pandas(self) -> pd.DataFrame:
        """A row a head: head, stack, layer, index, family, medoid, silhouette, nearest, nearest_divergence, x, y."""
        import pandas as pd

        near = [self.nearest(head, 1)[0] for head in self.heads]
        return pd.DataFrame(
            {
                "head": [str(head) for head in self.heads],
                "stack": [head.stack for head in self.heads],
                "layer": [head.layer for head in self.heads],
                "index": [head.index for head in self.heads],
                "family": self.groups,
                "medoid": [str(self.families[group].medoid) for group in self.groups],
                "silhouette": silhouettes(self.distances, self.groups),
                "nearest": [str(head) for head, _ in near],
                "nearest_divergence": [apart for _, apart in near],
                "x": self.map[:, 0],
                "y": self.map[:, 1],
            }
        )

    def save(self, path: str | Path) -> None:
        """Write the table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "heads": [str(head) for head in self.heads],
            "divergences": self.divergences.round(6).tolist(),
            "families": [
                {"heads": [str(head) for head in family.heads], "medoid": str(family.medoid), "spread": family.spread,
                 "silhouette": family.silhouette} for family in self.families
            ],
            "map": self.map.tolist(),
            "explained": self.explained,
            "diversity": [vars(layer) for layer in self.diversity],
            "tried": {str(count): value for count, value in self.tried.items()},
            "num_texts": self.num_texts,
            "num_rows": self.num_rows,
            "because": self.because,
        }  # fmt: skip

    def __repr__(self) -> str:
        largest = ", ".join(f"{len(family.heads)} like {family.medoid}" for family in self.families[:4])
        more = ", ..." if len(self.families) > 4 else ""
        what = f"{len(self.heads)} heads in {len(self.families)} families: {largest}{more}"
        return f"HeadFamilies({what}; {self.num_rows:,} rows of {self.num_texts} texts)"


def families_of(
    heads: tuple[Head, ...], divergences: Float64[ndarray, "h h"], clusters: int | None
) -> tuple[tuple[Family, ...], dict[int, float], str]:
    """The families, largest first; the silhouettes that were tried; and why there are so many families."""
    distances = np.sqrt(divergences)
    merges = average_linkage(distances)
    best, tried = best_cut(distances, merges)
    if clusters is not None:
        why = f"{clusters} families, as asked"
    elif tried:
        weak = ": weak, families run into each other" * (tried[best] < CLEAR)
        why = f"{best} families, by the largest mean silhouette among 2 to {max(tried)} ({tried[best]:.2f}{weak})"
    else:
        why = "two heads, each by itself: there is nothing to choose"
    groups = cut(merges, best if clusters is None else clusters)
    worth = silhouettes(distances, groups)
    found = []
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        inside = divergences[np.ix_(members, members)].sum() / max(1, len(members) * (len(members) - 1))
        middle = heads[medoid(distances, members)]
        found.append(Family(tuple(heads[at] for at in members), middle, float(inside), float(worth[members].mean())))
    found.sort(key=lambda family: (-len(family.heads), family.heads[0]))
    return tuple(found), tried, why
