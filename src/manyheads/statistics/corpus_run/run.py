"""Measuring a corpus of two hundred sentences or ten million: streamed, stopped and gone on with, by many processes.

Memory does not grow with the corpus: one chunk of it is held (`chunks`), and sums of a fixed size. With a folder to
resume from, each batch is on the disk when the next begins (`shards`): whatever ends the process costs the batch in
hand, and counts nothing twice. Several processes take batches of their own (`workers`) and add up in the end
(`merging`). A text that fails is named and counted, and the others go on (`failures`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manyheads.base import ALONE, Ranks, is_split
from manyheads.base.processes import here
from manyheads.corpora import Corpus, Failure, Failures, as_corpus, is_about_texts
from manyheads.errors import LostProcessError, StatisticError, TextError
from manyheads.models import tokens_of
from manyheads.models.inputs.texts import require_reader, story
from manyheads.recording import Sinks
from manyheads.statistics.corpus_run.chunks import (
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
)
from manyheads.statistics.corpus_run.store import (
    COUNTED,
    Account,
    Done,
    Entry,
    RunFolder,
    Shard,
    everywhere,
    packed,
    unpacked,
)
from manyheads.statistics.gathered import Progress, measure_batch, two_sided
from manyheads.statistics.head_table import HeadTable
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.table import choose
from manyheads.statistics.tally import Contribution

__all__ = ["measure_corpus", "Worker"]


# ---------------------------------------------------------------------------------------------------------------------
# One process at work on a corpus: the batches that are its own, one after another, each kept as it is done.
#
# A batch whose texts fail is run text by text; those that fail are named. An error that is no text's fault goes
# through, and so does the first one where nothing at all could be measured yet: then it is the model, or a statistic.


@dataclass(eq=False)
class Worker:
    """What one process needs to measure batches. `keep` takes each as it is done; `account` is what it has so far."""

    lm: Any
    long: str
    kinds: bool
    statistics: tuple[Statistic, ...]
    learned: Learned
    account: Account
    keep: Callable[[Entry], None]
    rank: int
    world: int

    def measure(
        self, stream: Iterable[Chunk], read: dict[int, Chunked], done: Done, tell: Callable[[Chunk, float], None]
    ) -> None:
        """Every batch that is this process' own and not done yet. `read` has chunks that are tokenised already.

        The batches of a chunk that are left are dealt out in turns; the next chunk begins with the next process.
        """
        for chunk in stream:
            of, finished = done.get(chunk.number, (-1, set()))
            if len(finished) != of:
                chunked = read.pop(chunk.number, None) or read_chunk(self.lm, chunk, self.long)
                self._require_same(chunked, of)
                left = [batch for batch in range(len(chunked.batches)) if batch not in finished]
                mine = left[(self.rank - chunk.number) % self.world :: self.world]
                for count, batch in enumerate(mine):
                    tell(chunk, count / len(mine))
                    self.keep(self._entry(chunked, batch))
            tell(chunk, 1.0)

    def _require_same(self, chunked: Chunked, of: int) -> None:
        if of not in (-1, len(chunked.batches)):
            raise StatisticError(
                f"the corpus is not what it was when this run began: its texts from number {chunked.chunk.begin:,} on "
                f"made {of} batches and make {len(chunked.batches)} now. To begin anew, give another folder."
            )

    def _entry(self, chunked: Chunked, batch: int) -> Entry:
        """Measure one batch. With a chunk's first batch comes what is to be said of the whole chunk."""
        adds, failed = self._measured(chunked, chunked.batches[batch])
        counts: dict[str, int] = {}
        if batch == 0:
            if chunked.error is not None and not self.account.num_texts:
                raise chunked.error
            failed += chunked.failures
            counts = {name: getattr(chunked, name) for name in COUNTED}
        return Entry(chunked.chunk.number, batch, len(chunked.batches), adds, Failures.of(failed), counts)

    def _measured(self, chunked: Chunked, pieces: list[int]) -> tuple[Contribution | None, list[Failure]]:
        """What a batch adds, and which of its texts failed; text by text where some do."""
        if not pieces:
            return None, []
        try:
            return self._run(chunked, pieces), []
        except Exception as error:
            if not is_about_texts(error):
                raise
            first = error
        parts: list[Contribution] = []
        failed: list[Failure] = []
        for piece in pieces:
            try:
                parts.append(self._run(chunked, [piece]))
            except Exception as error:
                if not is_about_texts(error):
                    raise
                failed.append(chunked.failure(piece, error))
        if not parts and not self.account.num_texts:
            raise first
        return Contribution.after(parts) if parts else None, failed

    def _run(self, chunked: Chunked, pieces: list[int]) -> Contribution:
        learned = self.learned
        tokens = tokens_of(chunked.reading, pieces, learned.rarity, learned.rarity_because).with_sinks(learned.sinks)
        return measure_batch(self.lm, tokens, self.statistics, self.kinds)


log = logging.getLogger("manyheads")


def measure_corpus(
    lm: Any,
    texts: str | Iterable[Any] | Corpus,
    statistics: Wanted,
    *,
    long: str = "windows",
    sinks: Sinks | None = None,
    kinds: bool = False,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    ranks: Ranks | None = None,
) -> HeadTable:
    """`measure` of a corpus: see there."""
    require_reader(lm, long)
    corpus = as_corpus(texts)
    if resume is not None and not corpus.key:
        raise StatisticError(
            f"resume= needs texts that can be read again, and {corpus.origin} can be read once only: give a list, or a "
            f"corpus of files."
        )
    with ExitStack() as stack:
        together = ranks or (ALONE if is_split(lm.model) else stack.enter_context(here()))
        folder = None if resume is None else Path(resume)
        return _Run(lm, corpus, long, sinks, kinds, together, folder, progress, stack).table(statistics)


@dataclass(eq=False)
class _Run:
    """One run, as one of its processes sees it. `files` is the first process' alone."""

    lm: Any
    corpus: Corpus
    long: str
    sinks: Sinks | None
    kinds: bool
    ranks: Ranks
    folder: Path | None
    progress: Progress | None
    stack: ExitStack
    files: RunFolder | None = None

    def table(self, wanted: Wanted) -> HeadTable:
        """What is there already, the survey, the batches, the sum over all processes."""
        known = self._known()
        num_documents = None if known is None else known[1].num_documents
        head = read_head(self.lm, chunks(self.corpus.open()), self.long, num_documents)
        if not head.chunks:
            empty_list = self.corpus.total == 0 and self.corpus.origin.startswith("0 ")
            why = "the list is empty" if empty_list else f"{self.corpus.origin} holds none"
            raise TextError(f"no text was given: {why}.")
        statistics = choose(wanted(head.survey) if callable(wanted) else wanted)
        learned = self._learned(known, head, statistics)
        if (finished := self._finished()) is not None:
            self._tell(None, 1.0)
            return self._table(finished, statistics, learned, f"finished before, read back from {self.folder}")
        shard, before, done = self._begun()
        account = Account() if shard is None else shard.account
        keep = account.add if shard is None else shard.add
        worker = Worker(
            self.lm, self.long, self.kinds, statistics, learned, account, keep, self.ranks.rank, self.ranks.world
        )
        self._work(worker, head, done)
        whole = everywhere(account, self.ranks)
        if not whole.num_texts:
            raise TextError(f"no text of {self.corpus.origin} could be measured: {str(whole.failures).rstrip('.')}.")
        if self.files is not None:
            self.files.finish(whole)
        self._tell(None, 1.0)
        return self._table(whole, statistics, learned, f"gone on with after {before:,} texts" if before else "")

    def _known(self) -> tuple[dict[str, str], Learned] | None:
        """What an earlier run in the folder was of, and learned. None where there is none."""
        if self.folder is None:
            return None

        def compute() -> bytes:
            assert self.folder is not None
            self.files = RunFolder.opened(self.folder)
            self.stack.callback(self.files.close)
            found = self.files.begun()
            if found is None:
                return b""
            return packed(found[1].tensors(), {"inputs": found[0], "learned": found[1].said()})

        data = self.ranks.first(compute)
        if not data:
            return None
        tensors, said = unpacked(data)
        return said["inputs"], Learned.read(tensors, said["learned"])

    def _learned(
        self, known: tuple[dict[str, str], Learned] | None, head: Head, statistics: tuple[Statistic, ...]
    ) -> Learned:
        """What the head tells, from an earlier run where there is one; the same for all processes."""
        alone = self.folder is None and self.ranks.world == 1
        asked = (self.corpus, statistics, self.long, self.sinks, self.kinds)
        inputs = {} if alone else inputs_of(self.lm, *asked)

        def compute() -> bytes:
            if known is not None and self.folder is not None:
                require_same(inputs, known[0], self.folder)
                learned = known[1]
            else:
                learned = learn(self.lm, head, self.sinks, statistics)
                if self.files is not None:
                    self.files.begin(inputs, learned)
            return packed(learned.tensors(), {"inputs": inputs, "learned": learned.said()})

        tensors, said = unpacked(self.ranks.first(compute))
        if other := [name for name in inputs if inputs[name] != said["inputs"][name]]:
            raise StatisticError(
                f"process {self.ranks.rank} measures other inputs than process 0 ({', '.join(other)}): start all of "
                f"them with the same."
            )
        return Learned.read(tensors, said["learned"])

    def _finished(self) -> Account | None:
        """The whole of a run that came to its end before."""

        def compute() -> bytes:
            account = None if self.files is None else self.files.finished()
            return b"" if account is None else packed(account.tensors(), account.said())

        data = b"" if self.folder is None else self.ranks.first(compute)
        return Account.read(*unpacked(data)) if data else None

    def _begun(self) -> tuple[Shard | None, int, Done]:
        """This process' shard, how many texts all shards hold, and which batches these were."""
        if self.folder is None:
            return None, 0, {}
        listed = self.ranks.first(lambda: json.dumps(self.files.shards() if self.files else []).encode())
        mine = json.loads(listed)[self.ranks.rank :: self.ranks.world]
        shard = Shard.opened(self.folder, mine[0]) if mine else Shard.begun(self.folder)
        self.stack.callback(shard.close)
        if mine[1:]:
            shard.take_in([Shard.opened(self.folder, name) for name in mine[1:]])
        said = {"texts": shard.account.num_texts}
        told = [unpacked(each) for each in self.ranks.gather(packed({"done": shard.account.done_rows()}, said))]
        every = Account()
        every.count_done(torch.cat([tensors["done"] for tensors, _ in told]))
        return shard, sum(said["texts"] for _, said in told), every.done

    def _work(self, worker: Worker, head: Head, done: Done) -> None:
        try:
            worker.measure(head.stream(), head.read, done, self._tell)
        except (KeyboardInterrupt, LostProcessError):
            if self.folder is not None:
                log.warning(
                    "stopped after %s texts, all of them kept in %s: the same call goes on from there",
                    f"{worker.account.num_texts:,}",
                    self.folder,
                )
            raise

    def _tell(self, chunk: Chunk | None, share: float) -> None:
        """How far reading has come, in the corpus' own units; a chunk counts by the share of its batches."""
        if self.progress is None:
            return
        if chunk is not None:
            self.progress(round(chunk.begin_at + share * (chunk.end_at - chunk.begin_at)), self.corpus.total)
        elif self.corpus.total is not None:
            self.progress(self.corpus.total, self.corpus.total)

    def _table(self, account: Account, statistics: tuple[Statistic, ...], learned: Learned, resumed: str) -> HeadTable:
        counts, read = account.counts, account.counts["texts"]
        windows, gold = read - counts["cut"] + counts["windows"], counts["cut_gold"]
        in_windows = f"{read:,} text{'s' * (read != 1)}, read in {windows:,} windows"
        notes = {
            "model": self.lm.name,
            "loaded": self.lm.because,
            "corpus": f"{self.corpus.origin} ({read:,} read)",
            "failed": str(account.failures),
            "surveyed": learned.because,
            "texts": in_windows if counts["cut"] and windows > read else "",
            "windows": story(windows, counts["cut"], read, self.lm.max_positions, self.long),
            "gold": f"left out of {gold:,} text{'s' * (gold > 1)} too long to be read whole" if gold else "",
            "rarity": learned.rarity_because,
            "sinks": learned.sinks.because,
            "processes": f"{self.ranks.world}" if self.ranks.world > 1 else "",
            "resumed": resumed,
            **two_sided(self.lm),
        }
        return account.gathered.table(statistics, learned.sinks, notes, failures=account.failures)
