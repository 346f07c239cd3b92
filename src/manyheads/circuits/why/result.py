"""What `why` returns: one weight of one head, and what wrote its query's stream and its keys'."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief, html_table, plain, plural
from manyheads.errors import HeadError, StatisticError
from manyheads.heads import Head, NotIterated
from manyheads.models import LoadedModel
from manyheads.recording import write_frame

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

NO_STORY = 0.05
"""Below this weight the head does not look there, and what is said of it explains nothing that the head does."""
LISTED = 3  # writers of a side in words
LEAST = 0.02  # nats: what adds less is in no sentence
PAIRS = 5  # pairs in words


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
    - `share`: of the log-odds, in nats; over both the writers and the named rows these add up. `at_rivals`: the part of
      it that was written at other keys than the one looked at (None on the query's side): share - at_rivals is the part
      at the key.
    - `without`, `odds_without`: what the weight and its log-odds would be with this writer taken out of what the layer
      reads on this side, the norm acting anew. They do not add up.
    - `looks_at`: where a head looks most itself, from the position where this one was written; None of what is no head.
    """

    writer: str
    kind: str
    share: float
    without: float
    odds_without: float
    looks_at: Look | None = None
    at_rivals: float | None = None


class PairShare(NamedTuple):
    """What a query's writer and a key's writer gave together, in nats; `of_all`: of all pairs, added without signs."""

    query: str
    key: str
    share: float
    of_all: float


@dataclass(frozen=True, eq=False)
class Why(NotIterated):
    """Why a head looks from one token to another: the log-odds of that weight, split over what was written.

    - `query`, `key`: a row for each writer of the query's stream, and of the keys'; the largest shares first. Each of
      the two adds up to `total`: they are two views of the same sum, by whose query it was and by whose key.
    - `from_token`, `to_token`: the token that looks, and the one that is looked at, with its weight.
    - `against`: the other token with its weight; None for all other keys together.
    - `next`: the row's other keys with the largest weights.
    - `log_odds`: of the weight against that, in nats: `total`, which writers add up to, and `rows`, by name what is
      not linear in them: "spread" (over the other keys), "sink", "softcap", "position bias", "rounding".
    - `rivals`: how many other keys the row sees.
    - `error`: how far the sum is from the model's own log-odds.
    - `pair_shares`: of each writer of the query with each of the keys.
    - `massive`: what wrote a token's massive activation that explains this weight, in words; "" where none does.
    """

    instead = "its tables are .query and .key, and to_pandas() has a row for each writer"

    head: Head
    from_token: Place
    to_token: Look
    against: Look | None
    next: tuple[Look, ...]
    query: tuple[WriterShare, ...]
    key: tuple[WriterShare, ...]
    pair_shares: Float64[ndarray, "u w"]
    log_odds: float
    total: float
    rows: dict[str, float]
    rivals: int
    error: float
    massive: str
    text: str | tuple[str, str]
    notes: dict[str, str]

    @property
    def weight(self) -> float:
        return self.to_token.weight

    @property
    def spread(self) -> float:
        """What the spread of the rest over other keys adds to the log-odds: minus its entropy in nats."""
        return self.rows.get("spread", 0.0)

    def pairs(self, count: int = PAIRS) -> tuple[PairShare, ...]:
        """The pairs of writers that gave most, of either sign. Pairs cancel: their sizes say little of the sum."""
        sizes = np.abs(self.pair_shares)
        order = np.argsort(-sizes, axis=None, kind="stable")[:count]
        places = zip(*np.unravel_index(order, sizes.shape), strict=True)
        whole = max(float(sizes.sum()), 1e-300)
        return tuple(
            PairShare(
                self.query[u].writer, self.key[w].writer, float(self.pair_shares[u, w]), float(sizes[u, w]) / whole
            )
            for u, w in places
        )

    def of(self, writer: str | Head, side: Literal["query", "key"]) -> WriterShare:
        """One writer's row. Errors: StatisticError."""
        table = {"query": self.query, "key": self.key}.get(side)
        if table is None:
            raise StatisticError(f"{side=} is no side of a weight: give 'query' or 'key'.")
        row = next((row for row in table if row.writer == str(writer)), None)
        if row is None:
            raise StatisticError(
                f"{writer!s} wrote nothing on the {side}'s side: {plural(len(table), 'writer')} did, "
                f"{', '.join(row.writer for row in table[:5])} ..."
            )
        return row

    def further(
        self,
        lm: LoadedModel,
        head: str | Head,
        side: Literal["query", "key"] | None = None,
        against: Literal["rest"] | str | int = "rest",
    ) -> Why:
        """One step back: why a head among the writers looked where it did, from the token where it wrote.

        - `lm`: the model that was asked.
        - `head`: one of the writers.
        - `side`: as a writer of which side; None: where its share is larger.
        - `against`: as for `why`.

        Cost: as `why`. Errors: HeadError for what is no head that wrote there; as `why`.
        """
        from manyheads.circuits.why.weight import explain  # it makes these answers, and so imports this page

        shares = {
            of_side: row.share
            for of_side, table in (("query", self.query), ("key", self.key))
            for row in table
            if row.writer == str(head) and row.looks_at is not None and side in (None, of_side)
        }
        if not shares:
            heads = [row.writer for row in self.query if row.looks_at is not None]
            raise HeadError(
                f"{head!s} is no head that wrote {'either side' if side is None else f'the {side}'} of this weight: "
                f"there are {', '.join(heads[:5]) or 'none'}{' ...' if len(heads) > 5 else ''}."
            )
        of_side = max(shares, key=lambda name: abs(shares[name]))
        place = self.from_token if of_side == "query" else self.to_token
        return explain(lm, self.text, str(head), place.position, None, against)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each writer and side."""
        import pandas as pd

        rows = [
            {
                "side": side,
                "writer": row.writer,
                "kind": row.kind,
                "share": row.share,
                "at_rivals": row.at_rivals,
                "without": row.without,
                "odds_without": row.odds_without,
                "looks_at": None if row.looks_at is None else row.looks_at.position,
                "looks_at_token": None if row.looks_at is None else row.looks_at.token,
                "looks_at_weight": None if row.looks_at is None else row.looks_at.weight,
            }
            for side, table in (("query", self.query), ("key", self.key))
            for row in table
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> Json:
        """Plain data for JSON."""

        def look(look: Look | Place | None) -> dict[str, str | int | float] | None:
            return None if look is None else dict(look._asdict())

        tables = {
            side: [plain({**row._asdict(), "looks_at": look(row.looks_at)}) for row in table]
            for side, table in (("query", self.query), ("key", self.key))
        }
        return {
            "head": str(self.head),
            "from": look(self.from_token),
            "to": look(self.to_token),
            "against": "rest" if self.against is None else look(self.against),
            "weight": self.weight,
            "next": [look(other) for other in self.next],
            "log_odds": self.log_odds,
            "total": self.total,
            "rows": dict(self.rows),
            "rivals": self.rivals,
            "error": self.error,
            **tables,
            "pairs": [plain(pair._asdict()) for pair in self.pairs()],
            "massive": self.massive,
            "notes": dict(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write the table by its ending: .parquet, .csv or .json, whole or not at all. Errors: FileAccessError."""
        write_frame(self.to_pandas(), Path(path))

    @cached_property
    def _first_line(self) -> str:
        beside = ", ".join(f"{look!s} {look.weight:.2f}" for look in self.next)
        return (
            f"{self.head} from {self.from_token!s} to {self.to_token!s}: weight {self.weight:.2f}"
            f"{f' (next: {beside})' if beside else ''}"
        )

    def lines(self) -> tuple[str, ...]:
        """The answer in words: the weight, its sum, both sides' largest writers, the pairs."""
        against = "the rest" if self.against is None else str(self.against)
        terms = "".join(f" {value:+.2f} {self._row_words(name)}" for name, value in self.rows.items())
        lines = [
            self._first_line,
            f"  log-odds against {against} {self.log_odds:+.2f} = parts {self.total:+.2f}{terms}; sum exact to "
            f"{max(self.error, 1e-16):.0e}; norms held",
        ]
        if self.weight < NO_STORY:
            lines.append(f"  a weight under {NO_STORY:g} is no story: the head does not look there")
        lines.append(f"  query, written at {self.from_token!s}: {_in_words(self.query)}")
        lines.append(f"  key, written at {self.to_token!s}: {_in_words(self.key)}")
        if self.massive:
            lines.append(f"  {self.massive}")
        pairs = self.pairs()
        together = ", ".join(f"{pair.query} x {pair.key} {pair.share:+.2f}" for pair in pairs)
        cover = sum(pair.of_all for pair in pairs)
        lines.append(
            f"  together: {together}: {len(pairs)} of {self.pair_shares.size:,} pairs, {cover:.1%} of all without signs"
        )
        return tuple(lines)

    def _row_words(self, name: str) -> str:
        if name == "spread":
            return f"for the spread over {plural(self.rivals, 'other key')}"
        return f"for the {name}"

    def _repr_html_(self) -> str:
        columns = ["side", "writer", "kind", "share", "without", "looks at"]
        rows: list[list[str | int | float | None]] = [
            [side, row.writer, row.kind, row.share, row.without, "" if row.looks_at is None else str(row.looks_at)]
            for side, table in (("query", self.query), ("key", self.key))
            for row in sorted(table, key=lambda row: -abs(row.share))[:10]
        ]
        more = len(self.query) + len(self.key) - len(rows)
        note = f"{more} more: to_pandas() has them all." if more else ""
        return html_table(columns, rows, caption="\n".join(self.lines()[:2]), note=note)

    def __repr__(self) -> str:
        return brief(f"Why({self._first_line})")

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _in_words(table: Iterable[WriterShare]) -> str:
    """The largest shares for the weight, then those against it."""
    order = sorted(table, key=lambda row: -abs(row.share))
    order = [row for row in order if abs(row.share) >= LEAST]
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
