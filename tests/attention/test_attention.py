"""`attend` gives what the reference gives, on both backends and under every mask, and says which one ran and why."""

import inspect
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import manyheads as mh
from manyheads.attention import Mask, Rule, attend, attention, exact_arithmetic, log_sum_exp
from manyheads.errors import ShapeError
from tests.attention.conftest import (
    BOTH,
    TOLERANCE,
    B,
    D,
    F,
    G,
    H,
    K,
    Q,
    assert_attended,
    assert_because,
    make_qkv,
    tensor,
)
from tests.models.eager import MAKERS, draw, implementation
from tests.models.tiny import tiny_tokenizer
from tests.refusals import refuses

# -------------------------------------------------------------------------------------------------------- heads, widths


@BOTH
@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 2), (6, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("widths", [(5, 5), (5, 4), (5, 13), (1, 3), (64, 1)], ids=str)
def test_attend_equals_the_reference_for_any_heads_and_widths(rng, backend, heads, widths):
    q, k, v = make_qkv(rng, h=heads[0], g=heads[1], d=widths[0], f=widths[1])
    got = attend(q, k, v, backend=backend)
    assert_attended(got, q, k, v)
    assert_because(got, backend)


@BOTH
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [D, F, 13])
def test_every_precision_equals_the_reference(rng, backend, dtype, width):
    q, k, v = make_qkv(rng, dtype=dtype, f=width)
    assert_attended(attend(q, k, v, backend=backend), q, k, v)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_takes_every_option(rng, backend, dtype):
    q, k, v = make_qkv(rng, q=K, dtype=dtype)
    sinks = tensor(rng, H, dtype=dtype)
    got = attend(q, k, v, mask=Mask.causal(K, K), scale=0.3, sinks=sinks, backend=backend)
    assert_attended(got, q, k, v, causal=True, scale=0.3, sinks=sinks)


@BOTH
def test_memory_layout_does_not_matter(rng, backend):
    """The kernel takes the last axis for contiguous and does not look: such views once read past their memory."""
    plain = make_qkv(rng, f=D)
    views = {
        "transposed": [x.transpose(2, 3).contiguous().transpose(2, 3) for x in plain],
        "heads last": [x.transpose(1, 2).contiguous().transpose(1, 2) for x in plain],
        "every other": [x.repeat_interleave(2, -1)[..., ::2] for x in plain],
        "one number": [x[..., :1].expand(-1, -1, -1, D) for x in plain],
        "one text": [x[:1].expand(B, -1, -1, -1) for x in plain],
        "one head": [x[:, :1].expand(-1, x.shape[1], -1, -1) for x in plain],
    }
    for q, k, v in views.values():
        assert_attended(attend(q, k, v, backend=backend), q, k, v)


@BOTH
def test_weights_are_exp_of_score_minus_lse(rng, backend):
    q, k, v = make_qkv(rng, g=H, dtype=torch.float64)
    got = attend(q, k, v, scale=0.3, backend=backend)
    weights = (0.3 * q @ k.transpose(2, 3) - got.lse[..., None]).exp()
    assert_allclose(weights.sum(-1), 1, atol=1e-12)
    assert_allclose(weights @ v, got.out, atol=1e-12)


@BOTH
def test_large_scores_neither_overflow_nor_vanish(rng, backend):
    q, k, v = make_qkv(rng)
    got = attend(100 * q, 100 * k, v, backend=backend)
    assert_attended(got, 100 * q, 100 * k, v, tolerance=0.05)  # float32 knows such scores to 1e-3
    assert got.out.isfinite().all()
    assert got.lse.abs().max() > 1000


# ------------------------------------------------------------------------------------------------------ scale and rules


@BOTH
@pytest.mark.parametrize("scale", [0.3, 1.0, 0.0, -0.7])
def test_scale_equals_the_reference(qkv, backend, scale):
    assert_attended(attend(*qkv, scale=scale, backend=backend), *qkv, scale=scale)


@BOTH
def test_scale_is_one_over_root_d_of_the_heads_not_of_what_they_are_padded_to(rng, backend):
    q, k, v = make_qkv(rng, f=17)
    assert_attended(attend(q, k, v, backend=backend), q, k, v, scale=D**-0.5)


@BOTH
def test_sinks_equal_the_reference_and_matter(rng, qkv, backend):
    sinks = torch.from_numpy(rng.uniform(0, 2, H)).float()
    got = attend(*qkv, sinks=sinks, backend=backend)
    assert_attended(got, *qkv, sinks=sinks)
    assert (got.lse > attend(*qkv, backend=backend).lse).all()
    assert (got.out - attend(*qkv, backend=backend).out).abs().amax((0, 2, 3)).min() > 1e-3


def test_softcap_equals_the_reference_and_matters(rng, qkv):
    got = attend(*qkv, softcap=0.9)
    assert_attended(got, *qkv, softcap=0.9)
    assert_because(got, "tiles", "softcap is not in any fused kernel")
    assert (got.out - attend(*qkv).out).abs().max() > 1e-2


@pytest.mark.parametrize("shape", [(B, H), (1, H), (B, 1), (1, 1)], ids=str)
def test_bias_equals_the_reference_and_matters(rng, qkv, shape):
    bias = tensor(rng, *shape, Q, K)
    got = attend(*qkv, bias=bias)
    assert_attended(got, *qkv, bias=bias)
    assert_because(got, "tiles", "an additive bias would need an n x n tensor")
    assert (got.out - attend(*qkv).out).abs().max() > 1e-2


def test_a_bias_may_hide_keys(rng, qkv):
    bias = tensor(rng, B, H, Q, K)
    bias[torch.from_numpy(rng.random(bias.shape) < 0.3)] = -torch.inf
    bias[0, 0, 3] = -torch.inf
    got = attend(*qkv, bias=bias)
    assert_attended(got, *qkv, bias=bias)
    assert_array_equal(got.out[0, 0, 3], 0)


@pytest.mark.parametrize("block", [None, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_options_together_equal_the_reference(rng, monkeypatch, block, dtype):
    if block is not None:
        monkeypatch.setattr(attention, "BLOCK_CELLS", block)
    q, k, v = make_qkv(rng, dtype=dtype)
    options = {"scale": 0.7, "softcap": 1.1, "sinks": tensor(rng, H, dtype=dtype)}
    options["bias"] = tensor(rng, 1, H, Q, K, dtype=dtype)
    got = attend(q, k, v, mask=Mask.causal(Q, K, window=4), **options)
    assert_attended(got, q, k, v, causal=True, window=4, **options)
    for name in options:  # each of them matters beside the others
        rest = {key: value for key, value in options.items() if key != name}
        less = attend(q, k, v, mask=Mask.causal(Q, K, window=4), **rest)
        assert (got.out - less.out).abs().max() > 1e-3, name


def test_many_rows_beyond_the_real_blocks_equal_the_reference(rng, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_CELLS", 50_000)
    q, k, v = make_qkv(rng, b=1, h=2, g=1, q=307, k=331, dtype=torch.float64)
    mask = Mask.causal(307, 331, window=53)
    assert_attended(attend(q, k, v, mask=mask), q, k, v, causal=True, window=53)


@BOTH
@pytest.mark.parametrize("causal", [False, True])
def test_texts_longer_than_the_kernels_own_blocks_equal_the_reference(rng, backend, causal):
    q, k, v = make_qkv(rng, b=1, h=2, g=1, q=1031, k=1031)
    mask = Mask.causal(1031, 1031) if causal else None
    assert_attended(attend(q, k, v, mask=mask, backend=backend), q, k, v, causal=causal)


# ------------------------------------------------------------------------------------------------------------ gradients


def test_gradients_flow_through_tiles_which_say_so_and_without_them_the_fused_kernel_serves_parameters(rng):
    q, k, v = (x.requires_grad_() for x in make_qkv(rng, q=K, dtype=torch.float64))
    got = attend(q, k, v, mask=Mask.causal(K, K))
    assert_because(got, "tiles", "the fused kernel's lse has no gradient")
    assert not got.lse.requires_grad
    of_ours = torch.autograd.grad(got.out.square().sum(), (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for ours, theirs in zip(of_ours, torch.autograd.grad(sdpa.square().sum(), (q, k, v)), strict=True):
        assert_allclose(ours, theirs, atol=1e-10)
    q, k, v = (x.requires_grad_() for x in make_qkv(rng))
    with torch.no_grad():
        got = attend(q, k, v)
    assert_because(got, "fused")
    assert_attended(got, *(x.detach() for x in (q, k, v)))


def test_kernel_that_this_torch_lacks_is_computed_by_tiles(rng, monkeypatch):
    """The kernels' names are torch's own affair: without one, the numbers are the same."""
    q, k, v = make_qkv(rng)
    fused = attend(q, k, v)
    monkeypatch.setattr(attention, "CPU", replace(attention.CPU, operator=None))
    got = attend(q, k, v)
    assert_because(got, "tiles", "torch has no fused kernel with an lse for torch.float32")
    assert_allclose(got.out, fused.out, atol=TOLERANCE[q.dtype])
    assert_allclose(got.lse, fused.lse, atol=TOLERANCE[q.dtype])


def test_a_sinks_gradient_is_the_same_on_both_backends(rng, qkv):
    sinks = tensor(rng, H).requires_grad_()
    fused, tiles = (attend(*qkv, sinks=sinks, backend=backend) for backend in ("fused", "tiles"))
    assert not fused.lse.requires_grad
    assert not tiles.lse.requires_grad
    of_fused, of_tiles = (torch.autograd.grad(got.out.square().sum(), sinks)[0] for got in (fused, tiles))
    assert_allclose(of_fused, of_tiles, atol=1e-4)
    assert of_tiles.abs().min() > 0


# ------------------------------------------------------------------------------------------------------------ lse alone


@pytest.mark.parametrize("dim", [D, 0])
def test_log_sum_exp_is_attends_lse(rng, dim):
    q, k, v = make_qkv(rng, d=dim)
    rule = Rule(0.4, softcap=0.8, sinks=tensor(rng, H), bias=tensor(rng, B, H, Q, K))
    lse, because = log_sum_exp(q, k, Mask.causal(Q, K), rule)
    whole = attend(q, k, v, mask=Mask.causal(Q, K), scale=0.4, softcap=0.8, sinks=rule.sinks, bias=rule.bias)
    assert_allclose(lse, whole.lse, atol=1e-6)
    assert because == whole.because
    assert log_sum_exp(q, k, Mask.full(Q, K), Rule(0.4))[1].startswith("fused" if dim else "tiles")


# ------------------------------------------------------------------------------- the assertions notice what they should


@BOTH
@pytest.mark.parametrize("what", ["q", "k", "v", "scale", "out", "lse"])
def test_the_comparison_sees(qkv, backend, what):
    inputs, got, options = list(qkv), attend(*qkv, backend=backend), {}
    assert_attended(got, *inputs)
    if what in ("out", "lse"):
        got = replace(got, **{what: getattr(got, what) + 1e-3})
    elif what == "scale":
        options = {"scale": 0.5}
    else:
        inputs["qkv".index(what)] = inputs["qkv".index(what)].roll(1, 1)  # a swapped head
    with pytest.raises(AssertionError):
        assert_attended(got, *inputs, **options)


# --------------------------------------------------------------------------------------------------------------- masks

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
    slices, dense = "rows see runs that are not a plain slice", "the mask's rows are not runs of keys"
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


AS_USER = inspect.unwrap(attend)  # without the tests' own type checks, which would speak up before its errors do


# ----------------------------------------------------------------------------------------------------------- empty axes

EMPTY = {
    "no texts": {"b": 0}, "no heads": {"h": 0, "g": 0}, "no queries": {"q": 0}, "no keys": {"k": 0},
    "no width": {"d": 0}, "no values": {"f": 0}, "nothing": dict.fromkeys("bhgqkdf", 0),
    "no queries and no keys": {"q": 0, "k": 0}, "no keys and no width": {"k": 0, "d": 0},
}  # fmt: skip


# The fused kernel ends the process with a division by zero where it is let in with an empty axis: so would this test.
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
def test_no_empty_axis_reaches_the_fused_kernel_by_any_way(rng, sizes):
    q, k, v = make_qkv(rng, **sizes)
    queries, keys = q.shape[2], k.shape[2]
    for mask in (None, Mask.causal(queries, keys), Mask.full(queries, keys).expand(len(q))):
        for sinks in (None, torch.zeros(q.shape[1])):
            for backend in ("auto", "tiles"):
                attend(q, k, v, mask=mask, sinks=sinks, backend=backend)
            with pytest.raises(ShapeError, match="the fused kernel kills the process on an empty axis"):
                attend(q, k, v, mask=mask, sinks=sinks, backend="fused")
    log_sum_exp(q, k, Mask.full(queries, keys), Rule(1.0))


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
def test_empty_axes_equal_the_reference(rng, sizes, sinks):
    q, k, v = make_qkv(rng, **sizes)
    sinks = tensor(rng, q.shape[1]) if sinks else None
    got = attend(q, k, v, sinks=sinks)
    assert_because(got, "tiles", "the fused kernel kills the process on an empty axis")
    assert_attended(got, q, k, v, sinks=sinks)
    assert_attended(attend(q, k, v, sinks=sinks, backend="tiles"), q, k, v, sinks=sinks)
    refuses(ShapeError, "the fused kernel kills the process on an empty axis", attend, q, k, v, backend="fused")


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("sizes", "message"), [
    ({"q": (H, Q, D)}, "q has shape (6, 7, 5): attend wants four axes (text, head, position, width)."),
    ({"k": (B, G, K, D, 1)}, "k has shape (2, 3, 11, 5, 1): attend wants four axes"),
    ({"v": (K, F)}, "v has shape (11, 4): attend wants four axes"),
    ({"q": (B, H, Q, D + 1)}, "q has head width 6 and k has 5: they are multiplied, so must be equal."),
    ({"v": (B, G, K + 1, F)}, "k has (text, head, position) (2, 3, 11) and v has (2, 3, 12): must be equal."),
    ({"v": (B, H, K, F)}, "k has (text, head, position) (2, 3, 11) and v has (2, 6, 11): must be equal."),
    ({"q": (B + 1, H, Q, D)}, "q has 3 texts and k has 2: must be equal."),
    ({"q": (B, 5, Q, D)}, "num_heads=5 is not a multiple of num_kv_heads=3: every key/value head must serve"),
    ({"q": (B, 10, Q, D)}, "heads. Use one of [1, 2, 5, 10]."),
    ({"k": (B, 0, K, D), "v": (B, 0, K, F)}, "num_heads=6 is not a multiple of num_kv_heads=0"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_an_error(sizes, message):
    shapes = {"q": (B, H, Q, D), "k": (B, G, K, D), "v": (B, G, K, F)} | sizes
    with pytest.raises(ShapeError, match=re.escape(message)):
        AS_USER(*(torch.ones(shapes[name]) for name in "qkv"))


@pytest.mark.parametrize(("options", "message"), [
    ({"backend": "flash"}, "backend='flash' is not a backend: use one of auto, fused, tiles."),
    ({"mask": Mask.full(K, Q)},
     "the mask is for 11 queries and 7 keys, but q has 7 and k has 11: build it with these sizes."),
    ({"mask": Mask.full(Q, K).expand(3)}, "the mask is for 3 texts, but q has 2: give 1 or 2."),
    ({"softcap": 0.0}, "softcap=0.0 is not a cap"),
    ({"softcap": -1.0}, "softcap=-1.0 is not a cap: it squeezes scores into (-softcap, softcap). Use None"),
    ({"sinks": torch.ones(1)}, "sinks has shape (1,): give one sink for each query head, (6,)."),
    ({"sinks": torch.ones(G)}, "sinks has shape (3,)"),
    ({"bias": torch.ones(Q, K)}, "bias has shape (7, 11), but (text, head, query, key) is (2, 6, 7, 11)"),
    ({"bias": torch.ones(B, H, 1, K)}, "bias has shape (2, 6, 1, 11)"),
    ({"bias": torch.ones(B, G, Q, K)}, "bias has shape (2, 3, 7, 11)"),
    ({"bias": torch.ones(3, H, Q, K)}, "only texts and heads may be 1."),
    ({"backend": "fused", "softcap": 1.0}, "cannot serve this call: softcap is not in any fused kernel."),
    ({"backend": "fused", "bias": torch.ones(B, H, Q, K)}, "an additive bias would need an n x n tensor. Use backend="),
])  # fmt: skip
@pytest.mark.parametrize("error", [ShapeError, ValueError])
def test_options_that_do_not_fit_are_an_error(qkv, options, message, error):
    refuses(error, re.escape(message), AS_USER, *qkv, **options)


def test_fused_refuses_gradients_by_name(qkv):
    q, k, v = qkv
    refuses(ShapeError, "the fused kernel's lse has no gradient", attend, q.requires_grad_(), k, v, backend="fused")


# =============================================================================================================== scores
# Products that decide a weight are computed as they stand, whatever the model around them runs in.

TF32 = torch.backends.cuda.matmul


def test_autocast_is_off_inside_and_as_it_was_after():
    x = torch.randn(3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16
        with exact_arithmetic():
            assert (x @ x.T).dtype == torch.float32
        assert (x @ x.T).dtype == torch.bfloat16
    with exact_arithmetic():
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture
def tf32():
    TF32.allow_tf32 = True
    yield
    TF32.allow_tf32 = False


def test_tf32_is_off_until_the_last_thread_has_left_and_then_as_it_was(tf32):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exact_arithmetic():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with exact_arithmetic():
        thread.start()
        assert inside.wait(30) and TF32.fp32_precision == "ieee"
    assert TF32.fp32_precision == "ieee", "the other is still inside"
    leave.set()
    thread.join()
    assert TF32.fp32_precision == "tf32" and TF32.allow_tf32
    with pytest.raises(KeyError), exact_arithmetic():
        raise KeyError
    assert TF32.allow_tf32


@pytest.mark.parametrize("name", ["llama", "bert", "gemma2"])
def test_a_model_under_autocast_is_recorded_as_it_computed(name, fresh):
    """Its q and k are bfloat16, the weights that belong to them are not."""
    model = MAKERS[name](seed=draw(fresh))
    lm = mh.load(model, tokenizer=tiny_tokenizer(special_tokens=name == "bert"))
    text = "the old cat sat on the table and the dog said why is the cat here"
    with torch.autocast("cpu", torch.bfloat16):
        rec = mh.record(lm, text)
        table = mh.measure(lm, text, ["entropy", "missing_mass"])
        with implementation(model, "eager"), torch.no_grad():
            ids = torch.tensor([lm.tokenizer(text)["input_ids"]])
            maps = model(input_ids=ids, output_attentions=True).attentions
    for index, (layer, own) in enumerate(zip(rec.layers, maps, strict=True)):
        weights = layer.weights(text=0)
        scores = (weights.log() + layer.lse[0][..., None])[weights > 0]
        assert layer.q.dtype == torch.bfloat16 and weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), atol=2e-4, rtol=0)
        # Eager's scores are bfloat16, a step of 2^-8 of the largest, and so is what every layer before this one gave.
        step = 2**-8 * float(scores.abs().max())
        torch.testing.assert_close(weights, own[0].float(), atol=(1.5 + index) * step, rtol=0)
    assert max(map(abs, table["missing_mass"])) < 2e-4
