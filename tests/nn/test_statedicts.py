"""Weights of other libraries' layers give those layers' outputs, and go back where they came from."""

from __future__ import annotations

import re

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from manyheads.errors import ShapeError
from manyheads.nn import KVCache, MultiHeadAttention, RelativeBias, Rope, dump_state, load_state
from manyheads.nn.state_dicts import layer_from_config
from tests.nn.layer_oracle import stirred
from tests.refusals import refuses

B, Q, M, H, G = 2, 9, 24, 6, 3
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 50.0},
    "linear": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16},
}  # fmt: skip


def models(kind, **options):
    import transformers as t

    sizes = {"hidden_size": M, "num_attention_heads": H, "num_key_value_heads": G, "max_position_embeddings": 64}
    config_class, module = {
        "llama": (t.LlamaConfig, t.models.llama.modeling_llama),
        "mistral": (t.MistralConfig, t.models.mistral.modeling_mistral),
        "qwen2": (t.Qwen2Config, t.models.qwen2.modeling_qwen2),
        "qwen3": (t.Qwen3Config, t.models.qwen3.modeling_qwen3),
    }[kind]
    config = config_class(**{**sizes, **options}, attn_implementation="eager")
    return config, module


LLAMAS = [
    ("llama", {}), ("llama", {"attention_bias": True, "num_key_value_heads": H}),
    *[("llama", {"rope_parameters": rope}) for rope in ROPES.values()],
    ("mistral", {"sliding_window": 4, "head_dim": 6}),
    ("mistral", {"sliding_window": None, "num_key_value_heads": 1}), ("qwen2", {}), ("qwen3", {"head_dim": 10}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), LLAMAS, ids=str)
def test_llama_mistral_and_qwen_attention_equal_transformers_own(fresh, kind, options):
    config, module = models(kind, **options)
    name = next(each for each in dir(module) if re.fullmatch(r"(Llama|Mistral|Qwen2|Qwen3)Attention", each))
    rotary = next(each for each in dir(module) if each.endswith("RotaryEmbedding"))
    theirs = stirred(getattr(module, name)(config, 0), fresh).eval()
    layer, family = layer_from_config(config)
    load_state(
        layer,
        {f"model.layers.0.self_attn.{k}": v for k, v in theirs.state_dict().items()},
        family,
        "model.layers.0.self_attn.",
    )
    theirs, layer = theirs.double(), layer.double()  # so that only what is wrong differs, and rounding does not
    x = torch.randn(B, Q, M, generator=fresh, dtype=torch.float64)
    turn = getattr(module, rotary)(config)(x, torch.arange(Q)[None])
    i, j = torch.arange(Q)[:, None], torch.arange(Q)
    seen = (j <= i) & (j > i - (options.get("sliding_window") or Q))
    mask = torch.where(seen, 0.0, -torch.inf)[None, None]
    with torch.no_grad():
        want, maps = theirs(x, turn, mask)
        got, weights = layer.eval()(x, average_attn_weights=False)
        assert_allclose(got, want, atol=1e-5, rtol=1e-5)
        assert_allclose(layer(x, need_weights=False)[0], want, atol=1e-5, rtol=1e-5)
        assert_allclose(weights, maps, atol=1e-5)
    back = dump_state(layer, family)
    assert set(back) == set(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert_array_equal(back[name], tensor)


@pytest.mark.parametrize(
    "options", [{}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}], ids=str
)
def test_gpt2_attention_equals_transformers_own(fresh, options):
    import transformers as t

    config = t.GPT2Config(n_embd=M, n_head=H, n_positions=32, attn_implementation="eager", **options)
    theirs = stirred(t.models.gpt2.modeling_gpt2.GPT2Attention(config, layer_idx=2), fresh).eval()
    layer, family = layer_from_config(config, layer=2)
    load_state(layer.eval(), theirs.state_dict(), family)
    x = torch.randn(B, Q, M, generator=fresh) * 0.3
    mask = torch.where(torch.ones(Q, Q).tril() > 0, 0.0, -torch.inf)[None, None]
    with torch.no_grad():
        assert_allclose(layer(x)[0], theirs(x, attention_mask=mask)[0], atol=1e-5, rtol=1e-5)
    back = dump_state(layer, family)
    for name, tensor in theirs.state_dict().items():
        assert name in ("bias", "masked_bias") or bool((back[name] == tensor).all())


def test_bert_attention_equals_transformers_own(fresh):
    import transformers as t

    config = t.BertConfig(hidden_size=M, num_attention_heads=H, attn_implementation="eager")
    theirs = stirred(t.models.bert.modeling_bert.BertAttention(config), fresh).eval()
    layer, family = layer_from_config(config)
    load_state(layer.eval(), {f"encoder.{k}": v for k, v in theirs.state_dict().items()}, family, "encoder.")
    x = torch.randn(B, Q, M, generator=fresh)
    padding = torch.arange(Q) < torch.tensor([[Q], [5]])
    mask = torch.where(padding, 0.0, -torch.inf)[:, None, None]
    with torch.no_grad():
        want = theirs.output(theirs.self(x, mask)[0], x)
        got = theirs.output.LayerNorm(layer(x, key_padding_mask=padding.int())[0] + x)
        assert_allclose(got, want, atol=1e-5, rtol=1e-5)
    back = dump_state(layer, family)
    assert set(theirs.state_dict()) - set(back) == {"output.LayerNorm.weight", "output.LayerNorm.bias"}
    for name, tensor in back.items():
        assert_array_equal(tensor, theirs.state_dict()[name])


def t5_config(**options):
    import transformers as t

    return t.T5Config(d_model=M, d_kv=5, num_heads=H, num_layers=3, attn_implementation="eager", **options)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_t5_attention_equals_transformers_own(fresh, is_decoder):
    """Heads of 5 in a model of 24: the inside is 30 wide. The second layer reads with the first one's positions."""
    from transformers.models.t5.modeling_t5 import T5Attention

    config = t5_config(is_decoder=is_decoder, relative_attention_num_buckets=8, relative_attention_max_distance=7)
    x, bias = torch.randn(B, Q, M, generator=fresh, dtype=torch.float64), None
    mask = torch.where(torch.ones(Q, Q).tril() > 0, 0.0, -torch.inf)[None, None] if is_decoder else None
    layers = []
    for index in (0, 1):
        theirs = stirred(T5Attention(config, index == 0, layer_idx=index), fresh).eval().double()
        prefix = f"encoder.block.{index}.layer.0.SelfAttention."
        layer, family = layer_from_config(config, index)
        load_state(
            layer.eval().double(),
            {prefix + name: tensor for name, tensor in theirs.state_dict().items()},
            family,
            prefix,
        )
        back = dump_state(layer, family)
        T5Attention(config, index == 0, layer_idx=index).load_state_dict(back)
        for name, tensor in theirs.state_dict().items():
            assert_array_equal(back[name], tensor)
        layers.append(layer)
        layer.relative_bias = layers[0].relative_bias
        with torch.no_grad():
            want, bias, maps = theirs(x, mask=mask, position_bias=bias)
            out, weights = layer(x, average_attn_weights=False)
            assert_allclose(out, want, atol=1e-4)
            assert_allclose(weights, maps, atol=1e-4)
            if is_decoder:  # a token at a time, the positions go on where the cache ends
                cache = KVCache()
                steps = [layer(x[:, at : at + 1], need_weights=False, cache=cache)[0] for at in range(Q)]
                assert_allclose(torch.cat(steps, 1), want, atol=1e-4)


def test_t5_cross_attention_equals_transformers_own(fresh):
    from transformers.models.t5.modeling_t5 import T5Attention

    theirs = stirred(T5Attention(t5_config(is_decoder=True), layer_idx=0), fresh).eval().double()
    layer, family = layer_from_config(t5_config(), relative_bias=None)
    load_state(layer.eval().double(), theirs.state_dict(), family)
    x, source = (
        torch.randn(B, Q, M, generator=fresh, dtype=torch.float64),
        torch.randn(B, 4, M, generator=fresh, dtype=torch.float64),
    )
    with torch.no_grad():
        assert_allclose(layer(x, source)[0], theirs(x, key_value_states=source)[0], atol=1e-4)


@pytest.mark.parametrize(
    ("theirs_has", "ours_has"),
    [
        ({"kv_heads": G}, {"num_kv_heads": G}),
        ({"kv_heads": 2}, {"num_kv_heads": 2, "projections": "split"}),
        ({"one_kv_head": True, "causal": True, "num_mem_kv": 1},
         {"num_kv_heads": 1, "causal": True, "add_bias_kv": True}),
        ({"kv_heads": 2, "value_dim_head": 7, "head_scale": True, "head_learned_sink": True},
         {"num_kv_heads": 2, "v_head_dim": 7, "head_scale": True, "sinks": True}),
        ({"kv_heads": G, "dim_context": 10}, {"num_kv_heads": G, "kdim": 10, "vdim": 10}),
    ],
    ids=str,
)  # fmt: skip
def test_x_transformers_attention_equals_its_own(fresh, theirs_has, ours_has):
    """Its query head i reads key/value head i % g: in our order that is head (i % g) * (h / g) + i // g."""
    attention = pytest.importorskip("x_transformers.x_transformers", reason="pip install x-transformers")
    theirs = stirred(attention.Attention(M, dim_head=6, heads=H, **theirs_has), fresh).eval().double()
    layer = MultiHeadAttention(M, H, head_dim=6, bias=False, batch_first=True, **ours_has)
    load_state(layer.eval().double(), {f"a.{k}": v for k, v in theirs.state_dict().items()}, "x-transformers", "a.")
    x = torch.randn(B, Q, M, generator=fresh, dtype=torch.float64)
    source = torch.randn(B, 4, 10, generator=fresh, dtype=torch.float64) if "dim_context" in theirs_has else None
    with torch.no_grad():
        want, inside = theirs(x, context=source, return_intermediates=True)
        got, weights = layer(x, source, average_attn_weights=False)
    assert_allclose(got, want, atol=1e-4)
    groups = layer.num_kv_heads
    order = [rank * groups + group for group in range(groups) for rank in range(H // groups)]
    maps = inside.post_softmax_attn[:, order]
    if "num_mem_kv" in theirs_has:  # the learned key comes first there, and last here
        maps = maps.roll(-1, -1)
    if "head_learned_sink" in theirs_has:  # a column there, and none here
        maps = maps[..., 1:]
    assert_allclose(weights, maps, atol=1e-4)
    back = dump_state(layer, "x-transformers")
    attention.Attention(M, dim_head=6, heads=H, **theirs_has).load_state_dict(back)  # strict
    for name, tensor in theirs.state_dict().items():
        assert_array_equal(back[name], tensor)


def test_x_transformers_rotation_is_of_neighbours(fresh):
    attention = pytest.importorskip("x_transformers.x_transformers", reason="pip install x-transformers")
    theirs = stirred(attention.Attention(M, dim_head=6, heads=H, kv_heads=G, causal=True), fresh).eval().double()
    rope = Rope(dims=4, interleaved=True, max_positions=Q)
    layer = MultiHeadAttention(M, H, G, head_dim=6, bias=False, batch_first=True, causal=True, rope=rope)
    load_state(layer.eval().double(), theirs.state_dict(), "x-transformers")
    x = torch.randn(B, Q, M, generator=fresh, dtype=torch.float64)
    with torch.no_grad():
        want = theirs(x, rotary_pos_emb=attention.RotaryEmbedding(4).forward_from_seq_len(Q))
        assert_allclose(layer(x)[0], want, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"kdim": 10, "vdim": 14}, {"add_bias_kv": True}, {"kdim": 10, "bias": False}],
    ids=str,
)
def test_torchs_state_dict_goes_in_and_out(fresh, options):
    theirs = stirred(nn.MultiheadAttention(M, H, batch_first=True, **options), fresh)
    layer = MultiHeadAttention(M, H, batch_first=True, **options)
    load_state(layer, theirs.state_dict(), "torch")
    inputs = [torch.randn(B, Q, options.get(name, M), generator=fresh) for name in ("embed_dim", "kdim", "vdim")]
    for got, want in zip(layer(*inputs), theirs(*inputs), strict=True):
        assert_allclose(got.detach(), want.detach(), atol=1e-5)
    back = dump_state(layer, "torch")
    other = nn.MultiheadAttention(M, H, batch_first=True, **options)
    other.load_state_dict(back)  # strict: no name missing, none too many
    for name, tensor in theirs.state_dict().items():
        assert_array_equal(back[name], tensor)


@pytest.mark.parametrize("projections", ["fused", "split"])
@pytest.mark.parametrize("family", ["torch", "llama", "gpt2", "bert", "t5", "x-transformers"])
def test_every_family_goes_round_in_every_layout(fresh, family, projections):
    options = {"batch_first": True, "scale": 1.0 if family == "t5" else None, "bias": family != "x-transformers"}
    one = stirred(MultiHeadAttention(M, H, projections=projections, **options), fresh)
    other = MultiHeadAttention(M, H, projections="fused" if projections == "split" else "split", **options)
    load_state(other, dump_state(one, family, "here."), family, "here.")
    x = torch.randn(B, Q, M, generator=fresh)
    assert_allclose(one(x)[0].detach(), other(x)[0].detach(), atol=1e-5)


def state(**changes):
    given = dump_state(MultiHeadAttention(M, H), "llama") | changes
    return {name: tensor for name, tensor in given.items() if tensor is not None}


@pytest.mark.parametrize(("family", "given", "message"), [
    ("keras", {}, "'keras' is not a family of state dicts here: use one of torch, llama, gpt2, bert, t5, "
        "x-transformers."),
    ("llama", state(**{"q_proj.weight": None}), "llama state dict lacks q.weight (under '' it has k_proj.bias, "),
    ("llama", {}, "has nothing): build the layer without them, or give the right prefix."),
    ("llama", state(**{"q_norm.weight": torch.ones(4)}),
     "has q_norm, and this layer has no such part: build it with them."),
    ("llama", state(lora=torch.ones(4)), "llama state dict has lora, and this layer has no such part"),
    ("llama", state(**{"k_proj.weight": torch.ones(12, M)}),
     "k.weight of the llama state dict has shape (12, 24) and the layer's (24, 24): build the layer with "
     "that model's sizes."),
    ("t5", {}, "t5 does not scale its scores, and this layer's scale is 0.5: build it with scale=1.0."),
    ("x-transformers", {"mem_k": torch.ones(H, 3, 4)}, "has num_mem_kv=3 learned keys, but a layer here has one."),
    ("x-transformers", {"to_q.weight": torch.ones(20, M)},
     "q.weight of the x-transformers state dict has shape (20, 24), which is not that of 6 heads: build"),
    ("torch", {"in_proj_weight": torch.ones(70, M)},
     "in_proj_weight has 70 rows for q, k and v, but this layer's are (24, 24, 24)."),
])  # fmt: skip
def test_a_state_dict_that_does_not_fit_is_an_error(family, given, message):
    refuses(ShapeError, re.escape(message), load_state, MultiHeadAttention(M, H), given, family)


def test_a_layer_that_a_family_cannot_hold_is_an_error(unchecked_types):
    with pytest.raises(ShapeError, match=re.escape("as wide as the model, 24, not (24, 12, 12).")):
        dump_state(MultiHeadAttention(M, H, G), "torch")
    with pytest.raises(ShapeError, match="bert state dicts have no place for sinks: this layer cannot be one."):
        dump_state(MultiHeadAttention(M, H, sinks=True), "bert")
    message = "x-transformers state dicts have no place for k.bias, out.bias, q.bias, v.bias"
    refuses(ShapeError, message, dump_state, MultiHeadAttention(M, H), "x-transformers")
    message = "t5 does not scale its scores, and this layer's scale is one a head: build it"
    refuses(ShapeError, message, dump_state, MultiHeadAttention(M, H, scale=[1.0] * H), "t5")
    message = "llama state dicts have no place for relative_bias: this layer cannot be one."
    refuses(ShapeError, message, dump_state, MultiHeadAttention(M, H, relative_bias=RelativeBias()), "llama")
    refuses(ShapeError, "relative_bias is a int: give RelativeBias", MultiHeadAttention, M, H, relative_bias=32)
    message = "'fnet' is not a config that a layer can be built from: use one of llama, mistral"
    refuses(ShapeError, message, layer_from_config, type("C", (), {"model_type": "fnet"})())
    message = "rope_type='longrope' is not a rotation of ours: use one of default, linear, llama3, yarn."
    refuses(ShapeError, message, Rope.from_parameters, {"rope_type": "longrope"}, max_positions=9, head_dim=4)
