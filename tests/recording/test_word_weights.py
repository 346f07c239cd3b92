"""Pieces merge to words exactly, and so do maps of a recording: the oracle is a double loop over the map of pieces."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import RecordingError, ShapeError, StatisticError, TextError, WindowError
from manyheads.nn import Mask, Rule
from manyheads.recording import LayerRecord, Words
from manyheads.recording import layer as records
from manyheads.recording.words import HOWS, Merging, Unit, merge
from manyheads.spec import Site
from tests.recording.one_layer import LENGTHS, assert_near, make_case
from tests.recording.word_texts import CAFE, FAMILY, made_of, made_up, naive_merge, words_in

# ------------------------------------------------------------------------------------------------------------- merging

CHECK = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
CHECKED = {"first": (0.25, 0.5, 0.25), "mean": (0.325, 0.5, 0.175), "max": (0.3478, 0.4348, 0.2174)}


@pytest.mark.parametrize("how", HOWS)
def test_the_check_vector_of_clark_et_al(how):
    numbers = torch.tensor([0, 1, 1, 2])
    got = merge(CHECK, numbers, numbers, how)
    assert_near(got[1], CHECKED[how], atol=5e-5)
    assert_near(got[0], (0.1, 0.5, 0.4), atol=1e-6)
    assert_near(got[2], (0.7, 0.2, 0.1), atol=1e-6)


def test_the_mean_is_the_default():
    numbers = torch.tensor([0, 1, 1, 2])
    assert torch.equal(merge(CHECK, numbers, numbers), merge(CHECK, numbers, numbers, "mean"))


def groups(numbers):
    return [np.flatnonzero(np.asarray(numbers) == word) for word in range(max(numbers) + 1)]


@pytest.mark.parametrize("how", HOWS)
def test_merging_is_the_double_loop(rng, how):
    """Rows of any mass, words of scattered pieces, pieces of none: as a batch of heads and alone, in blocks or not."""
    for _ in range(5):
        weights = rng.random((3, 11, 7)) * (rng.random((3, 11, 7)) < 0.7)
        weights[:, 4] = 0  # a row that sees nothing
        rows = [*rng.permutation([0, 1, 2, 3]), *rng.integers(-1, 4, 7)]
        columns = [*rng.permutation([0, 1, 2]), *rng.integers(-1, 3, 4)]
        want = np.stack([naive_merge(each, groups(rows), groups(columns), how) for each in weights])
        numbers = torch.tensor(rows), torch.tensor(columns)
        assert_near(merge(torch.from_numpy(weights), *numbers, how), want, atol=1e-12)
        assert_near(merge(torch.from_numpy(weights)[1], *numbers, how), want[1], atol=1e-12)
        blocks = Merging(*numbers, how)
        for begin in range(0, 11, 2):
            blocks.add(torch.from_numpy(weights)[:, begin : begin + 2], begin)
        assert_near(blocks.weights, want, atol=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_sum_to_one_still_do(rng, how):
    weights = torch.from_numpy(rng.random((3, 9, 9)) ** 4)
    weights /= weights.sum(-1, keepdim=True)
    numbers = torch.tensor([0, 1, 1, 1, 2, 3, 3, 4, 4])
    got = merge(weights, numbers, numbers, how)
    assert_near(got.sum(-1), torch.ones(3, 5), atol=1e-12)
    assert (got - merge(weights, numbers, numbers, HOWS[HOWS.index(how) - 1])).abs().max() > 0.01  # the ways differ


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_see_nothing_stay_zero(how):
    numbers = torch.tensor([0, 0, 1])
    assert torch.equal(merge(torch.zeros(3, 3), numbers, numbers, how), torch.zeros(2, 2))


def test_half_precision_is_merged_in_float32():
    numbers = torch.zeros(2048, dtype=torch.long)
    weights = torch.full((2048, 2048), 1 / 2048).bfloat16()
    got = merge(weights, numbers, numbers)
    assert got.dtype == torch.float32
    assert_near(got, [[1.0]])


# --------------------------------------------------------------------------------------------------------------- limits


def test_numbers_that_do_not_fit_the_weights_are_refused():
    two = torch.tensor([0, 1])
    with pytest.raises(ShapeError, match="to_words numbers 2 pieces, but the weights have 3 there: give one each"):
        merge(torch.ones(2, 3), two, two)
    with pytest.raises(ShapeError, match=r"from_words must number words 0, 1, 2 .* without a gap .*, not \[0, 2\]"):
        merge(torch.ones(2, 2), torch.tensor([0, 2]), two)
    with pytest.raises(ShapeError, match=r"to_words must number .* not \[-2, 0\]"):
        merge(torch.ones(2, 2), two, torch.tensor([0, -2]))


# ------------------------------------------------------------------------------------------------- words of a recording


def members(units):
    return [list(unit.tokens) for unit in units]


def assert_word_map(got, full, rows, columns, how, every=None):
    """A WordMap against the double loop over a whole map [h, q, k]. `every`: all the keys' units, for the maximum."""
    assert got.queries == tuple(rows) and got.keys == tuple(columns)
    every = list(every or columns)
    where = [every.index(unit) for unit in columns]
    want = np.stack([naive_merge(each.numpy(), members(rows), members(every), how)[:, where] for each in full])
    assert_near(got.weights, want)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("option", ["plain", "sinks"])
@pytest.mark.sampled(3)
def test_word_weights_are_the_merged_map_of_each_text(rng, how, option):
    case, tokens = make_case(rng, "causal", option, LENGTHS), made_up(LENGTHS)
    layer, words = replace(case.layer, tokens=tokens), Words.of(tokens)
    for text, full in case.each():
        units = words.units(text)
        assert text == 3 or len(units) < len(full[0])
        assert_word_map(layer.word_weights(text=text, how=how), full, units, units, how)
        one = layer.word_weights(4, text, how, words)
        assert_near(one.weights, layer.word_weights(text=text, how=how).weights[4])
        assert_near(one.weights.sum(-1)[0], full[4].sum(-1)[0])


@pytest.mark.turns(4)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("drop", ["none", "special", "wordless"])
@pytest.mark.sampled(3)
def test_a_window_of_words_is_the_map_of_words_there(rng, how, drop, monkeypatch):
    case, tokens = make_case(rng, "bidirectional", lengths=(13, 29)), made_up((13, 29))
    layer, words = replace(case.layer, tokens=tokens), Words.of(tokens)
    monkeypatch.setattr(records, "WORD_BLOCK_CELLS", int(rng.choice([1, 400, 1 << 22])))
    for text, full in case.each():
        units, every = words.units(text, drop), words.units(text)
        for _ in range(6):
            rows, keys = (slice(*sorted(rng.integers(0, len(units) + 2, 2).tolist())) for _ in range(2))
            got = layer.word_weights(text=text, how=how, queries=rows, keys=keys, drop=drop)
            assert_word_map(got, full, units[rows], units[keys], how, every)


def test_what_is_dropped_leaves_the_other_weights_as_they_are(rng):
    case, tokens = make_case(rng, "causal", lengths=(13,)), made_up((13,))
    layer = replace(case.layer, tokens=tokens)
    for how in HOWS:
        whole, bare = layer.word_weights(how=how), layer.word_weights(how=how, drop="special")
        assert [unit.special for unit in whole.queries].count(True) == 2 and not any(u.special for u in bare.queries)
        assert_near(bare.weights, whole.weights[:, 1:-1, 1:-1], atol=1e-12)
        assert_near(whole.weights.sum(-1), torch.ones(H_, len(whole.queries)))


H_ = 6  # heads of make_case


def test_blocks_of_pieces_stay_small_however_many_pieces_there_are(rng, monkeypatch):
    case, tokens = make_case(rng, "causal", lengths=(29,)), made_up((29,))
    layer, asked, weights = replace(case.layer, tokens=tokens), [], LayerRecord.weights
    want = {how: layer.word_weights(how=how).weights for how in HOWS}

    def watched(self, *args, **kwargs):
        asked.append(weights(self, *args, **kwargs))
        return asked[-1]

    monkeypatch.setattr(LayerRecord, "weights", watched)
    monkeypatch.setattr(records, "WORD_BLOCK_CELLS", 3 * H_ * 29)
    for how in HOWS:
        assert_near(layer.word_weights(how=how).weights, want[how], atol=1e-6)
    assert max(block.numel() for block in asked) == 3 * H_ * 29
    asked.clear()
    layer.word_weights(queries=slice(2, 4), keys=slice(3, 5))
    assert sum(block.numel() for block in asked) < H_ * 29 * 29 / 3  # a window of pieces, no more


@pytest.mark.parametrize("how", HOWS)
def test_cross_attention_takes_the_words_of_the_text_it_looks_at(rng, how):
    seen = (19, 6, 11, 4)
    case = make_case(rng, "bidirectional", keys=seen)
    own, others = made_up(LENGTHS), made_up(seen, seed=1)
    layer, key_words = replace(case.layer, tokens=own), Words.of(others)
    for text, full in case.each():
        got = layer.word_weights(text=text, how=how, key_words=key_words)
        assert_word_map(got, full, Words.of(own).units(text), key_words.units(text), how)


def test_words_of_another_way_or_given_are_used(rng):
    tokens = made_of("it's a-b c.", [(0, 2), (2, 4), (5, 6), (6, 8), (9, 10), (10, 11)])
    layer = replace(make_case(rng, "causal", lengths=(6,)).layer, tokens=tokens)
    assert [unit.text for unit in layer.word_weights().queries] == ["it's", "a-b", "c", "."]
    assert [unit.text for unit in layer.word_weights(words="whitespace").queries] == ["it's", "a-b", "c."]
    given = Words.of(tokens, [[(0, 2), (2, 4), (5, 8), (9, 11)]])
    assert layer.word_weights(words=given).queries[0] == Unit("it", (0, 2), (0,), 0, False)


@pytest.mark.turns(4)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.sampled(1)
def test_the_bundled_models_words(minilm, how):
    """Against the double loop over its own pieces; special tokens stay, so rows sum to one."""
    texts = ["The caterpillar didn't cross the motorway.", f"Hi {FAMILY} {CAFE}: 我爱你 https://a.b/c", "ok"]
    rec = mh.record(minilm, texts)
    words = Words.of(rec.tokens)
    assert words_in(words, 0) == ["The", "caterpillar", "didn't", "cross", "the", "motorway", "."]
    assert [unit.text for unit in words.units(0)][:4] == ["[CLS]", "The", "caterpillar", "didn't"]
    assert [len(unit.tokens) for unit in words.units(0)][:4] == [1, 1, 3, 3]  # cater ##pi ##llar, didn ' t
    assert words_in(words, 1)[:5] == ["Hi", FAMILY, CAFE, ":", "我爱你"]
    for layer in (rec.layers[0], rec.layers[5]):
        for text in range(3):
            units = words.units(text)
            got = layer.word_weights(text=text, how=how)
            assert_word_map(got, layer.weights(text=text), units, units, how)
            assert_near(got.weights.sum(-1), torch.ones(12, len(units)), atol=1e-5)


# --------------------------------------------------------------------------------------------------------------- limits


def long_layer(length):
    tokens = made_of("a " * length, [(2 * at, 2 * at + 1) for at in range(length)])
    q, lse = torch.zeros(1, 16, length, 1), torch.full((1, 16, length), float(np.log(length)))
    site, mask = Site("", 0, "m", 16, 16, 1, 1, causal=False), Mask.full(length, length)
    return LayerRecord(site, q, q, None, lse, mask, Rule(1.0), tokens.lengths, tokens)


@pytest.mark.slow  # five seconds to make what is too large
def test_a_map_of_words_over_the_limit_is_refused_and_a_window_of_it_is_given():
    layer = long_layer(20_000)
    with pytest.raises(WindowError, match=r"16 heads x 20000 x 20000 weights between words is 25\.6 GB, above the lim"):
        layer.word_weights()
    with pytest.raises(WindowError, match=r"1 heads x 20000 x 20000 .*'max' needs every key"):
        layer.word_weights(head=3, how="max", keys=slice(0, 2))
    for how in HOWS:
        got = layer.word_weights(head=3, how=how, queries=slice(-3, None), keys=slice(7, 9))
        assert_near(got.weights * 20_000, torch.ones(3, 2), 1e-2)


def test_an_empty_window_is_empty(rng):
    layer = replace(make_case(rng, lengths=(13,)).layer, tokens=made_up((13,)))
    for how in HOWS:
        got = layer.word_weights(how=how, queries=slice(2, 2), keys=slice(1, 3))
        assert (got.queries, len(got.keys), got.weights.shape) == ((), 2, (6, 0, 2))
        assert layer.word_weights(how=how, keys=slice(9, 1)).weights.shape[-1] == 0


def test_cross_attention_without_words_of_its_keys_is_refused(rng):
    layer = replace(make_case(rng, "bidirectional", keys=(19, 6, 11, 4)).layer, tokens=made_up(LENGTHS))
    with pytest.raises(
        RecordingError, match=r"layer\.3 looks at another text, whose words .*give them as key_words=Wo"
    ):
        layer.word_weights()
    with pytest.raises(
        ShapeError, match=r"key_words= are of 20 tokens, but text 0 has 19 here: give words of the same"
    ):
        layer.word_weights(key_words=Words.of(made_up((20, 6, 11, 4))))
    alone = replace(make_case(rng, lengths=(13,)).layer, tokens=made_up((13,)))
    with pytest.raises(RecordingError, match=r"layer\.3 looks at its own text: .* without key_words="):
        alone.word_weights(key_words=Words.of(made_up((13,))))


def test_what_word_weights_cannot_use_is_said(rng):
    case, tokens = make_case(rng, lengths=(13, 7)), made_up((13, 7))
    layer = replace(case.layer, tokens=tokens)
    with pytest.raises(TextError, match="this recording knows no pieces, so no words: record a text through a model"):
        case.layer.word_weights()
    with pytest.raises(ShapeError, match=r"words= are of 11 tokens, but text 0 has 13 here: give words of the same"):
        layer.word_weights(words=Words.of(made_up((11, 7))))
    with pytest.raises(ShapeError, match=r"text=1 has no words here: they are of 1 texts, counted from 0\."):
        layer.word_weights(text=1, words=Words.of(made_up((13,))))
    with pytest.raises(ShapeError, match="text=2 is not in this recording"):
        layer.word_weights(text=2)
    with pytest.raises(ShapeError, match="head=6 is not in layer 3"):
        layer.word_weights(head=6)
    with pytest.raises(StatisticError, match=r"how='sum' is not a way to merge .*: use one of mean, first, max\."):
        layer.word_weights(how="sum")
    with pytest.raises(TextError, match=r"drop='all' is not what can be dropped: use one of none, special, wordless\."):
        layer.word_weights(drop="all")
    with pytest.raises(ShapeError, match="a window has step 1"):
        layer.word_weights(queries=slice(0, 4, 2))
    assert_near(layer.word_weights(text=-1).weights, layer.word_weights(text=1).weights, atol=0)
    assert Words.of(tokens).units(-1) == Words.of(tokens).units(1)
