"""`manyheads studio` as a user starts it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*options: str, said: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, on a free port, and its address. What it says on stderr goes into the file `said`."""
    command = [sys.executable, "-m", "manyheads", "studio", *options, "--port", "0", "--no-browser"]
    with open(said, "w", encoding="utf-8") as talk:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=talk, text=True, env={**os.environ, **environment}
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline()
            if "http" not in address:
                raise RuntimeError(f"the studio did not start: {said.read_text(encoding='utf-8')}")
            yield process, address.split()[-1]
        finally:
            process.terminate()
            process.communicate(timeout=60)


def port_of(address: str) -> int:
    """The port of `http://127.0.0.1:8765/`."""
    return int(address.rstrip("/").rsplit(":", 1)[1])
