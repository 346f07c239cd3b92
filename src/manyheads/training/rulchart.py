"""What the figure of remaining useful life shows, as data. `figures.rul` draws it."""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.training.charts import Chart


@dataclass(frozen=True)
class Reading:
    """One head: the mean weight on each cycle of a window, first to last, of worn engines and of sound ones."""

    head: str
    worn: tuple[float, ...]
    sound: tuple[float, ...]


@dataclass(frozen=True)
class Scatter:
    """One way to predict: a point a test engine, (true, predicted)."""

    title: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RulChart(Chart):
    """`panels` of the base stay empty. `cap`: where both axes of a scatter end. `notes` stand below."""

    readings: tuple[Reading, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    cap: float = 125.0
    worn: str = ""
    sound: str = ""
    notes: tuple[str, ...] = ()
