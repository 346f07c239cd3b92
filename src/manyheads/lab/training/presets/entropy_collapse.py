"""`entropy-collapse`: at a high learning rate attention entropy falls to nothing and the loss gets stuck; three cures.

Decoders of three layers read the standard library's source byte by byte. At a rate that suits them, at one 25 times as
high, and at that rate with what keeps scores in bounds: norms of queries and keys, sigma-reparametrisation of all
matrices between embedding and logits, or QK-clip after each step. Every head's entropy and largest logit are read in
the training steps themselves (`mh.watch`); the loss is of modules that no step sees.

A matrix under sigma-reparametrisation is `gain / s(W) * W`: s is its largest singular value, of one power iteration a
step, and `gain` one learned number, 1 at first. So how far a matrix can stretch anything is learned, one number slowly,
and no longer a product of all its entries' steps. Zhai et al. put it on every linear layer, as is done here.

The runs of `qk-clip` are made, reported and drawn here as well: both presets are ways to train one model.

Source: Zhai et al. 2023 (entropy collapse, sigma-reparametrisation); Wortsman et al. 2023 (small models at high rates);
Henry et al. 2020 and Dehghani et al. 2023 (norms of q and k); Kimi Team 2025 (QK-clip).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from manyheads.lab.training.charts import Curve, GridChart, GridRow, after_the_guess, over_seeds
from manyheads.lab.training.checkpoints import History
from manyheads.lab.training.decoder import Decoder, DecoderConfig
from manyheads.lab.training.loop import Trained
from manyheads.lab.training.presets.gqa import BYTES, Bytes, ByteScale, byte_run, read_data
from manyheads.lab.training.presets.preset import WATCHED, AllTrained, Findings, Preset, Setup, Training, by_seed
from manyheads.lab.training.runs import Run, Settings, change_lines, paired, plus_minus, spread_of, spreads_of

Reduction = Callable[[Iterable[float]], float]

COLLAPSED = 0.1  # nats: as if two keys shared the weight 98 to 2
HEADS = 4
MEASURED = ("held_out_loss", "entropy", "lowest_entropy", "max_logit", "highest_max_logit")


WHOLE = ByteScale(
    Settings(300, warmup=20, checkpoint_every=100, measure_every=10),
    seeds=3, width=64, layers=3, head_dim=16, wide=160, rows=16, length=64, held_out_windows=64,
)  # fmt: skip
TRIAL = ByteScale(
    Settings(6, warmup=2, checkpoint_every=3, measure_every=3),
    seeds=1, width=32, layers=2, head_dim=8, wide=48, rows=4, length=24, held_out_windows=4,
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to train the model. `label` stands above its column of the figure; `words` name it in sentences."""

    label: str
    words: str
    rate: float
    optimizer: str = "adamw"
    qk_norm: bool = False
    sigma: bool = False
    qk_clip: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Ways to train one model, side by side. `reference`: the one that the others are compared with."""

    title: str
    ways: Mapping[str, Way]
    reference: str

    def of(self, ways: Sequence[str]) -> Comparison:
        """Some of the ways alone, the reference among them."""
        return replace(self, ways={key: self.ways[key] for key in ways})

    def build(self, setup: Setup) -> Training:
        """A run for each way and seed. The ways of a seed read the same windows, and begin with the same weights."""
        scale = setup.scale(WHOLE, TRIAL)
        data = read_data(setup.quick)

        def make(name: str, index: int, way: Way, _: AllTrained) -> Run:
            return run_of(name, scale, data, setup.seed + index, way)

        runs = by_seed(scale.seeds, self.ways, make)
        return Training(runs, lambda trained: findings(self, trained, scale), data.facts)


COMPARISON = Comparison(
    "Attention entropy collapses at a high learning rate, and what prevents it",
    {
        "stable": Way("AdamW, rate 0.004", "AdamW at rate 0.004", 0.004),
        "high": Way("AdamW, rate 0.1", "AdamW at rate 0.1", 0.1),
        "qk-norm": Way("AdamW, rate 0.1,\nnorms of q and k", "AdamW at rate 0.1, norms of q and k", 0.1, qk_norm=True),
        "sigma": Way(
            "AdamW, rate 0.1,\nsigma-reparametrised", "AdamW at rate 0.1, sigma-reparametrised", 0.1, sigma=True
        ),
        "clipped": Way("AdamW, rate 0.1,\nQK-clip at 30", "AdamW at rate 0.1, QK-clip at 30", 0.1, qk_clip=30.0),
    },
    "high",
)
PRESET = Preset("entropy-collapse", COMPARISON.build)


def run_of(name: str, scale: ByteScale, data: Bytes, seed: int, way: Way) -> Run:
    """One way's training of one seed."""
    torch.manual_seed(seed)  # before the weights are drawn
    config = DecoderConfig(
        BYTES, scale.width, scale.layers, HEADS, HEADS, scale.head_dim, scale.wide, scale.length, qk_norm=way.qk_norm
    )
    model = Decoder(config)
    if way.sigma:
        reparametrise(model)
    settings = replace(scale.settings, rate=way.rate, optimizer=way.optimizer, qk_clip=way.qk_clip)
    return replace(byte_run(name, model, scale, data, seed, settings), watched=WATCHED, may_diverge=True)


class Gain(nn.Module):
    """A learned factor, 1 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, weight: Tensor) -> Tensor:
        return self.gain * weight


def reparametrise(model: nn.Module) -> None:
    """Put `gain / s(W) * W` in the place of every matrix but embeddings. Source: Zhai et al. 2023, section 3.2."""
    for module in list(model.modules()):
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
            parametrizations.spectral_norm(module)
            parametrize.register_parametrization(module, "weight", Gain())


# ------------------------------------------------------------------------------------------------ what it shows


def findings(comparison: Comparison, trained: AllTrained, scale: ByteScale) -> Findings:
    """Each way's loss, entropies and largest logits over seeds, and how far its loss is from the reference's."""
    runs = {key: [trained[f"{key}-{index}"] for index in range(scale.seeds)] for key in comparison.ways}
    ways: dict[str, dict[str, Any]] = {}
    for key, way in comparison.ways.items():
        histories = [run.history for run in runs[key]]
        layers = [
            [over_heads(history, "entropy", statistics.fmean, layer)[1][-1] for history in histories]
            for layer in range(scale.layers)
        ]
        ways[key] = {
            **{name: getattr(way, name) for name in ("words", "rate", "optimizer", "qk_clip")},
            **spreads_of([ends_of(history) for history in histories]),
            "entropy_by_layer": [spread_of(values) for values in layers],
            "collapsed_at_step": [collapsed_at(history) for history in histories],
            "ended": [run.ended for run in runs[key] if run.ended],
        }
    losses = {key: way["held_out_loss"]["each"] for key, way in ways.items()}
    numbers = {
        "seeds": scale.seeds,
        "layers": scale.layers,
        "heads": HEADS,
        "ways": ways,
        "loss_over_reference": {
            key: paired(losses[key], losses[comparison.reference]) for key in losses if key != comparison.reference
        },
    }
    return Findings(numbers, lines_of(comparison, numbers), chart(comparison, runs, scale))


def over_heads(
    history: History, statistic: str, reduce: Reduction, layer: int | None = None
) -> tuple[list[float], list[float]]:
    """The watched steps, and one number of all heads (or of a layer's) at each."""
    columns = [
        history.taken(column)
        for head, column in history.of_heads(statistic).items()
        if layer is None or head.startswith(f"L{layer}H")
    ]
    return columns[0][0], [reduce(values) for values in zip(*(taken[1] for taken in columns), strict=True)]


def ends_of(history: History) -> dict[str, float]:
    """A run's loss and its heads at its end; and the largest logit of all its watched steps."""
    logits = over_heads(history, "max_logit", max)[1]
    return {
        "held_out_loss": history.last("held_out_loss"),
        "entropy": over_heads(history, "entropy", statistics.fmean)[1][-1],
        "lowest_entropy": over_heads(history, "entropy", min)[1][-1],
        "max_logit": logits[-1],
        "highest_max_logit": max(logits),
    }


def collapsed_at(history: History) -> int | None:
    """The first watched step at which some head's entropy is under `COLLAPSED`."""
    steps, lowest = over_heads(history, "entropy", min)
    return next((int(step) for step, nats in zip(steps, lowest, strict=True) if nats < COLLAPSED), None)


def lines_of(comparison: Comparison, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The numbers in sentences."""
    lines = [f"Mean and standard deviation of seeds ({numbers['seeds']}); entropy and logits in the last watched step:"]
    for way in numbers["ways"].values():
        loss, entropy, lowest, logit = (way[name] for name in ("held_out_loss", *MEASURED[1:4]))
        collapsed = [str(step) for step in way["collapsed_at_step"] if step is not None]
        lines.append(
            f"{way['words']}: {plus_minus(loss)} nats a byte, mean entropy {entropy['mean']:.2f}, "
            f"of the lowest head {lowest['mean']:.2f}, max logit {logit['mean']:,.0f} (highest of the run "
            f"{way['highest_max_logit']['mean']:,.0f})"
            + (f"; a head under {COLLAPSED} nats by step {', '.join(collapsed)}" if collapsed else "")
            + "".join(f"; {reason}, and the run ended" for reason in way["ended"])
        )
    reference = comparison.ways[comparison.reference].words
    changes = {
        f"{comparison.ways[key].words}, over {reference}": c for key, c in numbers["loss_over_reference"].items()
    }
    return (*lines, *change_lines(changes))


def chart(comparison: Comparison, runs: Mapping[str, Sequence[Trained]], scale: ByteScale) -> GridChart:
    """A column for each way: its median seed in ink, its seeds in grey."""

    def row(
        title: str, *curves: tuple[str, Callable[[History], Curve]], bottom: float | None = None, powers: bool = False
    ) -> GridRow:
        histories = {key: [run.history for run in runs[key]] for key in comparison.ways}
        cells = tuple(
            sum((over_seeds(histories[key], curve, name) for name, curve in curves), ()) for key in comparison.ways
        )
        return GridRow(title, cells, bottom, powers)

    by_layer = [
        (f"L{layer}", lambda history, layer=layer: over_heads(history, "entropy", statistics.fmean, layer))
        for layer in range(scale.layers)
    ]
    return GridChart(
        comparison.title,
        f"decoders of {scale.layers} layers of {HEADS} heads, the standard library byte by byte; grey: seed by seed "
        f"({scale.seeds}), ink: their median",
        tuple(way.label for way in comparison.ways.values()),
        (
            row("loss of held-out modules, nats a byte", ("", after_the_guess("held_out_loss"))),
            row("entropy, mean of each layer's heads, nats", *by_layer, bottom=0.0),
            row("entropy of the lowest head, nats", ("", lambda run: over_heads(run, "entropy", min)), bottom=0.0),
            row("largest logit of all heads", ("", lambda run: over_heads(run, "max_logit", max)), powers=True),
        ),
    )
