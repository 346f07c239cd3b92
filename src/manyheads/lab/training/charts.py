"""What a figure of a training shows, as data: lines over steps, and ways to train side by side.

`lab.training.figures` draws each of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from manyheads.lab.training.checkpoints import History

FIGURE = "figure.svg"  # in the folder of a training or a reproduction, beside its report


@dataclass(frozen=True)
class Line:
    """`name` is written at its end, unless empty; `bold` ones are what the panel is about."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bold: bool = True

    @staticmethod
    def of(history: History, column: str, name: str, bold: bool = True) -> Line:
        """A column of a history, where it was taken."""
        steps, values = history.taken(column)
        return Line(name, tuple(steps), tuple(values), bold)


@dataclass(frozen=True)
class Panel:
    """Lines over a shared x axis. `bottom` and `top`: the y axis' ends, where they are known beforehand."""

    title: str
    lines: tuple[Line, ...]
    bottom: float | None = None
    top: float | None = None


Curve = tuple[Sequence[float], Sequence[float]]
"""Steps, and a number at each."""


def over_seeds(histories: Sequence[History], curve: Callable[[History], Curve], name: str = "") -> tuple[Line, ...]:
    """A curve of every seed in grey, and their median in ink, under `name`."""
    seeds = [curve(history) for history in histories]
    # Of a run that ended early there are fewer steps: the median goes as far as all seeds do.
    shortest = min((steps for steps, _ in seeds), key=len)
    middle = [statistics.median(values) for values in zip(*(values for _, values in seeds), strict=False)]
    grey = [Line("", tuple(steps), tuple(values), bold=False) for steps, values in seeds]
    return (*grey, Line(name, tuple(shortest), tuple(middle)))


def after_the_guess(column: str) -> Callable[[History], Curve]:
    """A column of a history without its value at step 0: a guess, beside which all else would be one line."""

    def curve(history: History) -> Curve:
        steps, values = history.taken(column)
        return steps[1:], values[1:]

    return curve


# ------------------------------------------------------------------------------------------- trainings side by side

DOTS = "Dots are seeds, strokes their means, bars one standard deviation either way."
"""A note below panels of points."""


@dataclass(frozen=True)
class Points:
    """One way to train, with a value a seed. `label` stands below it, in lines. `bold`: what the panel is about."""

    label: str
    values: tuple[float, ...]
    bold: bool = True


@dataclass(frozen=True)
class PointsPanel:
    """Ways beside each other over one y axis, whose ends are given where they are known beforehand.

    Drawn are mean and standard deviation; `by_rank`: median and quartiles, as suits times, which err to one side.
    """

    title: str
    groups: tuple[Points, ...]
    bottom: float | None = None
    top: float | None = None
    by_rank: bool = False


@dataclass(frozen=True)
class Chart:
    """Panels, one below the other; those of lines share their x axis. `notes` stand below all of them."""

    title: str
    subtitle: str
    panels: tuple[Panel | PointsPanel, ...]
    x_title: str = "training step"
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------- lines over steps, ways side by side


@dataclass(frozen=True)
class GridRow:
    """One quantity: for each column the lines of its cell, over one y axis, from `bottom` on where that is given.

    `powers`: the axis goes by powers of ten.
    """

    title: str
    cells: tuple[tuple[Line, ...], ...]
    bottom: float | None = None
    powers: bool = False


@dataclass(frozen=True)
class GridChart:
    """Ways to train in columns, quantities in rows, all over the same steps. A column's words are in lines."""

    title: str
    subtitle: str
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    x_title: str = "training step"


AnyChart = Chart | GridChart
