"""What a figure of a training shows, as data: panels of lines over steps. `figures.training` draws it."""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.training.history import History


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


@dataclass(frozen=True)
class Chart:
    """Panels, one below the other."""

    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    x_title: str = "training step"
