"""What can go wrong in the studio, and how a page is told: whose fault it is, in a status, and in words what to do."""

from __future__ import annotations

import logging

from manyheads.errors import ManyHeadsError
from manyheads.studio.schema.base import Problem

__all__ = ["Busy", "NotHere", "Stopped", "TooLarge", "told"]

log = logging.getLogger("manyheads")


class NotHere(ManyHeadsError, LookupError):
    """What a request names is not here: a recording, a head, a lesson, a job."""


class Busy(ManyHeadsError):
    """Too much is under way already: the same request will do a little later."""


class TooLarge(ManyHeadsError, ValueError):
    """A request holds more than is taken."""


class Stopped(Exception):
    """Work was given up, because somebody asked for it or because nobody waits for it any more."""


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
