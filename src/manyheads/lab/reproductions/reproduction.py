"""What a reproduction is: what a paper reports, and the same quantity measured here, with a verdict a row.

A `Claim` says within which bounds a quantity must lie for the paper's statement to come out. It is written from the
paper's words before anything is run, and stays. A row has one value a seed; its verdict goes by the 95 % interval of
their mean (Student's t): all of it within the bounds, all of it outside, or neither, which is undecided.

A new reproduction is a module here with a `REPRODUCTION`, and its line in `table.py`. What it trains is a preset, of
`manyheads.lab.training` or its own: `Task.train` carries it out, so that a stopped reproduction goes on where it was.

`reproduce` writes numbers and page into a folder, which holds `training/` (where a reproduction trains), `result.json`,
`page.md`, and `figure.svg`, which the command draws. It belongs to one reproduction with its options: another is
refused.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from manyheads.base import Json, brief, replacing
from manyheads.errors import PlanError
from manyheads.lab.reproductions.table import REPRODUCTIONS
from manyheads.lab.training import Outcome, carry_out
from manyheads.lab.training.charts import FIGURE, AnyChart
from manyheads.lab.training.presets.preset import Preset
from manyheads.lab.training.presets.table import module_of
from manyheads.lab.training.runs import Progress, mean_and_interval
from manyheads.lab.training.session import alone_in, open_folder, versions, write_json
from manyheads.long_context import retrieval_scores
from manyheads.results import Shown

COMES_OUT, FAILS, UNDECIDED, NOT_JUDGED = "comes out", "does not come out", "undecided", "not judged"


@dataclass(frozen=True)
class Claim:
    """`words`: what must hold. A quantity fulfils it between `low` and `high`, neither included."""

    words: str
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Row:
    """One quantity. `paper`: the paper's value, in words. `values`: ours, one a seed, printed by `form` (".1%").

    `claim` None: shown, and not judged. `exact`: `values` is one number that no seed moves, judged as it is.
    """

    quantity: str
    paper: str
    values: tuple[float, ...]
    claim: Claim | None = None
    form: str = ".3g"
    exact: bool = False

    @property
    def interval(self) -> dict[str, Any]:
        """The mean over seeds and its 95 % interval, None where there is none: one seed, or an exact number."""
        return mean_and_interval(self.values)

    @property
    def verdict(self) -> str:
        if self.claim is None:
            return NOT_JUDGED
        mean, low, high = (self.interval[name] for name in ("mean", "low", "high"))
        if low is None:
            if not self.exact:
                return UNDECIDED
            low = high = mean
        if self.claim.low < low and high < self.claim.high:
            return COMES_OUT
        return FAILS if high <= self.claim.low or low >= self.claim.high else UNDECIDED

    def to_dict(self) -> Json:
        """As result.json has it."""
        return {
            "quantity": self.quantity,
            "paper": self.paper,
            "each": list(self.values),
            **self.interval,
            "must_hold": None if self.claim is None else self.claim.words,
            "verdict": self.verdict,
            "form": self.form,
        }


def less(first: Iterable[float], second: Iterable[float]) -> tuple[float, ...]:
    """`first - second`, seed by seed."""
    return tuple(a - b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True, eq=False)
class Result:
    """What came out. `notes`: what a reader of the rows should know besides. `chart`: what the figure shows."""

    rows: tuple[Row, ...]
    chart: AnyChart
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What a reproduction is given: where to work, how many seeds, on what. `quick`: a trial, which shows no result.

    `file`: what it reads, for reproductions that take one.
    """

    folder: Path
    seeds: int
    quick: bool = False
    device: torch.device | str | None = None
    file: Path | None = None
    progress: Callable[[str], Progress] | None = None

    def train(self, preset: Preset | str, folder: str = "training") -> Outcome:
        """Carry out a preset with this task's seeds, in a folder of its own below the task's."""
        return carry_out(
            preset, self.folder / folder,
            seeds=self.seeds, quick=self.quick, device=self.device, progress=self.progress,
        )  # fmt: skip


@dataclass(frozen=True)
class Reproduction:
    """One published result. `reports`: what the paper says, with where in it. `definition`: what is measured, as the
    paper defines it. `not_comparable`: in what ours is another thing, whatever the verdict.

    `takes_file`: which file it reads, in words; empty where it reads none. `read_file` raises what is wrong with one.
    """

    name: str
    title: str
    paper: str
    reports: str
    definition: str
    not_comparable: tuple[str, ...]
    run: Callable[[Task], Result] = field(repr=False)
    takes_file: str = ""
    read_file: Callable[[Path], object] = field(default=retrieval_scores, repr=False)

    def to_dict(self) -> Json:
        """The words, as result.json has them."""
        names = ("name", "title", "paper", "reports", "definition")
        return {**{name: getattr(self, name) for name in names}, "not_comparable": list(self.not_comparable)}


# ------------------------------------------------------------------------------------------- carried out in a folder

RESULT, PAGE = "result.json", "page.md"
SEEDS = 3


@dataclass(frozen=True, eq=False)
class Reproduced(Shown):
    """`document` is what result.json holds."""

    reproduction: Reproduction
    folder: Path
    result: Result
    document: dict[str, Any]

    def to_dict(self) -> Json:
        """Plain data for JSON: what result.json holds, and where it is."""
        return {**self.document, "folder": str(self.folder)}

    def __repr__(self) -> str:
        rows = "; ".join(f"{row.quantity}: {row.verdict}" for row in self.result.rows)
        return brief(f"Reproduced({self.reproduction.name}: {rows})")


def reproduce(
    reproduction: Reproduction | str,
    folder: str | os.PathLike[str],
    *,
    file: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> Reproduced:
    """Make a published result again in `folder`, and write what came out there.

    - `reproduction`: its name, or the reproduction itself.
    - `folder`: where it is written; a start with the same options goes on where an earlier one was stopped.
    - `file`: what to read, where the reproduction takes it.
    - `seeds`: how many; None: 3, or 1 if `quick`.
    - `quick`: a trial of seconds, which shows no result.
    - `device`: as in `lab.training.carry_out`.
    - `progress`: as in `lab.training.carry_out`.

    Cost: minutes on two cores; `REPRODUCTIONS` has it by name.
    Errors: PlanError for a name, options or a folder that cannot be; FileAccessError; ModelError.
    """
    reproduction = reproduction_of(reproduction) if isinstance(reproduction, str) else reproduction
    name, folder = reproduction.name, Path(folder)
    if bool(reproduction.takes_file) != (file is not None):
        remedy = f"give {reproduction.takes_file}" if reproduction.takes_file else f"it reads no file: leave {file} out"
        raise PlanError(f"{name}: {remedy}.")
    if seeds is not None and reproduction.takes_file:
        raise PlanError(f"{seeds=}: what {name} computes from a file is the same for every seed. Leave seeds out.")
    if seeds is not None and seeds < 1:
        raise PlanError(f"{seeds=}: give 1 or more.")
    count = 0 if reproduction.takes_file else (1 if quick else SEEDS) if seeds is None else seeds
    path = None if file is None else Path(os.path.expanduser(file))
    options = {"reproduction": name, "seeds": count, "quick": quick, "file": None if path is None else str(path)}
    begun = time.process_time()
    if path is not None:
        reproduction.read_file(path)  # before the folder is made: a file that cannot be read leaves nothing behind
    with alone_in(folder):
        open_folder(folder, options)
        result = reproduction.run(Task(folder, count, quick, device, path, progress))
        command = ["manyheads reproduce", name, *([path.name] if path else []), *(["--quick"] if quick else [])]
        command += [f"--seeds {seeds}"] if seeds is not None else []
        document = {
            **reproduction.to_dict(),
            "command": " ".join(command),
            "seeds": count,
            "quick": quick,
            "rows": [row.to_dict() for row in result.rows],
            "notes": list(result.notes),
            "processor_seconds_this_start": round(time.process_time() - begun, 1),
            "versions": versions(),
        }
        with replacing(folder / PAGE, ".md") as temporary:
            Path(temporary).write_text(markdown(document), encoding="utf-8")
        write_json(folder / RESULT, document)
    return Reproduced(reproduction, folder, result, document)


def reproduction_of(name: str) -> Reproduction:
    """Errors: PlanError for a name that there is not, with those that there are."""
    return module_of(REPRODUCTIONS, name, __package__, "reproduction", "choose").REPRODUCTION


# ----------------------------------------------------------------------------------------------------------- as a page


def markdown(document: Mapping[str, Any], figure: str = FIGURE, level: int = 1) -> str:
    """What result.json holds, as a page, or as a part of one whose headings begin at `level`."""
    heading = "#" * level
    lines = [
        f"{heading} `{document['command'].removeprefix('manyheads reproduce ')}`: {document['title']}",
        "",
        f"**The paper.** {document['paper']}",
        "",
        f"**What it reports.** {document['reports']}",
        "",
        f"**Definition.** {document['definition']}",
        "",
        *table_lines(document["rows"]),
        "",
        f"![{document['title']}]({figure})",
        "",
        *(line for note in document["notes"] for line in (note, "")),
        "**Not comparable.** " + " ".join(document["not_comparable"]),
        "",
        f"Made by `{document['command']}`: {made_words(document)}.",
    ]
    return "\n".join(lines) + "\n"


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows as a table of Markdown."""
    cells = [["quantity", "the paper", "here, seed by seed", "mean (95 % over seeds)", "must hold", "verdict"]]
    for row in rows:
        verdict = row["verdict"] if row["verdict"] in (COMES_OUT, NOT_JUDGED) else f"**{row['verdict']}**"
        cells.append([row["quantity"], row["paper"], each_words(row), mean_words(row), row["must_hold"] or "", verdict])
    written = [f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in cells]
    return [written[0], "|---" * len(cells[0]) + "|", *written[1:]]


def each_words(row: Mapping[str, Any]) -> str:
    return ", ".join(format(value, row["form"]) for value in row["each"])


def mean_words(row: Mapping[str, Any]) -> str:
    """The mean and its interval; nothing more than the values where there is one alone."""
    if row["low"] is None:
        return ""
    mean, low, high = (format(row[name], row["form"]) for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def made_words(document: Mapping[str, Any]) -> str:
    """How many seeds, on what, how long, with which versions."""
    facts = [f"{document['seeds']} seeds" if document["seeds"] != 1 else "1 seed"] if document["seeds"] else []
    facts += ["a trial that shows no result"] if document["quick"] else []
    facts.append(f"{document['processor_seconds_this_start']:,.0f} s of processor time since its last start")
    return ", ".join([*facts, *(f"{name} {version}" for name, version in document["versions"].items())])
