"""`zhai-collapse`: attention entropy collapses at too high a learning rate, and a reparametrisation prevents it.

The runs are three of the ways of the preset `entropy-collapse`; here its numbers are read as the paper's claims.
Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.presets.entropy_collapse import COLLAPSED, COMPARISON
from manyheads.lab.training.presets.preset import Preset

PRESET = Preset("zhai-collapse", COMPARISON.of(("stable", "high", "sigma")).build)


def run(task: Task) -> Result:
    outcome = task.train(PRESET)
    diverged = tuple(float(bool(outcome.trained[f"high-{seed}"].ended)) for seed in range(task.seeds))
    return Result(rows_of(outcome.report["found"]["ways"], diverged), outcome.findings.chart)


def rows_of(ways: Mapping[str, Mapping[str, Any]], diverged: tuple[float, ...]) -> tuple[Row, ...]:
    """The paper's claims, of what the preset found of each way to train, and whether a seed's run at the high rate
    ended for want of a finite loss."""

    def each(way: str, name: str) -> tuple[float, ...]:
        return tuple(ways[way][name]["each"])

    def highest_layer(way: str) -> tuple[float, ...]:
        """The mean entropy of the layer that has most, seed by seed."""
        return tuple(map(max, zip(*(layer["each"] for layer in ways[way]["entropy_by_layer"]), strict=True)))

    def loss_over(way: str, reference: str) -> tuple[float, ...]:
        return less(each(way, "held_out_loss"), each(reference, "held_out_loss"))

    collapsed = Claim(f"below {COLLAPSED} nats", high=COLLAPSED)
    stays_up = Claim(f"above {COLLAPSED} nats", low=COLLAPSED)
    worse, better = Claim("above 0", low=0.0), Claim("below 0", high=0.0)
    return (
        Row("entropy of the layer with most, high rate, nats", "falls to about 0 in all layers",
            highest_layer("high"), collapsed, ".3f"),
        Row("entropy of the lowest head, rate that suits, nats", "stays up", each("stable", "lowest_entropy"), stays_up,
            ".3f"),
        Row("loss at the high rate over the rate that suits, nats", "unstable or diverged",
            loss_over("high", "stable"), worse, "+.3f"),
        Row("runs at the high rate whose loss became infinite", "training diverges", diverged, Claim("all", low=0.99),
            ".0%"),
        Row("entropy of the lowest head, high rate, sigma-reparametrised, nats", "stays up",
            each("sigma", "lowest_entropy"), stays_up, ".3f"),
        Row("loss, sigma-reparametrised over plain, both at the high rate, nats", "trains stably",
            loss_over("sigma", "high"), better, "+.3f"),
    )  # fmt: skip


REPRODUCTION = Reproduction(
    "zhai-collapse",
    "entropy that collapses at a high learning rate",
    "Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse (ICML).",
    "A vision transformer at twice its learning rate: the attention entropy of all layers falls to about 0, and the "
    "training diverges; with sigma-reparametrised matrices it trains stably (figures 1 and 2).",
    "A row's entropy is -sum of w ln w over its weights, nats; of a head the mean over rows, of a layer over heads. "
    "Read in the last watched training step, before its update. Loss: of held-out modules of the standard library, "
    "nats a byte.",
    (
        "A decoder of 3 layers and 158,144 parameters that reads bytes, with norms before each layer, not a vision "
        "transformer.",
        "Its rate is 25 times the one that suits it, not twice; it trains 300 steps.",
        "Gradients are clipped, so that a collapsed net is stuck where the paper's diverges.",
    ),
    run,
)
