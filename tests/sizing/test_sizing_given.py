"""What `size` is given: configs, specs and descriptions; what cannot be is refused in words. No torch is needed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import FileAccessError, ManyHeadsError, ModelError, ShapeError
from manyheads.sizing import describe_config, size
from manyheads.sizing.families.config import FAMILIES, read_config
from manyheads.spec import ModelSpec, Site
from tests.sizing.described import GIB, LLAMA, OWN

# ------------------------------------------------------------------------------------------------------ what is given


def test_a_config_is_read_from_a_file_a_folder_or_a_mapping(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = [size(LLAMA), size(tmp_path), size(tmp_path / "config.json"), size(str(tmp_path))]
    assert len({each.num_parameters for each in found}) == 1
    assert found[1].name == tmp_path.name and "with its usual head" in found[0].architecture.because[0]


def test_the_class_decides_on_the_head():
    bare = size({**LLAMA, "architectures": ["LlamaModel"]})
    assert size(LLAMA).num_parameters - bare.num_parameters == 48 * 97
    assert "without a head" in bare.architecture.because[0]


def spec_of(**changes) -> ModelSpec:
    sites = tuple(Site("", at, f"layers.{at}", 6, 2, 10, 10, causal=True) for at in range(3))
    plain = {"name": "mine", "architecture": "Mine", "sites": sites, "embed_dim": 48, "vocab_size": 97}
    rest = {"max_positions": None, "num_parameters": 90_000, "dtype": "float32"}
    return ModelSpec(**{**plain, **rest, **changes})


def test_a_spec_tells_attention_and_the_cache_and_says_what_it_does_not_tell():
    found = size(spec_of(), context=20)
    assert found.num_parameters == 90_000
    assert found.parameters["q"] == 3 * 48 * 60 and found.parameters["other"] == 90_000 - 3 * 2 * 48 * (60 + 20)
    assert found.cache.steady == size(OWN, context=20).cache.steady
    assert found.prefill is None and found.decode is None and found.decoding is None
    assert "a spec says how attention is shaped" in found.architecture.why_untold("flops")
    assert [each.num_parameters for each in found.variants] == [None, 90_000, None]
    assert any("does not say whether layers have windows" in line for line in found.architecture.because)


def test_default_context_is_4096_or_all_positions_and_that_is_said():
    assert size("llama-2-70b").ask.context == 4096 and size("llama-2-70b").notes == ()
    assert size("gpt2").ask.context == 1024
    assert size("gpt2").notes == ("context is 1,024, all the positions that gpt2 has",)
    assert size("llama-2-70b", context=9000).notes == (
        "context is past the 4,096 positions that llama-2-70b is made for",
    )


def test_an_encoder_decoder_reads_a_text_of_its_own_length():
    short, long = size("transformer", context=50, source=10), size("transformer", context=50, source=100)
    assert long.cache.steady - short.cache.steady == 8 * 2 * 6 * 90 * 2 * 512
    assert long.prefill.total > short.prefill.total


def test_the_document_holds_every_number():
    document = size("mixtral-8x7b").to_dict()
    assert document["parameters"]["total"] == 46_702_792_704 and document["parameters"]["active"] == 12_879_925_248
    assert sum(each["total"] for each in document["parameters"]["layers"]) + sum(
        document["parameters"]["outside_layers"].values()
    ) == sum(document["parameters"]["by_part"].values())
    assert document["flops"]["prefill"]["total"] < document["flops"]["prefill"]["dense"]
    assert "multiply and an add are 2 FLOPs" in document["flops"]["counted"]
    assert document["cache"]["steady_bytes"] == 4 * GIB and document["shape"]["attention"] == "GQA-8"
    assert [each["own"] for each in document["variants"]] == [False, True, False]


# ---------------------------------------------------------------------------------------------------- what is refused

REFUSED = [
    (("lama-2-70b",), {}, ModelError, r"called 'lama-2-70b': no preset, and no file.* Did you mean 'llama-2-70b'"),
    (("qqqq",), {}, ModelError, r"called 'qqqq': no preset, and no file or folder here. `manyheads size --list` shows"),
    (("nowhere.json",), {}, FileAccessError, r"there is no file or folder nowhere.json"),
    ((Path("nowhere"),), {}, FileAccessError, r"there is no file or folder nowhere"),
    ((3,), {}, ModelError, r"cannot size a int. Give a preset's name, a config.json"),
    (("gpt2",), {"context": -1}, ShapeError, r"context=-1: give a whole number of at least 1"),
    (("gpt2",), {"context": True}, ShapeError, r"context=True: give a whole number"),
    (("gpt2",), {"context": 1025}, ShapeError, r"gpt2 has learned positions for 1,024 tokens and no more"),
    (("vit-base",), {"context": 50}, ShapeError, r"vit-base reads images, always 197 tokens"),
    (("gpt2",), {"batch": 0}, ShapeError, r"batch=0: give a whole number of at least 1"),
    (("gpt2",), {"dtype": "fp7"}, ModelError, r"dtype='fp7' is no dtype known here. Use one of fp64, .*int4"),
    (("gpt2",), {"cache_dtype": "q"}, ModelError, r"cache_dtype='q' is no dtype known here"),
    (("gpt2",), {"source": 5}, ShapeError, r"source=5: gpt2 reads no second text. Leave it out"),
    (("gpt2",), {"num_kv_heads": 5}, ShapeError, r"num_heads=12 is not a multiple of num_kv_heads=5"),
    (("gpt2",), {"num_kv_heads": 0}, ShapeError, r"num_kv_heads=0: give a whole number of at least 1"),
    (("deepseek-v3",), {"num_kv_heads": 8}, ShapeError, r"caches latents \(MLA\), which all heads share"),
    ((spec_of(),), {"num_kv_heads": 3}, ShapeError, r"mine cannot be changed: a spec says how attention is shaped"),
    ((spec_of(sites=()),), {}, ShapeError, r"the spec of mine has no attention to size. Give the model itself"),
    ((spec_of(embed_dim=0),), {}, ShapeError, r"the spec of mine has embed_dim=0, so no projections"),
    ((spec_of(num_parameters=9),), {}, ShapeError, r"has 9 parameters, fewer than the 23,040 that its attention alone"),
    (
        (spec_of(sites=(Site("a", 0, "x", 1, 1, 1, 1, True), Site("b", 0, "y", 1, 1, 1, 1, True))),),
        {}, ShapeError, r"has 2 stacks \(a, b\) and does not say which reads what",
    ),
    (({},), {}, ShapeError, r"needs num_layers, embed_dim, num_heads, but there is no num_layers and no embed_dim"),
    (({**OWN, "heads": 3},), {}, ShapeError, r"a description has no heads. It has name, num_layers"),
    (({**OWN, "num_heads": "six"},), {}, ShapeError, r"num_heads='six': give a whole number"),
    (({**OWN, "num_kv_heads": 4},), {}, ShapeError, r"num_heads=6 is not a multiple of num_kv_heads=4"),
    (({**OWN, "num_kv_heads": 0},), {}, ShapeError, r"num_kv_heads=0: give a whole number of at least 1"),
    (({**OWN, "num_heads": 5, "head_dim": None},), {}, ShapeError, r"embed_dim=48 is not a multiple of num_heads=5"),
    (({**OWN, "ffn_dim": "x"},), {}, ShapeError, r"ffn_dim='x': give a whole number of at least 1"),
    (({**OWN, "head_dim": 2.5},), {}, ShapeError, r"head_dim=2.5: give a whole number of at least 1"),
    (({**OWN, "gated": 1},), {}, ShapeError, r"gated=1: give True or False"),
    (({**OWN, "gated": True},), {}, ShapeError, r"gated=True needs ffn_dim: .* 8/3 of embed_dim is usual, 128"),
    (({**OWN, "norm": "batch"},), {}, ShapeError, r"norm='batch' is no norm known here. Use one of rms, layer, none"),
    (({**OWN, "num_experts": 4},), {}, ShapeError, r"num_experts=4 and experts_per_token=None need each other"),
    (({**OWN, "num_experts": 4, "experts_per_token": 5},), {}, ShapeError, r"experts_per_token=5 of num_experts=4"),
    (({**OWN, "window": 5, "causal": False},), {}, ShapeError, r"window=5, causal=False: windows are of 1 or more"),
]  # fmt: skip


@pytest.mark.parametrize("what, options, kind, words", REFUSED, ids=[each[3][:40] for each in REFUSED])
def test_what_cannot_be_is_refused_in_words(what, options, kind, words):
    with pytest.raises(kind, match=words):
        size(*what, **options)


def test_what_is_no_file_is_called_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "it is a pipe"), (Path("/dev/zero"), "it is a device")):
        with pytest.raises(FileAccessError, match=rf"^cannot read {path}: {said}, not a file. Give a config.json, or"):
            size(path)
    with pytest.raises(FileAccessError, match="^cannot read none.json: there is no such file. Check the spelling"):
        read_config("none.json")


DAMAGED = [
    ("{", r"config.json is not JSON \(.*\): the file is damaged"),
    ("[1]", r"config.json is a list, not a mapping: the file is damaged"),
    ("{}", r"the config has no model_type \(None\), so there is no telling what architecture it is"),
    ('{"model_type": 3}', r"the config has no model_type \(3\)"),
    ('{"model_type": "zork"}', r"'zork' is not among the \d+ architectures that are sized from a config alone"),
    ('{"model_type": "llama"}', r"the config of 'llama' lacks hidden_size, .* It has model_type"),
    ('{"model_type": "gpt2", "n_layer": 2}', r"the config of 'gpt2' lacks n_embd \(hidden_size\)"),
    (json.dumps({**LLAMA, "hidden_size": "big"}), r"hidden_size='big', which should be a whole number of at least 1"),
    (json.dumps({**LLAMA, "num_hidden_layers": -2}), r"num_hidden_layers=-2, which should be a whole number"),
    (json.dumps({**LLAMA, "num_key_value_heads": 4}), r"the config of 'llama' does not fit: num_heads=6"),
    (json.dumps({**LLAMA, "head_dim": None, "hidden_size": 50}), r"hidden_size=50 and num_attention_heads=6"),
    (json.dumps({**LLAMA, "attention_bias": "yes"}), r"attention_bias='yes', which should be true or false"),
    (json.dumps({**LLAMA, "layer_types": ["full_attention"]}), r"lists 1 layer_types for num_hidden_layers=2"),
    (json.dumps({**LLAMA, "layer_types": ["mamba", "conv"]}), r"layers of the kind conv, mamba, unknown here"),
    (json.dumps({**LLAMA, "layer_types": "full"}), r"layer_types='full', which should be a list"),
    (json.dumps({**LLAMA, "per_layer_config": {"0": {}}}), r"has per_layer_config: its layers differ in ways"),
    (json.dumps({**LLAMA, "architectures": "Llama"}), r"architectures='Llama', which should be a list of names"),
    (json.dumps({**LLAMA, "architectures": ["LlamaForDreams"]}), r"'LlamaForDreams' is not among the classes"),
    ('{"model_type": "bert", "is_decoder": true}', r"this config of 'bert' is a decoder's, which is not read here"),
]  # fmt: skip


@pytest.mark.parametrize("text, words", DAMAGED, ids=[each[1][:40] for each in DAMAGED])
def test_a_damaged_or_unknown_config_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ManyHeadsError, match=words):
        size(tmp_path / "config.json")


def test_a_folder_without_a_config_and_an_unreadable_text_are_refused(tmp_path):
    with pytest.raises(FileAccessError, match=r"has no config.json, so there is no telling what model it is"):
        size(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ModelError, match=r"is not JSON \(.*\): the file is damaged"):
        size(tmp_path)


ANYTHING = st.none() | st.booleans() | st.integers(-3, 99) | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(
    changes=st.dictionaries(st.sampled_from([*LLAMA, "layer_types", "sliding_window", "attention_bias"]), ANYTHING),
    family=st.sampled_from(FAMILIES),
)
def test_no_config_does_more_than_be_refused(changes, family):
    """Whatever a config holds: a sizing, or an error of ours."""
    try:
        found = describe_config({**LLAMA, **changes, "model_type": family})
    except ManyHeadsError:
        return
    assert found.num_parameters > 0
