"""What is asked of a run over a corpus, and the worker that measures batches of it: in one process, or in many.

A worker knows no folder and no other worker: it adds what it measures to sums, and says which batches these are.
A batch whose texts fail is run text by text; those that fail are named and counted, and the others go on. An error that
is no text's fault goes through, and so does the first one where nothing at all could be measured yet: then it is the
model, or a statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from manyheads.corpora import Corpus, Failure, Failures, is_about_texts
from manyheads.errors import StatisticError
from manyheads.inputs import Long
from manyheads.machine import ALONE, Ranks, is_split
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.chunks import Chunk, Chunked, StartFacts, Wanted, inputs_of, read_chunk
from manyheads.measurement.loop import by_model, sums_of
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic, Survey, choose
from manyheads.statistics.sums import BatchSums, has_cross
from manyheads.texts import Document, Sinks


@dataclass(frozen=True, eq=False)
class RunRequest:
    """What runs over several corpora have in common, where their sums are to be added; the same in all processes.

    `survey`: the corpus whose head is surveyed instead of each one's own. `keyed`: whether all inputs are named, a
    digest of the weights among them. `reading` names what is read. `watch` is called with what each batch adds as it
    is measured, and with the document of each of its rows; with nothing of what an earlier run has left.
    """

    lm: LoadedModel
    statistics: Wanted
    long: Long = "windows"
    sinks: Sinks | None = None
    kinds: bool = False
    survey: Corpus | None = None
    keyed: bool = False
    reading: str = "texts"
    watch: Callable[[Sequence[Document], BatchSums], None] | None = None

    def chosen(self, survey: Survey) -> tuple[Statistic, ...]:
        """The statistics that are asked of texts that begin like this. Errors: StatisticError, as of `choose`."""
        request = self.statistics(survey) if callable(self.statistics) else self.statistics
        return choose(request, survey, crosses=has_cross(self.lm) and not self.kinds)

    def inputs(self, texts: Mapping[str, str], statistics: Sequence[Statistic]) -> dict[str, str]:
        """All that the numbers depend on, by name. `texts`: which texts are measured, as `texts_of` has it."""
        named = inputs_of(self.lm, texts, statistics, self.long, self.sinks, self.kinds)
        return {**named, "reading": self.reading}


@dataclass(eq=False)
class Worker:
    """What one process measures batch by batch. `keep` adds each to `total` as it is done.

    `statistics` and `learned` are from the head of the corpus that was surveyed. `before`: how many texts were measured
    when this run began, by whichever process. `ranks`: those that share each chunk's batches.
    """

    what: RunRequest
    statistics: tuple[Statistic, ...]
    learned: StartFacts
    total: store.RunTotal
    keep: Callable[[store.BatchPart], None]
    before: int = 0
    ranks: Ranks = ALONE

    def measure(
        self,
        stream: Iterable[Chunk],
        read: dict[int, Chunked],
        done: store.Done,
        report: Callable[[Chunk, float], None],
    ) -> None:
        """Every batch that is this process's own and not done yet. `read` has chunks that are tokenised already.

        The batches of a chunk that are left are dealt out in turns; the next chunk begins with the next process.
        """
        what, rank, world = self.what, self.ranks.rank, self.ranks.world
        for chunk in stream:
            if not done.has_whole(chunk.number):  # a chunk that is done is not even tokenised
                chunked = read.pop(chunk.number, None) or read_chunk(what.lm, chunk, what.long)
                of, finished = done.begun.get(chunk.number, (len(chunked.batches), set()))
                if of != len(chunked.batches):
                    raise StatisticError(
                        f"the corpus is not what it was when this run began: its texts from number {chunk.begin:,} on "
                        f"made {of} batches and make {len(chunked.batches)} now. To start again, give another folder."
                    )
                # What is left is dealt out anew: a run may go on with more processes than began it, or fewer.
                left = [batch for batch in range(len(chunked.batches)) if batch not in finished]
                # Turned by the chunk's number: else the first process would get the odd batch of every chunk.
                batches = left[(rank - chunk.number) % world :: world]
                for count, number in enumerate(batches):
                    report(chunk, count / len(batches))
                    adds, failed = self._measured(chunked, chunked.batches[number])
                    counts: dict[str, int] = {}
                    if number == 0:  # with a chunk's first batch comes what holds for the whole chunk
                        if chunked.error is not None and self._nothing_measured:
                            raise chunked.error
                        failed += chunked.failures
                        counts = {name: getattr(chunked, name) for name in store.COUNTED}
                    failures = Failures.of(failed)
                    self.keep(store.BatchPart(chunk.number, number, len(chunked.batches), adds, failures, counts))
            report(chunk, 1.0)

    @property
    def _nothing_measured(self) -> bool:
        return not (self.before or self.total.num_texts)

    def _measured(self, chunked: Chunked, pieces: list[int]) -> tuple[BatchSums | None, list[Failure]]:
        """What a batch adds, and which of its texts failed; text by text where some do."""
        if not pieces:
            return None, []
        try:
            return self._run(chunked, pieces), []
        except Exception as error:
            # Processes that hold parts of one model call it together: one that ran texts again would wait for ever.
            if not is_about_texts(error) or is_split(self.what.lm.model):
                raise
            # Under a name of its own: Python deletes `error` at the end of the except block.
            first = error
        measured: list[BatchSums] = []
        failed: list[Failure] = []
        for piece in pieces:
            try:
                measured.append(self._run(chunked, [piece]))
            except Exception as error:
                if not is_about_texts(error):
                    raise
                failed.append(chunked.failure(piece, error))
        if not measured and self._nothing_measured:
            raise first
        return BatchSums.after(measured) if measured else None, failed

    def _run(self, chunked: Chunked, pieces: list[int]) -> BatchSums:
        what, learned = self.what, self.learned
        reading = replace(chunked.reading, rarity=learned.rarity, rarity_because=learned.rarity_because)
        batch = reading.batch(pieces)
        (adds,) = sums_of(by_model(what.lm), [batch], self.statistics, sinks=learned.sinks, kinds=what.kinds)
        if what.watch is not None:
            what.watch([chunked.chunk.documents[reading.pieces[piece].source] for piece in pieces], adds)
        return adds
