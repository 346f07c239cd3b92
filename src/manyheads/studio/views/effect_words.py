"""What a plan changed, in plain words: a headline of what a reader of the text sees, and one quiet line under it.

A headline has no unit. It says what changed of the guesses of a language model, of the nearest sentences of a model
that embeds, else how much likelier the text got; or that nothing changed which can be told from chance. The quiet line
says what random heads do, or why there are none. `sentence` is the whole measurement with its unit, in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from manyheads.base import percent
from manyheads.interventions import Effect, verdict
from manyheads.interventions.effects import FEWEST_CONTROLS, ROUNDING
from manyheads.own_functions import name_of
from manyheads.plan import (
    Ablate,
    Average,
    Copy,
    Edit,
    Plan,
    Scale,
    SkipOutputProjection,
    SkipPositions,
    Step,
    copied_words,
)
from manyheads.spec import ModelSpec
from manyheads.studio.schema.experiments import Guess, Neighbour

NEAREST = 5  # example sentences that are called the nearest
MOST_STEPS = 3  # that the sentence names one by one; of a longer plan it gives the number
FEWEST_DECIMALS = 9  # of a number in a sentence: what is smaller is rounding
INSTEAD = {
    "mean": "held at the mean output",
    "resample": "as on another text",
    "first": "looking at the first token alone",
}
WHY_NONE = {  # the beginning of the library's note -> the same for a reader who sees what was changed
    "the plan is on every head": "every head was changed",
    "positions belong to no head": "positions belong to no head",
    "too few heads are left": "too few heads are left to draw from",
    "as asked": "no random heads were run",
}


def headline(
    outcome: Effect,
    spec: ModelSpec,
    guesses: Sequence[Guess] = (),
    control_guesses: Sequence[float] = (),
    neighbours: Sequence[Neighbour] = (),
) -> tuple[str, str]:
    """The headline of an experiment, and the quiet line under it.

    `guesses`: next tokens before and after, of a language model; `control_guesses`: the probability of the likeliest
    one before, under each random set. `neighbours`: example sentences before and after, of a model that embeds.
    """
    ranked = verdict(outcome)
    action = action_words(outcome.plan, spec)
    if ranked.level == "nothing":
        idle = "unchanged" in outcome.notes and f": {outcome.notes['unchanged']} has no effect here"
        return f"{action}, nothing changes{idle or ''}.", ""
    by_chance = ranked.level in ("barely", "more than most")
    # The end of the text may change where its tokens on average do not, and the other way round.
    telling = not by_chance and not control_guesses
    if guesses and len(control_guesses) >= FEWEST_CONTROLS:
        first = max(guesses, key=lambda guess: guess.before)
        moved = abs(first.after - first.before)
        telling = moved > max(abs(share - first.before) for share in control_guesses)
    changed, aside = _changed(outcome, guesses if telling or len(control_guesses) < FEWEST_CONTROLS else (), neighbours)
    if by_chance and not telling:
        if control_guesses:
            first = max(guesses, key=lambda guess: guess.before)
            aside = f"The guess {_quoted(first.token)}: {_move(first)}; {_against(outcome, control_guesses)}"
        return f"{action}, nothing changes that can be told from chance.", f"{ranked.words} {aside}".strip()
    return f"{action}, {changed}.", f"{aside} {_against(outcome, control_guesses if telling else ())}".strip()


def _changed(outcome: Effect, guesses: Sequence[Guess], neighbours: Sequence[Neighbour]) -> tuple[str, str]:
    """What a reader sees of a change, as a clause, and a sentence beside it."""
    if guesses:
        first, now = (max(guesses, key=lambda guess: getattr(guess, side)) for side in ("before", "after"))
        if first.token == now.token:
            return f"it still guesses {_quoted(first.token)} ({_move(first)})", ""
        return (
            f"it no longer guesses {_quoted(first.token)} ({_move(first)})",
            f"It guesses {_quoted(now.token)} instead ({_move(now)}).",
        )
    if neighbours:
        near, now = (
            [entry.sentence for entry in sorted(neighbours, key=lambda entry: -getattr(entry, side))[:NEAREST]]
            for side in ("before", "after")
        )
        new = [text for text in now if text not in near]
        if new:
            count = f"{len(new)} of its {NEAREST} nearest sentences changed."
            return f"the model takes {_quoted(new[0].rstrip('.'))} for a neighbour of your sentence", count
        order = "" if near == now else ", in another order"
        return f"your sentence keeps its {NEAREST} nearest sentences{order}", ""
    if outcome.metric == "loss":
        # The loss is a mean of logarithms: its change is the factor of the geometric mean of the tokens' probabilities.
        factor = math.exp(min(abs(outcome.change), 700.0))
        size = percent(1 - 1 / factor) if factor < 2 else f"{plain(factor)} times"
        return f"each token of the text is {size} {'less' if outcome.change > 0 else 'more'} likely to be guessed", ""
    return _change_words(outcome), ""


def _against(outcome: Effect, control_guesses: Sequence[float]) -> str:
    """What the same does to random heads, or why that is not known."""
    ranked = verdict(outcome)
    if not ranked.controls:
        note = outcome.notes["control"].removeprefix("none").lstrip(":, ")
        why = next((words for begin, words in WHY_NONE.items() if note.startswith(begin)), note)
        return f"Nothing to compare with: {why}."
    if ranked.level == "too few":
        return f"Only {ranked.controls} {ranked.things} to compare with, too few for a verdict."
    if control_guesses:
        low, high = map(percent, (min(control_guesses), max(control_guesses)))
        span = low if low == high else f"{low.removesuffix(' %')} to {high}"
        return f"{len(control_guesses)} {ranked.things}: {span}."
    return ranked.words


def action_words(plan: Plan, spec: ModelSpec) -> str:
    """A plan as the beginning of a sentence: "With one map for all heads", "Without L3H1", "After 5 steps"."""
    heads = [head for site in spec.sites for head in site.heads]
    first = plan.steps[0]
    if len(plan.steps) == 1 and isinstance(first, Copy | Average) and len(spec.select(first.heads)) == len(heads):
        share = first.share if isinstance(first, Copy) else 1
        part = "" if share == 1 else f", {percent(share)} of the way"
        return f"With one map for all heads{part}"
    layers = [step for step in plan.steps if isinstance(step, SkipOutputProjection)]
    if len(layers) == len(plan.steps) and {h for s in layers for h in spec.select(s.heads)} == set(heads):
        return "Without Wᴼ"
    if len(plan.steps) == 1 and isinstance(first, Ablate) and first.kind == "zero":
        gone = set(spec.select(first.heads))
        left = [sum(head not in gone for head in site.heads) for site in spec.sites]
        if len(gone) > 1 and set(left) == {1}:
            return "With one head alone in each layer"
        if len(gone) > 1 and left == [math.ceil(site.num_heads / 2) for site in spec.sites]:
            return "With half the heads"
    return _steps_words(plan)


def _steps_words(plan: Plan) -> str:
    """The steps of a plan one by one, as the beginning of a sentence."""
    if len(plan.steps) > MOST_STEPS:
        return f"After {len(plan.steps)} steps"
    action = " and ".join(map(step_words, plan.steps))
    return action[:1].upper() + action[1:]


def sentence(outcome: Effect) -> str:
    """What a plan changed, in one plain sentence, with the random heads beside it: a number alone is over-read."""
    action = _steps_words(outcome.plan)
    if "unchanged" in outcome.notes and outcome.change == 0:
        return f"{action}, nothing changes: {outcome.notes['unchanged']} has no effect here."
    if abs(outcome.change) < ROUNDING:
        return f"{action}, nothing changes (what differs is rounding); {_control_words(outcome)}."
    return f"{action}, {_change_words(outcome)}; {_control_words(outcome)}."


def _change_words(outcome: Effect) -> str:
    """How far the metric moved, as a clause."""
    size, verb = plain(abs(outcome.change)), "rises" if outcome.change > 0 else "falls"
    if outcome.metric == "cosine":
        return f"the text's embedding turns by {plain(outcome.change)} (1 - cosine, where a right angle is 1)"
    if outcome.metric == "kl":
        return f"what is predicted moves by {plain(outcome.change)} nats a token (KL divergence)"
    if outcome.metric == "loss":
        if outcome.before is None or outcome.after is None:
            return f"the loss {verb} by {size} nats a token"
        return f"the loss {verb} by {size} nats a token, from {plain(outcome.before, 4)} to {plain(outcome.after, 4)}"
    return f"{outcome.metric} {verb} by {size}{f' {outcome.unit}' if outcome.unit else ''}"


def step_words(step: Step) -> str:
    """A step as a clause: "without L3H1"."""
    match step:
        case Ablate(kind="zero"):
            return f"without {step.heads}"
        case Ablate(kind="streaming"):
            return f"with {step.heads} seeing the text's first {step.sink} and its last {step.recent} tokens alone"
        case Ablate():
            return f"with {step.heads} {INSTEAD[step.kind]}"
        case Scale():
            return f"with {step.heads} {step.factor:g} times as loud"
        case Average():
            return f"with one mean map for the heads of {step.heads}"
        case Copy():
            source, heads = copied_words(step)
            part = "" if step.share == 1 else f"{percent(step.share)} of the way to "
            return f"with {part}the map of {source} for {heads}"
        case SkipOutputProjection():
            return f"without the output projection of {step.layer}"
        case SkipPositions():
            return "without positions"
        case Edit():
            return f"with {step.heads} edited by {name_of(step.function)}"


def _control_words(outcome: Effect) -> str:
    ranked = verdict(outcome)
    if not ranked.controls:
        return f"nothing to compare it with ({outcome.notes['control']})"
    span = " to ".join(dict.fromkeys(plain(change) for change in (min(outcome.control), max(outcome.control))))
    change = f"change{'s' * (ranked.above < 2)} it as much or more, up or down"
    return f"{ranked.controls} {ranked.things}: {span} ({ranked.above or 'none'} of them {change})"


def plain(value: float, figures: int = 3) -> str:
    """A number with so many significant figures, never in powers of ten: nobody reads 1.62e-05 in a sentence.

    >>> plain(0.0000162), plain(0.41666), plain(-1234.5), plain(0.0)
    ('0.0000162', '0.417', '-1,234', '0')
    """
    size = abs(value)
    if size < 10**-FEWEST_DECIMALS:
        return "0"
    decimals = figures - 1 - math.floor(math.log10(size))
    if decimals <= 0:
        return f"{value:,.0f}"
    text = f"{value:.{min(decimals, FEWEST_DECIMALS + figures)}f}"
    return text.rstrip("0").rstrip(".")


def _quoted(token: str) -> str:
    return f"“{token.strip()}”"


def _move(guess: Guess) -> str:
    return f"{percent(guess.before)} → {percent(guess.after)}"
