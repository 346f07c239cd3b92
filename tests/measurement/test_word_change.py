"""One word of a text changed: rows of words before and after, against maps of stock transformers; and the sentence.

Oracle: eager maps of transformers, words summed and averaged by hand from the tokenizer's own word numbers.
"""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import HeadError, TextError
from manyheads.heads import Head
from manyheads.measurement import HeadRows, WordSwap, changed_text, word_swap
from manyheads.models.loading import find_bundled
from tests.interventions.surgeries import loaded
from tests.models.eager import draw
from tests.refusals import refuses

TIRED = "The animal didn't cross the street because it was too tired."
IT, TIRED_TOKEN = 10, 13


@pytest.fixture(scope="module")
def swapped(minilm):
    before = mh.record(minilm, TIRED)
    known = {}

    def swap(word, heads=("L3H1",), query=IT, place=TIRED_TOKEN):
        if word not in known:
            known[word] = mh.record(minilm, changed_text(before, place, word))
        return word_swap(before, known[word], place, query, heads)

    return swap


def words_by_hand(lm, text, layer, head, row_words, groups):
    """A head's row of one word over groups of tokens: columns summed, rows averaged."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(find_bundled("minilm"), attn_implementation="eager").eval()
    with torch.no_grad():
        maps = model(**lm.tokenizer(text, return_tensors="pt"), output_attentions=True).attentions[layer][0, head]
    row = maps[row_words].double().mean(0)
    return [float(row[group].sum()) for group in groups]


BEFORE = [[0], [1], [2], [3, 4, 5], [6], [7], [8], [9], [10], [11], [12], [13], [14], [15]]


def test_rows_are_those_of_stock_transformers_with_pieces_summed(minilm, swapped):
    swap = swapped("far away")
    assert swap.words[:4] == ("[CLS]", "The", "animal", "didn't") and swap.begins == tuple(g[0] for g in BEFORE)
    assert (swap.query, swap.place, swap.new) == (8, 11, "far away")
    after = [*BEFORE[:11], [13, 14], [15], [16]]
    text = TIRED.replace("tired", "far away")
    for row in swap.rows:
        place = row.head.layer, row.head.index
        assert np.abs(row.before - words_by_hand(minilm, TIRED, *place, [IT], BEFORE)).max() < 1e-5
        assert np.abs(row.after - words_by_hand(minilm, text, *place, [IT], after)).max() < 1e-5
        assert row.before.sum() == pytest.approx(1, abs=1e-5) and row.after.sum() == pytest.approx(1, abs=1e-5)


def test_the_changed_word_may_be_the_one_that_asks(minilm, swapped):
    swap = swapped("far away", ("L2H9", "L4H3"), query=TIRED_TOKEN)
    after = [*BEFORE[:11], [13, 14], [15], [16]]
    want = words_by_hand(minilm, TIRED.replace("tired", "far away"), 4, 3, [13, 14], after)
    assert np.abs(swap.rows[1].after - want).max() < 1e-5 and swap.query == swap.place == 11


def test_the_head_beside_is_the_one_that_looks_there_most_after_the_change(swapped):
    swap = swapped("wide")
    assert (
        swap.said()
        == "With “wide”, L3H1 lets go of “animal” (68 % → 28 %), yet does not swing to “street” (5 % → 12 %)."
    )
    assert swap.linked() == "With “tired”, head L3H1 links “it” to “animal”: 68 %."
    assert swap.figures() == "[CLS], where looks park, gains most: 10 % → 33 %.  L5H11 holds on: 67 % → 56 %."
    assert str(swap.beside) == "L5H11" and [str(row.head) for row in swap.rows] == ["L3H1", "L5H11"]
    other = swapped("wide", ("L5H11", "L3H1"))
    assert other.said() == "With “wide”, L5H11 holds on to “animal” (67 % → 56 %)." and str(other.beside) not in (
        "L5H11",
        "L3H1",
    )


WORDS = ("[CLS]", "Mary", "gave", "John", "it", "x")


def of(before, after, *, looks_ahead=True, place=5, query=4, new="y", words=WORDS):
    special = np.array([word == "[CLS]" for word in words])
    row = HeadRows(Head("", 2, 3), np.array(before), np.array(after))
    return WordSwap(words, special, tuple(range(len(words))), query, place, new, (row,), None, looks_ahead)


MARY = [0.1, 0.6, 0, 0.1, 0.1, 0.1]
PARKED = [0.9, 0.03, 0, 0.02, 0.03, 0.02]
AHEAD = "nothing changes: “it” stands before it, and this model does not look ahead."
ENDINGS = {
    "L2H3 swings from “Mary” (60 % → 10 %) to “John” (10 % → 60 %).": (MARY, [0.1, 0.1, 0, 0.6, 0.1, 0.1]),
    "L2H3 swings part of the way, from “Mary” (60 % → 35 %) to “John” (10 % → 30 %).": (
        MARY,
        [0.1, 0.35, 0, 0.3, 0.1, 0.15],
    ),
    "L2H3 lets go of “Mary” (60 % → 20 %), yet does not swing to “John” (10 % → 15 %).": (
        MARY,
        [0.4, 0.2, 0, 0.15, 0.1, 0.15],
    ),
    "L2H3 lets go of “Mary” (60 % → 20 %), and no other word takes its place: “John” (10 % → 11 %).": (
        MARY,
        [0.6, 0.2, 0, 0.11, 0.05, 0.04],
    ),
    "L2H3 holds on to “Mary” (60 % → 50 %).": (MARY, [0.2, 0.5, 0, 0.1, 0.1, 0.1]),
    "L2H3 looks at “Mary” (40 % → 60 %) even more.": ([0.3, 0.4, 0, 0.1, 0.1, 0.1], [0.1, 0.6, 0, 0.1, 0.1, 0.1]),
    "L2H3 turns to “John” (2 % → 50 %).": (PARKED, [0.4, 0.03, 0, 0.5, 0.05, 0.02]),
    "L2H3 links “it” to no word, and did not before.": (PARKED, [0.9, 0.02, 0, 0.04, 0.02, 0.02]),
    AHEAD: (PARKED, PARKED),
    "nothing changes in L2H3.": (PARKED, PARKED),
}


@pytest.mark.parametrize("words", ENDINGS)
def test_the_sentence_is_made_from_the_numbers(words):
    assert of(*ENDINGS[words], looks_ahead=words != AHEAD).said() == f"With “y”, {words}"


FIGURES = {
    "[CLS], where looks park, gains most: 10 % → 40 %.": [0.4, 0.2, 0, 0.15, 0.1, 0.15],
    "[CLS], where looks park, gains too: 10 % → 15 %.": [0.15, 0.2, 0, 0.45, 0.1, 0.1],
    "“it” itself gains most: 10 % → 50 %.": [0.1, 0.2, 0, 0.1, 0.5, 0.1],
    "“y” gains most: 10 % → 48 %.": [0.12, 0.2, 0, 0.1, 0.1, 0.48],
    "“gave” gains too: < 1 % → 7 %.": [0.1, 0.25, 0.07, 0.38, 0.1, 0.1],
    "": [0.11, 0.58, 0.002, 0.108, 0.1, 0.1],
}


@pytest.mark.parametrize("figures", FIGURES)
def test_the_line_below_names_the_word_that_gains_most_of_those_the_sentence_does_not_name(figures):
    assert of([0.1, 0.598, 0.002, 0.1, 0.1, 0.1], FIGURES[figures]).figures() == figures


def test_a_new_word_that_stands_elsewhere_already_is_told_apart():
    swap = of([0.1, 0.6, 0, 0.1, 0.1, 0.1], [0.1, 0.1, 0, 0.6, 0.1, 0.1], new="Mary")
    assert swap.said().startswith("With “Mary” for “x”, L2H3 swings from “Mary” (")
    assert (
        of([0.999, 0.001, 0, 0, 0, 0], [0.999, 0.001, 0, 0, 0, 0]).linked()
        == "With “x”, head L2H3 links “it” to no word."
    )


def test_a_short_text_still_has_a_sentence():
    swap = of([0.5, 0.5], [0.2, 0.8], words=("a", "b"), place=1, query=0)
    assert swap.links == (1, 1) and swap.said().startswith("With “y”, L2H3 ")


def test_words_and_heads_that_cannot_be_are_refused(minilm, swapped, fresh):
    before = mh.record(minilm, TIRED)
    refuses(TextError, r"“\[CLS\]” is not a word of this text, so it cannot be changed", changed_text, before, 0, "x")
    refuses(TextError, "token 99 is not a word", changed_text, before, 99, "x")
    refuses(TextError, "“tired” stands there already", changed_text, before, TIRED_TOKEN, " tired ")
    refuses(TextError, "the new word is empty", changed_text, before, TIRED_TOKEN, " ")
    two = mh.record(minilm, [TIRED, "A dog."])
    refuses(TextError, "in a recording of one text, and this one holds 2", changed_text, two, TIRED_TOKEN, "x")
    other = mh.record(minilm, "The animal did not cross the street because it was too wide.")
    refuses(TextError, "the two texts differ in more than “tired”", word_swap, before, other, TIRED_TOKEN, IT, ["L3H1"])
    after = mh.record(minilm, changed_text(before, TIRED_TOKEN, "wide"))
    refuses(HeadError, "there is no head L9H1 here", word_swap, before, after, TIRED_TOKEN, IT, ["L9H1"])
    refuses(TextError, "there is no token 99: this text has 16", word_swap, before, after, TIRED_TOKEN, 99, ["L3H1"])
    lm = loaded("gpt2", draw(fresh))
    first = mh.record(lm, "the cat sat on the table")
    later = word_swap(first, mh.record(lm, changed_text(first, 4, "the dog")), 4, 1, ["L1H1"])
    assert (
        later.said() == "With “the dog”, nothing changes: “cat” stands before it, and this model does not look ahead."
    )
