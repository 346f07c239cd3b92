"""A folder of parts: files that a run writes whole (`replacing`), one run at a time, and goes on from after a kill.

Runs over a corpus, histories of heads and trainings keep what they have in such folders. What the parts are, and which
files are not part, each of them knows itself.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import lock_descriptor

from manyheads.base.files import UNFINISHED, discard, no_access
from manyheads.errors import FileAccessError


@dataclass(frozen=True)
class PartsFolder:
    """A folder that one run owns while it is `opened`."""

    path: Path

    @staticmethod
    @contextmanager
    def opened(path: Path, busy: Exception, lock: str = "", rank: int = 0) -> Generator[PartsFolder]:
        """Make the folder where there is none, and keep other runs out of it while the block runs.

        The first process of a run locks the folder itself, or the file `lock` in it; the others come after it, with a
        `rank`, and each locks the file `<lock>-<rank>`. Files that a killed process was just writing are deleted.
        Errors: `busy` where another run is at work there, FileAccessError.
        """
        with ExitStack() as stack:
            try:
                if rank:
                    own = path / f"{lock}-{rank}"
                    stack.enter_context(locked(own, busy))
                    stack.callback(discard, own)
                else:
                    path.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(locked(path / lock, busy))
                    for other in path.glob(f"{lock}-*") if lock else ():  # of a run whose first process is gone
                        with locked(other, busy):
                            discard(other)
                    # Only with every lock held: until then, it may be a file that another run still writes.
                    for unfinished in path.glob(f"{UNFINISHED}*"):
                        discard(unfinished)
            except FileAccessError:
                raise
            except OSError as error:
                raise no_access("write", path, error) from error
            yield PartsFolder(path)

    def names(self) -> list[str]:
        """What is in it, sorted, hidden and unfinished files aside; nothing where there is none yet.

        Errors: FileAccessError.
        """
        try:
            return sorted(x for x in os.listdir(self.path) if not x.startswith(".")) if self.path.is_dir() else []
        except OSError as error:
            raise no_access("write", self.path, error) from error


@contextmanager
def locked(path: str | os.PathLike[str], busy: Exception) -> Generator[None]:
    """Hold the lock of a folder, or of a file that is made where there is none, while the block runs.

    A lock that a killed process left is no lock: the file may stay, and the next holder takes it. Threads of one
    process exclude each other as well. Errors: `busy` where it is held already; OSError where `path` cannot be opened.
    """
    is_folder = os.path.isdir(path)
    if is_folder and os.name == "nt":  # Windows opens no folders: whoever starts twice there is not refused
        yield
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            is_ours = lock_descriptor(handle, blocking=False)
        except OSError:
            # A file system without locks, as some network drives: better to go on unguarded than not at all.
            is_ours = True
        if not is_ours:
            raise busy
        yield
    finally:
        os.close(handle)
