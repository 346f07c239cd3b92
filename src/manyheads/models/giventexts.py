"""What is given as texts, checked before a tokenizer sees it: strings, of words, that UTF-8 can hold.

A tokenizer's own error for what is none of these is a bare TypeError or an empty batch, which names no text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

from manyheads.errors import TextError
from manyheads.recording.tokens import Gold

__all__ = ["Written", "fault_in", "read_given"]

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character beyond the first 65,536: no tokenizer takes one


@runtime_checkable
class Written(Protocol):
    """A text and what people have said about it: a corpus' `Document` is one."""

    @property
    def text(self) -> str: ...
    @property
    def gold(self) -> Gold | None: ...


def read_given(texts: object) -> tuple[list[str | Written], list[str], list[str]]:
    """Texts as they were given, what each is called in an error, and their strings. Errors: TextError."""
    if not isinstance(texts, str | Sequence):
        raise TextError(f"texts is {_kind(texts)}: give a text, or a list of texts.")
    given: list[str | Written] = [texts] if isinstance(texts, str) else [*cast("Sequence[str | Written]", texts)]
    if not given:
        raise TextError("no text was given: give at least one.")
    plain: list[str] = []
    names: list[str] = []
    for index, each in enumerate(given):
        text: object = getattr(each, "text", each)
        if not isinstance(text, str):
            raise TextError(f"text {index} is {_kind(each)}: give strings.")
        names.append(f"text {index}" if len(given) > 1 else "the text")
        if fault := fault_in(text):
            raise TextError(f"{names[-1]} {fault}")
        plain.append(text)
    return given, names, plain


def fault_in(text: str) -> str:
    """What no tokenizer can read in a text, as words after its name; "" where there is nothing."""
    if not text.strip():
        return "is empty: give at least one word."
    if half := SURROGATE.search(text):
        return f"is not valid Unicode: it has a lone surrogate at character {half.start():,}. Leave that out."
    return ""


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
