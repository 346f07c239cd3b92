"""A cache that frees what streaming heads do not see gives what a dense mask over all keys gives, in stock `generate`.

Oracles: a float64 copy of the model that reads whole texts by its own eager attention under a dense mask, with nothing
of ours in it (`dense` of the streaming ablation's tests); the streaming ablation, which keeps all keys; arithmetic.
"""

import copy
import inspect
import threading
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import manyheads as mh
from manyheads.errors import ModelError
from manyheads.long_context import HeadSplit, StreamingCache, streaming_cache
from manyheads.long_context.split_layer import split_layers
from manyheads.models.taps.open_taps import OPEN
from tests.edits.test_streaming import dense
from tests.interventions.checkpoints import COMPACT, DECODER, EIGHT, STOCK, VOCABULARY, WIDE, Family
from tests.interventions.surgeries import assert_close, assert_matters
from tests.models.eager import draw, padded
from tests.models.tiny import VOCAB_SIZE, tiny_bert, tiny_gemma2, tiny_gpt_oss, tiny_llama, tiny_mistral, tiny_t5
from tests.refusals import refuses

SINK, RECENT = 3, 5
WRITTEN = 11  # the ring goes round twice
PROMPTS = (23, 6, 1, 14)
WITHOUT_WINDOW = {"sliding_window": None}
ARCHITECTURES = {
    "llama": STOCK["llama"],
    "mistral": replace(STOCK["mistral"], changes=WITHOUT_WINDOW),
    "qwen2": STOCK["qwen2"],
    "qwen3": STOCK["qwen3"],  # norms on q and k
    "gemma": STOCK["gemma"],
    "phi": STOCK["phi"],  # rotates a part
    "phi3": replace(STOCK["phi3"], changes=WITHOUT_WINDOW),  # one projection
    "olmo": STOCK["olmo"],
    "olmo2": Family("Olmo2ForCausalLM", EIGHT, "", "o_proj"),
    "cohere": STOCK["cohere"],
    "granite": STOCK["granite"],  # a scale of its own
    "starcoder2": replace(STOCK["starcoder2"], changes=WITHOUT_WINDOW),
    "smollm3": STOCK["smollm3"],  # layers without rotation
    "stablelm": Family("StableLmForCausalLM", EIGHT, "", "o_proj"),
    "glm": Family("GlmForCausalLM", DECODER, "", "o_proj"),
    "persimmon": Family("PersimmonForCausalLM", WIDE, "", "dense"),
    "gpt2": COMPACT["gpt2"],  # learned positions
    "gpt_bigcode": COMPACT["gpt_bigcode"],  # MQA
    "gpt_neox": COMPACT["gpt_neox"],
    "opt": COMPACT["opt"],
}
QUICK = ("llama", "qwen3", "gemma", "cohere", "olmo2", "phi", "stablelm", "gpt2", "gpt_bigcode", "gpt_neox")


def split_of(lm, kept, sink=SINK, recent=RECENT):
    layers = split_layers(lm, "", kept, {}, {})
    return HeadSplit(lm.name, "", "", layers, sink, recent, "hand", "none", "none")


def some_split(lm, fresh, sink=SINK, recent=RECENT):
    """Some key/value heads of each layer, at random; never all of the first layer, never none of the model."""
    kept = {
        site.layer: [bool(x) for x in torch.rand(site.num_kv_heads, generator=fresh) < 0.5] for site in lm.spec.layers
    }
    kept[0][draw(fresh) % len(kept[0])] = False
    return split_of(lm, kept, sink, recent)


def chosen(split):
    """{layer: query heads that stream}, as the oracle takes them."""
    return {
        number: [
            head for head in range(layer.num_heads) if not layer.kept[head * layer.num_kv_heads // layer.num_heads]
        ]
        for number, layer in enumerate(split.layers)
    }


def family(name, fresh):
    return mh.load(ARCHITECTURES[name].make(fresh).double(), tokenizer=False)


def llama(fresh, num_kv_heads=3, **config):
    return mh.load(tiny_llama(num_kv_heads, seed=draw(fresh), **config).double(), tokenizer=False)


def options(**more):
    lengths = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN}
    more = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True, "output_logits": True, **more}
    return {**lengths, **more}


def whole(lm, split, ids, attention_mask):
    """The oracle's logits of all rows."""
    position_ids = (attention_mask.cumsum(-1) - 1).clamp_min(0)
    accepts = "position_ids" in lm.model.forward.__code__.co_varnames or "opt" not in type(lm.model).__name__.lower()
    places = {"position_ids": position_ids} if accepts else {}
    begins = attention_mask.argmax(1)
    with dense(lm, begins, split.sink, split.recent, layers=chosen(split)) as model, torch.no_grad():
        return model(input_ids=ids, attention_mask=attention_mask, use_cache=False, **places).logits


def assert_written_as_whole(lm, split, inputs, got):
    """Each step's logits are those of the whole text, read at once under the dense mask."""
    length = inputs["input_ids"].shape[1]
    ids = got.sequences[:, :-1]
    seen = torch.nn.functional.pad(inputs["attention_mask"], (0, ids.shape[1] - length), value=1)
    want = whole(lm, split, ids, seen)[:, length - 1 :]
    assert_close(torch.stack(got.logits, 1).double(), want.double())
    return want


# --------------------------------------------------------------------------------------------- as under a dense mask


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow)
                                            for name in ARCHITECTURES if name not in QUICK)])  # fmt: skip
def test_what_generate_writes_is_what_the_dense_mask_gives_in_every_architecture(name, fresh):
    """Left-padded prompts shorter than the sinks, within the window, and longer than both."""
    lm = family(name, fresh)
    split, inputs = some_split(lm, fresh), padded(fresh, PROMPTS, VOCABULARY, "left")
    with mh.streaming(lm, split):
        got = lm.model.generate(**inputs, **options())
    want = assert_written_as_whole(lm, split, inputs, got)
    stock = lm.model.generate(**inputs, **options())
    assert_matters(stock.logits[0][0].double(), want[0, 0].double())  # the longest prompt loses keys
    assert isinstance(got.past_key_values, StreamingCache) and type(stock.past_key_values) is DynamicCache


@pytest.mark.thinned
@pytest.mark.parametrize("pieces", [(40,), (1, 39), (9, 1, 16, 14), (2, 2, 36), (38, 1, 1)])
@pytest.mark.parametrize("sink, recent", [(0, 1), (0, 4), (3, 1), (1, 2), (5, 9), (4, 60)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_any_two_numbers_do_in_a_text_that_comes_in_pieces(
    num_kv_heads, attention, sink, recent, pieces, fresh, monkeypatch
):
    """Read by hand, with blocks of rows shorter than a piece; some texts have not begun in the first pieces."""
    monkeypatch.setattr(streaming_cache, "STREAMED_ROWS", 7)
    lm = llama(fresh, num_kv_heads)
    if attention == "eager":  # whose softmax, in float32, has no weights for padded rows of a float64 model
        lm.model.float().set_attn_implementation(attention)
    num_bytes = lm.model.dtype.itemsize * 1.0
    split = some_split(lm, fresh, sink, recent)
    for lengths in ((40,), (40, 3, 39, 17)):
        inputs = padded(fresh, lengths, VOCAB_SIZE, "left")
        places = (inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)
        logits, begin = [], 0
        with mh.streaming(lm, split, growth=1) as now, torch.no_grad():
            cache = now.cache()
            for size in pieces:
                rows = slice(begin, begin + size)
                begin += size
                result = lm.model(inputs["input_ids"][:, rows], attention_mask=inputs["attention_mask"][:, :begin],
                                  position_ids=places[:, rows], past_key_values=cache, use_cache=True)  # fmt: skip
                logits.append(result.logits)
                assert cache.get_seq_length() == begin and result.past_key_values is cache
                assert cache.held_bytes == split.cache_bytes(begin, len(lengths), num_bytes) and not cache.free_bytes
        real = inputs["attention_mask"].bool()
        assert_close(torch.cat(logits, 1)[real].double(), whole(lm, split, **inputs_of(inputs))[real])


def inputs_of(inputs):
    return {"ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}


def test_a_text_with_padding_behind_it_goes_on_and_so_does_a_mask_with_a_bias(fresh):
    """A mask with holes: texts padded on the right, then one more token each. And a float mask that adds numbers."""
    lm = llama(fresh)
    split = some_split(lm, fresh)
    inputs = padded(fresh, (21, 9, 15), VOCAB_SIZE, "right")
    more = torch.randint(5, VOCAB_SIZE, (3, 2), generator=fresh)
    seen = torch.cat([inputs["attention_mask"], torch.ones(3, 2, dtype=torch.long)], 1)
    places = seen.cumsum(-1) - 1
    with mh.streaming(lm, split) as now, torch.no_grad():
        cache = now.cache()
        lm.model(**inputs, past_key_values=cache)
        got = [lm.model(more[:, [step]], attention_mask=seen[:, : 22 + step], position_ids=places[:, [21 + step]],
                        past_key_values=cache).logits for step in range(2)]  # fmt: skip
    want = whole(lm, split, torch.cat([inputs["input_ids"], more], 1), seen)
    assert_close(torch.cat(got, 1), want[:, 21:])

    lm.model.set_attn_implementation("eager")
    ids = torch.randint(5, VOCAB_SIZE, (2, 23), generator=fresh)
    bias = torch.randn(2, 6, 23, 23, generator=fresh).double()  # each head its own
    bias = bias.masked_fill(torch.ones(23, 23).triu(1).bool(), torch.finfo(torch.float64).min)
    with mh.streaming(lm, split) as now, torch.no_grad():
        cache = now.cache()
        got = [lm.model(ids[:, :20], attention_mask=bias[:, :, :20, :20], past_key_values=cache).logits]
        got += [lm.model(ids[:, [at]], attention_mask=bias[:, :, [at], : at + 1], past_key_values=cache).logits
                for at in (20, 21, 22)]  # fmt: skip
    with dense(lm, torch.zeros(2), SINK, RECENT, layers=chosen(split)) as model, torch.no_grad():
        want = model(input_ids=ids, attention_mask=bias, use_cache=False).logits
    assert_close(torch.cat(got, 1), want)


def test_layers_with_a_window_of_their_own_keep_it_where_no_head_of_them_streams(fresh):
    """Gemma 2: windows in layers 0 and 2, a softcap; a head of layer 1 streams."""
    lm = mh.load(tiny_gemma2(seed=draw(fresh)), tokenizer=False)
    split = split_of(lm, {0: [True, True], 1: [True, False], 2: [True, True]})
    inputs = padded(fresh, PROMPTS, VOCAB_SIZE, "left")
    with mh.streaming(lm, split):
        got = lm.model.generate(**inputs, **options())
    assert_written_as_whole(lm, split, inputs, got)


def test_layers_without_attention_keep_their_own_states(fresh):
    """LFM2: convolutions in layers 0 and 2; a cache and the split have four layers."""
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    sizes = {**EIGHT, "num_hidden_layers": 4, "layer_types": kinds}
    lm = mh.load(Family("Lfm2ForCausalLM", sizes, "", "out_proj").make(fresh).double(), tokenizer=False)
    split, inputs = split_of(lm, {1: [True, False, True], 3: [False] * 3}), padded(fresh, (19, 19), VOCABULARY)
    with mh.streaming(lm, split):
        got = lm.model.generate(**inputs, **options())
    assert_written_as_whole(lm, split, inputs, got)
    cache, states = got.past_key_values, 2 * 2 * 48 * 3 * 8  # layers, texts, width, kernel, bytes
    assert cache.held_bytes - cache.free_bytes == split.cache_bytes(19 + WRITTEN - 1, 2, 8.0) + states


# ------------------------------------------------------------------------------------------------- as the ablation

WAYS = [
    {"num_beams": 3, "num_return_sequences": 2, "output_scores": True},
    {"prefill_chunk_size": 4},
    {"use_cache": False},
    {"do_sample": True},
]


@pytest.mark.parametrize("more", WAYS)
def test_every_way_to_generate_writes_what_the_ablation_writes_token_for_token(more, fresh):
    lm = mh.load(tiny_llama(seed=draw(fresh)), tokenizer=False)  # float32
    split, inputs = some_split(lm, fresh), padded(fresh, PROMPTS, VOCAB_SIZE, "left")
    results = []
    for block in (mh.applied(lm, split.ablation()), mh.streaming(lm, split)):
        with block, torch.random.fork_rng():
            torch.manual_seed(5)
            results.append(lm.model.generate(**inputs, **options(**more)))
    want, got = results
    assert torch.equal(got.sequences, want.sequences)
    assert_close(torch.stack(got.logits), torch.stack(want.logits))
    if "num_beams" in more:
        assert_close(got.sequences_scores, want.sequences_scores)


def test_any_dtype_does(fresh):
    for dtype in (torch.bfloat16, torch.float16):
        lm = mh.load(tiny_llama(seed=draw(fresh)).to(dtype), tokenizer=False)
        split, inputs = some_split(lm, fresh), padded(fresh, PROMPTS, VOCAB_SIZE, "left")
        with mh.streaming(lm, split):
            got = lm.model.generate(**inputs, **options())
        cache = got.past_key_values
        assert cache.held_bytes - cache.free_bytes == split.cache_bytes(23 + WRITTEN - 1, 4, 2.0)
        with mh.applied(lm, split.ablation()), torch.no_grad():
            want = lm.model(**inputs).logits[:, -1]
        assert_close(got.logits[0], want.float(), 0.1)  # of 8 bits; another rule would be as far as the numbers are


# ------------------------------------------------------------------------------------------------------------- memory


def test_bytes_are_those_of_the_arithmetic_with_room_that_is_counted(fresh):
    lm = llama(fresh)
    split = split_of(lm, {0: [True, False, False], 1: [True] * 3, 2: [False] * 3}, 4, 9)
    row = 2 * 3 * 2 * 8 * 8  # texts, key/value heads of a layer, keys and values, width, bytes
    for growth, prompt in ((1, 7), (4, 7), (4, 30), (256, 30)):
        with mh.streaming(lm, split, growth=growth), torch.no_grad():
            result = lm.model(torch.randint(5, VOCAB_SIZE, (2, prompt), generator=fresh))
            cache = result.past_key_values
            assert cache.held_bytes == split.cache_bytes(prompt, 2, 8.0) and cache.free_bytes == 0
            for step in range(1, 23):
                lm.model(torch.randint(5, VOCAB_SIZE, (2, 1), generator=fresh), past_key_values=cache)
                room = -step % growth
                short = max(0, 13 - prompt - step)  # of streaming heads, which never have more than 13 slots
                free = (4 * room + 5 * min(room, short)) * row // 3
                assert cache.free_bytes == free, (growth, prompt, step)
                assert cache.held_bytes - free == split.cache_bytes(prompt + step, 2, 8.0)
    assert split.cache_bytes(52, 2, 8.0) < 0.6 * split.cache_bytes(52, 2, 8.0, whole=True)


def test_no_map_of_a_streaming_head_is_made_and_no_step_copies_its_keys(fresh):
    """Of 1,500 tokens: no tensor has as many cells as one head's map; of a step, none as many as the window."""
    largest = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            aliases = func.is_view or not isinstance(result, torch.Tensor)
            largest.append(0 if aliases else result.untyped_storage().nbytes() // result.element_size())
            return result

    lm = mh.load(tiny_llama(1, seed=draw(fresh), max_position_embeddings=1600, num_hidden_layers=1), tokenizer=False)
    split = split_of(lm, {0: [False]}, 4, 600)
    with mh.streaming(lm, split) as now, torch.no_grad():
        cache = now.cache()
        with Watch():
            lm.model(torch.randint(5, VOCAB_SIZE, (1, 1500), generator=fresh), past_key_values=cache, logits_to_keep=1)
        assert max(largest) < 1500 * 1500 // 4, max(largest)
        largest.clear()
        with Watch():
            lm.model(torch.randint(5, VOCAB_SIZE, (1, 1), generator=fresh), past_key_values=cache)
        # Writing into a store shows as the store itself; what is made anew is smaller than its keys.
        assert sorted(set(largest))[-1] == 604 * 8 and sorted(set(largest))[-2] < 604


# ------------------------------------------------------------------------------------------------- caches, and blocks


def test_a_beginning_that_texts_share_is_read_once_and_copied(fresh):
    lm = llama(fresh)
    split = some_split(lm, fresh)
    begin = torch.randint(5, VOCAB_SIZE, (1, 14), generator=fresh)
    with mh.streaming(lm, split) as now:
        cache = now.cache()
        with torch.no_grad():
            lm.model(begin, past_key_values=cache)
        for size in (1, 6):
            ids = torch.cat([begin, torch.randint(5, VOCAB_SIZE, (1, size), generator=fresh)], 1)
            got = lm.model.generate(ids, past_key_values=copy.deepcopy(cache), **options())
            assert torch.equal(got.sequences, lm.model.generate(ids, **options()).sequences)
        assert cache.get_seq_length() == 14
        cache.reset()
        assert cache.get_seq_length() == 0 == cache.held_bytes


def test_texts_of_a_cache_are_chosen_and_repeated_with_their_padding(fresh):
    lm = llama(fresh)
    split, inputs = some_split(lm, fresh), padded(fresh, (19, 8, 12), VOCAB_SIZE, "left")
    order = torch.tensor([2, 0, 0, 1])
    changes = [("reorder_cache", order, order), ("batch_select_indices", order[:2], order[:2])]
    changes += [("batch_repeat_interleave", 2, torch.tensor([0, 0, 1, 1, 2, 2]))]
    for name, argument, rows in changes:
        more = torch.randint(5, VOCAB_SIZE, (len(rows), 3), generator=fresh)
        seen = torch.cat([inputs["attention_mask"][rows], torch.ones_like(more)], 1)
        places, got = seen.cumsum(-1) - 1, []
        with mh.streaming(lm, split) as now, torch.no_grad():
            cache = now.cache()
            lm.model(
                **inputs, position_ids=(inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0), past_key_values=cache
            )
            getattr(cache, name)(argument)
            for step in range(3):
                got += [lm.model(more[:, [step]], attention_mask=seen[:, : 20 + step], past_key_values=cache,
                                 position_ids=places[:, [19 + step]]).logits]  # fmt: skip
        want = whole(lm, split, torch.cat([inputs["input_ids"][rows], more], 1), seen)[:, 19:]
        assert_close(torch.cat(got, 1), want)


def test_a_model_is_as_it_was_behind_the_block_and_all_along_in_other_threads(fresh):
    lm = llama(fresh)
    split, ids = some_split(lm, fresh), torch.randint(5, VOCAB_SIZE, (1, 21), generator=fresh)
    before, attributes = lm.model.generate(ids, **options()), set(vars(lm.model))
    hooks = dict(lm.model._forward_pre_hooks), dict(lm.model._forward_hooks)
    elsewhere = []
    with pytest.raises(KeyError), mh.streaming(lm, split):
        thread = threading.Thread(target=lambda: elsewhere.append(lm.model.generate(ids, **options())))
        thread.start()
        thread.join()
        assert_matters(lm.model.generate(ids, **options()).logits[0], before.logits[0])
        raise KeyError
    after = lm.model.generate(ids, **options())
    for result in (*elsewhere, after):
        assert torch.equal(torch.stack(result.logits), torch.stack(before.logits))
        assert type(result.past_key_values) is DynamicCache
    assert len(elsewhere) == 1 and set(vars(lm.model)) == attributes and not OPEN.stand_ins
    assert (dict(lm.model._forward_pre_hooks), dict(lm.model._forward_hooks)) == hooks


def test_a_split_that_keeps_all_heads_changes_nothing(fresh):
    lm = llama(fresh)
    split = split_of(lm, {layer: [True] * 3 for layer in range(3)})
    inputs = padded(fresh, PROMPTS, VOCAB_SIZE, "left")
    with mh.streaming(lm, split):
        got = lm.model.generate(**inputs, **options())
    want = lm.model.generate(**inputs, **options())
    assert torch.equal(got.sequences, want.sequences)
    assert_close(torch.stack(got.logits), torch.stack(want.logits), 1e-7)


# ----------------------------------------------------------------------------------------------------------- refusals


def some_heads(lm):
    return split_of(lm, {site.layer: [False] * site.num_kv_heads for site in lm.spec.layers})


def tiny_deepseek(seed):
    few = {"num_local_experts": 3, "n_routed_experts": 3, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    latent = {"kv_lora_rank": 10, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 7}
    sizes = {**DECODER, **few, **latent, "num_key_value_heads": 6, "moe_intermediate_size": 20, "head_dim": 4}
    return Family("DeepseekV3ForCausalLM", sizes, "", "o_proj").make(torch.Generator().manual_seed(seed))


def tiny_falcon(seed):
    sizes = {"vocab_size": 97, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    return Family("FalconForCausalLM", sizes, "", "dense").make(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("make", "words"), [
    (tiny_mistral, r"L0 of .* keeps a window of its own, of which a streaming head would see the end"),
    (tiny_gemma2, r"L0 of .* keeps a window of its own.* Keep all of its heads"),
    (tiny_gpt_oss, r"L0 of .* keeps a window of its own"),
    (tiny_deepseek, r"L0 of .* has keys of 10 and values of 7 \(MLA\)"),
    (tiny_bert, r"L0 of .* lets rows look ahead|L0 of .* attention interface"),
    (tiny_falcon, r"L0 of .* does not attend through transformers' attention interface \(FalconAttention\)"),
])  # fmt: skip
def test_a_model_that_cannot_is_refused_before_anything_runs(make, words, fresh):
    lm = mh.load(make(seed=draw(fresh)), tokenizer=False)
    with pytest.raises(ModelError, match=words), mh.streaming(lm, some_heads(lm)):
        raise AssertionError("inside")
    assert not OPEN.stand_ins


def test_other_models_and_ways_to_load_one_are_refused_before_anything_runs(fresh):
    lm = llama(fresh)
    split = some_split(lm, fresh)

    def refused(words, lm=lm, split=split, **more):
        with pytest.raises(ModelError, match=words), mh.streaming(lm, split, **more):
            raise AssertionError("inside")

    t5 = mh.load(tiny_t5(seed=draw(fresh)), tokenizer=False)
    layers = split_layers(t5, "decoder", {number: [False] * 4 for number in range(9)}, {}, {})
    refused(
        "is an encoder-decoder: a streaming cache is for decoders alone",
        t5,
        replace(split, layers=layers, stack="decoder"),
    )
    refused(r"this is a split of .* and .* has 3 layers of 6 heads on 1 of 8", llama(fresh, 1))
    refused(r"whose weights have the digest 00000000", split=replace(split, weights_hash="0" * 64))
    refused("growth=0: give how many positions", growth=0)
    lm.model.train()
    refused("is in training mode")
    lm.model.eval().set_attn_implementation("flex_attention")
    refused(r"attends by 'flex_attention', .* load it with attn_implementation='sdpa'")
    lm.model.set_attn_implementation("sdpa")
    with mh.streaming(lm, split):
        refused("this model streams already")


def test_ways_to_generate_that_need_freed_keys_are_refused(fresh):
    lm = llama(fresh)
    split, ids = some_split(lm, fresh), torch.randint(5, VOCAB_SIZE, (1, 9), generator=fresh)
    with mh.streaming(lm, split) as now:

        def refused(words, kind=ModelError, **more):
            refuses(kind, words, lm.model.generate, ids, **{**options(max_new_tokens=3, min_new_tokens=3), **more})

        refused(r"generation by assisted_generation takes tokens back", prompt_lookup_num_tokens=3)
        refused(r"generation by assisted_generation takes tokens back", assistant_model=tiny_llama(seed=1).double())
        for kind in ("static", "quantized", "offloaded"):
            refused(f"cache_implementation='{kind}': a streaming cache takes its place", cache_implementation=kind)
        foreign = r"(cache|past_key_values) is a DynamicCache of transformers: leave it out"
        refused(foreign, past_key_values=DynamicCache())
        refused(r"output_attentions=True: streaming heads have weights on other keys", output_attentions=True)
        cache = now.cache()
        lm.model.generate(ids, past_key_values=cache, **options())
        refused(r"this streaming cache was used by another generate\(\) already", past_key_values=cache)
        refuses(ModelError, "continuous batching keeps earlier keys in pages", lm.model.init_continuous_batching)
        refuses(ModelError, r"crop\(-1\): a streaming cache has freed", cache.crop, -1)
        refuses(ModelError, "cannot be offloaded", cache.layers[0].offload)
        assert cache.layers[0].get_max_cache_shape() == -1  # get_max_length, as transformers up to 5.12 calls it
        assert not getattr(cache, "is_croppable", False)  # transformers asks for it from 5.17 on
        freed = pytest.raises(ModelError, match="has freed keys that a recording, a measurement and a plan need")
        with freed:
            mh.record_call(lm.model, ids)
        with freed, mh.applied(lm, split.ablation()):
            lm.model.generate(ids, **options())
    with mh.streaming(lm, split) as other, pytest.raises(ModelError, match="StreamingCache of another block"):
        lm.model.generate(ids, past_key_values=now.cache(), **options())
    with torch.no_grad(), pytest.raises(ModelError, match="used outside of its block"):
        lm.model(ids, past_key_values=other.cache())


def test_calls_by_hand_that_cannot_be_served_are_refused(fresh):
    lm = llama(fresh)
    split, ids = some_split(lm, fresh), torch.randint(5, VOCAB_SIZE, (2, 9), generator=fresh)
    with mh.streaming(lm, split) as now:
        with pytest.raises(ModelError, match=r"gradients would need: run it under torch.no_grad\(\)"):
            lm.model(ids, past_key_values=now.cache())
        with torch.no_grad():
            with pytest.raises(ModelError, match="rows look ahead"):
                lm.model(ids, attention_mask=torch.ones(2, 1, 9, 9, dtype=torch.bool))
            window = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)[None, None]
            refuses(ModelError, "some rows do not see their text's first key", lm.model, ids, attention_mask=window)
            packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
            with pytest.raises(ModelError, match="several texts are packed into one"):
                lm.model(ids[:1], position_ids=packed, use_cache=False)
            cache = now.cache()
            lm.model(ids, past_key_values=cache)
            with pytest.raises(ModelError, match="holds 2 texts, and 3 would continue it"):
                lm.model(ids[[0, 1, 0], :1], past_key_values=cache)
            stock = DynamicCache()
            lm.model.model(ids, past_key_values=stock)  # a part of the model, which has no hook: right, and not freed
            with pytest.raises(ModelError, match="reads a cache that is not of this block"):
                lm.model.model(ids[:, :1], past_key_values=stock)


def test_a_call_that_broke_off_and_a_layer_that_goes_its_own_way_are_told(fresh, monkeypatch):
    lm = llama(fresh)
    split, ids = some_heads(lm), torch.randint(5, VOCAB_SIZE, (1, 9), generator=fresh)
    with mh.streaming(lm, split) as now, torch.no_grad():
        cache = now.cache()
        stop = lm.model.model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lm.model(ids, past_key_values=cache)
        stop.remove()
        message = r"layers of this cache hold 18 and 0 positions: an earlier call broke off"
        refuses(ModelError, message, lm.model, ids, past_key_values=cache)
        attention = lm.model.model.layers[1].self_attn
        forward = type(attention).forward

        name = "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"

        def own_way(self, *args, **kwargs):
            kwargs[name].update(torch.zeros(1, 3, 9, 8), torch.zeros(1, 3, 9, 8), 1)
            return torch.zeros(1, 9, 48, dtype=torch.float64), None

        monkeypatch.setattr(attention, "forward", own_way.__get__(attention))
        with pytest.raises(ModelError, match=r"L1 of .* cached keys and did not attend through transformers'"):
            lm.model(ids, past_key_values=now.cache())

        def other_keys(self, *args, **kwargs):
            cache = kwargs[name]

            class Scaled:
                def update(self, keys, values, layer, **more):
                    keys, values = cache.update(keys, values, layer, **more)
                    return 2 * keys, values

            return forward(self, *args, **{**kwargs, name: Scaled()})

        monkeypatch.setattr(attention, "forward", other_keys.__get__(attention))
        with pytest.raises(ModelError, match="L1 of .* attends with keys that it did not cache"):
            lm.model(ids, past_key_values=now.cache())


def test_learned_sinks_are_refused_where_heads_stream_and_served_where_none_does(fresh):
    lm = mh.load(tiny_gpt_oss(seed=draw(fresh)), tokenizer=False)
    full = lm.model.config.layer_types.index("full_attention")
    split = split_of(lm, {site.layer: [site.layer != full] * site.num_kv_heads for site in lm.spec.layers})
    ids = torch.randint(5, VOCAB_SIZE, (1, 21), generator=fresh)
    with mh.streaming(lm, split), pytest.raises(ModelError, match=f"L{full} of .* with learned sinks"):
        lm.model.generate(ids, **options())
    with mh.streaming(lm, split_of(lm, {site.layer: [True] * site.num_kv_heads for site in lm.spec.layers})):
        got = lm.model.generate(ids, **options())
    assert_close(torch.stack(got.logits), torch.stack(lm.model.generate(ids, **options()).logits))


def test_the_same_model_in_another_thread_is_refused_while_it_streams(fresh):
    lm = llama(fresh)
    split, said = some_split(lm, fresh), []

    def also():
        with pytest.raises(ModelError, match="this model streams already") as caught, mh.streaming(lm, split):
            raise AssertionError("inside")
        said.append(caught)

    with mh.streaming(lm, split):
        thread = threading.Thread(target=also)
        thread.start()
        thread.join()
    assert len(said) == 1
