"""The guard catches each way in which a recording would be wrong: the weights would still be in 0..1 and sum to 1.

Each test reads the model's calls wrongly in one way (a forgotten softcap, a wrong scale ...), with an lse that fits
the wrong reading, as a reader with that mistake would compute it. The model itself is untouched and right.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import manyheads as mh
from manyheads.errors import GuardError
from manyheads.models.taps import call as guard
from manyheads.models.taps import open_taps as taps
from manyheads.models.taps import tap as seam
from manyheads.models.taps import through_transformers as interface
from manyheads.models.taps.mask_arguments import MaskReader, read_rule
from manyheads.nn import Mask
from manyheads.recording import Recording
from tests.models.eager import draw, implementation, padded
from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama

LENGTHS = (11, 7, 13)
RIGHT = 1e-5
STORY = re.compile(
    r"layer (?P<layer>\d+) \((?P<path>[\w.]+)\), head (?P<head>\d+), row (?P<row>\d+) of text (?P<text>\d+): "
    r".* returned a vector of norm (?P<returned>[\d.e+-]+), what was rebuilt .* has norm (?P<rebuilt>[\d.e+-]+) and "
    r"lies (?P<distance>[\d.e+-]+) of the row's norm away \(allowed: (?P<allowed>[\d.e+-]+)\)"
)


# --------------------------------------------------------------------------------------------------- wrong readings


def misread(change: Callable) -> Callable:
    """A mistake in the rule."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(query: Any, kwargs: Any, bias: Any) -> Any:
            return change(read_rule(query, kwargs, bias))

        monkeypatch.setattr(interface, "read_rule", wrong)
        refit(monkeypatch)

    return patch


def refit(monkeypatch: pytest.MonkeyPatch, keys: Callable = lambda k: k) -> None:
    """The lse that fits the mistake, in place of the model's own, so that rows sum to 1 all the same."""
    lse_of = taps.lse_of
    monkeypatch.setattr(taps, "lse_of", lambda q, k, mask, rule, captured: lse_of(q, keys(k), mask, rule, None))


def lost_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        _, bias = read(self, attention_mask, num_queries, num_keys, causal)
        return Mask.full(num_queries, num_keys), bias

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)


def lost_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal, and no more than that."""
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        return Mask.causal(num_queries, num_keys), read(self, attention_mask, num_queries, num_keys, causal)[1]

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)


def swapped(*which: str) -> Callable:
    """Key/value heads 0 and 1 of 3 in each other's place: what heads 0 to 3 read is wrong, heads 4 and 5 are right."""

    def swap(x: Any) -> Any:
        return x[:, [1, 0, *range(2, x.shape[1])]]

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        call = taps.AttentionCall

        def wrong(site: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
            return call(site, q, swap(k) if "k" in which else k, swap(v) if "v" in which else v, *rest)

        monkeypatch.setattr(taps, "AttentionCall", wrong)
        if "k" in which:
            refit(monkeypatch, keys=swap)

    return patch


def other_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    """An lse in other units: base 2, as some kernels return it."""
    lse_of = taps.lse_of

    def wrong(*args: Any) -> Any:
        lse, because = lse_of(*args)
        return lse / torch.log(torch.tensor(2.0)), because

    monkeypatch.setattr(taps, "lse_of", wrong)


@dataclass(frozen=True)
class Mistake:
    """A wrong reading of a model's calls; `heads`: where it must show (None: in any head)."""

    name: str
    model: Callable
    patch: Callable
    heads: tuple[int, ...] | None = None


MISTAKES = [
    Mistake("a forgotten softcap", tiny_gemma2, misread(lambda rule: replace(rule, softcap=None))),
    Mistake("another softcap", tiny_gemma2, misread(lambda rule: replace(rule, softcap=rule.softcap * 1.1))),
    Mistake("a forgotten window", tiny_gemma2, lost_window),
    Mistake("a scale by head width", tiny_gemma2, misread(lambda rule: replace(rule, scale=10**-0.5))),
    Mistake("a wrong scale", tiny_llama, misread(lambda rule: replace(rule, scale=rule.scale * 1.01))),
    Mistake("a wrong scale", tiny_bert, misread(lambda rule: replace(rule, scale=1.0))),
    Mistake("a lost causal mask", tiny_llama, lost_mask),
    Mistake("a lost causal mask", tiny_gpt2, lost_mask),
    Mistake("a lost padding mask", tiny_bert, lost_mask),
    Mistake("a swapped KV head", tiny_llama, swapped("k", "v"), heads=(0, 1, 2, 3)),
    Mistake("a swapped key head", tiny_llama, swapped("k"), heads=(0, 1, 2, 3)),
    Mistake("a swapped value head", tiny_llama, swapped("v"), heads=(0, 1, 2, 3)),
    Mistake("a base-2 lse", tiny_gpt2, other_lse),
    Mistake("a lost additive bias", tiny_t5, misread(lambda rule: replace(rule, bias=None))),
    Mistake("forgotten sinks", tiny_gpt_oss, misread(lambda rule: replace(rule, sinks=None))),
    Mistake("a forgotten window", tiny_gpt_oss, lost_window),
    Mistake("sinks of other heads", tiny_gpt_oss, misread(lambda rule: replace(rule, sinks=rule.sinks.flip(0)))),
]
EAGER_ONLY = (tiny_gemma2, tiny_gpt_oss)  # sdpa has neither softcap nor sinks
CASES = [
    pytest.param(mistake, attention, id=f"{mistake.name}, {mistake.model.__name__}, {attention}")
    for mistake in MISTAKES
    for attention in ("sdpa", "eager")
    if attention == "eager" or mistake.model not in EAGER_ONLY
]


def inputs_for(model: Any, fresh: torch.Generator) -> dict[str, torch.Tensor]:
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(5, VOCAB_SIZE, (len(LENGTHS), max(LENGTHS)), generator=fresh)
    return inputs


def recorded(model: Any, inputs: dict[str, torch.Tensor]) -> Recording:
    return mh.record_call(model, **inputs, keep=("q", "k", "v", "lse"))


def assert_guard_raises(model: Any, inputs: dict[str, torch.Tensor]) -> re.Match[str]:
    with pytest.raises(GuardError) as caught:
        recorded(model, inputs)
    story = STORY.search(str(caught.value))
    if story is None:
        raise AssertionError(f"the message lacks layer, head, row, text or one of the numbers: {caught.value}")
    assert "a recording would be wrong: none is made" in str(caught.value)
    return story


@pytest.mark.thinned
@pytest.mark.parametrize(("mistake", "attention"), CASES)
def test_the_guard_catches(mistake, attention, fresh, monkeypatch):
    model = mistake.model(seed=draw(fresh))
    inputs = inputs_for(model, fresh)
    with implementation(model, attention):
        assert float(recorded(model, inputs).provenance["guard_error"]) < RIGHT  # read rightly, there is nothing to say
        right: dict[str, torch.Tensor] = {}
        with seam.tap(model, on_call=lambda call: right.update({call.site.module: call.out})), torch.no_grad():
            model(**inputs)
        mistake.patch(monkeypatch)
        story = assert_guard_raises(model, inputs)
        monkeypatch.undo()
        assert float(recorded(model, inputs).provenance["guard_error"]) < RIGHT

    layer, head, row, text = (int(story[name]) for name in ("layer", "head", "row", "text"))
    returned, rebuilt, distance = (float(story[name]) for name in ("returned", "rebuilt", "distance"))
    assert layer == 0  # the first call is wrong already
    assert mistake.heads is None or head in mistake.heads
    vector = right[story["path"]][text, head, row]
    assert returned == pytest.approx(float(vector.norm()), rel=1e-4)  # the model's number is the model's
    assert distance > float(story["allowed"]) == guard.TOLERANCE[torch.float32]
    assert abs(rebuilt - returned) <= distance * rebuilt * 1.1 + 1e-3 * returned


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_guard_catches_an_attention_function_that_does_more_than_it_says(attention, fresh, monkeypatch):
    """The other way round: the reading is right about the arguments, and the model's own function is another one."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import AttentionInterface
    from transformers.models.llama import modeling_llama

    functions = {"sdpa": sdpa_attention_forward, "eager": modeling_llama.eager_attention_forward}

    def gated(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = functions[attention](module, query, key, value, *args, **kwargs)
        return out * 0.99, weights

    model = tiny_llama(seed=draw(fresh))
    inputs = inputs_for(model, fresh)
    if attention == "eager":
        monkeypatch.setattr(modeling_llama, "eager_attention_forward", gated)
    else:
        monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", gated)
    with implementation(model, attention):
        story = assert_guard_raises(model, inputs)
    assert float(story["distance"]) == pytest.approx(0.01, rel=0.02)


@pytest.mark.thinned
@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_padding_that_is_misread_in_a_single_text_of_a_batch_is_caught_there(make, at, fresh, monkeypatch):
    model = make(seed=draw(fresh))
    inputs = padded(fresh, [7 if text == at else 13 for text in range(5)], VOCAB_SIZE, "left")
    real = float(recorded(model, inputs).provenance["guard_error"])
    assert real < RIGHT
    read = MaskReader.read

    def wrong(self: Any, attention_mask: Any, num_queries: int, num_keys: int, causal: bool) -> Any:
        mask, bias = read(self, attention_mask, num_queries, num_keys, causal)
        return replace(mask, start=torch.zeros_like(mask.start)), bias

    monkeypatch.setattr(MaskReader, "read", wrong)
    refit(monkeypatch)
    assert int(assert_guard_raises(model, inputs)["text"]) == at


@pytest.mark.parametrize("statistics", ["default", "all"])
def test_measuring_is_guarded_too(statistics, fresh, monkeypatch):
    model = tiny_gemma2(seed=draw(fresh))
    inputs = inputs_for(model, fresh)
    with implementation(model, "eager"):
        assert float(mh.measure_call(model, **inputs, statistics=statistics).notes["guard_error"]) < RIGHT
        misread(lambda rule: replace(rule, softcap=None))(monkeypatch)
        with pytest.raises(GuardError, match=STORY):
            mh.measure_call(model, **inputs, statistics=statistics)


def test_the_guard_can_be_turned_off_for_a_tap_that_records_nothing(fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh))
    lost_mask(monkeypatch)
    with seam.tap(model, guard=False) as state, torch.no_grad():
        model(**inputs_for(model, fresh))
    assert state.guard_error == 0 and len(state.sites) == 3


def test_a_reading_that_gives_nan_is_caught_as_any_other(fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh))
    misread(lambda rule: replace(rule, scale=float("nan")))(monkeypatch)
    with pytest.raises(GuardError, match=r"layer 0 \(model\.layers\.0\.self_attn\), head 0"):
        recorded(model, inputs_for(model, fresh))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_pass_by_their_own_rounding_and_are_still_guarded(dtype, fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh)).to(dtype)
    inputs = inputs_for(model, fresh)
    assert float(recorded(model, inputs).provenance["guard_error"]) < guard.TOLERANCE[dtype]
    lost_mask(monkeypatch)
    with pytest.raises(GuardError, match=STORY):
        recorded(model, inputs)


def test_the_guard_looks_at_the_last_row_where_a_text_sees_most():
    for size in (1, 2, 3, 4, 5, 64, 1001):
        rows = guard.spread(size, guard.GUARD_ROWS).tolist()
        assert rows == sorted(set(rows)) and rows[-1] == size - 1 and len(rows) == min(size, guard.GUARD_ROWS)
        assert size == 1 or rows[0] == 0
