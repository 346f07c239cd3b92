"""A head's weights as a small map in a terminal: the larger beside the largest, the darker."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from manyheads.cli.console import knows_blocks

SHADES, ASCII_SHADES = "·░▒▓█", ".:+x#"
STEPS = (0.1, 0.35, 0.6, 0.85)  # of the largest weight: where one shade ends and the next begins


def shades_of(console: Console) -> str:
    return SHADES if knows_blocks(console) else ASCII_SHADES


def legend(largest: float, shades: str) -> Text:
    """What each shade means, in percent."""
    bounds = [f"{100 * step * largest:.2g}%" for step in STEPS]
    words = [f"under {bounds[0]}", *(f"from {bound}" for bound in bounds)]
    return Text("   ".join(f"{mark} {said}" for mark, said in zip(shades, words, strict=True)), style="dim")


def cells_of(values: Sequence[float], largest: float, shades: str) -> list[str]:
    """A row of the map. Two columns of the terminal a cell, so that cells are about square."""
    return [shade(value, largest, shades) * 2 for value in values]


def shade(value: float, largest: float, shades: str) -> str:
    if math.isnan(value):
        return " "
    return shades[sum(value >= step * largest for step in STEPS) if largest > 0 else 0]


def drawn(cells: Sequence[str], shades: str, colour: str = "") -> Text:
    """A row of cells as a line, those next to nothing faint."""
    line = Text("".join(cells).rstrip(), style=colour)
    line.highlight_regex(f"{re.escape(shades[0])}+", "dim")
    return line
