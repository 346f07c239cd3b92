"""A run whose actors read their own files, so that no process reads the whole corpus.

The driver reads the beginning of the corpus, for the survey, and hands out files: an actor has a file to itself, opens
it, and measures its chunks in turn. They are numbered as those of file shards, file i of n being shard i of n, and so
the sums are those of `corpus.shard(i, n, "file")` for every i, added. Where a file ends, the driver hears from the
actor that read it to its end: until then there may be one chunk more. The largest files come first.

A file whose actor was lost goes to another one, with the chunks of it that are to be measured again: it reads the file
again, from its beginning. So nobody reads a file twice unless an actor was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from manyheads.corpora import Corpus, Shard
from manyheads.errors import TextError
from manyheads.measurement.corpus_run.basis import ALL_FILES
from manyheads.measurement.corpus_run.chunks import SHARD_BITS, Chunk, FileChunk, FileEnd, Work, texts_of
from manyheads.measurement.corpus_run.driver import Driver


@dataclass(eq=False)
class _File:
    """What the driver knows of a file. `again`: its chunks that were lost; `next`: the one handed out after those."""

    corpus: Corpus
    place: Shard
    again: deque[int] = field(default_factory=deque)
    next: int = 0
    size: int = 0  # of the chunks that were reported
    end: FileEnd | None = None


@dataclass(eq=False)
class FileDriver(Driver):
    """A run over a corpus of files by actors that read them. Errors: as of `Driver`; TextError for another corpus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.corpus, self.folder)
        of = len(self.corpus.files)
        self._files = [_File(file, Shard(index, of, "file")) for index, file in enumerate(self.corpus.files)]
        self._free = deque(sorted(range(of), key=lambda index: -(self.corpus.files[index].total or 0)))
        self._owned: dict[Hashable, int] = {}  # of each actor, the file that it reads
        self._num_ended = 0

    @classmethod
    def check(cls, corpus: Corpus, folder: Path | None) -> None:
        """Errors: TextError where a corpus has no files that actors could read for themselves."""
        super().check(corpus, folder)
        if corpus.place is not None or not corpus.files:
            raise TextError(
                f"shard_by='file' deals out the files of a corpus, and {corpus.origin} "
                f"{'is a shard of one' if corpus.place is not None else 'has none'}: give files, or leave it out."
            )

    @property
    def _surveyed(self) -> Corpus:
        return self.survey or self.corpus

    @property
    def _texts(self) -> dict[str, str]:
        return {**texts_of(self.corpus), "shard": f"{ALL_FILES} of {len(self._files)} by file"}

    @property
    def _parts(self) -> dict[str, int]:
        return {str(file.place): file.end.num_texts for file in self._files if file.end is not None}

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        begins = [(file.place.index << SHARD_BITS, file.end.num_chunks) for file in self._files if file.end is not None]
        return [(begin, begin + count) for begin, count in begins if count]

    def _has_given_all(self, exhausted: bool) -> bool:
        return self._num_ended == len(self._files) and not self._free and not self._owned

    def _queue_again(self, chunks: Sequence[Work]) -> None:
        for chunk in chunks:
            file = self._files[chunk.number >> SHARD_BITS]
            file.again.append(chunk.number - (file.place.index << SHARD_BITS))
            file.again = deque(sorted(file.again))
            if file.place.index not in self._owned.values() and file.place.index not in self._free:
                self._free.appendleft(file.place.index)

    def _lose(self, actor: Hashable, error: Any) -> None:
        owned = self._owned.pop(actor, None)
        if owned is not None and owned not in self._free:
            self._free.appendleft(owned)
        super()._lose(actor, error)

    def _give(self, queue: Iterator[Chunk]) -> bool:
        """Give each actor that is up as many chunks as it may have, of its own file."""
        for actor in [*self._with_room]:
            while actor in self._with_room and (chunk := self._next_of(actor)) is not None:
                if not self._queues[actor]:
                    self._since[actor] = self.clock()
                before = int(self.total.num_texts > 0 or chunk.number != 0)
                age = 0.0 if chunk.number in self._lost_chunks else self._age_of(actor)
                begun = self.total.done.begun.get(chunk.number)
                # An actor that reads holds nothing of the corpus that the driver had read: the chunk is its address.
                self._call(actor, chunk, "measure_of_file", chunk, begun, before, age)
                if len(self._queues[actor]) >= self.ahead:
                    del self._with_room[actor]
        return False

    def _next_of(self, actor: Hashable) -> FileChunk | None:
        """The next chunk for an actor, of its own file or of one that nobody reads."""
        while True:
            if actor not in self._owned:
                if not self._free:
                    return None
                self._owned[actor] = self._free.popleft()
            file = self._files[self._owned[actor]]
            first = file.place.index << SHARD_BITS
            while file.again or file.end is None:
                index = file.again.popleft() if file.again else file.next
                file.next = max(file.next, index + 1)
                is_there = file.end is None or index < file.end.num_chunks
                if is_there and not self.total.done.has_whole(first + index):
                    again = partial(*_opening(file.corpus))
                    return FileChunk(first + index, file.place, again, file.corpus.origin)
            del self._owned[actor]

    def _was_measured(self, actor: Hashable, chunk: Work, answer: Any) -> None:
        outcome, data = answer
        file = self._files[chunk.number >> SHARD_BITS]
        if isinstance(outcome, FileEnd):
            self._lost_chunks.discard(chunk.number)
            if file.end is None:
                file.end, self._num_ended = outcome, self._num_ended + 1
                self._advance((file.corpus.total or 0) - file.size)
            if not file.again and self._owned.get(actor) == file.place.index:
                del self._owned[actor]
        else:
            num_texts, size = outcome
            if chunk.number not in self._reported and file.end is None:
                file.size += size
                self._advance(size)
            assert isinstance(chunk, FileChunk), "no other kind is handed out"
            self._held[actor][chunk.number] = replace(chunk, num_texts=num_texts, size=size)
        if data is not None:
            self._count(actor, data)


def _opening(corpus: Corpus) -> tuple[Any, ...]:
    """How another process opens a file, and refuses one that has changed."""
    function, arguments = corpus.__reduce__()
    return function, *arguments
