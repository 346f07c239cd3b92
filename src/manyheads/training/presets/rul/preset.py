"""`rul`: how many cycles an engine has left, by a BiLSTM with eight heads of attention and by the same without.

Ten nets, two a seed: with attention and without, the same windows in the same order, the same loss. Beside them a line
in the windows' means and slopes. What attention adds is a difference of pairs, and is reported whatever it is.
Without `--data` the engines are SIMULATED (`simulator.py`), which the report says; with it they are a C-MAPSS set.

Source: Saxena et al. 2008 (C-MAPSS); the net's shape: docs/reference/rul.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.training.checkpoints import head_column
from manyheads.training.presets.preset import AllTrained, Findings, MakeRun, Preset, Scaled, Setup, Training
from manyheads.training.presets.rul.data import CAP, LENGTH, Data, Scaling, read_cmapss, split, windows_of
from manyheads.training.presets.rul.net import RulNet, cycles_read, predicted
from manyheads.training.presets.rul.report import WITH, WITHOUT, findings, rmse, run_name
from manyheads.training.presets.rul.simulator import write_simulated
from manyheads.training.runs import Batch, Run, Settings, generator_of

NAME = "rul"
HEADS = 8
VALIDATED = 10  # windows of each validating engine, evenly spaced over its life


@dataclass(frozen=True)
class Scale(Scaled):
    """`hidden`: of each direction of the LSTM. `engines`: simulated, for each of the two files."""

    hidden: int
    seeds: int
    rows: int
    engines: int


WHOLE = Scale(
    Settings(steps=400, rate=2e-3, warmup=40, floor=0.02, decay=0.01, checkpoint_every=100, measure_every=50),
    hidden=256, seeds=5, rows=32, engines=100,
)  # fmt: skip
TRIAL = Scale(
    Settings(steps=6, rate=2e-3, warmup=2, checkpoint_every=3, measure_every=3), hidden=32, seeds=2, rows=8, engines=10
)


def build(setup: Setup) -> Training:
    """Two runs a seed, pair by pair; their report compares them with each other and with a line."""
    scale = setup.scale(WHOLE, TRIAL)
    data = read_data(setup, scale)
    runs: dict[str, MakeRun] = {}
    for seed in range(scale.seeds):
        for kind in (WITH, WITHOUT):
            name = run_name(kind, seed)
            runs[name] = lambda _, name=name, seed=setup.seed + seed, kind=kind: make_run(
                name, scale, data, seed, kind == WITH
            )

    def report(trained: AllTrained) -> Findings:
        nets = {name: run.model for name, run in trained.items()}
        return findings(data, nets, scale.seeds)

    return Training(runs, report, data.facts)


PRESET = Preset(NAME, build, "a C-MAPSS folder, or the train file of one of its sets")


def read_data(setup: Setup, scale: Scale) -> Data:
    """The set that was given, or a simulated one, which is written into the folder and read like any other."""
    place = setup.data or write_simulated(setup.folder / "SIMULATED", setup.seed, scale.engines, scale.engines)
    fleet = read_cmapss(place)
    trained, validating = split(fleet.train)
    scaling = Scaling.of(trained)
    return Data(
        fleet,
        setup.data is None,
        scaling,
        windows_of(trained, scaling),
        windows_of(validating, scaling, VALIDATED),
        windows_of(fleet.test, scaling, 1),
    )


def make_run(name: str, scale: Scale, data: Data, seed: int, attention: bool) -> Run:
    """One net. Its batches depend on the seed and the step alone, so both nets of a pair read the same."""
    torch.manual_seed(seed)  # before the net is made, since drawing its weights is what is seeded
    net = RulNet(len(data.scaling.kept), scale.hidden, HEADS, attention)
    capped = data.train.capped / CAP

    def batch(step: int) -> Batch:
        indices = torch.randint(len(data.train), (scale.rows,), generator=generator_of(seed, step))
        return {"windows": data.train.read(indices), "share": capped[indices]}

    validating, left = data.validating.all(), data.validating.capped.numpy()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        """Mean squared error, in shares of the cap."""
        return F.mse_loss(model(batch["windows"]).float(), batch["share"])

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        """The error on validating engines; and the mean age, in cycles, of what each head reads in a window."""
        numbers = {"validating_rmse": rmse(predicted(model, validating, CAP), left)}
        if not attention:
            return numbers
        assert isinstance(model, RulNet)
        ages = torch.arange(LENGTH - 1, -1, -1, dtype=torch.float32)
        cycles_back = (cycles_read(model, validating).mean(0) @ ages).tolist()
        return numbers | {head_column(f"L0H{head}", "cycles_back"): value for head, value in enumerate(cycles_back)}

    return Run(name, net, scale.settings, batch, loss, measured)
