"""TODO docstring of manyheads.cli.exit_codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from manyheads.cli.main import FAULT
from manyheads.cli.main import INTERRUPTED
from manyheads.cli.main import OK
from manyheads.cli.main import TERMINATED



OK, FAULT, ASKED_WRONG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
