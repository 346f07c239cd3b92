"""Everything that can be wrong with what a layer is given, in the words that it answers with."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from manyheads.errors import ShapeError
from manyheads.nn import MultiHeadAttention, Rope

B, Q, K, M, H, G = 2, 7, 11, 24, 6, 3
ONES = torch.ones
# As users have them, without the tests' own type checks, which would speak up before the errors do.
BUILD, CALL = inspect.unwrap(MultiHeadAttention.__init__), inspect.unwrap(MultiHeadAttention.forward)


def build(*args, **options):
    layer = MultiHeadAttention.__new__(MultiHeadAttention)
    BUILD(layer, *args, **options)
    return layer


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (
            (24, 5),
            {},
            "embed_dim=24 is not a multiple of num_heads=5: say head_dim=, or use one of [1, 2, 3, 4, 6, 8, 12, 24] "
            "heads.",
        ),
        (
            (24, 6, 4),
            {},
            "num_heads=6 is not a multiple of num_kv_heads=4: every key/value head must serve equally many query "
            "heads. Use one of [1, 2, 3, 6].",
        ),
        (
            (24, 6, 0.1),
            {},
            "num_kv_heads=0.1 is no count: where nn.MultiheadAttention has dropout third, here stands num_kv_heads. "
            "Write dropout=0.1.",
        ),
        ((24, 0), {}, "num_heads=0 is no count: use a whole number, 1 or more."),
        ((24, -2), {}, "num_heads=-2 is no count"),
        ((0, 6), {}, "embed_dim=0 is no count"),
        ((24.0, 6), {}, "embed_dim=24.0 is no count"),
        ((24, 6, 0), {}, "num_kv_heads=0 is no count"),
        ((24, 6), {"head_dim": 0}, "head_dim=0 is no count"),
        ((24, 6), {"v_head_dim": -1}, "v_head_dim=-1 is no count"),
        ((24, 6), {"kdim": 0}, "kdim=0 is no count"),
        ((24, 6), {"window": 0}, "window=0 is no count"),
        ((24, 6), {"window": True}, "window=True is no count"),
        ((24, 6), {"dropout": 1.0}, "dropout=1.0 is no share of the weights to drop: use 0 up to, not including, 1."),
        ((24, 6), {"dropout": -0.1}, "dropout=-0.1 is no share"),
        (
            (24, 6),
            {"dropout": 0.1, "attend": print},
            "dropout=0.1 with attend=: an injected attend takes no dropout. Use dropout=0.0, or leave attend out.",
        ),
        (
            (24, 6),
            {"softcap": 0.0},
            "softcap=0.0 is no cap: it squeezes scores into (-softcap, softcap). Use None for no cap.",
        ),
        ((24, 6), {"scale": [0.1, 0.2]}, "scale has 2 numbers: give one for all, or one a head, 6."),
        (
            (24, 6),
            {"mask_true": "keep"},
            "mask_true='keep': say 'hide' (True = may not look) or 'see' (True = may look).",
        ),
        (
            (24, 6),
            {"rope": {"rope_type": "default"}},
            "rope is a dict: give a Rope, as in Rope(base=10_000.0, max_positions=4096).",
        ),
        (
            (25, 5),
            {"rope": Rope()},
            "rope turns pairs of numbers, but 5 of each head's 5 were asked for: give Rope(dims=) an even number up "
            "to 4.",
        ),
        (
            (24, 6),
            {"projections": "packed"},
            "projections='packed': use 'fused', 'split', or a mapping of modules q, k, v and out.",
        ),
        (
            (24, 6),
            {"projections": "fused", "kdim": 9},
            "projections='fused', but kdim or vdim differ from embed_dim, and one product has one input and one "
            "bias: use 'split'.",
        ),
        (
            (24, 6),
            {"projections": "fused", "k_bias": False},
            "projections='fused', but q, k and v differ in having a bias",
        ),
        (
            (24, 6),
            {"projections": {"q": nn.Identity()}},
            "projections has ['q']: inject all of 'q', 'k', 'v' and 'out', and nothing else.",
        ),
        (
            (24, 6),
            {"projections": dict.fromkeys(["q", "k", "v", "out"], abs)},
            "projections['q'] is a builtin_function_or_method: give an nn.Module, so that it moves with the layer.",
        ),
        (
            (24, 6),
            {"projections": {}, "bias": False, "kdim": 3},
            "kdim, bias with injected projections: those have their own. Leave these arguments out.",
        ),
    ],
)
def test_a_layer_that_cannot_be_is_an_error(args, options, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        build(*args, **options)


X, Y = ONES(B, Q, M), ONES(B, K, M)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (
            (ONES(M),),
            {},
            "query has shape (24,): give (length, 24), or a batch of those, (batch, length, 24), and query, key and "
            "value alike.",
        ),
        ((ONES(1, B, Q, M),), {}, "query has shape (1, 2, 7, 24): give (length, 24)"),
        ((X, ONES(K, M)), {}, "key has shape (11, 24): give (length, 24), or a batch of those"),
        (
            (ONES(B, Q, 23),),
            {},
            "query has width 23, but this layer reads a query of width 24: its shape is (2, 7, 23).",
        ),
        ((X, ONES(B, K, 9)), {}, "key has width 9, but this layer reads a key of width 24"),
        ((X, Y, ONES(B, K, 9)), {}, "value has width 9, but this layer reads a value of width 24"),
        (
            (X, ONES(3, K, M)),
            {},
            "query has 2 texts and key has 3: must be equal. This layer reads (batch, length, 24).",
        ),
        ((X, Y, ONES(B, K + 1, M)), {}, "key has shape (2, 11, 24) and value (2, 12, 24): every key needs one value."),
        (
            (X, None, Y),
            {},
            "value without key: give both, or key alone (value is key then), or neither (self-attention).",
        ),
        (
            (X.double(),),
            {},
            "query is torch.float64 and the layer torch.float32: convert one, as in layer.to(torch.float64).",
        ),
        ((X, Y.half()), {}, "key is torch.float16 and the layer torch.float32: convert one"),
        ((X.to("meta"),), {}, "query is on meta and the layer on cpu: move one, as in layer.to('meta')."),
        (
            (X,),
            {"attn_mask": ONES(Q, Q, device="meta")},
            "attn_mask is on meta, but the layer and its input are on cpu: move it there.",
        ),
        (
            (X,),
            {"attn_mask": ONES(Q, Q + 1)},
            "attn_mask has shape (7, 8): give (queries, keys) = (7, 7), (texts * heads, queries, keys) = (12, 7, "
            "7), or (2, 6, 7, 7), where texts and heads may be 1; keys count the cached ones.",
        ),
        ((X,), {"attn_mask": ONES(B, Q, Q)}, "attn_mask has shape (2, 7, 7): give (queries, keys) = (7, 7), "),
        ((X,), {"attn_mask": ONES(B, Q, Q)}, "A mask for each text needs a head axis: attn_mask[:, None]."),
        ((X,), {"attn_mask": ONES(B, G, Q, Q)}, "attn_mask has shape (2, 3, 7, 7)"),
        (
            (X,),
            {"attn_mask": ONES(Q, Q).long() * 2},
            "attn_mask is torch.int64 and runs from 2 to 2: integers are 0 (may not look) or 1 (may look). Numbers "
            "to add to the scores must be floats.",
        ),
        (
            (X,),
            {"key_padding_mask": -ONES(B, Q).int()},
            "key_padding_mask is torch.int32 and runs from -1 to -1: integers are 0",
        ),
        (
            (X,),
            {"attn_mask": ONES(Q, Q).cfloat()},
            "attn_mask is torch.complex64: use booleans, integers 0 and 1 (1 = may look), or floats to add.",
        ),
        (
            (X,),
            {"key_padding_mask": ONES(B, K)},
            "key_padding_mask has shape (2, 11): give (texts, keys) = (2, 7), or (7,) without a batch; keys count "
            "the cached ones.",
        ),
        ((X,), {"key_padding_mask": ONES(Q)}, "key_padding_mask has shape (7,): give"),
        (
            (X,),
            {"weight_heads": [0, 6]},
            "weight_heads has [6], but this layer has heads 0 to 5: give a list of their numbers.",
        ),
        ((X,), {"weight_heads": [-7]}, "weight_heads has [-7], but"),
        (
            (X,),
            {"weight_heads": [0], "need_weights": False},
            "weight_heads with need_weights=False: one asks for weights and the other for none. Leave one out.",
        ),
        (
            (X,),
            {"positions": torch.arange(Q)},
            "positions without rope: nothing else reads them. Build the layer with rope=Rope(), or leave them out.",
        ),
    ],
)
def test_a_call_that_cannot_mean_anything_is_an_error(inputs, options, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        CALL(MultiHeadAttention(M, H, batch_first=True), *inputs, **options)


@pytest.mark.parametrize(
    ("inputs", "positions", "message"),
    [
        (
            (X, Y),
            torch.arange(Q),
            "positions with a key of its own: they are of one text, and query and key are two. Leave them out.",
        ),
        ((X,), torch.arange(K), "positions is torch.int64 of shape (11,): give integers of shape (7,) or (2, 7)."),
        ((X[0],), torch.zeros(B, Q).long(), "positions is torch.int64 of shape (2, 7): give integers of shape (7,)."),
        ((X,), torch.zeros(Q), "positions is torch.float32 of shape (7,): give integers"),
    ],
)
def test_positions_that_do_not_fit_are_an_error(inputs, positions, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        CALL(MultiHeadAttention(M, H, batch_first=True, rope=Rope()), *inputs, positions=positions)


def test_a_batch_axis_in_the_wrong_place_says_where_it_should_be():
    layer = MultiHeadAttention(M, H)
    with pytest.raises(
        ShapeError,
        match=re.escape(
            "query has 7 texts and key has 11: must be equal. This layer reads (length, batch, 24) since "
            "batch_first=False."
        ),
    ):
        layer(X, Y)


def test_self_attention_of_a_layer_with_other_widths_for_keys_is_an_error():
    layer = MultiHeadAttention(M, H, kdim=10, vdim=14, batch_first=True)
    with pytest.raises(
        ShapeError, match="no key, but this layer reads keys of width 10 and values of width 14, and query has 24"
    ):
        layer(X)


def test_injected_projections_of_the_wrong_width_are_an_error():
    parts = {name: nn.Linear(M, M) for name in ("q", "k", "v", "out")}
    layer = MultiHeadAttention(M, H, G, batch_first=True, projections=parts)
    with pytest.raises(ShapeError, match="the k projection gave 24 numbers a token, but 3 heads of 4 are 12."):
        layer(X)
