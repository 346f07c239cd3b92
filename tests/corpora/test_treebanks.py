"""Treebanks: sentences and passages, and where their words stand in the text and on which they depend.

A sentence that is none is refused in words. Oracle: the file's columns, split on tabs.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.corpora.treebanks import PASSAGE_WORDS
from manyheads.texts import ROOT, Mention
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


def test_ewts_words_heads_and_relations_are_its_columns(ewt, ewt_sentences):
    assert_are_what_the_columns_say(ewt_sentences, ewt, 2001, 25147, shared=0)
    assert not any(document.gold.has_coreference for document in ewt_sentences)


def test_gums_words_heads_and_relations_are_its_columns(gum, gum_sentences):
    assert_are_what_the_columns_say(gum_sentences, gum, 1383, 24661, shared=0)


def source_of(name: str) -> str:
    return name.split("..")[0].rsplit("-", 1)[0]


@pytest.mark.slow
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
        token(1, "They", head=3), token("2-3", "don't", misc="SpaceAfter=No"), token(2, "do", head=3),
        token(3, "n't", head=0), token(4, ".", head=3),
    ]  # fmt: skip
    assert words_of(*rows, text=text) == [("They", 2), ("do", 2), ("n't", ROOT), (".", 2)]


@pytest.mark.parametrize("text", ["im Haus", ""])
def test_a_range_whose_words_do_not_is_shared_by_them_whole(text):
    rows = [token("1-2", "im"), token(1, "in", head=3), token(2, "dem", head=3), token(3, "Haus", head=0)]
    assert words_of(*rows, text=text) == [("im", 2), ("im", 2), ("Haus", ROOT)]


def test_empty_nodes_are_no_words_and_a_blank_inside_a_form_may_be_another_in_the_text():
    rows = [
        token("0.1", "And"), token("1-2", "del"), token(1, "de", head=3), token("1.1", "nada"),
        token(2, "el", head=3), token("2.1", "he"), token(3, "mar", head=0), token("3.1", "_"),
    ]  # fmt: skip
    assert words_of(*rows, text="del mar") == [("del", 2), ("del", 2), ("mar", ROOT)]
    words = words_of(token(1, "10 000", head=0), token(2, "km", head=1), text="10\u00a0000km")
    assert words == [("10\u00a0000", ROOT), ("km", 0)]


def test_one_word_hangs_on_the_root_and_words_without_heads_are_words_without_syntax():
    (document,) = read(sentence(token(1, "Yes", head=0), text="Yes"))
    assert document.gold.has_syntax and not document.gold.has_coreference and document.gold.mentions == ()
    (document,) = read(sentence(token(1, "No"), token(2, "tree", "_", relation="_"), text="No tree"))
    assert not document.gold.has_syntax
    columns = [(word.head, word.pos, word.relation) for word in document.gold.words]
    assert columns == [(ROOT, "X", "dep"), (ROOT, "", "")]


A, B = token(1, "a", head=0), token(2, "b", head=1)


@pytest.mark.parametrize(("rows", "text", "problem"), [
    ([A, B], "a c", "token 2 'b' is not how the text goes on ('c')."),
    ([A, B], "a", "token 2 'b' is not how the text goes on ('')."),
    ([A, B], "a b and more", "the text goes on after the last token ('and more')."),
    ([A, token(3, "b", head=1)], "a b", "token 3 comes where token 2 was expected."),
    ([B], "b", "token 2 comes where token 1 was expected."),
    ([A, token(2, "b", head=7)], "a b", "token 2 has head 7, but each of the 2 words depends on another or on 0."),
    ([A, token(2, "b", head=-1)], "a b", "token 2 has head -1, but each"),
    ([A, token(2, "b", head=2)], "a b", "token 2 has head 2, but each"),
    ([A, token(2, "b")], "a b", "token 2 has no head, but each"),
    ([token(1, "a", head=2), B], "a b", "token 1 depends on itself, through other words: that is not a tree."),
    ([A, "2\tb\t_\tX"], "a b", "token 2 has 4 columns: a relation is in the eighth."),
    ([token("1-3", "ab"), A, B], "ab", "the words of 1-3 'ab' do not follow it."),
    ([A, token("1-2", "ab"), B], "a b", "the words of 1-2 'ab' do not follow it."),
    ([token("_", "a", head=0)], "a", "a token 'a' has no number."),
    ([token("x", "a", head=0)], "a", "line 3 is not CoNLL-U (Failed parsing field 'id': 'x' is not a valid ID)."),
    ([A, token(2, "b", head="up")], "a b", "line 4 is not CoNLL-U (Failed parsing field 'head': 'up' is not"),
    ([A, "prose"], "a", "line 4 is not CoNLL-U (Invalid line format"),
])  # fmt: skip
def test_what_is_no_sentence_is_a_problem_that_says_where(rows, text, problem):
    good = sentence(A, text="a", sent_id="next")
    bad, after = read(sentence(*rows, sent_id="s-1", text=text) + good)
    assert bad.name == "s-1" and bad.text == "" and bad.gold is None
    assert bad.problem.startswith(f"the sentence at some.conllu:1: {problem}")
    assert after.name == "next" and not after.problem


# ========================================================================================================== coreference
# Mentions and chains out of Entity=, and which documents of a file have coreference.
#
# Those that declare it or have a mention do, whatever stands before them in the file. Oracle for GUM: a parser of our
# own here, character by character.

FIELDS = {"global__Entity": "GRP-etype-infstat"}
FORMS = ["w", "x", "y", "z"]


def mentions(*entities: str, declared: str = "GRP-etype-infstat") -> list[tuple[int, int, int, str]]:
    (document,) = read(chain([f"w{i}" for i in range(len(entities))], entities, global__Entity=declared))
    assert not document.problem, document.problem
    assert document.gold.has_coreference
    return [tuple(each) for each in document.gold.mentions]


def test_brackets_open_close_stand_on_one_word_and_an_entity_may_be_inside_itself_or_cross():
    opened = mentions("(7-abstract-new(3-abstract-giv:act)", "", "7)", "(3-abstract-giv)")
    assert opened == [(0, 2, 0, "7"), (0, 0, 0, "3"), (3, 3, 3, "3")]
    nested = mentions("(2-x-y", "(5-x-y(6-x-y", "(4-x-y)6)5)2)")
    assert nested == [(0, 2, 0, "2"), (1, 2, 1, "5"), (1, 2, 1, "6"), (2, 2, 2, "4")]
    assert mentions("(1-x-y", "(1-x-y", "1)", "1)") == [(0, 3, 0, "1"), (1, 2, 1, "1")]
    assert mentions("(1-x-y", "(2-x-y", "1)", "2)") == [(0, 2, 0, "1"), (1, 3, 1, "2")]


def test_the_declaration_says_which_field_is_the_entity():
    assert mentions("(person-12-new", "12)", declared="entity-GRP-infstat") == [(0, 1, 0, "12")]
    assert mentions("(person-12-new", "person-12)", declared="entity-GRP-infstat") == [(0, 1, 0, "12")]
    assert mentions("(e12-person", "e12)", declared="eid-etype-head-other") == [(0, 1, 0, "e12")]
    assert mentions("(5)", declared="GRP") == [(0, 0, 0, "5")]


def test_other_annotations_of_reference_are_left_out():
    rows = [
        token(1, "a", head=0, misc="Bridge=1<2|Entity=(2-x-y)|SpaceAfter=No|SplitAnte=1<2,3<2"),
        token(2, "b", head=1, misc="MSeg=b"),
    ]
    (document,) = read(sentence(*rows, text="ab", **FIELDS))
    assert document.gold.mentions == (Mention(0, 0, 0, "2"),)


def test_of_a_mention_in_parts_the_part_with_the_head_is_taken_also_twice():
    assert mentions("(1[1/2]-x-y)", "", "(1[2/2]-x-y", "1[2/2])") == [(0, 0, 0, "1")]
    rows = [
        token(1, "pick", head=0), token(2, "old", head=4, misc="Entity=(12[1/2]-x-y)"), token(3, "yes", head=1),
        token(4, "trees", head=1, misc="Entity=(12[2/2]-x-y"), token(5, "there", head=4, misc="Entity=12[2/2])"),
    ]  # fmt: skip
    (document,) = read(sentence(*rows, text="pick old yes trees there", **FIELDS))
    assert document.gold.mentions == (Mention(3, 4, 3, "12"),)
    found = mentions("(1[1/2]-x-y)", "", "(1[2/2]-x-y)", "(1[1/2]-x-y)", "", "(1[2/2]-x-y)")
    assert found == [(0, 0, 0, "1"), (3, 3, 3, "1")]


def test_empty_nodes_lend_their_mentions_to_the_words_beside_them():
    rows = [
        token("0.1", "_", misc="Entity=(4-x-y)"),  # of no word: left out
        token(1, "a", head=0, misc="Entity=(1-x-y(2-x-y"),
        token("1.1", "_", misc="Entity=2)(3-x-y"),
        token(2, "b", head=1, misc="Entity=3)"),
        token("2.1", "_", misc="Entity=1)"),
    ]
    (document,) = read(sentence(*rows, text="a b", **FIELDS))
    assert [tuple(each) for each in document.gold.mentions] == [(0, 1, 0, "1"), (0, 0, 0, "2"), (1, 1, 1, "3")]


def test_a_text_annotated_without_a_mention_says_so_and_one_not_annotated_too():
    (annotated,) = read(chain(FORMS, **FIELDS))
    assert annotated.gold.has_coreference and annotated.gold.mentions == ()
    (other,) = read(chain(FORMS))
    assert not other.gold.has_coreference


@pytest.mark.parametrize(("entities", "problem"), [
    (["(1-x-y"], "token 1 opens entity 1, which this sentence does not close."),
    (["", "1)"], "token 2 closes entity 1, which is not open in this sentence."),
    (["(1-x-y)1)"], "token 1 closes entity 1, which is not open in this sentence."),
    (["(1-x-y", "2)"], "token 2 closes entity 2, which is not open in this sentence."),
    (["", "", "(1-x-y)x"], "token 3: Entity=(1-x-y)x is not a sequence of brackets such as (3-person(4-place)3)."),
    (["()"], "token 1: Entity=() is not a sequence"),
    (["(1[1/2]-x-y)"], "of a mention of entity 1 in 2 parts, only [1] are there."),
    (["(1[1/2]-x-y", "1[2/2])"], "token 2 closes entity 1[2/2], which is not open in this sentence."),
])  # fmt: skip
def test_brackets_that_do_not_pair_are_a_problem_of_their_sentence(entities, problem):
    bad, after = read(chain(FORMS, entities, sent_id="s-9", **FIELDS) + chain(FORMS, ["(1-x-y)"], sent_id="s-10"))
    assert bad.name == "s-9" and bad.gold is None
    assert bad.problem.startswith(f"the sentence at some.conllu:1: {problem}")
    assert after.name == "s-10" and len(after.gold.mentions) == 1


def test_fields_that_nobody_declared_and_marks_on_a_range_are_problems():
    (undeclared,) = read(chain(FORMS, ["(1-x-y)"]))
    assert "token 1 has Entity=, but no '# global.Entity = GRP-...' above says" in undeclared.problem
    (nameless,) = read(chain(FORMS, ["(1-x-y)"], global__Entity="etype-infstat"))
    assert "'# global.Entity = etype-infstat' names no field GRP or eid" in nameless.problem
    (short,) = read(chain(FORMS, ["(person)"], global__Entity="etype-GRP"))
    assert "token 1: the bracket 'person' of Entity= lacks field 2, the entity." in short.problem
    rows = [token("1-2", "ab", misc="Entity=(1-x-y)"), token(1, "a", head=0), token(2, "b", head=1)]
    (ranged,) = read(sentence(*rows, text="ab", **FIELDS))
    assert "the range 1-2 has Entity=, which belongs to the words in it." in ranged.problem


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted), max_size=9))
def test_any_mentions_written_as_brackets_come_back(spans):
    entities = [""] * 8
    wanted = sorted((first, last, first, str(number)) for number, (first, last) in enumerate(spans))
    for word in range(8):
        begun = sorted((each for each in wanted if each[0] == word), key=lambda each: -each[1])
        ended = sorted((each for each in wanted if each[1] == word and each[0] < word), key=lambda each: -each[0])
        alone = [each for each in begun if each[1] == word]
        opened = [each for each in begun if each[1] > word]
        entities[word] = "".join(f"{each[3]})" for each in ended) + "".join(f"({each[3]}-x-y" for each in opened)
        entities[word] += "".join(f"({each[3]}-x-y)" for each in alone)
    found = mentions(*entities)
    assert sorted(found) == wanted
    assert found == sorted(found, key=lambda each: (each[0], -each[1]))


# ------------------------------------------------------------------------------------------------------------- GUM

MENTIONS, ENTITIES, CHAINS, CROSSING = 6883, 3457, 987, 0


def spans_by_hand(rows: list[list[str]]) -> list[tuple[int, int, str]]:
    """Mentions of a sentence, read one character after another: no field of GUM's holds a bracket or a hyphen."""
    found, waiting = [], []
    for word, row in enumerate(row for row in rows if row[0].isdigit()):
        value = dict(part.split("=", 1) for part in row[9].split("|") if "=" in part).get("Entity", "")
        inside, opening = "", False
        for char in value:
            if char == "(":
                if opening:
                    waiting.append((inside.split("-")[0], word))
                inside, opening = "", True
            elif char == ")":
                name = inside.split("-")[0]
                if opening:
                    waiting.append((name, word))
                place = max(i for i, (each, _) in enumerate(waiting) if each == name)
                found.append((waiting.pop(place)[1], word, name))
                inside, opening = "", False
            else:
                inside += char
        if opening:
            waiting.append((inside.split("-")[0], word))
    assert not waiting
    return found


def test_gums_mentions_and_chains_are_those_of_another_parser(gum, gum_sentences):
    documents, plain = gum_sentences, plain_sentences(gum)
    assert len(documents) == len(plain) == 1383
    chains, by_hand = Counter(), Counter()
    for document, (_, rows) in zip(documents, plain, strict=True):
        assert document.gold.has_coreference and not document.problem
        source = document.name.rsplit("-", 1)[0]
        found = [(each.first, each.last, each.entity) for each in document.gold.mentions]
        wanted = spans_by_hand(rows)
        assert Counter(found) == Counter(wanted)
        chains.update((source, entity) for *_, entity in found)
        by_hand.update((source, entity) for *_, entity in wanted)
    assert chains == by_hand
    assert (sum(chains.values()), len(chains)) == (MENTIONS, ENTITIES)
    assert sum(times > 1 for times in chains.values()) == CHAINS


def test_as_many_mentions_come_as_brackets_open_in_the_file(gum):
    entities = re.findall(r"[\t|]Entity=([^|\n]*)", gum.read_text(encoding="utf-8"))
    assert sum(each.count("(") for each in entities) == MENTIONS


def test_gums_mentions_are_in_order_nest_and_hang_on_their_heads(gum_sentences):
    crossing = total = 0
    for document in gum_sentences:
        words, found = document.gold.words, document.gold.mentions
        assert list(found) == sorted(found, key=lambda each: (each.first, -each.last))
        for each in found:
            assert each.first <= each.head <= each.last
            assert not each.first <= words[each.head].head <= each.last
            assert all(each.first <= words[word].head <= each.last for word in range(each.first, each.head))
        total += len(found)
        crossing += sum(a.first < b.first <= a.last < b.last for a in found for b in found)
    assert (total, crossing) == (MENTIONS, CROSSING)


DECLARED = "GRP-etype"
FILE = "".join(
    (
        chain(["a"], sent_id="declared", newdoc_id="1", global__Entity=DECLARED),  # says so; has no mention
        chain(["b"], sent_id="plain 1", newdoc_id="2"),  # another treebank, put after it
        chain(["c"], sent_id="plain 2"),
        chain(["d"], sent_id="marked 1", newdoc_id="3"),  # does not say so, but has a mention
        chain(["e"], ["(7-x)"], sent_id="marked 2"),
        chain(["f"], sent_id="marked 3"),
    )
)


def test_a_document_and_its_passages_have_coreference_where_it_declares_it_or_has_a_mention():
    found = {each.name: each.gold.has_coreference for each in read(FILE)}
    plain = {"plain 1": False, "plain 2": False}
    assert found == {"declared": True, **plain, "marked 1": True, "marked 2": True, "marked 3": True}
    assert list(found) == ["declared", "plain 1", "plain 2", "marked 1", "marked 2", "marked 3"]
    assert [each.gold.has_coreference for each in read(FILE, "passage")] == [True, False, True]


def test_nothing_waits_where_a_file_has_said_nothing_of_coreference():
    """Else a treebank without documents would be held whole."""
    from manyheads.corpora.lines import Line
    from manyheads.corpora.treebanks import read_sentences

    lines = (chain(["a"], newdoc_id="1") + chain(["b"]) * 5).split("\n")
    taken = []
    stream = read_sentences((taken.append(text) or Line(at, text, at) for at, text in enumerate(lines, 1)), "x")
    next(stream)
    assert len(taken) < len(lines) / 2
