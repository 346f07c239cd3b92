"""Coreference is what plain loops over the model's own eager maps count: on passages written here, and on GUM's.

Mentions are read off GUM's brackets here, too. The treebank's tests skip without $MANYHEADS_GOLD.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from manyheads.statistics.defined.coreference import KINDS, coreference_statistics, survey_coreference
from manyheads.texts import Gold, Mention
from tests.corpora.conftest import treebank as treebank_file
from tests.models.eager import tiny_lm
from tests.statistics.gold import (
    Count,
    Counts,
    Looks,
    Said,
    Text,
    always,
    annotated,
    assert_counted,
    gold_words,
    looks_of,
    said,
    sentences,
    summed,
    winners,
)

GUM = "en_gum-ud-dev-free.conllu"
EVERY, PASSAGE_WORDS = 40, 90  # one passage in so many is recounted
L2H4 = 2 * 12 + 4
RANKS, UNSEEN_RANK = 64, 0.5


def told(line: str, *mentions: tuple[int, int, int, str]) -> Text:
    """Words, and mentions as (first, last, head, entity), in order."""
    return annotated(line, mentions=tuple(Mention(*each) for each in mentions), has_coreference=True)


WRITTEN = (
    # several antecedents; a pronoun; the same head word for one entity and for another
    told("The/DET/2/det king/NOUN/3/nsubj saw/VERB/0/root a/DET/5/det dog/NOUN/3/obj ~./PUNCT/3/punct "
         "He/PRON/8/nsubj held/VERB/3/p the/DET/10/det dog/NOUN/8/obj and/CCONJ/13/cc the/DET/13/det King/NOUN/8/conj "
         "left/VERB/8/p it/PRON/14/obj",
         (0, 1, 1, "king"), (3, 4, 4, "dog"), (6, 6, 6, "king"), (8, 9, 9, "dog"), (11, 12, 12, "king"),
         (14, 14, 14, "dog")),
    # nested: a mention around this one is no candidate, nor one on the same head word; the longer comes first
    told("the/DET/2/det friend/NOUN/9/nsubj of/ADP/5/case the/DET/5/det queen/NOUN/2/nmod and/CCONJ/8/cc "
         "her/PRON/8/nmod:poss horse/NOUN/2/conj saw/VERB/0/root her/PRON/9/obj with/ADP/13/case her/PRON/13/nmod:poss "
         "friend/NOUN/9/obl",
         (0, 7, 1, "two"), (0, 4, 1, "friend"), (3, 4, 4, "queen"), (6, 7, 7, "horse"), (6, 6, 6, "queen"),
         (9, 9, 9, "queen"), (11, 12, 12, "friend"), (11, 11, 11, "queen")),
    # two cross another, and one has its head word, one a head before it; the last word ("not") has no token of its own
    told("we/PRON/2/nsubj saw/VERB/0/root old/ADJ/5/amod green/ADJ/5/amod trees/NOUN/2/obj which/PRON/7/nsubj "
         "fell/VERB/5/acl ~,/PUNCT/2/punct they/PRON/10/nsubj can/AUX/2/aux ~not/PART/10/advmod",
         (0, 0, 0, "we"), (2, 4, 4, "trees"), (3, 6, 3, "trees"), (4, 6, 4, "trees"), (5, 5, 5, "trees"),
         (8, 8, 8, "trees"), (10, 10, 10, "trees")),
    # two mentions on one head word, with others begun between them: the later one says how near it is
    told("her/PRON/2/nmod:poss dog/NOUN/4/nmod old/ADJ/4/amod friend/NOUN/5/nsubj left/VERB/0/root it/PRON/5/obj "
         "she/PRON/8/nsubj said/VERB/5/p ~./PUNCT/5/punct",
         (0, 3, 3, "friend"), (0, 1, 1, "dog"), (0, 0, 0, "queen"), (2, 3, 3, "other"), (5, 5, 5, "dog"),
         (6, 6, 6, "queen")),
    told("nobody/PRON/2/nsubj left/VERB/0/root ~./PUNCT/2/punct", (0, 0, 0, "nobody")),
    told("It/PRON/2/nsubj rained/VERB/0/root"),
)  # fmt: skip
TEXTS = (
    *WRITTEN,
    Text("the dog saw it", None),
    annotated("a/DET/2/det cat/NOUN/0/root it/PRON/2/p", mentions=(Mention(0, 1, 1, "x"), Mention(2, 2, 2, "x"))),
    Text("the cat", Gold((), (), has_coreference=True)),
)


# ------------------------------------------------------------------------------------------------------- the oracle


class Sought(NamedTuple):
    """A mention's head word, those of mentions before it (the last begun first), and of its antecedents among them."""

    row: int
    before: list[int]
    right: set[int]


def sought(gold: Gold) -> Iterator[Sought]:
    """Every mention, also without an antecedent."""
    for number, mention in enumerate(gold.mentions):
        before, right = [], set()
        for other in gold.mentions[:number][::-1]:
            outside = other.first < mention.first or mention.last < other.last
            around = other.first <= mention.first and mention.last <= other.last
            assert around <= (outside or other[:2] == mention[:2])
            if around or other.head == mention.head:
                continue
            if other.head not in before:
                before.append(other.head)
            if other.entity == mention.entity:
                right.add(other.head)
        yield Sought(mention.head, before, right)


def ranks_of(texts: Sequence[Text]) -> list[float]:
    counts: Counter[int] = Counter()
    for text in texts:
        for each in sought(text.gold) if text.gold and text.gold.has_coreference else ():
            if each.right:
                counts[min(RANKS - 1, min(each.before.index(head) for head in each.right))] += 1
    total = counts.total() + UNSEEN_RANK * RANKS
    return [(counts[rank] + UNSEEN_RANK) / total for rank in range(RANKS)]


def counts_of(text: Text, looks: Looks, ranks: Sequence[float]) -> Counts:
    if text.gold is None or not text.gold.has_coreference:
        return {}
    gold = text.gold
    forms = [text.text[word.begin : word.end].lower() for word in gold.words]

    def all_parts() -> Iterator[tuple[str, Count]]:
        for each in sought(gold):
            before = [head for head in each.before if looks.sees[each.row, head]]
            right = each.right & set(before)
            if not right:
                continue
            groups = ["coreference"] + ["pronoun"] * (gold.words[each.row].pos == "PRON")
            for kind, count in parts(each.row, before, right):
                for group in groups:
                    yield f"{group}{kind}", count

    def parts(row: int, before: list[int], right: set[int]) -> Iterator[tuple[str, Count]]:
        sees, num_heads = looks.sees[row], len(looks.weights)
        yield "", winners(looks.weights[:, row], sees, looks.beside[:, row]).are(right)
        yield ".given", winners(looks.weights[:, row], sees).are(right)
        yield ".norm", winners(looks.moved[:, row], sees, looks.moved_beside[:, row]).are(right)
        mentioned = np.array([head in before for head in range(len(gold.words))])
        among = winners(looks.weights[:, row], mentioned)
        yield ".mentions", among.are(right)
        yield ".uniform", always(len(right) / len(before), num_heads)
        yield ".nearest", always(before[0] in right, num_heads)
        same = next((head for head in before if forms[head] == forms[row]), before[0])
        yield ".same_word", always(same in right, num_heads)
        if before[0] not in right:
            yield ".off_nearest", among.are(right)
        if same not in right:
            yield ".off_same_word", among.are(right)
        tags = {gold.words[head].pos for head in right}
        chance = np.zeros(len(gold.words))
        for rank, head in enumerate(before):
            chance[head] = ranks[min(rank, RANKS - 1)] if gold.words[head].pos in tags else 0
        yield ".relabelled", among.worth(np.minimum(1, len(right) * chance / chance.sum()))

    return summed(all_parts())


def assert_as_the_maps_say(lm: Any, kind: str, texts: Sequence[Text], batch_tokens: int = 2_048) -> Said:
    ranks = ranks_of(texts)
    np.testing.assert_allclose(survey_coreference(each.gold for each in texts), ranks, rtol=1e-12)
    got = said(lm, texts, coreference_statistics(ranks), batch_tokens)
    wanted = [
        [counts_of(text, looks, ranks) for looks in layers]
        for text, layers in zip(texts, looks_of(lm, texts, kind), strict=True)
    ]
    assert_counted(got, wanted)
    return got


# ------------------------------------------------------------------------------------------------- against the maps


@pytest.mark.parametrize(
    ("kind", "batch_tokens"), [("bert", 2_048), ("bert", 40), ("gpt2", 40), ("llama", 2_048), ("gemma2", 2_048)]
)
def test_every_accuracy_of_a_small_model_is_what_its_maps_say(kind, batch_tokens, fresh):
    got = assert_as_the_maps_say(tiny_lm(kind, fresh), kind, TEXTS, batch_tokens)
    assert not got.den[4:].any()


def test_several_surveys_in_one_table_are_what_each_is_alone(fresh):
    lm = tiny_lm("bert", fresh)
    one, other = (coreference_statistics(ranks_of(texts)) for texts in (TEXTS, WRITTEN[:1]))
    both = said(lm, TEXTS, [*one, *other])
    for alone, at in ((said(lm, TEXTS, one), slice(0, len(one))), (said(lm, TEXTS, other), slice(len(one), None))):
        assert (alone.num == both.num[..., at]).all() and (alone.den == both.den[..., at]).all()


def test_what_is_asked_of_the_written_passages(minilm):
    """By hand: who has an antecedent, what the nearest mention and the same word would find."""
    got = assert_as_the_maps_say(minilm, "bert", TEXTS)

    def counted(name: str) -> list[tuple[float, float]]:
        num, den = got.column(name)
        return [(num[text, 0], den[text, 0]) for text in range(3)]

    # he: king of (dog, king); dog: of (king, dog); king: of (dog, he, king); it: of (king, dog, ...)
    assert counted("coreference.uniform")[0] == pytest.approx((1 / 2 + 1 / 3 + 2 / 4 + 2 / 5, 4))
    assert counted("coreference.nearest")[0] == (0, 4) and counted("coreference.same_word")[0] == (2, 4)
    assert counted("pronoun.nearest")[0] == (0, 2) and counted("pronoun.same_word")[0] == (0, 2)
    # her: queen, whose own mention is no rival to it; "her horse" around the first is none; her, her, friend, her
    assert counted("coreference.nearest")[1] == (3, 4) and counted("pronoun.nearest")[1] == (3, 3)
    assert counted("coreference.off_nearest")[1][1] == 1
    assert {name for name in got.names if name.startswith("pronoun")} == {f"pronoun{kind}" for kind, *_ in KINDS}


def passages(path: Path) -> Iterator[Text]:
    """Neighbouring sentences of a document together, but for those with a mention in parts."""
    for document in sentences(path):
        held: list[Any] = []
        for sentence, rows in document:
            whole = bool(gold_words(sentence, rows)) and brackets([row[9] for row in rows]) is not None
            if held and (not whole or sum(len(rows) for _, rows in [*held, (sentence, rows)]) > PASSAGE_WORDS):
                yield joined(held)
                held = []
            held += [(sentence, rows)] * whole
        if held:
            yield joined(held)


def joined(held: Sequence[tuple[str, list[list[str]]]]) -> Text:
    text, words, mentions = "", [], []
    for sentence, rows in held:
        before = len(words)
        words += gold_words(sentence, rows, begin=len(text), first=before)
        for first, last, entity in brackets([row[9] for row in rows]) or ():
            inside = range(before + first, before + last + 1)
            head = next(at for at in inside if words[at].head not in inside)
            mentions.append(Mention(inside[0], inside[-1], head, entity))
        text += f"{sentence} "
    return Text(text.rstrip(), Gold(tuple(words), tuple(mentions), has_coreference=True))


def brackets(misc: Sequence[str]) -> list[tuple[int, int, str]] | None:
    """First and last word and entity of each "(7-person-new ... 7)"; None where one is in parts, as "7[1/2]"."""
    opened: list[tuple[str, int]] = []
    out = []
    for at, column in enumerate(misc):
        entity = next((part[7:] for part in column.split("|") if part.startswith("Entity=")), "")
        if "[" in entity:
            return None
        for part in entity.replace("(", " (").replace(")", ") ").split():
            name = part.strip("()").split("-")[0]
            if part[0] == "(":
                opened.append((name, at))
            if part[-1] == ")":
                begun = max(place for place, (other, _) in enumerate(opened) if other == name)
                out.append((opened.pop(begun)[1], at, name))
    assert not opened
    return sorted(out, key=lambda each: (each[0], -each[1]))


@pytest.mark.slow
def test_the_bundled_model_on_a_treebank(minilm):
    texts = list(islice(passages(treebank_file(GUM)), 0, None, EVERY))
    got = assert_as_the_maps_say(minilm, "bert", texts)
    assert got.column("coreference")[1].sum(0)[0] > 50 and got.column("pronoun")[1].sum(0)[0] > 20


@pytest.mark.slow  # over three hundred passages: ten seconds
def test_the_bundled_models_head_for_pronouns_is_the_best_of_all(minilm):
    """L2H4 finds the antecedent among the mentions: more often than distance does, or the same word."""
    texts = list(passages(treebank_file(GUM)))
    got = said(minilm, texts, coreference_statistics(ranks_of(texts)))
    share = {name: got.share(name)[L2H4] for name in got.names}
    assert got.share("pronoun.mentions").argmax() == L2H4 == got.share("coreference.mentions").argmax()
    without = ("nearest", "same_word", "relabelled", "uniform")
    assert share["pronoun.mentions"] > 0.7 > 0.65 > max(share[f"pronoun.{name}"] for name in without)
    assert share["pronoun.off_nearest"] > 0.65 and share["pronoun.off_same_word"] > 0.45
    assert share["pronoun"] < 0.2 < 0.4 < share["pronoun.given"]  # [CLS] gets more than any word
