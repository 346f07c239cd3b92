"""Head families: which heads look at the same things, whatever these are; and how different the heads of a layer are.

No rule names a role here. Heads are compared as they are, row by row (`distances`), grouped where they are near, and
laid out on a map. A layer's diversity is the mean distance between its heads: it falls when heads are made the same.
Near means "looks at the same keys", not "does the same": values and outputs differ, and so may effects.
Source of the question: Clark et al. 2019, section 6 (who sum smoothed divergences: `compat` does theirs exactly).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from manyheads.errors import HeadError, StatisticError
from manyheads.models.inputs.texts import CallTexts
from manyheads.models.recorder import watch
from manyheads.models.describe import run
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import model_inputs
from manyheads.models.inputs.texts import read_texts
from manyheads.models.inputs.texts import tokens_of
from manyheads.roles.clusters import flat_map
from manyheads.roles.distances import MOST, pair_divergences
from manyheads.roles.familyresults import Family, HeadFamilies, LayerDiversity, families_of
from manyheads.roles.sampledrows import RowKeeper, rows_of_texts, sharing_around
from manyheads.spec import ModelSpec, Site
from manyheads.statistics.head_table import number
from manyheads.statistics.gathered import Progress
from manyheads.statistics.sums import Sums

__all__ = ["Family", "HeadFamilies", "LayerDiversity", "head_families"]


def head_families(
    lm: Any,
    texts: str | Sequence[str],
    *,
    rows: int | None = None,
    clusters: int | None = None,
    stack: str | None = None,
    long: str = "windows",
    progress: Progress | None = None,
) -> HeadFamilies:
    """How far apart all heads are in what they look at, their families, a map of them, and each layer's diversity.

    `rows`: at most so many rows of each text, drawn by its words; None: 16, or more of few texts. Rows that see fewer
    than two keys are left out, and what a row gives to nothing visible (a sink in the softmax) is a key of its own.
    `clusters`: how many families; None: the number of the largest mean silhouette, up to 20. `stack`: heads of
    different stacks read different tokens, so a model with several is asked for one. `long` as in `record`.
    Inside `applied`, heads whose weights a plan averages or copies are compared as the plan has them.

    Cost: one forward pass, and pairs of heads x rows x keys logarithms, 3 to 4 ns each on a core: 2 s for 72 heads on
    299 short texts, six minutes for 1,024 heads. Memory: keys of one batch, and a number for each pair of heads.
    Errors: StatisticError for numbers that cannot be or a model with one head, HeadError for an unknown stack,
    TextError, ModelError, GuardError.
    """
    reading = read_texts(lm, texts, long)
    count, why = rows_of_texts(reading, rows)
    wanted = _stack(lm.spec, stack)
    _check_clusters(clusters, sum(site.num_heads for site in lm.spec.stacks[wanted]))
    gathering, done = _Gathering(), 0
    for group in batches(reading):
        tokens = tokens_of(reading, group, None, "")
        keeper = RowKeeper(CallTexts.of(lm, tokens), count, wanted, sharing_around(lm.model))
        watch(lm.model, lm.name, lambda t=tokens: run(lm.model, lm.name, model_inputs(lm, t)), keeper.observe)
        gathering.add(keeper, tokens.seeds)
        done += int(tokens.lengths.sum())
        if progress is not None:
            progress(done, reading.num_tokens)
    said = [why, *gathering.said, reading.because]
    return gathering.finished(lm.name, clusters, [each for each in said if each])


def _check_clusters(clusters: int | None, num_heads: int) -> None:
    if clusters is None:
        return
    if isinstance(clusters, bool) or not isinstance(clusters, int) or clusters < 1:
        raise StatisticError(f"{clusters=!r}: give a number of families, 1 or more, or None to have it chosen.")
    if clusters > num_heads:
        raise StatisticError(f"{clusters=} families of {num_heads} heads were asked for: give a number up to that.")


def _stack(spec: ModelSpec, asked: str | None) -> str:
    """The stack meant: where none is said, the one without a name, or the only one."""
    stacks = spec.stacks
    if asked is None and (len(stacks) == 1 or "" in stacks):
        return "" if "" in stacks else next(iter(stacks))
    if asked not in stacks:
        named = ", ".join(map(repr, stacks))
        said = "has several stacks, whose heads read different tokens" if asked is None else f"has no stack {asked!r}"
        raise HeadError(f"{spec.name} {said}: compare the heads of one of them, stack= one of {named}.")
    return asked


@dataclass(eq=False)
class _Gathering:
    """Sums over texts: of every pair's divergences, and of each layer's mean over pairs, text by text."""

    sites: tuple[Site, ...] = ()
    divergences: torch.Tensor | None = None
    num_rows: int = 0
    sums: list[Sums] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    left_out: dict[str, None] = field(default_factory=dict)
    shared: dict[str, None] = field(default_factory=dict)

    @property
    def said(self) -> list[str]:
        """What of the model was not compared as it is."""
        shared = f"weights as the plan around it shares them in {', '.join(self.shared)}" if self.shared else ""
        gone = f"left out, attending in stretches of their own: {', '.join(self.left_out)}" if self.left_out else ""
        return [shared, gone]

    def add(self, keeper: RowKeeper, seeds: Sequence[int]) -> None:
        self.left_out |= keeper.left_out
        if not keeper.layers:
            where = f" ({', '.join(self.left_out)} attend in stretches of their own)" if self.left_out else ""
            raise StatisticError(f"no layer here attends over whole texts: there are no rows to compare{where}.")
        kept = tuple(keeper.layers.values())
        self.sites = tuple(layer.site for layer in kept)
        self.shared |= {str(layer.site): None for layer in kept if layer.sharing}
        heads = sum(site.num_heads for site in self.sites)
        if self.divergences is None:
            self.divergences = torch.zeros(heads, heads, dtype=torch.float64)
        num = torch.zeros(len(seeds), len(self.sites), 1, dtype=torch.float64)
        den = torch.zeros_like(num)
        for text in range(len(seeds)):
            for block in keeper.blocks(text):
                apart = pair_divergences(block)
                self.divergences += apart
                num[text, :, 0] += self._within(apart)
                den[text] += block.shape[1]
        self.num_rows += int(den[:, 0].sum())
        self.seeds.update(seeds)
        self.sums.append(Sums.of(num, den, seeds, 0))

    def _within(self, apart: torch.Tensor) -> torch.Tensor:
        """The mean over the pairs of heads of each layer."""
        sizes = [site.num_heads for site in self.sites]
        squares = [part.split(sizes, 1)[at] for at, part in enumerate(apart.split(sizes))]
        return torch.stack([each.sum() / max(1, len(each) * (len(each) - 1)) for each in squares])

    def finished(self, model: str, clusters: int | None, said: list[str]) -> HeadFamilies:
        heads = tuple(head for site in self.sites for head in site.heads)
        if len(heads) < 2 or not self.num_rows or self.divergences is None:
            what = "one head" if len(heads) < 2 else "no row that sees two keys"
            raise StatisticError(f"{model} has {what} here: there is nothing to compare.")
        _check_clusters(clusters, len(heads))  # again: layers may have been left out
        divergences = (self.divergences / self.num_rows).clamp_(0, MOST).numpy()
        families, tried, why = families_of(heads, divergences, clusters)
        places, explained = flat_map(divergences)
        because = "; ".join([f"{self.num_rows:,} rows: {said[0]}", *said[1:], why])
        sums = sum(self.sums[1:], self.sums[0])
        return HeadFamilies(
            model, heads, divergences, families, places, explained, self._diversity(sums), tried, sums.num_texts,
            self.num_rows, because,
        )  # fmt: skip

    def _diversity(self, sums: Sums) -> tuple[LayerDiversity, ...]:
        value, (low, high) = sums.value()[:, 0, 0] / MOST, (each[:, 0] / MOST for each in sums.interval())
        known = [site.num_heads > 1 for site in self.sites]
        sided = [each and len(self.seeds) > 1 for each in known]  # one text, however often, has no interval
        return tuple(
            LayerDiversity(
                str(site),
                site.num_heads,
                number(value[at]) if known[at] else None,
                number(low[at]) if sided[at] else None,
                number(high[at]) if sided[at] else None,
            )
            for at, site in enumerate(self.sites)
        )
