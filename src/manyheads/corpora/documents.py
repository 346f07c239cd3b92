"""A corpus: texts that come one after another, however many there are, each with its name and what is known about it.

Nothing holds a whole corpus: readers hand out documents as they come (`files`, `treebanks`), and a corpus can be
opened again, so that a run that was stopped can go on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from manyheads.recording.tokens import Gold


@dataclass(frozen=True)
class Document:
    """One text. `name` says where it is from ("page.txt:12", a treebank's sent_id); `at` is how far reading has come
    with it, in the units of the corpus' `total` (bytes of files, else texts).

    `problem` says why there is no text where one was to be read (a broken line of JSON, say); `text` is empty then.
    Whoever reads a corpus counts such documents and says so, but goes on: one bad line of millions ends no run.
    """

    text: str
    name: str
    gold: Gold | None = None
    at: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Corpus:
    """Texts in order. `open()` begins anew each time and gives the same documents in the same order.

    `origin` names it in words. `key` is all that its documents hang on (files with size and digest, how they are
    read): a run that was stopped goes on only with the same. `total` is how much there is to read (None: unknown, as
    with standard input, which can be opened once only).
    """

    open: Callable[[], Iterator[Document]]
    origin: str
    key: str
    total: int | None


def corpus_of(texts: Sequence[str], origin: str = "") -> Corpus:
    """Texts in memory as a corpus."""
    from manyheads.recording.tokens import text_seed

    def documents() -> Iterator[Document]:
        for index, text in enumerate(texts):
            yield Document(text, f"text {index}", at=index + 1)

    key = f"{len(texts)} texts, {sum(text_seed(text) for text in texts) % (1 << 63):x}"
    return Corpus(documents, origin or f"{len(texts)} texts", key, len(texts))
