"""Words about somebody else's words: what of an exception's message fits into a sentence of ours."""

from __future__ import annotations

FOREIGN_CHARACTERS = 200  # of another library's message: enough to name the fault, short enough for one line


def first_line(error: BaseException, most: int = FOREIGN_CHARACTERS) -> str:
    """The first line of an exception's message, cut to `most` characters; "" where it has no message.

    The rest of a foreign message is usually advice for its own callers.
    """
    return (str(error).strip().splitlines() or [""])[0].rstrip()[:most]
