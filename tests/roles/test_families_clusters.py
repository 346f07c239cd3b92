"""Claims about groups and maps of things, against brute force and, where it is there, scipy."""

import numpy as np
import pytest

from manyheads.roles.compare.families import average_linkage, best_cut, cut, flat_map, medoid, silhouettes


@pytest.fixture
def random(fresh):
    return np.random.default_rng(fresh.initial_seed())


def distances_of(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def naive(distances, count):
    """Merge the two groups of the least mean distance until `count` are left."""
    groups = [[at] for at in range(len(distances))]
    while len(groups) > count:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        i, j = min(pairs, key=lambda pair: distances[np.ix_(groups[pair[0]], groups[pair[1]])].mean())
        groups[j] += groups.pop(i)
    return {frozenset(group) for group in groups}


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


@pytest.mark.parametrize("num", [2, 3, 7, 23])
def test_linkage_is_brute_forces_at_every_number_of_groups(num, random):
    distances = distances_of(random.normal(size=(num, 4)))
    merges = average_linkage(distances)
    heights = [height for _, _, height in merges]
    assert len(merges) == num - 1 and heights == sorted(heights)
    for count in range(1, num + 1):
        assert as_sets(cut(merges, count)) == naive(distances, count)


def test_linkage_is_scipys(random):
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    distances = distances_of(random.normal(size=(150, 6)))
    merges = average_linkage(distances)
    tree = hierarchy.linkage(distances[np.triu_indices(150, 1)], "average")
    assert np.abs(tree[:, 2] - [height for _, _, height in merges]).max() < 1e-12
    for count in (2, 9, 40):
        assert as_sets(cut(merges, count)) == as_sets(hierarchy.fcluster(tree, count, "maxclust"))


def test_things_that_are_the_same_come_together_first(random):
    points = random.normal(size=(4, 3))[[0, 1, 0, 2, 1, 3, 0]]
    assert as_sets(cut(average_linkage(distances_of(points)), 4)) == {
        frozenset({0, 2, 6}), frozenset({1, 4}), frozenset({3}), frozenset({5})
    }  # fmt: skip


def test_silhouettes_are_the_definitions(random):
    distances, groups = distances_of(random.normal(size=(17, 3))), np.repeat([0, 1, 2, 3], [8, 5, 3, 1])
    want = []
    for at, group in enumerate(groups):
        own = [distances[at, other] for other in range(17) if groups[other] == group and other != at]
        others = [distances[at, groups == other].mean() for other in range(4) if other != group]
        want.append((min(others) - np.mean(own)) / max(min(others), np.mean(own)) if own else 0)
    assert np.abs(silhouettes(distances, groups) - want).max() < 1e-12
    assert not silhouettes(distances, np.zeros(17, dtype=np.int64)).any(), "one group is next to nothing"


@pytest.mark.parametrize("sizes", [(6, 6), (8, 4), (5, 4, 3), (9, 2, 2, 2)])
def test_planted_groups_are_found_with_their_number(sizes, random):
    centres = 10 * random.permutation(np.eye(len(sizes), 5))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    distances = distances_of(centres[groups] + random.normal(scale=0.3, size=(len(groups), 5)))
    merges = average_linkage(distances)
    count, tried = best_cut(distances, merges)
    assert count == len(sizes) and as_sets(cut(merges, count)) == as_sets(groups)
    assert tried[count] == max(tried.values()) and min(tried) == 2


def test_one_odd_thing_is_not_a_family_against_all_others(random):
    """Alone by far, so that setting it apart has the best silhouette; the two groups are what there is to tell."""
    groups = np.repeat([0, 1, 2], [6, 5, 1])
    centres = np.array([[0.0, 0], [3, 0], [0, 90]])
    distances = distances_of(centres[groups] + random.normal(scale=0.1, size=(12, 2)))
    merges = average_linkage(distances)
    count, tried = best_cut(distances, merges)
    assert tried[2] > tried[3] and count == 3 and as_sets(cut(merges, 3)) == as_sets(groups)


def test_too_few_things_for_silhouettes_are_groups_of_their_own():
    distances = distances_of(np.array([[0.0], [1.0]]))
    assert best_cut(distances, average_linkage(distances)) == (2, {})


def test_a_medoid_is_nearest_to_its_group(random):
    points = random.normal(size=(9, 2))
    members = np.array([1, 3, 4, 8])
    inside = distances_of(points)[np.ix_(members, members)].sum(0)
    assert medoid(distances_of(points), members) == members[inside.argmin()]


def test_a_map_of_points_in_the_plane_is_the_plane(random):
    points = random.normal(size=(20, 2)) * [3, 1]
    places, explained = flat_map(distances_of(points) ** 2)
    assert np.abs(distances_of(places) - distances_of(points)).max() < 1e-9 and explained > 1 - 1e-12
    order = random.permutation(20)
    again, _ = flat_map(distances_of(points[order]) ** 2)
    assert np.abs(again - places[order]).max() < 1e-9, "a place hangs on distances, not on the order or on luck"


def test_a_map_says_how_much_it_shows(random):
    points = random.normal(size=(400, 3)) * [4, 2, 1]
    _, explained = flat_map(distances_of(points) ** 2)
    centred = points - points.mean(0)
    values = np.linalg.eigvalsh(centred.T @ centred)
    assert explained == pytest.approx(values[1:].sum() / values.sum())


def test_a_map_of_nothing_apart_is_one_point():
    places, explained = flat_map(np.zeros((3, 3)))
    assert not places.any() and explained == 1
