"""`supervised`: a head trained towards a pattern by an auxiliary loss, beside a designed one, and one left free.

The two attention-only layers of `induction` learn to repeat, five times a seed: free; with L0H0 pulled to the token
before, which the circuit that they find by themselves needs, at three strengths; and with it pulled to the first token,
which no circuit needs. The same weights at the start, the same texts. Beside them designed heads with the same
patterns, and its two-layer circuit, whose weights were never trained. What a pull gives is the pattern; what the rest
of the net then makes of the head is looked up, not assumed.

A pull is minus the log of the head's weight where the pattern points: the KL divergence of a row's weights from the
pattern, which has all of its own on one key. A row of weights is `exp(score - lse)`, and no fused kernel has a gradient
of `lse`; so the one head's map is formed, `[b, n, n]`, which texts of 64 tokens can afford. Nothing that is measured
forms one: masses are `measure_call`'s statistics of the finished nets, on texts that no step saw. Where layer 1
looks is measured on random tokens, twice: the weight on the key so many places after a row's token came before. One
place after is induction; a net may learn to repeat by another.

Source: after Strubell et al. 2018 (LISA: a head trained to attend to each token's syntactic parent).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.edits import applied
from manyheads.heads import Head
from manyheads.lab.design import HeadDesign
from manyheads.lab.design.model import build as build_designed
from manyheads.lab.design.patterns import first, induction, previous
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.checkpoints import History, head_column
from manyheads.lab.training.decoder import Block, Decoder, DecoderConfig, next_token_loss
from manyheads.lab.training.presets.induction import CONFIG, RepeatedTokens, fresh_texts, losses
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
    call_columns,
)
from manyheads.lab.training.runs import HELD_OUT_STEP, Run, Settings, change_lines, paired, plus_minus, spreads_of
from manyheads.models.loading import Tokenizer as Reader  # the library tokenizers has one of that name
from manyheads.plan import Ablate, Plan
from manyheads.recording.exact_map import Band
from manyheads.statistics import Facts, PerText, Statistic
from manyheads.statistics.defined import offset_name

NAME = "supervised"
LENGTH = 64
WHY_FLOAT32 = "bf16 would save seconds of a training"


NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where each row should look: `keys(n)` is a place a row, NOWHERE for a row that has none, or no choice.

    `statistic` measures the weight there; `design` makes a head with this pattern without any training.
    """

    words: str
    statistic: str
    design: HeadDesign
    keys: Callable[[int], Int[Tensor, "n"]]


PATTERNS = {
    "previous": Pattern("the token before", "previous_mass", previous(), lambda length: torch.arange(length) - 1),
    "first": Pattern(
        "the first token", "first_mass", first(), lambda length: torch.where(torch.arange(length) > 0, 0, NOWHERE)
    ),
}


PULLED, OTHER = Head("", 0, 0), Head("", 0, 1)
HEADS = {"pulled": PULLED, "other": OTHER}
_spread = partial(plus_minus, form=".2f")
LEARNED = 1.0  # nats a repeated token, below which the task counts as learned
BACK = (0, -1, -2, -3, -4)
STATISTICS = tuple(dict.fromkeys([*(pattern.statistic for pattern in PATTERNS.values()), *map(offset_name, BACK)]))
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


@dataclass(frozen=True)
class RunScale(Scaled):
    config: DecoderConfig
    seeds: int
    rows: int


WHOLE = RunScale(Settings(400, 3e-3, 50, checkpoint_every=100, measure_every=25), CONFIG, seeds=3, rows=32)
TRIAL = RunScale(
    Settings(6, 3e-3, 2, checkpoint_every=3, measure_every=3),
    replace(CONFIG, hidden_size=32, head_dim=16),
    seeds=2,
    rows=7,
)


def build(setup: Setup) -> Training:
    """A run a way and seed."""
    scale = setup.scale(WHOLE, TRIAL)

    def make(name: str, index: int, way: Way, _: AllTrained) -> Run:
        return way_run(name, way, scale, setup.seed + index)

    def report(trained: AllTrained) -> Findings:
        texts = [texts_of(scale, setup.seed + index) for index in range(scale.seeds)]
        return findings(trained, texts, scale.settings.steps)

    return Training(by_seed(scale.seeds, {way.name: way for way in WAYS}, make), report)


PRESET = Preset(NAME, build)


def texts_of(scale: RunScale, seed: int) -> RepeatedTokens:
    return RepeatedTokens(scale.config.vocab_size, LENGTH, scale.rows, shortest=8, longest=32, seed=seed)


def way_run(name: str, way: Way, scale: RunScale, seed: int) -> Run:
    """One training. Weights and texts depend on the seed alone, so all ways of a seed begin and read alike."""
    torch.manual_seed(seed)  # before the weights are drawn: every way of a seed begins with the same ones
    data = texts_of(scale, seed)
    ids, fresh = fresh_texts(data)

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        new, repeated = losses(model, ids, fresh)
        return {"loss_new": new, "loss_repeated": repeated}

    model, loss, watched = Decoder(scale.config), partial(loss_of, way=way), (*WATCHED, "previous_mass")
    return Run(name, model, scale.settings, data.batch, loss, measured, WHY_FLOAT32, watched=watched)


def loss_of(model: nn.Module, batch: Mapping[str, Int[Tensor, "b n"]], way: Way) -> Tensor:
    """The task's loss, and the pull's as strongly as the way says."""
    task = next_token_loss(model, batch["ids"])
    if way.pattern is None:
        return task
    assert isinstance(model, Decoder)
    read = batch["ids"][:, :-1]
    weights = head_weights(model, read, PULLED)
    return task + way.strength * pattern_loss(weights, PATTERNS[way.pattern].keys(read.shape[1]))


def head_weights(model: Decoder, ids: Int[Tensor, "b n"], head: Head) -> Float[Tensor, "b n n"]:
    """One head's map, with gradients. Cost: the layers below it once more, and the map."""
    x = model.embedding(ids)
    for block in model.blocks[: head.layer]:
        x = block(x)
    target = model.blocks[head.layer]
    assert isinstance(target, Block)
    weights = target.attention(target.attention_norm(x), weight_heads=[head.index], average_attn_weights=False)[1]
    assert weights is not None
    return weights[:, 0]


def pattern_loss(weights: Float[Tensor, "b q k"], keys: Int[Tensor, "q"]) -> Float[Tensor, ""]:
    """The mean of -log(weight on its key) over the rows that have one, nats."""
    rows = (keys != NOWHERE).nonzero()[:, 0].to(weights.device)
    aimed = weights[:, rows, keys.to(weights.device)[rows]]
    # A weight that underflowed would be an infinite loss, with a gradient of NaN.
    return -aimed.clamp_min(torch.finfo(aimed.dtype).tiny).log().mean()


def after_copy(by: int) -> Statistic:
    """The weight on the key `by` places after a row's token came before, in texts of PERIOD tokens, twice."""

    def finish(facts: Facts) -> PerText:
        second = (torch.arange(facts.rows.shape[1]) >= PERIOD).expand_as(facts.rows)
        return facts.over_rows(facts[BAND][..., AFTER.index(by)], second)

    meaning = f"mean weight {by} places after an earlier copy"
    return Statistic(
        name=f"after_copy_{by}",
        unit="share",
        range=(0.0, 1.0),
        source="Olsson et al. 2022",
        meaning=meaning,
        needs=lambda _: (BAND,),
        finish=finish,
    )


def designed_net(vocab_size: int, length: int) -> nn.Module:
    """Designed heads: both patterns in layer 0, and in layer 1 the head that reads what the first of them writes."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({str(number): number for number in range(vocab_size)}, unk_token="0")
    reader = cast("Reader", PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)))
    first_layer = [pattern.design for pattern in PATTERNS.values()]
    return build_designed([first_layer, [induction()]], causal=True, tokenizer=reader, max_positions=length).model


# ------------------------------------------------------------------------------------------------ what it shows


def findings(trained: AllTrained, texts: Sequence[RepeatedTokens], steps: int) -> Findings:
    """Masses, losses and who looks where, of every way over seeds, and of the designed net on the same texts."""
    ways: dict[str, Any] = {}
    for way in WAYS:
        runs = [trained[f"{way.name}-{index}"] for index in range(len(texts))]
        measured = [
            seen_of(run.model, data) | {"loss_half_way": half_way(run.history)[1]}
            for run, data in zip(runs, texts, strict=True)
        ]
        learned = [learned_by(run.history) for run in runs]
        ways[way.name] = {
            "pattern": way.pattern,
            "strength": way.strength,
            "learned_by": learned,
            **spreads_of(measured),
        }
    designed = designed_net(texts[0].vocab_size, texts[0].length)
    numbers = {
        "pulled": str(PULLED),
        "seeds": len(texts),
        "steps": steps,
        "half_way": half_way(trained[f"{FREE.name}-0"].history)[0],
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
        result = numbers["ways"][way.name]
        by = ", ".join(str(step or "never") for step in result["learned_by"])
        # The offset at which the head beside the pulled one looks most.
        back = max(BACK, key=lambda back, result=result: result[f"other_{offset_name(back)}"]["mean"])
        back_mass = result[f"other_{offset_name(back)}"]["mean"]
        lines.append(
            f"{_words_of(way)}: {_spread(result['pulled_previous_mass'])} of its weight on the token before, "
            f"{_spread(result['pulled_first_mass'])} on the first; {_spread(result['loss_half_way'])}, then "
            f"{_spread(result['loss_repeated'])} nats; below {LEARNED:g} by step {by}; "
            f"{_layer_1(result)}, {OTHER} {-back} back ({back_mass:.2f}); without {PULLED} "
            f"{_spread(result['loss_without_pulled'])} nats, "
            f"without {OTHER} {_spread(result['loss_without_other'])}"
        )
    made = numbers["designed"]
    lines.append(
        f"designed, not trained: {_spread(made['pulled_previous_mass'])} on the token before (promised: "
        f"{made['least_mass']:.3f} at the least), another head {_spread(made['other_first_mass'])} on the first; "
        f"{_spread(made['loss_repeated'])} nats; {_layer_1(made)}"
    )
    changes = {f"{_words_of(way)}, over the free net": numbers["loss_over_free"][way.name] for way in WAYS[1:]}
    return (*lines, *change_lines(changes))


def _layer_1(result: Mapping[str, Any]) -> str:
    """Words for the place after an earlier copy at which a head of layer 1 looks most."""
    by = max(AFTER, key=lambda by: result[f"after_copy_{by}"]["mean"])
    return f"layer 1 looks {by} after an earlier copy ({result[f'after_copy_{by}']['mean']:.2f})"


def _words_of(way: Way) -> str:
    return way.label.replace("\n", " ")


def chart(numbers: Mapping[str, Any]) -> Chart:
    trained, designed = numbers["ways"], numbers["designed"]

    def groups(name: str) -> tuple[Points, ...]:
        spread = (Points(way.label, tuple(trained[way.name][name]["each"]), way.pattern == "previous") for way in WAYS)
        return (*spread, Points(DESIGNED, tuple(designed[name]["each"]), False))

    return Chart(
        "A head pulled to a pattern, and what becomes of it",
        f"two attention-only layers learn to repeat, {numbers['steps']:,} steps; {numbers['pulled']} pulled by an "
        f"auxiliary loss; seeds: {numbers['seeds']}",
        panels=(
            PointsPanel(f"{numbers['pulled']}: weight on the token before", groups("pulled_previous_mass"), 0.0, 1.0),
            PointsPanel(f"nats a repeated token (a guess: {numbers['guess']:.2f})", groups("loss_repeated"), 0.0),
            PointsPanel("layer 1: weight one place after an earlier copy", groups("after_copy_1"), 0.0, 1.0),
            PointsPanel("layer 1: weight two places after an earlier copy", groups("after_copy_2"), 0.0, 1.0),
        ),
        notes=(DOTS,),
    )
