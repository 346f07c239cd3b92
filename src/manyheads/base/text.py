"""Words that many messages need: a count with its noun, names like a misspelt one, what fits of a foreign message.

And the two commonest refusals: of what is none of the options, and of what is not a count. And results as plain data,
for JSON (`plain`), and in one line, for a terminal (`brief`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias, cast

from manyheads.errors import ManyHeadsError

if TYPE_CHECKING:  # a type that names itself: beartype, which checks types under pytest, cannot follow it
    JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    Json: TypeAlias = dict[str, JsonValue]
else:
    JsonValue, Json = object, dict[str, object]

REPR_CHARACTERS = 100  # a line of a terminal, or of a notebook
FOREIGN_CHARACTERS = 200  # of another library's message: enough to name the fault, short enough for one line


def percent(share: float, decimals: int = 0) -> str:
    """A share as sentences, the terminal and the page write it, half rounded away from zero; "none" for NaN.

    A share above 0 that rounds to 0 is "< 1 %": beside it, "0 %" would be another number. The page has the same rules
    (`percent` of web/src/lib/draw/format.ts).

    >>> percent(0.677), percent(0.677, 1), percent(1 / 16, 1), percent(-0.03)
    ('68 %', '67.7 %', '6.3 %', '−3 %')
    >>> percent(0.004), percent(0.0), percent(-0.004), percent(0.0004, 1)
    ('< 1 %', '0 %', '0 %', '< 0.1 %')
    """
    if not math.isfinite(share):
        return "none"
    steps = 10**decimals
    size = math.floor(abs(share) * 100 * steps + 0.5) / steps
    if size == 0 and share > 0:
        return f"< {1 / steps:.{decimals}f} %"
    return f"{'−' if share < 0 and size else ''}{size:.{decimals}f} %"


def plural(count: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one of them.

    >>> plural(1, "head"), plural(0, "head"), plural(1200, "text")
    ('1 head', '0 heads', '1,200 texts')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def few(names: Iterable[object], most: int = 4) -> str:
    """The first few of `names`, and how many more there are.

    >>> few("abcde"), few("abcde", 3), few("abcde", 5)
    ('a, b, c, d and 1 more', 'a, b, c and 2 more', 'a, b, c, d, e')
    """
    words = [str(name) for name in names]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def first_line(error: BaseException, most: int = FOREIGN_CHARACTERS) -> str:
    """The first line of an exception's message, cut to `most` characters; "" where it has no message.

    The rest of a foreign message is usually advice for its own callers.
    """
    return (str(error).strip().splitlines() or [""])[0].rstrip()[:most]


def plain(value: object) -> JsonValue:
    """A value as JSON holds it: arrays and tuples as lists, a result as its `to_dict`, NaN and infinity as None.

    Keys and paths become texts. Errors: TypeError for a value that is none of these.

    >>> plain({3: (1, float("nan"))})
    {'3': [1, None]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in cast("Mapping[object, object]", value).items()}
    for name in ("to_dict", "_asdict", "tolist"):  # a result; a row of one; an array, or a number of one
        if (method := getattr(value, name, None)) is not None:
            return plain(method())
    if isinstance(value, Sequence):
        return [plain(part) for part in cast("Sequence[object]", value)]
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form as plain data: give it a to_dict.")


def brief(words: str) -> str:
    """A repr in one line of at most 100 characters; what is longer is cut, and ends in "...)".

    >>> brief(f"Sizing({'x' * 120})")[-8:]
    'xxx ...)'
    """
    line = " ".join(words.splitlines())
    return line if len(line) <= REPR_CHARACTERS else f"{line[: REPR_CHARACTERS - 5].rstrip(' ,;:')} ...)"


def quoted(text: str) -> str:
    """The text as a shell takes it, on one line; in double quotes where that is simple: they survive an apostrophe.

    >>> print(quoted("it's"), quoted("a\\nb"))
    "it's" $'a\\nb'
    """
    if text.isprintable():
        return f'"{text}"' if not set(text) & set('"\\$`!') else "'" + text.replace("'", "'\\''") + "'"
    # bash and zsh read these within $'...'
    named = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t"}
    escaped = (named.get(char) or (char if char.isprintable() else _bytes(char)) for char in text)
    return f"$'{''.join(escaped)}'"


def _bytes(char: str) -> str:
    """A character that no terminal shows, as its UTF-8: three octal digits a byte, so that none joins the next."""
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogatepass"))


def one_of(
    name: str,
    value: object,
    options: Iterable[str],
    error: type[ManyHeadsError],
    fault: str = "is unknown",
    more: str = "",
) -> None:
    """Refuse a value that is none of the options. Errors: `error`, as "how='sum' is unknown: use one of mean, max."."""
    known = tuple(options)
    if not isinstance(value, str) or value not in known:
        raise error(f"{name}={value!r} {fault}: use one of {', '.join(known)}{more}.")


def whole(name: str, value: object, least: int, error: type[ManyHeadsError], remedy: str = "") -> int:
    """The value, if it is a whole number of at least `least`; True and 2.0 are none.

    Errors: `error`, as "seed=-1: give a whole number, 0 or more.", or with another `remedy` after "give".
    """
    if type(value) is not int or value < least:
        raise error(f"{name}={value!r}: give {remedy or f'a whole number, {least} or more'}.")
    return value


ALIKE = 0.7  # of the letters of a misspelt name and of the one that is meant, at least
SHORTEST = 4  # letters of a beginning that says something
BESIDE = 0.1  # so much less alike than the most alike, and a name is no guess beside it


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that a misspelt one may stand for, the most alike first; [] where none is: a far guess misleads.

    Upper case is lower case; a transposition of letters is a misspelling; of a long name the beginning is enough.
    """
    typed = name.casefold()
    alike: dict[str, float] = {}
    for candidate in known:
        other = candidate.casefold()
        ratios = [difflib.SequenceMatcher(None, typed, other).ratio()]
        if len(typed) >= SHORTEST and len(other) > len(typed) + 1:
            ratios.append(0.9 * difflib.SequenceMatcher(None, typed, other[: len(typed) + 1]).ratio())
        if sorted(typed) == sorted(other):
            ratios.append(0.95)
        alike[candidate] = max(ratios)
    best = max(alike.values(), default=0.0)
    ranked = sorted(alike, key=lambda candidate: -alike[candidate])[:count]
    return [candidate for candidate in ranked if alike[candidate] >= max(ALIKE, best - BESIDE)]
