"""Where the command writes: stdout for data, stderr for talk, at most 100 columns, colour only for people.

Colour is off where stdout is no terminal or NO_COLOR is set, on where FORCE_COLOR is. Whatever comes from outside (a
text, a token, a file's name) is printed through `clean`: it may hold anything, escape sequences too.
"""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

WIDTH = 100
NARROWEST = 60  # below this, lines are cut rather than wrapped into ribbons


class ClosedPipe(Exception):
    """Whoever read our output has gone: end quietly. (No OSError: nobody on the way may take it for one.)"""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise ClosedPipe from None


def emit(text: str) -> None:
    """Write plain data to stdout."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ClosedPipe from None


def emit_document(content: dict[str, Any]) -> None:
    """Write one JSON document, the version first: no NaN, and UTF-8 as ASCII escapes, for any reader and terminal."""
    from manyheads import __version__

    emit(json.dumps({"manyheads": __version__, **content}, indent=1, allow_nan=False))


def print_whole(lines: Iterable[str | Text]) -> None:
    """Write lines to stdout as long as they are: a terminal wraps them, a pipe gets each as one."""
    console = stdout_console()
    for line in lines:
        console.print(line, soft_wrap=True)


def print_cut(lines: Iterable[Text], console: Console) -> None:
    """Write lines, each cut where the console ends."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def print_sections(sections: Iterable[list[Text]], console: Console) -> None:
    """Write sections of cut lines, an empty line between them; one without lines is left out."""
    for at, lines in enumerate(filter(None, sections)):
        if at:
            console.print()
        print_cut(lines, console)


def stdout_console() -> Console:
    return _console(sys.stdout)


def stderr_console() -> Console:
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    stream = io.StringIO() if stream is None else stream  # closed by the shell: `2>&-`
    terminal = stream.isatty()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for what it lacks
    options: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = _Console(file=stream, width=None if terminal else WIDTH, **options)
    console.width = max(NARROWEST, min(console.width, WIDTH))
    return console


def knows_blocks(console: Console) -> bool:
    """Whether shades and rules can be drawn, or only ASCII."""
    return (console.encoding or "").lower().startswith("utf")


def clean(text: str) -> str:
    """Text on one line and without anything that a terminal would obey."""
    return " ".join("".join(map(_shown, text)).split())


def _shown(char: str) -> str:
    if char.isspace():
        return " "
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char


def shortened(text: str, width: int) -> str:
    """At most `width` columns of a text, whole words where possible, with an ellipsis where some is left out."""
    text = clean(text)
    if Text(text).cell_len <= width:
        return text
    cut = Text(text)
    cut.truncate(width - 1)
    words = cut.plain.rsplit(" ", 1)
    return f"{words[0] if len(words[0]) > width // 2 else cut.plain.rstrip()}…"
