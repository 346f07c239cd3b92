"""`verdict`: an effect in plain words, from its rank among random heads, before any number.

A change of 0.005 says nothing to a reader; "7 of 10 random heads matter at least as much" does. The rule stands here
alone, so that the command, the page and a notebook cannot differ. It counts changes by size, up or down: a plan that
lowers the loss a little while random heads raise it a lot does not stand out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyheads.interventions.effects.effect import Effect
from manyheads.plan import SkipOutputProjection

ROUNDING = 1e-9  # a smaller change is that of float32 sums in another order
FEWEST_CONTROLS = 5  # with fewer, one random head more or less would turn the verdict round
MOST = 0.5  # of the controls: a plan that this share of them equals is an ordinary one

Level = Literal["nothing", "no control", "too few", "barely", "more than most", "stands out"]


@dataclass(frozen=True)
class Verdict:
    """What an effect comes to. `words` holds it all: one sentence, or two where something is to be added.

    `above` of `controls` random sets change the metric at least as much, up or down; `things` names what they are.
    """

    level: Level
    words: str
    above: int
    controls: int
    things: str

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
    if abs(outcome.change) < ROUNDING:
        level, words = "nothing", "Changes nothing here"
        if "unchanged" in outcome.notes and outcome.change == 0:
            words += f": {outcome.notes['unchanged']} has no effect"
    elif not count:
        # The note says why there is none: "none, as asked", or "none: too few heads are left beside those of ...".
        level, words = "no control", f"No verdict: there is no control{outcome.notes['control'].removeprefix('none')}"
    elif count < FEWEST_CONTROLS:
        level, words = "too few", f"No verdict from {count} {things}: at least {FEWEST_CONTROLS} are needed"
    elif above >= MOST * count:
        level, words = "barely", f"Barely matters: {beside}"
    else:
        level = "more than most" if above else "stands out"
        words = f"{'Matters more than most' if above else 'Stands out'}: {beside}"
        if outcome.low is not None and outcome.high is not None and outcome.low <= 0 <= outcome.high:
            words += ". But its interval over texts includes 0"
        elif outcome.change < 0:
            words += f". It is for the better: {outcome.metric} falls"
    return Verdict(level, f"{words}.", above, count, things)


def control_things(outcome: Effect) -> str:
    """What the random sets of an effect are: "random heads", "random sets of as many heads", "random layers" ..."""
    steps = tuple(outcome.plan.on_heads.values())
    plural = "s" * (len(outcome.control) != 1)
    whole_layers = all(isinstance(step, SkipOutputProjection) for step in steps)
    one_layer = whole_layers and len(steps) == 1 and "," not in str(steps[0].heads)
    if outcome.num_heads == 1 or one_layer:
        return f"random {'layer' if whole_layers else 'head'}{plural}"
    return f"random set{plural} of as many {'layers' if whole_layers else 'heads'}"
