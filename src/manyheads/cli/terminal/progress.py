"""What is going on, on stderr: a line that comes and goes on a terminal, plain lines for slow steps elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.text import Text

from manyheads.cli.terminal.console import clean, stderr_console

SLOW_SECONDS = 1.0  # what is over sooner needs no line in a log
LINE_SECONDS = 5.0  # between two lines of the same step


@runtime_checkable
class Progress(Protocol):
    """How far a step is: done, of how many (None: nobody knows), and what else there is to say (a loss)."""

    def __call__(self, done: int, total: int | None, note: str = "", /) -> None: ...


class ProgressLine:
    """The steps of one command: `with talk.step("reading the page") as progress: ... progress(done, total)`."""

    def __init__(self) -> None:
        self.console = stderr_console()

    def silence(self) -> None:
        """Say nothing from here on: another process speaks for this one."""
        self.console.quiet = True

    def note(self, message: str) -> None:
        """Something worth knowing that is no data."""
        self.console.print(Text(f"note: {clean(message)}"), soft_wrap=True)

    @contextmanager
    def steps(self) -> Iterator[Steps]:
        """Steps one after another, where it is found out on the way which there are."""
        with ExitStack() as stack:
            yield Steps(self, stack)

    @contextmanager
    def step(self, label: str, *, bar: bool = True) -> Iterator[Progress]:
        """`bar=False` leaves the terminal's last line to somebody else's bar (a download's)."""
        label = clean(label)
        if not self.console.is_terminal or not bar:
            with _lines(self.console, label, at_once=not bar) as progress:
                yield progress
            return
        pace = _Pace(label)
        with self.console.status(Text(label)) as status:
            yield lambda done, total, note="", /: status.update(Text(pace.said(done, total, note)))


class Steps:
    """Steps one after another: `begin` ends the one before. `progress` is of the one that is on."""

    def __init__(self, talk: ProgressLine, stack: ExitStack) -> None:
        self._talk, self._stack = talk, stack
        self._now: Progress | None = None

    def begin(self, label: str) -> Progress:
        """End the step before, and begin the one with this label."""
        self._stack.close()
        self._now = self._stack.enter_context(self._talk.step(label))
        return self._now

    def progress(self, done: int, total: int | None, note: str = "", /) -> None:
        """How far the present step is; nothing before the first."""
        if self._now is not None:
            self._now(done, total, note)


@contextmanager
def _lines(console: Console, label: str, at_once: bool) -> Iterator[Progress]:
    """A line once the step has proved slow, and now and then how far it is."""
    lock, pace = threading.Lock(), _Pace(label)  # the timer's thread writes, too
    last_line, is_over = 0.0, False

    def say(line: str) -> None:
        nonlocal last_line
        last_line = time.monotonic()
        console.print(Text(line), soft_wrap=True)

    def begin() -> None:
        with lock:
            if not last_line:
                say(label)

    def progress(done: int, total: int | None, note: str = "", /) -> None:
        nonlocal is_over
        with lock:
            line = pace.said(done, total, note)
            if not last_line or is_over:
                return
            is_over = total is not None and done >= total  # some say so twice, and it is written once
            if is_over or time.monotonic() - last_line >= LINE_SECONDS:
                say(line)

    timer = threading.Timer(0.0 if at_once else SLOW_SECONDS, begin)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()


class _Pace:
    """How fast a step goes since it was first asked: a run that is taken up again begins in the middle."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._first: tuple[float, int] | None = None

    def said(self, done: int, total: int | None, note: str = "") -> str:
        """How far it is and, of what takes long, how much time is left; where nobody knows the end, what is done."""
        if total is None:
            return f"{self._label} {done:,}{f', {clean(note)}' if note else ''}"
        if self._first is None or done < self._first[1]:  # or another part of the step
            self._first = (time.monotonic(), done)
        seconds, gone = time.monotonic() - self._first[0], done - self._first[1]
        remaining = seconds / gone * (total - done) if gone else 0.0
        line = f"{self._label} {done / max(total, 1):.0%}{f', {clean(note)}' if note else ''}"
        if seconds <= SLOW_SECONDS or remaining <= LINE_SECONDS:
            return line
        # As people say it: 40 s, 3 min, 2 h 10 min.
        minutes = round(remaining / 60)
        long = f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
        return f"{line}, {f'{remaining:.0f} s' if remaining < 90 else long} left"
