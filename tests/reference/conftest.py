"""Fresh randomness for NumPy, which a failure can repeat."""

import numpy as np
import pytest

from tests.seeds import seed


@pytest.fixture
def rng():
    return np.random.default_rng(seed())
