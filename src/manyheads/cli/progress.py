"""What is going on, on stderr: a line that comes and goes on a terminal, plain lines for slow steps elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from manyheads.cli.console import clean, stderr_console

SLOW_SECONDS = 1.0  # what is over sooner needs no line in a log
LINE_SECONDS = 5.0  # between two lines of the same step

Progress = Callable[[int, int], None]


class Talk:
    """The steps of one command: `with talk.step("reading the page") as progress: ... progress(done, total)`."""

    def __init__(self) -> None:
        self.console = stderr_console()

    def note(self, message: str) -> None:
        """Something worth knowing that is no data."""
        self.console.print(Text(f"note: {clean(message)}"), soft_wrap=True)

    @contextmanager
    def step(self, what: str, *, bar: bool = True) -> Iterator[Progress]:
        """`bar=False` leaves the terminal's last line to somebody else's bar (a download's)."""
        what = clean(what)
        if not self.console.is_terminal or not bar:
            with _lines(self.console, what, at_once=not bar) as progress:
                yield progress
            return
        with self.console.status(Text(what)) as status:
            yield lambda done, total: status.update(Text(_share(what, done, total)))


@contextmanager
def _lines(console: Console, what: str, at_once: bool) -> Iterator[Progress]:
    """A line once the step has proved slow, and now and then how far it is."""
    lock, last = threading.Lock(), [0.0]

    def say(line: str) -> None:
        last[0] = time.monotonic()
        console.print(Text(line), soft_wrap=True)

    def begin() -> None:
        with lock:
            if not last[0]:
                say(what)

    def progress(done: int, total: int) -> None:
        with lock:
            if last[0] and done < total and time.monotonic() - last[0] >= LINE_SECONDS:
                say(_share(what, done, total))

    timer = threading.Timer(0.0 if at_once else SLOW_SECONDS, begin)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()


def _share(what: str, done: int, total: int) -> str:
    return f"{what} {done / max(total, 1):.0%}"
