"""Why a claim does not hold is said by the condition that fails, exactly where the rules have it fail."""

import math
from dataclasses import replace

import numpy as np
import pytest

from manyheads.roles import RULES, SINK_RULE, failing
from manyheads.roles.rules import syntax_rules
from tests.figures.test_roles import ASKED, claim_of


def oracle(rule, claim):
    """Whether a claim's figures satisfy its rule, with every threshold written out."""
    if claim.num_queries < 100 or claim.num_texts < 10 or math.isnan(claim.tested) or claim.q_value > 0.05:
        return False
    if rule.given:
        off = [value for name, value in claim.beyond.items() if ".off_" in name]
        beats = all(claim.tested >= max(1.1 * guess, guess + 0.03) for guess in claim.baselines.values())
        return (
            claim.tested >= max(0.3, claim.chance + 0.03) and claim.score >= 0.1 and beats
            and (not off or off[0] > claim.chances["uniform"])
        )  # fmt: skip
    enough = claim.score >= rule.floor
    if rule is not SINK_RULE:
        enough = (enough or (claim.given >= 0.6 and claim.score >= 0.1)) and claim.low > 1.5 * claim.chance
    return enough and claim.score >= max(1.75 * claim.chance, claim.chance + 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_conditions_fail_exactly_where_the_rules_do(seed):
    """The words against the rules as docs/roles.md has them, over figures on both sides of every threshold."""
    rng, met = np.random.default_rng(seed), 0
    for rule in ASKED:
        for _ in range(60):
            claim = claim_of(rule, rng=rng, holds=False, num_queries=int(rng.choice([20, 70, 500], p=[0.1, 0.2, 0.7])))
            if rng.random() < 0.5:  # chance low, guesses weak: else nearly all fail
                low = {name: value / 8 for name, value in claim.chances.items()}
                guesses = {name: value / 4 for name, value in claim.baselines.items()}
                claim = replace(claim, chances=low, chance=max(low.values()), baselines=guesses, q_value=0.01)
            sound = oracle(rule, claim)
            words = failing(claim)
            assert (words == ("the choosing half does not bear it out",)) == sound, (rule.role, claim, words)
            met += sound
    assert met > 20
    assert failing(replace(claim, holds=True)) == ()


def test_each_condition_has_its_words():
    mass = claim_of(
        RULES[0], score=0.5, given=0.5, low=0.45, chances={"uniform": 0.1}, num_queries=500, q_value=0.0, holds=False
    )
    assert failing(mass) == ("the choosing half does not bear it out",)
    assert failing(replace(mass, score=0.39)) == ("under 40% of all attention",)
    assert failing(replace(mass, score=0.39, given=0.6)) == ("the choosing half does not bear it out",)
    assert failing(replace(mass, chance=0.3)) == ("under 1.75 times chance",)
    assert failing(replace(mass, score=0.14, given=0.7, chance=0.05)) == ("not 10 points above chance",)
    assert failing(replace(mass, low=0.149)) == ("interval reaches 1.5 times chance",)
    assert failing(replace(mass, num_queries=99, q_value=0.06)) == ("under 100 cases", "may be chance (q over 0.05)")
    assert failing(replace(mass, num_texts=9.4)) == ("under 10 independent texts",)
    assert (
        failing(replace(mass, score=math.nan))
        == failing(replace(mass, num_queries=0))
        == ("these texts do not ask it",)
    )
    rule = syntax_rules(["det"])[0]
    sure = replace(
        mass, statistic=rule.statistic, score=0.2, given=0.5, chances={"uniform": 0.1}, num_queries=500,
        baselines={"det.to_head.mode": 0.4}, beyond={"det.to_head.off_mode": 0.2},
    )  # fmt: skip
    assert failing(sure) == ("the choosing half does not bear it out",)
    assert failing(replace(sure, num_queries=99)) == ("under 100 cases",)
    assert failing(replace(sure, given=0.29, baselines={"det.to_head.mode": 0.1})) == ("right in under 30%",)
    assert failing(replace(sure, score=0.09)) == ("under 10% where special tokens may win",)
    assert failing(replace(sure, chance=0.48)) == ("not 3 points above chance",)
    assert failing(replace(sure, baselines={"det.to_head.mode": 0.46})) == ("not 10% above the offset",)
    assert failing(replace(sure, given=0.31, baselines={"det.to_head.mode": 0.2815})) == (
        "not 3 points above the offset",
    )
    assert failing(replace(sure, beyond={"det.to_head.off_mode": 0.1})) == ("not above chance where the guess fails",)
