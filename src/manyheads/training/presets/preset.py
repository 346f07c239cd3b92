"""What a preset is: a name, and `build`, which turns a setup into runs and a way to report on them.

A new preset is a module here with a `Preset`, and its line in `table.py`. `build` is called in every start, also in
one that takes a stopped run up again, so whatever it makes must follow from the setup alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from manyheads.training.charts import AnyChart
from manyheads.training.loop import Trained
from manyheads.training.runs import Run, Settings

AllTrained = Mapping[str, Trained]
MakeRun = Callable[[AllTrained], Run]


@dataclass(frozen=True)
class Scaled:
    """How large everything is, the whole of it or a trial; a preset's own `Scale` adds its sizes."""

    settings: Settings


AnyScale = TypeVar("AnyScale", bound=Scaled)


@dataclass(frozen=True)
class Setup:
    """What was asked for. `quick`: a trial of seconds that shows that everything works, not what it works towards.
    `steps` None: the preset's own. `folder`: where files beside the usual ones may be kept. `data`: files to
    learn from, for presets that take them; None: the preset's own."""

    seed: int
    quick: bool
    steps: int | None
    folder: Path
    device: torch.device
    data: Path | None = None

    def scale(self, whole: AnyScale, trial: AnyScale) -> AnyScale:
        """How large everything is: `trial` if quick, else `whole`, with as many steps as were asked for."""
        chosen = trial if self.quick else whole
        steps = chosen.settings.steps if self.steps is None else self.steps
        return replace(chosen, settings=replace(chosen.settings, steps=steps))


@dataclass(frozen=True, eq=False)
class Findings:
    """What came out: `numbers` for report.json, `lines` for people, `chart` for the figure."""

    numbers: Mapping[str, Any]
    lines: tuple[str, ...]
    chart: AnyChart


@dataclass(frozen=True, eq=False)
class Training:
    """What `build` gives. `runs`: in order, each made when its turn comes, of those that are trained already (so that
    one may begin where another ended). `report`: what all of them show; of several processes the first alone calls it,
    so it measures with `ranks=ALONE`. `facts`: what the results hang on besides the options, as a digest of the data: a
    run goes on only with the same."""

    runs: Mapping[str, MakeRun]
    report: Callable[[AllTrained], Findings]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """A preset; what it shows, and how long it takes, is in `table.py`, which lists it unloaded.

    `takes_data`: what may be given as data, in words; empty where nothing may."""

    name: str
    build: Callable[[Setup], Training]
    takes_data: str = ""
