"""C-MAPSS text files: what the sensors of turbofan engines said, cycle by cycle, until each engine failed.

A set is three files: `train_<set>.txt` (engines run to failure), `test_<set>.txt` (engines stopped before it) and
`RUL_<set>.txt` (a row a test engine: how many cycles it had left). A line is 26 numbers with blanks between: unit,
cycle, 3 settings, 21 sensors; there is no header. Units count from 1, and so do each unit's cycles.

Whatever is not so is one error that names the file, the line and what came: a set that is silently shifted by a row
trains as well as a right one. Source: Saxena et al. 2008, "Damage propagation modeling for aircraft engine
run-to-failure simulation", PHM08; the readme of NASA's data set. Cost: 0.2 s for a set like FD001.
"""

from __future__ import annotations

import errno
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from manyheads.errors import TextError
from manyheads.base.files import no_access

SETTINGS = ("altitude", "Mach", "throttle")
SENSORS = (
    "T2", "T24", "T30", "T50", "P2", "P15", "P30", "Nf", "Nc", "epr", "Ps30", "phi", "NRf", "NRc", "BPR", "farB",
    "htBleed", "Nf_dmd", "PCNfR_dmd", "W31", "W32",
)  # fmt: skip
CHANNELS = (*SETTINGS, *SENSORS)
COLUMNS = 2 + len(CHANNELS)
SHOWN = 40  # characters of what came that an error shows


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
    texts = {kind: _text(path) for kind, path in files.items()}
    tested = _engines(files["test"], texts["test"])
    left = _rul_rows(files["RUL"], texts["RUL"], len(tested), files["test"])
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16]
    return Fleet(
        name,
        tuple(Engine(unit, rows, 0) for unit, rows in enumerate(_engines(files["train"], texts["train"]), 1)),
        tuple(Engine(unit, rows, each) for unit, (rows, each) in enumerate(zip(tested, left, strict=True), 1)),
        digest,
    )


def _train_file(place: Path) -> Path:
    if not place.exists():
        raise no_access("read", place, FileNotFoundError(errno.ENOENT, "no such file"))
    if not place.is_dir():
        if not (place.name.startswith("train_") and place.suffix == ".txt"):
            raise TextError(f"{place} is no train_<set>.txt: give a C-MAPSS folder, or a set's train file in it.")
        return place
    found = sorted(place.glob("train_*.txt"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise TextError(
            f"{place} holds no train_<set>.txt: give the folder of a C-MAPSS set, as NASA's archive has it."
        )
    names = ", ".join(path.name for path in found[:6])
    raise TextError(f"{place} holds {len(found)} sets ({names}): give one of these files instead of the folder.")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii", errors="replace")
    except OSError as error:
        raise no_access("read", path, error) from error


def _engines(path: Path, text: str) -> list[Float[ndarray, "cycle channel"]]:
    """Each unit's rows, in the order of the file, which is 1, 2, 3, ..."""
    units: list[list[list[float]]] = []
    for number, parts in _lines(text):
        if len(parts) != COLUMNS:
            raise _fault(path, number, f"{len(parts)} columns came, and a line has {COLUMNS}: unit, cycle, "
                         f"{len(SETTINGS)} settings, {len(SENSORS)} sensors")  # fmt: skip
        row = _row(path, number, parts)
        unit, cycle = (_whole(path, number, parts[at], what) for at, what in enumerate(("unit", "cycle")))
        if cycle == 1 and unit == len(units) + 1:
            units.append([row[2:]])
        elif units and unit == len(units) and cycle == len(units[-1]) + 1:
            units[-1].append(row[2:])
        else:
            raise _fault(path, number, f"cycle {cycle} of unit {unit} came, and here follows {_next(units)}")
    if not units:
        raise TextError(f"{path} has no line with anything in it: give a file of engines.")
    return [np.array(rows, dtype=np.float64) for rows in units]


def _next(units: list[list[list[float]]]) -> str:
    fresh = f"cycle 1 of unit {len(units) + 1}"
    return f"cycle {len(units[-1]) + 1} of unit {len(units)}, or {fresh}" if units else fresh


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
    """What stands in each line that is not blank, with the line's number."""
    return [(number, parts) for number, line in enumerate(text.split("\n"), 1) if (parts := line.split())]


def _row(path: Path, number: int, parts: list[str]) -> list[float]:
    """A line's numbers. One by one, slowly, only where something is wrong with them."""
    try:
        row = list(map(float, parts))
        if math.isfinite(sum(row)) and not any("_" in part for part in parts):
            return row
    except ValueError:
        pass
    names = ("unit", "cycle", *CHANNELS)
    return [_number(path, number, part, what) for part, what in zip(parts, names, strict=True)]


def _number(path: Path, number: int, part: str, what: str) -> float:
    try:
        value = float(part) if "_" not in part else math.nan  # Python reads 1_000, and nobody else does
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _fault(path, number, f"{part[:SHOWN]!r} came as its {what}, which is no number")
    return value


def _whole(path: Path, number: int, part: str, what: str) -> int:
    value = _number(path, number, part, what)
    if value != int(value):
        raise _fault(path, number, f"{part[:SHOWN]!r} came as its {what}, which is no whole number")
    return int(value)


def _fault(path: Path, number: int, told: str) -> TextError:
    return TextError(f"{path}, line {number}: {told}. Repair the file, or give another.")
