"""One weight of one head on one text: `Why`, what wrote its query's stream and its keys'; `explain` makes it."""

# device: one row of one text, moved to the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor

from manyheads.attention import exact_arithmetic
from manyheads.base import Json, brief, html_table, plain, plural
from manyheads.circuits.residual import Stream
from manyheads.circuits.why.reading import (
    Places,
    TextOrRecording,
    TokenNames,
    call_of,
    head_of,
    read_along,
    read_one,
    require_same,
    require_seen,
)
from manyheads.circuits.why.result import NO_STORY, Look, PairShare, Place, WriterShare, in_words
from manyheads.circuits.why.row import Row
from manyheads.circuits.why.sides import Split, Writer, split
from manyheads.errors import HeadError, StatisticError, TextError
from manyheads.heads import Head, HeadLike, component_name
from manyheads.inputs import Batch
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.results import NotIterated, Plotted, Tabular

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

PAIRS = 5  # pairs in words
NEXT = 2  # other keys that are named
LEAST_KEYS = 4  # of which one may be unlike the others
RIVAL = 0.25  # of the rest of the row, to be named as a rival
LEADING = 3  # among so many of a side's largest shares, to explain it
MASSIVE = 10.0
"""A token's stream this many times as long as that of others is a massive activation (Sun et al. 2024: hundreds)."""
Against = Literal["rest"] | str | int


@dataclass(frozen=True, eq=False)
class Why(Plotted, Tabular, NotIterated):
    """Why a head looks from one token to another: the log-odds of that weight, split over what was written.

    - `query`, `key`: a row for each writer of the query's stream, and of the keys'; the largest shares first. Each of
      the two adds up to `total`: they are two views of the same sum, one by the query's writers, one by the key's.
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

    def of(self, writer: HeadLike, side: Literal["query", "key"]) -> WriterShare:
        """One writer's row. Errors: StatisticError."""
        table = {"query": self.query, "key": self.key}.get(side)
        if table is None:
            raise StatisticError(f"{side=} is not a side of a weight: give 'query' or 'key'.")
        name = component_name(writer)
        row = next((row for row in table if row.writer == name), None)
        if row is None:
            raise StatisticError(
                f"{name} wrote nothing on the {side}'s side: {plural(len(table), 'writer')} did, "
                f"{', '.join(row.writer for row in table[:5])} ..."
            )
        return row

    def further(
        self,
        lm: LoadedModel,
        head: HeadLike,
        side: Literal["query", "key"] | None = None,
        against: Against = "rest",
    ) -> Why:
        """One step back: why a head among the writers looked where it did, from the token where it wrote.

        - `lm`: the model that was asked.
        - `head`: one of the writers.
        - `side`: as a writer of which side; None: where its share is larger.
        - `against`: as for `why`.

        Cost: as `why`. Errors: HeadError for what is not a head that wrote there; as `why`.
        """
        name = component_name(head)
        shares = {
            of_side: row.share
            for of_side, table in (("query", self.query), ("key", self.key))
            for row in table
            if row.writer == name and row.looks_at is not None and side in (None, of_side)
        }
        if not shares:
            heads = [row.writer for row in self.query if row.looks_at is not None]
            raise HeadError(
                f"{name} is not a head that wrote {'either side' if side is None else f'the {side}'} of this weight: "
                f"these did, {', '.join(heads[:5]) or 'none'}{' ...' if len(heads) > 5 else ''}."
            )
        of_side = max(shares, key=lambda side: abs(shares[side]))
        place = self.from_token if of_side == "query" else self.to_token
        return explain(lm, self.text, name, place.position, None, against)

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
        lines.append(f"  query, written at {self.from_token!s}: {in_words(self.query)}")
        lines.append(f"  key, written at {self.to_token!s}: {in_words(self.key)}")
        if self.massive:
            lines.append(f"  {self.massive}")
        pairs = self.pairs()
        together = ", ".join(f"{pair.query} x {pair.key} {pair.share:+.2f}" for pair in pairs)
        cover = sum(pair.of_all for pair in pairs)
        lines.append(
            f"  together: {together}: {len(pairs)} of {self.pair_shares.size:,} pairs, {cover:.1%} of all pairs' sizes"
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


def explain(
    lm: LoadedModel,
    text: TextOrRecording,
    head: HeadLike,
    query: str | int = -1,
    key: str | int | None = None,
    against: Against = "rest",
) -> Why:
    """`why` of one weight: its arguments and errors are there."""
    of_head = head_of(lm, head)
    site = lm.spec.site_of(of_head)
    batch = read_one(lm, text)
    names = TokenNames.of(lm, batch, site)
    asks = names.queries.place(query, "query") + names.queries.first
    # Before the model runs, so that a wrong word costs nothing.
    looked = None if key is None else names.keys.place(key, "key") + names.keys.first
    rival = None if against == "rest" else names.keys.place(against, "against") + names.keys.first
    stream = read_along(lm, batch, [site])
    call = call_of(stream, site)
    if isinstance(text, Recording):
        require_same(lm, text, call, asks)
    written = [entry for entry in stream.entries if entry.kind != "bias"]
    if len(written) == 1:
        raise HeadError(
            f"{of_head} is in the first layer, where the {written[0].name} alone has written: there is nothing to tell "
            f"apart. Choose a head in a later layer."
        )
    row = Row.of(call, of_head.index, asks)
    weights = row.weights(row.products)
    looked = int(weights.argmax()) if looked is None else looked
    for place in (looked, rival):
        if place is not None:
            require_seen(of_head, row, names, asks, place)
    if rival == looked:
        raise TextError(f"against={against!r} is the key itself, {names.keys.at(looked)}: give another, or 'rest'.")
    if int(row.visible.sum()) + (row.sink is not None) < 2:
        raise TextError(
            f"{of_head} sees {names.keys.at(looked)} alone from {names.queries.at(asks)}: a weight of 1, whatever "
            f"was written."
        )
    others = weights.clone()
    others[looked] = -1
    order = others.argsort(descending=True)[: min(NEXT, int(row.visible.sum()) - 1)].tolist()
    return Why(
        head=of_head,
        from_token=names.queries.at(asks),
        to_token=names.keys.look(looked, float(weights[looked])),
        against=None if rival is None else names.keys.look(rival, float(weights[rival])),
        next=tuple(names.keys.look(place, float(weights[place])) for place in order),
        rivals=int(row.visible.sum()) - 1,
        text=text if not isinstance(text, Recording) else text.tokens.texts[0],
        **_split_fields(lm, batch, stream, row, names, asks, looked, rival),
    )


def _split_fields(
    lm: LoadedModel,
    batch: Batch,
    stream: Stream,
    row: Row,
    names: TokenNames,
    query: int,
    key: int,
    against: int | None,
) -> dict[str, Any]:
    """The fields of a `Why` that come from the split."""
    contrast, site = row.contrast(key, against), row.call.site
    with exact_arithmetic():
        query_side = split(lm, batch, stream, row, "query", contrast.keys)
        key_side = split(lm, batch, stream, row, "key", contrast.keys)
    rows = {name: float(value) for name, value in contrast.rows.items()}
    log_odds, named = float(row.log_odds(row.products, key, against)), sum(rows.values())
    sites = {entry.call.site.stack: entry.call.site for entry in stream.entries if entry.call is not None}
    names_of = {stack: TokenNames.of(lm, batch, of_stack).keys for stack, of_stack in sites.items()}
    tables: list[tuple[WriterShare, ...]] = []
    orders: list[Tensor] = []
    errors: list[float] = []
    for of_side, place in ((query_side, query), (key_side, key)):
        shares = of_side.products @ contrast.keys
        errors.append(abs(float(shares.sum() + of_side.rounding @ contrast.keys) + named - log_odds))
        gone, odds = row.weights(of_side.without)[:, key], row.log_odds(of_side.without, key, against)
        rivals = None if of_side is query_side else shares - of_side.products[:, key]
        looks = _looks(stream, of_side, place, names_of)
        orders.append(shares.argsort(descending=True, stable=True))
        tables.append(
            tuple(
                WriterShare(
                    of_side.writers[number].name,
                    of_side.writers[number].kind,
                    float(shares[number]),
                    float(gone[number]),
                    float(odds[number]),
                    looks.get(of_side.writers[number]),
                    None if rivals is None else float(rivals[number]),
                )
                for number in orders[-1].tolist()
            )
        )
    total = float((query_side.products @ contrast.keys).sum())
    missing = float(query_side.rounding @ contrast.keys)
    rows |= {"rounding": missing} if missing else {}
    together = row.call.rule.scale * query_side.vectors @ key_side.vectors.T
    return {
        "query": tables[0],
        "key": tables[1],
        "pair_shares": together[orders[0]][:, orders[1]].numpy(),
        "log_odds": log_odds,
        "total": total,
        "rows": rows,
        "error": max(errors),
        "massive": _massive(key_side, row, key, contrast.keys, names.keys),
        "notes": {"model": lm.name, "layer": str(site), "norms": "each norm's scale is held at its value in the run"},
    }


def _looks(stream: Stream, side: Split, place: int, keys_of: Mapping[str, Places]) -> dict[Writer, Look]:
    """Where each head among the writers looks most, from the place where it wrote."""
    looks: dict[Writer, Look] = {}
    by_entry: dict[int, list[Writer]] = {}
    for writer in side.writers:
        if writer.kind == "head":
            by_entry.setdefault(writer.entry, []).append(writer)
    for number, writers in by_entry.items():
        call = stream.entries[number].call
        assert call is not None
        keys = keys_of[call.site.stack]
        weights, tops = Row.weights_of_layer(call, place).max(-1)
        for writer in writers:
            looks[writer] = keys.look(int(tops[writer.row]), float(weights[writer.row]))
    return looks


def _massive(side: Split, row: Row, key: int, contrast: Tensor, names: Places) -> str:
    """Which token's massive activation explains the weight, as the key or as its rival, in words."""
    if side.stream is None or len(side.places) < LEAST_KEYS:
        return ""
    usual = float(side.stream.median())
    lines = []
    for number, place in enumerate(side.places.tolist()):
        ratio = float(side.stream[number]) / max(usual, 1e-300)
        parts = side.products[:, place] * contrast[place]
        if ratio < MASSIVE or (place != key and -float(contrast[place]) < RIVAL):
            continue
        # Who wrote most of it, and so what the head looks at there, or is held against the key.
        writer = int(side.lengths[:, number].argmax())
        if float(side.lengths[writer, number]) < 0.5 * float(side.stream[number]):
            continue
        order = ((side.products @ contrast) if place == key else -parts).argsort(descending=True)[:LEADING].tolist()
        if writer in order:
            token = names.at(place)
            lines.append(
                f"{'the key' if place == key else 'a rival'} “{token.token.strip() or token.token}” ({token.position}) "
                f"holds a massive activation: {side.writers[writer].name} made its stream {ratio:.0f} times as long as "
                f"that of a usual token, and heads that find nothing to read often look at such a token"
            )
    return "; ".join(lines)
