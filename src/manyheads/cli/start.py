"""The start of a command's own process: no search for garbage while there is none.

To import torch and transformers, and to build a model, makes a million objects that stay; each time that Python looks
for garbage among them costs a command up to a fifth of its start (`look`: 5.7 s of the processor with it, 4.9 without).
A file of its own: `main` comes before all imports that may fail, and the commands' arguments know nothing of it.
"""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_STARTING = (1_000_000, *_USUAL[1:])  # a process that never loads a model collects after a million objects


def begin() -> None:
    """Put off the search for garbage. For a process of one's own alone: what embeds us has a collector of its own."""
    gc.set_threshold(*_STARTING)


def end() -> None:
    """Search as usual from here on, among what is made from here on. Without `begin`, nothing."""
    if gc.get_threshold() == _STARTING:
        gc.freeze()  # what is there stays: no later search walks it
        gc.set_threshold(*_USUAL)
