"""Feed-forward layers are their formulas, and the gated one has the plain one's number of parameters."""

from __future__ import annotations

import re

import pytest
import torch
from numpy.testing import assert_allclose

from manyheads.nn import FeedForward, SwiGLU, gated_width
from manyheads.nn.feed_forward import ACTIVATIONS
from tests.nn.layer_oracle import stirred

B, Q, M = 2, 7, 24


def count(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(B, Q, M), (Q, M), (M,), (B, 0, M), (0, Q, M)], ids=str)
def test_feedforward_is_its_formula(fresh, activation, shape):
    layer, x = stirred(FeedForward(M, activation=activation), fresh), torch.randn(shape, generator=fresh)
    inner = ACTIVATIONS[activation](x @ layer.up_proj.weight.T + layer.up_proj.bias)
    assert_allclose(layer(x).detach(), (inner @ layer.down_proj.weight.T + layer.down_proj.bias).detach(), atol=1e-4)


def test_swiglu_is_its_formula_and_transformers_own(fresh):
    import transformers as t
    from transformers.models.llama.modeling_llama import LlamaMLP

    layer, x = stirred(SwiGLU(M), fresh), torch.randn(B, Q, M, generator=fresh)
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
    classic = FeedForward(embed_dim, bias=False, device="meta")
    gated = SwiGLU(embed_dim, multiple_of=multiple_of, device="meta")
    assert count(classic) == 8 * embed_dim**2
    assert gated.hidden_dim % multiple_of == 0
    assert 0 <= count(gated) - count(classic) < 3 * embed_dim * multiple_of


def test_widths_are_those_of_known_models():
    assert FeedForward(512, device="meta").hidden_dim == 2048
    assert gated_width(4096, 256) == 11008
    assert gated_width(5120, 256) == 13824  # Llama 13B
    assert count(SwiGLU(8192, 28672, device="meta")) == 704_643_072  # Llama-2 70B: 704.6 M a layer


def test_dropout_falls_on_the_inner_activations_in_training_only():
    layer = FeedForward(M, activation="relu", dropout=0.5, bias=False)
    with torch.no_grad():
        layer.up_proj.weight.fill_(1)
        layer.down_proj.weight.fill_(1)
    x = torch.ones(40, M)
    assert layer(x).unique().numel() > 3
    assert layer.eval()(x).unique().numel() == 1


@pytest.mark.parametrize("kind", [FeedForward, SwiGLU])
def test_gradients_are_right_and_a_seed_gives_one_layer(fresh, kind):
    layer = stirred(kind(6).double(), fresh)
    assert torch.autograd.gradcheck(layer, torch.randn(2, 6, generator=fresh).double().requires_grad_())
    pair = []
    for _ in range(2):
        torch.manual_seed(5)
        pair.append(kind(6).down_proj.weight)
    assert bool((pair[0] == pair[1]).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeedForward(0), "embed_dim=0 is no width: use 1 or more."),
        (lambda: SwiGLU(8, 0), "hidden_dim=0 is no width"),
        (
            lambda: SwiGLU(8, multiple_of=0),
            "multiple_of=0: the width is rounded up to a multiple of it. Use 1 or more.",
        ),
        (
            lambda: FeedForward(8, activation="swish"),
            "activation='swish' is no activation here: use one of relu, gelu, gelu_tanh, silu.",
        ),
        (lambda: FeedForward(8, dropout=1.0), "dropout=1.0 is no share to drop: use 0 up to, not including, 1."),
        (lambda: FeedForward(8)(torch.ones(2, 7)), "x has width 7, but this layer reads width 8: its shape is (2, 7)."),
        (lambda: SwiGLU(8)(torch.ones(2, 7)), "x has width 7, but this layer reads width 8"),
    ],
)
def test_what_does_not_fit_is_an_error(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
