"""`olsson-phase`: two layers learn to read the context within a short stretch of training, as induction heads form.

The decoder, data and loop are the preset `induction`'s, with one layer of heads or two. Both curves of the paper are
measured in one training: the in-context score on held-out texts, and prefix matching on random tokens that repeat.

Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arguments 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import GridChart, GridRow, over_seeds
from manyheads.lab.training.checkpoints import History
from manyheads.lab.training.decoder import Decoder, batch_loss
from manyheads.lab.training.presets import induction
from manyheads.lab.training.presets.induction import CONFIG, WHY_FLOAT32, RepeatedTokens
from manyheads.lab.training.presets.preset import (
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
    live,
    probe_columns,
)
from manyheads.lab.training.runs import HELD_OUT_STEP, Run, Settings
from manyheads.models import device_of
from manyheads.roles.probes import SUM, Repeats

LAYERS = (1, 2)
LENGTH = 64
EARLY, LATE = 6, 63  # tokens, counted from 1: the paper's 50 and 500 of 512, on texts of 64
PREFIX = Repeats(25, 4, False, SUM, "Olsson et al. 2022, prefix matching, without a start token")


@dataclass(frozen=True)
class RunScale(Scaled):
    seeds: int
    rows: int
    samples: int


WHOLE = RunScale(replace(induction.WHOLE.settings, measure_every=20), seeds=3, rows=32, samples=4)
TRIAL = RunScale(Settings(6, 3e-3, 2, checkpoint_every=3, measure_every=2), seeds=1, rows=8, samples=2)


def build(setup: Setup) -> Training:
    """A run for each depth and seed; those of a seed read the same texts."""
    scale = setup.scale(WHOLE, TRIAL)

    def make(name: str, index: int, layers: int, _: AllTrained) -> Run:
        return run_of(name, scale, setup.seed + index, layers)

    runs = by_seed(scale.seeds, {str(layers): layers for layers in LAYERS}, make)
    return Training(runs, lambda trained: findings(trained, scale))


def run_of(name: str, scale: RunScale, seed: int, layers: int) -> Run:
    """One depth's training of one seed."""
    torch.manual_seed(seed)
    data = RepeatedTokens(CONFIG.vocab_size, LENGTH, scale.rows, shortest=8, longest=32, seed=seed)
    texts = torch.cat([data.batch(HELD_OUT_STEP + part)["ids"] for part in range(4)])

    def measured(model: nn.Module, step: int) -> dict[str, float]:
        prefix = probe_columns(live(model), PREFIX, scale.samples)
        return {"in_context": in_context_score(model, texts), "prefix_matching": max(prefix.values()), **prefix}

    model = Decoder(replace(CONFIG, num_hidden_layers=layers))
    return Run(name, model, scale.settings, data.batch, batch_loss, measured, WHY_FLOAT32)


def in_context_score(model: nn.Module, ids: Int[Tensor, "b n"], early: int = EARLY, late: int = LATE) -> float:
    """The loss of token `late` minus that of token `early`, counted from 1, mean over texts, nats."""
    ids = ids.to(device_of(model))
    logits = model(ids[:, :-1]).logits.float()
    # The prediction of token n (from 1) stands at index n - 2: that of the token before it.
    first, last = (F.cross_entropy(logits[:, token - 2], ids[:, token - 1]) for token in (early, late))
    return float(last - first)


# ------------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, scale: RunScale) -> Findings:
    """Scores at the end, and when and how fast they changed, by depth."""
    histories = {layers: [trained[f"{layers}-{seed}"].history for seed in range(scale.seeds)] for layers in LAYERS}
    numbers = {
        str(layers): {
            "in_context": [history.last("in_context") for history in of_depth],
            "prefix_matching": [history.last("prefix_matching") for history in of_depth],
            "changed": [change(history, "in_context") for history in of_depth],
            "matched": [change(history, "prefix_matching") for history in of_depth],
        }
        for layers, of_depth in histories.items()
    }
    return Findings(numbers, (), chart(histories))


def change(history: History, column: str) -> dict[str, float]:
    """When a curve went 10, 50 and 90 % of the way from its first value to its last, as shares of the training."""
    steps, values = history.taken(column)
    first, last = values[0], values[-1]
    way = [(value - first) / (last - first) if last != first else 0.0 for value in values]
    return {f"at_{share:.0%}": crossing(steps, way, share) / steps[-1] for share in (0.1, 0.5, 0.9)}


def crossing(steps: list[float], values: list[float], level: float) -> float:
    """The step at which a curve first comes to `level`, on the straight line between two measurements; the last step
    where it never does."""
    for (begin, low), (end, high) in pairwise(zip(steps, values, strict=True)):
        if low < level <= high:
            return begin + (end - begin) * (level - low) / (high - low)
    return steps[-1]


def chart(histories: Mapping[int, list[History]]) -> GridChart:
    """A column for each depth: both scores over the same steps."""

    def row(title: str, column: str, bottom: float | None = None) -> GridRow:
        cells = (over_seeds(of_depth, lambda history: history.taken(column)) for of_depth in histories.values())
        return GridRow(title, tuple(cells), bottom)

    return GridChart(
        "A phase change, with two layers and with one",
        "attention-only decoders of two heads a layer, random tokens that repeat; grey: seeds, ink: their median",
        ("one layer", "two layers"),
        (
            row(f"in-context score: loss of token {LATE} minus that of token {EARLY}, nats", "in_context"),
            row("prefix matching of the best head", "prefix_matching", bottom=0.0),
        ),
    )


def run(task: Task) -> Result:
    outcome = task.train(Preset("olsson-phase", build))
    return Result(rows_of(outcome.report["found"]), outcome.findings.chart)


def rows_of(measured: Mapping[str, Mapping[str, list[Any]]]) -> tuple[Row, ...]:
    """The paper's claims, of what both depths came to."""
    one_layer, two_layers = measured["1"], measured["2"]
    width = tuple(change["at_90%"] - change["at_10%"] for change in two_layers["changed"])
    apart = tuple(
        abs(score["at_50%"] - heads["at_50%"])
        for score, heads in zip(two_layers["changed"], two_layers["matched"], strict=True)
    )
    return (
        Row("in-context score, two layers, nats", "about -0.4 after the change", tuple(two_layers["in_context"]),
            Claim("below 0", high=0.0), "+.2f"),
        Row("in-context score, two layers over one, nats", "below 0: one layer has no such change",
            less(two_layers["in_context"], one_layer["in_context"]), Claim("below 0", high=0.0), "+.2f"),
        Row("prefix matching of the best head, two layers", "heads near 1 form (argument 1)",
            tuple(two_layers["prefix_matching"]), Claim("above 0.5", low=0.5), ".2f"),
        Row("prefix matching of the best head, one layer", "none form", tuple(one_layer["prefix_matching"]),
            Claim("below 0.1", high=0.1), ".2f"),
        Row("from 10 to 90 % of the change in score, share of the training", "25 % (2.5B to 5B of 10B tokens)", width,
            Claim("below 25 %", high=0.25), ".1%"),
        Row("score and prefix matching half way, apart by, share of the training", "in the same window", apart,
            Claim("below 5 %", high=0.05), ".1%"),
    )  # fmt: skip


REPRODUCTION = Reproduction(
    "olsson-phase",
    "a phase change, and the heads that form in it",
    "Olsson et al. 2022, In-context Learning and Induction Heads (Transformer Circuits Thread).",
    "Models of two or more layers gain most of their in-context learning in one short stretch, between 2.5 and 5 of 10 "
    "billion tokens, in which induction heads form; models of one layer do neither (arguments 1 and 2). The score is "
    "about -0.4 nats afterwards.",
    f"In-context score: the loss of a late token minus that of an early one, mean over texts, nats: the paper's "
    f"tokens 500 and 50 of 512, here {LATE} and {EARLY} of {LENGTH}. Prefix matching: of a head on 25 random tokens "
    f"four times, the weight on the tokens that followed earlier copies of the row's own, summed over copies, mean "
    f"over rows that have one.",
    (
        "Texts are random tokens that repeat, in which nothing but copying can be learned: early tokens cost as much "
        "as a guess, late ones nothing at best (-4.16 nats), so that the score's size says nothing of language.",
        "Attention-only nets of two heads a layer, 900 steps of 32 texts; the paper's small models read a corpus.",
        "The paper's words for prefix matching say the tokens before an earlier copy; what its heads need is the token "
        "after it, and that is measured.",
    ),
    run,
)
