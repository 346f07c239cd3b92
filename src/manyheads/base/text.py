"""Words that many messages need: a count with its noun, the first line of an error."""

from __future__ import annotations

__all__ = ["first_line", "plural"]


def plural(count: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one of them.

    >>> plural(1, "head"), plural(0, "head"), plural(1200, "text")
    ('1 head', '0 heads', '1,200 texts')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of an error's message, cut to `most` characters; "" where it has none.

    What libraries write below it is advice for their own callers.

    >>> first_line(ValueError("no such file\\nTry --help"))
    'no such file'
    """
    return (str(error).strip().splitlines() or [""])[0].rstrip()[:most]
