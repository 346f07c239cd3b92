"""A corpus: texts that come one after another, however many there are, each with its name and what is known about it.

Nothing holds a whole corpus: readers hand out documents as they come (`files`, `treebanks`), and a corpus can be
opened again, so that a run that was stopped can go on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from manyheads.errors import LostProcessError, PatternError, TextError
from manyheads.recording import Gold

__all__ = ["as_corpus", "NONE_FAILED", "Failure", "Failures", "is_about_texts", "reason_of"]


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
    from manyheads.recording import text_seed

    def documents() -> Iterator[Document]:
        for index, text in enumerate(texts):
            yield Document(text, f"text {index}", at=index + 1)

    key = f"{len(texts)} texts, {sum(text_seed(text) for text in texts) % (1 << 63):x}"
    return Corpus(documents, origin or f"{len(texts)} texts", key, len(texts))


# ---------------------------------------------------------------------------------------------------------------------
# Whatever texts somebody has, as a corpus: a list, an iterator of strings or Documents, a corpus as it is.


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


# ---------------------------------------------------------------------------------------------------------------------
# Texts that could not be measured: the first few by name with the reason, all of them counted.
#
# One bad text of millions ends no run. But an error that is not a text's fault (no memory, no disk, Ctrl-C) is never
# taken for one, and where nothing at all can be measured, the first error is raised as it is.


NAMED = 20  # of those that failed, the first so many are kept by name
REASON_CHARACTERS = 300
NO_MEMORY = ("allocate memory", "out of memory")  # torch says so in a plain RuntimeError, too


class Failure(NamedTuple):
    """One text: where it stands in the corpus (counted from 0), its name there, and why it could not be measured."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True)
class Failures:
    """How many texts failed, and the first of them. They add: batches, processes and resumed runs."""

    count: int = 0
    named: tuple[Failure, ...] = ()

    @staticmethod
    def of(found: Iterable[Failure]) -> Failures:
        every = sorted(found)
        return Failures(len(every), tuple(every[:NAMED]))

    def __add__(self, other: Failures) -> Failures:
        return Failures(self.count + other.count, tuple(sorted((*self.named, *other.named))[:NAMED]))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.named)

    def told(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"count": self.count, "named": [list(each) for each in self.named]}

    @staticmethod
    def read(told: dict[str, Any]) -> Failures:
        named = ((int(number), str(name), str(reason)) for number, name, reason in told["named"])
        return Failures(int(told["count"]), tuple(Failure(*each) for each in named))

    def __str__(self) -> str:
        """What a table's notes say: "" where none failed."""
        if not self.count:
            return ""
        first = "; ".join(f"{each.name}: {each.reason}" for each in self.named[:3])
        more = f"; and {self.count - 3:,} more" if self.count > 3 else ""
        return f"{self.count:,} text{'s' * (self.count > 1)} could not be measured: {first}{more}"


NONE_FAILED = Failures()


def is_about_texts(error: BaseException) -> bool:
    """Whether an error may be some text's fault. The disk's, the memory's, another process' and those of the user's
    own functions are not, whatever they are wrapped in."""
    ours = OSError | MemoryError | torch.OutOfMemoryError | PatternError | LostProcessError
    seen: BaseException | None = error
    while seen is not None:
        if not isinstance(seen, Exception) or isinstance(seen, ours):
            return False
        if isinstance(seen, RuntimeError) and any(each in str(seen) for each in NO_MEMORY):
            return False
        seen = seen.__cause__
    return True


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    said = (str(error).splitlines() or [""])[0][:REASON_CHARACTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
