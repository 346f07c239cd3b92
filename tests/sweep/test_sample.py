"""A sample of the sweep: one architecture of each kind of attention, in process; and the page of the whole of it."""

from __future__ import annotations

import dataclasses
import logging
import warnings

import pytest
import torch
import transformers

from manyheads.models import record_call
from tests.sweep import report
from tests.sweep.architectures import architecture
from tests.sweep.build import LARGEST, build
from tests.sweep.judge import ALLOWED, EXACT, INEXACT, REFUSED, Verdict, compare, judge

SAMPLE = {
    "bert": "bidirectional",
    "albert": "layers that share their weights",
    "distilbert": "no interface for its heads",
    "modernbert": "global and local layers",
    "gpt2": "fused qkv",
    "gpt_neox": "partial rotation",
    "llama": "grouped heads",
    "opt": "learned positions, padding left",
    "qwen3": "norms of q and k",
    "mixtral": "experts",
    "gemma2": "softcap and windows",
    "cohere2": "hybrid windows",
    "gpt_oss": "sinks",
    "granite_swa": "sinks on the output",
    "deepseek_v3": "latent heads, v narrower than q and k",
    "deepseek_v4": "layers with more keys than queries, beside others",
    "llama4_text": "chunks",
    "jamba": "beside recurrent layers",
    "t5": "relative bias, three stacks",
    "bart": "encoder and decoder",
    "whisper": "sound to text",
    "wav2vec2": "sound",
    "vit": "pictures",
    "dinov2_with_registers": "registers",
    "clip": "two towers",
    "siglip": "torch's own layer on top",
    "swin": "shifted windows as texts",
    "sam_vision_model": "bias of two axes",
    "detr": "queries of objects",
    "bridgetower": "one mask, queries of two texts",
    "markuplm": "a mask of one row, added",
}
FEW = (  # in `make test`: the others' kinds of attention are held by other folders (wav2vec2, siglip: test_media)
    "albert", "distilbert", "modernbert", "gpt_neox", "opt", "qwen3", "gemma2", "gpt_oss", "granite_swa", "deepseek_v3",
    "deepseek_v4", "llama4_text", "jamba", "t5", "whisper", "swin", "sam_vision_model", "detr",
    "bridgetower", "markuplm",
)  # fmt: skip
BY_HAND = ("bloom", "deberta-v2")
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


@pytest.mark.turns(4)
@pytest.mark.thinned(name=FEW)
@pytest.mark.parametrize("name", SAMPLE, ids=lambda name: f"{name}: {SAMPLE[name]}")
@pytest.mark.sampled(2)
def test_every_weight_is_the_models_own(name):
    verdict = judge(name)
    assert (verdict.outcome, verdict.because) == (EXACT, verdict.because)
    assert verdict.worst <= ALLOWED and verdict.largest > LARGEST and verdict.tokens >= 25 and verdict.layers


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_made_by_hand_are_refused_by_the_modules_name(name):
    verdict = judge(name)
    assert verdict.outcome == REFUSED and "makes its attention weights by hand" in verdict.because


@pytest.fixture(scope="module")
def llama():
    built = build(architecture("llama"))
    return built, record_call(built.model, **built.inputs)


@pytest.mark.parametrize("what", ["scale", "lse", "window"])
@pytest.mark.sampled(2)
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
