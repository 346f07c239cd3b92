"""docs/lab.md, the lab log in short, from docs/lab.yaml: `python docs/lab.py`. A test holds the page to the records.

The page has the newest records: the question of each, and the beginning of its number.

A record is a mapping with the five fields that the page explains. Every value is text: a date or a number is printed
as it was typed, so nothing is rounded or reformatted on its way to the page.
"""

from __future__ import annotations

import re
from itertools import groupby
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
NEWEST = 15
OPENING = f"""\
<!-- made by `python docs/lab.py` from docs/lab.yaml, held to it by a test -->
# Lab log

Every number that the project claims has a record, with the command that made it, so that anyone can make it again.
[`docs/lab.yaml`](lab.yaml) holds all records. This page shows the newest {NEWEST}: the question of each, and the
beginning of its number ("..." where more follows). A record is never removed: what failed stays and says so, and a
number that no longer holds gets a new record. The fields of a record:
"""
CLAUSE = re.compile(r"(?:`[^`]*`|\([^()]*\)|[^;.]|[;.](?! ))+")
"""Up to the first semicolon or full stop that a blank follows, outside code and brackets."""

LONGEST = 8  # words, where a clause can be cut at a comma outside brackets
SHORTER = re.compile(r"[^()`]*, [^()`]*|.*[)`][^()`]*, [^()`]*")


def records() -> list[dict[str, str]]:
    """The records, newest first. BaseLoader leaves every value the text that was typed."""
    return yaml.load(RECORDS.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def lab_markdown() -> str:
    """The page: what a record holds, then for each day a list."""
    lines = [OPENING, *(f"- **{field}**: {meaning}" for field, meaning in FIELDS.items())]
    for date, day in groupby(records()[:NEWEST], key=lambda record: record["date"]):
        lines += ["", f"## {date}", ""]
        lines += [f"- {_ended(record['question'])} {_clause(record['number'])}" for record in day]
    return "\n".join([*lines, ""])


def _ended(text: str) -> str:
    return text if text.endswith(("?", ".", ":")) else f"{text}."


def _clause(text: str) -> str:
    matched = CLAUSE.match(text)
    clause = matched[0].strip() if matched else text
    while len(clause.split()) > LONGEST and SHORTER.fullmatch(clause):
        clause = clause.rpartition(", ")[0]
    return clause if clause == text.rstrip(".") else f"{clause}..."


if __name__ == "__main__":
    PAGE.write_text(lab_markdown(), encoding="utf-8")
