"""Alerts: the first watched step at which a head is past a limit, whatever came before or after."""

from dataclasses import replace

import numpy as np
import pytest

from manyheads.errors import StatisticError
from manyheads.heads import Head
from manyheads.watching import RULES, AlertRule, alerts, rules_with

HEADS = [Head("", 0, 0), Head("", 0, 1), Head("", 0, 2), Head("cross", 1, 0)]
STEPS = np.array([1, 50, 100, 150, 200, 250, 300])
NAN = np.nan


def raised(statistic: str, curves: dict[int, list[float]], rules=RULES, usual: float = 1.0) -> list[str]:
    """The alerts where single heads have curves of their own and all others one value."""
    values = np.full((len(STEPS), len(HEADS), 2), usual)
    for head, curve in curves.items():
        values[:, head, 1] = curve
    return [
        f"{alert} {alert.value:g} {alert.lasts}" for alert in alerts(HEADS, ["other", statistic], STEPS, values, rules)
    ]


def test_a_head_alerts_once_at_the_first_step_past_the_limit():
    curve = [1, 99, 100, NAN, 101.5, 20, 130]
    assert raised("max_logit", {2: curve}) == ["L0H2: max logit went over 100 at step 200 101.5 True"]
    curve = [5, 0.09, 0.05, 0.1, 3, NAN, NAN]
    assert raised("entropy", {3: curve}) == ["cross:L1H0: entropy fell under 0.1 nats at step 50 0.09 False"]
    assert raised("max_logit", {0: [NAN] * 7, 1: [-np.inf] * 7}) == []
    assert raised("max_logit", {1: [np.inf] * 7})[0].startswith("L0H1: max logit went over 100 at step 1 inf")


def test_alerts_come_in_the_order_of_their_steps():
    curves = {0: [0, 0, 0, 0, 0, 0.95, 0.95], 3: [0, 0.91, 0, 0, 0, 0, 0], 1: [0, 0, 0, 0, 0, 0.99, 0]}
    assert [line.split(" at ")[1] for line in raised("first_mass", curves, usual=0.5)] == [
        "step 50 0.91 False",
        "step 250 0.95 True",
        "step 250 0.99 False",
    ]


def test_a_head_is_dead_after_five_steps_far_below_its_layers_even_share():
    # Of three heads an even share is 1/3, and a tenth of it 0.0333; the only head of its layer has all.
    assert raised("output_share", {1: [0.5, 0.03, 0.03, 0.03, 0.03, 0.03, 0.03]}) == [
        "L0H1: output fell under 0.1 of an even share for 5 watched steps at step 250 0.03 True"
    ]
    assert raised("output_share", {1: [0.03, 0.03, 0.03, 0.03, 0.04, 0.03, 0.03]}) == []
    assert raised("output_share", {3: [0.09] * 7, 1: [0.09] * 7})[0].startswith("cross:L1H0: output fell under")


def test_limits_are_changed_by_name():
    assert raised("max_logit", {0: [10] * 7}, rules_with({"max_logit": 7.5})) == [
        "L0H0: max logit went over 7.5 at step 1 10 True"
    ]
    assert rules_with({}) == RULES
    assert raised("max_logit", {0: [1000] * 7}, [replace(RULES[0], statistic="none")]) == []
    with pytest.raises(StatisticError, match="there is no alert 'logit', only max_logit, entropy, first_mass, dead"):
        rules_with({"logit": 3.0})


def test_before_there_are_steps_nothing_is_wrong():
    assert alerts(HEADS, ["max_logit"], [], np.empty((0, 4, 1))) == ()
    rule = AlertRule("own", "distance", True, 3.0, "mean distance", "tokens")
    assert rule.condition == "mean distance over 3 tokens"
    (alert,) = alerts(HEADS[:1], ["distance"], [7], np.array([[[3.5]]]), [rule])
    assert alert.to_dict() == {
        "head": "L0H0",
        "rule": "own",
        "statistic": "distance",
        "limit": 3.0,
        "step": 7,
        "value": 3.5,
        "lasts": True,
        "words": "L0H0: mean distance went over 3 tokens at step 7",
    }
