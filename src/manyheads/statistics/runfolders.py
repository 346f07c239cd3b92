"""The folder in which a run over a corpus keeps what it has, so that it can go on after whatever stopped it.

`run.safetensors` says of what inputs it is, and what was learned from the corpus' head; each process has a shard
(`shards`); at the end `finished.safetensors` has all there is, and the shards go. One run at a time: the folder is
locked by the first process while it lives. The processes of a run see the same folder (on several machines: a shared
disk); what another process did and this disk does not show is measured again, and never counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from io import FileIO
from pathlib import Path

from manyheads.errors import FileAccessError
from manyheads.statistics.accounts import Account
from manyheads.statistics.shards import as_written, lock, read_state, remove_shard, shard_names, write_state
from manyheads.statistics.surveys import Learned
from manyheads.base.files import no_access

__all__ = ["RunFolder", "require_own"]

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
