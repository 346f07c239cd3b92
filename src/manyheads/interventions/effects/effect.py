"""`effect`: what a plan changes in a model's work, beside what the same does to heads chosen at random.

A change by itself says little: removing any head changes something. So the plan is always run beside controls, the
same steps on as many heads drawn at random, and both come with an interval over texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.heads import Head, parse_heads
from manyheads.interventions.apply.applied import editors_of
from manyheads.interventions.apply.edits import Editor
from manyheads.interventions.effects.metrics import (
    Corpus,
    Metric,
    choose_metric,
    outputs_of,
    read_corpus,
    require_loaded,
    require_numbers,
)
from manyheads.models import tap
from manyheads.plan import Average, Copy, Plan, SkipOutputProjection, Step, describe
from manyheads.spec import ModelSpec
from manyheads.statistics import Progress

__all__ = ["Effect", "effect", "interval_over_texts"]


CONTROLS = 10  # random sets of heads: enough to see whether a change is unusual, few enough to wait for
DRAWS = 20  # tries for each random set: among few heads the same one comes again
RESAMPLES = 1_000  # of the texts, for the interval
INTERVAL = (2.5, 97.5)  # percent


@dataclass(frozen=True, eq=False)
class Effect:
    """What a plan changed. A positive `change` is for the worse.

    `change` is the mean over texts of `per_text`, in `unit`; `low` and `high` its 95 % interval over texts (bootstrap),
    None for a single text, which has none.
    `control` holds the mean change of each random set of heads. `before` and `after` are the means of what is
    compared, where that is a number a text. `per_token`, where the metric has one: each text's change, token by token.
    `notes` says why this metric, which controls, how long texts were read.
    """

    plan: Plan
    metric: str
    unit: str
    change: float
    low: float | None
    high: float | None
    per_text: Float64[ndarray, "text"]
    control: tuple[float, ...]
    before: float | None
    after: float | None
    per_token: tuple[Float64[ndarray, "_"], ...] | None
    notes: dict[str, str]

    @property
    def num_texts(self) -> int:
        return len(self.per_text)

    @property
    def share_of_controls_above(self) -> float | None:
        """How many of the random sets changed at least as much, as a share: small is unusual. None without controls."""
        return float(np.mean([each >= self.change for each in self.control])) if self.control else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "plan": self.plan.to_dict(),
            "metric": self.metric,
            "unit": self.unit,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "texts": self.num_texts,
            "before": self.before,
            "after": self.after,
            "control": list(self.control),
            "share_of_controls_above": self.share_of_controls_above,
            "notes": self.notes,
        }

    def __str__(self) -> str:
        beside = "no control"
        if self.control:
            low, high = min(self.control), max(self.control)
            beside = f"as many random heads: {np.mean(self.control):.4g} ({low:.4g} to {high:.4g})"
        unit = f" {self.unit}" if self.unit else ""
        over = "1 text" if self.low is None else f"{self.low:.4g} to {self.high:.4g} over {self.num_texts} texts"
        return f"{self.plan}: {self.metric} {self.change:+.4g}{unit} ({over}); {beside}"


def effect(
    lm: Any,
    plan: Plan | Step,
    texts: str | Sequence[Any],
    *,
    metric: str | Callable[..., Any] = "auto",
    labels: Any = None,
    corpus: Any = None,
    controls: int = CONTROLS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Effect:
    """What a plan changes on some texts, beside random controls.

    `metric`: "loss" (next token), "kl", "cosine" (1 - cosine of mean-pooled embeddings), "class_loss" and
    "class_error" (with `labels`), or your own function of (outputs, inputs) that gives one number a text, more being
    worse. "auto" chooses, and says why. `texts` may also be ready inputs: a list of mappings, each a batch. `corpus`:
    texts for "mean" and "resample" ablation; where none is given, the texts themselves serve, and that is said.

    Cost: 2 + `controls` forward passes. Errors: HeadError, PlanError, TextError; StatisticError for a metric that
    cannot be had here, or that gives NaN.
    """
    require_loaded(lm)
    if not isinstance(plan, Plan):
        plan = Plan(plan)
    chosen, why = choose_metric(lm, metric, labels)
    read = read_corpus(lm, texts, labels)
    notes = {"metric": why, "model": lm.name}
    if plan.needs_corpus and corpus is None:
        corpus, notes["corpus"] = texts, "the texts themselves, for want of another"
    drawn = random_plans(plan, lm.spec, controls, seed)
    few = ": there are no others" if 0 < len(drawn) < controls else ""
    sets = f"{len(drawn)} random set{'s' * (len(drawn) > 1)} of as many heads{few}"
    notes["control"] = sets if drawn else _no_control(plan, controls)
    notes |= read.notes
    editors = editors_of(lm, [plan, *drawn], corpus)
    before, after, changes = carried_out(lm, editors, read, chosen, progress)
    if unchanged := [describe(step) for at, step in enumerate(plan.steps) if editors[0].idle(0, at)]:
        notes["unchanged"] = "; ".join(unchanged)
    low, high = interval_over_texts(changes[:1].T.numpy())
    return Effect(
        plan,
        chosen.name,
        chosen.unit,
        float(changes[0].mean()),
        None if len(changes[0]) == 1 else float(low[0]),
        None if len(changes[0]) == 1 else float(high[0]),
        changes[0].numpy(),
        tuple(changes[1:].mean(1).tolist()),
        _level(chosen, before),
        _level(chosen, after),
        _by_token(chosen, read, before, after),
        notes,
    )


def carried_out(
    lm: Any, editors: Sequence[Editor], corpus: Corpus, metric: Metric, progress: Progress | None
) -> tuple[list[Tensor], list[Tensor], Float64[Tensor, "plan text"]]:
    """Readings before and under the first editor, where they are a number a text or token, and everyone's changes.

    Batch by batch: log-probabilities of a whole corpus would be the largest thing in memory.
    """
    before: list[Tensor] = []
    after: list[Tensor] = []
    changes = torch.zeros(len(editors), corpus.num_texts, dtype=torch.float64)
    for done, batch in enumerate(corpus.batches):
        plain = metric.read(outputs_of(lm, batch, head=metric.head), batch)
        for at, editor in enumerate(editors):
            try:
                with tap(lm.model, edits=[editor], guard=not done):
                    edited = metric.read(outputs_of(lm, batch, head=metric.head), batch)
            finally:
                editor.close()
            changes[at, list(batch.places)] = metric.change(plain, edited).double().cpu()
            require_numbers(changes[at, list(batch.places)], metric, "these texts")
            if not at and not metric.flat:
                before.append(plain)
                after.append(edited)
        if progress is not None:
            progress(done + 1, len(corpus.batches))
    return before, after, changes


def _level(metric: Metric, readings: list[Tensor]) -> float | None:
    """The mean over texts of what is compared, where it is a number a text (or token)."""
    if metric.flat:
        return None
    texts = torch.cat([each.double().nanmean(-1) if each.ndim > 1 else each.double() for each in readings])
    return float(texts.mean())


def _by_token(metric: Metric, corpus: Corpus, before: list[Tensor], after: list[Tensor]) -> Any:
    if not metric.by_token:
        return None
    rows: dict[int, ndarray] = {}
    for batch, b, a in zip(corpus.batches, before, after, strict=True):
        for place, change in zip(batch.places, (a - b).double().cpu(), strict=True):
            rows[place] = change[~change.isnan()].numpy()
    return tuple(rows[place] for place in range(corpus.num_texts))


def interval_over_texts(
    changes: Float64[ndarray, "text n"], seed: int = 0
) -> tuple[Float64[ndarray, "n"], Float64[ndarray, "n"]]:
    """The 95 % bootstrap interval of a mean over texts, column by column; NaN of a single text."""
    if len(changes) == 1:
        return np.full(changes.shape[1], np.nan), np.full(changes.shape[1], np.nan)
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = generator.multinomial(len(changes), np.full(len(changes), 1 / len(changes)), RESAMPLES) / len(changes)
    low, high = np.percentile(weights @ changes, INTERVAL, axis=0)
    return low, high


# ------------------------------------------------------------------------------------------------------- the control


def random_plans(plan: Plan, spec: ModelSpec, count: int, seed: int) -> list[Plan]:
    """The same steps on as many heads that the plan does not name, drawn at random; none where there are too few.

    Each head that the plan names has one in its place, in every step. Where a step works within a layer (average, copy,
    the output projection), the heads that the plan names there go to one other layer together. No set is drawn twice:
    where there are fewer than `count`, those that were found are given.
    """
    if type(count) is not int or count < 0:
        raise StatisticError(f"controls={count!r}: give 0 or more random sets of heads.")
    if type(seed) is not int or seed < 0:
        raise StatisticError(f"seed={seed!r}: give a whole number, 0 or more.")
    generator = np.random.Generator(np.random.PCG64(seed))
    found: dict[Plan, None] = {}
    for _ in range(DRAWS * count if plan.steps else 0):
        if (places := _places(plan, spec, generator)) is None:
            return []
        found.setdefault(Plan([_moved(step, spec, places) for step in plan.steps]))
        if len(found) == count:
            break
    return list(found)


def _places(plan: Plan, spec: ModelSpec, generator: np.random.Generator) -> dict[Head, Head] | None:
    """Another head for each that the plan names; None where there are not enough."""
    asked = [step.heads for step in plan.steps] + [step.source for step in plan.steps if isinstance(step, Copy)]
    named = parse_heads([part for text in asked for part in str(text).split(", ")], spec.shape)
    whole = [step for step in plan.steps if isinstance(step, Average | Copy | SkipOutputProjection)]
    together = {layer for step in whole for layer in spec.select(step.heads).by_layer()}
    free = named.complement().by_layer()
    places: dict[Head, Head] = {}
    for (stack, layer), indices in named.by_layer().items():
        if (stack, layer) in together:
            fitting = [other for other, heads in free.items() if len(heads) >= len(indices)]
            if not fitting:
                return None
            chosen = fitting[generator.integers(len(fitting))]
            others = generator.choice(free.pop(chosen), len(indices), replace=False)
            places |= {
                Head(stack, layer, index): Head(*chosen, int(other))
                for index, other in zip(indices, others, strict=True)
            }
    single = [head for head in named if head not in places]
    left = [Head(*layer, index) for layer, indices in free.items() for index in indices]
    if len(left) < len(single):
        return None
    order = generator.permutation(len(left))
    return places | {head: left[at] for head, at in zip(single, order, strict=False)}


def _moved(step: Step, spec: ModelSpec, places: dict[Head, Head]) -> Step:
    """One step on the heads that stand in for its own."""
    heads = str(parse_heads([places[head] for head in spec.select(step.heads)], spec.shape))
    if isinstance(step, SkipOutputProjection):
        return SkipOutputProjection(heads)
    if isinstance(step, Copy):
        sources = [places[head] for head in spec.select(step.source) if head in places]
        return Copy(heads, str(parse_heads(sources, spec.shape)))
    return replace(step, heads=heads)


def _no_control(plan: Plan, controls: int) -> str:
    return "none, as asked" if not controls else f"none: too few heads are left beside those of {plan}"
