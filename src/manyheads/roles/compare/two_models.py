"""Two models of the same shape, or two checkpoints of one training: what differs in what their heads read.

Both read the same tokens, so heads can be set side by side, place by place. Three things are compared:

- statistics: `after - before` for every head. The interval is over texts that are resampled for both models together,
  since both have read the same ones: what makes one text unlike another then cancels;
- maps: how far apart the two maps of a head are, row by row, by the Jensen-Shannon divergence of `compare.rows`, made
  from q and k for a block of rows at a time, never an n x n map;
- labels, as `find_roles` gives them without a treebank, from the same reading.

Heads of models that were trained separately have nothing to do with each other at equal places: compare their roles.
Sources: Lin 1991 (the divergence); Efron and Tibshirani 1993, chapter 8 (paired data are resampled in pairs).
"""

# device: divergences are summed up on the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# torch's methods and pandas have no types here.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray

from manyheads.base import Json, brief, plural, whole
from manyheads.corpora import Corpus, as_corpus, is_about_texts
from manyheads.errors import ModelError, TextError
from manyheads.heads import Head, HeadLike
from manyheads.inputs import Inputs, InputsLike, Long, forward, require_reader
from manyheads.machine import require_all_heads
from manyheads.measurement import measure
from manyheads.measurement.corpus_run import Chunk, Chunked, chunks_of, read_chunk
from manyheads.models import LoadedModel, load
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.roles.compare.rows import MOST, RowKeeper, block_size, row_divergences, sharing_around
from manyheads.roles.labels import HeadRole, label
from manyheads.roles.rules import NEEDED
from manyheads.statistics import STATISTICS, HeadTable, Statistic, Sums, Survey, choose, may_need_survey, number
from manyheads.statistics.sums import has_cross, paired_interval

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

SAME_ROWS = 1e-9
"""Nats. Scores that are off by float32's rounding, up to 1e-4 for large ones, move a map by an eighth of its square."""
SAME_VALUE = 1e-5
"""Of the larger of two values: below it they differ by float32's rounding."""
EVERY_ROW = 1 << 40  # more than any text has
SHOWN = 5  # heads that a line names
READINGS = ("the first model", "the second model", "both maps")
"""The names of the readings, in their order, as `on_reading` is called with them."""


class Difference(NamedTuple):
    """One statistic of one head in both models, and `after - before` with its 95 % interval over the same texts.

    None where nothing was counted, and for the interval where too few texts have cases.
    """

    statistic: str
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None

    @property
    def is_rounding(self) -> bool:
        """Whether the two values differ by no more than float32's rounding."""
        larger = max(abs(self.before or 0.0), abs(self.after or 0.0))
        return abs(self.difference or 0.0) <= SAME_VALUE * larger

    @property
    def is_clear(self) -> bool:
        """Whether it is more than rounding, and its interval leaves out 0."""
        if self.low is None or self.high is None or self.is_rounding:
            return False
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class HeadComparison:
    """One head in two models.

    `moved`: the mean Jensen-Shannon divergence of its rows in the two, in nats (0 to ln 2), with its 95 % interval over
    texts; None where its layer does not attend over whole texts. `label_before` and `label_after`: None where labels
    were not asked for. `differs`: whether anything is more than rounding.
    """

    head: Head
    differs: bool
    moved: float | None
    moved_low: float | None
    moved_high: float | None
    label_before: str | None
    label_after: str | None
    differences: tuple[Difference, ...]

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        rows = {}
        for difference in self.differences:
            rows[difference.statistic] = {**difference._asdict(), "clear": difference.is_clear}
            del rows[difference.statistic]["statistic"]
        return {**vars(self), "head": str(self.head), "differences": rows}


@dataclass(frozen=True, eq=False)
class Comparison(PerHeadResult):
    """What differs between the heads of two models: a table with a row for each head, the biggest changes first by
    `changed`.

    `before` and `after` are the tables of the two models on the same texts. `statistics` are those that were asked for;
    the tables hold more if labels were asked for. `moved`: how far apart each head's maps are, in nats (0 to ln 2),
    with the ends of its interval; `labels`: each head's label in both, none where they were not asked for, and none of
    cross-attention. `num_texts` counts different texts. `notes` say what all rests on.
    """

    missing: ClassVar[str] = "here: {first} to {last} were compared."

    models: tuple[str, str]
    before: HeadTable
    after: HeadTable
    statistics: tuple[str, ...]
    moved: Float64[ndarray, "head"]
    moved_low: Float64[ndarray, "head"]
    moved_high: Float64[ndarray, "head"]
    labels: tuple[tuple[HeadRole, HeadRole], ...]
    num_texts: int
    num_rows: int
    notes: dict[str, str]

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads, in the models' order."""
        return self.before.heads

    def difference(self, statistic: str) -> Float64[ndarray, "head"]:
        """`after - before` of every head. Errors: StatisticError for one that was not measured."""
        return self.after.column(statistic) - self.before.column(statistic)

    def interval(self, statistic: str) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """The 95 % interval of `difference` over the texts that both read; NaN where neither value has an interval."""
        unknown = np.isnan(self.before.interval(statistic)[0]) & np.isnan(self.after.interval(statistic)[0])
        place = self.before.names.index(statistic)
        low, high = (np.where(unknown, np.nan, end[:, place]) for end in self._intervals)
        return low, high

    @cached_property
    def _intervals(self) -> tuple[Float64[ndarray, "head statistic"], Float64[ndarray, "head statistic"]]:
        return paired_interval(self.before.sums, self.after.sums)

    @cached_property
    def _spread(self) -> dict[str, float]:
        """How much the first model's heads differ among themselves in each statistic (standard deviation)."""
        columns = {name: self.before.column(name) for name in self.statistics}
        finite = {name: column[np.isfinite(column)] for name, column in columns.items()}
        return {name: float(values.std()) if len(values) else 0.0 for name, values in finite.items()}

    @cached_property
    def differs(self) -> Bool[ndarray, "head"]:
        """Whether a head's map, or a statistic of it, changed by more than rounding."""
        moved = np.nan_to_num(self.moved) > SAME_ROWS
        by_value = [not all(row.is_rounding for row in rows) for rows in self._differences]
        return moved | np.array(by_value)

    @cached_property
    def _differences(self) -> tuple[tuple[Difference, ...], ...]:
        """Of each head, every statistic that was asked for."""
        rows: list[list[Difference]] = [[] for _ in self.heads]
        for name in self.statistics:
            values = (self.before.column(name), self.after.column(name), self.difference(name), *self.interval(name))
            for row, *of_head in zip(rows, *values, strict=True):
                row.append(Difference(name, *map(number, of_head)))
        return tuple(map(tuple, rows))

    @cached_property
    def changed(self) -> tuple[HeadComparison, ...]:
        """The heads that differ, the furthest apart first."""
        order = np.argsort(-np.nan_to_num(self.moved), kind="stable")
        return tuple(self[self.heads[index]] for index in order if self.differs[index])

    @cached_property
    def relabelled(self) -> tuple[HeadComparison, ...]:
        """The heads whose label changed, the furthest apart first. A head may move far and keep its label."""
        return tuple(head for head in self.changed if head.label_before != head.label_after)

    @cached_property
    def num_clear(self) -> int:
        """The number of differences whose interval leaves out 0; by chance alone, one in twenty would."""
        return sum(row.is_clear for head in self.changed for row in head.differences)

    def largest(self, head: HeadLike) -> Difference | None:
        """The statistic that changed most, as a share of what heads of the first model differ among themselves.

        Among those whose interval leaves out 0, unless none has an interval; None if there is none. Errors: HeadError.
        """
        rows = [row for row in self[head].differences if self._spread[row.statistic] > 0 and not row.is_rounding]
        if any(row.low is not None for row in rows):
            rows = [row for row in rows if row.is_clear]
        return max(rows, key=lambda row: abs(row.difference or 0.0) / self._spread[row.statistic], default=None)

    def __getitem__(self, head: HeadLike) -> HeadComparison:
        """One head in both models. Errors: HeadError."""
        index = self.head_place(head)
        before, after = self._label_names.get(self.heads[index], (None, None))
        moved, low, high = (number(column[index]) for column in (self.moved, self.moved_low, self.moved_high))
        differs, differences = bool(self.differs[index]), self._differences[index]
        return HeadComparison(self.heads[index], differs, moved, low, high, before, after, differences)

    @cached_property
    def _label_names(self) -> dict[Head, tuple[str, str]]:
        return {before.head: (before.name, after.name) for before, after in self.labels}

    def to_pandas(self) -> pd.DataFrame:
        """A row a head: head, stack, layer, index, differs, moved and its interval, both labels, and of each statistic
        before, after, difference, low and high."""
        import pandas as pd

        columns: dict[str, Any] = {
            **self.head_columns(),
            "differs": self.differs,
            "moved": self.moved,
            "moved_low": self.moved_low,
            "moved_high": self.moved_high,
        }
        if self.labels:
            names = [self._label_names.get(head, (None, None)) for head in self.heads]
            columns["label_before"], columns["label_after"] = zip(*names, strict=True)
        for name in self.statistics:
            columns |= {f"{name} before": self.before.column(name), f"{name} after": self.after.column(name)}
            columns[f"{name} difference"] = self.difference(name)
            columns[f"{name} low"], columns[f"{name} high"] = self.interval(name)
        return pd.DataFrame(columns)

    def to_dict(self) -> Json:
        """Plain data for JSON: every head, in the models' order."""
        return {
            "models": list(self.models),
            "summary": self.summary,
            "num_heads": len(self.heads),
            "num_changed": len(self.changed),
            "num_relabelled": len(self.relabelled),
            "statistics": list(self.statistics),
            "heads": [self[head].to_dict() for head in self.heads],
            "num_texts": self.num_texts,
            "num_tokens": self.before.sums.num_tokens,
            "num_rows": self.num_rows,
            "notes": self.notes,
        }

    @property
    def summary(self) -> str:
        """What it comes to, in a sentence."""
        if not self.changed:
            return "no head differs"
        labels = f", {plural(len(self.relabelled), 'label')} changed" if self.labels else ""
        return f"{len(self.changed)} of {len(self.heads)} heads differ{labels}"

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        words: list[str] = []
        for head in self.changed[:SHOWN]:
            most = self.largest(head.head)
            by = "" if most is None else f" ({most.statistic} {most.difference:+.3g})"
            words.append(f"{head.head}{'' if head.moved is None else f' {head.moved:.3g} nats'}{by}")
        more = ", ..." if len(self.changed) > SHOWN else ""
        most_changed = f": {', '.join(words)}{more}" if words else ""
        texts = f"{plural(self.num_texts, 'text')}, {self.before.sums.num_tokens:,} tokens"
        return f"Comparison({self.models[0]} and {self.models[1]}: {self.summary}{most_changed}; {texts})"


@shows_progress("comparing models")
def compare(
    a: LoadedModel | str | Path,
    b: LoadedModel | str | Path,
    given: InputsLike | Corpus,
    statistics: str | Sequence[str | Statistic] = "default",
    *,
    labels: bool = True,
    rows: int | None = None,
    progress: ShowProgress = None,
    on_reading: Callable[[str], None] | None = None,
) -> Comparison:
    """What differs between the heads of two models of the same shape, on the same texts: `b` beside `a`.

    Both must have the same number of heads in each layer, and must cut the texts into the same tokens.

    - `a`: a loaded model, or what `load` takes: a bundled name, a folder, a hub id. Sinks are looked for in it, and
      meant in both.
    - `b`: the model beside it.
    - `given`: what both read: texts, a corpus, or `mh.Inputs` of them.
    - `statistics`: as in `measure`.
    - `labels`: also which roles heads have in either; they need some hundreds of texts, else most heads are unlabelled
      in both.
    - `rows`: compare at most so many rows of each text, drawn by its words; None: all. Rows that see fewer than two
      keys are the same in all heads, and left out.
    - `progress`: called with how far a reading is.
    - `on_reading`: called with the name of each reading as it begins (`READINGS`).

    A model with itself, and with a copy of itself, has no head that differs. Differences within rounding of float32 are
    none; bfloat16 beside float32 does differ.

    Cost: two forward passes of each model (three of an encoder-decoder with labels), one pass over each one's maps, and
    35 ns a row, key and head on one core (0.25 s for 72 heads and a text of 300 tokens). Memory: queries and keys of
    one batch, of both models.
    Errors: ModelError for models of different shapes or without a tokenizer, TextError for texts that the two cut into
    different tokens or that can be read once only; as `measure`'s.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    inputs = Inputs.of(given)
    texts, long = inputs.texts, inputs.long
    if texts is None or inputs.has_media:
        raise TextError("two models are compared on texts, which both read: give texts.")
    first, second = (load(str(model)) if isinstance(model, str | Path) else model for model in (a, b))
    for lm in (first, second):
        require_reader(lm, long)
        require_all_heads(lm.model, lm.name, "compare")
    _require_same_shape(first, second)
    if rows is not None:
        whole("rows", rows, 1, TextError, "how many rows of each text to compare, 1 or more, or None for all of them")
    corpus = as_corpus(texts)
    if not corpus.key:
        raise TextError(
            f"{corpus.origin} can be read once only, and comparing reads the texts three times: give a list, or a "
            f"corpus of files."
        )
    # Before the long readings: tokens that differ in one text differ in most.
    for chunk in islice(chunks_of(corpus.open()), 1):
        _read_alike(first, second, chunk, long)
    begins: Callable[[str], None] = on_reading or (lambda name: None)
    requested: tuple[str, ...] = ()

    # What each kind of token receives is not counted between two texts: then labels have readings of their own.
    crosses = has_cross(first)
    together = labels and not crosses

    def wanted(survey: Survey | None) -> tuple[Statistic, ...]:
        """What was asked for, then what labels rest on besides."""
        nonlocal requested
        chosen = choose(statistics, survey, crosses=crosses)
        requested = tuple(statistic.name for statistic in chosen)
        return tuple(dict.fromkeys((*chosen, *(STATISTICS[name] for name in NEEDED if together))))

    chosen = wanted if may_need_survey(statistics) else wanted(None)
    begins(READINGS[0])
    how: dict[str, Any] = {"kinds": together, "progress": progress}
    before = measure(first, inputs, chosen, **how)
    begins(READINGS[1])
    # The same questions and the same sinks for both: with its own sinks, the second would answer other questions.
    after = measure(second, inputs, before.statistics, sinks=before.sinks, **how)
    counted = [(table.sums.num_texts, table.sums.num_tokens, table.failures.count) for table in (before, after)]
    if counted[0] != counted[1]:
        words = " and ".join(f"{plural(texts, 'text')} of {tokens:,} tokens" for texts, tokens, _ in counted)
        raise TextError(f"the two models could not read the same texts: {words}. Leave out what one cannot read.")
    begins(READINGS[2])
    maps = _Maps(first, second, before.heads, rows, long)
    maps.read(corpus, progress)
    moved, (low, high) = maps.values()
    notes = {
        "before": first.because,
        "after": second.because,
        **{name: before.notes[name] for name in ("windows", "rarity", "sinks", "failed") if name in before.notes},
        "intervals": "95 %, texts resampled for both models together; 1 in 20 leaves out 0 where nothing changed",
        "rows": maps.because,
        **({"labels": "those of the fixed rules, on these texts"} if labels else {}),
    }
    of_labels = (before, after)
    if labels and crosses:
        how["kinds"] = True
        of_labels = tuple(measure(lm, inputs, NEEDED, sinks=before.sinks, **how) for lm in (first, second))
    pairs = tuple(zip(*map(label, of_labels), strict=True)) if labels else ()
    return Comparison(
        (first.name, second.name), before, after, requested, moved, low, high, pairs, len(maps.seeds), maps.num_rows,
        notes,
    )  # fmt: skip


def _require_same_shape(first: LoadedModel, second: LoadedModel) -> None:
    """Errors: ModelError where the two do not have the same number of heads in each layer."""
    if first.spec.shape == second.spec.shape:
        return

    def in_words(lm: LoadedModel) -> str:
        stacks: list[str] = []
        for name, by_layer in lm.spec.shape.items():
            counts = [count for count in by_layer if count]
            heads = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
            silent = [f"L{layer}" for layer, count in enumerate(by_layer) if not count]
            gaps = f" ({', '.join(silent)} without attention)" if silent else ""
            stacks.append(f"{name} {plural(len(by_layer), 'layer')}{gaps} of {heads} heads".strip())
        return f"{lm.name} has {', '.join(stacks)}"

    raise ModelError(
        f"heads are compared place by place, and {in_words(first)}, but {in_words(second)}: give two models of one "
        f"shape, as two checkpoints of a training."
    )


def _read_alike(first: LoadedModel, second: LoadedModel, chunk: Chunk, long: Long) -> Chunked:
    """A chunk of texts as both models read it. Errors: TextError where they read different tokens."""
    of_first, of_second = (read_chunk(lm, chunk, long) for lm in (first, second))
    for left, right in zip(of_first.reading.pieces, of_second.reading.pieces, strict=False):
        if left.ids == right.ids and left.begin == right.begin:
            continue
        if left.source != right.source or left.text != right.text:
            break  # windows of other lengths
        place = next((i for i, pair in enumerate(zip(left.pieces, right.pieces, strict=False)) if len({*pair}) > 1), 0)
        words = " and ".join(
            f"{lm.name} reads {' '.join(map(repr, piece.pieces[place : place + 4]))}"
            for lm, piece in ((first, left), (second, right))
        )
        raise TextError(
            f"the two models cut {chunk.documents[left.source].name} into different tokens ({words}), so the rows of "
            f"their maps are not the same words: give both one tokenizer (load(..., tokenizer=)), or compare "
            f"statistics of each alone (measure)."
        )
    if len(of_first.reading.pieces) != len(of_second.reading.pieces) or of_first.windows != of_second.windows:
        raise TextError(
            f"{first.name} has {first.max_positions} positions and {second.name} {second.max_positions}, so they read "
            f"long texts in different pieces: give shorter texts."
        )
    return of_first


class _Pair(NamedTuple):
    """The rows of one batch in both models, and the seeds of its texts."""

    seeds: Sequence[int]
    one: RowKeeper
    other: RowKeeper


class _Maps:
    """How far apart the maps of each head are, summed over rows, text by text."""

    def __init__(
        self, first: LoadedModel, second: LoadedModel, heads: Sequence[Head], rows: int | None, long: Long
    ) -> None:
        self.first, self.second, self.heads = first, second, heads
        self.long: Long = long
        self.count = rows
        self.sums = Sums.empty(len(heads), 1)
        self.seeds: set[int] = set()
        self.num_rows = 0
        self.left_out: dict[str, None] = {}

    @property
    def because(self) -> str:
        """Which rows were compared, in words."""
        rows = "every row" if self.count is None else f"at most {self.count:,} rows of each text, drawn by its words"
        gone = f"; not of {', '.join(self.left_out)}, which attend in stretches of their own" if self.left_out else ""
        return f"{rows} that sees two keys or more: {self.num_rows:,}{gone}"

    def read(self, corpus: Corpus, progress: Progress | None) -> None:
        """Read the texts by both models, batch by batch. Texts that fail were counted by the tables."""
        for chunk in chunks_of(corpus.open()):
            chunked = _read_alike(self.first, self.second, chunk, self.long)
            groups = [group for group in chunked.batches if group]
            for done, group in enumerate(groups, 1):
                for pair in self._readable(chunked, group):
                    self.add(pair)
                if progress is not None:
                    share = round(done / len(groups) * (chunk.end_at - chunk.begin_at))
                    progress(chunk.begin_at + share, corpus.total)

    def _readable(self, chunked: Chunked, group: list[int]) -> Iterator[_Pair]:
        """A batch as both models read it; text by text where one fails."""
        try:
            yield self._pair(chunked, group)
            return
        except Exception as error:
            if not is_about_texts(error) or len(group) == 1:
                raise
        for piece in group:
            try:
                yield self._pair(chunked, [piece])
            except Exception as error:
                if not is_about_texts(error):
                    raise

    def _pair(self, chunked: Chunked, group: list[int]) -> _Pair:
        keepers: list[RowKeeper] = []
        seeds: Sequence[int] = ()
        for lm in (self.first, self.second):
            count = EVERY_ROW if self.count is None else self.count
            batch = replace(chunked.reading, lm=lm).batch(group)
            keeper = RowKeeper(batch, count, None, sharing_around(lm.model))
            forward(lm, batch, keeper.observe)
            seeds = batch.tokens.seeds
            keepers.append(keeper)
        return _Pair(seeds, *keepers)

    def add(self, pair: _Pair) -> None:
        """The divergences of one batch: their sum over the rows of each text, and how many rows it has."""
        place = {head: index for index, head in enumerate(self.heads)}
        num, den = (torch.zeros(len(pair.seeds), len(self.heads), 1, dtype=torch.float64) for _ in range(2))
        self.left_out |= pair.one.left_out
        after = {layer.site.heads: layer for layer in pair.other.layers.values()}
        most_rows = [0] * len(pair.seeds)
        for layer in pair.one.layers.values():
            columns = [place[head] for head in layer.site.heads if head in place]
            if not columns or layer.site.heads not in after:
                continue  # of a layer between two texts there may be no row in the table
            twin = after[layer.site.heads]
            for text in range(len(pair.seeds)):
                # Under other masks other rows see two keys: those that do in both.
                rows = layer.rows[text][layer.usable(text)]
                usable = rows[torch.isin(rows, twin.rows[text][twin.usable(text)])]
                most_rows[text] = max(most_rows[text], len(usable))
                for block in usable.split(block_size(layer.site.num_heads, layer.num_keys[text])):
                    # `weights` counts among the rows that were kept.
                    sides = (side.weights(text, torch.searchsorted(side.rows[text], block)) for side in (layer, twin))
                    num[text, columns, 0] += row_divergences(*sides).sum(-1)
                den[text, columns, 0] = len(usable)
        self.num_rows += sum(most_rows)
        self.seeds.update(pair.seeds)
        self.sums += Sums.of(num, den, pair.seeds, 0)

    def values(self) -> tuple[Float64[ndarray, "head"], tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]]:
        """The mean divergence of every head, and the ends of its interval (NaN of too few texts)."""
        value = self.sums.value()[:, 0, 0]
        low, high = (end[:, 0] for end in self.sums.interval())
        return np.clip(value, 0.0, MOST), (low, high)
