"""`reproduce`: carries a reproduction out in a folder, and writes its numbers and its page.

The folder holds `training/` (where a reproduction trains), `result.json`, `page.md`, and
`figure.svg`, which the command draws. It belongs to one reproduction with its options: another is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manyheads.base import Json, brief, replacing
from manyheads.errors import PlanError
from manyheads.lab.reproductions.reproduction import Reproduction, Result, Task, markdown
from manyheads.lab.reproductions.table import reproduction_of
from manyheads.lab.training.runs import Progress
from manyheads.lab.training.session import alone_in, open_folder, versions, write_json
from manyheads.long_context import retrieval_scores

RESULT, PAGE = "result.json", "page.md"
SEEDS = 3


@dataclass(frozen=True, eq=False)
class Reproduced:
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

    `seeds`: how many; None: 3, or 1 if `quick`, which is a trial of seconds that shows no result. `file`: what to read,
    where the reproduction takes it. `progress` as in `lab.training.carry_out`. A start in the same folder with the same
    options goes on where an earlier one was stopped. Cost: minutes on two cores; `REPRODUCTIONS` has it by name.
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
        retrieval_scores(path)  # before the folder is made: a file that cannot be read leaves nothing behind
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
