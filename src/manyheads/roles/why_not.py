"""Why a claim about a head does not hold, in words: what `claims.failed_conditions` returns, and the rules as prose.

That something was looked for and not found is a result, too, but a bare "no" does not say which condition was missed.
"""

from __future__ import annotations

import math

from manyheads.roles import rules
from manyheads.roles.claims import MAX_FALSE, OVER_BASELINE_BY, Claim, failed_conditions

FIXED = {
    "mode": ("most frequent offset", "the word at the relation's most frequent offset"),
    "rule": ("nearest by part of speech", "the nearest word of one part of speech on one side, the best such rule"),
    "nearest": ("nearest mention", "the nearest earlier mention"),
    "same_word": ("same word", "the nearest earlier mention with the same head word, else the nearest"),
}
"""Fixed guesses: a name that fits a table, and a sentence."""

WORDS = {
    "cases": "under {margin} cases",
    "texts": "under {margin} independent texts",
    "share of attention": "under {margin:.0%} of all attention",
    "times chance": "under {margin:g} times chance",
    "points of attention above chance": "not {points:.0f} points above chance",
    "interval above chance": "interval reaches {margin:g} times chance",
    "right answers": "right in under {margin:.0%}",
    "right answers among all tokens": "under {margin:.0%} where special tokens may win",
    "above chance by points": "not {points:.0f} points above chance",
    "above guess by factor": "not {more:.0%} above the {guess}",
    "above guess by points": "not {points:.0f} points above the {guess}",
    "where the guess fails": "not above chance where the guess fails",
}
"""Each condition of `claims.failed_conditions` as reports write it."""

RULES_IN_WORDS = (
    f"Attention: enough of all, or {rules.MIN_GIVEN:.0%} of what no sink takes; {rules.MIN_LIFT:g} times chance and "
    f"{100 * rules.MIN_EXCESS:.0f} points more; the interval above {rules.MIN_LIFT_LOW:g} times chance. Syntax and "
    f"reference: {rules.MIN_QUERIES} cases, right in {rules.MIN_ACCURACY:.0%}, {100 * OVER_BASELINE_BY:.0f} points "
    f"above chance, a tenth and {100 * OVER_BASELINE_BY:.0f} points above every fixed guess, above chance also where "
    f"that fails, and {rules.MIN_GIVEN_SCORE:.0%} where special tokens may win."
)


def failing(claim: Claim) -> tuple[str, ...]:
    """In words each condition that a claim fails; () where it holds.

    Its figures are those of the reporting half. Where they satisfy all conditions, the choosing half's do not.
    """
    if claim.holds:
        return ()
    if math.isnan(claim.tested) or not claim.num_queries:
        return (rules.UNASKED,)
    words = [
        WORDS[condition.name].format(
            margin=condition.margin,
            points=100 * condition.margin,
            more=condition.margin - 1,
            guess=guess_name(condition.guess).removeprefix("most frequent "),
        )
        for condition in failed_conditions(claim)
    ]
    if claim.q_value > MAX_FALSE:
        words.append(f"may be chance (q over {MAX_FALSE:g})")
    return tuple(words or ["the choosing half does not bear it out"])


def guess_name(statistic: str) -> str:
    """The name of a fixed guess that fits a table; a statistic that is none by its own name."""
    return FIXED.get(statistic.rpartition(".")[2], (statistic,))[0]
