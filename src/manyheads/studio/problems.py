"""Errors of the studio, and their HTTP answers: a status that says whose fault it is, and words that say what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.errors import ManyHeadsError
from manyheads.machine import is_out_of_memory
from manyheads.studio.schema.base import Problem

log = logging.getLogger("manyheads")


class NotHere(ManyHeadsError, LookupError):
    """A request names something that does not exist: a recording, a head, a lesson, a job."""


class Busy(ManyHeadsError):
    """Too much work is under way; the same request will succeed a little later."""


class TooLarge(ManyHeadsError, ValueError):
    """A request is larger than the server accepts."""


class Stopped(Exception):
    """Work was stopped, by a request or because nobody waits for it any more."""


MOST_MISFITS = 5  # named in one answer
MOST_CHARS = 60  # of a wrong value that are quoted
MISFITS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_long": "holds {length:,} characters, and takes at most {max_length:,}",
    "string_too_short": "holds {length:,} characters, and takes at least {min_length:,}",
    "string_pattern_mismatch": "is {came}, and takes {written}",
    "too_long": "holds {length:,} entries, and takes at most {max_length:,}",
    "too_short": "holds {length:,} entries, and takes at least {min_length:,}",
    "greater_than_equal": "is {came}, and takes at least {ge:,}",
    "less_than_equal": "is {came}, and takes at most {le:,}",
    "less_than": "is {came}, and takes less than {lt:,}",
    "literal_error": "is {came}, and takes {expected}",
    "union_tag_invalid": "has the {discriminator} {tag!r}, and takes one of {expected_tags}",
    "union_tag_not_found": "does not say its {discriminator}",
    "json_invalid": "is not JSON: {error}",
}
"""The words for a value that does not fit, by pydantic's error type."""
KINDS = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
"""The words for the expected type, by the first word of pydantic's error type."""
WRITTEN = {
    "name": "letters, digits, '.', '_' and '-', a letter or digit first",
    "file_name": "a file's name that ends in .heads",
    "queries": "a range as in 0:64",
    "keys": "a range as in 0:64",
    "language": "a language's code, as in de",
}
"""The words for a pattern, by the name of the value; patterns in the path of an address give 404 instead."""
THINGS = {"slug": "lesson"}
# Of a value that may have several types, pydantic adds the type to the location of the error: no place in the JSON.
BRANCHES = {"constrained-str", "str", "int", "float", "bool"}
STATUS: dict[type[BaseException], int] = {NotHere: 404, Busy: 503, TooLarge: 413, Stopped: 409, ManyHeadsError: 400}


def problem_of(error: BaseException) -> tuple[int, Problem]:
    """The status and the words for an error. An error that is not ours is a fault of ours, and is logged as well."""
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return status, Problem(kind=type(error).__name__, words=str(error))
    if is_out_of_memory(error):
        return 503, Problem(kind="MemoryError", words="Out of memory: try a shorter text or a smaller model.")
    log.error("a fault in the studio", exc_info=error)
    words = f"This is a fault of manyheads, not yours: {type(error).__name__}: {str(error)[:300]}"
    return 500, Problem(kind="Fault", words=words)


def misfit_of(errors: Sequence[Mapping[str, Any]]) -> tuple[int, Problem]:
    """The status and the words for a request whose values do not fit, from pydantic's list of errors.

    404 where a name in the address has a form that no name here has, else 400.
    """
    named = next((error for error in errors if error["loc"][0] == "path" and error["type"].startswith("string_")), None)
    if named is not None:
        thing = THINGS.get(named["loc"][1], named["loc"][1])
        return 404, Problem(kind=NotHere.__name__, words=f"There is no {thing} {_quoted(named)} here.")
    sentences: dict[str, str] = {}
    for error in errors:
        kind, value = error["type"], error["input"]
        place = ".".join(str(part) for part in error["loc"][1:] if part not in BRANCHES)
        if place in sentences:
            continue  # a value of several types has an error for each of them; the first one is enough
        name = repr(place) if place and kind != "json_invalid" else "the request's body"
        if kind in MISFITS:
            context = {**(error.get("ctx") or {}), "came": _quoted(error)}
            context |= {"written": WRITTEN.get(place, "another spelling")}
            context |= {"length": len(value) if hasattr(value, "__len__") else 0}
            sentences[place] = f"{name} {MISFITS[kind].format(**context)}"
        elif expected := KINDS.get(kind.split("_")[0]):
            sentences[place] = f"{name} is {_quoted(error)}, and takes {expected}"
        else:
            sentences[place] = f"{name}: {error['msg']}"
    more = f"; and {len(sentences) - MOST_MISFITS} more" if len(sentences) > MOST_MISFITS else ""
    words = f"This does not fit: {'; '.join(list(sentences.values())[:MOST_MISFITS])}{more}."
    return 400, Problem(kind="RequestError", words=words)


def _quoted(error: Mapping[str, Any]) -> str:
    quoted = repr(error["input"])
    return quoted if len(quoted) <= MOST_CHARS else f"{quoted[: MOST_CHARS - 3]}..."
