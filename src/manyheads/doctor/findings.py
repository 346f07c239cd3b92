"""Findings of an examination: values, in sections, and their lines on a page. Imports no package of others.

A finding is FINE; a NOTE, worth knowing; ABSENT, where something may be added; or WRONG, and then has a remedy.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manyheads.base import first_line
from manyheads.doctor.imports import failed_import

FINE, NOTE, ABSENT, WRONG = "fine", "note", "absent", "wrong"
ERROR_WIDTH = 200  # characters of somebody else's message
REPORT = "If nothing else here is wrong, please report it."
MARKS = {FINE: "✓", NOTE: "·", ABSENT: "–", WRONG: "✗"}
PLAIN = {FINE: "+", NOTE: "*", ABSENT: "-", WRONG: "!"}
TITLE = "title"
SUBJECT_WIDTH = 21


@dataclass(frozen=True)
class Finding:
    """A subject, what was found of it, and `remedy`: what to do, "" where there is nothing to do."""

    subject: str
    found: str
    state: str = FINE
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.state != WRONG, self

    @property
    def line(self) -> str:
        """The whole finding in one line."""
        return f"{self.subject}: {self.found}.{f' {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True)
class Examination:
    """All findings, by section, in the order of the page."""

    sections: Mapping[str, tuple[Finding, ...]]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(finding for section in self.sections.values() for finding in section if finding.state == WRONG)

    def to_dict(self) -> dict[str, Any]:
        sections = {title: [asdict(finding) for finding in section] for title, section in self.sections.items()}
        return {"fine": not self.wrong, "wrong": [finding.line for finding in self.wrong], "sections": sections}


def guarded(subject: str, look: Callable[[], Iterable[Finding]], remedy: str = REPORT) -> Iterator[Finding]:
    """The findings of `look`; where it fails, that, as a finding of its own.

    A failed import of another package is raised: the caller reports it once for all looks that need the package.
    """
    try:
        yield from look()
    except Exception as error:
        if failed_import(error) is not None:
            raise
        yield Finding(subject, f"failed with {in_words(error)}", WRONG, remedy)


def in_words(error: BaseException) -> str:
    """An exception in one line: its kind, and the first line of its message."""
    line = first_line(error, 4 * ERROR_WIDTH)
    return f"{type(error).__name__}{f': {one_line(line)}' if line else ''}"


def one_line(words: str) -> str:
    """Foreign words, short and on one line."""
    short = " ".join(words.split())[:ERROR_WIDTH].rstrip(".")
    # Nothing in it that a terminal would obey: a message may hold escape sequences of somebody else's making.
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


def shown(path: object) -> str:
    """A path as people write it, `~` for their home folder."""
    try:
        return str(path).replace(f"{Path.home()}/", "~/")
    except RuntimeError:  # there is no home
        return str(path)


def lines(examination: Examination, width: int, *, plain: bool = False) -> Iterator[tuple[str, str]]:
    """The page: state and line, by section; at the end what is wrong, a line each. `plain`: ASCII marks.

    The state of a line is for colours.
    """
    marks = PLAIN if plain else MARKS
    for title, section in examination.sections.items():
        yield TITLE, title
        for finding in section:
            begin = f"  {marks[finding.state]} {finding.subject:<{SUBJECT_WIDTH}} "
            # The remedy for what is wrong is at the end of the page.
            remedy = f". {finding.remedy}" if finding.remedy and finding.state != WRONG else ""
            indent = " " * (SUBJECT_WIDTH + 5)
            for line in textwrap.wrap(
                finding.found + remedy, width, initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False
            ):
                yield finding.state, line
        yield FINE, ""
    wrong = examination.wrong
    if not wrong:
        yield TITLE, "Nothing is wrong."
        return
    yield TITLE, "One thing is wrong:" if len(wrong) == 1 else f"{len(wrong)} things are wrong:"
    for finding in wrong:
        yield WRONG, f"  {marks[WRONG]} {finding.line}"
