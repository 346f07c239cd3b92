"""What must be known of a corpus before its first batch is measured, learned from its head.

A corpus of ten million texts is read once, and a pipe can be read only once: so the head is kept, surveyed, and then
measured like the rest. From it come how rare each token is, where the model parks its attention (`sinks`), and
whatever statistics are made for this corpus: `measure(lm, corpus, statistics)` takes a function of the survey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from manyheads.corpora.corpus import Document
from manyheads.models.inputs.texts import Piece
from manyheads.models.inputs.texts import Reading
from manyheads.models.inputs.texts import rarity_of
from manyheads.recording.tokens import Sinks
from manyheads.statistics.chunks import Chunk, Chunked, read_chunk
from manyheads.corpora.corpus import is_about_texts
from manyheads.statistics.sinks import find_sinks, probed
from manyheads.statistics.statistic import Statistic

__all__ = ["Head", "Learned", "Survey", "Wanted", "learn", "read_head"]

SURVEY_TOKENS = 50_000  # from so many tokens on, rarity is counted: whole chunks are read until there are as many
SURVEY_TEXTS = 20_000  # or as many texts: those of one word never come to so many tokens


@dataclass(frozen=True, eq=False)
class Survey:
    """The head of a corpus: its first documents in order, gold and all. `whole`: there are no others.

    The same documents on every process and on every resumed run, whatever came of them: some may be empty or fail.
    """

    documents: tuple[Document, ...]
    whole: bool


Wanted = str | Sequence[str | Statistic] | Callable[[Survey], str | Sequence[str | Statistic]]
"""What `measure` is asked for: "default", "all", names and Statistics; or what a function makes of the survey."""


@dataclass(frozen=True, eq=False)
class Head:
    """The first chunks of a corpus, tokenised where that was needed, and all that follow."""

    chunks: tuple[Chunk, ...]
    read: dict[int, Chunked]
    rest: Iterator[Chunk]
    whole: bool

    @property
    def survey(self) -> Survey:
        return Survey(tuple(document for chunk in self.chunks for document in chunk.documents), self.whole)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for chunked in self.read.values() for piece in chunked.pieces]

    def stream(self) -> Iterator[Chunk]:
        """The whole corpus from its beginning; once."""
        return chain(self.chunks, self.rest)


def read_head(lm: Any, stream: Iterator[Chunk], long: str, num_documents: int | None = None) -> Head:
    """Chunks until they hold enough to learn from; `num_documents`: as many as an earlier run had, not tokenised."""
    found: list[Chunk] = []
    read: dict[int, Chunked] = {}
    num_tokens = num_texts = 0
    for chunk in stream:
        found.append(chunk)
        num_texts += len(chunk.documents)
        if num_documents is None:
            read[chunk.number] = read_chunk(lm, chunk, long)
            num_tokens += read[chunk.number].reading.num_tokens
        enough = num_tokens >= SURVEY_TOKENS or num_texts >= SURVEY_TEXTS
        if enough if num_documents is None else num_texts >= num_documents:
            break
    following = next(stream, None)
    rest = iter(()) if following is None else chain([following], stream)
    return Head(tuple(found), read, rest, following is None)


@dataclass(frozen=True, eq=False)
class Learned:
    """What the head of a corpus told, and in words from how much."""

    rarity: Float32[Tensor, "vocabulary"]
    rarity_because: str
    sinks: Sinks
    num_documents: int
    because: str

    def tensors(self) -> dict[str, Tensor]:
        return {"rarity": self.rarity}

    def said(self) -> dict[str, Any]:
        names = ("rarity_because", "num_documents", "because")
        return {"sinks": asdict(self.sinks), **{name: getattr(self, name) for name in names}}

    @staticmethod
    def read(tensors: dict[str, Tensor], said: dict[str, Any]) -> Learned:
        """Raises LookupError, TypeError or ValueError for what is not of that kind."""
        told, rarity = said["sinks"], tensors["rarity"]
        ids, names = tuple(int(each) for each in told["ids"]), tuple(str(each) for each in told["names"])
        sinks = Sinks(bool(told["first"]), ids, names, str(told["because"]))
        if rarity.ndim != 1:
            raise ValueError(f"rarity has {rarity.ndim} axes")
        return Learned(rarity, str(said["rarity_because"]), sinks, int(said["num_documents"]), str(said["because"]))


def learn(lm: Any, head: Head, sinks: Sinks | None, statistics: Sequence[Statistic]) -> Learned:
    """Count tokens, and look for sinks where they are not given and some statistic asks for them.

    Cost: one forward pass over 24 texts spread over the head. Errors: as the model's, where it can read none of them.
    """
    pieces = head.pieces
    ids = torch.tensor(list(chain.from_iterable(piece.ids for piece in pieces)), dtype=torch.long)
    counts = torch.bincount(ids, minlength=lm.spec.vocab_size or 1)
    rarity, because = rarity_of(counts, "the corpus'" if head.whole else "the first")
    if sinks is None:
        asked = any("sinks" in each.asks for each in statistics)
        sinks = _sinks(lm, pieces) if asked and pieces else Sinks()
    count = len(head.survey.documents)
    which = f"all {count:,}" if head.whole else f"the first {count:,}"
    said = f"{which} texts ({len(ids):,} tokens): how rare tokens are, sinks, what the statistics themselves ask"
    return Learned(rarity.float(), because, sinks, count, said)


def _sinks(lm: Any, pieces: Sequence[Piece]) -> Sinks:
    """Sinks, of those of the probed texts that the model can read."""
    tried = tuple(probed(pieces))
    try:
        return find_sinks(lm, Reading(tried, ""))
    except Exception as error:
        fine = tuple(piece for piece in tried if is_about_texts(error) and _readable(lm, piece))
        if not fine:
            raise
    return find_sinks(lm, Reading(fine, ""))


def _readable(lm: Any, piece: Piece) -> bool:
    try:
        find_sinks(lm, Reading((piece,), ""))
    except Exception as error:
        if not is_about_texts(error):
            raise
        return False
    return True
