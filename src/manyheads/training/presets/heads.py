"""`heads`: 1, 2, 4, 8 and 16 heads, equally many parameters, on a task that needs five relations at every place.

More heads are narrower ones: the projections are the same matrices, cut into more or fewer pieces, so that nothing but
the number of heads differs. Five seeds each, the same weights' distribution and the same texts for every number. The
report sets the paper's own experiment beside it, with its numbers as printed there.

Source: Vaswani et al. 2017, "Attention is all you need", table 3, rows (A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from manyheads.training.charts import Points, PointsChart, PointsPanel
from manyheads.training.engine import Trained
from manyheads.training.paperbleu import CIRCULATING_BLEU, PAPER_BLEU
from manyheads.training.presets.preset import AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.training.relations import RELATIONS, Cards, Reader, loss_of, scores_of, terms_of
from manyheads.training.runs import HELD_OUT_STEP, Run, Settings
from manyheads.training.seeds import changes_said, paired, spreads_of

NAME = "heads"
COUNTS = (1, 2, 4, 8, 16)
HELD_OUT_ROWS = 128
WHY_FLOAT32 = "seconds a training"


@dataclass(frozen=True)
class Scale(Scaled):
    seeds: int
    width: int
    rows: int
    letters: int = 8
    numbers: int = 8
    length: int = 24

    def cards(self, seed: int) -> Cards:
        return Cards(self.letters, self.numbers, self.length, self.rows, seed)


WHOLE = Scale(
    Settings(500, 5e-3, warmup=50, floor=0.05, decay=0.01, checkpoint_every=100, measure_every=100),
    seeds=5, width=64, rows=32,
)  # fmt: skip
TRIAL = Scale(Settings(6, 5e-3, warmup=2, decay=0.01, checkpoint_every=3, measure_every=3), seeds=2, width=32, rows=4)


def build(setup: Setup) -> Training:
    """A run a number of heads and seed."""
    scale = setup.scale(WHOLE, TRIAL)
    runs: dict[str, MakeRun] = {}
    for seed in range(scale.seeds):
        for count in COUNTS:
            name = run_name(count, seed)
            runs[name] = lambda _, name=name, count=count, seed=setup.seed + seed: reader_run(name, scale, seed, count)

    def report(trained: AllTrained) -> Findings:
        return findings(trained, scale)

    return Training(runs, report)


PRESET = Preset(NAME, build)


def run_name(count: int, seed: int) -> str:
    return f"h{count}-{seed}"


def reader_run(name: str, scale: Scale, seed: int, num_heads: int, kind: str = "free", measure: Any = scores_of) -> Run:
    """One training of the cards' reader. Its texts hang on the seed and the step alone."""
    torch.manual_seed(seed)
    model = Reader(scale.letters, scale.numbers, scale.length, scale.width, num_heads, kind)
    held_out = held_out_of(scale, seed)
    batch = scale.cards(seed).batch
    return Run(name, model, scale.settings, batch, loss_of, lambda m, _: measure(m, held_out), WHY_FLOAT32, terms_of)


def held_out_of(scale: Scale, seed: int) -> Mapping[str, torch.Tensor]:
    """Texts that no step of any seed sees."""
    return replace(scale.cards(seed), rows=HELD_OUT_ROWS).batch(HELD_OUT_STEP)


# ------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, scale: Scale) -> Findings:
    """Loss and right answers by number of heads, each with its spread over seeds, and the paper's beside it."""
    parameters = equal_parameters(trained.values())
    by_count = {count: [trained[run_name(count, seed)] for seed in range(scale.seeds)] for count in COUNTS}
    found = {str(count): spreads(runs) for count, runs in by_count.items()}
    losses = {count: found[str(count)]["held_out_loss"]["each"] for count in COUNTS}
    steps = {f"{more} over {fewer}": paired(losses[more], losses[fewer]) for fewer, more in pairwise(COUNTS)}
    numbers = {
        "parameters": parameters,
        "relations": list(RELATIONS),
        "seeds": scale.seeds,
        "by_heads": found,
        "loss_change": steps,
        "paper_bleu": {str(count): bleu for count, bleu in PAPER_BLEU.items()},
        "paper": "Vaswani et al. 2017, table 3 (A), newstest2013",
        "not_the_papers": {str(count): bleu for count, bleu in CIRCULATING_BLEU.items()},
    }
    return Findings(numbers, lines_of(numbers, scale), chart(numbers, scale))


def equal_parameters(trained: Any) -> int:
    """How many parameters every net has. That they are equal is what the comparison rests on."""
    counts = {sum(each.numel() for each in one.model.parameters()) for one in trained}
    assert len(counts) == 1, f"nets that should be of one size have {sorted(counts)} parameters"
    return counts.pop()


def spreads(runs: list[Trained]) -> dict[str, Any]:
    """What scores_of measured at the end, of all seeds."""
    names = ("held_out_loss", "all_right", *(f"right_{name}" for name in RELATIONS))
    return spreads_of([{name: run.history.last(name) for name in names} for run in runs])


def lines_of(numbers: dict[str, Any], scale: Scale) -> tuple[str, ...]:
    lines = [f"{numbers['parameters']:,} parameters each; of {scale.seeds} seeds, mean and standard deviation:"]
    for count, found in numbers["by_heads"].items():
        loss, right = found["held_out_loss"], found["all_right"]
        worst = min(RELATIONS, key=lambda name, found=found: found[f"right_{name}"]["mean"])
        lines.append(
            f"h = {count:>2}: {loss['mean']:.3f} ± {loss['sd']:.3f} nats an answer, all five right at "
            f"{100 * right['mean']:.0f} ± {100 * right['sd']:.0f} % of places; weakest: {worst}, "
            f"{100 * found[f'right_{worst}']['mean']:.0f} % right"
        )
    changes = {f"{pair} head{'s' * (not pair.endswith(' 1'))}": each for pair, each in numbers["loss_change"].items()}
    lines += changes_said(changes)
    bleu = ", ".join(f"{value} ({count})" for count, value in PAPER_BLEU.items())
    wrong = ", ".join(f"{value} ({count})" for count, value in CIRCULATING_BLEU.items())
    lines.append(f"The paper's own (Vaswani et al. 2017, table 3 (A), BLEU on newstest2013, by heads): {bleu}.")
    lines.append(f"Figures in circulation as that table, {wrong}, are not in it.")
    return tuple(lines)


def chart(numbers: dict[str, Any], scale: Scale) -> PointsChart:
    def groups(name: str) -> tuple[Points, ...]:
        return tuple(Points(count, tuple(found[name]["each"])) for count, found in numbers["by_heads"].items())

    paper = tuple(Points(str(count), (bleu,)) for count, bleu in PAPER_BLEU.items())
    return PointsChart(
        "How many heads, with equally many parameters",
        f"one layer, {numbers['parameters']:,} parameters, five relations at every place; {scale.seeds} seeds",
        points=(
            PointsPanel("held-out loss, nats an answer, by number of heads", groups("held_out_loss"), bottom=0.0),
            PointsPanel("share of places where all five answers are right", groups("all_right"), 0.0, 1.0),
            PointsPanel("another task: BLEU on newstest2013, Vaswani et al. 2017, table 3 (A)", paper, 24.5, 26.0),
        ),
        notes=(
            "Dots are seeds, strokes their means, bars one standard deviation either way; of the paper one value each.",
        ),
    )
