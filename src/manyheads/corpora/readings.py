"""What a model is shown where nothing is given: a page for its labels and its experiments, and one short text.

A model is judged on what it has read. Most have read prose, ours among it; a bundled model that has read something else
says so in its row of `BUNDLED`, and is shown that. Python is a frozen copy of this package's own source: always at
hand, and nothing that a model of ours was trained on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from manyheads.corpora.documents import Corpus, corpus_of
from manyheads.corpora.page import page_digest, page_texts
from manyheads.corpora.sentence import OWN_TEXT
from manyheads.models.loading.checkpoints import BUNDLED

__all__ = ["PROSE", "READINGS", "Reading", "reading_of"]

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
