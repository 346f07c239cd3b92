"""Texts that come with manyheads: what a model is shown where no text is given.

They are a page of prose, annotated sentences, a page of Python, and examples. A model is judged on what it has read.
Most have read prose, ours among it; a bundled model that has read something else says so in its row of `BUNDLED`, and
is shown that. What a model is good for goes by what it is: an encoder is shown a sentence, a language model a text that
breaks off before a word that can be guessed. `READINGS` is the one table of it, `reading_of` chooses.

- The page of prose (`page.txt`, one text a line) is what labels rest on when nobody gives a corpus: names that recur,
  numbers, quotations, questions, lists, code; varied on purpose, so that heads of many kinds find something to do.
- The annotated sentences (`sentences.conllu`) are for readers without a treebank: words, syntax and coreference. Few,
  short and plain: enough to see which heads follow syntax and pronouns, too few for fine comparisons.
- The page of Python is a frozen copy of this package's own source: always there, and in no model's training texts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from manyheads.corpora.corpus import Corpus, corpus_of
from manyheads.corpora.sources import open_corpus
from manyheads.models import BUNDLED
from manyheads.texts import Document

if TYPE_CHECKING:  # imports torch
    from manyheads.models import LoadedModel

OWN_TEXT = "The animal didn't cross the street because it was too tired."
"""The sentence that an encoder is shown where none is given, in the terminal and on the page: heads of a model that has
read prose link its "it" to "animal". Source: Uszkoreit 2017, "Transformer: A Novel Neural Network Architecture for
Language Understanding"."""

PYTHON_TEXT = """def largest(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best
"""
"""The same for models of Python: names that recur, a block in a block."""

EXAMPLE_SENTENCES = (
    "The tired animal lay by the road.",
    "Heavy traffic filled the street.",
    "Her legs hurt after the long walk.",
    "The cat slept all afternoon.",
    "Our dog chased a squirrel.",
    "The scientist won a prize.",
    "The court rejected the appeal.",
    "Interest rates rose again.",
    "Beat two eggs and add some salt.",
    "The train to Berlin leaves at noon.",
    "It rained and the river flooded.",
    "The team lost the final match.",
    "Plants turn light into sugar.",
    "The old bridge was closed.",
    "He forgot his password again.",
    "The doctor told him to rest.",
)
"""Sentences that a text is compared with: which of them is nearest shows what an embedding has kept of it."""

# Paragraphs of 3 to 10 lines of this package's layers as they were in November 2026, about 20,000 tokens, as many as on
# the page of prose. A copy, not today's source: published labels of `tiny-code` rest on it.
PYTHON_PAGE = "python_page.txt"

FOLDER = files("manyheads.corpora")
SENTENCES = "sentences.conllu"


@dataclass(frozen=True)
class OwnTexts:
    """What a model is shown where nothing is given: a page for its labels and its experiments, and examples.

    - `name`: the value of `Bundled.reads`.
    - `sentence`: one short text, and `sentence_is`, that in words.
    - `texts`: those of the page, and `texts_are`, those in words ("300 ...").
    - `digest`: part of the key under which labels are cached.
    - `pairs`: each two texts that differ in one thing, and the answer of each ("clean", "corrupted", "right", "wrong").
    - `pairs_are`: what differs, in words ("6 ...").
    - `annotated`: whether there are also annotated sentences of that kind.
    - `question`: a text and two of its words: which heads link them?
    - `swap`: a word of that text (where it stands last) and words to put in its place: does the link follow?
    """

    name: str
    sentence: str
    sentence_is: str
    texts: Callable[[], list[str]]
    texts_are: str
    digest: Callable[[], str]
    pairs: tuple[Mapping[str, str], ...]
    pairs_are: str
    annotated: bool = False
    question: tuple[str, str, str] | None = None
    swap: tuple[str, tuple[str, ...]] | None = None

    def spread(self, count: int) -> list[str]:
        """At most `count` of the texts, every few of them, so that all kinds are there."""
        texts = self.texts()
        return texts[:: max(1, len(texts) // count)][:count]

    def corpus(self) -> Corpus:
        """The texts as a corpus."""
        return corpus_of(self.texts(), self.texts_are)


def own_corpora(model: str) -> tuple[Corpus, Corpus | None]:
    """The corpus that the model of that name is shown, and its passages whose coreference is known."""
    reading = reading_of(model)
    return (own_corpus(), gold_corpus("passage")) if reading.annotated else (reading.corpus(), None)


def own_corpus() -> Corpus:
    """The page's texts, then the annotated sentences."""
    page, gold = corpus_of(page_texts()), gold_corpus()
    count = page.total or 0

    def documents() -> Iterator[Document]:
        for number, document in enumerate(page.open(), 1):
            yield replace(document, name=f"page:{number}")
        for number, document in enumerate(gold.open(), 1):
            yield replace(document, at=count + number)

    total = count + sum(1 for _ in gold.open())
    return Corpus(
        documents, "the bundled texts and annotated sentences", f"own {page.key} {gold.key}", total, again=own_corpus
    )


def gold_corpus(unit: Literal["sentence", "passage"] = "sentence") -> Corpus:
    """The sentences, or passages of them, as `open_corpus` gives a treebank's. Errors: TextError, FileAccessError."""
    corpus = open_corpus(Path(str(FOLDER)) / SENTENCES, unit=unit)
    return replace(corpus, origin="bundled annotated sentences")


def page_texts() -> list[str]:
    """The page's texts, in order."""
    return FOLDER.joinpath("page.txt").read_text(encoding="utf-8").splitlines()


def page_digest() -> str:
    """The digest of the page's words: part of the key under which labels are cached."""
    return _digest(FOLDER.joinpath("page.txt").read_text(encoding="utf-8"))


@cache
def python_texts() -> list[str]:
    """Paragraphs of the package's own source, separated by empty lines in the file; lines stay lines."""
    page = FOLDER.joinpath(PYTHON_PAGE).read_text(encoding="utf-8")
    return [paragraph.strip("\n") for paragraph in re.split(r"\n\s*\n", page)]


def python_digest() -> str:
    """The digest of the page of Python, in the place of `page_digest` for models of Python."""
    return _digest("\0".join(python_texts()))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# Who gets the gift (Wang et al. 2023, "Interpretability in the Wild", section 2): each time another pair of names. The
# one who gets it is named first or second by turns, so that no place in the text tells the answer. A name is one
# token in most vocabularies, and all texts have the same number of them.
GIFTS = (
    ("Mary", "John", "John", "store", "drink"),
    ("Tom", "Anna", "Tom", "park", "book"),
    ("Peter", "Jane", "Jane", "school", "letter"),
    ("Sarah", "David", "Sarah", "office", "key"),
    ("Paul", "Kate", "Kate", "station", "ring"),
    ("Emma", "James", "Emma", "garden", "ball"),
    ("Lucy", "Mark", "Lucy", "market", "coin"),
    ("Robert", "Helen", "Helen", "library", "pen"),
)


def gift_pair(first: str, second: str, giver: str, place: str, thing: str) -> Mapping[str, str]:
    """Two people go somewhere, and one of them gives: to whom? In the corrupted text, the other one gives."""
    other = second if giver == first else first
    clean, corrupted = (
        f"When {first} and {second} went to the {place}, {name} gave a {thing} to" for name in (giver, other)
    )
    return MappingProxyType({"clean": clean, "corrupted": corrupted, "right": f" {other}", "wrong": f" {giver}"})


# Two parameters, and which of them is set last.
PARAMETERS = (
    ("path", "mode"),
    ("name", "size"),
    ("key", "value"),
    ("index", "data"),
    ("type", "name"),
    ("mode", "key"),
    ("data", "path"),
    ("value", "type"),
    ("size", "index"),
    ("x", "y"),
)


def attribute_pair(first: str, second: str) -> Mapping[str, str]:
    """A class whose second parameter is to be stored; in the corrupted text, its first one once more."""
    clean, corrupted = (
        f"class Box:\n    def __init__(self, {first}, {second}):\n        self.{first} = {first}\n        self.{name} ="
        for name in (second, first)
    )
    return MappingProxyType({"clean": clean, "corrupted": corrupted, "right": f" {second}", "wrong": f" {first}"})


GIFT_PAIRS = tuple(gift_pair(*names) for names in GIFTS)
PROSE, LANGUAGE, PYTHON = "prose", "language", "python"
PAGE = OwnTexts(
    PROSE, OWN_TEXT, "an example sentence", page_texts, "bundled texts", page_digest, GIFT_PAIRS,
    "examples of who is given something", True, (OWN_TEXT, "it", "animal"), ("tired", ("wide", "hungry", "long")),
)  # fmt: skip
READINGS: Mapping[str, OwnTexts] = MappingProxyType(
    {
        PROSE: PAGE,
        LANGUAGE: replace(
            PAGE,
            name=LANGUAGE,
            sentence=GIFT_PAIRS[0]["clean"],
            sentence_is="an example text",
            # Which heads find the name that the text goes on with, from its last word.
            question=(GIFT_PAIRS[0]["clean"], "to", "Mary"),
            swap=("John", ("Mary", "she", "Tom")),
        ),
        PYTHON: OwnTexts(
            PYTHON, PYTHON_TEXT, "an example function", python_texts, "bundled texts of Python, which this model reads",
            python_digest, tuple(attribute_pair(*names) for names in PARAMETERS), "examples of which attribute is set",
        ),
    }
)  # fmt: skip


def reading_of(model: str | LoadedModel) -> OwnTexts:
    """The texts of a model: its own where it is bundled, else those of language models for one that is one, else prose.

    By its name alone, as before it is loaded, a model that is not bundled counts as one of prose.
    """
    name = model if isinstance(model, str) else model.name
    if name in BUNDLED:
        return READINGS[BUNDLED[name].reads]
    continues = not isinstance(model, str) and model.predicts == "next" and not model.writes_apart
    return READINGS[LANGUAGE if continues else PROSE]
