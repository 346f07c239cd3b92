"""What chance would give: signs flipped at random, many heads asked at once, other heads in the targets' place.

A difference that means nothing is as likely to have the other sign in each text. So signs are flipped, all those of
equal texts together, and p is the share of flips that give a mean as far from 0. Flips depend on the texts' own words:
any order gives the same p. Where a difference has a bootstrap spread, Student's t of it is read as a normal deviate.
Sources: Fisher 1935, section 21; Wallace 1959 (Student's t as a normal); Benjamini and Hochberg 1995; Benjamini and
Yekutieli 2001 (false discovery under any dependence).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import erfc, isnan, log, log1p, sqrt
from operator import add

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.heads import Head, parse_heads
from manyheads.spec import ModelSpec

DRAWS = 20  # tries for each random target: in a small layer the same one comes again
FLIPS = 9_999  # p is never below 1 in 10,000: enough for q of 0.05 among some hundreds of heads
SAME = 1e-9  # of a mean: what differs from it by less, or spreads by less, does so by rounding alone
EULER = 0.5772156649  # Euler's constant, by which a long harmonic sum exceeds the logarithm


def sign_flip_p(values: Float64[ndarray, "text n"], seeds: Sequence[int]) -> Float64[ndarray, "n"]:
    """Two-sided p of each column's mean; NaN where a value is. Of t unlike texts it is at least 2 / 2^t or so."""
    flipped = np.zeros((FLIPS, values.shape[1]))
    for seed in dict.fromkeys(seeds):
        signs = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, FLIPS) * 2.0 - 1
        flipped += signs[:, None] * values[np.equal(seeds, seed)].sum(0)
    # A flip that gives the very same mean counts as reaching as far: rounding must not decide that.
    total = np.abs(values.sum(0))
    above = (np.abs(flipped) >= total * (1 - SAME)).sum(0)
    return np.where(np.isnan(total), np.nan, (1 + above) / (1 + FLIPS))


def q_values(p: Float64[ndarray, "n"]) -> Float64[ndarray, "n"]:
    """The least false-discovery rate at which each is still a discovery (Benjamini-Hochberg); NaN stays out."""
    out, known = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = known[p[known].argsort(kind="stable")]
    rising = p[order] * len(order) / np.arange(1, len(order) + 1)
    out[order] = np.minimum.accumulate(rising[::-1])[::-1].clip(max=1)
    return out


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Yekutieli's adjusted p-values: at most q of those with a value up to q are false, on average."""
    count = len(p_values)
    # Yekutieli's harmonic sum: the price of tests that may depend on each other in any way, as heads on one corpus do.
    # One addition after the other, as `sum` does up to Python 3.11; later ones round otherwise, and q would differ.
    if count < 1_000:
        factor = reduce(add, (1 / rank for rank in range(1, count + 1)), 0.0)
    else:
        factor = log(count) + EULER + 0.5 / count
    return q_values(np.asarray(p_values, np.float64) * factor).tolist()


def p_of_spread(difference: float, spread: float, freedom: float) -> float:
    """One-sided p of a difference being none, or below, by its spread; 1 where too little is known of that."""
    # 1, not NaN: what is not known must never become a discovery, and NaN would drop out of the count of tests.
    if freedom < 1 or isnan(difference) or isnan(spread):
        return 1.0
    if spread <= SAME * abs(difference):
        return float(difference <= 0)  # the same in every text: always above, or never
    return 0.5 * erfc(as_normal(difference / spread, freedom) / sqrt(2))


def as_normal(t: float, freedom: float) -> float:
    """The normal deviate that is as rare as this value of Student's t, to 0.02 at worst."""
    size = sqrt(freedom * log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return size if t >= 0 else -size


def random_targets(gone: tuple[Head, ...], spec: ModelSpec, count: int, seed: int) -> list[tuple[Head, ...]]:
    """Other heads of the same layers, as many of each layer, drawn at random; of the whole model where one has too few.

    What comes after them is what comes after the targets. No set twice: fewer are given where there are no more.
    """
    generator, named = np.random.Generator(np.random.PCG64(seed)), parse_heads(list(gone), spec.shape)
    free = named.complement().by_layer()
    targets: dict[tuple[Head, ...], None] = {}
    for _ in range(DRAWS * count):
        drawn: list[Head] = []
        for (stack, layer), indices in named.by_layer().items():
            candidates = [Head(stack, layer, index) for index in free.get((stack, layer), ())]
            if len(candidates) < len(indices):
                candidates = [Head(*place, index) for place, all_of in free.items() for index in all_of]
            # A full layer before this one may have taken some of these.
            candidates = [head for head in candidates if head not in drawn]
            if len(candidates) < len(indices):
                return []
            drawn += [candidates[index] for index in generator.choice(len(candidates), len(indices), replace=False)]
        targets.setdefault(tuple(sorted(drawn)))
        if len(targets) == count:
            break
    return list(targets)
