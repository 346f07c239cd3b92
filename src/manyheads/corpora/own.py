"""What is read where no corpus is given: our own page and our own annotated sentences, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from manyheads.corpora.documents import Corpus, Document, corpus_of
from manyheads.corpora.gold import gold_corpus
from manyheads.corpora.page import page_texts
from manyheads.corpora.readings import reading_of


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
