"""The data of `rul`: C-MAPSS text files, or simulated engines written as such; and windows of either for a net.

C-MAPSS has the sensors of turbofan engines, cycle by cycle, until each engine failed.

A set is three files: `train_<set>.txt` (engines run to failure), `test_<set>.txt` (engines stopped before it) and
`RUL_<set>.txt` (a row a test engine: how many cycles it had left). A line is 26 numbers with blanks between: unit,
cycle, 3 settings, 21 sensors; there is no header. Units count from 1, and so do each unit's cycles.

Whatever is not so is one error that names the file, the line and what came: a set that is silently shifted by a row
trains as well as a right one.

Nets read windows of 30 cycles of one engine, scaled by what the training engines show, and learn the life that was left
after each. That target is capped: sensors of a sound engine cannot tell 300 cycles left from 200, and a net that is
asked to do so learns noise. A cap of 125 is what most work on C-MAPSS takes.

Source: Saxena et al. 2008, "Damage propagation modeling for aircraft engine run-to-failure simulation", PHM08; the
readme of NASA's data set; Heimes 2008, "Recurrent neural networks for remaining useful life estimation", PHM08 (a
target that is even first, then a line). Cost: 0.2 s for a set like FD001.

The simulated engines wear out, too: a stand-in for C-MAPSS that can be made anywhere, and is not C-MAPSS. Each engine
has two hidden losses, of its high-pressure compressor's efficiency and flow. Both begin small (made so), stay until a
fault's onset, then grow as exp(a s^b) - 1 on a clock s that runs unevenly. Two margins shrink with them, of stall and
of exhaust temperature; health is the lesser one, and an engine fails when it is gone. Sensors are a baseline, the
engine's own offset, the day's air, a line in the losses, and noise; as in FD001 there is one operating condition, and
seven sensors say nothing.

Wear's exponential form and health as the least of several margins follow Saxena et al. 2008. Ranges, baselines, slopes
and noise are set by hand to be of FD001's size; no thermodynamics is computed. Everything written says SIMULATED. Cost:
0.5 s for 100 + 100 engines.
"""

from __future__ import annotations

import errno
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from manyheads.base import no_access, replacing
from manyheads.errors import TextError

SETTINGS = ("altitude", "Mach", "throttle")
SENSORS = (
    "T2", "T24", "T30", "T50", "P2", "P15", "P30", "Nf", "Nc", "epr", "Ps30", "phi", "NRf", "NRc", "BPR", "farB",
    "htBleed", "Nf_dmd", "PCNfR_dmd", "W31", "W32",
)  # fmt: skip
CHANNELS = (*SETTINGS, *SENSORS)
COLUMNS = 2 + len(CHANNELS)
SHOWN = 40  # characters of a wrong entry that an error shows
LENGTH = 30  # cycles of a window
CAP = 125  # of the target, in cycles left
EVERY_NTH = 5  # of the training file's engines, this one is not trained on: it validates


@dataclass(frozen=True, eq=False)
class Engine:
    """One engine's life, a row a cycle, as the file has it. `left`: cycles it had after its last row."""

    unit: int
    rows: Float[ndarray, "cycle channel"]
    left: int

    @property
    def remaining(self) -> Int[ndarray, "cycle"]:
        """Cycles left after each row; of an engine that failed, 0 after its last."""
        return np.arange(len(self.rows) - 1, -1, -1) + self.left


@dataclass(frozen=True, eq=False)
class Fleet:
    """A set as it was read. `digest` is of the three files' bytes."""

    name: str
    train: tuple[Engine, ...]
    test: tuple[Engine, ...]
    digest: str


def read_cmapss(place: Path) -> Fleet:
    """Read the set in a folder, or, where it holds several, the one whose train file is given.

    Errors: TextError for a malformed file, with its name, the line and what came; FileAccessError.
    """
    train = _train_file(place)
    name = train.stem.removeprefix("train_")
    files = {kind: train.with_name(f"{kind}_{name}.txt") for kind in ("train", "test", "RUL")}
    texts: dict[str, str] = {}
    for kind, path in files.items():
        try:
            texts[kind] = path.read_bytes().decode("ascii", errors="replace")
        except OSError as error:
            raise no_access("read", path, error) from error
    tested = _engines(files["test"], texts["test"])
    rul_path, left = files["RUL"], list[int]()
    for number, parts in _lines(texts["RUL"]):
        if len(parts) != 1:
            reason = f"{len(parts)} columns came, and a line has one: the cycles that an engine had left"
            raise _fault(rul_path, number, reason)
        cycles = _whole(rul_path, number, parts[0], "number of cycles left")
        if cycles < 0:
            raise _fault(rul_path, number, f"{cycles} came, and nothing has less than 0 cycles left")
        left.append(cycles)
    if len(left) != len(tested):
        raise TextError(
            f"{rul_path} has {len(left)} rows, and {files['test'].name} has {len(tested)} units: each needs its row, "
            f"in the same order."
        )
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16]
    return Fleet(
        name,
        tuple(Engine(unit, rows, 0) for unit, rows in enumerate(_engines(files["train"], texts["train"]), 1)),
        tuple(Engine(unit, rows, cycles) for unit, (rows, cycles) in enumerate(zip(tested, left, strict=True), 1)),
        digest,
    )


def _train_file(place: Path) -> Path:
    if not place.exists():
        raise no_access("read", place, FileNotFoundError(errno.ENOENT, "no such file"))
    if not place.is_dir():
        if not (place.name.startswith("train_") and place.suffix == ".txt"):
            raise TextError(f"{place} is no train_<set>.txt: give a C-MAPSS folder, or a set's train file in it.")
        return place
    files = sorted(place.glob("train_*.txt"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise TextError(
            f"{place} holds no train_<set>.txt: give the folder of a C-MAPSS set, as NASA's archive has it."
        )
    names = ", ".join(path.name for path in files[:6])
    raise TextError(f"{place} holds {len(files)} sets ({names}): give one of these files instead of the folder.")


def _engines(path: Path, text: str) -> list[Float[ndarray, "cycle channel"]]:
    """Each unit's rows, in the order of the file, which is 1, 2, 3, ..."""
    units: list[list[list[float]]] = []
    for number, parts in _lines(text):
        if len(parts) != COLUMNS:
            raise _fault(path, number, f"{len(parts)} columns came, and a line has {COLUMNS}: unit, cycle, "
                         f"{len(SETTINGS)} settings, {len(SENSORS)} sensors")  # fmt: skip
        row = _row(path, number, parts)
        unit, cycle = (_whole(path, number, parts[index], column) for index, column in enumerate(("unit", "cycle")))
        # Units and cycles must count up without a gap: a lost line would shift every label after it.
        if cycle == 1 and unit == len(units) + 1:
            units.append([row[2:]])
        elif units and unit == len(units) and cycle == len(units[-1]) + 1:
            units[-1].append(row[2:])
        else:
            expected = f"cycle 1 of unit {len(units) + 1}"
            if units:
                expected = f"cycle {len(units[-1]) + 1} of unit {len(units)}, or {expected}"
            raise _fault(path, number, f"cycle {cycle} of unit {unit} came, and here follows {expected}")
    if not units:
        raise TextError(f"{path} has no line with anything in it: give a file of engines.")
    return [np.array(rows, dtype=np.float64) for rows in units]


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """The entries of each line that is not blank, with the line's number."""
    return [(number, parts) for number, line in enumerate(text.split("\n"), 1) if (parts := line.split())]


def _row(path: Path, number: int, parts: list[str]) -> list[float]:
    """A line's numbers. One by one, slowly, only where something is wrong with them."""
    try:
        row = list(map(float, parts))
        # One sum instead of 26 checks: a set has some 30,000 lines.
        if math.isfinite(sum(row)) and not any("_" in part for part in parts):
            return row
    except ValueError:
        pass
    names = ("unit", "cycle", *CHANNELS)
    return [_number(path, number, part, column) for part, column in zip(parts, names, strict=True)]


def _number(path: Path, number: int, part: str, column: str) -> float:
    try:
        value = float(part) if "_" not in part else math.nan  # Python reads 1_000, and nobody else does
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _fault(path, number, f"{part[:SHOWN]!r} came as its {column}, which is no number")
    return value


def _whole(path: Path, number: int, part: str, column: str) -> int:
    value = _number(path, number, part, column)
    if value != int(value):
        raise _fault(path, number, f"{part[:SHOWN]!r} came as its {column}, which is no whole number")
    return int(value)


def _fault(path: Path, number: int, message: str) -> TextError:
    return TextError(f"{path}, line {number}: {message}. Repair the file, or give another.")


# -------------------------------------------------------------------------------------------------------------- windows


@dataclass(frozen=True, eq=False)
class Scaling:
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
    def names(self) -> list[str]:
        return [CHANNELS[channel] for channel in self.kept]

    @property
    def constant(self) -> list[str]:
        """Channels that are left out, since they never change."""
        return [name for channel, name in enumerate(CHANNELS) if channel not in self.kept]

    def scaled(self, engine: Engine) -> Float[ndarray, "cycle channel"]:
        return ((engine.rows[:, self.kept] - self.mean) / self.spread).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows into rows that lie engine after engine; none reaches from one engine into another.

    `left` is the true number of cycles after each window, `engine` the index of its engine. `padded`: the number of
    engines with fewer cycles than a window, whose first cycle fills the window up.
    """

    rows: Float[Tensor, "row channel"]
    begins: Int[Tensor, "window"]
    left: Int[Tensor, "window"]
    engine: Int[Tensor, "window"]
    padded: int

    def __len__(self) -> int:
        return len(self.begins)

    def read(self, indices: Int[Tensor, "some"]) -> Float[Tensor, "some cycle channel"]:
        return self.rows[self.begins[indices][:, None] + torch.arange(LENGTH)]

    def all(self) -> Float[Tensor, "window cycle channel"]:
        return self.read(torch.arange(len(self)))

    @property
    def capped(self) -> Float[Tensor, "window"]:
        return self.left.clamp(max=CAP).float()


@dataclass(frozen=True, eq=False)
class Data:
    """A fleet as windows, scaled by the engines trained on. `simulated`: by us."""

    fleet: Fleet
    simulated: bool
    scaling: Scaling
    train: Windows
    validating: Windows
    test: Windows

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "data": f"{'SIMULATED by manyheads, not C-MAPSS' if self.simulated else 'as given'}: {self.fleet.name}",
            "digest": self.fleet.digest,
            "engines": {"train": len(self.fleet.train), "test": len(self.fleet.test)},
            "channels": self.scaling.names,
            "constant_channels_left_out": self.scaling.constant,
            "test_engines_shorter_than_a_window": self.test.padded,
        }


def split(engines: Sequence[Engine]) -> tuple[list[Engine], list[Engine]]:
    """Engines to train on, and engines to validate with: whole engines, never windows of the same one."""
    # By engine: neighbouring windows of one engine are nearly alike, and would be a test of memory.
    validating = [engine for index, engine in enumerate(engines) if index % EVERY_NTH == EVERY_NTH - 1]
    return [engine for index, engine in enumerate(engines) if index % EVERY_NTH != EVERY_NTH - 1], validating


def windows_of(engines: Sequence[Engine], scaling: Scaling, per_engine: int | None = None) -> Windows:
    """Every window of every engine; or `per_engine` of each, evenly spaced to the last one; 1 is the last alone."""
    rows, begins, left, owners, padded, row = [], [], [], [], 0, 0
    for index, engine in enumerate(engines):
        scaled, remaining = scaling.scaled(engine), engine.remaining
        # Test engines may be stopped before a window is full.
        if (missing := LENGTH - len(scaled)) > 0:
            scaled, padded = np.concatenate([scaled[:1].repeat(missing, 0), scaled]), padded + 1
        count = len(scaled) - LENGTH + 1
        picked = (
            np.arange(count) if per_engine is None else np.linspace(count - 1, 0, per_engine).round().astype(int)[::-1]
        )
        rows.append(scaled)
        begins.append(row + picked)
        left.append(remaining[-1] + count - 1 - picked)
        owners.append(np.full(len(picked), index))
        row += len(scaled)
    starts, cycles, whose = (torch.from_numpy(np.concatenate(part)).long() for part in (begins, left, owners))
    return Windows(torch.from_numpy(np.concatenate(rows)), starts, cycles, whose, padded)


# ---------------------------------------------------------------------------------------------------- simulated engines

NAME = "SIMULATED_FD001"
NOTICE = (
    "These files are SIMULATED by manyheads (training.write_simulated): in the C-MAPSS text format and of FD001's "
    "size,\nbut they are not NASA's data, and no result on them is a result on C-MAPSS.\n"
)
RATES = (0.001, 0.003)  # a
POWERS = (1.4, 1.6)  # b
INITIAL_WEAR = 0.01  # at most, of each loss: engines leave the factory not quite alike
ONSETS = (20, 120)  # cycles before a fault begins
WEAR_SCALE = 0.05  # wear when exp(a s^b) - 1 is 1; an engine fails near 1
CLOCK_SHAPE = 4.0  # of the gamma steps of wear's clock: their spread is 1 / sqrt(4) of their mean
LIVES = (128, 362)  # FD001's shortest and longest: other lives are drawn again
TEST_LEFT = (7, 145)  # FD001's test engines had as many cycles left
TEST_SHORTEST = 31


@dataclass(frozen=True)
class Sensor:
    """How one sensor answers. `offset`: spread between engines; `air`: per unit of the day's air; `efficiency` and
    `flow`: change at failure, if that loss alone were the whole of the wear; `noise`: of each reading."""

    name: str
    baseline: float
    efficiency: float = 0.0
    flow: float = 0.0
    offset: float = 0.0
    air: float = 0.0
    noise: float = 0.0
    decimals: int = 2


# Hotter where less efficient (T), less pressure and coolant where less flow (P30, W), more fuel for the same thrust.
# The core's speed has two masters: it must turn faster for lost efficiency, and runs lighter for lost flow.
RESPONSES = (
    Sensor("T2", 518.67),
    Sensor("T24", 642.20, 1.7, 1.1, 0.10, 0.12, 0.30),
    Sensor("T30", 1586.5, 26.0, 16.0, 1.3, 1.3, 3.7),
    Sensor("T50", 1402.0, 40.0, 24.0, 1.5, 1.5, 4.0),
    Sensor("P2", 14.62),
    Sensor("P15", 21.61),
    Sensor("P30", 554.10, -1.8, -4.6, 0.12, 0.12, 0.38),
    Sensor("Nf", 2388.05, 0.18, 0.26, 0.010, 0.008, 0.035),
    Sensor("Nc", 9052.0, 90.0, -35.0, 5.0, 1.0, 4.0),
    Sensor("epr", 1.30),
    Sensor("Ps30", 47.35, 0.95, 0.65, 0.03, 0.03, 0.10),
    Sensor("phi", 522.00, -1.6, -3.5, 0.10, 0.10, 0.33),
    Sensor("NRf", 2388.05, 0.18, 0.26, 0.010, 0.008, 0.035),
    Sensor("NRc", 8138.0, 78.0, -32.0, 4.5, 0.8, 3.5),
    Sensor("BPR", 8.4050, 0.12, 0.14, 0.004, 0.003, 0.0170, 4),
    Sensor("farB", 0.03),
    Sensor("htBleed", 391.6, 5.8, 5.0, 0.25, 0.25, 0.75, 0),
    Sensor("Nf_dmd", 2388.0, decimals=0),
    Sensor("PCNfR_dmd", 100.0),
    Sensor("W31", 38.95, -0.45, -0.95, 0.025, 0.02, 0.085),
    Sensor("W32", 23.370, -0.27, -0.57, 0.015, 0.012, 0.050, 4),
)
assert tuple(sensor.name for sensor in RESPONSES) == SENSORS

STALL = (0.55, 1.45)  # what a loss of efficiency, and of flow, takes from the stall margin; from that of temperature:
EXHAUST = (1.30, 0.70)


@dataclass(frozen=True, eq=False)
class Life:
    """The hidden state of one engine, from its first cycle to the one in which it fails."""

    efficiency: Float[ndarray, "cycle"]
    flow: Float[ndarray, "cycle"]
    health: Float[ndarray, "cycle"]


def simulate(seed: int, trained: int = 100, tested: int = 100) -> tuple[list[Engine], list[Engine]]:
    """Engines run to failure, and engines stopped at a random cycle before it. SIMULATED."""
    random = np.random.default_rng([seed, 2008])
    train = [Engine(unit, _sensed(_life(random), random), 0) for unit in range(1, trained + 1)]
    test = []
    for unit in range(1, tested + 1):
        rows = _sensed(_life(random), random)
        left = int(random.integers(TEST_LEFT[0], min(TEST_LEFT[1], len(rows) - TEST_SHORTEST) + 1))
        test.append(Engine(unit, rows[: len(rows) - left], left))
    return train, test


def write_simulated(folder: Path, seed: int, trained: int = 100, tested: int = 100) -> Path:
    """Write a simulated set in C-MAPSS's own format; the folder. Errors: FileAccessError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_access("write", folder, error) from error
    train, test = simulate(seed, trained, tested)
    _write(folder / "SIMULATED.txt", NOTICE)
    _write(folder / f"train_{NAME}.txt", "".join(map(lines_of, train)))
    _write(folder / f"test_{NAME}.txt", "".join(map(lines_of, test)))
    _write(folder / f"RUL_{NAME}.txt", "".join(f"{engine.left} \n" for engine in test))
    return folder


def lines_of(engine: Engine) -> str:
    """An engine as C-MAPSS writes it: blanks between, two at the end of a line."""
    layout = " ".join(["{:.4f}", "{:.4f}", "{:.1f}", *(f"{{:.{sensor.decimals}f}}" for sensor in RESPONSES)])
    return "".join(
        f"{engine.unit} {cycle} {layout.format(*row)}  \n" for cycle, row in enumerate(engine.rows.tolist(), 1)
    )


def _life(random: np.random.Generator) -> Life:
    """Draw lives until one is as long as FD001's are."""
    cycles = np.arange(LIVES[1] + 1)
    while True:
        onset, share = random.integers(*ONSETS), random.uniform(0.3, 0.7)
        ticks = random.gamma(CLOCK_SHAPE, 1 / CLOCK_SHAPE, len(cycles)) * (cycles > onset)
        grown = WEAR_SCALE * (np.exp(random.uniform(*RATES) * ticks.cumsum() ** random.uniform(*POWERS)) - 1)
        efficiency = random.uniform(0, INITIAL_WEAR) + share * grown
        flow = random.uniform(0, INITIAL_WEAR) + (1 - share) * grown
        health = np.minimum(*(1 - e * efficiency - f * flow for e, f in (STALL, EXHAUST)))
        # A life of another length is drawn again as a whole: cutting it would change how engines end.
        failed = np.flatnonzero(health <= 0)
        if len(failed) and LIVES[0] <= (end := failed[0] + 1) <= LIVES[1]:
            return Life(efficiency[:end], flow[:end], health[:end].clip(0))


def _sensed(life: Life, random: np.random.Generator) -> Float[ndarray, "cycle channel"]:
    """Settings and sensors of a life, as they are written: rounded to the file's decimals."""
    count = len(life.health)
    settings = np.stack([random.normal(0, 0.0022, count).round(4), random.normal(0, 0.0003, count).round(4),
                         np.full(count, 100.0)], 1)  # fmt: skip
    air = random.standard_normal(count)
    # the losses go a little beyond 1 in the cycle in which an engine fails: no sensor shows more than its end
    losses = np.stack([life.efficiency, life.flow], 1).clip(max=1)
    columns = []
    for sensor in RESPONSES:
        baseline = sensor.baseline + random.normal(0, 1) * sensor.offset
        wear = losses @ np.array([sensor.efficiency, sensor.flow])
        noise = random.normal(0, 1, count) * sensor.noise
        columns.append((baseline + wear + air * sensor.air + noise).round(sensor.decimals))
    return np.concatenate([settings, np.stack(columns, 1)], 1)


def _write(path: Path, text: str) -> None:
    with replacing(path, ".txt") as temporary:
        Path(temporary).write_text(text, encoding="ascii", newline="\n")
