"""The seam: every attention call is seen with its site, edits change it, threads do not meet, and nothing stays behind.

Models are small and random (`tiny`), and `minilm` with its trained weights. "Identical" means bit by bit.
"""

import random
import re
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from einops import rearrange, repeat
from torch import nn
from transformers import BloomConfig, BloomModel, GPTNeoConfig, GPTNeoModel, LlamaModel, modeling_flash_attention_utils
from transformers.generation.continuous_batching.continuous_api import ContinuousMixin
from transformers.integrations import flex_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface, PreTrainedModel

import manyheads as mh
from manyheads import private_names
from manyheads.errors import GuardError, ModelError
from manyheads.measurement import measure_call
from manyheads.models import tap
from manyheads.models.taps.mask_arguments import MaskReader
from tests.models.eager import (
    GUARDED,
    PROJECTION,
    assert_near,
    draw,
    eager_maps,
    every_case,
    implementation,
    padded,
    spans,
)
from tests.models.tiny import VOCAB_SIZE, tiny_gemma2, tiny_llama, tiny_t5
from tests.refusals import refuses

LENGTHS = (11, 7, 13)


def num_layers(model):
    return model.config.num_hidden_layers


def assert_identical(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype
    if not torch.equal(got, want):
        raise AssertionError(f"not identical: they differ by up to {(got - want).abs().max():.3g}")


def installed():
    """What the tap wraps, and what a model gets when it looks its attention function up."""
    looked_up = (
        (AttentionInterface, ("get_interface", "__getitem__")),
        (PreTrainedModel, ("get_compiled_call",)),
        (ContinuousMixin, ("init_continuous_batching",)),
        (modeling_flash_attention_utils, ("lazy_import_flash_attention",)),
        (flex_attention, ("compile_friendly_flex_attention",)),
    )
    wrapped = {name: vars(owner).get(name) for owner, names in looked_up for name in names}
    return {**wrapped, "table": dict(AttentionInterface._global_mapping), "sdpa": ALL_ATTENTION_FUNCTIONS["sdpa"]}


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
            unchanged = [lambda call: None, lambda call: call.out, lambda call: call.out.clone()]
            with tap(model, on_call=calls.append, edits=unchanged) as state:
                assert_identical(model(**inputs)[0], plain)
            assert len(calls) == len(state.sites) == num_layers(model)
            assert state.guard_error < GUARDED
            if attention == "sdpa":  # no second pass: the lse is the kernel's own, in every mode
                assert list(state.because) == ["the model's own fused kernel returned the lse (torch's CPU kernel)"]


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


# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_model_in_training_mode_is_refused_and_dropout_in_one_layer_never_passes_for_a_recording(made, fresh):
    model = made("llama").train()
    message = r"LlamaForCausalLM is in training mode.*call model\.eval\(\) first"
    with pytest.raises(ModelError, match=message), tap(model):
        pass
    model = made("bert")
    model.encoder.layer[1].attention.self.train()
    with pytest.raises((ModelError, GuardError), match=r"training mode|layer 1"):
        mh.record_call(model, **padded(fresh, LENGTHS, VOCAB_SIZE))


@pytest.mark.parametrize("how", ["wrapped", "in place", "one layer"])
def test_a_compiled_model_is_refused_by_the_module_that_is_compiled(how, made):
    model = made("llama")
    if how == "wrapped":
        model, path = torch.compile(model, backend="eager"), "OptimizedModule"
    elif how == "in place":
        model.compile(backend="eager")
        path = "LlamaForCausalLM"
    else:
        model.model.layers[1], path = torch.compile(model.model.layers[1], backend="eager"), r"model\.layers\.1"
    with pytest.raises(ModelError, match=rf"module '{path}' is compiled by torch\.compile"), tap(model):
        pass


def without_the_interface(kind):
    sizes = {"hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": VOCAB_SIZE}
    if kind == "BloomModel":
        return BloomModel(BloomConfig(**sizes)).eval()
    ends = {"bos_token_id": None, "eos_token_id": None}
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 32, "intermediate_size": 40}
    kinds = [[["global", "local"], 1]]
    return GPTNeoModel(GPTNeoConfig(**sizes, attention_types=kinds, vocab_size=VOCAB_SIZE, **ends)).eval()


@pytest.mark.parametrize("kind", ["BloomModel", "GPTNeoModel"])
def test_a_transformers_model_that_attends_outside_the_interface_is_read_with_its_own_maps(kind, fresh):
    model = without_the_interface(kind)
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    rec = mh.record_call(model, **inputs)
    assert [layer.site.module for layer in rec.layers] == [site.module for site in mh.load(model).spec.sites]
    for layer, own in zip(rec.layers, maps, strict=True):
        assert layer.because.endswith("computed by the module itself")
        for text, length in enumerate(LENGTHS):
            first = int(inputs["attention_mask"][text].argmax())
            real = slice(first, first + length)
            assert float((layer.weights(text=text) - own[text, :, real, real]).abs().max()) <= 1e-5


class ByHand(nn.Module):
    """Attends in a way that cannot be read, and says what family it is of."""

    def __init__(self, family):
        super().__init__()
        self.config = transformers.PreTrainedConfig()
        self.config.model_type = family

    def forward(self, x):
        return torch.softmax(x @ x.transpose(-1, -2), -2) @ x


@pytest.mark.parametrize(
    ("family", "version", "remedy"),
    [("t5", "5.9.0", "install transformers 5.15 or newer, where t5 uses transformers' attention interface"),
     ("t5", "5.15.0", "tell where its q, k and v are (mh.declare)"),
     ("gptj", "5.23.0", "install transformers 5.24 or newer, where gptj uses"),
     ("ctrl", "5.12.1", "install transformers 5.13 or newer, where ctrl uses"),
     ("bloom", "5.9.0", "tell where its q, k and v are (mh.declare)")],
)  # fmt: skip
def test_family_that_a_newer_transformers_shows_is_refused_with_that_version(family, version, remedy, monkeypatch):
    monkeypatch.setattr(private_names, "_version", lambda library: version)
    message = rf"^ByHand.*computes its attention itself.*Nothing was recorded.*{re.escape(remedy)}"
    refuses(ModelError, message, mh.record_call, ByHand(family).eval(), torch.randn(2, 3, 7, 5))


@pytest.mark.parametrize("family", [family for families in private_names.LATER.values() for family in families])
def test_families_that_newer_versions_show_are_those_whose_code_asks_the_interface(family):
    name = family.replace("-", "_")
    code = Path(transformers.__file__).parent / f"models/{name}/modeling_{name}.py"
    assert ("ALL_ATTENTION_FUNCTIONS" in code.read_text(encoding="utf-8")) == (not private_names.seen_since(family))


def test_cap_that_sdpa_drops_is_not_recorded(fresh, monkeypatch):
    """transformers up to 5.20 runs Gemma 2 by sdpa, without its softcap: that is what the model computed."""

    def drops(*args, softcap=None, **options):
        return sdpa_attention_forward(*args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", drops)
    seed, inputs = draw(fresh), padded(fresh, LENGTHS, VOCAB_SIZE)
    model, uncapped = tiny_gemma2(seed=seed), tiny_gemma2(seed=seed, attn_logit_softcapping=None)
    model.config._attn_implementation = "sdpa"
    rec, maps = mh.record_call(model, **inputs), eager_maps(uncapped, **inputs)
    assert {layer.rule.softcap for layer in rec.layers} == {None}
    words = f"without the model's softcap of {model.config.attn_logit_softcapping:g}, which sdpa leaves out"
    assert all(words in layer.because for layer in rec.layers)
    assert words in mh.load(model, tokenizer=False).because and words not in mh.load(uncapped, tokenizer=False).because
    for layer, own in zip(rec.layers, maps, strict=True):
        for text, span in enumerate(spans(inputs["attention_mask"])):
            assert_near(layer.weights(text=text), own[text][:, span, span])


def test_a_module_that_does_not_attend_is_named():
    linear = nn.Linear(5, 7).eval()
    with pytest.raises(ModelError, match=r"Linear.*made no attention call.*Nothing was recorded"):
        mh.record_call(linear, torch.randn(3, 5))
    refuses(ModelError, r"Linear.*made no attention call", measure_call, linear, torch.randn(3, 5))


def test_a_mask_that_is_not_dense_is_refused_with_what_to_load_instead(made, fresh):
    """As flash attention would hand it over: two-dimensional."""
    model = made("llama")
    before = AttentionInterface._global_mapping["sdpa"]
    flat = padded(fresh, LENGTHS, VOCAB_SIZE)["attention_mask"]

    def hand_over(seam_read):
        return lambda self, mask, *rest: seam_read(self, flat, *rest)

    read = MaskReader.read
    MaskReader.read = hand_over(read)
    try:
        with pytest.raises(ModelError, match=r"shape \(3, 13\).*attn_implementation='sdpa' or 'eager'"), tap(model):
            model(**padded(fresh, LENGTHS, VOCAB_SIZE))
    finally:
        MaskReader.read = read
    assert AttentionInterface._global_mapping["sdpa"] is before


def test_a_mask_of_one_row_serves_queries_of_two_texts_and_an_added_one_is_a_bias_of_every_row():
    # As BridgeTower hands it on: the words' mask, for the words themselves and for a picture that reads them.
    reader, keys, words, patches = MaskReader(), 5, 5, 7
    mask = torch.zeros(2, 1, 1, keys)
    mask[1, ..., 3:] = torch.finfo(torch.float32).min
    for queries in (words, patches):
        read, bias = reader.read(mask, queries, keys, False)
        assert read.counts().tolist() == [[5] * queries, [3] * queries] and bias is None
        assert reader.read(mask, queries, keys, False)[0] is read, "read again for every layer"
    # As MarkupLM hands it over: -10,000 where others write the lowest number there is.
    mask = torch.zeros(2, 1, 1, 5)
    mask[1, ..., 3:] = -10_000
    read, bias = MaskReader().read(mask, 7, 5, False)
    assert read.num_queries == 7 and bias.shape == (2, 1, 7, 5)
    assert (bias == mask).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("projection", ["q_proj", "v_proj"])
def test_nan_in_the_weights_is_told_with_the_parameters_name(projection, bad, made, fresh):
    model = made("llama")
    name = f"model.layers.1.self_attn.{projection}.weight"
    model.get_parameter(name).data[3, 5] = bad
    message = rf"weights of {re.escape(name)} hold NaN or infinity.*layer 1 \(model\.layers\.1"
    refuses(ModelError, message, mh.record_call, model, **padded(fresh, LENGTHS, VOCAB_SIZE))


# ---------------------------------------------------------------------------------------------------------------- sites

SITES = {  # path of layer 1, heads, key/value heads, d, f, causal
    "minilm": ("encoder.layer.1.attention.self", 12, 12, 32, 32, False),
    "bert": ("encoder.layer.1.attention.self", 5, 5, 8, 8, False),
    "gpt2": ("transformer.h.1.attn", 4, 4, 9, 9, True),
    "llama": ("model.layers.1.self_attn", 6, 3, 8, 8, True),
    "mqa": ("model.layers.1.self_attn", 6, 1, 8, 8, True),
    "gemma2": ("model.layers.1.self_attn", 4, 2, 10, 10, True),
    "gpt_oss": ("model.layers.1.self_attn", 6, 3, 8, 8, True),
}


@pytest.mark.thinned
@every_case
def test_sites_say_where_how_many_how_wide_and_whether_causal(name, attention, made):
    model = made(name)
    path, heads, groups, wide, out, causal = SITES[name]
    with implementation(model, attention):
        spec = mh.load(model, tokenizer=False).spec
    assert [site.layer for site in spec.sites] == list(range(num_layers(model)))
    for site in spec.sites:
        assert site.module == path.replace("1", str(site.layer))
        assert model.get_submodule(site.module) is not None
        got = (site.stack, site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim, site.causal)
        assert got == ("", heads, groups, wide, out, causal)


def test_sites_are_the_same_with_and_without_a_language_model_head(made):
    """Paths begin with the module in hand."""
    model = made("llama")
    bare = model.model
    assert isinstance(bare, LlamaModel)
    got, want = (mh.load(one, tokenizer=False).spec.sites for one in (bare, model))
    assert [replace(site, module=f"model.{site.module}") for site in got] == list(want)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_decoder_has_three_stacks_with_layers_of_their_own(attention, fresh):
    model = tiny_t5(seed=draw(fresh))
    calls = []
    with implementation(model, attention), tap(model, on_call=calls.append) as state, torch.no_grad():
        model(
            **padded(fresh, LENGTHS, VOCAB_SIZE),
            decoder_input_ids=torch.randint(5, VOCAB_SIZE, (3, 5), generator=fresh),
        )
    stacks = {
        name: [site.layer for site in state.sites.values() if site.stack == name]
        for name in ("encoder", "decoder", "cross")
    }
    assert stacks == {"encoder": [0, 1], "decoder": [0, 1, 2], "cross": [0, 1, 2]}
    causal = {site.stack: site.causal for site in state.sites.values()}
    assert causal == {"encoder": False, "decoder": True, "cross": False}
    by_stack = {call.site.stack: call for call in calls}
    assert by_stack["cross"].mask.counts()[:, -1].tolist() == list(LENGTHS)  # sees the text, not its padding
    assert by_stack["decoder"].mask.counts()[0].tolist() == [1, 2, 3, 4, 5]
    assert state.guard_error < GUARDED


MATTERS = 1e-4


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


TURNS = 8  # of two threads that meet in every layer
WAIT = 20.0  # seconds until a thread that waits for another gives up


def in_threads(*jobs):
    """Run jobs at the same time; the first real error of any is raised here."""
    errors = []

    def run(job):
        try:
            with torch.no_grad():
                job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT)
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))  # these follow from the others
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@pytest.mark.thinned
@pytest.mark.parametrize("first_out", [0, 1], ids=["first in, first out", "first in, last out"])
@pytest.mark.parametrize("shared", [True, False], ids=["one model", "two models"])
def test_two_threads_see_their_own_calls_and_leave_in_either_order(shared, first_out, made, fresh):
    models = [made("llama")] * 2 if shared else [made("llama"), made("gpt2")]
    before = installed()
    sizes = [(2, 7), (3, 11)]  # texts, tokens: tells a call's thread
    inputs = [padded(fresh, (length,) * texts, VOCAB_SIZE) for texts, length in sizes]
    with torch.no_grad():
        plain = [model(**x)[0] for model, x in zip(models, inputs, strict=True)]
    for _ in range(TURNS):
        meet, entered, left = threading.Barrier(2, timeout=WAIT), threading.Event(), threading.Event()

        def job(me, meet=meet, entered=entered, left=left):
            seen, together = [], True

            def on_call(call):
                seen.append((call.q.shape[0], call.q.shape[2]))
                if together:
                    meet.wait()  # both threads are inside the same layer's call

            if me == 1:
                entered.wait(WAIT)
            with tap(models[me], on_call=on_call) as state:
                entered.set()
                meet.wait()
                assert_identical(models[me](**inputs[me])[0], plain[me])
                assert seen == [sizes[me]] * num_layers(models[me])
                if me != first_out:  # the other is out now: nothing changes for who stays
                    assert left.wait(WAIT)
                    together = False
                    assert_identical(models[me](**inputs[me])[0], plain[me])
                    assert seen == [sizes[me]] * 2 * num_layers(models[me])
            if me == first_out:
                assert_identical(models[me](**inputs[me])[0], plain[me])  # out: passes through
                assert len(seen) == num_layers(models[me])
                left.set()
            assert len(state.sites) == num_layers(models[me])

        in_threads(lambda: job(0), lambda: job(1))
        assert installed() == before


def test_an_untapped_model_in_another_thread_passes_through(made, fresh):
    """The same model, and another one: neither is seen, edited or slowed into a wrapper of somebody else's tap."""
    mine, other = made("llama"), made("gpt2")
    inputs = [padded(fresh, (n,) * 2, VOCAB_SIZE) for n in (7, 11)]
    with torch.no_grad():
        plain = {id(model): model(**inputs[1])[0] for model in (mine, other)}
        untouched = mine(**inputs[0])[0]
    meet, seen = threading.Barrier(2, timeout=WAIT), []

    def taps():
        with tap(
            mine, on_call=lambda call: seen.append(call.q.shape[2]), edits=[lambda call: torch.zeros_like(call.out)]
        ):
            for _ in range(TURNS):
                meet.wait()
                assert not torch.equal(mine(**inputs[0])[0], untouched)
            meet.wait()

    def does_not():
        for _ in range(TURNS):
            meet.wait()
            for model in (mine, other):
                assert_identical(model(**inputs[1])[0], plain[id(model)])
        meet.wait()

    in_threads(taps, does_not)
    assert seen == [7] * num_layers(mine) * TURNS


def test_threads_that_come_and_go_at_any_moment_never_meet_each_others_calls(made, fresh):
    models = {"llama": made("llama"), "gpt2": made("gpt2")}
    before, interval = installed(), sys.getswitchinterval()
    jobs = [("llama", 5, True), ("llama", 7, True), ("gpt2", 9, True), ("llama", 11, False)]  # the last one never taps
    inputs = [padded(fresh, (length,) * 2, VOCAB_SIZE) for _, length, _ in jobs]
    with torch.no_grad():
        plain = [models[name](**x)[0] for (name, _, _), x in zip(jobs, inputs, strict=True)]
    start = threading.Barrier(len(jobs), timeout=WAIT)

    def job(me, seed):
        (name, length, tapping), pause = jobs[me], random.Random(seed)
        start.wait()
        for _ in range(2 * TURNS):
            seen = []
            with ExitStack() as stack:
                if tapping:
                    stack.enter_context(tap(models[name], on_call=lambda call, seen=seen: seen.append(call.q.shape[2])))
                assert_identical(models[name](**inputs[me])[0], plain[me])
                time.sleep(pause.random() * 1e-3)
            assert seen == [length] * (num_layers(models[name]) if tapping else 0)

    sys.setswitchinterval(1e-5)
    try:
        in_threads(*[partial(job, me, draw(fresh)) for me in range(len(jobs))])
    finally:
        sys.setswitchinterval(interval)
    assert installed() == before
