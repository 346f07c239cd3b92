"""What GPUs that serve hold: by hand for the models that people serve, by vLLM's log, and by what must hold of any."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.errors import ModelError, ShapeError
from manyheads.sizing import architecture_of, preset
from manyheads.sizing import size as size_of
from manyheads.sizing.placement import BLOCK, CHUNK, Placement, parsed_gpus, shards
from tests.refusals import refuses


def size(what, *arguments, **options):
    return size_of(architecture_of(what), *arguments, **options)


def layer(width, heads, kv_heads, inner, gpus, *, biased=False, normed=False, experts=0, dim=128):
    """Parameters of a layer on one of the GPUs that divide it, which keeps so many kv_heads; norms stand on each."""
    own = heads // gpus
    attention = width * dim * (2 * own + 2 * kv_heads) + biased * dim * (own + 2 * kv_heads) + normed * 2 * dim
    forward = 3 * width * inner // gpus * max(experts, 1) + width * experts * (experts > 1)
    return attention + forward + 2 * width


def latent_layer(width, heads, inner, gpus, *, experts=0):
    """The same of DeepSeek-V3's: what compresses queries, keys and values on each GPU; one expert more for all."""
    replicated = width * (1536 + 512 + 64) + 1536 + 512 + 2 * width + width * experts
    divided = heads * (1536 * 192 + 512 * 256 + 128 * width) + 3 * width * inner * (experts + 1)
    return replicated + divided // gpus


GLM = {"biased": True, "normed": True}
# Parameters of the first GPU; what a token leaves there: layers, keys and values, heads, width, bytes.
BY_HAND = [
    (
        "llama-3.1-8b",
        "80GB",
        {},
        "bf16",
        32 * layer(4096, 32, 8, 14336, 1) + 2 * 128256 * 4096 + 4096,
        32 * 2 * 8 * 256,
    ),
    ("llama-3.1-70b", "4x80GB", {}, "bf16", 80 * layer(8192, 64, 2, 28672, 4) + 128256 * 4096 + 8192, 80 * 2 * 2 * 256),
    # 8 heads: each on two of 16 GPUs
    ("llama-3.1-70b", "16x80GB", {}, "bf16", 80 * layer(8192, 64, 1, 28672, 16) + 128256 * 1024 + 8192, 80 * 512),
    (
        "llama-3.1-405b",
        "16x80GB",
        {"pipeline": 2},
        "bf16",
        63 * layer(16384, 128, 1, 53248, 8) + 128256 * 2048,
        63 * 512,
    ),
    (
        *("qwen2.5-7b", "4x24GB", {}, "bf16"),
        *(28 * layer(3584, 28, 1, 18944, 4, biased=True) + 152064 * 1792 + 3584, 28 * 512),
    ),
    (
        *("qwen2.5-72b", "8x80GB", {}, "bf16"),
        *(80 * layer(8192, 64, 1, 29568, 8, biased=True) + 152064 * 2048 + 8192, 80 * 512),
    ),
    (  # 4 heads: each on two GPUs
        *("qwen3-235b-a22b", "8x141GB", {}, "bf16"),
        *(94 * layer(4096, 64, 1, 1536, 8, normed=True, experts=128) + 151936 * 1024 + 4096, 94 * 512),
    ),
    (
        "mixtral-8x7b",
        "2x80GB",
        {},
        "bf16",
        32 * layer(4096, 32, 4, 14336, 2, experts=8) + 32000 * 4096 + 4096,
        32 * 2048,
    ),
    ("mistral-nemo-12b", "48GB", {}, "fp8", 40 * layer(5120, 32, 8, 14336, 1) + 2 * 131072 * 5120 + 5120, 40 * 2048),
    (  # latents: whole on each GPU
        *("deepseek-v3", "16x141GB", {}, "bf16"),
        3 * latent_layer(7168, 128, 18432, 16)
        + 58 * latent_layer(7168, 128, 2048, 16, experts=256)
        + 2 * 129280 * 7168 // 16
        + 7168,
        61 * (512 + 64) * 2,
    ),
    (
        *("kimi-k2", "32x80GB", {"pipeline": 2}, "bf16"),
        latent_layer(7168, 64, 18432, 16) + 30 * latent_layer(7168, 64, 2048, 16, experts=384) + 163840 * 7168 // 16,
        31 * (512 + 64) * 2,
    ),
    (  # 8 heads: each on two GPUs; one expert more for all
        *("glm-4.5", "16x80GB", {}, "fp8"),
        3 * layer(5120, 96, 1, 12288, 16, **GLM)
        + 89 * (layer(5120, 96, 1, 1536, 16, experts=160, **GLM) + 3 * 5120 * 1536 // 16)
        + 2 * 151552 * 5120 // 16
        + 5120,
        92 * 256,
    ),
    ("llama-2-7b", "2x24GB", {}, "bf16", 32 * layer(4096, 32, 16, 11008, 2) + 32000 * 4096 + 4096, 32 * 2 * 16 * 256),
]


@pytest.mark.parametrize(("name", "gpus", "options", "cache_dtype", "parameters", "token"), BY_HAND)
def test_what_twelve_models_take_on_each_gpu_by_hand(name, gpus, options, cache_dtype, parameters, token):
    """vLLM 0.26: available bytes // bytes of a block of one layer // layers; the cache is as many blocks of 16."""
    placed = size(name, batch=1, dtype="bf16", cache_dtype=cache_dtype).on(gpus, **options)
    first, memory = placed.stages[0], int(gpus.split("x")[-1].removesuffix("GB")) * 10**9
    assert first.num_parameters == parameters and first.num_layers == max(stage.num_layers for stage in placed.stages)
    room = memory * 0.9 - 2 * parameters - first.fit.activation_bytes
    blocks = int(room // (16 * token // first.num_layers) // first.num_layers)
    assert (first.blocks, first.fit.room_bytes, first.fit.longest_context) == (blocks, room, blocks * 16)
    assert placed.tokens == placed.longest_context == min(stage.blocks for stage in placed.stages) * 16
    # Each text more has its own row of logits, too: 6 bytes for each part of the words on the last stage's GPUs.
    logits = 6 * preset(name).vocab_size if len(placed.stages) == 1 else 0
    assert first.fit.largest_batch == int((room + logits) // (256 * 16 * token + logits))


def test_llama_3_8b_has_the_blocks_of_vllms_log():
    """Its log on an A100 of 40 GB (vllm-project/vllm issue 12330): 11.12 GiB are 5,691 blocks, 11.12 texts of 8,192."""
    stage = size("llama-3-8b", 8192, batch=1, dtype="bf16").on("40GB").stages[0]
    block_bytes = stage.fit.room_bytes / stage.blocks
    assert round(5691 * block_bytes / 2**30, 2) == 11.12
    assert round(5691 * 16 / 8192, 2) == 11.12 and stage.fit.largest_batch == stage.blocks * 16 // 8192


def test_gemma_3_and_gpt_oss_share_a_pool_among_groups_of_equally_many_layers():
    """10 layers see all and 52 a window: 1 + 6 groups of 10, the last one filled up; 18 and 18: two groups of 18."""
    for name, group, groups, window, width in (
        ("gemma-3-27b", 10, 6, 1024, 2 * 16 * 128),
        ("gpt-oss-120b", 18, 1, 128, 2 * 8 * 64),
    ):
        fit = (placed := size(name, 8192, batch=3, dtype="int4", cache_dtype="bf16").on("141GB")).stages[0].fit
        block = group * BLOCK * width * 2
        # Of a window: what it sees beside a chunk of prompts, and one block more, for it may begin within one.
        of_a_text = 8192 // BLOCK + groups * (ceil((window - 1 + CHUNK) / BLOCK) + 1)
        assert placed.stages[0].blocks == int(fit.room_bytes // block)
        assert fit.cache_bytes == 3 * of_a_text * block
        assert placed.tokens is None and "up to a batch of" in str(placed)


def test_what_a_gpu_holds_of_llama_3_70b_by_hand():
    """A quarter of each matrix, of the table and of the head; norms whole; on 16 GPUs one key/value head each."""
    wide, inner, words, norms = 8192, 28672, 128_256, 80 * 2 * 8192 + 8192
    for gpus, kv_heads in ((4, 2), (16, 1)):
        layer = 2 * wide * wide // gpus + 2 * wide * kv_heads * 128 + 3 * wide * inner // gpus
        (part,) = shards(preset("llama-3-70b"), gpus, 1)
        assert part.num_parameters == 80 * layer + 2 * words * wide // gpus + norms
        assert {(a.num_heads, a.num_kv_heads) for a in part.attention} == {(64 // gpus, kv_heads)}
    stages = shards(preset("llama-3-70b"), 1, 3)
    assert [len(stage.layers) for stage in stages] == [27, 27, 26]
    assert sum(stage.num_parameters for stage in stages) == 70_553_706_496
    tied = shards(preset("qwen2.5-0.5b"), 1, 2)  # whose last stage has the head, a copy of the table
    assert sum(stage.num_parameters for stage in tied) == 494_032_768 + 151_936 * 896


def test_what_a_gpu_holds_of_deepseek_v3_by_hand():
    """The compressions of q and of keys and values, routers and norms on each of 8; all else an eighth."""
    whole = preset("deepseek-v3")
    (part,) = shards(whole, 8, 1)
    replicated = 61 * (7168 * 1536 + 7168 * 576 + 1536 + 512 + 2 * 7168) + 58 * 7168 * 256 + 7168
    assert part.num_parameters == (whole.num_parameters - replicated) // 8 + replicated
    assert {a.latent for a in part.attention} == {(512, 64)} and {a.num_heads for a in part.attention} == {16}


def test_biases_after_the_sum_and_positions_stand_on_every_gpu():
    whole = preset("gpt2")
    (part,) = shards(whole, 4, 1)
    replicated = 1024 * 768 + 12 * (2 * 768 + 4 * 768) + 2 * 768
    words = 50_257 * 768
    assert part.num_parameters == (whole.num_parameters - replicated - words) // 4 + replicated + ceil(words / 4)


def test_stages_take_what_does_not_divide_before_the_last():
    """vLLM's `get_pp_indices`."""
    for pipeline, counts in ((5, [2, 2, 3, 3, 2]), (7, [1, 2, 2, 2, 2, 2, 1]), (8, [1, 1, 1, 2, 2, 2, 2, 1])):
        assert [len(stage.layers) for stage in shards(preset("gpt2"), 1, pipeline)] == counts
    placed = size("gpt2", batch=1).on("10x1GB", pipeline=5, tensor=2)
    assert [stage.first_layer for stage in placed.stages] == [0, 2, 4, 7, 10]


@settings(max_examples=12)
@given(
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v2"]),
    tensor=st.sampled_from([1, 2, 4]),
    gigabytes=st.integers(24, 200),
    context=st.integers(1, 9000),
    batch=st.integers(1, 30),
    prefix=st.integers(0, 5000),
    block=st.sampled_from([1, 16, 64]),
)
def test_the_largest_batch_and_the_longest_context_fit_and_one_more_does_not(
    name, tensor, gigabytes, context, batch, prefix, block
):
    options = {"prefix": min(prefix, context - 1), "block": block}

    def on(context: int, batch: int) -> Placement:
        return size(name, context, batch, dtype="int4", cache_dtype="bf16").on(f"{tensor}x{gigabytes}GB", **options)

    placed = on(context, batch)
    largest, longest = placed.largest_batch, placed.longest_context
    assert largest is not None and longest is not None and placed.fits == (batch <= largest)
    assert not placed.stages[0].fit.weights_fit or (not largest or on(context, largest).fits)
    assert not on(context, largest + 1).fits
    if longest:
        assert on(longest, batch).fits and not on(longest + 1, batch).fits
    if placed.fits and placed.tokens is not None:
        own = batch * ceil(context / block) - (batch - 1) * (options["prefix"] // block)
        assert own * block <= placed.tokens


def test_a_shared_prefix_is_kept_once_in_its_full_blocks():
    alone = size("llama-3.1-8b", 8192, batch=40, dtype="bf16").on("80GB").stages[0].fit
    shared = size("llama-3.1-8b", 8192, batch=40, dtype="bf16").on("80GB", prefix=4100).stages[0].fit
    assert alone.cache_bytes - shared.cache_bytes == 39 * 4096 * 32 * 2 * 8 * 128 * 2


def test_activations_are_those_of_a_chunk_at_the_widest_place_and_a_row_of_logits_a_text():
    """Llama 3.1 8B: the stream and its norm, gate, up and their product, in 2 bytes; 6 bytes a logit."""
    fit = size("llama-3.1-8b", batch=5, dtype="int4").on("80GB", chunk=1000).stages[0].fit
    assert fit.activation_bytes == 2 * 1000 * (2 * 4096 + 3 * 14_336) + 5 * 128_256 * 6
    two = size("llama-3.1-8b", batch=5, dtype="int4").on("2x80GB", chunk=1000).stages[0].fit
    assert two.activation_bytes == 2 * 1000 * (2 * 4096 + 3 * 14_336 // 2) + 5 * 128_256 * 6


def test_the_answer_is_one_sentence_and_a_document():
    placed = size("llama-3-70b", 8192, batch=1).on("4x80GB")
    assert str(placed) == (
        "llama-3-70b in fp16 fits on 4 x 80 GB: up to 446,352 tokens in all, e.g. a batch of 54 at 8,192."
    )
    short = size("llama-3-70b", 8192, batch=1).on("2x80GB")
    assert not short.fits and short.enough == 4 and "Texts of 7,328 tokens would fit. 4 of these" in str(short)
    alone = str(size("llama-3-70b", 8192, batch=1).on("80GB"))
    assert "missing on a GPU for the weights alone, counted with the cache of 1 text of 8,192 tokens" in alone
    assert "one text may be of any length" in str(size("mistral-7b", batch=1).on("80GB"))
    shared = str(size("llama-3.1-8b", batch=2, cache_dtype="fp8").on("80GB", prefix=99))
    assert ", its cache in fp8, fits" in shared and shared.endswith("at 4,096, the first 99 of each shared.")
    document = json.loads(json.dumps(placed.to_dict()))
    assert (document["num_gpus"], document["tokens"], document["largest_batch"]) == (4, 446_352, 54)
    assert document["stages"][0]["fit"]["longest_context"] == document["longest_context"] == 446_352
    assert len(repr(placed)) < 160


@pytest.mark.parametrize("text", ["4x80GB", "4 x 80 GB", "4X80gb", "4×80GB", "4*80GB"])
def test_gpus_are_read_as_people_write_them(text):
    assert parsed_gpus(text) == (4, 80 * 10**9) and parsed_gpus("64GiB") == (1, 2**36)


REFUSED = [
    ("llama-3-70b", "4y80", {}, ShapeError, "^gpus='4y80': give how many and how large each is, as '4x80GB'"),
    ("llama-3-70b", "4x80", {}, ShapeError, "^gpus='4x80': memory='80' has no unit: write '80 GB'"),
    ("llama-3-70b", "0x80GB", {}, ShapeError, "^gpus='0x80GB': give from 1 to 1,024 GPUs"),
    ("llama-3-70b", "6x80GB", {}, ShapeError, r"^tensor=6: 64 heads on 8 key/value heads .* Use one of \[1, 2, 4, 8,"),
    ("llama-2-7b", "3x80GB", {}, ShapeError, r"^tensor=3: 32 heads of llama-2-7b do not divide over 3 GPUs"),
    ("gpt2", "16x80GB", {"pipeline": 16}, ShapeError, "^pipeline=16: gpt2 has 12 layers, and a stage has at least one"),
    ("gpt2", "4x80GB", {"pipeline": 3}, ShapeError, r"^pipeline=3: 4 GPUs cannot be divided .* Use one of \[1, 2, 4\]"),
    ("gpt2", "4x80GB", {"tensor": 3}, ShapeError, "^tensor=3 times pipeline=1 is 3, and gpus= says 4"),
    ("gpt2", "80GB", {"block": 0}, ShapeError, "block=0: give a whole number, 1 or more"),
    ("gpt2", "80GB", {"prefix": 2000}, ShapeError, "^prefix=2000: texts of context=1,024 tokens have at least"),
    ("gpt2", "80GB", {"overhead": 1.0}, ShapeError, "give the share of the memory that stays free"),
    ("bert-base", "80GB", {}, ShapeError, "^bert-base is not a decoder"),
    ("transformer", "80GB", {}, ShapeError, "^transformer is not a decoder"),
]


@pytest.mark.parametrize(("name", "gpus", "options", "kind", "words"), REFUSED)
def test_what_cannot_be_placed_is_refused_in_one_line(name, gpus, options, kind, words):
    refuses(kind, words, size(name, batch=1).on, gpus, **options)


def test_what_cannot_be_told_and_what_streams_is_refused():
    untold = replace(preset("gpt2"), untold=(("cache", "nobody looked"),))
    refuses(ModelError, "is not known for gpt2, since its cache is not: nobody looked", size(untold).on, "80GB")
    whole = replace(preset("gpt2"), untold=(("parts", "a spec says less"),))
    refuses(ModelError, "^tensor=2: how gpt2 would be divided cannot be told", size(whole).on, "2x80GB")
    assert size(whole, batch=1).on("80GB").fits
    refuses(
        ShapeError, "^streaming: streaming heads are counted for one", size("gpt2", streaming=0.5, recent=9).on, "80GB"
    )
