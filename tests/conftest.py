"""What tests of several folders share: the bundled model, and fresh randomness that a failure can repeat."""

import math
import os
import secrets

import pytest
import torch

from tests import checking
from tests.thinning import thin

checking.install()

# Matrices here are small: a second thread gains nothing on an idle machine; on a busy one each product waits for it.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
    thin(items)


def pytest_configure(config):
    if not config.option.markexpr:  # `make test-all`
        checking.running.calls = math.inf


def pytest_runtest_setup(item):
    checking.running.file = item.parent.nodeid


@pytest.fixture
def fresh() -> torch.Generator:
    """Other numbers on every run. A failure prints its seed: MANYHEADS_SEED=... repeats it."""
    seed = int(os.environ.get("MANYHEADS_SEED") or secrets.randbits(32))
    print(f"MANYHEADS_SEED={seed}")
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def minilm():
    """The bundled model, loaded once. Its absence is a failure: half the claims here are about it."""
    import manyheads as mh

    return mh.load("minilm")
