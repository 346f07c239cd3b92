"""One process at work on a corpus: the batches that are its own, one after another, each kept as it is done.

A batch whose texts fail is run text by text; those that fail are named. An error that is no text's fault goes through,
and so does the first one where nothing at all could be measured yet: then it is the model, or a statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from manyheads.errors import StatisticError
from manyheads.models.inputs.texts import tokens_of
from manyheads.statistics.accounts import COUNTED, Account, Done, Entry
from manyheads.statistics.chunks import Chunk, Chunked, read_chunk
from manyheads.corpora.corpus import Failure
from manyheads.corpora.corpus import Failures
from manyheads.corpora.corpus import is_about_texts
from manyheads.statistics.measuring import measure_batch
from manyheads.statistics.statistic import Statistic
from manyheads.statistics.surveys import Learned
from manyheads.statistics.tallies import Contribution

__all__ = ["Worker"]


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
