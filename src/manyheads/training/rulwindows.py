"""Windows of 30 cycles of one engine, scaled by what the training engines show, and the life that was left after each.

The target is capped: sensors of a sound engine cannot tell 300 cycles left from 200, and a net that is asked to do so
learns noise. Source: Heimes 2008, "Recurrent neural networks for remaining useful life estimation", PHM08 (a target
that is even first, then a line); a cap of 125 is what most work on C-MAPSS takes. Cost: the rows, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from manyheads.errors import TextError
from manyheads.training.cmapss import CHANNELS, Engine, Fleet

LENGTH = 30
CAP = 125
EVERY_NTH = 5  # of the training file's engines, this one is not trained on: it validates


@dataclass(frozen=True, eq=False)
class Scaling:
    """Which channels change at all among the engines trained on, and their mean and spread there."""

    kept: tuple[int, ...]
    mean: Float[ndarray, "channel"]
    spread: Float[ndarray, "channel"]

    @staticmethod
    def of(engines: Sequence[Engine]) -> Scaling:
        """Errors: TextError where nothing changes."""
        rows = np.concatenate([each.rows for each in engines])
        kept = tuple(np.flatnonzero(np.ptp(rows, axis=0) > 0).tolist())
        if not kept:
            raise TextError("no setting and no sensor of these engines ever changes: there is nothing to learn from.")
        return Scaling(kept, rows[:, kept].mean(0), rows[:, kept].std(0))

    @property
    def names(self) -> list[str]:
        return [CHANNELS[at] for at in self.kept]

    @property
    def constant(self) -> list[str]:
        """Channels that are left out, since they never change."""
        return [name for at, name in enumerate(CHANNELS) if at not in self.kept]

    def scaled(self, engine: Engine) -> Float[ndarray, "cycle channel"]:
        return ((engine.rows[:, self.kept] - self.mean) / self.spread).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows into rows that lie engine after engine; none reaches from one engine into another.

    `left` is the true number of cycles after each window, `engine` whose it is. `padded`: engines with fewer cycles
    than a window, whose first cycle stands in for those that there were not.
    """

    rows: Float[Tensor, "row channel"]
    begins: Int[Tensor, "window"]
    left: Int[Tensor, "window"]
    engine: Int[Tensor, "window"]
    padded: int

    def __len__(self) -> int:
        return len(self.begins)

    def read(self, which: Int[Tensor, "some"]) -> Float[Tensor, "some cycle channel"]:
        return self.rows[self.begins[which][:, None] + torch.arange(LENGTH)]

    def all(self) -> Float[Tensor, "window cycle channel"]:
        return self.read(torch.arange(len(self)))

    @property
    def capped(self) -> Float[Tensor, "window"]:
        return self.left.clamp(max=CAP).float()


@dataclass(frozen=True, eq=False)
class Data:
    """A fleet as windows, scaled by the engines trained on. `simulated`: by us."""

    fleet: Fleet
    simulated: bool
    scaling: Scaling
    train: Windows
    validating: Windows
    test: Windows

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "data": f"{'SIMULATED by manyheads, not C-MAPSS' if self.simulated else 'as given'}: {self.fleet.name}",
            "digest": self.fleet.digest,
            "engines": {"train": len(self.fleet.train), "test": len(self.fleet.test)},
            "channels": self.scaling.names,
            "constant_channels_left_out": self.scaling.constant,
            "test_engines_shorter_than_a_window": self.test.padded,
        }


def split(engines: Sequence[Engine]) -> tuple[list[Engine], list[Engine]]:
    """Those to train on, and those to validate with: whole engines, never windows of the same one."""
    held = [each for at, each in enumerate(engines) if at % EVERY_NTH == EVERY_NTH - 1]
    return [each for at, each in enumerate(engines) if at % EVERY_NTH != EVERY_NTH - 1], held


def windows_of(engines: Sequence[Engine], scaling: Scaling, each: int | None = None) -> Windows:
    """Every window of every engine; or `each` of them, evenly spaced to the last one. `each=1` is the last alone."""
    rows, begins, left, owners, padded, row = [], [], [], [], 0, 0
    for at, engine in enumerate(engines):
        own, remaining = scaling.scaled(engine), engine.remaining
        if (missing := LENGTH - len(own)) > 0:
            own, padded = np.concatenate([own[:1].repeat(missing, 0), own]), padded + 1
        count = len(own) - LENGTH + 1
        picked = np.arange(count) if each is None else np.linspace(count - 1, 0, each).round().astype(int)[::-1]
        rows.append(own)
        begins.append(row + picked)
        left.append(remaining[-1] + count - 1 - picked)
        owners.append(np.full(len(picked), at))
        row += len(own)
    starts, cycles, whose = (torch.from_numpy(np.concatenate(part)).long() for part in (begins, left, owners))
    return Windows(torch.from_numpy(np.concatenate(rows)), starts, cycles, whose, padded)
