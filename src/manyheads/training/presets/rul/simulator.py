"""Turbofan engines that wear out, SIMULATED: a stand-in for C-MAPSS that can be made anywhere, and is not C-MAPSS.

Each engine has two hidden losses, of its high-pressure compressor's efficiency and flow. Both begin small (made so),
stay until a fault's onset, then grow as exp(a s^b) - 1 on a clock s that runs unevenly. Two margins shrink with them,
of stall and of exhaust temperature; health is the lesser one, and an engine fails when it is gone. Sensors are a
baseline, the engine's own offset, the day's air, a line in the losses, and noise; as in FD001 there is one operating
condition, and seven sensors say nothing.

Wear's exponential form and health as the least of several margins follow Saxena et al. 2008. Ranges, baselines, slopes
and noise are set by hand to be of FD001's size; no thermodynamics is computed. Everything written says SIMULATED.
Cost: 0.5 s for 100 + 100 engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from manyheads.base import no_access, replacing
from manyheads.training.presets.rul.data import SENSORS, Engine

NAME = "SIMULATED_FD001"
NOTICE = (
    "These files are SIMULATED by manyheads (training/simulator.py): in the C-MAPSS text format and of FD001's size,\n"
    "but they are not NASA's data, and no result on them is a result on C-MAPSS.\n"
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
