"""`michel-curve`: how many heads go for free, least important first by the gradient in a gate, beside random orders.

The curve is `removal_curve`'s: heads are ranked on every other text, and removed on the rest. It is drawn of decoders
trained here, the preset `gqa`'s with all key/value heads, one a seed, and of the two bundled models.
Source: Michel et al. 2019, Are sixteen heads really better than one?, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.corpora import reading_of
from manyheads.interventions import Curve, importance, removal_curve
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.lab.training.presets import gqa
from manyheads.lab.training.presets.gqa import read_data, scratch_run
from manyheads.lab.training.presets.preset import AllTrained, Findings, Preset, Setup, Training, by_seed, live
from manyheads.lab.training.runs import Run
from manyheads.models import LoadedModel, load

NAME = "michel-curve"
FREE = 0.01  # of the loss, or of the cosine: so much worse, at most, where heads go for free
BUNDLED = ("tiny-code", "minilm")
WINDOWS, ROWS = 128, 4  # of held-out bytes, and how many are one text of the curve
TEXTS = 60  # of a bundled model


def build(setup: Setup) -> Training:
    """A decoder a seed; its report has the curves of the bundled models as well."""
    scale = setup.scale(gqa.WHOLE, gqa.TRIAL)
    data = read_data(setup.quick)

    def make(name: str, index: int, kind: str, _: AllTrained) -> Run:
        return scratch_run(name, scale, data, setup.seed + index, kind)

    def report(trained: AllTrained) -> Findings:
        ids = data.held_out_windows(6 * ROWS if setup.quick else WINDOWS, scale.length)
        texts: list[Mapping[str, Tensor]] = [{"input_ids": rows} for rows in ids.split(ROWS)]
        numbers: dict[str, Any] = {
            "trained": [curve_of(live(trained[f"mha-{index}"].model), texts) for index in range(scale.seeds)],
            "bundled": {
                name: curve_of(load(name), reading_of(name).spread(4 if setup.quick else TEXTS)) for name in BUNDLED
            },
        }
        return Findings(numbers, (), chart(numbers))

    return Training(by_seed(scale.seeds, {"mha": "mha"}, make), report, data.facts)


PRESET = Preset(NAME, build)


def curve_of(lm: LoadedModel, texts: Sequence[Any]) -> dict[str, Any]:
    """The curve by the gradient, which share of heads is free, and which share matters when removed alone.

    `more_than_random`: how much larger the free share is than in random orders, in the mean of these.
    `limit`: the change up to which heads are free: FREE of the unedited loss, or FREE itself of a cosine, which has
    none. `alone`: the share of heads whose removal changes the metric, with all others in place, by an interval over
    texts that leaves out 0; `better`, those of them without which it falls.
    """
    curve = removal_curve(lm, texts, "gradient")
    limit = FREE if curve.before is None else FREE * curve.before
    alone = importance(lm, texts, "ablation", metric=curve.metric)
    low, high = alone.interval
    return {
        "curve": curve.to_dict(),
        "before": curve.before,
        "limit": limit,
        **free_shares(curve, limit),
        "alone": float(((low > 0) | (high < 0)).mean()),
        "better": float((high < 0).mean()),
    }


def free_shares(curve: Curve, limit: float) -> dict[str, float]:
    """Which share of heads is free by importance, and how much larger it is than in random orders."""
    free, *random = (
        free_share(curve.counts, order, limit) * curve.counts[-1] / len(curve.order)
        for order in (curve.ranked, *curve.random)
    )
    return {"free": free, "more_than_random": free - float(np.mean(random))}


def free_share(counts: Sequence[int], changes: Sequence[float] | np.ndarray, limit: float) -> float:
    """The share of the last count up to which every point of a curve is at most `limit`."""
    free = 0
    for count, change in zip(counts, changes, strict=True):
        if change > limit:
            break
        free = count
    return free / counts[-1]


# ------------------------------------------------------------------------------------------------------ what it shows


def run(task: Task) -> Result:
    training = task.train(PRESET)
    numbers = training.report["found"]
    return Result(rows_of(numbers), training.findings.chart, (words_of(numbers),))


def rows_of(numbers: Mapping[str, Any]) -> tuple[Row, ...]:
    """The paper's claims: of the decoders, a value a seed; of each bundled model, its own."""
    claims = {
        "free": ("heads that go for free", "20 % (WMT), 40 % (BERT)", Claim("a fifth or more", low=0.2 - 1e-9)),
        "more_than_random": ("more than in random orders", "importance tells them", Claim("more than 0", low=0.0)),
        "alone": ("heads that matter when removed alone", "8 of 96 (8 %)", Claim("under a fifth", high=0.2)),
    }
    models = {"decoders trained here": numbers["trained"]} | {
        name: [outcome] for name, outcome in numbers["bundled"].items()
    }
    rows = []
    for name, outcomes in models.items():
        for quantity, (words, paper, claim) in claims.items():
            if quantity == "alone" and outcomes[0]["before"] is None:
                continue  # 1 - cosine is 0 at the least: of it, every head's change is above 0
            values = tuple(outcome[quantity] for outcome in outcomes)
            form = "+.0%" if quantity == "more_than_random" else ".0%"
            rows.append(Row(f"{words}, {name}", paper, values, claim, form, exact=name in BUNDLED))
    return tuple(rows)


def words_of(numbers: Mapping[str, Any]) -> str:
    """What free means in numbers, model by model."""
    parts = [
        f"Seed {index}: {outcome['before']:.3f} nats a byte with all heads, free up to {outcome['limit']:+.3f}; "
        f"without {outcome['better']:.0%} of the heads, one at a time, the loss falls."
        for index, outcome in enumerate(numbers["trained"])
    ]
    for name, outcome in numbers["bundled"].items():
        label = f"{name}, {outcome['curve']['notes']['curve']}"
        if outcome["before"] is None:
            parts.append(f"{label}: free up to {outcome['limit']:.3f} of 1 - cosine of the embedding.")
        else:
            parts.append(
                f"{label}: {outcome['before']:.3f} nats a token, free up to {outcome['limit']:+.3f}; without "
                f"{outcome['better']:.0%} of the heads, one at a time, the loss falls."
            )
    return " ".join(parts)


def chart(numbers: Mapping[str, Any]) -> Chart:
    """Every curve over the share of heads removed."""
    trained = [
        line
        for index, outcome in enumerate(numbers["trained"])
        for line in curve_lines(outcome["curve"], named=not index)
    ]
    panels = [Panel("decoders trained here, a line a seed: rise of the loss, nats a byte", tuple(trained))]
    for name, outcome in numbers["bundled"].items():
        measured = "1 - cosine of the embedding" if outcome["before"] is None else "rise of the loss, nats a token"
        panels.append(Panel(f"{name}: {measured}", curve_lines(outcome["curve"])))
    return Chart(
        "How many heads go for free",
        "heads set to zero, least important first by the gradient in a gate; grey: the mean of three random orders",
        tuple(panels),
        "heads removed, percent",
    )


def curve_lines(curve: Mapping[str, Any], named: bool = True) -> tuple[Line, Line]:
    """What a curve loses by importance, and in the mean of its random orders, over the percentage of heads removed."""
    x = tuple(100 * count / len(curve["order"]) for count in curve["counts"])
    random = tuple(np.mean(curve["random"], axis=0).tolist())
    names = ("by importance", "at random") if named else ("", "")
    return Line(names[0], x, tuple(curve["ranked"])), Line(names[1], x, random, bold=False)


REPRODUCTION = Reproduction(
    NAME,
    "many heads go for free",
    "Michel et al. 2019, Are Sixteen Heads Really Better than One? (NeurIPS).",
    "Up to 20 % of the heads of a WMT translator and 40 % of BERT's go, least important first, without a noticeable "
    "loss (section 4.2, figure 3); removed one at a time, 8 of the translator's 96 encoder heads change BLEU "
    "significantly (section 3.2).",
    "Importance is the mean over texts of |d loss / d gate|, a gate on each head's output (Michel et al., section "
    "4.1); of MiniLM, whose metric is flat at the whole model, half the squared derivative of the embedding. Ranked "
    "on every other text, heads are set to zero on the rest, in 13 steps. Free: up to the last step before the loss "
    f"first rises by over {FREE:.0%} of itself (MiniLM: before 1 - cosine first exceeds {FREE}). A head matters alone "
    "if the 95 % interval over texts of its change leaves out 0.",
    (
        "Decoders of 2 layers of 8 heads that read bytes for 400 steps, tiny-code (4 layers of 8) and MiniLM (6 of "
        "12), no translator and no BERT with a task; losses and embeddings, which move with everything, not BLEU or "
        "accuracy.",
        "The paper's importance is divided by its layer's norm; here it is not.",
        "The bundled models are one of each: no interval over seeds.",
    ),
    run,
)  # fmt: skip
