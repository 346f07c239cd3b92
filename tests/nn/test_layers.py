"""`MultiHeadAttention` stands where torch's stood, is MHA, GQA and MQA in one, forms only the weights asked for.

In every precision; with its gradients, how parameters begin, and a state dict that goes round.
"""

from __future__ import annotations

import copy

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

import manyheads as mh
from manyheads.nn import KVCache, MultiHeadAttention, Rope, load_state
from tests.nn.layer_oracle import expected, normal, stirred

B, Q, K, M, H, G = 2, 7, 11, 24, 6, 3


def twins(fresh, **options):
    """Torch's layer with random numbers, and ours with the same."""
    theirs = nn.MultiheadAttention(M, H, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=fresh) * 0.3)
    ours = MultiHeadAttention(M, H, **options)
    load_state(ours, theirs.state_dict(), "torch")
    return theirs, ours


# ------------------------------------------------------------------------------------------------ where torch's stood

VARIANTS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"kdim": 10, "vdim": 14, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.sampled(14)
def test_the_layer_is_torchs_layer(fresh, options, training, average, weights):
    theirs, ours = (layer.train(training) for layer in twins(fresh, **options))
    query, key = normal(fresh, Q, B, M), normal(fresh, K, B, options.get("kdim", M))
    value = normal(fresh, K, B, options.get("vdim", M))
    if options.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    hide = torch.rand(Q, K, generator=fresh) < 0.3
    hide[:, 0] = False
    padding = torch.arange(K) >= torch.tensor([K, K - 2])[:, None]
    call = {"need_weights": weights, "average_attn_weights": average}
    for masks in (
        {},
        {"attn_mask": hide},
        {"key_padding_mask": padding},
        {"attn_mask": hide, "key_padding_mask": padding},
    ):
        got, want = ours(query, key, value, **masks, **call), theirs(query, key, value, **masks, **call)
        for one, other in zip(got, want, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.shape == other.shape
                assert_allclose(one.detach(), other.detach(), atol=1e-5)


def test_the_arguments_stand_in_torchs_order(fresh):
    theirs, ours = twins(fresh)
    x = normal(fresh, Q, B, M)
    hide = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    padding = torch.zeros(B, Q, dtype=torch.bool)
    for one, other in zip(
        ours(x, x, x, padding, True, hide, False, True), theirs(x, x, x, padding, True, hide, False, True), strict=True
    ):
        assert_allclose(one.detach(), other.detach(), atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_it_works_inside_torchs_encoder_and_decoder(fresh, training):
    for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        theirs = kind(M, H, dim_feedforward=40, dropout=0.0, batch_first=True).train(training)
        ours = copy.deepcopy(theirs)
        for name in ("self_attn", "multihead_attn"):
            if hasattr(ours, name):
                layer = MultiHeadAttention(M, H, batch_first=True).train(training)
                load_state(layer, getattr(theirs, name).state_dict(), "torch")
                setattr(ours, name, layer)
        x, memory = normal(fresh, B, Q, M), normal(fresh, B, K, M)
        inputs = (x,) if kind is nn.TransformerEncoderLayer else (x, memory)
        with torch.no_grad():
            assert_allclose(ours(*inputs), theirs(*inputs), atol=1e-5)


def test_a_row_that_sees_nothing_gives_the_output_bias_and_no_nan_where_torch_gives_nan(fresh):
    theirs, ours = twins(fresh, batch_first=True)
    x = normal(fresh, B, Q, M).requires_grad_()
    padding = torch.zeros(B, Q, dtype=torch.bool)
    padding[1] = True
    for weights in (True, False):
        out, maps = ours(x, x, x, padding, need_weights=weights)
        assert_allclose(out[1].detach(), ours.out_proj.bias.detach().expand(Q, M), atol=1e-6)
        assert maps is None or bool((maps[1] == 0).all())
        for gradient in torch.autograd.grad(out.square().sum(), [x, *ours.parameters()]):
            assert bool(gradient.isfinite().all())
    assert theirs(x, x, x, padding)[0][1].isnan().all()


# ------------------------------------------------------------------------------------------------- MHA, GQA and MQA


def by_hand(layer, x, num_kv_heads):
    """Grouped attention with plain tensors: keys and values repeated, as papers draw it."""
    q, k, v = layer.qkv_proj(x, x, x)
    q, k, v = (y.unflatten(-1, (-1, layer.head_dim)).transpose(1, 2) for y in (q, k, v))
    k, v = (y.repeat_interleave(H // num_kv_heads, 1) for y in (k, v))
    weights = (q @ k.transpose(2, 3) / layer.head_dim**0.5).softmax(-1)
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("projections", ["fused", "split"])
def test_any_number_of_kv_heads_equals_the_one_built_by_hand(fresh, num_kv_heads, projections):
    layer = stirred(MultiHeadAttention(M, H, num_kv_heads, batch_first=True, projections=projections), fresh)
    x = normal(fresh, B, Q, M)
    for weights in (True, False):
        assert_allclose(layer(x, need_weights=weights)[0].detach(), by_hand(layer, x, num_kv_heads).detach(), atol=2e-5)


def test_as_many_kv_heads_as_heads_is_mha(fresh):
    plain, grouped = MultiHeadAttention(M, H), MultiHeadAttention(M, H, H)
    grouped.load_state_dict(plain.state_dict())
    x = normal(fresh, Q, B, M)
    assert_array_equal(plain(x)[0].detach(), grouped(x)[0].detach())


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_parameters_are_4_d_squared_for_every_number_of_heads(heads):
    layer = MultiHeadAttention(64, heads, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 64**2
    assert layer.qkv_proj.weight.numel() // heads == 3 * 64**2 // heads


def test_parameters_are_torchs_1050624_and_full_width_heads_cost_h_times_as_much():
    assert sum(p.numel() for p in MultiHeadAttention(512, 8, device="meta").parameters()) == 1_050_624
    for heads in (1, 2, 5):
        wide = MultiHeadAttention(64, heads, head_dim=64, bias=False, device="meta")
        assert sum(p.numel() for p in wide.parameters()) == 4 * heads * 64**2


# ------------------------------------------------------------------------------------------------- weights, dropout


@pytest.mark.parametrize("heads", [[2], [5, 0], [-1]])
def test_chosen_heads_weights_are_those_of_all_and_no_other_is_formed(fresh, heads, monkeypatch):
    from manyheads.nn import layer as layers

    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, sinks=True, causal=True), fresh)
    x = normal(fresh, B, Q, M)
    _, every = layer(x, average_attn_weights=False)
    formed = []
    plain = layers.dense_weights

    def watched(*args):
        formed.append(plain(*args))
        return formed[-1]

    monkeypatch.setattr(layers, "dense_weights", watched)
    out, some = layer(x, average_attn_weights=False, weight_heads=heads)
    assert_allclose(some.detach(), every[:, heads].detach(), atol=1e-6)
    assert [w.shape for w in formed] == [(B, len(heads), Q, Q)]
    assert_allclose(out.detach(), layer(x, need_weights=False)[0].detach(), atol=1e-6)


def test_dropout_falls_on_the_weights_only_and_only_in_training(fresh):
    """Values are unit vectors and W^O is the identity, so the output *is* the dropped weights."""
    n = 40
    layer = MultiHeadAttention(n, 1, batch_first=True, dropout=0.25, bias=False)
    with torch.no_grad():
        layer.qkv_proj.weight[2 * n :] = torch.eye(n)
        layer.out_proj.weight.copy_(torch.eye(n))
    x = torch.eye(n)[None]
    for need in (True, False):
        torch.manual_seed(3)
        out, weights = layer(x, need_weights=need)
        torch.manual_seed(3)
        assert_array_equal(out.detach(), layer(x, need_weights=need)[0].detach())
        plain, _ = layer.eval()(x)
        weights = plain if weights is None else weights
        layer.train()
        dropped = out == 0
        assert 0.15 < dropped.float().mean() < 0.35
        assert_allclose(out[~dropped].detach(), (plain / 0.75)[~dropped].detach(), rtol=1e-4)
        assert_allclose(weights.sum(-1).detach(), 1, atol=1e-5)  # the weights handed out are the softmax itself


# --------------------------------------------------------------------------------------------------------- empty axes


@pytest.mark.parametrize("shape", [(0, Q, M), (B, 0, M)], ids=["no texts", "no tokens"])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "sinks": True}, {"softcap": 1.0}, {"alibi": True, "rope": Rope()}], ids=str
)
@pytest.mark.parametrize("weights", [True, False])
def test_empty_inputs_give_empty_results(shape, options, weights):
    layer = MultiHeadAttention(M, H, batch_first=True, **options)
    out, maps = layer(torch.ones(shape), need_weights=weights)
    assert out.shape == shape
    assert maps is None or maps.shape == (shape[0], shape[1], shape[1])


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"softcap": 1.0}, {"attend": mh.attend}], ids=list)
def test_no_keys_at_all_give_the_output_bias(weights, options):
    layer = MultiHeadAttention(M, H, batch_first=True, **options)
    with torch.no_grad():
        layer.out_proj.bias.fill_(3.0)
    out, maps = layer(torch.ones(B, Q, M), torch.ones(B, 0, M), need_weights=weights)
    assert_allclose(out.detach(), torch.full((B, Q, M), 3.0))
    assert maps is None or maps.shape == (B, Q, 0)


def test_an_empty_chunk_leaves_a_cache_as_it_was(fresh):
    layer, cache = MultiHeadAttention(M, H, batch_first=True, causal=True), KVCache()
    with torch.no_grad():
        layer(normal(fresh, B, Q, M), cache=cache)
        out, _ = layer(torch.ones(B, 0, M), cache=cache)
    assert out.shape == (B, 0, M)
    assert cache.length == Q == cache.num_keys


# --------------------------------------------------------------------------- precision, gradients, how parameters begin


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 3e-5), (torch.bfloat16, 0.15), (torch.float16, 0.02)], ids=str
)
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("extra", [{}, {"alibi": True}, {"softcap": 2.0}, {"sinks": True}, {"window": 3}], ids=str)
@pytest.mark.sampled(10)
def test_every_dtype_equals_the_reference(fresh, dtype, near, weights, extra):
    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=Rope(base=20.0), **extra), fresh)
    layer, x = layer.to(dtype), normal(fresh, B, Q, M, dtype=dtype)
    assert layer.rotary.cos.dtype == torch.float32
    with torch.no_grad():
        out, maps = layer(x, need_weights=weights)
    want = expected(layer, x.double().numpy())
    assert out.dtype == dtype
    scale = abs(want.out).max()
    assert abs(out.double().numpy() - want.out).max() < near * scale
    assert maps is None or maps.dtype == dtype


GRADIENTS = [
    {},
    {"causal": True, "num_kv_heads": G},
    {"v_head_dim": 3, "head_dim": 5},
    {"sinks": True, "head_scale": True},
    {"softcap": 1.5, "qk_norm": True},
    {"alibi": True, "window": 3, "causal": True},
    {"rope": Rope(base=20.0), "add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("options", GRADIENTS, ids=lambda options: ", ".join(options))
@pytest.mark.sampled(6)
def test_gradients_are_right_in_float64(fresh, options, weights):
    layer = stirred(MultiHeadAttention(12, H, batch_first=True, **options).double(), fresh)
    x = normal(fresh, 1, 4, 12, dtype=torch.float64).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    hide = torch.tensor([[0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)

    def call(x, *parameters):
        out, maps = torch.func.functional_call(
            layer, dict(zip(names, parameters, strict=True)), (x,), {"need_weights": weights, "attn_mask": hide}
        )
        return out if maps is None else (out, maps)

    assert torch.autograd.gradcheck(
        call, (x, *(p.detach().requires_grad_() for p in layer.parameters())), fast_mode=True
    )


def test_a_seed_gives_one_layer_whatever_the_layout(fresh):
    layers = []
    for layout in ("fused", "split"):
        torch.manual_seed(11)
        layers.append(MultiHeadAttention(M, H, G, batch_first=True, projections=layout))
    x = normal(fresh, B, Q, M)
    assert_allclose(layers[0](x)[0].detach(), layers[1](x)[0].detach(), atol=1e-5)
    torch.manual_seed(11)
    again = MultiHeadAttention(M, H, G, batch_first=True)
    assert_array_equal(again.qkv_proj.weight.detach(), layers[0].qkv_proj.weight.detach())


def test_projections_start_with_glorots_spread():
    torch.manual_seed(0)
    layer = MultiHeadAttention(256, 8, 2)
    for part, rows in zip(layer.qkv_proj.weight.split(layer.sizes.widths), layer.sizes.widths, strict=True):
        assert float(part.detach().std()) == pytest.approx((2 / (256 + rows)) ** 0.5, rel=0.05)
    assert not layer.qkv_proj.bias.any() and not layer.out_proj.bias.any()


def test_reset_parameters_draws_afresh():
    layer = MultiHeadAttention(M, H, sinks=True, head_scale=True, add_bias_kv=True, qk_norm=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7)
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        assert not bool((parameter == 7).any()), name
    assert bool((layer.sinks == 0).all()) and bool((layer.head_scale == 1).all())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projections": "split"},
        {"qk_norm": True, "sinks": True, "head_scale": True},
        {"add_bias_kv": True, "rope": Rope()},
    ],
    ids=str,
)
def test_a_state_dict_goes_round(fresh, options):
    one = stirred(MultiHeadAttention(M, H, G, batch_first=True, **options), fresh)
    other = MultiHeadAttention(M, H, G, batch_first=True, **options)
    other.load_state_dict(one.state_dict())
    x = normal(fresh, B, Q, M)
    assert_array_equal(one(x)[0].detach(), other(x)[0].detach())


def test_autocast_is_served(fresh):
    layer, x = MultiHeadAttention(M, H, batch_first=True), normal(fresh, B, Q, M)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(x, need_weights=False)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_float_mask_may_have_another_dtype(fresh, dtype):
    layer, x = MultiHeadAttention(M, H, batch_first=True), normal(fresh, B, Q, M)
    mask = normal(fresh, Q, Q).to(dtype)
    for weights in (True, False):
        assert_allclose(
            layer(x, attn_mask=mask, need_weights=weights)[0].detach(),
            layer(x, attn_mask=mask.float())[0].detach(),
            atol=1e-5,
        )


@pytest.mark.parametrize("name", ["sinks", "head_scale"])
def test_a_part_that_alone_is_trained_gets_its_gradient(fresh, name):
    layer = stirred(MultiHeadAttention(M, H, batch_first=True, **{name: True}), fresh).requires_grad_(False)
    part = getattr(layer, name).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(normal(fresh, B, Q, M), need_weights=False)[0].square().sum(), part)
    assert bool((gradient != 0).all())
