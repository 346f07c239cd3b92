"""`gqa-uptrain`: key/value heads pooled by their mean, by the first or drawn anew, then 5 % of the training's steps.

The decoders are those of the preset `gqa` with all key/value heads; each is converted to 2 and to 1 of them in three
ways and goes on as it was trained, on the next byte, for a twentieth of its steps.
Source: Ainslie et al. 2023, sections 2.1 and 3.3, figures 4 and 5.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange, repeat

from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.decoder import Block, Decoder
from manyheads.lab.training.presets import gqa
from manyheads.lab.training.presets.gqa import (
    CONVERTED,
    KV_HEADS,
    WORDS,
    continued_run,
    read_data,
    scratch_run,
    with_fewer_kv_heads,
)
from manyheads.lab.training.presets.preset import AllTrained, Findings, Preset, Setup, Training, by_seed
from manyheads.lab.training.runs import Run

NAME = "gqa-uptrain"
POOLINGS = ("mean", "first", "random")
SHARE = 0.05  # of the teacher's steps


def build(setup: Setup) -> Training:
    """A teacher a seed, and from each of them a run for each number of key/value heads and way to pool them."""
    scale = setup.scale(gqa.WHOLE, gqa.TRIAL)
    data = read_data(setup.quick)

    def make(name: str, index: int, conversion: tuple[str, str] | None, trained: AllTrained) -> Run:
        seed = setup.seed + index
        if conversion is None:
            return scratch_run(name, scale, data, seed, "mha")
        teacher = trained[f"mha-{index}"].model
        assert isinstance(teacher, Decoder)
        torch.manual_seed(seed)  # before heads are drawn
        kind, pooling = conversion
        # All conversions of a seed go on with the teacher's task, on the same windows.
        return continued_run(name, converted(teacher, KV_HEADS[kind], pooling), scale, data, seed, SHARE)

    def report(trained: AllTrained) -> Findings:
        numbers = losses(trained, scale.seeds)
        return Findings(numbers, (), chart(numbers))

    conversions = {f"{kind}-{pooling}": (kind, pooling) for kind in CONVERTED for pooling in POOLINGS}
    return Training(by_seed(scale.seeds, {"mha": None, **conversions}, make), report, data.facts)


PRESET = Preset(NAME, build)


def converted(teacher: Decoder, num_kv_heads: int, pooling: str) -> Decoder:
    """A copy with fewer key/value heads, each made of as many neighbours: their mean, their first, or new weights.

    `convert_to_gqa` takes means. So of a teacher in which a group's heads are already equal, it takes what they are.
    """
    pooled = copy.deepcopy(teacher)
    fresh = Decoder(replace(teacher.config, num_key_value_heads=num_kv_heads))
    for block, drawn in zip(pooled.blocks, fresh.blocks, strict=True):
        assert isinstance(block, Block) and isinstance(drawn, Block)
        for part in ("k", "v") if pooling != "mean" else ():
            weight = getattr(block.attention.qkv_proj, part).weight
            size = teacher.config.num_key_value_heads // num_kv_heads
            by_head = rearrange(weight.detach(), "(n size d) m -> n size d m", n=num_kv_heads, size=size)[:, 0]
            if pooling == "random":
                drawn_weight = getattr(drawn.attention.qkv_proj, part).weight.detach()
                by_head = rearrange(drawn_weight, "(n d) m -> n d m", n=num_kv_heads)
            with torch.no_grad():
                weight.copy_(repeat(by_head, "n d m -> (n size d) m", size=size))
    return with_fewer_kv_heads(pooled, num_kv_heads, regroup=False)


# ------------------------------------------------------------------------------------------------------ what it shows


def losses(trained: AllTrained, seeds: int) -> dict[str, Any]:
    """Held-out loss, nats a byte, seed by seed: the teacher's, and each conversion's before and after its steps."""

    def of(name: str) -> list[list[float]]:
        return [trained[f"{name}-{index}"].history.taken("held_out_loss")[1] for index in range(seeds)]

    kinds = {
        kind: {
            pooling: {
                "before": [taken[0] for taken in of(f"{kind}-{pooling}")],
                "after": [taken[-1] for taken in of(f"{kind}-{pooling}")],
            }
            for pooling in POOLINGS
        }
        for kind in CONVERTED
    }
    steps = len(trained[f"{CONVERTED[0]}-{POOLINGS[0]}-0"].history) - 1
    return {"mha": [taken[-1] for taken in of("mha")], "kinds": kinds, "steps": steps}


def run(task: Task) -> Result:
    outcome = task.train(PRESET)
    return Result(rows_of(outcome.report["found"]), outcome.findings.chart)


def rows_of(numbers: Mapping[str, Any]) -> tuple[Row, ...]:
    """The paper's order of poolings, as differences of losses, seed by seed."""
    better, rows = Claim("below 0", high=0.0), list[Row]()
    for kind in reversed(CONVERTED):  # MQA first: the paper's own figure
        after = {pooling: numbers["kinds"][kind][pooling]["after"] for pooling in POOLINGS}
        before = {pooling: numbers["kinds"][kind][pooling]["before"] for pooling in POOLINGS}
        named = WORDS[kind]
        rows += [
            Row(f"{named}: mean less first, nats a byte", "mean is best", less(after["mean"], after["first"]), better,
                "+.3f"),
            Row(f"{named}: first less random, nats a byte", "first is second, random last",
                less(after["first"], after["random"]), better, "+.3f"),
            Row(f"{named}: mean over the teacher, nats a byte",
                "T5-XXL: 47.2 before, 47.1 with 8, 46.6 with 1 (mean of 7 tasks)",
                less(after["mean"], numbers["mha"]), None, "+.3f"),
            Row(f"{named}: mean over the teacher, not trained on, nats a byte", "of use for GQA, not for MQA",
                less(before["mean"], numbers["mha"]), None, "+.3f"),
        ]  # fmt: skip
    return tuple(rows)


def chart(numbers: Mapping[str, Any]) -> Chart:
    """Losses of each conversion, before and after it was trained on."""

    def panel(kind: str, when: str) -> PointsPanel:
        points = [
            Points(pooling, tuple(numbers["kinds"][kind][pooling][when]), pooling == "mean") for pooling in POOLINGS
        ]
        words = f"after {numbers['steps']} more steps" if when == "after" else "converted, not trained on"
        return PointsPanel(
            f"{WORDS[kind]}, {words}: held-out loss, nats a byte",
            (Points("teacher", tuple(numbers["mha"]), False), *points),
        )

    return Chart(
        "Key/value heads pooled in three ways, and trained on",
        f"decoders that read Python by bytes, {KV_HEADS['mha']} key/value heads to fewer; seeds: {len(numbers['mha'])}",
        panels=tuple(panel(kind, when) for kind in reversed(CONVERTED) for when in ("before", "after")),
        notes=(DOTS,),
    )


REPRODUCTION = Reproduction(
    NAME,
    "the mean of key/value heads is the best beginning for fewer of them",
    "Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints "
    "(EMNLP).",
    "Converting T5-Large to one key/value head and training on for 5 % of the steps, mean pooling works best, then "
    "the first head, then heads drawn anew (figure 4); T5-XXL with 8 key/value heads has 47.1 in the mean of 7 "
    "tasks, with 1 46.6, before 47.2 (table 1).",
    "Neighbouring key/value heads are merged by `convert_to_gqa`: their mean, the first of them, or weights as they "
    f"are drawn before a training. Then {SHARE:.0%} of the teacher's {gqa.WHOLE.settings.steps} steps of its own "
    "task, at half its highest rate with a warm-up of a tenth and a cosine down. Loss: of held-out modules of the "
    "standard library.",
    (
        "Decoders of two layers and 110,912 parameters that read bytes, not T5; loss, not the average of tasks.",
        f"A twentieth of the training is {round(SHARE * gqa.WHOLE.settings.steps)} steps here.",
        "The paper's figure 4 gives no numbers in its text, so only the order is compared.",
    ),
    run,
)  # fmt: skip
