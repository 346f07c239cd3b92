"""Calls by hand whose parts are on different devices: one clear line, before torch names an operation deep inside."""

import copy

import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import ModelError, ShapeError
from manyheads.nn import Mask, Rope, Rule
from manyheads.recording import Entropy, Layer, Received, Tokens, prepare
from tests.device.conftest import assert_same
from tests.models.eager import draw
from tests.models.tiny import VOCAB_SIZE, tiny_llama

B, H, G, Q, K, D, F = 2, 6, 3, 7, 11, 8, 5
WIDTH = 48


def test_attend(fresh):
    q, k, v = (torch.randn(*shape, generator=fresh) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F)))
    for mixed in ((q.to("cuda"), k, v), (q, k.to("cuda"), v), (q.to("cuda:1"), k.to("cuda"), v.to("cuda"))):
        with pytest.raises(ShapeError, match=r"q is torch.float32 on .*, k is .* on .*: they must be alike"):
            mh.attend(*mixed)
    sinks, bias = torch.randn(H, generator=fresh), torch.randn(1, H, Q, K, generator=fresh)
    with pytest.raises(ShapeError, match=r"sinks is on cuda:0 and q on cpu: move one, as in sinks.to\(q.device\)"):
        mh.attend(q, k, v, sinks=sinks.to("cuda"))
    with pytest.raises(ShapeError, match=r"bias is on cpu and q on cuda:0: move one"):
        mh.attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), bias=bias)


def test_a_mask_of_another_device_is_read_from_there(fresh):
    q, k, v = (torch.randn(*shape, generator=fresh) for shape in ((B, H, Q, D), (B, G, K, D), (B, G, K, F)))
    holes = torch.rand(B, 1, Q, K, generator=fresh) > 0.4
    want = mh.attend(q, k, v, mask=Mask.from_dense(holes)).out
    assert_same(mh.attend(q, k, v, mask=Mask.from_dense(holes.to("cuda"))).out, want)
    assert_same(mh.attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), mask=Mask.from_dense(holes)).out, want)


@pytest.mark.parametrize("moved", ["q", "k", "lse", "bias"])
def test_a_layer(moved, fresh):
    q, k = torch.randn(B, H, K, D, generator=fresh), torch.randn(B, G, K, D, generator=fresh)
    parts = {"q": q, "k": k, "lse": mh.attend(q, k, k).lse, "bias": torch.randn(1, H, K, K, generator=fresh)}
    parts[moved] = parts[moved].to("cuda")
    with pytest.raises(ShapeError, match=rf"{moved} is on cuda:0.*: a layer is read on one device\. Move them"):
        layer = Layer(parts["q"], parts["k"], parts["lse"], Mask.full(K, K), Rule(0.3, bias=parts["bias"]))
        prepare(Tokens(torch.tensor([K, 5])), [Received(), Entropy()]).run(layer)


@pytest.mark.turns(2)
def test_our_layer_and_its_caches(fresh):
    host = mh.MultiHeadAttention(WIDTH, H, rope=Rope(), batch_first=True).eval()
    device, x = copy.deepcopy(host).to("cuda"), torch.randn(B, Q, WIDTH, generator=fresh)
    with pytest.raises(ShapeError, match=r"query is on cuda:0 and the layer on cpu: move one"):
        host(x.to("cuda"))
    with pytest.raises(ShapeError, match=r"key is on cpu and the layer on cuda:0: move one"):
        mh.MultiHeadAttention(WIDTH, H).to("cuda")(x.to("cuda"), x)
    with pytest.raises(ShapeError, match=r"attn_mask is on cpu, but the layer and its input are on cuda:0: move it"):
        device(x.to("cuda"), attn_mask=torch.ones(Q, Q, dtype=torch.bool).tril())
    cache, cross = mh.KVCache(), mh.KVCache.cross()
    plain = mh.MultiHeadAttention(WIDTH, H, batch_first=True)
    with torch.no_grad():
        host(x, cache=cache)
        with pytest.raises(ShapeError, match=r"k is .* on cuda:0, but this cache holds .* on cpu: reset\(\) it"):
            host.to("cuda")(x.to("cuda"), cache=cache)
        plain(x, x, cache=cross)
        with pytest.raises(ShapeError, match=r"query is on cuda:0, but this cross cache holds keys on cpu: reset\(\)"):
            plain.to("cuda")(x.to("cuda"), cache=cross)


def test_inputs_on_another_device_than_the_model(fresh):
    model, ids = tiny_llama(seed=draw(fresh)), torch.randint(5, VOCAB_SIZE, (B, Q), generator=fresh)
    for call in (mh.record_call, mh.measure_call):
        with pytest.raises(ModelError, match=r"LlamaForCausalLM takes its inputs on cpu, and some .*ids.to\('cpu'\)"):
            call(model, input_ids=ids.to("cuda"))
    model.to("cuda")
    with pytest.raises(ModelError, match=r"takes its inputs on cuda:0, and some are on another device"):
        mh.record_call(model, ids)
    layer, x = nn.MultiheadAttention(WIDTH, H, batch_first=True).eval(), torch.randn(B, Q, WIDTH, generator=fresh)
    with pytest.raises(ModelError, match="MultiheadAttention takes its inputs on cpu"):
        mh.record_call(layer, x, x.to("cuda"), x)
