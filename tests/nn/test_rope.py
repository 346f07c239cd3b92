"""Rotations are transformers' own, to the number, and a complex multiplication, whichever way pairs are laid out."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from manyheads.errors import ShapeError
from manyheads.nn import MultiHeadAttention, Rope
from manyheads.nn.positions import Llama3, RelativeBias, RotaryTable, Yarn, alibi_bias, alibi_slopes, rotate
from tests.nn.layer_oracle import alibi_slope, turned
from tests.refusals import refuses

B, H, Q, D = 2, 6, 7, 16
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
PARAMETERS = [
    {"rope_type": "default", "rope_theta": 10_000.0},
    {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
    {"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA3},
    {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 32.0, "beta_fast": 16.0, "beta_slow": 2.0,
        "original_max_position_embeddings": 128,
    },
    {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 32.0, "truncate": False,
        "original_max_position_embeddings": 128,
    },
    {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3,
        "original_max_position_embeddings": 64,
    },
    {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "attention_factor": 1.25,
        "original_max_position_embeddings": 64,
    },
]  # fmt: skip


def transformers_rotation(parameters, head_dim, length):
    """cos, sin and apply_rotary_pos_emb of transformers' Llama with these parameters."""
    import transformers as t
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = t.LlamaConfig(
        hidden_size=head_dim * 2, num_attention_heads=2, max_position_embeddings=256, rope_parameters=dict(parameters)
    )
    return LlamaRotaryEmbedding(config)(torch.ones(1), torch.arange(length)[None])


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("head_dim", [16, 20, 64])
def test_every_scaling_is_transformers_own(fresh, parameters, head_dim):
    from transformers.models.llama.modeling_llama import rotate_half

    rope = Rope.from_parameters(parameters, max_positions=256, head_dim=head_dim)
    table = RotaryTable(rope, head_dim)
    if "partial_rotary_factor" in parameters:  # transformers' Llama has none: its table is for the dims that turn
        cos, sin = transformers_rotation({**parameters, "partial_rotary_factor": 1.0}, table.dims, 200)
    else:
        cos, sin = transformers_rotation(parameters, head_dim, 200)
    assert_allclose(table.cos[:200], cos[0, :, : table.dims // 2], atol=1e-6)
    assert_allclose(table.sin[:200], sin[0, :, : table.dims // 2], atol=1e-6)
    x = torch.randn(B, H, 200, head_dim, generator=fresh)
    turned_part = x[..., : table.dims]
    want = torch.cat([turned_part * cos + rotate_half(turned_part) * sin, x[..., table.dims :]], -1)
    assert_allclose(table(x, *table.at(0, 200, None)), want, atol=1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dims", [None, 6])
def test_a_rotation_is_a_complex_multiplication(fresh, interleaved, dims):
    rope = Rope(base=30.0, dims=dims, interleaved=interleaved)
    x = torch.randn(B, H, Q, D, generator=fresh)
    table = RotaryTable(rope, D)
    want = turned(x.double().numpy(), rope, np.arange(3, 3 + Q))
    assert_allclose(table(x, *table.at(3, Q, None)), want, atol=1e-5)
    positions = torch.randint(0, 90, (B, Q), generator=fresh)
    assert_allclose(
        table(x, *table.at(0, Q, positions)), turned(x.double().numpy(), rope, positions.numpy()), atol=1e-4
    )


def test_scores_know_distances_only_and_half_precision_is_turned_in_float32(fresh):
    q, k = torch.randn(2, 1, 1, 1, D, generator=fresh).double()
    table = RotaryTable(Rope(base=30.0), D)
    scores = [float((table(q, *table.at(i + 5, 1, None)) * table(k, *table.at(i, 1, None))).sum()) for i in (0, 3, 90)]
    assert_allclose(scores, scores[0], atol=1e-5)
    x = torch.randn(1, 1, 1, D, generator=fresh).bfloat16()
    table = RotaryTable(Rope(max_positions=4002), D)
    turn = table.at(4001, 1, None)
    assert_allclose(table(x, *turn).float(), rotate(x.float(), *turn), atol=2e-2)


def test_a_table_follows_the_layer_to_a_device_but_never_to_a_dtype():
    layer = MultiHeadAttention(32, 2, rope=Rope(max_positions=5000)).bfloat16()
    assert layer.rotary.cos.dtype == torch.float32
    assert layer.double().rotary.cos.dtype == torch.float32
    assert layer.to("meta").rotary.cos.device.type == "meta"
    assert not [name for name in layer.state_dict() if "rotary" in name]


@pytest.mark.parametrize("max_positions", [9])
def test_a_position_past_the_table_is_an_error_that_says_what_would_do(max_positions):
    layer = MultiHeadAttention(32, 2, batch_first=True, rope=Rope(max_positions=max_positions))
    layer(torch.ones(1, 9, 32))
    message = (
        "positions 0 to 9 were asked for, but the rotary table holds 0 to 8: "
        "build the layer with Rope(max_positions=10)"
    )
    refuses(ShapeError, re.escape(message), layer, torch.ones(1, 10, 32))
    with pytest.raises(ShapeError, match="positions 2 to 40 were asked for, but the rotary table holds 0 to 8"):
        layer(torch.ones(1, 3, 32), positions=torch.tensor([2, 40, 5]))
    with pytest.raises(ShapeError, match="positions -2 to 0 were asked for"):
        layer(torch.ones(1, 3, 32), torch.ones(1, 1, 32))  # queries are the last of the keys: the first has no place


@pytest.mark.parametrize(("dims", "head_dim"), [(5, 16), (18, 16), (None, 15), (0, 16)])
def test_dims_that_do_not_pair_up_are_an_error(dims, head_dim):
    shown = head_dim if dims is None else dims
    message = f"rope turns pairs of numbers, but {shown} of each head's {head_dim} were asked for"
    refuses(ShapeError, message, RotaryTable, Rope(dims=dims), head_dim)


def test_scalings_are_what_their_parameters_say():
    yarn = Rope.from_parameters({"rope_type": "yarn", "factor": 4.0}, max_positions=64, head_dim=D)
    assert yarn.scaling == Yarn(4.0, 64)
    assert yarn.sharpen == pytest.approx(0.1 * np.log(4) + 1)
    assert Rope.from_parameters({"rope_type": "llama3", **LLAMA3}, max_positions=9, head_dim=D).scaling == Llama3(
        8.0, 128, 1.0, 4.0
    )


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16])
def test_slopes_are_the_papers(heads):
    """Press et al. 2022: for n heads, a power of two, the sequence that starts at 2^(-8/n) and has that ratio."""
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,)
    if heads & (heads - 1) == 0:
        assert_allclose(slopes, [2 ** (-8 * (i + 1) / heads) for i in range(heads)], rtol=1e-6)
    if heads == 6:
        assert_allclose(slopes, [alibi_slope(i, 6) for i in range(6)], rtol=1e-6)


def test_slopes_are_transformers_own_and_bias_grows_with_distance():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (4, 6, 12, 16):
        theirs = build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)
        assert_allclose(theirs[:, 0, 1], alibi_slopes(heads), rtol=1e-6)
    bias = alibi_bias(torch.tensor([1.0, 0.5]), 2, 4)
    assert_allclose(bias[0, 0], [[-2, -1, 0, -1], [-3, -2, -1, 0]])
    assert_allclose(bias[0, 1], bias[0, 0] / 2)


@pytest.mark.thinned(causal=(False, True), sizes=())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(32, 128), (8, 6), (64, 1000), (4, 3)])
def test_classes_of_distances_are_t5s(sizes, causal):
    """Every distance to 2,500 either way, the last bit of each class's edge among them."""
    from transformers.models.t5.modeling_t5 import T5Attention

    count, furthest = sizes
    ahead = torch.arange(2500) - torch.tensor([[2499], [0]])
    theirs = T5Attention._relative_position_bucket(ahead, not causal, count, furthest)
    ours = RelativeBias(count, furthest).buckets(2500, 2500, torch.device("cpu"), causal)
    assert_allclose(ours[[-1, 0]], theirs)


@pytest.mark.parametrize("sizes", [(2, 128), (9, 128), (32, 16)])
def test_classes_that_cannot_be_are_refused(sizes):
    message = "num_buckets is an even number, 4 or more, and max_distance is more than half"
    refuses(ShapeError, message, RelativeBias, *sizes)
