"""What a statistic is: which reductions it needs from the pass, and how their answers become one number for each head.

A statistic of a head over many texts is `sum(numerator) / sum(denominator)`, both summed over texts: so the sums of
batches, files and machines add up to the same number. (A few are the largest value of any text: `maximum`.) One of
your own takes ten lines (docs/reference/statistics.md):

    sharp = Statistic(
        name="sharp_rows",
        needs=(Maximum(),),
        finish=lambda facts: facts.over_rows(facts[Maximum()] > 0.5),
        definition=lambda weights: (weights.amax(-1) > 0.5).double().mean(),
    )
    mh.measure(lm, texts, statistics=["entropy", sharp])

One that is to belong to the table is a function in a file of `defined/` that returns `Statistic`s, a line of `table.py`
that calls it, and its oracle in `reference/statistics.py`; `make pages` then writes it into the docs.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from manyheads.attention import Mask
from manyheads.errors import StatisticError
from manyheads.recording import Layer
from manyheads.recording.exact_map import Reduced, Request
from manyheads.spec import CROSS
from manyheads.texts import Tokens

T = TypeVar("T")
SHARE = (0.0, 1.0)  # the range of a share
SELF = "self"  # a map whose rows and keys are the same tokens; the other kind is CROSS
SELF_ONLY, CROSS_ONLY, ANY_MAP = frozenset({SELF}), frozenset({CROSS}), frozenset({SELF, CROSS})


class PerText(NamedTuple):
    """Numerator and denominator of each text and head, float64. A head axis of 1 stands for all heads."""

    num: Float[Tensor, "b h"]
    den: Float[Tensor, "b h"]


@dataclass(frozen=True, eq=False)
class Facts:
    """The argument of `finish`: the pass's answers, and facts about rows, tokens and values, each computed once.

    All of it is on the host, but for `layer`, whose tensors are where the model is.
    """

    reduced: Reduced
    value_norms: Float[Tensor, "b h k"] | None = None
    layer: Layer | None = None

    def __getitem__(self, request: Request) -> Float64[Tensor, "b h ..."]:
        """A request's answer, in float64: sums over thousands of rows are made from it."""
        if request not in self._double:
            self._double[request] = self.reduced[request].double()
        return self._double[request]

    @cached_property
    def _double(self) -> dict[Request, Tensor]:
        return {}

    @cached_property
    def of_layer(self) -> dict[object, Any]:
        """Values that blocks compute for this layer and share with each other."""
        return {}

    @property
    def tokens(self) -> Tokens:
        return self.reduced.tokens

    @property
    def keys(self) -> Tokens:
        """The tokens that are looked at: `tokens` themselves, but in cross-attention."""
        return self.reduced.keys

    def cached(self, key: object, compute: Callable[[], T]) -> T:
        """A value that depends on tokens and mask alone: computed for the first layer, reused for the others."""
        return self.reduced.plan.once(self.reduced.mask, key, compute)

    @property
    def rows(self) -> Bool[Tensor, "b q"]:
        """Rows that see at least one key."""
        return self.cached("rows", lambda: self.reduced.rows)

    @property
    def visible(self) -> Float[Tensor, "b q"]:
        """How many keys each row sees."""
        return self.cached("visible", lambda: self.reduced.mask.counts().double().expand(self.tokens.num_texts, -1))

    @cached_property
    def row_index(self) -> Float[Tensor, "q"]:
        return torch.arange(self.rows.shape[1], dtype=torch.float64)

    @cached_property
    def key_index(self) -> Float[Tensor, "k"]:
        return torch.arange(self.reduced.mask.num_keys, dtype=torch.float64)

    def uniform(self, column: Float[Tensor, "b k"]) -> Float[Tensor, "b q"]:
        """The mass on `column` if every row spread its weight evenly over the keys that it sees."""
        return self.reduced.mask.uniform_mass(column)

    def over_rows(
        self, values: Float[Tensor, "b h q"] | Bool[Tensor, "b h q"], rows: Bool[Tensor, "b q"] | None = None
    ) -> PerText:
        """The sum of one value for each row (True counts 1) over the rows that count, and their number."""
        rows = self.rows if rows is None else rows & self.rows
        # `where`, not a product: a value of a row that does not count may be NaN, and 0 times NaN is NaN.
        values = values.double() if values.dtype == torch.bool else values
        return PerText(torch.where(rows[:, None], values, 0.0).sum(-1), row_count(rows))


def title_of(name: str) -> str:
    """A statistic's name in words: the mass of `previous_mass` is a share of all attention."""
    return re.sub(r"_mass\b", "_share", name).replace("_", " ")


def row_count(rows: Bool[Tensor, "b q"]) -> Float64[Tensor, "b one"]:
    """How many rows of each text count: a denominator that all heads share."""
    return rows.sum(-1, dtype=torch.float64)[:, None]


def evenly(mask: Mask, tokens: Tokens) -> Float[Tensor, "b k"]:
    """What each key would receive if every row spread its weight evenly over the keys that it sees. Cost: O(n)."""
    if mask.dense is not None:
        seen_by_heads = mask.dense.double().mean(1)
        return (seen_by_heads / seen_by_heads.sum(-1, keepdim=True).clamp_min(1)).sum(1).float()
    # Each row adds its share to a run of keys: write the share where the run starts, take it back where it stops, and
    # sum up along the keys once.
    share = 1.0 / mask.counts().clamp_min(1).double() * (mask.counts() > 0)
    steps = torch.zeros(tokens.num_texts, mask.num_keys + 1, dtype=torch.float64)
    steps.scatter_add_(1, mask.start, share)
    steps.scatter_add_(1, mask.stop, -share)
    return steps.cumsum(1)[:, : tokens.longest].float()


BURSTY = {
    *("punctuation", "number", "capitalised", "rare", "duplicate", "induction", "previous_copy"),
    *("rarest_top", "two_rarest_top"),
}
"""Subjects of statistics of words that come in bursts."""


class Block(NamedTuple):
    """Many statistics that are computed together: `compute(facts)` returns all of them, `[b, h, column]` twice.

    For what would be wasteful one by one: a head's accuracies for every relation of a treebank come from one map.
    The denominators' head axis may be 1. Statistics of a block name it and their column; a table may ask for some.
    """

    name: str
    compute: Callable[[Facts], tuple[Float[Tensor, "b h c"], Float[Tensor, "b g c"]]]


Needs = Callable[[Tokens], tuple[Request, ...]]
Finish = Callable[[Facts], PerText]
Cells = Callable[[Tokens, int], Bool[Tensor, "q k"]]


def of_block(facts: Facts) -> PerText:
    """The `finish` of a statistic with a block: never called, since the block computes its columns together."""
    raise AssertionError("a statistic of a block is finished by its block")


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistic:
    """One definition, in keyword fields, of which `name`, `needs` and `finish` are required.

    `needs` are requests to the pass, or a function that makes them of the tokens; `finish` makes a numerator and a
    denominator for each text and head of their answers and of other `Facts`. `unit` and `range` say what a value means;
    `meaning` is one line for people; `source` is where the formula is from. `kind` is "statistic" or "chance"; `asks`
    names what must be known: "tokens", "sinks", "values".
    `definition` is the same of one text's whole map, against which `measurement.check_definition` holds it: a function
    of what its arguments name (see there) that returns a head's value, NaN where the text has no case of it.
    A statistic with a `block` is that block's `column`, and its `finish` is not called.
    `cells(tokens, text)` are the cells of one text's map, visible or not, whose weights the statistic counts; None
    where it is about a whole row, as the entropy is. Examples of a role show links from among these cells.
    `by_row`: whether it is the mean of numbers that each row has by itself, wherever it stands, so that rows sampled
    from a text too long to read whole still give it (`measure_recording`).
    `maximum`: it is the largest of its texts' values, no quotient of sums: `finish` gives a text's own maximum as the
    numerator, and as the denominator 1, or 0 where the text has none. It has no interval.
    `maps`: of which maps it has a meaning, of a text's attention to itself (SELF), of cross-attention (CROSS), or both.
    """

    name: str
    needs: Needs | tuple[Request, ...]
    finish: Finish
    unit: str = ""
    range: tuple[float, float] = (-math.inf, math.inf)
    source: str = ""
    meaning: str = ""
    kind: str = "statistic"
    asks: frozenset[str] = field(default_factory=frozenset)
    block: Block | None = None
    column: int = 0
    cells: Cells | None = None
    by_row: bool = False
    maps: frozenset[str] = SELF_ONLY
    maximum: bool = False
    definition: Callable[..., float | Tensor] | None = None

    def requests(self, tokens: Tokens) -> object:
        """What the pass is asked for on these tokens."""
        return self.needs(tokens) if callable(self.needs) else self.needs

    @property
    def title(self) -> str:
        """Its name as people read it: "previous share" of `previous_mass`."""
        return title_of(self.name)

    @property
    def description(self) -> dict[str, Any]:
        """What its numbers mean, as plain data for JSON."""
        return {
            **{name: getattr(self, name) for name in DESCRIBED},
            "range": [None if abs(end) == float("inf") else end for end in self.range],
            "asks": sorted(self.asks),
            "maps": sorted(self.maps),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """As its description: functions may be a caller's own, of a module that is not there where it is read.

        One of the table is pickled by its name (`statistics.table`), and measures as before.
        """
        return described, (self.description,)

    def __copy__(self) -> Statistic:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Statistic:
        return self

    @property
    def same_for_all_heads(self) -> bool:
        """Whether this is a chance level that depends on mask and tokens alone."""
        return self.name.endswith(".uniform")

    @property
    def bursty(self) -> bool:
        """Whether a few texts may hold most of it, so that an interval needs many.

        Words come in bursts (Church and Gale 1995): what repeats, is rare, a number, a capital or punctuation fills one
        list of names and is missing elsewhere. So do words that were shuffled, and what is known of few relations.
        """
        subject, _, level = self.name.partition(".")
        stem = re.sub("(_unsunk|_norm)?(_mass)?$", "", subject)
        return stem in BURSTY or (self.kind == "chance" and (level == "relabelled" or "." in level))


DESCRIBED = ("name", "unit", "source", "meaning", "kind", "by_row", "maximum", "column")
"""Of a statistic, what a file says of it besides its range, and what it asks and is of. How it is computed is code."""


def described(fields: dict[str, Any]) -> Statistic:
    """The statistic of a `description`: what its numbers mean. It measures nothing.

    Raises LookupError, TypeError or ValueError for what is none.
    """
    name, (low, high) = str(fields["name"]), fields["range"]

    def finish(_: Facts) -> PerText:
        raise StatisticError(
            f"{name!r} was read from a file or a pickle, which says what it means and not how it is measured."
        )

    return Statistic(
        **{key: fields[key] for key in DESCRIBED},
        range=(-float("inf") if low is None else low, float("inf") if high is None else high),
        asks=frozenset(fields["asks"]),
        maps=frozenset(fields["maps"]),
        needs=lambda _: (),
        finish=finish,
    )


def shares_of(
    block: Block, columns: Iterable[tuple[str, str, str, str]], needs: tuple[Request, ...], asks: Iterable[str]
) -> list[Statistic]:
    """The statistics of a block whose columns are all shares: (name, meaning, source, kind) of each column."""
    known = frozenset(asks)
    return [
        Statistic(
            name=name,
            unit="share",
            range=SHARE,
            source=source,
            meaning=meaning,
            needs=lambda _: needs,
            finish=of_block,
            kind=kind,
            asks=known,
            block=block,
            column=column,
        )
        for column, (name, meaning, source, kind) in enumerate(columns)
    ]


def columns_named(statistics: Iterable[Statistic], names: Iterable[str]) -> list[Statistic]:
    """The statistics of a block that have these names, in their order; those by norm, and no others, ask for values."""
    by_name = {statistic.name: statistic for statistic in statistics}
    return [
        replace(by_name[name], asks=by_name[name].asks | {"values"}) if name.endswith(".norm") else by_name[name]
        for name in names
    ]
