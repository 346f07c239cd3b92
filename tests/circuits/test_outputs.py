"""What a head says at a word is what the model's own modules compute there, and its sentence says it in words.

The oracle is the model's: eager maps, what its output projections, norms and blocks read and gave (plain hooks), and
NumPy on them.
"""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.circuits.says import (
    NOT_KEPT,
    OTHERS,
    SENTENCES,
    Voice,
    additions,
    head_output,
    head_sentence,
    layer_output,
    layer_sentence,
    pass_sentence,
    stream_shares,
)
from manyheads.edits import applied
from manyheads.errors import HeadError, ShapeError, TextError
from manyheads.heads import Head
from tests.circuits.by_hooks import PLACES, ByHooks
from tests.circuits.test_attribution import loaded, seen
from tests.models.eager import eager_maps, tiny_lm
from tests.models.tiny import tiny_bart, tiny_tokenizer

VALUES = ("q", "k", "v", "lse")
ANIMAL = "The animal didn't cross the street because it was too tired."
TEXT = "the old cat sat on the table and a dog saw the cat"
QUERY, LAYER = 7, 1


class Around(NamedTuple):
    """Modules whose inputs are the stream before and after a layer's attention, by path."""

    before: str
    after: str


LLAMA = Around("model.layers.{}.input_layernorm", "model.layers.{}.post_attention_layernorm")
AROUND = {
    "bert": Around("bert.encoder.layer.{}.attention.self", "bert.encoder.layer.{}.attention.output.LayerNorm"),
    "gpt2": Around("transformer.h.{}.ln_1", "transformer.h.{}.ln_2"),
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen3": LLAMA,
    "gpt_oss": LLAMA,
    "gemma2": Around("model.layers.{}.input_layernorm", "model.layers.{}.pre_feedforward_layernorm"),
    "opt": Around("model.decoder.layers.{}.self_attn_layer_norm", "model.decoder.layers.{}.final_layer_norm"),
    "gpt_neox": Around("gpt_neox.layers.{}.input_layernorm", "gpt_neox.final_layer_norm"),
    "t5": Around("decoder.block.{}.layer.0.layer_norm", "decoder.block.{}.layer.1.layer_norm"),
}
PARALLEL, BRANCH_NORM = "gpt_neox", "gemma2"


def near(got, want, atol=1e-9):
    np.testing.assert_allclose(got, np.asarray(want, np.float64), atol=atol, rtol=0)


@pytest.fixture(scope="module")
def animal(minilm):
    return mh.record(minilm, ANIMAL, keep=VALUES)


class Own(NamedTuple):
    """One layer of a model at one token: its site's sizes, eager map [h k], values [k g f], and its modules' rows."""

    rec: mh.recording.Recording
    lm: object
    weights: np.ndarray
    values: np.ndarray
    joined: np.ndarray
    gave: np.ndarray
    before: np.ndarray
    after: np.ndarray
    matrix: np.ndarray


def own(name, fresh):
    lm = loaded(name, fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    places, around = PLACES[name], AROUND[name]
    ids = {"input_ids": rec.tokens.ids}
    stack = "decoder" if name == "t5" else ""
    if stack:
        ids["decoder_input_ids"] = rec.stacks[stack][LAYER].tokens.ids
    paths = [path.format(LAYER) for path in (places.output, places.v, *around)]
    with seen(lm.model, *paths) as rows, torch.no_grad():
        lm.model(**ids)
    site = rec.stacks[stack][LAYER].site
    hooks = ByHooks(lm.model, places, site.num_heads, site.num_kv_heads, site.v_dim, None)
    values = hooks.split(rows[paths[1]][1][0], "v")
    if stack:
        with torch.no_grad():
            lm.model.set_attn_implementation("eager")
            maps = lm.model(**ids, output_attentions=True).decoder_attentions
    else:
        maps = eager_maps(lm.model, **ids)
    projection = lm.model.get_submodule(paths[0])
    matrix = projection.weight if type(projection).__name__ == "Conv1D" else projection.weight.T
    joined, gave = (x[0, QUERY].numpy() for x in rows[paths[0]])
    # OPT's feed-forward reads all positions of a batch in one row.
    before, after = (rows[path][0].flatten(0, -2)[QUERY].numpy() for path in paths[2:])
    return stack, Own(
        rec, lm, maps[LAYER][0, :, QUERY].numpy(), values.numpy(), joined, gave, before, after, matrix.detach().numpy()
    )


def slowly(*names):
    """Families that are much like others."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "gpt_oss", "gemma2", "gpt_neox", "t5", *slowly("mistral", "qwen3", "opt")]
)
def test_every_number_is_the_models_own(name, fresh):
    stack, it = own(name, fresh)
    layer = it.rec.stacks[stack][LAYER]
    result = layer_output(it.rec, str(layer.site), QUERY, it.lm)
    assert result.because == "" and result.branch_norm == (name == BRANCH_NORM)
    assert result.norm == ("post" if name == "bert" else "pre")
    assert (result.beside is not None) == (name == PARALLEL)
    width, per_group = layer.site.v_dim, layer.site.num_heads // layer.site.num_kv_heads
    for index, head in enumerate(result.heads):
        values = it.values[:, index // per_group]
        out = it.joined[index * width : (index + 1) * width]
        near(head.weights, it.weights[index], 1e-7)
        near(head.v, values)
        near(head.out, out, 1e-7)
        lengths = np.linalg.norm(values[it.weights[index] > 0], axis=1)
        assert head.silent == (np.linalg.norm(out) < 0.15 * lengths.mean()) == (head.heard is None)
        if not head.silent:
            near(head.heard, it.weights[index] * (values @ out) / (out @ out), 1e-6)
            assert head.heard.sum() == pytest.approx(1)
        assert head.kv_head == index // per_group and index in head.group
        total = np.nansum(np.exp(head.scores)) + (0 if head.sink is None else math.exp(head.sink))
        near(np.nan_to_num(np.exp(head.scores)) / total, it.weights[index], 1e-7)
        assert head.lse == pytest.approx(math.log(total)) and head.missing == pytest.approx(1 - it.weights[index].sum())
        products = head.scale * (head.k @ head.q) if head.softcap is None else None
        if products is not None:
            near(
                (products + (0 if head.bias is None else head.bias))[it.weights[index] > 0],
                head.scores[it.weights[index] > 0],
            )
        single = head_output(it.rec, head.head, QUERY, it.lm)
        near(single.adds, result.adds[index])
        near(single.before, it.before)
        assert single.wrote == pytest.approx(result.wrote[index])
    near(result.before, it.before)
    near(result.after, it.after, 1e-7)
    added = result.adds.sum(0) + result.output_bias
    near(added + result.before + (0 if result.beside is None else result.beside), it.after, 1e-6)
    if name == BRANCH_NORM:
        norm = it.lm.model.model.layers[LAYER].post_attention_layernorm
        held = (1 + norm.weight.detach().numpy()) / np.sqrt(np.square(it.gave).mean() + norm.eps)
    else:
        held = 1.0
        near(added, it.gave, 1e-6)
    parts = np.einsum("hf,hfm->hm", it.joined.reshape(-1, width), it.matrix.reshape(-1, width, it.matrix.shape[1]))
    near(result.adds, parts * held, 1e-6)
    near(result.wrote, (parts * held) @ added / (added @ added), 1e-6)
    assert result.wrote.sum() + result.bias_wrote == pytest.approx(1)


def test_what_heads_read_is_the_norm_of_the_stream_where_that_stands_before(fresh):
    lm = loaded("llama", fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    path = AROUND["llama"].before.format(LAYER)
    with seen(lm.model, path) as rows, torch.no_grad():
        lm.model(input_ids=rec.tokens.ids)
    near(layer_output(rec, LAYER, QUERY, lm).normed, rows[path][1][0, QUERY].numpy())
    assert layer_output(rec, LAYER, QUERY, lm).norm == "pre"


def test_a_factor_between_the_projection_and_the_stream_is_part_of_what_is_added(fresh):
    lm = loaded("granite", fresh, residual_multiplier=0.22)
    rec = mh.record(lm, TEXT, keep=VALUES)
    path = "model.layers.1.self_attn.o_proj"
    with seen(lm.model, path) as rows, torch.no_grad():
        lm.model(input_ids=rec.tokens.ids)
    result = layer_output(rec, LAYER, QUERY, lm)
    near(result.adds.sum(0) + result.output_bias, 0.22 * rows[path][1][0, QUERY].numpy(), 1e-7)


def test_cross_attention_hears_words_of_the_other_text(fresh):
    lm = mh.load(tiny_bart(5), tokenizer=tiny_tokenizer(special_tokens=False))
    rec = mh.record(lm, [("the cat sat", "a dog saw the old table")], keep=VALUES)
    result = head_output(rec, "cross:L1H2", 4, lm)
    assert {voice.name for voice in result.voices} == {'"the"', '"cat"', '"sat"'} and result.word == '"the"'
    assert not any(voice.is_me for voice in result.voices) and len(result.keys) == 3
    path = "model.decoder.layers.1.encoder_attn.out_proj"
    cross = rec.stacks["cross"][1]
    with seen(lm.model, path) as rows, torch.no_grad():
        lm.model(input_ids=rec.tokens.ids, decoder_input_ids=cross.tokens.ids)
    near(result.out, rows[path][0][0, 4].reshape(4, 8)[2].numpy(), 1e-5)
    near(
        layer_output(rec, "cross:L1", 4, lm).adds.sum(0),
        (rows[path][1][0, 4] - lm.model.get_submodule(path).bias).detach(),
        1e-5,
    )


def test_keys_without_a_column_are_one_exact_column(fresh):
    lm = tiny_lm("gpt_oss", fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    for name in ("L0H3", "L1H4"):
        whole, few = head_output(rec, name, 9, lm), head_output(rec, name, 9, lm, keys=4)
        visible = np.isfinite(whole.scores)
        assert (
            len(few.keys) == 4
            and few.keys[-1] == OTHERS
            and 9 in few.keys
            and list(few.keys[:-1]) == sorted(few.keys[:-1])
        )
        left = [key for key in whole.keys if visible[key] and key not in few.keys]
        assert few.num_others == len(left) and few.tokens[-1] == f"{len(left)} others"
        assert few.num_hidden == int((~visible).sum())
        assert few.weights[-1] == pytest.approx(whole.weights[left].sum())
        assert few.scores[-1] == pytest.approx(math.log(np.exp(whole.scores[left]).sum()))
        near(few.v[-1], whole.weights[left] @ whole.v[left] / whole.weights[left].sum())
        near(few.weights @ few.v, whole.out)
        assert few.sentence == whole.sentence and (few.heard is None or few.heard.sum() == pytest.approx(1))
        ranked = [key for key in np.argsort(-whole.weights, kind="stable") if key != 9]
        assert set(ranked[:2]) < set(few.keys) and np.isnan(few.k[-1]).all()
    assert whole.missing == pytest.approx(1 - whole.weights.sum()) and whole.missing > 0
    window = head_output(rec, "L0H3", 9, lm, keys=6)  # a window of 5: all that it sees has a column
    assert OTHERS not in window.keys and np.isfinite(window.scores).all() and window.num_hidden == 13 - len(window.keys)


def test_a_layers_columns_are_the_same_for_all_heads(fresh):
    lm = tiny_lm("llama", fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    result = layer_output(rec, LAYER, 11, lm, keys=5)
    assert {head.keys for head in result.heads} == {result.heads[0].keys} and result.heads[0].keys[-1] == OTHERS
    for head in result.heads:
        near(head.weights @ head.v, head.out)
        assert head.weights.sum() == pytest.approx(1)
    best = np.max([head_output(rec, head.head, 11).weights for head in result.heads], 0)
    best[11] = np.inf
    assert set(result.heads[0].keys[:-1]) == set(np.argsort(-best)[:4])


def test_each_text_of_a_batch_is_read_as_it_is_alone(fresh):
    lm = tiny_lm("bert", fresh)
    together = mh.record(lm, [TEXT, "a dog saw the cat"], keep=VALUES)
    alone = mh.record(lm, "a dog saw the cat", keep=VALUES)
    one, other = head_output(together, "L1H2", "cat", lm, text=1), head_output(alone, "L1H2", "cat", lm)
    assert one.sentence == other.sentence and one.because == other.because == ""
    near(one.adds, other.adds, 1e-5)
    near(one.before, other.before, 1e-5)


def test_a_written_text_is_read_again_by_its_tokens(fresh):
    lm = tiny_lm("gpt2", fresh)
    rec = mh.record(lm, "the cat", keep=VALUES, generate=4)
    last = int(rec.tokens.lengths[0]) - 1
    result = layer_output(rec, LAYER, last, lm)
    assert result.because == ""
    near(result.before + result.adds.sum(0) + result.output_bias, result.after, 1e-5)


def test_smollm2_shares_values_among_heads(smollm2):
    rec = mh.record(smollm2, ANIMAL, keep=VALUES)
    result = layer_output(rec, 11, "it", smollm2)
    path = "model.layers.11.self_attn.o_proj"
    with seen(smollm2.model, path, *(place.format(11) for place in LLAMA)) as rows, torch.no_grad():
        smollm2.model(input_ids=rec.tokens.ids)
    query = result.heads[0].query
    near(np.concatenate([head.out for head in result.heads]), rows[path][0][0, query], 1e-4)
    near(result.adds.sum(0) + result.output_bias, rows[path][1][0, query], 1e-4)
    near(result.before, rows[LLAMA.before.format(11)][0][0, query], 1e-4)
    near(result.after, rows[LLAMA.after.format(11)][0][0, query], 1e-4)
    assert [head.kv_head for head in result.heads] == [0, 0, 0, 1, 1, 1, 2, 2, 2] and result.heads[4].group == (3, 4, 5)


def test_words_that_are_the_same_are_told_apart_in_sentences(fresh):
    lm = tiny_lm("llama", fresh)
    rec = mh.record(lm, TEXT.replace("table", "table ,") + " , dog", keep=VALUES)
    result = head_output(rec, "L1H2", "cat#2", lm)
    assert result.word == 'the second "cat"' and result.sentence.startswith('The second "cat" ')
    names = [voice.name for voice in result.voices]
    assert names[:4] == ['the first "the"', '"old"', 'the first "cat"', '"sat"'] and len(set(names)) == len(names)


def test_the_second_of_two_marks_is_no_word_that_a_head_found():
    heads = [Head("", 1, index) for index in range(2)]
    voices = [
        [Voice('the second ","', 0.9, 0.9, 0.1, False, False), Voice('the second "cat"', 0.1, 0.1, 0.1, False, False)],
        [Voice('the second ","', 0.4, 0.3, 0.1, False, False), Voice('the second "cat"', 0.6, 0.7, 0.1, False, False)],
    ]
    said = layer_sentence(heads, voices, np.array([0.7, 0.3]))[0]
    assert said == 'Two looks became one vector; the head that found the second "cat" wrote 30 % of it.'


# ---------------------------------------------------------------------------------------------- several threads at once


@pytest.mark.parametrize("name", ["gpt_neox", *slowly("bert", "gemma2")])
def test_threads_that_ask_one_model_at_once_get_what_each_gets_alone(name, fresh):
    """A studio answers in several threads: what one follows is no other's, and nothing stays on the model."""
    lm = loaded(name, fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    places = range(1, int(rec.tokens.lengths[0]), 3)
    hooks = [len(hooks) for m in lm.model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]
    alone = {place: (additions(lm, rec.tokens, place), stream_shares(lm, rec.tokens, place)) for place in places}

    def ask(turn):
        place = places[turn % len(places)]
        if turn % 3:
            return place, additions(lm, rec.tokens, place)
        return place, stream_shares(lm, rec.tokens, place)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(ask, range(3 * len(places))))
    finally:
        sys.setswitchinterval(interval)
    for place, result in together:
        own, shares = alone[place]
        if isinstance(result, type(shares)):
            near(result.shares, shares.shares)
            continue
        assert result.reasons == own.reasons and set(result.by_site) == set(own.by_site)
        for site, addition in own.by_site.items():
            for part in ("joined", "before", "after", "of_bias"):
                near(getattr(result.by_site[site], part), getattr(addition, part))
    assert hooks == [len(hooks) for m in lm.model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]


# ------------------------------------------------------------------------------------------------ shares of the stream


@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt_neox", *slowly("gpt2", "llama", "t5")])
def test_shares_of_the_final_state_sum_to_one_and_a_feed_forwards_is_by_hand(name, fresh):
    lm = loaded(name, fresh)
    rec = mh.record(lm, TEXT)
    result = stream_shares(lm, rec.tokens, QUERY)
    assert result.shares.sum() == pytest.approx(1) and len(set(result.components)) == len(result.components)
    assert (len(result.next_tokens) == 5) == (name in ("gpt2", "llama", "gemma2", "gpt_neox"))
    with torch.no_grad():
        whole = lm.model(
            input_ids=rec.tokens.ids,
            output_hidden_states=True,
            **({"decoder_input_ids": rec.tokens.ids} if name == "t5" else {}),
        )
    if name == "t5":
        near(result.final, whole.encoder_last_hidden_state[0, QUERY], 1e-6)
    else:
        near(result.final, whole.hidden_states[-1][0, QUERY], 1e-6)
    if result.next_tokens:
        chances = whole.logits[0, QUERY].softmax(-1).sort(descending=True)
        near([token.probability for token in result.next_tokens], chances.values[:5], 1e-6)


def test_a_heads_share_of_the_final_state_is_its_part_through_the_last_norm(fresh):
    lm = loaded("gpt2", fresh)
    rec = mh.record(lm, TEXT)
    result = stream_shares(lm, rec.tokens, QUERY)
    path, norm = "transformer.h.1.attn.c_proj", lm.model.transformer.ln_f
    with seen(lm.model, path, "transformer.ln_f", "transformer.h.1.mlp") as rows, torch.no_grad():
        lm.model(input_ids=rec.tokens.ids)
    x, z = rows["transformer.ln_f"][0][0, QUERY], rows["transformer.ln_f"][1][0, QUERY]
    heads = rec.layers[1].site.num_heads
    width = rows[path][0].shape[-1] // heads

    def through(part):
        return ((part - part.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight).detach().numpy()

    for head in range(heads):
        part = (
            rows[path][0][0, QUERY, head * width : (head + 1) * width]
            @ lm.model.get_submodule(path).weight[head * width : (head + 1) * width]
        )
        assert result[f"L1H{head}"] == pytest.approx(float(through(part) @ z.numpy() / (z @ z)), abs=1e-8)
        place = result.components.index(f"L1H{head}")
        assert result.lengths[place] == pytest.approx(float(part.detach().norm()))
    moved = rows["transformer.h.1.mlp"][1][0, QUERY]
    assert result["L1 feed-forward"] == pytest.approx(float(through(moved) @ z.numpy() / (z @ z)), abs=1e-8)
    with pytest.raises(HeadError, match="has no row"):
        _ = result["L9H9"]


# ---------------------------------------------------------------------------------------------------------- in words


def test_the_sentence_says_who_asked_and_who_answered(animal):
    result = head_output(animal, "L3H1", "it")
    assert result.sentence == '"it" asked and "animal" answered: 68 % of the look, 91 % of what this head says.'
    assert (
        result.figures == "[CLS] takes 10 % of the look and says 0 % of the answer" and str(result) == result.sentence
    )


@pytest.mark.parametrize(
    ("head", "word", "sentence"),
    [
        (
            "L3H1",
            "tired",
            '"tired" found little to ask for: 69 % of its look parks on [CLS], which says 7 % of the answer.',
        ),
        ("L3H1", "because", '"because" looks most at [CLS] (26 %) and hears most of "too" (37 %).'),
        (
            "L3H5",
            "it",
            '"it" found little to ask for: 83 % of its look parks on [CLS]; this head says next to nothing.',
        ),
        ("L0H0", "it", '"it" answers itself: 20 % of the look, 44 % of what this head says.'),
    ],
)
def test_the_other_endings(animal, head, word, sentence):
    assert head_output(animal, head, word).sentence == sentence


def voice(name, look, heard=0.0, even=0.1, parks=False, is_me=False):
    return Voice(name, look, heard, even, parks, is_me)


A, B, C = voice('"a"', 0.6, 0.8), voice('"b"', 0.3, 0.1), voice("[CLS]", 0.1, 0.1, parks=True)


@pytest.mark.parametrize(
    ("voices", "missing", "silent", "sentence", "figures"),
    [
        ([], 0, True, '"me" sees nothing here.', ""),
        (
            [A, B],
            0.5,
            False,
            '"me" found little to ask for: 50 % of its look goes to nobody.',
            'loudest: "a", 80 % of what this head says',
        ),
        (
            [A, B, C],
            0,
            False,
            '"me" asked and "a" answered: 60 % of the look, 80 % of what this head says.',
            "[CLS] takes 10 % of the look and says 10 % of the answer",
        ),
        (
            [A, B],
            0,
            False,
            '"me" asked and "a" answered: 60 % of the look, 80 % of what this head says.',
            'next: "b", 30 % of the look, 10 % of the answer',
        ),
        (
            [A, B],
            0,
            True,
            '"me" looks most at "a" (60 %), and this head says next to nothing here.',
            'next: "b", 30 % of the look',
        ),
        (
            [voice('"me"', 0.7, 1.2, is_me=True), voice('"b"', 0.3, -0.2)],
            0,
            False,
            '"me" answers itself: 70 % of the look, 120 % of what this head says.',
            'next: "b", 30 % of the look, −20 % of the answer',
        ),
        (
            [voice("[CLS]", 0.4, 0.1, parks=True), voice("[SEP]", 0.2, 0.05, parks=True), voice('"b"', 0.4, 0.85)],
            0,
            False,
            '"me" found little to ask for: 60 % of its look parks on [CLS] and [SEP], which say 15 % of the answer.',
            'loudest: "b", 85 % of what this head says',
        ),
        (
            [voice("[CLS]", 0.9, 0.0, parks=True), B],
            0,
            True,
            '"me" found little to ask for: 90 % of its look parks on [CLS]; this head says next to nothing.',
            "",
        ),
        (
            [voice(f'"{n}"', 0.1, 0.1 + n / 100) for n in range(10)],
            0,
            False,
            '"me" listens to everyone a little.',
            'loudest: "9", 19 % of what this head says',
        ),
        (
            [voice('"a"', 0.21, 0.3), voice('"b"', 0.2, 0.7)],
            0,
            False,
            '"me" looks most at "a" (21 %) and hears most of "b" (70 %).',
            'next: "b", 20 % of the look, 70 % of the answer',
        ),
        (
            [voice('"a"', 0.8, math.nan), voice('"b"', 0.2, math.nan)],
            0,
            False,
            '"me" looks most at "a": 80 % of the look.',
            'next: "b", 20 % of the look',
        ),
        (
            [voice("[CLS]", 0.8, math.nan, parks=True), voice('"b"', 0.2, math.nan)],
            0,
            False,
            '"me" found little to ask for: 80 % of its look parks on [CLS].',
            "",
        ),
        ([voice(f'"{n}"', 0.1, math.nan) for n in range(10)], 0, False, '"me" looks at everyone a little.', ""),
    ],
)
def test_every_ending(voices, missing, silent, sentence, figures):
    assert head_sentence('"me"', voices, float(missing), silent) == (sentence, figures)


def test_a_special_token_that_asks_does_not_park_on_itself(animal):
    asking = next(voice for voice in head_output(animal, "L3H1", 0).voices if voice.is_me)
    assert asking.name == "[CLS]" and not asking.parks


def test_sinks_are_where_a_look_parks(animal):
    from manyheads.texts import Sinks

    ids = tuple(animal.tokens.ids[0, 2:3].tolist())
    sentence = head_output(animal, "L3H1", "it", sinks=Sinks(ids=ids, names=("animal",))).sentence
    assert (
        sentence == '"it" found little to ask for: 68 % of its look parks on "animal", which says 91 % of the answer.'
    )


def test_a_word_in_pieces_is_one_voice_and_asks_with_its_last_piece(minilm):
    rec = mh.record(minilm, "The unhappiest tokenizer cried.", keep=VALUES)
    pieces = [place for place, piece in enumerate(rec.tokens.pieces[0]) if piece.startswith("##")]
    assert pieces
    heads = [str(head) for layer in rec.layers for head in layer.site.heads]
    results = (head_output(rec, head, "tokenizer") for head in heads)
    result = next(result for result in results if not result.silent)
    whole = next(voice for voice in result.voices if voice.name == '"tokenizer"')
    first = rec.tokens.pieces[0].index("token")
    members = [first, *(place for place in pieces if place > first)]
    assert result.query == members[-1]
    assert whole.is_me and whole.look == pytest.approx(result.weights[members].sum())
    assert whole.heard == pytest.approx(result.heard[members].sum())


@pytest.mark.parametrize("kind", SENTENCES)
def test_no_sentence_is_long(kind):
    short = {
        "me": '"it"',
        "top": "[CLS]",
        "look": "68 %",
        "heard": "9 %",
        "loudest": '"a"',
        "says": "says",
        "head": "H1",
    }
    short |= {"looks": "Twelve looks", "wrote": "20 %", "layer": 3, "share": "9 %", "next": '"b"', "chance": "77 %"}
    assert len(SENTENCES[kind].format(**short).replace(" %", "%").split()) <= 20


def test_the_layers_sentence_names_the_head_that_found_a_word(minilm, animal):
    result = layer_output(animal, 3, "it", minilm)
    assert result.sentence == 'Twelve looks became one vector; the head that found "animal" wrote 20 % of it.'
    assert result.figures == "H7 22 %, H1 20 %, H9 18 %: no single head speaks alone"
    assert (
        layer_output(animal, 3, "it").sentence
        == 'Twelve looks at the same text; H1 looks most firmly: 68 % of its look is on "animal".'
    )


def test_a_layer_that_parks_names_the_head_that_wrote_most():
    heads = [Head("", 2, index) for index in range(16)]
    parked = [[voice("[CLS]", 0.9, parks=True), voice('"."', 0.1)]] * 16
    wrote = [0.01] * 16
    wrote[5], wrote[3] = 0.61, 0.2
    assert layer_sentence(heads, parked, wrote) == (
        "16 looks became one vector; H5 wrote 61 % of it, more than any other.",
        "H5 61 %, H3 20 %, H0 1 %: one head speaks for most",
    )
    assert layer_sentence(heads[:1], parked[:1], [1.0])[0].startswith("One look became one vector; H0 wrote 100 %")
    assert layer_sentence(heads, parked, None) == ("", "")


def test_a_forward_pass_ends_with_the_next_word_where_there_is_one():
    assert pass_sentence('"is"', 29, 0.45, "L29H1", '"France"', (" Paris", 0.7725)) == (
        'After "is" comes "Paris", the model says (77 %). Layer 29 moved it most: 45 %.'
    )
    assert pass_sentence('"it"', 5, 0.5, "L5H11", '"animal"', None) == (
        'Layer 5 moved "it" most: 50 % of what it became. There L5H11 looks at "animal".'
    )


# ---------------------------------------------------------------------------------------------- what cannot be had


def test_without_values_there_is_the_look_alone(minilm):
    rec = mh.record(minilm, ANIMAL)
    result = head_output(rec, "L3H1", "it", minilm)
    assert result.v is result.out is result.heard is result.adds is None and result.because == NOT_KEPT
    assert result.sentence == '"it" looks most at "animal": 68 % of the look.'
    assert layer_output(rec, 3, "it", minilm).because == NOT_KEPT


def test_without_the_model_there_is_no_addition(animal):
    result = head_output(animal, "L3H1", "it")
    assert result.adds is None and result.heard is not None and "needs the model: give lm=" in result.because


def test_edited_heads_and_another_model_are_noticed(minilm, animal, fresh):
    with applied(minilm, mh.Ablate("L2H3", kind="zero")):
        edited = mh.record(minilm, ANIMAL, keep=VALUES)
    assert "other outputs than were recorded" in head_output(edited, "L3H1", "it", minilm).because
    one, other = tiny_lm("gpt2", fresh), tiny_lm("gpt2", fresh)
    rec = mh.record(one, TEXT, keep=VALUES)
    assert "other outputs than were recorded" in layer_output(rec, 1, 5, other).because
    assert head_output(rec, "L1H1", 5, one).because == ""


def test_a_gate_between_heads_and_the_projection_is_noticed(fresh):
    lm = loaded("llama", fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    handle = lm.model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda m, args: (args[0] * 0.5,))
    try:
        known = additions(lm, rec.tokens, QUERY)
    finally:
        handle.remove()
    assert set(known.by_site) == {"L0"} and "a gate, a norm" in known.reasons["L1"]


def test_something_unknown_before_the_sum_is_noticed(fresh):
    lm = loaded("llama", fresh)
    rec = mh.record(lm, TEXT, keep=VALUES)
    handle = lm.model.model.layers[1].self_attn.register_forward_hook(lambda m, a, out: (out[0].tanh(), *out[1:]))
    try:
        result = layer_output(rec, 1, QUERY, lm)
    finally:
        handle.remove()
    assert result.adds is None and "neither a factor nor a norm" in result.because


def test_a_bare_call_has_no_text_to_read_again_and_names_places(fresh):
    lm = tiny_lm("llama", fresh)
    rec = mh.record_call(lm.model, input_ids=torch.randint(5, 60, (1, 9), generator=fresh), keep=VALUES)
    result = head_output(rec, "L0H4", 6, lm)
    assert result.adds is None and "no text that a model could read again" in result.because
    assert result.word == "place 6" and result.sentence.startswith("Place 6 asked") and result.out is not None


def test_what_cannot_be_asked_is_refused(animal, minilm):
    with pytest.raises(TextError, match="no word 'dog' in this text"):
        head_output(animal, "L3H1", "dog")
    twice = mh.record(minilm, "it saw it", keep=VALUES)
    with pytest.raises(TextError, match="2 times. Say which: 'it#1'"):
        head_output(twice, "L3H1", "it")
    assert head_output(twice, "L3H1", "it#2").word == 'the second "it"'
    with pytest.raises(HeadError, match="no head L3H99"):
        head_output(animal, "L3H99", "it")
    with pytest.raises(HeadError, match="no layer 'L9' in this recording: it has L0 to L5"):
        head_output(animal, "L9H0", "it")
    with pytest.raises(HeadError, match="there is no L77"):
        layer_output(animal, 77, "it")
    with pytest.raises(ShapeError, match="there is no token 99"):
        head_output(animal, "L3H1", 99)
    with pytest.raises(ShapeError, match="text=3"):
        head_output(animal, "L3H1", "it", text=3)
    with pytest.raises(ShapeError, match="keys=2: give 3 or more"):
        head_output(animal, "L3H1", "it", keys=2)


def test_a_result_is_plain_data_and_reads_in_a_line(animal, minilm):
    result = head_output(animal, "L3H1", "it", minilm, keys=6)
    data = result.to_dict()
    assert data["sentence"] == result.sentence and len(data["tokens"]) == 6 and data["words"][0]["name"] == '"animal"'
    assert len(repr(result)) <= 100 and len(repr(layer_output(animal, 3, "it"))) <= 100
    layer = layer_output(animal, 3, "it", minilm).to_dict()
    assert len(layer["heads"]) == 12 and layer["heads"][1]["wrote"] == pytest.approx(0.2, abs=0.01)
    assert len(repr(stream_shares(minilm, animal.tokens, 3))) <= 100
    assert len(stream_shares(minilm, animal.tokens, 3).to_dict()["components"]) > 72
