"""Kernels of accelerators under a tap: the lse is the kernel's own, and `because` says which kernel that is.

No such kernel is on this machine. Stand-ins take their places in torch's table of operators: they compute attention on
the CPU, and lay the lse out as torch states it for CUDA. Oracle: the model's own eager maps.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention
from transformers import AttentionInterface, CompileConfig

import manyheads as mh
from manyheads.models.taps import call as taps
from tests.models.eager import assert_near, draw, eager_maps, implementation
from tests.models.tiny import VOCAB_SIZE, tiny_llama

TOKENS = 37


def attended(q, k, v, causal, scale):
    """Output and natural lse, from the formula."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)).double() * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
    return (scores.softmax(-1) @ v.double()).to(q.dtype), scores.logsumexp(-1).float()


def flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = attended(q, k, v, is_causal, scale)
    none = torch.empty(0)
    return out, lse, none, none, q.shape[2], k.shape[2], none, none, none


def efficient(q, k, v, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    """Rows up to a multiple of 32, infinity in those past the last; nothing unless asked."""
    out, lse = attended(q, k, v, is_causal, scale)
    rows = math.ceil(q.shape[2] / 32) * 32 if compute_log_sumexp else 0
    lse = F.pad(lse, (0, rows - q.shape[2]), value=torch.inf) if rows else lse[..., :0]
    return out, lse, torch.empty(0), torch.empty(0)


def cudnn(q, k, v, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = attended(q, k, v, is_causal, scale)
    none = torch.empty(0)
    lse = lse[..., None] if compute_log_sumexp else none
    return out, lse, none, none, q.shape[2], k.shape[2], none, none, none


KERNELS = {"flash": flash, "memory-efficient": efficient, "cuDNN": cudnn}
OPERATORS = {"flash": "flash", "memory-efficient": "efficient", "cuDNN": "cudnn"}


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    """A kernel's name; transformers' `sdpa` calls the stand-in as torch does where no gradients are."""
    name = f"_scaled_dot_product_{OPERATORS[request.param]}_attention"
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, KERNELS[request.param], "CPU")

    def sdpa(module, query, key, value, attention_mask, scaling, **kwargs):
        asked = () if request.param == "flash" else (None, False)
        out = getattr(torch.ops.aten, name)(query, key, value, *asked, 0.0, True, scale=scaling)[0]
        return out.transpose(1, 2).contiguous(), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa)
    yield request.param
    library._destroy()


@pytest.fixture
def model(fresh):
    return tiny_llama(seed=draw(fresh))


@pytest.fixture
def inputs(fresh):
    return {"input_ids": torch.randint(5, VOCAB_SIZE, (2, TOKENS), generator=fresh)}


def test_the_lse_is_the_kernels_own(kernel, model, inputs, monkeypatch):
    def never(*args):
        raise AssertionError("a second pass over q and k")

    monkeypatch.setattr(taps, "log_sum_exp", never)
    with torch.no_grad():
        plain = model(**inputs).logits
        with mh.tap(model) as state:
            tapped = model(**inputs).logits
    assert torch.equal(plain, tapped)
    assert state.because == {f"the model's own fused kernel returned the lse (torch's {kernel} kernel)": 3}
    rec = mh.record_call(model, **inputs)
    assert all((layer.lse.shape, layer.lse.dtype) == ((2, 6, TOKENS), torch.float32) for layer in rec.layers)
    for layer, own in zip(rec.layers, eager_maps(model, **inputs), strict=True):
        for text in range(2):
            assert_near(layer.weights(text=text), own[text])


# --------------------------------------------------------------------------------------------------------------- flex


@pytest.fixture
def flex_with_lse(monkeypatch):
    """transformers' branch for accelerators, which it does not take on a CPU: it asks for the lse, and hands it on."""
    from transformers.integrations import flex_attention as flex

    def kernel(query, key, value, scale, **kwargs):
        out, lse = attended(query.double(), key.double(), value, True, scale)
        return out.to(query.dtype), flex_attention.AuxOutput(lse=lse)

    def forward(module, query, key, value, attention_mask, scaling, **kwargs):
        out, aux = flex.compile_friendly_flex_attention(query, key, value, scale=scaling)
        return out.transpose(1, 2).contiguous(), aux.lse.to(value.dtype)

    monkeypatch.setattr(flex, "compile_friendly_flex_attention", kernel)
    monkeypatch.setitem(AttentionInterface._global_mapping, "flex_attention", forward)
    monkeypatch.setattr(
        "transformers.masking_utils.create_block_mask",
        lambda *args, _compile=False, **kwargs: flex_attention.create_block_mask(*args, **kwargs),
    )


def test_flex_attentions_lse_is_taken_before_it_is_rounded(flex_with_lse, model, inputs):
    model = model.bfloat16()
    with implementation(model, "flex_attention"):
        rec = mh.record_call(model, **inputs)
    assert list(rec.provenance["backend"]) == ["the model's own fused kernel returned the lse (flex attention)"]
    for layer in rec.layers:
        assert layer.lse.dtype == torch.float32
        lse = attended(layer.q.double(), layer.k.double(), layer.k.double(), True, layer.rule.scale)[1]
        assert_near(layer.lse, lse)
        assert (lse - lse.bfloat16()).abs().max() > 1e-3


def test_whoever_asks_flex_attention_for_maps_is_warned_that_it_gives_none(flex_with_lse, model, inputs, caplog):
    with implementation(model, "flex_attention"), torch.no_grad():
        with mh.tap(model):
            model(**inputs)
        assert not caplog.messages
        with mh.tap(model):
            outputs = model(**inputs, output_attentions=True)
    assert outputs.attentions[0].ndim == 3
    warning = "outputs.attentions of flex attention are not maps but the lse of each row, rounded: do not use it"
    assert caplog.messages == [warning]


# ------------------------------------------------------------------------------------------------- compiled decoding


def test_a_decoding_step_that_would_be_compiled_runs_as_it_is(model, inputs, monkeypatch):
    """As on accelerators, where `generate` compiles it by itself. One that was compiled before is not used either."""

    def never(*args, **kwargs):
        raise AssertionError("compiled code shows nothing")

    monkeypatch.setattr(torch, "compile", never)
    model._compiled_call = never
    everywhere = CompileConfig()
    everywhere._compile_all_devices = True
    model._last_compile_config = everywhere
    how = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "compile_config": everywhere}
    calls = []
    for tapped in (model, model.model.layers[1]):  # a part of it, too: its calls would be lost with the rest
        calls.clear()
        with mh.tap(tapped, on_call=calls.append), torch.no_grad():
            ids = model.generate(inputs["input_ids"][:, :9], **how)
        assert len(calls) == 4 * (3 if tapped is model else 1)
    for call, own in zip(calls[1:], range(10, 13), strict=True):
        maps = eager_maps(model, input_ids=ids[:, :own])
        scores = (call.q.double() @ call.k.double().repeat_interleave(2, 1).transpose(2, 3)) * call.rule.scale
        assert call.mask.counts().tolist() == [[own]] * 2
        assert_near((scores - call.lse[..., None]).exp()[..., :own].float(), maps[1][:, :, -1:])
    with pytest.raises(AssertionError, match="compiled code shows nothing"), torch.no_grad():
        model.generate(inputs["input_ids"][:, :9], **how)
