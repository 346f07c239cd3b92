"""What a reader may change in a cell, and what a question is made from: texts, numbers and choices, within limits.

Numbers are read as people write them, with or without a unit: 0.25, 1/4, 25 %, 1,050,624, 1.05 M, 10 GiB, 3 ms. A unit
belongs to a dimension (memory, time ...), within which it is converted. Bytes have two systems, powers of 1,000 and of
1,024: GB is not GiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Real
from numpy import ndarray

from manyheads.base import divisors
from manyheads.errors import ShapeError
from manyheads.lab.lessons.lesson import LessonError

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
    """`kind` is "text", "number" or "choice"; `value` is the default. `low`, `high`, `step` belong to a number.

    `whole`: whether it is a whole number. `others`: which values may be drawn beside the default; a number without any
    is drawn from its steps. `fills`, of a choice: the values of other parameters under each choice, so that what is
    shown is what is computed with. One choice fills nothing, and is the reader's own: changing what another choice
    filled goes over to it.
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
        return next((choice for choice in self.choices if choice not in self.fills), None) if self.fills else None

    def read(self, value: Value) -> Value:
        """The value in its kind, as an answer is read. Errors: LessonError for one beyond its limits or choices."""
        if self.kind == "number":
            # 4,096 and 4 096 are thousands, 0,5 is a half. What has a unit is no number here.
            quantity = read_quantity(value) if isinstance(value, str) else Quantity(float(value), "")
            read = math.nan if quantity is None or quantity.unit else quantity.value
            low = -MAX_NUMBER if self.low is None else self.low
            high = MAX_NUMBER if self.high is None else self.high
            if not low <= read <= high or (self.whole and read != int(read)):  # NaN is not within
                kind = "whole number" if self.whole else "number"
                raise LessonError(
                    f"{self.name}={str(value)[:40]!r} is not a {kind} from {low:,g} to {high:,g}: give one."
                )
            return int(read) if self.whole else read
        value = str(value)
        if self.kind == "choice" and value not in self.choices:
            raise LessonError(f"{self.name}={value[:40]!r} is not a choice: use one of {', '.join(self.choices)}.")
        if len(value) > MAX_TEXT:
            raise LessonError(f"{self.name} has {len(value):,} characters: give {MAX_TEXT:,} at the most.")
        return value


def text(name: str, label: str, value: str, *, others: Sequence[str] = ()) -> Parameter:
    """A sentence, words or a table of numbers, 2,000 characters at most. `others`: texts that may be drawn instead."""
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
    """A number that a reader may change.

    - `name`: by which the function reads it, and a page or a command sets it.
    - `label`: what stands beside it on the page.
    - `value`: the default.
    - `low`: the smallest that is taken.
    - `high`: the largest that is taken.
    - `step`: the distance between values that may be drawn for a question.
    - `others`: which may be drawn beside the default, in place of those in steps.
    """
    return Parameter(name, label, "number", value, low, high, step, others=tuple(others))


def whole(
    name: str, label: str, value: int, low: int, high: int, step: int = 1, *, others: Sequence[int] = ()
) -> Parameter:
    """A whole number, its arguments as those of `number`. `others` keeps drawn ones round, as 256, 512, 1,024."""
    return Parameter(name, label, "number", value, low, high, step, whole=True, others=tuple(others))


def choice(
    name: str, label: str, choices: Sequence[str], fills: Mapping[str, Mapping[str, str]] | None = None
) -> Parameter:
    """The first is chosen unless the page or the reader says otherwise. `fills`: as `Parameter`."""
    return Parameter(name, label, "choice", choices[0], choices=tuple(choices), fills=fills or {})


def read_values(parameters: Sequence[Parameter], changes: Mapping[str, Value], where: str = "this cell") -> Values:
    """Every parameter's value: the change, read in its kind and limits, else the default. Raises LessonError.

    What a choice fills is as it fills it; changing something else for it, and no choice, chooses the reader's own.
    """
    known = {parameter.name: parameter for parameter in parameters}
    if unknown := sorted(set(changes) - set(known)):
        raise LessonError(f"{unknown[0][:40]!r} is not a parameter of {where}: it has {', '.join(known) or 'none'}.")
    values = Values({name: parameter.read(changes.get(name, parameter.value)) for name, parameter in known.items()})
    for parameter in parameters:
        filled = parameter.fills.get(str(values[parameter.name]), {})
        # a default that a choice fills is no change of the reader's: only values that differ from it are
        overridden = any(name in changes and values[name] != value for name, value in filled.items())
        if overridden and parameter.name not in changes and parameter.own is not None:
            values[parameter.name] = parameter.own
        else:
            values.update(filled)
    return values


def draw_values(parameters: Sequence[Parameter], rng: np.random.Generator) -> Values:
    """A value for each parameter, from its default and `others`, its choices or its steps; a bare text stays."""
    values = Values()
    for parameter in parameters:
        low, high, step = parameter.low, parameter.high, parameter.step
        pool: Sequence[Value] = (parameter.value, *parameter.others) if parameter.others else parameter.choices
        if pool:
            values[parameter.name] = pool[int(rng.integers(len(pool)))]
        elif low is not None and high is not None and step:
            value = low + step * int(rng.integers(round((high - low) / step) + 1))
            values[parameter.name] = round(value) if parameter.whole else value
        else:
            values[parameter.name] = parameter.value
    return values


def fitting(values: Values) -> bool:
    """Whether heads divide the width, KV heads divide the heads, and fewer heads go than there are, where given."""
    return not _misfits(values) and ("gone" not in values or values.whole("gone") < values.whole("heads"))


def require_fitting(values: Values) -> None:
    """Raises ShapeError for heads that do not divide the width, or KV heads that do not divide the heads."""
    for name, by in _misfits(values):
        raise ShapeError(
            f"{name}={values[name]} is not a multiple of {by}={values[by]}: use one of "
            f"{divisors(values.whole(name))} for {by}."
        )


def _misfits(values: Values) -> list[tuple[str, str]]:
    pairs = [pair for pair in (("d_model", "heads"), ("heads", "kv_heads")) if set(pair) <= values.keys()]
    return [(name, by) for name, by in pairs if values.whole(name) % values.whole(by)]


_ONE = re.compile(
    r"(?<![\w.,/-])1 (?P<kind>(?:more |other |query |KV |key/value |random |wide |small )?)"
    r"(?P<noun>heads|texts|tokens|keys|marks|layers|words|cases|rows|columns|questions|labels|tests|times|cells|GPUs|products|sets)\b"
)


def singular(words: str) -> str:
    """The words with the singular behind a 1: a number that was filled in may have made them 1 heads.

    >>> singular("1 texts of 21 tokens, 1 KV heads")
    '1 text of 21 tokens, 1 KV head'
    """
    return _ONE.sub(
        lambda match: f"1 {match['kind']}{'time' if match['noun'] == 'times' else match['noun'][:-1]}", words
    )


def read_matrix(name: str, written: str) -> Float64[ndarray, "rows columns"]:
    """A table of numbers: rows are lines or parted by ;, numbers by blanks or by a comma and a blank.

    Raises LessonError for anything else, and for more than a page has room for.
    """

    def entry(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise LessonError(f"{name}: {text[:40]!r} is not a number. Write numbers as in '1 0.5; -2 3'.") from None

    # A comma within a number could mean anything in a table: a half (0,5), or three entries (1,0,0).
    if unclear := re.search(r"\S*\d,[\d.]\S*", written):
        raise LessonError(
            f"{name}: {unclear[0][:40]!r} is unclear. Separate numbers by spaces, and write a half as 0.5."
        )
    rows = [row.replace(",", " ").split() for row in written.replace(";", "\n").split("\n") if row.strip()]
    if not rows or len({len(row) for row in rows}) > 1 or len(rows) > MAX_SIDE or len(rows[0]) > MAX_SIDE:
        raise LessonError(
            f"{name}: write rows of the same length, up to {MAX_SIDE} by {MAX_SIDE}, "
            "each on a line of its own or separated by ;."
        )
    table = np.array([[entry(text) for text in row] for row in rows])
    if not (np.abs(table) <= MAX_NUMBER).all():
        raise LessonError(f"{name}: numbers go from {-MAX_NUMBER:,.0f} to {MAX_NUMBER:,.0f} here.")
    return table


def matrix_text(table: Real[ndarray, "rows columns"]) -> str:
    """A table as the text that `read_matrix` reads: one line a row."""
    return "\n".join(" ".join(f"{value:g}" for value in row) for row in table)


# ------------------------------------------------------------------------------------------------- numbers with units

COUNT = "a plain number"


def _scaled(names: Mapping[str, float], *stems: str) -> dict[str, float]:
    """Every prefix before every stem."""
    return {f"{prefix}{stem}": factor for prefix, factor in names.items() for stem in stems}


_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_OCTETS = {**_scaled(_DECIMAL, "o"), **_scaled(_BINARY, "o"), "octets": 1.0, "octet": 1.0}
_LONG = {
    f"{name}byte{end}": factor
    for name, factor in {
        "kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12,
        "kibi": 2.0**10, "mebi": 2.0**20, "gibi": 2.0**30, "tebi": 2.0**40,
    }.items()
    for end in ("", "s")
}  # fmt: skip
_BITS = {unit: factor / 8 for unit, factor in _scaled({**_DECIMAL, **_BINARY}, "bit", "bits", "b").items()}
DIMENSIONS: Mapping[str, Mapping[str, float]] = {
    "memory": {
        **_scaled(_DECIMAL, "B"), **_scaled(_BINARY, "B"), "bytes": 1.0, "byte": 1.0, **_OCTETS, **_LONG, **_BITS,
    },
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "seconds": 1.0, "second": 1.0},
    "work": {**_scaled(_DECIMAL, "FLOP", "FLOPs", "FLOPS")},
    "entropy": {"nats": 1.0, "nat": 1.0, "bits": math.log(2), "bit": math.log(2)},
    COUNT: {
        "": 1.0, "%": 0.01, "percent": 0.01, "k": 1e3, "K": 1e3, "thousand": 1e3, "M": 1e6, "million": 1e6, "G": 1e9,
        "B": 1e9, "bn": 1e9, "billion": 1e9, "T": 1e12, "trillion": 1e12, "x": 1.0, "times": 1.0,
    },
}  # fmt: skip
"""Dimension -> unit -> how many of the first one it is."""
NOUNS = (
    "parameters", "weights", "tokens", "heads", "layers", "rows", "columns", "numbers", "cells", "values", "scores",
    "keys", "queries", "matrices", "dimensions", "positions", "multiplications", "products", "labels", "BLEU", "points",
)  # fmt: skip
"""Nouns that may stand behind a plain number: 12 heads, 1.05 M parameters."""
SHARES = ("%", "percent")
POINTS = ("points", "point", "pp", "pts", "percentage points", "percent points", "%-points", "% points")
"""Names of the unit that a difference of percents has."""

_NUMBER = r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d{1,3})?"
_GROUPED = r"[+-]?[1-9]\d{0,2}(?:[,_ \u00a0\u202f]\d{3})+(?:\.\d+)?"
_POINTED = r"[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}"  # 1.050.624: several points can only part thousands
_WRITTEN = re.compile(
    rf"(?P<number>{_POINTED}|{_GROUPED}|{_NUMBER})(?:\s*/\s*(?P<under>{_NUMBER}))?\s*(?P<unit>(?:[^\W\d_]|%).*)?"
)


@dataclass(frozen=True)
class Quantity:
    """A number and its unit. `half` is half a unit of the last place that was written, `digits` the number of figures:
    5,000 and 3 for 1.05 M."""

    value: float
    unit: str
    half: float = 0.0
    digits: int = 99


def read_quantity(written: str) -> Quantity | None:
    """The number and unit of a text, the unit as it is written; None for what is not a number."""
    match = _WRITTEN.fullmatch(
        re.sub(r"^([+-]) (?=[\d.,])", r"\1", " ".join(re.sub("[\u2212\u2013]", "-", written).split()))
    )
    if match is None or len(written) > 60:
        return None
    number, under = match["number"], match["under"]
    pointed = re.fullmatch(_POINTED, number) is not None
    # 1,050 could be a decimal in half of the world: only full groups of three are read as thousands
    grouped = pointed or re.fullmatch(_GROUPED, number) is not None
    parting = r"[.]" if pointed else r"[,_ \u00a0\u202f]"
    plain = re.sub(parting, "", number) if grouped else number.replace(",", ".")
    value = float(plain)
    unit = " ".join((match["unit"] or "").split()).rstrip(".")
    if under is not None:
        below = float(under.replace(",", "."))
        return Quantity(value / below, unit) if below and math.isfinite(value / below) else None
    if not math.isfinite(value):
        return None
    # how exactly a number was written decides how far it may be off, so figures are counted as text
    mantissa, _, exponent = plain.lower().partition("e")
    integer, _, places = mantissa.lstrip("+-").partition(".")
    zeros = 0 if places else len(integer) - len(integer.rstrip("0"))  # of 1,050,000 nobody knows which zeros are meant
    figures = len((integer + places).lstrip("0")) - zeros
    half = 0.5 * float(f"1e{int(exponent or 0) + zeros - len(places)}")  # infinite beyond 308, where ** raises
    return Quantity(value, unit, half, max(figures, 1))


def dimension_of(unit: str) -> str:
    """The dimension of a question's unit; a noun is a count. Raises KeyError for an unknown unit."""
    if unit in NOUNS:
        return COUNT
    for name, units in DIMENSIONS.items():
        if unit in units:
            return name
    raise KeyError(f"{unit!r} is not a unit that we know")


def factor_of(unit: str, dimension: str) -> float | None:
    """How many of the dimension's first unit a unit is, however it is capitalised; None where it is none of them."""
    units = DIMENSIONS[dimension]
    unit = unit.removesuffix(".")
    if unit in units:
        return units[unit]
    if dimension == COUNT:
        head, _, noun = unit.rpartition(" ")
        if any(noun.casefold() in (plural.casefold(), plural.casefold().removesuffix("s")) for plural in NOUNS):
            return factor_of(head, COUNT)
    # Reversed, so that where two units differ by capitals alone the earlier one in the table counts: MB, not Mb.
    folded = {name.casefold(): factor for name, factor in reversed(list(units.items()))}
    return folded.get(unit.casefold())


def counts_bits(unit: str) -> bool:
    """Whether a unit is one of bits: Gb, Mbit, bits. Capitals matter here, and nowhere else."""
    return unit in _BITS


def system_of(unit: str) -> str:
    """Bytes are counted in powers of 1,000 or of 1,024; everything else has one system."""
    return (
        "binary" if re.fullmatch(r"[KMGT]i(?:B|o|b|bits?)|(?:ki|me|gi|te)bibytes?", unit, re.IGNORECASE) else "decimal"
    )
