"""Words that many messages need: a count with its noun, and what of another library's message fits into a sentence."""

from __future__ import annotations

import math

FOREIGN_CHARACTERS = 200  # of another library's message: enough to name the fault, short enough for one line


def percent(share: float) -> str:
    """A share with one decimal, half rounded up, as the pages of the studio round.

    >>> percent(1 / 16), percent(0.677)
    ('6.3%', '67.7%')
    """
    return f"{math.floor(share * 1000 + 0.5) / 10:.1f}%"


def plural(count: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one of them.

    >>> plural(1, "head"), plural(0, "head"), plural(1200, "text")
    ('1 head', '0 heads', '1,200 texts')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_line(error: BaseException, most: int = FOREIGN_CHARACTERS) -> str:
    """The first line of an exception's message, cut to `most` characters; "" where it has no message.

    The rest of a foreign message is usually advice for its own callers.
    """
    return (str(error).strip().splitlines() or [""])[0].rstrip()[:most]
