"""One weight of one head on one text, explained."""

# device: one row of one text, moved to the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from manyheads.attention import exact_arithmetic
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
from manyheads.circuits.why.result import Look, Why, WriterShare
from manyheads.circuits.why.row import Row
from manyheads.circuits.why.sides import Split, Writer, split
from manyheads.errors import HeadError, TextError
from manyheads.heads import Head
from manyheads.inputs import Batch
from manyheads.models import LoadedModel
from manyheads.recording import Recording

NEXT = 2  # other keys that are named
LEAST_KEYS = 4  # of which one may be unlike the others
RIVAL = 0.25  # of the rest of the row, to be named as a rival
LEADING = 3  # among so many of a side's largest shares, to explain it
MASSIVE = 10.0
"""A token's stream this many times as long as that of others is a massive activation (Sun et al. 2024: hundreds)."""
Against = Literal["rest"] | str | int


def explain(
    lm: LoadedModel,
    text: TextOrRecording,
    head: str | Head,
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
            f"apart. Ask a head of a later layer."
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
            is_key = "the key holds" if place == key else "a rival holds"
            lines.append(
                f"{is_key} a massive activation: the stream of {names.at(place)} is {ratio:.0f} times as long as a "
                f"usual one, and {side.writers[writer].name} wrote it"
            )
    return "; ".join(lines)
