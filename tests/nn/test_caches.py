"""Decoding with a cache gives the full pass, token by token; every kind of cache holds what it says and no more."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import manyheads as mh
from manyheads import reference
from manyheads.attention.attention import LONG_KEYS, decode_one
from manyheads.errors import ShapeError
from manyheads.nn import KVCache, MultiHeadAttention, Rope
from manyheads.nn.caches import FIRST_CAPACITY
from tests.nn.layer_oracle import stirred
from tests.refusals import refuses

B, Q, M, H, G, D, F, WINDOW = 2, 19, 24, 6, 3, 8, 5, 4
LAYERS = {
    "mha": {},
    "gqa, rope": {"num_kv_heads": G, "rope": Rope(base=20.0)},
    "mqa, alibi": {"num_kv_heads": 1, "alibi": True},
    "sinks, softcap": {"num_kv_heads": G, "sinks": True, "softcap": 1.5, "qk_norm": True},
    "wide values": {"head_dim": D, "v_head_dim": 11},
    "learned and zero keys": {"add_bias_kv": True, "add_zero_attn": True},
}
CACHES = {
    "growing": (KVCache, None),
    "static": (lambda: KVCache.static(Q), None),
    "sliding": (lambda: KVCache.sliding(WINDOW), WINDOW),
    "sliding, wider than the window": (lambda: KVCache.sliding(WINDOW + 3), WINDOW),
    "growing, with a window": (KVCache, WINDOW),
}
STEPS = {"one by one": [1] * Q, "a prompt, then one by one": [Q - 5] + [1] * 5, "chunks": [7, 2, 1, 9]}


@pytest.mark.thinned
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("options", LAYERS)
def test_cached_decoding_equals_the_full_pass_token_by_token(fresh, options, cache, steps):
    make, window = CACHES[cache]
    layer = stirred(MultiHeadAttention(M, H, batch_first=True, causal=True, window=window, **LAYERS[options]), fresh)
    layer, x = layer.double(), torch.randn(B, Q, M, generator=fresh, dtype=torch.float64)  # sums in any order
    held, ends = make(), torch.tensor([0, *STEPS[steps]]).cumsum(0).tolist()
    with torch.no_grad():
        whole, _ = layer.eval()(x, need_weights=False)
        parts = [layer(x[:, a:b], need_weights=False, cache=held)[0] for a, b in pairwise(ends)]
    assert_allclose(torch.cat(parts, 1), whole, atol=1e-9)
    assert held.length == Q


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_decodes_what_the_full_pass_gives(fresh, dtype):
    layer = MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=Rope(base=20.0)).to(dtype)
    x, cache = torch.randn(B, Q, M, generator=fresh).to(dtype), KVCache()
    with torch.no_grad():
        whole, _ = layer(x, need_weights=False)
        parts = [layer(x[:, i : i + 1], need_weights=False, cache=cache)[0] for i in range(Q)]
    assert_allclose(torch.cat(parts, 1).float(), whole.float(), atol=3e-2)


def test_a_text_padded_on_the_left_decodes_as_it_would_alone(fresh):
    layer = MultiHeadAttention(M, H, G, batch_first=True, causal=True, rope=Rope(base=20.0))
    alone = torch.randn(1, 6, M, generator=fresh)
    padded = torch.cat([torch.randn(1, 3, M, generator=fresh), alone], 1)
    padding = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4, 5]])
    cache = KVCache()
    with torch.no_grad():
        want, _ = layer(alone)
        layer(padded[:, :7], key_padding_mask=padding[:, :7], positions=positions[:, :7], cache=cache)
        got, _ = layer(padded[:, 7:], key_padding_mask=padding, positions=positions[:, 7:], cache=cache)
    assert_allclose(got, want[:, 4:], atol=1e-5)


def test_gradients_flow_through_a_growing_cache(fresh):
    layer = stirred(MultiHeadAttention(M, H, batch_first=True, causal=True), fresh)
    x, cache = torch.randn(B, Q, M, generator=fresh), KVCache()
    whole = torch.autograd.grad(layer(x)[0][:, 5:].square().sum(), list(layer.parameters()))
    layer(x[:, :5], cache=cache)
    parts = torch.autograd.grad(layer(x[:, 5:], cache=cache)[0].square().sum(), list(layer.parameters()))
    for one, other in zip(whole, parts, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-3)


# ------------------------------------------------------------------------------------------------------- what is held


def new(n, b=B, fill=1.0):
    return torch.full((b, G, n, D), fill), torch.full((b, G, n, F), -fill)


def test_a_growing_cache_copies_seldom_and_holds_everything():
    cache, moves, at = KVCache(), 0, None
    for i in range(300):
        k, v = cache.update(*new(1, fill=float(i)))
        moves += k.data_ptr() != at
        at = k.data_ptr()
    assert_array_equal(k[0, 0, :, 0], torch.arange(300.0))
    assert_array_equal(v[1, 2, :, 4], -torch.arange(300.0))
    assert moves <= 2 + (300 // FIRST_CAPACITY).bit_length()


def test_a_static_cache_takes_its_memory_once_and_bytes_are_the_formulas():
    cache = KVCache.static(9)
    assert cache.cache_bytes == 0
    at = cache.update(*new(2))[0].data_ptr()
    assert cache.cache_bytes == B * G * 9 * (D + F) * 4
    for _ in range(7):
        assert cache.update(*new(1))[0].data_ptr() == at
    assert cache.num_keys == cache.length == 9
    # 2 * kv_heads * head_dim * positions * batch * bytes, a layer.
    layer, cache = MultiHeadAttention(64, 8, 2, batch_first=True).half(), KVCache.static(100)
    with torch.no_grad():
        layer(torch.ones(3, 4, 64).half(), cache=cache)
    assert cache.cache_bytes == 2 * 2 * 8 * 100 * 3 * 2


def test_a_sliding_cache_keeps_what_its_window_needs_and_its_memory_stays_flat():
    cache, sizes = KVCache.sliding(5), set()
    for i in range(100):
        k, _ = cache.update(*new(1, fill=float(i)))
        assert_array_equal(k[0, 0, :, 0], torch.arange(max(0, i - 4), i + 1.0))
        sizes.add(cache.cache_bytes)
    assert max(sizes) <= B * G * 10 * (D + F) * 4
    assert (cache.length, cache.num_keys) == (100, 5)
    k, _ = cache.update(*new(3, fill=7.0))  # a chunk: its first query still sees the four keys before it
    assert_array_equal(k[0, 0, :, 0], [96, 97, 98, 99, 7, 7, 7])


def test_a_cache_can_be_cropped_reordered_and_reset():
    cache = KVCache()
    cache.update(
        torch.arange(6.0).view(1, 1, 6, 1).expand(2, 1, 6, 1) * torch.tensor([1.0, 10]).view(2, 1, 1, 1),
        torch.ones(2, 1, 6, 1),
    )
    cache.crop(4)
    assert (cache.length, cache.num_keys) == (4, 4)
    cache.reorder(torch.tensor([1, 1]))
    k, _ = cache.update(torch.full((2, 1, 1, 1), 7.0), torch.ones(2, 1, 1, 1))
    assert_array_equal(k[0, 0, :, 0], [0, 10, 20, 30, 7])
    assert repr(cache).startswith("KVCache(growing; 5 read, 5 held, ")
    cache.reset()
    assert (cache.length, cache.num_keys, cache.cache_bytes, cache.filled) == (0, 0, 0, False)


def test_a_cross_cache_is_projected_once(fresh):
    layer = MultiHeadAttention(M, H, kdim=10, vdim=14, batch_first=True)
    x, key, value = (torch.randn(B, n, w, generator=fresh) for n, w in ((Q, M), (11, 10), (11, 14)))
    cache, calls = KVCache.cross(), []
    layer.qkv_proj.k.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        whole, _ = layer(x, key, value)
        calls.clear()
        parts = [layer(x[:, :1], key, value, cache=cache)[0]]
        parts += [layer(x[:, i : i + 1], cache=cache)[0] for i in range(1, Q - 1)]
        parts += [layer(x[:, -1:], key, value, cache=cache)[0]]
    assert_allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert len(calls) == 1
    assert cache.length == 11


# ---------------------------------------------------------------------------------------------------------- one token


@pytest.mark.parametrize("keys", [9, LONG_KEYS + 3])
@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 1)], ids=str)
@pytest.mark.parametrize("kind", ["none", "bool", "bool by head", "float", "nothing seen"])
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_one_query_packed_by_groups_equals_keys_and_values_repeated(fresh, keys, heads, kind, dtype, near):
    h, g = heads
    q, k, v = (torch.randn(B, *shape, generator=fresh).to(dtype) for shape in ((h, 1, D), (g, keys, D), (g, keys, F)))
    mask = {
        "none": None,
        "bool": torch.rand(B, 1, 1, keys, generator=fresh) < 0.5,
        "bool by head": torch.rand(B, h, 1, keys, generator=fresh) < 0.5,
        "float": torch.randn(1, h, 1, keys, generator=fresh).to(dtype),
        "nothing seen": torch.zeros(B, 1, 1, keys, dtype=torch.bool),
    }[kind]
    got, because = decode_one(q, k, v, 0.3, mask)
    repeated = (x.repeat_interleave(h // g, 1).double() for x in (k, v))
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), *repeated, wide, scale=0.3)
    assert_allclose(got.double(), want, atol=near)
    assert because.endswith("K and V are read once")


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("make", "message"), [
    (lambda: KVCache("ring"), "kind='ring' is not a kind of cache: use one of growing, static, sliding, cross."),
    (lambda: KVCache("static"), "kind='static' with size=None: static and sliding caches take a size of 1 or more"),
    (lambda: KVCache("growing", 4), "kind='growing' with size=4"),
    (lambda: KVCache.sliding(0), "KVCache.sliding(0): give how many positions it holds, 1 or more."),
    (lambda: KVCache.static(True), "KVCache.static(True): give how many positions it holds, 1 or more."),
    (lambda: KVCache().held(), "this cache holds nothing yet: call the layer with it first."),
    (lambda: KVCache().crop(3), "crop(3): this cache has read 0 positions and holds 0."),
])  # fmt: skip
def test_a_cache_that_cannot_be_is_an_error(make, message):
    refuses(ShapeError, re.escape(message), make)


def test_overflow_says_what_was_asked_what_there_is_and_what_would_do():
    cache = KVCache.static(8)
    cache.update(*new(6))
    said = "3 new positions after 6 make 9, but this static cache holds 8: make it KVCache.static(9) or more."
    refuses(ShapeError, re.escape(said), cache.update, *new(3))
    assert cache.length == 6  # a refused update leaves the cache as it was
    cache.update(*new(2))


@pytest.mark.parametrize(("change", "message"), [
    (lambda k, v: (k[:1], v[:1]),
     "k has (batch, key/value heads, width) (1, 3, 8), but this cache holds (2, 3, 8): one cache serves one layer"),
    (lambda k, v: (k, v[..., :2]), "v has (batch, key/value heads, width) (2, 3, 2), but this cache holds (2, 3, 5)"),
    (lambda k, v: (k.double(), v.double()),
     "k is torch.float64 on cpu, but this cache holds torch.float32 on cpu: reset() it"),
])  # fmt: skip
def test_keys_of_another_layer_are_refused(change, message):
    cache = KVCache()
    cache.update(*new(4))
    refuses(ShapeError, re.escape(message), cache.update, *change(*new(1)))


@pytest.mark.parametrize("kind", ["static", "sliding"])
def test_caches_written_in_place_refuse_gradients(kind):
    k, v = new(2)
    said = f"k and v carry gradients, and a {kind} cache is written in place: decode under"
    refuses(ShapeError, said, KVCache(kind, 9).update, k.requires_grad_(), v)


def test_a_cross_cache_holds_one_text():
    layer, cache = MultiHeadAttention(M, H, batch_first=True), KVCache.cross()
    x, key = torch.ones(B, 3, M), torch.ones(B, 5, M)
    refuses(ShapeError, "an empty cross cache without key: give the text to attend to, once.", layer, x, cache=cache)
    layer(x, key, cache=cache)
    layer(x, key, cache=cache)
    said = "this cross cache holds another text's keys: leave key out, or reset()"
    refuses(ShapeError, re.escape(said), layer, x, key.clone(), cache=cache)
    said = "this cross cache is filled, and takes one text: reset() it for another."
    refuses(ShapeError, re.escape(said), cache.update, *cache.held())


@pytest.mark.parametrize("options", [{"rope": Rope()}, {"alibi": True}, {"causal": True}, {"window": 3}], ids=str)
def test_a_cross_cache_knows_no_distances(options):
    layer = MultiHeadAttention(M, H, batch_first=True, **options)
    message = "a cross cache with rope, alibi, relative_bias, causal or window: those go by"
    refuses(ShapeError, message, layer, torch.ones(B, 3, M), torch.ones(B, 5, M), cache=KVCache.cross())


@pytest.mark.parametrize(("window", "message"), [
    (None, "a sliding cache of 4 keys, but the layer has no window: it would drop keys that the layer may look at. "
     "Use KVCache()"),
    (6, "a sliding cache of 4 keys with window=6: it would drop keys that the layer may look at. Use "
     "KVCache.sliding(6)."),
])  # fmt: skip
def test_a_sliding_cache_that_would_lose_keys_is_refused(window, message):
    layer = MultiHeadAttention(M, H, batch_first=True, causal=True, window=window)
    refuses(ShapeError, re.escape(message), layer, torch.ones(B, 3, M), cache=KVCache.sliding(4))


# ------------------------------------------------------------------------------------------------------------- in int8

EVERY_KIND = [KVCache, lambda **how: KVCache.static(Q, **how), lambda **how: KVCache.sliding(3, **how)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_an_int8_cache_is_off_by_half_a_scale_at_most(fresh, dtype):
    """Rows from 1e-6 to 1e4 in size, one of zeros: the scale is the largest number / 127, in 8 bits of precision."""
    rows = torch.randn(B, G, Q, D, generator=fresh) * 10.0 ** torch.randint(-6, 5, (B, G, Q, 1), generator=fresh)
    rows[0, 0, 3] = 0
    k, v = rows.to(dtype), rows.flip(2).to(dtype)
    cache = KVCache(dtype=torch.int8)
    for whole, own in zip(cache.update(k, v), (k, v), strict=True):
        assert whole.dtype == dtype
        assert_array_equal(whole.double(), own.double())  # what a call brings, it reads as it is
    for held, own in zip(cache.held(), (k, v), strict=True):
        largest = own.double().abs().amax(-1, keepdim=True)
        half_a_scale = largest / 127 / 2 * (1 + 2**-8) ** 2
        unpacked = torch.finfo(dtype).eps * largest + torch.finfo(dtype).tiny
        assert bool(((held - own).double().abs() <= half_a_scale + unpacked).all())
        assert held.dtype == dtype and not bool(held[own == 0].any())


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_token_on_an_int8_cache_reads_rounded_keys_and_its_own_as_it_is(fresh, kind):
    """Against plain attention in NumPy on the keys that the cache holds."""
    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True, causal=True, window=3, rope=Rope(base=20.0)), fresh)
    layer, x = layer.double(), torch.randn(B, Q, M, generator=fresh, dtype=torch.float64)
    cache, exact = kind(dtype=torch.int8), KVCache()
    with torch.no_grad():
        at_once = layer(x[:, :-1], need_weights=False, cache=cache)[0]
        assert_allclose(at_once, layer(x[:, :-1], need_weights=False, cache=exact)[0], atol=1e-9)
        seen = {}
        layer.attend = lambda q, k, v, **rule: seen.update(k=k, v=v, q=q) or mh.attend(q, k, v, **rule)
        token = layer(x[:, -1:], need_weights=False, cache=cache)[0]
        q, k, v = seen["q"], seen["k"][:, :, -3:], seen["v"][:, :, -3:]
        layer(x[:, -1:], need_weights=False, cache=exact)
    own_k, own_v = (part[:, :, -3:] for part in exact.held())
    for rounded, own in ((k, own_k), (v, own_v)):
        assert_array_equal(rounded[:, :, -1], own[:, :, -1])
        off = (rounded - own).abs()[:, :, :-1]
        assert off.max() > 0 and bool((off <= 0.51 * own[:, :, :-1].abs().amax(-1, keepdim=True) / 127).all())
    out = reference.attend(*(part.numpy() for part in (q, k, v)), scale=float(layer.scale)).out
    mixed = torch.from_numpy(out).transpose(1, 2).flatten(2)
    assert_allclose(token, layer.out_proj(mixed).detach(), atol=1e-9)


def test_an_int8_cache_takes_a_byte_a_number_and_two_a_head_and_token():
    cache, half = KVCache.static(9, dtype=torch.int8), KVCache.static(9)
    k, v = (part.half() for part in new(2))
    cache.update(k, v), half.update(k, v)
    assert cache.cache_bytes == B * G * 9 * (D + 2 + F + 2)
    assert cache.cache_bytes == half.cache_bytes / 2 + B * G * 9 * 4
    # `mh.size` counts the numbers, and says in a note what the scales take.
    layer = {"num_layers": 1, "embed_dim": 64, "num_heads": 8, "num_kv_heads": 2, "vocab_size": 9}
    cache = KVCache.static(100, dtype=torch.int8)
    cache.update(torch.ones(3, 2, 4, 8), torch.ones(3, 2, 4, 8))
    sizing = mh.size(layer, 100, 3, cache_dtype="int8")
    scales = int(re.search(r"KVCache.*\(([\d,]+) bytes\)", sizing.notes[0])[1].replace(",", ""))
    assert cache.cache_bytes == sizing.cache.allocated + scales and scales == 3 * 100 * 2 * 2 * 2


def test_an_int8_cross_cache_reads_its_text_as_it_is_and_then_rounded(fresh):
    layer = stirred(MultiHeadAttention(M, H, G, batch_first=True), fresh)
    x, source = torch.randn(B, 2, M, generator=fresh), torch.randn(B, 70, M, generator=fresh)
    cache = KVCache.cross(dtype=torch.int8)
    with torch.no_grad():
        want = layer(x, source)[0]
        first, again = layer(x, source, cache=cache)[0], layer(x, cache=cache)[0]
    assert_allclose(first, want, atol=1e-6)
    assert 0 < float((again - want).abs().max()) < 0.5 * float(want.abs().max())
    assert cache.num_keys == 70 and cache.cache_bytes == 70 * B * G * 2 * (M // H + 2)


def test_an_int8_cache_is_cropped_reordered_and_reset(fresh):
    cache = KVCache(dtype=torch.int8)
    k, v = torch.randn(B, G, Q, D, generator=fresh), torch.randn(B, G, Q, F, generator=fresh)
    cache.update(k, v)
    before = [part.clone() for part in cache.held()]
    cache.reorder(torch.tensor([1, 0]))
    cache.crop(4)
    for part, was in zip(cache.held(), before, strict=True):
        assert_array_equal(part, was.flip(0)[:, :, :4])
    assert "int8" in repr(cache)
    cache.reset()
    assert not cache.filled and cache.cache_bytes == 0


def test_what_an_int8_cache_cannot_do_is_refused_and_a_row_that_is_not_finite_comes_back_as_nan(fresh):
    k, v = torch.ones(1, 1, 3, D), torch.ones(1, 1, 3, D)
    k[0, 0, 0, 1], k[0, 0, 1, 2] = torch.inf, torch.nan
    cache = KVCache(dtype=torch.int8)
    cache.update(k, v)
    assert cache.held()[0].isnan().all(-1)[0, 0].tolist() == [True, True, False]
    with pytest.raises(ShapeError, match="dtype=torch.float16: a cache holds keys and values in their own dtype"):
        KVCache(dtype=torch.float16)
    layer, cache = MultiHeadAttention(M, H, batch_first=True, causal=True), KVCache(dtype=torch.int8)
    x = torch.randn(B, Q, M, generator=fresh)
    refuses(ShapeError, r"and a growing cache rounds to int8: decode under torch.no_grad\(\).", layer, x, cache=cache)
    with torch.no_grad():
        layer(x, cache=cache)
        with pytest.raises(ShapeError, match="k is torch.float64 on cpu, but this cache holds torch.float32 on cpu"):
            layer.double()(x.double(), cache=cache)
