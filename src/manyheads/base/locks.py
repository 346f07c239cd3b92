"""One process at a time in a folder: a lock that the system takes back when its holder ends, however that happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import lock_descriptor


@contextmanager
def locked(path: str | os.PathLike[str], busy: Exception) -> Iterator[None]:
    """Hold the lock of a folder, or of a file that is made where there is none, while the block runs.

    A lock that a killed process left is no lock: the file may stay, and the next holder takes it. Threads of one
    process exclude each other, too. Errors: `busy` where it is held already; OSError where `path` cannot be opened.
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
