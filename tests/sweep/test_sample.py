"""A sample of the sweep: one architecture of each kind of attention, in process; and the page of the whole of it."""

from __future__ import annotations

import dataclasses
import logging
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import manyheads as mh
from manyheads.attention import largest_scores, max_logits
from manyheads.inputs import record_call
from manyheads.models import AttentionCall, tap
from tests.sweep import oracle, report
from tests.sweep.architectures import architecture
from tests.sweep.build import LARGEST, build, make
from tests.sweep.judge import ALLOWED, EXACT, INEXACT, REFUSED, Verdict, compare, judge
from tests.sweep.oracle import own_maps, seeded

SAMPLE = {
    "bert": "bidirectional", "albert": "layers that share their weights", "distilbert": "no interface for its heads",
    "modernbert": "global and local layers", "gpt2": "fused qkv", "gpt_neox": "partial rotation",
    "llama": "grouped heads", "opt": "learned positions, padding left", "qwen3": "norms of q and k",
    "mixtral": "experts", "gemma2": "softcap and windows", "cohere2": "hybrid windows", "gpt_oss": "sinks",
    "granite_swa": "sinks on the output", "deepseek_v3": "latent heads, v narrower than q and k",
    "deepseek_v4": "layers with more keys than queries, beside others", "llama4_text": "chunks",
    "jamba": "beside recurrent layers", "t5": "relative bias, three stacks", "bart": "encoder and decoder",
    "whisper": "sound to text", "wav2vec2": "sound", "vit": "pictures", "dinov2_with_registers": "registers",
    "clip": "two towers", "siglip": "torch's own layer on top", "swin": "shifted windows as texts",
    "sam_vision_model": "bias of two axes", "detr": "queries of objects",
    "bridgetower": "one mask, queries of two texts", "markuplm": "a mask of one row, added",
}  # fmt: skip
FEW = (  # in `make test`: the others' kinds of attention are held by other folders (wav2vec2, siglip: test_media)
    "albert", "distilbert", "modernbert", "gpt_neox", "opt", "qwen3", "gemma2", "gpt_oss", "granite_swa", "deepseek_v3",
    "deepseek_v4", "llama4_text", "jamba", "t5", "whisper", "swin", "sam_vision_model", "detr",
    "bridgetower", "markuplm",
)  # fmt: skip
BY_HAND = ("bloom", "deberta-v2", "gpt_neo")  # compute their attention themselves
ENOUGH_FOLDERS = 150


@pytest.fixture(autouse=True)
def one_thread_and_silence():
    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.getLogger("manyheads").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own, of configs that nobody would write
        yield
    logging.getLogger("manyheads").setLevel(logging.NOTSET)
    transformers.logging.set_verbosity(verbosity)
    torch.set_num_threads(threads)


@pytest.mark.thinned(name=FEW)
@pytest.mark.parametrize("name", SAMPLE, ids=lambda name: f"{name}: {SAMPLE[name]}")
def test_every_weight_is_the_models_own(name):
    verdict = judge(name)
    assert (verdict.outcome, verdict.because) == (EXACT, verdict.because)
    assert verdict.worst <= ALLOWED and verdict.largest > LARGEST and verdict.tokens >= 25 and verdict.layers


@pytest.mark.thinned(name=BY_HAND[:1])
@pytest.mark.parametrize("name", BY_HAND)
def test_weights_that_a_model_computes_itself_are_its_own(name):
    verdict = judge(name)
    assert (verdict.outcome, verdict.because) == (EXACT, "") and verdict.worst <= ALLOWED and verdict.largest > LARGEST


def test_scores_of_two_products_are_refused_by_the_modules_name():
    verdict = judge("bros")
    assert verdict.outcome == REFUSED and "its scores are the sum of two products" in verdict.because


@pytest.fixture(scope="module")
def llama():
    built = build(architecture("llama"))
    return built, record_call(built.model, **built.inputs)


@pytest.mark.parametrize("what", ["scale", "lse", "window"])
def test_the_comparison_sees_a_layer_that_is_a_little_wrong(llama, what):
    built, recording = llama
    assert compare(Verdict("llama"), recording, built.maps, built.inputs).outcome == EXACT
    first, *others = recording.layers
    if what == "scale":
        wrong = dataclasses.replace(first, rule=dataclasses.replace(first.rule, scale=first.rule.scale * 1.001))
    elif what == "lse":
        wrong = dataclasses.replace(first, lse=first.lse + 1e-4)
    else:
        wrong = dataclasses.replace(
            first, mask=dataclasses.replace(first.mask, start=(first.mask.stop - 7).clamp_min(0))
        )
    layers = dataclasses.replace(recording, stacks={"": [wrong, *others]})
    verdict = compare(Verdict("llama"), layers, built.maps, built.inputs)
    assert verdict.outcome == INEXACT and verdict.because.startswith("layers.0.self_attn: off by")


def test_the_comparison_sees_a_layer_that_is_missing(llama):
    built, recording = llama
    layers = dataclasses.replace(recording, stacks={"": recording.layers[1:]})
    verdict = compare(Verdict("llama"), layers, built.maps, built.inputs)
    assert verdict.outcome == INEXACT and "layers.0.self_attn: not recorded" in verdict.because


def test_the_page_is_what_the_results_say_and_none_is_inexact():
    verdicts = report.read()
    assert report.PAGE.read_text(encoding="utf-8") == report.page(verdicts)
    assert not [verdict.name for verdict in verdicts if verdict.outcome == INEXACT]
    assert len(report.exact_folders(verdicts)) >= ENOUGH_FOLDERS
    assert all(verdict.largest > LARGEST and verdict.tokens >= 25 for verdict in verdicts if verdict.outcome == EXACT)


# =========================================================================================================== max logits
# Max logits of a watched step are the largest of the scores that the model's own softmax gets, all in float64.

QUICK = ("llama", "gemma2", "gpt_oss", "deepseek_v3", "t5", "swin")
BY_HAND_WHERE_EAGER = ("sam_vision_model",)
HIDDEN = -1e30  # what a mask adds is below it, whatever the dtype


def with_its_maximum(scores: Tensor, sinks: Tensor) -> Tensor:
    """gpt-oss takes each row's maximum off before its softmax: its sink, the last column, tells what that was."""
    return scores[..., :-1] + (sinks.double()[:, None] - scores[..., -1])[..., None]


@pytest.mark.thinned(name=QUICK)
@pytest.mark.parametrize("name", SAMPLE, ids=lambda name: f"{name}: {SAMPLE[name]}")
def test_max_logits_of_a_watch_are_the_largest_scores_of_the_model(name, monkeypatch):
    softmax = F.softmax

    def of_its_dtype(x: Tensor, dim: int = -1, **_: Any) -> Tensor:
        """Models ask for float32, in which float64's lowest number is -inf, and rows of padding are NaN."""
        return softmax(x, dim=dim)

    monkeypatch.setattr(F, "softmax", of_its_dtype)
    monkeypatch.setattr(oracle, "SOFTMAX", {*oracle.SOFTMAX, of_its_dtype})  # by this name torch now calls it
    built = build(architecture(name))
    model = built.model.double()
    if name in BY_HAND_WHERE_EAGER:
        model = make(built.cls, built.config, "sdpa").double()
        model.load_state_dict(built.model.state_dict())
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's product for experts has no float64
    inputs = {
        key: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in built.inputs.items()
    }
    maps = own_maps(model, inputs)
    bounds: dict[str, tuple[AttentionCall, Tensor, Tensor]] = {}

    def bound(call: AttentionCall) -> None:
        lower, upper = max_logits(call.q, call.k, call.lse, call.mask, **call.rule.options, bound=True)
        few = largest_scores(call.q, call.k, call.lse, call.mask, call.rule, rows=3).finished
        bounds[call.site.module] = call, torch.maximum(lower, few), upper

    names = ["max_logit", "max_logit_uncapped"]
    with seeded(), mh.watch(model, statistics=names) as seen:
        model(**inputs)
        seen.step()
    with seeded(), torch.no_grad(), tap(model, bound):
        model(**inputs)
    assert seen.last is not None and seen.last.sites
    for site in seen.last.sites:
        path, _, turn = site.module.partition("#")
        scores = maps.scored[path][int(turn) - 1 if turn else 0]
        call, lower, upper = bounds[site.module]
        sinks = getattr(model.get_submodule(path), "sinks", None)
        if sinks is not None and scores.shape[-1] == call.k.shape[2] + 1:
            scores = with_its_maximum(scores, sinks.detach())
        scores = scores.reshape(*call.q.shape[:3], call.k.shape[2])  # heads may be folded into texts
        visible = (scores > HIDDEN) & (scores > -math.inf)
        # Without rows that see nothing: bounds are of those of padding, too.
        whole = scores.masked_fill(~visible, -math.inf).amax((2, 3))
        assert bool((lower <= whole + 1e-6).all()) and bool((whole <= upper + 1e-6).all()), site
        writes = getattr(model.config, "is_encoder_decoder", False) and site.stack in ("decoder", "cross")
        mask = inputs.get("decoder_attention_mask" if writes else "attention_mask")
        if isinstance(mask, Tensor) and mask.shape == (len(scores), scores.shape[2]):
            visible &= mask.bool()[:, None, :, None]
        largest = scores.masked_fill(~visible, -math.inf).amax((0, 2, 3))
        cap = call.rule.softcap
        for head in site.heads:
            want = float(largest[head.index])
            assert seen.last[head, "max_logit"] == pytest.approx(want, rel=1e-6, abs=1e-6), head
            if cap is not None:
                assert seen.last[head, "max_logit_uncapped"] == pytest.approx(cap * math.atanh(want / cap), rel=1e-5)
            elif call.rule.bias is None:
                assert seen.last[head, "max_logit_uncapped"] == seen.last[head, "max_logit"]
