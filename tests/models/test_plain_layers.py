"""Torch's own attention layers, which call no interface: what they show are the weights that they return."""

import warnings

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.models import tap
from tests.models.sharp import SAME, assert_weights, normal, sharpened

LAYERS = {
    "plain": {},
    "no biases": {"bias": False},
    "other widths": {"kdim": 11, "vdim": 17},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
}
every_layer = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)


def inputs(fresh, options, batch_first, self_attention):
    x = normal(fresh, B, Q, M)
    if self_attention and "kdim" not in options:
        x = x if batch_first else x.transpose(0, 1)
        return x, x, x
    key, value = normal(fresh, B, K, options.get("kdim", M)), normal(fresh, B, K, options.get("vdim", M))
    return tuple(each if batch_first else each.transpose(0, 1) for each in (x, key, value))


def masks(fresh, num_keys):
    padding = torch.zeros(B, num_keys, dtype=torch.bool)
    padding[1, -3:] = True
    hidden = torch.rand(Q, num_keys, generator=fresh) < 0.3
    hidden[:, 0] = False
    return {"key_padding_mask": padding, "attn_mask": hidden}


@every_layer
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("masked", [True, False], ids=["masks", "no masks"])
@pytest.mark.parametrize("self_attention", [True, False], ids=["self", "cross"])
def test_torchs_layer_shows_the_weights_it_returns(fresh, options, batch_first, need_weights, masked, self_attention):
    layer = sharpened(nn.MultiheadAttention(M, H, batch_first=batch_first, **options), fresh)
    given = inputs(fresh, options, batch_first, self_attention)
    num_keys = given[1].shape[1 if batch_first else 0]
    hiding = masks(fresh, num_keys) if masked else {}
    with torch.no_grad():
        plain = layer(*given, need_weights=need_weights, **hiding)
        _, want = layer(*given, need_weights=True, average_attn_weights=False, **hiding)
        with tap(layer) as state:
            seen = layer(*given, need_weights=need_weights, **hiding)
    assert (plain[0] - seen[0]).abs().max() <= SAME
    assert (plain[1] is None) == (seen[1] is None)
    rec = mh.record_call(layer, *given, need_weights=need_weights, **hiding)
    crosses = given[1] is not given[0]
    assert list(rec.stacks) == (["cross"] if crosses else [""])
    assert_weights(rec.stacks["cross" if crosses else ""][0], want.double())
    assert len(state.sites) == 1


def test_torchs_layer_without_a_batch(fresh):
    layer = sharpened(nn.MultiheadAttention(M, H), fresh)
    x = normal(fresh, Q, M)
    for need_weights in (True, False):
        (record,) = mh.record_call(layer, x, x, x, need_weights=need_weights).layers
        with torch.no_grad():
            assert_weights(record, layer(x, x, x, average_attn_weights=False)[1][None].double())


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_edits_of_torchs_layer_act_before_its_output_projection(fresh, need_weights, gradients):
    layer = sharpened(nn.MultiheadAttention(M, H, batch_first=True), fresh)
    x = normal(fresh, B, Q, M)
    with torch.set_grad_enabled(gradients):
        weights_before = layer(x, x, x, need_weights=True)[1]
        with tap(layer, edits=[lambda call: call.out.index_fill(1, torch.tensor([2]), 0)]):
            edited, weights = layer(x, x, x, need_weights=need_weights)
    assert edited.requires_grad == gradients
    assert (weights is not None) == need_weights
    if need_weights:
        assert torch.allclose(weights, weights_before, atol=SAME)
    with torch.no_grad():
        layer.out_proj.weight.view(M, H, -1)[:, 2] = 0
        assert (edited - layer(x, x, x)[0]).abs().max() <= 1e-4
        assert (edited - layer.out_proj.bias).abs().max() > 1e-2


def test_torchs_encoder_and_decoder_are_recorded_off_their_fast_path(fresh):
    how = {"d_model": M, "nhead": H, "dim_feedforward": 16, "batch_first": True}
    encoder = sharpened(nn.TransformerEncoder(nn.TransformerEncoderLayer(**how), 2), fresh)
    decoder = sharpened(nn.TransformerDecoder(nn.TransformerDecoderLayer(**how), 3), fresh)
    x, target = normal(fresh, B, K, M), normal(fresh, B, Q, M)
    causal = nn.Transformer.generate_square_subsequent_mask(Q)
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[0, -4:] = True
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, of nested tensors
            plain = encoder(x, src_key_padding_mask=padding)  # the fast path
        with tap(encoder):
            tapped = encoder(x, src_key_padding_mask=padding)
        assert (plain - tapped)[~padding].abs().max() <= SAME * 10
        rec = mh.record_call(encoder, x, src_key_padding_mask=padding)
        hidden = x
        for layer, record in zip(encoder.layers, rec.layers, strict=True):
            want = layer.self_attn(hidden, hidden, hidden, key_padding_mask=padding, average_attn_weights=False)[1]
            assert_weights(record, want.double())
            hidden = layer(hidden, src_key_padding_mask=padding)
        rec = mh.record_call(decoder, target, x, tgt_mask=causal, memory_key_padding_mask=padding)
        assert {stack: len(layers) for stack, layers in rec.stacks.items()} == {"": 3, "cross": 3}
        assert rec.stacks[""][0].site.causal and not rec.stacks["cross"][0].site.causal
        assert [layer.site.module for layer in rec.stacks["cross"]] == [f"layers.{i}.multihead_attn" for i in range(3)]
        first = decoder.layers[0].self_attn(target, target, target, attn_mask=causal, average_attn_weights=False)[1]
        assert_weights(rec.stacks[""][0], first.double())
