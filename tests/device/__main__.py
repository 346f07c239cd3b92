"""`python -m tests.device [pytest's arguments]`: the cases, on the simulated accelerator, in this process.

`-k measure -x` runs some of them, `-m ""` the slow ones, too.
"""

from tests.device import simulated  # isort: skip  # before anything that imports torch

import sys

import pytest

simulated.install()
cases = simulated.FOLDER / "cases"
some = any(str(cases.name) in argument for argument in sys.argv[1:])
options = [
    *("-q", "-p", "no:cacheprovider", "-m", "not slow"),
    # Without jaxtyping's checks, which the same functions meet on the host: they cost a third of the time.
    *("-o", "addopts=--import-mode=importlib --strict-markers --strict-config"),
    # torch imports its own deprecated parts where a device is met.
    *("-W", "ignore:`torch.jit.script:DeprecationWarning"),
]
raise SystemExit(pytest.main([*options, *([] if some else sorted(map(str, cases.glob("*.py")))), *sys.argv[1:]]))
