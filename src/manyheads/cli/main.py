"""The command `manyheads`: what was typed goes to one command, and every way it can end becomes an exit code.

    0    it worked, or whoever read the output has closed the pipe
    1    our fault: a short message (--debug: the traceback); `doctor`: something is wrong; `practice`: not right
    2    what was asked cannot be done: one line on stderr that says what came and what to do
    130  Ctrl-C, at any moment, also during imports and loading
    143  told to end (SIGTERM), the same

stdout is data, stderr is talk. Nothing heavy is imported here nor by the modules of the commands, so that `--help`
and `--version` answer at once. Other libraries' log lines and warnings are held back while a command runs.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from manyheads.cli import start
from manyheads.cli.failed_imports import failed_import, in_words, refused_backend
from manyheads.errors import ManyHeadsError
from manyheads.machine import is_out_of_memory
from manyheads.progress import no_bars

DEBUG = "--debug"
OK, FAULT, ASKED_WRONG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` is what is typed after `manyheads`; None: `sys.argv`."""
    is_terminated = False  # typer makes an exit code of its own of what a signal's handler raises, so the cause is kept

    def terminate(number: int, frame: object) -> None:
        """SIGTERM ends a command as Ctrl-C does: whoever cleans up then does so now."""
        nonlocal is_terminated
        is_terminated = True
        raise KeyboardInterrupt

    try:
        typed = list(sys.argv[1:] if argv is None else argv)
        # --debug counts wherever it stands, so that it can be added at the end of a line that failed.
        end = typed.index("--") if "--" in typed else len(typed)
        arguments = [argument for argument in typed[:end] if argument != DEBUG]
        debug = len(arguments) < end
        arguments += typed[end:]
        if argv is None:  # a process of our own, whose environment and signals are ours to set
            if sys.stderr is None or not sys.stderr.isatty():
                # Download bars are for people, and a pipe or a log is none.
                os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            # Torch's threads spin while they wait for each other, and so keep the cores that they wait for busy: beside
            # two busy processes a text took up to 20 times its time. A short spin costs nothing alone; to sleep at once
            # costs a fourth (`benchmarks.busy`). Read once, when torch is imported.
            if "OMP_WAIT_POLICY" not in os.environ:
                os.environ.setdefault("GOMP_SPINCOUNT", "5000")
            signal.signal(signal.SIGTERM, terminate)
            start.begin()
        try:
            with warnings.catch_warnings(action="ignore"), ExitStack() as stack:
                # Inside, nobody logs below ERROR and nobody warns; afterwards everything is as before.
                stack.callback(logging.disable, logging.root.manager.disable)
                logging.disable(max(logging.root.manager.disable, logging.WARNING))
                # Typer or rich may be missing or broken, and `_explain` is to say so: nothing above imports them.
                from manyheads.cli.commands import run

                stack.enter_context(no_bars())  # a command has a line of its own
                code = run(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
        except Exception as error:
            code = _explain(error, debug, next(iter(arguments), ""))
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        code = TERMINATED if is_terminated else INTERRUPTED
        _say("stopped.")
    if argv is None:
        gc.freeze()  # the interpreter's last collection would walk a million objects of torch's: a second for nothing
    return code


def _explain(error: Exception, debug: bool, command: str) -> int:
    """Say what happened, if there is anything to say, and return the exit code."""
    story = _import_story(error)
    if story:  # before the commands are imported: they may be what cannot be
        if debug:
            traceback.print_exception(error)
        _say(story)
        return ASKED_WRONG
    # Both import typer or rich, of which `_import_story` has now said that neither is what is wrong.
    from manyheads.cli.commands import usage_story
    from manyheads.cli.terminal.console import ClosedPipe  # as above

    if isinstance(error, ClosedPipe | BrokenPipeError):
        _drop_stdout()
        return OK
    if debug:
        traceback.print_exception(error)
    usage = usage_story(error, command)
    if usage is not None or isinstance(error, ManyHeadsError):
        _say(usage or str(error))
        return ASKED_WRONG
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _say(f"the output cannot be written: {error.strerror}.")
        _drop_stdout()
        return ASKED_WRONG
    if is_out_of_memory(error):
        _say("out of memory. Give a shorter text, a smaller --dtype, or a --device with more memory.")
        return FAULT
    summary = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    advice = "" if debug else f" Run it again with {DEBUG} to see where, and please report that."
    _say(f"this is a fault of manyheads, not yours: {summary}.{advice}")
    return FAULT


def _import_story(error: Exception) -> str:
    """What is wrong with a package of others, or with what it is told; "" for any other exception."""
    if refused := refused_backend(error):
        return refused
    if isinstance(error, MemoryError | BrokenPipeError) or getattr(error, "errno", None) == errno.ENOSPC:
        return ""
    failed = failed_import(error)
    if failed is None:
        return ""
    what, reason = "is not installed", ""
    if not failed.missing:
        what, reason = "cannot be imported", f" ({in_words(failed.error)})"
    # The command, since the doctor itself needs typer and rich.
    remedy = f"{failed.remedy}. If that is not all: manyheads doctor."
    return f"{failed.package} {what}, and this needs it{reason}: {remedy}"


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
