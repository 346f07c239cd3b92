"""Why a head looks there: shares add up to the model's own log-odds, and `without` is what the model does without it.

The oracle is the model's own eager maps (its `output_attentions`), and plain hooks that take a writer's vector, made of
the output projection's weights by hand, out of what a block reads. Nothing of `circuits` is in either.
"""

import json
import pickle
from contextlib import ExitStack

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.circuits.why import Why, why_means
from manyheads.errors import HeadError, ModelError, RecordingError, StatisticError, TextError
from manyheads.inputs import Inputs, read
from manyheads.lab import design
from tests.circuits.by_hooks import PLACES
from tests.circuits.test_attribution import loaded
from tests.models.tiny import VOCAB_SIZE, tiny_tokenizer

TEXT = "why is the dog here ? the cat said no"
TARGET = "the old cat sat on the table"
WITH_MAPS = [
    "gpt2", "llama", "mistral", "qwen3", "gemma2", "gpt_oss", "bert", "opt", "gpt_neox", "cohere", "granite",
    "starcoder2", "phi", "gpt_bigcode", "t5", "bart",
]  # fmt: skip
LARGER = ["Olmo2", "Gemma3", "Qwen3Moe", "StableLm", "Nemotron", "Helium", "Glm4", "Cohere2", "DeepseekV3"]
TWO_STACKS = ("t5", "bart")


def given(name):
    return (TEXT, TARGET) if name in TWO_STACKS else TEXT


def larger(cls, fresh, dtype=torch.float64):
    """A model of three layers whose biases and gains are not at their start."""
    import transformers

    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 80, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0, "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 20, "sliding_window": 5,
    }  # fmt: skip
    if cls == "DeepseekV3":  # latent attention: its inner norms are held, and both parts of a key
        sizes |= {
            "num_key_value_heads": 6, "q_lora_rank": 14, "kv_lora_rank": 10, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 6, "v_head_dim": 7, "n_routed_experts": 4, "first_k_dense_replace": 3, "n_group": 2,
            "topk_group": 1,
        }  # fmt: skip
    model = getattr(transformers, f"{cls}ForCausalLM")
    sizes["head_dim"] = 8
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=fresh)))
    model = model(model.config_class(**sizes)).eval().to(dtype)
    if cls == "Qwen3Moe":  # torch's product for experts has no float64
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn(parameter.shape, generator=fresh, dtype=dtype)
    return mh.load(model, tokenizer=tiny_tokenizer())


def own_maps(lm, text):
    """The model's own eager weights of each stack's layers: name -> one `[h, q, k]` a layer."""
    target = text[1] if isinstance(text, tuple) else None
    inputs = read(lm, Inputs([text])).batch([0]).inputs
    implementation = lm.model.config._attn_implementation
    lm.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            outputs = lm.model(**inputs, output_attentions=True)
    finally:
        lm.model.set_attn_implementation(implementation)
    if target is None:
        return {"": [layer[0] for layer in outputs.attentions]}
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {stack: [layer[0] for layer in getattr(outputs, field)] for stack, field in names.items()}


def assert_adds_up(lm, text, fresh, tolerance):
    """Of the last head of each stack and random rows: both sides, against the rest and against one other key."""
    maps = own_maps(lm, text)
    for stack, layers in maps.items():
        heads = [head for head in lm.spec.heads if head.stack == stack]
        head = heads[int(torch.randint(len(heads) // 2, len(heads), (1,), generator=fresh))]
        weights = layers[head.layer][head.index].double()
        wide = [row for row in range(len(weights)) if int((weights[row] > 1e-6).sum()) > 2]
        query = wide[int(torch.randint(len(wide), (1,), generator=fresh))]
        seen = (weights[query] > 1e-6).nonzero()[:, 0].tolist()
        key, other = (seen[int(number)] for number in torch.randperm(len(seen), generator=fresh)[:2])
        for against in ("rest", other)[:: 1 if stack in ("", "cross") else 2]:
            answer = mh.why(lm, text, head, query, key, against)
            weight = weights[query, key]
            rest = weights[query, other] if against == other else 1 - weight
            odds = float((weight / rest).log())
            named = sum(answer.rows.values())
            scale = 1 + sum(abs(row.share) for row in answer.key)
            for table in (answer.query, answer.key):
                assert abs(sum(row.share for row in table) + named - odds) <= tolerance * scale, (stack, against)
            assert answer.weight == pytest.approx(float(weight), abs=10 * tolerance)
            assert answer.pair_shares.sum() == pytest.approx(
                answer.total, abs=tolerance * np.abs(answer.pair_shares).sum()
            )
            rows = answer.pair_shares.sum(1) - [row.share for row in answer.query]
            assert np.abs(rows).max() <= tolerance * np.abs(answer.pair_shares).sum()


# --------------------------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("name", WITH_MAPS)
def test_both_sides_add_up_to_the_models_own_log_odds(name, fresh):
    lm = loaded(name, fresh)
    # Cohere's rotary positions are computed in float32 in both runs, which its row `rounding` holds.
    assert_adds_up(lm, given(name), fresh, 1e-10 if name != "cohere" else 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("cls", LARGER)
def test_more_architectures_add_up(cls, fresh):
    lm = larger(cls, fresh)
    rounds = {
        "Olmo2",
        "Gemma3",
        "Cohere2",
        "Qwen3Moe",
        "Helium",
        "Glm4",
        "DeepseekV3",
    }  # norms or rotary positions in float32
    assert_adds_up(lm, TEXT, fresh, 1e-6 if cls in rounds else 1e-10)


@pytest.mark.parametrize("name", [
    "gpt2", "llama", "gemma2", "bert", "qwen3", "gpt_oss",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "opt", "gpt_neox", "granite", "phi", "t5")),
])  # fmt: skip
def test_float32_adds_up_to_a_ten_thousandth(name, fresh):
    assert_adds_up(loaded(name, fresh, torch.float32), given(name), fresh, 1e-4)


# ------------------------------------------------------------------------------------------------------- taken out


STREAM = {  # the block whose input is the stream, and the projection of each head's part, by layer
    "gpt2": ("transformer.h.{}", "transformer.h.{}.attn.c_proj", "transformer.h.{}.mlp", "transformer.wte"),
    "llama": ("model.layers.{}", "model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.embed_tokens"),
    "gpt_neox": (
        "gpt_neox.layers.{}", "gpt_neox.layers.{}.attention.dense", "gpt_neox.layers.{}.mlp", "gpt_neox.embed_in"
    ),
}  # fmt: skip
STREAM |= dict.fromkeys(("qwen3", "starcoder2", "gpt_oss", "mistral", "gemma2"), STREAM["llama"])
TAKEN_OUT = ["gpt2", "llama", "gpt_neox", "qwen3", "gpt_oss", "gemma2"]


def written_vectors(lm, name, head):
    """A head of layer 0, its feed-forward and the embedding: what each adds to the stream, by hand from hooks."""
    block, output, feed_forward, embedding = (path.format(0) for path in STREAM[name])
    kept = {}

    def keep(path):
        return lambda module, args, result: kept.update({path: (args[0], result)})

    paths = [output, feed_forward, embedding]
    after = [f"{block}.post_attention_layernorm", f"{block}.post_feedforward_layernorm"] if name == "gemma2" else []
    with ExitStack() as stack, torch.no_grad():
        for path in (*paths, *after):
            stack.callback(lm.model.get_submodule(path).register_forward_hook(keep(path)).remove)
        lm.model(**lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False))
    projection, width = lm.model.get_submodule(output), lm.spec.sites[0].v_dim
    weight = projection.weight if "Conv1D" in type(projection).__name__ else projection.weight.T
    columns = slice(head * width, (head + 1) * width)
    of_head = (kept[output][0][0][:, columns] @ weight[columns]).detach()
    result = kept[feed_forward][1]
    parts = {
        f"L0H{head}": of_head,
        "L0 feed-forward": (result[0] if isinstance(result, tuple) else result).reshape(of_head.shape),
    }
    for part, path in zip(parts, after, strict=False):  # a norm after the branch, held: its output over its input
        x, y = kept[path]
        parts[part] = parts[part] * (y / x)[0]
    return parts if name == "gemma2" else {**parts, "embedding": kept[embedding][1][0]}  # its factor is not seen here


def weights_without(lm, name, head, vector, side, query):
    """The reading layer's eager weights where its block is shown a stream without the vector, on one side alone."""
    block, places = STREAM[name][0].format(1), PLACES.get(name, PLACES["llama"])
    projections = {path.format(1) for path in (places.q, places.k, places.v)}
    ids = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    kept, model = {}, lm.model
    model.set_attn_implementation("eager")  # and left so: the answer was given before

    def take_out(module, args, kwargs):
        return (args[0] - vector, *args[1:]), kwargs

    def restore(path):
        # The other side is that of the plain run; of a fused projection, its columns.
        other = 1 if side == "query" else 0

        def hook(module, args, result):
            plain = kept[path]
            if len(projections) == 3:
                return plain if path.endswith("qk"[other] + "_proj") else None
            result = result.clone()
            width = result.shape[-1] // 3
            if places.fused == "inside":
                shape = (*result.shape[:2], lm.spec.sites[1].num_heads, 3, -1)
                result.view(shape)[:, :, :, other] = plain.view(shape)[:, :, :, other]
            else:
                columns = slice(other * width, (other + 1) * width)
                result[..., columns] = plain[..., columns]
            return result

        return hook

    with torch.no_grad(), ExitStack() as stack:
        for path in projections:
            module = model.get_submodule(path)
            hook = module.register_forward_hook(lambda module, args, result, path=path: kept.update({path: result}))
            stack.callback(hook.remove)
        model(**ids)
        stack.close()
        hook = model.get_submodule(block).register_forward_pre_hook(take_out, with_kwargs=True)
        stack.callback(hook.remove)
        for path in projections:
            stack.callback(model.get_submodule(path).register_forward_hook(restore(path)).remove)
        maps = model(**ids, output_attentions=True).attentions
    return maps[1][0, head, query]


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_without_is_what_the_model_does_where_the_writer_is_taken_out(name, fresh):
    lm = loaded(name, fresh)
    head, query, key, writer = 1, 8, 5 if name not in ("mistral", "gemma2") else 7, 2
    answer = mh.why(lm, TEXT, f"L1H{head}", query, key)
    moved = 0.0
    for part, vector in written_vectors(lm, name, writer).items():
        for side in ("query", "key"):
            weight = float(weights_without(lm, name, head, vector, side, query)[key])
            row = answer.of(part, side)
            assert row.without == pytest.approx(weight, abs=1e-6), (part, side)
            assert row.odds_without == pytest.approx(float(np.log(weight / (1 - weight))), abs=1e-4 / weight)
            moved = max(moved, abs(row.odds_without - answer.log_odds))
    assert moved > 0.002  # far above what rounding moves


def test_a_writer_of_a_post_norm_model_is_really_taken_out(fresh):
    """BERT: the stream passes norms, so what a head of layer 0 wrote goes through them again, all else as it was."""
    lm = loaded("bert", fresh)
    head, query, key, writer = 3, 6, 2, 1
    layers, kept = lm.model.bert.encoder.layer, {}
    dense, norm = layers[0].attention.output.dense, layers[0].attention.output.LayerNorm
    ids = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        hooks = [dense.register_forward_hook(lambda module, args, result: kept.update(z=args[0][0], dense=result[0]))]
        hooks += [norm.register_forward_hook(lambda module, args, result: kept.update(x=args[0][0]))]
        hooks += [layers[0].output.dense.register_forward_hook(lambda module, args, result: kept.update(ff=result[0]))]
        lm.model(**ids)
        for hook in hooks:
            hook.remove()
        width = lm.spec.sites[0].v_dim
        columns = slice(writer * width, (writer + 1) * width)
        vector = kept["z"][:, columns] @ dense.weight.T[columns]
        stream = layers[0].output.LayerNorm(norm(kept["x"] - vector) + kept["ff"])
        whole = layers[0].output.LayerNorm(norm(kept["x"]) + kept["ff"])
        attention = layers[1].attention.self
        num_heads, size = lm.spec.sites[1].num_heads, lm.spec.sites[1].qk_dim

        def scores(of_query, of_key):
            q = attention.query(of_query).view(-1, num_heads, size)[query, head]
            return attention.key(of_key).view(-1, num_heads, size)[:, head] @ q * size**-0.5

        answer = mh.why(lm, TEXT, f"L1H{head}", query, key)
        assert answer.weight == pytest.approx(float(scores(whole, whole).softmax(0)[key]), abs=1e-9)
        for side, row in (("query", scores(stream, whole)), ("key", scores(whole, stream))):
            assert answer.of(f"L0H{writer}", side).without == pytest.approx(float(row.softmax(0)[key]), abs=1e-9)


# ------------------------------------------------------------------------------------------------- what is known to be


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_a_designed_induction_head_reads_keys_that_the_previous_token_head_wrote(seed):
    words = np.random.default_rng(seed).permutation(["one", "two", "three", "four", "five", "six"])[:5].tolist()
    lm = design.build(
        [[None, design.previous(), None], [None, None, design.induction()]], causal=True, seed=seed, noise=0.01
    )
    text = " ".join([*words, *words[:3]])
    # [CLS], five words, three of them again: from the third to the fourth, against the first.
    answer = mh.why(lm, text, "L1H2", 8, 4, against=1)
    assert (answer.from_token.token, answer.to_token.token) == (words[2], words[3]) and answer.weight > 0.5
    shares = {row.writer: row.share for row in answer.key}
    assert answer.key[0].writer == "L0H1" and shares.pop("L0H1") > 20 * max(map(abs, shares.values()))
    assert answer.key[0].looks_at.position == 3 and answer.key[0].without < 0.2
    # Against the rest, of which most is [CLS], where such a head rests: that stands against it, by its position.
    rest = mh.why(lm, text, "L1H2", 8, 4)
    assert rest.key[0].writer == "L0H1" and rest.key[0].share > 20 * rest.key[1].share
    assert rest.key[-1].writer == "position embedding" and rest.key[-1].at_rivals < 0.99 * rest.key[-1].share < 0


def test_a_massive_activation_is_named_with_its_writer(fresh):
    """Position 0 gets an embedding 300 times as long as others', along one direction that queries and keys share."""
    lm = loaded("gpt2", fresh)
    body = lm.model.transformer
    with torch.no_grad():
        shared = torch.randn(36, generator=fresh, dtype=torch.float64)
        body.wpe.weight += 3 * shared
        body.wpe.weight[0] += 900 * shared
        qkv = body.h[1].attn.c_attn
        qkv.weight[:, 36:72], qkv.bias[36:72] = qkv.weight[:, :36], qkv.bias[:36]
    # Of the rows that see position 5, the one that looks there most: what a head hardly looks at is no story.
    query = 6 + int(mh.record(lm, TEXT).layers[1].weights(head=2)[6:, 0].argmax())
    answer = mh.why(lm, TEXT, "L1H2", query, 0)
    key = answer.to_token
    opening = f"the key “{key.token.strip()}” ({key.position}) holds a massive activation: "
    assert answer.massive.startswith(opening + "position embedding made its stream ")
    assert answer.massive.endswith(
        " times as long as that of a usual token, and heads that find nothing to read often look at such a token"
    )
    other = mh.why(lm, TEXT, "L1H2", query, 5, against=0)
    assert other.massive == answer.massive.replace("the key", "a rival", 1) and other.massive in str(other)


@pytest.mark.slow  # 360 MB are read; the test before this one holds the words, this one a trained model
def test_the_first_tokens_massive_activation_is_said_to_be_what_a_sink_looks_at(smollm2):
    answer = mh.why(smollm2, "When Mary and John went to the store", "L20H3", " to", "When")
    assert answer.weight > 0.9 and answer.key[0].writer == "L11 feed-forward"
    opening = "the key “When” (0) holds a massive activation: L11 feed-forward made its stream "
    assert answer.massive.startswith(opening) and "times as long as that of a usual token" in answer.massive
    assert answer.massive in str(answer)
    other = mh.why(smollm2, "When Mary and John went to the store", "L20H3", " to", " John", against="When")
    assert "a rival “When” (0) holds a massive activation" in other.massive and "is no story" in str(other)
    row = other.of("L11 feed-forward", "key")
    assert row.share < -5 and row.at_rivals == pytest.approx(row.share, rel=0.2)


@pytest.mark.slow  # the designed pair stands for it
def test_an_induction_head_of_smollm2_reads_keys_that_a_previous_token_head_wrote(smollm2):
    text = "The red fox saw a blue bird near the old mill. The red fox saw a blue bird near the old mill."
    answer = mh.why(smollm2, text, "L17H5", 21)
    assert (answer.from_token.token, answer.to_token[:2]) == (" old", (10, " mill"))
    assert answer.key[0].writer == "L16H0" and answer.key[0].without < 0.05 < answer.weight - 0.5
    further = answer.further(smollm2, "L16H0", "key")
    assert (further.from_token.position, further.to_token.position) == (10, 9) and further.weight > 0.8


@pytest.mark.slow
def test_ranking_by_share_agrees_with_removal_on_held_out_sentences(smollm2, rng):
    """Spearman of share with the change of the log-odds without the writer, median over heads and rows."""
    from scipy.stats import spearmanr

    sentences = [
        "The committee will publish its report on the bridge before the end of the month.",
        "My sister planted three apple trees behind the old barn last spring.",
        "Rain fell all night, and by morning the river had covered the road.",
        "He opened the letter slowly, because he already knew what it would say.",
    ]
    found = {"query": [], "key": []}
    for sentence in sentences:
        for _ in range(6):
            head = f"L{rng.integers(6, 30)}H{rng.integers(9)}"
            answer = mh.why(smollm2, sentence, head, int(rng.integers(6, 13)))
            for side, table in (("query", answer.query), ("key", answer.key)):
                removal = [answer.log_odds - row.odds_without for row in table]
                found[side].append(spearmanr([row.share for row in table], removal)[0])
    assert np.median(found["query"]) >= 0.9 and np.median(found["key"]) >= 0.8


# ------------------------------------------------------------------------------------------------------- further, means


def test_one_step_further_asks_the_writer_where_it_looked_itself(fresh):
    lm = loaded("gpt2", fresh, num_hidden_layers=3)
    answer = mh.why(lm, TEXT, "L2H1", 7, 4)
    row = next(row for row in answer.key if row.writer == "L1H0")
    further = answer.further(lm, "L1H0", "key")
    assert (further.from_token.position, further.to_token[:2]) == (4, row.looks_at[:2])
    assert further.weight == pytest.approx(row.looks_at.weight, abs=1e-9)
    assert further.head == mh.Head.parse("L1H0") and further.text == TEXT
    side = "query" if abs(answer.of("L1H0", "query").share) > abs(row.share) else "key"
    chosen = answer.further(lm, "L1H0").from_token
    assert chosen == (answer.from_token if side == "query" else answer.to_token[:2])
    with pytest.raises(HeadError, match="L2H1 is not a head that wrote either side of this weight: these did, L"):
        answer.further(lm, "L2H1")


@pytest.mark.parametrize("name", ["gemma2", "bert", "gpt_oss"])
def test_means_over_rows_are_the_means_of_single_weights(name, fresh):
    lm = loaded(name, fresh)
    texts = [TEXT, "the dog the old cat sat on the dog"]
    result = mh.why(lm, texts, "L1H2", where=lambda tokens: [(row, row - 1) for row in (3, 5, len(tokens) - 1)])
    for side in ("query", "key"):
        shares = []
        for text in texts:
            length = len(lm.tokenizer(text)["input_ids"])
            rows = [mh.why(lm, text, "L1H2", row, row - 1) for row in (3, 5, length - 1)]
            shares += [{row.writer: row.share / len(rows) for row in getattr(answer, side)} for answer in rows]
        means = {writer: sum(row[writer] for row in shares) / len(texts) for writer in shares[0]}
        table = getattr(result, side)
        assert {row.writer for row in table} == set(means)
        for row in table:
            assert row.share == pytest.approx(means[row.writer], abs=1e-9) and np.isnan(row.low)
        assert sum(row.share for row in table) + sum(result.named.values()) == pytest.approx(result.log_odds, abs=1e-9)
    assert result.rows == (3, 3) and result.error < 1e-9


def test_rows_of_a_kind_and_of_a_function(fresh):
    lm = loaded("gpt2", fresh)
    text = "the dog here the dog no"  # with its ends: [CLS] the dog here the dog no [SEP]
    at = {name: mh.why(lm, [text], "L1H0", where=name) for name in ("induction", "first", "largest")}
    tokens = mh.record(lm, text).tokens.pieces[0]
    again = [place for place, token in enumerate(tokens) if token in tokens[:place]]
    assert at["induction"].rows == (len(again),) and at["first"].rows == (len(tokens) - 1,)
    same = mh.why(lm, [text], "L1H0", where=lambda tokens: [(place, 0) for place in range(1, len(tokens))])
    assert [row[:3] for row in same.key] == [row[:3] for row in at["first"].key]
    weights = mh.record(lm, text).layers[1].weights(head=0)[1:]
    assert at["largest"].weight == pytest.approx(float(weights.max(-1).values.mean()), abs=1e-5)
    assert at["first"].weight == pytest.approx(float(weights[:, 0].mean()), abs=1e-5)
    many = why_means(lm, [text], "L1", "first")
    assert list(many) == list(lm.spec.select("L1"))
    assert [row.share for row in many[mh.Head.parse("L1H0")].key] == pytest.approx([row.share for row in same.key])


def test_five_texts_give_intervals_and_a_null_of_shuffled_writers(fresh):
    lm = loaded("llama", fresh)
    texts = [f"the {word} sat on the {word}" for word in ("cat", "dog", "table", "old cat", "old dog")]
    result = mh.why(lm, texts, "L1H3", where="first")
    for side in ("query", "key"):
        shares = np.array([row.share for row in getattr(result, side)])
        assert 0 < result.null[side] <= np.abs(shares).max() * len(shares)
    assert all(row.low <= row.share <= row.high for row in result.key)
    assert "by chance within +-" in str(result) and len(result.rows) == 5


# ----------------------------------------------------------------------------------------------------- as a result


def test_the_answer_reads_as_words_and_as_tables(fresh, tmp_path):
    lm = loaded("gpt2", fresh)
    answer = mh.why(lm, TEXT, "L1H2", "cat", "dog")
    lines = str(answer).splitlines()
    assert lines[0].startswith("L1H2 from 'cat' (8) to 'dog' (4): weight ") and " (next: " in lines[0]
    assert "log-odds against the rest" in lines[1] and "for the spread over 8 other keys; sum exact to" in lines[1]
    if answer.weight < 0.05:  # the drawn weights' own choice
        assert lines.pop(2) == "  a weight under 0.05 is no story: the head does not look there"
    assert lines[2].startswith("  query, written at 'cat' (8): ") and "without it " in lines[2]
    assert lines[-1].startswith("  together: ") and f"5 of {answer.pair_shares.size:,} pairs" in lines[-1]
    frame = answer.to_pandas()
    assert len(frame) == len(answer.query) + len(answer.key)
    answer.save(tmp_path / "why.csv")
    assert pd.read_csv(tmp_path / "why.csv")["share"].tolist() == pytest.approx(frame["share"].tolist())
    document = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert document["weight"] == answer.weight and document["rows"]["spread"] == answer.spread < 0
    assert len(document["pairs"]) == 5 == len(answer.pairs())
    assert answer.pairs(1)[0].share == pytest.approx(answer.pair_shares.flat[np.abs(answer.pair_shares).argmax()])
    copied = pickle.loads(pickle.dumps(answer))
    assert isinstance(copied, Why) and copied.to_dict() == answer.to_dict()
    assert "<table" in answer._repr_html_() and repr(answer).startswith("Why(L1H2 from 'cat'")
    assert all((row.looks_at is not None) == (row.kind == "head") for row in answer.key)


def test_a_recording_of_the_text_is_the_text(fresh):
    lm, other = loaded("gpt2", fresh), loaded("gpt2", fresh)
    recording = mh.record(lm, TEXT)
    answer = mh.why(lm, recording, "L1H2", 8)
    assert answer.to_dict() == mh.why(lm, TEXT, "L1H2", 8).to_dict()
    with pytest.raises(RecordingError, match="this recording was not made with .* as it is now .*queries of L1 differ"):
        mh.why(other, recording, "L1H2", 8)
    with pytest.raises(RecordingError, match="this recording was not made with .* as it is now .*queries of L1 differ"):
        mh.why(lm, mh.record(loaded("gpt2", fresh, num_hidden_layers=1), TEXT), "L1H2", 8)
    with pytest.raises(RecordingError, match="this recording holds 2 texts, and one weight belongs to one"):
        mh.why(lm, mh.record(lm, [TEXT, TARGET]), "L1H2", 8)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (("L1H2", "the"), TextError, "query='the' is in this text 2 times, at 3 and 7: give the position"),
    (("L1H2", "dog", "zebra"), TextError, "key='zebra' is not a token of this text"),
    (("L1H2", 99), TextError, r"query=99: this text has 12 tokens, 0 to 11"),
    (("L1H2", True), TextError, r"query=True: give a token of the text"),
    (("L1H2", "dog", "cat"), TextError, "L1H2 does not see 'cat' .8. from 'dog' .4.: its mask hides it. .* 0 to 4"),
    (("L1H2", "cat", "dog", "dog"), TextError, "against='dog' is the key itself, 'dog' .4.: give another"),
    (("L1H2", 0), TextError, "L1H2 sees .* alone from .*: a weight of 1"),
    (("L0H2", "cat"), HeadError, "L0H2 is in the first layer, where the embedding alone has written"),
    (("L1", "cat"), HeadError, "'L1' is 6 heads, and a weight belongs to one"),
    (("L9H9", "cat"), HeadError, "L9H9"),
])  # fmt: skip
def test_what_cannot_be_asked_is_one_line(arguments, error, message, fresh):
    lm = loaded("llama", fresh)
    with pytest.raises(error, match=message):
        mh.why(lm, TEXT, *arguments)


def test_rows_and_one_weight_are_not_asked_together(fresh):
    lm = loaded("llama", fresh)
    with pytest.raises(StatisticError, match="where= chooses the rows: leave query=, key= and against= out"):
        mh.why(lm, [TEXT], "L1H2", "cat", where="first")
    with pytest.raises(StatisticError, match="give a text, or where= for means"):
        mh.why(lm, [TEXT], "L1H2")
    with pytest.raises(StatisticError, match="where='sideways' is not a kind of rows"):
        mh.why(lm, [TEXT], "L1H2", where="sideways")
    with pytest.raises(StatisticError, match="where= reads texts, and was given a recording"):
        mh.why(lm, mh.record(lm, TEXT), "L1H2", where="first")
    with pytest.raises(TextError, match="no text has a row of where='induction'"):
        mh.why(lm, ["dog"], "L1H2", where="induction")
    with pytest.raises(TextError, match=r"where gave \(3, 99\) for a text of 12 tokens: give \(query, key\)"):
        mh.why(lm, [TEXT], "L1H2", where=lambda tokens: [(3, 99)])


def test_what_is_not_linear_on_the_way_to_a_query_is_refused_by_name(fresh):
    class Gated(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y * y.sigmoid()

    lm = loaded("llama", fresh)
    projection = lm.model.model.layers[1].self_attn.q_proj
    projection.__class__ = Gated
    with pytest.raises(ModelError, match="between its layers and the query of L1H2 stands a step that is not linear"):
        mh.why(lm, TEXT, "L1H2")
    # A module that looks linear, and is not, shows in the sum.
    projection.__class__ = torch.nn.Linear
    projection.forward = lambda x: torch.nn.functional.linear(x, projection.weight).relu()
    with pytest.raises(ModelError, match="the parts of its score add up to .*, and the model's own q . k is "):
        mh.why(lm, TEXT, "L1H2")
