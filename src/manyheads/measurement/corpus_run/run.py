"""Measuring a corpus of two hundred sentences or ten million: streamed, stopped and gone on with, by many processes.

Memory does not grow with the corpus: one chunk of it is held (`chunks_of`), and sums of a fixed size. With a folder to
resume from, each batch is on the disk when the next begins (`store`): whatever ends the process costs the batch in
hand, and nothing counts twice. Several processes take batches of their own and add up in the end.

A batch whose texts fail is run text by text; those that fail are named and counted, and the others go on. An error that
is no text's fault goes through, and so does the first one where nothing at all could be measured yet: then it is the
model, or a statistic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyheads.base import Progress
from manyheads.corpora import WHOLE, Corpus, Failure, Failures, as_corpus, is_about_texts
from manyheads.errors import LostProcessError, StatisticError, TextError
from manyheads.inputs import Long, require_reader
from manyheads.machine import ALONE, Ranks, is_split, joined_processes
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import (
    Chunk,
    Chunked,
    CorpusStart,
    StartFacts,
    Wanted,
    chunks_of,
    inputs_of,
    learn,
    read_chunk,
    read_head,
    require_same,
    texts_of,
)
from manyheads.measurement.loop import by_model, sums_of
from manyheads.models import LoadedModel
from manyheads.statistics import Statistic, choose
from manyheads.statistics.sums import BatchSums, has_cross
from manyheads.texts import Document, Sinks

log = logging.getLogger("manyheads")


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


def corpus_sums(
    what: RunRequest,
    texts: str | Iterable[Any] | Corpus,
    *,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
    before: CorpusRun | None = None,
) -> CorpusRun:
    """Run over a corpus, or over a shard of one, to its end.

    `before`: an earlier run of the same request, whose survey serves this one too: that corpus is not read again.
    """
    require_reader(what.lm, what.long)
    corpus = as_corpus(texts)
    if resume is not None and not corpus.key:
        raise StatisticError(
            f"resume= needs texts that can be read again, and {corpus.origin} can be read once only: give a list, or a "
            f"corpus of files."
        )
    divided = is_split(what.lm.model)
    if divided and resume is not None:
        raise StatisticError(
            "resume= is for a model that each process has whole: processes that hold parts of one model must stop and "
            "go on together. Leave it out, or load the model whole (device_map)."
        )
    with ExitStack() as stack:
        together = ALONE if divided else ranks or stack.enter_context(joined_processes())
        run = CorpusRun(what, corpus, together, None if resume is None else Path(resume), progress)
        run.measure(before, stack)
    return run


@dataclass(eq=False)
class CorpusRun:
    """One run, as one of its processes sees it, and in the end what it comes to: `total`, its `basis`, and `notes`.

    `statistics` and `learned` are from the head of the corpus that was surveyed, `inputs` all that the numbers depend
    on, where that is named. `files`: the folder, of the first process alone.
    """

    what: RunRequest
    corpus: Corpus
    ranks: Ranks
    folder: Path | None
    progress: Progress | None
    statistics: tuple[Statistic, ...] = ()
    learned: StartFacts = field(init=False)
    inputs: dict[str, str] = field(default_factory=dict)
    files: store.RunFolder | None = None
    total: store.RunTotal = field(default_factory=store.RunTotal)
    basis: Basis = field(init=False)
    notes: dict[str, str] = field(default_factory=dict)

    def measure(self, before: CorpusRun | None, stack: ExitStack) -> None:
        """What an earlier run left, the survey, the batches, the sum over all processes. `stack` holds the folder."""
        what, known = self.what, self._known(stack)
        survey = what.survey or self.corpus.whole
        place, origin = self.corpus.place or WHOLE, (self.corpus.whole or self.corpus).origin
        if before is not None:
            head, self.statistics = None, before.statistics
        else:
            num_documents = None if known is None else known[1].num_documents
            head = read_head(what.lm, chunks_of((survey or self.corpus).open()), what.long, num_documents)
            if not head.chunks:
                empty_list = self.corpus.total == 0 and self.corpus.origin.startswith("0 ")
                why = "the list is empty" if empty_list else f"{(survey or self.corpus).origin} holds none"
                raise TextError(f"no text was given: {why}.")
            request = what.statistics(head.survey) if callable(what.statistics) else what.statistics
            self.statistics = choose(request, head.survey, crosses=has_cross(what.lm) and not what.kinds)
        if head is not None and survey is None:
            stream, read = head.stream(), head.read
        else:
            # What was surveyed is not what is measured, though it may be a part of it: that is read again.
            stream, read = chunks_of(self.corpus.open(), place), {}
        self.learned = self._learned(known, head, before)
        self.basis = Basis.of(what.lm, self.inputs, self.statistics, self.learned, what.kinds, origin)
        self.notes = {"processes": f"{self.ranks.world}" if self.ranks.world > 1 else "", "resumed": ""}

        def finished() -> bytes:
            total = None if self.files is None else self.files.finished()
            return b"" if total is None else store.packed(total.tensors(), total.words())

        # After `_learned`, which compares inputs: a finished run of
        # another model or corpus must not be handed out as this one's.
        if self.folder is not None and (data := self.ranks.first(finished)):
            self._report(None, 1.0)
            self.total = store.RunTotal.read(*store.unpacked(data))
            self.notes["resumed"] = f"finished before, read back from {self.folder}"
            return
        total, keep, num_before, done = self._begun()
        worker = Worker(self, total, num_before, keep)
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
        self.total = store.everywhere(total, self.ranks)
        # A shard may hold no text, or none that can be read: the others have what there is.
        if not self.total.num_texts and place == WHOLE:
            reasons = str(self.total.failures).rstrip(".")
            raise TextError(f"no text of {self.corpus.origin} could be measured: {reasons}.")
        self.total.parts = {str(place): self.total.counts.get("texts", 0)}
        if self.files is not None:
            self.files.finish(self.total, self.basis)
        self._report(None, 1.0)
        self.notes["resumed"] = f"gone on with after {num_before:,} texts" if num_before else ""

    def _known(self, stack: ExitStack) -> tuple[dict[str, str], StartFacts] | None:
        """The inputs of an earlier run in the folder, and what it learned. None where there is none."""
        if (folder := self.folder) is None:
            return None

        def compute() -> bytes:
            self.files = stack.enter_context(store.RunFolder.opened(folder))
            begun = self.files.begun()
            if begun is None:
                return b""
            inputs, learned = begun
            return store.packed(learned.tensors(), {"inputs": inputs, "learned": learned.words()})

        data = self.ranks.first(compute)
        if self.ranks.rank:
            # Only now: the first process has made the folder, and has seen that no older run is at work in it.
            stack.enter_context(store.RunFolder.opened(folder, self.ranks.rank))
        if not data:
            return None
        tensors, words = store.unpacked(data)
        return words["inputs"], StartFacts.read(tensors, words["learned"])

    def _learned(
        self, known: tuple[dict[str, str], StartFacts] | None, head: CorpusStart | None, before: CorpusRun | None
    ) -> StartFacts:
        """What the head of the corpus shows, from an earlier run where there is one; the same for all processes."""
        what = self.what
        # A digest of all weights is worth its time only where there is something to compare it with.
        if before is not None:
            self.inputs = {**before.inputs, **texts_of(self.corpus)}
        elif what.keyed or self.folder is not None or self.ranks.world > 1:
            named = inputs_of(what.lm, self.corpus, self.statistics, what.long, what.sinks, what.kinds)
            self.inputs = {**named, "reading": what.reading}

        def compute() -> bytes:
            if known is not None and self.folder is not None:
                require_same(self.inputs, known[0], self.folder)
                learned = known[1]
            else:
                if before is not None:
                    learned = before.learned
                else:
                    assert head is not None, "a head is read where no earlier run has surveyed one"
                    learned = learn(what.lm, head, what.sinks, self.statistics)
                if self.files is not None:
                    self.files.begin(self.inputs, learned)
            return store.packed(learned.tensors(), {"inputs": self.inputs, "learned": learned.words()})

        tensors, words = store.unpacked(self.ranks.first(compute))
        if different := [name for name in self.inputs if self.inputs[name] != words["inputs"][name]]:
            raise StatisticError(
                f"process {self.ranks.rank} measures other inputs than process 0 ({', '.join(different)}): start all "
                f"of them with the same."
            )
        return StartFacts.read(tensors, words["learned"])

    def _begun(self) -> tuple[store.RunTotal, Callable[[store.BatchPart], None], int, store.Done]:
        """What this process adds to, and how; how many texts are measured already, and which batches these were.

        The first process goes on with all that earlier ones left, however many they were; the others begin empty.
        """
        if (folder := self.folder) is None:
            total = store.RunTotal()
            return total, total.add, 0, {}
        parts = store.Parts(folder, self.basis)

        def compute() -> bytes:
            nonlocal parts
            parts = store.Parts.opened(folder, self.basis)
            return store.packed({"done": parts.total.covered()}, {"texts": parts.total.num_texts})

        tensors, words = store.unpacked(self.ranks.first(compute))
        earlier = store.RunTotal()
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
    """What one process of a run measures batch by batch. `keep` adds each to `total` as it is done.

    `before`: how many texts were measured when this run began, by whichever process.
    """

    run: CorpusRun
    total: store.RunTotal
    before: int
    keep: Callable[[store.BatchPart], None]

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
        what, rank, world = self.run.what, self.run.ranks.rank, self.run.ranks.world
        for chunk in stream:
            # -1 is nobody's number of batches, so a chunk that nobody began can never look finished.
            of, finished = done.get(chunk.number, (-1, set()))
            if len(finished) != of:  # a chunk that is done is not even tokenised
                chunked = read.pop(chunk.number, None) or read_chunk(what.lm, chunk, what.long)
                if of not in (-1, len(chunked.batches)):
                    raise StatisticError(
                        f"the corpus is not what it was when this run began: its texts from number {chunk.begin:,} on "
                        f"made {of} batches and make {len(chunked.batches)} now. To begin anew, give another folder."
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
            if not is_about_texts(error) or is_split(self.run.what.lm.model):
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
        run, learned = self.run, self.run.learned
        lm = run.what.lm
        reading = replace(chunked.reading, rarity=learned.rarity, rarity_because=learned.rarity_because)
        batch = reading.batch(pieces)
        (adds,) = sums_of(by_model(lm), [batch], run.statistics, sinks=learned.sinks, kinds=run.what.kinds)
        if run.what.watch is not None:
            run.what.watch([chunked.chunk.documents[reading.pieces[piece].source] for piece in pieces], adds)
        return adds
