"""Sums that add: the memory of any number of texts, which does not grow with them.

Numerators and denominators of every head and statistic, in float64, apart for the two halves of the texts (so that a
head can be chosen on one and reported on the other) and for 100 bootstrap replicates. A text's half and its Poisson
weights depend on its own words alone: any split into batches, files, machines or resumed runs adds to the same sums.

Source of the bootstrap: Hanley and MacGibbon 2006 (Poisson weights are the multinomial's limit, and need no total).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.errors import StatisticError

REPLICATES = 100  # bootstrap replicates; a 95 % interval from 100 is good to about a tenth of its width
HALVES = 2
INTERVAL = (2.5, 97.5)  # percent


@dataclass(frozen=True, eq=False)
class Sums:
    """`num` and `den` are `[half, head, statistic, 1 + replicate]`; replicate 0 is the plain sum."""

    num: Float64[ndarray, "half head statistic replicate"]
    den: Float64[ndarray, "half head statistic replicate"]
    num_texts: int = 0
    num_tokens: int = 0

    @staticmethod
    def empty(num_heads: int, num_statistics: int) -> Sums:
        shape = (HALVES, num_heads, num_statistics, 1 + REPLICATES)
        return Sums(np.zeros(shape), np.zeros(shape))

    def __add__(self, other: Sums) -> Sums:
        """Errors: StatisticError where the two are not of the same heads and statistics."""
        if self.num.shape != other.num.shape:
            raise StatisticError(
                f"sums of shape {self.num.shape} and {other.num.shape} do not add: measure the same statistics."
            )
        texts, tokens = self.num_texts + other.num_texts, self.num_tokens + other.num_tokens
        return Sums(self.num + other.num, self.den + other.den, texts, tokens)

    @staticmethod
    def of(num: Tensor, den: Tensor, seeds: Sequence[int], num_tokens: int) -> Sums:
        """Sums of one batch from per-text values `[text, head, statistic]`."""
        sums, weights = Sums.empty(num.shape[1], num.shape[2]), text_weights(seeds)
        add_weighted(torch.from_numpy(sums.num), num, weights)
        add_weighted(torch.from_numpy(sums.den), den, weights)
        return Sums(sums.num, sums.den, len(seeds), num_tokens)

    def value(self, half: int | None = None) -> Float64[ndarray, "head statistic replicate"]:
        """The quotients, NaN where nothing was counted; `half` 0 or 1, or None for all texts."""
        chosen = slice(None) if half is None else slice(half, half + 1)
        num, den = self.num[chosen].sum(0), self.den[chosen].sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(den > 0, num / den, np.nan)

    def interval(
        self, half: int | None = None
    ) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
        """The 95 % bootstrap interval over texts (percentiles of the replicates)."""
        return interval_of(self.value(half)[..., 1:])


def interval_of(
    replicates: Float64[ndarray, "*figures replicate"],
) -> tuple[Float64[ndarray, "*figures"], Float64[ndarray, "*figures"]]:
    """Percentiles of the numbers that are not NaN, as `np.nanpercentile` gives them, in a tenth of its time."""
    ranked = np.sort(replicates, axis=-1)  # NaN last
    last = (~np.isnan(ranked)).sum(-1) - 1

    def percentile(percent: float) -> Float64[ndarray, "*figures"]:
        """The value so far on the way from the first to the last number, between two of them by a straight line."""
        place = np.maximum(last, 0) * (percent / 100)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, np.maximum(last, 0))
        low, high = (np.take_along_axis(ranked, index[..., None], -1)[..., 0] for index in (below, above))
        return np.where(last >= 0, low + (high - low) * (place - below), np.nan)

    return percentile(INTERVAL[0]), percentile(INTERVAL[1])


def paired_interval(
    before: Sums, after: Sums
) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
    """The 95 % interval over texts of `after.value() - before.value()`, where both are sums of the same texts.

    A text's weights depend on its words alone: a replicate has each text equally often on both sides, so that what
    texts have in common cancels.
    """
    return interval_of((after.value() - before.value())[..., 1:])


def add_weighted(
    totals: Float64[Tensor, "half head statistic replicate"],
    values: Float[Tensor, "text head statistic"],
    weights: Float64[ndarray, "text half replicate"],
) -> None:
    """Add each text's values, times its weights, to `totals`, in place: one matrix product for each half."""
    for half in range(HALVES):
        half_weights = torch.from_numpy(weights[:, half])
        # A text is in one half: those of the other one would be multiplied by zeros, half of all work.
        texts = half_weights[:, 0] > 0
        if bool(texts.any()):
            totals[half].flatten(0, 1).addmm_(values[texts].flatten(1).T.double(), half_weights[texts])


def text_weights(seeds: Sequence[int]) -> Float64[ndarray, "text half replicate"]:
    """Each text's weight in each half and replicate: 1 in the plain sum of its half, Poisson(1) in the replicates."""
    out = np.zeros((len(seeds), HALVES, 1 + REPLICATES))
    for text, seed in enumerate(seeds):
        # By the text's own seed, never a running generator: the weights must not depend on what was read before.
        draws = np.random.Generator(np.random.PCG64(seed)).poisson(1.0, REPLICATES)
        out[text, seed & 1] = [1.0, *draws]
    return out
