"""`voita-gates`: a gate on every head and a price for each that stays open; do the specialised heads go last?

The reader of the preset `heads`, with 16 heads, is trained as there. Then, as in the paper, training goes on from what
was learned, all weights and the gates together, and every open gate adds its price to the loss: a training a price, and
one without a price as the control. Which heads are specialised is said before any gate is there, by where they look.

A gate has the hard concrete distribution. A head's output is multiplied by a gate before the output projection. In
training a gate is drawn anew for each text: a number in (0, 1) from a stretched and clamped logistic, so that it is
exactly 0 or exactly 1 with some probability and still has a gradient in its location. `expected_open` is the
differentiable number of heads whose gate is not 0, the L0 norm's expectation, which a loss adds with a weight. In eval
mode a gate is the middle of its distribution, and a head whose gate is 0 there is gone: it adds what zero ablation
leaves, nothing.

The gates reach a model by the seam that ablations use (`models.tap`), so any model that can be tapped can be gated.

Source: Voita et al. 2019, section 4 (functions) and section 6 (pruning, a gate a head); Louizos et al. 2018, Learning
sparse neural networks through L0 regularization, section 2.2, equations 10 to 13 (the gates).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import HeadError
from manyheads.heads import Head
from manyheads.inputs import record_call
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.presets import heads
from manyheads.lab.training.presets.heads import (
    RELATIONS,
    held_out_of,
    loss_of,
    reader_run,
    related,
    scores_of,
    terms_of,
)
from manyheads.lab.training.presets.preset import AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.lab.training.runs import Batch, Run, spreads_of
from manyheads.models import AttentionCall, tap

NAME = "voita-gates"
NUM_HEADS = 16
PRICES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Nats an answer that an open head adds to the loss; the first is the control, whose gates stay open."""
SPEED = 60.0  # a gate's location moves so far where a weight moves by 1: with AdamW from 3 to -3 within some 100 steps
SPECIALISED = 0.9  # of the rows that have such a card: the paper's own share for positional heads
UNHARMED = 0.01  # of the answers: so many fewer are right, at most, where pruning harms nothing


@dataclass(frozen=True)
class RunScale(Scaled):
    """`settings` of the trainings with gates; `read`, of the one before them."""

    seeds: int
    read: heads.RunScale


WHOLE = RunScale(replace(heads.WHOLE.settings, steps=300, rate=2.5e-3, warmup=20), seeds=3, read=heads.WHOLE)
TRIAL = RunScale(replace(heads.TRIAL.settings, steps=4, rate=2.5e-3, warmup=1), seeds=1, read=heads.TRIAL)


def build(setup: Setup) -> Training:
    """A reader a seed, and from each of them a training a price."""
    scale = setup.scale(WHOLE, TRIAL)
    runs: dict[str, MakeRun] = {}
    for index in range(scale.seeds):
        seed, reader = setup.seed + index, f"reader-{index}"
        # Bound as defaults: the runs are made later, when the loop variables have their last values.
        runs[reader] = lambda _, reader=reader, seed=seed: reader_run(reader, scale.read, seed, NUM_HEADS)
        for price in PRICES:
            runs[gated_name(index, price)] = lambda trained, index=index, seed=seed, price=price, reader=reader: (
                gated_run(gated_name(index, price), scale, seed, trained[reader].model, price)
            )

    def report(trained: AllTrained) -> Findings:
        by_seed = [seen_of(trained, scale, index, setup.seed + index) for index in range(scale.seeds)]
        return Findings({"by_seed": by_seed}, (), chart(by_seed))

    return Training(runs, report)


PRESET = Preset(NAME, build)


def gated_name(index: int, price: float) -> str:
    return f"gated-{index}-{price:g}"


def gated_run(name: str, scale: RunScale, seed: int, reader: nn.Module, price: float) -> Run:
    """The trained reader goes on with gates, on texts that it has not seen; all prices of a seed read the same ones."""
    torch.manual_seed(seed)  # the gates' draws
    gated = GatedHeads(copy.deepcopy(reader), {0: NUM_HEADS}, speed=SPEED)
    held_out, cards, first = held_out_of(scale.read, seed), scale.read.cards(seed), scale.read.settings.steps

    def batch(step: int) -> Batch:
        return cards.batch(first + step)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, GatedHeads)
        return loss_of(model, batch) + price * model.expected_open

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        assert isinstance(model, GatedHeads)
        return scores_of(model, held_out) | {"open": float(model.expected_open)}

    return Run(name, gated, scale.settings, batch, loss, measured, heads.WHY_FLOAT32, terms_of)


# ------------------------------------------------------------------------------------------------------ what it shows


def seen_of(trained: AllTrained, scale: RunScale, index: int, seed: int) -> dict[str, Any]:
    """Where each head of a seed's reader looks, and which heads are left at each price.

    `looks`: by head, the share of its rows whose strongest key is each relation's card. `specialised`: the relation of
    those that reach SPECIALISED. `kept`, `right` (the share of answers, the mean over relations) and `loss`: by price.
    """
    cards = held_out_of(scale.read, seed)["cards"]
    looks = aimed_shares(trained[f"reader-{index}"].model, cards, related(cards[..., 0]))
    best, relation = looks.max(-1)
    heads_left, right, loss = dict[str, list[int]](), dict[str, float](), dict[str, float]()
    for price in PRICES:
        run = trained[gated_name(index, price)]
        assert isinstance(run.model, GatedHeads)
        heads_left[f"{price:g}"] = [head.index for head, is_kept in run.model.kept.items() if is_kept]
        right[f"{price:g}"] = float(np.mean([run.history.last(f"right_{name}") for name in RELATIONS]))
        loss[f"{price:g}"] = run.history.last("held_out_loss")
    return {
        "looks": {str(head): dict(zip(RELATIONS, row, strict=True)) for head, row in enumerate(looks.tolist())},
        "specialised": {
            head: RELATIONS[relation[head]] for head in range(len(looks)) if float(best[head]) >= SPECIALISED
        },
        "kept": heads_left,
        "right": right,
        "loss": loss,
    }  # fmt: skip


def aimed_shares(
    model: nn.Module, cards: Int[Tensor, "b n two"], places: Int[Tensor, "b n relation"]
) -> Float[Tensor, "h relation"]:
    """For each head of a one-layer reader, the share of rows whose strongest key is the place named, of rows with one.

    Source: Voita et al. 2019, section 5.2 (by the maximum weight).
    """
    layer = record_call(model, cards).layers[0]
    strongest = torch.stack([layer.weights(text=text).argmax(-1) for text in range(len(cards))])  # [b, h, n]
    exists = (places >= 0)[:, None]
    hits = (strongest[..., None] == places[:, None]) & exists
    return hits.sum((0, 2)) / exists.sum((0, 2))


def outlives(first: Sequence[int], second: Sequence[int]) -> float:
    """The probability that one of `first` is larger than one of `second`, equal ones counted half; 0.5 of none.

    Source: Mann and Whitney 1947.
    """
    if not first or not second:
        return 0.5
    pairs = np.subtract.outer(np.asarray(first), np.asarray(second))
    return float((np.sign(pairs) + 1).mean() / 2)


def judged_numbers(seed: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one seed to which the claim is applied.

    `gone`: the share of heads gone at the highest price at which right answers are at most UNHARMED fewer than without
    a price. `outlives`: by the number of prices at which a head is kept. `functions`: at that price, the share of the
    relations that specialised heads read before of which a specialised head is left.
    """
    prices = list(seed["kept"])
    unharmed = [price for price in prices if seed["right"][prices[0]] - seed["right"][price] <= UNHARMED]
    left = seed["kept"][unharmed[-1]]
    specialised = {int(head): name for head, name in seed["specialised"].items()}
    survived = [sum(head in seed["kept"][price] for price in prices) for head in range(NUM_HEADS)]
    unspecialised = [head for head in range(NUM_HEADS) if head not in specialised]
    named = set(specialised.values())
    return {
        "specialised": len(specialised) / NUM_HEADS,
        "price": float(unharmed[-1]),
        "gone": 1 - len(left) / NUM_HEADS,
        "right": seed["right"][unharmed[-1]] - seed["right"][prices[0]],
        "outlives": outlives([survived[head] for head in specialised], [survived[head] for head in unspecialised]),
        "specialised_left": share([head in left for head in specialised]),
        "others_left": share([head in left for head in unspecialised]),
        "functions": share([any(specialised.get(head) == name for head in left) for name in named]),
    }


def share(flags: Sequence[bool]) -> float:
    """The share of flags that are set; 0 where there is none."""
    return sum(flags) / max(1, len(flags))


def run(task: Task) -> Result:
    outcome = task.train(PRESET)
    by_seed = outcome.report["found"]["by_seed"]
    return Result(rows_of(by_seed), outcome.findings.chart, (looks_words(by_seed),))


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The paper's claims, seed by seed."""
    spreads = spreads_of([judged_numbers(seed) for seed in by_seed])

    def each(name: str) -> tuple[float, ...]:
        return tuple(spreads[name]["each"])

    majority, later = Claim("more than half", low=0.5), Claim("above 0.5, which is chance", low=0.5)
    return (
        Row("heads gone while right answers fall by 1 point at most", "38 of 48 (79 %) for 0.15 BLEU",
            each("gone"), majority, ".0%"),
        Row("right answers there, beside all gates open", "-0.15 BLEU", each("right"), None, "+.2%"),
        Row("a specialised head outlives another one", "specialised heads are last to be pruned", each("outlives"),
            later, ".2f"),
        Row("specialised heads left there", "", each("specialised_left"), None, ".0%"),
        Row("other heads left there", "", each("others_left"), None, ".0%"),
        Row("functions that a specialised head still has there", "all, with 17 of 48 heads left",
            each("functions"), None, ".0%"),
    )  # fmt: skip


def looks_words(by_seed: Sequence[Mapping[str, Any]]) -> str:
    """Which heads are specialised, and which are left at each price."""
    parts = []
    for index, seed in enumerate(by_seed):
        by_relation: dict[str, list[str]] = {}
        for head, name in seed["specialised"].items():
            by_relation.setdefault(name, []).append(f"H{head}")
        named = "; ".join(f"{name}: {', '.join(heads)}" for name, heads in by_relation.items())
        left = ", ".join(
            f"{len(heads)} at {price} ({sum(str(head) in map(str, seed['specialised']) for head in heads)} specialised)"
            for price, heads in seed["kept"].items()
        )
        parts.append(f"Seed {index}, specialised: {named or 'none'}. Heads left by price: {left}.")
    return " ".join(parts)


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """Heads left, specialised ones and others, and right answers, by price."""

    def by_price(value: Callable[[Mapping[str, Any], str], float], bold: bool = True) -> tuple[Points, ...]:
        return tuple(
            Points(f"{price:g}", tuple(float(value(seed, f"{price:g}")) for seed in by_seed), bold) for price in PRICES
        )

    def left(seed: Mapping[str, Any], price: str, specialised: bool) -> float:
        named = {int(head) for head in seed["specialised"]}
        group = [head for head in range(NUM_HEADS) if (head in named) is specialised]
        return share([head in seed["kept"][price] for head in group])

    return Chart(
        "Gates on heads: which stay open, by what an open one costs",
        f"one layer, {NUM_HEADS} heads, five relations; price of an open head in nats an answer; seeds: {len(by_seed)}",
        panels=(
            PointsPanel(f"heads left, of {NUM_HEADS}", by_price(lambda s, p: len(s["kept"][p])), 0.0, float(NUM_HEADS)),
            PointsPanel("specialised heads left, share", by_price(lambda s, p: left(s, p, True)), 0.0, 1.0),
            PointsPanel("other heads left, share", by_price(lambda s, p: left(s, p, False), False), 0.0, 1.0),
            PointsPanel("right answers, mean over relations", by_price(lambda s, p: s["right"][p]), 0.0, 1.0),
        ),
        notes=(
            f"Specialised: its strongest key is one relation's card in {SPECIALISED:.0%} of its rows, before any gate.",
            DOTS,
        ),
    )


REPRODUCTION = Reproduction(
    NAME,
    "specialised heads are the last that gates close",
    "Voita et al. 2019, Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be "
    "Pruned (ACL).",
    "With a gate on each encoder head and an L0 penalty, 38 of 48 heads of an English-Russian translator go for 0.15 "
    "BLEU (abstract); specialised heads are last to be pruned, and with 17 left all functions are still there "
    "(section 6.2).",
    "Hard concrete gates (Louizos et al. 2018: temperature 2/3, stretched to -0.1 and 1.1), one a head, drawn for "
    "each text; the loss adds the expected number of open gates times a price of "
    f"{', '.join(f'{p:g}' for p in PRICES[1:])} nats. Weights and gates go on together for {WHOLE.settings.steps} "
    "steps from the trained net. A head is left where its gate is above 0 after training. Specialised: in "
    f"{SPECIALISED:.0%} of the rows that have such a card its strongest key is one relation's card (the paper's share "
    "for positional heads), before any gate. A head outlives another if it is left at more of the prices; equal "
    "counts are half. Chance is 0.5.",
    (
        "One layer of 16 narrow heads that answers five questions about cards, no translator; its relations stand "
        "for the paper's positional and syntactic functions.",
        "Several heads of this net read the same relation, so that some specialised ones are spare.",
        "The measure of harm is right answers, not BLEU.",
    ),
    run,
)  # fmt: skip


TEMPERATURE, BELOW, ABOVE = 2 / 3, -0.1, 1.1
"""Of the hard concrete: its temperature, and the ends to which a draw is stretched. Source: Louizos et al. 2018,
section 4.1."""

START = 3.0  # the location of every gate before training: not 0 in 99 of 100 draws


class GatedHeads(nn.Module):
    """A model of one stack with a gate on every head. It is called as the model is; `layers`: each layer's heads.

    `speed`: how far a gate's location moves when an optimizer moves its parameter by 1. AdamW moves parameters by its
    learning rate whatever their size, and locations have farther to go than weights.
    Errors, when called: HeadError for a layer that `layers` does not count so.
    """

    def __init__(self, model: nn.Module, layers: Mapping[int, int], *, start: float = START, speed: float = 1.0):
        super().__init__()
        self.model = model
        self.start, self.speed = start, speed
        # Vectors: what the loop decays are matrices, and a gate that decays would open by itself.
        self.moved = nn.ParameterDict({str(layer): nn.Parameter(torch.zeros(count)) for layer, count in layers.items()})

    def location(self, layer: int) -> Float[Tensor, "h"]:
        """log alpha of each head's gate in a layer."""
        return self.start + self.speed * self.moved[str(layer)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def gated(call: AttentionCall) -> Tensor:
            name = str(call.site.layer)
            if call.site.stack or name not in self.moved or self.moved[name].numel() != call.site.num_heads:
                counts = {int(layer): moved.numel() for layer, moved in self.moved.items()}
                raise HeadError(f"{call.site} has {call.site.num_heads} heads, and gates were made for {counts}.")
            location = self.location(call.site.layer)
            gate = hard_concrete(location.expand(len(call.out), -1)) if self.training else middle(location)[None]
            return call.out * gate[..., None, None].to(call.out.dtype)

        with tap(self.model, edits=[gated], guard=False, training=self.training):
            return self.model(*args, **kwargs)

    @property
    def expected_open(self) -> Float[Tensor, ""]:
        """How many gates are not 0, in expectation, with a gradient."""
        return torch.stack([share_open(self.location(int(layer))).sum() for layer in self.moved]).sum()

    @property
    def kept(self) -> dict[Head, bool]:
        """Whether each head is left in eval mode."""
        return {head: gate > 0 for head, gate in self.gates.items()}

    @property
    def gates(self) -> dict[Head, float]:
        """Each head's gate in eval mode."""
        return {
            Head("", int(layer), index): gate
            for layer in self.moved
            for index, gate in enumerate(middle(self.location(int(layer))).tolist())
        }


def hard_concrete(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """A draw of each gate, from 0 to 1, both included. Source: Louizos et al. 2018, equations 10 and 11."""
    uniform = torch.rand_like(location).clamp(1e-6, 1 - 1e-6)  # the logarithms of 0 are infinite
    concrete = ((uniform.logit() + location) / TEMPERATURE).sigmoid()
    return (concrete * (ABOVE - BELOW) + BELOW).clamp(0, 1)


def share_open(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The probability that a gate is not 0. Source: Louizos et al. 2018, equation 12."""
    return (location - TEMPERATURE * torch.tensor(-BELOW / ABOVE).log()).sigmoid()


def middle(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The gate that is used after training. Source: Louizos et al. 2018, equation 13."""
    return (location.sigmoid() * (ABOVE - BELOW) + BELOW).clamp(0, 1)
