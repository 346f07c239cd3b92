"""A corpus: texts that come one after another, however many there are, each with its name and its annotation.

Nothing holds a whole corpus: readers yield documents as they come (`open`, `treebanks`), and a corpus can be opened
again, so that a run that was stopped can go on where it was. Texts that cannot be measured are `Failures`: the first
few by name with the reason, all of them counted. One bad text of millions ends no run. But an error that is not a
text's fault (no memory, no disk, Ctrl-C) is never taken for one, and where nothing at all can be measured, the first
error is raised as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import torch

from manyheads import private_names
from manyheads.base import Json, first_line, plural
from manyheads.errors import LostProcessError, PatternError, TextError
from manyheads.results import NotIterated
from manyheads.texts import Document, text_seed

NAMED = 20  # of those that failed, the first so many are held by name
REASON_CHARACTERS = 300
NO_MEMORY = ("allocate memory", "out of memory")  # torch raises these as a plain RuntimeError, too


@dataclass(frozen=True)
class Corpus:
    """Texts in order. `open()` starts again each time and gives the same documents in the same order.

    `origin` names it in words. `key` is all that its documents depend on (files with size and digest, how they are
    read): a run that was stopped goes on only with the same key. `total` is how much there is to read (None: unknown,
    as with standard input, which can be opened once only). `files`: each of its files by itself, where it has such.
    `place` and `whole` are of a shard: which one it is, and of what. `again` makes the same corpus in another process:
    so it is pickled.
    """

    open: Callable[[], Iterator[Document]]
    origin: str
    key: str
    total: int | None
    files: tuple[Corpus, ...] = ()
    place: Shard | None = None
    whole: Corpus | None = None
    again: Callable[[], Corpus] | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Document]:
        return self.open()

    def __reduce__(self) -> tuple[Any, ...]:
        """Files by their paths, texts in memory whole. Errors: TextError for what can be read once only."""
        if self.again is None:
            raise TextError(f"{self.origin} can be read once only, and not be pickled: give a list, or files.")
        return _made_again, (self.again, self.origin, self.key)

    def shard(self, index: int, of: int, by: Literal["text", "file"] = "text") -> Corpus:
        """Part `index` (from 0) of `of` parts that have every text once: texts, or files, `index`, `index + of`, ...

        By text, the parts are alike in size, and each reads the whole stream (without tokenising it). By file, each
        opens its own files alone; there must be at least `of` of them. Errors: TextError.
        """
        place = Shard(index, of, by)
        if self.whole is not None:
            raise TextError(f"{self.origin} is a shard already: divide the whole corpus into more shards.")
        if by == "file" and of > len(self.files):
            raise TextError(
                f"shards by file need a file each, and {self.origin} has {len(self.files)} for {of} shards: make at "
                f"most {max(1, len(self.files))} shards, or divide it by text."
            )
        if not self.key:
            raise TextError(
                f"{self.origin} can be read once only, and a shard reads the beginning of it twice, for the survey: "
                f"give a list, or files. (HeadSums.update takes a stream that is already divided.)"
            )
        shard_files = self.files[index::of]

        def of_files() -> Iterator[Document]:
            before = 0
            for file in shard_files:
                for document in file.open():
                    yield replace(document, at=before + document.at)
                before += file.total or 0

        sizes = [file.total for file in shard_files]
        size = None if None in sizes else sum(size for size in sizes if size is not None)
        return Corpus(
            of_files if by == "file" else lambda: islice(self.open(), index, None, of),
            f"shard {place} of {self.origin}",
            self.key,
            size if by == "file" else self.total,
            place=place,
            whole=self,
            again=self.again and partial(Corpus.shard, self, index, of, by),
        )


def _made_again(again: Callable[[], Corpus], origin: str, key: str) -> Corpus:
    corpus = again()
    if corpus.key != key:
        raise TextError(f"{origin} has changed since this corpus was pickled: open it again.")
    return replace(corpus, origin=origin)


@dataclass(frozen=True)
class Shard:
    """One of `of` parts of a corpus, counted from 0; `by`: whether texts or whole files are dealt out in turns."""

    index: int
    of: int
    by: Literal["text", "file"] = "text"

    def __post_init__(self) -> None:
        if self.by not in DEALT:
            raise TextError(f"a corpus is divided by {' or '.join(DEALT)}, not by {self.by!r}.")
        if self.of < 1 or not 0 <= self.index < self.of:
            raise TextError(
                f"there is no shard {self}: shards are counted from 0"
                + (f", so {self.of} of them are 0/{self.of} to {self.of - 1}/{self.of}." if self.of > 0 else ".")
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    @staticmethod
    def read(text: str, by: Literal["text", "file"] = "text") -> Shard:
        """The shard that "17/512" names. Errors: TextError."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if match is None:
            raise TextError(f"{text!r} names no shard: write its number, from 0, and how many there are, as 17/512.")
        return Shard(int(match[1]), int(match[2]), by)


DEALT = ("text", "file")
WHOLE = Shard(0, 1)


def corpus_of(texts: Sequence[str], origin: str = "") -> Corpus:
    """Texts in memory as a corpus."""

    def documents() -> Iterator[Document]:
        for index, text in enumerate(texts):
            yield Document(text, f"text {index}", at=index + 1)

    key = f"{len(texts)} texts, {sum(text_seed(text) for text in texts) % (1 << 63):x}"
    origin = origin or plural(len(texts), "text")
    return Corpus(documents, origin, key, len(texts), again=partial(corpus_of, texts, origin))


def as_corpus(texts: object) -> Corpus:
    """Texts as a corpus: a list, an iterator of strings or Documents, a corpus as it is.

    A list is named by its contents and can be read again; an iterator has no key: it can be read once only. From rows
    (a `ray.data.Dataset`, a dataset of the datasets library) the column "text" is read (`corpus_of_rows`). An item that
    is no text becomes a Document with a problem. Errors: TextError for an argument that holds no texts at all.
    """
    if isinstance(texts, Corpus):
        return texts
    if _library(texts) in ROWS:
        return corpus_of_rows(texts)
    if isinstance(texts, str | Document):
        texts = [texts]
    kind = type(texts).__name__
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes | NotIterated):
        raise TextError(f"texts is a {kind}: give a text, or a list of texts.")
    items = cast("Iterable[object]", texts)
    if not isinstance(items, Sequence):
        return Corpus(lambda: _documents(items), "a stream of texts", "", None)
    documents = [replace(document, at=number) for number, document in enumerate(_documents(items), 1)]
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        # The annotation counts as well: the same words with another tree give other figures.
        digest.update(repr((document.text, document.gold)).encode("utf-8", "surrogatepass"))
    count = len(documents)
    key, again = f"{count} texts {digest.hexdigest()}", partial(as_corpus, documents)
    return Corpus(lambda: iter(documents), plural(count, "text"), key, count, again=again)


ROWS = ("ray", "datasets")  # libraries whose datasets are tables of rows


def _library(texts: object) -> str:
    return type(texts).__module__.partition(".")[0]


def corpus_of_rows(rows: Any, text: str = "text", name: str | None = None) -> Corpus:
    """A column of a `ray.data.Dataset`, or of a Dataset or IterableDataset of the datasets library, in its own order.

    - text, name: the columns that hold the texts and their names; without `name` they are called by their numbers.

    A Dataset of the datasets library can be read again; the others have no key, and are read once.
    Errors: TextError for a column that is not there, as it is read; what is not a text is a Document with a problem.
    """
    library = _library(rows)
    if library not in ROWS:
        raise TextError(f"a {type(rows).__name__} has no columns: text= and name= are for datasets.")
    key, total = private_names.fingerprint_of(rows), None
    if key:
        key, total = f"rows {key} {text} {name}", len(rows)
    origin = "a dataset of Ray's" if library == "ray" else "a dataset" if total is None else f"{total:,} rows"
    again = partial(corpus_of_rows, rows, text, name) if key else None
    return Corpus(partial(_rows, rows, text, name), origin, key, total, again=again)


def _rows(rows: Any, text: str, name: str | None) -> Iterator[Document]:
    for number, row in enumerate(_ray_rows(rows) if _library(rows) == "ray" else rows, 1):
        if lacking := [column for column in (text, name) if column is not None and column not in row]:
            raise TextError(f"{lacking[0]!r} is not a column of the dataset: it has {', '.join(map(str, row))}.")
        value = row[text]
        problem = "" if isinstance(value, str) else f"it is of type {type(value).__name__}, not a text"
        row_name = f"row {number - 1}" if name is None else str(row[name])
        yield Document("" if problem else value, row_name, at=number, problem=problem)


def _ray_rows(rows: Any) -> Iterator[Mapping[str, Any]]:
    # By default blocks come in the order in which they are read, another one each time. Set on a copy: the dataset's
    # own context is its owner's.
    rows = rows.copy(rows, _deep_copy=True)
    rows.context.execution_options.preserve_order = True
    return iter(rows.iter_rows())


def _documents(texts: Iterable[object]) -> Iterator[Document]:
    for index, item in enumerate(texts):
        if isinstance(item, Document):
            yield item
        elif isinstance(item, str):
            yield Document(item, f"text {index}", at=index + 1)
        else:
            problem = f"it is of type {type(item).__name__}, not a text"
            yield Document("", f"text {index}", at=index + 1, problem=problem)


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
    def of(failures: Iterable[Failure]) -> Failures:
        in_order = sorted(failures)
        return Failures(len(in_order), tuple(in_order[:NAMED]))

    def __add__(self, other: Failures) -> Failures:
        return Failures(self.count + other.count, tuple(sorted((*self.named, *other.named))[:NAMED]))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.named)

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {"count": self.count, "named": [list(failure) for failure in self.named]}

    @staticmethod
    def read(stored: dict[str, Any]) -> Failures:
        """The failures that `to_dict` wrote."""
        named = tuple(Failure(int(number), str(name), str(reason)) for number, name, reason in stored["named"])
        return Failures(int(stored["count"]), named)

    def __str__(self) -> str:
        """The line in a table's notes: "" where none failed."""
        if not self.count:
            return ""
        first = "; ".join(f"{failure.name}: {failure.reason}" for failure in self.named[:3])
        more = f"; and {self.count - 3:,} more" if self.count > 3 else ""
        return f"{plural(self.count, 'text')} could not be measured: {first}{more}"


NONE_FAILED = Failures()


def is_about_texts(error: BaseException) -> bool:
    """Whether an error may be some text's fault. The disk's, the memory's, another process' and those of the user's
    own functions are not, whatever they are wrapped in."""
    not_a_texts = OSError | MemoryError | torch.OutOfMemoryError | PatternError | LostProcessError
    # Libraries wrap what the disk or the memory refused: the whole chain is looked at, not its last link.
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception) or isinstance(cause, not_a_texts):
            return False
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in NO_MEMORY):
            return False
        cause = cause.__cause__
    return True


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    words = first_line(error, REASON_CHARACTERS)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
