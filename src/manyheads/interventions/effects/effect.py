"""`effect`: what a plan changes in a model's outputs, beside the same steps on heads chosen at random.

A change alone means little: removing any head changes something. So a plan is always run beside controls, the same
steps on the same number of heads drawn at random (of the stream and of feed-forwards, on as many layers), and the
change comes with an interval over texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief, plural, whole
from manyheads.edits import MetricLike, Places, Runner, choose_metric, plan_edits, require_loaded
from manyheads.errors import StatisticError
from manyheads.heads import Head, HeadSet, Shape, layer_name, parse_heads
from manyheads.inputs import Inputs, InputsLike, read
from manyheads.models import LoadedModel
from manyheads.plan import Average, Copy, Edit, Plan, SkipOutputProjection, SkipPositions, Step, describe
from manyheads.progress import ShowProgress, shows_progress
from manyheads.results import NotIterated, Plotted, Shown
from manyheads.spec import ModelSpec
from manyheads.statistics import mean_interval

CONTROLS = 10  # random sets of heads: enough to see whether a change is unusual, few enough to wait for
DRAWS = 20  # tries for each random set: among few heads the same one comes again


@dataclass(frozen=True, eq=False)
class Effect(Shown, Plotted, NotIterated):
    """The effect of a plan on a metric. A positive `change` is for the worse.

    `change` is the mean over texts of `per_text`, in `unit`; `low` and `high` are its 95 % interval over texts
    (`statistics.mean_interval`), None for fewer than 5 texts.
    `control` holds the mean change of each random set of heads. `before` and `after` are the means of the readings
    that are compared, where a reading is one number per text. `per_token`, where the metric has one: each text's
    change, token by token. `notes` records why this metric, which controls, and how long texts were read. `num_heads`:
    how many heads the plan names, those that a copy reads among them.
    """

    instead = "its numbers are .change, .low and .high, and .per_text is each text's change"

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
    num_heads: int

    @property
    def num_texts(self) -> int:
        return len(self.per_text)

    @property
    def share_of_controls_above(self) -> float | None:
        """The share of random sets that changed at least as much: a small one is unusual. None without controls."""
        return float(np.mean([change >= self.change for change in self.control])) if self.control else None

    def to_dict(self) -> Json:
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

    def __repr__(self) -> str:
        return brief(f"Effect({self})")

    def __str__(self) -> str:
        controls = "no control"
        if self.control:
            low, high = min(self.control), max(self.control)
            things = "layers" if self.plan.on_places and not self.plan.on_heads else "heads"
            controls = f"the same number of random {things}: {np.mean(self.control):.4g} ({low:.4g} to {high:.4g})"
        unit = f" {self.unit}" if self.unit else ""
        texts = plural(self.num_texts, "text")
        over = texts if self.low is None else f"{self.low:.4g} to {self.high:.4g} over {texts}"
        return f"{self.plan}: {self.metric} {self.change:+.4g}{unit} ({over}); {controls}"


@shows_progress("measuring the effect")
def effect(
    lm: LoadedModel,
    plan: Plan | Step,
    given: InputsLike,
    *,
    metric: MetricLike = "auto",
    corpus: InputsLike | None = None,
    controls: int = CONTROLS,
    seed: int = 0,
    progress: ShowProgress = None,
) -> Effect:
    """What a plan changes on some texts, beside random controls.

    - `lm`: a loaded model.
    - `plan`: a plan, or one step.
    - `given`: what is read; also ready inputs: a list of mappings, each a batch.
    - `metric`: "loss" (next token), "kl", "cosine" (1 - cosine of mean-pooled embeddings), "class_loss" and
      "class_error" (of `mh.Inputs(texts, labels=...)`), or a function of (outputs, inputs) that returns one number per
      text, where more is worse. "auto" chooses one, and `notes` records why.
    - `corpus`: texts for "mean" and "resample" ablation; without one the texts themselves serve, which `notes` records.
    - `controls`: how many sets of random heads the same steps are run on.
    - `seed`: draws these sets.
    - `progress`: called with how much is read, and of how much.

    Cost: 2 + `controls` forward passes. Errors: HeadError, PlanError, TextError; StatisticError for a metric that this
    model or these texts cannot give, or that is NaN.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    require_loaded(lm)
    if not isinstance(plan, Plan):
        plan = Plan(plan)
    inputs = Inputs.of(given)
    chosen, why = choose_metric(lm, metric, inputs.labels)
    reading = read(lm, inputs)
    batches = tuple(reading.batches())
    notes = {"metric": why, "model": lm.name}
    if plan.needs_corpus and corpus is None:
        corpus, notes["corpus"] = inputs, "the texts themselves, for want of another"
    layers = None
    for step in plan.on_places.values():
        assert step.place is not None
        layers = Places.of(lm.model, lm.spec, step.place).shape
    drawn = random_plans(plan, lm.spec, controls, seed, layers)
    few = ": there are no others" if 0 < len(drawn) < controls else ""
    things = " and ".join(["heads"] * bool(plan.on_heads) + ["layers"] * bool(plan.on_places))
    sets = f"{len(drawn)} random set{'s' * (len(drawn) > 1)} of the same number of {things}{few}"
    why_none = f"too few {things} are left beside those of {plan}" if things else "positions belong to no head"
    if len(_named_heads(plan, lm.spec)) == sum(site.num_heads for site in lm.spec.sites):
        why_none = "the plan is on every head, so that no others are left to draw"
    none = "none, as asked" if not controls else f"none: {why_none}"
    notes["control"] = sets if drawn else none
    notes |= reading.remarks
    # The plan is the first intervention, its controls follow: one reading of the corpus serves all of them. Each runs
    # by itself, so that no number depends on what shares its batch.
    plans = plan_edits(lm, [plan, *drawn], corpus)
    swept = Runner.of(lm, plans, chosen, share=False).over(batches, progress)
    changes = swept.changes.T.contiguous()
    if unchanged := [describe(step) for place, step in enumerate(plan.steps) if plans.editors[0].idle(0, place)]:
        notes["unchanged"] = "; ".join(unchanged)
    low, high = mean_interval(changes[:1].T.numpy())
    per_token: dict[int, ndarray] = {}
    if chosen.by_token:
        # Batches go by length, so texts are put back into their own order; padding and first tokens are NaN.
        for batch, old, new in zip(batches, swept.before, swept.after, strict=True):
            for place, change in zip(batch.places, (new - old).double().cpu(), strict=True):
                per_token[place] = change[~change.isnan()].numpy()
    return Effect(
        plan,
        chosen.name,
        chosen.unit,
        float(changes[0].mean()),
        None if np.isnan(low[0]) else float(low[0]),
        None if np.isnan(high[0]) else float(high[0]),
        changes[0].numpy(),
        tuple(changes[1:].mean(1).tolist()),
        chosen.level(swept.before),
        chosen.level(swept.after),
        tuple(per_token[place] for place in range(reading.num_texts)) if chosen.by_token else None,
        notes,
        len(_named_heads(plan, lm.spec)),
    )


def random_plans(plan: Plan, spec: ModelSpec, count: int, seed: int, layers: Shape | None = None) -> list[Plan]:
    """The same steps on the same number of heads that the plan does not name, drawn at random; none where there are too
    few.

    Each head that the plan names has one in its place, in every step. Where a step works within a layer (average, copy,
    the output projection), the heads that the plan names there go to one other layer together. So do edits of the
    stream and of feed-forwards, to layers that no step names so: `layers` are those that have them. No set is drawn
    twice: where fewer than `count` exist, fewer are returned.
    """
    whole("controls", count, 0, StatisticError, "0 or more random sets of heads")
    whole("seed", seed, 0, StatisticError)
    generator = np.random.Generator(np.random.PCG64(seed))
    plans: dict[Plan, None] = {}  # a set in the order of drawing
    for _ in range(DRAWS * count if plan.on_heads or plan.on_places else 0):
        # Tried more often than sets are wanted: among few heads the same one is drawn again and again.
        substitutes, other_layers = _substitutes(plan, spec, generator), _other_layers(plan, layers or {}, generator)
        if substitutes is None or other_layers is None:
            return []
        steps: list[Step] = []
        for step in plan.steps:
            if isinstance(step, SkipPositions):
                steps.append(step)  # of the whole model, whichever heads are drawn
                continue
            if isinstance(step, Edit) and step.place is not None:
                named = parse_heads(step.layers, layers or {}).by_layer()
                places = [f"{layer_name(*other_layers[layer])} {step.place}" for layer in named]
                steps.append(replace(step, heads=", ".join(places)))
                continue
            heads = str(parse_heads([substitutes[head] for head in spec.select(step.heads)], spec.shape))
            if isinstance(step, SkipOutputProjection):
                steps.append(SkipOutputProjection(heads))
            elif isinstance(step, Copy):
                sources = [substitutes[head] for head in spec.select(step.source) if head in substitutes]
                steps.append(replace(step, heads=heads, source=str(parse_heads(sources, spec.shape))))
            else:
                steps.append(replace(step, heads=heads))
        plans.setdefault(Plan(steps))
        if len(plans) == count:
            break
    return list(plans)


def _substitutes(plan: Plan, spec: ModelSpec, generator: np.random.Generator) -> dict[Head, Head] | None:
    """A random head for each that the plan names, none of them named by it; None where there are not enough."""
    named = _named_heads(plan, spec)
    within_layer = [step for step in plan.on_heads.values() if isinstance(step, Average | Copy | SkipOutputProjection)]
    together = {layer for step in within_layer for layer in spec.select(step.heads).by_layer()}
    free = named.complement().by_layer()
    substitutes: dict[Head, Head] = {}
    for (stack, layer), indices in named.by_layer().items():
        if (stack, layer) in together:
            # The heads that share weights must stay in one layer, so a layer with enough free heads takes them all.
            wide_enough = [layer_key for layer_key, heads in free.items() if len(heads) >= len(indices)]
            if not wide_enough:
                return None
            chosen = wide_enough[generator.integers(len(wide_enough))]
            drawn = generator.choice(free.pop(chosen), len(indices), replace=False)
            substitutes |= {
                Head(stack, layer, index): Head(*chosen, int(drawn_index))
                for index, drawn_index in zip(indices, drawn, strict=True)
            }
    # After the layers that stay together, which can use only what one layer has left.
    single = [head for head in named if head not in substitutes]
    unused = [Head(*layer, index) for layer, indices in free.items() for index in indices]
    if len(unused) < len(single):
        return None
    # Single heads need no common layer: any unused head of the model can stand for them.
    order = generator.permutation(len(unused))
    return substitutes | {head: unused[position] for head, position in zip(single, order, strict=False)}


def _other_layers(
    plan: Plan, layers: Shape, generator: np.random.Generator
) -> dict[tuple[str, int], tuple[str, int]] | None:
    """A random layer of the same stack for each of which the plan edits the stream or a feed-forward; None: too few."""
    steps = plan.on_places.values()
    named = {layer for step in steps for layer in parse_heads(step.layers, layers).by_layer()}
    others: dict[tuple[str, int], tuple[str, int]] = {}
    for stack in sorted({stack for stack, _ in named}):
        of_stack = sorted(layer for layer in named if layer[0] == stack)
        free = [(stack, layer) for layer, has in enumerate(layers[stack]) if has and (stack, layer) not in named]
        if len(free) < len(of_stack):
            return None
        order = generator.permutation(len(free))
        others |= {layer: free[position] for layer, position in zip(of_stack, order, strict=False)}
    return others


def _named_heads(plan: Plan, spec: ModelSpec) -> HeadSet:
    """Every head that a plan names, those that a copy reads among them."""
    steps = plan.on_heads.values()
    texts = [step.heads for step in steps] + [step.source for step in steps if isinstance(step, Copy)]
    return parse_heads([part for text in texts for part in str(text).split(", ")], spec.shape)
