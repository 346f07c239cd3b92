"""A process' part of a run, on the disk: whole up to the last batch, however the process ends.

Two files a shard. `shard-NAME.safetensors` holds an account, written whole or not at all; `shard-NAME-N.journal` holds
the batches since, each appended as it is done (a safetensors file in memory, its length and its CRC-32 before it). The
sums of 400 statistics are 50 MB and a batch adds a tenth of that: so each batch costs a tenth, and once the journal is
larger than the sums it is folded into them. What is cut off at a journal's end was the batch in hand.

Folding is safe at every step: the new journal is begun, the account that takes its number is moved into place, the old
journal is deleted. An account also names the shards that it took in, which are deleted after it is there.
A journal is locked while its process lives, where the system has locks: nobody goes on with what is still written.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from manyheads.errors import FileAccessError, RecordingError, StatisticError
from manyheads.recording.file.safetensors_io import Part
from manyheads.recording.file.safetensors_io import write_tensors
from manyheads.recording.file.safetensors_io import TensorFile
from manyheads.statistics.accounts import Account, Entry
from manyheads.base.files import no_access

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
