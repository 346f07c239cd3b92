"""What can go wrong in the studio, and how a page is told: whose fault it is, in a status, and in words what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.errors import ManyHeadsError
from manyheads.studio.schema.base import Problem

__all__ = ["Busy", "NotHere", "Stopped", "TooLarge", "misfit", "told"]

log = logging.getLogger("manyheads")


class NotHere(ManyHeadsError, LookupError):
    """What a request names is not here: a recording, a head, a lesson, a job."""


class Busy(ManyHeadsError):
    """Too much is under way already: the same request will do a little later."""


class TooLarge(ManyHeadsError, ValueError):
    """A request holds more than is taken."""


class Stopped(Exception):
    """Work was given up, because somebody asked for it or because nobody waits for it any more."""


MOST_SAID = 5  # of what does not fit in one request
MOST_CAME = 60  # characters of what came that are said back
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
    "json_invalid": "is no JSON: {error}",
}
"""What does not fit, by pydantic's name for it."""
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
"""What is wanted, by the first word of pydantic's name for what came instead."""
WRITTEN = {
    "name": "letters, digits, '.', '_' and '-', a letter or digit first",
    "queries": "a range as in 0:64",
    "keys": "a range as in 0:64",
}
"""How a value is written that has a pattern, by its name; those of an address's path name things instead."""
THINGS = {"slug": "lesson"}
BRANCHES = {"constrained-str", "str", "int", "float", "bool"}  # of a value that may be of several kinds: no place in it
STATUS: dict[type[BaseException], int] = {NotHere: 404, Busy: 503, TooLarge: 413, Stopped: 409, ManyHeadsError: 400}


def told(error: BaseException) -> tuple[int, Problem]:
    """The status and the words for an error. What is no error of ours is a fault of ours, and goes to the log too."""
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return status, Problem(kind=type(error).__name__, words=str(error))
    if isinstance(error, MemoryError):
        return 503, Problem(kind="MemoryError", words="Out of memory: try a shorter text or a smaller model.")
    log.error("a fault in the studio", exc_info=error)
    words = f"This is a fault of manyheads, not yours: {type(error).__name__}: {str(error)[:300]}"
    return 500, Problem(kind="Fault", words=words)


def misfit(errors: Sequence[Mapping[str, Any]]) -> tuple[int, Problem]:
    """The status and the words for a request whose values do not fit, from pydantic's list of what is wrong with it.

    404 where the address names something as nothing here is named, else 400.
    """
    named = next((error for error in errors if error["loc"][0] == "path" and error["type"].startswith("string_")), None)
    if named is not None:
        thing = THINGS.get(named["loc"][1], named["loc"][1])
        return 404, Problem(kind=NotHere.__name__, words=f"There is no {thing} {_came(named)} here.")
    said = {}
    for error in errors:
        place = ".".join(str(part) for part in error["loc"][1:] if part not in BRANCHES)
        said.setdefault(place, _words(place, error))
    more = f"; and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
    words = f"This does not fit: {'; '.join(list(said.values())[:MOST_SAID])}{more}."
    return 400, Problem(kind="RequestError", words=words)


def _words(place: str, error: Mapping[str, Any]) -> str:
    """One misfit: where it is, what came, what is taken."""
    kind, given = error["type"], error["input"]
    where = repr(place) if place and kind != "json_invalid" else "the request's body"
    if kind not in MISFITS:
        wanted = KINDS.get(kind.split("_")[0])
        return f"{where} is {_came(error)}, and takes {wanted}" if wanted else f"{where}: {error['msg']}"
    values = {**(error.get("ctx") or {}), "came": _came(error), "written": WRITTEN.get(place, "another spelling")}
    values["length"] = len(given) if hasattr(given, "__len__") else 0
    return f"{where} {MISFITS[kind].format(**values)}"


def _came(error: Mapping[str, Any]) -> str:
    said = repr(error["input"])
    return said if len(said) <= MOST_CAME else f"{said[: MOST_CAME - 3]}..."
