"""What a reader may change in a cell, and what a question is made from: texts, numbers and choices, within limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Real
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.base.grouping import divisors
from manyheads.lessons.format import LessonError
from manyheads.lessons.quantities import read_quantity

__all__ = [
    "Parameter", "Value", "Values", "choice", "drawn", "fitting", "matrix_text", "number", "read_matrix", "read_values",
    "require_fitting", "singular", "text", "whole",
]  # fmt: skip

MAX_TEXT = 2_000  # characters of a parameter: a table of numbers, or a sentence
MAX_SIDE = 12  # rows or columns of a table: as many as can be read on a page
MAX_NUMBER = 1e6


Value = str | int | float
"""What a parameter is set to."""


class Values(dict[str, Value]):
    """Parameters' values by name, read and within their limits."""

    def number(self, name: str) -> float:
        return float(self[name])

    def whole(self, name: str) -> int:
        return int(self[name])

    def text(self, name: str) -> str:
        return str(self[name])


@dataclass(frozen=True)
class Parameter:
    """`kind` is "text", "number" or "choice"; `value` what it is unless changed. `low`, `high`, `step`: of a number.

    `whole`: whether it is a whole number. `others`: what it may be where inputs are drawn anew, beside its own value;
    a number that has none is drawn from its steps. `fills`, of a choice: what other parameters are under each choice,
    so that what is shown is what is computed with. One choice fills nothing, and is the reader's own: changing what
    another filled goes over to it.
    """

    name: str
    label: str
    kind: str
    value: Value
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    choices: tuple[str, ...] = ()
    fills: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    whole: bool = False
    others: tuple[Value, ...] = ()

    @property
    def own(self) -> str | None:
        """The choice that leaves the others as the reader has them; None where no choice fills any."""
        return next((each for each in self.choices if each not in self.fills), None) if self.fills else None


def text(name: str, label: str, value: str, *, others: Sequence[str] = ()) -> Parameter:
    return Parameter(name, label, "text", value, others=tuple(others))


def number(
    name: str,
    label: str,
    value: int | float,
    low: int | float,
    high: int | float,
    step: int | float,
    *,
    others: Sequence[int | float] = (),
) -> Parameter:
    return Parameter(name, label, "number", value, low, high, step, others=tuple(others))


def whole(
    name: str, label: str, value: int, low: int, high: int, step: int = 1, *, others: Sequence[int] = ()
) -> Parameter:
    """A whole number. `others` keeps drawn ones round, as 256, 512, 1,024."""
    return Parameter(name, label, "number", value, low, high, step, whole=True, others=tuple(others))


def choice(
    name: str, label: str, choices: Sequence[str], fills: Mapping[str, Mapping[str, str]] | None = None
) -> Parameter:
    """The first is chosen unless the page or the reader says otherwise. `fills`: as `Parameter`."""
    return Parameter(name, label, "choice", choices[0], choices=tuple(choices), fills=fills or {})


def read_values(parameters: Sequence[Parameter], given: Mapping[str, Value], where: str = "this cell") -> Values:
    """Every parameter's value: what was given, in its kind and limits, else its own. Raises LessonError.

    What a choice fills is as it fills it; giving something else for it, and no choice, chooses the reader's own.
    """
    known = {parameter.name: parameter for parameter in parameters}
    if unknown := sorted(set(given) - set(known)):
        raise LessonError(f"{unknown[0][:40]!r} is no parameter of {where}: it has {', '.join(known) or 'none'}.")
    values = Values({name: _read(each, given.get(name, each.value)) for name, each in known.items()})
    for each in parameters:
        filled = each.fills.get(str(values[each.name]), {})
        changed = any(name in given and values[name] != value for name, value in filled.items())
        if changed and each.name not in given and each.own is not None:
            values[each.name] = each.own
        else:
            values.update(filled)
    return values


def drawn(parameters: Sequence[Parameter], rng: np.random.Generator) -> Values:
    """Each parameter drawn from its others and its own value, its choices or its steps; a bare text stays."""
    values = Values()
    for each in parameters:
        pool: Sequence[Value] = (each.value, *each.others) if each.others else each.choices
        if pool:
            values[each.name] = pool[int(rng.integers(len(pool)))]
        elif each.low is not None and each.high is not None and each.step:
            value = each.low + each.step * int(rng.integers(round((each.high - each.low) / each.step) + 1))
            values[each.name] = round(value) if each.whole else value
        else:
            values[each.name] = each.value
    return values


def fitting(values: Values) -> bool:
    """Heads that divide the width, KV heads that divide the heads, fewer removed than there are: of those it has."""
    return not _misfits(values) and ("gone" not in values or values.whole("gone") < values.whole("heads"))


def require_fitting(values: Values) -> None:
    """Raises ShapeError for heads that do not divide the width, or KV heads that do not divide the heads."""
    for name, by in _misfits(values):
        raise ShapeError(
            f"{name}={values[name]} is not a multiple of {by}={values[by]}: use one of "
            f"{divisors(values.whole(name))} for {by}."
        )


def _misfits(values: Values) -> list[tuple[str, str]]:
    pairs = [each for each in (("d_model", "heads"), ("heads", "kv_heads")) if set(each) <= values.keys()]
    return [(name, by) for name, by in pairs if values.whole(name) % values.whole(by)]


_ONE = re.compile(
    r"(?<![\w.,/-])1 (?P<kind>(?:more |other |query |KV |key/value |random |wide |small )?)"
    r"(?P<noun>heads|texts|tokens|keys|marks|layers|words|cases|rows|columns|questions|labels|tests|times|cells|GPUs|products|sets)\b"
)


def singular(said: str) -> str:
    """1 head where a number that was filled in made it 1 heads.

    >>> singular("1 texts of 21 tokens, 1 KV heads")
    '1 text of 21 tokens, 1 KV head'
    """
    return _ONE.sub(
        lambda found: f"1 {found['kind']}{'time' if found['noun'] == 'times' else found['noun'][:-1]}", said
    )


def _read(parameter: Parameter, value: Value) -> Value:
    if parameter.kind == "number":
        return _number(parameter, value)
    value = str(value)
    if parameter.kind == "choice" and value not in parameter.choices:
        raise LessonError(f"{parameter.name}={value[:40]!r} is no choice: use one of {', '.join(parameter.choices)}.")
    if len(value) > MAX_TEXT:
        raise LessonError(f"{parameter.name} has {len(value):,} characters: give {MAX_TEXT:,} at the most.")
    return value


def _number(parameter: Parameter, value: Value) -> int | float:
    read = _plain_number(value) if isinstance(value, str) else float(value)
    low = -MAX_NUMBER if parameter.low is None else parameter.low
    high = MAX_NUMBER if parameter.high is None else parameter.high
    if not low <= read <= high or (parameter.whole and read != int(read)):  # NaN is not within
        kind = "whole number" if parameter.whole else "number"
        raise LessonError(f"{parameter.name}={str(value)[:40]!r} is no {kind} from {low:,g} to {high:,g}: give one.")
    return int(read) if parameter.whole else read


def _plain_number(written: str) -> float:
    """As an answer is read: 4,096 and 4 096 are thousands, 0,5 is a half. NaN for what is no number, or has a unit."""
    quantity = read_quantity(written)
    return math.nan if quantity is None or quantity.unit else quantity.value


def read_matrix(name: str, written: str) -> Float64[ndarray, "rows columns"]:
    """A table of numbers: rows are lines or parted by ;, numbers by blanks, or a comma and a blank.

    A comma within a number could mean anything here (0,5; 1,0,0), and is refused. Raises LessonError.
    """
    if unclear := re.search(r"\S*\d,[\d.]\S*", written):
        raise LessonError(f"{name}: {unclear[0][:40]!r} is unclear. Part numbers by blanks, and write a half as 0.5.")
    rows = [row.replace(",", " ").split() for row in written.replace(";", "\n").split("\n") if row.strip()]
    if not rows or len({len(row) for row in rows}) > 1 or len(rows) > MAX_SIDE or len(rows[0]) > MAX_SIDE:
        raise LessonError(
            f"{name}: write rows of equally many numbers, up to {MAX_SIDE} by {MAX_SIDE}, a line each or parted by ;."
        )
    table = np.array([[_entry(name, each) for each in row] for row in rows])
    if not (np.abs(table) <= MAX_NUMBER).all():
        raise LessonError(f"{name}: numbers go from {-MAX_NUMBER:,.0f} to {MAX_NUMBER:,.0f} here.")
    return table


def matrix_text(table: Real[ndarray, "rows columns"]) -> str:
    """The same back as text: one line a row."""
    return "\n".join(" ".join(f"{value:g}" for value in row) for row in table)


def _entry(name: str, written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise LessonError(f"{name}: {written[:40]!r} is no number. Write numbers as in '1 0.5; -2 3'.") from None
