"""The command `manyheads`: what was typed goes to one command, and every way it can end becomes an exit code.

    0    it worked, or whoever read the output has closed the pipe
    1    our fault: a short message, and the traceback under --debug; of `doctor`: something is wrong here
    2    what was asked cannot be done: one line on stderr that says what came and what to do
    130  Ctrl-C, at any moment: during imports and loading, too
    143  told to end (SIGTERM), the same

stdout is data, stderr is talk. Nothing heavy is imported here nor by the modules of the commands, so that `--help`
and `--version` answer at once. Other libraries' log lines and warnings are held back while a command runs.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from manyheads.cli.exit_codes import ASKED_WRONG, FAULT, INTERRUPTED, OK, TERMINATED

DEBUG = "--debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` is what is typed after `manyheads`; None: `sys.argv`."""
    signals: list[int] = []  # signals; typer makes a code of its own of what a handler raises
    try:
        arguments, debug = _take_debug(list(sys.argv[1:] if argv is None else argv))
        if argv is None:
            _quiet_process()
            signal.signal(signal.SIGTERM, lambda number, _: _terminate(signals, number))
        try:
            with _quiet_libraries():
                from manyheads.cli.commands import run

                code = run(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
        except Exception as error:
            code = _explain(error, debug)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        code = TERMINATED if signals else INTERRUPTED
        _say("stopped.")
    if argv is None:
        gc.freeze()  # the interpreter's last collection would walk a million objects of torch's: a second for nothing
    return code


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """--debug counts wherever it stands, so that it can be added at the end of a line that failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    remaining = [argument for argument in arguments[:end] if argument != DEBUG]
    return remaining + arguments[end:], len(remaining) < end


def _explain(error: Exception, debug: bool) -> int:
    """Say what happened, if there is anything to say, and return the exit code."""
    if story := _import_story(error):  # before anything else is imported: it may be typer or rich
        if debug:
            _trace(error)
        _say(story)
        return ASKED_WRONG
    from manyheads.cli.commands import usage_story
    from manyheads.cli.terminal.console import ClosedPipe
    from manyheads.errors import ManyHeadsError

    if isinstance(error, ClosedPipe | BrokenPipeError):
        _drop_stdout()
        return OK
    if debug:
        _trace(error)
    usage = usage_story(error)
    if usage is not None or isinstance(error, ManyHeadsError):
        _say(usage or str(error))
        return ASKED_WRONG
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _say(f"the output cannot be written: {error.strerror}.")
        _drop_stdout()
        return ASKED_WRONG
    if isinstance(error, MemoryError):
        _say("out of memory. Give a shorter text, or a machine with more of it.")
        return FAULT
    summary = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    advice = "" if debug else f" Run it again with {DEBUG} to see where, and please report that."
    _say(f"this is a fault of manyheads, not yours: {summary}.{advice}")
    return FAULT


def _import_story(error: Exception) -> str:
    """What is wrong with a package of others, or with what it is told; "" for any other exception."""
    from manyheads.doctor import BACKEND, BACKEND_REMEDY, failed_import, in_words, refused_backend

    if refused := refused_backend(error):
        return f"{BACKEND} is wrong: {refused}. {BACKEND_REMEDY}"
    if isinstance(error, MemoryError | BrokenPipeError) or getattr(error, "errno", None) == errno.ENOSPC:
        return ""
    failed = failed_import(error)
    if failed is None:
        return ""
    doctor = "python -m manyheads.doctor says what is"
    if failed.missing:
        return f"{failed.package} is not installed, and this needs it: {doctor}, and what to type."
    reason = in_words(failed.error)
    return f"{failed.package} cannot be imported, and this needs it ({reason}): {doctor} wrong, and what to type."


def _trace(error: Exception) -> None:
    import traceback

    traceback.print_exception(error)


def _say(message: str) -> None:
    """One message on stderr, if there is anybody to read it."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            encoding = sys.stderr.encoding or "ascii"
            print(f"manyheads: {message}".encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)


def _drop_stdout() -> None:
    """What is left for a closed pipe goes nowhere; else the interpreter would complain of it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(told: list[int], number: int) -> None:
    """SIGTERM is as Ctrl-C: whoever cleans up then does so now."""
    told.append(number)
    raise KeyboardInterrupt


def _quiet_process() -> None:
    """Only for a process of our own: download bars are for people, and a pipe or a log is none."""
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Inside, nobody logs below ERROR and nobody warns; everything as before afterwards."""
    import logging
    import warnings

    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)
