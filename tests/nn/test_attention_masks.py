"""`attend` under every kind of mask gives what the reference gives, and says which backend served it.

Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import ShapeError
from manyheads.nn import Mask, attend, attention
from tests.nn.attended import BOTH, B, H, K, Q, assert_attended, assert_because, make_qkv, tensor

LENGTHS = (11, 5)


def some_mask(rng, kind):
    """A mask, the same cell by cell, and how `auto` serves it."""
    row, key = np.arange(K)[:, None], np.arange(K)
    real = key < np.array(LENGTHS)[:, None]
    square = (real[:, :, None] & real[:, None])[:, None]
    left = square[:, :, ::-1, ::-1]
    ones = np.ones((1, 1, Q, K), bool)
    fused = {
        "full": (Mask.full(Q, K), ones, "all texts in one call"),
        "a slice of keys": (None, ones & (key > 1) & (key < 9), "all texts in one call"),
        "causal": (Mask.causal(K, K), (key <= row)[None, None], "all texts in one call"),
        "causal from the left": (Mask.causal(5, K, offset=0), (key <= row)[None, None, :5], "all texts in one call"),
        "right padding": (Mask.from_lengths(torch.tensor(LENGTHS), K, K), square, "one call a text"),
        "right padding, causal": (None, square & (key <= row), "one call a text"),
        "nothing": (None, ones & False, "all texts in one call"),
        "nothing in one text": (None, square & (np.arange(B) < 1)[:, None, None, None], "one call a text"),
        "a slice of keys of some rows": (None, ones & (key > 1) & (np.arange(Q) < 4)[:, None], "all texts in one call"),
    }
    slices, dense = "rows see runs that are no plain slice", "the mask's rows are not runs of keys"
    tiles = {
        "causal with a cache": (Mask.causal(Q, K), (key <= row[:Q] + K - Q)[None, None], slices),
        "window": (Mask.causal(K, K, window=3), ((key <= row) & (key > row - 3))[None, None], slices),
        "chunks": (None, ((key <= row) & (key // 4 == row // 4))[None, None], slices),
        "packed": (None, ((key < 4) == (row < 4))[None, None], slices),
        "left padding": (None, left, slices),
        "left padding, causal": (None, left & (key <= row), slices),
        "dead rows": (None, (key <= row)[None, None] & (row % 3 > 0), slices),
        "holes": (None, rng.random((B, 1, Q, K)) < 0.5, dense),
        "holes, shared": (None, rng.random((1, 1, Q, K)) < 0.5, dense),
        "head by head": (None, rng.random((B, H, Q, K)) < 0.5, dense),
        "head by head, shared": (None, rng.random((1, H, Q, K)) < 0.5, dense),
    }
    backend = "fused" if kind in fused else "tiles"
    mask, visible, reason = (fused | tiles)[kind]
    return mask or Mask.from_dense(torch.from_numpy(visible.copy())), visible, backend, reason


KINDS = (
    "full, a slice of keys, causal, causal from the left, right padding, right padding; causal, nothing, "
    "nothing in one text, a slice of keys of some rows, causal with a cache, window, chunks, packed, left padding, "
    "left padding; causal, dead rows, holes, holes; shared, head by head, head by head; shared"
)
KINDS = [kind.replace(";", ",") for kind in KINDS.split(", ")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("block", [None, 40], ids=["", "small blocks"])
def test_every_mask_equals_the_reference_and_says_who_served_it(rng, monkeypatch, kind, sinks, block):
    if block is not None:
        monkeypatch.setattr(attention, "BLOCK_CELLS", block)
    mask, visible, backend, reason = some_mask(rng, kind)
    assert_array_equal(np.broadcast_to(mask.visible(slice(None), slice(None)), visible.shape), visible)
    q, k, v = make_qkv(rng, q=visible.shape[2])
    sinks = tensor(rng, H) if sinks else None
    expected = {"visible": np.broadcast_to(visible, (B, H, *visible.shape[2:])), "sinks": sinks}
    got = attend(q, k, v, mask=mask, sinks=sinks)
    assert_because(got, backend, reason)
    assert_attended(got, q, k, v, **expected)
    by_tiles = attend(q, k, v, mask=mask, sinks=sinks, backend="tiles")
    assert_because(by_tiles, "tiles", "tiles: asked for by name")
    assert_attended(by_tiles, q, k, v, **expected)
    if backend == "fused":
        assert_because(attend(q, k, v, mask=mask, sinks=sinks, backend="fused"), "fused", reason)
    else:
        with pytest.raises(ShapeError, match=f"backend='fused' cannot serve this call: {reason}.*'auto' or 'tiles'"):
            attend(q, k, v, mask=mask, sinks=sinks, backend="fused")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_every_mask_matters(rng, kind):
    mask, visible, _, _ = some_mask(rng, kind)
    q, k, v = make_qkv(rng, q=visible.shape[2])
    assert (attend(q, k, v, mask=mask).out - attend(q, k, v).out).abs().max() > 1e-3


@pytest.mark.parametrize("backend", ["auto", "tiles"])
def test_a_row_that_sees_nothing_has_output_0_and_lse_minus_infinity(rng, backend):
    q, k, v = make_qkv(rng, q=K)
    mask = Mask.from_lengths(torch.tensor(LENGTHS), K, K)
    got = attend(q, k, v, mask=mask, backend=backend)
    assert_array_equal(got.out[1, :, LENGTHS[1] :], 0)
    assert_array_equal(got.lse[1, :, LENGTHS[1] :], -torch.inf)
    sinks = torch.tensor([0.0, 1, 2, -3, -torch.inf, 5])  # a sink of -inf takes nothing
    got = attend(q, k, v, mask=mask, sinks=sinks, backend=backend)
    assert_array_equal(got.out[1, :, LENGTHS[1] :], 0)
    assert_allclose(got.lse[1, :, LENGTHS[1] :], sinks[:, None].expand(-1, K - LENGTHS[1]), atol=1e-6)
    assert not got.out.isnan().any()


@BOTH
def test_what_a_padded_text_holds_behind_its_end_does_not_matter(rng, backend):
    q, k, v = make_qkv(rng, q=K)
    mask = Mask.from_lengths(torch.tensor(LENGTHS), K, K)
    before = attend(q, k, v, mask=mask, backend=backend)
    for x in (q, k, v):
        x[1, :, LENGTHS[1] :] = 1e4
    after = attend(q, k, v, mask=mask, backend=backend)
    assert_array_equal(after.out, before.out)
    assert_array_equal(after.lse, before.lse)
