"""What the lessons on heads say of real models holds. Oracles: the maps themselves, and arithmetic."""

import re

import numpy as np
import pytest
import torch

from manyheads.errors import HeadError, ShapeError, TextError
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages import archetypes
from manyheads.lab.lessons.pages import induction as circuits
from manyheads.lab.lessons.pages import kv_cache as caching
from manyheads.lab.lessons.pages import pruning as redundancy
from manyheads.lab.lessons.pages import what_heads_learn as evidence
from manyheads.lab.lessons.parameters import read_values
from tests.refusals import refuses

TOPICS = (archetypes, caching, circuits, evidence, redundancy)


@pytest.fixture(scope="module")
def load(minilm):
    return lambda name: minilm if name == "minilm" else shelf.load(name)


def ran(topic, cell, load, **given):
    found = topic.CELLS[cell]
    return found.run(read_values(found.parameters, given), load)


def fact(topic, name, load, **given):
    found = topic.FACTS[name]
    return found.say(read_values(found.parameters, given), load)


def right(topic, name, load, **given):
    found = topic.CHECKS[name]
    return found.find(read_values(found.parameters, given), load)


# --------------------------------------------------------------------------------------------------------- archetypes


def test_each_archetype_does_on_the_page_what_it_is_called_after(load):
    result = ran(archetypes, "archetypes", load)
    tokens = result.table("L0H2").rows
    maps = {name: result.table(name).values for name in archetypes.HEADS}
    assert all(result.table(name).as_map for name in maps) and [link.head for link in result.links] == list(maps)
    assert (maps["L0H2"][1:].argmax(1) == np.arange(len(tokens) - 1)).all()
    for at in (2, 3, 5, 9, 10, 12):  # dog, saw, cat: each is there twice
        copy = int(maps["L2H9"][at].argmax())
        assert copy != at and tokens[copy] == tokens[at]
    assert [tokens[int(maps["L2H8"][at].argmax())] for at in (1, 4, 8, 11)] == ["dog", "cat", "cat", "dog"]
    assert (maps["L4H5"].argmax(1) == 0).all() and maps["L3H11"][1:-1].argmax(1).tolist().count(13) > 8
    best = {kind: right(archetypes, "which-head", load, kind=kind).answer for kind in archetypes.ASKED}
    assert list(best.values()) == ["L0H2", "L2H9", "L3H11", "L4H5"]


def test_a_text_without_repeats_shows_nothing_of_a_duplicate_head_and_a_sink_moves_little(load):
    result = ran(archetypes, "archetypes", load, sentence="A small dog ran home.")
    assert (result.table("L2H9").values.argmax(1) == 0).all() and "nan" not in result.words
    sink = {by: int(fact(archetypes, "head-share", load, head="L4H5", of="the first token", by=by)[:-2])
            for by in ("weight", "moved")}  # fmt: skip
    assert sink["weight"] > 80 > 40 > sink["moved"]


@pytest.mark.slow  # a forward pass for each writer: the norms stand in this model's stream
def test_the_page_says_who_made_a_duplicate_head_look(load):
    for side in ("query", "key"):
        assert re.fullmatch(r"(the [\w ]+|L[01]H\d+) \(\+\d\.\d\)", fact(archetypes, "why-it-looks", load, side=side))


# ----------------------------------------------------------------------------------------------------------- KV cache


def test_the_cache_of_llama_2_70b_is_what_the_page_is_about(load):
    result = ran(caching, "cache-table", load)
    assert result.table("cache").values[:, 0].tolist() == [80, 10, 1.25]
    assert np.allclose(result.table("cache").values[:, 1], [85.899, 10.737, 1.342], atol=1e-3)
    assert result.table("a token").values.tolist() == [[64, 2560], [8, 320], [1, 40]]
    verdict = shelf.answer(
        shelf.lessons()["kv-cache"], shelf.lessons()["kv-cache"].checks["cache-of"], "0.625 GB", load
    )
    assert not verdict.right and "0.625 GiB are 0.671 GB" in verdict.words


def test_reading_through_a_cache_is_the_same_and_kv_heads_must_divide(load):
    result = ran(caching, "decode", load, heads=6, kv_heads=3, tokens=9)
    assert np.allclose(result.table("all at once").values, result.table("one by one").values, atol=1e-5)
    assert result.table("cache").values[:, 2].tolist() == [2 * 3 * 4 * n for n in range(1, 10)]
    for cell in ("decode", "cache-table"):
        refuses(ShapeError, "not a multiple", ran, caching, cell, load, kv_heads=5)
    rows = right(caching, "rows-computed", load, prompt=3, new=3)
    assert rows.answer == 3 + 4 + 5 and "one row too many a step" in rows.mistakes[4 + 5 + 6]


# ----------------------------------------------------------------------------------------------------------- evidence


@pytest.mark.slow
def test_the_rule_is_as_good_as_the_head_on_our_sentences_and_shuffled_weights_find_nothing(load):
    table = ran(evidence, "gold-accuracy", load).table("right, in percent")
    found = dict(zip(table.rows, table.values[:, 2], strict=True))
    assert found["L2H8"] > 80 and found["rule"] >= found["L2H8"] > 5 * found["any word"]
    assert "best: L2H8" in table.rows, "chosen on one half of the texts"
    table = ran(evidence, "gold-accuracy", load, weights=evidence.SHUFFLED).table("right, in percent")
    (best,) = [at for at, row in enumerate(table.rows) if row.startswith("best")]
    assert table.values[0, 2] < 20 and table.values[best, 1] < table.values[best, 0] < 50
    refuses(HeadError, "there is no layer 9", ran, evidence, "gold-accuracy", load, head="L9H0")


def test_the_best_of_many_is_luck_that_does_not_come_twice(load):
    chosen, other = ran(evidence, "luck", load).table("on average").values[0]
    assert chosen > 25 + 15 and abs(other - 25) < 2
    without = right(evidence, "competing", load, special="are left out")
    assert right(evidence, "competing", load).answer != without.answer
    resting = ran(evidence, "resting", load)
    assert resting.table("weight").values.mean() > 5 * resting.table("what is moved").values.mean()


# --------------------------------------------------------------------------------------------------------- redundancy


def test_pruned_parameters_are_those_of_the_real_model(load, minilm):
    result = ran(redundancy, "cut", load)
    before, after = result.table("parameters").values[:, 0]
    assert before == sum(each.numel() for each in minilm.model.parameters())
    assert before - after == 3 * right(redundancy, "pruned-parameters", load, d_model=384, heads=12, gone=1).answer
    assert right(redundancy, "share-of-model", load, gone=3).answer == pytest.approx(100 * (before - after) / before)


def test_heads_for_the_same_token_stand_in_for_each_other_by_distance_of_vectors(load, minilm):
    table = ran(redundancy, "together", load).table("worth")
    assert (table.values[:, 1] > 1.05 * table.values[:, 0]).all()
    with torch.no_grad():
        plain = minilm.model(**minilm.tokenizer(redundancy.SENTENCE, return_tensors="pt")).last_hidden_state.mean(1)[0]
    unit = redundancy._vector(minilm, redundancy.SENTENCE, ())
    assert np.allclose(unit, torch.nn.functional.normalize(plain, dim=0), atol=1e-6)
    words = ran(redundancy, "together", load).words
    assert (
        table.values[:, 0].sum() > float(words.split("vector by ")[1].split()[0]) and "lengths do not add up" in words
    )
    for heads in ("L1H1", "L0"):
        refuses(LessonError, "name 2 to 6", ran, redundancy, "together", load, heads=heads)


def test_weight_off_the_first_token_is_what_is_said_and_a_layer_left_empty_is_told_in_the_cells_words(load):
    result = ran(redundancy, "all-heads", load)
    busy = result.table("weight off [CLS]").values
    assert busy[3, 11] > 80, "L3H11 looks at marks, which are not words"
    assert "weight off the first token rank heads alike" in result.words
    with pytest.raises(LessonError, match="these are all heads of layer 1: keep one in each layer"):
        ran(redundancy, "cut", load, heads="L0H1, L1")


# ---------------------------------------------------------------------------------------------------------- induction


def test_the_induction_head_finds_nothing_without_the_previous_token_head(load):
    result = ran(circuits, "induction-pair", load)
    tokens = result.table("L0H0").rows
    for at in range(6, 11):  # the second reading: one place on from the copy
        assert result.table("L1H0, with L0H0").values[at].argmax() == at - 4, tokens[at]
    assert (result.table("L1H0, without L0H0").values.argmax(1) == 0).all()
    both, alone = result.table("next token").values[6:10].T
    assert (both > 90).all() and (alone < 1).all()
    probe = ran(circuits, "repeats", load)
    assert probe.table("with L0H0").values[2, 0] > 99 > 1 > probe.table("without L0H0").values[2, 0]
    assert probe.table("without L0H0").values[2, 2] == pytest.approx(100 / 12), "one row in twelve: [CLS] is before it"
    blunt = ran(circuits, "repeats", load, sharpness=2).table("with L0H0").values[2, 0]
    assert right(circuits, "least-mass", load, sharpness=2, keys=25).answer < blunt < 99
    refuses(TextError, "24 at the most", ran, circuits, "induction-pair", load, text="red " * 40)


def test_the_induction_head_hears_the_previous_token_head_and_nothing_else(load):
    first, second = (fact(circuits, "whom-it-hears", load, place=place) for place in ("first", "second"))
    (name, share), (_, next_share) = (words.removesuffix(" nats").rsplit(", ", 1) for words in (first, second))
    assert name == "L0H0" and float(share) > 20 * abs(float(next_share))


def test_names_are_the_topics_own():
    for table in ("CELLS", "CHECKS", "FACTS"):
        names = [name for topic in TOPICS for name in getattr(topic, table)]
        assert len(set(names)) == len(names)
