"""The rows of an answer: tokens with their places, and what a writer gave one side of a weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NO_STORY = 0.05
"""Below this weight the head does not look there, and what is said of it explains nothing that the head does."""
LISTED = 3  # writers of a side in words
LEAST_SHARE = 0.02
"""Nats: a writer that adds less is in no list and no sentence."""


class Place(NamedTuple):
    """A token of a text, with its position."""

    position: int
    token: str

    def __str__(self) -> str:
        return f"{self.token!r} ({self.position})"


class Look(NamedTuple):
    """A token with its position, and the weight that a head gives it."""

    position: int
    token: str
    weight: float

    def __str__(self) -> str:
        return f"{self.token!r} ({self.position})"


class WriterShare(NamedTuple):
    """What one writer gave one side of a weight.

    - `writer`, `kind`: as a component of an `Attribution`: "L7H0", "head"; "L0 feed-forward"; "embedding"; "bias".
    - `share`: its part of the log-odds, in nats; over the writers and the named rows these add up. `at_rivals`: the
      part of it that was written at other keys than the one looked at (None on the query's side): share - at_rivals is
      the part at the key.
    - `without`, `odds_without`: what the weight and its log-odds would be with this writer taken out of what the layer
      reads on this side, the norm acting again. They do not add up.
    - `looks_at`: where a head itself looks most, from the position where this was written; None if the writer is not a
      head.
    """

    writer: str
    kind: str
    share: float
    without: float
    odds_without: float
    looks_at: Look | None = None
    at_rivals: float | None = None


class PairShare(NamedTuple):
    """What a query's writer and a key's writer gave together, in nats; `of_all`: its share of all pairs, added without
    signs."""

    query: str
    key: str
    share: float
    of_all: float


def in_words(table: Iterable[WriterShare]) -> str:
    """The largest shares for the weight, then those against it."""
    order = sorted(table, key=lambda row: -abs(row.share))
    order = [row for row in order if abs(row.share) >= LEAST_SHARE]
    lists = ([row for row in order if row.share > 0][:LISTED], [row for row in order if row.share < 0][:LISTED])
    words = [", ".join(_row_in_words(row) for row in rows) for rows in lists]
    return "; ".join(part for part in (words[0], words[1] and f"against: {words[1]}") if part) or "nothing stands out"


def _row_in_words(row: WriterShare) -> str:
    notes: list[str] = []
    if row.looks_at is not None:
        notes.append(f"looks at {row.looks_at!s} {row.looks_at.weight:.2f}")
    if row.at_rivals is not None and abs(row.at_rivals) > abs(row.share - row.at_rivals):
        notes.append("at the rivals")
    notes.append(f"without it {row.without:.2f}")
    return f"{row.writer} {row.share:+.2f} ({'; '.join(notes)})"
