"""A mask as runs says what the dense mask says, cell by cell, and is dense only where runs cannot say it.

Its chance level is what a head that looks everywhere alike gives to a column.

Hypothesis draws the masks; a failure prints the smallest one that fails.
"""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.attention import Mask, masks
from manyheads.errors import ShapeError
from manyheads.reference import visible_keys
from tests.refusals import refuses

B, H, Q, K = 2, 3, 7, 11
SIZES = st.integers(1, 9)
DRAWN = settings(deadline=None, max_examples=60)
SEEDS = st.integers(0, 2**32 - 1)


def runs(rng, num_texts, num_rows, num_keys):
    """A random run for every row, empty ones among them, as a dense mask [b, 1, q, k]."""
    ends = np.sort(rng.integers(0, num_keys + 1, (2, num_texts, num_rows)), axis=0)
    key = np.arange(num_keys)
    return ((key >= ends[0][..., None]) & (key < ends[1][..., None]))[:, None]


def dense_of(mask: Mask):
    """The whole mask, [b, h or 1, q, k]."""
    return mask.visible(slice(None), slice(None)).numpy()


def is_run(row) -> bool:
    where = np.flatnonzero(row)
    return len(where) == 0 or len(where) == where[-1] - where[0] + 1


# --------------------------------------------------------------------------------------------------------- constructors


def test_full_sees_everything():
    mask = Mask.full(Q, K)
    assert (mask.num_queries, mask.num_keys, mask.dense) == (Q, K, None)
    assert_array_equal(dense_of(mask), np.ones((1, 1, Q, K), bool))


@DRAWN
@given(num_rows=SIZES, num_keys=SIZES, window=st.none() | st.integers(1, 12))
def test_causal_queries_end_where_the_keys_end(num_rows, num_keys, window):
    mask = Mask.causal(num_rows, num_keys, window=window)
    assert mask.dense is None
    assert_array_equal(dense_of(mask), visible_keys((1, 1, num_rows, num_keys), causal=True, window=window))


@DRAWN
@given(num_rows=SIZES, num_keys=SIZES, offset=st.integers(-12, 12))
def test_causal_offset_says_how_far_ahead_a_row_sees(num_rows, num_keys, offset):
    row, key = np.arange(num_rows)[:, None], np.arange(num_keys)
    assert_array_equal(dense_of(Mask.causal(num_rows, num_keys, offset=offset))[0, 0], key <= row + offset)


def test_causal_in_pictures_and_by_steps_as_at_once():
    picture = dense_of(Mask.causal(3, 5, window=2))[0, 0].astype(int)
    assert_array_equal(picture, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]])  # new queries against a cache
    picture = dense_of(Mask.causal(3, 5, offset=0))[0, 0].astype(int)
    assert_array_equal(picture, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])  # torch's own is_causal
    picture = dense_of(Mask.causal(3, 2))[0, 0].astype(int)
    assert_array_equal(picture, [[0, 0], [1, 0], [1, 1]])  # more queries than keys: the first sees nothing
    whole = dense_of(Mask.causal(K, K, window=4))[0, 0]
    for length in range(1, K + 1):
        assert_array_equal(dense_of(Mask.causal(1, length, window=4))[0, 0, 0], whole[length - 1, :length])


@DRAWN
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_from_lengths_hides_padding_from_rows_and_keys(lengths):
    longest = max(lengths)
    real = np.arange(longest) < np.array(lengths)[:, None]
    mask = Mask.from_lengths(torch.tensor(lengths), longest, longest)
    assert_array_equal(dense_of(mask)[:, 0], real[:, :, None] & real[:, None])
    assert_array_equal(mask.counts(), np.where(real, np.array(lengths)[:, None], 0))


# ----------------------------------------------------------------------------------------------------------- from_dense


@DRAWN
@given(seed=SEEDS, num_texts=SIZES, num_rows=SIZES, num_keys=SIZES, num_heads=st.integers(1, 4))
def test_from_dense_proves_runs_and_drops_the_dense_mask(seed, num_texts, num_rows, num_keys, num_heads):
    visible = runs(np.random.default_rng(seed), num_texts, num_rows, num_keys)
    mask = Mask.from_dense(torch.from_numpy(visible).repeat(1, num_heads, 1, 1))
    assert mask.dense is None
    assert_array_equal(dense_of(mask), visible)
    assert_array_equal(mask.counts(), visible[:, 0].sum(-1))


@DRAWN
@given(
    seed=SEEDS, num_rows=SIZES, num_keys=SIZES, num_heads=st.integers(1, 3), rows_at_once=st.sampled_from([1, 3, 512])
)
def test_from_dense_says_what_the_dense_mask_says(seed, num_rows, num_keys, num_heads, rows_at_once):
    rng = np.random.default_rng(seed)
    visible = rng.random((B, num_heads, num_rows, num_keys)) < rng.choice([0.1, 0.5, 0.9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "DENSE_ROWS", rows_at_once)
        mask = Mask.from_dense(torch.from_numpy(visible))
    heads_agree = (visible == visible[:, :1]).all()
    fits = heads_agree and all(map(is_run, visible.reshape(-1, num_keys)))
    assert (mask.dense is None) == fits
    assert_array_equal(np.broadcast_to(dense_of(mask), visible.shape), visible)
    assert_array_equal(mask.counts(), visible.any(1).sum(-1))
    first, last = mask.start.numpy()[..., None], mask.stop.numpy()[..., None]
    inside = (np.arange(num_keys) >= first) & (np.arange(num_keys) < last)
    assert not (visible.any(1) & ~inside).any(), "start and stop bound the dense mask"


@pytest.mark.parametrize(("row", "fits"), [("0110", True), ("0000", True), ("1111", True), ("0101", False)])
def test_one_row_that_is_no_run_keeps_the_mask_dense(row, fits):
    visible = np.ones((B, 1, masks.DENSE_ROWS + 3, 4), bool)
    visible[1, 0, -1] = [cell == "1" for cell in row]  # the last row of the last block of rows
    mask = Mask.from_dense(torch.from_numpy(visible))
    assert (mask.dense is None) == fits
    assert_array_equal(dense_of(mask), visible)


def test_heads_that_see_different_runs_keep_the_mask_dense():
    visible = torch.ones(B, H, Q, K, dtype=torch.bool)
    assert Mask.from_dense(visible).dense is None
    visible[1, 2, 6, 10] = False
    mask = Mask.from_dense(visible)
    assert_array_equal(dense_of(mask), visible)
    assert mask.dense is not None


@pytest.mark.parametrize("shape", [(0, 1, Q, K), (B, 0, Q, K), (B, 1, 0, K), (B, 1, Q, 0)], ids=str)
def test_an_empty_dense_mask_is_empty_runs(shape):
    mask = Mask.from_dense(torch.zeros(shape, dtype=torch.bool))
    assert (tuple(mask.start.shape), mask.num_keys, mask.dense) == ((shape[0], shape[2]), shape[3], None)
    assert not mask.counts().any()


# --------------------------------------------------------------------------------------------- windows, texts, trimming


@pytest.mark.parametrize("kind", ["runs", "dense", "head by head"])
def test_visible_is_a_window_of_the_mask(kind):
    rng = np.random.default_rng(7)
    visible = runs(rng, B, Q, K) if kind == "runs" else rng.random((B, H if kind == "head by head" else 1, Q, K)) < 0.5
    mask = Mask.from_dense(torch.from_numpy(visible))
    for rows, keys in [(slice(2, 5), slice(3, 11)), (slice(0, 1), slice(None)), (slice(4, 4), slice(2, 3))]:
        assert_array_equal(mask.visible(rows, keys), visible[:, :, rows, keys])


@pytest.mark.parametrize("kind", ["runs", "dense", "head by head"])
@pytest.mark.parametrize("chosen", [slice(1, 3), slice(0, 1), torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_texts_are_chosen_with_their_masks(kind, chosen):
    rng = np.random.default_rng(11)
    visible = runs(rng, 3, Q, K) if kind == "runs" else rng.random((3, H if kind == "head by head" else 1, Q, K)) < 0.5
    mask = Mask.from_dense(torch.from_numpy(visible)).texts(chosen)
    assert_array_equal(dense_of(mask), visible[chosen if isinstance(chosen, slice) else chosen.numpy()])
    assert mask.num_keys == K


def test_a_mask_that_all_texts_share_stays_shared_and_expand_gives_every_text_its_own_runs():
    mask = Mask.causal(Q, K)
    assert mask.texts(slice(1, 2)) is mask
    dense = Mask.from_dense(torch.rand(1, H, Q, K) < 0.5)
    assert dense.texts(torch.tensor([4, 2])) is dense
    each = dense.expand(5)
    assert_array_equal(dense_of(each.texts(slice(3, 5))), dense_of(dense).repeat(2, 0))
    mask = Mask.causal(Q, K).expand(5)
    assert tuple(mask.start.shape) == tuple(mask.stop.shape) == (5, Q)
    assert_array_equal(dense_of(mask), dense_of(Mask.causal(Q, K)).repeat(5, 0))
    assert Mask.causal(Q, K).expand(0).counts().shape == (0, Q)
    mask = Mask.from_lengths(torch.tensor([2, 3]), 3, 3)
    assert mask.expand(2).start.shape == (2, 3)
    refuses(ShapeError, "a mask of 2 texts cannot serve num_texts=5: give 1 or 5", inspect.unwrap(Mask.expand), mask, 5)


@DRAWN
@given(
    seed=SEEDS,
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    spare=st.integers(0, 3),
    side=st.sampled_from(["left", "right", "both"]),
    kind=st.sampled_from(["bidirectional", "causal", "window", "runs", "dense", "head by head"]),
)
def test_trimmed_is_each_texts_own_square(seed, lengths, spare, side, kind):
    rng, size = np.random.default_rng(seed), max(lengths) + spare
    room = size - np.array(lengths)
    first = {"left": room, "right": 0 * room, "both": rng.integers(0, room + 1)}[side]
    place = np.arange(size)
    real = (place >= first[:, None]) & (place < (first + lengths)[:, None])
    visible = {
        "bidirectional": np.ones((len(lengths), 1, size, size), bool),
        "causal": np.broadcast_to(place <= place[:, None], (len(lengths), 1, size, size)),
        "window": np.broadcast_to(abs(place - place[:, None]) < 3, (len(lengths), 1, size, size)),
        "runs": runs(rng, len(lengths), size, size),
        "dense": rng.random((len(lengths), 1, size, size)) < 0.5,
        "head by head": rng.random((len(lengths), H, size, size)) < 0.5,
    }[kind]
    if rng.random() < 0.5:  # some models hide padding in the mask, some leave it to whoever reads the output
        visible = visible & (real[:, :, None] & real[:, None])[:, None]
    mask = Mask.from_dense(torch.from_numpy(visible.copy()))
    trimmed = mask.trimmed(torch.from_numpy(first), torch.tensor(lengths))
    longest = max(lengths)
    expected = np.zeros((*visible.shape[:2], longest, longest), bool)
    for text, (begin, length) in enumerate(zip(first, lengths, strict=True)):
        span = slice(begin, begin + length)
        expected[text, :, :length, :length] = visible[text, :, span, span]
    assert (trimmed.num_queries, trimmed.num_keys) == (longest, longest)
    assert_array_equal(np.broadcast_to(dense_of(trimmed), expected.shape), expected)
    assert_array_equal(trimmed.counts(), expected.any(1).sum(-1))
    if kind not in ("dense", "head by head"):
        assert trimmed.dense is None


def test_trimming_serves_a_mask_that_all_texts_share_and_no_texts():
    trimmed = Mask.causal(5, 5).trimmed(torch.tensor([2, 0]), torch.tensor([3, 4]))
    row = np.arange(4)
    causal = row <= row[:, None]
    assert_array_equal(dense_of(trimmed)[1, 0], causal)
    assert_array_equal(dense_of(trimmed)[0, 0], causal & (row < 3) & (row < 3)[:, None])
    dense = Mask.from_dense((torch.rand(1, H, 5, 5) < 0.5).index_fill_(3, torch.tensor([2]), False))
    assert dense.trimmed(torch.tensor([0, 1]), torch.tensor([4, 4])).visible(slice(None), slice(None)).shape[0] == 2
    nothing = torch.zeros(0, dtype=torch.long)
    assert Mask.causal(3, 3).trimmed(nothing, nothing).start.shape == (0, 0)
    refuses(ShapeError, "window=0 lets a row see nothing", Mask.causal, 3, 5, window=0)


# -------------------------------------------------------------------------------------------------------- chance levels


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


def test_uniform_mass_of_shared_masks_of_rows_that_see_nothing_and_of_heads_that_do():
    rng = np.random.default_rng(5)
    visible, column = rng.random((1, 1, Q, K)) < 0.5, rng.random((B, K)) < 0.5
    mask = Mask.from_dense(torch.from_numpy(visible)).expand(B)
    got = mask.uniform_mass(torch.from_numpy(column).float())
    assert_allclose(got, uniform_mass(visible, column), atol=1e-12)
    mask = Mask.causal(Q, Q, offset=-3)
    got = mask.uniform_mass(torch.ones(1, Q))[0]
    assert_array_equal(got, [0, 0, 0, 1, 1, 1, 1])
    visible = torch.zeros(1, H, 1, K, dtype=torch.bool)
    visible[0, 1, 0, [4, 6]] = True  # one head of three, at the column's one
    column = torch.zeros(1, K)
    column[0, 4] = 1
    assert_array_equal(Mask.from_dense(visible).uniform_mass(column), [[0.5]])
