"""Checks: what a lesson asks, and how an answer is judged. What is right is found by a function when somebody answers.

A number is right if it is the right one as far as it was written out (three figures), or within the tolerance. What
else it may be is tried next: a mistake that the check knows, the same in another unit; each is told as what it is. What
is no answer at all (no number, no choice, a unit missing) is told, too, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyheads.lessons.cells import Loader, Ran
from manyheads.lessons.parameters import Parameter, Values
from manyheads.lessons.quantities import (
    COUNT,
    DIMENSIONS,
    NOUNS,
    Quantity,
    dimension_of,
    factor_of,
    read_quantity,
    system_of,
)

__all__ = ["Check", "Predict", "Right", "Verdict", "judged"]

PLACES, SHARE = 0.006, 0.005  # how far a number may be off: two places behind the point, or three figures
FIGURES = 3  # of a rounded answer, at the least
NEAR = 0.05  # a wrong number within this share is told to be close


@dataclass(frozen=True)
class Right:
    """The right answer, what to say to it, and what to say to a wrong one.

    `unit`: what the number counts or measures, as the question asks for it: "GiB", "%", "ms", "parameters". With
    `free`, the unit is the reader's to choose, and must be said. `tolerance`: how far off a number may be, in that
    unit; None is exact for a whole number, else two places or three figures. `mistakes`: wrong answers (a number in
    that unit, a choice, a word) and the sentence that explains each. `also`: other words that are right.
    """

    answer: int | float | str
    words: str
    hint: str
    unit: str = ""
    free: bool = False
    tolerance: int | float | None = None
    mistakes: Mapping[Any, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """A question. `find(values, load)` computes what is right from the inputs."""

    find: Callable[[Values, Loader], Right]
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Predict:
    """A question about a cell: `find(values, ran)` reads what is right in what the cell has just computed."""

    find: Callable[[Values, Ran], Right]
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`answered`: whether it was an answer at all, right or wrong; what was none costs nothing."""

    right: bool
    points: int
    words: str
    answered: bool = True


def judged(right: Right, kind: str, choices: Sequence[str], points: int, given: str) -> Verdict:
    """Whether an answer is right. `kind` is number, choice or text."""
    written = " ".join(given.split())
    if not written:
        return _none("Write an answer first.")
    if kind == "number":
        return _number(right, points, written)
    if kind == "choice":
        if written not in choices:
            return _none(f"{written[:40]!r} is none of the choices: {'; '.join(choices)}.")
        return _right(right, points) if written == right.answer else _wrong(_mistake(right, written) or right.hint)
    if written.casefold() in {str(each).casefold() for each in (right.answer, *right.also)}:
        return _right(right, points)
    return _wrong(_mistake(right, written) or right.hint)


def _right(right: Right, points: int, note: str = "") -> Verdict:
    return Verdict(True, points, f"Right. {note}{right.words}")


def _wrong(words: str) -> Verdict:
    return Verdict(False, 0, f"Not yet. {words}")


def _none(words: str) -> Verdict:
    return Verdict(False, 0, words, answered=False)


def _mistake(right: Right, written: str) -> str | None:
    known = {str(each).casefold(): said for each, said in right.mistakes.items()}
    return known.get(written.casefold())


# ------------------------------------------------------------------------------------------------------------- numbers


def _number(right: Right, points: int, written: str) -> Verdict:
    quantity = read_quantity(written)
    if quantity is None:
        like = "0.25 or 1/4" if not right.unit or right.unit in NOUNS else f"4 {right.unit}"
        return _none(f"{written[:40]!r} is no number: write one, as in {like}.")
    dimension, asked = dimension_of(right.unit), right.unit or COUNT
    if not quantity.unit and right.free:
        return _none(f"{written} of what? The unit is part of the answer: say it, as in 4 {right.unit}.")
    factor = factor_of(quantity.unit, dimension) if quantity.unit else factor_of(right.unit, dimension)
    if factor is None:
        return _none(_other_unit(quantity.unit, asked))
    own = factor_of(right.unit, dimension) or 1.0
    scale = factor / own
    value, half = quantity.value * scale, quantity.half * scale
    found = _nearest(right, value, half, quantity.digits)
    across = bool(quantity.unit) and system_of(quantity.unit) != system_of(right.unit) and not right.free
    if isinstance(found, Right):
        if across:
            return _wrong(f"{written} is right in {quantity.unit}; the question asks for {right.unit}.")
        converted = quantity.unit and scale != 1 and dimension != COUNT
        return _right(right, points, f"{written} is {_plain(value)} {right.unit}. " if converted else "")
    return _wrong(found or _unit_mixed(right, dimension, quantity) or _near(right, value) or right.hint)


def _nearest(right: Right, value: float, half: float, digits: int) -> Right | str | None:
    """The right answer or the known mistake that this number is; of two, the nearer. None: it is neither."""
    answer = float(right.answer)
    within: list[tuple[float, int, Right | str]] = []
    if _close(answer, value, half, digits, right.tolerance):
        within.append((abs(value - answer), 0, right))
    for mistake, said in right.mistakes.items():
        if isinstance(mistake, int | float) and mistake != answer and _close(float(mistake), value, half, digits, None):
            within.append((abs(value - mistake), 1, said))
    return min(within, key=lambda each: each[:2])[2] if within else None


def _close(target: float, value: float, half: float, digits: int, tolerance: int | float | None) -> bool:
    """Within the tolerance, or equal to the target as far as it is written out, in three figures or more."""
    size = abs(target)
    if tolerance is None:
        exact = abs(target - round(target)) < 1e-9
        tolerance = 0.0 if exact else max(SHARE * size, min(PLACES, 10 * SHARE * size))
    allowed = max(tolerance, half if digits >= FIGURES else 0.0)
    return abs(value - target) <= allowed * (1 + 1e-9) + 1e-9 * max(size, 1e-3)


def _unit_mixed(right: Right, dimension: str, quantity: Quantity) -> str | None:
    """The right figure in another unit than its own: 10 GB for 10 GiB, or 10.7 where GiB are asked for."""
    own = factor_of(right.unit, dimension) or 1.0
    if quantity.unit and dimension == "memory":
        if system_of(quantity.unit) != system_of(right.unit) and _bare(right, quantity, 1.0):
            answer = float(right.answer)
            there = answer * own / (factor_of(quantity.unit, dimension) or 1.0)
            return (
                f"The number is right, the unit is not: {_plain(answer)} {right.unit} are "
                f"{_plain(there)} {quantity.unit}."
            )
        return None
    if quantity.unit or (dimension == COUNT and right.unit != "%"):
        return None
    if right.unit == "%":
        return "That is the share; the question asks for percent." if _bare(right, quantity, 100.0) else None
    for unit, factor in DIMENSIONS[dimension].items():
        if factor != own and _bare(right, quantity, factor / own):
            return f"That is the number in {unit}; the question asks for {right.unit}."
    return None


def _bare(right: Right, quantity: Quantity, scale: float) -> bool:
    half, value = quantity.half * scale, quantity.value * scale
    return _close(float(right.answer), value, half, quantity.digits, right.tolerance)


def _other_unit(unit: str, asked: str) -> str:
    """It measures something else, or nothing that we know."""
    for dimension in DIMENSIONS:
        if dimension != COUNT and factor_of(unit, dimension) is not None:
            return f"{unit} measures {dimension}; the question asks for {asked}."
    return f"{unit[:20]!r} is no unit here; the question asks for {asked}."


def _near(right: Right, value: float) -> str | None:
    answer = float(right.answer)
    if not answer or abs(value - answer) > NEAR * abs(answer):
        return None
    return f"Close, but not there: work it out to three figures. {right.hint}"


def _plain(value: float) -> str:
    return (
        f"{value:,.0f}"
        if abs(value - round(value)) < 1e-9
        else f"{value:,.3g}"
        if abs(value) < 1000
        else f"{value:,.0f}"
    )
