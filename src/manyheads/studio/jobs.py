"""Jobs: work that may take over half a second, off the event loop, with progress, and stopped when nobody wants it.

A job runs in a thread. It says how far it is through `progress`, which is also where it is stopped: by DELETE, or
because nobody has asked after it for `PATIENCE` seconds (a page that was closed). What a job found is kept for a while.
Only so many run at once; a few more wait; beyond that an answer says so instead of piling up.
"""

from __future__ import annotations

import asyncio
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

from manyheads.studio.problems import Busy, NotHere, Stopped, told
from manyheads.studio.schema.base import Said
from manyheads.studio.schema.jobs import Job, JobKind, Progress

__all__ = ["MAX_RUNNING", "Jobs", "Say"]

MAX_RUNNING = 2  # at once: torch uses every core for one already
MAX_WAITING = 16
MAX_KEPT = 256
KEPT_BYTES = 24_000_000  # of what they found, as JSON: in memory it is some ten times as much
PATIENCE = 20.0  # seconds
LOOK_SECONDS = 0.01  # between two looks at a job that is waited for
Say = Callable[[str, int, int | None], None]
"""Called with what is going on, how much is done, and of how much (None: unknown). Raises `Stopped`."""


@dataclass(eq=False)
class _Work:
    """One job's state. `asked` is when somebody last asked after it."""

    id: str
    kind: JobKind
    begun: float = field(default_factory=time.monotonic)
    asked: float = field(default_factory=time.monotonic)
    ended: float | None = None
    progress: Progress = field(default_factory=lambda: Progress(words="waiting its turn", done=0, total=None))
    stopped: bool = False
    result: Any = None
    num_bytes: int = 0
    error: BaseException | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def say(self, words: str, done: int = 0, total: int | None = None) -> None:
        if self.stopped or time.monotonic() - self.asked > PATIENCE:
            raise Stopped(f"{self.kind} was stopped")
        self.progress = Progress(words=words, done=done, total=total)

    def seen(self) -> Job:
        """What is known of it now."""
        state: Literal["running", "done", "failed", "cancelled"] = "running"
        if self.over.is_set():
            state = "done" if self.error is None else "cancelled" if isinstance(self.error, Stopped) else "failed"
        return Job(
            id=self.id,
            kind=self.kind,
            state=state,
            progress=self.progress,
            seconds=round((self.ended or time.monotonic()) - self.begun, 3),
            problem=None if self.error is None else told(self.error)[1],
            result=self.result,
        )


class Jobs:
    """The jobs of one server."""

    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._pool = ThreadPoolExecutor(max_running, thread_name_prefix="studio-job")
        self._works: OrderedDict[str, _Work] = OrderedDict()
        self._lock = threading.Lock()
        self.max_running, self._limit = max_running, max_running + MAX_WAITING

    def start(self, kind: JobKind, run: Callable[[Say], Any]) -> str:
        """Begin, and give the job's id. Raises Busy where too many wait already."""
        work = _Work(secrets.token_hex(8), kind)
        with self._lock:
            under_way = sum(not each.over.is_set() for each in self._works.values())
            if under_way >= self._limit:
                raise Busy(f"{under_way} pieces of work are waiting already. Try again in a little while.")
            self._works[work.id] = work
            self._forget()
        self._pool.submit(self._run, work, run)
        return work.id

    async def wait(self, job: str, seconds: float = 0.0) -> Job:
        """How a job is, at once or as soon as it ends within `seconds`. Raises NotHere."""
        work, until = self._find(job), time.monotonic() + seconds
        while not work.over.is_set() and time.monotonic() < until:
            work.asked = time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)
        work.asked = time.monotonic()
        return work.seen()

    def stop(self, job: str) -> Job:
        """Stop a job at its next step; one that has ended stays as it is."""
        work = self._find(job)
        work.stopped = True
        work.over.wait(0.2)
        return work.seen()

    def close(self) -> None:
        """Stop everything and wait for nothing."""
        for work in list(self._works.values()):
            work.stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self) -> None:
        """Drop what ended longest ago. What ended last stays, whatever its size."""
        ended = [each for each in self._works.values() if each.over.is_set()]
        room = KEPT_BYTES
        for at, work in enumerate(reversed(ended)):
            room -= work.num_bytes
            if at and (room < 0 or at >= MAX_KEPT):
                del self._works[work.id]

    def _find(self, job: str) -> _Work:
        with self._lock, suppress(KeyError):
            return self._works[job]
        raise NotHere("there is no such job: it ended long ago, or the studio was started again since.")

    def _run(self, work: _Work, run: Callable[[Say], Any]) -> None:
        try:
            work.say("starting")
            work.result = run(work.say)
            work.num_bytes = len(work.result.model_dump_json()) if isinstance(work.result, Said) else 0
        except Exception as error:  # a fault of ours too is said to the page, and in the server's log, by whoever asks
            work.error = error
            _let_go(error)
        finally:
            work.ended = time.monotonic()
            work.over.set()


def _let_go(error: BaseException | None) -> None:
    """Drop what the frames of an error and of those behind it hold, whole files among it; their lines stay."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
