"""Numbers of trainings that differ by their seed alone: their spread, and how far one way is from another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t by degrees of freedom: 95 % lie within."""


def spread_of(values: Sequence[float]) -> dict[str, Any]:
    """Each value, their mean and their standard deviation (with n - 1; 0 of one)."""
    return {
        "each": list(values),
        "mean": float(np.mean(values)),
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
    }


def spreads_of(numbers: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The spread of every number of trainings that have the same ones."""
    return {name: spread_of([each[name] for each in numbers]) for name in numbers[0]}


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """`first - second`, seed by seed: mean, and between which values it is in 95 of 100 (Student's t); None of one."""
    off = np.subtract(first, second)
    mean, count = float(off.mean()), len(off)
    if count < 2:
        return {"mean": mean, "low": None, "high": None}
    wide = T_95[count - 1] * float(off.std(ddof=1)) / math.sqrt(count)
    return {"mean": mean, "low": mean - wide, "high": mean + wide}


def changes_said(changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line a change that `paired` gave, by what it is called; none for one of a single pair."""
    return [
        f"{what}, seed by seed: {change['mean']:+.3f} nats ({change['low']:+.3f} to {change['high']:+.3f})"
        f"{'' if change['low'] * change['high'] > 0 else ': no difference seen'}"
        for what, change in changes.items()
        if change["low"] is not None
    ]
