"""Labels in words: in which order they stand, which head is the strongest of its kind, how a figure is written.

Importing it loads nothing heavy, so that commands may do so before anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from manyheads import statistics
from manyheads.roles.words.role_table import UNLABELLED, role_style

ABSENT = "–"


def by_role(labels: Any) -> dict[str, list[Any]]:
    """Role -> its heads, the strongest first. Specific roles come before general ones, unlabelled heads last."""
    from manyheads.roles.rules import RULES  # imports torch, for which --help is not to wait

    order = [*(rule.role for rule in RULES), "sink", "broad", UNLABELLED]
    groups: dict[str, list[Any]] = {}
    for role in labels.roles:
        groups.setdefault(role.name, []).append(role)

    def place(name: str) -> int:
        return next(
            (i for i, prefix in enumerate(order) if name == prefix or name.startswith(f"{prefix} ")), len(order)
        )

    return {name: sorted(groups[name], key=lambda role: -role.evidence.score) for name in sorted(groups, key=place)}


def hue(name: str) -> str:
    """The role's colour in a terminal; unlabelled heads are faint."""
    return "dim" if name == UNLABELLED else role_style(name).terminal


def nearest_role(role: Any) -> str:
    """What an unlabelled head came nearest to, in a word; "" where it has a label."""
    if role.name != UNLABELLED:
        return ""
    from manyheads.roles.rules import RULES  # as above

    near = next((rule.role for rule in RULES if rule.statistic == role.evidence.statistic), "")
    return near.replace(" tokens", "").replace(" token", "")


def example_head(labels: Any) -> Any:
    """The head to look at first: the one of the surest label that is a role on words."""
    labelled = [
        role for role in labels.roles if role.name not in (UNLABELLED, "broad") and not role.name.startswith("sink")
    ]
    pool = labelled or list(labels.roles)
    return max(pool, key=lambda role: role.evidence.distance).head if pool else None


def unit_of(statistic: str) -> str:
    defined = statistics.named(statistic)
    return "" if defined is None else defined.unit


def figure(value: float | None, unit: str) -> str:
    """A number as people read it: shares in per cent, the rest with as many digits as they deserve."""
    if value is None or math.isnan(value):
        return ABSENT
    if unit.startswith("share"):
        return f"{100 * value:.1f}%"
    return f"{value:z.1f}" if unit == "tokens" or abs(value) >= 100 else f"{value:z.2f}"


def column_figures(values: Sequence[float], unit: str) -> list[str]:
    """The numbers of one column, all with as many decimals: one for shares and tokens, else as the largest has."""
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


def q_words(value: float) -> str:
    """A q-value as reports write it."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"
