"""Numbers in words: a figure, a column of them, an interval, as commands and pictures write them.

A file of its own, since importing it loads nothing heavy: commands do so before anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ABSENT = "–"


def figure(value: float | None, unit: str) -> str:
    """A number as people read it: shares in per cent, the rest with as many digits as they deserve."""
    if value is None or math.isnan(value):
        return ABSENT
    if unit.startswith("share"):
        return f"{100 * value:z.1f}%"
    return f"{value:z.1f}" if unit == "tokens" or abs(value) >= 100 else f"{value:z.2f}"


def column_figures(values: Sequence[float], unit: str) -> list[str]:
    """The numbers of one column, with equal decimals: one for shares and tokens, otherwise those of the largest."""
    sizes = [abs(value) for value in values if math.isfinite(value)]
    decimals = 1 if unit == "tokens" or max(sizes, default=0.0) >= 100 else 2
    if unit.startswith("share"):
        return [figure(value, unit) for value in values]
    return [ABSENT if math.isnan(value) else f"{value:z.{decimals}f}" for value in values]


def span(low: float, high: float, unit: str) -> str:
    """An interval, its unit said once."""
    if math.isnan(low) or math.isnan(high):
        return ABSENT
    return f"{figure(low, unit).removesuffix('%')}–{figure(high, unit)}"
