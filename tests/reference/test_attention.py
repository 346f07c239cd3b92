"""The reference is what everything else is held to, so it is held to torch, to loops over cells, to the definitions.

Sizes are all different, so that no pair of swapped axes can pass.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads import reference
from manyheads.errors import ShapeError
from manyheads.reference import attend
from tests.reference.sameness import as_user, assert_same

B, H, G, Q, K, D, F = 2, 6, 3, 7, 11, 5, 4


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture
def qkv(rng):
    return rng.normal(size=(B, H, Q, D)), rng.normal(size=(B, G, K, D)), rng.normal(size=(B, G, K, F))


def by_the_cell(q, k, v, visible):
    """Attention once more, cell by cell, in loops that share nothing with the reference."""
    out = np.zeros((B, H, Q, F))
    for b, h, i in np.ndindex(B, H, Q):
        row = [np.exp(sum(q[b, h, i] * k[b, h // (H // G), j]) / D**0.5) if visible(i, j) else 0 for j in range(K)]
        for j in range(K):
            out[b, h, i] += row[j] / sum(row) * v[b, h // (H // G), j]
    return out


# ------------------------------------------------------------------------------------------------ the worked example


@pytest.mark.turns(4)
def test_reference_needs_no_torch():
    code = "import manyheads.reference, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------- attend against others


@pytest.mark.parametrize("kv_heads", [H, G, 1])
def test_attend_equals_torch(rng, kv_heads):
    q, k, v = rng.normal(size=(B, H, Q, D)), rng.normal(size=(B, kv_heads, K, D)), rng.normal(size=(B, kv_heads, K, F))
    mask = rng.random((B, H, Q, K)) < 0.6
    mask[..., 0] = True
    tensors = [torch.from_numpy(array) for array in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=torch.from_numpy(mask), scale=0.3, enable_gqa=True
    )
    assert_allclose(attend(q, k, v, mask=mask, scale=0.3).out, expected.numpy(), atol=1e-12)


def test_attend_equals_loops_over_cells(qkv):
    assert_allclose(attend(*qkv).out, by_the_cell(*qkv, visible=lambda i, j: True), atol=1e-12)


def test_causal_is_aligned_to_the_last_key(qkv):
    expected = by_the_cell(*qkv, visible=lambda i, j: j <= i + K - Q)
    assert_allclose(attend(*qkv, causal=True).out, expected, atol=1e-12)
    assert np.abs(attend(*qkv).out - expected).max() > 0.1


def test_causal_with_more_queries_than_keys_leaves_the_first_rows_empty(qkv):
    q, k, v = qkv
    result = attend(q, k[:, :, :4], v[:, :, :4], causal=True)
    assert_array_equal(np.isneginf(result.lse), np.broadcast_to(np.arange(Q) < Q - 4, (B, H, Q)))
    assert_array_equal(result.out[:, :, : Q - 4], 0)


@pytest.mark.parametrize("causal", [False, True])
def test_window_shows_only_near_keys(qkv, causal):
    def visible(i, j):
        return abs(j - (i + K - Q)) < 3 and (j <= i + K - Q or not causal)

    result = attend(*qkv, causal=causal, window=3)
    assert_allclose(result.out, by_the_cell(*qkv, visible=visible), atol=1e-12)
    assert (result.weights[:, :, 0] > 0).sum(-1).max() == (3 if causal else 5)


def test_grouped_heads_equal_repeated_keys_and_values(qkv):
    q, k, v = qkv
    result = attend(q, k, v)
    assert_same(result, attend(q, np.repeat(k, H // G, axis=1), np.repeat(v, H // G, axis=1)))
    tiled = attend(q, np.tile(k, (1, H // G, 1, 1)), np.tile(v, (1, H // G, 1, 1)))
    assert np.abs(result.out - tiled.out).max() > 0.1  # neighbours share a key/value head, not every G-th head


def test_scores_are_scaled_then_capped_then_biased_then_masked(qkv, rng):
    q, k, v = qkv
    bias, mask = 3 * rng.normal(size=(H, Q, K)), rng.random((Q, K)) < 0.7
    q = 4 * q  # strong enough for the cap to bite
    scores = 0.7 * torch.einsum("bhqd,bhkd->bhqk", torch.tensor(q), torch.tensor(k).repeat_interleave(H // G, 1))
    scores = 2.5 * torch.tanh(scores / 2.5) + torch.tensor(bias)
    scores = scores.masked_fill(~torch.tensor(mask), -torch.inf)
    result = attend(q, k, v, scale=0.7, softcap=2.5, bias=bias, mask=mask)
    assert_allclose(result.weights, scores.softmax(-1).numpy(), atol=1e-12)
    assert_allclose(result.lse, scores.logsumexp(-1).numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "option",
    [
        {"scale": 1.0},
        {"causal": True},
        {"softcap": 0.5},
        {"window": 2},
        {"sinks": np.arange(H) / H},
        {"bias": np.linspace(-2, 2, K)},
        {"mask": np.arange(K) % 3 > 0},
    ],
    ids=lambda option: next(iter(option)),
)
def test_every_option_matters(qkv, option):
    plain, changed = attend(*qkv), attend(*qkv, **option)
    for name in ("out", "weights", "lse"):
        assert np.abs(getattr(plain, name) - getattr(changed, name)).max() > 0.05, name


# ------------------------------------------------------------------------------------------ softmax, lse, sinks, masks


def test_lse_rebuilds_every_weight(qkv):
    q, k, v = qkv
    result = attend(q, k, v, causal=True)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, H // G, axis=1)) / np.sqrt(D)
    seen = result.weights > 0
    assert_allclose(result.weights[seen], np.exp(scores - result.lse[..., None])[seen], rtol=1e-12)
    assert_allclose(result.weights.sum(-1), 1, rtol=1e-12)
    assert seen.sum() == B * H * sum(range(K - Q + 1, K + 1))


def test_softmax_of_huge_scores_does_not_overflow():
    weights, lse = reference.softmax_rows(np.array([[1e4, 1e4 - np.log(3), -1e4]]))
    assert_allclose(weights, [[0.75, 0.25, 0]], atol=1e-11)
    assert_allclose(lse, [1e4 + np.log(4 / 3)], rtol=1e-14)


def test_sinks_are_one_more_key_whose_column_is_dropped(qkv, rng):
    q, k, v = qkv
    sinks = rng.normal(size=H)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, H // G, axis=1)) / np.sqrt(D)
    scores[..., ~np.tri(Q, K, K - Q, dtype=bool)] = -np.inf
    column = np.broadcast_to(sinks[:, None, None], (B, H, Q, 1))
    whole = torch.tensor(np.concatenate([scores, column], axis=-1))
    result = attend(q, k, v, causal=True, sinks=sinks)
    assert_allclose(result.weights, whole.softmax(-1)[..., :-1].numpy(), atol=1e-12)
    assert_allclose(result.lse, whole.logsumexp(-1).numpy(), atol=1e-12)
    assert_allclose(1 - result.weights.sum(-1), np.exp(sinks[:, None] - result.lse), atol=1e-12)
    assert result.weights.sum(-1).max() < 0.999


def test_a_sink_far_above_the_scores_takes_everything(qkv):
    result = attend(*qkv, sinks=np.full(H, 2000.0))
    assert_array_equal(result.weights, 0)
    assert_array_equal(result.lse, 2000)


def test_a_sink_of_minus_infinity_is_no_sink(qkv):
    assert_same(attend(*qkv, sinks=np.full(H, -np.inf)), attend(*qkv))


@pytest.mark.parametrize("sinks", [None, np.arange(1.0, H + 1)], ids=["plain", "sinks"])
def test_a_row_that_may_see_nothing_is_zero(qkv, sinks):
    mask = np.ones((Q, K), int)
    mask[2] = 0
    result, open_result = attend(*qkv, mask=mask, sinks=sinks), attend(*qkv, sinks=sinks)
    assert_array_equal(result.weights[:, :, 2], 0)
    assert_array_equal(result.out[:, :, 2], 0)
    expected = -np.inf if sinks is None else np.broadcast_to(sinks, (B, H))
    assert_array_equal(result.lse[:, :, 2], np.broadcast_to(expected, (B, H)))
    assert_allclose(np.delete(result.out, 2, axis=2), np.delete(open_result.out, 2, axis=2), atol=1e-12)


def test_a_bias_of_minus_infinity_hides_like_a_mask(qkv):
    mask = np.tril(np.ones((Q, K), bool), -1)  # row 0 sees nothing
    assert_same(attend(*qkv, bias=np.where(mask, 0.0, -np.inf)), attend(*qkv, mask=mask))


@pytest.mark.parametrize("shape", [(K,), (Q, 1), (Q, K), (H, 1, K), (B, 1, 1, K), (B, H, Q, K)], ids=str)
def test_masks_broadcast_and_hide_exactly_their_zeros(qkv, rng, shape):
    mask = rng.random(shape) < 0.6
    result = attend(*qkv, mask=mask)
    assert_array_equal(result.weights > 0, np.broadcast_to(mask, (B, H, Q, K)))
    assert_same(attend(*qkv, mask=mask.astype(np.int8)), result)


@pytest.mark.parametrize("empty", ["b", "h", "g", "q", "k", "d", "f"])
def test_empty_axes_give_empty_or_zero_results(empty):
    sizes = {"b": B, "h": H, "g": G, "q": Q, "k": K, "d": D, "f": F} | {empty: 0}
    if empty == "g":
        sizes["h"] = 0
    if empty == "h":
        sizes["g"] = 0
    b, h, g, q, k, d, f = sizes.values()
    result = attend(np.ones((b, h, q, d)), np.ones((b, g, k, d)), np.ones((b, g, k, f)), causal=True)
    assert (result.out.shape, result.weights.shape, result.lse.shape) == ((b, h, q, f), (b, h, q, k), (b, h, q))
    if empty == "k":
        assert_array_equal(result.out, 0)
        assert_array_equal(result.lse, -np.inf)
    if empty == "d":  # scores that are all 0 look everywhere alike
        assert_allclose(result.weights[0, 0, -1], 1 / K)


def test_inputs_of_any_precision_are_computed_in_float64(rng):
    arrays = [rng.normal(size=shape).astype(np.float16) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F))]
    result = attend(*arrays)
    assert {result.out.dtype, result.weights.dtype, result.lse.dtype} == {np.dtype(np.float64)}
    assert_same(result, attend(*(array.astype(np.float64) for array in arrays)), atol=0, rtol=0)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("num_kv_heads", [4, 0, 12])
def test_kv_heads_that_do_not_divide_the_heads_are_an_error(rng, num_kv_heads):
    message = rf"num_heads=6 is not a multiple of num_kv_heads={num_kv_heads}: .*Use one of \[1, 2, 3, 6\]"
    with pytest.raises(ShapeError, match=message):
        reference.initialise(rng, 12, 6, num_kv_heads)
    with pytest.raises(ShapeError, match=message):
        attend(np.ones((1, 6, 2, 3)), np.ones((1, num_kv_heads, 2, 3)), np.ones((1, num_kv_heads, 2, 3)))


@pytest.mark.parametrize(
    ("wrong", "shape"), [("q", (B, H, Q, D + 1)), ("k", (B + 1, G, K, D)), ("v", (B, G, K + 1, F)), ("q", (H, Q, D))]
)
def test_shapes_that_do_not_fit_are_an_error(qkv, wrong, shape):
    arrays = dict(zip("qkv", qkv, strict=True)) | {wrong: np.ones(shape)}
    with pytest.raises(ShapeError, match=r"must be \(b, h, q, d\), \(b, g, k, d\), \(b, g, k, f\)"):
        as_user(attend)(**arrays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": np.ones((Q, K + 1), bool)}, r"mask has shape \(7, 12\).*\(2, 6, 7, 11\)"),
        ({"mask": np.ones((3, B, H, Q, K), bool)}, "mask has shape"),
        ({"bias": np.ones((Q + 1, K))}, r"bias has shape \(8, 11\)"),
        ({"mask": np.zeros((Q, K))}, r"mask is float64.*bias=.*astype\(bool\)"),
        ({"mask": np.full((Q, K), 2)}, "mask is int64 and must be booleans, or integers 0 and 1"),
        ({"sinks": np.ones(H + 1)}, r"sinks has shape \(7,\).*\(6,\)"),
        ({"softcap": 0.0}, "softcap=0.0 is no cap"),
        ({"window": 0}, "window=0 shows no key"),
    ],
)
def test_options_that_do_not_fit_are_an_error(qkv, options, message):
    with pytest.raises(ValueError, match=message):
        as_user(attend)(*qkv, **options)
