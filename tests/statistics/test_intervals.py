"""Intervals hold the truth as often as they say, in populations that are known; where they cannot, there is none.

Oracles: NumPy on the texts themselves for every moment, scipy's Student's t, populations made here. What
populations of real texts show is `python -m benchmarks.coverage`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from manyheads.recording import Sinks
from manyheads.roles.claims import REPORT, Half
from manyheads.spec import Site
from manyheads.statistics import STATISTICS, HeadTable, Sums, mean_interval
from manyheads.statistics.intervals import MIN_BURSTY, MOMENTS, Spread, t_95
from manyheads.statistics.sums import paired_interval

DRAWS = 600


@pytest.fixture
def rng(fresh):
    return np.random.default_rng(torch.randint(2**31, (1,), generator=fresh).item())


def sums_of(num, den, rng) -> Sums:
    """Sums over texts of `[text, figure]`, as figures of one head."""
    seeds = rng.integers(0, 2**62, len(num)).tolist()
    return Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], seeds, 0)


def coverage(num, den, truth, rng):
    """How often the intervals of all shares hold the truth, of those that are given, and the share that is."""
    low, high = sums_of(num, den, rng).interval(shares=(True,) * num.shape[1])
    given = ~np.isnan(low)
    return ((low <= truth) & (truth <= high))[given].mean(), given.mean()


def shares(rng, sizes):
    """Cases right of `sizes`, where every text has a rate of its own, and the rate of the population."""
    rates = rng.beta(2, 5, sizes.shape)
    return rng.binomial(sizes.astype(int), rates).astype(float), 2 / 7


def test_moments_are_the_sums_of_products_of_each_half(rng):
    num, den = rng.normal(size=(13, 4)), rng.integers(0, 5, (13, 4)).astype(float)
    seeds = rng.integers(0, 2**62, 13).tolist()
    moments = Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], seeds, 0).moments
    for half in (0, 1):
        texts = np.array(seeds) % 2 == half
        for index, (a, b) in enumerate(MOMENTS):
            want = (num[texts] ** a * den[texts] ** b).sum(0) if a or b else (den[texts] > 0).sum(0)
            np.testing.assert_allclose(moments[half, 0, :, index], want, rtol=1e-12, atol=1e-12)


def test_skewness_and_freedom_are_those_of_the_residuals(rng):
    sizes = rng.integers(1, 40, (60, 5)).astype(float)
    num, _ = shares(rng, sizes)
    spread, worth = sums_of(num, sizes, rng).spread()
    residuals = num - num.sum(0) / sizes.sum(0) * sizes
    squares = (residuals**2).sum(0)
    np.testing.assert_allclose(spread.skew[0], (residuals**3).sum(0) / squares**1.5, rtol=1e-6)
    rests_on = squares**2 / (residuals**4).sum(0) - 1
    np.testing.assert_allclose(1 / (1 / spread.freedom[0] - 1 / 99), rests_on, rtol=1e-6)
    np.testing.assert_allclose(worth.texts[0], sizes.sum(0) ** 2 / (sizes**2).sum(0), rtol=0.6)
    assert (worth.largest[0] <= sizes.max(0) / sizes.sum(0) + 1e-12).all() and (worth.num_texts == 60).all()
    np.testing.assert_allclose(spread.error[0], np.sqrt(squares) / sizes.sum(0), rtol=0.4)  # of 100 replicates


def test_hundreds_of_equal_texts_rest_on_as_many_and_rounding_is_no_skewness(rng):
    """Numbers that hardly vary leave nothing of their fourth powers in float64: then texts count as equal ones."""
    den = np.full((300, 8), 9.0)
    num = den * (5.0 + 1e-9 * rng.normal(size=den.shape))
    spread, _ = sums_of(num, den, rng).spread()
    assert (spread.skew == 0).all() and (spread.freedom > 60).all()


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3, 4.2, 7.5, 11, 17, 45, 90, 500])
def test_t_is_students(freedom):
    exact = student.ppf(0.975, freedom)
    assert -6e-4 < float(t_95(np.array([float(freedom)]))[0]) - exact < exact * (1e-3 if freedom >= 4 else 0.03)


@pytest.mark.parametrize("skew", [-0.6, -0.05, 0.0, 0.2, 0.9])
def test_the_pivot_is_halls_cubic_turned_round(skew, rng):
    t = rng.normal(size=50)
    pivot = Spread(np.ones(50), np.ones(50), np.full(50, skew))._pivot(t)
    np.testing.assert_allclose(pivot + skew * pivot**2 / 3 + skew**2 * pivot**3 / 27 + skew / 6, t, atol=1e-9)


@pytest.mark.turns(4)
@pytest.mark.parametrize("texts", [20, 50, 200, 800])
@pytest.mark.parametrize("kind", ["equal", "sentences", "lognormal"])
@pytest.mark.sampled(6)
def test_an_interval_of_shares_covers_what_it_says(texts, kind, rng):
    """Right answers among cases: texts of one size, of sentences' sizes, and sizes of which a tenth holds half."""
    shape = (texts, DRAWS)
    sizes = {
        "equal": lambda: np.full(shape, 10.0),
        "sentences": lambda: np.ceil(rng.gamma(2.0, 8.0, shape)),
        "lognormal": lambda: np.ceil(np.exp(rng.normal(1.5, 1.2, shape))),
    }[kind]()
    num, truth = shares(rng, sizes)
    held, given = coverage(num, sizes, truth, rng)
    # Draws are independent: four standard errors of 600 at 0.95 are 0.036.
    assert held > 0.92 - 0.02 and (kind == "lognormal" or given > 0.99)


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
def test_an_interval_of_shares_reckons_with_a_text_that_is_yet_to_come(texts, rng):
    """Sizes that have no variance (Pareto, 1.5), with rates that follow them: 0.80 to 0.95 without that text."""
    made = np.random.default_rng(2)  # one population: they differ by more than draws from one do
    population = np.ceil(3 * (1 + made.pareto(1.5, 20_000)))[:, None]
    rates = 1 / (1 + np.exp(1 - 0.5 * (np.log(population) - 1) - made.normal(0, 0.5, population.shape)))
    drawn = rng.integers(0, len(population), (texts, DRAWS))
    sizes, right = population[drawn, 0], (population * rates)[drawn, 0]
    held, _ = coverage(right, sizes, (population * rates).sum() / population.sum(), rng)
    assert held > 0.92 - 0.02


@pytest.mark.parametrize("texts", [40, 100, 400, 800])
@pytest.mark.sampled(2)
def test_a_score_above_a_chance_level_from_which_few_texts_differ_has_an_interval_that_covers(texts, rng):
    """Of 100 texts 3 are answered, where a guess is not: without the text to come 0.65 to 0.9, or none at all."""
    sizes = np.ceil(rng.gamma(2.0, 3.0, (texts, DRAWS)))
    guess = rng.binomial(sizes.astype(int), rng.beta(2, 5, sizes.shape)).astype(float)
    answered = np.where(rng.random(sizes.shape) < 0.03, sizes, guess)
    num, den = (torch.from_numpy(np.stack(both, -1)) for both in ((answered, guess), (sizes, sizes)))
    seeds = (2 * rng.integers(0, 2**61, texts) + REPORT).tolist()
    statistics = tuple(STATISTICS[name] for name in ("previous_mass", "previous_mass.uniform"))
    site = Site("", 0, "layer", DRAWS, DRAWS, 4, 4, False)
    table = HeadTable((site,), statistics, Sums.of(num, den, seeds, 0), Sinks(), {})
    above = Half(table, REPORT).above("previous_mass", "previous_mass.uniform")
    truth = 0.03 * 5 / 7
    assert ((above.low <= truth) & (truth <= above.high)).mean() > 0.92 - 0.02


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_an_interval_of_a_mean_covers_what_it_says(texts, draw, rng):
    values = rng.normal(size=(texts, DRAWS)) if draw == "normal" else rng.exponential(size=(texts, DRAWS)) - 1
    low, high = mean_interval(values)
    assert 0.90 < ((low <= 0) & (high >= 0)).mean() <= 1
    # No wider than needed: 18 % more than Student's t of the texts at most, from 20 texts on.
    wide = 2 * student.ppf(0.975, texts - 1) * values.std(0, ddof=1) / texts**0.5
    assert draw == "exponential" or np.median((high - low) / wide) < 1.25


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
@pytest.mark.sampled(2)
def test_an_interval_of_a_difference_covers_what_it_says(texts, rng):
    """Two rates of the same texts, which are high together: a score above chance, a model after and before."""
    sizes = np.ceil(rng.gamma(2.0, 8.0, (texts, DRAWS)))
    rates = rng.beta(2, 5, sizes.shape)
    before, after = (rng.binomial(sizes.astype(int), share * rates).astype(float) for share in (0.5, 0.9))
    seeds = rng.integers(0, 2**62, texts).tolist()
    sums = [
        Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(sizes)[:, None], seeds, 0) for num in (before, after)
    ]
    low, high = paired_interval(*sums)
    assert ((low <= 0.4 * 2 / 7) & (high >= 0.4 * 2 / 7)).mean() > 0.92 - 0.02 and not np.isnan(low).any()
    alone = sums[1].interval()
    assert texts < 200 or np.median((high - low) / (alone[1] - alone[0])) < 0.9, "what texts share cancels"


def test_equal_texts_are_one_and_few_have_no_interval(rng):
    num, den = rng.random((40, 3)), np.ones((40, 3))
    one = Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], [77] * 40, 0)
    assert np.isnan(one.interval()).all(), "a text that is read 40 times is one text"
    assert np.isnan(sums_of(num[:4], den[:4], rng).interval()).all() and np.isnan(mean_interval(num[:4])).all()
    alike = sums_of(den * [0.0, 0.25, 1.0], den, rng)
    assert np.isnan(alike.interval()).all() and np.isnan(mean_interval(den)).all(), "no text differs from another"
    heavy = den.copy()
    heavy[0] = 100.0
    assert np.isnan(sums_of(num, heavy, rng).interval()).all(), "one text has most of the cases"


def test_a_table_says_why_there_is_no_interval(rng):
    statistics = tuple(STATISTICS[name] for name in ("entropy", "duplicate_mass", "duplicate_mass.relabelled"))
    site = Site("", 0, "layer", 1, 1, 4, 4, False)

    def table(num_texts, sizes=1.0) -> HeadTable:
        den = np.ones((num_texts, 3)) * np.broadcast_to(sizes, num_texts)[:, None]
        sums = sums_of(rng.random((num_texts, 3)) * den, den, rng)
        return HeadTable((site,), statistics, sums, Sinks(), {})

    many, few = table(MIN_BURSTY + 20), table(40)
    for name in many.names:
        assert not np.isnan(many.interval(name)).any() and many.no_interval(name, "L0H0") == ""
    assert not np.isnan(few.interval("entropy")).any() and few.no_interval("entropy", "L0H0") == ""
    for name in ("duplicate_mass", "duplicate_mass.relabelled"):
        assert np.isnan(few.interval(name)).all()
        assert "40 have cases, and an interval needs 300" in few.no_interval(name, "L0H0")
    assert "worth" in table(3).no_interval("entropy", "L0H0")
    assert "(one text has 84% of them)" in table(30, [150.0] + [1.0] * 29).no_interval("entropy", "L0H0")
    empty = replace(few, sums=Sums.empty(1, 3))
    assert empty.no_interval("entropy", "L0H0") == "no text has a case of it"
