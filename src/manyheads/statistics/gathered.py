"""The sums that one measuring pass collects, batch by batch, and the constants that all of measuring shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from manyheads.models import CallTexts, observe
from manyheads.models.inputs.texts import decoder_story
from manyheads.models.taps.open_taps import EDITED
from manyheads.recording import Sinks, Tokens
from manyheads.spec import CROSS
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.one_batch import Measured
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.tally import Contribution, Tally, counted

CROSSING = "left out, since queries and keys are not the same tokens"
UNSEEN = "left out, since nobody can see it"
WORDY = frozenset({"tokens", "sinks"})  # of what a statistic may ask, that which needs a text's tokens
Progress = Callable[[int, Any], None]
"""Called with the tokens read so far and the tokens in all; for pictures and sounds, with numbers of these instead. For
a corpus, with how far reading has come in the units of `Corpus.total` (bytes, or texts), and with that total, which is
None for a pipe."""


def two_sided(lm: Any) -> dict[str, str]:
    """Notes about the decoder of an encoder-decoder: how it was fed, and its layers that are left out; "" for none."""
    crossing = ", ".join(site.module for site in lm.spec.sites if site.stack == CROSS)
    return {"decoder": decoder_story(lm), CROSSING: crossing}


def measure_batch(lm: Any, tokens: Tokens, statistics: tuple[Statistic, ...], kinds: bool) -> Contribution:
    """The numbers that one batch of texts adds. Cost: one forward pass and one over the maps' tiles."""
    batch = Measured(CallTexts.of(lm, tokens), statistics, with_kinds=kinds)
    return batch.contribution(observe(lm, tokens, batch.observe))


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
        self.guard_error = max(self.guard_error, batch.guard_error)
        self.edited |= batch.edited

    def merge(self, other: Gathered) -> None:
        """Add what another process, or an earlier run, gathered."""
        if self.tally is None or other.tally is None:
            self.tally = self.tally or other.tally
        else:
            self.tally.merge(other.tally)
        self.backend = counted((self.backend, other.backend))
        self.guard_error = max(self.guard_error, other.guard_error)
        self.edited |= other.edited

    def table(self, statistics: tuple[Statistic, ...], sinks: Sinks, notes: dict[str, str], **more: Any) -> HeadTable:
        """The table of what was gathered. Notes that are empty are left out."""
        assert self.tally is not None, "nothing was measured"
        measured = {"backend": "; ".join(self.backend), "guard_error": f"{self.guard_error:.1e}"}
        measured["edited"] = EDITED if self.edited else ""
        notes = {key: value for key, value in {**notes, **measured}.items() if value}
        kinds = None if self.tally.kinds is None else self.tally.kinds.kinds()
        return HeadTable(self.tally.sites, statistics, self.tally.sums(), sinks, notes, kinds, **more)
