"""`gu-sinks`: heads park on the first token when weights must add up to 1, and do not when a sigmoid makes each.

One decoder reads the standard library's source byte by byte, with three kinds of attention. A few minutes' training is
too short for sinks on an ordinary first token, as the paper found of little data; so kinds are compared where every
text begins with one fixed token, on which the paper found most sinks. The paper counts sinks in each text by itself, so
what is measured is a head's mean weight on the first key of every single text, in the attention calls of a forward pass
over held-out texts.

Source: Gu et al. 2025, "When Attention Sink Emerges in Language Models", and its code (eval_sink_pretrain.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import GridChart, GridRow, Line, after_the_guess, over_seeds
from manyheads.lab.training.checkpoints import History
from manyheads.lab.training.decoder import Decoder, DecoderConfig, batch_loss, next_token_loss, sigmoid_weights
from manyheads.lab.training.presets.gqa import BYTES, WHY_FLOAT32, Bytes, read_data
from manyheads.lab.training.presets.preset import AllTrained, Findings, Preset, Scaled, Setup, Training, by_seed
from manyheads.lab.training.runs import Batch, Run, Settings
from manyheads.models import device_of
from manyheads.nn import LayerCall, add_hook, remove_hook

FIRST = 0  # the fixed first token: the byte that stands between two modules
WAYS = {
    "plain": ("softmax", False), "softmax": ("softmax", True),
    "learned-sink": ("learned-sink", True), "sigmoid": ("sigmoid", True),
}  # fmt: skip
"""A way to train -> its attention, and whether every text begins with `FIRST`."""
THRESHOLD = 0.3  # the paper's epsilon
TOKENS, TEXTS = 64, 100
EARLY = 0.05  # of the steps: 1,000 of the paper's 20,000


@dataclass(frozen=True)
class RunScale(Scaled):
    seeds: int
    width: int
    layers: int
    heads: int
    wide: int
    rows: int
    length: int
    texts: int


WHOLE = RunScale(
    Settings(400, 4e-3, warmup=20, checkpoint_every=100, measure_every=20),
    seeds=3, width=64, layers=4, heads=4, wide=160, rows=16, length=TOKENS, texts=TEXTS,
)  # fmt: skip
TRIAL = RunScale(
    Settings(4, 2e-3, warmup=2, checkpoint_every=2, measure_every=2),
    seeds=1, width=32, layers=2, heads=4, wide=48, rows=4, length=24, texts=6,
)  # fmt: skip


def build(setup: Setup) -> Training:
    """A run for each way and seed; those of a seed read the same windows."""
    scale = setup.scale(WHOLE, TRIAL)
    data = read_data(setup.quick)

    def make(name: str, index: int, way: str, _: AllTrained) -> Run:
        return run_of(name, scale, data, setup.seed + index, way)

    runs = by_seed(scale.seeds, {way: way for way in WAYS}, make)
    return Training(runs, lambda trained: findings(trained, scale), data.facts)


def run_of(name: str, scale: RunScale, data: Bytes, seed: int, way: str) -> Run:
    """One way's training of one seed. Not watched: a watch reads softmax alone."""
    torch.manual_seed(seed)
    kind, fixed = WAYS[way]
    config = DecoderConfig(
        BYTES, scale.width, scale.layers, scale.heads, scale.heads, scale.width // scale.heads, scale.wide,
        attention=kind,
    )  # fmt: skip

    def begun(ids: Tensor) -> Tensor:
        if fixed:
            ids[:, 0] = FIRST
        return ids

    texts = begun(data.held_out_windows(scale.texts, TOKENS + 1))

    def batch(step: int) -> Batch:
        return {"ids": begun(data.windows(seed, step, scale.rows, scale.length + 1))}

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        ids = texts.to(device_of(model))
        return {**sink_shares(model, ids[:, :-1]), "held_out_loss": float(next_token_loss(model, ids))}

    return Run(name, Decoder(config), scale.settings, batch, batch_loss, measured, WHY_FLOAT32)


def sink_shares(model: nn.Module, ids: Int[Tensor, "b n"]) -> dict[str, float]:
    """The share of (text, layer, head) whose mean weight is above `THRESHOLD`: on the first key, and on the learned
    sink (0 where there is none)."""
    weights = MeanWeights(frozenset(id(module) for module in model.modules()))
    add_hook(weights)
    try:
        model(ids)
    finally:
        remove_hook(weights)
    return {
        name: float((torch.stack(of_layers) > THRESHOLD).double().mean())
        for name, of_layers in (("first_key", weights.first_key), ("learned_sink", weights.learned_sink))
    }


@dataclass(eq=False)
class MeanWeights:
    """Sees the attention calls of our own layers, and keeps of each the mean over rows of what its heads give.

    Weights that a sigmoid made are divided by their row's sum first, as the paper's proxy for them is.
    """

    modules: frozenset[int]
    first_key: list[Float[Tensor, "b h"]] = field(default_factory=list)
    learned_sink: list[Float[Tensor, "b h"]] = field(default_factory=list)

    def wants(self, module: nn.Module) -> bool:
        return id(module) in self.modules

    def seen(self, call: LayerCall) -> Tensor:
        mask, rule = call.mask(), call.rule
        if getattr(call.module, "attend", None) is not None:
            weights = sigmoid_weights(call.q, call.k, mask, rule.scale)
            weights, left = weights / weights.sum(-1, keepdim=True), torch.zeros(1, 1, 1)
        else:
            scores = rule.scale * call.q @ call.k.transpose(2, 3)
            scores = scores.masked_fill(~mask.visible(slice(None), slice(None), device=scores.device), -torch.inf)
            lse = scores.logsumexp(-1)
            if rule.sinks is not None:
                lse = torch.logaddexp(lse, rule.sinks[:, None])
            weights = (scores - lse[..., None]).exp()
            left = 1 - weights.sum(-1)
        self.first_key.append(weights[..., 0].mean(-1))
        self.learned_sink.append(left.to(weights).expand(weights.shape[:-1]).mean(-1))
        return call.run().out


# ------------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, scale: RunScale) -> Findings:
    """Each way's shares and losses, seed by seed, at the end and early on."""
    histories = {way: [trained[f"{way}-{seed}"].history for seed in range(scale.seeds)] for way in WAYS}
    numbers = {
        way: {
            **{
                name: [history.last(name) for history in of_way]
                for name in ("first_key", "learned_sink", "held_out_loss")
            },
            "early": [early(history) for history in of_way],
        }
        for way, of_way in histories.items()
    }
    return Findings(numbers, (), chart(histories, scale))


def early(history: History) -> float:
    """The share of first-key sinks in the last measured step of the training's first `EARLY`."""
    steps, shares = history.taken("first_key")
    return [share for step, share in zip(steps, shares, strict=True) if step <= EARLY * steps[-1]][-1]


def chart(histories: Mapping[str, list[History]], scale: RunScale) -> GridChart:
    """A column for each way: shares of sinks and the loss, over training."""

    def shares(way: str, name: str) -> tuple[Line, ...]:
        return over_seeds(histories[way], lambda history: history.taken(name))

    losses = after_the_guess("held_out_loss")

    return GridChart(
        "Attention sinks, by how weights are made",
        f"of {scale.texts} texts of {TOKENS} bytes x {scale.layers} layers x {scale.heads} heads, those with mean "
        f"weight above {THRESHOLD:g}; grey: seeds, ink: their median",
        ("softmax, any first\ntoken", "softmax, a fixed\nfirst token", "the same, and a\nlearned sink",
         "sigmoid, a fixed\nfirst token"),
        (
            GridRow("share of sinks on the first token", tuple(shares(way, "first_key") for way in WAYS), bottom=0.0),
            GridRow(
                "share of sinks on the learned sink",
                tuple(shares(way, "learned_sink") if way == "learned-sink" else () for way in WAYS),
                bottom=0.0,
            ),
            GridRow("their loss, nats a byte", tuple(over_seeds(histories[way], losses) for way in WAYS)),
        ),
    )  # fmt: skip


def run(task: Task) -> Result:
    outcome = task.train(Preset("gu-sinks", build))
    return Result(rows_of(outcome.report["found"]), outcome.findings.chart)


def rows_of(measured: Mapping[str, Mapping[str, list[float]]]) -> tuple[Row, ...]:
    """The paper's claims, of what each way came to."""
    plain, softmax, learned, sigmoid = (measured[way] for way in WAYS)
    present, absent = Claim("above 1 %", low=0.01), Claim("below 1 %", high=0.01)
    more = Claim("above 0", low=0.0)
    return (
        Row("sinks on the first token, softmax, any first token", "18.18 % (5B tokens); under 1 % (50M, figure 28)",
            tuple(plain["first_key"]), absent, ".1%"),
        Row("sinks on the first token, softmax, fixed first token", "74.11 % (table 10)", tuple(softmax["first_key"]),
            present, ".1%"),
        Row("the same after 5 % of the steps", "none before step 1,000 of 20,000 (figure 4, any first token)",
            tuple(softmax["early"]), absent, ".1%"),
        Row("sinks on the first token, learned sink", "0.00 % (table 4, any first token)",
            tuple(learned["first_key"]), absent, ".1%"),
        Row("sinks on the learned sink itself", "73.34 % (table 4, any first token)", tuple(learned["learned_sink"]),
            present, ".1%"),
        Row("sinks on the first token, sigmoid", "0.44 % (table 6, any first token)", tuple(sigmoid["first_key"]),
            absent, ".1%"),
        Row("sinks on the first token, softmax over sigmoid", "+17.74 points (any first token)",
            less(softmax["first_key"], sigmoid["first_key"]), more, "+.1%"),
        Row("loss, sigmoid over softmax, nats", "-0.03 (any first token)",
            less(sigmoid["held_out_loss"], softmax["held_out_loss"]), None, "+.3f"),
    )  # fmt: skip


REPRODUCTION = Reproduction(
    "gu-sinks",
    "when heads park on the first token",
    "Gu et al. 2025, When Attention Sink Emerges in Language Models: An Empirical View (ICLR; first 2024).",
    "Language models of 60M parameters: with softmax 18.18 % of heads are sinks, which emerge during training, 74.11 % "
    "where every text begins with one fixed token, and under 1 % with 50M tokens to learn from; with a learned key the "
    "sink moves there; with sigmoid attention, whose rows need not add up to 1, 0.44 % are left (tables 4, 6 and 10, "
    "figures 4 and 28).",
    f"The share of (text, layer, head) whose weight on the first key, mean over the rows of a text, is above "
    f"{THRESHOLD:g}, on {TEXTS} texts of {TOKENS} tokens. Sigmoid weights are divided by their row's sum first, as in "
    f"the paper's code.",
    (
        "Decoders of 0.2M parameters that read bytes, 0.4 million of them, not 60M parameters and 5 billion tokens; "
        "windows of 64 bytes, not 2,048 tokens; a learning rate of 0.004, as so small a net needs it, not 0.0004.",
        "The kinds of attention are compared where texts begin with a fixed token, since without one there are none "
        "to move; the paper compares them on texts that begin anywhere.",
        "The learned sink is one logit a head (as in gpt-oss), which every query meets alike; the paper's is a learned "
        "key, whose weight depends on the query.",
    ),
    run,
)
