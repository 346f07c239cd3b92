"""Sums that add: the memory of any number of texts, which does not grow with them.

Numerators and denominators of every head and statistic, in float64, apart for the two halves of the texts (so that a
head can be chosen on one and reported on the other) and for 100 bootstrap replicates, with the moments for intervals.
A text's half and its Poisson weights depend on its own words alone: any split into batches, files, machines or resumed
runs adds to the same sums.

Source of the bootstrap: Hanley and MacGibbon 2006 (Poisson weights are the multinomial's limit, and need no total).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.statistics.sums.intervals import (
    MIN_WORTH,
    MOMENTS,
    Spread,
    Worth,
    difference_interval,
    ratio_spread,
    replicate_error,
    share_interval,
)

REPLICATES = 100  # bootstrap replicates: a spread from 100 is good to 7 %
HALVES = 2
AT_ONCE = 32  # statistics whose replicates are divided at once


@dataclass(frozen=True, eq=False)
class Sums:
    """`num` and `den` are `[half, head, statistic, 1 + replicate]`; replicate 0 is the plain sum.

    `moments` are sums of products of the texts' own numerators and denominators (`intervals.MOMENTS`).
    `maxima` are the largest numerators of any text for the statistics in `maximum_columns` (`Statistic.maximum`), -inf
    where no text has one: these are their values, and nothing is divided.
    """

    num: Float64[ndarray, "half head statistic replicate"]
    den: Float64[ndarray, "half head statistic replicate"]
    moments: Float64[ndarray, "half head statistic moment"]
    num_texts: int = 0
    num_tokens: int = 0
    maximum_columns: tuple[int, ...] = ()
    maxima: Float64[ndarray, "half head maximum"] = field(default_factory=lambda: np.zeros((HALVES, 0, 0)))

    @staticmethod
    def empty(num_heads: int, num_statistics: int, maximum_columns: Sequence[int] = ()) -> Sums:
        shape = (HALVES, num_heads, num_statistics)
        num, den, moments = (np.zeros((*shape, size)) for size in (1 + REPLICATES, 1 + REPLICATES, len(MOMENTS)))
        maxima = np.full((HALVES, num_heads, len(maximum_columns)), -np.inf)
        return Sums(num, den, moments, maximum_columns=tuple(maximum_columns), maxima=maxima)

    def __add__(self, other: Sums) -> Sums:
        """Errors: StatisticError where the two are not of the same heads and statistics."""
        if self.num.shape != other.num.shape or self.maximum_columns != other.maximum_columns:
            raise StatisticError(
                f"sums of shape {self.num.shape} and {other.num.shape} cannot be added: measure the same statistics."
            )
        texts, tokens = self.num_texts + other.num_texts, self.num_tokens + other.num_tokens
        num, den, moments = self.num + other.num, self.den + other.den, self.moments + other.moments
        maxima = np.maximum(self.maxima, other.maxima)
        return Sums(num, den, moments, texts, tokens, self.maximum_columns, maxima)

    @staticmethod
    def of(
        num: Tensor, den: Tensor, seeds: Sequence[int], num_tokens: int, maximum_columns: Sequence[int] = ()
    ) -> Sums:
        """Sums of one batch from per-text values `[text, head, statistic]`."""
        sums, weights = Sums.empty(num.shape[1], num.shape[2], maximum_columns), text_weights(seeds)
        add_weighted(torch.from_numpy(sums.num), num, weights)
        add_weighted(torch.from_numpy(sums.den), den, weights)
        torch.from_numpy(sums.moments).add_(moments_of(num, den, seeds))
        columns = list(maximum_columns)
        take_maxima(torch.from_numpy(sums.maxima), num[..., columns], den[..., columns], seeds)
        return replace(sums, num_texts=len(seeds), num_tokens=num_tokens)

    def value(
        self, half: int | None = None, columns: slice = slice(None), *, replicates: bool = True
    ) -> Float64[ndarray, "head statistic replicate"]:
        """The quotients, NaN where nothing was counted; `half` 0 or 1, or None for all texts.

        `columns`: of these statistics alone. `replicates`: False for those of the plain sums alone, a hundredth of the
        memory. A maximum has no replicates: NaN.
        """
        chosen = slice(None) if half is None else slice(half, half + 1)
        count = None if replicates else 1
        num, den = (part[chosen, :, columns, :count].sum(0) for part in (self.num, self.den))
        with np.errstate(invalid="ignore", divide="ignore"):
            out = np.where(den > 0, num / den, np.nan)
        places = range(self.num.shape[2])[columns]
        for index, column in enumerate(self.maximum_columns):
            if column in places:
                largest = self.maxima[chosen, :, index].max(0)
                out[:, places.index(column)] = np.nan
                out[:, places.index(column), 0] = np.where(largest > -np.inf, largest, np.nan)
        return out

    @cached_property
    def _spreads(self) -> dict[int | None, tuple[Spread, Worth]]:
        return {}

    @cached_property
    def _intervals(self) -> dict[tuple[int | None, tuple[bool, ...]], tuple[ndarray, ndarray]]:
        return {}

    def spread(self, half: int | None = None) -> tuple[Spread, Worth]:
        """What the intervals of all figures are made of, and what these rest on, `[head, statistic]`; computed once."""
        if half not in self._spreads:
            chosen = slice(None) if half is None else slice(half, half + 1)
            parts: list[tuple[Spread, Worth]] = []
            # Some statistics at a time: of 270 heads and 434 statistics, each array over all replicates takes 95 MB.
            for begin in range(0, max(1, self.num.shape[2]), AT_ONCE):
                place = np.s_[chosen, :, begin : begin + AT_ONCE]
                parts.append(ratio_spread(*(sums[place].sum(0) for sums in (self.num, self.den, self.moments))))
            spreads, worths = zip(*parts, strict=True)
            spread = Spread(*(np.concatenate(field, -1) for field in zip(*spreads, strict=True)))
            self._spreads[half] = spread, Worth(*(np.concatenate(field, -1) for field in zip(*worths, strict=True)))
        return self._spreads[half]

    def interval(
        self, half: int | None = None, shares: tuple[bool, ...] = ()
    ) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
        """The 95 % interval over texts (`statistics.sums.intervals`); NaN where too few texts hold the cases.

        `shares`: of each statistic whether it lies in 0 to 1, as its interval does then; (): of none.
        """
        # Once for each half: whoever asks head by head would make those of all heads each time.
        if (half, shares) not in self._intervals:
            spread, worth = self.spread(half)
            enough, value = worth.texts >= MIN_WORTH, self.value(half, replicates=False)[..., 0]
            enough[:, list(self.maximum_columns)] = False
            is_share = np.array(shares or False)
            both = zip(share_interval(value, spread, worth), spread.interval(value), strict=True)
            low, high = (np.where(enough, np.where(is_share, *ends), np.nan) for ends in both)
            self._intervals[half, shares] = low, high
        return self._intervals[half, shares]


def paired_interval(
    before: Sums, after: Sums
) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
    """The 95 % interval over texts of `after.value() - before.value()`, where both are sums of the same texts.

    A text's weights depend on its words alone: a replicate has each text equally often on both sides, so that what
    texts have in common cancels.
    """
    spreads = [sums.spread() for sums in (before, after)]
    known = np.minimum(*(worth.texts for _, worth in spreads)) >= MIN_WORTH
    freedom = np.minimum(*(spread.freedom for spread, _ in spreads))
    difference = after.value() - before.value()
    return difference_interval(difference[..., 0], replicate_error(difference), freedom, known)


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


def moments_of(
    num: Float[Tensor, "text head statistic"],
    den: Float[Tensor, "text #head statistic"],
    seeds: Sequence[int],
) -> Float64[Tensor, "half head statistic moment"]:
    """Sums over the texts of each half of products of powers: `intervals.MOMENTS`, in their order."""
    halves = np.array([seed & 1 for seed in seeds])
    out = np.zeros((HALVES, len(MOMENTS), *num.shape[1:]))
    for half in range(HALVES):
        n, d = (part.numpy()[halves == half].astype(np.float64) for part in (num, den))
        n_powers, d_powers = [[x, x * x, x * x * x] for x in (n, d)]
        product = np.empty_like(n)  # written over for each moment: it stays in the processor's cache
        for total, (a, b) in zip(out[half], MOMENTS, strict=True):
            # NumPy adds text after text: a column's sum does not depend on those beside it, as torch's does.
            if a and b:
                np.add.reduce(np.multiply(n_powers[a - 1], d_powers[b - 1], out=product), 0, out=total)
                continue
            powers, power = (n_powers, a) if a else (d_powers, b)
            total[:] = (powers[1] ** 2 if power == 4 else powers[power - 1] if power else d > 0).sum(0)
    return torch.from_numpy(np.moveaxis(out, 1, -1))


def take_maxima(
    totals: Float64[Tensor, "half head maximum"],
    num: Float[Tensor, "text head maximum"],
    den: Float[Tensor, "text head maximum"],
    seeds: Sequence[int],
) -> None:
    """Raise `totals`, in place, to each text's value where it has one (a denominator above 0)."""
    for text, seed in enumerate(seeds):
        value = torch.where(den[text] > 0, num[text].double(), -torch.inf)
        torch.maximum(totals[seed & 1], value, out=totals[seed & 1])


def text_weights(seeds: Sequence[int]) -> Float64[ndarray, "text half replicate"]:
    """Each text's weight in each half and replicate: 1 in the plain sum of its half, Poisson(1) in the replicates."""
    out = np.zeros((len(seeds), HALVES, 1 + REPLICATES))
    for text, seed in enumerate(seeds):
        # By the text's own seed, never a running generator: the weights must not depend on what was read before.
        draws = np.random.Generator(np.random.PCG64(seed)).poisson(1.0, REPLICATES)
        out[text, seed & 1] = [1.0, *draws]
    return out
