"""What a figure of trainings side by side shows, as data: a point a seed. `figures.points` draws it."""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.training.charts import Chart


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
class PointsChart(Chart):
    """`panels` of the base stay empty. `notes` stand below."""

    points: tuple[PointsPanel, ...] = ()
    notes: tuple[str, ...] = ()
