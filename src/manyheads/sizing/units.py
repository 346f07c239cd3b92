"""Numbers as people read them: 68.98 B, 10.0 GiB, 138 GFLOP."""

from __future__ import annotations

SCALES = ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " k"))
POWERS = ((10**18, " EFLOP"), (10**15, " PFLOP"), (10**12, " TFLOP"), (10**9, " GFLOP"), (10**6, " MFLOP"))
BINARY = ((2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"))
DECIMAL = ((10**12, " TB"), (10**9, " GB"), (10**6, " MB"), (10**3, " kB"))


def count(value: int) -> str:
    """Parameters: 704.6 M."""
    return _scaled(value, SCALES, "")


def flops(value: int | float) -> str:
    return _scaled(value, POWERS, " FLOP")


def gib(value: int | float) -> str:
    """Bytes in powers of 1,024."""
    return _scaled(value, BINARY, " B")


def gb(value: int | float) -> str:
    """Bytes in powers of 1,000."""
    return _scaled(value, DECIMAL, " B")


def plain(value: int | float) -> str:
    """A ratio: three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _scaled(value: int | float, scales: tuple[tuple[int, str], ...], rest: str) -> str:
    """Three or four digits, two of them behind the point where there is room, so that a column's figures line up."""
    for unit, name in scales:
        if value >= unit:
            # Where rounding makes 1,000 of 999.95 or 100 of 99.995, the digits behind the point go with it.
            size = value / unit
            return f"{size:,.{0 if size >= 999.95 else 1 if size >= 99.995 else 2}f}{name}"
    return f"{value:,.0f}{rest}"
