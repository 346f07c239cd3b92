"""The four archetypes on one sentence: arcs, what each is good for, what chance gives, and a head that does it.

Arcs are a head's own weights on the reader's sentence. Scores and chance are of our own annotated sentences, so that
one sentence is never the evidence. Which head stands for a kind is written here; what it does is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from manyheads import corpora, measurement
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, KindCard, Loader, Ran, matrix
from manyheads.lab.lessons.pages.shared import MODEL, map_of, one_named, recorded, strongest_links
from manyheads.lab.lessons.parameters import Values, choice, number, text, whole
from manyheads.statistics import defined

if TYPE_CHECKING:
    from manyheads.statistics import HeadTable

SENTENCE = "The researcher who cited the paper won the prize"
VERBS = "cited won"
PRONOUNS = frozenset(
    (
        "who",
        "whom",
        "whose",
        "which",
        "that",
        "he",
        "she",
        "it",
        "they",
        "him",
        "her",
        "them",
        "his",
        "hers",
        "its",
        "their",
    )
)


class Kind(NamedTuple):
    """A kind of head. `score` and `chance` name statistics over our annotated sentences; `chance_words` says what the
    second is."""

    title: str
    head: str
    pattern: str
    reason: str
    score: str
    chance: str
    score_words: str
    chance_words: str
    next_question: str


KINDS = (
    Kind(
        "Previous token", "L0H2",
        "Each word looks at the one just before it.",
        "A word alone says little. This head writes down what came before: it joins pieces of words, and it is the "
        "first half of an induction head.",
        "previous_mass", "previous_mass.uniform",
        "of its weight goes to the token before", "would go there from a head that looks everywhere alike",
        "Which later head reads what this one wrote? A map does not say it: take the head away and see.",
    ),
    Kind(
        "Verb to its subject", "L5H2",
        "A verb looks at the one who does it, over everything that stands between.",
        "To know who won, it is not enough to look back by one word: the nearest noun is the paper.",
        "nsubj.to_dependent.given", "nsubj.to_dependent.mode",
        "of the verbs have their subject as the word that it looks at most",
        "are right by always guessing the word before",
        "Is it right where the subject is not the word before? Ask for those cases alone.",
    ),
    Kind(
        "Pronoun to what it means", "L3H1",
        "A pronoun looks back at the noun that it stands for.",
        "'Who', 'it' and 'they' mean nothing by themselves: what is known of the noun has to be brought to them.",
        "pronoun", "pronoun.nearest",
        "of the pronouns have what they stand for as the token that it looks at most",
        "are right by guessing the nearest noun",
        "Does it follow the meaning, or only the nearest noun? Change a word so that the pronoun means another one.",
    ),
    Kind(
        "A sink: first token or separator", "L4H5",
        "Every word looks at [CLS], whatever the sentence says.",
        "Weights of a row must add up to 1. A head that finds nothing needs a place where looking does no harm.",
        "first_mass", "first_mass.uniform",
        "of its weight goes to the first token", "would go there from a head that looks everywhere alike",
        "What does it move? Weight times length of the value is small here: the next lesson has it.",
    ),
)  # fmt: skip
TITLES = tuple(kind.title for kind in KINDS)

# -------------------------------------------------------------------------------------------------------------- cells


def four_archetypes(values: Values, load: Loader) -> Ran:
    """The four kinds on a sentence: cards with arcs, and each head's whole map. Raises TextError."""
    lm, sentence = load(MODEL), values.text("sentence")
    rec, tokens = recorded(lm, sentence)
    ordinary = [int(index) for index in np.flatnonzero(rec.tokens.ordinary[0])]
    verbs = values.text("verbs").replace(",", " ").casefold().split()
    # whose rows are drawn, and among which keys the strongest is sought
    drawn: Sequence[tuple[Callable[[str], bool], Sequence[int]]] = (
        (lambda token: True, range(len(tokens))),
        (lambda token: token.casefold() in verbs, ordinary),
        (lambda token: token.casefold() in PRONOUNS, ordinary),
        (lambda token: True, range(len(tokens))),
    )
    cards, maps = [], []
    for kind, (looks, keys) in zip(KINDS, drawn, strict=True):
        head = one_named(lm, kind.head)
        weights = map_of(rec, head)
        queries = [index for index in ordinary if looks(tokens[index])]
        arcs = strongest_links(weights, queries, keys)
        right, chance = scores_of(kind, load)
        holds = right > chance
        cards.append(KindCard(
            kind.title, kind.head,
            f"a head of {MODEL}, as trained" if holds else f"the head of {MODEL} that looks like it on this sentence",
            tokens, arcs, kind.pattern, kind.reason,
            f"{kind.head}: {right:.0f} % {kind.score_words}, over our annotated sentences."
            + ("" if holds else " So it is no such head: on one sentence a map can fool you, and here it would."),
            f"{chance:.0f} % {kind.chance_words}.",
            kind.next_question,
        ))  # fmt: skip
        maps.append(matrix(kind.head, kind.title, weights, tokens, tokens, as_map=True))
    links = tuple(HeadLink(kind.head, sentence, MODEL) for kind in KINDS)
    firmest = [f"{card.title.lower()} {in_words(card)}" for card in cards if card.arcs]
    return Ran(f"The firmest link of each kind: {'; '.join(firmest)}.", tuple(maps), links, cards=tuple(cards))


def in_words(card: KindCard) -> str:
    """The firmest link of a card."""
    arc = max(card.arcs, key=lambda arc: arc.weight)
    return f"'{card.tokens[arc.query]}' to '{card.tokens[arc.key]}' {100 * arc.weight:.0f} %"


def scores_of(kind: Kind, load: Loader) -> tuple[float, float]:
    """What its head does over our annotated sentences, and what chance does, in percent."""
    table = gold_table(load)
    right, chance = (float(table[kind.head, name]) for name in (kind.score, kind.chance))
    return 100 * right, 100 * chance


@lru_cache(maxsize=2)
def gold_table(load: Loader) -> HeadTable:
    """Every head over our annotated sentences, measured once: some seconds."""
    documents = list(corpora.gold_corpus().open())
    golds = [document.gold for document in documents]
    (subjects,) = (survey for survey in defined.survey_syntax(golds, 1) if survey.name == "nsubj")
    of_coreference = defined.coreference_statistics(defined.survey_coreference(golds))
    of_words = [*defined.syntax_statistics([subjects]), *of_coreference]
    masses = [name for kind in KINDS for name in (kind.score, kind.chance) if "_mass" in name]
    return measurement.measure(load(MODEL), documents, [*of_words, *masses])


CELLS: Mapping[str, Cell] = {
    "four-archetypes": Cell(
        four_archetypes, (text("sentence", "A sentence", SENTENCE), text("verbs", "its verbs", VERBS))
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks

ROWS = {
    # other words than those of the sentence: the card's own links would be read off it
    "'barked', far behind, looks at 'dog'": TITLES[1],
    "'she' looks at 'teacher', and 'they' at 'bees'": TITLES[2],
    "'river' looks at 'the', and 'froze' at 'river'": TITLES[0],
    "'sang', 'the' and 'birds' all look at [CLS]": TITLES[3],
}
ABOVE, NOT_ABOVE = "yes, more often than the guess", "no, no more often than the guess"


def which_kind(values: Values, load: Loader) -> Right:
    """The kind of head that some links are of."""
    links = values.text("links")
    answer = ROWS[links]
    pattern = {kind.title: kind.pattern for kind in KINDS}
    return Right(
        answer, pattern[answer], "What do the words that it looks at have in common: a place, a role, a meaning?",
        mistakes={title: pattern[title] for title in TITLES},
    )  # fmt: skip


def beats_guess(values: Values, load: Loader) -> Right:
    """Whether the head of a card does better over our annotated sentences than its guess."""
    (kind,) = (kind for kind in KINDS if kind.title == values.text("kind"))
    right, chance = scores_of(kind, load)
    words = f"{kind.head}: {right:.0f} % {kind.score_words}; {chance:.0f} % {kind.chance_words}."
    return Right(
        ABOVE if right > chance else NOT_ABOVE, words, "On one sentence, looking and guessing may come to the same.",
        mistakes=dict.fromkeys((ABOVE, NOT_ABOVE), words),
    )  # fmt: skip


def left_over(values: Values, load: Loader) -> Right:
    """What each other token gets from a head that rests on one."""
    percent, tokens = values.number("percent"), values.whole("tokens")
    answer = (100 - percent) / (tokens - 1)
    return Right(
        answer,
        f"{100 - percent:g} % are left for {tokens - 1} tokens: {answer:.2f} % each. Whoever leaves [CLS] out of the "
        f"picture and stretches the rest sees a busy head.",
        "A row adds up to 100 %. What is left, and for how many?",
        unit="%",
        mistakes={100 / tokens: "That is a head that looks everywhere alike.",
                  (100 - percent) / tokens: "[CLS] is one of the tokens: the others are one fewer."},
    )  # fmt: skip


CHECKS: Mapping[str, Check | Predict] = {
    "which-kind": Check(which_kind, (choice("links", "links", tuple(ROWS)),)),
    "beats-guess": Check(beats_guess, (choice("kind", "kind", TITLES),)),
    "left-over": Check(
        left_over,
        (number("percent", "percent on [CLS]", 90, 50, 98, 1, others=(80, 95)),
         whole("tokens", "tokens", 11, 3, 100, others=(6, 21))),
    ),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def kind_score(values: Values, load: Loader) -> str:
    """What a card's head does over our annotated sentences, or what chance does."""
    (kind,) = (kind for kind in KINDS if kind.head == values.text("head"))
    return f"{scores_of(kind, load)[values['by'] == 'chance']:.0f} %"


FACTS: Mapping[str, Fact] = {
    "kind-score": Fact(
        kind_score,
        (choice("head", "head", tuple(kind.head for kind in KINDS)), choice("by", "of", ("the head", "chance"))),
    ),
}
