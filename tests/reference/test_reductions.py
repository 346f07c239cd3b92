"""Reductions of whole maps, held to pencil."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import ShapeError
from manyheads.reference import reductions
from tests.refusals import refuses

SMALL = np.array([[[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.25, 0.25, 0.25]]])  # h q k: 1, 3, 4
SEEN = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], bool)


def test_reductions_of_a_row_and_bands_by_hand():
    ln2, ln4 = np.log(2), np.log(4)
    assert_allclose(reductions.mass(SMALL), [[1, 0, 0.75]])
    assert_allclose(reductions.entropy(SMALL), [[0.5 * ln2 + 0.5 * ln4, 0, 0.75 * ln4]])
    assert_allclose(reductions.square(SMALL), [[0.375, 0, 0.1875]])
    assert_allclose(reductions.maximum(SMALL), [[0.5, 0, 0.25]])
    assert_array_equal(reductions.strongest(SMALL, SEEN), [[0, -1, 1]])  # the first of equals; nothing seen; as before
    assert_allclose(reductions.distance(SMALL), [[0.75, 0, 0.25 + 0 + 0.25]])
    assert_allclose(reductions.linear(SMALL, np.array([8, 4, 0, 16])), [[5, 0, 5]])
    assert_allclose(reductions.received(SMALL), [[0.5, 0.5, 0.5, 0.25]])
    got = reductions.band(SMALL, [-2, 0, 1, 3])
    assert_allclose(got, [[[0, 0.5, 0.25, 0], [0, 0, 0, 0], [0, 0.25, 0.25, 0]]])
    assert reductions.band(SMALL, []).shape == (1, 3, 0)


def test_the_strongest_key_is_a_visible_one_even_at_weight_0():
    assert_array_equal(reductions.strongest(np.zeros((2, 1, 4)), np.array([[0, 0, 1, 1]], bool)), [[2], [2]])
    each = np.array([[[0, 1, 1, 0]], [[0, 0, 0, 1]]], bool)  # one mask a head
    assert_array_equal(reductions.strongest(np.zeros((2, 1, 4)), each), [[1], [3]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, (1 + 8, 16 + 32)),
        ({"earlier": True}, (1, 16 + 32)),
        ({"elsewhere": True}, (8, 16)),
        ({"earlier": True, "elsewhere": True}, (0, 16)),
    ],
    ids=str,
)
def test_match_by_hand(how, expected):
    """Labels of rows 5 6 -1, of keys 5 . . 5 for row 0 and 6 6 . . for row 1; -1 matches nothing, not even -1."""
    weights = 2.0 ** np.arange(12).reshape(1, 3, 4)
    rows = np.array([5, 6, -1])
    of_first = reductions.match(weights, rows, np.array([5, -1, -1, 5]), **how).sum(2)
    of_second = reductions.match(weights, rows, np.array([6, 6, -1, -1]), **how).sum(2)
    assert_array_equal(of_first, [[expected[0], 0, 0]])
    assert_array_equal(of_second, [[0, expected[1], 0]])


def test_pooled_by_hand_to_more_blocks_than_positions_by_each_heads_cells_or_another_way():
    # Rows 0 1 | 2 and keys 0 1 | 2 3: position i of n lies in block i * 2 // n.
    assert_allclose(reductions.pooled(SMALL, SEEN, 2), [[[0.375, 0.25], [0.25, 0.25]]])
    assert_allclose(reductions.pooled(SMALL, SEEN, 2, "max"), [[[0.5, 0.25], [0.25, 0.25]]])
    hidden = SEEN.copy()
    hidden[2] = False
    assert_allclose(reductions.pooled(SMALL, hidden, 2), [[[0.375, 0.25], [np.nan, np.nan]]])
    got = reductions.pooled(SMALL, SEEN, 5)
    expected = np.full((1, 5, 5), np.nan)
    expected[:, :3, :4] = np.where(SEEN, SMALL, np.nan)
    assert_allclose(got, expected)
    weights, seen = np.ones((2, 2, 2)), np.array([[[1, 1], [1, 1]], [[0, 0], [0, 1]]], bool)
    weights[1, 1, 1] = 0.25
    assert_allclose(reductions.pooled(weights, seen, 1), [[[1.0]], [[0.25]]])
    message = r"how='median' is not a way to pool a block's cells: use one of mean, max\."
    refuses(ShapeError, message, reductions.pooled, SMALL, SEEN, 2, "median")


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_reductions_of_nothing_are_empty(shape):
    weights, seen = np.zeros(shape), np.zeros(shape, bool)
    for function in (reductions.mass, reductions.entropy, reductions.square, reductions.maximum, reductions.distance):
        assert_array_equal(function(weights), np.zeros(shape[:2]))
    assert_array_equal(reductions.strongest(weights, seen), np.full(shape[:2], -1))
    assert reductions.received(weights).shape == (shape[0], shape[2])
    assert np.isnan(reductions.pooled(weights, seen, 2)).all()
