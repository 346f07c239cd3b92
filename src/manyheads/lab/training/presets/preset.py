"""What a preset is: a name, and `build`, which turns a setup into runs and a way to report on them.

Heads are watched while they train (`Run.watched`, by `mh.watch`): WATCHED in every preset, and what else it is about.
What no training step shows, a preset measures beside it and puts down as columns of the history: scores on probes and
on held-out texts, as `probe_repeats` and `mh.measure` give them. The live model is wrapped, read and left as it was.

A new preset is a module here with a `Preset`, and its line in `table.py`. `build` is called in every start, also in
one that takes a stopped run up again, so whatever it makes must follow from the setup alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.errors import PlanError
from manyheads.lab.training.charts import AnyChart
from manyheads.lab.training.checkpoints import head_column
from manyheads.lab.training.loop import Trained
from manyheads.lab.training.runs import Run, Settings
from manyheads.measurement import measure, measure_call
from manyheads.models import LoadedModel, device_of, load
from manyheads.models.loading import Tokenizer
from manyheads.roles.probes import Repeats, probe_repeats
from manyheads.statistics import HeadTable, Statistic

WATCHED = ("max_logit", "entropy", "first_mass")

AllTrained = Mapping[str, Trained]
MakeRun = Callable[[AllTrained], Run]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Scaled:
    """How large a training is; a preset's own `RunScale` adds its sizes."""

    settings: Settings


AnyScale = TypeVar("AnyScale", bound=Scaled)


@dataclass(frozen=True)
class Setup:
    """The options of a training. `quick`: a trial of seconds, which shows that everything works and no result.

    `steps`, `seeds` None: the preset's own number. `folder`: where a preset may keep files of its own. `data`: files to
    learn from, for presets that take them; None: the preset's own.
    """

    seed: int
    quick: bool
    steps: int | None
    folder: Path
    device: torch.device
    data: Path | None = None
    seeds: int | None = None

    def scale(self, full: AnyScale, trial: AnyScale) -> AnyScale:
        """The preset's scale: `trial` if quick, else `full`, with the steps and seeds that were chosen.

        Errors: PlanError for a number of seeds where the preset trains one alone.
        """
        chosen = trial if self.quick else full
        if self.seeds is not None:
            if not hasattr(chosen, "seeds"):
                raise PlanError(f"seeds={self.seeds}: this preset trains one seed. Leave seeds out.")
            chosen = replace(chosen, **{"seeds": self.seeds})
        steps = chosen.settings.steps if self.steps is None else self.steps
        return replace(chosen, settings=replace(chosen.settings, steps=steps))


@dataclass(frozen=True, eq=False)
class Findings:
    """The results: `numbers` for report.json, `lines` for people, `chart` for the figure."""

    numbers: Mapping[str, Any]
    lines: tuple[str, ...]
    chart: AnyChart


@dataclass(frozen=True, eq=False)
class Training:
    """What `build` returns. `runs`: in order, each made when its turn comes, from those that are trained already (so
    that one may begin where another ended). `report`: what all of them show; of several processes the first alone calls
    it, so it measures with `ranks=ALONE`. `facts`: what the results depend on besides the options, as a digest of the
    data: a run goes on only with the same.
    """

    runs: Mapping[str, MakeRun]
    report: Callable[[AllTrained], Findings]
    facts: Mapping[str, Any] = field(default_factory=dict)


def by_seed(
    seeds: int, kinds: Mapping[str, Kind], make: Callable[[str, int, Kind, AllTrained], Run]
) -> dict[str, MakeRun]:
    """Seed by seed a run of every kind, named "<kind>-<index>": `make(name, index, kind, trained)`, in its turn."""
    rows = [(f"{name}-{index}", index, kind) for index in range(seeds) for name, kind in kinds.items()]
    return {row[0]: partial(make, *row) for row in rows}


@dataclass(frozen=True)
class Preset:
    """A preset; what it shows, and how long it takes, stands in `table.py`, which lists it unloaded.

    `takes_data`: which data it takes, in words; empty where it makes its own.
    """

    name: str
    build: Callable[[Setup], Training]
    takes_data: str = ""


# ------------------------------------------------------------------------------------ head statistics as columns


def live(model: nn.Module, tokenizer: Tokenizer | None = None) -> LoadedModel:
    """The model, loaded as any other; it must be in eval mode."""
    return load(model, tokenizer=False if tokenizer is None else tokenizer)


def probe_columns(lm: LoadedModel, variant: str | Repeats, samples: int = 16) -> dict[str, float]:
    """Every head's induction score on random tokens that repeat (`after`)."""
    after = probe_repeats(lm, variant, samples=samples, between=(0.0, 1.0)).after
    return {head_column(head, "induction"): float(score) for head, score in zip(after.heads, after.score, strict=True)}


def text_columns(lm: LoadedModel, texts: Sequence[str], statistics: Sequence[str]) -> dict[str, float]:
    """Every head's statistics on texts."""
    return _columns(measure(lm, list(texts), list(statistics)))


def call_columns(model: nn.Module, ids: Int[Tensor, "b n"], statistics: Sequence[str | Statistic]) -> dict[str, float]:
    """Every head's statistics on token ids."""
    return _columns(measure_call(model, ids.to(device_of(model)), statistics=statistics))


def by_head(table: HeadTable) -> dict[str, dict[str, float]]:
    """Every head's statistics, for a report."""
    values = {name: table.column(name) for name in table.names}
    return {
        str(head): {name: float(column[index]) for name, column in values.items()}
        for index, head in enumerate(table.heads)
    }


def _columns(table: HeadTable) -> dict[str, float]:
    return {head_column(head, name): value for head, values in by_head(table).items() for name, value in values.items()}
