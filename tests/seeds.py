"""The seed that all random inputs of the tests are drawn from: each commit's own.

A commit draws the same numbers on every machine, in every process and in any order of tests: what passed once passes
again, and the next commit tries others. MANYHEADS_SEED=... draws those of a seed, MANYHEADS_SEED=fresh new ones, as
does a run without git. A failure prints its seed.
"""

import functools
import hashlib
import os
import random
import secrets
import subprocess
from pathlib import Path

import numpy as np
import torch

__all__ = ["draw_all", "seed", "seed_hypothesis", "seed_of"]

ROOT = Path(__file__).parents[1]


@functools.cache
def seed() -> int:
    """Of 32 bits, the same in every process of a run."""
    wanted = os.environ.get("MANYHEADS_SEED", "")
    if wanted not in ("", "fresh"):
        return int(wanted)
    # pytest-xdist gives its processes one name for the run: without a commit they agree by it
    text = (not wanted and commit(ROOT)) or os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex()
    return hashed(text)


def commit(folder: Path) -> str:
    """The hash of what the last commit holds, whoever made it and when; empty where git knows of none."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "rev-parse", "HEAD^{tree}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def seed_of(purpose: str) -> int:
    """Another seed for numbers that must not be those of `fresh`: a model that a test compares with its own, say."""
    return hashed(f"{seed()} {purpose}")


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def draw_all() -> None:
    """torch's, NumPy's and Python's global numbers start again: no test depends on those that its process ran
    before."""
    everywhere = seed_of("global numbers")
    if torch.accelerator.is_available():
        torch.manual_seed(everywhere)
    else:  # it would note the call stack for each kind of device that may yet come: a millisecond a test
        torch.default_generator.manual_seed(everywhere)
    np.random.seed(everywhere)
    random.seed(everywhere)


def seed_hypothesis(examples: int) -> None:
    """Its examples, of a test so many where it asks for no other number, depend on the seed alone: on no clock, no
    failures of other days, and no modules that are loaded."""
    from hypothesis import HealthCheck, core, settings
    from hypothesis.internal.conjecture import providers

    unhurried = {"database": None, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("commit", max_examples=examples, **unhurried)
    settings.load_profile("commit")
    core.global_force_seed = seed()
    # It also tries constants of the modules that are loaded by then, which are others in each process of a run.
    assert callable(providers._get_local_constants)
    nothing = providers.Constants()
    providers._get_local_constants = lambda: nothing
