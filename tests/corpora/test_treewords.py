"""Words of a treebank: where they stand in the text, on which they hang; what is no sentence is refused in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.recording import ROOT
from tests.corpora.writing import read, sentence, token

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
