"""Groups of things whose distances are known, and a map of them: average linkage, silhouettes, classical scaling.

In NumPy, some thirty lines each, since nothing else here needs a library for it. Average linkage by chains of nearest
neighbours: O(n^2) for n things, a second for some thousands.
Sources: Sokal and Michener 1958 (average linkage); Murtagh 1983 (chains); Rousseeuw 1987 (silhouettes);
Torgerson 1952 (classical scaling).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

MOST_GROUPS = 20  # that the best number is looked for among: more are no overview any more


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
        while True:  # each nearer to the next than any before, until two are each other's nearest
            nearest = int(apart[chain[-1]].argmin())
            if len(chain) > 1 and apart[chain[-1], chain[-2]] <= apart[chain[-1], nearest]:
                break
            chain.append(nearest)
        first, second = sorted((chain.pop(), chain.pop()))
        merges.append((first, second, float(apart[first, second])))
        both = (size[first] * apart[first] + size[second] * apart[second]) / (size[first] + size[second])
        apart[first] = apart[:, first] = both
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
    return np.unique([root(at) for at in range(num)], return_inverse=True)[1].astype(np.int64)


def silhouettes(distances: Float64[ndarray, "n n"], groups: Int64[ndarray, "n"]) -> Float64[ndarray, "n"]:
    """How much nearer each thing is to its own group than to the next one, -1 to 1; 0 for one alone in its group."""
    member = np.eye(int(groups.max()) + 1)[groups]
    size, own = member.sum(0), member.astype(bool)
    if len(size) < 2:
        return np.zeros(len(groups))
    sums = distances @ member
    inside = sums[own] / np.maximum(size[groups] - 1, 1)
    outside = np.where(own, np.inf, sums / size).min(1)
    larger = np.maximum(inside, outside)
    with np.errstate(invalid="ignore"):
        return np.where((size[groups] > 1) & (larger > 0), (outside - inside) / larger, 0.0)


def best_cut(
    distances: Float64[ndarray, "n n"], merges: list[tuple[int, int, float]], most: int = MOST_GROUPS
) -> tuple[int, dict[int, float]]:
    """The number of groups, 2 to `most`, of the largest mean silhouette (the fewest of equals), and all that was tried.

    Only cuts into at least two groups of two or more count, where there are any: to set one odd thing apart from all
    others often scores best and says nothing of groups. Of fewer than three things each is a group of its own.
    """
    groups = {count: cut(merges, count) for count in range(2, min(most, len(distances) - 1) + 1)}
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
