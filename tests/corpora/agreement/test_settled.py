"""Claims about our own annotated sentences: they are well-formed, and README.md describes them."""

from __future__ import annotations

from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from manyheads.statistics.defined.treebank_words import POS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RELATIONS = """
    acl acl:relcl advcl advcl:relcl advmod amod appos aux aux:pass case cc cc:preconj ccomp compound
    compound:prt conj cop csubj csubj:outer csubj:pass dep det det:predet discourse dislocated expl fixed flat
    goeswith iobj list mark nmod nmod:desc nmod:poss nmod:unmarked nsubj nsubj:outer nsubj:pass nummod obj obl
    obl:agent obl:unmarked orphan parataxis punct reparandum root vocative xcomp
"""  # those of UD English
TYPES = {"person", "animal", "place", "organization", "object", "event", "time", "substance", "plant", "abstract"}


def _script():
    spec = spec_from_file_location("agreement", HERE / "agreement.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


agreement = _script()
FILES = {"settled": agreement.SETTLED, "one": HERE / "one.conllu", "two": HERE / "two.conllu"}
READ = {name: agreement.read(path) for name, path in FILES.items()}


@pytest.fixture(params=FILES)
def sentences(request):
    return READ[request.param]


def test_all_annotations_have_the_same_tokens_in_the_same_order():
    first, *others = ([[token["form"] for token in each] for each in read] for read in READ.values())
    assert len(first) == 40 and all(first == other for other in others)


def test_the_text_is_the_tokens_joined(sentences):
    for sentence in sentences:
        joined = "".join(
            token["form"] + " " * ((token["misc"] or {}).get("SpaceAfter") != "No") for token in sentence
        ).rstrip()
        assert sentence.metadata["text"] == joined


def test_every_sentence_is_a_projective_tree_of_known_relations_with_one_root(sentences):
    for sentence in sentences:
        head = {token["id"]: token["head"] for token in sentence}
        assert list(head) == list(range(1, len(sentence) + 1)) and set(head.values()) <= {0, *head}
        roots = [token["id"] for token in sentence if token["head"] == 0 and token["deprel"] == "root"]
        assert len(roots) == 1 == sum(each == 0 for each in head.values())
        for word in head:
            between = range(min(word, head[word]) + 1, max(word, head[word]))
            above = [_ancestors(each, head) for each in between]
            assert head[word] == 0 or all(head[word] in each for each in above), (sentence.metadata["sent_id"], word)
        assert {token["upos"] for token in sentence} <= set(POS) and {token["deprel"] for token in sentence} <= set(
            RELATIONS.split()
        )
        assert all(token["lemma"] and token["xpos"] for token in sentence)


def _ancestors(word: int, head: dict[int, int]) -> list[int]:
    found = []
    while word:
        word = head[word]
        assert word not in found, "a circle"
        found.append(word)
    return found


def test_every_mention_hangs_on_one_word_and_every_entity_is_of_one_document_and_type(sentences):
    heads = {each.metadata["sent_id"]: {token["id"]: token["head"] for token in each} for each in sentences}
    found = list(agreement.mentions(sentences))
    for each in found:
        own = range(each.span.first, each.span.last + 1)
        assert sum(heads[each.span.sentence][word] not in own for word in own) == 1, each
    assert len({each.entity for each in found}) == len({(each.entity, each.document, each.kind) for each in found})
    assert {each.kind for each in found} <= TYPES
    assert max(Counter(each.span for each in found).values()) == 1


def test_every_personal_pronoun_of_the_settled_file_is_a_mention_but_for_the_one_that_the_page_names():
    spans = {each.span for each in agreement.mentions(READ["settled"])}
    left = [
        (sentence.metadata["sent_id"], token["id"])
        for sentence in READ["settled"]
        for token in sentence
        if token["xpos"] in ("PRP", "PRP$") and token["deprel"] != "nmod:unmarked"
        if (sentence.metadata["sent_id"], token["id"], token["id"]) not in spans
    ]
    assert left == [("violin-2", 7)]


def test_the_page_has_the_figures_that_the_files_give():
    page = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    assert agreement.agreement_markdown(READ["one"], READ["two"]) in page
    assert agreement.counts_markdown(READ["settled"]) in page
    assert agreement.relations_markdown(READ["settled"]) in " ".join(page.split())
    assert f"{len(list(agreement.differences(READ['one'], READ['two'])))} places" in page
