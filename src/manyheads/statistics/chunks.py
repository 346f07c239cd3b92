"""A corpus as chunks of batches: always the same ones, whoever reads it, in however many processes.

Documents come in chunks; a chunk is tokenised at once and sorted into batches of like length. Both hang on the corpus
and the constants here alone, so a batch is known by two numbers, its chunk's and its own. By these a run knows what it
has done, and processes share the work: each reads the whole stream, which is cheap (20 microseconds a sentence to
tokenise, 4 milliseconds to measure), and measures batches of its own. Memory: one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from manyheads.corpora.corpus import Document
from manyheads.errors import TextError
from manyheads.models.inputs.texts import fault_in
from manyheads.models.inputs.texts import BATCH_TOKENS
from manyheads.models.inputs.texts import Piece
from manyheads.models.inputs.texts import Reading
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import encoded
from manyheads.models.inputs.texts import is_long
from manyheads.models.inputs.texts import pieces_of
from manyheads.corpora.corpus import Failure
from manyheads.corpora.corpus import is_about_texts
from manyheads.corpora.corpus import reason_of

__all__ = ["CHUNK_CHARACTERS", "CHUNK_TEXTS", "Chunk", "Chunked", "chunks", "read_chunk"]

CHUNK_TEXTS = 2_048  # enough of every length to fill batches: a twelfth of what is read is padding, for sentences
CHUNK_CHARACTERS = 1 << 19  # about 120,000 tokens


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some documents in a row: the first is number `begin` of the corpus, and reading was at `begin_at` before it."""

    number: int
    documents: tuple[Document, ...]
    begin: int
    begin_at: int

    @property
    def end_at(self) -> int:
        return max(self.begin_at, self.documents[-1].at)


def chunks(documents: Iterable[Document]) -> Iterator[Chunk]:
    """Documents in chunks of at most `CHUNK_TEXTS` texts and `CHUNK_CHARACTERS` characters, at least one text each."""
    number, begin, begin_at, held, size = 0, 0, 0, [], 0
    for document in documents:
        full = len(held) == CHUNK_TEXTS or size + len(document.text) > CHUNK_CHARACTERS
        if held and full:
            chunk = Chunk(number, tuple(held), begin, begin_at)
            yield chunk
            number, begin, begin_at, held, size = number + 1, begin + len(held), chunk.end_at, [], 0
        held.append(document)
        size += len(document.text)
    if held:
        yield Chunk(number, tuple(held), begin, begin_at)


@dataclass(frozen=True, eq=False)
class Chunked:
    """A chunk, tokenised: pieces that can be measured, how they make batches, and texts that cannot be read.

    There is always a batch, an empty one where no text can be read. `cut`: texts longer than the model's positions,
    which are read in `windows` pieces (one each where they are truncated); `cut_gold` of them had gold, now left out.
    `error`: the first that the tokenizer raised itself, where no text of the chunk could be read.
    """

    chunk: Chunk
    pieces: tuple[Piece, ...]
    failures: tuple[Failure, ...]
    cut: int
    windows: int
    cut_gold: int
    error: Exception | None = None

    @property
    def texts(self) -> int:
        """How many there are, readable or not."""
        return len(self.chunk.documents)

    @cached_property
    def batches(self) -> list[list[int]]:
        return batches(self.reading, BATCH_TOKENS) or [[]]

    @cached_property
    def reading(self) -> Reading:
        return Reading(self.pieces, "some texts are cut" if self.cut else "")

    def failure(self, index: int, error: Exception | str) -> Failure:
        """Why the piece of this number cannot be measured; of a window, which one it is."""
        piece = self.pieces[index]
        return _failure(self.chunk, piece.source, error, f" (from its character {piece.begin:,})" * (piece.begin > 0))


def read_chunk(lm: Any, chunk: Chunk, long: str) -> Chunked:
    """Tokenise a chunk. A text that cannot be read is a failure, and no error."""
    problems = [_problem(each) for each in chunk.documents]
    failures = [_failure(chunk, index, problem) for index, problem in enumerate(problems) if problem]
    readable = [index for index, problem in enumerate(problems) if not problem]
    pieces: list[Piece] = []
    limit, cut, windows, cut_gold = lm.max_positions, 0, 0, 0
    first: Exception | None = None
    for index, whole in zip(readable, _encoded(lm, chunk, readable), strict=True):
        document = chunk.documents[index]
        try:
            if isinstance(whole, Exception):
                raise whole
            found = pieces_of(lm, document.text, whole, index, long, limit, "the text")
        except Exception as error:
            if not is_about_texts(error):
                raise
            first = first or (None if isinstance(error, TextError) else error)
            failures.append(_failure(chunk, index, error))
            continue
        if is_long(whole, limit):
            cut, windows, cut_gold = cut + 1, windows + len(found), cut_gold + (document.gold is not None)
        elif document.gold is not None:
            found = [replace(found[0], gold=document.gold)]
        pieces += found
    return Chunked(chunk, tuple(pieces), tuple(failures), cut, windows, cut_gold, None if pieces else first)


def _problem(document: Document) -> str:
    """Why there is nothing to tokenise. "" where there is."""
    if document.problem:
        return document.problem
    fault = fault_in(document.text)
    return f"the text {fault.rstrip('.')}" if fault else ""


def _failure(chunk: Chunk, index: int, error: Exception | str, where: str = "") -> Failure:
    name = chunk.documents[index].name
    return Failure(chunk.begin + index, f"{name}{where}", error if isinstance(error, str) else reason_of(error))


def _encoded(lm: Any, chunk: Chunk, readable: Sequence[int]) -> list[Mapping[str, Any] | Exception]:
    """Every text tokenised, or the tokenizer's error in its place."""
    texts = [chunk.documents[index].text for index in readable]
    try:
        return list(encoded(lm.tokenizer, texts))
    except Exception as error:
        if not is_about_texts(error):
            raise
    out: list[Mapping[str, Any] | Exception] = []
    for text in texts:
        try:
            out += encoded(lm.tokenizer, [text])
        except Exception as error:
            if not is_about_texts(error):
                raise
            out.append(error)
    return out
