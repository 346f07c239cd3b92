"""What a run over a corpus has done: which batches, what they came to, and which of their texts failed.

Accounts add: those of batches, of processes, of a run that was stopped and the one that went on. A batch is known by
its chunk and its own number, and is in at most one account, so nothing is counted twice.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from manyheads.base import Ranks, no_access
from manyheads.corpora import Failures
from manyheads.errors import FileAccessError, RecordingError, StatisticError
from manyheads.recording.file.safetensors_io import Part, TensorFile, bytes_of, write_tensors
from manyheads.statistics.corpus_run.chunks import Learned
from manyheads.statistics.gathered import Gathered
from manyheads.statistics.tally import Contribution, Tally, agreed, counted, read_sites
from manyheads.statistics.token_kinds import KindCounts, KindTally

__all__ = ["RunFolder", "require_own", "everywhere"]


COUNTED = ("cut", "windows", "cut_gold", "texts")  # of a chunk
Done = dict[int, tuple[int, set[int]]]
"""Of each chunk, how many batches it has and which of them are counted, by whichever process."""
SAID = "said"  # the name under which packed tensors hold what is said about them, as JSON


@dataclass(frozen=True, eq=False)
class Entry:
    """One batch: number `batch` of the `of` that its chunk has. `adds` is None where every text of it failed.

    `counts` are of the chunk and come with its first batch: its documents, those that were cut, and so on.
    """

    chunk: int
    batch: int
    of: int
    adds: Contribution | None
    failures: Failures
    counts: dict[str, int]

    def packed(self) -> bytes:
        said = {"at": [self.chunk, self.batch, self.of], "failures": self.failures.told(), "counts": self.counts}
        said |= {} if self.adds is None else {"adds": self.adds.said()}
        return packed({} if self.adds is None else self.adds.tensors(), said)

    @staticmethod
    def read(data: bytes) -> Entry:
        tensors, said = unpacked(data)
        adds = Contribution.read(tensors, said["adds"]) if "adds" in said else None
        chunk, batch, of = said["at"]
        return Entry(chunk, batch, of, adds, Failures.read(said["failures"]), said["counts"])


@dataclass(eq=False)
class Account:
    """The sum of many batches, and which these are."""

    gathered: Gathered = field(default_factory=Gathered)
    failures: Failures = field(default_factory=Failures)
    counts: dict[str, int] = field(default_factory=dict)
    done: Done = field(default_factory=dict)

    @property
    def num_texts(self) -> int:
        return 0 if self.gathered.tally is None else self.gathered.tally.num_texts

    @property
    def num_bytes(self) -> int:
        """About how much of the disk it takes."""
        tally = self.gathered.tally
        return 0 if tally is None else sum(tensor.nbytes for tensor in tally.tensors().values())

    def add(self, entry: Entry) -> None:
        self._note(entry.chunk, entry.of, [entry.batch])
        if entry.adds is not None:
            self.gathered.add(entry.adds)
        self.failures += entry.failures
        self.counts = counted((self.counts, entry.counts))

    def merge(self, other: Account) -> None:
        """Add another account, of other batches."""
        self.gathered.merge(other.gathered)
        self.failures += other.failures
        self.counts = counted((self.counts, other.counts))
        for chunk, (of, batches) in other.done.items():
            self._note(chunk, of, batches)

    def _note(self, chunk: int, of: int, batches: Iterable[int]) -> None:
        self.done.setdefault(chunk, (of, set()))[1].update(batches)

    def count_done(self, rows: Int64[Tensor, "batch three"]) -> None:
        """Note batches as `done_rows` has them."""
        for chunk, of, batch in rows.tolist():
            self._note(chunk, of, [batch])

    def done_rows(self) -> Int64[Tensor, "batch three"]:
        """Every batch that is counted, as (chunk, of, batch)."""
        rows = [(chunk, of, batch) for chunk, (of, batches) in sorted(self.done.items()) for batch in sorted(batches)]
        return torch.tensor(rows, dtype=torch.int64).view(-1, 3)

    def tensors(self) -> dict[str, Tensor]:
        tally = self.gathered.tally
        return {"done": self.done_rows()} | ({} if tally is None else tally.tensors())

    def said(self) -> dict[str, Any]:
        """The rest, as JSON takes it."""
        tally, gathered = self.gathered.tally, self.gathered
        return {
            "tally": None if tally is None else tally.said(),
            "backend": gathered.backend,
            "guard_error": gathered.guard_error,
            "edited": gathered.edited,
            "failures": self.failures.told(),
            "counts": self.counts,
        }

    @staticmethod
    def read(tensors: dict[str, Tensor], said: dict[str, Any]) -> Account:
        tally = None if said["tally"] is None else Tally.read(tensors, said["tally"])
        gathered = Gathered(tally, dict(said["backend"]), float(said["guard_error"]), bool(said["edited"]))
        counts = {str(name): int(count) for name, count in said["counts"].items()}
        if counts and counts.keys() != {*COUNTED}:
            raise ValueError(f"it counts {', '.join(counts)}, not {', '.join(COUNTED)}")
        out = Account(gathered, Failures.read(said["failures"]), counts)
        out.count_done(tensors["done"])
        return out


def packed(tensors: dict[str, Tensor], said: dict[str, Any]) -> bytes:
    """Tensors and what is said about them as one safetensors file in memory."""
    words = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    return save({SAID: words, **{name: tensor.contiguous() for name, tensor in tensors.items()}})


def unpacked(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = load(data)
    return tensors, json.loads(bytes(bytes_of(tensors.pop(SAID))))


# ---------------------------------------------------------------------------------------------------------------------
# A process' part of a run, on the disk: whole up to the last batch, however the process ends.
#
# Two files a shard. `shard-NAME.safetensors` holds an account, written whole or not at all; `shard-NAME-N.journal`
# holds the batches since, each appended as it is done (a safetensors file in memory, its length and its CRC-32 before
# it). The sums of 400 statistics are 50 MB and a batch adds a tenth of that: so each batch costs a tenth, and once the
# journal is larger than the sums it is folded into them. What is cut off at a journal's end was the batch in hand.
#
# Folding is safe at every step: the new journal is begun, the account that takes its number is moved into place, the
# old journal is deleted. An account also names the shards that it took in, which are deleted after it is there. A
# journal is locked while its process lives, where the system has locks: nobody goes on with what is still written.


FORMAT, VERSION = "manyheads corpus run", 1
NOT_AS_WRITTEN = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, SafetensorError,
)  # fmt: skip
RECORD = struct.Struct("<QI")  # length and CRC-32 of the bytes that follow
FOLD_BYTES = 128 << 20  # a journal is folded from here on: a second of reading, where a run goes on
FOLD_SHARE = 1.0  # ... if it is larger than the sums, times this: so folding never costs more than the journal did


@dataclass(eq=False)
class Shard:
    """One shard, open for writing by this process alone. `account` is all that it holds."""

    folder: Path
    name: str
    account: Account = field(default_factory=Account)
    epoch: int = 0
    journal: FileIO | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"shard-{self.name}.safetensors"

    def journal_path(self, epoch: int) -> Path:
        return self.folder / f"shard-{self.name}-{epoch}.journal"

    @staticmethod
    def begun(folder: Path) -> Shard:
        """A new one, empty."""
        with closed_on_error(Shard(folder, secrets.token_hex(6))) as out:
            out._fold(())
        return out

    @staticmethod
    def opened(folder: Path, name: str) -> Shard:
        """One that is there, to be gone on with. Errors: StatisticError where another process still writes it."""
        with closed_on_error(Shard(folder, name)) as out:
            tensors, said = read_state(out.path)
            with as_written(out.path):
                out.epoch, out.account = int(said["epoch"]), Account.read(tensors, said)
            out.journal = _locked(out.journal_path(out.epoch))
            with as_written(out.journal_path(out.epoch)):
                for entry in out._entries():
                    out.account.add(entry)
        return out

    def add(self, entry: Entry) -> None:
        """Add a batch; when this returns, the disk has it."""
        assert self.journal is not None
        self.account.add(entry)
        data = entry.packed()
        head = RECORD.pack(len(data), zlib.crc32(data))
        try:
            _write_all(self.journal, head)
            _write_all(self.journal, data)
            size = self.journal.tell()
        except OSError as error:
            raise no_access("write", self.journal_path(self.epoch), error) from error
        if size > max(FOLD_BYTES, FOLD_SHARE * self.account.num_bytes):
            self._fold(())

    def take_in(self, others: Sequence[Shard]) -> None:
        """Add other shards to this one, and delete them."""
        for other in others:
            self.account.merge(other.account)
        self._fold([other.name for other in others])
        for other in others:
            other.close()
            remove_shard(self.folder, other.name)

    def _fold(self, taken: Sequence[str]) -> None:
        """Write the account whole, and begin an empty journal."""
        old, self.epoch = self.journal, self.epoch + 1
        said = {**self.account.said(), "epoch": self.epoch, "taken": [*taken]}
        try:
            self.journal = _locked(self.journal_path(self.epoch))
            self.journal.truncate(0)
            write_state(self.path, self.account.tensors(), said)
        finally:
            if old is not None:
                old.close()
        with suppress(OSError):
            os.unlink(self.journal_path(self.epoch - 1))

    def _entries(self) -> Iterator[Entry]:
        """The journal's batches; what is cut off at its end is cut off for good."""
        assert self.journal is not None
        good = 0
        while True:
            head = _read_all(self.journal, RECORD.size)
            if len(head) < RECORD.size:
                break
            length, crc = RECORD.unpack(head)
            data = _read_all(self.journal, min(length, os.fstat(self.journal.fileno()).st_size))
            if len(data) < length or zlib.crc32(data) != crc:
                break
            yield Entry.read(data)
            good = self.journal.tell()
        self.journal.truncate(good)
        self.journal.seek(good)

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()


@contextmanager
def closed_on_error(shard: Shard) -> Iterator[Shard]:
    try:
        yield shard
    except BaseException:
        shard.close()
        raise


def shard_names(folder: Path) -> list[str]:
    """The shards of a folder. Deleted is what is of none: shards that another took in, journals without an account.

    Errors: StatisticError for one that is damaged.
    """
    names = sorted(each.name[6:-12] for each in folder.glob("shard-*.safetensors"))
    taken: set[str] = set()
    for each in names:
        path = folder / f"shard-{each}.safetensors"
        with as_written(path):
            taken |= {str(name) for name in read_said(path)["taken"]}
    journals = {each.name[6:].rpartition("-")[0] for each in folder.glob("shard-*.journal")}
    for name in (taken | journals) - (set(names) - taken):
        remove_shard(folder, name)
    return [name for name in names if name not in taken]


def remove_shard(folder: Path, name: str) -> None:
    """Delete a shard; its account first, since a journal without one counts for nothing."""
    for path in [folder / f"shard-{name}.safetensors", *folder.glob(f"shard-{name}-*.journal")]:
        with suppress(OSError):
            path.unlink()


def write_state(path: Path, tensors: dict[str, Tensor], said: dict[str, Any]) -> None:
    """One safetensors file, whole or not at all. Errors: FileAccessError."""
    parts = {name: Part(x.dtype, tuple(x.shape), lambda x=x: x) for name, x in tensors.items()}
    about = {"format": FORMAT, "format_version": str(VERSION), "said": json.dumps(said)}
    write_tensors(path, parts, about)


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Errors: FileAccessError; StatisticError for a file that is not what was written."""
    try:
        file = TensorFile(path, kind=FORMAT, newest=VERSION)
        return {name: file.read(name) for name in file.entries}, file.json("said")
    except RecordingError as error:
        raise StatisticError(
            f"what a run left in {path.parent} cannot be gone on with: {error} To begin anew, give another folder or "
            f"delete this one."
        ) from error


@contextmanager
def as_written(path: Path) -> Generator[None]:
    """Errors: StatisticError where a file is whole by its checksums, and yet says what no run writes."""
    try:
        yield
    except (FileAccessError, StatisticError):  # told already
        raise
    except NOT_AS_WRITTEN as error:
        raise StatisticError(
            f"what a run left in {path.parent} cannot be gone on with: {path} does not hold what a run writes "
            f"({type(error).__name__}: {error}). To begin anew, give another folder or delete this one."
        ) from error


def read_said(path: Path) -> dict[str, Any]:
    """The words of a state without its numbers. Errors: as `read_state`."""
    try:
        return TensorFile(path, kind=FORMAT, newest=VERSION).json("said")
    except RecordingError:
        return read_state(path)[1]  # which says it in full


def lock(file: FileIO, path: Path) -> None:
    """Errors: StatisticError where another process holds it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: whoever starts a run twice is not told
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StatisticError(
            f"another process is still at work in {path.parent}: wait for it, end it, or give another folder."
        ) from error
    except OSError:  # a file system without such locks
        return


def _locked(path: Path) -> FileIO:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise no_access("write", path, error) from error
    file = FileIO(handle, "r+b")
    lock(file, path)
    return file


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def _read_all(file: FileIO, size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


# ---------------------------------------------------------------------------------------------------------------------
# The folder in which a run over a corpus keeps what it has, so that it can go on after whatever stopped it.
#
# `run.safetensors` says of what inputs it is, and what was learned from the corpus' head; each process has a shard
# (`shards`); at the end `finished.safetensors` has all there is, and the shards go. One run at a time: the folder is
# locked by the first process while it lives. The processes of a run see the same folder (on several machines: a shared
# disk); what another process did and this disk does not show is measured again, and never counted twice.


OWN = ("run.safetensors", "finished.safetensors", "shard-*", "lock")


def require_own(path: Path, names: Sequence[str]) -> None:
    """Errors: FileAccessError where a folder to resume from holds what is no part of a run."""
    found = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    foreign = [each for each in found if not each.startswith(".") and not any(fnmatch(each, name) for name in names)]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise FileAccessError(
            f"the folder {path} to resume from holds {', '.join(foreign[:3])}{more}, which is no part of such a run: "
            f"give an empty folder, or one in which the same command began."
        )


@dataclass(eq=False)
class RunFolder:
    """The folder, locked. Only the first process of a run has one."""

    path: Path
    locked: FileIO

    @staticmethod
    def opened(path: Path) -> RunFolder:
        """Make it where it is not there. Errors: FileAccessError, also for a folder that holds anything else;
        StatisticError where another run is at work in it."""
        require_own(path, OWN)
        try:
            path.mkdir(parents=True, exist_ok=True)
            file = FileIO(os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as error:
            raise no_access("write", path, error) from error
        lock(file, path / "lock")
        for left in path.glob(".manyheads-*.tmp"):  # what was being written when a process was killed
            with suppress(OSError):
                left.unlink()
        return RunFolder(path, file)

    def close(self) -> None:
        self.locked.close()

    def begun(self) -> tuple[dict[str, str], Learned] | None:
        """Of what inputs the run in here is, and what it learned; None where there is none."""
        path = self.path / "run.safetensors"
        if not path.exists():
            return None
        tensors, said = read_state(path)
        with as_written(path):
            inputs = {str(name): str(value) for name, value in said["inputs"].items()}
            return inputs, Learned.read(tensors, said["learned"])

    def begin(self, inputs: dict[str, str], learned: Learned) -> None:
        """Note what this run is of, before its first batch."""
        said = {"inputs": inputs, "learned": learned.said()}
        write_state(self.path / "run.safetensors", learned.tensors(), said)

    def finished(self) -> Account | None:
        """All of a run that came to its end."""
        path = self.path / "finished.safetensors"
        if not path.exists():
            return None
        with as_written(path):
            account = Account.read(*read_state(path))
        self.tidy()
        return account

    def finish(self, account: Account) -> None:
        """Keep all there is, and delete the shards that it was put together from."""
        write_state(self.path / "finished.safetensors", account.tensors(), account.said())
        self.tidy()

    def shards(self) -> list[str]:
        """The shards that there are, by name."""
        return shard_names(self.path)

    def tidy(self) -> None:
        """Delete every shard: all that they held is elsewhere."""
        for name in shard_names(self.path):
            remove_shard(self.path, name)


# ---------------------------------------------------------------------------------------------------------------------
# What several processes have, added up on all of them: the same table everywhere, at any number of processes.
#
# Sums are added in place over the network (float64, 50 MB for 400 statistics of 72 heads); the few words about them are
# gathered as JSON.


def everywhere(account: Account, ranks: Ranks) -> Account:
    """The sum of all processes' accounts, on each of them. With one process, the account itself."""
    if ranks.group is None:
        return account
    told = [json.loads(each) for each in ranks.gather(json.dumps(account.said()).encode())]
    rows = [unpacked(each)[0]["done"] for each in ranks.gather(packed({"done": account.done_rows()}, {}))]
    out = Account(
        Gathered(
            _tally(account.gathered.tally, [each["tally"] for each in told], ranks),
            counted(each["backend"] for each in told),
            max(each["guard_error"] for each in told),
            any(each["edited"] for each in told),
        ),
        sum((Failures.read(each["failures"]) for each in told), Failures()),
        counted(each["counts"] for each in told),
    )
    out.count_done(torch.cat(rows))
    return out


def _tally(mine: Tally | None, told: list[dict | None], ranks: Ranks) -> Tally | None:
    """Sums of all processes; one that measured nothing adds zeros of the others' shape."""
    known = [each for each in told if each is not None]
    if not known:
        return None
    sites = agreed(read_sites(each["sites"]) for each in known)
    columns = tuple(sorted({column for each in known for column in each["columns"]}))
    out = mine or Tally.empty(sites, known[0]["size"], columns, known[0]["kinds"])
    out.widen(columns)
    for tensor in (out.num, out.den, out.own):
        ranks.add(tensor)
    out.sites = sites
    out.num_texts = sum(each["num_texts"] for each in known)
    out.num_tokens = sum(each["num_tokens"] for each in known)
    if out.kinds is not None:
        out.kinds = _kinds(out.kinds, ranks)
    return out


def _kinds(mine: KindTally, ranks: Ranks) -> KindTally:
    """Every process counts over the kinds that any of them saw, and these are added."""
    counts = mine.counts()
    ids = [unpacked(each)[0]["ids"] for each in ranks.gather(packed({"ids": counts.ids}, {}))]
    wide = counts.over(torch.cat(ids).unique())
    marks = wide.mark.int()
    for tensor in (marks, wide.mass, wide.even):
        ranks.add(tensor)
    return KindTally.of(mine.layers, KindCounts(wide.ids, marks > 0, wide.mass, wide.even))
