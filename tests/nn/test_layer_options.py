"""Every two options of the layer together: they equal the reference, or are refused in the words of the table."""

from __future__ import annotations

import inspect
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
from manyheads.nn.layer_inputs import OPTIONS, choices_markdown, fate, options_markdown, pairs, refusals_markdown
from tests.nn.layer_oracle import expected, stirred
from tests.refusals import refuses

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
    "GQA": Case({"num_kv_heads": G}), "head_dim": Case({"head_dim": D}), "v_head_dim": Case({"v_head_dim": F}),
    "kdim, vdim": Case({"kdim": KDIM, "vdim": VDIM}, cross=True), "no bias": Case({"bias": False}),
    "some biases": Case({"k_bias": False, "q_bias": True}), "fused": Case({"projections": "fused"}),
    "split": Case({"projections": "split"}), "injected": Case({"projections": "injected"}),
    "qk_norm": Case({"qk_norm": True}), "rope": Case({"rope": Rope(base=30.0, max_positions=60)}),
    "positions": Case({"rope": Rope(base=30.0, max_positions=60)}, positions=True), "alibi": Case({"alibi": True}),
    "relative bias": Case({"relative_bias": RelativeBias(8, 6)}), "causal": Case({"causal": True}),
    "is_causal": Case(call={"is_causal": True}), "window": Case({"window": WINDOW}), "sinks": Case({"sinks": True}),
    "softcap": Case({"softcap": 0.7}), "scale by head": Case({"scale": [0.2, 0.4, 0.6, 0.8, 1.0, 1.3]}),
    "head_scale": Case({"head_scale": True}), "dropout": Case({"dropout": 0.4}), "bias_kv": Case({"add_bias_kv": True}),
    "zero_attn": Case({"add_zero_attn": True}), "bool mask": Case(mask="hide"),
    "True = see": Case({"mask_true": "see"}, mask="see"), "0/1 mask": Case(mask="int"),
    "float mask": Case(mask="float"), "mask by head": Case(mask="heads"), "key padding": Case(padding=True),
    "weights": Case(call={"need_weights": True}),
    "weights by head": Case(call={"need_weights": True, "average_attn_weights": False}),
    "some heads' weights": Case(call={"need_weights": True, "weight_heads": [4, 1]}), "unbatched": Case(unbatched=True),
    "length first": Case({"batch_first": False}), "cross": Case(cross=True), "growing cache": Case(cache="growing"),
    "static cache": Case(cache="static"), "sliding cache": Case({"window": WINDOW, "causal": True}, cache="sliding"),
    "cross cache": Case(cache="cross", cross=True), "attend": Case({"attend": mh.attend}),
}  # fmt: skip


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
def test_every_option_equals_the_reference(name, fresh):
    case = merged(name)
    layer = make_layer(case, fresh)
    assert_equals_reference(case, layer, make_inputs(case, layer, fresh))


WITHOUT = {
    "qk_norm": ("q_norm", None), "rope": ("rotary", None), "alibi": ("alibi", False),
    "relative bias": ("relative_bias", None), "causal": ("causal", False), "window": ("window", None),
    "sinks": ("sinks", None), "softcap": ("softcap", None), "scale by head": ("scale_by_head", None),
    "head_scale": ("head_scale", None), "bias_kv": ("bias_k", None), "zero_attn": ("add_zero_attn", False),
}  # fmt: skip
ARGUMENTS = [
    "positions", "is_causal", "bool mask", "True = see", "0/1 mask", "float mask", "mask by head", "key padding",
]  # fmt: skip


@pytest.mark.parametrize("name", [*WITHOUT, *ARGUMENTS])
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


@pytest.mark.thinned
@pytest.mark.parametrize(("first", "second"), pairs(), ids=lambda name: name)
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
    for table in (options_markdown(), choices_markdown(), refusals_markdown()):
        assert table in page


# ====================================================================================================== what is refused
# Everything that can be wrong with what a layer is given, in the words that it answers with.

ONES = torch.ones
# As users have them, without the tests' own type checks, which would speak up before the errors do.
BUILD, CALL = inspect.unwrap(MultiHeadAttention.__init__), inspect.unwrap(MultiHeadAttention.forward)


def build(*args, **options):
    layer = MultiHeadAttention.__new__(MultiHeadAttention)
    BUILD(layer, *args, **options)
    return layer


@pytest.mark.parametrize(("args", "options", "message"), [
    ((24, 5), {},
     "embed_dim=24 is not a multiple of num_heads=5: say head_dim=, or use one of [1, 2, 3, 4, 6, 8, 12, 24] "
     "heads."),
    ((24, 6, 4), {},
     "num_heads=6 is not a multiple of num_kv_heads=4: every key/value head must serve the same number of "
     "query heads. Use one of [1, 2, 3, 6]."),
    ((24, 6, 0.1), {},
     "num_kv_heads=0.1 is not a count: the argument that is dropout in nn.MultiheadAttention is num_kv_heads here. "
     "Write dropout=0.1."),
    ((24, 0), {}, "num_heads=0 is not a count: use a whole number, 1 or more."),
    ((24, -2), {}, "num_heads=-2 is not a count"),
    ((0, 6), {}, "embed_dim=0 is not a count"),
    ((24.0, 6), {}, "embed_dim=24.0 is not a count"),
    ((24, 6, 0), {}, "num_kv_heads=0 is not a count"),
    ((24, 6), {"head_dim": 0}, "head_dim=0 is not a count"),
    ((24, 6), {"v_head_dim": -1}, "v_head_dim=-1 is not a count"),
    ((24, 6), {"kdim": 0}, "kdim=0 is not a count"),
    ((24, 6), {"window": 0}, "window=0 is not a count"),
    ((24, 6), {"window": True}, "window=True is not a count"),
    ((24, 6), {"dropout": 1.0}, "dropout=1.0 is not a share of the weights to drop: use 0 up to, not including, 1."),
    ((24, 6), {"dropout": -0.1}, "dropout=-0.1 is not a share"),
    ((24, 6), {"dropout": 0.1, "attend": print},
     "dropout=0.1 with attend=: an injected attend takes no dropout. Use dropout=0.0, or leave attend out."),
    ((24, 6), {"softcap": 0.0},
     "softcap=0.0 is not a cap: it squeezes scores into (-softcap, softcap). Use None for no cap."),
    ((24, 6), {"scale": [0.1, 0.2]}, "scale has 2 numbers: give one for all, or one a head, 6."),
    ((24, 6), {"mask_true": "keep"}, "mask_true='keep': say 'hide' (True = may not look) or 'see' (True = may look)."),
    ((24, 6), {"rope": {"rope_type": "default"}},
     "rope is a dict: give a Rope, as in Rope(base=10_000.0, max_positions=4096)."),
    ((25, 5), {"rope": Rope()},
     "rope turns pairs of numbers, but 5 of each head's 5 were asked for: give Rope(dims=) an even number up to 4."),
    ((24, 6), {"projections": "packed"},
     "projections='packed': use 'fused', 'split', or a mapping of modules q, k, v and out."),
    ((24, 6), {"projections": "fused", "kdim": 9},
     "projections='fused', but kdim or vdim differ from embed_dim, and one product has one input and one "
     "bias: use 'split'."),
    ((24, 6), {"projections": "fused", "k_bias": False}, "projections='fused', but q, k and v differ in having a bias"),
    ((24, 6), {"projections": {"q": nn.Identity()}},
     "projections has ['q']: inject all of 'q', 'k', 'v' and 'out', and nothing else."),
    ((24, 6), {"projections": dict.fromkeys(["q", "k", "v", "out"], abs)},
     "projections['q'] is a builtin_function_or_method: give an nn.Module, so that it moves with the layer."),
    ((24, 6), {"projections": {}, "bias": False, "kdim": 3},
     "kdim, bias with injected projections: those have their own. Leave these arguments out."),
])  # fmt: skip
def test_a_layer_that_cannot_be_is_an_error(args, options, message):
    refuses(ShapeError, re.escape(message), build, *args, **options)


X, Y = ONES(B, Q, M), ONES(B, K, M)


@pytest.mark.parametrize(("inputs", "options", "message"), [
    ((ONES(M),), {},
     "query has shape (24,): give (length, 24), or a batch of those, (batch, length, 24), and query, key and "
     "value alike."),
    ((ONES(1, B, Q, M),), {}, "query has shape (1, 2, 7, 24): give (length, 24)"),
    ((X, ONES(K, M)), {}, "key has shape (11, 24): give (length, 24), or a batch of those"),
    ((ONES(B, Q, 23),), {}, "query has width 23, but this layer reads a query of width 24: its shape is (2, 7, 23)."),
    ((X, ONES(B, K, 9)), {}, "key has width 9, but this layer reads a key of width 24"),
    ((X, Y, ONES(B, K, 9)), {}, "value has width 9, but this layer reads a value of width 24"),
    ((X, ONES(3, K, M)), {}, "query has 2 texts and key has 3: must be equal. This layer reads (batch, length, 24)."),
    ((X, Y, ONES(B, K + 1, M)), {}, "key has shape (2, 11, 24) and value (2, 12, 24): every key needs one value."),
    ((X, None, Y), {}, "value without key: give both, or key alone (value is key then), or neither (self-attention)."),
    ((X.double(),), {},
     "query is torch.float64 and the layer torch.float32: convert one, as in layer.to(torch.float64)."),
    ((X.long(),), {}, "query is torch.int64 and the layer torch.float32: convert the input, as in "
     "query.to(torch.float32)."),
    ((None,), {}, "query is None: give the tokens that look, (batch, length, 24)."),
    ((X, Y.half()), {}, "key is torch.float16 and the layer torch.float32: convert one"),
    ((X.to("meta"),), {}, "query is on meta and the layer on cpu: move one, as in layer.to('meta')."),
    ((X,), {"attn_mask": ONES(Q, Q, device="meta")},
     "attn_mask is on meta, but the layer and its input are on cpu: move it there."),
    ((X,), {"attn_mask": ONES(Q, Q + 1)},
     "attn_mask has shape (7, 8): give (queries, keys) = (7, 7), (texts * heads, queries, keys) = (12, 7, "
     "7), or (2, 6, 7, 7), where texts and heads may be 1; keys count the cached ones."),
    ((X,), {"attn_mask": ONES(B, Q, Q)}, "attn_mask has shape (2, 7, 7): give (queries, keys) = (7, 7), "),
    ((X,), {"attn_mask": ONES(B, Q, Q)}, "A mask for each text needs a head axis: attn_mask[:, None]."),
    ((X,), {"attn_mask": ONES(B, G, Q, Q)}, "attn_mask has shape (2, 3, 7, 7)"),
    ((X,), {"attn_mask": ONES(Q, Q).long() * 2},
     "attn_mask is torch.int64 and runs from 2 to 2: integers are 0 (may not look) or 1 (may look). Numbers "
     "to add to the scores must be floats."),
    ((X,), {"key_padding_mask": -ONES(B, Q).int()},
     "key_padding_mask is torch.int32 and runs from -1 to -1: integers are 0"),
    ((X,), {"attn_mask": ONES(Q, Q).cfloat()},
     "attn_mask is torch.complex64: use booleans, integers 0 and 1 (1 = may look), or floats to add."),
    ((X,), {"key_padding_mask": ONES(B, K)},
     "key_padding_mask has shape (2, 11): give (texts, keys) = (2, 7), or (7,) without a batch; keys count "
     "the cached ones."),
    ((X,), {"key_padding_mask": ONES(Q)}, "key_padding_mask has shape (7,): give"),
    ((X,), {"weight_heads": [0, 6]},
     "weight_heads has [6], but this layer has heads 0 to 5: give a list of their numbers."),
    ((X,), {"weight_heads": [-7]}, "weight_heads has [-7], but"),
    ((X,), {"weight_heads": [0], "need_weights": False},
     "weight_heads with need_weights=False: one asks for weights and the other for none. Leave one out."),
    ((X,), {"positions": torch.arange(Q)},
     "positions without rope: nothing else reads them. Build the layer with rope=Rope(), or leave them out."),
])  # fmt: skip
def test_a_call_that_cannot_mean_anything_is_an_error(inputs, options, message):
    refuses(ShapeError, re.escape(message), CALL, MultiHeadAttention(M, H, batch_first=True), *inputs, **options)


@pytest.mark.parametrize(("inputs", "positions", "message"), [
    ((X, Y), torch.arange(Q),
     "positions with a key of its own: they belong to one text, and query and key are two. Leave them out."),
    ((X,), torch.arange(K), "positions is torch.int64 of shape (11,): give integers of shape (7,) or (2, 7)."),
    ((X[0],), torch.zeros(B, Q).long(), "positions is torch.int64 of shape (2, 7): give integers of shape (7,)."),
    ((X,), torch.zeros(Q), "positions is torch.float32 of shape (7,): give integers"),
])  # fmt: skip
def test_positions_that_do_not_fit_are_an_error(inputs, positions, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        CALL(MultiHeadAttention(M, H, batch_first=True, rope=Rope()), *inputs, positions=positions)


def test_a_batch_axis_in_the_wrong_place_other_widths_for_keys_and_wrong_projections_are_errors():
    message = "query has 7 texts and key has 11: must be equal. This layer reads (length, batch, 24) since batch_first"
    refuses(ShapeError, re.escape(f"{message}=False."), MultiHeadAttention(M, H), X, Y)
    layer = MultiHeadAttention(M, H, kdim=10, vdim=14, batch_first=True)
    message = "no key, but this layer reads keys of width 10 and values of width 14, and query has 24"
    refuses(ShapeError, message, layer, X)
    parts = {name: nn.Linear(M, M) for name in ("q", "k", "v", "out")}
    layer = MultiHeadAttention(M, H, G, batch_first=True, projections=parts)
    refuses(ShapeError, "the k projection gave 24 numbers a token, but 3 heads of 4 are 12.", layer, X)
