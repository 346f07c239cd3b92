"""What a look at this machine found: values, in sections. Nothing here prints, and nothing needs a package of others.

A finding is FINE; a NOTE, worth knowing; ABSENT, where something may be added; or WRONG, and then it says what to do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manyheads.doctor.imports import failed_import

FINE, NOTE, ABSENT, WRONG = "fine", "note", "absent", "wrong"
ERROR_WIDTH = 200  # characters of somebody else's message
REPORT = "If nothing else here is wrong, please report it."


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, what was found, and `remedy`: what to do, "" where there is nothing to do."""

    subject: str
    found: str
    state: str = FINE
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.state != WRONG, self

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.subject}: {self.found}.{f' {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True)
class Examination:
    """All findings, by section, in the order in which they are told."""

    sections: Mapping[str, tuple[Finding, ...]]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(each for section in self.sections.values() for each in section if each.state == WRONG)

    def to_dict(self) -> dict[str, Any]:
        sections = {title: [asdict(each) for each in section] for title, section in self.sections.items()}
        return {"fine": not self.wrong, "wrong": [each.line for each in self.wrong], "sections": sections}


def guarded(subject: str, look: Callable[[], Iterable[Finding]], remedy: str = REPORT) -> Iterator[Finding]:
    """What `look` finds; where it fails, that, as a finding of its own.

    What fails for a package that cannot be imported is raised: whoever carries the looks out says it once, for all.
    """
    try:
        yield from look()
    except Exception as error:
        if failed_import(error) is not None:
            raise
        yield Finding(subject, f"failed with {in_words(error)}", WRONG, remedy)


def in_words(error: BaseException) -> str:
    """An exception in one line: its kind, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {one_line(lines[0])}' if lines else ''}"


def one_line(words: str) -> str:
    """What somebody else says, short, on one line, and nothing in it that a terminal would obey."""
    said = " ".join(words.split())[:ERROR_WIDTH].rstrip(".")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in said)


def shown(path: object) -> str:
    """A path as people write it: `~` is their own folder."""
    try:
        return str(path).replace(f"{Path.home()}/", "~/")
    except RuntimeError:  # there is no home
        return str(path)


# ---------------------------------------------------------------------------------------------------------------------
# The examination as lines of a page, each with the state of what it tells: whoever prints may colour them by it.


MARKS = {FINE: "✓", NOTE: "·", ABSENT: "–", WRONG: "✗"}
PLAIN = {FINE: "+", NOTE: "*", ABSENT: "-", WRONG: "!"}
TITLE = "title"
SUBJECT_WIDTH = 21


def lines(found: Examination, width: int, *, plain: bool = False) -> Iterator[tuple[str, str]]:
    """State and line, by section; at the end what is wrong, a line each. `plain`: ASCII marks."""
    marks = PLAIN if plain else MARKS
    for title, section in found.sections.items():
        yield TITLE, title
        for finding in section:
            yield from ((finding.state, line) for line in _wrapped(finding, marks, width))
        yield FINE, ""
    wrong = found.wrong
    if not wrong:
        yield TITLE, "Nothing is wrong."
        return
    yield TITLE, "One thing is wrong:" if len(wrong) == 1 else f"{len(wrong)} things are wrong:"
    for finding in wrong:
        yield WRONG, f"  {marks[WRONG]} {finding.line}"


def _wrapped(finding: Finding, marks: dict[str, str], width: int) -> list[str]:
    """A finding on as many lines as it takes. What to do against what is wrong is said at the end of the page."""
    begin = f"  {marks[finding.state]} {finding.subject:<{SUBJECT_WIDTH}} "
    said = f"{finding.found}. {finding.remedy}" if finding.remedy and finding.state != WRONG else finding.found
    after = " " * (SUBJECT_WIDTH + 5)
    return textwrap.wrap(said, width, initial_indent=begin, subsequent_indent=after, break_on_hyphens=False)
