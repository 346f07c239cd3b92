"""`rul`: how many cycles an engine has left, by a BiLSTM with eight heads of attention and by the same without.

Ten nets, two a seed: with attention and without, the same windows in the same order, the same loss. Beside them a line
in the windows' means and slopes. What attention adds is a difference of pairs, and is reported whatever it is. Errors
are the RMSE in cycles, and a score to which late is worse than early.

Nets read windows of 30 cycles of one engine, scaled by what the engines trained on show, and learn the life that was
left after each. It is capped: sensors of a sound engine cannot tell 300 cycles left from 200, and a net that is asked
to do so learns noise. The net: BiLSTM (2 x 256) -> attention of 8 heads, added -> layer norm -> feed-forward, added ->
layer norm -> mean over the window -> one number. The twin without attention has all the rest. Both read every cycle's
state through the mean, so that attention is not the only way from the first cycle to the answer.

The engines are a C-MAPSS set (`read_cmapss`) or SIMULATED (`simulate`), which the report says. A simulated engine has
two hidden losses, of its compressor's efficiency and flow. Both begin small, stay until a fault's onset, then grow as
exp(a s^b) - 1 on a clock s that runs unevenly. Two margins shrink with them, of stall and of exhaust temperature: the
lesser one is the engine's health, and it fails when that is gone. Ranges, baselines, slopes and noise are set by hand
to be of FD001's size; no thermodynamics is computed.

Source: Saxena et al. 2008, "Damage propagation modeling for aircraft engine run-to-failure simulation", PHM08 (files,
wear's form, health as the least of several margins, the score); Heimes 2008, "Recurrent neural networks for remaining
useful life estimation", PHM08 (a target that is even first, then a line); Vaswani et al. 2017, section 3.1 (the block,
norms after); Hochreiter and Schmidhuber 1997 (LSTM); Hoerl and Kennard 1970 (ridge). Shapes: docs/reference/rul.md.
"""

from __future__ import annotations

import errno
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from numpy import ndarray
from torch import Tensor, nn

from manyheads.base import no_access
from manyheads.errors import TextError
from manyheads.inputs import record_call
from manyheads.lab.training.charts import Chart, Line, Panel, Points, PointsPanel
from manyheads.lab.training.checkpoints import head_column
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
)
from manyheads.lab.training.runs import (
    Batch,
    Run,
    Settings,
    generator_of,
    num_parameters,
    paired,
    plus_minus,
    spreads_of,
)
from manyheads.models import device_of
from manyheads.nn import FeedForward, MultiHeadAttention

LENGTH = 30  # cycles of a window
CAP = 125  # of the target, in cycles left: what most work on C-MAPSS takes
EVERY_NTH = 5  # of the training file's engines, this one is not trained on: it validates
SETTINGS = ("altitude", "Mach", "throttle")
# Of each sensor its baseline; its change at failure, if lost efficiency, or lost flow, were the whole of the wear; its
# spread between engines; what the day's air adds; the noise of a reading; decimals. Hotter where less efficient (T),
# less pressure and coolant where less flow (P30, W), more fuel for the same thrust. The core's speed has two masters:
# it must turn faster for lost efficiency, and runs lighter for lost flow. As in FD001, seven say nothing.
SENSORS = {
    "T2": (518.67, 0, 0, 0, 0, 0, 2),
    "T24": (642.20, 1.7, 1.1, 0.10, 0.12, 0.30, 2),
    "T30": (1586.5, 26.0, 16.0, 1.3, 1.3, 3.7, 2),
    "T50": (1402.0, 40.0, 24.0, 1.5, 1.5, 4.0, 2),
    "P2": (14.62, 0, 0, 0, 0, 0, 2),
    "P15": (21.61, 0, 0, 0, 0, 0, 2),
    "P30": (554.10, -1.8, -4.6, 0.12, 0.12, 0.38, 2),
    "Nf": (2388.05, 0.18, 0.26, 0.010, 0.008, 0.035, 2),
    "Nc": (9052.0, 90.0, -35.0, 5.0, 1.0, 4.0, 2),
    "epr": (1.30, 0, 0, 0, 0, 0, 2),
    "Ps30": (47.35, 0.95, 0.65, 0.03, 0.03, 0.10, 2),
    "phi": (522.00, -1.6, -3.5, 0.10, 0.10, 0.33, 2),
    "NRf": (2388.05, 0.18, 0.26, 0.010, 0.008, 0.035, 2),
    "NRc": (8138.0, 78.0, -32.0, 4.5, 0.8, 3.5, 2),
    "BPR": (8.4050, 0.12, 0.14, 0.004, 0.003, 0.0170, 4),
    "farB": (0.03, 0, 0, 0, 0, 0, 2),
    "htBleed": (391.6, 5.8, 5.0, 0.25, 0.25, 0.75, 0),
    "Nf_dmd": (2388.0, 0, 0, 0, 0, 0, 0),
    "PCNfR_dmd": (100.0, 0, 0, 0, 0, 0, 2),
    "W31": (38.95, -0.45, -0.95, 0.025, 0.02, 0.085, 2),
    "W32": (23.370, -0.27, -0.57, 0.015, 0.012, 0.050, 4),
}
CHANNELS = (*SETTINGS, *SENSORS)
COLUMNS = ("unit", "cycle", *CHANNELS)


class Engine(NamedTuple):
    """One engine's life, a row a cycle, as the file has it. `left`: cycles it had after its last row."""

    unit: int
    rows: Float[ndarray, "cycle channel"]
    left: int


class Fleet(NamedTuple):
    """A set of engines. `digest` is of the three files' text; of simulated engines, of their numbers."""

    name: str
    train: tuple[Engine, ...]
    test: tuple[Engine, ...]
    digest: str
    simulated: bool = False


# ----------------------------------------------------------------------------------------------------- engines of files


def read_cmapss(place: Path) -> Fleet:
    """Read the set in a folder, or, where it holds several, the one whose train file is given.

    A set is three files: `train_<set>.txt` (engines run to failure), `test_<set>.txt` (engines stopped before it) and
    `RUL_<set>.txt` (a row a test engine: how many cycles it had left). A line is 26 numbers with blanks between: unit,
    cycle, 3 settings, 21 sensors; units count from 1, and so do each unit's cycles. Errors: TextError with file, line
    and what came for whatever is not so, since a set that is shifted by a row trains as well as a right one;
    FileAccessError.
    """
    if not place.exists():
        raise no_access("read", place, FileNotFoundError(errno.ENOENT, "no such file"))
    files = sorted(place.glob("train_*.txt")) if place.is_dir() else [place]
    if not files:
        raise TextError(
            f"{place} holds no train_<set>.txt: give the folder of a C-MAPSS set, as NASA's archive has it."
        )
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:6])
        raise TextError(f"{place} holds {len(files)} sets ({names}): give one of these files instead of the folder.")
    if not (files[0].name.startswith("train_") and files[0].suffix == ".txt"):
        raise TextError(f"{place} is not a train_<set>.txt: give a C-MAPSS folder, or a set's train file in it.")
    name, texts = files[0].stem.removeprefix("train_"), dict[Path, str]()
    for path in (files[0].with_name(f"{kind}_{name}.txt") for kind in ("train", "test", "RUL")):
        try:
            texts[path] = path.read_bytes().decode("ascii", errors="replace")
        except OSError as error:
            raise no_access("read", path, error) from error
    train_path, test_path, left_path = texts
    tested, left = _engines(test_path, texts[test_path]), list[int]()
    line = "one: the cycles that an engine had left"
    for (cycles,), fault in _rows(left_path, texts[left_path], ("number of cycles left",), line):
        if cycles < 0:
            raise fault(f"{cycles:.0f} came, and nothing has less than 0 cycles left")
        left.append(int(cycles))
    if len(left) != len(tested):
        raise TextError(
            f"{left_path} has {len(left)} rows, and {test_path.name} has {len(tested)} units: each needs its row, "
            f"in the same order."
        )
    return Fleet(
        name,
        tuple(Engine(unit, rows, 0) for unit, rows in enumerate(_engines(train_path, texts[train_path]), 1)),
        tuple(Engine(unit, rows, cycles) for unit, (rows, cycles) in enumerate(zip(tested, left, strict=True), 1)),
        hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16],
    )


def _engines(path: Path, text: str) -> list[Float[ndarray, "cycle channel"]]:
    """Each unit's rows, in the order of the file, which is 1, 2, 3, ..."""
    units: list[list[list[float]]] = []
    line = f"{len(COLUMNS)}: unit, cycle, {len(SETTINGS)} settings, {len(SENSORS)} sensors"
    for (unit, cycle, *row), fault in _rows(path, text, COLUMNS, line):
        # Units and cycles must count up without a gap: a lost line would shift every label after it.
        if cycle == 1 and unit == len(units) + 1:
            units.append([row])
        elif units and unit == len(units) and cycle == len(units[-1]) + 1:
            units[-1].append(row)
        else:
            expected = f"cycle 1 of unit {len(units) + 1}"
            if units:
                expected = f"cycle {len(units[-1]) + 1} of unit {len(units)}, or {expected}"
            raise fault(f"cycle {cycle:.0f} of unit {unit:.0f} came, and here follows {expected}")
    if not units:
        raise TextError(f"{path} has only empty lines: give a file of engines.")
    return [np.array(rows, dtype=np.float64) for rows in units]


def _rows(
    path: Path, text: str, columns: Sequence[str], line: str
) -> Iterator[tuple[list[float], Callable[[str], TextError]]]:
    """The numbers of each line that is not blank, and what makes an error that names it. `line`: its columns, in words.

    What is no channel's must be whole.
    """
    for number, parts in enumerate(map(str.split, text.split("\n")), 1):

        def fault(message: str, number: int = number) -> TextError:
            return TextError(f"{path}, line {number}: {message}. Repair the file, or give another.")

        if parts and len(parts) != len(columns):
            raise fault(f"{len(parts)} columns came, and a line has {line}")
        row: list[float] = []
        for part, column in zip(parts, columns, strict=False):  # a blank line has none
            try:
                value = float(part) if "_" not in part else math.nan  # Python reads 1_000, and nobody else does
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or (column not in CHANNELS and value % 1):
                kind = "whole number" if math.isfinite(value) else "number"
                raise fault(f"{part[:40]!r} came as its {column}, which is not a {kind}")
            row.append(value)
        if row:
            yield row, fault


# ---------------------------------------------------------------------------------------------------- simulated engines

RATES, POWERS = (0.001, 0.003), (1.4, 1.6)  # a, b
INITIAL_WEAR = 0.01  # at most, of each loss: engines leave the factory not quite alike
ONSETS = (20, 120)  # cycles before a fault begins
WEAR_SCALE = 0.05  # wear when exp(a s^b) - 1 is 1; an engine fails near 1
CLOCK_SHAPE = 4.0  # of the gamma steps of wear's clock: their spread is 1 / sqrt(4) of their mean
LIVES = (128, 362)  # FD001's shortest and longest: other lives are drawn again
TEST_LEFT, TEST_SHORTEST = (
    (7, 145),
    31,
)  # FD001's test engines had as many cycles left, and at least as many behind them
STALL, EXHAUST = (0.55, 1.45), (1.30, 0.70)  # what losses of efficiency and of flow take from each margin


def simulate(seed: int, trained: int = 100, tested: int = 100) -> Fleet:
    """SIMULATED engines, as this module's page describes them.

    `trained` engines run to failure, and `tested` ones are stopped 7 to 145 cycles before it; both follow from `seed`.
    Cost: 0.5 s for 200.
    """
    random = np.random.default_rng([seed, 2008])
    train = [Engine(unit, _sensed(_life(random), random), 0) for unit in range(1, trained + 1)]
    test: list[Engine] = []
    for unit in range(1, tested + 1):
        rows = _sensed(_life(random), random)
        left = int(random.integers(TEST_LEFT[0], min(TEST_LEFT[1], len(rows) - TEST_SHORTEST) + 1))
        test.append(Engine(unit, rows[: len(rows) - left], left))
    numbers = hashlib.sha256()
    for engine in (*train, *test):
        numbers.update(f"{engine.left} {len(engine.rows)} ".encode() + engine.rows.astype("<f8").tobytes())
    return Fleet("SIMULATED_FD001", tuple(train), tuple(test), numbers.hexdigest()[:16], simulated=True)


def _life(random: np.random.Generator) -> Float[ndarray, "3 cycle"]:
    """One engine's losses of efficiency and of flow, and its health, to the cycle in which it fails."""
    cycles = np.arange(LIVES[1] + 1)
    while True:
        onset, share = random.integers(*ONSETS), random.uniform(0.3, 0.7)
        ticks = random.gamma(CLOCK_SHAPE, 1 / CLOCK_SHAPE, len(cycles)) * (cycles > onset)
        grown = WEAR_SCALE * (np.exp(random.uniform(*RATES) * ticks.cumsum() ** random.uniform(*POWERS)) - 1)
        efficiency = random.uniform(0, INITIAL_WEAR) + share * grown
        flow = random.uniform(0, INITIAL_WEAR) + (1 - share) * grown
        health = np.minimum(*(1 - e * efficiency - f * flow for e, f in (STALL, EXHAUST)))
        # A life of another length than FD001's is drawn again as a whole: cutting it would change how engines end.
        failed = np.flatnonzero(health <= 0)
        if len(failed) and LIVES[0] <= (end := failed[0] + 1) <= LIVES[1]:
            return np.stack([efficiency, flow, health.clip(0)])[:, :end]


def _sensed(life: Float[ndarray, "3 cycle"], random: np.random.Generator) -> Float[ndarray, "cycle channel"]:
    """Settings and sensors of a life, rounded to the decimals that C-MAPSS writes."""
    # The losses go a little beyond 1 in the cycle in which an engine fails: no sensor shows more than its end.
    losses, count = np.stack(list(life[:2]), 1).clip(max=1), life.shape[1]
    columns = [random.normal(0, spread, count).round(4) for spread in (0.0022, 0.0003)]
    columns.append(np.full(count, 100.0))
    air = random.standard_normal(count)
    for baseline, efficiency, flow, offset, per_air, noise, decimals in SENSORS.values():
        level = baseline + random.normal(0, 1) * offset
        wear = losses @ np.array([efficiency, flow])
        noises = random.normal(0, 1, count) * noise
        columns.append((level + wear + air * per_air + noises).round(decimals))
    return np.stack(columns, 1)


# -------------------------------------------------------------------------------------------------------------- windows


class Scaling(NamedTuple):
    """The channels that change at all among the engines trained on, and their mean and spread there."""

    kept: tuple[int, ...]
    mean: Float[ndarray, "channel"]
    spread: Float[ndarray, "channel"]

    @staticmethod
    def of(engines: Sequence[Engine]) -> Scaling:
        """Errors: TextError where nothing changes."""
        rows = np.concatenate([engine.rows for engine in engines])
        varying = tuple(np.flatnonzero(np.ptp(rows, axis=0) > 0).tolist())
        if not varying:
            raise TextError("no setting and no sensor of these engines ever changes: there is nothing to learn from.")
        # Of the engines trained on alone: the spread of others would tell the net of what it is tested with.
        return Scaling(varying, rows[:, varying].mean(0), rows[:, varying].std(0))

    @property
    def constant(self) -> list[str]:
        """Channels that are left out, since they never change."""
        return [name for channel, name in enumerate(CHANNELS) if channel not in self.kept]

    def scaled(self, engine: Engine) -> Float[ndarray, "cycle channel"]:
        return ((engine.rows[:, self.kept] - self.mean) / self.spread).astype(np.float32)


class Windows(NamedTuple):
    """Windows of engines; `left` is the true number of cycles after each.

    `padded`: the number of engines with fewer cycles than a window, whose first cycle fills the window up.
    """

    cycles: Float[Tensor, "window cycle channel"]
    left: Int[Tensor, "window"]
    padded: int

    @property
    def capped(self) -> Float[Tensor, "window"]:
        return self.left.clamp(max=CAP).float()


def split(engines: Sequence[Engine]) -> tuple[list[Engine], list[Engine]]:
    """Engines to train on, and engines to validate with: whole engines, never windows of the same one."""
    # By engine: neighbouring windows of one engine are nearly alike, and would be a test of memory.
    return [engine for place, engine in enumerate(engines, 1) if place % EVERY_NTH], list(
        engines[EVERY_NTH - 1 :: EVERY_NTH]
    )


def windows_of(engines: Sequence[Engine], scaling: Scaling, per_engine: int | None = None) -> Windows:
    """Windows of LENGTH cycles, scaled, engine after engine, each with the cycles that were left after it.

    `per_engine`: so many of each engine, evenly spaced to the last one (1: the last alone); None: every window. An
    engine with fewer cycles has its first cycle repeated in front.
    """
    cycles, left, padded = list[ndarray](), list[ndarray](), 0
    for engine in engines:
        scaled = scaling.scaled(engine)
        # Test engines may be stopped before a window is full.
        if (missing := LENGTH - len(scaled)) > 0:
            scaled, padded = np.concatenate([scaled[:1].repeat(missing, 0), scaled]), padded + 1
        last = len(scaled) - LENGTH
        begins = np.linspace(last, 0, per_engine or last + 1).round().astype(int)[::-1]
        cycles.append(scaled[begins[:, None] + np.arange(LENGTH)])
        left.append(engine.left + last - begins)
    return Windows(torch.from_numpy(np.concatenate(cycles)), torch.from_numpy(np.concatenate(left)).long(), padded)


# --------------------------------------------------------------------------------------------------- nets, and a line


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
    """Maps windows to shares of the cap: about 1 for a sound engine, 0 for an engine that fails now.

    With 512 numbers a cycle (`hidden` 256) the attention has 4 (512^2 + 512) = 1,050,624 parameters.
    """

    def __init__(self, num_channels: int, hidden: int = 256, num_heads: int = 8, attention: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(num_channels, hidden, batch_first=True, bidirectional=True)
        self.block = AttentionBlock(2 * hidden, num_heads, attention)
        self.dropout = nn.Dropout(0.1)
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


def predicted(net: nn.Module, windows: Float[Tensor, "b n channel"], cap: int) -> Float[ndarray, "b"]:
    """The cycles that a net (`RulNet`, in eval mode) says are left after each window: its share times `cap`, from 0 to
    `cap`. Cost: one forward pass, 256 windows at a time."""
    with torch.no_grad():
        # 256 windows at a time: the LSTM keeps every cycle's state.
        parts = [net(part.to(device_of(net))).float().cpu() for part in windows.split(256)]
    return (torch.cat(parts) * cap).clamp(0, cap).numpy()


class Ridge(NamedTuple):
    """A line in each channel's mean, slope and last five cycles of a window; `penalty`: which one was chosen."""

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
    """A line in windows' means, slopes and last cycles: least squares with a penalty on weights.

    The penalty is the one of 0.1 to 10^6 with the smallest squared error on `validating`. Source: Hoerl and Kennard
    1970.
    """
    x, y = features(windows), left.astype(np.float64)
    # 1e-12: a feature that never changes has no spread, and must not divide by 0.
    mean, spread, middle = x.mean(0), x.std(0) + 1e-12, float(y.mean())
    x = (x - mean) / spread
    tried = []
    for penalty in (10.0**power for power in range(-1, 7)):
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (y - middle))
        tried.append(Ridge(weights, mean, spread, middle, penalty))
    return min(tried, key=lambda ridge: np.square(ridge(validating) - validating_left).mean())


def rmse(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Root of the mean squared error, in cycles."""
    return math.sqrt(float(np.square(predicted - true).mean()))


def cmapss_score(predicted: Num[ndarray, "engine"], true: Num[ndarray, "engine"]) -> float:
    """Sum over engines of exp(-d / 13) - 1 where d = predicted - true is below 0 (early), else exp(d / 10) - 1.

    0 is best; it is a sum, so only sets of the same engines compare.
    """
    off = np.asarray(predicted, dtype=np.float64) - true
    return float(np.expm1(np.where(off < 0, -off / 13, off / 10)).sum())


def scores(predicted: Float[ndarray, "engine"], left: Num[ndarray, "engine"], cap: int) -> dict[str, float]:
    """Errors against the capped truth, which was trained on, and against the truth itself."""
    numbers: dict[str, float] = {}
    for ending, true in (("", np.minimum(left, cap)), ("_uncapped", left)):
        numbers |= {f"rmse{ending}": rmse(predicted, true), f"score{ending}": cmapss_score(predicted, true)}
    return numbers


# ----------------------------------------------------------------------------------------------------------- the preset

HEADS = 8
VALIDATED = 10  # windows of each validating engine, evenly spaced over its life
WITH, WITHOUT = "attention", "no-attention"
WORN = 50  # cycles left, at most, of an engine that is called worn
RIDGE_WINDOWS = 8_192  # at most, evenly spaced: a line of some 50 numbers is known by then


@dataclass(frozen=True)
class RunScale(Scaled):
    """`hidden`: of each direction of the LSTM. `engines`: simulated, to train on and as many to test."""

    hidden: int
    seeds: int
    rows: int
    engines: int


WHOLE = RunScale(
    Settings(steps=400, rate=2e-3, warmup=40, floor=0.02, decay=0.01, checkpoint_every=100, measure_every=50),
    hidden=256, seeds=5, rows=32, engines=100,
)  # fmt: skip
TRIAL = RunScale(
    Settings(steps=6, rate=2e-3, warmup=2, checkpoint_every=3, measure_every=3), hidden=32, seeds=2, rows=8, engines=10
)


class Data(NamedTuple):
    """A fleet as windows, scaled by the engines trained on."""

    fleet: Fleet
    scaling: Scaling
    train: Windows
    validating: Windows
    test: Windows

    @property
    def facts(self) -> dict[str, Any]:
        fleet = self.fleet
        return {
            "data": f"{'SIMULATED by manyheads, not C-MAPSS' if fleet.simulated else 'as given'}: {fleet.name}",
            "digest": fleet.digest,
            "engines": {"train": len(fleet.train), "test": len(fleet.test)},
            "channels": [CHANNELS[channel] for channel in self.scaling.kept],
            "constant_channels_left_out": self.scaling.constant,
            "test_engines_shorter_than_a_window": self.test.padded,
        }


def build(setup: Setup) -> Training:
    """Two runs a seed, pair by pair; their report compares them with each other and with a line."""
    scale = setup.scale(WHOLE, TRIAL)
    data = read_data(setup, scale)

    def make(name: str, index: int, attention: bool, _: AllTrained) -> Run:
        return make_run(name, scale, data, setup.seed + index, attention)

    runs = by_seed(scale.seeds, {WITH: True, WITHOUT: False}, make)
    return Training(runs, lambda trained: findings(data, trained, scale.seeds), data.facts)


PRESET = Preset("rul", build, "a C-MAPSS folder, or the train file of one of its sets")


def read_data(setup: Setup, scale: RunScale) -> Data:
    """The set that was given, or a simulated one, as windows."""
    fleet = read_cmapss(setup.data) if setup.data else simulate(setup.seed, scale.engines, scale.engines)
    trained, validating = split(fleet.train)
    scaling = Scaling.of(trained)
    windows = ((trained, None), (validating, VALIDATED), (fleet.test, 1))
    return Data(fleet, scaling, *(windows_of(engines, scaling, per_engine) for engines, per_engine in windows))


def make_run(name: str, scale: RunScale, data: Data, seed: int, attention: bool) -> Run:
    """One net. Its batches depend on the seed and the step alone, so both nets of a pair read the same."""
    torch.manual_seed(seed)  # before the net is made, since drawing its weights is what is seeded
    net = RulNet(len(data.scaling.kept), scale.hidden, HEADS, attention)
    train, capped = data.train.cycles, data.train.capped / CAP
    validating, left = data.validating.cycles, data.validating.capped.numpy()

    def batch(step: int) -> Batch:
        indices = torch.randint(len(train), (scale.rows,), generator=generator_of(seed, step))
        return {"windows": train[indices], "share": capped[indices]}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
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


# -------------------------------------------------------------------------------------------------------- what it shows


def reading(net: nn.Module, test: Windows) -> dict[str, dict[str, list[float]]]:
    """Each head's mean weight on each cycle of a window, first to last, of worn test engines and of the others."""
    assert isinstance(net, RulNet)
    read, worn = cycles_read(net, test.cycles).numpy(), test.left.numpy() <= WORN
    means = {
        name: read[engines].mean(0) if engines.any() else np.zeros(read.shape[1:])
        for name, engines in (("worn", worn), ("others", ~worn))
    }
    return {
        f"L0H{head}": {name: [round(float(value), 5) for value in mean[head]] for name, mean in means.items()}
        for head in range(read.shape[1])
    }


def findings(data: Data, trained: AllTrained, seeds: int) -> Findings:
    """Errors on the test engines' last windows, with attention and without, and where heads look."""
    left, windows, train, validating = data.test.left.numpy(), data.test.cycles, data.train, data.validating
    nets = {kind: [trained[f"{kind}-{seed}"].model for seed in range(seeds)] for kind in (WITH, WITHOUT)}
    guesses = {kind: [predicted(net, windows, CAP) for net in of_kind] for kind, of_kind in nets.items()}
    nth = slice(None, None, max(1, len(train.left) // RIDGE_WINDOWS))
    seen = [train.cycles[nth], train.capped[nth], validating.cycles, validating.capped]
    ridge = fit_ridge(*(part.numpy() for part in seen))
    line, always = ridge(windows.numpy()).clip(0, CAP), np.full(len(left), float(train.capped.mean()))
    errors = {kind: spreads_of([scores(guess, left, CAP) for guess in by_seed]) for kind, by_seed in guesses.items()}
    first = nets[WITH][0]
    assert isinstance(first, RulNet) and first.block.attention is not None
    numbers = {
        "data": data.fleet.name,
        "simulated": data.fleet.simulated,
        "cap": CAP,
        "window": LENGTH,
        "test_engines": len(left),
        "parameters_of_the_attention": num_parameters(first.block.attention),
        "nets": errors,
        "ridge": {**scores(line, left, CAP), "penalty": ridge.penalty},
        "always_the_mean": scores(always, left, CAP),
        # Pairs: both nets of a seed saw the same windows in the same order, so seeds cancel.
        "attention_gains": {
            name: paired(errors[WITHOUT][name]["each"], errors[WITH][name]["each"]) for name in ("rmse", "score")
        },
        "worn_engines": {"at_most_cycles_left": WORN, "count": int((left <= WORN).sum())},
        "sound_engines": {"at_least_cycles_left": CAP, "count": int((left >= CAP).sum())},
        "heads": [reading(net, data.test) for net in nets[WITH]],
        "first_seeds_predictions": {
            "left": left.tolist(),
            **{kind: [round(float(value), 2) for value in by_seed[0]] for kind, by_seed in guesses.items()},
            "ridge": [round(float(value), 2) for value in line],
        },
    }
    return Findings(numbers, lines_of(numbers), chart(numbers))


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The numbers in sentences."""
    simulated = "These engines are SIMULATED by manyheads; nothing here is a result on C-MAPSS."
    lines = [simulated if numbers["simulated"] else f"The engines are those of {numbers['data']}, as given."]
    lines.append(f"Cycles left, capped at {CAP}, of {numbers['test_engines']} test engines:")
    for kind, name in ((WITH, "With attention"), (WITHOUT, "Without it")):
        rmse, score = numbers["nets"][kind]["rmse"], numbers["nets"][kind]["score"]
        lines.append(
            f"{name}: RMSE {plus_minus(rmse, '.2f')}, score {plus_minus(score, ',.0f')} ({len(rmse['each'])} seeds)."
        )
    for key, name in (("ridge", "A line (ridge)"), ("always_the_mean", "Always the mean")):
        lines.append(f"{name}: RMSE {numbers[key]['rmse']:.2f}, score {numbers[key]['score']:,.0f}.")
    return (*lines, _gained(numbers["attention_gains"]["rmse"]))


def chart(numbers: Mapping[str, Any]) -> Chart:
    """For each head of the first seed the cycles that it reads, of worn engines and of the others; and the errors."""
    cycles, heads, nets = tuple(map(float, range(1, LENGTH + 1))), numbers["heads"][0], numbers["nets"]
    lines = [Line("", cycles, tuple(read["others"]), bold=False) for read in heads.values()]
    lines += [Line(head, cycles, tuple(read["worn"])) for head, read in heads.items()]
    ways = (
        Points("with attention", tuple(nets[WITH]["rmse"]["each"])),
        Points("the same\nwithout", tuple(nets[WITHOUT]["rmse"]["each"])),
        Points("a line\n(ridge)", (numbers["ridge"]["rmse"],), bold=False),
        Points("always\nthe mean", (numbers["always_the_mean"]["rmse"],), bold=False),
    )
    whose = "SIMULATED engines, not C-MAPSS" if numbers["simulated"] else numbers["data"]
    return Chart(
        "Which cycles each head reads, and how long the engine lasts",
        f"{whose}: the last {LENGTH} cycles of {numbers['test_engines']} test engines",
        (
            Panel(f"mean weight on each cycle, at most {WORN} cycles left; grey: the others", tuple(lines), 0.0),
            PointsPanel(f"RMSE in cycles left, capped at {CAP}", ways),
        ),
        "cycle of the window, the last at the right",
        (
            f"Heads are of the first seed. A cycle's weight is the mean over the window's {LENGTH} queries; an even "
            f"reading is {1 / LENGTH:.3f}.",
            _gained(numbers["attention_gains"]["rmse"]),
        ),
    )


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
