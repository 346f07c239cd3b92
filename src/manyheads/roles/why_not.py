"""Why a claim about a head does not hold: in words, each condition that its figures fail.

What was looked for and not found is a result, too, but a bare "no" does not say what was missed.
The thresholds are those of the rules themselves: `roles.claims` decides what holds, here it is only said.
"""

from __future__ import annotations

import math

from manyheads.roles.claims import MAX_FALSE, OVER_BASELINE, OVER_BASELINE_BY, Claim
from manyheads.roles.question_families import FLOORS, family_of, known
from manyheads.roles.rules import (
    MIN_ACCURACY,
    MIN_CONTENT,
    MIN_EXCESS,
    MIN_GIVEN,
    MIN_GIVEN_SCORE,
    MIN_LIFT,
    MIN_LIFT_LOW,
    MIN_QUERIES,
    MIN_TEXTS,
    SINK_RULE,
    UNASKED,
)

__all__ = ["FIXED", "failing"]


FIXED = {
    "mode": ("most frequent offset", "the word at the relation's most frequent offset"),
    "rule": ("nearest by part of speech", "the nearest word of one part of speech on one side, the best such rule"),
    "nearest": ("nearest mention", "the nearest earlier mention"),
    "same_word": ("same word", "the nearest earlier mention with the same head word, else the nearest"),
}
"""Fixed guesses: a name that fits a table, and a sentence."""


def failing(claim: Claim) -> tuple[str, ...]:
    """In words each condition that a claim fails; () where it holds.

    Its figures are those of the reporting half. Where they satisfy all conditions, the choosing half's do not.
    """
    if claim.holds:
        return ()
    if math.isnan(claim.tested) or not claim.num_queries:
        return (UNASKED,)
    found = _short_of_accuracy(claim) if family_of(claim.statistic).accuracy else _short_of_attention(claim)
    if claim.q_value > MAX_FALSE:
        found.append(f"may be chance (q over {MAX_FALSE:g})")
    return tuple(found or ["the choosing half does not bear it out"])


def _short_of_attention(claim: Claim) -> list[str]:
    floor, rests = FLOORS.get(claim.statistic, MIN_CONTENT), claim.statistic == SINK_RULE.statistic
    given = not rests and known(claim.given) >= MIN_GIVEN and claim.score >= MIN_GIVEN_SCORE
    out = _few(claim)
    if claim.score < floor and not given:
        out.append(f"under {floor:.0%} of all attention")
    if claim.score < MIN_LIFT * claim.chance:
        out.append(f"under {MIN_LIFT:g} times chance")
    elif claim.score < MIN_EXCESS + claim.chance:
        out.append(f"not {100 * MIN_EXCESS:.0f} points above chance")
    elif not rests and not claim.low > MIN_LIFT_LOW * claim.chance:
        out.append(f"interval reaches {MIN_LIFT_LOW:g} times chance")
    return out


def _short_of_accuracy(claim: Claim) -> list[str]:
    points = f"not {100 * OVER_BASELINE_BY:.0f} points above"
    out = _few(claim)
    if claim.tested < MIN_ACCURACY:
        out.append(f"right in under {MIN_ACCURACY:.0%}")
    if claim.score < MIN_GIVEN_SCORE:
        out.append(f"under {MIN_GIVEN_SCORE:.0%} where special tokens may win")
    if claim.tested < claim.chance + OVER_BASELINE_BY:
        out.append(f"{points} chance")
    for name, value in claim.baselines.items():
        guess = FIXED.get(name.rpartition(".")[2], (name,))[0].removeprefix("most frequent ")
        if claim.tested < OVER_BASELINE * value:
            out.append(f"not {OVER_BASELINE - 1:.0%} above the {guess}")
        elif claim.tested < OVER_BASELINE_BY + value:
            out.append(f"{points} the {guess}")
    off = [value for name, value in claim.beyond.items() if ".off_" in name and not math.isnan(value)]
    if off and not off[0] > claim.chances.get("uniform", 0.0):
        out.append("not above chance where the guess fails")
    return out


def _few(claim: Claim) -> list[str]:
    cases = [f"under {MIN_QUERIES} cases"] if claim.num_queries < MIN_QUERIES else []
    return [*cases, f"under {MIN_TEXTS} independent texts"] if claim.num_texts < MIN_TEXTS else cases
