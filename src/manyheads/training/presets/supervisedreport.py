"""What the `supervised` preset shows: whether pulled heads have their pattern, what the task costs, who reads what.

Masses are `mh.measure_call`'s statistics of the finished nets, on texts that no step saw; the designed net's are of the
same texts. Where layer 1 looks is measured on random tokens, twice: the weight on the key so many places after a row's
token came before. One place after is induction; a net may learn to repeat by another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from manyheads.heads import Head
from manyheads.interventions.apply.applied import applied
from manyheads.interventions.design.model import build as build_designed
from manyheads.interventions.design.patterns import induction
from manyheads.plan import Ablate, Plan
from manyheads.recording.exact_map.requests import Band
from manyheads.statistics.defined.masses import offset_name
from manyheads.statistics.statistic import Facts, PerText, Statistic
from manyheads.training.charts import Points, PointsChart, PointsPanel
from manyheads.training.headcolumns import call_columns
from manyheads.training.history import History, head_column
from manyheads.training.presets.induction import fresh_texts, losses
from manyheads.training.presets.preset import AllTrained, Findings
from manyheads.training.repeated import RepeatedTokens
from manyheads.training.runs import HELD_OUT_STEP
from manyheads.training.seeds import changes_said, paired, spreads_of
from manyheads.training.supervision import PATTERNS

PULLED, OTHER = Head("", 0, 0), Head("", 0, 1)
HEADS = {"pulled": PULLED, "other": OTHER}
LEARNED = 1.0  # nats a repeated token, below which the task counts as learned
BACK = (0, -1, -2, -3, -4)
STATISTICS = tuple(dict.fromkeys([*(each.statistic for each in PATTERNS.values()), *map(offset_name, BACK)]))
AFTER = (0, 1, 2, 3)
PERIOD = 25  # tokens of a text that comes twice, as in the induction preset's probe
BAND = Band(tuple(by - PERIOD for by in AFTER))


@dataclass(frozen=True)
class Way:
    """A way to train: the pattern that L0H0 is pulled to, if any, and by how much of its loss. `label`: in lines."""

    name: str
    label: str
    pattern: str | None = None
    strength: float = 0.0


FREE = Way("free", "trained free")
WAYS = (
    FREE,
    Way("previous-0.01", "pulled to the\ntoken before, 0.01", "previous", 0.01),
    Way("previous-0.1", "pulled to the\ntoken before, 0.1", "previous", 0.1),
    Way("previous-1", "pulled to the\ntoken before, 1", "previous", 1.0),
    Way("first-0.1", "pulled to the\nfirst token, 0.1", "first", 0.1),
)
DESIGNED = "designed,\nnot trained"


def run_name(way: Way, seed: int) -> str:
    return f"{way.name}-{seed}"


def after_copy(by: int) -> Statistic:
    """The weight on the key `by` places after a row's token came before, in texts of PERIOD tokens, twice."""

    def finish(facts: Facts) -> PerText:
        second = (torch.arange(facts.rows.shape[1]) >= PERIOD).expand_as(facts.rows)
        return facts.over_rows(facts[BAND][..., AFTER.index(by)], second)

    meaning = f"mean weight {by} places after an earlier copy"
    return Statistic(f"after_copy_{by}", "share", (0.0, 1.0), "Olsson et al. 2022", meaning, lambda _: (BAND,), finish)


def designed_net(vocab_size: int, length: int) -> nn.Module:
    """Designed heads: both patterns in layer 0, and in layer 1 the head that reads what the first of them writes."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({str(number): number for number in range(vocab_size)}, unk_token="0")
    reader = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
    first_layer = [each.design for each in PATTERNS.values()]
    return build_designed([first_layer, [induction()]], causal=True, tokenizer=reader, max_positions=length).model


# ------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, texts: Sequence[RepeatedTokens], steps: int) -> Findings:
    """Masses, losses and who looks where, of every way over seeds, and of the designed net on the same texts."""
    ways: dict[str, Any] = {}
    for way in WAYS:
        runs = [trained[run_name(way, at)] for at in range(len(texts))]
        seen = [
            seen_of(run.model, data) | {"loss_half_way": half_way(run.history)[1]}
            for run, data in zip(runs, texts, strict=True)
        ]
        learned = [learned_by(run.history) for run in runs]
        ways[way.name] = {"pattern": way.pattern, "strength": way.strength, "learned_by": learned, **spreads_of(seen)}
    designed = designed_net(texts[0].vocab_size, texts[0].length)
    numbers = {
        "pulled": str(PULLED),
        "seeds": len(texts),
        "steps": steps,
        "half_way": half_way(trained[run_name(FREE, 0)].history)[0],
        "guess": math.log(texts[0].vocab_size),
        "ways": ways,
        "designed": spreads_of([seen_of(designed, data) for data in texts])
        | {"least_mass": PATTERNS["previous"].design.least_mass(texts[0].length)},
        "loss_over_free": {
            way.name: paired(ways[way.name]["loss_repeated"]["each"], ways[FREE.name]["loss_repeated"]["each"])
            for way in WAYS[1:]
        },
    }
    return Findings(numbers, lines_of(numbers), chart(numbers))


def seen_of(model: nn.Module, data: RepeatedTokens) -> dict[str, float]:
    """What a repeated token costs, with and without either head of layer 0; where these look; and the most that a head
    of layer 1 has at each place after an earlier copy."""
    ids, fresh = fresh_texts(data)
    twice = replace(data, length=2 * PERIOD, shortest=PERIOD, longest=PERIOD).batch(HELD_OUT_STEP)["ids"]
    below = call_columns(model, ids, STATISTICS)
    above = call_columns(model, twice, [after_copy(by) for by in AFTER])
    with torch.no_grad():
        repeated = {"loss_repeated": losses(model, ids, fresh)[1]}
        for whose, head in HEADS.items():
            with applied(model, Plan([Ablate(str(head), kind="zero")])):
                repeated[f"loss_without_{whose}"] = losses(model, ids, fresh)[1]
    of_heads = {
        f"{whose}_{name}": below[head_column(head, name)] for whose, head in HEADS.items() for name in STATISTICS
    }
    after = {
        f"after_copy_{by}": max(v for k, v in above.items() if k.startswith("heads/L1H") and k.endswith(f"_{by}"))
        for by in AFTER
    }
    return {**repeated, **of_heads, **after}


def half_way(history: History) -> tuple[int, float]:
    """The first step at which losses were measured in the training's second half, and what repeated tokens cost."""
    steps, values = history.taken("loss_repeated")
    return next((int(s), v) for s, v in zip(steps, values, strict=True) if s >= steps[-1] / 2)


def learned_by(history: History) -> int | None:
    """The first step at which repeated tokens were found to cost less than LEARNED."""
    return next((int(s) for s, v in zip(*history.taken("loss_repeated"), strict=True) if v < LEARNED), None)


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    half, steps = numbers["half_way"], numbers["steps"]
    lines = [
        f"{numbers['pulled']}, seeds: {numbers['seeds']}, mean and standard deviation; a repeated token's cost after "
        f"{half:,} and {steps:,} steps (a guess: {numbers['guess']:.2f} nats):"
    ]
    for way in WAYS:
        found = numbers["ways"][way.name]
        by = ", ".join(str(step or "never") for step in found["learned_by"])
        lines.append(
            f"{_said(way)}: {_spread(found['pulled_previous_mass'])} of its weight on the token before, "
            f"{_spread(found['pulled_first_mass'])} on the first; {_spread(found['loss_half_way'])}, then "
            f"{_spread(found['loss_repeated'])} nats; below {LEARNED:g} by step {by}; "
            f"{_layer_1(found)}, {_other(found)}; without {PULLED} {_spread(found['loss_without_pulled'])} nats, "
            f"without {OTHER} {_spread(found['loss_without_other'])}"
        )
    made = numbers["designed"]
    lines.append(
        f"designed, not trained: {_spread(made['pulled_previous_mass'])} on the token before (promised: "
        f"{made['least_mass']:.3f} at the least), another head {_spread(made['other_first_mass'])} on the first; "
        f"{_spread(made['loss_repeated'])} nats; {_layer_1(made)}"
    )
    changes = {f"{_said(way)}, over the free net": numbers["loss_over_free"][way.name] for way in WAYS[1:]}
    return (*lines, *changes_said(changes))


def _layer_1(found: Mapping[str, Any]) -> str:
    """The place after an earlier copy at which a head of layer 1 looks most."""
    by = max(AFTER, key=lambda by: found[f"after_copy_{by}"]["mean"])
    return f"layer 1 looks {by} after an earlier copy ({found[f'after_copy_{by}']['mean']:.2f})"


def _other(found: Mapping[str, Any]) -> str:
    """The offset at which the head beside the pulled one looks most."""
    back = max(BACK, key=lambda back: found[f"other_{offset_name(back)}"]["mean"])
    return f"{OTHER} {-back} back ({found[f'other_{offset_name(back)}']['mean']:.2f})"


def _spread(found: Mapping[str, Any]) -> str:
    return f"{found['mean']:.2f} ± {found['sd']:.2f}"


def _said(way: Way) -> str:
    return way.label.replace("\n", " ")


def chart(numbers: Mapping[str, Any]) -> PointsChart:
    trained, designed = numbers["ways"], numbers["designed"]

    def groups(name: str) -> tuple[Points, ...]:
        own = (Points(way.label, tuple(trained[way.name][name]["each"]), way.pattern == "previous") for way in WAYS)
        return (*own, Points(DESIGNED, tuple(designed[name]["each"]), False))

    return PointsChart(
        "A head pulled to a pattern, and what becomes of it",
        f"two attention-only layers learn to repeat, {numbers['steps']:,} steps; {numbers['pulled']} pulled by an "
        f"auxiliary loss; seeds: {numbers['seeds']}",
        points=(
            PointsPanel(f"{numbers['pulled']}: weight on the token before", groups("pulled_previous_mass"), 0.0, 1.0),
            PointsPanel(f"nats a repeated token (a guess: {numbers['guess']:.2f})", groups("loss_repeated"), 0.0),
            PointsPanel("layer 1: weight one place after an earlier copy", groups("after_copy_1"), 0.0, 1.0),
            PointsPanel("layer 1: weight two places after an earlier copy", groups("after_copy_2"), 0.0, 1.0),
        ),
        notes=("Dots are seeds, strokes their means, bars one standard deviation either way.",),
    )
