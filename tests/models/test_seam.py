"""The tap sees every call, changes nothing unless an edit says so, and leaves nothing behind.

Models are small and random (`tiny`), and `minilm` with its trained weights. "Identical" means bit by bit.
"""

from contextlib import ExitStack

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from manyheads.models import tap
from tests.models.eager import GUARDED, draw, implementation, padded
from tests.models.makers import every_case
from tests.models.tapped import LENGTHS, assert_identical, installed, num_layers
from tests.models.tiny import VOCAB_SIZE, tiny_llama

MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}


def several_inputs(fresh, model):
    """Padded on either side, and without a mask, where sdpa is told `is_causal` instead."""
    size = model.config.vocab_size
    return (
        padded(fresh, LENGTHS, size, "right"),
        padded(fresh, LENGTHS, size, "left"),
        {"input_ids": padded(fresh, (9, 9), size)["input_ids"]},
    )


def insides(model):
    """Every attribute of every module, parameters and hooks among them, by identity."""
    return {
        (path, name): {key: id(value) for key, value in held.items()} if isinstance(held, dict) else id(held)
        for path, module in model.named_modules()
        for name, held in vars(module).items()
    }


# ------------------------------------------------------------------------------------------------ nothing is changed


@pytest.mark.thinned
@every_case
@pytest.mark.parametrize("mode", MODES)
def test_outputs_under_a_tap_are_bit_identical(name, attention, mode, made, fresh):
    model = made(name)
    with implementation(model, attention), MODES[mode]():
        for inputs in several_inputs(fresh, model):
            plain, calls = model(**inputs)[0], []
            with tap(model, on_call=calls.append, edits=[lambda call: None]) as state:
                tapped = model(**inputs)[0]
            assert_identical(tapped, plain)
            assert len(calls) == len(state.sites) == num_layers(model)
            assert state.guard_error < GUARDED
            if attention == "sdpa":  # no second pass: the lse is the kernel's own, in every mode
                assert list(state.because) == ["the model's own fused kernel returned the lse"]


@pytest.mark.thinned
@every_case
def test_gradients_under_a_tap_are_bit_identical(name, attention, made, fresh):
    model = made(name)

    def gradients(inputs):
        model.zero_grad()
        model(**inputs)[0].float().square().sum().backward()
        return {path: weight.grad for path, weight in model.named_parameters() if weight.grad is not None}

    with implementation(model, attention):
        for inputs in several_inputs(fresh, model):
            plain = gradients(inputs)
            with tap(model, on_call=lambda call: None):
                tapped = gradients(inputs)
            assert plain.keys() == tapped.keys() and len(plain) > num_layers(model)
            for path in plain:
                assert_identical(tapped[path], plain[path])
    model.zero_grad()


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_dtypes_stay_bit_identical_too(attention, dtype, fresh):
    model = tiny_llama(seed=draw(fresh), sharpness=2.0).to(dtype)  # eager rounds scores to the dtype
    with implementation(model, attention), torch.no_grad():
        for inputs in several_inputs(fresh, model)[::2]:  # transformers' own eager gives NaN in float64 padded left
            plain = model(**inputs)[0]
            with tap(model, on_call=lambda call: None) as state:
                assert_identical(model(**inputs)[0], plain)
            assert state.because


@pytest.mark.parametrize(
    ("name", "attention"), [("gpt2", "sdpa"), ("llama", "sdpa"), ("llama", "eager"), ("gemma2", "eager")]
)
def test_decoding_with_a_cache_is_seen_and_stays_bit_identical(name, attention, made, fresh):
    model = made(name)
    prompt = padded(fresh, LENGTHS, VOCAB_SIZE, "left")

    def three_steps():
        inputs, cache, logits = dict(prompt), None, []
        for _ in range(3):
            out = model(**inputs, past_key_values=cache, use_cache=True)
            cache, mask = out.past_key_values, inputs["attention_mask"]
            logits.append(out.logits)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            inputs = {"input_ids": out.logits[:, -1:].argmax(-1), "attention_mask": mask}
        return logits

    shapes = []
    with implementation(model, attention), torch.no_grad():
        plain = three_steps()
        with tap(model, on_call=lambda call: shapes.append((call.q.shape[2], call.k.shape[2]))) as state:
            tapped = three_steps()
    for got, want in zip(tapped, plain, strict=True):
        assert_identical(got, want)
    assert state.guard_error < GUARDED
    longest = max(LENGTHS)
    layers = num_layers(model)
    assert [rows for rows, _ in shapes] == [longest] * layers + [1] * 2 * layers
    if name != "gemma2":  # its sliding layers keep only the window
        assert [keys for _, keys in shapes] == [n for n in (longest, longest + 1, longest + 2) for _ in range(layers)]


# ------------------------------------------------------------------------------------------------- nothing is left over


def test_the_class_and_the_model_are_restored_after_exit(made, fresh):
    model, before = made("llama"), installed()
    inside = insides(model)
    with tap(model):
        assert installed() != before
        model(**padded(fresh, LENGTHS, VOCAB_SIZE))
    assert installed() == before
    assert insides(model) == inside


@pytest.mark.parametrize("where", ["body", "on_call", "edit", "model", "guard"])
def test_the_class_is_restored_after_an_exception(where, made, fresh, monkeypatch):
    model, before = made("llama"), installed()
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)

    def fail(call):
        raise KeyError("from inside")

    if where == "model":
        inputs["input_ids"] = inputs["input_ids"] + VOCAB_SIZE
    if where == "guard":
        monkeypatch.setattr("manyheads.models.taps.call.check", lambda call, model: fail(call))
    options = {"on_call": {"on_call": fail}, "edit": {"edits": [fail]}}.get(where, {})
    with pytest.raises(IndexError if where == "model" else KeyError), tap(model, **options):  # noqa: SIM117
        with torch.no_grad():
            model(**inputs)
            fail(None)
    assert installed() == before
    monkeypatch.undo()
    seen = []
    with tap(model, on_call=seen.append), torch.no_grad():
        model(**padded(fresh, LENGTHS, VOCAB_SIZE))
    assert len(seen) == num_layers(model)


@pytest.mark.parametrize("first_out", ["inner", "outer"])
def test_nested_taps_see_the_same_calls_and_leave_in_either_order(first_out, made, fresh):
    model, before = made("gpt2"), installed()
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    seen = {"inner": [], "outer": []}
    stacks = {"inner": ExitStack(), "outer": ExitStack()}
    with torch.no_grad():
        for name in ("outer", "inner"):
            stacks[name].enter_context(tap(model, on_call=seen[name].append))
        model(**inputs)
        assert {name: len(calls) for name, calls in seen.items()} == dict.fromkeys(seen, num_layers(model))
        stacks.pop(first_out).close()
        assert installed() != before
        model(**inputs)
        (left,) = stacks
        assert len(seen[left]) == 2 * num_layers(model) and len(seen[first_out]) == num_layers(model)
        stacks[left].close()
    assert installed() == before


def test_another_model_in_the_same_thread_passes_through(made, fresh):
    mine, other = made("llama"), made("llama")
    inputs, seen = padded(fresh, LENGTHS, VOCAB_SIZE), []
    with torch.no_grad():
        plain = other(**inputs)[0]
        with tap(mine, on_call=seen.append, edits=[lambda call: torch.zeros_like(call.out)]):
            assert_identical(other(**inputs)[0], plain)
            assert not seen
            mine(**inputs)
    assert len(seen) == num_layers(mine)


def test_a_wrapper_that_was_looked_up_under_a_tap_passes_through_after_it(made):
    model = made("llama")
    with tap(model):
        kept = ALL_ATTENTION_FUNCTIONS["sdpa"]
        assert kept is not ALL_ATTENTION_FUNCTIONS["sdpa"] or hasattr(kept, "untapped")
    attention, x = model.model.layers[0].self_attn, torch.randn(2, 6, 5, 8)
    assert_identical(kept(attention, x, x, x, None)[0], ALL_ATTENTION_FUNCTIONS["sdpa"](attention, x, x, x, None)[0])
