"""What an engine's process does: it loads the model once, measures chunks into sums of its own, and hands these over.

An actor knows neither the corpus nor the folder, and no other actor: whoever started it (`driver`) names chunks, and
counts a chunk when the part that covers it has arrived, not when it was measured. So an actor may end at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from manyheads.errors import LostProcessError, ManyHeadsError
from manyheads.inputs import require_reader
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import Chunk, StartFacts, learn, read_head
from manyheads.measurement.corpus_run.worker import RunRequest, Worker
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic, Survey

PASSING = (OSError, MemoryError, LostProcessError)  # of this process or machine: another one may not meet them


class Actor:
    """One process of an engine. `load` gives the model, `request` what is measured with it.

    An error that every process would meet is returned, and ends the run; one that may be this process' own is raised.
    """

    request: RunRequest
    statistics: tuple[Statistic, ...]  # these two since `begin`
    learned: StartFacts

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        request: Callable[[LoadedModel], RunRequest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request(load())
        self._begin(clock)

    def _begin(self, clock: Callable[[], float]) -> None:
        self.clock, self.total, self.since = clock, store.RunTotal(), clock()

    def learn(self, chunks: Sequence[Chunk], whole: bool) -> bytes | ManyHeadsError | None:
        """What the corpus' beginning shows; None where these chunks are too few, and are not the whole of it."""
        what = self.request

        def learned() -> bytes | None:
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

        Returns the inputs of this process, which must be those of the others, and the words of the sums' basis.
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
            return {"inputs": inputs, "basis": basis.words()}

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
