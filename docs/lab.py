"""docs/lab.md, the lab log as a table, from docs/lab.yaml: `python docs/lab.py`. A test holds the page to the records.

A record is a mapping with the five fields that the page explains. Every value is text: a date or a number is printed
as it was typed, so nothing is rounded or reformatted on its way to the page.
"""

from __future__ import annotations

from pathlib import Path

import yaml

RECORDS = Path(__file__).with_name("lab.yaml")
PAGE = Path(__file__).with_name("lab.md")
FIELDS = {
    "date": "when it was measured (YYYY-MM-DD).",
    "question": "what we wanted to know, in a sentence that can be answered.",
    "command": "what to type in a checkout, with machine and threads where they matter.",
    "number": "what came out: median and spread, with units; peers measured in the same run.",
    "verdict": "what follows: taken, refused, target met or missed and by how much.",
}
OPENING = """\
<!-- made by `python docs/lab.py` from docs/lab.yaml, held to it by a test -->
# Lab log

Every number that the project claims has a record here, with the command that made it, so that anyone can make it again.
Newest first. A record is never removed: what failed stays and says so, and a number that no longer holds gets a new
record. Records are written in [lab.yaml](lab.yaml); this table is made from it.
"""


def records() -> list[dict[str, str]]:
    """The records, newest first. BaseLoader leaves every value the text that was typed."""
    return yaml.load(RECORDS.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def lab_markdown() -> str:
    """The page: what a record holds, then a row for each."""
    explained = [f"- **{field}**: {meaning}" for field, meaning in FIELDS.items()]
    rows = [_row([record[field] for field in FIELDS]) for record in records()]
    return "\n".join([OPENING, *explained, "", _row(list(FIELDS)), "|---" * len(FIELDS) + "|", *rows, ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(lab_markdown(), encoding="utf-8")
