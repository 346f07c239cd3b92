"""What the commands are given, checked before anything slow begins: one text from one source, and paths to write to."""

from __future__ import annotations

import os
import select
import shlex
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from manyheads.cli.console import shortened
from manyheads.cli.options import DEFAULT_MODEL, METRICS
from manyheads.corpora.bundled_texts import reading_of
from manyheads.errors import FileAccessError, ManyHeadsError, StatisticError, TextError
from manyheads.base.files import no_access

STDIN, TYPED = "-", "what you typed"
TABLE_ENDINGS = (".parquet", ".csv", ".json")
PICTURE_ENDINGS = (".png", ".svg", ".pdf")
QUOTED_WIDTH = 60  # a longer text is not repeated in the commands that are suggested


@dataclass(frozen=True)
class Source:
    """A text, where it came from in words, and the arguments that give it again ("" where nothing short does)."""

    text: str
    origin: str
    arguments: str
    own: bool = False
    """Whether it is ours, for want of another."""


def read_source(words: Sequence[str], file: str | None, model: str = DEFAULT_MODEL) -> Source:
    """The one text that was given, else the one of our own that the model of that name is shown.

    Errors: TextError for several or an empty one; FileAccessError.
    """
    given = " ".join(words)
    if words and file is not None:
        raise TextError(f"two texts were given, {_brief(given)} and --file {file}: give one of them.")
    if len(words) > 1:
        raise TextError(f"the text came as {len(words)} words: put it in quotes, {_quoted(given)}.")
    if words == [STDIN] or file == STDIN:
        source = Source(_read(None, "stdin"), "stdin", "")
    elif file is not None:
        source = Source(_read(Path(file), file), f"file {file}", f"--file {shlex.quote(file)}")
    elif words:
        source = Source(given, TYPED, _quoted(given) if len(given) <= QUOTED_WIDTH else "")
    else:
        reading = reading_of(model)
        return Source(reading.sentence, reading.sentence_is, "", own=True)
    if any("\ud800" <= char <= "\udfff" for char in source.text):
        raise TextError("the text is not valid UTF-8: some of its bytes are no characters.")
    if not source.text.strip():
        where = "" if source.origin == TYPED else f" of {source.origin}"
        raise TextError(f"the text{where} is empty: give at least one word.")
    return source


def source_note(words: Sequence[str], file: str | None, model: str = DEFAULT_MODEL) -> str:
    """What somebody may have meant instead of what is done; "" where nothing suggests so."""
    if len(words) == 1 and len(words[0]) < 256 and words[0] != STDIN and Path(words[0]).is_file():
        return f"{words[0]} is also a file, but its name was read as the text. To read the file: --file {words[0]}"
    if not words and file is None and _stdin_waits():
        own = reading_of(model).sentence_is
        return f"nothing was read from stdin: add - to read it. Without a text, {own} is read."
    return ""


def way_to_read(truncate: bool, whole: bool) -> str:
    """How a text longer than the model's positions is read, as the library calls it. Errors: TextError for both."""
    if truncate and whole:
        raise TextError("--truncate and --whole contradict each other: cut a long text, or refuse it.")
    return "truncate" if truncate else "whole" if whole else "windows"


def check_output(path: Path | None, option: str, endings: Sequence[str]) -> None:
    """Whether a file can be written there, known before the work that fills it. Errors: FileAccessError.

    Of pictures also whether they can be drawn: whatever importing matplotlib raises.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise FileAccessError(f"{option} {path}: cannot tell what to write by that ending. Use {', '.join(endings)}.")
    if path.is_dir():
        raise FileAccessError(f"{option} {path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise FileAccessError(f"{option} {path}: there is no folder {path.parent}. Make it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FileAccessError(
            f"{option} {path} cannot be written: {error.strerror or error}. Choose a folder that you may write to."
        ) from error
    if endings is PICTURE_ENDINGS:
        import_module("matplotlib")


def check_folder(path: Path) -> None:
    """Whether a checkpoint may be put there, known before a model is loaded. Errors: FileAccessError."""
    from manyheads.interventions.save.save import ZEROED
    from manyheads.interventions.save.whole_folder import require_replaceable

    try:
        require_replaceable(Path(os.path.realpath(path.expanduser())), ZEROED)
    except ManyHeadsError:
        raise
    except OSError as error:
        raise no_access("write", path, error) from error


def check_metric(name: str) -> None:
    """Errors: StatisticError for a --metric that there is not, or that needs labels."""
    if name not in METRICS:
        raise StatisticError(f"--metric {name} is unknown: use {', '.join(METRICS[:-1])} or {METRICS[-1]}.")


def _read(path: Path | None, what: str) -> str:
    """The text of a file, or of stdin (None). Errors: FileAccessError; TextError for what is too long, or no UTF-8."""
    from manyheads.corpora.lines import read_whole

    data = read_whole(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,} is {data[error.start]:#04x}"
        raise TextError(f"{what} is not UTF-8 text ({where}): convert it first.") from error


def _stdin_waits() -> bool:
    """Whether a file or a pipe was put on stdin: then its owner expects it to be read."""
    if sys.stdin is None:
        return False
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and bool(select.select([descriptor], [], [], 0)[0]))
    except (OSError, ValueError):
        return False


def _quoted(text: str) -> str:
    """The text as a shell takes it, in double quotes where that is simple: they survive an apostrophe."""
    return f'"{text}"' if not set(text) & set('"\\$`!\n') else shlex.quote(text)


def _brief(text: str) -> str:
    return _quoted(shortened(text, 40))
