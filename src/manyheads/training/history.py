"""What was seen on the way: a row a step, a column a number, NaN where a number was not taken.

Columns are float64, so that a loss that comes back from a checkpoint is the loss that went in. Head statistics are
columns too, named `heads/<head>/<statistic>`; as a table they are rows (`heads_table`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEADS = "heads"
OF_EVERY_STEP = ("step", "loss", "rate", "norm", "seconds")


@dataclass(eq=False)
class History:
    """Columns by name, all of one length. `step` counts finished steps: row 0 is the model before any."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns.get("step", ()))

    def add(self, row: Mapping[str, float | int]) -> None:
        rows = len(self)
        for name in (*self.columns, *(name for name in row if name not in self.columns)):
            column = self.columns.setdefault(name, [math.nan] * rows)
            column.append(float(row.get(name, math.nan)))

    def taken(self, name: str) -> tuple[list[float], list[float]]:
        """The steps at which a number was taken, and the numbers."""
        pairs = [(s, v) for s, v in zip(self.columns["step"], self.columns[name], strict=True) if not math.isnan(v)]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def last(self, name: str) -> float:
        """The last number that was taken."""
        return self.taken(name)[1][-1]

    def of_heads(self, statistic: str) -> dict[str, str]:
        """Each head's column of one statistic: `{"L1H2": "heads/L1H2/induction"}`."""
        parts = [(name.split("/"), name) for name in self.columns if name.startswith(f"{HEADS}/")]
        return {part[1]: name for part, name in parts if part[2] == statistic}

    def to_tensors(self) -> dict[str, Tensor]:
        return {name: torch.tensor(column, dtype=torch.float64) for name, column in self.columns.items()}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> History:
        return History({name: column.tolist() for name, column in tensors.items()})


def head_column(head: object, statistic: str) -> str:
    return f"{HEADS}/{head}/{statistic}"


def metrics_table(histories: Mapping[str, History]) -> Any:
    """A row a run and step: the loss, the rate, the gradient's norm, and what the run measured."""
    import pandas as pd

    parts = []
    for run, history in histories.items():
        measured = sorted(name for name in history.columns if name not in OF_EVERY_STEP and "/" not in name)
        plain = {name: history.columns[name] for name in (*OF_EVERY_STEP, *measured) if name in history.columns}
        parts.append(pd.DataFrame({"run": run, **plain}).astype({"step": np.int64}))
    return pd.concat(parts, ignore_index=True)


def heads_table(histories: Mapping[str, History]) -> Any:
    """A row a run, step, head and statistic."""
    import pandas as pd

    rows = []
    for run, history in histories.items():
        for name in sorted(each for each in history.columns if each.startswith(f"{HEADS}/")):
            _, head, statistic = name.split("/")
            rows += [(run, int(step), head, statistic, value) for step, value in zip(*history.taken(name), strict=True)]
    return pd.DataFrame(rows, columns=["run", "step", "head", "statistic", "value"])
