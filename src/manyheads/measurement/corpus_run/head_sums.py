"""`HeadSums`: the sums behind a table of heads, as a value that any engine can carry from one machine to another.

Numerators, denominators and maxima add in any order, so a corpus may be measured in parts: by a SLURM array, by Ray, by
processes that know nothing of each other. A part is what a run over a corpus keeps in its folder (`corpus_run.store`),
and says by itself what it rests on (`corpus_run.basis`): parts of other weights, statistics, code or another survey are
refused, and so is a part that is there twice.
"""

# device: sums are the host's

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.corpora import Corpus, Failures, as_corpus, reading_of
from manyheads.errors import FileAccessError, RecordingError, StatisticError
from manyheads.inputs import Long, require_reader
from manyheads.machine import ALONE, Ranks, splits_heads
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.basis import ANY, Basis, named_shards
from manyheads.measurement.corpus_run.chunks import Wanted
from manyheads.measurement.corpus_run.driver import Driver
from manyheads.measurement.corpus_run.run import CorpusRun, corpus_sums
from manyheads.measurement.corpus_run.worker import RunRequest
from manyheads.measurement.split_heads import whole_table
from manyheads.models import LoadedModel
from manyheads.progress import ShowProgress, shows_progress
from manyheads.recording.file import read_state
from manyheads.statistics import HeadTable
from manyheads.statistics.sums import RunningSums
from manyheads.texts import Document, Sinks


class HeadSums:
    """Sums of statistics of every head, which add: `update(texts)` measures, `a + b` merges, `table()` divides.

        sums = mh.HeadSums(lm, "default")
        sums.update(texts)
        (sums + mh.HeadSums.open("other.sums")).table()

    `compute`, `reset` and `merge_state` are `table()`, no texts, and `+=`, as users of torchmetrics know them.

    `statistics`, `long`, `sinks` and `kinds` as in `measure`. All parts must be measured alike, so what is learned from
    the beginning of the texts (which tokens are rare, where attention is parked, a treebank's relations) must come from
    the same texts in each of them: from the beginning of `survey` (a corpus, or texts) where that is given, of a shard
    (`Corpus.shard`) from the beginning of its whole corpus, and else from the bundled texts. `reading` names what is
    read where one job reads several things: sums of another reading do not add.

    It can be pickled, and saved as one safetensors file, of about 3 MB for 72 heads and 14 statistics (docs/format.md);
    neither holds the model: what comes out of them, or of `+`, can be added and divided, and takes no more texts.
    Cost: as `measure`, once a digest of the weights, and for every shard the survey of the corpus' beginning.
    Errors: TextError, StatisticError, ModelError, GuardError, FileAccessError.
    """

    def __init__(
        self,
        lm: LoadedModel,
        statistics: Wanted = "default",
        *,
        survey: str | Iterable[str | Document] | Corpus | None = None,
        long: Long = "windows",
        sinks: Sinks | None = None,
        kinds: bool = False,
        reading: str = "texts",
    ) -> None:
        require_reader(lm, long)
        of_survey = None if survey is None else as_corpus(survey)
        self._begin(RunRequest(lm, statistics, long, sinks, kinds, of_survey, True, reading), reading)

    def _begin(self, what: RunRequest | None, reading: str) -> None:
        self._what, self.reading = what, reading
        self._before: CorpusRun | None = None
        self._basis: Basis | None = None
        self._total = store.RunTotal()
        # Of the texts that came without a shard, the sum of their digests, and how many there are: it does not depend
        # on the order in which they came.
        self._given = self._num_given = 0

    # ------------------------------------------------------------------------------------------------------- measuring

    @shows_progress("measuring")
    def update(
        self,
        texts: str | Iterable[str | Document] | Corpus,
        *,
        resume: str | Path | None = None,
        progress: ShowProgress = None,
        ranks: Ranks | None = ALONE,
    ) -> HeadSums:
        """Measure further texts, and add them: a list, an iterator, a corpus or a shard of one. Returns these sums.

        Each process measures its texts alone; with `ranks=None` those of torch.distributed share them, as in `measure`,
        whose `resume` and `progress` these are. Where processes hold heads of one model (tensor parallelism), all must
        call it with the same texts, and each has the sums of all heads: save those of one of them.
        A text that cannot be measured is named and counted (`table().failures`).
        """
        assert not isinstance(progress, bool), "the decorator made a function or None of it"
        what = self._what
        if what is None:
            raise StatisticError(
                "these sums came from a file, from another process or from +, without their model: make "
                "HeadSums(lm, ...) for further texts, and add the two."
            )
        divided = splits_heads(what.lm.model)
        if divided and what.kinds:
            raise StatisticError(
                "kinds= needs all heads in one process, and tensor parallelism divides them: leave it out, or load the "
                "model whole."
            )
        corpus = as_corpus(texts)
        # Only what has no key is digested on its way: a list and files are known by theirs, shards by their numbers.
        digest = hashlib.blake2b(corpus.key.encode(), digest_size=8)

        def digested() -> Iterator[Document]:
            for document in corpus.open():
                digest.update(repr((document.text, document.gold)).encode("utf-8", "surrogatepass"))
                yield document

        survey = what.survey or corpus.whole or reading_of(what.lm.name).corpus()
        run = corpus_sums(
            replace(what, survey=survey), corpus if corpus.key else replace(corpus, open=digested),
            progress=progress, resume=resume, ranks=ranks, before=self._before,
        )  # fmt: skip
        total, basis, self._before = run.total, run.basis, run
        run.total = store.RunTotal()  # the next run needs the survey of this one, and its sums are added here
        inputs = basis.inputs
        origin: dict[str, str] = {}
        if corpus.place is None:
            origin = {"corpus": f"texts {ANY}"}
            inputs = inputs | {"texts": ANY, "shard": ANY}
            total.done, total.parts = store.Done(), {}
        basis = replace(basis, inputs=inputs, notes={**basis.notes, **run.notes, **origin})
        if divided and total.num_texts:
            table = whole_table(what.lm.model, basis.table(total.sums, total.counts, total.failures, {}))
            how = {name: getattr(total.sums, name) for name in ("backend", "guard_error", "edited")}
            total.sums = replace(RunningSums.of(table), **how)
        self._add(total, basis)
        if corpus.place is None:
            self._given += int(digest.hexdigest(), 16)
            self._num_given += total.counts.get("texts", 0)
        return self

    # ---------------------------------------------------------------------------------------------------------- adding

    def __iadd__(self, other: HeadSums) -> HeadSums:
        """Add in place. Errors: StatisticError for sums that rest on something else, or count what is counted here."""
        if not isinstance(other, HeadSums):
            return NotImplemented
        if other._basis is not None:
            # A copy: what is added to later must not change the other's numbers.
            self._add(deepcopy(other._whole()), other._basis)
        return self

    def __add__(self, other: HeadSums) -> HeadSums:
        """The sums of both, without a model. Errors: StatisticError, as of `+=`."""
        if not isinstance(other, HeadSums):
            return NotImplemented
        out = _without_model(self.reading)
        out += self
        out += other
        return out

    def __radd__(self, other: object) -> HeadSums:
        """`sum(parts)` begins with 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def merge_state(self, incoming_state: HeadSums) -> None:
        """Add in place, as `+=`: torchmetrics' name for it.

        Errors: StatisticError for what is not a HeadSums, and as of `+=`.
        """
        if not isinstance(incoming_state, HeadSums):
            raise StatisticError(
                f"merge_state takes HeadSums, and this is a {type(incoming_state).__name__}: give sums, or open a file "
                f"of them by HeadSums.open."
            )
        self.__iadd__(incoming_state)

    def reset(self) -> None:
        """Forget all texts: these sums are as they were made, and with their model take texts again."""
        self._begin(self._what, self.reading)

    def _add(
        self, total: store.RunTotal, basis: Basis, first: str = "these sums", second: str = "what is added"
    ) -> None:
        if self._basis is None:
            self._total, self._basis, self.reading = total, basis, basis.inputs["reading"]
            return
        self._basis.require_adds(basis, first, second)
        shared = sorted(self.parts.keys() & total.parts.keys())
        if shared or self._total.done.overlaps(total.done):
            common = f"shard {shared[0]}" if basis.num_shards and shared else "the same texts"
            raise StatisticError(
                f"{first} and {second} both hold {common}, which would count twice: add each part once."
            )
        self._total.add(total)

    # --------------------------------------------------------------------------------------------------------- reading

    @property
    def parts(self) -> dict[str, int]:
        """How many texts each part has: shards as "17/512", else the texts that one HeadSums measured, by digest."""
        unsharded = {f"{self._given % (1 << 64):016x}": self._num_given} if self._num_given else {}
        return {**self._total.parts, **unsharded}

    @property
    def missing(self) -> tuple[int, ...]:
        """The shards of the corpus that are not in these sums; none where it is whole, or texts came without shards."""
        return () if self._basis is None else tuple(self._basis.missing(self.parts))

    @property
    def sinks(self) -> Sinks:
        """Where the model parks attention, as found on the texts that were surveyed."""
        return Sinks() if self._basis is None else self._basis.sinks

    @property
    def num_texts(self) -> int:
        """How many texts were measured."""
        return self._total.num_texts

    @property
    def failures(self) -> Failures:
        """Texts that could not be measured."""
        return self._total.failures

    def table(self) -> HeadTable:
        """What `measure` returns, of all texts that are in these sums; the notes name shards that are missing.

        Errors: StatisticError where there are none.
        """
        total, missing = self._total, self.missing
        if self._basis is None or not total.num_texts:
            reasons = f": {total.failures}" if total.failures.count else ""
            raise StatisticError(f"these sums hold no text, so there is no table of them{reasons}.")
        of, parts = self._basis.num_shards, len(self.parts)
        has = f"{of - len(missing):,} of {of:,}, without {named_shards(missing)}" if missing else f"{parts:,}"
        notes = {"parts": has} if missing or parts > 1 else {}
        return self._basis.table(deepcopy(total.sums), total.counts, total.failures, notes)

    def compute(self) -> HeadTable:
        """`table()`, by torchmetrics' name. It is divided again at each call: nothing is kept. Errors: as `table`."""
        return self.table()

    def __repr__(self) -> str:
        if self._basis is None:
            return "HeadSums(of no text)"
        heads, names = self._total.sums.num.shape[1], len(self._basis.statistics)
        of = self._basis.num_shards
        extent = (
            f"{of - len(self.missing)} of {of} shards"
            if of
            else f"{len(self.parts)} part" + "s" * (len(self.parts) != 1)
        )
        return f"HeadSums({heads} heads x {names} statistics over {self.num_texts:,} texts, {extent})"

    # --------------------------------------------------------------------------------------------------------- keeping

    def save(self, path: str | Path) -> None:
        """Write them as one safetensors file, whole or not at all. Errors: FileAccessError, StatisticError."""
        if self._basis is None:
            raise StatisticError(f"nothing was measured, so there is nothing to save in {path}: call update(texts).")
        store.write_part(Path(path), self._whole(), self._basis)

    @staticmethod
    def open(path: str | Path) -> HeadSums:
        """Sums that were saved, and any part in the folder of a run (`measure(resume=)`).

        Errors: FileAccessError; StatisticError for a file that holds none, or is of another version.
        """
        path = Path(path)
        if path.is_dir():
            # A command's run has a folder in it for each reading: texts, passages.
            files = [*path.glob(store.FINISHED), *sorted(path.glob(f"*/{store.FINISHED}"))]
            finished = ", ".join(map(str, files))
            raise FileAccessError(
                f"{path} is a folder: name a file of sums; for a run that is done, "
                f"{finished or f'{store.FINISHED}, which this one has not'}."
            )
        try:
            version, tensors, words = read_state(path, store.FORMAT, store.VERSION, store.OLDEST)
        except RecordingError as error:
            raise StatisticError(f"{path} holds no sums of heads that can be read: {error}") from error
        if version < store.OLDEST:
            raise StatisticError(
                f"{path} was written by an older manyheads (format {version}, and this is {store.VERSION}): measure it "
                f"again with this one."
            )
        return _read(tensors, words, str(path))

    @staticmethod
    def of_run(run: CorpusRun | Driver) -> HeadSums:
        """The sums that a run came to, of a whole corpus or of a shard."""
        sums = _without_model("")
        sums._add(run.total, run.basis)
        return sums

    def __reduce__(self) -> tuple[Any, ...]:
        if self._basis is None:
            return _without_model, (self.reading,)
        total = self._whole()
        return _unpickled, (store.packed(total.tensors(), {**self._basis.words(), **total.words()}),)

    def _whole(self) -> store.RunTotal:
        """The sums with the names of all their parts."""
        return replace(self._total, parts=self.parts)


@shows_progress("adding sums")
def merged_sums(paths: Sequence[str | Path], progress: ShowProgress = None) -> list[HeadSums]:
    """The sums of many files, added up in any order: one for each reading in them, texts before passages.

    Memory: the sums and one part. Errors: StatisticError names the two files that do not add, or hold the same part.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    out: dict[str, HeadSums] = {}
    first: dict[str, str | Path] = {}
    holder: dict[tuple[str, str], str | Path] = {}
    for count, path in enumerate(paths, 1):
        part = HeadSums.open(path)
        for name in part.parts:
            if (twin := holder.setdefault((part.reading, name), path)) is not path:
                common = f"shard {name}" if "/" in name else "the same texts"
                raise StatisticError(
                    f"{twin} and {path} both hold {common}, which would count twice: give one of them."
                )
        if part.reading not in out:
            out[part.reading], first[part.reading] = part, path
        else:
            assert part._basis is not None, "what was read rests on something"
            out[part.reading]._add(part._whole(), part._basis, str(first[part.reading]), str(path))
        if progress is not None:
            progress(count, len(paths))
    return sorted(out.values(), key=lambda sums: "passages" in sums.reading)


def require_whole(sums: HeadSums) -> None:
    """Errors: StatisticError where shards of the corpus are missing, by number."""
    if missing := sums.missing:
        of = len(missing) + len(sums.parts)
        of_reading = "" if sums.reading in ("texts", "roles") else f" of {sums.reading.rpartition(' ')[2]}"
        raise StatisticError(
            f"{len(missing):,} of {of:,} shards{of_reading} {'is' if len(missing) == 1 else 'are'} missing: "
            f"{named_shards(missing)}. Measure them, or make a table of the others alone (--partial)."
        )


def _without_model(reading: str) -> HeadSums:
    """Sums of nothing yet, of no model."""
    sums = HeadSums.__new__(HeadSums)
    sums._begin(None, reading)
    return sums


def _unpickled(data: bytes) -> HeadSums:
    return _read(*store.unpacked(data), "a pickled HeadSums")


def _read(tensors: dict[str, Any], words: dict[str, Any], name: str) -> HeadSums:
    """Sums as `save` wrote them. Errors: StatisticError for anything else."""
    try:
        part, basis = store.as_part(tensors, words)
        total, sums = store.RunTotal(), _without_model("")
        total.add(part)
        sums._add(total, basis)
    except store.NOT_AS_WRITTEN as error:
        raise StatisticError(
            f"{name} does not hold sums as manyheads writes them ({type(error).__name__}: {error})."
        ) from error
    return sums
