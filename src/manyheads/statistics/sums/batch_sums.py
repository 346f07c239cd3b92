"""What one batch adds to the sums: two numbers a text, head and statistic, and how they were computed.

Nearly all denominators are counts of rows, the same for all heads of a layer; so here they are kept once a layer, and
only the few statistics whose heads have denominators of their own (shares of a sum of norms) have them by head.

What a text adds is rounded to the precision that it was computed in (float32, mostly); sums are float64. So a batch
that was written down and read again adds to the last bit what it would have added at once.
"""

# device: sums are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.models.taps import Unread
from manyheads.spec import Site
from manyheads.statistics.sums.token_kinds import KindCounts


@dataclass(frozen=True, eq=False)
class BatchSums:
    """Two numbers a text, head and statistic of one batch, and how they were computed.

    `den` holds one for each layer; of the statistics in `columns`, `own` holds one for each head instead. Those in
    `maximum_columns` are maxima (`Statistic.maximum`). `left_out`: the layers from one text to another that were not
    measured; `unread`: the modules that attend where no tap sees it. Neither is written to the disk.
    """

    sites: tuple[Site, ...]
    seeds: tuple[int, ...]
    num: Float[Tensor, "t h s"]
    den: Float[Tensor, "t layer s"]
    own: Float[Tensor, "t h o"]
    columns: tuple[int, ...] = ()
    kinds: KindCounts | None = None
    num_tokens: int = 0
    backend: Mapping[str, int] = field(default_factory=dict)
    guard_error: float = 0.0
    edited: bool = False
    maximum_columns: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: Mapping[str, Unread] = field(default_factory=dict)

    def own_of(self, columns: Sequence[int]) -> Float[Tensor, "t h o"]:
        """Denominators by head of these columns, whether their heads have their own or share their layer's."""
        # Both the index and the repeat copy, so what is written
        # below never reaches `den`, which other columns still need.
        shared = self.den[..., list(columns)].repeat_interleave(torch.tensor(layers_of(self.sites)), 1)
        for index, column in enumerate(columns):
            if column in self.columns:
                shared[..., index] = self.own[..., self.columns.index(column)]
        return shared

    @staticmethod
    def after(parts: Sequence[BatchSums]) -> BatchSums:
        """Texts of one batch that were read one by one."""
        first = parts[0]
        # Texts that were run alone may differ in which columns have denominators by head: without the union, `cat`
        # would set the numbers of different statistics under each other.
        columns = tuple(sorted({column for part in parts for column in part.columns}))
        kinds = [part.kinds for part in parts if part.kinds is not None]
        backend: Counter[str] = Counter()
        for part in parts:
            backend.update(part.backend)
        return replace(
            first,
            sites=agreed(part.sites for part in parts),
            seeds=tuple(seed for part in parts for seed in part.seeds),
            num=torch.cat([part.num for part in parts]),
            den=torch.cat([part.den for part in parts]),
            own=torch.cat([part.own_of(columns) for part in parts]),
            columns=columns,
            kinds=KindCounts.after(kinds) if kinds else None,
            num_tokens=sum(part.num_tokens for part in parts),
            backend=backend,
            guard_error=max(part.guard_error for part in parts),
            edited=any(part.edited for part in parts),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, as they are written to the disk."""
        out = {"seeds": torch.tensor(self.seeds), "num": self.num, "den": self.den, "own": self.own}
        return out | ({} if self.kinds is None else self.kinds.tensors())

    def words(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data for JSON."""
        names = ("columns", "num_tokens", "backend", "guard_error", "edited", "maximum_columns")
        return {"sites": site_fields(self.sites), **{name: getattr(self, name) for name in names}}

    @staticmethod
    def read(tensors: dict[str, Tensor], words: dict[str, Any]) -> BatchSums:
        """Raises LookupError, TypeError or ValueError for what is not of that kind."""
        numbers = {name: tensors[name] for name in ("num", "den", "own")}
        columns = {name: read_columns(words[name], tensors["num"]) for name in ("columns", "maximum_columns")}
        words = {**words, "sites": read_sites(words["sites"]), **columns}
        seeds = tuple(tensors["seeds"].tolist())
        return BatchSums(seeds=seeds, **numbers, **words, kinds=KindCounts.read(tensors))


def layers_of(sites: Sequence[Site]) -> tuple[int, ...]:
    """How many heads each layer has."""
    return tuple(site.num_heads for site in sites)


def agreed(many: Iterable[tuple[Site, ...]]) -> tuple[Site, ...]:
    """The sites as several batches saw them: texts of one token do not show that a layer is causal."""
    # The sites of one model come in the same order in every batch.
    return tuple(replace(views[0], causal=any(site.causal for site in views)) for views in zip(*many, strict=True))


def site_fields(sites: Sequence[Site]) -> list[dict[str, Any]]:
    return [vars(site) for site in sites]


def read_columns(stored: Sequence[int], num: Tensor) -> tuple[int, ...]:
    """Errors: ValueError for what are not columns of `num`."""
    if any(type(column) is not int or not 0 <= column < num.shape[2] for column in stored):
        raise ValueError("it names statistics that it does not hold")
    return tuple(stored)


def read_sites(stored: Sequence[dict[str, Any]]) -> tuple[Site, ...]:
    return tuple(Site.from_dict(fields, f"site {number}") for number, fields in enumerate(stored))
