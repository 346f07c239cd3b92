"""Sums that add: the memory of any number of texts, which does not grow with them.

Numerators and denominators of every head and statistic, in float64, apart for the two halves of the texts (so that a
head can be chosen on one and reported on the other) and for 100 bootstrap replicates, with the moments for intervals.
A text's half and its Poisson weights depend on its own words alone: any split into batches, files, machines or resumed
runs adds to the same sums.

Source of the bootstrap: Hanley and MacGibbon 2006 (Poisson weights are the multinomial's limit, and need no total).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.statistics.intervals import MIN_WORTH, MOMENTS, Spread, Worth, difference_interval, ratio_spread

REPLICATES = 100  # bootstrap replicates: a spread from 100 is good to 7 %
HALVES = 2


@dataclass(frozen=True, eq=False)
class Sums:
    """`num` and `den` are `[half, head, statistic, 1 + replicate]`; replicate 0 is the plain sum.

    `moments` are sums of products of the texts' own numerators and denominators (`intervals.MOMENTS`).
    """

    num: Float64[ndarray, "half head statistic replicate"]
    den: Float64[ndarray, "half head statistic replicate"]
    moments: Float64[ndarray, "half head statistic moment"]
    num_texts: int = 0
    num_tokens: int = 0

    @staticmethod
    def empty(num_heads: int, num_statistics: int) -> Sums:
        shape = (HALVES, num_heads, num_statistics)
        num, den, moments = (np.zeros((*shape, size)) for size in (1 + REPLICATES, 1 + REPLICATES, len(MOMENTS)))
        return Sums(num, den, moments)

    def __add__(self, other: Sums) -> Sums:
        """Errors: StatisticError where the two are not of the same heads and statistics."""
        if self.num.shape != other.num.shape:
            raise StatisticError(
                f"sums of shape {self.num.shape} and {other.num.shape} do not add: measure the same statistics."
            )
        texts, tokens = self.num_texts + other.num_texts, self.num_tokens + other.num_tokens
        return Sums(self.num + other.num, self.den + other.den, self.moments + other.moments, texts, tokens)

    @staticmethod
    def of(num: Tensor, den: Tensor, seeds: Sequence[int], num_tokens: int) -> Sums:
        """Sums of one batch from per-text values `[text, head, statistic]`."""
        sums, weights = Sums.empty(num.shape[1], num.shape[2]), text_weights(seeds)
        add_weighted(torch.from_numpy(sums.num), num, weights)
        add_weighted(torch.from_numpy(sums.den), den, weights)
        add_moments(torch.from_numpy(sums.moments), num, den, seeds)
        return replace(sums, num_texts=len(seeds), num_tokens=num_tokens)

    def value(self, half: int | None = None) -> Float64[ndarray, "head statistic replicate"]:
        """The quotients, NaN where nothing was counted; `half` 0 or 1, or None for all texts."""
        chosen = slice(None) if half is None else slice(half, half + 1)
        num, den = self.num[chosen].sum(0), self.den[chosen].sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(den > 0, num / den, np.nan)

    @cached_property
    def _spreads(self) -> dict[int | None, tuple[Spread, Worth]]:
        return {}

    @cached_property
    def _intervals(self) -> dict[int | None, tuple[ndarray, ndarray]]:
        return {}

    def spread(self, half: int | None = None) -> tuple[Spread, Worth]:
        """What the intervals of all figures are made of, and what these rest on, `[head, statistic]`; computed once."""
        if half not in self._spreads:
            chosen = slice(None) if half is None else slice(half, half + 1)
            parts = (part[chosen].sum(0) for part in (self.num, self.den, self.moments))
            self._spreads[half] = ratio_spread(*parts)
        return self._spreads[half]

    def interval(
        self, half: int | None = None
    ) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
        """The 95 % interval over texts (`statistics.intervals`); NaN where too few texts hold the cases."""
        # Once for each half: whoever asks head by head would make those of all heads each time.
        if half not in self._intervals:
            spread, worth = self.spread(half)
            enough = worth.texts >= MIN_WORTH
            low, high = spread.interval(self.value(half)[..., 0])
            self._intervals[half] = np.where(enough, low, np.nan), np.where(enough, high, np.nan)
        return self._intervals[half]


def paired_interval(
    before: Sums, after: Sums
) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
    """The 95 % interval over texts of `after.value() - before.value()`, where both are sums of the same texts.

    A text's weights depend on its words alone: a replicate has each text equally often on both sides, so that what
    texts have in common cancels.
    """
    both = [sums.spread() for sums in (before, after)]
    known = np.minimum(*(worth.texts for _, worth in both)) >= MIN_WORTH
    freedom = np.minimum(*(spread.freedom for spread, _ in both))
    return difference_interval(after.value() - before.value(), freedom, known)


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


def add_moments(
    totals: Float64[Tensor, "half head statistic moment"],
    num: Float[Tensor, "text head statistic"],
    den: Float[Tensor, "text #head statistic"],
    seeds: Sequence[int],
) -> None:
    """Add each text's products of powers to `totals`, in place: `intervals.MOMENTS`, in their order."""
    halves = torch.tensor([seed & 1 for seed in seeds], device="cpu")
    for half in range(HALVES):
        texts = halves == half
        if not bool(texts.any()):
            continue
        n, d = num[texts].double(), den[texts].double()
        n_powers, d_powers = [torch.ones_like(n[:1]), n, n * n], [torch.ones_like(d[:1]), d, d * d]
        for powers in (n_powers, d_powers):
            powers += [powers[2] * powers[1], powers[2] * powers[2]]
        for index, (a, b) in enumerate(MOMENTS):
            if not a:
                product = d_powers[b] if b else d > 0
                totals[half, ..., index] += product.sum(0)
            elif not b:
                totals[half, ..., index] += n_powers[a].sum(0)
            else:
                totals[half, ..., index] += (n_powers[a] * d_powers[b]).sum(0)


def text_weights(seeds: Sequence[int]) -> Float64[ndarray, "text half replicate"]:
    """Each text's weight in each half and replicate: 1 in the plain sum of its half, Poisson(1) in the replicates."""
    out = np.zeros((len(seeds), HALVES, 1 + REPLICATES))
    for text, seed in enumerate(seeds):
        # By the text's own seed, never a running generator: the weights must not depend on what was read before.
        draws = np.random.Generator(np.random.PCG64(seed)).poisson(1.0, REPLICATES)
        out[text, seed & 1] = [1.0, *draws]
    return out
