"""Several processes started by torchrun: the first speaks for all, the others say nothing but what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from manyheads.cli.progress import Talk


@contextmanager
def joined_ranks(talk: Talk) -> Iterator[int]:
    """This process's number among those that torchrun started; 0 where it is alone."""
    from manyheads.base.processes import torchrun

    with torchrun() as (rank, world):
        if rank:
            talk.silence()
        elif world > 1:
            talk.note(f"{world} processes share the corpus")
        yield rank
