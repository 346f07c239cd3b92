"""Files and streams as numbered lines of text, one after another: the basis of every reader of a corpus.

Nothing holds a file: a line is read, handed on and dropped. A line, or the lines between two empty ones, may have
`MOST_BYTES`: longer ones (a packed file of few bytes may hold such) become a problem and are never in memory.
The kind of a file goes by its ending; how far reading has come goes by the bytes on the disk, packed or not.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from manyheads.base import no_access
from manyheads.errors import FileAccessError, TextError

STDIN = "-"
ENDINGS = {
    ".txt": "text",
    ".md": "text",
    ".rst": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conllu": "conllu",
}
Kind = Literal["text", "jsonl", "conllu"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WHOLE_BYTES = 64 << 20  # files up to this size are hashed whole: 0.05 s on the machine of docs/lab.md
END_BYTES = 1 << 20  # of a larger one, this much of each end
SHOWN = 200  # characters of a name in an error
MOST_BYTES = 128 << 20  # of a line, or of what stands between two empty ones: more than any model reads as one text
MOST_LINES = 1_000_000  # between two empty ones
SKIPPED_BYTES = 1 << 20  # of a line that is too long, read and dropped at once
MARK = b"\xef\xbb\xbf"  # the byte order mark that some editors put before UTF-8
STARTS = {b"\x1f\x8b": "gzip data: let its name end in .gz", b"\xff\xfe": "UTF-16 text: convert it to UTF-8 first"}
STARTS[b"\xfe\xff"] = STARTS[b"\xff\xfe"]


@dataclass(frozen=True)
class Source:
    """One file, or stdin (`path` is None). `size` is None for what can be read once only: stdin, and pipes by name.

    `name` begins the names of its texts: the file's own name, or its path in the folder that was opened.
    """

    name: str
    path: Path | None
    kind: str
    size: int | None
    packed: bool = False


class Line(NamedTuple):
    """A line without its line break. `at` counts the bytes read so far; `problem` says why `text` is none."""

    number: int
    text: str
    at: int
    problem: str = ""


def find_sources(name: str | Path, kind: str | None = None) -> list[Source]:
    """The sources that a name stands for: "-" is stdin, a folder is all its files of known endings, sorted.

    `kind` says what a file holds whatever its ending; of a folder it takes the files of that kind alone. Left out are
    hidden files and folders, and links to folders. Errors: FileAccessError (nothing there, or nothing that may be
    read), TextError (an ending that says nothing).
    """
    path = Path(name)
    if name == STDIN:
        return [Source("stdin", None, kind or "text", None)]
    if not stat.S_ISDIR(_mode(path)):
        require_ending(path)
        ending = _ending(path)
        if kind is None and ending and ending not in ENDINGS and path.is_file():
            raise TextError(
                f"cannot tell from its ending what {path} holds. Say kind= ({', '.join(KINDS)}), "
                f"or let its name end in {_endings(None)}."
            )
        return [_source(path, path.name, kind or ENDINGS.get(ending, "text"))]

    # os.walk says nothing of a folder that it may not open: a corpus would lack its texts without a word.
    def refuse(error: OSError) -> None:
        raise FileAccessError(f"cannot read folder {error.filename}: {error.strerror or error}.") from error

    files: list[Path] = []
    for parent, folders, names in os.walk(path, onerror=refuse):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        in_parent = (Path(parent, file) for file in names if not file.startswith("."))
        files += (file for file in in_parent if file.is_file())
    # By parts, not as text: "a-b/x" comes after "a/x" although "-" sorts before "/".
    files.sort(key=lambda file: file.relative_to(path).parts)
    kinds = {file: ENDINGS.get(_ending(file)) for file in files}
    sources = [
        _source(file, file.relative_to(path).as_posix(), file_kind)
        for file, file_kind in kinds.items()
        if file_kind is not None and kind in (None, file_kind)
    ]
    if not sources:
        of_kind = "" if kind is None else f" of {kind=}"
        raise FileAccessError(f"folder {path} holds no file{of_kind} to read. Files may end in {_endings(kind)}.")
    return sources


def require_ending(path: Path) -> None:
    """Refuse folders and devices before opening: a device may never end. A pipe by name is read.

    Errors: FileAccessError.
    """
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        raise no_access("read", path, IsADirectoryError(errno.EISDIR, ""))
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise no_access("read", path, OSError(errno.EINVAL, "it is a device, not a file. Name a file"))


def read_whole(path: Path | None) -> bytes:
    """All bytes of a file, of a pipe, or of stdin (None). Errors: FileAccessError; TextError over `MOST_BYTES`."""
    name = "stdin" if path is None else str(path)
    if path is not None:
        require_ending(path)
    try:
        with _opened(Source(name, path, "text", None)) as file:
            # One byte more than allowed tells a file that is too long without reading the rest of it.
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise no_access("read", name, error) from error
    if len(data) > MOST_BYTES:
        raise TextError(
            f"{name} is longer than {MOST_BYTES >> 20} MB, the most that is read at once: give a part of it, or read "
            f"all of it as a corpus (manyheads roles --corpus)."
        )
    return data


def numbered_lines(source: Source) -> Iterator[Line]:
    """The lines of a source, in UTF-8, a byte order mark left out. A line in no UTF-8, or too long, is a problem.

    Errors: TextError for a file that is all in another encoding, FileAccessError where reading fails midway.
    """
    number = begin = 0
    # Packed bytes are counted by the file's own position, which a pipe does not have.
    by_position = source.packed and source.size is not None
    try:
        with _opened(source) as raw:
            for number, (data, size) in enumerate(_bounded_lines(_unpacked(raw, source)), 1):
                if number == 1:
                    _refuse_other_encodings(data[:2], source)
                    begin = len(MARK) if data.startswith(MARK) else 0
                    data = data.removeprefix(MARK)
                end = begin + len(data) if size <= MOST_BYTES else begin + size
                # Bytes of the disk, as `Source.size` counts them: of unpacked ones nobody knows how many will come.
                position = raw.tell() if by_position else end
                text = problem = ""
                if size > MOST_BYTES:
                    problem = f"line {number:,} is longer than {MOST_BYTES >> 20} MB: break it up."
                else:
                    try:
                        text = data.decode("utf-8").rstrip("\r\n")
                        wrong = data.find(0)  # NUL is valid UTF-8 and in no text: it betrays UTF-16 and binary files
                    except UnicodeDecodeError as error:
                        wrong = error.start
                    if wrong >= 0:
                        where = f"byte {begin + wrong:,} is {data[wrong]:#04x}"
                        text, problem = "", f"line {number:,} is not UTF-8 text ({where}): convert it first."
                yield Line(number, text, position, problem)
                begin = end
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(source, error, f" after line {number:,}" if number else "") from error


def stretches(lines: Iterable[Line], most_lines: int = MOST_LINES) -> Iterator[list[Line]]:
    """Lines between empty ones. Too many of them become one line with a problem, which ends where they end."""
    stretch: list[Line] = []
    # `end` is set once a stretch is too long: from then on its lines are dropped.
    size = end = 0
    # An empty line ends the last stretch as well.
    for line in chain(lines, [Line(0, "", 0)]):
        if line.problem or line.text.strip():
            if size <= MOST_BYTES and len(stretch) < most_lines:
                stretch.append(line)
                size += len(line.text)
            else:
                stretch, size, end = stretch[:1], MOST_BYTES + 1, line.at
            continue
        if end:
            number = stretch[0].number
            problem = (
                f"from line {number:,} on, there is no empty line for {most_lines:,} lines or {MOST_BYTES >> 20} MB: "
                f"part texts or sentences by empty ones (lines=True reads each line as a text)."
            )
            yield [Line(number, "", end, problem)]
        elif stretch:
            yield stretch
        stretch, size, end = [], 0, 0


def digest_of(source: Source) -> str:
    """The digest of a file's bytes (blake2b; 1.3 GB/s), computed before any of it is read as text.

    A file over 64 MB (`WHOLE_BYTES`) is known by its size, the time of its last change, its first and its last MB.
    """
    assert source.path is not None and source.size is not None
    try:
        with open(source.path, "rb") as file:
            # Before hashing: UTF-16 and unnamed gzip would only fail once the corpus is read.
            _refuse_other_encodings(_unpacked(file, source).read(2), source)
            file.seek(0)
            if source.size <= WHOLE_BYTES:
                return hashlib.file_digest(file, _digest).hexdigest()
            digest = _digest(f"{source.size} {os.fstat(file.fileno()).st_mtime_ns} ".encode())
            for begin in (0, source.size - END_BYTES):
                file.seek(begin)
                digest.update(file.read(END_BYTES))
            return digest.hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(source, error) from error


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _mode(path: Path) -> int:
    """The file's kind, as `stat` gives it. Errors: FileAccessError."""
    # A text in the place of a file's name may be long, or hold a NUL: ValueError.
    try:
        return path.stat().st_mode
    except (OSError, ValueError) as error:
        missing = FileNotFoundError(errno.ENOENT, "")
        raise no_access("read", str(path)[:SHOWN], error if isinstance(error, PermissionError) else missing) from error


def _source(path: Path, name: str, kind: str) -> Source:
    # A named pipe, such as a shell's <(...), is a stream: its size means nothing, and hashing it would use it up.
    return Source(name, path, kind, path.stat().st_size if path.is_file() else None, path.suffix.lower() == ".gz")


def _ending(path: Path) -> str:
    """ "corpus.txt.gz" ends in ".txt"."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _endings(kind: str | None) -> str:
    endings = [ending for ending, its_kind in ENDINGS.items() if kind in (None, its_kind)]
    return ", ".join(endings) + " (and .gz after it)"


def _opened(source: Source) -> AbstractContextManager[io.BufferedIOBase]:
    """The bytes of a source. Stdin stays open: it is not ours."""
    if source.path is not None:
        return open(source.path, "rb")
    if sys.stdin is None:
        raise TextError("stdin is closed: there is nothing to read.")
    buffer = getattr(sys.stdin, "buffer", None)  # a notebook puts a stream without one in stdin's place
    return nullcontext(buffer or io.BytesIO(sys.stdin.read().encode("utf-8", "surrogatepass")))


def _unpacked(raw: io.BufferedIOBase, source: Source) -> io.BufferedIOBase:
    # Buffered once more: a GzipFile by itself finds lines by Python code, more slowly.
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if source.packed else raw


def _refuse_other_encodings(start: bytes, source: Source) -> None:
    if start in STARTS:
        raise TextError(f"{source.path or source.name} is {STARTS[start]}.")


def _bounded_lines(file: io.BufferedIOBase) -> Iterator[tuple[bytes, int]]:
    """Lines, and how many bytes each has; for a line that is too long, its beginning."""
    while data := file.readline(MOST_BYTES + 1):
        size = len(data)
        if size > MOST_BYTES:
            # Read on to the end of the line and drop it: only its beginning tells an encoding.
            data, more = data[:2], data[-1:]
            while not more.endswith(b"\n") and (more := file.readline(SKIPPED_BYTES)):
                size += len(more)
        yield data, size


def _unreadable(source: Source, error: Exception, where: str = "") -> FileAccessError:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
        reason = f"it is not a whole gzip file ({str(error).rstrip('.')})"
    return FileAccessError(f"cannot read {source.path or source.name}{where}: {reason}.")
