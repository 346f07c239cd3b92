"""`MultiHeadAttention` stands where torch's stood, is MHA, GQA and MQA in one, forms only the weights asked for.

In every precision; with its gradients, how parameters begin, and a state dict that goes round.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

import manyheads as mh
from manyheads import attention
from manyheads import nn as mnn
from manyheads.nn.feed_forward import ACTIVATIONS
from tests.nn.layer_oracle import expected, normal, stirred
from tests.refusals import refuses

B, Q, K, M, H, G = 2, 7, 11, 24, 6, 3


def twins(fresh, **options):
    """Torch's layer with random numbers, and ours with the same."""
    theirs = nn.MultiheadAttention(M, H, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=fresh) * 0.3)
    ours = mnn.MultiHeadAttention(M, H, **options)
    mnn.load_state(ours, theirs.state_dict(), "torch")
    return theirs, ours


# ------------------------------------------------------------------------------------------------ where torch's stood

VARIANTS = [
    {}, {"batch_first": True}, {"bias": False}, {"kdim": 10, "vdim": 14, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
]  # fmt: skip


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("weights", [True, False])
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
        {}, {"attn_mask": hide}, {"key_padding_mask": padding}, {"attn_mask": hide, "key_padding_mask": padding},
    ):  # fmt: skip
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
    got, want = (layer(x, x, x, padding, True, hide, False, True) for layer in (ours, theirs))
    for one, other in zip(got, want, strict=True):
        assert_allclose(one.detach(), other.detach(), atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_it_works_inside_torchs_encoder_and_decoder(fresh, training):
    for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        theirs = kind(M, H, dim_feedforward=40, dropout=0.0, batch_first=True).train(training)
        ours = copy.deepcopy(theirs)
        for name in ("self_attn", "multihead_attn"):
            if hasattr(ours, name):
                layer = mnn.MultiHeadAttention(M, H, batch_first=True).train(training)
                mnn.load_state(layer, getattr(theirs, name).state_dict(), "torch")
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
def test_any_number_of_kv_heads_equals_the_one_built_by_hand(fresh, num_kv_heads):
    layer = stirred(mnn.MultiHeadAttention(M, H, num_kv_heads, batch_first=True), fresh)
    x = normal(fresh, B, Q, M)
    for weights in (True, False):
        assert_allclose(layer(x, need_weights=weights)[0].detach(), by_hand(layer, x, num_kv_heads).detach(), atol=2e-5)


def test_parameters_are_torchs_4_d_squared_for_every_number_of_heads_and_full_width_heads_cost_h_times_as_much():
    def count(*sizes, **options):
        return sum(p.numel() for p in mnn.MultiHeadAttention(*sizes, device="meta", **options).parameters())

    assert count(512, 8) == 1_050_624
    for heads in (1, 2, 4, 8, 16):
        assert count(64, heads, bias=False) == 4 * 64**2
        assert count(64, heads, head_dim=64, bias=False) == 4 * heads * 64**2


# ------------------------------------------------------------------------------------------------- weights, dropout


@pytest.mark.parametrize("heads", [[2], [5, 0], [-1]])
def test_chosen_heads_weights_are_those_of_all_and_no_other_is_formed(fresh, heads, monkeypatch):
    from manyheads.nn import layer as layers

    layer = stirred(mnn.MultiHeadAttention(M, H, G, batch_first=True, sinks=True, causal=True), fresh)
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
    layer = mnn.MultiHeadAttention(n, 1, batch_first=True, dropout=0.25, bias=False)
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
    "options", [{}, {"causal": True, "sinks": True}, {"softcap": 1.0}, {"alibi": True, "rope": mnn.Rope()}], ids=str
)
@pytest.mark.parametrize("weights", [True, False])
def test_empty_inputs_give_empty_results(shape, options, weights):
    layer = mnn.MultiHeadAttention(M, H, batch_first=True, **options)
    out, maps = layer(torch.ones(shape), need_weights=weights)
    assert out.shape == shape
    assert maps is None or maps.shape == (shape[0], shape[1], shape[1])


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"softcap": 1.0}, {"attend": mh.attend}], ids=list)
def test_no_keys_at_all_give_the_output_bias(weights, options):
    layer = mnn.MultiHeadAttention(M, H, batch_first=True, **options)
    with torch.no_grad():
        layer.out_proj.bias.fill_(3.0)
    out, maps = layer(torch.ones(B, Q, M), torch.ones(B, 0, M), need_weights=weights)
    assert_allclose(out.detach(), torch.full((B, Q, M), 3.0))
    assert maps is None or maps.shape == (B, Q, 0)


def test_an_empty_chunk_leaves_a_cache_as_it_was(fresh):
    layer, cache = mnn.MultiHeadAttention(M, H, batch_first=True, causal=True), mnn.KVCache()
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
def test_every_dtype_equals_the_reference(fresh, dtype, near, weights, extra):
    layer = stirred(
        mnn.MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=mnn.Rope(base=20.0), **extra), fresh
    )
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
    {}, {"causal": True, "num_kv_heads": G}, {"v_head_dim": 3, "head_dim": 5}, {"sinks": True, "head_scale": True},
    {"softcap": 1.5, "qk_norm": True}, {"alibi": True, "window": 3, "causal": True},
    {"rope": mnn.Rope(base=20.0), "add_bias_kv": True, "add_zero_attn": True},
]  # fmt: skip


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("options", GRADIENTS, ids=lambda options: ", ".join(options))
def test_gradients_are_right_in_float64(fresh, options, weights):
    layer = stirred(mnn.MultiHeadAttention(12, H, batch_first=True, **options).double(), fresh)
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
        layers.append(mnn.MultiHeadAttention(M, H, G, batch_first=True, projections=layout))
    x = normal(fresh, B, Q, M)
    assert_allclose(layers[0](x)[0].detach(), layers[1](x)[0].detach(), atol=1e-5)
    torch.manual_seed(11)
    again = mnn.MultiHeadAttention(M, H, G, batch_first=True)
    assert_array_equal(again.qkv_proj.weight.detach(), layers[0].qkv_proj.weight.detach())


def test_projections_start_with_glorots_spread_and_reset_parameters_draws_afresh():
    torch.manual_seed(0)
    layer = mnn.MultiHeadAttention(256, 8, 2)
    for part, rows in zip(layer.qkv_proj.weight.split(layer.sizes.widths), layer.sizes.widths, strict=True):
        assert float(part.detach().std()) == pytest.approx((2 / (256 + rows)) ** 0.5, rel=0.05)
    assert not layer.qkv_proj.bias.any() and not layer.out_proj.bias.any()
    layer = mnn.MultiHeadAttention(M, H, sinks=True, head_scale=True, add_bias_kv=True, qk_norm=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7)
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        assert not bool((parameter == 7).any()), name
    assert bool((layer.sinks == 0).all()) and bool((layer.head_scale == 1).all())


@pytest.mark.parametrize("options", [
    {}, {"projections": "split"}, {"qk_norm": True, "sinks": True, "head_scale": True},
    {"add_bias_kv": True, "rope": mnn.Rope()},
], ids=str)  # fmt: skip
def test_a_state_dict_goes_round(fresh, options):
    one = stirred(mnn.MultiHeadAttention(M, H, G, batch_first=True, **options), fresh)
    other = mnn.MultiHeadAttention(M, H, G, batch_first=True, **options)
    other.load_state_dict(one.state_dict())
    x = normal(fresh, B, Q, M)
    assert_array_equal(one(x)[0].detach(), other(x)[0].detach())


def test_autocast_is_served(fresh):
    layer, x = mnn.MultiHeadAttention(M, H, batch_first=True), normal(fresh, B, Q, M)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(x, need_weights=False)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_float_mask_may_have_another_dtype(fresh, dtype):
    layer, x = mnn.MultiHeadAttention(M, H, batch_first=True), normal(fresh, B, Q, M)
    mask = normal(fresh, Q, Q).to(dtype)
    want = layer(x, attn_mask=mask.float())[0].detach()
    for weights in (True, False):
        assert_allclose(layer(x, attn_mask=mask, need_weights=weights)[0].detach(), want, atol=1e-5)


@pytest.mark.parametrize("name", ["sinks", "head_scale"])
def test_a_part_that_alone_is_trained_gets_its_gradient(fresh, name):
    layer = stirred(mnn.MultiHeadAttention(M, H, batch_first=True, **{name: True}), fresh).requires_grad_(False)
    part = getattr(layer, name).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(normal(fresh, B, Q, M), need_weights=False)[0].square().sum(), part)
    assert bool((gradient != 0).all())


# ========================================================================================================= feed-forward
# Feed-forward layers are their formulas, and the gated one has the plain one's number of parameters.


def count(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(B, Q, M), (Q, M), (M,), (B, 0, M), (0, Q, M)], ids=str)
def test_feedforward_is_its_formula(fresh, activation, shape):
    layer, x = stirred(mnn.FeedForward(M, activation=activation), fresh), torch.randn(shape, generator=fresh)
    inner = ACTIVATIONS[activation](x @ layer.up_proj.weight.T + layer.up_proj.bias)
    assert_allclose(layer(x).detach(), (inner @ layer.down_proj.weight.T + layer.down_proj.bias).detach(), atol=1e-4)


def test_swiglu_is_its_formula_and_transformers_own(fresh):
    import transformers as t
    from transformers.models.llama.modeling_llama import LlamaMLP

    layer, x = stirred(mnn.SwiGLU(M), fresh), torch.randn(B, Q, M, generator=fresh)
    gate, up = x @ layer.gate_proj.weight.T, x @ layer.up_proj.weight.T
    want = (gate * torch.sigmoid(gate) * up) @ layer.down_proj.weight.T
    assert_allclose(layer(x).detach(), want.detach(), atol=1e-4)
    theirs = LlamaMLP(t.LlamaConfig(hidden_size=M, num_attention_heads=6, intermediate_size=layer.hidden_dim))
    theirs.load_state_dict(layer.state_dict())
    assert_allclose(layer(x).detach(), theirs(x).detach(), atol=1e-4)


@pytest.mark.parametrize("embed_dim", [24, 64, 100, 512, 768, 4096])
@pytest.mark.parametrize("multiple_of", [1, 8, 64, 256])
def test_the_gated_layer_has_as_many_parameters_as_the_classic_one(embed_dim, multiple_of):
    """8/3 m rounded up: never fewer, and less than one multiple's columns more."""
    classic = mnn.FeedForward(embed_dim, bias=False, device="meta")
    gated = mnn.SwiGLU(embed_dim, multiple_of=multiple_of, device="meta")
    assert count(classic) == 8 * embed_dim**2
    assert gated.hidden_dim % multiple_of == 0
    assert 0 <= count(gated) - count(classic) < 3 * embed_dim * multiple_of


def test_widths_are_those_of_known_models():
    assert mnn.FeedForward(512, device="meta").hidden_dim == 2048
    assert mnn.gated_width(4096, 256) == 11008
    assert mnn.gated_width(5120, 256) == 13824  # Llama 13B
    assert count(mnn.SwiGLU(8192, 28672, device="meta")) == 704_643_072  # Llama-2 70B: 704.6 M a layer


def test_dropout_falls_on_the_inner_activations_in_training_only():
    layer = mnn.FeedForward(M, activation="relu", dropout=0.5, bias=False)
    with torch.no_grad():
        layer.up_proj.weight.fill_(1)
        layer.down_proj.weight.fill_(1)
    x = torch.ones(40, M)
    assert layer(x).unique().numel() > 3
    assert layer.eval()(x).unique().numel() == 1


@pytest.mark.parametrize("kind", [mnn.FeedForward, mnn.SwiGLU])
def test_gradients_are_right_and_a_seed_gives_one_layer(fresh, kind):
    layer = stirred(kind(6).double(), fresh)
    assert torch.autograd.gradcheck(layer, torch.randn(2, 6, generator=fresh).double().requires_grad_())
    pair = []
    for _ in range(2):
        torch.manual_seed(5)
        pair.append(kind(6).down_proj.weight)
    assert bool((pair[0] == pair[1]).all())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: mnn.FeedForward(0), "embed_dim=0 is not a width: use 1 or more."),
    (lambda: mnn.SwiGLU(8, 0), "hidden_dim=0 is not a width"),
    (lambda: mnn.SwiGLU(8, multiple_of=0),
     "multiple_of=0: the width is rounded up to a multiple of it. Use 1 or more."),
    (lambda: mnn.FeedForward(8, activation="swish"),
     "activation='swish' is not an activation here: use one of relu, gelu, gelu_tanh, silu."),
    (lambda: mnn.FeedForward(8, dropout=1.0), "dropout=1.0 is not a share to drop: use 0 up to, not including, 1."),
    (lambda: mnn.FeedForward(8)(torch.ones(2, 7)), "x has width 7, but this layer reads width 8: its shape is (2, 7)."),
    (lambda: mnn.SwiGLU(8)(torch.ones(2, 7)), "x has width 7, but this layer reads width 8"),
])  # fmt: skip
def test_what_does_not_fit_is_an_error(make, message):
    refuses(ValueError, re.escape(message), make)


# ================================================================================================================ hooks
# Who attends for a `MultiHeadAttention`, what hooks see of it and change, and that it compiles into one graph.

# ------------------------------------------------------------------------------------------------- precision, gradients


@pytest.mark.parametrize("options", [{"window": 3}, {"window": 3, "causal": True}, {"causal": True}], ids=str)
def test_a_mask_too_large_to_form_is_left_to_tiles(fresh, monkeypatch, options):
    from manyheads.nn import mixing

    layer = stirred(mnn.MultiHeadAttention(M, H, G, batch_first=True, **options), fresh)
    x, key = normal(fresh, B, Q, M), normal(fresh, B, K, M)
    with torch.no_grad():
        want, _ = layer(x, key, need_weights=False)
        monkeypatch.setattr(mixing, "DENSE_CELLS", 10)
        with hooked(Watcher(layer)) as watcher:
            got, _ = layer(x, key, need_weights=False)
    assert_allclose(got, want, atol=1e-5)
    assert watcher.calls[0][1].because.startswith("attend, since the mask is too large to form: tiles: ")


# ----------------------------------------------------------------------------------------------- attend, hooks, compile


def test_attend_is_called_with_what_mh_attend_takes(fresh):
    calls = []

    def own(q, k, v, **options):
        calls.append((q.shape, k.shape, options))
        return mh.attend(q, k, v, **options)

    layer = stirred(mnn.MultiHeadAttention(M, H, G, batch_first=True, causal=True, softcap=1.0, attend=own), fresh)
    x = normal(fresh, B, Q, M)
    plain = mnn.MultiHeadAttention(M, H, G, batch_first=True, causal=True, softcap=1.0)
    plain.load_state_dict(layer.state_dict())
    assert_allclose(layer(x)[0].detach(), plain(x)[0].detach(), atol=1e-5)
    ((q, k, options),) = calls
    assert (q, k) == ((B, H, Q, M // H), (B, G, Q, M // H))
    assert isinstance(options["mask"], attention.Mask) and options["mask"].dense is None and options["softcap"] == 1.0


class Watcher:
    def __init__(self, module, edit=lambda out: out):
        self.module, self.edit, self.calls, self.thread = module, edit, [], threading.get_ident()

    def wants(self, module):
        return module is self.module and threading.get_ident() == self.thread

    def seen(self, call: mnn.LayerCall):
        mixed = call.run()
        self.calls.append((call, mixed))
        return self.edit(mixed.out)


@contextmanager
def hooked(hook):
    mnn.add_hook(hook)
    try:
        yield hook
    finally:
        mnn.remove_hook(hook)


def test_a_hook_sees_the_call_and_leaves_the_output_as_it_was(fresh):
    layer = stirred(mnn.MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=mnn.Rope(base=20.0)), fresh)
    x = normal(fresh, B, Q, M)
    with torch.no_grad():
        before, _ = layer(x, need_weights=False)
        with hooked(Watcher(layer)) as watcher:
            during, _ = layer(x, need_weights=False)
        after, _ = layer(x, need_weights=False)
    assert_array_equal(during, before)
    assert_array_equal(after, before)
    ((call, mixed),) = watcher.calls
    assert call.module is layer and not call.crosses
    rebuilt = mh.attend(call.q, call.k, call.v, mask=call.mask(), scale=call.rule.scale)
    assert_allclose(rebuilt.out, mixed.out, atol=1e-5)
    assert mixed.because == "scaled_dot_product_attention with is_causal, enable_gqa"


def test_hooks_of_other_modules_and_threads_see_nothing_and_a_hook_goes_after_an_error(fresh):
    layer, other = (mnn.MultiHeadAttention(M, H, batch_first=True) for _ in range(2))
    x = normal(fresh, B, Q, M)
    with pytest.raises(ZeroDivisionError), hooked(Watcher(layer)) as watcher:
        other(x)
        thread = threading.Thread(target=layer, args=(x,))
        thread.start()
        thread.join()
        assert watcher.calls == []
        layer(x)
        1 / 0  # noqa: B018
    layer(x)
    assert len(watcher.calls) == 1


COMPILED = """
import torch, manyheads as mh
from manyheads.nn.positions import Rope
torch.manual_seed(0)
x, y = torch.randn(2, 7, 24), torch.randn(2, 11, 24)
hide = torch.rand(7, 7) < 0.3
pad = torch.arange(7) >= torch.tensor([[7], [5]])
cases = [
    ({}, {}), ({"num_kv_heads": 3, "causal": True, "rope": Rope()}, {"need_weights": False}),
    ({"softcap": 1.0, "sinks": True, "window": 3}, {"need_weights": False}), ({"alibi": True}, {"attn_mask": hide}),
    ({"qk_norm": True, "head_scale": True, "projections": "split"}, {"key_padding_mask": pad}),
    ({"add_bias_kv": True, "add_zero_attn": True, "v_head_dim": 5}, {"weight_heads": [1, 4]}),
    ({}, {"key": y, "need_weights": False}),
]
for build, call in cases:
    torch._dynamo.reset()
    layer = mh.MultiHeadAttention(24, 6, batch_first=True, **build)
    compiled = torch.compile(layer, fullgraph=True, backend=BACKEND)
    for got, want in zip(compiled(x, **call), layer(x, **call)):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(f(x, **call)[0].square().sum(), list(layer.parameters())) for f in (compiled, layer)]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
torch._dynamo.reset()
x = torch.randn(2, 12, 24)  # more steps than the compiler would compile again
layer = mh.MultiHeadAttention(24, 6, 3, batch_first=True, causal=True, rope=Rope())
compiled = torch.compile(layer, fullgraph=True, backend=BACKEND)
with torch.no_grad():
    whole, _ = layer(x, need_weights=False)
    cache = mh.KVCache.static(12)
    steps = [compiled(x[:, i : i + 1], need_weights=False, cache=cache)[0] for i in range(12)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)
ff = [mh.FeedForward(24), mh.SwiGLU(24)]
for f in ff:
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend=BACKEND)(x), f(x), atol=1e-5, rtol=1e-5)
print("compiled")
"""


@pytest.mark.slow  # 13 seconds, and a minute
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_into_one_graph(backend):
    """In a process of its own: the tests' type checks are not part of the graph."""
    program = f"BACKEND = {backend!r}\n{COMPILED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "compiled", done.stderr[-3000:]
