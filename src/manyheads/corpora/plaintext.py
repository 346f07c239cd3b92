"""Texts out of lines: paragraphs, the lines themselves, or a field of JSON objects, one a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from manyheads.corpora.documents import Document
from manyheads.corpora.sources import Line, stretches

MOST_JSON = 32 << 20  # characters of a line of JSON: what it becomes may take twenty times as much
UNEVEN = re.compile(r"[^\S ]|  ")  # white space other than single blanks
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write what no UTF-8 can hold, nor any tokenizer take


def paragraph_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Stretches of lines parted by empty ones; line breaks and runs of white space inside become a blank.

    A paragraph is called after its first line ("page.txt:12"). One line that cannot be read spoils its paragraph.
    """
    for held in stretches(lines):
        yield _paragraph(held, name)


def line_documents(lines: Iterable[Line], name: str) -> Iterator[Document]:
    """Each line a text, without the white space around it; empty lines are none."""
    for line in lines:
        text = line.text.strip()
        if text or line.problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=line.problem)


def json_documents(lines: Iterable[Line], name: str, field: str) -> Iterator[Document]:
    """`field` of each line's JSON object, as it is. Empty lines and empty texts are none; what is broken says so."""
    for line in lines:
        text, problem = "", line.problem
        if len(line.text) > MOST_JSON:
            problem = f"this line is longer than {MOST_JSON >> 20} MB of JSON: break it up."
        elif line.text.strip():
            try:
                text, problem = text_of(json.loads(line.text), field)
            except (ValueError, RecursionError) as error:
                told = f"{error.msg}, column {error.colno:,}" if isinstance(error, json.JSONDecodeError) else error
                problem = f"this line is not JSON ({told})."
        if text.strip() or problem:
            yield Document(text, f"{name}:{line.number}", at=line.at, problem=problem)


def text_of(row: object, field: str) -> tuple[str, str]:
    """The text in a field of a row, or "" and the problem."""
    if not isinstance(row, dict):
        return "", f"this is no object with a field {field!r}, but {_told(row)}."
    if field not in row:
        return "", f"there is no field {field!r}. There is: {', '.join(map(repr, row)) or 'none'}."
    text = row[field]
    if not isinstance(text, str):
        return "", f"the field {field!r} holds no text, but {_told(text)}."
    if SURROGATE.search(text):
        return "", f"the field {field!r} holds half a character (a lone surrogate)."
    return text, ""


def _paragraph(held: list[Line], name: str) -> Document:
    problem = next((line.problem for line in held if line.problem), "")
    text = "" if problem else " ".join(_evened(line.text) for line in held)
    return Document(text, f"{name}:{held[0].number}", at=held[-1].at, problem=problem)


def _evened(text: str) -> str:
    """Single blanks between words. A line of 100 MB that has them already is not taken apart: that costs gigabytes."""
    return " ".join(text.split()) if UNEVEN.search(text) else text.strip()


def _told(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing (null)"}
    return kinds.get(type(value), "a number")
