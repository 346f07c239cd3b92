"""Head families: which heads look at the same things, whatever these are; and how different the heads of a layer are.

No rule names a role in this module. Heads are compared row by row (`compare.rows`), grouped where they are near, and
laid out on a map. A layer's diversity is the mean distance between its heads: it falls when
heads are made the same. The result is plain data, with a table and JSON. Near means "looks at the same keys", not "does
the same": values and outputs differ, and so may effects.
Source of the question: Clark et al. 2019, section 6 (who sum smoothed divergences).

Grouping and map are in NumPy, some thirty lines each, since nothing else here needs a library for it. Average linkage
by chains of nearest neighbours: O(n^2) for n things, a second for some thousands.
Sources: Sokal and Michener 1958 (average linkage); Murtagh 1983 (chains); Rousseeuw 1987 (silhouettes);
Torgerson 1952 (classical scaling).
"""

# device: divergences are summed up on the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# torch's methods and pandas have no types here.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray

from manyheads.base import Json, brief, plain, plural, whole
from manyheads.errors import HeadError, StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.inputs import Batch, InputsLike, Reading, forward, read
from manyheads.machine import require_all_heads
from manyheads.models import AttentionCall, LoadedModel
from manyheads.progress import Progress, ShowProgress, shows_progress
from manyheads.recording import PerHeadResult
from manyheads.results import Shown
from manyheads.roles.compare.rows import MOST, RowKeeper, pair_divergences, rows_of_texts, sharing_around
from manyheads.spec import Site
from manyheads.statistics import Sums, number

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

MOST_GROUPS = 20  # that the best number is looked for among: more are no overview any more
CLEAR = 0.25  # a mean silhouette below it: families run into each other (Kaufman and Rousseeuw 1990, table 4)


@dataclass(frozen=True)
class Family:
    """Heads that look at like keys. `medoid` is the one nearest to all the others; `spread` the mean divergence of two
    of its heads in nats, 0 for one alone; `silhouette` how much nearer its heads are to each other than to the next
    family (-1 to 1; 0 for one alone)."""

    heads: tuple[Head, ...]
    medoid: Head
    spread: float
    silhouette: float


@dataclass(frozen=True)
class LayerDiversity:
    """How different a layer's heads look: the mean divergence of two of them as a share of ln 2, the largest possible.

    0: all the same; 1: no two ever look at the same key. None for a layer of one head. `low` and `high`: the 95 %
    interval over texts (bootstrap), None where there is but one text.
    """

    layer: str
    num_heads: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Diversity(Shown):
    """How different the heads of a model look: `value`, the mean over its layers of two heads or more.

    0: all heads of a layer look at the same keys; 1: no two of them ever look at the same one. `because`: which rows.
    """

    value: float
    layers: tuple[LayerDiversity, ...]
    num_rows: int
    because: str

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "value": self.value,
            "layers": [plain(vars(layer)) for layer in self.layers],
            "num_rows": self.num_rows,
            "because": self.because,
        }

    def __repr__(self) -> str:
        return brief(f"Diversity({self.value:.3f} over {plural(len(self.layers), 'layer')}; {self.num_rows:,} rows)")


@dataclass(frozen=True, eq=False)
class HeadFamilies(PerHeadResult):
    """How far apart the heads of a model are, and what follows.

    `divergences[i, j]` is the mean Jensen-Shannon divergence of heads i and j over `num_rows` rows, in nats (0 to
    ln 2); `distances` its root, a metric (0 to 0.833), by which families are made. `families` come largest first.
    `map` has a place in the plane for each head, and `explained` the share of all squared distances that it shows.
    `tried`: the mean silhouette of each number of families that was looked at. `because` says which rows, and why so
    many families.
    """

    missing: ClassVar[str] = "here: {first} to {last} were compared."

    model: str
    heads: tuple[Head, ...]  # pyright: ignore[reportIncompatibleMethodOverride] a field where the base has a property
    divergences: Float64[ndarray, "h h"]
    families: tuple[Family, ...]
    map: Float64[ndarray, "h 2"]
    explained: float
    diversity: tuple[LayerDiversity, ...]
    tried: dict[int, float]
    num_texts: int
    num_rows: int
    because: str

    @cached_property
    def distances(self) -> Float64[ndarray, "h h"]:
        """The roots of the divergences: a metric."""
        return np.sqrt(self.divergences)

    @cached_property
    def groups(self) -> Int64[ndarray, "h"]:
        """The number of each head's family, by its place in `families`."""
        number_of = {head: number for number, family in enumerate(self.families) for head in family.heads}
        return np.array([number_of[head] for head in self.heads], dtype=np.int64)

    def family_of(self, head: HeadLike) -> Family:
        """Errors: HeadError for a head that was not compared."""
        return self.families[self.groups[self.head_place(head)]]

    def nearest(self, head: HeadLike, count: int = 5) -> list[tuple[Head, float]]:
        """The heads that look most like one, and their divergences from it in nats. Errors: HeadError."""
        index = self.head_place(head)
        order = [place for place in self.divergences[index].argsort(kind="stable") if place != index]
        return [(self.heads[place], float(self.divergences[index, place])) for place in order[:count]]

    def __getitem__(self, pair: tuple[HeadLike, HeadLike]) -> float:
        """`families["L0H2", "L1H8"]`: the divergence of two heads, in nats. Errors: HeadError."""
        first, second = pair
        return float(self.divergences[self.head_place(first), self.head_place(second)])

    def to_pandas(self) -> pd.DataFrame:
        """A row a head: head, stack, layer, index, family, medoid, silhouette, nearest, nearest_divergence, x, y."""
        import pandas as pd

        nearest = [self.nearest(head, 1)[0] for head in self.heads]
        return pd.DataFrame(
            {
                **self.head_columns(),
                "family": self.groups,
                "medoid": [str(self.families[group].medoid) for group in self.groups],
                "silhouette": silhouettes(self.distances, self.groups),
                "nearest": [str(head) for head, _ in nearest],
                "nearest_divergence": [divergence for _, divergence in nearest],
                "x": self.map[:, 0],
                "y": self.map[:, 1],
            }
        )

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "heads": [str(head) for head in self.heads],
            "divergences": self.divergences.round(6).tolist(),
            "families": [
                {"heads": [str(head) for head in family.heads], "medoid": str(family.medoid), "spread": family.spread,
                 "silhouette": family.silhouette} for family in self.families
            ],
            "map": self.map.tolist(),
            "explained": self.explained,
            "diversity": [vars(layer) for layer in self.diversity],
            "tried": {str(count): value for count, value in self.tried.items()},
            "num_texts": self.num_texts,
            "num_rows": self.num_rows,
            "because": self.because,
        }  # fmt: skip

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        largest = ", ".join(f"{len(family.heads)} like {family.medoid}" for family in self.families[:4])
        more = ", ..." if len(self.families) > 4 else ""
        summary = f"{len(self.heads)} heads in {len(self.families)} families: {largest}{more}"
        return f"HeadFamilies({summary}; {self.num_rows:,} rows of {self.num_texts} texts)"


@shows_progress("comparing heads")
def head_families(
    lm: LoadedModel,
    given: InputsLike,
    *,
    rows: int | None = None,
    clusters: int | None = None,
    stack: str | None = None,
    progress: ShowProgress = None,
) -> HeadFamilies:
    """How far apart all heads are in what they look at, their families, a map of them, and each layer's diversity.

    - `lm`: a loaded model.
    - `given`: what is read: some hundred short texts, or fewer long ones.
    - `rows`: at most so many rows of each text, drawn by its words; None: 16, or more of few texts. Rows that see fewer
      than two keys are left out, and what a row gives to nothing visible (a sink in the softmax) is a key of its own.
    - `clusters`: how many families; None: the number of the largest mean silhouette, up to 20.
    - `stack`: heads of different stacks read different tokens, so a model with several is asked for one.
    - `progress`: called with how far the reading is.

    Inside `applied`, heads whose weights a plan averages or copies are compared as the plan has them.

    Cost: one forward pass, and pairs of heads x rows x keys logarithms, 3 to 4 ns each on a core: 2 s for 72 heads on
    299 short texts, six minutes for 1,024 heads. Memory: keys of one batch, and a number for each pair of heads.
    Errors: StatisticError for numbers that cannot be or a model with one head, HeadError for an unknown stack,
    TextError, ModelError, GuardError.
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    reading = read(lm, given, pairs=False, only_texts=True)
    require_all_heads(lm.model, lm.name, "head_families")
    stack = _one_stack(lm, stack)
    _check_clusters(clusters, sum(site.num_heads for site in lm.spec.stacks[stack]))
    return _Gathering().read(lm, reading, rows, stack, progress).result(lm.name, clusters)


def head_diversity(
    lm: LoadedModel,
    given: InputsLike,
    *,
    rows: int | None = None,
    stack: str | None = None,
    run: Callable[[LoadedModel, Batch, Callable[[AttentionCall], None]], object] = forward,
) -> Diversity:
    """How different the heads of each layer look on some texts, and their mean over layers.

    The numbers are those of `head_families(...).diversity`, without comparing heads of different layers, which is most
    of its cost. Inside `applied` as there: heads whose weights a plan averages or copies are compared as it has them.
    `run` sends each batch through the model, for a caller who wants more of the same pass than its rows.
    Errors: as `head_families`; StatisticError where every layer has one head.
    """
    reading = read(lm, given, pairs=False, only_texts=True)
    require_all_heads(lm.model, lm.name, "head_diversity")
    gathering = _Gathering(across_layers=False).read(lm, reading, rows, _one_stack(lm, stack), None, run)
    return gathering.diversity(lm.name)


def _one_stack(lm: LoadedModel, stack: str | None) -> str:
    """The stack that is meant; without a word the one without a name, or the only one. Errors: HeadError."""
    stacks = lm.spec.stacks
    if stack is None and (len(stacks) == 1 or "" in stacks):
        stack = "" if "" in stacks else next(iter(stacks))
    if stack is None or stack not in stacks:
        names = ", ".join(map(repr, stacks))
        why = "has several stacks, whose heads read different tokens" if stack is None else f"has no stack {stack!r}"
        raise HeadError(f"{lm.spec.name} {why}: compare the heads of one of them, stack= one of {names}.")
    return stack


def families_of(
    heads: tuple[Head, ...], divergences: Float64[ndarray, "h h"], clusters: int | None
) -> tuple[tuple[Family, ...], dict[int, float], str]:
    """The families, largest first; the silhouettes that were tried; and why there are so many families."""
    distances = np.sqrt(divergences)
    merges = average_linkage(distances)
    best, tried = best_cut(distances, merges)
    if clusters is not None:
        why = f"{clusters} families, as asked"
    elif tried:
        weak = ": weak, families run into each other" * (tried[best] < CLEAR)
        why = f"{best} families, by the largest mean silhouette among 2 to {max(tried)} ({tried[best]:.2f}{weak})"
    else:
        why = "two heads, each by itself: there is nothing to choose"
    groups = cut(merges, best if clusters is None else clusters)
    silhouette = silhouettes(distances, groups)
    families: list[Family] = []
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        spread = divergences[np.ix_(members, members)].sum() / max(1, len(members) * (len(members) - 1))
        medoid_head = heads[medoid(distances, members)]
        in_family = tuple(heads[index] for index in members)
        families.append(Family(in_family, medoid_head, float(spread), float(silhouette[members].mean())))
    families.sort(key=lambda family: (-len(family.heads), family.heads[0]))
    return tuple(families), tried, why


def _check_clusters(clusters: int | None, num_heads: int) -> None:
    if clusters is None:
        return
    whole("clusters", clusters, 1, StatisticError, "a number of families, 1 or more, or None to have it chosen")
    if clusters > num_heads:
        raise StatisticError(f"{clusters=} families of {num_heads} heads were asked for: give a number up to that.")


@dataclass(eq=False)
class _Gathering:
    """Sums over texts: of every pair's divergences, and of each layer's mean over pairs, text by text.

    Unless `across_layers`, pairs of heads of different layers are left out: their divergences stay 0.
    """

    across_layers: bool = True
    sites: tuple[Site, ...] = ()
    divergences: torch.Tensor | None = None
    num_rows: int = 0
    sums: list[Sums] = field(default_factory=list[Sums])
    seeds: set[int] = field(default_factory=set[int])
    left_out: dict[str, None] = field(default_factory=dict[str, None])
    shared: dict[str, None] = field(default_factory=dict[str, None])
    notes: list[str] = field(default_factory=list[str])

    def read(
        self,
        lm: LoadedModel,
        reading: Reading,
        rows: int | None,
        stack: str,
        progress: Progress | None,
        run: Callable[[LoadedModel, Batch, Callable[[AttentionCall], None]], object] = forward,
    ) -> _Gathering:
        """Send the texts through the model, and gather. Errors: StatisticError for what is not a number of rows."""
        count, rows_because = rows_of_texts(reading, rows)

        for batch in reading.batches(progress=progress):
            keeper = RowKeeper(batch, count, stack, sharing_around(lm.model))
            run(lm, batch, keeper.observe)
            self.add(keeper, batch.seeds or batch.tokens.seeds)
        shared = f"weights as the plan around it shares them in {', '.join(self.shared)}" if self.shared else ""
        gone = f"left out, attending in stretches of their own: {', '.join(self.left_out)}" if self.left_out else ""
        self.notes = [note for note in (rows_because, shared, gone, reading.windows) if note]
        return self

    def add(self, keeper: RowKeeper, seeds: Sequence[int]) -> None:
        self.left_out |= keeper.left_out
        if not keeper.layers:
            where = f" ({', '.join(self.left_out)} attend in stretches of their own)" if self.left_out else ""
            raise StatisticError(f"no layer here attends over whole texts: there are no rows to compare{where}.")
        layers = tuple(keeper.layers.values())
        self.sites = tuple(layer.site for layer in layers)
        self.shared |= {str(layer.site): None for layer in layers if layer.sharing}
        sizes = [site.num_heads for site in self.sites]
        if self.divergences is None:
            self.divergences = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64, device="cpu")
        num = torch.zeros(len(seeds), len(self.sites), 1, dtype=torch.float64, device="cpu")
        den = torch.zeros_like(num)
        for text in range(len(seeds)):
            for block in keeper.blocks(text):
                if self.across_layers:
                    divergences = pair_divergences(block)
                    self.divergences += divergences
                    # Of each layer the mean over its own pairs: the squares along the diagonal.
                    squares = [rows.split(sizes, 1)[layer] for layer, rows in enumerate(divergences.split(sizes))]
                else:
                    squares = [pair_divergences(heads) for heads in block.split(sizes)]
                num[text, :, 0] += torch.stack(
                    [square.sum() / max(1, len(square) * (len(square) - 1)) for square in squares]
                )
                den[text] += block.shape[1]
        self.num_rows += int(den[:, 0].sum())
        self.seeds.update(seeds)
        self.sums.append(Sums.of(num, den, seeds, 0))

    def by_layer(self) -> tuple[LayerDiversity, ...]:
        sums = sum(self.sums[1:], self.sums[0])
        value, bounds = sums.value()[:, 0, 0] / MOST, [bound[:, 0] / MOST for bound in sums.interval()]
        diversity: list[LayerDiversity] = []
        for index, site in enumerate(self.sites):
            compared = site.num_heads > 1
            # One text, however often it comes, has no interval.
            low, high = (number(bound[index]) if compared and len(self.seeds) > 1 else None for bound in bounds)
            share = number(value[index]) if compared else None
            diversity.append(LayerDiversity(str(site), site.num_heads, share, low, high))
        return tuple(diversity)

    def diversity(self, model: str) -> Diversity:
        layers = self.by_layer() if self.num_rows else ()
        values = [layer.value for layer in layers if layer.value is not None]
        if not values:
            lack = "one head in each layer" if self.num_rows else "no row that sees two keys"
            raise StatisticError(f"{model} has {lack} here: there is nothing to compare.")
        because = f"{self.num_rows:,} rows: {'; '.join(self.notes)}"
        return Diversity(float(np.mean(values)), layers, self.num_rows, because)

    def result(self, model: str, clusters: int | None) -> HeadFamilies:
        notes = self.notes
        heads = tuple(head for site in self.sites for head in site.heads)
        if len(heads) < 2 or not self.num_rows or self.divergences is None:
            lack = "one head" if len(heads) < 2 else "no row that sees two keys"
            raise StatisticError(f"{model} has {lack} here: there is nothing to compare.")
        # Again, now that layers may have been left out.
        _check_clusters(clusters, len(heads))
        divergences = (self.divergences / self.num_rows).clamp_(0, MOST).numpy()
        families, tried, why = families_of(heads, divergences, clusters)
        places, explained = flat_map(divergences)
        because = "; ".join([f"{self.num_rows:,} rows: {notes[0]}", *notes[1:], why])
        sums = sum(self.sums[1:], self.sums[0])
        return HeadFamilies(
            model, heads, divergences, families, places, explained, self.by_layer(), tried, sums.num_texts,
            self.num_rows, because,
        )  # fmt: skip


def average_linkage(distances: Float64[ndarray, "n n"]) -> list[tuple[int, int, float]]:
    """Merges from near to far: a thing of one group, a thing of the other, and the mean distance between the two."""
    apart, size = distances.astype(np.float64), np.ones(len(distances))
    np.fill_diagonal(apart, np.inf)
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    alive = np.ones(len(distances), dtype=bool)
    for _ in range(len(distances) - 1):
        if not chain:
            chain = [int(alive.argmax())]
        # Each is nearer to the next than any before, until two are each other's nearest.
        while True:
            nearest = int(apart[chain[-1]].argmin())
            if len(chain) > 1 and apart[chain[-1], chain[-2]] <= apart[chain[-1], nearest]:
                break
            chain.append(nearest)
        first, second = sorted((chain.pop(), chain.pop()))
        merges.append((first, second, float(apart[first, second])))
        merged = (size[first] * apart[first] + size[second] * apart[second]) / (size[first] + size[second])
        apart[first] = apart[:, first] = merged
        apart[second] = apart[:, second] = apart[first, first] = np.inf
        size[first], alive[second] = size[first] + size[second], False
    return sorted(merges, key=lambda merge: merge[2])


def cut(merges: list[tuple[int, int, float]], count: int) -> Int64[ndarray, "n"]:
    """The group of each thing where the nearest are merged until `count` groups are left, numbered by first member."""
    num = len(merges) + 1
    parent = list(range(num))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for first, second, _ in merges[: num - count]:
        low, high = sorted((root(first), root(second)))
        parent[high] = low
    return np.unique([root(node) for node in range(num)], return_inverse=True)[1].astype(np.int64)


def silhouettes(distances: Float64[ndarray, "n n"], groups: Int64[ndarray, "n"]) -> Float64[ndarray, "n"]:
    """How much nearer each thing is to its own group than to the next one, -1 to 1; 0 for one alone in its group."""
    member = np.eye(int(groups.max()) + 1)[groups]
    size, is_in = member.sum(0), member.astype(bool)
    if len(size) < 2:
        return np.zeros(len(groups))
    sums = distances @ member
    inside = sums[is_in] / np.maximum(size[groups] - 1, 1)
    outside = np.where(is_in, np.inf, sums / size).min(1)
    larger = np.maximum(inside, outside)
    with np.errstate(invalid="ignore"):
        return np.where((size[groups] > 1) & (larger > 0), (outside - inside) / larger, 0.0)


def best_cut(distances: Float64[ndarray, "n n"], merges: list[tuple[int, int, float]]) -> tuple[int, dict[int, float]]:
    """The number of groups, 2 to `MOST_GROUPS`, of the largest mean silhouette (the fewest of equals), and all tried.

    Only cuts into at least two groups of two or more count, where there are any: to set one odd thing apart from all
    others often scores best and says nothing of groups. Of fewer than three things each is a group of its own.
    """
    groups = {count: cut(merges, count) for count in range(2, min(MOST_GROUPS, len(distances) - 1) + 1)}
    tried = {count: float(silhouettes(distances, group).mean()) for count, group in groups.items()}
    telling = [count for count, group in groups.items() if (np.bincount(group) > 1).sum() > 1]
    best = max(telling or tried, key=lambda count: (tried[count], -count), default=len(distances))
    return best, tried


def medoid(distances: Float64[ndarray, "n n"], members: Int64[ndarray, "_"]) -> int:
    """The member that is nearest to all others of its group, the first of equals."""
    return int(members[distances[np.ix_(members, members)].sum(1).argmin()])


def flat_map(squared: Float64[ndarray, "n n"]) -> tuple[Float64[ndarray, "n 2"], float]:
    """A place in the plane for each thing, from squared distances, and what share of these it shows (0 to 1).

    The axes are the directions in which things differ most; on each, what lies farthest out lies on the positive side,
    so that the same distances always give the same map.
    """
    centred = squared - squared.mean(0) - squared.mean(1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    values, vectors = values[::-1].clip(0), vectors[:, ::-1]
    places = np.zeros((len(squared), 2))
    for axis in range(min(2, len(squared))):
        along = vectors[:, axis] * np.sqrt(values[axis])
        places[:, axis] = along * np.sign(along[np.abs(along).round(12).argmax()] or 1.0)
    total = float(values.sum())
    return places, float(values[:2].sum()) / total if total > 0 else 1.0
