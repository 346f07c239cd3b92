"""Numbers as people write them, with or without a unit: 0.25, 1/4, 25 %, 1,050,624, 1.05 M, 10 GiB, 10.7 GB, 3 ms.

A unit belongs to a dimension (memory, time ...), within which it is converted. Bytes have two systems, powers of 1,000
and of 1,024: GB is not GiB, and whoever means one is not told that the other is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "COUNT", "DIMENSIONS", "NOUNS", "POINTS", "SHARES", "Quantity", "counts_bits", "dimension_of", "factor_of",
    "read_quantity", "system_of",
]  # fmt: skip

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
"""What is counted may be said behind a plain number: 12 heads, 1.05 M parameters."""
SHARES = ("%", "percent")
POINTS = ("points", "point", "pp", "pts", "percentage points", "percent points", "%-points", "% points")
"""What a difference of percents may be said in."""

_NUMBER = r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d{1,3})?"
_GROUPED = r"[+-]?[1-9]\d{0,2}(?:[,_ \u00a0\u202f]\d{3})+(?:\.\d+)?"
_POINTED = r"[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}"  # 1.050.624: several points can only part thousands
_WRITTEN = re.compile(
    rf"(?P<number>{_POINTED}|{_GROUPED}|{_NUMBER})(?:\s*/\s*(?P<under>{_NUMBER}))?\s*(?P<unit>(?:[^\W\d_]|%).*)?"
)


@dataclass(frozen=True)
class Quantity:
    """`half` is half a unit of the last place that was written, `digits` how many figures were: 1.05 M is 5,000, 3."""

    value: float
    unit: str
    half: float = 0.0
    digits: int = 99


def read_quantity(written: str) -> Quantity | None:
    """What somebody wrote, its unit as they wrote it; None for what is no number."""
    found = _WRITTEN.fullmatch(
        re.sub(r"^([+-]) (?=[\d.,])", r"\1", " ".join(re.sub("[\u2212\u2013]", "-", written).split()))
    )
    if found is None or len(written) > 60:
        return None
    number, under = found["number"], found["under"]
    pointed = re.fullmatch(_POINTED, number) is not None
    grouped = pointed or re.fullmatch(_GROUPED, number) is not None
    parting = r"[.]" if pointed else r"[,_ \u00a0\u202f]"
    plain = re.sub(parting, "", number) if grouped else number.replace(",", ".")
    value = float(plain)
    unit = " ".join((found["unit"] or "").split()).rstrip(".")
    if under is not None:
        below = float(under.replace(",", "."))
        return Quantity(value / below, unit) if below and math.isfinite(value / below) else None
    if not math.isfinite(value):
        return None
    mantissa, _, exponent = plain.lower().partition("e")
    whole, _, places = mantissa.lstrip("+-").partition(".")
    zeros = 0 if places else len(whole) - len(whole.rstrip("0"))  # of 1,050,000 nobody knows which zeros are meant
    figures = len((whole + places).lstrip("0")) - zeros
    half = 0.5 * 10.0 ** (int(exponent or 0) + zeros - len(places))
    return Quantity(value, unit, half, max(figures, 1))


def dimension_of(unit: str) -> str:
    """The dimension that a question's unit belongs to; a noun counts. Raises KeyError for one that we do not know."""
    if unit in NOUNS:
        return COUNT
    for name, units in DIMENSIONS.items():
        if unit in units:
            return name
    raise KeyError(f"{unit!r} is no unit that we know")


def factor_of(unit: str, dimension: str) -> float | None:
    """How many of the dimension's first unit it is, however it is capitalised; None where it is none of them."""
    units = DIMENSIONS[dimension]
    unit = unit.removesuffix(".")
    if unit in units:
        return units[unit]
    if dimension == COUNT:
        head, _, noun = unit.rpartition(" ")
        if any(noun.casefold() in (each.casefold(), each.casefold().removesuffix("s")) for each in NOUNS):
            return factor_of(head, COUNT)
    folded = {name.casefold(): factor for name, factor in reversed(list(units.items()))}
    return folded.get(unit.casefold())


def counts_bits(unit: str) -> bool:
    """Gb, Mbit, bits: as they are capitalised, where that matters."""
    return unit in _BITS


def system_of(unit: str) -> str:
    """Bytes are counted in powers of 1,000 or of 1,024; everything else has one system."""
    return (
        "binary" if re.fullmatch(r"[KMGT]i(?:B|o|b|bits?)|(?:ki|me|gi|te)bibytes?", unit, re.IGNORECASE) else "decimal"
    )
