"""`MultiHeadAttention` in every precision, its gradients, how parameters begin, and that a state dict goes round."""

from __future__ import annotations

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.nn import MultiHeadAttention, Rope
from tests.nn.layer_oracle import expected, normal, stirred

B, Q, M, H, G = 2, 7, 24, 6, 3


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 3e-5), (torch.bfloat16, 0.15), (torch.float16, 0.02)], ids=str
)
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("extra", [{}, {"alibi": True}, {"softcap": 2.0}, {"sinks": True}, {"window": 3}], ids=str)
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
