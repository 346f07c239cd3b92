"""What a run over a corpus keeps on the disk: a folder of parts, from which it goes on after whatever stopped it.

A part is one whole safetensors file (docs/format.md): what some batches of the corpus come to, which batches these are,
and of what inputs. Parts of different batches add, whichever process measured them. Each batch becomes a part as it is
done, of the numbers of its texts, which take a fifth of the space of sums and cost about 1 % of measuring. Once a
process has many, it writes all that it has as one part, of sums, and deletes the parts that this one replaces.

Whenever a process is killed, the batch in hand is lost and nothing else, and nothing counts twice. A part is written
aside and renamed, so it is whole or not there. It says which batches it covers, and a part that covers a batch counted
already does not count: so a merged part and those it replaces may lie side by side. And because sums are added before
single batches, and these in the order in which they were measured, a run that was killed any number of times adds its
float64 numbers in the order of one that was not, and comes to the same last bit.

In the folder as well: `run.safetensors` with the run's inputs and what was learned from the head of the corpus; in the
end `finished.safetensors`, one part that covers everything; and `lock`, held by the first process while it lives (the
others hold `lock-1`, `lock-2`, ...). The processes of a run see the same folder, on several machines a shared disk. A
part that this disk does not show yet is measured again.
"""

# device: a store is the host's

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from manyheads.base import PartsFolder, few
from manyheads.corpora import Failures
from manyheads.errors import FileAccessError, RecordingError, StatisticError
from manyheads.machine import Ranks
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import StartFacts, require_same
from manyheads.recording.file import bytes_of, read_state, write_state
from manyheads.statistics.sums import BatchSums, KindCounts, KindTally, RunningSums

# Before 6, sums listed each batch of whole chunks, which is read still. Before 5, a part did not say what it rests on;
# before 4, sums had no maxima; before 3, no moments; version 1 kept a journal. None of these is read.
FORMAT, VERSION, OLDEST = "manyheads corpus run", 6, 5
COUNTED = ("cut", "windows", "cut_gold", "texts")  # of a chunk, by the name under which a part counts each
RESULT = "result "  # begins the name of a result among a part's tensors
WORDS = "words"  # the name under which tensors in memory hold the JSON that belongs to them

MOST_PARTS = 256  # of one process, then they are merged: a folder of more is slow to list
MERGE_BYTES = 128 << 20  # ... or from this size on: a second of reading, when a run goes on
MERGE_SHARE = 1.0  # ... if they are larger than the sums, times this: merging never costs more than the parts did

NOT_AS_WRITTEN = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, SafetensorError,
)  # fmt: skip

log = logging.getLogger("manyheads")

# ------------------------------------------------------------------------------------------------- what a part holds


@dataclass(eq=False)
class Done:
    """Which batches of a corpus are counted, by whichever process.

    `begun`: of chunks that are counted in part, how many batches each has and which of them are counted. `whole`: the
    others as ranges (first chunk, the one behind the last, batches in them), in order and apart from each other: so
    what is done of a corpus takes the same memory however long the corpus is. Chunks of a shard follow each other.
    """

    begun: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    whole: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def num_batches(self) -> int:
        return sum(batches for *_, batches in self.whole) + sum(len(numbers) for _, numbers in self.begun.values())

    @property
    def first(self) -> tuple[int, int]:
        """The first batch: its chunk's number, and its own. Of a range that is the chunk's first."""
        of_begun = [(min(self.begun), min(self.begun[min(self.begun)][1]))] if self.begun else []
        return min([*of_begun, *((first, 0) for first, *_ in self.whole[:1])])

    def has_whole(self, chunk: int) -> bool:
        """Whether all batches of a chunk are counted."""
        place = bisect_right(self.whole, chunk, key=itemgetter(0)) - 1
        return place >= 0 and chunk < self.whole[place][1]

    def add_batch(self, chunk: int, of: int, number: int) -> None:
        """Count a batch, one of the `of` that its chunk has."""
        if self.has_whole(chunk):
            return
        numbers = self.begun.setdefault(chunk, (of, set()))[1]
        numbers.add(number)
        if len(numbers) == of:
            del self.begun[chunk]
            self._add_range(chunk, chunk + 1, of)

    def add(self, other: Done) -> None:
        """Count what is counted there as well; no range of one may overlap one of the other (`overlaps`)."""
        for first, stop, batches in other.whole:
            self._add_range(first, stop, batches)
        for chunk, (of, numbers) in other.begun.items():
            for number in numbers:
                self.add_batch(chunk, of, number)

    def overlaps(self, other: Done) -> bool:
        """Whether some batch is counted in both."""
        for one, two in ((self, other), (other, self)):
            if any(one.has_whole(chunk) for chunk in two.begun):
                return True
            # Of two ranges that share a chunk, the one that begins later begins in the other.
            if any(one.has_whole(first) for first, *_ in two.whole):
                return True
        return any(
            not numbers.isdisjoint(other.begun.get(chunk, (0, ()))[1]) for chunk, (_, numbers) in self.begun.items()
        )

    def _add_range(self, first: int, stop: int, batches: int) -> None:
        place = bisect_right(self.whole, first, key=itemgetter(0))
        begin, end = place, place
        if place and self.whole[place - 1][1] == first:
            begin -= 1
        if place < len(self.whole) and self.whole[place][0] == stop:
            end += 1
        joined = [*self.whole[begin:place], (first, stop, batches), *self.whole[place:end]]
        self.whole[begin:end] = [(joined[0][0], joined[-1][1], sum(batches for *_, batches in joined))]

    def tensors(self) -> dict[str, Tensor]:
        """Each batch of chunks that are begun, as (chunk, of, batch), and ranges of chunks that are whole."""
        rows = [(chunk, of, batch) for chunk, (of, batches) in sorted(self.begun.items()) for batch in sorted(batches)]
        ranges = torch.tensor(self.whole, dtype=torch.int64, device="cpu").view(-1, 3)
        return {"done": torch.tensor(rows, dtype=torch.int64, device="cpu").view(-1, 3), "whole": ranges}

    @staticmethod
    def read(tensors: Mapping[str, Tensor]) -> Done:
        """What `tensors` gave, or an older file's list of all batches. Raises one of `NOT_AS_WRITTEN`."""
        done = Done()
        for first, stop, batches in tensors["whole"].tolist() if "whole" in tensors else ():
            if not (done.whole[-1][1] if done.whole else 0) <= first < stop or batches < stop - first:
                raise ValueError(f"no chunks are {first} to {stop} with {batches} batches")
            done._add_range(first, stop, batches)
        for chunk, of, number in tensors["done"].tolist():
            if not (chunk >= 0 and 0 <= number < of):
                raise ValueError(f"chunk {chunk} has no batch {number} of {of}")
            done.add_batch(chunk, of, number)
        return done


@dataclass(frozen=True, eq=False)
class BatchPart:
    """One measured batch: number `number` of the `of` that its chunk has. `adds` is None where every text failed.

    `counts` are of the chunk and come with its first batch: its documents, those that were cut, and so on.
    """

    chunk: int
    number: int
    of: int
    adds: BatchSums | None
    failures: Failures
    counts: dict[str, int]

    @property
    def file_name(self) -> str:
        return f"part-{self.chunk:06}-{self.number:04}.safetensors"

    def tensors(self) -> dict[str, Tensor]:
        done = torch.tensor([[self.chunk, self.of, self.number]], device="cpu")
        return {"done": done} | ({} if self.adds is None else self.adds.tensors())

    def words(self) -> dict[str, Any]:
        """All but the numbers, as JSON takes it."""
        adds = None if self.adds is None else self.adds.words()
        return {"holds": "batch", "adds": adds, "failures": self.failures.to_dict(), "counts": self.counts}

    @staticmethod
    def read(tensors: dict[str, Tensor], words: dict[str, Any]) -> BatchPart:
        ((chunk, of, number),) = tensors["done"].tolist()
        adds = None if words["adds"] is None else BatchSums.read(tensors, words["adds"])
        return BatchPart(chunk, number, of, adds, Failures.read(words["failures"]), _read_counts(words["counts"]))

    @property
    def done(self) -> Done:
        """The batch of this part."""
        done = Done()
        done.add_batch(self.chunk, self.of, self.number)
        return done


@dataclass(eq=False)
class RunTotal:
    """The sums of many batches, and which these are. `parts`: what is whole in it, and of how many texts: shards of a
    corpus ("17/512"), or texts that came without one, by their digest. `results`: of a run over items (`items`), which
    has no sums, what each came to, by its number and a name: "12/changes"."""

    sums: RunningSums = field(default_factory=RunningSums)
    failures: Failures = field(default_factory=Failures)
    counts: Counter[str] = field(default_factory=Counter)
    done: Done = field(default_factory=Done)
    parts: dict[str, int] = field(default_factory=dict)
    results: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_texts(self) -> int:
        return self.counts["texts"] if self.results else self.sums.num_texts

    @property
    def num_bytes(self) -> int:
        """About how much of the disk it takes."""
        return sum(tensor.nbytes for tensor in (*self.sums.tensors().values(), *self.results.values()))

    @property
    def file_name(self) -> str:
        chunk, batch = self.done.first
        return f"part-{chunk:06}-{batch:04}-sum-of-{self.done.num_batches}.safetensors"

    def add(self, part: BatchPart | RunTotal) -> None:
        """Add what other batches come to."""
        done = part.done
        assert not self.done.overlaps(done), "a batch counts once"
        if isinstance(part, RunTotal):
            self.sums.merge(part.sums)
            self.parts |= part.parts
            self.results |= part.results
        elif part.adds is not None:
            self.sums.add(part.adds)
        self.failures += part.failures
        self.counts.update(part.counts)
        self.done.add(done)

    def tensors(self) -> dict[str, Tensor]:
        results = {f"{RESULT}{name}": result for name, result in self.results.items()}
        return {**self.done.tensors(), **self.sums.tensors(), **results}

    def words(self) -> dict[str, Any]:
        """All but the numbers, as JSON takes it."""
        of_texts = {"failures": self.failures.to_dict(), "counts": self.counts, "parts": self.parts}
        return {"holds": "sums", **self.sums.words(), **of_texts}

    @staticmethod
    def read(tensors: dict[str, Tensor], words: dict[str, Any]) -> RunTotal:
        counts = Counter(_read_counts(words["counts"]))
        sums, failures = RunningSums.read(tensors, words), Failures.read(words["failures"])
        results = {name.removeprefix(RESULT): x for name, x in tensors.items() if name.startswith(RESULT)}
        total = RunTotal(sums, failures, counts, Done.read(tensors), results=results)
        total.parts = {str(name): int(count) for name, count in words["parts"].items()}
        return total


def _read_counts(words: dict[str, Any]) -> dict[str, int]:
    counts = {str(name): int(count) for name, count in words.items()}
    if counts and counts.keys() != {*COUNTED}:
        raise ValueError(f"it counts {', '.join(counts)}, not {', '.join(COUNTED)}")
    return counts


# --------------------------------------------------------------------------------------------------- parts on the disk


@dataclass(eq=False)
class Parts:
    """The parts of one process, open for more. `total` is what they come to; `paths` are the files that hold it."""

    folder: Path
    basis: Basis
    total: RunTotal = field(default_factory=RunTotal)
    paths: list[Path] = field(default_factory=list)
    num_bytes: int = 0  # of all files but the last merged one: what merging saves the next start

    @staticmethod
    def opened(folder: Path, basis: Basis) -> Parts:
        """All parts in a folder, added up, to go on with. For one process alone, since parts that do not count go.

        Errors: StatisticError for a part that is damaged or of other inputs, FileAccessError.
        """
        parts = Parts(folder, basis)
        # Sums before batches, and the largest first: what a merged part replaces is met after it, and dropped. A name
        # decides this order and nothing else. Which batches a part covers, the file itself says.
        sizes = {path: _SUM.search(path.name) for path in sorted(folder.glob("part-*.safetensors"))}
        for path in sorted(sizes, key=lambda path: -int(size[1]) if (size := sizes[path]) else 0):
            try:
                part, known = read_part(path)
            except StatisticError as error:
                # Batches are not flushed to the disk one by one, so a power cut may leave the last ones empty or torn.
                if sizes[path] or not isinstance(error.__cause__, RecordingError):
                    raise
                log.warning("%s is damaged, as after a power cut: its batch is measured again", path)
                _remove(path)
                continue
            require_same(basis.inputs, known.inputs, folder)
            with as_written(path):
                # Any overlap drops the whole part: sums cannot be taken
                # apart, and what overlaps was merged into a counted one.
                if parts.total.done.overlaps(part.done):
                    _remove(path)
                    continue
                parts.total.add(part)
            # The first file is the largest merged part, if there is
            # one: merging would copy it again and save no reading.
            parts.num_bytes += path.stat().st_size if parts.paths else 0
            parts.paths.append(path)
        return parts

    def add(self, part: BatchPart | RunTotal) -> None:
        """Add a batch, or the sums of several. When this returns, the part outlives the process."""
        self.total.add(part)
        path = self.folder / part.file_name
        # A batch unflushed, since the kernel writes it out whatever becomes of the process; only a power cut tears such
        # a file, and then its batch is measured again (`opened`). Torn sums would be refused.
        write_part(path, part, self.basis, flushed=isinstance(part, RunTotal))
        self.paths.append(path)
        self.num_bytes += path.stat().st_size
        if len(self.paths) > MOST_PARTS or self.num_bytes > max(MERGE_BYTES, MERGE_SHARE * self.total.num_bytes):
            self.merge()

    def merge(self) -> None:
        """Make one part of all. Killed in between, both lie there, and the merged one counts alone."""
        path = self.folder / self.total.file_name
        write_part(path, self.total, self.basis)  # flushed: it is on the disk before what it replaces goes
        for replaced in self.paths:
            if replaced != path:
                _remove(replaced)
        self.paths, self.num_bytes = [path], 0


_SUM = re.compile(r"-sum-of-(\d{1,18})\.")


def write_part(path: Path, part: BatchPart | RunTotal, basis: Basis, flushed: bool = True) -> None:
    """Write one part, whole or not at all. Errors: FileAccessError."""
    write_state(path, FORMAT, VERSION, part.tensors(), {**basis.words(), **part.words()}, flushed=flushed)


def read_part(path: Path) -> tuple[BatchPart | RunTotal, Basis]:
    """A part, and what it rests on. Errors: FileAccessError; StatisticError for what is not as it was written."""
    tensors, words = left_in(path)
    with as_written(path):
        return as_part(tensors, words)


def left_in(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a file. Errors: FileAccessError; StatisticError for what is not what was written."""
    try:
        version, tensors, words = read_state(path, FORMAT, VERSION, OLDEST)
    except RecordingError as error:
        raise StatisticError(
            f"the run in {path.parent} cannot be continued: {error} To start again, give another folder or "
            f"delete this one."
        ) from error
    if version < OLDEST:
        raise older_run(path.parent)
    return tensors, words


def as_part(tensors: dict[str, Tensor], words: dict[str, Any]) -> tuple[BatchPart | RunTotal, Basis]:
    """What a part holds, and what it rests on. Raises any of `NOT_AS_WRITTEN` for what is not a part."""
    kind = {"batch": BatchPart, "sums": RunTotal}[words["holds"]]
    part, basis = kind.read(tensors, words), Basis.read(words)
    if "num" in tensors and tensors["num"].shape[2] != len(basis.statistics):
        raise ValueError(f"it describes {len(basis.statistics)} statistics, and holds {tensors['num'].shape[2]}")
    return part, basis


def older_run(folder: Path) -> StatisticError:
    """The refusal of a folder of format 1 (a journal of batches), 2 (no moments), 3 (no maxima) or 4."""
    return StatisticError(
        f"the run in {folder} cannot be continued: an older manyheads began it, which kept less than "
        f"this one needs for its intervals and maxima. It is left as it is: end it with that version, or to begin "
        f"again, give another folder or delete this one."
    )


@contextmanager
def as_written(path: Path) -> Generator[None]:
    """Errors: StatisticError where a file is whole by its checksums, and yet holds what no run writes."""
    try:
        yield
    except (FileAccessError, StatisticError):  # in words already
        raise
    except NOT_AS_WRITTEN as error:
        raise StatisticError(
            f"the run in {path.parent} cannot be continued: {path} is not a file that a run writes "
            f"({type(error).__name__}: {error}). To start again, give another folder or delete this one."
        ) from error


def _remove(path: Path) -> None:
    with suppress(OSError):  # a file that stays covers batches that are counted, and so never counts
        path.unlink()


# -------------------------------------------------------------------------------------------------------- the folder

FINISHED = "finished.safetensors"
OWN = ("run.safetensors", FINISHED, "part-*", "lock", "lock-*")


def require_own(path: Path, names: Sequence[str]) -> None:
    """Errors: FileAccessError where a folder to resume from holds what is not part of a run."""
    foreign = [entry for entry in PartsFolder(path).names() if not any(fnmatch(entry, name) for name in names)]
    if foreign:
        raise FileAccessError(
            f"the folder {path} to resume from holds {few(foreign, 3)}, which is not part of such a run: "
            f"give an empty folder, or one in which the same command began."
        )


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, as one of its processes holds it. All but `opened` is for the first process alone."""

    path: Path

    @staticmethod
    @contextmanager
    def opened(path: Path, rank: int = 0) -> Iterator[RunFolder]:
        """Make the folder where there is none, and keep other runs out of it. The first process comes first.

        Errors: FileAccessError, also for a folder that holds anything else; StatisticError where another run is at
        work in it, or an older manyheads began one.
        """
        busy = StatisticError(
            f"another process is still at work in {path}: wait for it, end it, or give another folder."
        )
        if rank == 0:
            # Before `require_own`, which would call an older run's files foreign instead of saying what they are.
            if any(name.startswith("shard-") for name in PartsFolder(path).names()):
                raise older_run(path)
            require_own(path, OWN)  # before the folder is locked: a folder of something else gets no lock
        with PartsFolder.opened(path, busy, "lock", rank):
            yield RunFolder(path)

    def begun(self) -> tuple[dict[str, str], StartFacts] | None:
        """The inputs of the run in this folder, and what it learned; None where there is none."""
        path = self.path / "run.safetensors"
        if not path.exists():
            return None
        tensors, words = left_in(path)
        with as_written(path):
            inputs = {str(name): str(value) for name, value in words["inputs"].items()}
            return inputs, StartFacts.read(tensors, words["learned"])

    def begin(self, inputs: dict[str, str], learned: StartFacts) -> None:
        """Write down the inputs of this run, before its first batch."""
        words = {"inputs": inputs, "learned": learned.words()}
        write_state(self.path / "run.safetensors", FORMAT, VERSION, learned.tensors(), words)

    def finished(self) -> RunTotal | None:
        """All of a run that came to its end; None where it did not."""
        path = self.path / FINISHED
        if not path.exists():
            return None
        total, _ = read_part(path)
        with as_written(path):
            if not isinstance(total, RunTotal):
                raise TypeError("it holds one batch, no sums")
        self._tidy()
        return total

    def finish(self, total: RunTotal, basis: Basis) -> None:
        """Keep everything as one part, and delete the parts that it was added up from."""
        # Flushed and in its place before any part goes: a process killed between the two leaves a whole run either way.
        write_part(self.path / FINISHED, total, basis)
        self._tidy()

    def _tidy(self) -> None:
        # Also where a finished run is read back: its process may have been killed between the two.
        for path in self.path.glob("part-*.safetensors"):
            _remove(path)


# --------------------------------------------------------------------------------------- between processes, in memory


def packed(tensors: dict[str, Tensor], words: dict[str, Any]) -> bytes:
    """Tensors and the JSON that belongs to them as one safetensors file in memory."""
    encoded = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
    return save({WORDS: encoded, **{name: tensor.contiguous() for name, tensor in tensors.items()}})


def unpacked(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = load(data)
    return tensors, json.loads(bytes(bytes_of(tensors.pop(WORDS))))


def everywhere(total: RunTotal, ranks: Ranks) -> RunTotal:
    """The sum of all processes' totals, on each of them. With one process, the total itself.

    Sums are added in place over the network (float64, 50 MB for 400 statistics of 72 heads); the few words about them
    are gathered as JSON.
    """
    if ranks.group is None:
        return total
    words = [json.loads(data) for data in ranks.gather(json.dumps(total.words()).encode())]
    done = [Done.read(unpacked(data)[0]) for data in ranks.gather(packed(total.done.tensors(), {}))]
    everything = RunTotal(total.sums, sum((Failures.read(process["failures"]) for process in words), Failures()))
    for process in words:
        everything.counts.update(process["counts"])
    for of_process in done:
        everything.done.add(of_process)
    everything.parts = total.parts
    sums = everything.sums
    # From here on every process makes the same calls over the network in the same order: one that measured nothing adds
    # zeros of the others' shape, since one that returned early would leave the others waiting.
    for tensor in sums.widened_to(words):
        ranks.add(tensor)
    if sums.maximum_columns:
        # A few numbers a head: every process takes the largest of all by itself.
        maxima = [unpacked(data)[0]["maxima"] for data in ranks.gather(packed({"maxima": sums.maxima}, {}))]
        sums.maxima = torch.stack(maxima).amax(0)
    if sums.kinds is not None:
        # Every process counts over the kinds that any of them met, and these are added.
        counts = sums.kinds.counts()
        ids = [unpacked(data)[0]["ids"] for data in ranks.gather(packed({"ids": counts.ids}, {}))]
        wide = counts.over(torch.cat(ids).unique())
        # As numbers: a kind is marked where any process marked it, which is a sum above 0.
        marks = wide.mark.int()
        for tensor in (marks, wide.mass, wide.even):
            ranks.add(tensor)
        sums.kinds = KindTally.of(sums.kinds.layers, KindCounts(wide.ids, marks > 0, wide.mass, wide.even))
    return everything
