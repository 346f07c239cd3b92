"""What one training is made of, as values: the loop's settings and a `Run`; and the spread of numbers over seeds.

Runs are what presets and engine share: a preset builds them, the engine (`loop`) carries them out and knows nothing of
attention. A batch is a function of its step alone, so the data's position is the step, and a run that was stopped goes
on with the very batches that it would have seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.base import one_of
from manyheads.errors import PlanError
from manyheads.statistics.sums import t_95

SEED_STRIDE = 1_000_003  # a prime: no two seeds share a step's random numbers within a million steps
HELD_OUT_STEP = 10**9  # no training is that long: its batch is of texts that no step sees

Batch = Mapping[str, Tensor]
"""Tensors by name, each with a row a text."""


def generator_of(seed: int, step: int) -> torch.Generator:
    """The random numbers of a step's batch, on the CPU."""
    return torch.Generator().manual_seed(seed * SEED_STRIDE + step)


def rows_of(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values())))


def num_parameters(model: nn.Module) -> int:
    """The number of a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


@runtime_checkable
class Progress(Protocol):
    """Called with steps done, steps in all, and a note (the loss)."""

    def __call__(self, done: int, total: int | None, note: str = "", /) -> None: ...


@dataclass(frozen=True)
class Settings:
    """The loop's numbers. `rate`: the highest learning rate, reached after `warmup` steps, then a cosine's half wave
    down to `rate * floor`. `clip`: the gradient's norm at most. `precision`: float32 or bf16 (`loop.choose_precision`).
    `optimizer`: adamw or muon (`loop.optimizers_of`). `qk_clip`: the largest score that `mh.QKClip` leaves a head.
    """

    steps: int
    rate: float = 1e-3
    warmup: int = 100
    floor: float = 0.1
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    precision: str = "float32"
    checkpoint_every: int = 200
    measure_every: int = 100
    optimizer: str = "adamw"
    qk_clip: float | None = None

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "checkpoint_every": self.checkpoint_every, "measure_every": self.measure_every}
        for name, value in counts.items():
            if value < 1:
                raise PlanError(f"{name}={value}: give 1 or more.")
        one_of("precision", self.precision, ("float32", "bf16"), PlanError, "is not supported")
        one_of("optimizer", self.optimizer, ("adamw", "muon"), PlanError, "is not supported")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0. Source: Loshchilov and Hutter 2017 (the cosine)."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.rate * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Run:
    """One training. `batch(step)` is a function of the step (and of what the preset closed over) and nothing else.

    `loss(model, batch)` is a scalar with gradients: a mean over as many terms as `terms(batch)` says, so that processes
    can share a batch's rows. `measure(model, step)` gives what is recorded every `settings.measure_every` steps, and
    before the first and after the last: the model is in eval mode and without gradients then, and random numbers drawn
    there do not move the training's. `watched`: statistics of every head that `mh.watch` reads in the training steps
    themselves, in the first and every `settings.measure_every`-th. `may_diverge`: a loss that is not finite any more
    ends the run, as one more finding, and is not an error. `because`: why this precision.
    """

    name: str
    model: nn.Module
    settings: Settings
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    measure: Callable[[nn.Module, int], Mapping[str, float]] | None = None
    because: str = ""
    terms: Callable[[Batch], int] = rows_of
    watched: tuple[str, ...] = ()
    may_diverge: bool = False


# ---------------------------------------------------------------------------- numbers of runs that differ by their seed


def spread_of(values: Sequence[float]) -> dict[str, Any]:
    """Each value, their mean and their standard deviation (with n - 1; 0 of one)."""
    return {
        "each": list(values),
        "mean": float(np.mean(values)),
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
    }


def spreads_of(numbers: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The spread of every number of trainings that have the same ones."""
    return {name: spread_of([row[name] for row in numbers]) for name in numbers[0]}


def plus_minus(spread: Mapping[str, Any], form: str = ".3f") -> str:
    """A spread's mean and standard deviation in words: 0.512 ± 0.008."""
    return f"{spread['mean']:{form}} ± {spread['sd']:{form}}"


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean over seeds and its 95 % interval (Student's t), None for a single seed."""
    numbers = np.asarray(values, dtype=np.float64)
    mean, count = float(numbers.mean()), len(numbers)
    if count < 2:
        return {"mean": mean, "low": None, "high": None}
    wide = float(t_95(np.array([count - 1.0]))[0]) * float(numbers.std(ddof=1)) / math.sqrt(count)
    return {"mean": mean, "low": mean - wide, "high": mean + wide}


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """`first - second`, seed by seed, as `mean_and_interval`."""
    return mean_and_interval(np.subtract(first, second).tolist())


def change_lines(changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each change that `paired` gave, by its name; none for a change of a single pair."""
    return [
        f"{subject}, seed by seed: {change['mean']:+.3f} nats ({change['low']:+.3f} to {change['high']:+.3f})"
        f"{'' if change['low'] * change['high'] > 0 else ': no difference seen'}"
        for subject, change in changes.items()
        if change["low"] is not None
    ]
