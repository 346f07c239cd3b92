"""Torch's own inputs for `nn.MultiheadAttention` (its `module_db`): output, weights and gradients agree.

Also what those inputs leave out: a batch, cross-attention, float masks, every dtype of mask. Where ours differs on
purpose (docs/reference/layer.md lists it), a test says so.
"""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from manyheads.nn import MultiHeadAttention, load_state
from tests.nn.layer_oracle import stirred


@cache
def samples():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_inputs_torch_nn_MultiheadAttention as inputs
    return inputs(None, "cpu", torch.float64, True, False)


NUM_SAMPLES = 64


@pytest.mark.turns(4)
def test_all_of_torchs_inputs_are_here():
    assert len(samples()) == NUM_SAMPLES


def pair(fresh, *args, **options):
    theirs = stirred(nn.MultiheadAttention(*args, **options).double(), fresh)
    ours = MultiHeadAttention(*args, **options).double()
    load_state(ours, theirs.state_dict(), "torch")
    return theirs, ours


def assert_agree(theirs, ours, inputs, call):
    """Output, weights, and the gradient of every input and parameter."""
    results = []
    for layer in (theirs, ours):
        given = [x.detach().clone().requires_grad_() for x in inputs]
        out, weights = layer(*given, **call)
        loss = out.square().sum() + (0 if weights is None else weights.pow(3).sum())
        named = {name: p.grad for name, p in layer.named_parameters()} if loss.backward() is None else {}
        results.append((out, weights, [x.grad for x in given], named))
    (out, weights, grads, named), (our_out, our_weights, our_grads, our_named) = results
    assert out.shape == our_out.shape
    assert_allclose(our_out.detach(), out.detach(), atol=1e-9)
    assert (weights is None) == (our_weights is None)
    if weights is not None:
        assert weights.shape == our_weights.shape
        assert_allclose(our_weights.detach(), weights.detach(), atol=1e-9)
    for theirs_grad, our_grad in zip(grads, our_grads, strict=True):
        assert_allclose(our_grad, theirs_grad, atol=1e-8)
    names = {"in_proj_weight": "qkv_proj.weight", "in_proj_bias": "qkv_proj.bias"}
    assert len(named) == len(our_named)
    for name, grad in named.items():
        assert_allclose(our_named[names.get(name, name)].flatten(), grad.flatten(), atol=1e-8, err_msg=name)


@pytest.mark.turns(4)
@pytest.mark.thinned
@pytest.mark.parametrize("index", range(NUM_SAMPLES))
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.sampled(16)
def test_torchs_inputs_agree_in_output_weights_and_gradients(fresh, index, training):
    sample = samples()[index]
    theirs, ours = pair(fresh, *sample.constructor_input.args, **sample.constructor_input.kwargs)
    inputs, call = sample.forward_input.args, sample.forward_input.kwargs
    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        assert_agree(theirs.train(training), ours.train(training), inputs, {**call, **options})


@pytest.mark.parametrize("mask", ["none", "bool", "float", "padding", "float padding", "both", "by head"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.sampled(8)
def test_batched_cross_attention_agrees_too(fresh, mask, batch_first, need_weights):
    b, q, k, m, h = 2, 5, 7, 12, 3
    theirs, ours = pair(fresh, m, h, batch_first=batch_first)
    inputs = [torch.randn(b, n, m, generator=fresh).double() for n in (q, k, k)]
    inputs = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
    hide = torch.rand(b * h, q, k, generator=fresh) < 0.4
    hide[..., 0] = False
    padding = torch.arange(k) >= torch.tensor([[k], [4]])
    added = torch.randn(q, k, generator=fresh).double()
    call = {
        "none": {},
        "bool": {"attn_mask": hide[0]},
        "float": {"attn_mask": added},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": torch.randn(b, k, generator=fresh).double()},
        "both": {"attn_mask": hide[0], "key_padding_mask": padding},
        "by head": {"attn_mask": hide},
    }[mask]
    assert_agree(theirs, ours, inputs, {**call, "need_weights": need_weights})


# ------------------------------------------------------------------------------------- where ours differs on purpose


def test_fully_masked_rows_are_0_where_torch_gives_nan(fresh):
    theirs, ours = pair(fresh, 12, 3, batch_first=True)
    x = torch.randn(2, 5, 12, generator=fresh).double()
    padding = torch.tensor([[False] * 5, [True] * 5])
    assert bool(theirs(x, x, x, padding)[0][1].isnan().all())
    out, weights = ours(x, x, x, padding)
    assert not bool(weights[1].any())
    assert_allclose(out[1].detach(), ours.out_proj.bias.detach().expand(5, 12))


def test_is_causal_needs_no_mask_where_torch_refuses(fresh):
    theirs, ours = pair(fresh, 12, 3, batch_first=True)
    x = torch.randn(2, 5, 12, generator=fresh).double()
    with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
        theirs(x, x, x, is_causal=True)
    hide = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert_allclose(ours(x, is_causal=True)[0].detach(), theirs(x, x, x, attn_mask=hide)[0].detach(), atol=1e-9)


def test_returned_weights_are_the_softmax_where_torch_drops_some(fresh):
    theirs = nn.MultiheadAttention(12, 3, dropout=0.5, batch_first=True)
    ours = MultiHeadAttention(12, 3, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 12, generator=fresh)
    assert bool((theirs(x, x, x, average_attn_weights=False)[1] == 0).any())
    assert_allclose(ours(x)[1].sum(-1).detach(), 1, atol=1e-6)
