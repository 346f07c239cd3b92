"""`attend` gives what the reference gives, on both backends, and says which one ran and why.

Inputs are drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

from dataclasses import replace

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.nn import Mask, Rule, attend, attention, log_sum_exp
from tests.nn.attended import BOTH, TOLERANCE, B, D, F, H, K, Q, assert_attended, assert_because, make_qkv, tensor

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
    assert_because(got, "tiles", "softcap is not in any fused CPU kernel")
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


def test_gradients_flow_through_tiles_which_say_so(rng):
    q, k, v = (x.requires_grad_() for x in make_qkv(rng, q=K, dtype=torch.float64))
    got = attend(q, k, v, mask=Mask.causal(K, K))
    assert_because(got, "tiles", "the fused kernel's lse has no gradient")
    assert not got.lse.requires_grad
    of_ours = torch.autograd.grad(got.out.square().sum(), (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for ours, theirs in zip(of_ours, torch.autograd.grad(sdpa.square().sum(), (q, k, v)), strict=True):
        assert_allclose(ours, theirs, atol=1e-10)


def test_without_gradients_the_fused_kernel_serves_parameters_too(rng):
    q, k, v = (x.requires_grad_() for x in make_qkv(rng))
    with torch.no_grad():
        got = attend(q, k, v)
    assert_because(got, "fused")
    assert_attended(got, *(x.detach() for x in (q, k, v)))


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
