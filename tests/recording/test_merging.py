"""Pieces merge to words exactly: the oracle is a double loop in NumPy over the whole map of pieces."""

import numpy as np
import pytest
import torch

from manyheads.errors import ShapeError
from manyheads.recording.words import HOWS, Merging, merge
from tests.recording.onelayer import assert_near
from tests.recording.wordtexts import naive_merge

# ------------------------------------------------------------------------------------------------------------- merging

CHECK = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
CHECKED = {"first": (0.25, 0.5, 0.25), "mean": (0.325, 0.5, 0.175), "max": (0.3478, 0.4348, 0.2174)}


@pytest.mark.parametrize("how", HOWS)
def test_the_check_vector_of_clark_et_al(how):
    numbers = torch.tensor([0, 1, 1, 2])
    got = merge(CHECK, numbers, numbers, how)
    assert_near(got[1], CHECKED[how], atol=5e-5)
    assert_near(got[0], (0.1, 0.5, 0.4), atol=1e-6)
    assert_near(got[2], (0.7, 0.2, 0.1), atol=1e-6)


def test_the_mean_is_the_default():
    numbers = torch.tensor([0, 1, 1, 2])
    assert torch.equal(merge(CHECK, numbers, numbers), merge(CHECK, numbers, numbers, "mean"))


def groups(numbers):
    return [np.flatnonzero(np.asarray(numbers) == word) for word in range(max(numbers) + 1)]


@pytest.mark.parametrize("how", HOWS)
def test_merging_is_the_double_loop(rng, how):
    """Rows of any mass, words of scattered pieces, pieces of none: as a batch of heads and alone, in blocks or not."""
    for _ in range(5):
        weights = rng.random((3, 11, 7)) * (rng.random((3, 11, 7)) < 0.7)
        weights[:, 4] = 0  # a row that sees nothing
        rows = [*rng.permutation([0, 1, 2, 3]), *rng.integers(-1, 4, 7)]
        columns = [*rng.permutation([0, 1, 2]), *rng.integers(-1, 3, 4)]
        want = np.stack([naive_merge(each, groups(rows), groups(columns), how) for each in weights])
        numbers = torch.tensor(rows), torch.tensor(columns)
        assert_near(merge(torch.from_numpy(weights), *numbers, how), want, atol=1e-12)
        assert_near(merge(torch.from_numpy(weights)[1], *numbers, how), want[1], atol=1e-12)
        blocks = Merging(*numbers, how)
        for begin in range(0, 11, 2):
            blocks.add(torch.from_numpy(weights)[:, begin : begin + 2], begin)
        assert_near(blocks.weights, want, atol=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_sum_to_one_still_do(rng, how):
    weights = torch.from_numpy(rng.random((3, 9, 9)) ** 4)
    weights /= weights.sum(-1, keepdim=True)
    numbers = torch.tensor([0, 1, 1, 1, 2, 3, 3, 4, 4])
    got = merge(weights, numbers, numbers, how)
    assert_near(got.sum(-1), torch.ones(3, 5), atol=1e-12)
    assert (got - merge(weights, numbers, numbers, HOWS[HOWS.index(how) - 1])).abs().max() > 0.01  # the ways differ


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_see_nothing_stay_zero(how):
    numbers = torch.tensor([0, 0, 1])
    assert torch.equal(merge(torch.zeros(3, 3), numbers, numbers, how), torch.zeros(2, 2))


def test_half_precision_is_merged_in_float32():
    numbers = torch.zeros(2048, dtype=torch.long)
    weights = torch.full((2048, 2048), 1 / 2048).bfloat16()
    got = merge(weights, numbers, numbers)
    assert got.dtype == torch.float32
    assert_near(got, [[1.0]])


# --------------------------------------------------------------------------------------------------------------- limits


def test_numbers_that_do_not_fit_the_weights_are_refused():
    two = torch.tensor([0, 1])
    with pytest.raises(ShapeError, match="to_words numbers 2 pieces, but the weights have 3 there: give one each"):
        merge(torch.ones(2, 3), two, two)
    with pytest.raises(ShapeError, match=r"from_words must number words 0, 1, 2 .* without a gap .*, not \[0, 2\]"):
        merge(torch.ones(2, 2), torch.tensor([0, 2]), two)
    with pytest.raises(ShapeError, match=r"to_words must number .* not \[-2, 0\]"):
        merge(torch.ones(2, 2), two, torch.tensor([0, -2]))
