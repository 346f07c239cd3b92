"""The examination as lines of a page, each with the state of what it tells: whoever prints may colour them by it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from manyheads.doctor.findings import ABSENT, FINE, NOTE, WRONG, Examination, Finding

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
