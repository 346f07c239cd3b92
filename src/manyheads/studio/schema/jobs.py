"""Jobs: work that runs in the background, its progress and its result."""

from __future__ import annotations

from typing import Literal

from manyheads.studio.schema.base import AnswerBody, Problem
from manyheads.studio.schema.experiments import Experiment, Pruning
from manyheads.studio.schema.lessons import CellResult
from manyheads.studio.schema.recordings import Atlas, RecordingInfo, Roles, Worth


class Progress(AnswerBody):
    words: str
    done: int
    total: int | None


JobKind = Literal["recording", "roles", "importance", "worth", "experiment", "pruning", "cell"]


class Job(AnswerBody):
    """A job and its state. `result` is set when `state` is "done", `problem` when it is "failed".

    A request with `wait` (seconds) is answered as soon as the job ends. A job that nobody requests is stopped.
    """

    id: str
    kind: JobKind
    state: Literal["running", "done", "failed", "cancelled"]
    progress: Progress
    seconds: float
    problem: Problem | None
    result: RecordingInfo | Roles | Atlas | Worth | Experiment | Pruning | CellResult | None
