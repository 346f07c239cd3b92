"""The sums of any number of batches, and how these were computed.

`Sums` is what a table shows: numerator and denominator of every head. Here denominators are kept once a layer, as
`BatchSums` has them, and by head only where heads have their own. With 400 columns and 72 heads that is half the
memory, half the time and half of what a resumed run has to write.
"""

# device: sums are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads.corpora import NONE_FAILED, Failures
from manyheads.models.taps import EDITED, Unread, left_out
from manyheads.spec import CROSS, Site
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums.batch_sums import BatchSums, agreed, layers_of, read_columns, read_sites, site_fields
from manyheads.statistics.sums.intervals import MOMENTS
from manyheads.statistics.sums.one_batch import HIDDEN_NOTE, crossing_notes
from manyheads.statistics.sums.sums import HALVES, REPLICATES, Sums, add_weighted, moments_of, take_maxima, text_weights
from manyheads.statistics.sums.token_kinds import KindCounts, KindTally
from manyheads.texts import Sinks

ADDED = ("num", "den", "own", "moments")
"""The tensors that are added number by number."""
STORED = (*ADDED, "maxima")
SIZES = ("num_texts", "num_tokens")


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(HALVES, *shape, dtype=torch.float64)


@dataclass(eq=False)
class RunningSums:
    """The sums of many batches, by which backends, with the guard's worst error.

    Without sites they are of no batch yet: the first one decides about layers, statistics and kinds.
    """

    sites: tuple[Site, ...] = ()
    num: Float64[Tensor, "half h s replicate"] = field(default_factory=lambda: _zeros(0, 0, 1 + REPLICATES))
    den: Float64[Tensor, "half layer s replicate"] = field(default_factory=lambda: _zeros(0, 0, 1 + REPLICATES))
    own: Float64[Tensor, "half h o replicate"] = field(default_factory=lambda: _zeros(0, 0, 1 + REPLICATES))
    moments: Float64[Tensor, "half h s moment"] = field(default_factory=lambda: _zeros(0, 0, len(MOMENTS)))
    columns: tuple[int, ...] = ()  # the statistics of which `own` has denominators by head
    kinds: KindTally | None = None
    num_texts: int = 0
    num_tokens: int = 0
    maximum_columns: tuple[int, ...] = ()
    maxima: Float64[Tensor, "half h m"] = field(default_factory=lambda: _zeros(0, 0))
    backend: Counter[str] = field(default_factory=Counter)
    guard_error: float = 0.0
    edited: bool = False
    left_out: tuple[str, ...] = ()  # as those of `BatchSums`, and written down no more than these
    unread: dict[str, Unread] = field(default_factory=dict)

    def begin(
        self,
        sites: tuple[Site, ...],
        size: int,
        columns: Sequence[int],
        with_kinds: bool,
        maximum_columns: Sequence[int],
    ) -> RunningSums:
        """Make room for the heads of these sites and `size` statistics, with nothing in it. Returns these sums."""
        layers = layers_of(sites)
        heads, replicates = sum(layers), 1 + REPLICATES
        self.sites, self.columns, self.maximum_columns = sites, tuple(columns), tuple(maximum_columns)
        self.num, self.den = _zeros(heads, size, replicates), _zeros(len(layers), size, replicates)
        self.own, self.moments = _zeros(heads, len(columns), replicates), _zeros(heads, size, len(MOMENTS))
        self.maxima = torch.full((HALVES, heads, len(maximum_columns)), -torch.inf, dtype=torch.float64)
        self.kinds = KindTally(layers) if with_kinds else None
        return self

    @staticmethod
    def of(table: HeadTable) -> RunningSums:
        """The sums of a table without kinds, to add to: every head has denominators of its own."""
        sums = table.sums
        out = RunningSums(num_texts=sums.num_texts, num_tokens=sums.num_tokens)
        out.begin(table.sites, len(table.names), range(len(table.names)), False, sums.maximum_columns)
        tensors = map(torch.from_numpy, (sums.num, sums.den, sums.moments, sums.maxima))
        out.num, out.own, out.moments, out.maxima = tensors
        return out

    def add(self, batch: BatchSums) -> None:
        """Add one batch, in place."""
        if not self.sites:
            with_kinds = batch.kinds is not None
            self.begin(batch.sites, batch.num.shape[2], batch.columns, with_kinds, batch.maximum_columns)
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
        self._count(batch, len(batch.seeds))

    def merge(self, added: RunningSums) -> None:
        """Add the sums of another run, or of another process, in place."""
        if added.sites and not self.sites:
            for name in ("sites", *STORED, "columns", "maximum_columns", "kinds"):
                setattr(self, name, getattr(added, name))
        elif added.sites:
            # In both directions: sums are added number by number, so the two must have the same columns first.
            self.widen(added.columns)
            added.widen(self.columns)
            for name in ADDED:
                getattr(self, name).add_(getattr(added, name))
            torch.maximum(self.maxima, added.maxima, out=self.maxima)
            if self.kinds is not None and added.kinds is not None:
                self.kinds.add(added.kinds.counts())
        self._count(added, added.num_texts)

    def _count(self, added: BatchSums | RunningSums, num_texts: int) -> None:
        """Note what was added besides numbers by head."""
        self.sites = agreed([part for part in (self.sites, added.sites) if part])
        self.num_texts += num_texts
        self.num_tokens += added.num_tokens
        self.backend.update(added.backend)
        # The worst, never a mean: one batch that was rebuilt badly must not drown among thousands that were not.
        self.guard_error = max(self.guard_error, added.guard_error)
        self.edited |= added.edited
        self.left_out = tuple(dict.fromkeys((*self.left_out, *added.left_out)))
        self.unread |= added.unread

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

    def table(
        self,
        statistics: tuple[Statistic, ...],
        sinks: Sinks,
        notes: dict[str, str],
        failures: Failures = NONE_FAILED,
    ) -> HeadTable:
        """The table of what was measured. Notes that are empty are left out."""
        assert self.sites, "nothing was measured"
        measured = {"backend": "; ".join(self.backend), "guard_error": f"{self.guard_error:.1e}"}
        measured["edited"] = EDITED if self.edited else ""
        notes = {key: value for key, value in {**notes, **measured}.items() if value}
        kinds = None if self.kinds is None else self.kinds.kinds()
        return HeadTable(self.sites, statistics, self.sums(), sinks, notes, kinds, failures)

    def notes(self, statistics: Sequence[Statistic]) -> dict[str, str]:
        """Notes about layers that were left out, or that no tap can see, and what means nothing of cross-attention."""
        crossed = any(site.stack == CROSS for site in self.sites)
        return {**crossing_notes(self.left_out, statistics, crossed), HIDDEN_NOTE: left_out(self.unread)}

    # ------------------------------------------------------------------------------------------------ as they are kept

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, as they are written to the disk (in memory that is shared); none of no batch."""
        if not self.sites:
            return {}
        out = {name: getattr(self, name) for name in STORED}
        return out | ({} if self.kinds is None else self.kinds.counts().tensors())

    def words(self) -> dict[str, Any]:
        """Everything but the tensors, as plain data for JSON."""
        tally = None
        if self.sites:
            shape = {"size": self.num.shape[2], "kinds": self.kinds is not None}
            names = ("columns", "maximum_columns", *SIZES)
            tally = {"sites": site_fields(self.sites), **shape, **{name: getattr(self, name) for name in names}}
        return {"tally": tally, **{name: getattr(self, name) for name in ("backend", "guard_error", "edited")}}

    @staticmethod
    def read(tensors: dict[str, Tensor], words: Mapping[str, Any]) -> RunningSums:
        """Raises LookupError, TypeError or ValueError for what is not of that kind."""
        how = Counter(words["backend"]), float(words["guard_error"]), bool(words["edited"])
        out = RunningSums(backend=how[0], guard_error=how[1], edited=how[2])
        tally = words["tally"]
        if tally is None:
            return out
        sites, num, kinds = read_sites(tally["sites"]), tensors["num"], KindCounts.read(tensors)
        columns, maximum_columns = (read_columns(tally[name], num) for name in ("columns", "maximum_columns"))
        out.begin(sites, num.shape[2], columns, kinds is not None, maximum_columns)
        # Checked where the file is still known by name: added later, a shape of 1 would broadcast without a word.
        if any(tensors[name].shape != getattr(out, name).shape for name in STORED):
            raise ValueError("its sums do not match its layers and statistics")
        for name in STORED:
            setattr(out, name, tensors[name])
        if out.kinds is not None and kinds is not None:
            out.kinds.add(kinds)
        out.num_texts, out.num_tokens = (int(tally[name]) for name in SIZES)
        return out

    def widened_to(self, processes: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Take the shape of the sums of several processes, by their `words`; those of no batch get zeros of it.

        Returns the tensors that add. What all processes know alike (sites, counts, backends) is theirs together then.
        """
        tallies = [words["tally"] for words in processes if words["tally"] is not None]
        self.backend = Counter()
        for words in processes:
            self.backend.update(words["backend"])
        self.guard_error = max(words["guard_error"] for words in processes)
        self.edited = any(words["edited"] for words in processes)
        if not tallies:
            return []
        sites = agreed(read_sites(tally["sites"]) for tally in tallies)
        columns = sorted({column for tally in tallies for column in tally["columns"]})
        if not self.sites:
            self.begin(sites, tallies[0]["size"], columns, tallies[0]["kinds"], tallies[0]["maximum_columns"])
        # Before sums are added, every process must have denominators by head of the same statistics.
        self.widen(columns)
        self.sites = sites
        self.num_texts, self.num_tokens = (sum(tally[name] for tally in tallies) for name in SIZES)
        return [getattr(self, name) for name in ADDED]
