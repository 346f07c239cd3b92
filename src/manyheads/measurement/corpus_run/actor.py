"""What an engine's process does: it loads the model once, measures chunks into sums of its own, and hands these over.

An actor knows neither the corpus nor the folder, and no other actor: whoever started it (`driver`) names chunks, and
counts a chunk when the part that covers it has arrived, not when it was measured. So an actor may end at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from manyheads.errors import LostProcessError, ManyHeadsError
from manyheads.inputs import require_reader
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import (
    Chunk,
    FileChunk,
    FileEnd,
    FileReading,
    StartFacts,
    learn,
    read_head,
)
from manyheads.measurement.corpus_run.worker import RunRequest, Worker
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic, Survey
from manyheads.statistics.sums import RunningSums

PASSING = (OSError, MemoryError, LostProcessError)  # of this process or machine: another one may not meet them


class Actor:
    """One process of an engine. `load` gives the model, `request` what is measured with it.

    An error that every process would meet is returned, and ends the run; one that may be this process' own is raised.
    """

    statistics: tuple[Statistic, ...]  # these two since `begin`
    learned: StartFacts

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        request: Callable[[LoadedModel], RunRequest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._request = load, request
        self._begin(clock)

    def _begin(self, clock: Callable[[], float]) -> None:
        self.clock, self.total, self.since = clock, store.RunTotal(), clock()
        self.reading: FileReading | None = None

    @cached_property
    def request(self) -> RunRequest:
        """What is measured; the model is loaded when this is first needed, so that an error of it is a call's."""
        return self._request(self._load())

    def up(self) -> None:
        """Answer: what is silent from now on hangs, and is not waiting for room."""

    def learn(self, chunks: Sequence[Chunk], whole: bool) -> bytes | ManyHeadsError | None:
        """What the corpus' beginning shows; None where these chunks are too few, and are not the whole of it."""

        def learned() -> bytes | None:
            what = self.request
            require_reader(what.lm, what.long)
            head = read_head(what.lm, iter(chunks), what.long)
            if not (head.enough or whole):
                return None
            head = replace(head, whole=whole and head.whole)
            facts = learn(what.lm, head, what.sinks, what.chosen(head.survey))
            return store.packed(facts.tensors(), facts.words())

        return returned(learned)

    def begin(
        self, chunks: Sequence[Chunk], whole: bool, learned: bytes, texts: dict[str, str], origin: str
    ) -> dict[str, Any] | ManyHeadsError:
        """Make ready: all actors with the same beginning of the corpus, and with what one of them learned from it.

        Returns the inputs of this process, which must be those of the others, the words of the sums' basis, and how
        many bytes a part has, kinds of tokens left out.
        """

        def begun() -> dict[str, Any]:
            tensors, words = store.unpacked(learned)
            self.learned = StartFacts.read(tensors, words)
            # Made anew from the same documents: statistics hold functions, which no process can send.
            survey = Survey(tuple(document for chunk in chunks for document in chunk.documents), whole)
            self.statistics = self.request.chosen(survey)
            inputs = self.request.inputs(texts, self.statistics)
            what = self.request
            basis = Basis.of(what.lm, inputs, self.statistics, self.learned, what.kinds, origin)
            empty = RunningSums().begin(what.lm.spec.sites, len(self.statistics), (), False, ())
            part_bytes = sum(tensor.nbytes for tensor in (empty.num, empty.den, empty.moments))
            return {"inputs": inputs, "basis": basis.words(), "part_bytes": part_bytes}

        return returned(begun)

    def measure(
        self, chunk: Chunk, begun: tuple[int, set[int]] | None, before: int, age: float
    ) -> bytes | ManyHeadsError | None:
        """Measure a chunk, or of one that is counted in part (`begun`) the rest.

        `before`: how many texts the run has measured by now. Returns all sums since these were last handed over, once
        that is `age` seconds ago; else None.
        """

        def measured() -> bytes | None:
            self.add(chunk, store.Done({} if begun is None else {chunk.number: begun}), before)
            return self.hand_over() if self.clock() - self.since >= age else None

        return returned(measured)

    def measure_of_file(
        self, chunk: FileChunk, begun: tuple[int, set[int]] | None, before: int, age: float
    ) -> tuple[tuple[int, int] | FileEnd, bytes | None] | ManyHeadsError:
        """Read a chunk of a file, and measure it as `measure` does.

        Returns how many texts it has and how much of the file it is, or that the file has no such chunk; and sums.
        """

        def measured() -> tuple[tuple[int, int] | FileEnd, bytes | None]:
            if self.reading is None or not self.reading.can_read(chunk):
                self.reading = FileReading(chunk)
            read = self.reading.read(chunk.index)
            if isinstance(read, FileEnd):
                return read, None
            self.add(read, store.Done({} if begun is None else {chunk.number: begun}), before)
            outcome = read.num_texts, read.size
            return outcome, self.hand_over() if self.clock() - self.since >= age else None

        return returned(measured)

    def add(self, chunk: Chunk, done: store.Done, before: int) -> None:
        """Measure a chunk into the sums held here."""
        worker = Worker(self.request, self.statistics, self.learned, self.total, self.total.add, before)
        worker.measure([chunk], {}, done, lambda *_: None)

    def hand_over(self) -> bytes:
        """All sums that are held here, which are none from now on."""
        data = store.packed(self.total.tensors(), self.total.words())
        self.total, self.since = store.RunTotal(), self.clock()
        return data

    def absorb(self, part: bytes) -> None:
        """Add what another actor handed over: it is handed over with what is held here."""
        total = store.RunTotal.read(*store.unpacked(part))
        assert not self.total.done.overlaps(total.done), "two actors have measured the same batch"
        self.total.add(total)


def returned(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PASSING:
        raise
    except ManyHeadsError as error:
        return error
