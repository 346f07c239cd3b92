"""What the tap finds: a site for every layer, a mask of every kind; and the models that it refuses by name.

Models are small and random (`tiny`), and `minilm` with its trained weights. "Identical" means bit by bit.
"""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomModel,
    GPTJConfig,
    GPTJModel,
    LlamaModel,
)
from transformers.modeling_utils import AttentionInterface

import manyheads as mh
from manyheads.errors import GuardError, ModelError
from manyheads.models import tap
from manyheads.models.taps.mask_arguments import MaskReader
from tests.models.eager import GUARDED, draw, implementation, padded
from tests.models.makers import every_case
from tests.models.odd import tiny_t5
from tests.models.tapped import LENGTHS, num_layers
from tests.models.tiny import VOCAB_SIZE

# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_model_in_training_mode_is_refused(made):
    model = made("llama").train()
    with (
        pytest.raises(ModelError, match=r"LlamaForCausalLM is in training mode.*call model\.eval\(\) first"),
        tap(model),
    ):
        pass


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
    return GPTJModel(
        GPTJConfig(n_embd=24, n_layer=2, n_head=3, n_positions=32, rotary_dim=4, vocab_size=VOCAB_SIZE, **ends)
    ).eval()


@pytest.mark.parametrize("kind", ["BloomModel", "GPTJModel"])
def test_a_transformers_model_without_the_interface_is_named_never_recorded_empty(kind, fresh):
    model = without_the_interface(kind)
    inputs = padded(fresh, LENGTHS, VOCAB_SIZE)
    wanted = (
        rf"^{kind}: module 'h\.0\.(attn|self_attention)' .*makes its attention weights by hand.*Nothing was recorded"
    )
    with pytest.raises(ModelError, match=wanted):
        mh.record_call(model, **inputs)
    with pytest.raises(ModelError, match=wanted):
        mh.measure_call(model, **inputs)
    with pytest.raises(ModelError, match=wanted):
        _ = mh.load(model).spec


def test_a_module_that_does_not_attend_is_named():
    linear = nn.Linear(5, 7).eval()
    with pytest.raises(ModelError, match=r"Linear.*made no attention call.*Nothing was recorded"):
        mh.record_call(linear, torch.randn(3, 5))
    with pytest.raises(ModelError, match=r"Linear.*made no attention call"):
        mh.measure_call(linear, torch.randn(3, 5))


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


def test_a_mask_of_one_row_serves_queries_of_two_texts():
    """As BridgeTower hands it on: the words' mask, for the words themselves and for a picture that reads them."""
    reader, keys, words, patches = MaskReader(), 5, 5, 7
    mask = torch.zeros(2, 1, 1, keys)
    mask[1, ..., 3:] = torch.finfo(torch.float32).min
    for queries in (words, patches):
        read, bias = reader.read(mask, queries, keys, False)
        assert read.counts().tolist() == [[5] * queries, [3] * queries] and bias is None
        assert reader.read(mask, queries, keys, False)[0] is read, "read anew for every layer"


def test_an_added_mask_of_one_row_is_a_bias_of_every_row():
    """As MarkupLM hands it over: -10,000 where others write the lowest number there is."""
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
    with pytest.raises(
        ModelError, match=rf"weights of {re.escape(name)} hold NaN or infinity.*layer 1 \(model\.layers\.1"
    ):
        mh.record_call(model, **padded(fresh, LENGTHS, VOCAB_SIZE))


def test_dropout_left_on_in_one_layer_never_passes_for_a_recording(made, fresh):
    model = made("bert")
    model.encoder.layer[1].attention.self.train()
    with pytest.raises((ModelError, GuardError), match=r"training mode|layer 1"):
        mh.record_call(model, **padded(fresh, LENGTHS, VOCAB_SIZE))


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
    assert {site.stack: site.causal for site in state.sites.values()} == {
        "encoder": False,
        "decoder": True,
        "cross": False,
    }
    by_stack = {call.site.stack: call for call in calls}
    assert by_stack["cross"].mask.counts()[:, -1].tolist() == list(LENGTHS)  # sees the text, not its padding
    assert by_stack["decoder"].mask.counts()[0].tolist() == [1, 2, 3, 4, 5]
    assert state.guard_error < GUARDED
