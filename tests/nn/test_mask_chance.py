"""Chance levels under a mask: what a head that looks everywhere alike gives to a column.

Hypothesis draws the masks; a failure prints the smallest one that fails.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.nn import Mask
from tests.nn.drawn import DRAWN, SEEDS, runs

B, H, Q, K = 2, 3, 7, 11


def uniform_mass(visible, column):
    """By the definition, row by row: the mean of the column over visible keys; of heads, over those that see any."""
    num_texts, num_heads, num_rows, _ = visible.shape
    num_texts = max(num_texts, len(column))
    out = np.zeros((num_texts, num_rows))
    for b, i in np.ndindex(out.shape):
        rows = [visible[b % len(visible), h, i] for h in range(num_heads)]
        levels = [column[b % len(column)][row].mean() for row in rows if row.any()]
        out[b, i] = np.mean(levels) if levels else 0
    return out


@DRAWN
@given(
    seed=SEEDS,
    kind=st.sampled_from(["runs", "dense", "head by head"]),
    num_texts=st.integers(1, 3),
    shared=st.sampled_from(["neither", "mask", "column"]),
)
def test_uniform_mass_is_the_mean_over_visible_keys(seed, kind, num_texts, shared):
    rng = np.random.default_rng(seed)
    of_mask, of_column = (1 if shared == name else num_texts for name in ("mask", "column"))
    visible = runs(rng, of_mask, Q, K)
    if kind != "runs":
        visible = rng.random((of_mask, H if kind == "head by head" else 1, Q, K)) < rng.choice([0.05, 0.5])
    column = rng.normal(size=(of_column, K))
    mask = Mask.from_dense(torch.from_numpy(visible))
    got = mask.uniform_mass(torch.from_numpy(column))
    assert got.dtype == torch.float64
    assert_allclose(got, uniform_mass(visible, column), atol=1e-12)


def test_uniform_mass_of_a_padded_dense_mask_that_texts_share():
    rng = np.random.default_rng(5)
    visible, column = rng.random((1, 1, Q, K)) < 0.5, rng.random((B, K)) < 0.5
    mask = Mask.from_dense(torch.from_numpy(visible)).expand(B)
    got = mask.uniform_mass(torch.from_numpy(column).float())
    assert_allclose(got, uniform_mass(visible, column), atol=1e-12)


def test_uniform_mass_of_a_row_that_sees_nothing_is_0():
    mask = Mask.causal(Q, Q, offset=-3)
    got = mask.uniform_mass(torch.ones(1, Q))[0]
    assert_array_equal(got, [0, 0, 0, 1, 1, 1, 1])


def test_only_heads_that_see_something_have_a_chance_level():
    visible = torch.zeros(1, H, 1, K, dtype=torch.bool)
    visible[0, 1, 0, [4, 6]] = True  # one head of three, at the column's one
    column = torch.zeros(1, K)
    column[0, 4] = 1
    assert_array_equal(Mask.from_dense(visible).uniform_mass(column), [[0.5]])
