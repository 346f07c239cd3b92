"""Measuring a corpus of two hundred sentences or ten million: streamed, stopped and gone on with, by many processes.

Memory does not grow with the corpus: one chunk of it is held (`chunks_of`), and sums of a fixed size. With a folder to
resume from, each batch is on the disk when the next begins (`store`): whatever ends the process costs the batch in
hand, and nothing counts twice. Several processes take batches of their own and add up in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyheads.corpora import WHOLE, Corpus, as_corpus
from manyheads.errors import LostProcessError, StatisticError, TextError
from manyheads.inputs import require_reader
from manyheads.machine import ALONE, Ranks, is_split, joined_processes
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import (
    Chunk,
    CorpusStart,
    StartFacts,
    chunks_of,
    learn,
    read_head,
    require_read_again,
    require_same,
    texts_of,
)
from manyheads.measurement.corpus_run.worker import RunRequest, Worker
from manyheads.progress import Progress
from manyheads.statistics import Statistic

log = logging.getLogger("manyheads")


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
    if resume is not None:
        require_read_again(corpus)
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
            self.statistics = what.chosen(head.survey)
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
        worker = Worker(what, self.statistics, self.learned, total, keep, num_before, self.ranks)
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
            reasons = str(self.total.failures).rstrip(".") or "it holds none"
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
            self.inputs = what.inputs(texts_of(self.corpus), self.statistics)

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
                f"process {self.ranks.rank} measures inputs that are not those of process 0 "
                f"({', '.join(different)}): start all of them with the same."
            )
        return StartFacts.read(tensors, words["learned"])

    def _begun(self) -> tuple[store.RunTotal, Callable[[store.BatchPart], None], int, store.Done]:
        """What this process adds to, and how; how many texts are measured already, and which batches these were.

        The first process goes on with all that earlier ones left, however many they were; the others begin empty.
        """
        if (folder := self.folder) is None:
            total = store.RunTotal()
            return total, total.add, 0, store.Done()
        parts = store.Parts(folder, self.basis)

        def compute() -> bytes:
            nonlocal parts
            parts = store.Parts.opened(folder, self.basis)
            return store.packed(parts.total.done.tensors(), {"texts": parts.total.num_texts})

        tensors, words = store.unpacked(self.ranks.first(compute))
        return parts.total, parts.add, words["texts"], store.Done.read(tensors)

    def _report(self, chunk: Chunk | None, share: float) -> None:
        """How far reading has come, in the corpus' own units; a chunk counts by the share of its batches."""
        if self.progress is None:
            return
        if chunk is not None:
            self.progress(round(chunk.begin_at + share * (chunk.end_at - chunk.begin_at)), self.corpus.total)
        elif self.corpus.total is not None:
            self.progress(self.corpus.total, self.corpus.total)
