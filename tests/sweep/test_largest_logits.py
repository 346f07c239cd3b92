"""Max logits of a watched step are the largest of the scores that the model's own softmax gets, all in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh
from manyheads.models import AttentionCall, tap
from manyheads.nn import largest_scores, max_logits
from tests.sweep import oracle
from tests.sweep.architectures import architecture
from tests.sweep.build import build, make
from tests.sweep.oracle import own_maps, seeded
from tests.sweep.test_sample import SAMPLE, one_thread_and_silence  # noqa: F401

QUICK = ("llama", "gemma2", "gpt_oss", "deepseek_v3", "t5", "swin")
BY_HAND_WHERE_EAGER = ("sam_vision_model",)
HIDDEN = -1e30  # what a mask adds is below it, whatever the dtype


def with_its_maximum(scores: Tensor, sinks: Tensor) -> Tensor:
    """gpt-oss takes each row's maximum off before its softmax: its sink, the last column, tells what that was."""
    return scores[..., :-1] + (sinks.double()[:, None] - scores[..., -1])[..., None]


@pytest.mark.turns(4)
@pytest.mark.thinned(name=QUICK)
@pytest.mark.parametrize("name", SAMPLE, ids=lambda name: f"{name}: {SAMPLE[name]}")
@pytest.mark.sampled(2)
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
