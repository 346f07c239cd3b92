"""`lowest_heads`: the least important heads that can be cut out together, by what is lost without them on some texts.

Where query heads share key/value heads (GQA), a single head cannot go. What can is a whole group, a key/value head with
its query heads, or the same number of heads out of every group. A group is worth what is lost when all of it is taken
away together. The sum over its heads, each taken away by itself, is not that: heads of a group stand in for each other,
so the sum is too small, and not by the same factor in each group (docs/reference/pruning.md has the figures).

A config counts heads once for all layers. So of the ways in which the number can go, those that leave all layers alike
come first, since stock transformers can then load the result: as many groups of each layer, or as many heads of each
group. Of two such ways the one whose heads are missed less on these texts is taken; where there is none, the least
groups of all layers go, and the result is a compact checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manyheads.heads import Head, HeadSet
from manyheads.interventions.effects import metrics
from manyheads.interventions.effects.importance import importance
from manyheads.interventions.effects.sweep import sweep
from manyheads.interventions.prune.which_heads import ANYWHERE, EACH_GROUP, EACH_LAYER, groups_of, ways_to_lose
from manyheads.plan import Ablate, Plan
from manyheads.statistics import Progress

WORDS = {
    EACH_LAYER: "as many groups of each layer",
    EACH_GROUP: "as many heads of each group",
    ANYWHERE: "the least groups of all layers",
}


@dataclass(frozen=True, eq=False)
class Lowest:
    """The chosen heads, in which way they can go, and why that way.

    `groups`: what is lost without each group (all its heads together), the least first; none where no heads share a
    key/value head. `ways`: what is lost by each way in which the number can go. Both in `unit`, means over texts.
    """

    heads: HeadSet
    way: str
    because: str
    groups: dict[HeadSet, float]
    ways: dict[str, float]
    metric: str
    unit: str
    num_texts: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        fields = {name: getattr(self, name) for name in ("way", "because", "ways", "metric", "unit")}
        groups = [{"heads": str(heads), "worth": worth} for heads, worth in self.groups.items()]
        return {"heads": str(self.heads), **fields, "texts": self.num_texts, "groups": groups}


def lowest_heads(
    lm: Any,
    texts: str | Sequence[Any],
    count: int,
    *,
    metric: str = "auto",
    labels: Any = None,
    empty_layers: bool = False,
    progress: Progress | None = None,
) -> Lowest:
    """The `count` least important heads that `prune_heads` can cut out together, by zero ablation on these texts.

    `texts`, `metric`, `labels` as in `importance`. `empty_layers`: a layer may lose all of its heads.
    Cost: a sweep over groups, and one over single heads where heads of each group may go, or where none share keys.
    Errors: HeadError for a number of heads that cannot go; those of `importance`.
    """
    ways = ways_to_lose(lm.spec, count, empty_layers=empty_layers)
    chosen, _ = metrics.choose_metric(lm, metric, labels)
    alone: dict[Head, float] = {}
    if EACH_GROUP in ways or not ways:
        worth = importance(lm, texts, metric=chosen.name, labels=labels, progress=progress)
        alone = dict(zip(worth.heads, worth.values.tolist(), strict=True))
        if not ways:
            heads = worth.lowest(count)
            return Lowest(heads, "", "no heads share keys", {}, {}, worth.metric, worth.unit, len(worth.per_text))
    corpus = metrics.read_corpus(lm, texts, labels)
    groups = groups_of(lm.spec)

    def lost(choices: Sequence[HeadSet]) -> list[float]:
        plans = [Plan(Ablate(str(heads))) for heads in choices]
        return sweep(lm, plans, corpus, chosen, progress=progress).changes.mean(0).tolist()

    together = dict(zip(groups, lost(groups), strict=True))
    ranked = dict(sorted(together.items(), key=lambda entry: entry[1]))
    heads_by_way = {way: _chosen(lm.spec, way, count, ranked, alone, empty_layers) for way in ways}
    changes = dict(zip(ways, lost(list(heads_by_way.values())), strict=True))
    alike = [way for way in ways if way != ANYWHERE]
    way = min(alike or ways, key=changes.__getitem__)
    worse = "; ".join(f"{WORDS[name]}: {changes[name]:+.4g}" for name in ways if name != way)
    why = "every layer keeps as many heads, as a config can say" if alike else "no way leaves all layers alike"
    because = f"{WORDS[way]}, since {why}: {chosen.name} {changes[way]:+.4g}" + f" ({worse})" * bool(worse)
    return Lowest(heads_by_way[way], way, because, ranked, changes, chosen.name, chosen.unit, corpus.num_texts)


def _chosen(
    spec: Any, way: str, count: int, ranked: dict[HeadSet, float], alone: dict[Head, float], empty_layers: bool
) -> HeadSet:
    """The heads that go in this way: of what it may take, always the least."""
    chosen: list[Head] = []
    if way == EACH_GROUP:
        of_each = count // len(ranked)
        for group in ranked:
            chosen += sorted(group, key=alone.__getitem__)[:of_each]
        return spec.select(chosen)
    taken: dict[tuple[str, int], int] = {}  # groups that each layer has lost
    sizes = {(site.stack, site.layer): site.num_kv_heads for site in spec.sites}
    if way == EACH_LAYER:
        most = {layer: count * size // len(spec.heads) for layer, size in sizes.items()}
    else:
        most = {layer: size - (not empty_layers) for layer, size in sizes.items()}
    for group in ranked:
        layer = (group.heads[0].stack, group.heads[0].layer)
        if taken.get(layer, 0) < most[layer] and len(chosen) + len(group) <= count:
            chosen += group
            taken[layer] = taken.get(layer, 0) + 1
    return spec.select(chosen)
