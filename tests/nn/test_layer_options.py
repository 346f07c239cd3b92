"""Every two options of the layer together: they equal the reference, or are refused in the words of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import manyheads as mh
from manyheads.errors import ShapeError
from manyheads.nn import KVCache, MultiHeadAttention, RelativeBias, Rope
from manyheads.nn.layer_inputs import OPTIONS, fate, options_markdown, pairs, pairs_markdown, refusals_markdown
from tests.nn.layer_oracle import expected, stirred

B, Q, K, M, H, G, D, F = 2, 7, 11, 24, 6, 3, 6, 5
PAST = 4  # tokens read before, where there is a cache
KDIM, VDIM, WINDOW = 10, 14, 3


@dataclass
class Case:
    build: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    mask: str = ""
    padding: bool = False
    cross: bool = False
    cache: str = ""
    unbatched: bool = False
    positions: bool = False


CASES = {
    "GQA": Case({"num_kv_heads": G}),
    "head_dim": Case({"head_dim": D}),
    "v_head_dim": Case({"v_head_dim": F}),
    "kdim, vdim": Case({"kdim": KDIM, "vdim": VDIM}, cross=True),
    "no bias": Case({"bias": False}),
    "some biases": Case({"k_bias": False, "q_bias": True}),
    "fused": Case({"projections": "fused"}),
    "split": Case({"projections": "split"}),
    "injected": Case({"projections": "injected"}),
    "qk_norm": Case({"qk_norm": True}),
    "rope": Case({"rope": Rope(base=30.0, max_positions=60)}),
    "positions": Case({"rope": Rope(base=30.0, max_positions=60)}, positions=True),
    "alibi": Case({"alibi": True}),
    "relative bias": Case({"relative_bias": RelativeBias(8, 6)}),
    "causal": Case({"causal": True}),
    "is_causal": Case(call={"is_causal": True}),
    "window": Case({"window": WINDOW}),
    "sinks": Case({"sinks": True}),
    "softcap": Case({"softcap": 0.7}),
    "scale by head": Case({"scale": [0.2, 0.4, 0.6, 0.8, 1.0, 1.3]}),
    "head_scale": Case({"head_scale": True}),
    "dropout": Case({"dropout": 0.4}),
    "bias_kv": Case({"add_bias_kv": True}),
    "zero_attn": Case({"add_zero_attn": True}),
    "bool mask": Case(mask="hide"),
    "True = see": Case({"mask_true": "see"}, mask="see"),
    "0/1 mask": Case(mask="int"),
    "float mask": Case(mask="float"),
    "mask by head": Case(mask="heads"),
    "key padding": Case(padding=True),
    "weights": Case(call={"need_weights": True}),
    "weights by head": Case(call={"need_weights": True, "average_attn_weights": False}),
    "some heads' weights": Case(call={"need_weights": True, "weight_heads": [4, 1]}),
    "unbatched": Case(unbatched=True),
    "length first": Case({"batch_first": False}),
    "cross": Case(cross=True),
    "growing cache": Case(cache="growing"),
    "static cache": Case(cache="static"),
    "sliding cache": Case({"window": WINDOW, "causal": True}, cache="sliding"),
    "cross cache": Case(cache="cross", cross=True),
    "attend": Case({"attend": mh.attend}),
}


def merged(*names: str) -> Case:
    whole = Case()
    for name in names:
        one = CASES[name]
        whole.build |= one.build
        whole.call |= one.call
        for flag in ("mask", "padding", "cross", "cache", "unbatched", "positions"):
            setattr(whole, flag, getattr(whole, flag) or getattr(one, flag))
    return whole


def make_layer(case: Case, fresh) -> MultiHeadAttention:
    build = {"batch_first": True, **case.build}
    if build.get("projections") == "injected":
        sizes = MultiHeadAttention(
            M, H, **{k: v for k, v in build.items() if k in ("num_kv_heads", "head_dim", "v_head_dim")}
        ).sizes
        build["projections"] = {
            **{name: nn.Linear(M, width) for name, width in zip("qkv", sizes.widths, strict=True)},
            "out": nn.Linear(H * sizes.v_head_dim, M),
        }
    return stirred(MultiHeadAttention(M, H, **build).double(), fresh).eval()


@dataclass
class Inputs:
    """Whole inputs, batch first, and the masks over all of their queries and keys."""

    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    visible: torch.Tensor | None
    bias: torch.Tensor | None
    padding: torch.Tensor | None
    positions: torch.Tensor | None


def make_inputs(case: Case, layer, fresh) -> Inputs:
    def normal(*shape):
        return torch.randn(*shape, generator=fresh, dtype=torch.float64)

    b = 1 if case.unbatched else B
    keys = K if case.cross else Q
    query = normal(b, Q, M)
    key = normal(b, K, layer.kdim) if case.cross else None
    value = normal(b, K, layer.vdim) if case.cross and (layer.vdim != layer.kdim) else None
    shape = (b, H, Q, keys) if case.mask == "heads" else (1, 1, Q, keys)
    visible = torch.rand(shape, generator=fresh) < 0.7 if case.mask and case.mask != "float" else None
    bias = normal(*shape) if case.mask == "float" else None
    padding = torch.arange(keys) >= torch.tensor([keys - 3, keys])[:b, None] if case.padding else None
    positions = torch.stack([torch.randperm(50, generator=fresh)[:Q] for _ in range(b)]) if case.positions else None
    return Inputs(query, key, value, visible, bias, padding, positions)


def chunk(case: Case, inputs: Inputs, rows: slice, keys: slice, held: slice) -> dict[str, Any]:
    """The arguments of one call: queries `rows`, new keys `keys`, masks over the keys `held` by then."""
    call = {"need_weights": False, "query": inputs.query[:, rows], **case.call}
    if inputs.key is not None:
        call["key"] = inputs.key[:, keys]
        if inputs.value is not None:
            call["value"] = inputs.value[:, keys]
    if inputs.visible is not None:
        seen = inputs.visible[:, :, rows, held]
        seen = seen if case.mask == "see" else seen.to(torch.int32) if case.mask == "int" else ~seen
        call["attn_mask"] = seen.flatten(0, 1) if case.mask == "heads" else seen[0, 0]
    if inputs.bias is not None:
        call["attn_mask"] = inputs.bias[0, 0, rows, held]
    if inputs.padding is not None:
        padding = inputs.padding[:, held]
        call["key_padding_mask"] = ~padding if case.mask == "see" else padding
    if inputs.positions is not None:
        call["positions"] = inputs.positions[:, rows]
    if case.unbatched:
        for name in ("query", "key", "value", "key_padding_mask", "positions"):
            if name in call:
                call[name] = call[name][0]
    elif not case.build.get("batch_first", True):
        for name in ("query", "key", "value"):
            if name in call:
                call[name] = call[name].transpose(0, 1)
    return call


def run(case: Case, layer, inputs: Inputs):
    """`(out, weights, rows)`: the last call's results, and which queries it was."""
    keys = K if case.cross else Q
    everything = slice(0, Q), slice(0, keys), slice(0, keys)
    if not case.cache:
        return *layer(**chunk(case, inputs, *everything)), everything[0]
    new = slice(PAST, Q)
    if case.cache == "cross":
        cache = KVCache.cross()
        layer(**chunk(case, inputs, slice(0, PAST), slice(0, K), slice(0, K)), cache=cache)
        again = chunk(case, inputs, new, slice(0, K), slice(0, K))
        again = {name: x for name, x in again.items() if name not in ("key", "value")}
        return *layer(**again, cache=cache), new
    cache = {"growing": KVCache(), "static": KVCache.static(keys), "sliding": KVCache.sliding(WINDOW)}[case.cache]
    first = keys - Q + PAST
    with torch.no_grad():
        layer(**chunk(case, inputs, slice(0, PAST), slice(0, first), slice(0, first)), cache=cache)
        held = slice(first - WINDOW + 1 if case.cache == "sliding" else 0, keys)
        return *layer(**chunk(case, inputs, new, slice(first, keys), held), cache=cache), new


def reference_of(case: Case, layer, inputs: Inputs):
    numbers = {name: None if x is None else x.numpy() for name, x in vars(inputs).items()}
    visible = numbers["visible"]
    if inputs.padding is not None:
        real = ~numbers["padding"][:, None, None]
        visible = real if visible is None else visible & real
    given = [numbers[name] for name in ("query", "key", "value")]
    more = {name: numbers[name] for name in ("bias", "positions")}
    return expected(layer, *given, visible=visible, causal=case.call.get("is_causal", False), **more)


def assert_equals_reference(case: Case, layer, inputs: Inputs):
    out, weights, rows = run(case, layer, inputs)
    want = reference_of(case, layer, inputs)
    if case.unbatched:
        out, weights = out[None], None if weights is None else weights[None]
    elif not case.build.get("batch_first", True):
        out = out.transpose(0, 1)
    near = 1e-4 if layer.rotary is not None else 1e-9  # rope's table is float32
    np.testing.assert_allclose(out.detach(), want.out[:, rows], atol=near)
    if not case.call.get("need_weights"):
        assert weights is None
        return
    maps = want.weights[:, :, rows]
    maps = maps if case.cache != "sliding" else maps[..., -weights.shape[-1] :]
    maps = maps[:, case.call.get("weight_heads", list(range(H)))]
    maps = maps.mean(1) if case.call.get("average_attn_weights", True) else maps
    np.testing.assert_allclose(weights.detach(), maps, atol=near)


def refused(case: Case, fresh, words: str):
    with pytest.raises(ShapeError, match=re.escape(words)):
        layer = make_layer(case, fresh)
        run(case, layer, make_inputs(case, layer, fresh))


def test_every_option_has_a_case():
    assert list(CASES) == list(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.sampled(21)
def test_every_option_equals_the_reference(name, fresh):
    case = merged(name)
    layer = make_layer(case, fresh)
    assert_equals_reference(case, layer, make_inputs(case, layer, fresh))


WITHOUT = {
    "qk_norm": ("q_norm", None),
    "rope": ("rotary", None),
    "alibi": ("alibi", False),
    "relative bias": ("relative_bias", None),
    "causal": ("causal", False),
    "window": ("window", None),
    "sinks": ("sinks", None),
    "softcap": ("softcap", None),
    "scale by head": ("scale_by_head", None),
    "head_scale": ("head_scale", None),
    "bias_kv": ("bias_k", None),
    "zero_attn": ("add_zero_attn", False),
}
ARGUMENTS = [
    "positions",
    "is_causal",
    "bool mask",
    "True = see",
    "0/1 mask",
    "float mask",
    "mask by head",
    "key padding",
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [*WITHOUT, *ARGUMENTS])
@pytest.mark.sampled(10)
def test_every_option_matters(name, fresh):
    """The output with it is not what the reference says without it."""
    case = merged(name)
    layer = make_layer(case, fresh)
    inputs = make_inputs(case, layer, fresh)
    out = run(case, layer, inputs)[0].detach().numpy()
    assert abs(out - reference_of(case, layer, inputs).out).max() < 1e-4
    if name in WITHOUT:
        setattr(layer, *WITHOUT[name])
    case.call.pop("is_causal", None)
    inputs.visible = inputs.bias = inputs.padding = inputs.positions = None
    assert abs(out - reference_of(case, layer, inputs).out).max() > 1e-2


@pytest.mark.turns(4)
@pytest.mark.parametrize(("first", "second"), pairs(), ids=lambda name: name)
@pytest.mark.sampled(30)
def test_two_options_equal_the_reference_or_are_refused_by_name(first, second, fresh):
    what = fate(first, second)
    if what == "choose":
        return
    case = merged(first, second)
    if what != "works":
        refused(case, fresh, what)
        return
    layer = make_layer(case, fresh)
    inputs = make_inputs(case, layer, fresh)
    assert_equals_reference(case, layer, inputs)
    if "dropout" in (first, second):  # which eval leaves out: in training it is there, beside the other
        plain, trained = run(case, layer, inputs)[0], run(case, layer.train(), inputs)[0]
        assert bool(trained.isfinite().all()) and not torch.allclose(trained, plain, atol=1e-3)


def test_the_tables_of_the_docs_are_the_codes_own():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "layer.md").read_text(encoding="utf-8")
    for table in (options_markdown(), pairs_markdown(), refusals_markdown()):
        assert table in page
