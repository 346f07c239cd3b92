"""Why a head looks there over texts: means of contrasts over rows of a kind, and their chance.

Contrasts are averaged, never shares of totals: a row with a small total would count as much as one with a large one.
Rows of a text are one sum, so that a text costs one backward pass a side, however many rows it has. The interval is
over texts. The null: what the largest mean of any writer would be if within each text the writers' shares belonged to
other writers (drawn at random); a writer within it may be there by chance.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int
from numpy import ndarray
from torch import Tensor

from manyheads.attention import exact_arithmetic
from manyheads.base import Json, brief, html_table, one_of, plain, plural
from manyheads.circuits.attribution import EXACT
from manyheads.circuits.residual import Stream
from manyheads.circuits.why.reading import TokenNames, call_of, read_along
from manyheads.circuits.why.result import LEAST_SHARE, LISTED, NO_STORY
from manyheads.circuits.why.row import Row
from manyheads.circuits.why.sides import Reach, Shares, Side, shares_of
from manyheads.edits import require_loaded
from manyheads.errors import ModelError, StatisticError, TextError
from manyheads.heads import Head, HeadsLike
from manyheads.inputs import Batch, Inputs, InputsLike, read
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel
from manyheads.results import NotIterated, Plotted, Tabular
from manyheads.spec import Site
from manyheads.statistics import mean_interval

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

Kind = Literal["induction", "previous", "first", "largest"]
Pick = Callable[[tuple[str, ...]], Iterable[tuple[int, int]]]
Where = Kind | Pick
"""Which rows: a kind, or a function of a text's tokens that gives pairs (query, key) of positions."""
SHUFFLES = 400
MIN_TEXTS = 5  # for an interval, and for a null


class WriterMean(NamedTuple):
    """What a writer gave one side, in nats: the mean over texts of the mean over rows, with its 95 % interval.

    NaN: fewer than five texts. `in_texts`: in how many of them it has the sign of the mean.
    """

    writer: str
    kind: str
    share: float
    low: float
    high: float
    in_texts: int


@dataclass(frozen=True, eq=False)
class WhyMeans(Plotted, Tabular, NotIterated):
    """Why a head looks at keys of a kind, over texts.

    - `where`, `rows`: which rows, and how many of each text; texts without one are left out (`left_out` of them).
    - `weight`, `log_odds`, `total`, `named`: means over texts of the weight, of its log-odds against the rest, of the
      part that writers add up to, and of the named rows.
    - `query`, `key`: a `WriterMean` for each writer, the largest first. Each adds up to `total`.
    - `null`: of each side, the size that the largest mean of any writer has in 95 of 100 shuffles of the writers.
    - `error`: the largest distance of a text's sum from the model's own mean log-odds.
    """

    instead = "its tables are .query and .key, and to_pandas() has a row for each writer"

    head: Head
    where: str
    rows: tuple[int, ...]
    left_out: int
    weight: float
    log_odds: float
    total: float
    named: dict[str, float]
    query: tuple[WriterMean, ...]
    key: tuple[WriterMean, ...]
    null: dict[str, float]
    error: float
    notes: dict[str, str]

    def to_pandas(self) -> pd.DataFrame:
        """A row for each writer and side."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"side": side, **row._asdict()}
                for side, table in (("query", self.query), ("key", self.key))
                for row in table
            ]
        )

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "head": str(self.head),
            "where": self.where,
            "rows": list(self.rows),
            "left_out": self.left_out,
            "weight": self.weight,
            "log_odds": self.log_odds,
            "total": self.total,
            "named": dict(self.named),
            "query": [plain(row._asdict()) for row in self.query],
            "key": [plain(row._asdict()) for row in self.key],
            "null": plain(self.null),
            "error": self.error,
            "notes": dict(self.notes),
        }

    @cached_property
    def _first_line(self) -> str:
        return (
            f"{self.head}, {self.where}: weight {self.weight:.2f} in the mean of {plural(sum(self.rows), 'row')} of "
            f"{plural(len(self.rows), 'text')}"
        )

    def lines(self) -> tuple[str, ...]:
        """The answer in words."""
        terms = "".join(f" {value:+.2f} for the {name}" for name, value in self.named.items())
        lines = [
            self._first_line,
            f"  log-odds against the rest {self.log_odds:+.2f} = parts {self.total:+.2f}{terms}; sums exact to "
            f"{max(self.error, 1e-16):.0e}; norms held",
        ]
        if self.weight < NO_STORY:
            lines.append(f"  a weight under {NO_STORY:g} is no story: the head does not look there")
        for side, table in (("query", self.query), ("key", self.key)):
            order = sorted(table, key=lambda row: -abs(row.share))
            order = [row for row in order if abs(row.share) >= LEAST_SHARE]
            signs = ([row for row in order if row.share > 0][:LISTED], [row for row in order if row.share < 0][:LISTED])
            words = [", ".join(_mean_in_words(row) for row in rows) for rows in signs]
            writers = "; ".join(part for part in (words[0], words[1] and f"against: {words[1]}") if part)
            null = "" if np.isnan(self.null[side]) else f" (by chance within +-{self.null[side]:.2f})"
            lines.append(f"  {side}{null}: {writers or 'nothing stands out'}")
        return tuple(lines)

    def _repr_html_(self) -> str:
        rows: list[list[str | int | float | None]] = [
            [side, row.writer, row.kind, row.share, row.low, row.high]
            for side, table in (("query", self.query), ("key", self.key))
            for row in sorted(table, key=lambda row: -abs(row.share))[:10]
        ]
        more = len(self.query) + len(self.key) - len(rows)
        note = f"{more} more: to_pandas() has them all." if more else ""
        columns = ["side", "writer", "kind", "share", "low", "high"]
        return html_table(columns, rows, caption="\n".join(self.lines()[:2]), note=note)

    def __repr__(self) -> str:
        return brief(f"WhyMeans({self._first_line})")

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _mean_in_words(row: WriterMean) -> str:
    return f"{row.writer} {row.share:+.2f}{'' if np.isnan(row.low) else f' ({row.low:+.2f} to {row.high:+.2f})'}"


class _OfText(NamedTuple):
    """Means over one text's rows of one head."""

    num_rows: int
    weight: float
    log_odds: float
    named: dict[str, float]
    sides: dict[Side, Shares]
    error: float


def why_means(
    lm: LoadedModel,
    texts: InputsLike,
    heads: HeadsLike | None = None,
    where: Where = "largest",
    *,
    progress: Callable[[int, int], object] | None = None,
) -> dict[Head, WhyMeans]:
    """Why heads look at keys of a kind, over texts: `why(..., where=...)` of many heads, by one run of each text.

    - `lm`: a loaded model.
    - `texts`: what is read.
    - `heads`: which; None: all that anything writes before.
    - `where`: "induction" (from a token to the one after its last occurrence), "previous", "first" (from every later
      token), "largest" (from every token to its largest weight), or a function of the tokens that gives (query, key).
    - `progress`: called with texts done and all.

    Cost: a forward pass, and for each layer what was written before it, and two backward passes along the stream for
    each head; q, k and norms of every layer in memory. Errors: as `why`; StatisticError for another `where`; TextError
    where no text has such a row.
    """
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "why")
    if not callable(where):
        one_of("where", where, get_args(Kind), StatisticError, "is not a kind of rows")
    chosen = lm.spec.heads if heads is None else lm.spec.select(heads)
    sites = [site for site in lm.spec.sites if any(head in chosen for head in site.heads)]
    reading = read(lm, Inputs.of(texts), only_texts=True)
    parts: dict[Head, list[_OfText]] = {head: [] for head in chosen}
    count = len(reading.pieces)
    for number in range(count):
        batch = reading.batch([number])
        stream = read_along(lm, batch, sites)
        for site in sites:
            of_site = _of_layer(lm, batch, stream, site, [head for head in site.heads if head in chosen], where)
            for head, of_text in of_site.items():
                parts[head].append(of_text)
            del stream.reads[str(site)]  # its graph is used
        if progress is not None:
            progress(number + 1, count)
    name = where if isinstance(where, str) else getattr(where, "__name__", "rows of a function")
    empty = [head for head, of_head in parts.items() if not of_head]
    if len(empty) == len(parts):
        raise TextError(
            f"no text has a row of where={name!r}: give texts in which a token comes again, or another kind."
        )
    return {head: _mean(lm, head, name, of_head, count) for head, of_head in parts.items() if of_head}


def pairs_of(where: Where, tokens: tuple[str, ...], ids: Sequence[int]) -> list[tuple[int, int]] | None:
    """The rows of a kind, (query, key); None: every query with its largest weight. Errors: TextError."""
    count = len(tokens)
    if callable(where):
        pairs = list(where(tokens))
        for pair in pairs:
            if len(pair) != 2 or not all(0 <= place < count for place in pair):
                raise TextError(
                    f"where gave {pair!r} for a text of {count} tokens: give (query, key), both 0 to {count - 1}."
                )
        return pairs
    if where == "largest":
        return None
    if where == "previous":
        return [(place, place - 1) for place in range(1, count)]
    if where == "first":
        return [(place, 0) for place in range(1, count)]
    last: dict[int, int] = {}
    pairs = []
    for place, token in enumerate(ids):
        # Where the token before is the same, the one after that is the token itself: no induction.
        if token in last and last[token] + 1 < place:
            pairs.append((place, last[token] + 1))
        last[token] = place
    return pairs


def _of_layer(
    lm: LoadedModel, batch: Batch, stream: Stream, site: Site, heads: Sequence[Head], where: Where
) -> dict[Head, _OfText]:
    """Of each head of a layer its means over one text's rows; none for heads that see none of them."""
    names, call = TokenNames.of(lm, batch, site), call_of(stream, site)
    side = batch.decoder if batch.decoder is not None and names.queries is not names.keys else batch.main
    assert side is not None
    ids = [] if side.tokens.ids is None else side.tokens.ids[0, : len(names.queries.tokens)].tolist()
    pairs = pairs_of(where, names.queries.tokens, ids)
    first = names.queries.first
    asks = list(range(len(names.queries.tokens))) if pairs is None else [query for query, _ in pairs]
    if not asks:
        return {}
    queries = torch.tensor(asks, device="cpu") + first
    of_heads: dict[Head, tuple[Row, Tensor]] = {}
    for head in heads:
        row = Row.of(call, head.index, queries)
        weights = row.weights(row.products)
        if pairs is None:
            keys = weights.argmax(-1)
        else:
            keys = torch.tensor([key for _, key in pairs], device="cpu") + names.keys.first
        seen = row.visible.gather(-1, keys[:, None])[:, 0]
        seen &= row.visible.sum(-1) + (row.sink is not None) >= 2
        if bool(seen.any()):
            of_heads[head] = row.some(seen), keys[seen]
    with exact_arithmetic():
        return _means_of_rows(lm, stream, of_heads)


def _means_of_rows(
    lm: LoadedModel, stream: Stream, of_heads: dict[Head, tuple[Row, Int[Tensor, "r"]]]
) -> dict[Head, _OfText]:
    reaches: dict[Side, list[Reach]] = {"query": [], "key": []}
    facts: list[tuple[Head, Row, Tensor, dict[str, float]]] = []
    for head, (row, keys) in of_heads.items():
        contrast, count = row.contrast(keys, None), len(keys)
        scale = row.call.rule.scale / count
        assert isinstance(row.query, Tensor)
        # Every place of the text, so that heads of a layer share what was written there.
        of_query = row.q.new_zeros(row.call.q.shape[2], row.q.shape[-1])
        of_query.index_add_(0, row.query, scale * contrast.keys @ row.k)
        of_key = scale * contrast.keys.T @ row.q
        cotangents: dict[Side, Tensor] = {"query": of_query, "key": of_key}
        for side, cotangent in cotangents.items():
            where = torch.arange(len(cotangent), device="cpu")
            reaches[side].append(Reach.of(lm, stream, row.call, head.index, side, where, cotangent))
        named = {name: float(value.mean()) for name, value in contrast.rows.items()}
        facts.append((head, row, keys, named))
    # Together, so that what is written at a place is made once for both sides of all heads.
    both = shares_of([*reaches["query"], *reaches["key"]])
    tables: dict[Side, list[Shares]] = {"query": both[: len(facts)], "key": both[len(facts) :]}
    out: dict[Head, _OfText] = {}
    for number, (head, row, keys, named) in enumerate(facts):
        log_odds = float(row.log_odds(row.products, keys, None).mean())
        weight = float(row.weights(row.products).gather(-1, keys[:, None]).mean())
        sides: dict[Side, Shares] = {side: of_side[number] for side, of_side in tables.items()}
        missed = []
        for side, table in sides.items():
            values = np.array([value for _, value in table.values()])
            missing = log_odds - sum(named.values()) - float(values.sum())
            exact = EXACT[torch.float32 if reaches[side][number].casts else row.call.q.dtype]
            if not abs(missing) <= exact * max(1.0, float(np.abs(values).sum()), float(row.products.abs().max())):
                raise ModelError(
                    f"{head} of {lm.name}: what wrote its {side} adds up to {values.sum():.6g} in the mean of its "
                    f"rows, and the model's own log-odds minus its named rows are "
                    f"{log_odds - sum(named.values()):.6g}: something that is not known here enters its stream, so "
                    f"its weights are not explained."
                )
            missed.append(abs(missing))
        out[head] = _OfText(len(keys), weight, log_odds, named, sides, max(missed))
    return out


def _mean(lm: LoadedModel, head: Head, where: str, parts: list[_OfText], count: int) -> WhyMeans:
    tables: dict[str, tuple[WriterMean, ...]] = {}
    null: dict[str, float] = {}
    sides: tuple[Side, Side] = ("query", "key")
    for side in sides:
        kinds = {name: kind for part in parts for name, (kind, _) in part.sides[side].items()}
        values = np.array([[part.sides[side].get(name, ("", 0.0))[1] for name in kinds] for part in parts])
        low, high = mean_interval(values)
        mean = values.mean(0)
        agrees = (np.sign(values) == np.sign(mean)).sum(0)
        rows = [
            WriterMean(name, kind, float(mean[n]), float(low[n]), float(high[n]), int(agrees[n]))
            for n, (name, kind) in enumerate(kinds.items())
        ]
        tables[side] = tuple(sorted(rows, key=lambda row: -row.share))
        null[side] = _chance(values)
    names = list(dict.fromkeys(name for part in parts for name in part.named))
    named = {name: float(np.mean([part.named.get(name, 0.0) for part in parts])) for name in names}
    return WhyMeans(
        head=head,
        where=where,
        rows=tuple(part.num_rows for part in parts),
        left_out=count - len(parts),
        weight=float(np.mean([part.weight for part in parts])),
        log_odds=float(np.mean([part.log_odds for part in parts])),
        total=float(sum(row.share for row in tables["query"])),
        named=named,
        query=tables["query"],
        key=tables["key"],
        null=null,
        error=max(part.error for part in parts),
        notes={
            "model": lm.name,
            "norms": "each norm's scale is held at its value in the run",
            "null": f"the writers of each text shuffled, {SHUFFLES} times",
        },
    )


def _chance(values: Float64[ndarray, "text writer"]) -> float:
    """The 95th percentile of the largest |mean| of any writer where writers are shuffled in each text; NaN of few."""
    if len(values) < MIN_TEXTS:
        return float("nan")
    rng = np.random.default_rng(0)
    largest = [float(np.abs(rng.permuted(values, axis=1).mean(0)).max()) for _ in range(SHUFFLES)]
    return float(np.quantile(largest, 0.95))
