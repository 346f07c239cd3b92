"""Other libraries at work without their talk: no log lines, no bars, and everything as before afterwards.

What: `quietly()`, a context manager around the places where we call transformers.
Why: its bars, advice and load reports are written for people who called it, and ours called us; what matters in them we
say ourselves. Its switches are process-wide, so they are turned under a lock and always turned back. Errors still show.
The hub's download bars stay: whatever takes minutes should be seen to move.
Python's garbage collector rests meanwhile, too: importing transformers' model code makes a million objects, and every
pass over them finds nothing, for a fifth of the time (docs/lab.md).
"""

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quietly"]

_LOCK = threading.RLock()


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, transformers and the hub's client log nothing below ERROR and transformers draws no bars."""
    with _LOCK, _collector_resting():
        # Imported before the levels are read: both libraries set them when they are imported.
        from transformers.utils.logging import EmptyTqdm, set_tqdm_hook

        loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
        levels = [logger.level for logger in loggers]
        hook = set_tqdm_hook(lambda factory, args, kwargs: EmptyTqdm(*args, **kwargs))
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            set_tqdm_hook(hook)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _collector_resting() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
