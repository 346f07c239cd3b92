"""Treebanks: sentences and passages. Oracle: the file's columns, split on tabs."""

from collections import Counter
from itertools import pairwise

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


def test_ewts_words_heads_and_relations_are_its_columns(ewt, ewt_sentences):
    assert_are_what_the_columns_say(ewt_sentences, ewt, 2001, 25147, shared=0)
    assert not any(document.gold.has_coreference for document in ewt_sentences)


def test_gums_words_heads_and_relations_are_its_columns(gum, gum_sentences):
    assert_are_what_the_columns_say(gum_sentences, gum, 1383, 24661, shared=0)


def source_of(name: str) -> str:
    return name.split("..")[0].rsplit("-", 1)[0]


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
