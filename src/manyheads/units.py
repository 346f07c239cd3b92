"""Numbers as people read them: 68.98 B, 10.00 GiB, 138.0 GFLOP; a column of them in one unit, points aligned."""

from __future__ import annotations

from collections.abc import Sequence

SCALES = ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " k"))
POWERS = ((10**18, " EFLOP"), (10**15, " PFLOP"), (10**12, " TFLOP"), (10**9, " GFLOP"), (10**6, " MFLOP"))
BINARY = ((2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"))
DECIMAL = ((10**12, " TB"), (10**9, " GB"), (10**6, " MB"), (10**3, " kB"))


def count(value: int, decimals: int | None = None) -> str:
    """Parameters: 704.6 M. `decimals`: so many behind the point, for a column whose points line up."""
    return _scaled(value, SCALES, "", decimals)


def flops(value: int | float, decimals: int | None = None) -> str:
    return _scaled(value, POWERS, " FLOP", decimals)


def gib(value: int | float) -> str:
    """Bytes in powers of 1,024."""
    return _scaled(value, BINARY, " B")


def gb(value: int | float) -> str:
    """Bytes in powers of 1,000."""
    return _scaled(value, DECIMAL, " B")


def plain(value: int | float) -> str:
    """A ratio: three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def brief(value: int | float, scales: tuple[tuple[int, str], ...]) -> str:
    """Three digits and no zeros behind the point, for a sentence: 128 KiB, 16.1 GB, 1 GiB."""
    unit, name = next((scale for scale in scales if value >= scale[0] * 0.9995), (1, " B"))
    size = value / unit
    return f"{size:,.0f}{name}" if size >= 100 else f"{size:.3g}{name}"


def column(
    values: Sequence[int | float | None], scales: tuple[tuple[int, str], ...], least_share: float = 1.0
) -> tuple[list[str], str]:
    """A column in one unit, all with equally many digits behind the point; and that unit. The smallest number is at
    least that share of it.

    None, where a number is not known, is an empty text.
    """
    numbers = [value for value in values if value]
    unscaled = " B" if scales in (BINARY, DECIMAL) else ""
    unit, name = next((scale for scale in scales if min(numbers, default=0) >= scale[0] * least_share), (1, unscaled))
    least = min(numbers, default=0) / unit
    decimals = 0 if all(float(value / unit).is_integer() for value in numbers) else 2 if least < 100 else 1
    return ["" if value is None else f"{value / unit:,.{decimals}f}" for value in values], name.strip()


def _scaled(value: int | float, scales: tuple[tuple[int, str], ...], unscaled: str, decimals: int | None = None) -> str:
    """Three or four digits, two of them behind the point where there is room, or as many as `decimals` says."""
    for unit, name in scales:
        if value >= unit:
            # Where rounding makes 1,000 of 999.95 or 100 of 99.995, the digits behind the point go with it.
            size = value / unit
            usual = 0 if size >= 999.95 else 1 if size >= 99.995 else 2
            return f"{size:,.{usual if decimals is None else decimals}f}{name}"
    return f"{value:,.0f}{unscaled}"
