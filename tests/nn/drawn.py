"""What Hypothesis draws for masks: how many, from which seeds, and masks whose rows are runs."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

DRAWN = settings(deadline=None, max_examples=60)
SEEDS = st.integers(0, 2**32 - 1)


def runs(rng, num_texts, num_rows, num_keys):
    """A random run for every row, empty ones among them, as a dense mask [b, 1, q, k]."""
    ends = np.sort(rng.integers(0, num_keys + 1, (2, num_texts, num_rows)), axis=0)
    key = np.arange(num_keys)
    return ((key >= ends[0][..., None]) & (key < ends[1][..., None]))[:, None]
