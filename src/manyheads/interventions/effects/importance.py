"""`importance`: how much each head is worth on some texts, by ablation or by gradient, with intervals and a ranking.

Ablation is exact: each head is taken away by itself, with all others in place, and the change is its importance.
Gradients are quicker for large models and measure only how steep the metric is at the unedited model;
`Importance.agreement` compares how the two rank. Neither tells what a *set* of heads is worth, because backup heads
take over: `removal_curve` measures that. Where no estimator is named, the number of heads decides
(`Runner.many_heads`), and `notes["estimator"]` says so: an ablation costs each head about two thirds of a forward pass,
a gradient costs all heads together one and a half.

A gradient is taken in a gate on each head, which multiplies its output before the output projection and stands at 1.
One forward and one backward pass give the derivative in the gate of every head, text and token. Michel et al. 2019 take
its absolute value; `reduce` chooses whether it is summed over tokens, texts or whole batches before that.

A metric that compares with the unedited model itself (1 - cosine, KL) is flat there: its derivative is 0, and a
gradient carries no information. What rises then is the square of the output's derivative, `1/2 |P de/dg|^2 / |e|^2` of
an embedding e, where P projects onto the directions that turn it. The norm is taken over orthonormal directions drawn
at random, one backward pass each: exact when there are as many as the embedding is wide, unbiased with fewer.
Source: Michel et al. 2019, Are sixteen heads really better than one?, section 4.1.

`lowest_heads` chooses the least important heads that can be cut out together. Where query heads share key/value heads
(GQA), a single head cannot go. What can is a whole group, a key/value head with its query heads, or the same number of
heads out of every group. A group is worth what is lost when all of it is taken away together. The sum over its heads,
each taken away by itself, is not that: heads of a group stand in for each other, so the sum is too small, and not by
the same factor in each group (docs/reference/pruning.md has the figures).

Whole groups go unless another way is asked for, because people who prune a GQA model want its cache smaller, and a head
that leaves its group frees none: the keys and values stay for the others. Of whole groups, as many of each layer come
first: a config counts heads once for all layers, so stock transformers can then load the result. Where the number makes
no such cut, the least groups of all layers go, into a compact checkpoint. What each other way would lose is said too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.base import Json, brief, first_line, one_of, plural, whole
from manyheads.edits import (
    METRICS,
    TOKENS_OF_A_BATCH,
    Metric,
    MetricLike,
    Runner,
    choose_metric,
    plan_edits,
    read_under,
    require_loaded,
    require_numbers,
)
from manyheads.errors import HeadError, PlanError, StatisticError
from manyheads.heads import Head, HeadLike, HeadSet, parse_heads
from manyheads.inputs import BATCH_TOKENS, Batch, Inputs, InputsLike, Reading, read
from manyheads.interventions.prune import (
    ANYWHERE,
    EACH_GROUP,
    EACH_LAYER,
    costs_without,
    groups_of,
    least_groups,
    ways_to_lose,
)
from manyheads.machine import require_all_heads
from manyheads.measurement.corpus_run import Engine, Items, Result
from manyheads.models import AttentionCall, LoadedModel, tap
from manyheads.own_functions import code_of, name_of
from manyheads.plan import Ablate, AblationKind, Edit, Plan
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.results import Shown
from manyheads.spec import ModelSpec
from manyheads.statistics import mean_interval

if TYPE_CHECKING:
    import pandas as pd


Estimator = Literal["ablation", "gradient"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
Reduce = Literal["token", "example", "batch"]
REDUCE: tuple[Reduce, ...] = get_args(Reduce)
GRADIENT_TOKENS = 256  # of a batch: the activations of all layers are held at once, 2 MB a token in a model of 135 M
SUMMED_TOKENS = 1_024  # of a batch whose gradients are summed as one (`reduce`): its size is part of what is measured
DIRECTIONS = 16  # of an embedding: over 200 texts a head's mean square is then good to about 3 %


@dataclass(frozen=True, eq=False)
class Importance(PerHeadResult):
    """The importance of each head: `values[head]` in `unit`, means over texts of `per_text[text, head]`.

    A high value is an important head. `notes` names the metric and why it was chosen, and how values were computed.
    """

    spec: ModelSpec
    estimator: Estimator
    metric: str
    unit: str
    per_text: Float64[ndarray, "text head"]
    notes: dict[str, str]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.spec.heads.heads

    @cached_property
    def values(self) -> Float64[ndarray, "head"]:
        return self.per_text.mean(0)

    @cached_property
    def interval(self) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """The 95 % interval of each value over texts (`statistics.mean_interval`)."""
        return mean_interval(self.per_text)

    @cached_property
    def normalised(self) -> Float64[ndarray, "head"]:
        """Values divided by their layer's Euclidean norm, as Michel et al. 2019 rank heads across layers."""
        shares = np.zeros_like(self.values)
        for stack, layer in self.spec.heads.by_layer():
            in_layer = np.array([(head.stack, head.layer) == (stack, layer) for head in self.heads])
            norm = np.linalg.norm(self.values[in_layer])
            shares[in_layer] = self.values[in_layer] / norm if norm > 0 else 0.0
        return shares

    def ranking(self, *, normalised: bool = False) -> tuple[Head, ...]:
        """Heads from the least to the most important: the order in which to remove them."""
        order = np.argsort(self.normalised if normalised else self.values, kind="stable")
        return tuple(self.heads[index] for index in order)

    def lowest(self, count: int, *, normalised: bool = False, groups: bool = False) -> HeadSet:
        """The `count` least important heads, one by one as they were measured, whatever they share.

        `groups`: in whole groups of heads that share a key/value head, a group being worth the mean of its heads. With
        GQA only these can be cut out anywhere, and only they free cache (`interventions.costs_without`); where no heads
        share one, or all of a layer do (MQA), they are the same heads as without.
        Errors: StatisticError for more than there are; HeadError where whole groups do not come to `count`.
        """
        if type(count) is not int or not 0 <= count <= len(self.heads):
            raise StatisticError(f"{count!r} heads of {len(self.heads)} were asked for: give a number up to that.")
        if not groups:
            return parse_heads(list(self.ranking(normalised=normalised)[:count]), self.spec.shape)
        values = self.normalised if normalised else self.values
        return least_groups(self.spec, dict(zip(self.heads, values.tolist(), strict=True)), count)

    def __getitem__(self, head: HeadLike) -> float:
        heads = self.spec.select(head)
        if len(heads) != 1:
            raise HeadError(f"{head!r} is {len(heads)} heads: ask for one, as in importance['L3H7'].")
        return float(self.values[self.heads.index(heads.heads[0])])

    def agreement(self, other: Importance) -> float:
        """Spearman's rank correlation of two estimates of the same heads. Errors: StatisticError for other heads."""
        if self.heads != other.heads:
            raise StatisticError("these two estimates have different heads: compare estimates of one model.")
        return rank_correlation(self.values, other.values)

    def to_dict(self) -> Json:
        """Plain data for JSON: what was measured, and a row for each head as in `to_pandas`."""
        return {
            "estimator": self.estimator,
            "metric": self.metric,
            "unit": self.unit,
            "heads": self.rows(),
            "notes": self.notes,
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each head: its name and place, importance, low, high, normalised, rank (0 = least important)."""
        import pandas as pd

        low, high = self.interval
        rank = {head: position for position, head in enumerate(self.ranking())}
        return pd.DataFrame(
            {
                **self.head_columns(),
                "importance": self.values,
                "low": low,
                "high": high,
                "normalised": self.normalised,
                "rank": [rank[head] for head in self.heads],
            }
        )

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        top = ", ".join(str(head) for head in self.ranking()[::-1][:3])
        source = f"{len(self.heads)} heads by {self.estimator}, {self.metric} on {len(self.per_text)} texts"
        return f"Importance({source}; most important: {top})"


@shows_progress("measuring importance")
def importance(
    lm: LoadedModel,
    given: InputsLike,
    estimator: Estimator | Literal["auto"] = "auto",
    *,
    metric: MetricLike = "auto",
    kind: AblationKind | Callable[..., Tensor] = "zero",
    corpus: InputsLike | None = None,
    reduce: Reduce = "example",
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
    resume: str | Path | None = None,
    engine: Engine | str | None = None,
) -> Importance:
    """How much each head is worth on these texts.

    - `lm`: a loaded model.
    - `given`: what is read, as in `effect`.
    - `estimator`: "ablation" takes each head away, and is exact; "gradient" is Michel et al. 2019, or, for a metric
      that is flat at the unedited model, the squared derivative of the output. "auto" is ablation for up to 100 heads,
      and wherever a gradient is not to be had or `kind` or `corpus` says what takes a head's place; else the gradient.
      `notes["estimator"]` gives the reason.
    - `metric`: as in `effect`.
    - `kind`: how a head is taken away, as in `Ablate`; or what is done to it, a function as in `Edit`.
    - `corpus`: texts from which "mean" and "resample" take their values; None: the texts themselves, as `notes`
      records.
    - `reduce`: where the gradient's absolute value is taken: per "token", "example" or "batch".
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how much is read, and of how much.
    - `resume`: a folder in which each batch's numbers are kept: the same call goes on with them.
    - `engine`: "ray", or a `manyheads.ray.Engine`, whose processes read the batches; the numbers are the same.

    Cost: for ablation, about (L + 1) / 2 forward passes for each head of a layer, in a model of L layers: half of what
    one ablation after another takes. For gradients, one forward and one backward pass (16 backward for a flat metric).
    Errors: StatisticError, TextError, PlanError, ModelError, EngineError. Source: Michel et al. 2019, section 4.1.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "importance")
    one_of("estimator", estimator, ("auto", *ESTIMATORS), StatisticError)
    one_of("reduce", reduce, REDUCE, StatisticError, "is not a way to sum a gradient")
    whole("num_tokens", num_tokens, 1, StatisticError, TOKENS_OF_A_BATCH)
    inputs = Inputs.of(given)
    chosen, why = choose_metric(lm, metric, inputs.labels)
    notes = {"model": lm.name, "metric": why}
    replaced = kind != "zero" or corpus is not None
    if corpus is None and _step("L0H0", kind).needs_corpus:
        # Named once, for all processes: with each batch's own, the values of its texts would be others.
        corpus, notes["corpus"] = inputs, "the texts themselves, for want of another"
    by, notes["estimator"] = _estimator_for(lm, estimator, replaced)
    batches = _Batches(lm, inputs, metric, by, kind, corpus, reduce, num_tokens)
    notes |= batches.reading.remarks
    if estimator == "gradient" and replaced:
        raise StatisticError("kind= and corpus= are for the estimator 'ablation': a gradient replaces nothing.")
    try:
        results = batches.results(engine=engine, resume=resume and Path(resume) / by, progress=progress)
    except _NoGradient as error:
        if estimator != "auto":
            raise
        notes["estimator"] = _for_want_of_a_gradient(lm, error)
        by, batches = "ablation", replace(batches, estimator="ablation")
        results = batches.results(engine=engine, resume=resume and Path(resume) / by, progress=progress)
    values = torch.zeros(batches.reading.num_texts, len(lm.spec.heads), dtype=torch.float64, device="cpu")
    for places, result in zip(batches.places, results, strict=True):
        values[list(places)] = result["values"]
    if by == "gradient":
        require_numbers(values, chosen, "its gradient")
        notes["computed"] = _computed(chosen, reduce, DIRECTIONS)
    else:
        done = f"edit by {name_of(kind)}" if callable(kind) else f"{kind} ablation"
        notes["computed"] = f"{done} of each head; {batches.longest(results, 'because')}"
        # A head that changes no text is worth 0, or was not reached: the notes name it, so that nobody has to guess.
        idle = [head for head, column in zip(lm.spec.heads, values.T, strict=True) if not bool(column.any())]
        if idle:
            notes["unchanged"] = f"{done} of {parse_heads(idle, lm.spec.shape)} changed nothing"
    return Importance(lm.spec, by, chosen.name, chosen.unit, values.numpy(), notes)


def _estimator_for(lm: LoadedModel, estimator: Estimator | Literal["auto"], replaced: bool) -> tuple[Estimator, str]:
    """The estimator that "auto" means, and why. `replaced`: whether something is put in a head's place."""
    num_heads = len(lm.spec.heads)
    if estimator != "auto":
        return estimator, "as asked"
    if replaced:
        return "ablation", "ablation, exact: a gradient puts nothing in a head's place"
    if num_heads <= Runner.many_heads:
        return "ablation", f"ablation, exact: of up to {Runner.many_heads} heads, and there are {num_heads}"
    why = (
        f"gradient, an estimate: there are {num_heads} heads, and ablation of more than {Runner.many_heads} takes "
        f"long; exactly by estimator='ablation' (--estimator ablation)"
    )
    return "gradient", why


def _for_want_of_a_gradient(lm: LoadedModel, error: _NoGradient) -> str:
    return f"ablation, exact, though it takes long for {len(lm.spec.heads)} heads: {error.fault}"


def _step(head: Head | str, kind: AblationKind | Callable[..., Tensor]) -> Ablate | Edit:
    """What is done to a head."""
    return Edit(head, kind) if callable(kind) else Ablate(head, kind=kind)


@dataclass(eq=False)
class _Batches(Items):
    """Batches of texts, in each of which every head's worth is estimated. Fields as `importance` has them."""

    inputs: Inputs
    metric: MetricLike
    estimator: Estimator
    kind: AblationKind | Callable[..., Tensor]
    corpus: InputsLike | None
    reduce: Reduce
    num_tokens: int

    @cached_property
    def reading(self) -> Reading:
        return read(self.lm, self.inputs)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        size = self.num_tokens // 4  # smaller ones: a sweep expands them
        if self.estimator == "gradient":
            size = min(self.num_tokens, SUMMED_TOKENS if self.reduce == "batch" else GRADIENT_TOKENS)
        return tuple(self.reading.batches(size))

    @property
    def places(self) -> list[tuple[int, ...]]:
        return [batch.places for batch in self.batches]

    @cached_property
    def chosen(self) -> Metric:
        return choose_metric(self.lm, self.metric, self.inputs.labels)[0]

    @cached_property
    def runner(self) -> Runner:
        plans = [Plan(_step(head, self.kind)) for head in self.lm.spec.heads]
        return Runner.of(self.lm, plan_edits(self.lm, plans, self.corpus), self.chosen, num_tokens=self.num_tokens)

    @cached_property
    def gates(self) -> _Slopes:
        return _Slopes(self.lm, self.chosen, [(head,) for head in self.lm.spec.heads], self.reduce)

    def result(self, number: int) -> Result:
        if self.estimator == "gradient":
            return {"values": self.gates.of(number, self.batches[number])}
        values = self.runner.changes(self.batches[number])
        return {"values": values, "because": self.words(self.runner.because)}

    @property
    def key(self) -> str:
        other = None if self.corpus is self.inputs else self.corpus
        corpus = () if other is None else read(self.lm, Inputs.of(other)).batches()
        kind = code_of(self.kind) if callable(self.kind) else self.kind
        words = (self.estimator, kind, self.reduce, self.num_tokens, self.chosen.name, self.corpus is None)
        return f"importance {self.digest((*self.batches, *corpus), *words)}"


def rank_correlation(a: Float64[ndarray, "n"], b: Float64[ndarray, "n"]) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank. Errors: StatisticError."""
    import pandas as pd

    if any(len(np.unique(x)) < 2 for x in (a, b)):
        raise StatisticError("all values are equal, so there is no ranking, and no correlation.")
    ranks = np.stack([pd.Series(x).rank().to_numpy() for x in (a, b)])
    return float(np.corrcoef(ranks)[0, 1])


def gradients(
    lm: LoadedModel,
    batches: Sequence[Batch],
    metric: Metric,
    *,
    reduce: Reduce = "example",
    directions: int = DIRECTIONS,
    seed: int = 0,
    groups: Sequence[HeadSet] | None = None,
    progress: Progress | None = None,
) -> tuple[Float64[Tensor, "text head"], str]:
    """Each text's importance of each head, in the order of `lm.spec.heads`, and how it was computed.

    - `lm`: a loaded model.
    - `batches`: what it reads.
    - `metric`: what is read of each text.
    - `reduce`: one of REDUCE. Under "batch", every text of a batch carries the batch's own, so that means over texts
      are means over tokens alike.
    - `directions`: random directions in the output, for a metric that is flat at the unedited model.
    - `seed`: draws these.
    - `groups`: heads of one layer that share a gate, in place of single heads.
    - `progress`: called with how many batches are read, and of how many.

    Cost: a forward and a backward pass over each batch; of a flat metric `directions` backward passes.
    Errors: StatisticError for a metric without a derivative, or a model that cannot give one.
    """
    num_texts = sum(len(batch.places) for batch in batches)
    parts = [(head,) for head in lm.spec.heads] if groups is None else [group.heads for group in groups]
    values = torch.zeros(num_texts, len(parts), dtype=torch.float64, device="cpu")
    slopes = _Slopes(lm, metric, parts, reduce, directions, seed)
    for done, batch in enumerate(batches):
        values[list(batch.places)] = slopes.of(done, batch)
        if progress is not None:
            progress(done + 1, len(batches))
    require_numbers(values, metric, "its gradient")
    return values, _computed(metric, reduce, directions)


def _computed(metric: Metric, reduce: Reduce, directions: int) -> str:
    """How a gradient was taken, in words."""
    if not metric.flat:
        return f"|d {metric.name} / d gate|, summed by {reduce} before the absolute value"
    return (
        f"{metric.name} is flat at the unedited model, where its gradient is 0: half the squared derivative of the "
        f"output in the gate instead, over {directions} random directions"
    )


@dataclass(eq=False)
class _Slopes:
    """Derivatives in gates, batch by batch. Fields as `gradients` has them; `parts`: heads that share a gate."""

    lm: LoadedModel
    metric: Metric
    parts: Parts
    reduce: Reduce
    directions: int = DIRECTIONS
    seed: int = 0

    def __post_init__(self) -> None:
        self._generator, self._drawn = torch.Generator().manual_seed(self.seed), 0

    def of(self, number: int, batch: Batch) -> Float64[Tensor, "b part"]:
        """The values of the batch of that number among all, whichever of them this process reads."""
        if not self.metric.flat:
            return _slopes(self.lm, batch, self.metric, self.parts, self.reduce)
        return _squares(self.lm, batch, self.metric, self.parts, partial(self._basis, number))

    def _basis(self, number: int, width: int) -> Float[Tensor, "direction m"]:
        """Orthonormal directions of a batch: directions that overlap would count the same turn twice, and as many as
        the width would not be exact. Drawn behind those of all batches before it."""
        if number < self._drawn:
            self._generator.manual_seed(self.seed)
            self._drawn = 0
        draws = range(self._drawn, number + 1)
        shape, self._drawn = (width, min(self.directions, width)), number + 1
        (last,) = deque((torch.randn(shape, generator=self._generator) for _ in draws), maxlen=1)
        return torch.linalg.qr(last)[0].T


class _NoGradient(StatisticError):
    """There is no gradient to rank by, for the reason in `fault`."""

    def __init__(self, fault: str, instead: str = "") -> None:
        super().__init__(f"{fault}: use {instead}the estimator 'ablation'.")
        self.fault, self.instead = fault, instead

    def __reduce__(self) -> tuple[type[_NoGradient], tuple[str, str]]:
        return _NoGradient, (self.fault, self.instead)


Parts = Sequence[tuple[Head, ...]]  # heads that share a gate


def _slopes(lm: LoadedModel, batch: Batch, metric: Metric, parts: Parts, reduce: Reduce) -> Float64[Tensor, "b part"]:
    """The derivative of each text's own metric in the gates of its tokens."""
    with torch.enable_grad(), _gated(lm, batch) as gates:
        reading = read_under(lm, batch, metric, grad=True).reading
        changes = metric.change(torch.zeros_like(reading), reading)
    _require_slope(changes, metric)
    # Texts do not depend on each other's gates, so one backward pass through the sum gives each text its own slopes.
    slopes = gates.by_part(parts, _derivatives(lm, changes.sum(), gates.all))
    if reduce == "token":
        return torch.stack([slope.abs().sum(-1) for slope in slopes], 1)
    sums = torch.stack([slope.sum(-1) for slope in slopes], 1)
    return sums.abs() if reduce == "example" else sums.sum(0, keepdim=True).abs().expand_as(sums) / len(sums)


def _squares(
    lm: LoadedModel, batch: Batch, metric: Metric, parts: Parts, basis: Callable[[int], Float[Tensor, "direction m"]]
) -> Float64[Tensor, "b part"]:
    """Half the squared derivative of the unit embedding in the gates, in directions of that width."""
    with torch.enable_grad(), _gated(lm, batch) as gates:
        reading = read_under(lm, batch, metric, grad=True).reading
    _require_slope(reading, metric)
    if metric.name != "cosine":
        raise _NoGradient(
            f"metric {metric.name!r} is flat at the unedited model and has no derivative here", "'loss', or "
        )
    units = reading / reading.norm(dim=-1, keepdim=True)  # their derivative is tangent to the sphere: only turns count
    width = reading.shape[-1]
    directions = basis(width).to(reading)
    count = len(directions)
    total = torch.zeros(len(batch.places), len(parts), dtype=torch.float64, device="cpu")
    for number, direction in enumerate(directions):
        # The graph is needed for every direction, and its memory is freed with the last one.
        slopes = _derivatives(lm, (units * direction).sum(), gates.all, keep=number + 1 < count)
        total += torch.stack([slope.sum(-1) for slope in gates.by_part(parts, slopes)], 1).square()
    return total * width / count / 2


def _derivatives(
    lm: LoadedModel, value: Tensor, gates: Sequence[Tensor], keep: bool = False
) -> tuple[Tensor | None, ...]:
    """The derivative of one number in each gate, None where it does not depend on one. `keep`: another pass follows."""
    try:
        return torch.autograd.grad(value, gates, retain_graph=keep, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # an operation whose derivative nobody wrote
        raise _NoGradient(f"{lm.name} cannot give gradients ({first_line(error)})") from error


def _require_slope(value: Tensor, metric: Metric) -> None:
    if not value.requires_grad:
        raise _NoGradient(
            f"metric {metric.name!r} does not depend on the heads by anything that has a derivative (a count, an "
            f"argmax)"
        )


class _Gates:
    """A gate for each text, head and row of each layer, all 1."""

    def __init__(self) -> None:
        self.by_layer: dict[tuple[str, int], Float[Tensor, "b h q"]] = {}

    @property
    def all(self) -> list[Tensor]:
        return list(self.by_layer.values())

    def edit(self, call: AttentionCall) -> Tensor:
        key = (call.site.stack, call.site.layer)
        # A gate a row, not one a head: a text's own slope is the sum over its rows, whatever is padded beside it.
        self.by_layer[key] = call.out.detach().new_ones(call.out.shape[:3]).requires_grad_()
        return call.out * self.by_layer[key][..., None]

    def by_part(self, parts: Parts, slopes: Sequence[Tensor | None]) -> Iterator[Float64[Tensor, "b q"]]:
        """Derivatives in one gate on all heads of each part; zeros for a layer that nothing depends on."""
        by_layer, size = dict(zip(self.by_layer, slopes, strict=True)), len(self.all[0])
        for part in parts:
            slope = by_layer.get((part[0].stack, part[0].layer))
            if slope is None:
                yield torch.zeros(size, 1, device="cpu").double()
            else:
                yield slope[:, [head.index for head in part]].double().cpu().sum(1)


@contextmanager
def _gated(lm: LoadedModel, batch: Batch) -> Iterator[_Gates]:
    """Gates on all heads while the block runs. Errors: StatisticError where a layer's batch is not the texts."""
    gates = _Gates()
    with tap(lm.model, edits=[gates.edit], guard=False):
        yield gates
    if wrong := [gate.shape for gate in gates.all if gate.shape[0] != len(batch.places)]:
        raise _NoGradient(
            f"a layer of {lm.name} attends in a batch of {wrong[0][0]} where there are {len(batch.places)} texts (it "
            f"cuts them up), so a text's own gradient cannot be told"
        )


WAYS = {  # in the order in which they are taken
    EACH_LAYER: "the same number of groups from each layer",
    ANYWHERE: "the least groups of all layers",
    EACH_GROUP: "the same number of heads from each group",
}
Way = Literal["each layer", "anywhere", "each group"]


@dataclass(frozen=True, eq=False)
class Lowest(Shown):
    """The chosen heads, in which way they can go, and why that way.

    - `heads`, `way`, `because`: what goes, one of `WAYS` ("" where no heads share a key/value head), and why that way.
    - `groups`: what is lost without each group (all its heads together), the least first; none where no heads share a
      key/value head. By the estimator "gradient" that is an estimate without a sign. `ways`: what is lost by each way
      in which the number can go, by ablation. Both in `unit`, means over texts.
    - `frees`: parameters and bytes of cache a token that go with one "group", and with one "head" of it alone.
    - `estimator`, `why`: what ranked the heads, and why it did; `metric`, `num_texts`: what was read.
    - `bound`, `before`, `tried`: where the loss was bounded, by how much it may rise, the loss of the whole model, and
      its rise without each number of heads that was tried, in `unit`; all on these texts only. `after` is the loss
      without `heads`.
    """

    heads: HeadSet
    way: str
    because: str
    groups: dict[HeadSet, float]
    ways: dict[str, float]
    frees: dict[str, tuple[int, int]]
    estimator: Estimator
    why: str
    metric: str
    unit: str
    num_texts: int
    bound: float | None = None
    before: float | None = None
    tried: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def after(self) -> float | None:
        return None if self.before is None else self.before + self.tried[len(self.heads)]

    def __repr__(self) -> str:
        least = f"{self.way or 'each by itself'}; {self.metric} on {self.num_texts} texts"
        return brief(f"Lowest({self.heads}: {least})")

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        names = ("way", "because", "ways", "estimator", "why", "metric", "unit")
        groups = [{"heads": str(heads), "worth": worth} for heads, worth in self.groups.items()]
        frees = {
            part: {"parameters": count, "cache_bytes_per_token": size} for part, (count, size) in self.frees.items()
        }
        fields = {name: getattr(self, name) for name in names}
        tried = [{"heads": count, "change": change} for count, change in self.tried.items()]
        bounded = {
            "bound": self.bound,
            "before": self.before,
            "after": self.after,
            "evaluations": len(tried),
            "tried": tried,
        }
        return {
            "heads": str(self.heads), **fields, "texts": self.num_texts, "groups": groups, "frees": frees,
            **(bounded if tried else {}),
        }  # fmt: skip


@shows_progress("looking for the least important heads")
def lowest_heads(
    lm: LoadedModel,
    given: InputsLike,
    count: int | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    *,
    loss: float | None = None,
    way: Way | None = None,
    metric: str = "auto",
    empty_layers: bool = False,
    progress: ShowProgress = None,
) -> Lowest:
    """The least important heads that `prune_heads` can cut out together, by zero ablation on these texts.

    - `lm`: a loaded model.
    - `given`: what is read, as in `effect`.
    - `count`: how many heads go.
    - `estimator`: what ranks heads or groups, as in `importance`: the gradient for a model with over 100 heads.
    - `loss`: instead of `count`, the largest rise of the loss on these texts, in nats a token: as many heads go as it
      allows.
    - `way`: how they go where they share key/value heads: "each layer", "anywhere" (whole groups), or "each group" (as
      many heads of each: that frees no cache). None: in whole groups, as many of each layer if the number allows it;
      with `loss`, anywhere.
    - `metric`: a metric's name, as in `effect`; with `loss`, "loss".
    - `empty_layers`: a layer may lose all of its heads.
    - `progress`: called with how much is read, and of how much.

    With `loss` the number is found by bisection: the texts are read without a number of the least heads, then without
    more or fewer. The heads that are returned were tried, and so was the next larger number (if there is one), which is
    over the bound. A loss that falls again with still more heads is missed. Other texts may lose more (`effect`).

    Cost: one ranking of groups, and one of single heads where heads of each group may go, or where none share keys; of
    up to 100 heads each a sweep, of more each a forward and a backward pass. With `loss`, two passes for each number
    that is tried: log2 of the number of groups or heads.
    Errors: HeadError for a number of heads that cannot go, or not in this way, and where the least alone is over the
    bound; PlanError for a `loss` that is negative or no number; those of `importance`.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    if (count is None) == (loss is None):
        raise PlanError(f"{count=} and {loss=}: give only one, how many heads go or what that may cost.")
    if way is not None:
        one_of("way", way, WAYS, HeadError)
    if count is None:
        assert loss is not None
        check_bound("loss=", loss)
        one_of("metric", metric, ("auto", "loss"), StatisticError)
        metric = "loss"
    ways = ways_to_lose(lm.spec, count, empty_layers=empty_layers)
    if way is not None and way not in ways:
        goes = "heads can go" if count is None else f"{count} heads can go"
        can = f"{goes} by {' or '.join(map(repr, ways))}" if ways else "no heads share keys"
        raise HeadError(f"way={way!r} is not available for {lm.name}: {can}.")
    inputs = Inputs.of(given)
    chosen, _ = choose_metric(lm, metric, inputs.labels)
    if count is None:
        costs_without(lm, lm.spec.heads.heads[:1] if not ways else groups_of(lm.spec)[0])  # what cannot be cut at all
        ways = (way or ANYWHERE,) if ways else ()
    alone: dict[Head, float] = {}
    if EACH_GROUP in ways or not ways:
        worth = importance(lm, inputs, estimator, metric=chosen.name, progress=progress)
        alone = dict(zip(worth.heads, worth.values.tolist(), strict=True))
        if not ways:
            ranked_by = (worth.estimator, worth.notes["estimator"], worth.metric, worth.unit, len(worth.per_text))
            single = Lowest(worth.lowest(count or 0), "", "no heads share keys", {}, {}, {}, *ranked_by)
            if loss is None:
                return single
            ranking = {lm.spec.select(head): alone[head] for head in worth.ranking()}
            return _within(lm, inputs, single, _steps("", ranking, alone, empty_layers), loss, progress)
    reading = read(lm, inputs)
    batches = tuple(reading.batches())
    groups = groups_of(lm.spec)

    def lost(choices: Sequence[HeadSet]) -> list[float]:
        plans = plan_edits(lm, [Plan(Ablate(str(heads))) for heads in choices])
        return Runner.of(lm, plans, chosen).over(batches, progress).changes.mean(0).tolist()

    by, why = _estimator_for(lm, estimator, replaced=False)
    worths: list[float] = []
    if by == "gradient":
        try:
            small = tuple(reading.batches(GRADIENT_TOKENS))
            worths = gradients(lm, small, chosen, groups=groups, progress=progress)[0].mean(0).tolist()
        except _NoGradient as error:
            if estimator != "auto":
                raise
            by, why = "ablation", _for_want_of_a_gradient(lm, error)
    worths = worths or lost(groups)
    ranked = dict(sorted(zip(groups, worths, strict=True), key=lambda entry: entry[1]))
    first = next(iter(ranked))
    layer = (first.heads[0].stack, first.heads[0].layer)
    one_of_each = [group.heads[0] for group in groups if (group.heads[0].stack, group.heads[0].layer) == layer]
    group_costs, head_costs = costs_without(lm, first), costs_without(lm, lm.spec.select(one_of_each))
    frees = {
        "group": (group_costs.freed_parameters, group_costs.freed_cache_bytes),
        "head": (head_costs.freed_parameters // len(one_of_each), head_costs.freed_cache_bytes // len(one_of_each)),
    }
    rest = (frees, by, why, chosen.name, chosen.unit, reading.num_texts)
    if count is None:
        assert loss is not None
        (taken,) = ways
        none = Lowest(lm.spec.select([]), taken, WAYS[taken], ranked, {}, *rest)
        return _within(lm, inputs, none, _steps(taken, ranked, alone, empty_layers), loss, progress)
    heads_by_way: dict[str, HeadSet] = {}
    for name in ways:
        fits: list[Head] = []
        for step in _steps(name, ranked, alone, empty_layers):
            fits += step if len(fits) + len(step) <= count else ()
        heads_by_way[name] = lm.spec.select(fits)
    changes = dict(zip(ways, lost(list(heads_by_way.values())), strict=True))
    reasons = {
        EACH_LAYER: "only whole groups free cache, and a config can describe the same number in each layer",
        ANYWHERE: f"only whole groups free cache, and {count} heads do not divide evenly over the layers",
        EACH_GROUP: f"{count} heads are not whole groups that can go; this frees no cache",
    }
    taken = way or next(name for name in WAYS if name in ways)
    others = "; ".join(f"{WAYS[name]}: {changes[name]:+.4g}" for name in ways if name != taken)
    reason = "as asked" if way else f"since {reasons[taken]}"
    because = f"{WAYS[taken]}, {reason}: {chosen.name} {changes[taken]:+.4g}" + f" ({others})" * bool(others)
    return Lowest(heads_by_way[taken], taken, because, ranked, changes, *rest)


def check_bound(name: str, loss: float) -> None:
    """Errors: PlanError for what is no rise of the loss: negative, NaN, infinite, or no number at all."""
    if type(loss) not in (int, float) or not 0 <= loss < math.inf:
        raise PlanError(f"{name}{loss}: give the nats a token by which the loss may rise, 0 or more, as 0.01.")


def _steps(
    way: str, ranked: Mapping[HeadSet, float], alone: Mapping[Head, float], empty_layers: bool
) -> list[list[Head]]:
    """What goes one after another in this way, the least first; some head stays, and of each layer without
    `empty_layers`. `ranked`: groups, or single heads where none share keys, the least first."""
    by_layer: dict[tuple[str, int], list[HeadSet]] = {}
    for group in ranked:
        by_layer.setdefault((group.heads[0].stack, group.heads[0].layer), []).append(group)
    if way == EACH_GROUP:
        orders = (sorted(group, key=alone.__getitem__) for group in ranked)
        return [list(step) for step in zip(*orders, strict=True)][:-1]
    if way == EACH_LAYER:
        return [list(chain.from_iterable(step)) for step in zip(*by_layer.values(), strict=True)][:-1]
    steps: list[list[Head]] = []
    left = {layer: len(groups) for layer, groups in by_layer.items()}
    for group in ranked:
        layer = (group.heads[0].stack, group.heads[0].layer)
        if left[layer] > 1 or (empty_layers and sum(left.values()) > 1):
            left[layer] -= 1
            steps.append(list(group))
    return steps


def _within(
    lm: LoadedModel,
    inputs: Inputs,
    lowest: Lowest,
    steps: Sequence[list[Head]],
    bound: float,
    progress: Progress | None,
) -> Lowest:
    """As many steps as raise the loss by at most `bound` on these texts, by bisection. Errors: HeadError for none."""
    if not steps:
        raise HeadError(
            f"no head of {lm.name} can go: its layer would be left without any (--empty-layers, empty_layers=True, "
            f"allows it)."
        )
    batches, metric = tuple(read(lm, inputs).batches()), METRICS["loss"]
    before, changes = 0.0, dict[int, float]()  # number of steps -> the rise of the loss
    fits, over = 0, len(steps) + 1
    total = len(steps).bit_length() * len(batches)

    def report(done: int, _: int | None) -> None:
        if progress is not None:
            progress(len(changes) * len(batches) + done, total)

    while over - fits > 1:
        number = (fits + over) // 2
        heads = lm.spec.select(list(chain.from_iterable(steps[:number])))
        swept = Runner.of(lm, plan_edits(lm, [Plan(Ablate(str(heads)))]), metric, share=False).over(batches, report)
        before, changes[number] = metric.level(swept.before) or 0.0, float(swept.changes.mean())
        fits, over = (number, over) if changes[number] <= bound else (fits, number)
    if not fits:
        least = lm.spec.select(steps[0])
        raise HeadError(
            f"not even {least} can go, the least important of {lm.name}: without {'it' if len(least) == 1 else 'them'} "
            f"the loss rises by {changes[1]:.4g} nats a token on {plural(lowest.num_texts, 'text')}, more than the "
            f"{bound:g} that may be lost: allow more."
        )
    sizes = list(accumulate(map(len, steps)))
    because = (
        f"{lowest.because}, as many as the loss allows: {changes[fits]:+.4g} of at most {bound:+.4g} {lowest.unit}"
    )
    tried = {sizes[number - 1]: change for number, change in sorted(changes.items())}
    heads = lm.spec.select(list(chain.from_iterable(steps[:fits])))
    return replace(lowest, heads=heads, because=because, bound=bound, before=before, tried=tried)
