"""How far predictions of remaining life are off: the error's size, and a score to which late is worse than early.

Source: Saxena et al. 2008 (the score of PHM08's challenge).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from numpy import ndarray

EARLY, LATE = 13.0, 10.0  # cycles for which the score of one engine is e - 1
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t by degrees of freedom: 95 % lie within."""


def rmse(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Root of the mean squared error, in cycles."""
    return math.sqrt(float(np.square(predicted - true).mean()))


def cmapss_score(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Sum over engines of exp(-d / 13) - 1 where d = predicted - true is below 0 (early), else exp(d / 10) - 1.

    0 is best; it is a sum, so only sets of the same engines compare.
    """
    off = np.asarray(predicted, dtype=np.float64) - true
    return float(np.expm1(np.where(off < 0, -off / EARLY, off / LATE)).sum())


def spread_of(values: Sequence[float]) -> dict[str, Any]:
    """Each value, their mean and their standard deviation (with n - 1; 0 of one)."""
    return {
        "each": list(values),
        "mean": float(np.mean(values)),
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
    }


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """`first - second`, seed by seed: mean, and between which values it is in 95 of 100 (Student's t); None of one."""
    off = np.subtract(first, second)
    mean, count = float(off.mean()), len(off)
    if count < 2:
        return {"mean": mean, "low": None, "high": None}
    wide = T_95[count - 1] * float(off.std(ddof=1)) / math.sqrt(count)
    return {"mean": mean, "low": mean - wide, "high": mean + wide}


def scores(predicted: Float[ndarray, "engine"], left: Num[ndarray, "engine"], cap: int) -> dict[str, float]:
    """Against the capped truth, as it was trained, and against the truth itself."""
    capped = np.minimum(left, cap)
    return {
        "rmse": rmse(predicted, capped),
        "score": cmapss_score(predicted, capped),
        "rmse_uncapped": rmse(predicted, left),
        "score_uncapped": cmapss_score(predicted, left),
    }
