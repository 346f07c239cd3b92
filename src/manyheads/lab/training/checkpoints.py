"""A training run's whole state in one safetensors file: weights, optimizer, random numbers, history. No pickle.

Tensors are named `model.<name>`, `optimizer.<parameter>.<what>`, `random.<device>` and `history.<column>`; the header
says the run, the step and the settings. A file is written whole or not at all, beside the old one and then moved, so
that a process killed at any moment leaves a checkpoint that training can go on from, bit by bit.

The history has a row a step and a column a number, NaN where a number was not taken. Columns are float64, so that a
loss that comes back from a checkpoint is the loss that went in. Head statistics are columns too, named
`heads/<head>/<statistic>`; as a table they are rows (`heads_table`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.base import no_access, replacing
from manyheads.errors import ModelError
from manyheads.watching import WatchedStep

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "manyheads.training"
VERSION = 1
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
            # A number that is new in this row was NaN in all rows before.
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


def head_columns(watched: WatchedStep) -> dict[str, float]:
    """A watched step as columns of a history. A maximum over no rows is not a number."""
    return {
        head_column(head, name): float(value)
        for head, values in zip(watched.heads, watched.values, strict=True)
        for name, value in zip(watched.names, values, strict=True)
    }


def metrics_table(histories: Mapping[str, History]) -> pd.DataFrame:
    """A row a run and step: the loss, the rate, the gradient's norm, and what the run measured."""
    import pandas as pd

    parts = []
    for run, history in histories.items():
        measured = sorted(name for name in history.columns if name not in OF_EVERY_STEP and "/" not in name)
        plain = {name: history.columns[name] for name in (*OF_EVERY_STEP, *measured) if name in history.columns}
        parts.append(pd.DataFrame({"run": run, **plain}).astype({"step": np.int64}))
    return pd.concat(parts, ignore_index=True)


def heads_table(histories: Mapping[str, History]) -> pd.DataFrame:
    """A row a run, step, head and statistic."""
    import pandas as pd

    rows = []
    for run, history in histories.items():
        for name in sorted(column for column in history.columns if column.startswith(f"{HEADS}/")):
            _, head, statistic = name.split("/")
            rows += [(run, int(step), head, statistic, value) for step, value in zip(*history.taken(name), strict=True)]
    return pd.DataFrame(rows, columns=["run", "step", "head", "statistic", "value"])


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint as it was read: the header's facts, and tensors by name."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def step(self) -> int:
        return self.facts["step"]

    @property
    def history(self) -> History:
        return History.from_tensors(self.part("history"))

    def part(self, name: str) -> dict[str, Tensor]:
        start = f"{name}."
        return {key.removeprefix(start): tensor for key, tensor in self.tensors.items() if key.startswith(start)}


def save_state(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    history: History,
    facts: Mapping[str, Any],
) -> None:
    """Write all of it. `facts` is JSON: with the run's name and step. Errors: FileAccessError."""
    from safetensors.torch import save_file

    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    # Optimizers know parameters as objects; a file needs their names.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{names[id(parameter)]}.{key}": value for key, value in state.items()}
    # Dropout and the like go on where they were, or a resumed run would have other losses.
    tensors |= {f"random.{device}": state for device, state in random_states().items()}
    tensors |= {f"history.{name}": column for name, column in history.to_tensors().items()}
    header = {FORMAT: json.dumps({"version": VERSION, **facts})}
    # Beside the old file, then moved over it: a process that is killed in here leaves the older checkpoint whole.
    with replacing(path, ".safetensors") as temporary:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, temporary, header)


def read_state(path: str | os.PathLike[str]) -> Saved:
    """Errors: FileAccessError for a file that cannot be read, ModelError for one that is not a checkpoint of ours."""
    from safetensors import SafetensorError, safe_open

    try:
        os.stat(path)  # safetensors' own error for a file that is not there has no number to go by
        with safe_open(Path(path), framework="pt") as file:
            header = (file.metadata() or {}).get(FORMAT)
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except OSError as error:
        raise no_access("read", path, error) from error
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged ({error}): delete it, and the training starts again.") from error
    if header is None:
        raise ModelError(
            f"{path} is not a training checkpoint: its header lacks {FORMAT!r}. Give one that train wrote."
        )
    try:
        facts = json.loads(header)
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or "version" not in facts:
        raise ModelError(f"{path} is damaged (its header says no version): delete it, and the training starts again.")
    if facts["version"] != VERSION:
        raise ModelError(f"{path} is of version {facts['version']}, and this manyheads reads {VERSION}: update it.")
    # Not isinstance: True is an int to Python, and would be taken for step 1.
    if type(facts.get("step")) is not int or facts["step"] < 0:
        raise ModelError(f"{path} is damaged (its header says no step): delete it, and the training starts again.")
    return Saved(facts, tensors)


def restore(saved: Saved, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Put weights, optimizers and random numbers back as they were. Errors: ModelError for tensors of another model."""
    owners = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    try:
        # Weights first, by torch's own strict names and shapes:
        # they tell another model before the optimizer is touched.
        model.load_state_dict(saved.part("model"))
        for name, parameter in model.named_parameters():
            # Checked by hand: AdamW takes a state of another shape, and fails in its next step.
            state = saved.part(f"optimizer.{name}")
            if wrong := [key for key, value in state.items() if value.ndim and value.shape != parameter.shape]:
                raise ValueError(
                    f"{wrong[0]} of {name} is {tuple(state[wrong[0]].shape)}, not {tuple(parameter.shape)}"
                )
            # AdamW counts steps on the CPU unless it is fused on a GPU: either way the state follows its parameter
            owners[id(parameter)].state[parameter] = {
                key: value if value.ndim == 0 and parameter.device.type == "cpu" else value.to(parameter.device)
                for key, value in state.items()
            }
        # Last: nothing between here and the next step may draw a random number.
        set_random_states(saved.part("random"))
    except (RuntimeError, ValueError, KeyError) as error:
        message = " ".join(str(error).split())
        raise ModelError(
            f"the checkpoint's tensors are not those of this model ({message}): delete it, and the training begins "
            f"again."
        ) from error


def random_states() -> dict[str, Tensor]:
    """torch's generators, on the CPU and, where there is one, on the accelerator."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_random_states(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
