"""One batch being read: each layer's map is reduced while its tensors are there, finished, and dropped.

What is left of a layer is two numbers a text, head and statistic; of the batch, `BatchSums` that add to others. Where
the model's sinks are still looked for, in the same pass, what statistics of sinks need of a layer is kept too: a few
numbers for each head and key. All ways of measuring (texts in memory, a corpus, pictures, a recording) come here, and
share the words of their notes.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from manyheads.attention import Mask
from manyheads.base import few
from manyheads.errors import StatisticError
from manyheads.inputs import Batch, Reading, decoder_story
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import Tap, unwatched
from manyheads.recording import prepare
from manyheads.recording.exact_map import Pass, Received, Reduced, Request
from manyheads.spec import CROSS, Site
from manyheads.statistics.statistic import SELF, Facts, PerText, Statistic, evenly
from manyheads.statistics.sums.batch_sums import BatchSums
from manyheads.statistics.sums.token_kinds import KindCounts, Places
from manyheads.texts import Sinks, Tokens

CROSSING = "left out, since queries and keys are not the same tokens"
NOT_OF_CROSS = "not of cross-attention, whose rows and keys are different tokens"
HIDDEN_NOTE = "left out, since no query can see it"
WORDY = frozenset({"tokens", "sinks"})  # of what a statistic may ask, that which needs a text's tokens


class Finished(NamedTuple):
    """One layer's numbers. `den` is what all its heads share; `own` has, by column, what they do not."""

    num: Float64[Tensor, "t h s"]
    den: Float64[Tensor, "t s"]
    own: dict[int, Float64[Tensor, "t h"]]

    def among(self, columns: Sequence[int], size: int) -> Finished:
        """These numbers as columns of a wider table: nothing counts in the others, which are NaN."""
        if len(columns) == size:
            return self
        num, den = (part.new_zeros(*part.shape[:-1], size) for part in (self.num, self.den))
        num[..., columns], den[..., columns] = self.num, self.den
        return Finished(num, den, {columns[column]: part for column, part in self.own.items()})

    def beside(self, other: Finished) -> Finished:
        """Both, each of other columns of one table."""
        return Finished(self.num + other.num, self.den + other.den, self.own | other.own)

    def num_of_texts(self, count: int, maxima: Sequence[int]) -> Float64[Tensor, "t h s"]:
        """Numerators, of which those of maxima are only in the first of a text's windows, where it has several."""
        if len(self.num) == count or not maxima or len(self.num) % count:
            return self.num
        columns, num = list(maxima), self.num.clone()
        # Windows of a text are added up, but of their maxima the largest counts.
        values = torch.where(self.own_of(columns) > 0, num[..., columns], -torch.inf).unflatten(0, (count, -1)).amax(1)
        num[..., columns] = 0
        num.unflatten(0, (count, -1))[:, 0, :, columns] = torch.where(values > -torch.inf, values, 0.0)
        return num

    def own_of(self, columns: Sequence[int]) -> Float64[Tensor, "t h o"]:
        """Denominators by head, also of statistics that have them by head in other layers alone."""
        num_texts, num_heads, _ = self.num.shape
        out = torch.zeros(num_texts, num_heads, len(columns), dtype=torch.float64)
        for index, column in enumerate(columns):
            out[..., index] = self.own.get(column, self.den[:, None, column])
        return out


class Kept(NamedTuple):
    """What is kept of a layer until the sinks are known: the answers that statistics of sinks read, and norms."""

    columns: tuple[int, ...]
    answers: dict[Request, Float[Tensor, "b h k"]]
    mask: Mask
    value_norms: Float[Tensor, "b h k"] | None
    tokens: Tokens


@dataclass(eq=False)
class BatchReader:
    """One batch being read: per-text values of each layer as its call comes by.

    `search`: what looks for the sinks in the pass over each layer, where these are not known yet. Statistics that ask
    for sinks are then finished by `finish`, the others at once.
    """

    texts: Batch
    statistics: tuple[Statistic, ...]
    search: Callable[[AttentionCall, Reduced], None] | None = None
    values: dict[str, tuple[Site, Finished]] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    with_kinds: bool = False
    kinds: list[KindCounts] = field(default_factory=list)
    plans: dict[tuple[int, int | None], Pass] = field(default_factory=dict)
    read: list[Tokens] = field(default_factory=list)  # by the layers, those of a stack once
    left_out: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = ()  # of what is measured, where its tokens are no words that would give them
    dtype: torch.dtype = torch.float32  # in which the pass computed
    passes: Counter[str] = field(default_factory=Counter)  # what made the pass of how many layers on a device

    def observe(self, call: AttentionCall) -> None:
        """Reduce a call's map, finish every statistic, and keep two numbers a text, head and statistic."""
        kind = CROSS if call.crosses else SELF
        chosen = [index for index, statistic in enumerate(self.statistics) if kind in statistic.maps]
        if call.crosses and (not chosen or self.with_kinds or not self.texts.knows_keys(call)):
            self.left_out.append(call.site.module)
            return
        statistics = [self.statistics[index] for index in chosen]
        searched = self.search if kind == SELF else None
        with unwatched():  # hundreds of small operations, none of them the model's
            tokens, aligner = self.texts.read_by(call)
            layer = aligner.layer(call)
            # Keyed by identity: layers of one stack share their tokens, and with them the plan and its cached masks.
            place = (id(tokens), call.k.shape[2] if call.crosses else None)
            if place not in self.plans:
                keys = self.texts.keys_of(call, layer.mask) if call.crosses else None
                received = [Received()] * (self.with_kinds or searched is not None)
                require_words(tokens, statistics, call.site)
                self.plans[place] = prepare(tokens, requests_of(statistics, tokens) + received, keys)
                self.read.append(tokens)
            plan = self.plans[place]
            layer = layer if plan.keys is None else layer.first_keys(plan.keys.longest)
            reduced = plan.run(layer)
            if layer.q.device.type != "cpu":  # on the CPU there is nothing to choose
                self.passes[f"statistics by {reduced.because}"] += 1
            if self.with_kinds:
                even = reduced.plan.once(reduced.mask, "even", lambda: evenly(reduced.mask, tokens))
                places = reduced.plan.once(reduced.mask, "places", lambda: Places.of(tokens))
                self.kinds.append(KindCounts.of(tokens, places, reduced[Received()], even))
            needs_values = any("values" in statistic.asks for statistic in statistics)
            norms = aligner.roll(call.value_norms()[..., None])[..., 0].cpu() if needs_values else None
            # One float64 layer decides for the batch: rounding its
            # numbers to float32 would lose what the pass computed.
            if layer.q.dtype == torch.float64:
                self.dtype = torch.float64
            if searched is not None:
                searched(call, reduced)
                later = tuple(index for index in chosen if "sinks" in self.statistics[index].asks)
                chosen = [index for index in chosen if index not in later]
                of_sinks = [self.statistics[index] for index in later]
                # Copies: on a GPU all answers of a layer come in one piece, which a view of it would hold.
                answers = {request: reduced[request].clone() for request in requests_of(of_sinks, tokens)}
                norms_kept = norms if any("values" in statistic.asks for statistic in of_sinks) else None
                self.kept[call.site.module] = Kept(later, answers, reduced.mask, norms_kept, tokens)
            numbers = self._finished(Facts(reduced, norms, layer), chosen, call.site)
        assert call.site.module not in self.values, "a module called again is a site of its own"
        self.values[call.site.module] = (call.site, numbers)

    def wait(self) -> None:
        """Drop what only the pass needs, until the sinks are known: plans remember as many numbers as a map has."""
        self.plans = {}
        self.texts.known.clear()

    def _finished(self, facts: Facts, columns: Sequence[int], site: Site) -> Finished:
        """The statistics in these columns of one layer; nothing counts in the others."""
        statistics = [self.statistics[column] for column in columns]
        return finished(facts, statistics, site.num_heads).among(columns, len(self.statistics))

    def _with_sinks(self, sinks: Sinks) -> None:
        """Finish what was kept of each layer until the sinks were known."""
        plans: dict[int, Pass] = {}  # of tokens that know their sinks; layers of one stack share what it remembers
        for module, (columns, answers, mask, norms, tokens) in self.kept.items():
            if id(tokens) not in plans:
                # Positions that are no tokens of the texts have no sinks.
                plans[id(tokens)] = prepare(tokens.with_sinks(sinks) if tokens.ids is not None else tokens, ())
            site, numbers = self.values[module]
            facts = Facts(Reduced(answers, plans[id(tokens)], mask, ""), norms)
            self.values[module] = (site, numbers.beside(self._finished(facts, columns, site)))
        self.kept = {}

    def finish(self, tap: Tap, sinks: Sinks | None = None) -> BatchSums:
        """What the batch adds; `sinks` are those that `search` has found.

        Errors: StatisticError where no layer attends from a text to itself.
        """
        if not self.values:
            raise StatisticError(
                f"no layer of this call attends from a text to itself ({', '.join(self.left_out)}): record_call keeps "
                f"what such layers do."
            )
        if sinks is not None:
            self._with_sinks(sinks)
        # A layer that attends within windows has as many "texts" as windows: the fewest are the texts themselves.
        tokens = self.texts.main.tokens if self.texts.main else min(self.read, key=lambda tokens: tokens.num_texts)
        seeds, layers = self.seeds or tokens.seeds, list(self.values.values())
        # By head in one layer is by head in the whole batch: the
        # tensors of all layers must be of one width to be joined.
        columns = sorted({column for _, numbers in layers for column in numbers.own})
        maxima = maximum_columns(self.statistics)
        num, den, den_by_head = (
            torch.cat([_by_text(part(numbers), len(seeds), site) for site, numbers in layers], 1).to(self.dtype)
            for part in (
                lambda layer: layer.num_of_texts(len(seeds), maxima),
                lambda layer: layer.den[:, None],
                lambda layer: layer.own_of(columns),
            )
        )
        return BatchSums(
            sites=tuple(site for site, _ in layers),
            seeds=seeds,
            num=num,
            den=den,
            own=den_by_head,
            columns=tuple(columns),
            kinds=KindCounts.beside(self.kinds) if self.kinds else None,
            num_tokens=int(tokens.lengths.sum()),
            backend={**tap.because, **self.passes},
            guard_error=tap.guard_error,
            edited=tap.edited,
            maximum_columns=maxima,
            left_out=tuple(self.left_out),
            unread=tap.unread,
        )


def without(requested: Sequence[Statistic], barred: frozenset[str]) -> tuple[tuple[Statistic, ...], str]:
    """The statistics that ask for nothing of what is `barred`, and the names of the others."""
    chosen = tuple(statistic for statistic in requested if not statistic.asks & barred)
    return chosen, ", ".join(statistic.name for statistic in requested if statistic.asks & barred)


def require_words(tokens: Tokens, statistics: Sequence[Statistic], site: Site) -> None:
    """Errors: StatisticError for statistics of words in a layer whose positions are not those of the texts' tokens."""
    # Of sinks there are none in such a layer: their statistics are 0 over 0 there.
    wordy = [statistic.name for statistic in statistics if statistic.asks & WORDY == {"tokens"}]
    if wordy and tokens.ids is None:
        raise StatisticError(
            f"{few(wordy)} {'is' if len(wordy) == 1 else 'are'} about a text's words, and {site} ({site.module}) "
            f"attends among {tokens.longest} positions that are not the text's tokens: ask for other statistics by "
            f"name, as 'entropy'; `manyheads stats --list` says what each is about."
        )


def maximum_columns(statistics: Sequence[Statistic]) -> tuple[int, ...]:
    """The places of statistics that are maxima."""
    return tuple(index for index, statistic in enumerate(statistics) if statistic.maximum)


def has_cross(lm: LoadedModel) -> bool:
    """Whether a loaded model has layers from one text to another."""
    # What is no loaded model is told so where it is read, with its own words.
    return any(site.stack == CROSS for site in getattr(getattr(lm, "spec", None), "sites", ()))


def two_sided(
    lm: LoadedModel, statistics: Sequence[Statistic], kinds: bool, reading: Reading | None = None
) -> dict[str, str]:
    """Notes about the decoder of an encoder-decoder: how it was fed, and what is left out of cross-attention.

    "" where there is nothing to say.
    """
    modules = [site.module for site in lm.spec.sites if site.stack == CROSS]
    crossed = bool(modules) and not kinds and any(CROSS in statistic.maps for statistic in statistics)
    decoder = decoder_story(lm) if reading is None else str(reading.notes.get("decoder", ""))
    return {"decoder": decoder, **crossing_notes([] if crossed else modules, statistics, crossed)}


def crossing_notes(left_out: Iterable[str], statistics: Sequence[Statistic], crossed: bool) -> dict[str, str]:
    """Layers that were left out, and what means nothing in the cross-attention that was measured."""
    without = [statistic.name for statistic in statistics if CROSS not in statistic.maps] if crossed else []
    return {CROSSING: ", ".join(left_out), NOT_OF_CROSS: ", ".join(without)}


def _by_text(values: Float64[Tensor, "w h s"], count: int, site: Site) -> Float64[Tensor, "t h s"]:
    """Values by text, of a layer that attends within windows: those of a text lie side by side, and add.

    (Where some model lays them out otherwise, halves and intervals mix texts; the sums over all texts are the same.)
    """
    if len(values) == count:
        return values
    if len(values) % count:
        raise StatisticError(
            f"{site.module} attends in {len(values)} stretches, which cannot be shared out among {count} texts: "
            f"measure them one by one."
        )
    return values.unflatten(0, (count, -1)).sum(1)


def requests_of(statistics: Sequence[Statistic], tokens: Tokens) -> list[Request]:
    """The requests of all statistics. Errors: StatisticError for a `needs` that returns anything but requests."""
    out: list[Request] = []
    for statistic in statistics:
        requests = statistic.requests(tokens)
        if not isinstance(requests, Sequence) or not all(isinstance(request, Request) for request in requests):
            raise StatisticError(
                f"needs of {statistic.name!r} gave {requests!r}: give a tuple of requests, as (Received(),); for none, "
                f"()."
            )
        out += requests
    return out


def finish(
    facts: Facts, statistics: Sequence[Statistic], num_heads: int
) -> tuple[Float64[Tensor, "t h s"], Float64[Tensor, "t h s"]]:
    """Numerators and denominators of every statistic and head of one layer."""
    numbers = finished(facts, statistics, num_heads)
    return numbers.num, numbers.own_of(range(len(statistics)))


def finished(facts: Facts, statistics: Sequence[Statistic], num_heads: int) -> Finished:
    """Every statistic of one layer; what all heads share is computed for the first layer.

    Errors: StatisticError for a `finish` that does not return PerText, or returns NaN or infinity.
    """
    num_texts, size = facts.tokens.num_texts, len(statistics)
    num = torch.zeros(num_texts, num_heads, size, dtype=torch.float64)
    den, den_by_head = torch.zeros(num_texts, size, dtype=torch.float64), {}
    for block in dict.fromkeys(statistic.block for statistic in statistics if statistic.block is not None):
        members = [(index, statistic.column) for index, statistic in enumerate(statistics) if statistic.block is block]
        indices, columns = (list(part) for part in zip(*members, strict=True))
        # Numbers that follow each other become slices: hundreds of columns are then copied at once.
        indices, columns = (
            slice(x[0], x[-1] + 1) if x == list(range(x[0], x[-1] + 1)) else x for x in (indices, columns)
        )
        all_num, all_den = block.compute(facts)
        num[..., indices] = all_num[..., columns].double()
        # An axis of one head means that all heads share the
        # denominator: kept once a layer, it halves what a run writes.
        if all_den.shape[1] == 1:
            den[:, indices] = all_den[:, 0, columns].double()
        else:
            den_by_head |= {index: all_den[..., column].double() for index, column in members}
    for index, statistic in enumerate(statistics):
        if statistic.block is not None:
            continue
        if statistic.same_for_all_heads:
            numbers = facts.cached(statistic, lambda statistic=statistic: _checked(statistic, facts))
        else:
            numbers = _checked(statistic, facts)
        num[..., index] = numbers.num
        if numbers.den.shape[1] == 1:
            den[:, index] = numbers.den[:, 0]
        else:
            den_by_head[index] = numbers.den.double()
    # One sum shows whether any number is NaN or infinite; only then is it worth looking for the statistic.
    if not bool(torch.isfinite(num.sum() + den.sum() + sum(part.sum() for part in den_by_head.values()))):
        finite = torch.isfinite(num).all(0).all(0) & torch.isfinite(den).all(0)
        for index, part in den_by_head.items():
            finite[index] &= bool(torch.isfinite(part).all())
        if not bool(finite.all()):  # else it is an overflow of the sum alone
            bad = statistics[int((~finite).nonzero()[0])]
            subject = f"finish of {bad.name!r}" if bad.block is None else f"block {bad.block.name!r} ({bad.name!r})"
            raise StatisticError(
                f"{subject} gave NaN or infinity, which would spread to every sum: check q and k, and the "
                "statistic's own code."
            )
    return Finished(num, den, den_by_head)


def _checked(statistic: Statistic, facts: Facts) -> PerText:
    """What `finish` returns. Errors: StatisticError for anything but a numerator and a denominator a text and head."""
    try:
        result: Any = statistic.finish(facts)
    except KeyError as error:
        raise StatisticError(
            f"finish of {statistic.name!r} reads {error}, which its needs did not ask for: add it."
        ) from error
    if isinstance(result, tuple) and len(result) == 2 and not isinstance(result, PerText):
        # A statistic of the caller's own may return a plain pair:
        # the checks below and the sums then meet one type alone.
        result = PerText(*result)
    if not isinstance(result, PerText) or not all(isinstance(part, Tensor) and part.ndim == 2 for part in result):
        raise StatisticError(
            f"finish of {statistic.name!r} gave a {type(result).__name__}: give PerText(num, den), each (text, head), "
            f"as facts.over_rows(values) makes one."
        )
    return result
