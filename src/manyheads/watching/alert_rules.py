"""What is wrong with a head while its model trains: rules with a limit each, and the step at which a head crossed one.

A head alerts once for each rule, at the first watched step past its limit; whether it is past it now is said as well.
Limits are where people who train look twice, not proofs: 100 is where QK-clip sets in (Kimi K2 2025), entropy near 0
goes before a loss that diverges (Zhai et al. 2023), and a head that adds next to nothing to its layer's output is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from manyheads.base import Json, brief, plural
from manyheads.errors import PlanError, StatisticError
from manyheads.heads import Head
from manyheads.results import Shown


@dataclass(frozen=True)
class AlertRule:
    """A head alerts where `statistic` is above `limit`, or below it, for `in_a_row` watched steps.

    `quantity` and `unit` are words for the sentence. `of_even_share`: the limit is a part of 1 / (heads of the layer).
    """

    name: str
    statistic: str
    above: bool
    limit: float
    quantity: str
    unit: str = ""
    in_a_row: int = 1
    of_even_share: bool = False

    @property
    def condition(self) -> str:
        """ "entropy under 0.1 nats"."""
        return f"{self.quantity} {'over' if self.above else 'under'} {self._bound}"

    def __str__(self) -> str:
        return f"{self.quantity} {'went over' if self.above else 'fell under'} {self._bound}"

    @property
    def _bound(self) -> str:
        lasting = f" for {plural(self.in_a_row, 'watched step')}" if self.in_a_row > 1 else ""
        return f"{self.limit:g}{self.unit and ' ' + self.unit}{lasting}"


DEAD = 0.1  # a head that adds less than so much of an even share of its layer's output counts as dead
RULES = (
    AlertRule("max_logit", "max_logit", True, 100.0, "max logit"),
    AlertRule("entropy", "entropy", False, 0.1, "entropy", "nats"),
    AlertRule("first_mass", "first_mass", True, 0.9, "weight on the first token"),
    AlertRule("dead", "output_share", False, DEAD, "output", "of an even share", in_a_row=5, of_even_share=True),
)


ACTIONS = ("stop", "clip", "save")
"""What a watch can do by itself where a head crosses a limit: see `watch`."""


@dataclass(frozen=True)
class HeadAlert(Shown):
    """One head past one rule's limit: the first watched step at which it was, and its value there.

    `lasts`: whether it is at the last watched step, still or again. `str` is "L3H5: entropy fell under 0.1 nats at step
    1,200".
    """

    head: Head
    rule: AlertRule
    step: int
    value: float
    lasts: bool

    def __str__(self) -> str:
        return f"{self.head}: {self.rule} at step {self.step:,}"

    def __repr__(self) -> str:
        return brief(f"HeadAlert({self})")

    def to_dict(self) -> Json:
        """Plain data: head, rule, statistic, limit, step, value, lasts, words. JSON has no infinity: None."""
        return {
            "head": str(self.head),
            "rule": self.rule.name,
            "statistic": self.rule.statistic,
            "limit": self.rule.limit,
            "step": self.step,
            "value": self.value if np.isfinite(self.value) else None,
            "lasts": self.lasts,
            "words": str(self),
        }


def alerts(
    heads: Sequence[Head],
    statistics: Sequence[str],
    steps: Sequence[int] | Int64[ndarray, "step"],
    values: Float64[ndarray, "step head statistic"],
    rules: Sequence[AlertRule] = RULES,
) -> tuple[HeadAlert, ...]:
    """Every head past a rule's limit, by the step at which it crossed, then in the order of rules and heads.

    Rules whose statistic is not there say nothing; nor does NaN, which is no value.
    """
    out: list[HeadAlert] = []
    layers = [(head.stack, head.layer) for head in heads]
    even = np.array([1 / layers.count(layer) for layer in layers])
    for rule in rules:
        if rule.statistic not in statistics or len(steps) < rule.in_a_row:
            continue
        curves = values[:, :, list(statistics).index(rule.statistic)]
        limits = rule.limit * even if rule.of_even_share else np.full(len(heads), rule.limit)
        past = curves > limits if rule.above else curves < limits
        windows: ndarray = np.all(np.lib.stride_tricks.sliding_window_view(past, rule.in_a_row, axis=0), axis=-1)
        for index in np.flatnonzero(windows.any(0)).tolist():
            row = int(windows[:, index].argmax()) + rule.in_a_row - 1
            value = float(curves[row, index])
            out.append(HeadAlert(heads[index], rule, int(steps[row]), value, bool(past[-1, index])))
    return tuple(sorted(out, key=lambda alert: alert.step))


Action = str | Callable[[HeadAlert], object]


def checked_actions(on_alert: Action | Sequence[Action] | None, rules: Sequence[AlertRule]) -> tuple[Action, ...]:
    """What to do at an alert of these rules, those that a watch can raise. Errors: PlanError."""
    if on_alert is None:
        return ()
    actions = (on_alert,) if isinstance(on_alert, str) or callable(on_alert) else tuple(on_alert)
    for action in actions:
        if action not in ACTIONS and not callable(action):
            raise PlanError(
                f"on_alert={brief(repr(action))}: give 'stop', 'clip', 'save', a function of the alert, or a list."
            )
    if not rules:
        needed = ", ".join(f"{rule.name} is of {rule.statistic}" for rule in RULES)
        raise PlanError(f"on_alert= says what to do, and no alert is of a statistic that is watched: {needed}.")
    if "clip" in actions and not any(rule.name == "max_logit" for rule in rules):
        raise PlanError("on_alert='clip' acts where max_logit is past its limit: name it in statistics=.")
    return actions


def rules_with(limits: Mapping[str, float]) -> tuple[AlertRule, ...]:
    """The rules, with other limits by their names. Errors: StatisticError for a rule that there is not, PlanError for a
    limit that is not a number."""
    names = [rule.name for rule in RULES]
    if not isinstance(limits, Mapping):
        raise PlanError(f"limits={brief(repr(limits))}: give numbers by the alert's name, as {{'max_logit': 50}}.")
    for name, limit in limits.items():
        if name not in names:
            raise StatisticError(f"there is no alert {name!r}, only {', '.join(names)}.")
        if isinstance(limit, bool) or not isinstance(limit, Real) or np.isnan(float(limit)):
            raise PlanError(f"limits={{{name!r}: {brief(repr(limit))}}}: give one number.")
    return tuple(replace(rule, limit=limits.get(rule.name, rule.limit)) for rule in RULES)
