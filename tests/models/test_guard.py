"""The guard catches each way in which a recording would be wrong, and refuses no model for its own rounding.

Each test of the first kind reads the model's calls wrongly in one way (a forgotten softcap, a wrong scale ...), with an
lse that fits the wrong reading, as a reader with that mistake would compute it: the weights would still be in 0..1 and
sum to 1. The model itself is untouched and right. Those of the second kind are random models, held to their own
attention function in float64 (`random_models`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import manyheads as mh
from manyheads.attention import Mask, Rule
from manyheads.errors import GuardError
from manyheads.measurement import measure_call
from manyheads.models.taps import call as guard
from manyheads.models.taps import tap as seam
from manyheads.recording import Recording
from manyheads.recording.exact_map.requests import Mass
from manyheads.spec import Site
from tests.models import random_models
from tests.models.eager import draw, implementation, padded
from tests.models.random_models import lost_mask, lost_window, misread, misread_mask, other_lse, swapped
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt2, tiny_gpt_oss, tiny_llama, tiny_t5
from tests.refusals import refuses

LENGTHS = (11, 7, 13)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
RIGHT = 1e-5
STORY = re.compile(
    r"layer (?P<layer>\d+) \((?P<path>[\w.]+)\), head (?P<head>\d+), row (?P<row>\d+) of text (?P<text>\d+): "
    r".* returned a vector of norm (?P<returned>[\d.e+-]+), what was rebuilt .* has norm (?P<rebuilt>[\d.e+-]+) and "
    r"lies (?P<distance>[\d.e+-]+) of the row's norm away \(allowed: (?P<allowed>[\d.e+-]+)\)"
)


@dataclass(frozen=True)
class Mistake:
    """A wrong reading of a model's calls, and the dtypes in which it is more than rounding.

    `heads`: where it must show (None: in any head).
    """

    name: str
    model: Callable
    patch: Callable
    dtypes: tuple[torch.dtype, ...] = DTYPES
    heads: tuple[int, ...] | None = None


FINE = (torch.float64, torch.float32, torch.float16)  # of scores, bfloat16 rounds more than a hundredth away
MISTAKES = [
    Mistake("a forgotten softcap", tiny_gemma2, misread(lambda rule: replace(rule, softcap=None))),
    Mistake("another softcap", tiny_gemma2, misread(lambda rule: replace(rule, softcap=rule.softcap * 1.1)), FINE),
    Mistake("twice the softcap", tiny_gemma2, misread(lambda rule: replace(rule, softcap=rule.softcap * 2))),
    Mistake("a forgotten window", tiny_gemma2, lost_window),
    Mistake("a scale by head width", tiny_gemma2, misread(lambda rule: replace(rule, scale=10**-0.5))),
    Mistake("a wrong scale", tiny_llama, misread(lambda rule: replace(rule, scale=rule.scale * 1.01)), FINE),
    Mistake("a scale of 1 / d", tiny_llama, misread(lambda rule: replace(rule, scale=rule.scale**2))),
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
    pytest.param(
        mistake, attention, dtype, id=f"{mistake.name}, {mistake.model.__name__}, {attention}, {str(dtype)[6:]}"
    )
    for mistake in MISTAKES
    for attention in ("sdpa", "eager")
    if attention == "eager" or mistake.model not in EAGER_ONLY
    for dtype in mistake.dtypes
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
@pytest.mark.parametrize(("mistake", "attention", "dtype"), CASES)
def test_the_guard_catches(mistake, attention, dtype, fresh, monkeypatch):
    model = mistake.model(seed=draw(fresh)).to(dtype)
    if mistake.model is tiny_gpt_oss:  # torch's product for experts knows no float64
        model.set_experts_implementation("eager")
    inputs = inputs_for(model, fresh)
    right_error = RIGHT if dtype == torch.float32 else guard.TOLERANCE[dtype]
    with implementation(model, attention):
        assert float(recorded(model, inputs).provenance["guard_error"]) < right_error  # there is nothing to say
        right: dict[str, torch.Tensor] = {}
        with seam.tap(model, on_call=lambda call: right.update({call.site.module: call.out})), torch.no_grad():
            model(**inputs)
        mistake.patch(monkeypatch)
        story = assert_guard_raises(model, inputs)
        monkeypatch.undo()
        assert float(recorded(model, inputs).provenance["guard_error"]) < right_error

    layer, head, row, text = (int(story[name]) for name in ("layer", "head", "row", "text"))
    returned, rebuilt, distance = (float(story[name]) for name in ("returned", "rebuilt", "distance"))
    assert layer == 0  # the first call is wrong already
    assert mistake.heads is None or head in mistake.heads
    vector = right[story["path"]][text, head, row]
    assert returned == pytest.approx(float(vector.double().norm()), rel=1e-4)  # the model's number is the model's
    assert distance > float(story["allowed"]) >= guard.TOLERANCE[dtype]
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
    misread_mask(monkeypatch, lambda mask, *_: replace(mask, start=torch.zeros_like(mask.start)))
    assert int(assert_guard_raises(model, inputs)["text"]) == at


@pytest.mark.parametrize("at", [1, 5])
def test_a_mask_that_is_misread_in_one_row_of_a_short_text_is_caught_there(at, fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh))
    inputs = padded(fresh, [7], VOCAB_SIZE)
    assert float(recorded(model, inputs).provenance["guard_error"]) < RIGHT

    def late(mask: Any, num_queries: int, num_keys: int) -> Any:
        return replace(mask, start=torch.where(torch.arange(num_queries) == at, 1, mask.start))

    misread_mask(monkeypatch, late)
    assert int(assert_guard_raises(model, inputs)["row"]) == at


@pytest.mark.parametrize(("num_rows", "layers"), [(17, 3), (23, 4), (129, 12), (4096, 32)])
def test_of_a_long_text_each_layer_samples_its_last_row_and_others_that_come_near_every_row(num_rows, layers):
    rows = [guard.sampled_rows(num_rows, layer) for layer in range(layers)]
    assert all(row[-1] == num_rows - 1 and len(row.unique()) == guard.GUARD_ROWS for row in rows)
    together = torch.cat([*rows, torch.tensor([-1])]).unique()
    assert together.diff().max() <= 2 + 2.7 * num_rows / (3 * layers)


@pytest.mark.parametrize("statistics", ["default", "all"])
def test_measuring_is_guarded_too(statistics, fresh, monkeypatch):
    model = tiny_gemma2(seed=draw(fresh))
    inputs = inputs_for(model, fresh)
    with implementation(model, "eager"):
        assert float(measure_call(model, **inputs, statistics=statistics).notes["guard_error"]) < RIGHT
        misread(lambda rule: replace(rule, softcap=None))(monkeypatch)
        refuses(GuardError, STORY, measure_call, model, **inputs, statistics=statistics)


def test_the_guard_can_be_turned_off_for_a_tap_that_records_nothing(fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh))
    lost_mask(monkeypatch)
    with seam.tap(model, guard=False) as state, torch.no_grad():
        model(**inputs_for(model, fresh))
    assert state.guard_error == 0 and len(state.sites) == 3


def test_a_reading_that_gives_nan_is_caught_and_a_tap_that_records_nothing_can_do_without_the_guard(fresh, monkeypatch):
    model = tiny_llama(seed=draw(fresh))
    misread(lambda rule: replace(rule, scale=float("nan")))(monkeypatch)
    refuses(GuardError, r"layer 0 \(model\.layers\.0\.self_attn\), head 0", recorded, model, inputs_for(model, fresh))


WEIGHTS_OFF = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 3e-4, torch.bfloat16: 3e-4}
"""Of a weight that is read, against the model's own function in float64. Half types: the lse of a fused kernel."""


@pytest.mark.parametrize("count", [25, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_random_model_is_refused_for_its_own_rounding_and_what_is_read_is_its_own_attention(count, fresh):
    for _ in range(count):
        outcome = random_models.outcome_of(random_models.trial(draw(fresh)))
        if outcome.verdict == "refused" and "float16 is too coarse for its scores" in outcome.words:
            # So says float64: rounding moved a row by more than is ever excused. The guard itself computes in float32.
            assert outcome.rounding > 0.999 * guard.COARSEST[outcome.trial.dtype], f"{outcome.trial}: {outcome.words}"
            continue
        # In float64, rows that see nothing are NaN to sdpa and reach the others: the model's own output is NaN then.
        right = "accepted" if outcome.finite else "overflowed"
        assert outcome.verdict == right, f"{outcome.trial}: {outcome.words}"
        assert outcome.error <= WEIGHTS_OFF[outcome.trial.dtype], f"{outcome.trial}: off by {outcome.error:.2g}"


@pytest.mark.parametrize("count", [25, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_random_model_that_is_read_wrongly_is_refused_where_a_sampled_row_shows_it(count):
    caught, missed = 0, []
    for seed in range(count):
        trial = random_models.trial(seed)
        outcome = random_models.outcome_of(trial, random_models.fault_of(trial))
        caught += outcome.verdict != "accepted"
        # What is left are texts too short for their window, rows of one key, and the like; in half types what rounding
        # explains of scores that large; and a row of a text that is neither the first nor the last of its batch.
        if outcome.verdict == "accepted" and outcome.moved > max(guard.TOLERANCE[trial.dtype], 1e-4):
            missed.append(f"{outcome.fault}, {trial}: rows moved by {outcome.moved:.2g}")
    assert len(missed) <= count // 500 and caught > 0.8 * count, missed


def test_where_a_half_type_rounds_scores_by_more_than_a_weight_bears_the_message_says_so():
    """Scores of 513 and 511 are both 512 in bfloat16: the model weighs alike what its q and k weigh 7 to 1."""
    q, k, v = (torch.tensor(x)[None, None] for x in ([[64.0, 1.0]], [[8.0, 1.0], [8.0, -1.0]], [[1.0], [-1.0]]))

    def called(dtype: torch.dtype) -> guard.AttentionCall:
        narrow_q, narrow_k, narrow_v = q.to(dtype), k.to(dtype), v.to(dtype)
        out = (narrow_q @ narrow_k.transpose(2, 3)).softmax(-1) @ narrow_v
        mask, rule = Mask.full(1, 2), Rule(1.0)
        known = guard.KnownLse(lambda: guard.lse_of(narrow_q, narrow_k, mask, rule, None))
        site = Site("", 0, "attention", 1, 1, 2, 1, False)
        return guard.AttentionCall(site, narrow_q, narrow_k, narrow_v, mask, rule, out, known)

    words = r"bfloat16 is too coarse for its scores, whose lse is up to 513: .* Load the model with dtype='float32'"
    refuses(GuardError, words, guard.check, called(torch.bfloat16), torch.nn.Module())
    assert guard.check(called(torch.float32), torch.nn.Module()) < guard.TOLERANCE[torch.float32]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_where_scores_are_in_the_hundreds_the_lse_is_float64_and_nowhere_else(attention, fresh):
    ordinary, hundreds = (tiny_t5(seed=7), tiny_t5(seed=7))
    with torch.no_grad():
        for name, weight in hundreds.named_parameters():
            if name.endswith((".q.weight", ".k.weight")):
                weight.mul_(12)
    inputs = inputs_for(ordinary, fresh)
    with implementation(ordinary, attention):
        rec = recorded(ordinary, inputs)
    layers = [layer for stack in rec.stacks.values() for layer in stack]
    assert {layer.lse.dtype for layer in layers} == {torch.float32}
    assert "float64" not in str(rec.provenance["backend"])
    with implementation(hundreds, attention):
        rec = recorded(hundreds, inputs)
        about: dict[str, Any] = {**rec.provenance}
        assert about["float64_error"] < 1e-9
        large = [layer for stack in rec.stacks.values() for layer in stack if layer.lse.dtype == torch.float64]
        assert large and all(float(layer.lse[layer.lse.isfinite()].abs().max()) >= guard.HUNDREDS for layer in large)
        # The model's own scores are rounded by eps of their size, and its weights by as much.
        largest = max(float(layer.lse[layer.lse.isfinite()].abs().max()) for layer in large)
        assert about["guard_error"] < 4 * torch.finfo(torch.float32).eps * largest < 1e-3
        assert sum(n for because, n in about["backend"].items() if "float64" in because) == len(large)
        assert {layer.weights(0).dtype for layer in large} == {torch.float32}
        for layer in large:  # each row of the pass sums to 1, as its weights do
            mass = layer.reduce([Mass()])[Mass()]
            assert float((mass - (layer.mask.counts() > 0)[:, None].double()).abs().max()) < 1e-9


def test_the_guard_looks_at_the_last_row_where_a_text_sees_most():
    for size in (1, 2, 3, 4, 5, 64, 1001):
        rows = guard.spread(size, guard.GUARD_ROWS).tolist()
        assert rows == sorted(set(rows)) and rows[-1] == size - 1 and len(rows) == min(size, guard.GUARD_ROWS)
        assert size == 1 or rows[0] == 0
