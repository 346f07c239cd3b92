"""What each statistic is, without torch: the rows that `manyheads stats --list` shows, written by `make pages`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyheads.statistics.statistic import Statistic

FILE = files("manyheads.statistics") / "listed.json"


def listed() -> list[dict[str, str]]:
    """Name, unit, kind, meaning ("is") and source of every statistic that needs no treebank."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def row_of(statistic: Statistic) -> dict[str, str]:
    """The same of one statistic."""
    name, meaning = statistic.name, statistic.meaning
    return {"name": name, "unit": statistic.unit, "kind": statistic.kind, "is": meaning, "source": statistic.source}


def rows() -> list[dict[str, str]]:
    """The rows anew, from the statistics themselves."""
    from manyheads.statistics import OF_SCORES, STATISTICS, Annotated, choose  # which import torch

    return [row_of(statistic) for statistic in choose([*STATISTICS, *OF_SCORES, *Annotated(None).names])]
