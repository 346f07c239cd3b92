"""Texts that could not be measured: the first few by name with the reason, all of them counted.

One bad text of millions ends no run. But an error that is not a text's fault (no memory, no disk, Ctrl-C) is never
taken for one, and where nothing at all can be measured, the first error is raised as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from manyheads.errors import LostProcessError, PatternError

__all__ = ["NONE_FAILED", "Failure", "Failures", "is_about_texts", "reason_of"]

NAMED = 20  # of those that failed, the first so many are kept by name
REASON_CHARACTERS = 300
NO_MEMORY = ("allocate memory", "out of memory")  # torch says so in a plain RuntimeError, too


class Failure(NamedTuple):
    """One text: where it stands in the corpus (counted from 0), its name there, and why it could not be measured."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True)
class Failures:
    """How many texts failed, and the first of them. They add: batches, processes and resumed runs."""

    count: int = 0
    named: tuple[Failure, ...] = ()

    @staticmethod
    def of(found: Iterable[Failure]) -> Failures:
        every = sorted(found)
        return Failures(len(every), tuple(every[:NAMED]))

    def __add__(self, other: Failures) -> Failures:
        return Failures(self.count + other.count, tuple(sorted((*self.named, *other.named))[:NAMED]))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.named)

    def told(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"count": self.count, "named": [list(each) for each in self.named]}

    @staticmethod
    def read(told: dict[str, Any]) -> Failures:
        named = ((int(number), str(name), str(reason)) for number, name, reason in told["named"])
        return Failures(int(told["count"]), tuple(Failure(*each) for each in named))

    def __str__(self) -> str:
        """What a table's notes say: "" where none failed."""
        if not self.count:
            return ""
        first = "; ".join(f"{each.name}: {each.reason}" for each in self.named[:3])
        more = f"; and {self.count - 3:,} more" if self.count > 3 else ""
        return f"{self.count:,} text{'s' * (self.count > 1)} could not be measured: {first}{more}"


NONE_FAILED = Failures()


def is_about_texts(error: BaseException) -> bool:
    """Whether an error may be some text's fault. The disk's, the memory's, another process' and those of the user's
    own functions are not, whatever they are wrapped in."""
    ours = OSError | MemoryError | torch.OutOfMemoryError | PatternError | LostProcessError
    seen: BaseException | None = error
    while seen is not None:
        if not isinstance(seen, Exception) or isinstance(seen, ours):
            return False
        if isinstance(seen, RuntimeError) and any(each in str(seen) for each in NO_MEMORY):
            return False
        seen = seen.__cause__
    return True


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    said = (str(error).splitlines() or [""])[0][:REASON_CHARACTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
