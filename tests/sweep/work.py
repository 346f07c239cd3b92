"""Each architecture in a process of its own, one after another: what hangs or eats memory is killed, and said."""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
import time
import warnings

from tests.sweep.judge import INEXACT, NOT_BUILT, Verdict, judge

SECONDS = 45
MEMORY_BYTES = 16 * 2**30


def judged(name: str, seconds: float = SECONDS) -> Verdict:
    """The verdict on one architecture, from a fork of this process."""
    begun = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(name, writer)
    os.close(writer)
    said = _read(reader, begun + seconds)
    os.close(reader)
    if said is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        verdict = Verdict(**json.loads(said))
    else:
        why = f"no answer within {seconds:.0f} s" if said is None else f"its process died (status {status})"
        verdict = Verdict(name, outcome=NOT_BUILT if said is None else INEXACT, because=why)
    verdict.seconds = round(time.monotonic() - begun, 1)
    return verdict


def _read(reader: int, until: float) -> str | None:
    """All that the child says; None where it is still busy at the end."""
    parts = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def _child(name: str, writer: int) -> None:
    """Never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    silent = os.open(os.devnull, os.O_WRONLY)
    if not os.environ.get("SWEEP_TALKS"):
        os.dup2(silent, 1)
        os.dup2(silent, 2)
    warnings.simplefilter("ignore")
    logging.getLogger("manyheads").setLevel(logging.ERROR)
    try:
        text = json.dumps(judge(name).to_dict())
        os.write(writer, text.encode())
    finally:
        os.close(writer)
        sys.stdout.flush()
        os._exit(0)
