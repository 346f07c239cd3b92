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
from manyheads.interventions.applying import applied, prepare
from manyheads.interventions.metrics import Metric, choose_metric, require_numbers
from manyheads.interventions.readings import Corpus, outputs_of, read_corpus
from manyheads.plan import Average, Copy, Plan, SkipOutputProjection, Step
from manyheads.spec import ModelSpec

__all__ = ["Effect", "effect", "interval_over_texts"]

CONTROLS = 10  # random sets of heads: enough to see whether a change is unusual, few enough to wait for
RESAMPLES = 1_000  # of the texts, for the interval
INTERVAL = (2.5, 97.5)  # percent
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Effect:
    """What a plan changed. A positive `change` is for the worse.

    `change` is the mean over texts of `per_text`, in `unit`; `low` and `high` its 95 % interval over texts (bootstrap).
    `control` holds the mean change of each random set of heads. `before` and `after` are the means of what is
    compared, where that is a number a text. `per_token`, where the metric has one: each text's change, token by token.
    `notes` says why this metric, which controls, how long texts were read.
    """

    plan: Plan
    metric: str
    unit: str
    change: float
    low: float
    high: float
    per_text: Float64[ndarray, "text"]
    control: tuple[float, ...]
    before: float | None
    after: float | None
    per_token: tuple[Float64[ndarray, "token"], ...] | None
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
        return (
            f"{self.plan}: {self.metric} {self.change:+.4g}{unit} ({self.low:.4g} to {self.high:.4g} over "
            f"{self.num_texts} texts); {beside}"
        )


def effect(
    lm: Any,
    plan: Plan | Step,
    texts: str | Sequence[Any],
    *,
    metric: str | Callable[..., Any] = "auto",
    labels: Sequence[int] | None = None,
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
    if not isinstance(plan, Plan):
        plan = Plan(plan)
    chosen, why = choose_metric(lm, metric, labels)
    read = read_corpus(lm, texts, labels)
    notes = {"metric": why, "model": lm.name}
    if plan.needs_corpus and corpus is None and (isinstance(texts, str) or isinstance(texts[0], str)):
        corpus, notes["corpus"] = texts, "the texts themselves, for want of another"
    drawn = random_plans(plan, lm.spec, controls, seed)
    notes["control"] = f"{len(drawn)} random sets of as many heads" if drawn else _no_control(plan, controls)
    if read.because:
        notes["windows"] = read.because
    before = readings_of(lm, read, chosen)
    runs = []
    for done, each in enumerate((plan, *drawn)):
        prepared, _ = prepare(lm, each, corpus)
        with applied(lm, prepared) as now:
            runs.append(readings_of(lm, read, chosen))
        if not done and now.unchanged:
            notes["unchanged"] = "; ".join(now.unchanged)
        if progress is not None:
            progress(done + 1, 1 + len(drawn))
    changes = [changes_of(chosen, read, before, after) for after in runs]
    low, high = interval_over_texts(changes[0].numpy()[:, None])
    means = [_level(chosen, side) for side in (before, runs[0])]
    return Effect(
        plan,
        chosen.name,
        chosen.unit,
        float(changes[0].mean()),
        float(low[0]),
        float(high[0]),
        changes[0].numpy(),
        tuple(float(change.mean()) for change in changes[1:]),
        *means,
        _by_token(chosen, read, before, runs[0]),
        notes,
    )


def readings_of(lm: Any, corpus: Corpus, metric: Metric) -> list[Tensor]:
    return [metric.read(outputs_of(lm, batch, head=metric.head), batch) for batch in corpus.batches]


def changes_of(metric: Metric, corpus: Corpus, before: list[Tensor], after: list[Tensor]) -> Float64[Tensor, "text"]:
    changes = torch.zeros(corpus.num_texts, dtype=torch.float64)
    for batch, b, a in zip(corpus.batches, before, after, strict=True):
        changes[list(batch.places)] = metric.change(b, a).double()
    require_numbers(changes, metric, "these texts")
    return changes


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
        for place, change in zip(batch.places, (a - b).double(), strict=True):
            rows[place] = change[~change.isnan()].numpy()
    return tuple(rows[place] for place in range(corpus.num_texts))


def interval_over_texts(
    changes: Float64[ndarray, "text n"], seed: int = 0
) -> tuple[Float64[ndarray, "n"], Float64[ndarray, "n"]]:
    """The 95 % bootstrap interval of a mean over texts, column by column."""
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = generator.multinomial(len(changes), np.full(len(changes), 1 / len(changes)), RESAMPLES) / len(changes)
    low, high = np.percentile(weights @ changes, INTERVAL, axis=0)
    return low, high


# ------------------------------------------------------------------------------------------------------- the control


def random_plans(plan: Plan, spec: ModelSpec, count: int, seed: int) -> list[Plan]:
    """The same steps on as many heads that the plan does not name, drawn at random; fewer where there are no others.

    Steps that work within a layer (average, copy, the output projection) go to another layer, as many heads in each.
    """
    if count < 0:
        raise StatisticError(f"controls={count}: give 0 or more random sets of heads.")
    generator = np.random.Generator(np.random.PCG64(seed))
    named = {head for step in plan.steps for head in parse_heads(step.heads, spec.shape)}
    found = []
    for _ in range(count):
        steps = [_elsewhere(step, named, spec, generator) for step in plan.steps]
        if not steps or any(step is None for step in steps):
            return []
        found.append(Plan([step for step in steps if step is not None]))
    return found


def _elsewhere(step: Step, named: set[Head], spec: ModelSpec, generator: np.random.Generator) -> Step | None:
    """One step on other heads; None where there are not enough."""
    wanted = parse_heads(step.heads, spec.shape)
    free = [head for head in spec.heads if head not in named]
    if not isinstance(step, Average | Copy | SkipOutputProjection):
        if len(free) < len(wanted):
            return None
        drawn = [free[at] for at in generator.choice(len(free), len(wanted), replace=False)]
        return replace(step, heads=str(parse_heads(drawn, spec.shape)))
    by_layer = parse_heads(free, spec.shape).by_layer()
    picked: list[Head] = []
    sources: list[Head] = []
    for indices in wanted.by_layer().values():
        fitting = [layer for layer, others in by_layer.items() if len(others) >= len(indices)]
        if not fitting:
            return None
        stack, layer = fitting[generator.integers(len(fitting))]
        others = by_layer.pop((stack, layer))
        chosen = [int(at) for at in generator.choice(others, len(indices), replace=False)]
        picked += [Head(stack, layer, index) for index in chosen]
        sources.append(Head(stack, layer, chosen[0]))
    if isinstance(step, SkipOutputProjection):
        names = [f"{head.stack}:L{head.layer}" if head.stack else f"L{head.layer}" for head in sources]
        return SkipOutputProjection(", ".join(names))
    heads = str(parse_heads(picked, spec.shape))
    return Copy(heads, str(parse_heads(sources, spec.shape))) if isinstance(step, Copy) else Average(heads)


def _no_control(plan: Plan, controls: int) -> str:
    return "none, as asked" if not controls else f"none: too few heads are left beside those of {plan}"
