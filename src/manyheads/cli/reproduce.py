"""`manyheads reproduce`: published results, made again: the paper's number beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manyheads import figures
from manyheads.cli.arguments import AsJson, DeviceName, chosen_place
from manyheads.cli.terminal.console import clean, emit_document, print_listing, print_whole
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import PlanError
from manyheads.reproductions.table import REPRODUCTIONS, reproduction_of

if TYPE_CHECKING:
    from manyheads.reproductions import Reproduced

NAME_HELP = "What to reproduce. Default: list them."
FILE_HELP = "The file that wu-scores reads: one of head_score in github.com/nightdessert/Retrieval_Head."
SEEDS_HELP = "How many seeds to train. Default: 3."
QUICK_HELP = "A trial of seconds: everything runs, and no result is shown."
OUT_HELP = "Folder to write; a stopped reproduction continues from it. Default: the name."
OPENING = (
    "What papers report, each line in short. A reproduction trains small models on this machine and says whether",
    "it comes out there: the paper's number, ours for three seeds, a verdict (times on two cores).",
    "",
)
ENDING = ("Make one: manyheads reproduce zhai-collapse", "Ours so far:  docs/reference/published-numbers.md")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help=SEEDS_HELP, show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help=OUT_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
) -> None:
    """Make a published result again on small models: the paper's number beside ours, with seeds and a verdict.

    Writes a page, a figure and the numbers into a folder. What does not come out is shown as such.

    For example: manyheads reproduce zhai-collapse
    """
    if name is None:
        options = {"--seeds": seeds, "--quick": quick, "--out": out, "--device": device}
        if not as_json and (names := [option for option, value in options.items() if value not in (None, False)]):
            raise PlanError(f"{names[0]} was given, but no name: say which of {', '.join(REPRODUCTIONS)}.")
        print_listing("reproductions", REPRODUCTIONS.values(), as_json, OPENING, ENDING)
        return
    # Imports torch, for which the list is not to wait.
    from manyheads import reproductions

    talk = Talk()
    with talk.step("getting ready"):
        chosen = reproduction_of(name)
        if device is not None:
            chosen_place(device)
    folder = Path(chosen.name + ("-quick" if quick else "")) if out is None else out
    with talk.steps() as stages:
        made = reproductions.reproduce(
            chosen, folder, file=file, seeds=seeds, quick=quick, device=device, progress=stages.begin
        )
    with talk.step("drawing the figure"):
        figures.save_chart(made.result.chart, folder / "figure.svg")
    if as_json:
        emit_document({**made.document, "folder": str(folder)})
    else:
        print_whole(page(made))


def page(made: Reproduced) -> list[str]:
    """The result for people: a block a row, since six columns of words fit no terminal."""
    # Imports torch, for which --help is not to wait.
    from manyheads.reproductions.reproduction import each_words, made_words, mean_words

    document = made.document
    lines = [f"{document['name']}: {document['title']}", document["paper"], f"It reports: {document['reports']}", ""]
    for row in document["rows"]:
        mean, must_hold = mean_words(row), row["must_hold"]
        lines.append(f"{row['verdict']:<17}  {row['quantity']}")
        lines.append(f"{'':<17}  the paper: {row['paper']}")
        lines.append(f"{'':<17}  here: {each_words(row)}" + (f"; mean {mean}" if mean else ""))
        lines += [f"{'':<17}  must hold: {must_hold}"] if must_hold else []
    lines += ["", *map(clean, document["notes"]), f"Not comparable: {' '.join(document['not_comparable'])}"]
    lines += [f"{made_words(document)}", ""]
    files = ("page.md", "figure.svg", "result.json")
    return [*lines, *(f"wrote {clean(str(made.folder / file))}" for file in files)]
