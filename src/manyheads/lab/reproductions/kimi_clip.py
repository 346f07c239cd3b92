"""`kimi-clip`: under Muon the largest logits grow past 1,000; QK-clip keeps them, and costs no loss.

The runs are two of the ways of the preset `qk-clip`; here its numbers are read as the paper's claims.
Source: Kimi Team 2025, "Kimi K2: Open Agentic Intelligence", section 2.1.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.presets.preset import Preset
from manyheads.lab.training.presets.qk_clip import COMPARISON

WAYS = ("free", "clipped-100")
PRESET = Preset("kimi-clip", COMPARISON.of(WAYS).build)
TAU = 100.0  # the paper's
SPIKE, BEFORE = 1.5, 20  # a spike: a step's loss over so many times the median of so many steps before


def run(task: Task) -> Result:
    outcome = task.train(PRESET)
    spikes = {
        way: tuple(
            float(spikes_of(outcome.trained[f"{way}-{seed}"].history.taken("loss")[1])) for seed in range(task.seeds)
        )
        for way in WAYS
    }
    return Result(rows_of(outcome.report["found"]["ways"], spikes), outcome.findings.chart)


def spikes_of(losses: Sequence[float]) -> int:
    """How many steps have a loss of over `SPIKE` times the median of the `BEFORE` steps before them."""
    return sum(
        losses[step] > SPIKE * statistics.median(losses[step - BEFORE : step]) for step in range(BEFORE, len(losses))
    )


def rows_of(ways: Mapping[str, Mapping[str, Any]], spikes: Mapping[str, tuple[float, ...]]) -> tuple[Row, ...]:
    """The paper's claims, of what the preset found of each way to train."""

    def each(way: str, name: str) -> tuple[float, ...]:
        return tuple(ways[way][name]["each"])

    return (
        Row("largest logit of the run, Muon alone", "over 1,000 (9B active, figure 2)",
            each("free", "highest_max_logit"), Claim("above 1,000", low=1000.0), ",.0f"),
        Row("largest logit of the run, QK-clip at 100", "capped at 100", each("clipped-100", "highest_max_logit"),
            Claim("below 101", high=TAU + 1), ",.1f"),
        Row("largest logit of the last step, QK-clip at 100", "falls under 100 by itself after some 30 % of the steps",
            each("clipped-100", "max_logit"), Claim("below 95", high=0.95 * TAU), ",.1f"),
        Row("loss with QK-clip over Muon alone, nats", "no worse",
            less(each("clipped-100", "held_out_loss"), each("free", "held_out_loss")),
            Claim("below +0.01", high=0.01), "+.3f"),
        Row("loss spikes with QK-clip at 100", "0 in 15.5T tokens", spikes["clipped-100"], Claim("none", high=0.5),
            ".0f"),
        Row("loss spikes, Muon alone", "not given", spikes["free"], None, ".0f"),
    )  # fmt: skip


REPRODUCTION = Reproduction(
    "kimi-clip",
    "logits that Muon lets grow, and QK-clip",
    "Kimi Team 2025, Kimi K2: Open Agentic Intelligence (technical report).",
    "A mixture of experts with 9B active parameters of 53B, trained with Muon: largest logits quickly pass 1,000. Kimi "
    "K2 (1T parameters) with QK-clip at tau = 100: they are capped at 100, and fall into a normal range after some "
    "30 % of the steps; the loss is no worse, and has no spike in 15.5T tokens (section 2.1, figures 2 and 3).",
    "The largest logit of a head is the maximum of the scaled scores over a batch, read in the forward pass of a step, "
    "before that step's clip; of a run, over its watched steps and heads. A spike is a step whose loss is over 1.5 "
    "times the median of the 20 steps before (ours: the paper gives no number).",
    (
        "A decoder of 158,144 parameters that reads bytes for 300 steps, at a rate chosen so that logits grow.",
        "Its heads are plain ones, where the paper's are latent (MLA), and the clip scales q and k of a head alike.",
        "Rates are so high that one step can take a logit far past the cap before it is cut.",
    ),
    run,
)
