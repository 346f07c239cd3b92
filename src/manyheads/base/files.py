"""Files that are written whole or not at all, and what the operating system says, in words that say what to do.

Recordings, tables, pictures and remembered labels are all written this way: beside their final place, then moved there
in one step. Whatever happens on the way (no space, Ctrl-C, a crash), an older file of that name stays as it was.
Reading goes by the same rule: a folder, a device or a pipe is told at once, and not waited for.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyheads.errors import FileAccessError, ManyHeadsError

UNFINISHED = ".manyheads-"  # begins the name of a file until it is whole: of a killed process, it stays


@contextmanager
def replacing(path: str | os.PathLike[str], suffix: str = ".tmp", flushed: bool = True) -> Generator[str]:
    """The name of a new, empty file beside `path`, which takes its place when the block ends well.

    A link stays a link; what it points to is replaced. `suffix` ends the name, for writers that go by it. The file is
    on the disk, not only on its way there, when the block is left. `flushed=False` does not wait for the disk (some 10
    to 30 ms): then a killed process loses nothing either, but a power cut may leave an empty or torn file.
    Errors: FileAccessError for whatever the operating system refuses; other errors as the block raises them.
    """
    try:
        target = os.path.realpath(path)
        # Moving a file into place would mind none of these, but a person would: a device, a protected file replaced.
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", target)
        if os.path.exists(target):
            if not os.path.isfile(target):
                raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", target)
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, "it is write-protected", target)
    except (OSError, ValueError) as error:
        raise no_access("write", path, error) from error
    temporary = os.path.join(os.path.dirname(target), f"{UNFINISHED}{secrets.token_hex(6)}{suffix}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        mode = os.stat(temporary).st_mode
        yield temporary
        # safetensors' writer puts a file of its own in this one's place, which nobody else may read.
        os.chmod(temporary, mode)
        if flushed:
            synced(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        discard(temporary)
        if (refusal := refusal_in(error)) is not None:
            raise no_access("write", path, refusal) from error
        raise
    if flushed:
        # The move itself survives a power cut only once its folder is on the disk; not every system can do that.
        with suppress(OSError):
            synced(os.path.dirname(target))


def discard(path: str | os.PathLike[str]) -> None:
    """Delete a file that nothing depends on any more; one that cannot be deleted stays."""
    with suppress(OSError):
        os.unlink(path)


def refusal_in(error: BaseException) -> OSError | None:
    """The OSError behind an exception, also where a library hides it in its message; else None.

    Libraries that are not Python's own say it in words: "I/O error: No space left on device (os error 28)".
    """
    if isinstance(error, ManyHeadsError) or not isinstance(error, Exception):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error
    if (match := _NUMBER.search(str(error))) is not None:
        return OSError(int(match[1]), os.strerror(int(match[1])))
    return error if isinstance(error, OSError) else None


def opened(path: str | os.PathLike[str]) -> int:
    """A handle to read a file from, for whoever calls to close. Errors: OSError, also for what is not a regular
    file."""
    mode = os.stat(path).st_mode
    # Before opening: a pipe would wait for its writer for ever.
    if not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def read_bytes(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """A regular file's bytes, no more than `most` of them (-1: all). Errors: OSError, as `opened`."""
    with open(opened(path), "rb") as file:
        return file.read(most)


def users_home() -> Path | None:
    """The user's own folder; None where the system knows of none, as in a container with a user of its own."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def users_folder(variable: str, xdg: str, usual: str) -> Path:
    """Where something is kept for the user: $variable, else manyheads' folder in $xdg or in `usual` of the home.

    Errors: FileAccessError where there is no home.
    """
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if xdg_folder := os.environ.get(xdg):
        return Path(xdg_folder) / "manyheads"
    if (home := users_home()) is None:
        raise FileAccessError(f"there is no home folder to keep anything in: name a folder in {variable}.")
    return home / usual / "manyheads"


def synced(path: str | os.PathLike[str]) -> None:
    """What was written there is on the disk, not only on its way."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_NUMBER = re.compile(r"\(os error (\d+)\)")
_NO_PERMISSION = "you have no permission to. Have it changed, or use another folder"
_ADVICE = {
    errno.ENOTDIR: "a part of its path is a file, not a folder. Check the spelling",
    errno.EISDIR: "it is a folder. Name a file in it",
    errno.EEXIST: "it is a file. Name a folder",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: "it is on a read-only file system. Use another folder",
    errno.ENOSPC: "the disk is full. Free some space, or use another disk",
    errno.EDQUOT: "your share of the disk is used up. Free some space, or use another disk",
    errno.EFBIG: "files there cannot be that large. Use another disk, or write less",
    errno.ENAMETOOLONG: "its name is too long. Use a shorter one",
}
_MISSING = {
    "read": "there is no such file. Check the spelling",
    "write": "its folder does not exist. Make it first, or check the spelling",
}


def no_access(verb: str, path: str | os.PathLike[str], error: OSError | ValueError) -> FileAccessError:
    """The operating system's error in words that say what to do. `verb` is "read" or "write"."""
    number = error.errno if isinstance(error, OSError) else None
    advice = _MISSING[verb] if number == errno.ENOENT else _ADVICE.get(number or 0)
    return FileAccessError(f"cannot {verb} {os.fspath(path)}: {advice or getattr(error, 'strerror', None) or error}.")
