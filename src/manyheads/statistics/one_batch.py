"""One batch being read: each layer's map is reduced while its tensors are there, finished, and dropped.

What is left of a layer is two numbers a text, head and statistic; of the batch, a `Contribution` that adds to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from manyheads.errors import StatisticError
from manyheads.models import AttentionCall, CallTexts
from manyheads.models.taps.open_taps import Tap
from manyheads.models.taps.through_torch import unwatched
from manyheads.recording import Received, Request, Tokens, prepare
from manyheads.recording.exact_map.one_pass import Pass
from manyheads.spec import Site
from manyheads.statistics.sinks import evenly
from manyheads.statistics.statistic import Facts, PerText, Statistic
from manyheads.statistics.tally import Contribution
from manyheads.statistics.token_kinds import KindCounts, Places


class Finished(NamedTuple):
    """One layer's numbers. `den` is what all its heads share; `own` has, by column, what they do not."""

    num: Float64[Tensor, "t h s"]
    den: Float64[Tensor, "t s"]
    own: dict[int, Float64[Tensor, "t h"]]


@dataclass(eq=False)
class Measured:
    """One batch being read: per-text values of each layer as its call comes by."""

    texts: CallTexts
    statistics: tuple[Statistic, ...]
    values: dict[str, tuple[Site, Finished]] = field(default_factory=dict)
    with_kinds: bool = False
    kinds: list[KindCounts] = field(default_factory=list)
    plans: dict[int, tuple[Tokens, Pass]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = ()  # of what is measured, where its tokens are no words that would give them
    dtype: torch.dtype = torch.float32  # in which the pass computed

    def observe(self, call: AttentionCall) -> None:
        """Reduce a call's map, finish every statistic, and keep two numbers a text, head and statistic."""
        if call.crosses:
            self.left_out.append(call.site.module)
            return
        with unwatched():  # hundreds of small operations, none of them the model's
            self._reduce(call)

    def _reduce(self, call: AttentionCall) -> None:
        tokens, aligner = self.texts.read_by(call)
        if id(tokens) not in self.plans:
            wanted = requests_of(self.statistics, tokens) + [Received()] * self.with_kinds
            self.plans[id(tokens)] = (tokens, prepare(tokens, wanted))
        layer = aligner.layer(call)
        reduced = self.plans[id(tokens)][1].run(layer)
        if self.with_kinds:
            even = reduced.plan.once(reduced.mask, "even", lambda: evenly(reduced.mask, tokens))
            places = reduced.plan.once(reduced.mask, "places", lambda: Places.of(tokens))
            self.kinds.append(KindCounts.of(tokens, places, reduced[Received()], even))
        asks_values = any("values" in each.asks for each in self.statistics)
        norms = aligner.roll(call.value_norms()[..., None])[..., 0] if asks_values else None
        if layer.q.dtype == torch.float64:
            self.dtype = torch.float64
        found = finished(Facts(reduced, norms, layer), self.statistics, call.site.num_heads)
        assert call.site.module not in self.values, "a module called again is a site of its own"
        self.values[call.site.module] = (call.site, found)

    def contribution(self, state: Tap) -> Contribution:
        """What the batch adds. Errors: StatisticError where no layer attends from a text to itself."""
        if not self.values:
            raise StatisticError(
                f"no layer of this call attends from a text to itself ({', '.join(self.left_out)}): record_call keeps "
                f"what such layers do."
            )
        read = [tokens for tokens, _ in self.plans.values()]  # as many as there are windows, where a layer has them
        tokens = self.texts.main.tokens if self.texts.main else min(read, key=lambda each: each.num_texts)
        seeds, layers = self.seeds or tokens.seeds, list(self.values.values())
        columns = sorted({column for _, each in layers for column in each.own})
        num, den, own = (
            torch.cat([_by_text(make(each), len(seeds), site) for site, each in layers], 1).to(self.dtype)
            for make in (lambda each: each.num, lambda each: each.den[:, None], lambda each: _own(each, columns))
        )
        return Contribution(
            sites=tuple(site for site, _ in layers),
            seeds=seeds,
            num=num,
            den=den,
            own=own,
            columns=tuple(columns),
            kinds=KindCounts.beside(self.kinds) if self.kinds else None,
            num_tokens=int(tokens.lengths.sum()),
            backend=dict(state.because),
            guard_error=state.guard_error,
            edited=state.edited,
        )


def _own(found: Finished, columns: Sequence[int]) -> Float64[Tensor, "t h o"]:
    """Denominators by head, also of statistics that have them by head in other layers alone."""
    num_texts, num_heads, _ = found.num.shape
    out = torch.zeros(num_texts, num_heads, len(columns), dtype=torch.float64)
    for at, column in enumerate(columns):
        out[..., at] = found.own.get(column, found.den[:, None, column])
    return out


def _by_text(values: Float64[Tensor, "w h s"], count: int, site: Site) -> Float64[Tensor, "t h s"]:
    """Values by text, of a layer that attends within windows: those of a text lie side by side, and add.

    (Where some model lays them out otherwise, halves and intervals mix texts; the sums over all texts are the same.)
    """
    if len(values) == count:
        return values
    if len(values) % count:
        raise StatisticError(
            f"{site.module} attends in {len(values)} stretches, which do not divide among {count} texts: measure them "
            f"one by one."
        )
    return values.unflatten(0, (count, -1)).sum(1)


def requests_of(statistics: Sequence[Statistic], tokens: Tokens) -> list[Request]:
    """What all of them need. Errors: StatisticError for a `needs` that gives anything but requests."""
    out: list[Request] = []
    for each in statistics:
        needed = each.needs(tokens)
        if not isinstance(needed, Sequence) or not all(isinstance(request, Request) for request in needed):
            raise StatisticError(
                f"needs of {each.name!r} gave {needed!r}: give a tuple of requests, as (Received(),); of none, ()."
            )
        out += needed
    return out


def finish(
    facts: Facts, statistics: Sequence[Statistic], num_heads: int
) -> tuple[Float64[Tensor, "t h s"], Float64[Tensor, "t h s"]]:
    """Numerators and denominators of every statistic and head of one layer."""
    found = finished(facts, statistics, num_heads)
    return found.num, _own(found, range(len(statistics)))


def finished(facts: Facts, statistics: Sequence[Statistic], num_heads: int) -> Finished:
    """Every statistic of one layer; what all heads share is computed for the first layer.

    Errors: StatisticError for what a statistic gives that is no PerText, or holds NaN or infinity.
    """
    num_texts, size = facts.tokens.num_texts, len(statistics)
    num = torch.zeros(num_texts, num_heads, size, dtype=torch.float64)
    den, own = torch.zeros(num_texts, size, dtype=torch.float64), {}
    for block in dict.fromkeys(each.block for each in statistics if each.block is not None):
        mine = [(index, each.column) for index, each in enumerate(statistics) if each.block is block]
        indices, columns = (_run(list(part)) for part in zip(*mine, strict=True))
        all_num, all_den = block.compute(facts)
        num[..., indices] = all_num[..., columns].double()
        if all_den.shape[1] == 1:
            den[:, indices] = all_den[:, 0, columns].double()
        else:
            own |= {index: all_den[..., column].double() for index, column in mine}
    for index, each in enumerate(statistics):
        if each.block is not None:
            continue
        got = facts.once(each, lambda e=each: _given(e, facts)) if each.same_for_all_heads else _given(each, facts)
        num[..., index] = got.num
        if got.den.shape[1] == 1:
            den[:, index] = got.den[:, 0]
        else:
            own[index] = got.den.double()
    _require_finite(num, den, own, statistics)
    return Finished(num, den, own)


def _run(numbers: list[int]) -> slice | list[int]:
    """Numbers as a slice where they follow each other: hundreds of columns are then copied at once."""
    follow = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return slice(numbers[0], numbers[0] + len(numbers)) if follow else numbers


def _given(each: Statistic, facts: Facts) -> PerText:
    """Errors: StatisticError for a `finish` that gives anything but a numerator and a denominator a text and head."""
    try:
        got: Any = each.finish(facts)
    except KeyError as error:
        raise StatisticError(
            f"finish of {each.name!r} reads {error}, which its needs did not ask for: add it."
        ) from error
    if isinstance(got, tuple) and len(got) == 2 and not isinstance(got, PerText):
        got = PerText(*got)
    if not isinstance(got, PerText) or not all(isinstance(x, Tensor) and x.ndim == 2 for x in got):
        raise StatisticError(
            f"finish of {each.name!r} gave a {type(got).__name__}: give PerText(num, den), each (text, head), as "
            f"facts.over_rows(values) makes one."
        )
    return got


def _require_finite(num: Tensor, den: Tensor, own: dict[int, Tensor], statistics: Sequence[Statistic]) -> None:
    """One sum tells whether any number is NaN or infinite; only then is it looked for."""
    if bool(torch.isfinite(num.sum() + den.sum() + sum(each.sum() for each in own.values()))):
        return
    fine = torch.isfinite(num).all(0).all(0) & torch.isfinite(den).all(0)
    for index, each in own.items():
        fine[index] &= bool(torch.isfinite(each).all())
    if bool(fine.all()):
        return  # an overflow of the sum alone
    bad = statistics[int((~fine).nonzero()[0])]
    whose = f"finish of {bad.name!r}" if bad.block is None else f"block {bad.block.name!r} ({bad.name!r})"
    raise StatisticError(f"{whose} gave NaN or infinity, which would spread to every sum.")
