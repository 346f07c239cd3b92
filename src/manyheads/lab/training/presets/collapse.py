"""`collapse`: all heads forced to the same weights, after training and from the start; and without W^O.

Eight heads learn five relations (the task of `heads`). Then the trained net is run with all maps replaced by their mean
(`Average`), and with the heads' outputs side by side instead of mixed (`SkipOutputProjection`). Two more nets live with
either from their first step: "tied" has one query and key projection for all heads, "unmixed" no output projection.
Their feed-forwards are as much wider as makes the parameters equal, so that what is missing is the heads' freedom.

Diversity is the mean Jensen-Shannon divergence of two heads' rows as a share of ln 2 (`head_families`' measure).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from manyheads.edits import applied
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.presets import heads
from manyheads.lab.training.presets.preset import AllTrained, Findings, Preset, Setup, Training, by_seed
from manyheads.lab.training.runs import Batch, Run, change_lines, paired, plus_minus, spreads_of
from manyheads.plan import Average, Plan, SkipOutputProjection

NAME = "collapse"
HEADS = 8
COMPARED_ROWS = 8  # texts whose maps are compared: 8 x 23 rows
PLANS = {"averaged": Plan([Average("L*")]), "skipped": Plan([SkipOutputProjection("L*")])}
MEASURED = ("held_out_loss", "all_right", *(f"right_{name}" for name in heads.RELATIONS), "diversity")
WAYS = {
    "free": "trained free",
    "averaged": "the free net, run\nwith maps averaged",
    "tied": "trained with\none map for all",
    "skipped": "the free net,\nrun without W^O",
    "unmixed": "trained\nwithout W^O",
}


def build(setup: Setup) -> Training:
    """Three runs a seed; the report runs the free one in two more ways."""
    scale = setup.scale(heads.WHOLE, heads.TRIAL)

    def make(name: str, index: int, kind: str, _: AllTrained) -> Run:
        return heads.reader_run(name, scale, setup.seed + index, HEADS, kind, measured)

    runs = by_seed(scale.seeds, {kind: kind for kind in heads.KINDS}, make)
    return Training(runs, lambda trained: findings(trained, scale, setup.seed))


PRESET = Preset(NAME, build)


def measured(model: nn.Module, held_out: Batch) -> dict[str, float]:
    """Scores, and the heads' diversity."""
    return {**heads.scores_of(model, held_out), "diversity": heads.diversity(model, held_out["cards"][:COMPARED_ROWS])}


def measured_under(model: nn.Module, plan: Plan, held_out: Batch) -> dict[str, float]:
    """Scores and diversity of a model under a plan."""
    with applied(model, plan), torch.no_grad():
        return measured(model, held_out)


# ------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, scale: heads.RunScale, first_seed: int) -> Findings:
    """Each way's loss, right answers and diversity over seeds, and how far each is from the free net, seed by seed."""
    parameters = heads.equal_parameters(trained.values())
    scores: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(scale.seeds):
        held_out = heads.held_out_of(scale, first_seed + seed)
        for kind in heads.KINDS:
            history = trained[f"{kind}-{seed}"].history
            scores[kind].append({name: history.last(name) for name in MEASURED})
        # No runs of their own: the trained free net, under a plan.
        for way, plan in PLANS.items():
            scores[way].append(measured_under(trained[f"free-{seed}"].model, plan, held_out))
    ways = {way: spreads_of(results) for way, results in scores.items()}
    losses = {way: result["held_out_loss"]["each"] for way, result in ways.items()}
    numbers = {
        "parameters": parameters,
        "heads": HEADS,
        "seeds": scale.seeds,
        "ways": ways,
        "loss_over_free": {way: paired(losses[way], losses["free"]) for way in WAYS if way != "free"},
    }
    return Findings(numbers, lines_of(numbers), chart(numbers))


def lines_of(numbers: dict[str, Any]) -> tuple[str, ...]:
    lines = [
        f"{numbers['heads']} heads, {numbers['parameters']:,} parameters each; of {numbers['seeds']} seeds, mean and "
        f"standard deviation:"
    ]
    for way, result in numbers["ways"].items():
        loss, right, apart = (result[name] for name in ("held_out_loss", "all_right", "diversity"))
        lines.append(
            f"{_words_of(way)}: {plus_minus(loss)} nats, all {len(heads.RELATIONS)} right at "
            f"{100 * right['mean']:.0f} ± {100 * right['sd']:.0f} %, diversity {plus_minus(apart)}"
        )
    changes = {f"{_words_of(way)}, over the free net": change for way, change in numbers["loss_over_free"].items()}
    return (*lines, *change_lines(changes))


def chart(numbers: dict[str, Any]) -> Chart:
    def groups(name: str) -> tuple[Points, ...]:
        return tuple(Points(WAYS[way], tuple(result[name]["each"])) for way, result in numbers["ways"].items())

    return Chart(
        "What is left when all heads look the same way",
        f"one layer of {numbers['heads']} heads, {numbers['parameters']:,} parameters in every way, five relations; "
        f"{numbers['seeds']} seeds",
        panels=(
            PointsPanel("held-out loss, nats an answer", groups("held_out_loss"), bottom=0.0),
            PointsPanel("share of places where all five answers are right", groups("all_right"), 0.0, 1.0),
            PointsPanel(
                "diversity of the heads' maps (1: no two look at the same card)", groups("diversity"), 0.0, 1.0
            ),
        ),
        notes=(DOTS,),
    )


def _words_of(way: str) -> str:
    return WAYS[way].replace("\n", " ")
