"""`wu-masking`: retrieval heads set to zero, beside as many other heads, on a model that fetches passkeys.

The models are those of the preset `passkey`. A head's retrieval score is measured on the last question of half of the
texts that no step saw; the questions of the other half are answered with heads masked, those with the highest scores
first, and with as many drawn from the heads that are no retrieval heads.
Source: Wu et al. 2024, Retrieval head mechanistically explains long-context factuality, sections 2 and 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from manyheads.edits import applied
from manyheads.heads import Head
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import Chart, Points, PointsPanel
from manyheads.lab.training.presets.passkey import (
    RECENT,
    SINK,
    TRIAL,
    WHOLE,
    answered,
    held_out_texts,
    needles_of,
    run_name,
    runs_of,
)
from manyheads.lab.training.presets.preset import AllTrained, Findings, Preset, Setup, Training, live
from manyheads.long_context import needle_scores
from manyheads.plan import Ablate, Plan

NAME = "wu-masking"
RETRIEVAL = 0.1  # a head with a higher score is a retrieval head: the paper's threshold
COUNTS = (1, 2, 4, 8, 16)
DRAWS = 10  # sets of other heads


def build(setup: Setup) -> Training:
    """The preset's own trainings, under its own names."""
    scale = setup.scale(WHOLE, TRIAL)

    def report(trained: AllTrained) -> Findings:
        by_seed = [
            masked(trained[run_name(index)].model, held_out_texts(scale, setup.seed + index), setup.seed + index)
            for index in range(scale.seeds)
        ]
        return Findings({"by_seed": by_seed}, (), chart(by_seed))

    return Training(runs_of(scale, setup.seed), report)


PRESET = Preset(NAME, build)


def masked(model: nn.Module, batch: Mapping[str, Tensor], seed: int) -> dict[str, Any]:
    """Scores on every other text; on the rest, what is answered with heads masked.

    `scores`: by head, highest first. `whole`: with all heads. `top`: with 1, 2 ... heads masked, those with the highest
    scores, up to all retrieval heads. `random`: by how many, of COUNTS and of all retrieval heads, with DRAWS sets of
    other heads, drawn by seed; with as many as there are, where there are fewer.
    """
    choosing, reporting = ({name: tensor[start::2] for name, tensor in batch.items()} for start in (0, 1))
    scores = {
        Head("", layer, index): score
        for layer, of_layer in needle_scores(live(model), needles_of(choosing)).items()
        for index, score in enumerate(of_layer.tolist())
    }
    ranked = sorted(scores, key=lambda head: -scores[head])
    retrieval = [head for head in ranked if scores[head] > RETRIEVAL]
    ordinary = [head for head in ranked if scores[head] <= RETRIEVAL]
    generator = np.random.Generator(np.random.PCG64(seed))
    orders = [[ordinary[index] for index in generator.permutation(len(ordinary))] for _ in range(DRAWS)]

    def without(heads: Sequence[Head]) -> dict[str, float]:
        with applied(model, Plan([Ablate(list(heads), kind="zero")])):
            return answered(model, reporting)

    every = len(retrieval)
    counts = sorted({count for count in (*COUNTS, every) if 0 < count <= every}) if ordinary else []
    return {
        "scores": {str(head): scores[head] for head in ranked},
        "retrieval": [str(head) for head in retrieval],
        "whole": answered(model, reporting),
        "top": [without(ranked[: count + 1]) for count in range(every)],
        "random": {str(count): [without(order[:count]) for order in orders] for count in counts},
    }


# ------------------------------------------------------------------------------------------------------ what it shows


def judged_numbers(measured: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one seed to which the claim is applied: all retrieval heads masked, and as many others.

    Of a model without any retrieval head, or without any other: nothing was masked.
    """
    intact, nothing = measured["whole"], [measured["whole"]]
    top, random = (measured["top"] or nothing)[-1], [nothing, *measured["random"].values()][-1]
    return {
        "share": len(measured["retrieval"]) / len(measured["scores"]),
        "recall": intact["recall"],
        "without_first": (measured["top"] or nothing)[0]["recall"] / max(intact["recall"], 1e-9),
        "without_retrieval": top["recall"] / max(intact["recall"], 1e-9),
        "without_others": float(np.mean([draw["recall"] for draw in random])) / max(intact["recall"], 1e-9),
        "words_without_retrieval": top["loss_words"] - intact["loss_words"],
        "words_without_others": float(np.mean([draw["loss_words"] for draw in random])) - intact["loss_words"],
    }


def run(task: Task) -> Result:
    outcome = task.train(PRESET)
    by_seed = outcome.report["found"]["by_seed"]
    return Result(rows_of(by_seed), outcome.findings.chart, (words_of(by_seed),))


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    readings = [judged_numbers(measured) for measured in by_seed]

    def each(name: str) -> tuple[float, ...]:
        return tuple(reading[name] for reading in readings)

    return (
        Row("heads with a retrieval score above 0.1", "under 5 %; 2.1 % to 6.2 % in six models", each("share"),
            Claim("under 5 %", high=0.05), ".1%"),
        Row("questions answered with all heads", "", each("recall"), None, ".1%"),
        Row("of these, with all retrieval heads masked", "retrieval fails", each("without_retrieval"),
            Claim("under half", high=0.5), ".1%"),
        Row("of these, with the same number of other heads masked", "not affected", each("without_others"),
            Claim("over 95 %", low=0.95), ".1%"),
        Row("of these, with the head of the highest score masked", "", each("without_first"), None, ".1%"),
        Row("a word with all retrieval heads masked, nats more", "still fluent", each("words_without_retrieval"), None,
            "+.3f"),
        Row("a word with the same number of other heads masked, nats more", "", each("words_without_others"), None,
            "+.3f"),
    )  # fmt: skip


def words_of(by_seed: Sequence[Mapping[str, Any]]) -> str:
    """Which heads are retrieval heads, and what is left as they go one after another."""
    parts = []
    for index, measured in enumerate(by_seed):
        named = ", ".join(f"{head} {measured['scores'][head]:.2f}" for head in measured["retrieval"])
        gone = ", ".join(f"{row['recall']:.0%}" for row in measured["top"])
        parts.append(
            f"Seed {index}: retrieval heads of {len(measured['scores'])}: {named or 'none'}; answered without the "
            f"first, the first two and so on: {gone}."
        )
    return " ".join(parts)


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """Questions answered, by how many heads are masked."""

    def panel(name: str, column: str, title: str, top: float | None) -> PointsPanel:
        groups = [Points("none", tuple(measured["whole"][column] for measured in by_seed), False)]
        for label in (*map(str, COUNTS), "all retrieval\nheads"):
            values: list[float] = []
            for measured in by_seed:
                count = label if label.isdigit() else str(len(measured["retrieval"]))
                # A draw is no seed: of each seed the mean over its draws.
                if name == "random" and count in measured["random"]:
                    values.append(float(np.mean([draw[column] for draw in measured["random"][count]])))
                elif name == "top" and 0 < int(count) <= len(measured["top"]):
                    values.append(measured["top"][int(count) - 1][column])
            if values:
                groups.append(Points(label, tuple(values), name == "top"))
        return PointsPanel(title, tuple(groups), 0.0, top)

    return Chart(
        "Retrieval heads masked, and others",
        f"passkeys far from their questions; by how many heads are set to zero; seeds: {len(by_seed)}",
        panels=(
            panel("top", "recall", "questions answered, highest retrieval scores masked", 1.0),
            panel("random", "recall", "questions answered, the same number of others masked", 1.0),
            panel("top", "loss_words", "nats a word, highest retrieval scores masked", None),
            panel("random", "loss_words", "nats a word, the same number of others masked", None),
        ),
        notes=(
            f"Of other heads the mean of {DRAWS} draws a seed. Dots are seeds, strokes their means, bars one standard "
            "deviation either way.",
        ),
    )


REPRODUCTION = Reproduction(
    NAME,
    "retrieval heads masked, beside other heads",
    "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality (ICLR 2025).",
    "Under 5 % of heads are retrieval heads (their published scores: 2.1 % in Llama-2-13B-64k to 6.2 % in Mixtral); "
    "pruning them makes retrieval fail, and pruning random other heads does not affect it (abstract, figure 1).",
    "A head's retrieval score is the share of the answer's tokens at which the key that it looks at most is the "
    "needle's copy of the token being written; a retrieval head has more than 0.1. Masked is a head whose output is "
    "0 before the output projection. Answered: both tokens of a question are the likeliest ones. Scores are of one "
    f"half of the texts, answers of the other; of other heads the mean of {DRAWS} draws.",
    (
        "A decoder of 2 layers of 16 heads (152,640 parameters), in whose training all but two key/value heads saw "
        f"only the first {SINK} and last {RECENT} tokens in three of four texts: retrieval was pressed into few heads.",
        "One head is 3.1 % of this model's, and two query heads share keys and values: under 5 % is one head.",
        "The needle is two tokens, read with the answer in place (the paper lets the model write), and every needle "
        "counts.",
    ),
    run,
)  # fmt: skip
