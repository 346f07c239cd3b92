"""Mentions and chains out of Entity=, and which documents of a file have coreference.

Those that declare it or have a mention do, whatever stands before them in the file. Oracle for GUM: a parser of our own
here, character by character.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.recording import Mention
from tests.corpora.writing import chain, read, sentence, token

GRP = {"global__Entity": "GRP-etype-infstat"}
FORMS = ["w", "x", "y", "z"]


def mentions(*entities: str, declared: str = "GRP-etype-infstat") -> list[tuple[int, int, int, str]]:
    (document,) = read(chain([f"w{i}" for i in range(len(entities))], entities, global__Entity=declared))
    assert not document.problem, document.problem
    assert document.gold.has_coreference
    return [tuple(each) for each in document.gold.mentions]


def test_brackets_open_close_and_stand_on_one_word():
    # words hang each on the one before, so that a mention's head is its first word
    assert mentions("(7-abstract-new(3-abstract-giv:act)", "", "7)", "(3-abstract-giv)") == [
        (0, 2, 0, "7"),
        (0, 0, 0, "3"),
        (3, 3, 3, "3"),
    ]
    assert mentions("(2-x-y", "(5-x-y(6-x-y", "(4-x-y)6)5)2)") == [
        (0, 2, 0, "2"),
        (1, 2, 1, "5"),
        (1, 2, 1, "6"),
        (2, 2, 2, "4"),
    ]


def test_an_entity_inside_itself_closes_innermost_first_and_two_may_cross():
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
    (document,) = read(sentence(*rows, text="ab", **GRP))
    assert document.gold.mentions == (Mention(0, 0, 0, "2"),)


def test_of_a_mention_in_parts_the_part_with_the_head_is_taken():
    # heads: w1 hangs on w0, and so on; so the earliest word is the head
    assert mentions("(1[1/2]-x-y)", "", "(1[2/2]-x-y", "1[2/2])") == [(0, 0, 0, "1")]
    rows = [
        token(1, "pick", head=0),
        token(2, "old", head=4, misc="Entity=(12[1/2]-x-y)"),
        token(3, "yes", head=1),
        token(4, "trees", head=1, misc="Entity=(12[2/2]-x-y"),
        token(5, "there", head=4, misc="Entity=12[2/2])"),
    ]
    (document,) = read(sentence(*rows, text="pick old yes trees there", **GRP))
    assert document.gold.mentions == (Mention(3, 4, 3, "12"),)


def test_an_entity_may_come_in_parts_twice():
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
    (document,) = read(sentence(*rows, text="a b", **GRP))
    assert [tuple(each) for each in document.gold.mentions] == [(0, 1, 0, "1"), (0, 0, 0, "2"), (1, 1, 1, "3")]


def test_a_text_annotated_without_a_mention_says_so_and_one_not_annotated_too():
    (annotated,) = read(chain(FORMS, **GRP))
    assert annotated.gold.has_coreference and annotated.gold.mentions == ()
    (other,) = read(chain(FORMS))
    assert not other.gold.has_coreference


@pytest.mark.parametrize(
    ("entities", "problem"),
    [
        (["(1-x-y"], "token 1 opens entity 1, which this sentence does not close."),
        (["", "1)"], "token 2 closes entity 1, which is not open in this sentence."),
        (["(1-x-y)1)"], "token 1 closes entity 1, which is not open in this sentence."),
        (["(1-x-y", "2)"], "token 2 closes entity 2, which is not open in this sentence."),
        (["", "", "(1-x-y)x"], "token 3: Entity=(1-x-y)x is no sequence of brackets such as (3-person(4-place)3)."),
        (["()"], "token 1: Entity=() is no sequence"),
        (["(1[1/2]-x-y)"], "of a mention of entity 1 in 2 parts, only [1] are there."),
        (["(1[1/2]-x-y", "1[2/2])"], "token 2 closes entity 1[2/2], which is not open in this sentence."),
    ],
)
def test_brackets_that_do_not_pair_are_a_problem_of_their_sentence(entities, problem):
    bad, after = read(chain(FORMS, entities, sent_id="s-9", **GRP) + chain(FORMS, ["(1-x-y)"], sent_id="s-10"))
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
    (ranged,) = read(sentence(*rows, text="ab", **GRP))
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


def plain_sentences(path) -> list[list[list[str]]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return [[line.split("\t") for line in block.split("\n") if line[0] != "#"] for block in blocks]


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


@pytest.mark.turns(4)
def test_gums_mentions_and_chains_are_those_of_another_parser(gum, gum_sentences):
    documents, plain = gum_sentences, plain_sentences(gum)
    assert len(documents) == len(plain) == 1383
    chains, by_hand = Counter(), Counter()
    for document, rows in zip(documents, plain, strict=True):
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


@pytest.mark.turns(4)
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


def test_a_document_has_coreference_where_it_declares_it_or_has_a_mention():
    found = {each.name: each.gold.has_coreference for each in read(FILE)}
    plain = {"plain 1": False, "plain 2": False}
    assert found == {"declared": True, **plain, "marked 1": True, "marked 2": True, "marked 3": True}
    assert list(found) == ["declared", "plain 1", "plain 2", "marked 1", "marked 2", "marked 3"]


def test_passages_have_it_as_their_document_does():
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
