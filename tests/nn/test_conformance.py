"""What others hold attention to: torch's own inputs for its layer, ONNX's cases, and an exported layer's numbers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from manyheads.attention import Mask, Rule, attend, grouped_scores
from manyheads.nn import KVCache, MultiHeadAttention, load_state
from manyheads.nn.positions import rotate
from manyheads.recording import LayerRecord
from manyheads.spec import Site
from manyheads.texts import Tokens
from tests.nn.layer_oracle import stirred

# ==================================================================================================== torch's module_db
# Torch's own inputs for `nn.MultiheadAttention` (its `module_db`): output, weights and gradients agree.
#
# Also what those inputs leave out: a batch, cross-attention, float masks, every dtype of mask. Where ours differs on
# purpose (docs/reference/layer.md lists it), a test says so.


@cache
def samples():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_inputs_torch_nn_MultiheadAttention as inputs
    return inputs(None, "cpu", torch.float64, True, False)


NUM_SAMPLES = 64


@pytest.mark.slow
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


@pytest.mark.thinned
@pytest.mark.parametrize("index", range(NUM_SAMPLES))
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_torchs_inputs_agree_in_output_weights_and_gradients(fresh, index, training):
    sample = samples()[index]
    theirs, ours = pair(fresh, *sample.constructor_input.args, **sample.constructor_input.kwargs)
    inputs, call = sample.forward_input.args, sample.forward_input.kwargs
    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        assert_agree(theirs.train(training), ours.train(training), inputs, {**call, **options})


@pytest.mark.parametrize("mask", ["none", "bool", "float", "padding", "float padding", "both", "by head"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
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
        "none": {}, "bool": {"attn_mask": hide[0]}, "float": {"attn_mask": added},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": torch.randn(b, k, generator=fresh).double()},
        "both": {"attn_mask": hide[0], "key_padding_mask": padding}, "by head": {"attn_mask": hide},
    }[mask]  # fmt: skip
    assert_agree(theirs, ours, inputs, {**call, "need_weights": need_weights})


# ------------------------------------------------------------------------------------- where ours differs on purpose


# ================================================================================================================= ONNX
# ONNX's own conformance cases for Attention and RotaryEmbedding: through `attend`, a record, and the layer.
#
# The cases are made in memory by the `onnx` package. Expanded twins of each case (the same numbers as a graph of small
# operators) are left out. Causality there starts at the first key where there is no cache; ours ends at the last one.

NEAR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
NUM_ATTENTION, NUM_ROTARY = 93, 8


@dataclass
class Case:
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    given: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        return self.given.get(name, default)


def tensor(array) -> Tensor:
    array = np.asarray(array)
    return (
        torch.from_numpy(array.astype(np.float32)).bfloat16() if array.dtype.name == "bfloat16" else torch.tensor(array)
    )


@cache
def cases() -> dict[str, dict[str, Case]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own, while it makes its numbers
        node = import_module("onnx.backend.test.case.node")
        for kind in ("attention", "rotaryembedding"):  # importing one makes its cases
            import_module(f"onnx.backend.test.case.node.{kind}")
        from onnx.helper import get_attribute_value

        found: dict[str, dict[str, Case]] = {"Attention": {}, "RotaryEmbedding": {}}
        for each in node._NodeTestCases:
            if each.name.endswith("_expanded"):
                continue
            of = each.model.graph.node[0]
            inputs, outputs = each.data_sets[0]
            if of.op_type in found:
                found[of.op_type][each.name.removeprefix("test_")] = Case(
                    dict(zip([name for name in of.input if name], map(tensor, inputs), strict=True)),
                    dict(zip([name for name in of.output if name], map(tensor, outputs), strict=True)),
                    {attribute.name: get_attribute_value(attribute) for attribute in of.attribute},
                )
    return found


@dataclass
class Problem:
    """A case as q, k and v by head, whom a query may see, and what is added to its scores."""

    q: Tensor
    k: Tensor
    v: Tensor
    past: int
    visible: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None


def by_head(x: Tensor, heads: int | None) -> Tensor:
    return x if x.ndim == 4 else x.unflatten(-1, (heads, -1)).transpose(1, 2)


def read(case: Case) -> Problem:
    given = case.inputs
    q = by_head(given["Q"], case.get("q_num_heads"))
    k, v = (by_head(given[name], case.get("kv_num_heads")) for name in "KV")
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = torch.cat([given["past_key"], k], 2), torch.cat([given["past_value"], v], 2)
    texts, _, rows, _ = q.shape
    keys = k.shape[2]
    lengths = given.get("nonpad_kv_seqlen")
    first = torch.full((texts,), past) if lengths is None else lengths - rows  # where the first query stands
    place = (torch.arange(rows) + first[:, None])[:, None, :, None]
    key = torch.arange(keys)
    visible = torch.ones(texts, 1, rows, keys, dtype=torch.bool)
    if case.get("is_causal"):
        visible = visible & (key <= place)
    left, right = case.get("left_window_size", -1), case.get("right_window_size", -1)
    if left >= 0:
        visible = visible & (place - key <= left)
    if right >= 0:
        visible = visible & (key - place <= right)
    if lengths is not None:
        visible = visible & (key < lengths[:, None, None, None])
    bias, mask = None, given.get("attn_mask")
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape).expand(-1, -1, rows, -1)
        short = keys - mask.shape[3]  # a mask that ends early hides the rest
        mask = nn.functional.pad(mask, (0, short), value=False if mask.dtype == torch.bool else -torch.inf)
        if mask.dtype == torch.bool:
            visible = visible & mask
        else:
            visible, bias = visible & (mask > -torch.inf), torch.where(mask > -torch.inf, mask, 0)
    softcap = case.get("softcap") or None
    return Problem(q, k, v, past, visible, bias, case.get("scale", q.shape[3] ** -0.5), softcap)


def assert_out(got: Tensor, case: Case):
    want = case.outputs["Y"]
    got = got if want.ndim == 4 else got.transpose(1, 2).flatten(2)
    assert got.shape == want.shape and got.dtype == want.dtype
    assert_allclose(got.float(), want.float(), atol=NEAR[want.dtype], rtol=NEAR[want.dtype])


def case_of(kind: str, number: int) -> Case:
    """Made when a test runs, not when it is collected: the package draws its numbers, and takes a second."""
    name, case = list(cases()[kind].items())[number]
    print(name)  # shown where it fails
    return case


def test_all_cases_are_here():
    assert len(cases()["Attention"]) == NUM_ATTENTION
    assert len(cases()["RotaryEmbedding"]) == NUM_ROTARY


@pytest.mark.parametrize("number", range(NUM_ATTENTION))
def test_attend_passes_attention(number):
    case = case_of("Attention", number)
    p = read(case)
    mask = Mask.from_dense(p.visible)
    got = attend(p.q, p.k, p.v, mask=mask, scale=p.scale, softcap=p.softcap, bias=full(p))
    assert_out(got.out, case)
    for present, held in {"present_key": p.k, "present_value": p.v}.items():
        if present in case.outputs:
            assert_allclose(held.float(), case.outputs[present].float())
    if "qk_matmul_output" in case.outputs:
        assert_scores(case, p, mask, got.lse)


def full(p: Problem) -> Tensor | None:
    return None if p.bias is None else p.bias.expand(*p.bias.shape[:2], p.q.shape[2], p.k.shape[2])


def assert_scores(case: Case, p: Problem, mask: Mask, lse: Tensor):
    """What a record of the call says of the scores (mode 0 plain, 1 capped, 2 biased and hidden) and weights (3)."""
    want = case.outputs["qk_matmul_output"]
    mode, near = case.get("qk_matmul_output_mode", 0), NEAR[want.dtype]
    (texts, heads, rows, dim), (_, groups, keys, width) = p.q.shape, p.v.shape
    everything = slice(0, rows), slice(0, keys)
    if mode == 3:
        tokens = Tokens.unnamed([keys] * texts)
        site = Site("", 0, "attention", heads, groups, dim, width, bool(case.get("is_causal")))
        rule = Rule(p.scale, p.softcap, None, full(p))
        record = LayerRecord(site, p.q, p.k, None, lse, mask, rule, tokens.lengths, tokens)
        for text in range(texts):
            assert_allclose(record.weights(text=text), want[text].float(), atol=near)
        return
    rule = Rule(p.scale, p.softcap if mode else None, None, full(p) if mode == 2 else None)
    scores = rule.finish(grouped_scores(p.q.float(), p.k.float(), p.scale), *everything)
    if mode == 2:
        scores = scores.masked_fill(~mask.visible(*everything), -torch.inf)
    assert_allclose(scores, want.float(), atol=near, rtol=near)


def layer_call(case: Case, p: Problem, flags: bool) -> Tensor:
    """The case through a layer whose projections leave everything as it is.

    `flags`: causality and window by the layer's options where they mean the same, else all by the mask.
    """
    heads, groups, dim, width = p.q.shape[1], p.k.shape[1], p.q.shape[3], p.v.shape[3]
    build: dict[str, Any] = {"causal": True, "window": case.get("left_window_size", -1) + 1 or None} if flags else {}
    layer = MultiHeadAttention(
        heads * dim, heads, groups, head_dim=dim, v_head_dim=width, batch_first=True, mask_true="see",
        scale=float(p.scale), softcap=p.softcap, projections={name: nn.Identity() for name in ("q", "k", "v", "out")},
        **build,
    )  # fmt: skip
    cache = KVCache() if p.past else None
    if cache is not None:
        cache.update(p.k[:, :, : p.past], p.v[:, :, : p.past])
    flat = [x.transpose(1, 2).flatten(2) for x in (p.q, p.k[:, :, p.past :], p.v[:, :, p.past :])]
    mask: Tensor | None = p.visible.expand(-1, -1, p.q.shape[2], p.k.shape[2])
    if flags and "attn_mask" not in case.inputs:
        mask = None
    elif p.bias is not None:
        mask = full(p).masked_fill(~mask, -torch.inf)
    out, weights = layer(*flat, attn_mask=mask, cache=cache, average_attn_weights=False)
    fused, _ = layer(*flat, attn_mask=mask, cache=None, need_weights=False) if cache is None else (out, None)
    assert_allclose(fused.float(), out.float(), atol=NEAR[out.dtype], rtol=NEAR[out.dtype])
    if case.get("qk_matmul_output_mode") == 3:
        assert_allclose(weights.float(), case.outputs["qk_matmul_output"].float(), atol=NEAR[out.dtype])
    return out.unflatten(-1, (heads, width)).transpose(1, 2)


@pytest.mark.parametrize("number", range(NUM_ATTENTION))
def test_the_layer_passes_attention_with_projections_that_change_nothing(number):
    case = case_of("Attention", number)
    p = read(case)
    assert_out(layer_call(case, p, flags=False), case)
    last = p.q.shape[2] + p.past == p.k.shape[2]  # the last query stands at the last key
    if (
        case.get("is_causal")
        and last
        and "nonpad_kv_seqlen" not in case.inputs
        and case.get("right_window_size", -1) < 0
    ):
        assert_out(layer_call(case, p, flags=True), case)


@pytest.mark.parametrize("number", range(NUM_ROTARY))
def test_rotate_passes_rotary_embedding(number):
    case = case_of("RotaryEmbedding", number)
    x, cos, sin = (case.inputs[each] for each in ("input", "cos_cache", "sin_cache"))
    if "position_ids" in case.inputs:
        cos, sin = (table[case.inputs["position_ids"]] for table in (cos, sin))
    got = rotate(
        by_head(x, case.get("num_heads")), cos[:, None], sin[:, None], interleaved=bool(case.get("interleaved"))
    )
    want = case.outputs["output"]
    assert_allclose(got if x.ndim == 4 else got.transpose(1, 2).flatten(2), want, atol=1e-6)


# =================================================================================================== the layer exported
# The layer becomes a program of torch's alone, for any number of texts and tokens, and gives the same numbers.


@pytest.mark.slow  # 5 to 15 seconds each
@pytest.mark.parametrize("way", ["exported", "strictly", "padded", "traced", "compiled"])
def test_a_program_of_the_layer_gives_the_layers_numbers(way, fresh):
    command = [sys.executable, "-m", "tests.nn.exporting", way, str(fresh.initial_seed() % 2**31)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "held", done.stderr[-3000:]
