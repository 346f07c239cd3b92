"""Parts of a benchmark in the order of their worth, for a machine that is there once and for so many minutes.

A worker, a process of its own, makes one part after another and writes a line of JSON for everything that it finds;
`run_parts` keeps every line at once. A part that raises, hangs or dies costs its own time and no other part: the worker
is ended, which frees the device and clears an error of CUDA, and a fresh one makes the next part. (One worker for all
parts, since importing torch and transformers takes longer than most of them.)

Each part is sure of its share of the time, and has up to three where earlier parts left some over.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, NamedTuple

Line = dict[str, Any]
GRACE = 5.0  # seconds that a worker has to end by itself
MOST = 3  # shares that a part may have, where earlier ones left time over
TAIL = 6_000  # characters of what a worker said on stderr before it died
SHOWN = 80  # characters of a line that is no JSON
LINES, LOG = "lines.jsonl", "stderr.txt"  # in the folder of a run
ENDED = "a part has ended"

# =============================================================================================================== worker


class Clock:
    """How much time a part has left."""

    def __init__(self, until: float) -> None:
        self.until = until  # as `time.time` counts, which two processes share

    def left(self) -> float:
        return self.until - time.time()

    def fits(self, seconds: float) -> bool:
        """Whether something that takes so many seconds is over in time."""
        return seconds < self.left()


Part = Callable[[Clock], Iterator[Line]]
"""Yields what it finds. A line that says `"exact": False` makes the part wrong, and lets it go on."""


def work(parts: Mapping[str, Part]) -> int:
    """A worker: make the parts that are named on stdin until it is closed, or until one of them goes wrong."""
    # Lines have stdout to themselves: what libraries print goes where their warnings go.
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()

    def tell(line: Line) -> None:
        print(json.dumps(line), file=answers, flush=True)

    for order in sys.stdin:
        name, until = json.loads(order)
        clock, begin, wrong = Clock(until), time.perf_counter(), 0
        # Says where a part hangs, from a thread that needs nothing of Python, and ends the process.
        faulthandler.dump_traceback_later(max(0.1, clock.left()), exit=True)
        fault = None
        try:
            for line in parts[name](clock):
                wrong += line.get("exact") is False
                tell(line)
        except Exception:
            fault = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        # What is not exact may be a fault of the device, which no later call of this process would survive.
        because = fault or (f"{wrong} of its lines are not exact" if wrong else None)
        tell({"what": ENDED, "because": because, "seconds": time.perf_counter() - begin, "goes_on": because is None})
        if because is not None:
            return 1
    return 0


# =============================================================================================================== runner


class Ended(NamedTuple):
    """How a part ended: why it is wrong (None: it is right), its seconds, and whether its worker can make another.

    `seconds` is None where the worker did not live to say it.
    """

    because: str | None
    seconds: float | None
    goes_on: bool


class Worker:
    """A worker process, whose lines are read by a thread of ours."""

    def __init__(self, command: Sequence[str], log: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        self.lines: Queue[Line | str | None] = Queue()  # a str: what is no JSON; None: its lines have ended
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout as lines:
                for line in lines:
                    if line.startswith("{"):
                        try:
                            self.lines.put(json.loads(line))
                        except json.JSONDecodeError:  # a worker was killed in the middle of it
                            self.lines.put(line.rstrip("\n"))
        finally:  # without an end, the part would wait for as long as it may
            self.lines.put(None)

    def order(self, name: str, until: float) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([name, until]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it has died: that its lines have ended tells
            pass

    def make(self, name: str, until: float, tell: Callable[[Line], None]) -> Ended:
        """Have it make a part, and tell every line of it. A line that is no JSON is left out, and makes it wrong."""
        begin, unread = time.time(), ""
        self.order(name, until)
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until + GRACE - time.time()))
            except Empty:
                because = f"{unread}it was ended after {time.time() - begin:.0f} s, all the time that it had"
                return Ended(because, None, False)
            if line is None:
                late = ", when its time was up" if time.time() >= until - 0.5 else ""
                return Ended(f"{unread}its process ended{late} ({_code(self.process.wait())})", None, False)
            if isinstance(line, str):
                unread += f"a line of it is no JSON, and left out: {line[:SHOWN]!r}; "
            elif line["what"] == ENDED:
                because = f"{unread}{line['because'] or ''}".removesuffix("; ") or None
                return Ended(because, line["seconds"], line["goes_on"])
            else:
                tell({"part": name, **line})

    def end(self, patience: float) -> None:
        """End it, with what it started itself: by its own choice in so many seconds, else by force."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(GRACE)


def run_parts(shares: Mapping[str, float], command: Sequence[str], seconds: float, out: Path | None = None) -> int:
    """Make the parts with these shares of the time, in this order; 1 if any of them went wrong, 0 otherwise.

    `command` starts a worker. Every line goes to stdout, and to `lines.jsonl` in the folder `out` as soon as it is
    there; `stderr.txt` has what workers say besides. Without its first part, which looks at the device, no other is
    made. Each part ends with a line of its own: whether it is right, wrong and because of what, or left out.
    """
    begin = time.time()
    outcomes: dict[str, str] = {}
    stopped = False
    with ExitStack() as stack:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            lines: IO[str] | None = stack.enter_context((out / LINES).open("a", encoding="utf-8"))
            log: IO[bytes] = stack.enter_context((out / LOG).open("ab+"))
        else:
            lines, log = None, stack.enter_context(tempfile.TemporaryFile())

        def tell(line: Line) -> None:
            text = json.dumps(line)
            print(text, flush=True)
            if lines is not None:
                lines.write(text + "\n")
                lines.flush()
                os.fsync(lines.fileno())

        def finish(name: str, outcome: str, **more: Any) -> None:
            outcomes[name] = outcome
            tell({"part": name, "what": f"part {name}", "outcome": outcome, **more})
            if outcome != "right":
                print(f"{name}: {outcome}: {str(more['because']).strip().splitlines()[-1]}", file=sys.stderr)

        worker: Worker | None = None
        names, end, whole = list(shares), begin + seconds, sum(shares.values())
        try:
            with stopped_by_signals():
                for index, name in enumerate(names):
                    # Sure of its share; of what is not kept for later parts it gets some, lest one that hangs has all.
                    share = seconds * shares[name] / whole
                    limit = end - time.time() - seconds * sum(shares[later] for later in names[index + 1 :]) / whole
                    limit = min(limit, MOST * share)
                    if index and outcomes[names[0]] != "right":
                        finish(name, "left out", because=f"the part {names[0]!r} went wrong")
                        continue
                    if limit < share / 4:
                        finish(name, "left out", because=f"{max(limit, 0):.0f} s were left for it")
                        continue
                    said = log.seek(0, os.SEEK_END)
                    worker = worker or Worker(command, log)
                    ended = worker.make(name, time.time() + limit, tell)
                    because = ended.because
                    if not ended.goes_on:
                        worker.end(0 if ended.seconds is None else GRACE)
                        worker = None
                    if ended.seconds is None:
                        because = f"{_tail(log, said)}\n{because}".strip()
                    finish(name, "wrong" if because else "right", because=because, seconds=ended.seconds)
        except KeyboardInterrupt:
            for name in names[len(outcomes) :]:
                finish(name, "left out", because="the run was stopped")
            stopped = True
        finally:
            if worker is not None:
                worker.end(0 if stopped else GRACE)
        by_outcome = {kind: [n for n, o in outcomes.items() if o == kind] for kind in ("right", "wrong", "left out")}
        tell({"what": "all parts", **by_outcome, "seconds": time.time() - begin})
        return int(stopped or bool(by_outcome["wrong"]))


def _code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _tail(log: IO[bytes], begin: int) -> str:
    """The last of what was said on stderr since then."""
    log.seek(begin)
    return log.read().decode("utf-8", "replace")[-TAIL:]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM, by which a machine that is lent takes it back, as Ctrl-C: what is known is written down."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
