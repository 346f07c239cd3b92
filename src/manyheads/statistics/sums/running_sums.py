"""The sums of any number of batches (`Tally`), and how these came (`Gathered`).

`Sums` is what a table shows: numerator and denominator of every head. Here denominators are kept once a layer, as
`Contribution` has them, and by head only where heads have their own. With 400 columns and 72 heads that is half the
memory, half the time and half of what a resumed run has to write.
"""

# device: sums are the host's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads.models.taps import EDITED
from manyheads.spec import Site
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums.batch_sums import (
    Contribution,
    _columns,
    agreed,
    counted,
    layers_of,
    read_sites,
    site_fields,
)
from manyheads.statistics.sums.intervals import MOMENTS
from manyheads.statistics.sums.sums import HALVES, REPLICATES, Sums, add_weighted, moments_of, take_maxima, text_weights
from manyheads.statistics.sums.token_kinds import KindCounts, KindTally
from manyheads.texts import Sinks

SUMS = ("num", "den", "own", "moments")
"""What of a tally adds, number by number."""
STORED = (*SUMS, "maxima")


@dataclass(eq=False)
class Tally:
    """The sums of many batches. Made for the first one's layers and statistics."""

    sites: tuple[Site, ...]
    num: Float64[Tensor, "half h s replicate"]
    den: Float64[Tensor, "half layer s replicate"]
    own: Float64[Tensor, "half h o replicate"]
    moments: Float64[Tensor, "half h s moment"]
    columns: tuple[int, ...]
    kinds: KindTally | None
    num_texts: int = 0
    num_tokens: int = 0
    maximum_columns: tuple[int, ...] = ()
    maxima: Float64[Tensor, "half h m"] = field(default_factory=lambda: torch.zeros(HALVES, 0, 0, dtype=torch.float64))

    @staticmethod
    def empty(
        sites: tuple[Site, ...],
        size: int,
        columns: tuple[int, ...],
        with_kinds: bool,
        maximum_columns: tuple[int, ...] = (),
    ) -> Tally:
        """Room for the heads of these sites and `size` statistics, and nothing in it."""
        layers = layers_of(sites)
        shapes = ((sum(layers), size), (len(layers), size), (sum(layers), len(columns)))
        num, den, den_by_head = (torch.zeros(HALVES, *shape, 1 + REPLICATES, dtype=torch.float64) for shape in shapes)
        moments = torch.zeros(HALVES, sum(layers), size, len(MOMENTS), dtype=torch.float64)
        maxima = torch.full((HALVES, sum(layers), len(maximum_columns)), -torch.inf, dtype=torch.float64)
        kinds = KindTally(layers) if with_kinds else None
        return Tally(
            sites, num, den, den_by_head, moments, columns, kinds, maximum_columns=maximum_columns, maxima=maxima
        )

    @staticmethod
    def like(first: Contribution) -> Tally:
        """Empty, with room for batches of the same layers and statistics as `first`."""
        size, with_kinds = first.num.shape[2], first.kinds is not None
        return Tally.empty(first.sites, size, first.columns, with_kinds, first.maximum_columns)

    @staticmethod
    def of(table: HeadTable) -> Tally:
        """The sums of a table without kinds, to add to: every head has denominators of its own."""
        sums = table.sums
        num, den, moments, maxima = map(torch.from_numpy, (sums.num, sums.den, sums.moments, sums.maxima))
        columns = tuple(range(num.shape[2]))
        tally = Tally.empty(table.sites, len(columns), columns, False, sums.maximum_columns)
        counted = {"num_texts": sums.num_texts, "num_tokens": sums.num_tokens}
        return replace(tally, num=num, own=den, moments=moments, maxima=maxima, **counted)

    def add(self, batch: Contribution) -> None:
        # float64 sums depend on their order: batches are added one by one as they were measured, here and when a run
        # goes on from what it left on the disk, so that both come to the same last bit.
        weights = text_weights(batch.seeds)
        self.widen(batch.columns)
        add_weighted(self.num, batch.num, weights)
        add_weighted(self.den, batch.den, weights)
        if self.columns:
            add_weighted(self.own, batch.own_of(self.columns), weights)
        begin, columns = 0, list(batch.columns)
        # Layer by layer, whose heads share the powers of one denominator: by head they took four times as long.
        for layer, count in enumerate(layers_of(self.sites)):
            heads = slice(begin, begin := begin + count)
            moments = moments_of(batch.num[:, heads], batch.den[:, layer, None], batch.seeds)
            if columns:
                moments[:, :, columns] = moments_of(batch.num[:, heads, columns], batch.own[:, heads], batch.seeds)
            self.moments[:, heads] += moments
        if self.maximum_columns:
            columns = list(self.maximum_columns)
            take_maxima(self.maxima, batch.num[..., columns], batch.own_of(columns), batch.seeds)
        if self.kinds is not None and batch.kinds is not None:
            self.kinds.add(batch.kinds)
        self.sites = agreed((self.sites, batch.sites))
        self.num_texts += len(batch.seeds)
        self.num_tokens += batch.num_tokens

    def merge(self, added: Tally) -> None:
        """Add the sums of another run, or of another process."""
        # In both directions, `added` too: sums are added number by number, so the two must have the same columns first.
        self.widen(added.columns)
        added.widen(self.columns)
        for name in SUMS:
            getattr(self, name).add_(getattr(added, name))
        torch.maximum(self.maxima, added.maxima, out=self.maxima)
        if self.kinds is not None and added.kinds is not None:
            self.kinds.add(added.kinds.counts())
        self.sites = agreed((self.sites, added.sites))
        self.num_texts += added.num_texts
        self.num_tokens += added.num_tokens

    def widen(self, columns: Sequence[int]) -> None:
        """Give these columns denominators by head too."""
        # Until now every head had its layer's denominators, so these are what each one begins with.
        union = sorted({*self.columns, *columns})
        if tuple(union) == self.columns:
            return
        wide = self.den[:, :, union].repeat_interleave(torch.tensor(layers_of(self.sites)), 1)
        for index, column in enumerate(self.columns):
            wide[:, :, union.index(column)] = self.own[:, :, index]
        self.own, self.columns = wide, tuple(union)

    def sums(self) -> Sums:
        """The sums as a table needs them: every denominator by head."""
        den = self.den.repeat_interleave(torch.tensor(layers_of(self.sites)), 1)
        # The repeat is a copy: a table may be made of a run that goes on, and must not change its sums.
        den[:, :, list(self.columns)] = self.own
        numbers = (self.num.numpy(), den.numpy(), self.moments.numpy())
        # A copy, as `den` is one.
        maxima = self.maxima.clone().numpy()
        return Sums(*numbers, self.num_texts, self.num_tokens, self.maximum_columns, maxima)

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, as they are written to the disk (in memory that is shared)."""
        out = {name: getattr(self, name) for name in STORED}
        return out | ({} if self.kinds is None else self.kinds.counts().tensors())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data for JSON."""
        names = ("columns", "maximum_columns", "num_texts", "num_tokens")
        shape = {"size": self.num.shape[2], "kinds": self.kinds is not None}
        return {"sites": site_fields(self.sites), **shape, **{name: getattr(self, name) for name in names}}

    @staticmethod
    def read(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Tally:
        sites = read_sites(facts["sites"])
        kinds = KindCounts.read(tensors)
        tally = None if kinds is None else KindTally.of(layers_of(sites), kinds)
        sizes = int(facts["num_texts"]), int(facts["num_tokens"])
        num, den, den_by_head, moments, maxima = (tensors[name] for name in STORED)
        columns, maximum_columns = (_columns(facts[name], num) for name in ("columns", "maximum_columns"))
        out = Tally(sites, num, den, den_by_head, moments, columns, tally, *sizes, maximum_columns, maxima)
        # Checked where the file is still known by name: added later, a shape of 1 would broadcast without a word.
        room = Tally.empty(sites, out.num.shape[2], columns, False, maximum_columns)
        if any(getattr(out, name).shape != getattr(room, name).shape for name in STORED):
            raise ValueError("its sums are not of its layers and statistics")
        return out


@dataclass(eq=False)
class Gathered:
    """What has been measured so far: sums, by which backends, with the guard's worst error."""

    tally: Tally | None = None
    backend: dict[str, int] = field(default_factory=dict)
    guard_error: float = 0.0
    edited: bool = False

    def add(self, batch: Contribution) -> None:
        self.tally = self.tally or Tally.like(batch)
        self.tally.add(batch)
        self.backend = counted((self.backend, batch.backend or {}))
        # The worst, never a mean: one batch that was rebuilt badly must not drown among thousands that were not.
        self.guard_error = max(self.guard_error, batch.guard_error)
        self.edited |= batch.edited

    def merge(self, added: Gathered) -> None:
        """Add what another process, or an earlier run, gathered."""
        if self.tally is None or added.tally is None:
            self.tally = self.tally or added.tally
        else:
            self.tally.merge(added.tally)
        self.backend = counted((self.backend, added.backend))
        self.guard_error = max(self.guard_error, added.guard_error)
        self.edited |= added.edited

    def table(self, statistics: tuple[Statistic, ...], sinks: Sinks, notes: dict[str, str], **more: Any) -> HeadTable:
        """The table of what was gathered. Notes that are empty are left out."""
        assert self.tally is not None, "nothing was measured"
        measured = {"backend": "; ".join(self.backend), "guard_error": f"{self.guard_error:.1e}"}
        measured["edited"] = EDITED if self.edited else ""
        notes = {key: value for key, value in {**notes, **measured}.items() if value}
        kinds = None if self.tally.kinds is None else self.tally.kinds.kinds()
        return HeadTable(self.tally.sites, statistics, self.tally.sums(), sinks, notes, kinds, **more)
