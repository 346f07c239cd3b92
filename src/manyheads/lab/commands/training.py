"""`manyheads train` and `manyheads reproduce`: a preset, and a published result made again.

`manyheads train`: small models of our own layers, each of which shows one thing about heads.
`manyheads reproduce`: published results, made again: the paper's number beside ours.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manyheads.cli import ASKED_WRONG, AsJson, DeviceName, chosen_place
from manyheads.cli.terminal import ProgressLine, clean, emit, emit_document, print_listing, print_whole
from manyheads.errors import FileAccessError, LostProcessError, ManyHeadsError, PlanError
from manyheads.lab import training
from manyheads.lab.reproductions.table import REPRODUCTIONS
from manyheads.lab.training.presets.table import PRESETS, preset_of

if TYPE_CHECKING:
    from manyheads.lab.reproductions import Reproduced
    from manyheads.lab.training import Outcome


TO_SPEAK_SECONDS = 30  # for the first process: torchrun ends all of them as soon as one has ended
PRESET_HELP = "What to train. Default: list them."
QUICK_HELP = "A trial of seconds: everything runs, nothing is learned."
OUT_HELP = "Folder to write; a stopped training continues from it. Default: the preset's name."
DATA_HELP = "Files to learn from, for presets that take them (rul: a C-MAPSS folder). Default: the preset's own."
STEPS_HELP = "How many steps. Default: the preset's own."
NAME_HELP = "What to reproduce. Default: list them."
FILE_HELP = (
    "The file that it reads: for wu-scores one of head_score in github.com/nightdessert/Retrieval_Head, for "
    "clark-syntax a treebank (CoNLL-U)."
)
SEEDS_HELP = "How many seeds to train. Default: 3."
TRIAL_HELP = "A trial of seconds: everything runs, and no result is shown."
MADE_HELP = "Folder to write; a stopped reproduction continues from it. Default: the name."
OPENING = (
    "What papers report, in short. A reproduction trains small models on this machine and says whether",
    "it comes out there: the paper's number, ours for three seeds, a verdict (times on two cores).",
    "",
)
ENDING = (
    "Make one: manyheads reproduce zhai-collapse",
    "Ours so far:  in the documentation, What published numbers say",
)


def train(
    preset: Annotated[str | None, typer.Argument(metavar="PRESET", help=PRESET_HELP, show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help=OUT_HELP, show_default=False)] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights and data.")] = 0,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help=STEPS_HELP, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="PATH", help=DATA_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
) -> None:
    """Train a small model that shows one thing about heads, and write what came out into a folder.

    Type the same line again to continue a training that was stopped: its losses are those of a training without the
    stop. Several processes share every batch: torchrun --nproc-per-node 2 -m manyheads train induction

    For example: manyheads train induction --out circuit
    """
    with _first_speaks() as talk:
        if preset is None:
            options = {"--quick": quick, "--out": out, "--steps": steps, "--data": data, "--device": device}
            if names := [name for name, value in options.items() if value is not None and value is not False]:
                raise PlanError(f"{names[0]} was given, but no preset: say which of {', '.join(PRESETS)} to train.")
            print_listing(
                "presets", PRESETS.values(), as_json, (), (f"Train one: manyheads train {next(iter(PRESETS))}",)
            )
            return
        with talk.step("getting ready to train"):
            chosen = preset_of(preset)
            if device is not None:
                chosen_place(device)
        folder = Path(chosen.name + ("-quick" if quick else "")) if out is None else out
        with talk.steps() as stages:
            outcome = training.carry_out(
                chosen, folder, seed=seed, quick=quick, steps=steps, data=data, device=device, progress=stages.begin
            )
        if outcome.rank:
            return
        with talk.step("drawing the figure"):
            training.save_chart(outcome.findings.chart, folder / training.FIGURE)
    if as_json:
        emit(json.dumps(outcome.to_dict(), indent=1, allow_nan=False))
    else:
        print_whole(outcome_page(outcome))


@contextmanager
def _first_speaks() -> Iterator[ProgressLine]:
    """Under torchrun the first process speaks for all: what is wrong with options or data, every one of them finds."""
    talk, rank, world = ProgressLine(), int(os.environ.get("RANK", "0")), os.environ.get("WORLD_SIZE", "1")
    if rank:
        talk.silence()
    elif world != "1":
        talk.note(f"{world} processes share every batch")
    try:
        yield talk
    except ManyHeadsError as error:
        if rank and not isinstance(error, LostProcessError | FileAccessError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what torchrun sends, once the first has spoken and ended
            time.sleep(TO_SPEAK_SECONDS)
            raise typer.Exit(ASKED_WRONG) from error
        raise


def outcome_page(outcome: Outcome) -> list[str]:
    """What came out of a training, as lines for people."""
    report = outcome.report
    steps = sum(run["steps"] for run in report["runs"].values())
    lines = [f"{report['preset']}: {'a trial of ' * report['quick']}{steps:,} steps, seed {report['seed']}"]
    for name, run in report["runs"].items():
        taken_up = f", taken up at step {run['resumed_at']:,}" if run["resumed_at"] else ""
        ended = f"; {run['ended']}, and it ended" if "ended" in run else ""
        lines.append(
            f"  {name}: {run['parameters']:,} parameters, loss {run['loss']:.3f}, {run['training_seconds']:.0f} s of "
            f"training{taken_up}{ended}; {run['computed']}"
        )
    lines += ["", *map(clean, outcome.findings.lines), ""]
    return [*lines, *(f"wrote {clean(str(outcome.folder / name))}" for name in outcome.files)]


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help=SEEDS_HELP, show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=TRIAL_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help=MADE_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
) -> None:
    """Make a published result again on small models: the paper's number beside ours, with seeds and a verdict.

    Writes a page, a figure and the numbers into a folder. Results that do not come out are shown as such.

    For example: manyheads reproduce zhai-collapse
    """
    if name is None:
        options = {"--seeds": seeds, "--quick": quick, "--out": out, "--device": device}
        if not as_json and (names := [option for option, value in options.items() if value not in (None, False)]):
            raise PlanError(f"{names[0]} was given, but no name: say which of {', '.join(REPRODUCTIONS)}.")
        print_listing("reproductions", REPRODUCTIONS.values(), as_json, OPENING, ENDING)
        return
    # Imports torch, for which the list is not to wait.
    from manyheads.lab import reproductions

    talk = ProgressLine()
    with talk.step("getting ready"):
        chosen = reproductions.reproduction_of(name)
        if device is not None:
            chosen_place(device)
    folder = Path(chosen.name + ("-quick" if quick else "")) if out is None else out
    with talk.steps() as stages:
        made = reproductions.reproduce(
            chosen, folder, file=file, seeds=seeds, quick=quick, device=device, progress=stages.begin
        )
    with talk.step("drawing the figure"):
        training.save_chart(made.result.chart, folder / training.FIGURE)
    if as_json:
        emit_document(made.to_dict())
    else:
        print_whole(reproduced_page(made))


def reproduced_page(made: Reproduced) -> list[str]:
    """The result for people: a block a row, since six columns of words fit no terminal."""
    # Imports torch, for which --help is not to wait.
    from manyheads.lab.reproductions.reproduction import each_words, made_words, mean_words

    document = made.document
    lines = [f"{document['name']}: {document['title']}", document["paper"], f"It reports: {document['reports']}", ""]
    if document["quick"]:
        lines += ["A trial: everything ran, on next to nothing. None of the numbers below is a result.", ""]
    for row in document["rows"]:
        mean, must_hold = mean_words(row), row["must_hold"]
        lines.append(f"{'no result' if document['quick'] else row['verdict']:<17}  {row['quantity']}")
        lines.append(f"{'':<17}  the paper: {row['paper']}")
        lines.append(f"{'':<17}  here: {each_words(row)}" + (f"; mean {mean}" if mean else ""))
        lines += [f"{'':<17}  must hold: {must_hold}"] if must_hold else []
    lines += ["", *map(clean, document["notes"]), f"Not comparable: {' '.join(document['not_comparable'])}"]
    lines += [f"{made_words(document)}", ""]
    files = ("page.md", training.FIGURE, "result.json")
    return [*lines, *(f"wrote {clean(str(made.folder / file))}" for file in files)]
