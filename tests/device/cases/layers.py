"""The operation, our layers, their caches and what trains them: outputs and gradients are the host's."""

from itertools import product

import pytest
import torch

import manyheads as mh
from manyheads.attention import Mask, max_logits
from manyheads.lab.training import carry_out
from manyheads.nn import Rope
from tests.device.conftest import ROUNDING, assert_same, each, on_device

B, H, G, Q, K, D, F = 2, 6, 3, 37, 41, 8, 5
MASKS = {
    "full": lambda fresh: None,
    "causal": lambda fresh: Mask.causal(Q, K),
    "window": lambda fresh: Mask.causal(Q, K, window=7),
    "lengths": lambda fresh: Mask.from_lengths(torch.tensor([K, 13]), Q, K),
    "holes": lambda fresh: Mask.from_dense(torch.rand(B, 1, Q, K, generator=fresh) > 0.4),
    "holes by head": lambda fresh: Mask.from_dense(torch.rand(B, H, Q, K, generator=fresh) > 0.4),
}
RULES = {
    "plain": lambda fresh: {},
    "softcap": lambda fresh: {"softcap": 2.0},
    "sinks": lambda fresh: {"sinks": torch.randn(H, generator=fresh)},
    "bias": lambda fresh: {"bias": torch.randn(1, H, Q, K, generator=fresh)},
}


@pytest.mark.thinned
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MASKS)
def test_attend(name, rule, fresh):
    q, k = torch.randn(B, H, Q, D, generator=fresh), torch.randn(B, G, K, D, generator=fresh)
    v, mask, options = torch.randn(B, G, K, F, generator=fresh), MASKS[name](fresh), RULES[rule](fresh)
    want = mh.attend(q, k, v, mask=mask, **options)
    if mask is not None and mask.dense is not None:
        moved = Mask.from_dense(on_device(mask.dense))
        assert moved.dense.device.type == "cuda" and moved.start.device.type == "cpu"
        mask = moved
    got = mh.attend(*on_device([q, k, v]), mask=mask, **on_device(options))
    assert (got.out.device.type, got.lse.device.type) == ("cuda", "cuda")
    assert_same((got.out, got.lse), (want.out, want.lse))


@pytest.mark.parametrize("sharpness", [0.1, 3.0], ids=["all rows", "few rows"])
def test_max_logits(sharpness, fresh):
    length = 131
    q, k = sharpness * torch.randn(B, H, length, D, generator=fresh), torch.randn(B, G, length, D, generator=fresh)
    bias, sinks = torch.randn(1, H, length, length, generator=fresh), torch.randn(H, generator=fresh)
    holes = Mask.from_dense(torch.rand(B, H, length, length, generator=fresh) > 0.4)
    masks = (None, Mask.causal(length, length), Mask.from_lengths(torch.tensor([length, 77]), length, length), holes)
    for mask, rule in product(masks, ({}, {"softcap": 2.0}, {"sinks": sinks}, {"bias": bias})):
        lse = mh.attend(q, k, k, mask=mask, **rule).lse
        want, around = (max_logits(q, k, lse, mask, **rule, bound=bound) for bound in (False, True))
        moved = Mask.from_dense(on_device(holes.dense)) if mask is holes else mask
        # Off the CPU the margin is TF32's: other rows are read and bounds are wider, and the maximum is the same.
        got, bounds = (max_logits(*on_device([q, k, lse]), moved, **on_device(rule), bound=x) for x in (False, True))
        assert got.device.type == bounds.lower.device.type == "cuda"
        assert_same(got, want)
        assert (bounds.lower.cpu() <= around.lower).all() and (bounds.upper.cpu() >= around.upper).all()


@pytest.mark.thinned
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("name", ["full", "causal", "lengths"])
@pytest.mark.parametrize(
    ("dtype", "groups", "kernel"), [(torch.float32, H, "memory-efficient"), (torch.float16, G, "flash")]
)
def test_attend_takes_the_lse_of_the_devices_kernel(dtype, groups, kernel, name, sinks, fresh):
    q, k = torch.randn(B, H, Q, D, generator=fresh), torch.randn(B, groups, Q, D, generator=fresh)
    v, options = torch.randn(B, groups, Q, F, generator=fresh), RULES["sinks"](fresh) if sinks else {}
    q, k, v = (x.to(dtype) for x in (q, k, v))
    masks = {"full": None, "causal": Mask.causal(Q, Q), "lengths": Mask.from_lengths(torch.tensor([Q, 13]), Q, Q)}
    with torch.no_grad():
        want = mh.attend(q, k, v, mask=masks[name], **options)
        got = mh.attend(*on_device([q, k, v]), mask=masks[name], **on_device(options))
    assert got.because.startswith(f"fused: torch's {kernel} kernel returns the lse")
    assert_same((got.out, got.lse), (want.out, want.lse), share=ROUNDING if dtype == torch.float32 else 2e-3)


def test_the_runs_of_a_mask_that_was_given_on_a_device_are_moved_to_the_host():
    mask = Mask(*on_device([torch.zeros(1, Q, dtype=torch.long), torch.full((1, Q), K)]), K)
    assert {mask.start.device.type, mask.stop.device.type, mask.counts().device.type} == {"cpu"}


LAYERS = {
    "plain": {},
    "gqa, rope, window": {"num_kv_heads": 3, "rope": Rope(), "window": 9, "causal": True},
    "q/k norm, sinks": {"qk_norm": True, "sinks": True, "causal": True},
    "alibi, softcap": {"alibi": True, "softcap": 4.0, "causal": True},
    "learned keys": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("name", each(LAYERS, "gqa, rope, window"))
def test_a_layer_and_its_gradients(name, fresh):
    torch.manual_seed(int(torch.randint(999, (1,), generator=fresh)))
    layer = mh.MultiHeadAttention(48, 6, batch_first=True, **LAYERS[name])
    x = torch.randn(B, 19, 48, generator=fresh)
    padding = torch.arange(19)[None] >= torch.tensor([19, 12])[:, None]
    for options in ({}, {"key_padding_mask": padding}):
        results = []
        for module, inputs, more in ((on_device(layer), on_device(x), on_device(options)), (layer, x, options)):
            out = module(inputs, inputs, inputs, **more)[0]
            out.square().sum().backward()
            results.append((out, [parameter.grad for parameter in module.parameters()]))
            module.zero_grad()
        assert results[0][0].device.type == "cuda"
        assert_same(*results, share=5e-5)
    rec = mh.record_call(on_device(layer).eval(), *[on_device(x)] * 3)
    want = mh.record_call(layer.eval(), *[x] * 3)
    assert_same(rec.layers[0].weights(), want.layers[0].weights())


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), {"window": 5}], ids=["whole", "window"])
def test_a_cache(options, fresh):
    layer = mh.MultiHeadAttention(48, 6, num_kv_heads=2, batch_first=True, causal=True, rope=Rope(), **options).eval()
    x, twin = torch.randn(B, 11, 48, generator=fresh), on_device(layer)
    caches = [mh.KVCache() for _ in range(2)]
    with torch.no_grad():
        for begin, end in ((0, 6), (6, 7), (7, 8), (8, 11)):
            want = layer(*[x[:, begin:end]] * 3, cache=caches[0])[0]
            got = twin(*[on_device(x[:, begin:end])] * 3, cache=caches[1])[0]
            assert_same(got, want)


@pytest.mark.parametrize("kind", [mh.FeedForward, mh.SwiGLU])
def test_a_feed_forward(kind, fresh):
    layer, x = kind(24, 40), torch.randn(3, 7, 24, generator=fresh)
    assert_same(on_device(layer)(on_device(x)), layer(x))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["induction", "heads", "collapse", "supervised", "gqa", "passkey"])
def test_a_preset_trains(preset, tmp_path):
    for device in ("cuda", "cpu"):
        outcome = carry_out(preset, tmp_path / device, quick=True, steps=3, device=device)
        assert all(f"on {device}" in trained.because for trained in outcome.trained.values())
