"""How a long run says how far it is: to a caller's function, or as a bar in a terminal or a notebook."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:  # it asks whether this is a notebook as it is imported: only who shows a bar waits for that
    from tqdm import tqdm

__all__ = ["Progress", "ShowProgress", "no_bars", "shows_progress"]

Progress = Callable[[int, int | None], None]
"""Called with what is done and with all there is: tokens read and tokens in all; for pictures and sounds, numbers of
these. For a corpus, how far reading has come in the units of `Corpus.total` (bytes, or texts), and that total, which is
None for a pipe."""

ShowProgress: TypeAlias = "Progress | bool | None"
"""What a verb takes as `progress=`: a function (`Progress`), which is called; True, a bar; False, nothing; None, a bar
where somebody sees it: in a notebook, or where stderr is a terminal, of what takes over a second."""

DELAY_SECONDS = 1.0  # what is over sooner shows no bar
P = ParamSpec("P")
R = TypeVar("R")
_inside: ContextVar[bool] = ContextVar("inside", default=False)  # a verb that another one calls has no bar of its own


@contextmanager
def no_bars() -> Iterator[None]:
    """Nothing below has a bar unless it is told to: the command line has a line of its own."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def shows_progress(label: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function with an argument `progress: ShowProgress = None` show how far it is, under the words `label`.

    The function gets its `Progress`, or None. The bar is tqdm's; it goes when the function returns or raises, so also
    with Ctrl-C, and `TQDM_DISABLE=1` turns all of them off. Other threads than the main one, and other processes of
    torch.distributed than the first, show none unless they are told to.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        place = [*inspect.signature(function).parameters].index("progress")

        @functools.wraps(function)
        def with_bar(*args: P.args, **kwargs: P.kwargs) -> R:
            is_positional = place < len(args)
            shown = args[place] if is_positional else kwargs.get("progress")
            is_bar = shown is True or (shown is None and not _inside.get() and _is_seen())
            bar = _Bar(label) if is_bar else None
            report = bar if isinstance(shown, bool) or shown is None else shown
            positional = (*args[:place], report, *args[place + 1 :]) if is_positional else args
            named = kwargs if is_positional else {**kwargs, "progress": report}
            with no_bars():
                try:
                    return function(*positional, **named)  # pyright: ignore[reportCallIssue] the same but for `progress`
                finally:
                    if bar is not None:
                        bar.close()

        return with_bar

    return decorate


def _is_seen() -> bool:
    """Whether somebody sees a bar: in a notebook, or in a terminal; of several processes the first alone."""
    if threading.current_thread() is not threading.main_thread() or os.environ.get("RANK", "0") != "0":
        return False
    kernel = sys.modules.get("ipykernel.kernelapp")
    return (kernel is not None and kernel.IPKernelApp.initialized()) or (sys.stderr is not None and sys.stderr.isatty())


class _Bar:
    """tqdm's bar as a `Progress`: it comes with the first report after a second."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, done: int, total: int | None) -> None:
        if self._bar is None:
            with warnings.catch_warnings(action="ignore"):  # a notebook without ipywidgets gets the terminal's bar
                from tqdm.auto import tqdm

            self._bar = tqdm(desc=self._label, total=total, delay=DELAY_SECONDS, leave=False, unit_scale=True, unit="")
        if done < self._bar.n:  # another part of the same verb
            self._bar.reset(total)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
