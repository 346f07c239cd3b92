"""Treebanks: sentences and passages, and where their words stand in the text and on which they depend.

A sentence that is none is refused in words. Oracle: the file's columns, split on tabs.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.corpora.treebanks import PASSAGE_WORDS
from manyheads.recording import ROOT, Mention
from tests.corpora.writing import chain, read, sentence, token

GRP = "GRP-etype-infstat"


def plain_sentences(path) -> list[tuple[dict[str, str], list[list[str]]]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return [
        (
            dict(line[2:].split(" = ", 1) for line in block.split("\n") if line[0] == "#" and " = " in line),
            [line.split("\t") for line in block.split("\n") if line[0] != "#"],
        )
        for block in blocks
    ]


def assert_are_what_the_columns_say(documents, path, count: int, words: int, shared: int) -> None:
    """`shared` counts the words whose span is not their form: those of a range that cannot be divided."""
    plain = plain_sentences(path)
    assert len(documents) == len(plain) == count
    differing = total = 0
    for document, (comments, rows) in zip(documents, plain, strict=True):
        assert not document.problem
        assert (document.name, document.text) == (comments["sent_id"], comments["text"])
        own = [row for row in rows if row[0].isdigit()]
        ranges = [row[0].split("-") for row in rows if "-" in row[0]]
        covered = {number for first, last in ranges for number in range(int(first), int(last) + 1)}
        for row, word in zip(own, document.gold.words, strict=True):
            assert [row[3], row[7], int(row[6]) - 1] == [word.pos, word.relation, word.head]
            if document.text[word.begin : word.end] != row[1]:
                assert int(row[0]) in covered
                differing += 1
        starts = [word.begin for word in document.gold.words]
        assert starts == sorted(starts) and document.gold.has_syntax
        total += len(own)
    assert (total, differing) == (words, shared)


@pytest.mark.turns(4)
def test_ewts_words_heads_and_relations_are_its_columns(ewt, ewt_sentences):
    assert_are_what_the_columns_say(ewt_sentences, ewt, 2001, 25147, shared=0)
    assert not any(document.gold.has_coreference for document in ewt_sentences)


def test_gums_words_heads_and_relations_are_its_columns(gum, gum_sentences):
    assert_are_what_the_columns_say(gum_sentences, gum, 1383, 24661, shared=0)


def source_of(name: str) -> str:
    return name.split("..")[0].rsplit("-", 1)[0]


@pytest.mark.turns(4)
def test_passages_of_gum_are_its_sentences_in_order(gum_sentences, gum_passages):
    assert " ".join(each.text for each in gum_passages) == " ".join(each.text for each in gum_sentences)
    before, after = (
        [(each.text[word.begin : word.end], word.pos, word.relation) for each in these for word in each.gold.words]
        for these in (gum_sentences, gum_passages)
    )
    assert before == after
    assert sum(len(each.gold.mentions) for each in gum_passages) == sum(len(e.gold.mentions) for e in gum_sentences)
    assert all(each.gold.has_syntax and each.gold.has_coreference for each in gum_passages)
    assert len({source_of(each.name) for each in gum_passages}) == 26


def test_heads_and_mentions_of_passages_are_the_same_words(gum_sentences, gum_passages):
    def told(documents):
        for each in documents:
            words = each.gold.words
            forms = [each.text[word.begin : word.end] for word in words]
            yield from ("head" if word.head == ROOT else forms[word.head] for word in words)
            yield "mentions"
            for mention in each.gold.mentions:
                yield (forms[mention.first : mention.last + 1], forms[mention.head], mention.entity)

    for source in sorted({source_of(each.name) for each in gum_passages}):
        before, after = (
            [each for each in told(e for e in these if source_of(e.name) == source) if each != "mentions"]
            for these in (gum_sentences, gum_passages)
        )
        assert Counter(map(str, before)) == Counter(map(str, after))


def test_passages_are_within_the_limit_and_could_not_have_taken_the_next_sentence(gum_sentences, gum_passages):
    sizes = {each.name: len(each.gold.words) for each in gum_sentences}
    for one, other in pairwise(gum_passages):
        first, size = other.name.split("..")[0], len(one.gold.words)
        assert size <= PASSAGE_WORDS or ".." not in one.name
        if source_of(first) == source_of(one.name):
            assert size + sizes[first] > PASSAGE_WORDS


def test_a_passage_counts_characters_words_and_mentions_on():
    text = chain(["a", "b"], ["", "(1-x-y)"], sent_id="one", newdoc_id="n", global__Entity=GRP)
    text += chain(["c", "d", "e"], ["(1-x-y", "1)"], sent_id="two")
    (passage,) = read(text, "passage")
    assert (passage.text, passage.name) == ("a b c d e", "one..two")
    assert [passage.text[word.begin : word.end] for word in passage.gold.words] == list("abcde")
    assert [word.head for word in passage.gold.words] == [ROOT, 0, ROOT, 2, 3]
    assert passage.gold.mentions == (Mention(1, 1, 1, "1"), Mention(2, 3, 2, "1"))


def test_passages_end_where_a_document_or_a_good_sentence_does():
    good = [chain([f"w{i}"], sent_id=f"s{i}", **({"newdoc_id": str(i)} if i == 2 else {})) for i in range(6)]
    bad = sentence(token(7, "x"), sent_id="bad")
    found = read("".join([*good[:4], bad, *good[4:]]), "passage")
    assert [each.name for each in found] == ["s0..s1", "s2..s3", "bad", "s4..s5"]
    assert [bool(each.problem) for each in found] == [False, False, True, False]


def test_a_new_document_counts_also_above_a_malformed_sentence():
    bad = sentence(token(7, "x"), sent_id="bad", newdoc_id="2", global__Entity="etype-GRP")
    text = chain(["a"], sent_id="a", newdoc_id="1", global__Entity=GRP) + bad
    text += chain(["b"], ["(x-5)"], sent_id="b")
    found = read(text)
    assert [each.problem[:8] for each in found] == ["", "the sent", ""]
    assert found[2].gold.mentions == (Mention(0, 0, 0, "5"),)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=6))
@pytest.mark.turns(4)
def test_passages_are_as_long_as_they_may_be_and_lose_no_word(sizes):
    text = "".join(chain([f"w{i}"] * size, sent_id=str(i)) for i, size in enumerate(sizes))
    found = read(text, "passage")
    held = [[sizes[i] for i in range(int(name[0]), int(name[-1]) + 1)] for name in (e.name.split("..") for e in found)]
    assert [size for group in held for size in group] == sizes
    assert [sum(group) for group in held] == [len(each.gold.words) for each in found]
    assert all(sum(group) <= PASSAGE_WORDS or len(group) == 1 for group in held)
    assert all(sum(a) + b[0] > PASSAGE_WORDS for a, b in pairwise(held))


def test_a_sentence_without_an_id_is_called_after_its_line_and_comments_alone_are_none():
    found = read("# just a note\n\n" + chain(["a"]) + "\n\n" + chain(["b"], sent_id="b") + "# the end")
    assert [each.name for each in found] == ["some.conllu:3", "b"]


FORM = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=5).filter(lambda form: form != "_")
BLANKS = st.sampled_from(["", " ", "  ", "\u00a0"])


@st.composite
def trees(draw):
    """Forms, heads (a random tree: each word hangs on one that stands before it in a shuffled order), blanks."""
    size = draw(st.integers(1, 12))
    order = draw(st.permutations(range(size)))
    heads = [ROOT] * size
    for place, word in enumerate(order[1:], 1):
        heads[word] = order[draw(st.integers(0, place - 1))]
    forms = draw(st.lists(FORM, min_size=size, max_size=size))
    blanks = draw(st.lists(BLANKS, min_size=size, max_size=size))
    return forms, heads, [*blanks[:-1], ""]


@given(trees())
def test_a_tree_written_as_conllu_comes_back_with_every_word_at_its_place(tree):
    forms, heads, blanks = tree
    text = "".join(form + blank for form, blank in zip(forms, blanks, strict=True))
    tokens = [token(i + 1, form, "NOUN", heads[i] + 1, f"r:{i}") for i, form in enumerate(forms)]
    (document,) = read(sentence(*tokens, sent_id="a", text=text))
    assert not document.problem and document.text == text and document.name == "a"
    words = document.gold.words
    assert [text[word.begin : word.end] for word in words] == forms
    assert [word.head for word in words] == heads
    assert [word.relation for word in words] == [f"r:{i}" for i in range(len(forms))]
    assert {word.pos for word in words} == {"NOUN"}


@given(trees())
def test_without_a_text_it_is_made_of_the_forms(tree):
    forms, heads, blanks = tree
    misc = ["_" if blank else "A=b|SpaceAfter=No" for blank in blanks]
    tokens = [token(i + 1, form, head=heads[i] + 1, misc=misc[i]) for i, form in enumerate(forms)]
    (document,) = read(sentence(*tokens))
    assert document.text == "".join(form + " " * bool(blank) for form, blank in zip(forms, blanks, strict=True))
    assert [document.text[word.begin : word.end] for word in document.gold.words] == forms


def words_of(*tokens: str, text: str = "") -> list[tuple[str, int]]:
    (document,) = read(sentence(*tokens, text=text) if text else sentence(*tokens))
    assert not document.problem
    return [(document.text[word.begin : word.end], word.head) for word in document.gold.words]


@pytest.mark.parametrize("text", ["They don't.", ""])
def test_a_range_whose_words_make_up_its_form_is_divided(text):
    rows = [
        token(1, "They", head=3),
        token("2-3", "don't", misc="SpaceAfter=No"),
        token(2, "do", head=3),
        token(3, "n't", head=0),
        token(4, ".", head=3),
    ]
    assert words_of(*rows, text=text) == [("They", 2), ("do", 2), ("n't", ROOT), (".", 2)]


@pytest.mark.parametrize("text", ["im Haus", ""])
def test_a_range_whose_words_do_not_is_shared_by_them_whole(text):
    rows = [token("1-2", "im"), token(1, "in", head=3), token(2, "dem", head=3), token(3, "Haus", head=0)]
    assert words_of(*rows, text=text) == [("im", 2), ("im", 2), ("Haus", ROOT)]


def test_empty_nodes_are_no_words_also_inside_a_range():
    rows = [
        token("0.1", "And"),
        token("1-2", "del"),
        token(1, "de", head=3),
        token("1.1", "nada"),
        token(2, "el", head=3),
        token("2.1", "he"),
        token(3, "mar", head=0),
        token("3.1", "_"),
    ]
    assert words_of(*rows, text="del mar") == [("del", 2), ("del", 2), ("mar", ROOT)]


def test_a_blank_inside_a_form_may_be_another_in_the_text():
    assert words_of(token(1, "10 000", head=0), token(2, "km", head=1), text="10\u00a0000km") == [
        ("10\u00a0000", ROOT),
        ("km", 0),
    ]


def test_one_word_hangs_on_the_root_and_is_syntax():
    (document,) = read(sentence(token(1, "Yes", head=0), text="Yes"))
    assert document.gold.has_syntax and not document.gold.has_coreference and document.gold.mentions == ()


def test_words_without_heads_are_words_without_syntax():
    (document,) = read(sentence(token(1, "No"), token(2, "tree", "_", relation="_"), text="No tree"))
    assert not document.gold.has_syntax
    assert [(word.head, word.pos, word.relation) for word in document.gold.words] == [
        (ROOT, "X", "dep"),
        (ROOT, "", ""),
    ]


A, B = token(1, "a", head=0), token(2, "b", head=1)


@pytest.mark.parametrize(
    ("rows", "text", "problem"),
    [
        ([A, B], "a c", "token 2 'b' is not what the text goes on with ('c')."),
        ([A, B], "a", "token 2 'b' is not what the text goes on with ('')."),
        ([A, B], "a b and more", "the text goes on after the last token ('and more')."),
        ([A, token(3, "b", head=1)], "a b", "token 3 comes where token 2 was to come."),
        ([B], "b", "token 2 comes where token 1 was to come."),
        ([A, token(2, "b", head=7)], "a b", "token 2 has head 7, but each of the 2 words hangs on another or on 0."),
        ([A, token(2, "b", head=-1)], "a b", "token 2 has head -1, but each"),
        ([A, token(2, "b", head=2)], "a b", "token 2 has head 2, but each"),
        ([A, token(2, "b")], "a b", "token 2 has no head, but each"),
        ([token(1, "a", head=2), B], "a b", "token 1 hangs on itself, by way of other words: that is no tree."),
        ([A, "2\tb\t_\tX"], "a b", "token 2 has 4 columns: a relation is in the eighth."),
        ([token("1-3", "ab"), A, B], "ab", "the words of 1-3 'ab' do not follow it."),
        ([A, token("1-2", "ab"), B], "a b", "the words of 1-2 'ab' do not follow it."),
        ([token("_", "a", head=0)], "a", "a token 'a' has no number."),
        ([token("x", "a", head=0)], "a", "line 3 is not CoNLL-U (Failed parsing field 'id': 'x' is not a valid ID)."),
        ([A, token(2, "b", head="up")], "a b", "line 4 is not CoNLL-U (Failed parsing field 'head': 'up' is not"),
        ([A, "prose"], "a", "line 4 is not CoNLL-U (Invalid line format"),
    ],
)
def test_what_is_no_sentence_is_a_problem_that_says_where(rows, text, problem):
    good = sentence(A, text="a", sent_id="next")
    bad, after = read(sentence(*rows, sent_id="s-1", text=text) + good)
    assert bad.name == "s-1" and bad.text == "" and bad.gold is None
    assert bad.problem.startswith(f"the sentence at some.conllu:1: {problem}")
    assert after.name == "next" and not after.problem
