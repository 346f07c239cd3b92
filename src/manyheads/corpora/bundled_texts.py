"""The bundled texts, read where no corpus is given: a page of prose, annotated sentences, and one short text.

A model is judged on what it has read. Most have read prose, ours among it; a bundled model that has read something else
says so in its row of `BUNDLED`, and is shown that.

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

from manyheads.corpora.corpus import Corpus, Document, corpus_of
from manyheads.corpora.open import open_corpus
from manyheads.models import BUNDLED

OWN_TEXT = "The animal didn't cross the street because it was too tired."
"""The sentence that is read where none is given, in the terminal and on the page: heads of a model that has read prose
link its "it" to "animal". Source: Uszkoreit 2017, "Transformer: A Novel Neural Network Architecture for Language
Understanding"."""

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
class Reading:
    """What a model is shown where nothing is given: a page for its labels and its experiments, and one short text.

    `name` is the value of `Bundled.reads`. `sentence` is the short text and `sentence_is` that in words; so are `texts`
    and `texts_are` ("300 ..."). `digest` is part of the key under which labels are cached. `annotated`: whether there
    are annotated sentences of that kind, too. `question` is a text and two of its words: which heads link them? `pair`:
    two texts that differ in one thing, and the answer of each ("clean", "corrupted", "right", "wrong").
    """

    name: str
    sentence: str
    sentence_is: str
    texts: Callable[[], list[str]]
    texts_are: str
    digest: Callable[[], str]
    pair: Mapping[str, str]
    annotated: bool = False
    question: tuple[str, str, str] | None = None

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
    return Corpus(documents, "the bundled texts and annotated sentences", f"own {page.key} {gold.key}", total)


def gold_corpus(unit: str = "sentence") -> Corpus:
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


PROSE, PYTHON = "prose", "python"
PYTHON_IS = "bundled texts of Python, which this model reads"
# Who gets the bag (Wang et al. 2023); which attribute is set: the second pair of docs/howto/patch-heads.md.
PROSE_PAIR = MappingProxyType(
    {
        "clean": "When Mary and John went to the shop, John gave the bag to",
        "corrupted": "When Mary and John went to the shop, Mary gave the bag to",
        "right": " Mary",
        "wrong": " John",
    }
)
PYTHON_PAIR = MappingProxyType(
    {
        "clean": "class Box:\n    def __init__(self, path, mode):\n        self.path = path\n        self.mode =",
        "corrupted": "class Box:\n    def __init__(self, path, mode):\n        self.path = path\n        self.path =",
        "right": " mode",
        "wrong": " path",
    }
)
READINGS: Mapping[str, Reading] = MappingProxyType(
    {
        PROSE: Reading(
            PROSE,
            OWN_TEXT,
            "a bundled sentence",
            page_texts,
            "bundled texts",
            page_digest,
            PROSE_PAIR,
            True,
            (OWN_TEXT, "it", "animal"),
        ),
        PYTHON: Reading(PYTHON, PYTHON_TEXT, "a bundled function", python_texts, PYTHON_IS, python_digest, PYTHON_PAIR),
    }
)


def reading_of(model: str) -> Reading:
    """The texts of the model of that name: its own where it is bundled, prose for all others."""
    return READINGS[BUNDLED[model].reads if model in BUNDLED else PROSE]
