"""Strongest keys of whole maps, held to pencil, to loops over rows and to every order of the words."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.reference.statistics import rarest, tops
from tests.reference.facts import TEXTS, H, assert_pair, some_map, some_text


def test_one_map_by_hand():
    """[CLS] a b b: b is the rarest. Row a looks at b, the first b at [CLS], the second at a."""
    weights = np.array([[[1, 0, 0, 0], [0.1, 0.2, 0.1, 0.6], [0.7, 0.1, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2]]])
    visible, word = np.ones((4, 4), bool), np.array([False, True, True, True])
    got = tops(weights, visible, np.array([9, 1, 2, 2]), word, np.array([1.0, 0.2, 0.7, 0.7]))
    assert_pair(got, "word_top", 2, 3)
    assert_pair(got, "word_top.uniform", 3 * 3 / 4, 3)
    assert_pair(got, "rarest_top", 1, 2)
    assert_pair(got, "rarest_top.uniform", 3 * 2 / 3, 3)
    assert_pair(got, "rarest_top.relabelled", 2 * 2 / 3, 2)
    assert_pair(got, "two_rarest_top", 2, 2)
    assert_pair(got, "two_rarest_top.uniform", 3, 3)


def test_rarest_goes_by_kind_and_those_as_rare_come_along():
    ids, word = np.array([7, 5, 5, 3, 4, 9]), np.array([True] * 5 + [False])
    by_rank = np.array([0.7, 0.5, 0.5, 0.3, 0.4, 0.9])
    assert_array_equal(rarest(ids, word, by_rank, 1), [1, 0, 0, 0, 0, 0])
    assert_array_equal(rarest(ids, word, by_rank, 2), [1, 1, 1, 0, 0, 0])
    by_count = np.array([0.5, 0.5, 0.5, 0.1, 0.1, 0.9])
    assert_array_equal(rarest(ids, word, by_count, 1), [1, 1, 1, 0, 0, 0])
    assert_array_equal(rarest(ids, ~word, by_count, 2), [0, 0, 0, 0, 0, 1])  # there is only one
    assert_array_equal(rarest(ids, word & ~word, by_count, 2), np.zeros(6))


@TEXTS
def test_every_share_is_a_count_of_rows(rng, kind):
    text = some_text(rng, kind=kind)
    weights, word = some_map(rng, text), ~text.special
    got = tops(weights, text.visible, text.ids, word, text.rarity)
    kinds = sorted({text.rarity[i] for i in np.flatnonzero(word)}, reverse=True)
    for name, least in (("rarest_top", kinds[0]), ("two_rarest_top", kinds[min(1, len(kinds) - 1)])):
        for head in range(H):
            hits = rows = 0
            for i in np.flatnonzero(word):
                sees = [j for j in range(len(word)) if text.visible[i, j]]
                rare = [j for j in sees if word[j] and text.rarity[j] >= least]
                best = max(sees, key=lambda j: weights[head, i, j], default=None)
                rows += bool(rare) and bool(word[best])
                hits += bool(rare) and best in rare
            assert [side[head] for side in got[name]] == [hits, rows]


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_relabelled_is_the_mean_over_all_orders_of_the_words(rng, kind):
    text = some_text(rng, n=7, kind=kind)
    weights, word = some_map(rng, text), ~text.special
    got = tops(weights, text.visible, text.ids, word, text.rarity)
    for name, count in (("rarest_top", 1), ("two_rarest_top", 2)):
        rare = rarest(text.ids, word, text.rarity, count)
        rows = word & (text.visible & rare).any(1)
        hits = []
        for order in itertools.permutations(np.flatnonzero(word)):
            moved = rare.copy()
            moved[word] = rare[list(order)]
            hits.append((rows & moved[weights.argmax(2)]).sum(1))
        assert_allclose(got[f"{name}.relabelled"][0], np.mean(hits, 0))
