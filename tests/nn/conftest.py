"""What tests of layers and kernels share: fresh randomness for NumPy, and queries, keys and values drawn from it."""

import numpy as np
import pytest
import torch

from tests.nn.attended import make_qkv


@pytest.fixture
def rng(fresh: torch.Generator) -> np.random.Generator:
    """Like `fresh`, but NumPy's."""
    return np.random.default_rng(fresh.initial_seed())


@pytest.fixture
def qkv(rng):
    return make_qkv(rng)
