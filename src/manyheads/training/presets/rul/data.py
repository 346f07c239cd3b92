"""C-MAPSS text files: the sensors of turbofan engines, cycle by cycle, until each engine failed; as windows for a net.

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

from manyheads.base import no_access
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
    left = _rul_rows(files["RUL"], texts["RUL"], len(tested), files["test"])
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


def _rul_rows(path: Path, text: str, count: int, of: Path) -> list[int]:
    rows = []
    for number, parts in _lines(text):
        if len(parts) != 1:
            raise _fault(
                path, number, f"{len(parts)} columns came, and a line has one: the cycles that an engine had left"
            )
        left = _whole(path, number, parts[0], "number of cycles left")
        if left < 0:
            raise _fault(path, number, f"{left} came, and nothing has less than 0 cycles left")
        rows.append(left)
    if len(rows) != count:
        raise TextError(
            f"{path} has {len(rows)} rows, and {of.name} has {count} units: each needs its row, in the same order."
        )
    return rows


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


def windows_of(engines: Sequence[Engine], scaling: Scaling, each: int | None = None) -> Windows:
    """Every window of every engine; or `each` of them, evenly spaced to the last one. `each=1` is the last alone."""
    rows, begins, left, owners, padded, row = [], [], [], [], 0, 0
    for index, engine in enumerate(engines):
        scaled, remaining = scaling.scaled(engine), engine.remaining
        # Test engines may be stopped before a window is full.
        if (missing := LENGTH - len(scaled)) > 0:
            scaled, padded = np.concatenate([scaled[:1].repeat(missing, 0), scaled]), padded + 1
        count = len(scaled) - LENGTH + 1
        picked = np.arange(count) if each is None else np.linspace(count - 1, 0, each).round().astype(int)[::-1]
        rows.append(scaled)
        begins.append(row + picked)
        left.append(remaining[-1] + count - 1 - picked)
        owners.append(np.full(len(picked), index))
        row += len(scaled)
    starts, cycles, whose = (torch.from_numpy(np.concatenate(part)).long() for part in (begins, left, owners))
    return Windows(torch.from_numpy(np.concatenate(rows)), starts, cycles, whose, padded)
