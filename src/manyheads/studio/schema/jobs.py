"""Work that takes a while, and what it came to."""

from __future__ import annotations

from typing import Literal

from manyheads.studio.schema.base import Problem, Said
from manyheads.studio.schema.experiments import Experiment, Pruning
from manyheads.studio.schema.lessons import CellResult
from manyheads.studio.schema.recordings import Atlas, RecordingInfo, Roles, Worth


class Progress(Said):
    words: str
    done: int
    total: int | None


JobKind = Literal["recording", "roles", "importance", "worth", "experiment", "pruning", "cell"]


class Job(Said):
    """Work under way or done. `result` is there when `state` is "done"; `problem` when it is "failed".

    Ask again with `wait` (seconds) to be told as soon as it ends. Work that nobody asks after is stopped.
    """

    id: str
    kind: JobKind
    state: Literal["running", "done", "failed", "cancelled"]
    progress: Progress
    seconds: float
    problem: Problem | None
    result: RecordingInfo | Roles | Atlas | Worth | Experiment | Pruning | CellResult | None
