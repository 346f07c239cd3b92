"""What `size` says: published facts, and what each option does; what it is given: configs, specs and descriptions.

What cannot be is refused in words. No torch is needed. The tables of docs/reference/sizing.md are the code's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import FileAccessError, ManyHeadsError, ModelError, ShapeError
from manyheads.long_context import HeadSplit
from manyheads.long_context.split_layer import SplitLayer
from manyheads.models import size
from manyheads.sizing import DTYPES, MACHINES, PRESETS, architecture_of, memory_bytes, preset
from manyheads.sizing.__main__ import families_markdown, presets_markdown
from manyheads.sizing.architecture import describe_config, kind_of, transformer
from manyheads.sizing.architecture.architecture import PARTS, Attention
from manyheads.sizing.architecture.building_blocks import experts, matrix, projections
from manyheads.sizing.architecture.config import FAMILIES, read_config
from manyheads.sizing.costs import decoding, dense_pairs, prefill, visible_pairs
from manyheads.spec import ModelSpec, Site
from tests.refusals import refuses

GIB = 2**30
LLAMA = {
    "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 97,
    "intermediate_size": 56, "num_key_value_heads": 2, "head_dim": 10,
}  # fmt: skip
OWN = {"num_layers": 3, "embed_dim": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 10, "vocab_size": 97}


def test_multihead_attention_of_512_by_8_has_its_parameters():
    assert size("rul-backbone").num_parameters == 4 * (512**2 + 512) == 1_050_624


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16, 32])
def test_heads_share_the_width_so_that_their_number_costs_nothing_unless_each_has_all_of_it(num_heads):
    d, words = 64, {"num_layers": 1, "embed_dim": 64, "num_heads": num_heads, "ffn_dim": 0, "norm": "none"}
    assert size(words).parameters == dict.fromkeys("qkvo", d**2)
    one = size({**words, "num_heads": 1, "head_dim": d // num_heads}).parameters
    assert one == dict.fromkeys("qkvo", d**2 // num_heads)
    assert size({**words, "head_dim": d}).num_parameters == 4 * num_heads * d**2


def test_llama_2_70b_is_mostly_feed_forward_and_caches_80_10_and_1_25_gib():
    found = size("llama-2-70b")
    assert found.num_parameters == 68_976_648_192
    assert found.layers[0]["feed-forward"] == 3 * 8192 * 28672 == 704_643_072
    assert round(found.parameters["feed-forward"] / 1e9, 1) == 56.4
    found = size("llama-2-70b", context=4096, batch=8, dtype="fp16")
    cached = [(each.name, each.cache.allocated / GIB) for each in found.variants]
    assert cached == [("MHA", 80.0), ("GQA-8", 10.0), ("MQA", 1.25)]
    assert [each.own for each in found.variants] == [False, True, False]
    assert round(found.variants[0].cache.allocated / 1e9, 1) == 85.9  # what is often printed as "80 GB"


HEADS = {  # d_model, heads, key/value heads, d_k
    "small": (256, 4, 4, 64), "medium": (512, 8, 8, 64), "large": (1024, 16, 16, 64), "xl": (2048, 32, 32, 64),
    "transformer": (512, 8, 8, 64), "rul-backbone": (512, 8, 8, 64), "bert-base": (768, 12, 12, 64),
    "gpt2": (768, 12, 12, 64), "gpt3-small": (768, 12, 12, 64), "vit-base": (768, 12, 12, 64),
    "bert-large": (1024, 16, 16, 64), "alphafold2-evoformer": (256, 8, 8, 32), "phi-4-mini": (3072, 24, 8, 128),
    "gpt3-175b": (12288, 96, 96, 128), "llama-2-70b": (8192, 64, 8, 128),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_table_of_head_counts(name):
    made = preset(name)
    assert {(made.embed_dim, each.num_heads, each.num_kv_heads, each.qk_dim) for each in made.attention} == {
        HEADS[name]
    }


PUBLISHED = {
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248, "phi-4-mini": 3_836_021_760, "mistral-7b": 7_241_732_096,
    "gemma-2-9b": 9_241_705_984, "mixtral-8x7b": 46_702_792_704, "gpt-oss-20b": 20_914_757_184, "gpt2": 124_439_808,
    "bert-base": 109_482_240, "bert-large": 335_141_888, "minilm": 22_713_216, "vit-base": 86_567_656,
    "llama-3-70b": 70_553_706_496, "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800, "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b-v0.3": 7_248_023_552, "mistral-nemo-12b": 12_247_782_400, "mistral-small-24b": 23_572_403_200,
    "gemma-2-2b": 2_614_341_888, "gemma-2-27b": 27_227_128_320, "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_009_346_304, "gpt-oss-120b": 116_829_156_672, "deepseek-v2": 235_741_434_880,
}  # fmt: skip
"""The totals that the checkpoints have: safetensors' own count on huggingface.co, or a paper's table."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_parameters_that_were_published(name):
    assert size(name).num_parameters == PUBLISHED[name]


def test_gemma_3_without_its_vision_tower_is_what_remains_of_the_published_total():
    """Each checkpoint holds the text model, one SigLIP tower for all sizes, and a projection of its 1,152 numbers."""
    wholes = {"gemma-3-4b": 4_300_079_472, "gemma-3-12b": 12_187_325_040, "gemma-3-27b": 27_432_406_640}
    towers = set()
    for name, whole in wholes.items():
        found = size(name)
        towers.add(whole - found.num_parameters - 1152 * found.architecture.embed_dim)
    assert len(towers) == 1 and round(towers.pop() / 1e9, 3) == 0.417


def test_the_llama_4s_without_their_vision_tower_differ_from_the_published_totals_by_one_number():
    """Both checkpoints hold the same tower, and a projection of its 4,096 numbers into 5,120."""
    wholes = {"llama-4-scout": 108_641_793_536, "llama-4-maverick": 401_583_781_376}
    towers = {whole - size(name).num_parameters for name, whole in wholes.items()}
    assert len(towers) == 1 and round(towers.pop() / 1e9, 2) == 0.87


SECOND_TOKEN = {  # of the checkpoint; whether its extra layer has tables of its own; numbers that balance experts
    "deepseek-r1": (684_489_845_504, True, 59 * 256), "glm-4.5": (358_337_791_296, True, 90 * 160),
    "glm-4.5-air": (110_468_824_832, True, 46 * 128), "qwen3-next-80b-a3b": (81_324_862_720, False, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND_TOKEN)
def test_what_a_checkpoint_holds_besides_is_the_layer_that_predicts_a_second_token(name):
    """One more sparse layer of attention, two vectors' projection into one, three norms; a routers' own numbers."""
    whole, has_tables, balance = SECOND_TOKEN[name]
    found = size(name)
    width, words = found.architecture.embed_dim, found.architecture.vocab_size
    layer = sum(found.layers[-1].values()) + 2 * width**2 + 3 * width + 2 * words * width * has_tables
    assert whole - found.num_parameters == layer + balance


def test_kimi_k2_is_its_checkpoint_but_for_numbers_that_are_no_weights_under_both_names_of_its_family():
    found = size("kimi-k2")
    assert 1_026_408_235_864 - found.num_parameters == 60 * 384 + 61 * 56
    assert (round(found.num_active / 1e9), round(found.num_parameters / 1e12, 2)) == (33, 1.03)
    assert size({**PRESETS["kimi-k2"].config, "model_type": "kimi_k2"}).num_parameters == found.num_parameters


def test_what_a_token_activates_and_deepseek_v3s_checkpoint_are_what_was_published():
    # The model cards of gpt-oss count what is multiplied: all but the table of words that is looked up.
    for name, billions in (("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)):
        assert round((size(name).num_active - 201_088 * 2880) / 1e9, 2) == billions
    active = {name: round(size(name).num_active / 1e9, 1) for name in ("qwen3-30b-a3b", "qwen3-235b-a22b")}
    assert active == {"qwen3-30b-a3b": 3.4, "qwen3-235b-a22b": 22.2}
    assert round(size("deepseek-v3").num_active / 1e9, 2) == 37.55  # the paper's 37 B leaves the embedding out
    # One number an expert of its 58 routers, which is stored and moved by hand: transformers counts it as a buffer.
    assert size("deepseek-v3").num_parameters + 58 * 256 == 671_026_419_200


CACHED = {  # layers times, for keys and for values, key/value heads times a head's width; at 2 bytes
    "llama-3.1-8b": 32 * 2 * 8 * 128, "llama-3.1-70b": 80 * 2 * 8 * 128, "llama-3.1-405b": 126 * 2 * 8 * 128,
    "qwen2.5-7b": 28 * 2 * 4 * 128, "qwen2.5-72b": 80 * 2 * 8 * 128, "qwen3-0.6b": 28 * 2 * 8 * 128,
    "qwen3-235b-a22b": 94 * 2 * 4 * 128, "mistral-nemo-12b": 40 * 2 * 8 * 128, "gemma-2-27b": 46 * 2 * 16 * 128,
    "gemma-3-12b": 48 * 2 * 8 * 256, "gpt-oss-120b": 36 * 2 * 8 * 64, "deepseek-v3": 61 * (512 + 64),
    "kimi-k2": 61 * (512 + 64), "glm-4.5": 92 * 2 * 8 * 128, "llama-4-scout": 48 * 2 * 8 * 128,
    "qwen3-next-80b-a3b": 12 * 2 * 2 * 256,
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_a_token_leaves_in_the_cache_what_the_arithmetic_by_hand_says(name):
    assert size(name, dtype="bf16").cache.token == 2 * CACHED[name]


def test_windows_of_todays_presets_bound_their_layers_and_no_others():
    """How many layers slide, over how many tokens, and what a long text then keeps."""
    long, batch = 100_000, 1
    for name, sliding, window, full, width in (
        ("mistral-7b", 32, 4096, 0, 2048),
        ("mistral-7b-v0.3", 0, 0, 32, 2048),
        ("gemma-2-27b", 23, 4096, 23, 4096),
        ("gemma-3-27b", 52, 1024, 10, 4096),
        ("gpt-oss-120b", 18, 128, 18, 1024),
        ("llama-4-maverick", 36, 8192, 12, 2048),
    ):
        found = size(name, context=long, batch=batch)
        assert sum(attention.window is not None for attention in found.architecture.attention) == sliding
        assert found.cache.allocated == 2 * width * (sliding * window + full * long)


def test_presets_round_to_what_they_are_called():
    assert round(size("gpt3-175b").num_parameters / 1e9) == 175
    assert round(size("gpt3-small").num_parameters / 1e6) == 125
    assert round(size("vit-base").prefill.total / 2e9, 1) == 17.6  # multiply-adds, as its literature counts


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_sized_and_says_where_it_is_from(name):
    found = size(name)
    assert sum(found.parameters.values()) == found.num_parameters > 0
    assert found.architecture.because and found.prefill.total > 0
    json.dumps(found.to_dict(), allow_nan=False)


@given(
    length=st.integers(1, 40), window=st.none() | st.integers(1, 50), chunked=st.booleans(), source=st.integers(1, 9)
)
def test_visible_pairs_are_those_of_the_mask(length, window, chunked, source):
    attention = Attention(1, 1, 1, 1, window=window, chunked=chunked and window is not None)

    def sees(query: int, key: int) -> bool:
        if key > query:
            return False
        if window is None:
            return True
        return query // window == key // window if attention.chunked else query - key < window

    pairs = sum(sees(query, key) for query in range(length) for key in range(length))
    assert visible_pairs(attention, length, source) == pairs <= dense_pairs(attention, length, source) == length**2


def test_flops_by_hand():
    """3 layers, 48 wide, 6 heads of 10 on 2, feed-forward 192, 97 words, a text of 5."""
    spent = prefill(transformer(**OWN), 5, 5)
    assert spent["q"] == 3 * 2 * 5 * 48 * 60 and spent["k"] == spent["v"] == 3 * 2 * 5 * 48 * 20
    assert spent["scores"] == spent["values"] == 3 * 2 * 6 * 10 * (5 * 6 // 2)
    assert spent["feed-forward"] == 3 * 2 * 5 * 2 * 48 * 192 and spent["head"] == 2 * 48 * 97
    assert decoding(transformer(**OWN), 5, 5)["scores"] == 3 * 2 * 6 * 10 * 5


@given(length=st.integers(2, 30), window=st.integers(1, 40))
def test_a_text_costs_its_tokens_one_by_one(length, window):
    """Whole or token by token, the same products: but for the head, which runs once a call."""
    architecture = transformer(**OWN, window=window)
    whole, steps = prefill(architecture, length, 0), [decoding(architecture, at, 0) for at in range(1, length + 1)]
    for operation, spent in whole.items():
        assert operation == "head" or spent == sum(step[operation] for step in steps)


def test_experts_count_once_each_and_a_tied_head_costs_flops_and_no_parameters():
    router, routed = experts(48, 20, num_experts=5, chosen=2)
    assert (router.total, routed.total, routed.active, routed.matmul) == (240, 5 * 2880, 2 * 2880, 2880)
    tied, untied = size({**OWN, "tied": True}), size(OWN)
    assert untied.num_parameters - tied.num_parameters == 48 * 97
    assert tied.decode.total == untied.decode.total
    assert tied.decoding.weight_bytes == untied.decoding.weight_bytes


def test_windows_bound_the_cache_and_latents_shrink_it():
    full, window = size({**OWN}, context=40), size({**OWN, "window": 8}, context=40)
    assert (full.cache.steady, window.cache.steady, window.cache.allocated) == (
        8 * 2 * 3 * 40 * 40,
        8 * 2 * 3 * 40 * 7,
        8 * 2 * 3 * 40 * 8,
    )
    assert (full.cache.token, full.cache.growth, window.cache.growth) == (240, 240, 0)
    deepseek = size("deepseek-v3")
    assert deepseek.cache.token == 2 * 61 * (512 + 64)
    assert [each.name for each in deepseek.variants] == ["MHA", "MLA"]
    assert deepseek.variants[0].cache.token == 2 * 61 * 128 * (192 + 128)


def test_decoding_reads_the_weights_once_each_texts_cache_and_more_experts_for_a_batch():
    one, many = size("llama-2-7b", batch=1), size("llama-2-7b", batch=64)
    assert one.decoding.weight_bytes == many.decoding.weight_bytes == 2 * (6_738_415_616 - 32000 * 4096)
    assert many.decoding.cache_bytes == 64 * one.decoding.cache_bytes == many.cache.allocated
    assert one.decoding.intensity < 1 < many.decoding.intensity
    assert many.decoding.flops == 64 * one.decode.total
    one, many = size("mixtral-8x7b", batch=1), size("mixtral-8x7b", batch=512)
    embedding = 32000 * 4096
    assert one.decoding.weight_bytes == 2 * (one.num_active - embedding)
    assert many.decoding.weight_bytes == pytest.approx(2 * (many.num_parameters - embedding))


def test_other_key_value_heads_change_what_depends_on_them_and_nothing_else():
    plain, changed = size({**LLAMA, "attention_bias": True}), size({**LLAMA, "attention_bias": True}, num_kv_heads=6)
    assert changed.parameters["k"] == changed.parameters["q"] == 3 * plain.parameters["k"]
    assert {part: plain.parameters[part] for part in plain.parameters if part not in "kv"} == {
        part: changed.parameters[part] for part in changed.parameters if part not in "kv"
    }
    assert changed.num_parameters == size({**LLAMA, "attention_bias": True, "num_key_value_heads": 6}).num_parameters
    assert "with num_kv_heads=6" in changed.architecture.because


@pytest.mark.parametrize(("layers", "num_kv_heads", "share"), [(5, 2, 0.5), (3, 4, 0.34), (4, 1, 0.75)])
def test_heads_that_stream_keep_what_their_split_counts(layers, num_kv_heads, share):
    words = {"num_layers": layers, "embed_dim": 48, "num_heads": 4, "num_kv_heads": num_kv_heads, "head_dim": 16}
    plain = size(words, context=300, batch=3)
    sizing = size(words, context=300, batch=3, streaming=share, sink=3, recent=20)
    streams = round(share * layers * num_kv_heads)
    assert sizing.notes[0] == f"{streams} of {layers * num_kv_heads} key/value heads keep 3 + 20 tokens and no more"
    kept = [False] * streams + [True] * (layers * num_kv_heads - streams)
    rows = [SplitLayer(4, num_kv_heads, 16, 16, tuple(kept[layer::layers]), (0.0,) * num_kv_heads)
            for layer in range(layers)]  # fmt: skip
    split = HeadSplit("m", "", "", tuple(rows), 3, 20, "effect", "nats a token", "group")
    for context in (2, 23, 300):
        asked = size(words, context=context, batch=3, streaming=share, sink=3, recent=20)
        assert asked.cache.allocated == split.cache_bytes(context, 3)
    # Weights and their products are those of the whole; a streaming row meets 23 keys.
    assert sizing.num_parameters == plain.num_parameters and sizing.architecture == plain.architecture
    group = 4 // num_kv_heads
    missing = 2 * 16 * group * streams * sum(max(0, row - 23) for row in range(1, 301))
    assert plain.prefill.operations["scores"] - sizing.prefill.operations["scores"] == missing
    assert plain.decode.total - sizing.decode.total == 2 * 2 * 16 * group * streams * (300 - 23)
    assert sizing.fits("1GB").longest_context > plain.fits("1GB").longest_context
    own = next(variant for variant in sizing.variants if variant.own)
    assert own.cache == sizing.cache and len(sizing.variants) == len(plain.variants)
    whole = size(words, streaming=1.0, sink=0, recent=8)
    assert whole.cache.growth == 0 and whole.fits("1GB").longest_context is None


def test_variants_show_what_it_could_be_and_dtypes_scale_the_bytes_of_each():
    assert [each.name for each in size("llama-2-7b").variants] == ["MHA", "GQA-8", "MQA"]
    assert [each.name for each in size("llama-2-7b", num_kv_heads=4).variants] == ["MHA", "GQA-4", "MQA"]
    assert [each.name for each in size({**OWN, "num_kv_heads": 1}).variants] == ["MHA", "GQA-3", "MQA"]
    assert [each.name for each in size({**OWN, "num_heads": 1, "num_kv_heads": 1}).variants] == ["MHA"]
    assert size("bert-base").variants == ()
    found = size(OWN, dtype="int4", cache_dtype="fp8")
    assert found.weight_bytes == found.num_parameters / 2
    assert found.cache.steady * 2 == size(OWN).cache.steady
    assert {DTYPES[name] for name in DTYPES} == {64, 32, 16, 8, 4}


def test_kinds_of_attention_have_their_names_and_parts_are_known():
    kinds = {name: kind_of(preset(name)) for name in ("llama-2-70b", "llama-2-7b", "deepseek-v3")}
    assert kinds == {"llama-2-70b": "GQA-8", "llama-2-7b": "MHA", "deepseek-v3": "MLA"}
    assert kind_of(transformer(num_layers=1, embed_dim=8, num_heads=4, num_kv_heads=1)) == "MQA"
    assert matrix("q", 3, 5, bias=True).total == 20 and matrix("q", 3, 5, bias=True).matmul == 15
    assert {each.part for name in PRESETS for each in preset(name).weights} <= set(PARTS)
    cross = Attention(6, 2, 10, 10, causal=False, cross=True)
    q, k, v, o = projections(48, cross, kv_inputs=30)
    assert (q.rows, k.rows, v.rows, o.rows) == ("text", "source", "source", "text")
    assert (q.matmul, k.matmul, v.matmul, o.matmul) == (48 * 60, 30 * 20, 30 * 20, 60 * 48)


def test_a_config_is_read_from_a_file_a_folder_or_a_mapping_and_its_class_decides_on_the_head(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = [size(LLAMA), size(tmp_path), size(tmp_path / "config.json"), size(str(tmp_path))]
    assert len({each.num_parameters for each in found}) == 1
    assert found[1].name == tmp_path.name and "with its usual head" in found[0].architecture.because[0]
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


def test_an_encoder_decoder_reads_a_text_of_its_own_length_and_the_document_holds_every_number():
    short, long = size("transformer", context=50, source=10), size("transformer", context=50, source=100)
    assert long.cache.steady - short.cache.steady == 8 * 2 * 6 * 90 * 2 * 512
    assert long.prefill.total > short.prefill.total
    document = size("mixtral-8x7b").to_dict()
    assert document["parameters"]["total"] == 46_702_792_704 and document["parameters"]["active"] == 12_879_925_248
    assert sum(each["total"] for each in document["parameters"]["layers"]) + sum(
        document["parameters"]["outside_layers"].values()
    ) == sum(document["parameters"]["by_part"].values())
    assert document["flops"]["prefill"]["total"] < document["flops"]["prefill"]["dense"]
    assert "multiply and an add are 2 FLOPs" in document["flops"]["counted"]
    assert document["cache"]["steady_bytes"] == 4 * GIB and document["shape"]["attention"] == "GQA-8"
    assert [each["own"] for each in document["variants"]] == [False, True, False]


REFUSED = [
    (("lama-2-70b",), {}, ModelError, r"called 'lama-2-70b': no preset, and no file.* Did you mean 'llama-2-70b'"),
    (("qqqq",), {}, ModelError, r"called 'qqqq': no preset, and no file or folder here. `manyheads size --list` shows"),
    (("nowhere.json",), {}, FileAccessError, r"there is no file or folder nowhere.json"),
    ((Path("nowhere"),), {}, FileAccessError, r"there is no file or folder nowhere"),
    ((3,), {}, ModelError, r"cannot size a int. Give a preset's name, a config.json"),
    (("gpt2",), {"context": -1}, ShapeError, r"context=-1: give a whole number, 1 or more"),
    (("gpt2",), {"context": True}, ShapeError, r"context=True: give a whole number"),
    (("gpt2",), {"context": 1025}, ShapeError, r"gpt2 has positions for 1,024 tokens and no more"),
    (("vit-base",), {"context": 50}, ShapeError, r"vit-base reads images, always 197 tokens"),
    (("gpt2",), {"batch": 0}, ShapeError, r"batch=0: give a whole number, 1 or more"),
    (("gpt2",), {"dtype": "fp7"}, ModelError, r"dtype='fp7' is not a dtype known here: use one of fp64, .*int4"),
    (("gpt2",), {"cache_dtype": "q"}, ModelError, r"cache_dtype='q' is not a dtype known here"),
    (("gpt2",), {"source": 5}, ShapeError, r"source=5: gpt2 reads no second text. Leave it out"),
    (("gpt2",), {"num_kv_heads": 5}, ShapeError, r"num_heads=12 is not a multiple of num_kv_heads=5"),
    (("gpt2",), {"num_kv_heads": 0}, ShapeError, r"num_kv_heads=0: give a whole number, 1 or more"),
    (("gpt2",), {"streaming": 1.5}, ShapeError, r"streaming=1.5: give the share of key/value heads that stream"),
    (("gpt2",), {"streaming": 0.5, "recent": 0}, ShapeError, r"recent=0: give a whole number, 1 or more"),
    (("gpt2",), {"streaming": 0.5, "sink": -1}, ShapeError, r"sink=-1: give a whole number, 0 or more"),
    (("bert-base",), {"streaming": 0.5}, ShapeError, r"no head of bert-base has its own cache of more than 384 tokens"),
    (("deepseek-v3",), {"streaming": 0.5}, ShapeError, r"no head of deepseek-v3 has its own cache"),
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
    (({**OWN, "num_kv_heads": 0},), {}, ShapeError, r"num_kv_heads=0: give a whole number, 1 or more"),
    (({**OWN, "num_heads": 5, "head_dim": None},), {}, ShapeError, r"embed_dim=48 is not a multiple of num_heads=5"),
    (({**OWN, "ffn_dim": "x"},), {}, ShapeError, r"ffn_dim='x': give a whole number, 1 or more"),
    (({**OWN, "head_dim": 2.5},), {}, ShapeError, r"head_dim=2.5: give a whole number, 1 or more"),
    (({**OWN, "gated": 1},), {}, ShapeError, r"gated=1: give True or False"),
    (({**OWN, "gated": True},), {}, ShapeError, r"gated=True needs ffn_dim: .* 8/3 of embed_dim is usual, 128"),
    (({**OWN, "norm": "batch"},), {}, ShapeError, r"norm='batch' is not a norm known here: use one of rms, "
        r"layer, none"),
    (({**OWN, "num_experts": 4},), {}, ShapeError, r"num_experts=4 and experts_per_token=None need each other"),
    (({**OWN, "num_experts": 4, "experts_per_token": 5},), {}, ShapeError, r"experts_per_token=5 of num_experts=4"),
    (({**OWN, "window": 5, "causal": False},), {}, ShapeError, r"window=5, causal=False: windows are of 1 or more"),
]  # fmt: skip


@pytest.mark.parametrize("what, options, kind, words", REFUSED, ids=[each[3][:40] for each in REFUSED])
def test_what_cannot_be_is_refused_in_words(what, options, kind, words):
    refuses(kind, words, size, *what, **options)


def test_what_is_no_file_is_called_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "it is a pipe"), (Path("/dev/zero"), "it is a device")):
        refuses(FileAccessError, rf"^cannot read {path}: {said}, not a file. Give a config.json, or", size, path)
    with pytest.raises(FileAccessError, match="^cannot read none.json: there is no such file. Check the spelling"):
        read_config("none.json")


DAMAGED = [
    ("{", r"config.json is not JSON \(.*\): the file is damaged"),
    ("[1]", r"config.json is a list, not a mapping: the file is damaged"),
    ("{}", r"the config has no model_type \(None\), so its architecture is unknown"),
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
    ('{"model_type": "marian", "architectures": ["MarianForCausalLM"]}', r"'MarianForCausalLM' is not among"),
    (json.dumps({**LLAMA, "architectures": ["LlamaForDreams"]}), r"'LlamaForDreams' is not among the classes"),
    ('{"model_type": "bert", "is_decoder": true}', r"this config of 'bert' is a decoder's, which is not read here"),
]  # fmt: skip


@pytest.mark.parametrize("text, words", DAMAGED, ids=[each[1][:40] for each in DAMAGED])
def test_a_damaged_or_unknown_config_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    refuses(ManyHeadsError, words, architecture_of, tmp_path / "config.json")


def test_a_folder_without_a_config_and_an_unreadable_text_are_refused(tmp_path):
    refuses(FileAccessError, r"has no config.json, so its kind of model is unknown", size, tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00{")
    refuses(ModelError, r"is not JSON \(.*\): the file is damaged", size, tmp_path)


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


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sizing.md").read_text(encoding="utf-8")


def test_the_tables_are_made_from_the_code():
    assert presets_markdown() in PAGE
    assert families_markdown() in PAGE


# ---------------------------------------------------------------------------------------------- what fits in a memory


def needed_by(what: str, context: int, batch: int, **options: str) -> float:
    sizing = size(what, context=context, batch=batch, **options)
    return sizing.weight_bytes + (sizing.cache.allocated if sizing.cache else 0)


@given(
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-1b", "qwen2.5-0.5b", "gpt-oss-20b", "transformer", "gpt2"]),
    gigabytes=st.floats(0.1, 400),
    batch=st.integers(1, 40),
    context=st.integers(1, 1000),
    overhead=st.sampled_from([0.0, 0.1, 0.25]),
    dtypes=st.sampled_from([("bf16", "bf16"), ("int4", "fp8"), ("fp8", "fp32")]),
)
def test_what_fits_is_the_last_that_does(name, gigabytes, batch, context, overhead, dtypes):
    """The longest context fits and one token more does not; so the batch; what is missing is what it takes."""
    memory = round(gigabytes * 1e9)
    sizing = size(name, context=context, batch=batch, source=500 if name == "transformer" else None,
                  dtype=dtypes[0], cache_dtype=dtypes[1])  # fmt: skip
    found, budget = sizing.fits(memory, overhead=overhead), memory - int(memory * overhead)
    options = {"dtype": dtypes[0], "cache_dtype": dtypes[1], **({"source": 500} if name == "transformer" else {})}
    needed = needed_by(name, context, batch, **options)
    assert found.fits == (needed <= budget) and found.missing_bytes == max(0, needed - budget)
    if sizing.weight_bytes > budget:
        assert (found.longest_context, found.largest_batch, found.room_bytes) == (0, 0, 0) and not found.weights_fit
        return
    longest, largest = found.longest_context, found.largest_batch
    last = name == "gpt2" and longest == 1024  # no positions for more, whatever the memory
    assert not longest or needed_by(name, longest, batch, **options) <= budget
    assert last or needed_by(name, longest + 1, batch, **options) > budget
    assert not largest or needed_by(name, context, largest, **options) <= budget
    assert needed_by(name, context, largest + 1, **options) > budget


def test_llama_3_1_8b_in_24_gb_by_hand():
    """16,060,522,496 bytes of weights, 131,072 of cache a token, a tenth of the memory free."""
    found = size("llama-3.1-8b", batch=1, dtype="bf16").fits("24 GB")
    room = 24 * 10**9 * 9 // 10 - 2 * 8_030_261_248
    assert (found.room_bytes, found.longest_context) == (room, room // 131_072) == (room, 42_262)
    assert found.largest_batch == room // (4096 * 131_072) == 10 and found.fits and not found.past_positions
    assert str(found).startswith(
        "llama-3.1-8b: 1 text of 4,096 tokens fits into 24.00 GB (16.06 GB of weights, 536.9 MB"
    )
    assert size("llama-3.1-8b", batch=1).fits("141 GB").past_positions
    assert size("llama-3.1-8b", batch=8).fits("24 GB").longest_context == room // (8 * 131_072)


def test_what_does_not_fit_says_by_how_much_and_never_less_than_nothing():
    found = size("llama-3.1-405b", batch=1).fits("80GB")
    missing = 2 * 405_853_388_800 + 4096 * 516_096 + 8 * 10**9 - 80 * 10**9
    assert (found.missing_bytes, found.longest_context, found.largest_batch, found.room_bytes) == (missing, 0, 0, 0)
    assert "the weights alone do not fit into 80.00 GB; 741.8 GB are missing" in str(found)
    between = str(size("llama-2-70b", batch=1).fits("141GB"))  # 138 GB of weights, and 14.1 GB stay free
    assert "the weights alone do not fit into 141.0 GB beside what stays free; 12.4" in between
    almost = size("llama-3.1-8b", context=100_000, batch=1).fits("24 GB")
    assert almost.weights_fit and not almost.fits and almost.longest_context == 42_262 and almost.largest_batch == 0
    assert "1 text of 100,000 tokens does not fit into 24.00 GB; 7.57 GB are missing" in str(almost)
    assert almost.to_dict()["missing_bytes"] == almost.missing_bytes > 0


def test_where_every_layer_has_a_window_memory_sets_no_limit_and_an_encoder_keeps_nothing():
    window = size("mistral-7b", batch=1).fits("24 GB")
    assert window.longest_context is None and window.past_positions and "be of any length" in str(window)
    room = 24 * 10**9 * 9 // 10 - 2 * 7_241_732_096  # for 40 texts, less than their windows take
    assert size("mistral-7b", batch=40).fits("24 GB").longest_context == room // (40 * 131_072) < 4096
    encoder = size("bert-base").fits("1 GB")
    assert (encoder.longest_context, encoder.largest_batch, encoder.cache_bytes) == (None, None, 0)
    assert not encoder.past_positions and str(encoder).endswith("It keeps no cache.")


def test_a_memory_is_bytes_or_a_number_with_its_unit(unchecked_types):
    written = {"24 GB": 24 * 10**9, "24gb": 24 * 10**9, " 64 GiB ": 2**36, "1.5TB": 15 * 10**11, "512 MiB": 2**29}
    assert {memory: memory_bytes(memory) for memory in written} == written and memory_bytes(2 * 10**9) == 2 * 10**9
    refuses(ShapeError, "memory=24 is 24 bytes, which holds no model: .* as '24 GB'", memory_bytes, 24)
    assert len(repr(size("llama-2-70b"))) < 160
    refuses(ShapeError, r"memory='24' has no unit: write '24 GB' .* or '24 GiB'", memory_bytes, "24")
    for memory in ("0", "GB", "-3 GB", "0 GB", "24 kB", "1e9", "", 0, -5, True, 1.5, None):
        message = r"memory=.*: give bytes as a whole number, or a text with its unit, as '24"
        refuses(ShapeError, message, memory_bytes, memory)
    for overhead in (-0.1, 1.0, 2.0):
        with pytest.raises(ShapeError, match="give the share of the memory that stays free, from 0 to below 1"):
            size("gpt2").fits("24 GB", overhead=overhead)
    assert MACHINES["64 GB Mac"] == 48 * GIB  # as Metal says there


def test_what_fits_is_not_guessed_where_the_cache_cannot_be_told():
    untold = replace(preset("gpt2"), untold=(("cache", "nobody looked"),))
    with pytest.raises(ModelError, match="what fits is not known for gpt2, since its cache is not: nobody looked."):
        size(untold).fits("24 GB")


# ======================================================================================================== without torch
# Sizing is arithmetic: it runs where torch, NumPy and transformers cannot be imported.

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "transformers", "pandas", "matplotlib", "jaxtyping", "einops"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Blocked())
"""


def without_torch(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "door",
    [
        "from manyheads.models.dimensions import size\n",
        "from manyheads.sizing.sizing import architecture_of, size as of_architecture\n"
        "size = lambda what: of_architecture(architecture_of(what))\n",
    ],
    ids=["models", "sizing"],
)
def test_presets_and_descriptions(door):
    done = without_torch(
        f"{door}"
        "from manyheads.sizing.presets import PRESETS\n"
        "for name in PRESETS: size(name).to_dict()\n"
        "print(size('llama-2-70b').num_parameters, size('llama-2-70b').cache.steady)\n"
        "print(size({'num_layers': 2, 'embed_dim': 48, 'num_heads': 6}).num_parameters)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["68976648192", str(float(10 * 2**30)), "55536"]


def test_a_config_of_a_family_with_a_row(tmp_path):
    config = {"model_type": "qwen2", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
    config |= {"num_key_value_heads": 2, "intermediate_size": 56, "vocab_size": 97, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = without_torch(f"from manyheads.models.dimensions import size; print(size({str(tmp_path)!r}).num_parameters)")
    assert done.returncode == 0, done.stderr
    layer = 2 * 48 * 48 + 48 + 2 * (48 * 16 + 16) + 3 * 48 * 56 + 2 * 48
    assert int(done.stdout) == 97 * 48 + 2 * layer + 48


def test_a_spec():
    done = without_torch(
        "from manyheads.models.dimensions import size\n"
        "from manyheads.spec import ModelSpec, Site\n"
        "spec = ModelSpec('m', 'M', (Site('', 0, 'x', 6, 2, 8, 8, True),), 48, 97, None, 20000, 'float32')\n"
        "print(size(spec, context=10, batch=1, dtype='fp32').cache.steady)\n"
    )
    assert (done.returncode, done.stdout) == (0, f"{float(4 * 10 * 2 * 16)}\n"), done.stderr


def test_a_family_without_a_row_says_what_would_be_needed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "jamba"}')
    done = without_torch(
        "from manyheads.models.dimensions import size\n"
        "from manyheads.errors import ModelError\n"
        f"try: size({str(tmp_path)!r})\n"
        "except ModelError as error: print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "'jamba' is not among the" in done.stdout
    assert "With transformers installed, models that it knows can be built and measured." in done.stdout


def test_the_command(tmp_path):
    done = without_torch("from manyheads.cli.main import main; raise SystemExit(main(['size', 'gpt2', '--json']))")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["total"] == 124_439_808


def test_sizing_loads_nothing_heavy():
    program = (
        "import sys; from manyheads.models.dimensions import size; size('gpt2').to_dict();"
        "print(*[name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_weights_as_published_are_those_of_the_repositories_to_the_byte():
    """`total_size` of their model.safetensors.index.json. Llama 2's has a table of rotary frequencies in each layer;
    DeepSeek-V3's files have the layer that predicts a second token, with embedding and head of its own, and headers."""
    for name, total in (("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744), ("gpt2", 4 * 124_439_808)):
        assert size(name, dtype="published").weight_bytes == total
    assert size("llama-2-70b", dtype="published").weight_bytes == 137_953_316_864 - 80 * 64 * 4
    deepseek = size("deepseek-v3", dtype="published")
    layer = deepseek.ask.weight_bytes(deepseek.architecture.layers[-1].weights)
    second = layer + 2 * 2 * 129_280 * 7168 + 2 * 2 * 7168 * 7168
    assert 0 <= 688_586_727_753 / (deepseek.weight_bytes + second) - 1 < 3e-5
    assert (deepseek.ask.cache_dtype, size("llama-2-7b", dtype="published").ask.cache_dtype) == ("bf16", "float16")
    # One more token of one text reads what it uses: 8 of 256 experts, all else but the table.
    read = deepseek.ask.weight_bytes(
        [replace(weight, experts=weight.chosen) for weight in deepseek.architecture.weights]
    )
    assert size("deepseek-v3", batch=1, dtype="published").decoding.weight_bytes == pytest.approx(
        read - 2 * 129_280 * 7168
    )


def test_a_configs_own_packing_is_counted_with_its_scales():
    """GPTQ: of each group of 128 a scale of 16 bits and a zero point; embedding, head, norms and biases in 16."""
    config = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "torch_dtype": "float16",
    }  # fmt: skip
    packed = 3 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768)
    rest = 2 * 512 * 256 + 7 * 256
    assert size(config, dtype="published").weight_bytes == 2 * (packed + rest)
    for method, bits, group, each in (("gptq", 4, 128, 4 + 20 / 128), ("awq", 8, 64, 8 + 24 / 64), ("gptq", 3, -1, 3)):
        packing = {"quant_method": method, "bits": bits, "group_size": group}
        found = size({**config, "quantization_config": packing}, dtype="published").weight_bytes
        assert found == pytest.approx(packed * each / 8 + 2 * rest)
    for packing in ({"quant_method": "hqq"}, {"quant_method": "fp8", "weight_block_size": [0, 128]}, {"bits": 4}):
        unknown = {**config, "quantization_config": packing}
        refuses(
            ModelError, "^dtype='published': nothing says how .* or it is a packing", size, unknown, dtype="published"
        )
    nothing = {**config, "torch_dtype": None}
    refuses(ModelError, "^dtype='published': nothing says how the weights of llama", size, nothing, dtype="published")
    refuses(ModelError, "cache_dtype='published' is not a dtype known here", size, config, cache_dtype="published")
