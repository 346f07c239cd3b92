"""95 % intervals over texts, as wide as they must be, and when there is none.

A figure is a ratio of sums over texts, N / D: of all rows of all texts, what share (or how many nats, or tokens). Other
texts would give another one. How far away it may be is told by each text's residual e = n - (N / D) d: what the text
has more, or less, than a text of its size should. Three things make intervals of texts unlike those of a textbook:

- **Few texts carry the spread.** One list of names may hold a tenth of all repeated words. So Student's t has as many
  degrees of freedom as the spread rests on texts: Satterthwaite's 2 (sum e^2)^2 / sum e^4, less one, where sum e^4 is
  the variance of sum e^2 when texts come by chance; at most as many as D rests on (Kish's (sum d)^2 / sum d^2, less
  one). Since the spread itself is that of B replicates, 1 / freedom is 1 / (that) + 1 / (B - 1).
- **Shares have two ends.** Near 0 the truth can be far above the share, but hardly below it. `wilson_interval` knows:
  Wilson's, with as many cases as would be as uncertain as the texts are (a survey's effective number of cases). That
  the spread near an end rests on few of these is known to it as well, so t is only for what texts have less than cases.
  A number without bounds (nats, tokens) has Hall's cubic pivot instead, by the skewness of the residuals.
- **Sizes may have no variance** (Pareto with an index under 2): the text that matters most is missing from most
  samples. `unevenness` tells by degrees, and `share_interval` reckons with `one_more` text, as large as the largest.

What a score is above its chance level is a difference of two shares of the same texts: `share_difference_interval`,
from Wilson's intervals of both and their correlation. A change between two models has Student's t
(`difference_interval`).

There is no interval where all texts agree to the last bit, as where no case was right (their spread says nothing of
other texts); under 5 texts' worth of cases (Kish's formula with d as weights; so no text may have over 45 % of them);
and for what is bursty (`Statistic.bursty`: repeated and rare words, numbers, shuffled words) under 300 texts with
cases. There the texts that matter are not yet among those read, and no interval from these can say so: leaving out the
samples that look uneven would keep those whose long texts are missing, which are the wrong ones.

`python -m benchmarks.coverage` measures how often intervals hold the truth and how wide they are, beside a bootstrap
that draws the texts themselves; docs/decisions/014 says what else was tried.
Sources: Wilson 1927; Satterthwaite 1946; Kish 1965; Hall 1992, "On the removal of skewness by transformation"; Korn and
Graubard 1998 (effective cases); Newcombe 1998, Zou and Donner 2008 (differences); Hanley and MacGibbon 2006
(replicates).
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

MIN_WORTH = 5.0  # texts' worth of cases: with fewer, there is no interval
EQUAL_TEXTS = 0.6  # of the texts' worth: less, and some of them are one and the same
MIN_BURSTY = 300  # texts with cases, for what comes in bursts
LEAST_LEFT = 0.01  # of 1 / freedom: a spread is always a guess, by 100 replicates
FLAT = 1e-6  # of a figure's size, squared residuals' root: less is rounding, whose higher moments mean nothing

T_95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980, np.inf: 1.960,
}  # fmt: skip
"""Student's t by degrees of freedom: 95 % lie within."""

Figures = Float64[ndarray, "*figures"]


class Spread(NamedTuple):
    """Standard error, degrees of freedom and skewness, from which an interval is computed."""

    error: Figures
    freedom: Figures
    skew: Figures

    def interval(self, value: Figures) -> tuple[Figures, Figures]:
        """Low and high ends around `value`; NaN where the error is not known."""
        reach = t_95(self.freedom)
        return value - self.error * self._pivot(reach), value - self.error * self._pivot(-reach)

    def _pivot(self, t: Figures) -> Figures:
        """The pivot whose transform is t: Hall's p + s p^2 / 3 + s^2 p^3 / 27 + s / 6, solved for p."""
        even = np.abs(self.skew) < 1e-4  # the cubic's other end: there it is t itself
        skew = np.where(even, 1.0, self.skew)
        with np.errstate(invalid="ignore"):
            return np.where(even, t, 3 / skew * (np.cbrt(1 + skew * (t - skew / 6)) - 1))


def t_95(freedom: Figures) -> Figures:
    """Student's t that holds 95 %, for any degrees of freedom from 1: log T_95 by straight lines in 1 / freedom.

    Good to 0.1 % from 4 degrees on, and to 3 % below; never too narrow by more than a digit of the table.
    """
    known = [1 / count for count in reversed(T_95)]
    return np.exp(np.interp(1 / np.maximum(freedom, 1.0), known, np.log(list(reversed(T_95.values())))))


def kish(first: Figures, second: Figures) -> Figures:
    """How many equal weights as many unlike ones are worth, from the sums of weights and of their squares."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(first**2 / second, posinf=0.0)


def mean_interval(values: Float64[ndarray, "text n"]) -> tuple[Float64[ndarray, "n"], Float64[ndarray, "n"]]:
    """The 95 % interval of each column's mean over texts. NaN of fewer than 5 texts, and where all are alike.

    Hall's, with half as many degrees of freedom as a ratio has: a mean counts each text once, so that no size tells
    how heavy its tail is, and of lognormal numbers (sigma 1.5) at 20 texts 0.95 are held by it, 0.91 by all of them.
    """
    count = len(values)
    if count < MIN_WORTH:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    mean = values.mean(0)
    residuals = values - mean
    second, third, fourth = ((residuals**power).sum(0) for power in (2, 3, 4))
    error = np.sqrt(second / (count * (count - 1)))
    return _spread(second, third, fourth, 1.0, count - 1.0, error, mean).interval(mean)


def replicate_error(replicates: Float64[ndarray, "*figures replicate"]) -> Figures:
    """The spread over bootstrap replicates (the first is the figure itself); NaN where nothing was counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns of figures of which nothing was counted
        return np.nanstd(replicates[..., 1:], -1, ddof=1)


class Worth(NamedTuple):
    """How much a figure rests on: how many texts have cases, how many of equal length these are worth (Kish), and what
    share of the cases the largest one has."""

    num_texts: Figures
    texts: Figures
    largest: Figures


def wilson_interval(share: Figures, spread: Spread) -> tuple[Figures, Figures]:
    """Wilson's 95 % interval of a share; NaN where the error is not known.

    It solves |share - truth| = t * error(truth), where the error shrinks towards 0 and 1 as that of cases does: of
    `cases` that are one or the other, as many as would be as uncertain as the texts are. So it reckons already with a
    spread that rests on the few cases of the rarer kind. By Satterthwaite's formula a spread of such cases has
    `of_cases` degrees of freedom: t has what is left of 1 / freedom without 1 / `of_cases`, or it would count twice.
    """
    share = np.clip(share, 0.0, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):  # of what was not counted
        variance = share * (1 - share)  # of one case; its residual's fourth moment is variance * (1 - 3 * variance)
        cases = _cases(share, spread.error)
        of_cases = 2 * cases * variance / (1 - 3 * variance) - 1
        left = 1 / spread.freedom - 1 / np.maximum(of_cases, 1.0)
        left = np.maximum(left, np.minimum(1 / spread.freedom, LEAST_LEFT))
        pull = t_95(1 / left) ** 2 / cases
        middle = (share + pull / 2) / (1 + pull)
        reach = np.sqrt(pull * (variance + pull / 4)) / (1 + pull)
    return middle - reach, middle + reach


def _cases(share: Figures, error: Figures) -> Figures:
    """How many cases that are one or the other would be as uncertain as the texts are."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of what was not counted
        return np.maximum(share * (1 - share) / error**2, 1.0)


def share_interval(share: Figures, spread: Spread, worth: Worth) -> tuple[Figures, Figures]:
    """The 95 % interval of a share: Wilson's; the more uneven sizes are, the nearer to the wider of it and Hall's."""
    uneven = unevenness(worth)
    with np.errstate(invalid="ignore"):  # of what was not counted
        spread = spread._replace(error=np.sqrt(spread.error**2 + uneven * one_more(share, worth)))
    low, high = wilson_interval(share, spread)
    # Where the largest text makes most of the spread, it rests on half as many texts.
    cautious = spread._replace(freedom=np.maximum((spread.freedom - 1) / 2, 1.0))
    wide_low, wide_high = (np.clip(end, 0.0, 1.0) for end in cautious.interval(share))
    return low + uneven * np.minimum(wide_low - low, 0.0), high + uneven * np.maximum(wide_high - high, 0.0)


def one_more(share: Figures, worth: Worth) -> Figures:
    """The variance that one text more adds to a share, as large as the largest, and all of one kind or of the other."""
    share = np.clip(share, 0.0, 1.0)
    # Texts that are equal are one, and then no single one of them is the largest.
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.maximum(worth.largest, 1 / worth.texts)
        return share * (1 - share) * (largest / (1 + largest)) ** 2


def unevenness(worth: Worth) -> Figures:
    """1 where sizes may have no variance, near 0 where they have one; by degrees in between.

    With more texts, the largest text's share q of the sum of squared sizes falls faster than 1 / sqrt(texts) where
    sizes have a fourth moment, and more slowly where not: texts * q^2 is 1 / 3 or less for sentences, 4 and more for
    Pareto sizes of index 1.5. Its fourth power, up to 1, and no bound: that would sort samples by whether they have a
    large text.
    """
    with np.errstate(invalid="ignore"):  # of what was not counted
        of_squares = worth.largest**2 * worth.texts
        return np.minimum(worth.num_texts * of_squares**2, 1.0) ** 4


def difference_interval(
    difference: Figures, error: Figures, freedom: Figures, known: Bool[ndarray, "*figures"]
) -> tuple[Figures, Figures]:
    """The 95 % interval of a difference of two figures of the same texts: Student's t of its `replicate_error`.

    `freedom` is that of the figure whose spread rests on fewer texts; where `known` is not, there is no interval.
    """
    spread = Spread(np.where(known & (error > 0), error, np.nan), freedom, np.zeros_like(error))
    return spread.interval(difference)


def share_difference_interval(
    first: Float64[ndarray, "*figures replicate"],
    first_ends: tuple[Figures, Figures],
    second: Float64[ndarray, "*figures replicate"],
    second_ends: tuple[Figures, Figures],
) -> tuple[Figures, Figures]:
    """The 95 % interval of a difference of two shares of the same texts, from their own intervals.

    How far the difference may be below is made of how far the first may be below and the second above, as two errors
    with the correlation of the replicates (the first of which is the share itself). Newcombe 1998, method 10; Zou and
    Donner 2008. Where texts hardly differ in it, this knows of what both shares may yet be; their spread does not.

    Where both shares are the same in nearly every text, as where 3 of 100 make all the difference, that is too narrow
    on the far side: were the difference larger by h, more cases would differ, each with the variance of a case. So the
    far end is no nearer than the h that solves h^2 = t^2 (error^2 + ((d + h) (1 - d - h) - d (1 - d)) / cases).
    """
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns of figures of which nothing was counted
        x, y = (part[..., 1:] - np.nanmean(part[..., 1:], -1, keepdims=True) for part in (first, second))
        squares = np.nansum(x * x, -1) * np.nansum(y * y, -1)
        correlation = np.where(squares > 0, np.nansum(x * y, -1) / np.sqrt(squares), 0.0)

    def distance(one: Figures, other: Figures) -> Figures:
        return np.sqrt(np.maximum(one**2 - 2 * correlation * one * other + other**2, 0.0))

    difference = first[..., 0] - second[..., 0]
    below = distance(first[..., 0] - first_ends[0], second_ends[1] - second[..., 0])
    above = distance(first_ends[1] - first[..., 0], second[..., 0] - second_ends[0])
    low, high = difference - below, difference + above
    size, t = np.minimum(np.abs(difference), 1.0), t_95(np.full_like(difference, x.shape[-1] - 1))
    pull = t**2 / np.fmin(*(_cases(part[..., 0], replicate_error(part)) for part in (first, second)))
    middle = pull * (1 - 2 * size)
    far = (middle + np.sqrt(middle**2 + 4 * (1 + pull) * (t * replicate_error(first - second)) ** 2)) / (2 + 2 * pull)
    low, high = difference - below, difference + above
    return (
        np.where(difference < 0, np.fmin(low, difference - far), low),
        np.where(difference > 0, np.fmax(high, difference + far), high),
    )


def ratio_spread(
    num: Float64[ndarray, "*figures replicate"],
    den: Float64[ndarray, "*figures replicate"],
    moments: Float64[ndarray, "*figures moment"],
) -> tuple[Spread, Worth]:
    """The spread of N / D by plain sums, bootstrap replicates and `MOMENTS`, and what it rests on.

    The error is the replicates', in which equal texts, and windows of one, are drawn together.
    """
    m = dict(zip(MOMENTS, np.moveaxis(moments, -1, 0), strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(den > 0, num / den, np.nan)
        r, cases, error = ratios[..., 0], den[..., 0], replicate_error(ratios)
        second = m[2, 0] - 2 * r * m[1, 1] + r**2 * m[0, 2]
        third = m[3, 0] - 3 * r * m[2, 1] + 3 * r**2 * m[1, 2] - r**3 * m[0, 3]
        fourth = m[4, 0] - 4 * r * m[3, 1] + 6 * r**2 * m[2, 2] - 4 * r**3 * m[1, 3] + r**4 * m[0, 4]
        # Of powers of the counts: exact where one text has all, and never more than it has.
        largest = m[0, 4] / m[0, 3] / cases
        flat = second <= FLAT**2 * (m[2, 0] + r**2 * m[0, 2])
        # A Poisson weight has variance 1, so the replicates' variance of a count is the sum of the texts' squares.
        texts, drawn = kish(cases, m[0, 2]), kish(cases, den[..., 1:].var(-1, ddof=1))
        # Of 100 replicates that is right to 14 %: it counts where texts that are equal, drawn together, make it less.
        texts = np.where(drawn < EQUAL_TEXTS * texts, drawn, texts)
        spread = _spread(np.where(flat, 0.0, second), third, fourth, 2.0, texts - 1, error, r)
        freedom = 1 / (1 / np.maximum(spread.freedom, 1.0) + 1 / (num.shape[-1] - 2))
    return spread._replace(freedom=freedom), Worth(m[0, 0], texts, largest)


def _spread(
    second: Figures,
    third: Figures,
    fourth: Figures,
    times: float,
    most: Figures | float,
    error: Figures,
    value: Figures,
) -> Spread:
    """Skewness and degrees of freedom by sums of residuals' powers; those of equal texts where they are rounding.

    `times` Kish's number of texts by squared residuals, less one: 2 is Satterthwaite's number.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        rests_on = second**2 / fourth
        skew = third / second**1.5
        # Of any numbers third^2 <= second * fourth: what is beyond has been rounded away.
        sound = (second > 0) & (fourth > 0) & (rests_on >= 1 - 1e-6) & (skew**2 <= (1 + 1e-6) / rests_on)
        freedom = np.where(sound, np.minimum(times * rests_on - 1, most), most)
    known = (error > 0) & ~np.isnan(value)
    return Spread(np.where(known, error, np.nan), freedom, np.where(sound, skew, 0.0))


MOMENTS = (
    (0, 0), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3), (4, 0), (3, 1), (2, 2), (1, 3), (0, 4),
)  # fmt: skip
"""Sums over texts of n^a d^b, as (a, b), but for n and d themselves; (0, 0) counts the texts with cases."""
