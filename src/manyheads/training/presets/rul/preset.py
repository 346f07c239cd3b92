"""`rul`: how many cycles an engine has left, by a BiLSTM with eight heads of attention and by the same without.

Ten nets, two a seed: with attention and without, the same windows in the same order, the same loss. Beside them a line
in the windows' means and slopes. What attention adds is a difference of pairs, and is reported whatever it is. Without
`--data` the engines are SIMULATED (`write_simulated`), which the report says; with it they are a C-MAPSS set.

Errors are the RMSE in cycles, and a score to which late is worse than early.

The net: BiLSTM (2 x 256) -> attention of 8 heads, added -> layer norm -> feed-forward, added -> layer norm -> mean over
the window -> one number. The twin without attention has all the rest. Both read every cycle's state through the mean,
so that attention is not the only way from the first cycle to the answer.

With 512 numbers a cycle the attention has 4 (512^2 + 512) = 1,050,624 parameters.

Source: Saxena et al. 2008 (C-MAPSS, and the score of PHM08's challenge); Vaswani et al. 2017, section 3.1 (the block,
norms after); Hochreiter and Schmidhuber 1997 (LSTM); Hoerl and Kennard 1970 (ridge). Shapes: docs/reference/rul.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from numpy import ndarray
from torch import Tensor, nn

from manyheads.models import device_of, record_call
from manyheads.nn import FeedForward, MultiHeadAttention
from manyheads.training.charts import Reading, RulChart, Scatter
from manyheads.training.checkpoints import head_column
from manyheads.training.presets.preset import WATCHED, AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.training.presets.rul.data import (
    CAP,
    LENGTH,
    Data,
    Scaling,
    Windows,
    read_cmapss,
    split,
    windows_of,
    write_simulated,
)
from manyheads.training.runs import Batch, Run, Settings, generator_of, num_parameters, paired, spreads_of

DROPOUT = 0.1
PENALTIES = tuple(10.0**power for power in range(-1, 7))


class AttentionBlock(nn.Module):
    """`[b, n, m]` to the same: attention (or not) and a small feed-forward, each added and normed."""

    def __init__(self, embed_dim: int, num_heads: int, attention: bool = True) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(embed_dim, num_heads, batch_first=True) if attention else None
        self.norm = nn.LayerNorm(embed_dim)
        self.feedforward = FeedForward(embed_dim, embed_dim // 4)
        self.norm_after = nn.LayerNorm(embed_dim)

    def forward(self, x: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
        if self.attention is not None:
            x = x + self.attention(x, need_weights=False)[0]
        x = self.norm(x)
        return self.norm_after(x + self.feedforward(x))


class RulNet(nn.Module):
    """Windows to shares of the cap: about 1 for a sound engine, 0 for one that fails now."""

    def __init__(self, num_channels: int, hidden: int = 256, num_heads: int = 8, attention: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(num_channels, hidden, batch_first=True, bidirectional=True)
        self.block = AttentionBlock(2 * hidden, num_heads, attention)
        self.dropout = nn.Dropout(DROPOUT)
        self.dense = nn.Linear(2 * hidden, 1)

    def forward(self, windows: Float[Tensor, "b n channel"]) -> Float[Tensor, "b"]:
        read = self.block(self.lstm(windows)[0])
        return self.dense(self.dropout(read.mean(1)))[:, 0]


def cycles_read(net: RulNet, windows: Float[Tensor, "b n channel"]) -> Float[Tensor, "b h n"]:
    """How much of a window's attention each cycle gets from each head: the mean over queries, 1 in all.

    A recording of the net, as of any model. Cost: one call, and q and k of it.
    """
    layer = record_call(net, windows.to(device_of(net))).layers[0]
    return (layer.received() / layer.q.shape[2]).cpu()


# ------------------------------------------------------------------------------------------------ the line to beat


@dataclass(frozen=True, eq=False)
class Ridge:
    """A line in each channel's mean, slope and last five cycles of a window; `penalty` is what the validating engines
    liked best."""

    weights: Float[ndarray, "feature"]
    mean: Float[ndarray, "feature"]
    spread: Float[ndarray, "feature"]
    middle: float
    penalty: float

    def __call__(self, windows: Float[ndarray, "b n channel"]) -> Float[ndarray, "b"]:
        return self.middle + (features(windows) - self.mean) / self.spread @ self.weights


def features(windows: Float[ndarray, "b n channel"]) -> Float[ndarray, "b feature"]:
    time = np.linspace(-1, 1, windows.shape[1])
    slope = np.einsum("n,bnc->bc", time / (time @ time), windows)
    return np.concatenate([windows.mean(1), slope, windows[:, -5:].mean(1)], 1).astype(np.float64)


def fit_ridge(
    windows: Float[ndarray, "b n channel"],
    left: Float[ndarray, "b"],
    validating: Float[ndarray, "v n channel"],
    validating_left: Float[ndarray, "v"],
) -> Ridge:
    """Least squares with a penalty on weights, which is chosen by the error on `validating`."""
    x, y = features(windows), left.astype(np.float64)
    # 1e-12: a feature that never changes has no spread, and must not divide by 0.
    mean, spread, middle = x.mean(0), x.std(0) + 1e-12, float(y.mean())
    x = (x - mean) / spread
    tried = []
    for penalty in PENALTIES:
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - middle))
        ridge = Ridge(weights, mean, spread, middle, penalty)
        tried.append((float(np.square(ridge(validating) - validating_left).mean()), ridge))
    return min(tried, key=lambda candidate: candidate[0])[1]


def predicted(net: nn.Module, windows: Float[Tensor, "b n channel"], cap: int) -> Float[ndarray, "b"]:
    """Cycles left, 0 to the cap."""
    with torch.no_grad():
        # 256 windows at a time: the LSTM keeps every cycle's state.
        parts = [net(part.to(device_of(net))).float().cpu() for part in windows.split(256)]
    return (torch.cat(parts) * cap).clamp(0, cap).numpy()


# ----------------------------------------------------------------------------------------------------------- the preset

NAME = "rul"
HEADS = 8
VALIDATED = 10  # windows of each validating engine, evenly spaced over its life
WITH, WITHOUT = "attention", "no-attention"
WORN = 50  # cycles left, at most, of an engine that is called worn
EARLY, LATE = 13.0, 10.0  # cycles too early, too late, for which the score of one engine is e - 1
RIDGE_WINDOWS = 8_192  # at most, evenly spaced: a line of some 50 numbers is known by then


@dataclass(frozen=True)
class Scale(Scaled):
    """`hidden`: of each direction of the LSTM. `engines`: simulated, for each of the two files."""

    hidden: int
    seeds: int
    rows: int
    engines: int


WHOLE = Scale(
    Settings(steps=400, rate=2e-3, warmup=40, floor=0.02, decay=0.01, checkpoint_every=100, measure_every=50),
    hidden=256, seeds=5, rows=32, engines=100,
)  # fmt: skip
TRIAL = Scale(
    Settings(steps=6, rate=2e-3, warmup=2, checkpoint_every=3, measure_every=3), hidden=32, seeds=2, rows=8, engines=10
)


def build(setup: Setup) -> Training:
    """Two runs a seed, pair by pair; their report compares them with each other and with a line."""
    scale = setup.scale(WHOLE, TRIAL)
    data = read_data(setup, scale)
    runs: dict[str, MakeRun] = {}
    for seed in range(scale.seeds):
        for kind in (WITH, WITHOUT):
            name = run_name(kind, seed)
            # Bound as defaults: the runs are made later, when the loop variables have their last values.
            runs[name] = lambda _, name=name, seed=setup.seed + seed, kind=kind: make_run(
                name, scale, data, seed, kind == WITH
            )

    def report(trained: AllTrained) -> Findings:
        nets = {name: run.model for name, run in trained.items()}
        return findings(data, nets, scale.seeds)

    return Training(runs, report, data.facts)


PRESET = Preset(NAME, build, "a C-MAPSS folder, or the train file of one of its sets")


def run_name(kind: str, seed: int) -> str:
    return f"{kind}-{seed}"


def read_data(setup: Setup, scale: Scale) -> Data:
    """The set that was given, or a simulated one, which is written into the folder and read like any other."""
    place = setup.data or write_simulated(setup.folder / "SIMULATED", setup.seed, scale.engines, scale.engines)
    fleet = read_cmapss(place)
    trained, validating = split(fleet.train)
    scaling = Scaling.of(trained)
    return Data(
        fleet,
        setup.data is None,
        scaling,
        windows_of(trained, scaling),
        windows_of(validating, scaling, VALIDATED),
        windows_of(fleet.test, scaling, 1),
    )


def make_run(name: str, scale: Scale, data: Data, seed: int, attention: bool) -> Run:
    """One net. Its batches depend on the seed and the step alone, so both nets of a pair read the same."""
    torch.manual_seed(seed)  # before the net is made, since drawing its weights is what is seeded
    net = RulNet(len(data.scaling.kept), scale.hidden, HEADS, attention)
    capped = data.train.capped / CAP

    def batch(step: int) -> Batch:
        indices = torch.randint(len(data.train), (scale.rows,), generator=generator_of(seed, step))
        return {"windows": data.train.read(indices), "share": capped[indices]}

    validating, left = data.validating.all(), data.validating.capped.numpy()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        """Mean squared error, in shares of the cap."""
        return F.mse_loss(model(batch["windows"]).float(), batch["share"])

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        """The error on validating engines; and the mean age, in cycles, of what each head reads in a window."""
        numbers = {"validating_rmse": rmse(predicted(model, validating, CAP), left)}
        if not attention:
            return numbers
        assert isinstance(model, RulNet)
        ages = torch.arange(LENGTH - 1, -1, -1, dtype=torch.float32)
        cycles_back = (cycles_read(model, validating).mean(0) @ ages).tolist()
        return numbers | {head_column(f"L0H{head}", "cycles_back"): value for head, value in enumerate(cycles_back)}

    return Run(name, net, scale.settings, batch, loss, measured, watched=WATCHED if attention else ())


# ------------------------------------------------------------------------------------------------ what it shows


def findings(data: Data, nets: Mapping[str, nn.Module], seeds: int) -> Findings:
    """Errors on the test engines' last windows, with attention and without, and where heads look."""
    left, windows = data.test.left.numpy(), data.test.all()
    guesses = {
        kind: [predicted(nets[run_name(kind, seed)], windows, CAP) for seed in range(seeds)] for kind in (WITH, WITHOUT)
    }
    line, penalty = by_a_line(data)
    always = np.full(len(left), float(data.train.capped.mean()))
    errors = {kind: spreads_of([scores(guess, left, CAP) for guess in by_seed]) for kind, by_seed in guesses.items()}
    # Pairs: both nets of a seed saw the same windows in the same order, so seeds cancel.
    gain = {name: paired(errors[WITHOUT][name]["each"], errors[WITH][name]["each"]) for name in ("rmse", "score")}
    reads = [reading(nets[run_name(WITH, seed)], data.test) for seed in range(seeds)]
    numbers = {
        "data": data.fleet.name,
        "simulated": data.simulated,
        "cap": CAP,
        "window": LENGTH,
        "test_engines": len(left),
        "parameters_of_the_attention": attention_parameters(nets[run_name(WITH, 0)]),
        "nets": errors,
        "ridge": {**scores(line, left, CAP), "penalty": penalty},
        "always_the_mean": scores(always, left, CAP),
        "attention_gains": gain,
        "worn_engines": {"at_most_cycles_left": WORN, "count": int((left <= WORN).sum())},
        "sound_engines": {"at_least_cycles_left": CAP, "count": int((left >= CAP).sum())},
        "heads": [
            {head.head: {"worn": list(head.worn), "others": list(head.sound)} for head in readings}
            for readings in reads
        ],
        "first_seeds_predictions": {
            "left": left.tolist(),
            **{kind: [round(float(value), 2) for value in by_seed[0]] for kind, by_seed in guesses.items()},
            "ridge": [round(float(value), 2) for value in line],
        },
    }
    return Findings(numbers, lines_of(numbers), chart(numbers, reads[0], left, guesses, line))


def by_a_line(data: Data) -> tuple[Float[ndarray, "engine"], float]:
    """The ridge's predictions for the test engines, and the penalty that it took."""
    step = max(1, len(data.train) // RIDGE_WINDOWS)
    windows, left = data.train.all()[::step].numpy(), data.train.capped[::step].numpy()
    ridge = fit_ridge(windows, left, data.validating.all().numpy(), data.validating.capped.numpy())
    return ridge(data.test.all().numpy()).clip(0, CAP), ridge.penalty


def attention_parameters(net: nn.Module) -> int:
    assert isinstance(net, RulNet) and net.block.attention is not None
    return num_parameters(net.block.attention)


def reading(net: nn.Module, test: Windows) -> tuple[Reading, ...]:
    """Each head's mean weight by cycle, over worn test engines and over the others."""
    assert isinstance(net, RulNet)
    read, worn = cycles_read(net, test.all()).numpy(), test.left.numpy() <= WORN
    means = [read[engines].mean(0) if engines.any() else np.zeros(read.shape[1:]) for engines in (worn, ~worn)]
    return tuple(
        Reading(f"L0H{head}", *(tuple(round(float(value), 5) for value in mean[head]) for mean in means))
        for head in range(read.shape[1])
    )


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The numbers in sentences."""
    gain = numbers["attention_gains"]["rmse"]
    nets: list[str] = []
    for kind, name in ((WITH, "With attention"), (WITHOUT, "Without it")):
        rmse, score = numbers["nets"][kind]["rmse"], numbers["nets"][kind]["score"]
        nets.append(
            f"{name}: RMSE {rmse['mean']:.2f} ± {rmse['sd']:.2f}, score {score['mean']:,.0f} ± {score['sd']:,.0f} "
            f"({len(rmse['each'])} seeds)."
        )
    simulated = "These engines are SIMULATED by manyheads; nothing here is a result on C-MAPSS."
    return (
        simulated if numbers["simulated"] else f"The engines are those of {numbers['data']}, as given.",
        f"Cycles left, capped at {CAP}, of {numbers['test_engines']} test engines:",
        *nets,
        *(f"{name}: RMSE {numbers[key]['rmse']:.2f}, score {numbers[key]['score']:,.0f}."
          for key, name in (("ridge", "A line (ridge)"), ("always_the_mean", "Always the mean"))),
        _gained(gain),
    )  # fmt: skip


def chart(
    numbers: Mapping[str, Any],
    readings: tuple[Reading, ...],
    left: ndarray,
    guesses: Mapping[str, list[ndarray]],
    line: ndarray,
) -> RulChart:
    truth = np.minimum(left, CAP)
    nets = numbers["nets"]

    def points(guesses: ndarray) -> tuple[tuple[float, float], ...]:
        return tuple((float(x), float(y)) for x, y in zip(truth, guesses, strict=True))

    whose = "SIMULATED engines, not C-MAPSS" if numbers["simulated"] else numbers["data"]
    seeds = len(nets[WITH]["rmse"]["each"])
    return RulChart(
        "Which cycles each head reads, and how long the engine lasts",
        f"{whose}: the last {LENGTH} cycles of {numbers['test_engines']} test engines",
        "cycle of the window, the last at the right",
        readings,
        (
            Scatter(f"with attention: RMSE {_short(nets[WITH]['rmse'])}", points(guesses[WITH][0])),
            Scatter(f"without: RMSE {_short(nets[WITHOUT]['rmse'])}", points(guesses[WITHOUT][0])),
            Scatter(f"ridge: RMSE {numbers['ridge']['rmse']:.1f}", points(line)),
        ),
        float(CAP),
        f"engines with at most {WORN} cycles left",
        "the others",
        (
            f"Heads and points are of the first seed. RMSE: mean ± standard deviation of {seeds} seeds, one fleet.",
            "A cycle's weight is the mean over the window's 30 queries. The fine line is an even reading, 1/30.",
            _gained(numbers["attention_gains"]["rmse"]),
        ),
    )


def _short(value: Mapping[str, Any]) -> str:
    return f"{value['mean']:.1f} ± {value['sd']:.1f}"


def _gained(gain: Mapping[str, Any]) -> str:
    """A sentence: what attention takes off the error, and whether seeds alone would do so."""
    if gain["low"] is None:
        return f"Attention takes {gain['mean']:.2f} cycles off the RMSE, in one seed."
    between = f"{gain['mean']:.2f} cycles (95 %: {gain['low']:.2f} to {gain['high']:.2f})"
    if gain["low"] > 0:
        return f"Attention takes {between} off the RMSE, more than seeds do."
    if gain["high"] < 0:
        return f"Attention makes it worse: what it takes off the RMSE is {between}."
    return f"No gain that seeds could not make: what attention takes off the RMSE is {between}."


# --------------------------------------------------------------------------------------------------------------- errors


def rmse(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Root of the mean squared error, in cycles."""
    return math.sqrt(float(np.square(predicted - true).mean()))


def cmapss_score(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Sum over engines of exp(-d / 13) - 1 where d = predicted - true is below 0 (early), else exp(d / 10) - 1.

    0 is best; it is a sum, so only sets of the same engines compare.
    """
    off = np.asarray(predicted, dtype=np.float64) - true
    return float(np.expm1(np.where(off < 0, -off / EARLY, off / LATE)).sum())


def scores(predicted: Float[ndarray, "engine"], left: Num[ndarray, "engine"], cap: int) -> dict[str, float]:
    """Errors against the capped truth, which was trained on, and against the truth itself."""
    capped = np.minimum(left, cap)
    return {
        "rmse": rmse(predicted, capped),
        "score": cmapss_score(predicted, capped),
        "rmse_uncapped": rmse(predicted, left),
        "score_uncapped": cmapss_score(predicted, left),
    }
