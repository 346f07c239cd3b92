"""`find_circuit`: the fewest heads that keep an answer, when every other head has the numbers of the corrupted run.

What a circuit is worth is measured by noising its complement: the model reads the clean text, every head outside of the
circuit holds the output that it has on the corrupted one, and the heads inside compute on what reaches them. Its
faithfulness is the share of the gap between the clean and the corrupted metric that is left: 1 with all heads, and with
none what embeddings and feed-forward layers do without any head.

The search starts from all heads. It measures what the removal of each would cost, puts them in that order, and removes
the longest run of cheap ones at once that leaves at least `keep`; and so on with those that are left, until no single
head can go. What is found is minimal in this sense: without any one of its heads the rest keep less. It need not be the
only such set, nor the smallest: circuits with backups have several.

Of many heads most carry nothing, and gradients (attribution patching) tell which for a few passes. They decide which
heads go first, and patches how many of these; 40 heads or more are put in order by patches alone. `notes["order"]` has
what was done. Every number that a `Circuit` holds is of patches.

`edges` asks further which heads speak to which: the path from each head of the circuit to each later one's queries,
keys and values, with all other heads held (`path_effect`), on the pairs that measure the circuit.

A set that was searched for fits the pairs on which it was. So half of the pairs are held out where there are enough,
and the circuit is measured on these, beside random sets of the same number of heads. `without` is the other side,
completeness: the same number when the circuit's heads alone are corrupted. Where it is near 0, nothing outside does the
circuit's work.

Sources: Wang et al. 2023, Interpretability in the Wild, section 4 (faithfulness, completeness, minimality); Conmy et
al. 2023, ACDC (greedy removal by patching).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor

from manyheads.base import Json, brief, one_of, whole
from manyheads.circuits.pairs import AnswersLike, Pairs, metric_of, read_pairs
from manyheads.circuits.patching import (
    ESTIMATORS,
    Direction,
    Patch,
    Patches,
    PatchEstimator,
    gap_of,
    gradients,
    require_counts,
    sweep_patches,
)
from manyheads.circuits.paths import CHANNELS, PathEffect, path_effects
from manyheads.edits import Metric, MetricLike, Runner
from manyheads.errors import StatisticError, TextError
from manyheads.heads import Head, HeadsLike
from manyheads.inputs import BATCH_TOKENS, InputsLike
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.spec import ModelSpec

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

Listed = TypeVar("Listed", bound=object)

RANDOM_SETS = 20
LEAST_HELD_OUT = 4  # pairs: with fewer, none is held out
EXACT_HEADS = 40  # about so many are left to patches alone
TRIED_AT_ONCE = 16  # numbers of removed heads that are tried, over all that are possible, and then around the largest
MOST_EDGES = 600  # paths that are measured: those of some 20 heads


@dataclass(frozen=True, eq=False)
class Circuit(PerHeadResult):
    """The heads that keep an answer, and how well, on pairs that the search did not see (`notes["pairs"]`).

    `faithfulness`: the share of the gap that the circuit keeps, all other heads corrupted; `found_with`, the same on
    the pairs of the search. `without`: what is kept when the circuit's heads alone are corrupted. `random` and
    `random_without`: the same two for random sets of the same number of heads. `costs[head]`: what the circuit loses,
    on the pairs of the search, when this head is taken out of it. `steps`: heads left and faithfulness after each step.
    `edges`: what each head tells each later one, the strongest first, where that was asked for.
    """

    spec: ModelSpec
    chosen: tuple[Head, ...]
    keep: float | None
    metric: str
    unit: str
    clean: float
    corrupted: float
    faithfulness: float
    found_with: float
    without: float
    random: tuple[float, ...]
    random_without: tuple[float, ...]
    costs: Float64[ndarray, "head"]
    steps: tuple[tuple[int, float], ...]
    notes: dict[str, str]
    edges: tuple[PathEffect, ...] = ()

    missing = "in this circuit of {first} to {last}."

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.chosen

    @property
    def share_of_random_above(self) -> float | None:
        """The share of random sets that keep at least as much. None without random sets."""
        return float(np.mean([value >= self.faithfulness for value in self.random])) if self.random else None

    def to_pandas(self) -> pd.DataFrame:
        """A row for each head of the circuit: its name and place, and what the circuit loses without it."""
        import pandas as pd

        return pd.DataFrame({**self.head_columns(), "cost": self.costs})

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "heads": self.rows(),
            "keep": self.keep,
            "metric": self.metric,
            "unit": self.unit,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "faithfulness": self.faithfulness,
            "found_with": self.found_with,
            "without": self.without,
            "random": list(self.random),
            "random_without": list(self.random_without),
            "steps": [{"heads": count, "faithfulness": value} for count, value in self.steps],
            "edges": [
                {"sender": str(*edge.senders), "receiver": str(edge.receiver), "channel": edge.channel}
                | {"effect": edge.value, "low": edge.low, "high": edge.high}
                for edge in self.edges
            ],
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        names = ", ".join(map(str, self.heads)) or "no head"
        total = len(self.spec.heads)
        beside = f"; random sets {np.mean(self.random):.2f}" if self.random else ""
        return f"Circuit({names}: {len(self.heads)} of {total} heads keep {self.faithfulness:.2f} of the gap{beside})"


@shows_progress("finding the circuit")
def find_circuit(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    metric: MetricLike = "logit_diff",
    answers: AnswersLike | None = None,
    keep: float = 0.9,
    *,
    estimator: PatchEstimator | None = None,
    first_token: bool = False,
    hold_out: bool | None = None,
    random_sets: int = RANDOM_SETS,
    edges: bool = False,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
    progress: ShowProgress = None,
) -> Circuit:
    """The fewest heads that keep a share of the clean answer when all others hold their corrupted outputs.

    - `lm`: a loaded model.
    - `clean`: the clean texts, as in `patch`.
    - `corrupted`: the corrupted texts, as in `patch`.
    - `metric`: the number read from an answer, as in `patch`.
    - `answers`: the answers, as in `patch`.
    - `keep`: the least faithfulness, above 0, at most 1.
    - `estimator`: what puts heads in order before some are removed: "exact" patches, or the "gradient" until 40 are
      left, or no more can go, and patches from there on. None: the gradient above 100 heads, where the metric has one.
    - `first_token`: read the first token of an answer that has several.
    - `hold_out`: every second pair (in an order drawn by `seed`) is kept from the search and measures what it found;
      True refuses fewer than 4 pairs and ready inputs, None holds none of them out and says so in `notes`.
    - `random_sets`: how many sets of the same number of random heads are measured beside the circuit.
    - `edges`: measure every path between two of its heads too, by denoising.
    - `seed`: draws the pairs that are held out, and the random sets.
    - `num_tokens`: the size of a batch in tokens, padding included.
    - `progress`: called with how many heads are decided, and of how many.

    Cost: for each round of the search some 1.5 forward passes for each head that is left; most rounds remove many.
    Gradients stand for the first round with two passes forward and back. In a causal model a pass reads only the tokens
    from the first that differs on. Edges: for each two heads of different layers a forward pass, and three of the
    layers from the later head's on; two for each head. Errors: as `patch`; StatisticError for another `keep`, and for
    edges of a circuit of too many heads; TextError for pairs of which none can be held out, where `hold_out=True`.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise StatisticError(f"{keep=} is not a share of the metric to keep: give a number above 0, and at most 1.")
    whole("random_sets", random_sets, 0, StatisticError, "0 or more sets of random heads")
    if estimator is not None:
        one_of("estimator", estimator, ESTIMATORS, StatisticError)
    require_counts(num_tokens, seed)
    generator = np.random.Generator(np.random.PCG64(seed))
    pairs = read_pairs(lm, clean, corrupted, max(1, num_tokens // 4))
    require_all_heads(lm.model, lm.name, "find_circuit")
    if hold_out and not pairs.clean:
        raise TextError("hold_out=True: ready inputs are one batch, and none of it can be held out. Give texts.")
    if hold_out and pairs.num_texts < LEAST_HELD_OUT:
        raise TextError(
            f"hold_out=True: a half is held out of {LEAST_HELD_OUT} pairs or more, and here "
            f"{'is' if pairs.num_texts == 1 else 'are'} {pairs.num_texts}: give more, or leave hold_out= out, and "
            f"what is found is measured on the same pairs."
        )
    order, story = list(range(pairs.num_texts)), "too few to hold some out: all of them were searched and measured"
    sides: list[list[int]] = [order, order]
    if hold_out is False:
        story = "all of them searched and measured, as asked"
    elif not pairs.clean:
        story = "ready inputs, none held out: all of them were searched and measured"
    elif pairs.num_texts >= LEAST_HELD_OUT:
        order = generator.permutation(pairs.num_texts).tolist()
        sides = [sorted(order[::2]), sorted(order[1::2])]
        story = f"{len(sides[0])} searched, {len(sides[1])} others measured"
        # Of all pairs before they are divided: an error counts the texts as they were given.
        metric_of(lm, pairs, metric, answers, first_token)
    measures = [_Measure.of(lm, pairs, texts, metric, answers, first_token, num_tokens) for texts in sides]
    search, measure = measures[0], measures[1] if sides[1] is not sides[0] else measures[0]

    circuit_heads, steps, costs, order_story = search.fewest(float(keep), progress, estimator)
    paths: list[PathEffect] = []
    if edges:
        texts = [_chosen(value, sides[1], pairs.num_texts) for value in (clean, corrupted, answers)]
        paths = _paths(lm, circuit_heads, texts, metric, first_token, num_tokens)
    measured = _measured(measure, circuit_heads, random_sets, generator)
    notes = {"model": lm.name, **measure.notes, "pairs": story, "order": order_story, "computed": search.because}
    return replace(
        measured,
        keep=float(keep),
        found_with=steps[-1][1],
        costs=np.array(costs, dtype=np.float64),
        steps=tuple(steps),
        notes=notes,
        edges=tuple(paths),
    )


def measure_circuit(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    heads: HeadsLike,
    metric: MetricLike = "logit_diff",
    answers: AnswersLike | None = None,
    *,
    first_token: bool = False,
    random_sets: int = RANDOM_SETS,
    seed: int = 0,
    num_tokens: int = BATCH_TOKENS,
) -> Circuit:
    """A circuit of your choice, measured as `find_circuit` measures what it found; nothing is searched for.

    - `lm`: a loaded model.
    - `clean`: the clean texts, as in `patch`.
    - `corrupted`: the corrupted texts, as in `patch`.
    - `heads`: these run alone: all others of the clean run hold their corrupted outputs.
    - `metric`: the number read from an answer, as in `patch`.
    - `answers`: the answers, as in `patch`.
    - `first_token`: read the first token of an answer that has several.
    - `random_sets`: how many sets of the same number of random heads are measured beside it.
    - `seed`: draws the random sets.
    - `num_tokens`: the size of a batch in tokens, padding included.

    `keep` of the result is None, `found_with` the faithfulness. Cost: forward passes for each head, and two for each
    random set. Errors: as `patch`; HeadError for heads that are not there.
    """
    whole("random_sets", random_sets, 0, StatisticError, "0 or more sets of random heads")
    require_counts(num_tokens, seed)
    pairs = read_pairs(lm, clean, corrupted, max(1, num_tokens // 4))
    require_all_heads(lm.model, lm.name, "measure_circuit")
    circuit_heads = list(lm.spec.select(heads))
    measure = _Measure.of(lm, pairs, range(pairs.num_texts), metric, answers, first_token, num_tokens)
    measured = _measured(measure, circuit_heads, random_sets, np.random.Generator(np.random.PCG64(seed)))
    alone = measure.of_sets([[head for head in circuit_heads if head != gone] for gone in circuit_heads])
    return replace(measured, costs=measured.faithfulness - np.array(alone, dtype=np.float64))


def _measured(
    measure: _Measure, circuit_heads: Sequence[Head], random_sets: int, generator: np.random.Generator
) -> Circuit:
    """A set of heads run alone and left out, beside random sets of the same size; nobody searched for it."""
    heads, count = list(measure.lm.spec.heads), len(circuit_heads)
    sets = [[heads[index] for index in generator.choice(len(heads), count, replace=False)] for _ in range(random_sets)]
    outside = [[head for head in heads if head not in members] for members in (circuit_heads, *sets)]
    values = measure.of_sets([circuit_heads, *sets, *outside])
    return Circuit(
        measure.lm.spec,
        tuple(circuit_heads),
        None,
        measure.metric.name,
        measure.metric.unit,
        float(measure.levels[0].mean()),
        float(measure.levels[1].mean()),
        values[0],
        values[0],
        values[random_sets + 1],
        tuple(values[1 : random_sets + 1]),
        tuple(values[random_sets + 2 :]),
        np.zeros(count),
        ((count, values[0]),),
        {
            "model": measure.lm.name,
            **measure.notes,
            "pairs": "none searched: all of them measured",
            "computed": measure.because,
        },
    )


def _paths(
    lm: LoadedModel, heads: Sequence[Head], texts: Sequence[Any], metric: MetricLike, first_token: bool, num_tokens: int
) -> list[PathEffect]:
    """What each head tells each later one by each channel, the strongest first. Errors: StatisticError."""
    order = {(site.stack, site.layer): index for index, site in enumerate(lm.spec.sites)}
    senders = {
        receiver: [head for head in heads if order[head.stack, head.layer] < order[receiver.stack, receiver.layer]]
        for receiver in heads
    }
    count = len(CHANNELS) * sum(map(len, senders.values()))
    if count > MOST_EDGES:
        raise StatisticError(
            f"edges=True: a circuit of {len(heads)} heads has {count:,} paths, and {MOST_EDGES} are measured at "
            f"the most. Give a lower keep=, or call circuits.path_effect for the paths of interest."
        )
    clean, corrupted, answers = texts
    options: dict[str, Any] = {"first_token": first_token, "num_tokens": num_tokens}
    effects = [
        effect
        for receiver, earlier in senders.items()
        if earlier
        for effect in path_effects(
            lm, clean, corrupted, receiver, [[sender] for sender in earlier], CHANNELS, metric, answers, **options
        )
    ]
    return sorted(effects, key=lambda effect: -abs(effect.value))


def _chosen(value: Listed, texts: Sequence[int], count: int) -> Listed:
    """Some texts, or answers, of a list with one for each pair; what is one for all stays."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | tuple) and len(value) == count
    return [value[text] for text in texts] if is_list else value  # type: ignore[return-value]


@dataclass(eq=False)
class _Measure:
    """Faithfulness of sets of heads on some pairs. `levels` of the clean and the corrupted runs, once known."""

    lm: LoadedModel
    pairs: Pairs
    metric: Metric
    notes: dict[str, str]
    num_tokens: int
    levels: Float64[Tensor, "two text"]
    because: str = ""
    runner: Runner | None = None

    @classmethod
    def of(
        cls,
        lm: LoadedModel,
        pairs: Pairs,
        texts: Sequence[int],
        metric: MetricLike,
        answers: AnswersLike | None,
        first_token: bool,
        num_tokens: int,
    ) -> _Measure:
        if len(texts) < pairs.num_texts:
            answers = _chosen(answers, texts, pairs.num_texts)
            pairs = pairs.chosen(texts, lm, max(1, num_tokens // 4))
        chosen, pairs, notes = metric_of(lm, pairs, metric, answers, first_token)
        return cls(lm, pairs, chosen, notes, num_tokens, torch.zeros(2, 0, device="cpu").double())

    def of_sets(self, sets: Sequence[Sequence[Head]]) -> list[float]:
        """The mean faithfulness of each set: all other heads of the clean run have their corrupted outputs."""
        if not sets:
            return []
        heads, members = list(self.lm.spec.heads), map(frozenset, sets)
        patches = [Patch(tuple(head for head in heads if head not in inside)) for inside in members]
        if self.runner is None:
            self.runner = Runner.of(self.lm, Patches(()), self.metric, num_tokens=self.num_tokens)
        swept = sweep_patches(self.lm, self.pairs, patches, self.metric, "noise", runner=self.runner)
        self.levels, self.because = swept.levels, swept.because
        return (1 + swept.changes.mean(0) / gap_of(swept.levels, self.metric)).tolist()

    def fewest(
        self, keep: float, progress: Progress | None, estimator: PatchEstimator | None
    ) -> tuple[list[Head], list[tuple[int, float]], list[float], str]:
        """The heads that are left, how many were left with what after each step, what each of them costs, and how.

        Errors: StatisticError for a metric without a gradient, where that is asked for.
        """
        every = list(self.lm.spec.heads)
        total, circuit_heads = len(every), every
        steps, story = [(total, 1.0)], "by patches"
        if total > (EXACT_HEADS if estimator == "gradient" else Runner.many_heads) and estimator != "exact":
            try:
                cheapest = self._by_gradient()
            except StatisticError as error:
                if estimator == "gradient":
                    raise
                story = f"by patches, since there is no gradient: {error}"
            else:
                count, value = self._most_removed(cheapest, keep, total - EXACT_HEADS)
                circuit_heads = [head for head in every if head in set(cheapest[count:])]
                steps += [(len(circuit_heads), value)] * (count > 0)
                story = f"by gradient from {total} heads to {len(circuit_heads)}, by patches from there"
                if progress is not None:
                    progress(count, total)
        # What the gradient left is put in order as it is where there are few heads: one removed from the whole model.
        context = every
        while True:
            alone = self.of_sets([[head for head in context if head != gone] for gone in circuit_heads])
            if context == circuit_heads and (not circuit_heads or max(alone) < keep):
                return circuit_heads, steps, [steps[-1][1] - value for value in alone], story
            cheapest = sorted(circuit_heads, key=dict(zip(circuit_heads, alone, strict=True)).__getitem__, reverse=True)
            # All prefixes at once: a run of cheap heads goes in one step.
            prefixes = self.of_sets([cheapest[count:] for count in range(1, len(cheapest) + 1)])
            longest = max((count for count, value in enumerate(prefixes, 1) if value >= keep), default=0)
            if context == circuit_heads:  # the first is known to do, by a hair of rounding at worst
                longest = max(longest, 1)
            circuit_heads = [head for head in circuit_heads if head in set(cheapest[longest:])]
            context = circuit_heads
            if longest:
                steps.append((len(circuit_heads), prefixes[longest - 1]))
            if progress is not None:
                progress(total - len(circuit_heads), total)

    def _by_gradient(self) -> list[Head]:
        """All heads, from the one whose removal should cost least: of two estimates of a cost the larger counts.

        A slope at the clean run misses what is saturated there, and has the wrong sign for some; so does one at the
        corrupted run for others. Errors: StatisticError for a metric without a gradient.
        """
        heads, costs = list(self.lm.spec.heads), []
        directions: tuple[Direction, ...] = ("denoise",) if self.metric.refer is not None else ("denoise", "noise")
        for direction in directions:  # a metric that compares with the clean run has no slope there
            levels, effects, _ = gradients(self.lm, self.pairs, self.metric, "out", direction, heads, None)
            sign = 1.0 if direction == "denoise" else -1.0
            costs.append(sign / gap_of(levels, self.metric) * effects.sum(-1).mean(0))
        return [heads[index] for index in torch.stack(costs).amax(0).argsort(stable=True).tolist()]

    def _most_removed(self, cheapest: list[Head], keep: float, most: int) -> tuple[int, float]:
        """How many of the first heads can go, `most` at most, and what is kept then; 0 where not one can.

        Tried are `most`, then counts over all that are possible, then those between the largest that does and the next.
        """
        (value,) = self.of_sets([cheapest[most:]])
        if value >= keep:
            return most, value
        low, high, value = 0, most, 1.0  # so many can go, so many cannot
        while high - low > 1:
            counts = range(low + 1, high, -(-(high - low - 1) // TRIED_AT_ONCE))
            shares = self.of_sets([cheapest[count:] for count in counts])
            last = max((place for place, share in enumerate(shares) if share >= keep), default=-1)
            high = counts[last + 1] if last + 1 < len(counts) else high
            if last >= 0:
                low, value = counts[last], shares[last]
        return low, value
