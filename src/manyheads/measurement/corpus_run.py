"""Measuring a corpus of two hundred sentences or ten million: streamed, stopped and gone on with, by many processes.

Memory does not grow with the corpus: one chunk of it is held (`chunks`), and sums of a fixed size. With a folder to
resume from, each batch is on the disk when the next begins (`store`): whatever ends the process costs the batch in
hand, and nothing counts twice. Several processes take batches of their own and add up in the end.

A batch whose texts fail is run text by text; those that fail are named and counted, and the others go on. An error that
is no text's fault goes through, and so does the first one where nothing at all could be measured yet: then it is the
model, or a statistic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.corpora import Corpus, Failure, Failures, as_corpus, is_about_texts
from manyheads.corpora.corpus import WHOLE
from manyheads.errors import LostProcessError, StatisticError, TextError
from manyheads.inputs import Long, Reading
from manyheads.inputs.pieces import require_reader
from manyheads.machine import ALONE, Ranks, is_split
from manyheads.machine.processes import joined_processes
from manyheads.measurement import store
from manyheads.measurement.basis import Basis
from manyheads.measurement.chunks import (
    Chunk,
    Chunked,
    Head,
    Learned,
    Wanted,
    chunks,
    inputs_of,
    learn,
    read_chunk,
    read_head,
    require_same,
    texts_of,
)
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.sums.batch_sums import Contribution
from manyheads.statistics.sums.one_batch import Progress, has_cross, measure_batch
from manyheads.statistics.table import choose
from manyheads.texts import Sinks

log = logging.getLogger("manyheads")


def corpus_sums(
    lm: Any,
    texts: str | Iterable[Any] | Corpus,
    statistics: Wanted,
    long: Long = "windows",
    sinks: Sinks | None = None,
    kinds: bool = False,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
    survey: Corpus | None = None,
    prepared: Prepared | None = None,
    keyed: bool = False,
    reading: str = "texts",
) -> CorpusSums:
    """The sums of a corpus, or of a shard of one.

    `survey`: the corpus whose head is surveyed instead of this one's own; of a shard, it is the whole corpus' head.
    `prepared`: what an earlier call made of that head, which is not read then. `keyed`: whether all inputs are named,
    a digest of the weights among them.
    """
    require_reader(lm, long)
    corpus = as_corpus(texts)
    survey = survey or corpus.whole
    if resume is not None and not corpus.key:
        raise StatisticError(
            f"resume= needs texts that can be read again, and {corpus.origin} can be read once only: give a list, or a "
            f"corpus of files."
        )
    divided = is_split(lm.model)
    if divided and resume is not None:
        raise StatisticError(
            "resume= is for a model that each process has whole: processes that hold parts of one model must stop and "
            "go on together. Leave it out, or load the model whole (device_map)."
        )
    with ExitStack() as stack:
        together = ALONE if divided else ranks or stack.enter_context(joined_processes())
        folder = None if resume is None else Path(resume)
        run = _Run(lm, corpus, long, sinks, kinds, together, folder, progress, stack, survey, prepared, keyed, reading)
        return run.sums(statistics)


class CorpusSums(NamedTuple):
    """What a run comes to: sums, what they rest on, what a table notes of how it went, and what a further run needs."""

    total: store.Total
    basis: Basis
    notes: dict[str, str]
    prepared: Prepared


class Prepared(NamedTuple):
    """What a run makes of the head of its corpus before it measures anything."""

    statistics: tuple[Statistic, ...]
    learned: Learned
    inputs: dict[str, str]


@dataclass(eq=False)
class _Run:
    """One run, as one of its processes sees it. `files` is the first process' alone, `inputs` those of the folder."""

    lm: Any
    corpus: Corpus
    long: Long
    sinks: Sinks | None
    kinds: bool
    ranks: Ranks
    folder: Path | None
    progress: Progress | None
    stack: ExitStack
    survey: Corpus | None
    prepared: Prepared | None
    keyed: bool
    reading: str
    files: store.RunFolder | None = None
    inputs: dict[str, str] = field(default_factory=dict)

    def sums(self, requested: Wanted) -> CorpusSums:
        """What an earlier run left, the survey, the batches, the sum over all processes."""
        known = self._known()
        place, origin = self.corpus.place or WHOLE, (self.corpus.whole or self.corpus).origin
        if self.prepared is not None:
            head, statistics = None, self.prepared.statistics
        else:
            head = read_head(
                self.lm,
                chunks((self.survey or self.corpus).open()),
                self.long,
                None if known is None else known[1].num_documents,
            )
            if not head.chunks:
                empty_list = self.corpus.total == 0 and self.corpus.origin.startswith("0 ")
                why = "the list is empty" if empty_list else f"{(self.survey or self.corpus).origin} holds none"
                raise TextError(f"no text was given: {why}.")
            request = requested(head.survey) if callable(requested) else requested
            statistics = choose(request, head.survey, crosses=has_cross(self.lm) and not self.kinds)
        if head is not None and self.survey is None:
            stream, read = head.stream(), head.read
        else:
            # What was surveyed is not what is measured, though it may be a part of it: that is read again.
            stream, read = chunks(self.corpus.open(), place), {}
        learned = self._learned(known, head, statistics)
        basis = Basis.of(self.lm, self.inputs, statistics, learned, self.kinds, origin)
        prepared = Prepared(statistics, learned, self.inputs)

        def finished() -> bytes:
            total = None if self.files is None else self.files.finished()
            return b"" if total is None else store.packed(total.tensors(), total.words())

        # After `_learned`, which compares inputs: a finished run of
        # another model or corpus must not be handed out as this one's.
        if self.folder is not None and (data := self.ranks.first(finished)):
            self._report(None, 1.0)
            total = store.Total.read(*store.unpacked(data))
            return CorpusSums(total, basis, self._notes(f"finished before, read back from {self.folder}"), prepared)
        total, keep, before, done = self._begun(basis)
        worker = Worker(
            self.lm, self.long, self.kinds, statistics, learned, total, before, keep, self.ranks.rank, self.ranks.world
        )
        try:
            worker.measure(stream, read, done, self._report)
        except (KeyboardInterrupt, LostProcessError):
            if self.folder is not None:
                log.warning(
                    "stopped after %s texts, all of them kept in %s: the same call goes on from there",
                    f"{total.num_texts:,}",
                    self.folder,
                )
            raise
        everything = store.everywhere(total, self.ranks)
        # A shard may hold no text, or none that can be read: the others have what there is.
        if not everything.num_texts and place == WHOLE:
            reasons = str(everything.failures).rstrip(".")
            raise TextError(f"no text of {self.corpus.origin} could be measured: {reasons}.")
        everything.parts = {str(place): everything.counts.get("texts", 0)}
        if self.files is not None:
            self.files.finish(everything, basis)
        self._report(None, 1.0)
        resumed = f"gone on with after {before:,} texts" if before else ""
        return CorpusSums(everything, basis, self._notes(resumed), prepared)

    def _notes(self, resumed: str) -> dict[str, str]:
        return {"processes": f"{self.ranks.world}" if self.ranks.world > 1 else "", "resumed": resumed}

    def _known(self) -> tuple[dict[str, str], Learned] | None:
        """The inputs of an earlier run in the folder, and what it learned. None where there is none."""
        if (folder := self.folder) is None:
            return None

        def compute() -> bytes:
            self.files = self.stack.enter_context(store.RunFolder.opened(folder))
            begun = self.files.begun()
            if begun is None:
                return b""
            inputs, learned = begun
            return store.packed(learned.tensors(), {"inputs": inputs, "learned": learned.words()})

        data = self.ranks.first(compute)
        if self.ranks.rank:
            # Only now: the first process has made the folder, and has seen that no older run is at work in it.
            self.stack.enter_context(store.RunFolder.opened(folder, self.ranks.rank))
        if not data:
            return None
        tensors, words = store.unpacked(data)
        return words["inputs"], Learned.read(tensors, words["learned"])

    def _learned(
        self, known: tuple[dict[str, str], Learned] | None, head: Head | None, statistics: tuple[Statistic, ...]
    ) -> Learned:
        """What the head of the corpus shows, from an earlier run where there is one; the same for all processes."""
        # A digest of all weights is worth its time only where there is something to compare it with.
        if self.prepared is not None:
            self.inputs = {**self.prepared.inputs, **texts_of(self.corpus)}
        elif self.keyed or self.folder is not None or self.ranks.world > 1:
            named = inputs_of(self.lm, self.corpus, statistics, self.long, self.sinks, self.kinds)
            self.inputs = {**named, "reading": self.reading}

        def compute() -> bytes:
            if known is not None and self.folder is not None:
                require_same(self.inputs, known[0], self.folder)
                learned = known[1]
            else:
                if self.prepared is not None:
                    learned = self.prepared.learned
                else:
                    assert head is not None, "a head is read where nothing is prepared"
                    learned = learn(self.lm, head, self.sinks, statistics)
                if self.files is not None:
                    self.files.begin(self.inputs, learned)
            return store.packed(learned.tensors(), {"inputs": self.inputs, "learned": learned.words()})

        tensors, words = store.unpacked(self.ranks.first(compute))
        if different := [name for name in self.inputs if self.inputs[name] != words["inputs"][name]]:
            raise StatisticError(
                f"process {self.ranks.rank} measures other inputs than process 0 ({', '.join(different)}): start all "
                f"of them with the same."
            )
        return Learned.read(tensors, words["learned"])

    def _begun(self, basis: Basis) -> tuple[store.Total, Callable[[store.Batch], None], int, store.Done]:
        """What this process adds to, and how; how many texts are measured already, and which batches these were.

        The first process goes on with all that earlier ones left, however many they were; the others begin empty.
        """
        if (folder := self.folder) is None:
            total = store.Total()
            return total, total.add, 0, {}
        parts = store.Parts(folder, basis)

        def compute() -> bytes:
            nonlocal parts
            parts = store.Parts.opened(folder, basis)
            return store.packed({"done": parts.total.covered()}, {"texts": parts.total.num_texts})

        tensors, words = store.unpacked(self.ranks.first(compute))
        earlier = store.Total()
        earlier.count_done(tensors["done"])
        return parts.total, parts.add, words["texts"], earlier.done

    def _report(self, chunk: Chunk | None, share: float) -> None:
        """How far reading has come, in the corpus' own units; a chunk counts by the share of its batches."""
        if self.progress is None:
            return
        if chunk is not None:
            self.progress(round(chunk.begin_at + share * (chunk.end_at - chunk.begin_at)), self.corpus.total)
        elif self.corpus.total is not None:
            self.progress(self.corpus.total, self.corpus.total)


@dataclass(eq=False)
class Worker:
    """What one process needs to measure batches. `keep` adds each to `total` as it is done.

    `before`: how many texts were measured when this run began, by whichever process.
    """

    lm: Any
    long: Long
    kinds: bool
    statistics: tuple[Statistic, ...]
    learned: Learned
    total: store.Total
    before: int
    keep: Callable[[store.Batch], None]
    rank: int
    world: int

    def measure(
        self,
        stream: Iterable[Chunk],
        read: dict[int, Chunked],
        done: store.Done,
        report: Callable[[Chunk, float], None],
    ) -> None:
        """Every batch that is this process' own and not done yet. `read` has chunks that are tokenised already.

        The batches of a chunk that are left are dealt out in turns; the next chunk begins with the next process.
        """
        for chunk in stream:
            # -1 is nobody's number of batches, so a chunk that nobody began can never look finished.
            of, finished = done.get(chunk.number, (-1, set()))
            if len(finished) != of:  # a chunk that is done is not even tokenised
                chunked = read.pop(chunk.number, None) or read_chunk(self.lm, chunk, self.long)
                if of not in (-1, len(chunked.batches)):
                    raise StatisticError(
                        f"the corpus is not what it was when this run began: its texts from number {chunk.begin:,} on "
                        f"made {of} batches and make {len(chunked.batches)} now. To begin anew, give another folder."
                    )
                # What is left is dealt out anew: a run may go on with more processes than began it, or fewer.
                left = [batch for batch in range(len(chunked.batches)) if batch not in finished]
                # Turned by the chunk's number: else the first process would get the odd batch of every chunk.
                batches = left[(self.rank - chunk.number) % self.world :: self.world]
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
                    self.keep(store.Batch(chunk.number, number, len(chunked.batches), adds, failures, counts))
            report(chunk, 1.0)

    @property
    def _nothing_measured(self) -> bool:
        return not (self.before or self.total.num_texts)

    def _measured(self, chunked: Chunked, pieces: list[int]) -> tuple[Contribution | None, list[Failure]]:
        """What a batch adds, and which of its texts failed; text by text where some do."""
        if not pieces:
            return None, []
        try:
            return self._run(chunked, pieces), []
        except Exception as error:
            # Processes that hold parts of one model call it together: one that ran texts again would wait for ever.
            if not is_about_texts(error) or is_split(self.lm.model):
                raise
            # Under a name of its own: Python deletes `error` at the end of the except block.
            first = error
        measured: list[Contribution] = []
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
        return Contribution.after(measured) if measured else None, failed

    def _run(self, chunked: Chunked, pieces: list[int]) -> Contribution:
        learned = self.learned
        reading = Reading(self.lm, chunked.pieces, (), chunked.notes, learned.rarity, learned.rarity_because)
        return measure_batch(self.lm, reading.batch(pieces).with_sinks(learned.sinks), self.statistics, self.kinds)
