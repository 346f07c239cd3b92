"""What each statistic is, without torch: the rows that `manyheads stats --list` shows, written by `make pages`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyheads.statistics.statistic import Statistic

FILE = files("manyheads.statistics") / "listed.json"


def listed(statistics: Iterable[Statistic] | None = None) -> list[dict[str, str]]:
    """Name, unit, kind, meaning ("is") and source of these statistics; None: of every one that needs no treebank."""
    if statistics is None:
        return json.loads(FILE.read_text(encoding="utf-8"))
    return [
        {"name": one.name, "unit": one.unit, "kind": one.kind, "is": one.meaning, "source": one.source}
        for one in statistics
    ]


def rows() -> list[dict[str, str]]:
    """The rows of the file again, from the statistics themselves."""
    from manyheads.statistics import OF_SCORES, STATISTICS, Annotated, choose  # which import torch

    return listed(choose([*STATISTICS, *OF_SCORES, *Annotated(None).names]))
