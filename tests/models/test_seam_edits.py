"""Edits under a tap act before heads are mixed: a zeroed head equals its zeroed columns of the output projection.

Models are small and random (`tiny`), and `minilm` with its trained weights. "Identical" means bit by bit.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from einops import rearrange, repeat
from torch import nn

from manyheads.models import tap
from tests.models.eager import assert_near, implementation, padded
from tests.models.makers import every_case
from tests.models.tapped import LENGTHS, assert_identical, num_layers
from tests.models.tiny import VOCAB_SIZE

MATTERS = 1e-4
PROJECTION = {  # where each keeps the matrix that mixes a layer's heads
    "bert": "encoder.layer.{}.attention.output.dense",
    "minilm": "encoder.layer.{}.attention.output.dense",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "mqa": "model.layers.{}.self_attn.o_proj",
    "gemma2": "model.layers.{}.self_attn.o_proj",
    "gpt_oss": "model.layers.{}.self_attn.o_proj",
}


def zero(layer, head):
    """An edit: this head's output is 0."""

    def edit(call):
        if call.site.layer != layer:
            return None
        out = call.out.clone()
        out[:, head] = 0
        return out

    return edit


@contextmanager
def without_columns(model, name, layer, head, width):
    """Inside, the output projection reads zeros where the head's output was."""
    module = model.get_submodule(PROJECTION[name].format(layer))
    weight = module.weight.data if isinstance(module, nn.Linear) else module.weight.data.T  # GPT-2's Conv1D
    columns = weight[:, head * width : (head + 1) * width]
    kept = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(kept)


@pytest.mark.thinned
@every_case
def test_zeroing_a_head_equals_zeroing_its_columns_of_the_output_projection(name, attention, made, fresh):
    model = made(name)
    inputs = padded(fresh, LENGTHS, model.config.vocab_size)
    real = inputs["attention_mask"].bool()
    with implementation(model, attention), torch.no_grad():
        plain, calls = model(**inputs)[0], []
        with tap(model, on_call=calls.append):
            model(**inputs)
        for layer in (0, num_layers(model) - 1):
            for head in range(calls[layer].site.num_heads)[-3:]:
                with without_columns(model, name, layer, head, calls[layer].site.v_dim):
                    want = model(**inputs)[0]
                with tap(model, edits=[zero(layer, head)]):
                    got = model(**inputs)[0]
                assert_near(got, want)
                assert (got - plain)[real].abs().max() > MATTERS
        assert_identical(model(**inputs)[0], plain)


@pytest.mark.thinned
@every_case
def test_an_edit_that_returns_none_or_its_own_input_changes_no_bit(name, attention, made, fresh):
    model = made(name)
    inputs = padded(fresh, LENGTHS, model.config.vocab_size)
    with implementation(model, attention), torch.no_grad():
        plain = model(**inputs)[0]
        for edit in (lambda call: None, lambda call: call.out, lambda call: call.out.clone()):
            with tap(model, edits=[edit]):
                assert_identical(model(**inputs)[0], plain)


def test_edits_act_in_order_and_each_sees_what_the_one_before_it_made(made, fresh):
    model, seen = made("llama"), []
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)

    def double(call):
        return 2 * call.out

    def note(call):
        seen.append(call.out)

    def back(call):
        return call.out / 2

    with torch.no_grad():
        plain, first = model(**inputs)[0], []
        with tap(model, on_call=lambda call: first.append(call.out), edits=[double, note, back]):
            assert_identical(model(**inputs)[0], plain)
    for doubled, once in zip(seen, first, strict=True):
        assert_identical(doubled, 2 * once)  # on_call sees what the model computed


def test_edits_of_nested_taps_add_up_the_outer_first(made, fresh):
    model = made("llama")
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    with torch.no_grad():
        with tap(model, edits=[zero(1, 2)]), tap(model, edits=[zero(2, 4)]):
            nested = model(**inputs)[0]
        with tap(model, edits=[zero(1, 2), zero(2, 4)]):
            flat = model(**inputs)[0]
        with tap(model, edits=[zero(1, 2)]):
            one = model(**inputs)[0]
    assert_identical(nested, flat)
    assert (nested - one).abs().max() > MATTERS


def test_gradients_flow_through_an_edit(made, fresh):
    model = made("llama")
    gate = torch.ones(num_layers(model), 6, requires_grad=True)
    with tap(model, edits=[lambda call: call.out * gate[call.site.layer][None, :, None, None]]):
        model(**padded(fresh, LENGTHS, VOCAB_SIZE))[0].square().mean().backward()
    assert gate.grad is not None and bool((gate.grad.abs() > 0).all())
    model.zero_grad()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mqa", "minilm"])
def test_value_norms_are_lengths_after_the_heads_slice_of_the_output_projection(name, made, fresh):
    model = made(name)

    def check(call):
        module = model.get_submodule(PROJECTION[name].format(call.site.layer))
        weight = module.weight.T if isinstance(module, nn.Linear) else module.weight
        by_head = rearrange(weight, "(h f) m -> h f m", h=call.site.num_heads)
        v = repeat(call.v, "b g k f -> b (g r) k f", r=call.site.num_heads // call.site.num_kv_heads)
        want = torch.einsum("bhkf,hfm->bhkm", v, by_head).norm(dim=-1)
        torch.testing.assert_close(call.value_norms(), want, rtol=1e-4, atol=1e-5)
        unknown = replace(call, output=None).value_norms()
        torch.testing.assert_close(unknown, v.norm(dim=-1), rtol=1e-5, atol=1e-6)

    with tap(model, on_call=check) as state, torch.no_grad():
        model(**padded(fresh, LENGTHS, model.config.vocab_size))
    assert len(state.sites) == num_layers(model)
