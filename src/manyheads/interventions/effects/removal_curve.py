"""The metric against the number of heads removed, least important first, and in random order.

Importance is measured on every other text and the curve drawn on the remaining ones, so that heads are not removed from
the very texts that chose them. Random orders are nested as the ranked one is: each point adds heads to the one before.
Source: Michel et al. 2019, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief
from manyheads.edits import MetricLike, Runner, choose_metric, plan_edits
from manyheads.errors import HeadError, TextError
from manyheads.heads import Head
from manyheads.inputs import read
from manyheads.interventions.effects.importance import Estimator, importance
from manyheads.models import LoadedModel
from manyheads.plan import Ablate, AblationKind, Plan
from manyheads.progress import ShowProgress, shows_progress
from manyheads.results import Plotted, Shown
from manyheads.statistics import mean_interval

POINTS = 13  # from no head to all of them
ORDERS = 3  # random ones


@dataclass(frozen=True, eq=False)
class Curve(Shown, Plotted):
    """`ranked[i]` is the mean change with `counts[i]` heads removed by importance, `low` and `high` its interval.

    `random[r, i]` is the same in random orders. A positive change is for the worse. `before`: the metric with all
    heads, None of a metric that compares with the unedited model.
    """

    model: str
    metric: str
    unit: str
    before: float | None
    counts: tuple[int, ...]
    ranked: Float64[ndarray, "point"]
    low: Float64[ndarray, "point"]
    high: Float64[ndarray, "point"]
    random: Float64[ndarray, "order point"]
    order: tuple[Head, ...]
    notes: dict[str, str]

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "metric": self.metric,
            "unit": self.unit,
            "before": self.before,
            "counts": list(self.counts),
            "ranked": self.ranked.tolist(),
            "low": None if np.isnan(self.low).any() else self.low.tolist(),  # under 5 texts there is none
            "high": None if np.isnan(self.high).any() else self.high.tolist(),
            "random": self.random.tolist(),
            "order": [str(head) for head in self.order],
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return brief(f"Curve({self.model}: {self.metric} with {self.counts[0]} to {self.counts[-1]} heads removed)")


@shows_progress("removing heads")
def removal_curve(
    lm: LoadedModel,
    texts: Sequence[Any],
    estimator: Estimator | Literal["auto"] = "auto",
    *,
    metric: MetricLike = "auto",
    kind: AblationKind = "zero",
    counts: Sequence[int] | None = None,
    random: int = ORDERS,
    seed: int = 0,
    progress: ShowProgress = None,
) -> Curve:
    """The curve on every second text, by an importance that was measured on the remaining ones.

    - `lm`: a loaded model.
    - `texts`: two or more, of which every second one chooses the heads.
    - `estimator`: how importance is measured, as in `importance`.
    - `metric`: as in `effect`.
    - `kind`: how heads are taken away, as in `Ablate`.
    - `counts`: how many heads are removed at each point, from 0 on; None: 13 points from no head to all of them.
    - `random`: how many random orders.
    - `seed`: draws them.
    - `progress`: called with how many batches of the other texts are read, and of how many.

    Cost: `importance` on half of the texts, and `1 + random` forward passes a point over the other half.
    Errors: TextError for fewer than two texts; HeadError for counts that are not 0 and then more and more, up to all
    heads; those of `importance`.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    if isinstance(texts, str) or len(texts) < 2:
        raise TextError("a curve needs at least two texts: one half chooses the heads, the other shows what is lost.")
    heads = lm.spec.heads.heads
    if counts is None:
        counts = sorted({round(count) for count in np.linspace(0, len(heads), POINTS)})
    counts = tuple(counts)
    if len(counts) < 2 or counts[0] or list(counts) != sorted(set(counts)) or counts[-1] > len(heads):
        raise HeadError(f"{counts=}: give 0 and then rising numbers of heads, up to the {len(heads)} of {lm.name}.")
    ranked = importance(lm, texts[::2], estimator, metric=metric, kind=kind)
    chosen, _ = choose_metric(lm, metric)
    reading = read(lm, texts[1::2])
    generator = np.random.Generator(np.random.PCG64(seed))
    shuffled = (tuple(heads[index] for index in generator.permutation(len(heads))) for _ in range(random))
    orders = [ranked.ranking(), *shuffled]
    plans = [Plan(Ablate(order[:count], kind=kind)) for order in orders for count in counts[1:]]
    # "mean" and "resample" ablation take their values from the half that chose the heads, never from the other.
    runner = Runner.of(lm, plan_edits(lm, plans, texts[::2]), chosen, share=False)
    swept = runner.over(tuple(reading.batches()), progress)
    removed = swept.changes.T.numpy()  # [plan, text]
    changes = np.zeros((len(orders), len(counts), reading.num_texts))  # with no head removed, exactly 0
    changes[:, 1:] = removed.reshape(len(orders), len(counts) - 1, -1)
    low, high = mean_interval(changes[0].T)
    low[0] = high[0] = 0.0 if reading.num_texts > 1 else np.nan  # with no head removed, exactly
    means = changes.mean(2)
    notes = {
        **ranked.notes,
        "order": f"by {ranked.estimator} on {len(texts[::2])} texts",
        "curve": f"on {reading.num_texts} other texts, {reading.num_tokens:,} tokens; {kind} ablation",
    }
    before = chosen.level(swept.before)
    return Curve(
        lm.name, chosen.name, chosen.unit, before, counts, means[0], low, high, means[1:], ranked.ranking(), notes
    )
