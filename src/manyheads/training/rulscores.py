"""How far predictions of remaining life are off: the error's size, and a score to which late is worse than early.

Source: Saxena et al. 2008 (the score of PHM08's challenge).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Num
from numpy import ndarray

EARLY, LATE = 13.0, 10.0  # cycles for which the score of one engine is e - 1


def rmse(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Root of the mean squared error, in cycles."""
    return math.sqrt(float(np.square(predicted - true).mean()))


def cmapss_score(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Sum over engines of exp(-d / 13) - 1 where d = predicted - true is below 0 (early), else exp(d / 10) - 1.

    0 is best; it is a sum, so only sets of the same engines compare.
    """
    off = np.asarray(predicted, dtype=np.float64) - true
    return float(np.expm1(np.where(off < 0, -off / EARLY, off / LATE)).sum())


def scores(predicted: Float[ndarray, "engine"], left: Num[ndarray, "engine"], cap: int) -> dict[str, float]:
    """Against the capped truth, as it was trained, and against the truth itself."""
    capped = np.minimum(left, cap)
    return {
        "rmse": rmse(predicted, capped),
        "score": cmapss_score(predicted, capped),
        "rmse_uncapped": rmse(predicted, left),
        "score_uncapped": cmapss_score(predicted, left),
    }
