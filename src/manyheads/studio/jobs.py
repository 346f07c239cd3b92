"""Jobs: work that may take over half a second, in threads, with progress, stopped when nobody waits for it any more.

A job calls `ReportProgress`, which is also where it stops: after DELETE, or when nobody has requested its state for
`PATIENCE` seconds (the page was closed). Results are kept for a while. A few jobs run at once, a few more wait;
beyond that a request is refused instead of piling up. The cells of lessons wait for one another only, not for the
minutes of an experiment. `Job` is the answer to every request about one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from manyheads.studio.problems import Busy, NotHere, Stopped, problem_of
from manyheads.studio.schema.base import AnswerBody, Problem
from manyheads.studio.schema.circuits import CircuitRun, HeadEffects, HeadPaths, HeadWriting, PairReading
from manyheads.studio.schema.experiments import Blend, Experiment, Pruning
from manyheads.studio.schema.explained import FullCard
from manyheads.studio.schema.recordings import Atlas, RecordingInfo, Roles, Swap, Worth

MAX_RUNNING = 2  # at once: torch uses every core for one already
MAX_WAITING = 16
MAX_KEPT = 256
KEPT_BYTES = 24_000_000  # of results, as JSON: in memory they are some ten times as large
PATIENCE = 20.0  # seconds
POLL_SECONDS = 0.01
JobKind = Literal[
    "recording", "roles", "importance", "worth", "experiment", "blend", "pruning", "cell", "swap",
    "pair", "patching", "writing", "paths", "circuit", "card",
]  # fmt: skip
ReportProgress = Callable[[str, int, int | None], None]
"""Called with what is going on, how much is done, and of how much (None: unknown). Raises `Stopped`."""


class Progress(AnswerBody):
    words: str
    done: int
    total: int | None


class Job(AnswerBody):
    """A job and its state. `result` is set when `state` is "done", `problem` when it is "failed".

    A request with `wait` (seconds) is answered as soon as the job ends. A job that nobody requests is stopped.
    A result of a room that others bring is plain data here: the route that starts the job says what it is.
    """

    id: str
    kind: JobKind
    state: Literal["running", "done", "failed", "cancelled"]
    progress: Progress
    seconds: float
    problem: Problem | None
    result: (
        RecordingInfo
        | Roles
        | Atlas
        | Worth
        | Swap
        | Experiment
        | Blend
        | Pruning
        | PairReading
        | HeadEffects
        | HeadWriting
        | HeadPaths
        | CircuitRun
        | FullCard
        | dict[str, JsonValue]
        | None
    )


@dataclass(eq=False)
class _Work:
    """One job's state. `requested_at` is when its state was last requested.

    Its thread and the event loop's both use it without a lock: each attribute has one writer, and `over` is set last.
    """

    id: str
    kind: JobKind
    # Of the monotonic clock: the wall clock is set back and forth, and a jump would stop jobs whose page is open.
    started_at: float = field(default_factory=time.monotonic)
    requested_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    progress: Progress = field(default_factory=lambda: Progress(words="waiting its turn", done=0, total=None))
    stopped: bool = False
    result: object = None
    num_bytes: int = 0
    error: BaseException | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def report(self, words: str, done: int = 0, total: int | None = None) -> None:
        """Set the job's progress. Raises Stopped where it is to end, or nobody has asked for it lately."""
        if self.stopped or time.monotonic() - self.requested_at > PATIENCE:
            raise Stopped(f"{self.kind} was stopped")
        self.progress = Progress(words=words, done=done, total=total)

    def to_job(self) -> Job:
        state = "running"
        if self.over.is_set():
            state = "done" if self.error is None else "cancelled" if isinstance(self.error, Stopped) else "failed"
        problem = None if self.error is None else problem_of(self.error)[1]
        seconds = round((self.ended_at or time.monotonic()) - self.started_at, 3)
        return Job.of(self, state=state, seconds=seconds, problem=problem)

    def run(self, work: Callable[[ReportProgress], Any]) -> None:
        """Do the work in this thread, and keep its result or its error."""
        try:
            # The first look whether anybody still waits: a job may have stood in the queue longer than its page.
            self.report("starting")
            self.result = work(self.report)
            if isinstance(self.result, AnswerBody):
                self.num_bytes = len(self.result.model_dump_json())
            elif isinstance(self.result, dict):
                self.num_bytes = len(json.dumps(self.result))
        except Exception as error:  # even a fault of ours: `to_job` gives it to the page, and writes it to the log
            self.error = error
            # The frames of an error, and of the errors behind it, hold whole recordings: drop their variables. Line
            # numbers, which the log needs, stay.
            cause: BaseException | None = error
            while cause is not None:
                traceback.clear_frames(cause.__traceback__)
                cause = cause.__cause__ or cause.__context__
        finally:
            self.ended_at = time.monotonic()
            self.over.set()


class Jobs:
    """The jobs of one server."""

    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._pool = ThreadPoolExecutor(max_running, thread_name_prefix="studio-job")
        self._cells = ThreadPoolExecutor(1, thread_name_prefix="studio-cell")
        self._works: OrderedDict[str, _Work] = OrderedDict()
        self._lock = threading.Lock()
        self.max_running, self._limit = max_running, max_running + MAX_WAITING

    def start(self, kind: JobKind, run: Callable[[ReportProgress], Any]) -> str:
        """Start a job and return its id; the results that ended longest ago are dropped. Raises Busy."""
        work = _Work(secrets.token_hex(8), kind)
        with self._lock:
            under_way = sum(not known.over.is_set() for known in self._works.values())
            if under_way >= self._limit:
                raise Busy(f"{under_way} pieces of work are waiting already. Try again in a little while.")
            self._works[work.id] = work
            # Not a `base.Cache`: a running job must not be dropped, and the newest result stays until the next job
            # starts, whatever its size, for the page that waits for it may not have read it yet.
            room = KEPT_BYTES
            ended = [known for known in self._works.values() if known.over.is_set()]
            for newer, known in enumerate(reversed(ended)):
                room -= known.num_bytes
                if newer and (room < 0 or newer >= MAX_KEPT):
                    del self._works[known.id]
        # Outside of the lock, and after the job is listed: a job that ends at once must be found.
        (self._cells if kind == "cell" else self._pool).submit(work.run, run)
        return work.id

    async def wait(self, job: str, seconds: float = 0.0) -> Job:
        """The state of a job, as soon as it ends or after `seconds`. Raises NotHere."""
        work, until = self._find(job), time.monotonic() + seconds
        # Asleep and awake by turns: `over.wait` would stand still with the event loop, and every request with it.
        while not work.over.is_set() and time.monotonic() < until:
            work.requested_at = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)
        work.requested_at = time.monotonic()
        return work.to_job()

    def stop(self, job: str) -> Job:
        """Stop a job at its next step; one that has ended stays as it is. Raises NotHere."""
        work = self._find(job)
        work.stopped = True
        work.over.wait(0.2)  # most jobs stop within a layer: the answer then says that it has stopped
        return work.to_job()

    def close(self) -> None:
        """Stop everything and wait for nothing."""
        # A list, for a request that is under way may start a job meanwhile; a thread ends at its job's next step only.
        for work in list(self._works.values()):
            work.stopped = True
        for pool in (self._pool, self._cells):
            pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, job: str) -> _Work:
        with self._lock, suppress(KeyError):
            return self._works[job]
        raise NotHere("there is no such job: it ended long ago, or the studio was started again since.")
