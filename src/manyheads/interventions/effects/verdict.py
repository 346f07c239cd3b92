"""`verdict`: an effect in plain words, from its rank among random heads, before any number; the same of importance.

A change of 0.005 says nothing to a reader; "7 of 10 random heads matter at least as much" does. The rule stands here
alone, so that the command, the page and a notebook cannot differ. It counts changes by size, up or down: a plan that
lowers the loss a little while random heads raise it a lot does not stand out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from manyheads.base import Json, brief
from manyheads.interventions.effects.effect import Effect
from manyheads.interventions.effects.importance import Importance
from manyheads.plan import SkipOutputProjection, describe
from manyheads.results import Shown

ROUNDING = 1e-9  # a smaller change is that of float32 sums in another order
FEWEST_CONTROLS = 5  # with fewer, one random head more or less would turn the verdict round
MOST = 0.5  # of the controls: a plan that this share of them equals is an ordinary one
LITTLE = 0.05  # of the most important head: less is little
NAMED = 6  # heads that a sentence names

Level = Literal["nothing", "no control", "too few", "barely", "more than most", "stands out"]


@dataclass(frozen=True)
class Verdict(Shown):
    """What an effect comes to. `words` holds it all: one sentence, or two where something is to be added.

    `above` of `controls` random sets change the metric at least as much, up or down; `things` names what they are.
    """

    level: Level
    words: str
    above: int
    controls: int
    things: str

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return brief(f"Verdict({self.words})")

    def __str__(self) -> str:
        return self.words


def verdict(outcome: Effect) -> Verdict:
    """What an effect comes to, beside its controls.

    "nothing": the change is rounding. "no control", "too few": there are no random heads, or fewer than 5, so there is
    no verdict. "barely": at least half of them change as much. "more than most": fewer do. "stands out": none does.
    """
    count = len(outcome.control)
    above = sum(abs(change) >= abs(outcome.change) for change in outcome.control)
    things = control_things(outcome)
    matter = f"{above or 'none'} of {count} {things} matter{'s' if above < 2 else ''}"
    beside = f"{matter} at least as much" if above else f"{matter} as much"
    level: Level
    unchanged = outcome.notes.get("unchanged", "")
    # A plan whose steps all did nothing still runs other sums than the model itself, which may differ by more.
    if abs(outcome.change) < ROUNDING or unchanged == "; ".join(describe(step) for step in outcome.plan.steps):
        level, words = "nothing", "Changes nothing here"
        words += f": {unchanged} has no effect" if unchanged else ""
    elif not count:
        # The note says why there is none: "none, as asked", or "none: too few heads are left beside those of ...".
        level, words = "no control", f"No verdict: there is no control{outcome.notes['control'].removeprefix('none')}"
    elif count < FEWEST_CONTROLS:
        level, words = "too few", f"No verdict from {count} {things}: at least {FEWEST_CONTROLS} are needed"
    elif above >= MOST * count:
        level, words = "barely", f"Barely matters: {beside}"
    else:
        level = "more than most" if above else "stands out"
        words = f"{'Not set apart from chance' if above else 'Stands out'}: {beside}"
        if outcome.low is not None and outcome.high is not None and outcome.low <= 0 <= outcome.high:
            words += ". But its interval over texts includes 0"
        elif outcome.change < 0:
            words += f". It is for the better: {outcome.metric} falls"
    return Verdict(level, f"{words}.", above, count, things)


def control_things(outcome: Effect) -> str:
    """What the random sets of an effect are: "random heads", "random sets of the same number of heads", "random layers"
    ..."""
    steps = tuple(outcome.plan.on_heads.values())
    plural = "s" * (len(outcome.control) != 1)
    places = tuple(outcome.plan.on_places.values())
    whole_layers = all(isinstance(step, SkipOutputProjection) for step in steps)
    one_layer = whole_layers and len(steps + places) == 1 and "," not in str((steps + places)[0].heads)
    if one_layer or (outcome.num_heads == 1 and not places):
        return f"random {'layer' if whole_layers else 'head'}{plural}"
    mixed = "heads and layers" if places else "heads"
    return f"random set{plural} of the same number of {'layers' if whole_layers else mixed}"


def importance_verdict(result: Importance) -> str:
    """How importance is spread over heads, in two or three sentences: how few hold half of it, how many matter little.

    Heads without which the metric improves are counted as worth nothing. There is no control: no head is left out. But
    where intervals over texts are known, a head whose interval includes 0 makes no headline of its own.
    """
    worth = np.clip(result.values, 0, None)
    largest, total = float(worth.max(initial=0.0)), float(worth.sum())
    if not bool((np.abs(result.values) >= ROUNDING).any()):
        return "No head by itself changes anything on these texts."
    order, num_texts = result.ranking()[::-1], len(result.per_text)
    # A head that is worth the same on every text has no interval but its value.
    low, high = (np.where(np.isnan(end), result.values, end) for end in result.interval)
    crosses = {head for head, least, most in zip(result.heads, low, high, strict=True) if least <= 0 <= most}
    if len(crosses) == len(order):
        return f"No head's importance is clear of 0: over these {num_texts} texts the interval of each includes it."
    words = "No head is worth anything by itself on these texts."
    if largest >= ROUNDING:
        few = int(np.searchsorted(np.cumsum(np.sort(worth)[::-1]), total / 2)) + 1
        named = ", ".join(map(str, order[: min(few, NAMED)])) + (" and others" if few > NAMED else "")
        words = f"Half of all importance is in {few} of {len(order)} heads: {named}."
        if unclear := len(crosses.intersection(order[:few])):
            whose = "its interval" if few == 1 else f"the interval of {unclear} of them"
            words += f" But {whose} over texts includes 0."
        if little := int((worth < LITTLE * largest).sum()):
            words += f" {little} matter{'s' * (little == 1)} little: less than {LITTLE:.0%} of {order[0]}."
    if better := int((high < -ROUNDING).sum()):
        words += f" Without {better} of them, one at a time, {result.metric} falls, which is for the better."
    return words
