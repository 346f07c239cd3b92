"""Norm-weighted masses of whole maps, held to pencil, loops over cells, and plain masses where norms are alike."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from manyheads.reference.cells import CELLS, MATCHES
from manyheads.reference.statistics import MOVABLE, WEIGHTED, norm_masses, statistics
from tests.reference.facts import TEXTS, H, assert_pair, some_map, some_text


def test_two_tokens_by_hand():
    """Row 1 gives a quarter to key 0, whose value is eight times as long: it moves more than half from there."""
    weights, norms = np.array([[[1, 0], [0.25, 0.75]]]), np.array([[8.0, 1.0]])
    before, first = np.array([[0, 0], [1, 0]], bool), np.array([[1, 0], [1, 0]], bool)
    visible, ordinary = np.tri(2, dtype=bool), np.ones(2, bool)
    cells = {"previous_mass": before, "first_mass": first, "rare_mass": first, "next_mass": before.T}
    got = norm_masses(weights, norms, visible, cells, {"rare_mass": np.array([True, False])}, ordinary)
    assert_pair(got, "previous_norm_mass", 2, 10.75)
    assert_pair(got, "previous_norm_mass.uniform", 4, 8 + 4 + 0.5)
    assert_pair(got, "first_norm_mass", 10, 10.75)
    assert_pair(got, "rare_norm_mass.relabelled", 10.75 / 2, 10.75)  # it may as well be the other token
    assert_pair(got, "next_norm_mass", 0, 0)  # no row sees what comes after it
    assert "first_norm_mass.relabelled" not in got


@TEXTS
@pytest.mark.sampled(3)
def test_every_norm_weighted_mass_is_the_sum_over_its_cells(rng, kind):
    text = some_text(rng, kind=kind)
    weights = some_map(rng, text)
    got = statistics(weights, text)
    for name in WEIGHTED:
        cells = CELLS[name](text)
        for head in range(H):
            part = whole = 0.0
            any_cell = False
            for i, j in zip(*np.nonzero(text.visible), strict=True):
                moved = weights[head, i, j] * text.value_norms[head, j]
                part, whole = part + moved * cells[i, j], whole + moved
                any_cell |= bool(cells[i, j])
            found = [side[head] for side in got[name.replace("_mass", "_norm_mass")]]
            assert_allclose(found, [part * any_cell, whole * any_cell], atol=1e-12, err_msg=name)


@TEXTS
def test_a_match_is_weighed_against_what_its_own_rows_move(rng, kind):
    text = some_text(rng, kind=kind)
    weights = some_map(rng, text)
    got = statistics(weights, text)
    for name in MATCHES:
        cells = CELLS[name](text) & text.visible
        moved = weights * text.value_norms[:, None]
        rows = [i for i in range(len(text.ids)) if cells[i].any()]
        part = sum(((moved[:, i] * cells[i]).sum(1) for i in rows), np.zeros(H))
        whole = sum((moved[:, i].sum(1) for i in rows), np.zeros(H))
        assert_allclose(got[name.replace("_mass", "_norm_mass")], [part, whole], atol=1e-12)


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_where_all_values_are_as_long_a_part_of_the_whole_is_a_mean_over_all_rows(rng, kind):
    text = some_text(rng, kind=kind)
    text = replace(text, value_norms=np.full((H, len(text.ids)), 3.0), punctuation=np.arange(len(text.ids)) == 2)
    weights = some_map(rng, text)
    got, rows = statistics(weights, text), len(text.ids)
    for name in ("previous_mass", "offset_-3_mass", "punctuation_mass", "punctuation_mass.uniform"):
        assert_allclose(np.divide(*got[name.replace("_mass", "_norm_mass")]), got[name][0] / rows, err_msg=name)


def test_relabelled_leaves_what_it_finds_of_a_class_among_special_tokens(rng):
    text = some_text(rng, kind="bidirectional")
    text = replace(text, **dict.fromkeys(MOVABLE, text.special))
    got = statistics(some_map(rng, text), text)
    for name in MOVABLE:
        assert_pair(got, f"{name}_norm_mass.relabelled", *got[f"{name}_norm_mass"])
        assert_pair(got, f"{name}_norm_mass", *got["special_norm_mass"])
