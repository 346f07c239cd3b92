"""Sentences annotated by hand for tests of syntax, and what a survey of any texts should find, in plain loops."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from manyheads.recording import ROOT, Gold, GoldWord
from manyheads.statistics.defined.syntax import Relation
from tests.statistics.gold import FAR, UNSEEN
from tests.statistics.goldtexts import Text, annotated

WRITTEN = (
    annotated("The/DET/3/det old/ADJ/3/amod cat/NOUN/4/nsubj sat/VERB/0/root on/ADP/7/case the/DET/7/det "
              "table/NOUN/4/obl ~,/PUNCT/12/punct and/CCONJ/12/cc the/DET/11/det dog/NOUN/12/nsubj ran/VERB/4/conj "
              "~./PUNCT/4/punct"),
    # n't begins inside the tokenizer's word "can", or is half of "cannot"; the last word has no token of its own
    annotated("She/PRON/4/nsubj ca/AUX/4/aux ~n't/PART/4/advmod read/VERB/0/root the/DET/7/det first/ADJ/7/amod "
              "letter/NOUN/4/obj ~,/PUNCT/4/punct but/CCONJ/12/cc we/PRON/12/nsubj can/AUX/12/aux ~not/PART/4/advmod"),
    # several dependents of one kind, to the left and right, and one with a subtype
    annotated("a/DET/2/det dog/NOUN/0/root ~,/PUNCT/5/punct a/DET/5/det cat/NOUN/2/conj ~,/PUNCT/8/punct a/DET/8/det "
              "bird/NOUN/2/conj and/CCONJ/11/cc a/DET/11/det fish/NOUN/2/conj of/ADP/13/case mine/PRON/11/nmod:poss"),
    annotated("Read/VERB/0/root"),
    annotated("Zyzzyva/X/2/dep zyzzyva/X/0/root ~!/PUNCT/2/punct"),
    annotated("why/ADV/4/advmod is/AUX/4/cop the/DET/4/det cat/NOUN/0/root here/ADV/4/advmod ~?/PUNCT/4/punct"),
)  # fmt: skip
MORE = (
    Text("nobody has read the old book", None),
    annotated("the/DET/2/det cat/NOUN/3/nsubj saw/VERB/0/root", has_syntax=False),
    Text("no word of this is known", Gold(())),
    # what the treebank leaves out is no word, but gets attention
    Text("* the / cat * sat", Gold((GoldWord(2, 5, "DET", 1, "det"), GoldWord(8, 11, "NOUN", 2, "nsubj"),
                                    GoldWord(14, 17, "VERB", ROOT, "root")))),
    # a word that depends on itself, or on none, asks nothing
    Text("she knew", Gold((GoldWord(0, 3, "PRON", 0, "nsubj"), GoldWord(4, 8, "VERB", ROOT, "nsubj")))),
)  # fmt: skip
TEXTS = (*WRITTEN, *MORE)


def arcs(text: Text) -> Iterator[tuple[int, int, str]]:
    """Dependents, their heads, and what links them."""
    for dependent, word in enumerate(text.gold.words if text.gold and text.gold.has_syntax else ()):
        if word.head != ROOT and word.head != dependent:
            yield dependent, word.head, word.relation


def nearest(text: Text, word: int, side: int, pos: str) -> int | None:
    """The nearest word with a part of speech on a side."""
    words = text.gold.words if text.gold else ()
    side_by_side = range(word + 1, len(words)) if side > 0 else range(word - 1, -1, -1)
    return next((at for at in side_by_side if words[at].pos == pos), None)


def offsets_of(texts: Sequence[Text], relation: str) -> Counter[int]:
    far = [head - dependent for text in texts for dependent, head, name in arcs(text) if name == relation]
    return Counter(min(FAR, max(-FAR, offset)) for offset in far)


def assert_surveyed(texts: Sequence[Text], relations: Sequence[Relation], min_arcs: int) -> None:
    tags = {word.pos for text in texts for word in (text.gold.words if text.gold else ())}
    linked: dict[str, list[tuple[Text, int, int]]] = {}
    for text in texts:
        for dependent, head, name in arcs(text):
            linked.setdefault(name, []).append((text, dependent, head))
    assert [each.name for each in relations] == sorted(name for name in linked if len(linked[name]) >= min_arcs)
    for each in relations:
        found = offsets_of(texts, each.name)
        assert each.num_arcs == len(linked[each.name])
        assert {at - FAR: count for at, count in enumerate(each.offsets) if count} == dict(found)
        assert found[each.modal] == max(found.values())
        smooth = [found[at] + UNSEEN for at in range(-FAR, FAR + 1)]
        np.testing.assert_allclose(each.chances.numpy(), np.array(smooth) / sum(smooth), rtol=1e-5)
        hits = {
            (side, pos): sum(nearest(text, at, side, pos) == head for text, at, head in linked[each.name])
            for side in (-1, 1)
            for pos in tags
        }
        assert hits[each.rule.side, each.rule.pos] == max(hits.values())
