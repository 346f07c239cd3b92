"""What `size` says: published facts, and what each option does. No torch is needed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.sizing import DTYPES, PRESETS, kind_of, preset, size, transformer
from manyheads.sizing.architecture import PARTS, Attention
from manyheads.sizing.building_blocks import experts, matrix, projections
from manyheads.sizing.costs import decoding, dense_pairs, prefill, visible_pairs
from tests.sizing.described import GIB, LLAMA, OWN

# ---------------------------------------------------------------------------------------------------- published facts


def test_multihead_attention_of_512_by_8_has_its_parameters():
    assert size("rul-backbone").num_parameters == 4 * (512**2 + 512) == 1_050_624


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16, 32])
def test_heads_share_the_width_so_that_their_number_costs_nothing(num_heads):
    d = 64
    whole = size({"num_layers": 1, "embed_dim": d, "num_heads": num_heads, "ffn_dim": 0, "norm": "none"}).parameters
    assert sum(whole[part] for part in ("q", "k", "v")) == 3 * d**2
    assert sum(whole[part] for part in ("q", "k", "v")) // num_heads * num_heads == 3 * d**2
    assert sum(whole.values()) == 4 * d**2
    one = size(
        {"num_layers": 1, "embed_dim": d, "num_heads": 1, "head_dim": d // num_heads, "ffn_dim": 0, "norm": "none"}
    )
    assert sum(one.parameters[part] for part in ("q", "k", "v")) == 3 * d**2 // num_heads


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16])
def test_heads_of_full_width_cost_their_number(num_heads):
    d = 64
    words = {"num_layers": 1, "embed_dim": d, "num_heads": num_heads, "head_dim": d, "ffn_dim": 0, "norm": "none"}
    assert size(words).num_parameters == 4 * num_heads * d**2


def test_llama_2_70b_is_mostly_feed_forward():
    found = size("llama-2-70b")
    assert found.num_parameters == 68_976_648_192
    assert found.layers[0]["feed-forward"] == 3 * 8192 * 28672 == 704_643_072
    assert round(found.parameters["feed-forward"] / 1e9, 1) == 56.4


def test_llama_2_70b_caches_80_10_and_1_25_gib():
    found = size("llama-2-70b", context=4096, batch=8, dtype="fp16")
    assert [(each.name, each.cache.allocated / GIB) for each in found.variants] == [
        ("MHA", 80.0),
        ("GQA-8", 10.0),
        ("MQA", 1.25),
    ]
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
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_parameters_that_were_published(name):
    assert size(name).num_parameters == PUBLISHED[name]


def test_presets_round_to_what_they_are_called():
    assert round(size("gpt3-175b").num_parameters / 1e9) == 175
    assert round(size("gpt3-small").num_parameters / 1e6) == 125
    assert round(size("deepseek-v3").num_parameters / 1e9) == 671
    assert round(size("mixtral-8x7b").num_active / 1e9, 1) == 12.9
    assert round(size("vit-base").prefill.total / 2e9, 1) == 17.6  # multiply-adds, as its literature counts


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_sized_and_says_where_it_is_from(name):
    found = size(name)
    assert sum(found.parameters.values()) == found.num_parameters > 0
    assert found.architecture.because and found.prefill.total > 0
    json.dumps(found.to_dict(), allow_nan=False)


# ---------------------------------------------------------------------------------------------------------- the sums


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


def test_an_experts_weights_count_once_each_and_work_for_the_chosen():
    router, routed = experts(48, 20, num_experts=5, chosen=2)
    assert (router.total, routed.total, routed.active, routed.matmul) == (240, 5 * 2880, 2 * 2880, 2880)


def test_a_tied_head_costs_flops_and_no_parameters():
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


def test_dtypes_scale_the_bytes_of_weights_and_of_the_cache_each():
    found = size(OWN, dtype="int4", cache_dtype="fp8")
    assert found.weight_bytes == found.num_parameters / 2
    assert found.cache.steady * 2 == size(OWN).cache.steady
    assert {DTYPES[name] for name in DTYPES} == {64, 32, 16, 8, 4}


def test_decoding_reads_the_weights_once_and_each_texts_cache():
    one, many = size("llama-2-7b", batch=1), size("llama-2-7b", batch=64)
    assert one.decoding.weight_bytes == many.decoding.weight_bytes == 2 * (6_738_415_616 - 32000 * 4096)
    assert many.decoding.cache_bytes == 64 * one.decoding.cache_bytes == many.cache.allocated
    assert one.decoding.intensity < 1 < many.decoding.intensity
    assert many.decoding.flops == 64 * one.decode.total


def test_a_batch_touches_more_experts_than_one_token_chooses():
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


def test_variants_show_what_it_is_beside_what_it_could_be():
    assert [each.name for each in size("llama-2-7b").variants] == ["MHA", "GQA-8", "MQA"]
    assert [each.name for each in size("llama-2-7b", num_kv_heads=4).variants] == ["MHA", "GQA-4", "MQA"]
    assert [each.name for each in size({**OWN, "num_kv_heads": 1}).variants] == ["MHA", "GQA-3", "MQA"]
    assert [each.name for each in size({**OWN, "num_heads": 1, "num_kv_heads": 1}).variants] == ["MHA"]
    assert size("bert-base").variants == ()


def test_kinds_of_attention_have_their_names():
    kinds = {name: kind_of(preset(name)) for name in ("llama-2-70b", "llama-2-7b", "deepseek-v3")}
    assert kinds == {"llama-2-70b": "GQA-8", "llama-2-7b": "MHA", "deepseek-v3": "MLA"}
    assert kind_of(transformer(num_layers=1, embed_dim=8, num_heads=4, num_kv_heads=1)) == "MQA"


def test_parts_are_known_and_a_matrix_counts_its_bias():
    assert matrix("q", 3, 5, bias=True).total == 20 and matrix("q", 3, 5, bias=True).matmul == 15
    assert {each.part for name in PRESETS for each in preset(name).weights} <= set(PARTS)


def test_projections_say_where_keys_and_values_come_from():
    cross = Attention(6, 2, 10, 10, causal=False, cross=True)
    q, k, v, o = projections(48, cross, kv_inputs=30)
    assert (q.rows, k.rows, v.rows, o.rows) == ("text", "source", "source", "text")
    assert (q.matmul, k.matmul, v.matmul, o.matmul) == (48 * 60, 30 * 20, 30 * 20, 60 * 48)
