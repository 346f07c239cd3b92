"""What tests of recordings share: numbers drawn afresh, and a file to write to."""

import numpy as np
import pytest
import torch


@pytest.fixture
def rng(fresh: torch.Generator) -> np.random.Generator:
    """Like `fresh`, but NumPy's."""
    return np.random.default_rng(fresh.initial_seed())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cat.heads"
