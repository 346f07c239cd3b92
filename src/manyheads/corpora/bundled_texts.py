"""What is read where no corpus is given: our own page and our own annotated sentences, one after the other."""

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

__all__ = ["OWN_TEXT", "PROSE", "READINGS", "Reading", "reading_of"]


def own_corpora(model: str) -> tuple[Corpus, Corpus | None]:
    """What the model of that name is shown, and the passages of it whose coreference is known."""
    reading = reading_of(model)
    return (own_corpus(), gold_corpus("passage")) if reading.annotated else (reading.corpus(), None)


def own_corpus() -> Corpus:
    """The page's texts, then the annotated sentences."""
    page, gold = corpus_of(page_texts()), gold_corpus()
    count = page.total or 0

    def documents() -> Iterator[Document]:
        for at, each in enumerate(page.open()):
            yield replace(each, name=f"page:{at + 1}")
        for at, each in enumerate(gold.open()):
            yield replace(each, at=count + at + 1)

    total = count + sum(1 for _ in gold.open())
    return Corpus(documents, "our own page and annotated sentences", f"own {page.key} {gold.key}", total)


# ---------------------------------------------------------------------------------------------------------------------
# The bundled page: our own prose on which labels rest when nobody gives a corpus.
#
# Names that recur, numbers, quotations, questions, lists, code: varied on purpose, so that heads of many kinds find
# something to do. One text a line.


def page_texts() -> list[str]:
    """The page's texts, in order."""
    return _read().splitlines()


def page_digest() -> str:
    """What the page's words hash to: part of the key under which labels are cached."""
    return hashlib.blake2b(_read().encode(), digest_size=8).hexdigest()


def _read() -> str:
    return files("manyheads.corpora").joinpath("page.txt").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Our own annotated sentences, for whoever has no treebank: words, syntax and coreference.
#
# Few, short and plain: enough to see which heads follow syntax and pronouns, too few for fine comparisons.


FILE = "sentences.conllu"


def gold_corpus(unit: str = "sentence") -> Corpus:
    """The sentences, or passages of them, as `open_corpus` gives a treebank's. Errors: TextError, FileAccessError."""
    corpus = open_corpus(Path(str(files("manyheads.corpora"))) / FILE, unit=unit)
    return replace(corpus, origin="annotated sentences of our own")


# ---------------------------------------------------------------------------------------------------------------------
# The sentence that is read where none is given.


OWN_TEXT = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."
"""Words that recur, a pronoun, a relative clause, a comma: something for most kinds of heads."""


# ---------------------------------------------------------------------------------------------------------------------
# What a model is shown where nothing is given: a page for its labels and its experiments, and one short text.
#
# A model is judged on what it has read. Most have read prose, ours among it; a bundled model that has read something
# else says so in its row of `BUNDLED`, and is shown that. Python is a frozen copy of this package's own source: always
# at hand, and nothing that a model of ours was trained on.


PYTHON_SENTENCE = """def largest(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best
"""
"""Names that recur, a block in a block: something for most kinds of heads."""

PYTHON_PAGE = "python_page.txt"
"""Paragraphs of 3 to 10 lines of this package's layers as they were in November 2026, about 20,000 tokens, as many as
on the page of prose. A copy, not today's source: published labels of `tiny-code` rest on it."""


@dataclass(frozen=True)
class Reading:
    """`name` is what `Bundled.reads` says. `sentence` is the short text and `sentence_is` that in words; so are `texts`
    and `texts_are` ("300 ..."). `digest` is part of the key under which labels are cached."""

    name: str
    sentence: str
    sentence_is: str
    texts: Callable[[], list[str]]
    texts_are: str
    digest: Callable[[], str]
    annotated: bool = False  # whether we have annotated sentences of that kind, too

    def spread(self, count: int) -> list[str]:
        """That many of the texts, every few of them, so that all kinds are there."""
        texts = self.texts()
        return texts[:: max(1, len(texts) // count)][:count]

    def corpus(self) -> Corpus:
        """The texts as a corpus."""
        return corpus_of(self.texts(), self.texts_are)


@cache
def python_texts() -> list[str]:
    """Paragraphs of the package's own source, separated by empty lines in the file; lines stay lines."""
    page = files("manyheads.corpora").joinpath(PYTHON_PAGE).read_text(encoding="utf-8")
    return [paragraph.strip("\n") for paragraph in re.split(r"\n\s*\n", page)]


def _python_digest() -> str:
    return hashlib.blake2b("\0".join(python_texts()).encode(), digest_size=8).hexdigest()


PROSE = "prose"
READINGS: Mapping[str, Reading] = MappingProxyType(
    {
        each.name: each
        for each in (
            Reading(PROSE, OWN_TEXT, "a sentence of our own", page_texts, "texts of our own", page_digest, True),
            Reading(
                "python",
                PYTHON_SENTENCE,
                "a function of our own",
                python_texts,
                "texts of manyheads' own source, as this model reads Python",
                _python_digest,
            ),
        )
    }
)


def reading_of(model: str) -> Reading:
    """What the model of that name reads: its own where it is bundled, prose for all others."""
    return READINGS[BUNDLED[model].reads if model in BUNDLED else PROSE]
