"""Whatever texts somebody has, as a corpus: a list, an iterator of strings or Documents, a corpus as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from manyheads.corpora.documents import Corpus, Document
from manyheads.errors import TextError

__all__ = ["as_corpus"]


def as_corpus(texts: Any) -> Corpus:
    """A list is named by its contents and can be read again; an iterator has no key: it can be read once only.

    Errors: TextError for what is no texts at all. What is no text among them is a Document with a problem.
    """
    if isinstance(texts, Corpus):
        return texts
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        raise TextError(f"texts is a {type(texts).__name__}: give a text, or a list of texts.")
    if not isinstance(texts, Sequence):
        return Corpus(lambda: _documents(texts), "a stream of texts", "", None)
    held = [replace(each, at=index + 1) for index, each in enumerate(_documents(texts))]
    digest = hashlib.blake2b(digest_size=16)
    for each in held:
        digest.update(repr((each.text, each.gold)).encode("utf-8", "surrogatepass"))
    return Corpus(lambda: iter(held), f"{len(held):,} texts", f"{len(held)} texts {digest.hexdigest()}", len(held))


def _documents(texts: Iterable[Any]) -> Iterator[Document]:
    for index, each in enumerate(texts):
        if isinstance(each, Document):
            yield each
        elif isinstance(each, str):
            yield Document(each, f"text {index}", at=index + 1)
        else:
            problem = f"it is of type {type(each).__name__}, not a text"
            yield Document("", f"text {index}", at=index + 1, problem=problem)
