"""What a head writes and what it looks for, in tokens: `mh.writes(lm, "L12H3")`, and with a text also on that.

A map says where a head looks, and nothing of what comes of it: a head may look at a name and write that it is not to be
said. From weights: the tokens that it promotes and suppresses where it looks at a token, whether that token is one of
them (copying), and whether it looks for the same token, or for the token that is predicted (matching), each beside
chance (`from_weights.py`). On a text: how much it writes at each position, beside its layer and the stream, which
tokens that promotes and suppresses in this run, and which keys gave it; and the directions along which its queries and
keys differ most on these texts (`on_text.py`).

What a head can write by its weights it may never write: a sink may hold its look. What it writes on one text it may
write there alone. So both are given.

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits" (OV and QK circuits, eigenvalues); Wang
et al. 2022 (name movers, copying after the first feed-forward); McDougall et al. 2023 (copy suppression).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from manyheads.base import Json, brief, html_table, one_of, plain
from manyheads.circuits.attribution import token_of
from manyheads.circuits.writes.from_weights import MOST, Circuits, Matching, Ranks, SiteCircuits, TraceShare, named
from manyheads.circuits.writes.on_text import Position, ReadDirection, on_texts
from manyheads.circuits.writes.vocabulary import SOURCES, Source
from manyheads.edits import require_loaded
from manyheads.errors import HeadError, StatisticError, TextError
from manyheads.heads import Head, HeadLike, HeadsLike
from manyheads.inputs import InputsLike
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel
from manyheads.progress import ShowProgress, shows_progress
from manyheads.results import NotIterated, Plotted, Tabular

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

LISTED = 8  # tokens at either end of a table
OFTEN = 0.05  # of the words: what a head does to fewer of them is no habit
STRONGEST = 3  # positions
NOTED = 0.05  # of an output: a key that gave less is not named in words
NAMED = 4  # tokens at either end, in words


class TokenTable(NamedTuple):
    """What a head writes where it looks at `token`: tokens with their logits, less the mean over the vocabulary.

    For a source of length 1 a dimension: compare values only within one head.
    """

    token: str
    promoted: tuple[tuple[str, float], ...]
    suppressed: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Writes(Plotted, Tabular, NotIterated):
    """What one head writes and looks for, in tokens.

    - `head`, `source`: the head, and what stands for a token where it reads one (`SOURCES` says it in words).
    - `copying`: the trace share of what it writes of a token, 1 (promotes the token it looks at) to -1 (suppresses it),
      beside the standard deviation of chance: shuffled vocabularies.
    - `ranks`: in which share of 400 words the word itself is among the five most promoted (`copies`) or most suppressed
      (`suppresses`) tokens, its median rank, and chance.
    - `matching`: what it looks for, by the same measure of its queries and keys: "the same token", "the token
      predicted". Empty where that is not asked; `notes["matching"]` says why.
    - `tables`: what it writes of some tokens (`table`).
    - `positions`: on a text, a row for each position; empty without one.
    - `directions`: on a text, along which its queries and keys differ most, beside chance; empty without one.
    - `notes`: how tokens are read out, what is left out.
    """

    instead = "its tables are .table(token), its rows on a text .positions"

    head: Head
    source: Source
    copying: TraceShare
    ranks: Ranks
    matching: Mapping[Matching, TraceShare]
    tables: tuple[TokenTable, ...]
    positions: tuple[Position, ...]
    directions: tuple[ReadDirection, ...]
    notes: dict[str, str]

    @property
    def strongest(self) -> tuple[Position, ...]:
        """The three positions of the texts where it writes most, by length."""
        return tuple(sorted(self.positions, key=lambda row: -row.length)[:STRONGEST])

    @property
    def does(self) -> str:
        """What it does to the token that it looks at, by weights: "promotes", "suppresses" or "neither"."""
        if not self.copying.counts:
            return "neither"
        share = self.ranks.copies if self.copying.value > 0 else self.ranks.suppresses
        return "neither" if share < OFTEN else "promotes" if self.copying.value > 0 else "suppresses"

    @property
    def evidence(self) -> str:
        """What `does` rests on, in words: the trace share beside chance, and how the sample's words fare."""
        value, chance = self.copying
        side, share = max(
            (("promoted", self.ranks.copies), ("suppressed", self.ranks.suppresses)), key=lambda pair: pair[1]
        )
        return (
            f"copying {value:+.2f}, chance within ±{2 * chance:.2f}; among the {MOST} most {side} for {share:.0%} of "
            f"{self.ranks.num_words} words"
        )

    @property
    def habit(self) -> str:
        """`does` in words; where that is "neither", which way the weights lean, if they do."""
        if self.does != "neither":
            return f"{self.does} the token it looks at"
        if not self.copying.counts:
            return "neither promotes nor suppresses the token it looks at"
        way, end = ("to", "promoted") if self.copying.value > 0 else ("against", "suppressed")
        return f"leans {way} the token it looks at, which is seldom among the most {end}"

    @property
    def looks_for(self) -> Matching | None:
        """What it looks for, by weights: the question with the larger share, where that is beyond chance; else None."""
        clear = {name: of for name, of in self.matching.items() if of.value > 0 and of.counts}
        return max(clear, key=lambda name: clear[name].value) if clear else None

    def table(self, token: str | int) -> TokenTable:
        """What it writes where it looks at this token, of those that were asked for. Errors: TextError."""
        name = token if isinstance(token, str) else f"token {token}"
        for table in self.tables:
            if table.token == name or table.token.strip() == name.strip():
                return table
        listed = ", ".join(repr(table.token) for table in self.tables[:LISTED])
        raise TextError(
            f"there is no table for {name!r}, only for {listed or 'none'}: call writes(..., tokens=[{name!r}])."
        )

    def to_pandas(self) -> pd.DataFrame:
        """A row for each position of the texts; without texts, a row for each token that a table lists."""
        import pandas as pd

        if self.positions:
            rows = [
                {**row._asdict(), **{name: _words(getattr(row, name)) for name in ("promoted", "suppressed")}}
                for row in self.positions
            ]
            keys = [", ".join(f"{key.token!r} {key.value:.2f}" for key in row.keys) for row in self.positions]
            return pd.DataFrame(rows).assign(keys=keys)
        columns = ("looks_at", "does", "token", "value")
        cells = [
            (table.token, side, token, value)
            for table in self.tables
            for side in ("promoted", "suppressed")
            for token, value in getattr(table, side)
        ]
        return pd.DataFrame(cells, columns=list(columns))

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "head": str(self.head),
            "source": self.source,
            "does": self.does,
            "looks_for": self.looks_for,
            "copying": plain(self.copying._asdict()),
            "words": plain(self.ranks._asdict()),
            "matching": {name: plain(of._asdict()) for name, of in self.matching.items()},
            "tables": [plain(table._asdict()) for table in self.tables],
            "positions": [
                plain({**row._asdict(), "keys": [key._asdict() for key in row.keys]}) for row in self.positions
            ],
            "directions": [plain(row._asdict()) for row in self.directions],
            "notes": self.notes,
        }

    def _repr_html_(self) -> str:
        if self.positions:
            columns = ["position", "token", "length", "of its layer", "along it", "promoted", "suppressed"]
            rows = [
                [
                    row.position,
                    row.token,
                    row.length,
                    row.of_layer,
                    row.along,
                    _words(row.promoted),
                    _words(row.suppressed),
                ]
                for row in sorted(self.positions, key=lambda row: -row.length)
            ]
        else:
            columns = ["looks at", "promoted", "suppressed"]
            rows = [[table.token, _words(table.promoted), _words(table.suppressed)] for table in self.tables]
        return html_table(columns, rows, caption=str(self).partition("\n")[0], note="to_pandas() has them all.")

    def __repr__(self) -> str:
        return brief(f"Writes({self.head}: {self.habit}, copying {self.copying.value:+.2f})")

    def __str__(self) -> str:
        lines = [f"{self.head} writes: it {self.habit} ({self.evidence})"]
        scores = {name: f"{of.value:.2f}, chance ±{2 * of.chance:.2f}" for name, of in self.matching.items()}
        if self.looks_for is not None:
            others = "".join(f"; {name} {score}" for name, score in scores.items() if name != self.looks_for)
            lines.append(f"  looks for: {self.looks_for} (matching {scores[self.looks_for]}{others})")
        elif scores:
            lines.append(f"  looks for: neither {' nor '.join(f'{name} ({score})' for name, score in scores.items())}")
        else:
            lines.append("  looks for: not asked")
        for row in self.strongest:
            heard = [key for key in row.keys if abs(key.value) >= NOTED] or row.keys[:1]
            keys = ", ".join(f"{key.token!r} ({key.position}) {key.value:.2f}" for key in heard)
            lines.append(
                f"  at {row.token!r} ({row.position}): {row.of_layer:.2f} of its layer's length, {row.along:.2f} along "
                f"it, {row.of_stream:.2f} of the stream; from {keys}"
            )
            lines.append(f"    promotes {_words(row.promoted[:NAMED])}; suppresses {_words(row.suppressed[:NAMED])}")
        return "\n".join(lines)


def _words(pairs: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{token!r} {value:+.2f}" for token, value in pairs)


def writes(
    lm: LoadedModel,
    head: HeadLike,
    texts: InputsLike | None = None,
    *,
    source: Source | None = None,
    tokens: Sequence[str | int] = (),
) -> Writes:
    """What a head writes and what it looks for, in tokens: by its weights, and with texts also on those.

    - `lm`: a loaded model.
    - `head`: as "L12H3".
    - `texts`: for `positions` and `directions`; a long text is not cut into windows.
    - `source`: what stands for a token where the head reads it: "token" (its embedding and the first block's
      feed-forward on it: what later layers see), "embedding", or "prediction" (the direction that raises its logit,
      which late heads read). By default "token"; for a head of the first layer "embedding", which is all it reads.
    - `tokens`: which tokens to make tables of, each as the tokenizer has it (" Paris", most often with its blank) or by
      number. By default the words of the sample of which the head writes most.

    Cost: once for a model and source, the first block on every token of the vocabulary and three products over it (4
    seconds of a processor for 49,152 tokens of 576 numbers); then a tenth of a second a head. On texts two forward
    passes, the second with logits. Errors: HeadError; ModelError for a model or layer of which nothing is written in
    tokens (pictures, cross-attention, latent attention); TextError for tokens that are several; StatisticError for a
    source that there is not.
    """
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "writes")
    heads = lm.spec.select(head).heads
    if len(heads) != 1:
        raise HeadError(f"{head!r} is {len(heads)} heads: writes is about one; writes_of(lm, heads) has them all.")
    if source is not None:
        one_of("source", source, tuple(SOURCES), StatisticError, "stands for no token")
    ids = [token_of(lm, token, noun="token") for token in tokens]
    circuits = SiteCircuits.of(lm, lm.spec.site_of(heads[0]))
    result = _by_weights(lm, circuits, heads[0], source, ids)
    if texts is None:
        return result
    positions, directions, notes = on_texts(lm, circuits, heads[0].index, texts, LISTED)
    return replace(result, positions=positions, directions=directions, notes={**result.notes, **notes})


@shows_progress("reading what heads write")
def writes_of(
    lm: LoadedModel,
    heads: HeadsLike | None = None,
    *,
    source: Source | None = None,
    tokens: Sequence[str | int] = (),
    progress: ShowProgress = None,
) -> dict[Head, Writes]:
    """The same for many heads (None: all), by their weights alone; arguments and errors as for `writes`.

    `progress`: called with the number of heads that are done, and of all.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    require_loaded(lm)
    if source is not None:
        one_of("source", source, tuple(SOURCES), StatisticError, "stands for no token")
    chosen = lm.spec.heads.heads if heads is None else lm.spec.select(heads).heads
    ids = [token_of(lm, token, noun="token") for token in tokens]
    result: dict[Head, Writes] = {}
    shared: Circuits | None = None
    for site in lm.spec.sites:
        of_site = [head for head in site.heads if head in chosen]
        if not of_site:
            continue
        circuits = SiteCircuits.of(lm, site, shared)
        shared = circuits.shared
        for head in of_site:
            result[head] = _by_weights(lm, circuits, head, source, ids)
            if progress is not None:
                progress(len(result), len(chosen))
    return {head: result[head] for head in chosen}


def _by_weights(
    lm: LoadedModel, circuits: SiteCircuits, head: Head, source: Source | None, ids: Sequence[int]
) -> Writes:
    source = source or ("embedding" if circuits.is_first else "token")
    copying, (matching, matching_note) = circuits.copying(head.index, source), circuits.matching(head.index)
    ranks, written = circuits.in_tokens(head.index, source, ids, LISTED)
    tables = tuple(
        TokenTable(named(lm, token), *(tuple((named(lm, index), value) for index, value in side) for side in sides))
        for token, *sides in written
    )
    notes = {"model": lm.name, "source": SOURCES[source], "matching": matching_note}
    readout = circuits.readout
    notes["read out"] = f"by the embedding table: {readout.by_embedding}" if readout.by_embedding else "by its logits"
    notes["left out"] = "each norm's scale, which differs by token; biases"
    if circuits.shared.folds[lm.spec.sites.index(circuits.site)].passes:
        notes["left out"] += "; the norms that the stream itself passes between layers"
    return Writes(head, source, copying, ranks, matching, tables, (), (), notes)
