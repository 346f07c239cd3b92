"""`carry_out`: trains a preset's runs in a folder, and writes what came out.

The folder holds one training from its first start to its last. `run.json` has the preset, its options and a digest of
the data, and is written first; a start with others is refused. `checkpoint-<run>.safetensors` is where a run is;
`heads/<run>` grows while it trains, for who watches; `metrics.parquet`, `heads.parquet` (all runs' heads, one table)
and `report.json` come at the end. So a second start goes on where the first one was, and one after the end reads
everything back and writes tables and report again, which costs no training.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manyheads.base import Json, PartsFolder, brief, no_access, read_bytes, replacing
from manyheads.errors import FileAccessError, LostProcessError, PlanError
from manyheads.lab.training.charts import FIGURE, Chart
from manyheads.lab.training.checkpoints import heads_table, metrics_table
from manyheads.lab.training.loop import Trained, train
from manyheads.lab.training.presets.preset import Findings, Preset, Setup, Training
from manyheads.lab.training.presets.table import preset_of
from manyheads.lab.training.runs import Progress, num_parameters
from manyheads.lab.training.together import require_gpu_for_each_process, together
from manyheads.machine import choose_device, torchrun
from manyheads.plan import SEEDS
from manyheads.results import Shown

BEGUN, REPORT, HEADS = "run.json", "report.json", "heads"
FILES = (REPORT, FIGURE, "metrics.parquet", "heads.parquet", HEADS, "model", "texts.jsonl")


@dataclass(frozen=True, eq=False)
class Outcome(Shown):
    """`report` is what report.json holds. `trained`: every run by name, its model in eval mode.

    `rank`: this process's number among those of torchrun. All of them have what was trained; the first alone measures
    and writes, so the others' `findings` and `report` are empty.
    """

    folder: Path
    findings: Findings
    trained: dict[str, Trained]
    report: dict[str, Any]
    rank: int = 0

    @property
    def files(self) -> list[str]:
        """Names of the folder's files that are for a reader; what the training keeps for itself is none."""
        return [name for name in FILES if (self.folder / name).exists()]

    def to_dict(self) -> Json:
        """Plain data for JSON: the report, and where everything is."""
        return {**self.report, "folder": str(self.folder), "files": self.files}

    def __repr__(self) -> str:
        return brief(f"Outcome({self.report.get('preset', 'not the first process')}: {' '.join(self.findings.lines)})")


NOTHING_FOUND = Findings({}, (), Chart("", "", ()))


def carry_out(
    preset: Preset | str,
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    quick: bool = False,
    steps: int | None = None,
    seeds: int | None = None,
    data: Path | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> Outcome:
    """Train a preset's runs, one after another, and write what came out into `folder`. The command draws the figure.

    Under torchrun, every process calls this with the same arguments, and they share the rows of every batch.

    - `preset`: a preset, or its name.
    - `folder`: where it is written; a training that was stopped there goes on.
    - `seed`: of weights and data.
    - `quick`: a trial of seconds, which learns nothing.
    - `steps`: replaces each run's own number of steps.
    - `seeds`: how many seeds the preset trains.
    - `data`: what to learn from, where the preset takes it.
    - `device`: None: what MANYHEADS_DEVICE says, else the accelerator where there is one, else the CPU.
    - `progress`: called with the name of the next part of the work; returns a function that is then called with its
      steps.

    Errors: PlanError for options that cannot be, or a folder of another training; ModelError; FileAccessError;
    LostProcessError where one of several processes is gone.
    """
    if steps is not None and steps < 1:
        raise PlanError(f"{steps=}: train at least 1 step.")
    if seeds is not None and seeds < 1:
        raise PlanError(f"{seeds=}: train at least 1 seed.")
    if not 0 <= seed < SEEDS:
        raise PlanError(f"{seed=} is out of range: give a whole number from 0 to {SEEDS - 1:,}.")
    preset, folder = preset_of(preset) if isinstance(preset, str) else preset, Path(folder)
    if data is not None and not preset.takes_data:
        raise PlanError(f"{data} was given as data, and {preset.name} makes its own: leave it out.")
    place, because = choose_device(device)
    if device is None and place.type != "cpu":
        require_gpu_for_each_process()
    setup = Setup(seed, quick, steps, folder, place, data, seeds)
    options = {"preset": preset.name, "seed": seed, "quick": quick, "steps": steps}
    options |= {} if seeds is None else {"seeds": seeds}
    begun = time.perf_counter()
    with ExitStack() as resources:

        def take_folder() -> None:
            resources.enter_context(alone_in(folder))  # until the report is written
            open_folder(folder, options)

        try:
            with torchrun(), together(place) as team:
                team.first(take_folder)
                # Built after the folder is ours, in every process: a preset may write its data there.
                training = preset.build(setup)
                # After `build`, which makes or reads the data: only then is there a digest to compare.
                team.first(lambda: require_same_facts(folder, training))
                trained: dict[str, Trained] = {}
                for name, make in training.runs.items():
                    report_step = None if progress is None else progress(f"training {name}")
                    checkpoint = checkpoint_of(folder, name)
                    trained[name] = train(
                        make(trained), checkpoint, device=place, progress=report_step, team=team,
                        heads=folder / HEADS / name,
                    )  # fmt: skip
        except LostProcessError as error:  # whoever reads it wants to know how this training goes on
            raise LostProcessError(
                f"another process of this training is gone (killed, or out of memory), or torchrun was told to stop. "
                f"Start the same line again: it goes on from the last checkpoint in {folder}, with "
                f"any number of processes."
            ) from error
        # Measuring and writing are the first process's alone: the others have what was trained.
        if not team.is_first:
            return Outcome(folder, NOTHING_FOUND, trained, {}, team.ranks.rank)
        if progress is not None:
            progress("measuring what came out")
        findings = training.report(trained)
        report = {
            **options,
            "device": f"{place}, {because}",
            "facts": dict(training.facts),
            "runs": {name: run_report(run) for name, run in trained.items()},
            "found": dict(findings.numbers),
            "said": list(findings.lines),
            "seconds_this_start": round(time.perf_counter() - begun, 1),
            "versions": versions(),
        }
        # The report last: a folder with a report has all the rest.
        histories = {name: run.history for name, run in trained.items()}
        for name, table in (("metrics", metrics_table(histories)), ("heads", heads_table(histories))):
            with replacing(folder / f"{name}.parquet", ".parquet") as temporary:
                table.to_parquet(temporary, index=False)
        write_json(folder / REPORT, report)
        return Outcome(folder, findings, trained, report)


def run_report(run: Trained) -> dict[str, Any]:
    """What report.json holds of one run."""
    history = run.history
    return {
        "steps": len(history) - 1,
        "loss": history.last("loss"),
        "parameters": num_parameters(run.model),
        "training_seconds": round(sum(history.taken("seconds")[1]), 1),
        "resumed_at": run.resumed_at,
        "computed": run.because,
        **({"ended": run.ended} if run.ended else {}),
    }


def checkpoint_of(folder: Path, run: str) -> Path:
    return folder / f"checkpoint-{run}.safetensors"


def versions() -> dict[str, str]:
    """The versions that the numbers depend on."""
    from manyheads import __version__  # the front door names this package as well: not at module level

    return {"manyheads": __version__, "torch": torch.__version__, "python": platform.python_version()}


# ------------------------------------------------------------------------------------- the folder of one training


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other trainings out of it until the block is left, however that happens.

    Errors: PlanError where another is at work there, FileAccessError.
    """
    busy = PlanError(f"another training is at work in {folder}: wait for it, or give another folder with --out.")
    with PartsFolder.opened(folder, busy):
        yield


def require_same_facts(folder: Path, training: Training) -> None:
    """Write the data's digest down at the first start; errors: PlanError where a later start has other data."""
    facts = {f"facts.{name}": value for name, value in training.facts.items()}
    begun = read_json(folder / BEGUN)
    if facts.keys() <= begun.keys():
        require_same(folder, facts)
    else:
        write_json(folder / BEGUN, begun | facts)


def open_folder(folder: Path, options: Mapping[str, Any]) -> None:
    """Begin in an empty folder, or find this training in it. Errors: PlanError for another one, FileAccessError."""
    known = folder / BEGUN
    if known.exists():
        require_same(folder, options)
        return
    if names := PartsFolder(folder).names():
        raise PlanError(
            f"{folder} is not empty and holds no training ({', '.join(names[:3])}): give a new or an empty folder."
        )
    write_json(known, options)


def require_same(folder: Path, options: Mapping[str, Any]) -> None:
    """Errors: PlanError with each option that differs from the start of the training in `folder`."""

    def written(value: object) -> str:
        return "none" if value is None else str(value)

    begun = read_json(folder / BEGUN)
    # Through JSON and back, since that is how the others were written: a tuple is a list there.
    requested = json.loads(json.dumps(options))
    changed = [name for name in requested if begun.get(name) != requested[name]]
    if changed:
        changes = "; ".join(
            f"{name} {written(begun.get(name))} then, {written(requested[name])} now" for name in changed
        )
        raise PlanError(
            f"{folder} holds another training ({changes}): give another folder with --out, the same options to go on, "
            f"or delete it."
        )


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all. Errors: FileAccessError."""
    text = json.dumps(document, indent=1, allow_nan=False)
    with replacing(path, ".json") as temporary:
        Path(temporary).write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Errors: FileAccessError for what cannot be read or is not a JSON object."""
    try:
        document = json.loads(read_bytes(path).decode("utf-8"))
    except OSError as error:
        raise no_access("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise FileAccessError(
            f"{path} is not JSON ({error}): it is damaged. Delete its folder, or repair it."
        ) from error
    if not isinstance(document, dict):
        raise FileAccessError(f"{path} holds a {type(document).__name__}, not an object: it is damaged.")
    return document
