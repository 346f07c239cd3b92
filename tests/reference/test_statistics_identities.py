"""What holds for every map: its statistics' chance levels are their closed forms, and statistics agree with each other.

Inputs are drawn afresh for each commit. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import inspect
import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import ShapeError
from manyheads.reference.cells import CELLS, OFFSETS
from manyheads.reference.statistics import ROWS, WEIGHTED, statistics
from tests.reference.facts import CLASSES, COPIES, TEXTS, H, N, assert_pair, facts, some_map, some_text

CHANCE = ("uniform", "relabelled")


def value(pair):
    numerator, denominator = pair
    return numerator / denominator


def assert_value(got, name, expected, **tolerance):
    assert_allclose(value(got[name]), expected, err_msg=name, **({"atol": 1e-12} | tolerance))


# -------------------------------------------------------------------------------------------------------- chance levels


@TEXTS
def test_uniform_twins_are_their_closed_forms(rng, kind):
    text = some_text(rng, kind=kind)
    got = statistics(some_map(rng, text), text)
    counts = text.visible.sum(1)[text.alive]
    place = np.arange(N)
    expected = {
        "entropy": np.log(counts),
        "effective_keys": counts,
        "max_weight": 1 / counts,
        "sum_of_squares": 1 / counts,
        "distance": [np.abs(place[sees] - i).mean() for i, sees in enumerate(text.visible) if sees.any()],
        "signed_distance": [(place[sees] - i).mean() for i, sees in enumerate(text.visible) if sees.any()],
        "mean_position": [place[sees].mean() / (N - 1) for sees in text.visible if sees.any()],
        "local_mass": [(np.abs(place[sees] - i) <= 3).mean() for i, sees in enumerate(text.visible) if sees.any()],
    }
    assert set(ROWS) | {"local_mass"} == set(expected)
    for name, rows in expected.items():
        assert_pair(got, f"{name}.uniform", np.sum(rows), len(counts))


@TEXTS
def test_a_head_that_looks_everywhere_alike_is_its_own_chance_level(rng, kind):
    text = some_text(rng, kind=kind)
    weights = np.broadcast_to(text.visible / np.maximum(text.visible.sum(1, keepdims=True), 1), (H, N, N))
    got = statistics(weights, text)
    twins = [name.removesuffix(".uniform") for name in got if name.endswith(".uniform") and "_top" not in name]
    assert len(twins) == len(ROWS) + len(CELLS) + len(WEIGHTED) + 1
    for name in twins:
        assert_pair(got, name, *got[f"{name}.uniform"])


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "holes"])
def test_relabelled_classes_are_the_mean_over_all_orders_of_the_words(rng, kind):
    n = 7
    text = some_text(rng, n=n, kind=kind)
    weights = some_map(rng, text)
    ordinary = np.flatnonzero(~text.special)
    got = statistics(weights, text)
    for name in CLASSES:
        column = getattr(text, name)
        rows = (text.visible & column).any(1)
        masses = []
        for order in itertools.permutations(ordinary):
            moved = column.copy()
            moved[ordinary] = column[list(order)]
            masses.append(weights[:, rows][:, :, moved].sum((1, 2)))
        assert_pair(got, f"{name}_mass.relabelled", np.mean(masses, 0), rows.sum())


def test_relabelling_leaves_what_it_finds_of_a_class_among_special_tokens(rng):
    text = replace(some_text(rng, kind="bidirectional"), rare=np.arange(N) == 0)  # position 0 is special
    got = statistics(some_map(rng, text), text)
    assert_pair(got, "rare_mass.relabelled", *got["rare_mass"])


def test_a_relabelling_that_moves_nothing_changes_nothing_and_another_does(rng):
    text = facts([1, 2, 1, 2, 3], special=[4], relabelling=np.arange(5))
    weights = some_map(rng, text)
    got = statistics(weights, text)
    moved = statistics(weights, replace(text, relabelling=np.array([1, 2, 0, 3, 4])))  # 2 1 1 2
    for name in COPIES:
        assert_pair(got, f"{name}.relabelled", *got[name])
        assert_pair(moved, name, *got[name])
        assert np.abs(moved[f"{name}.relabelled"][0] - got[name][0]).max() > 1e-6
    assert_pair(moved, "induction_mass.relabelled", weights[:, 2, 2] + weights[:, 3, 1], 2)


# ----------------------------------------------------------------------------------------------------------- identities


@TEXTS
def test_what_holds_for_every_map(rng, kind):
    text = some_text(rng, n=8, kind=kind)  # so short that the offsets cover it
    got = statistics(some_map(rng, text), text)
    alive, place = text.alive, np.arange(8)
    assert_allclose(sum(got[name][0] for name in CELLS if is_offset(name)), alive.sum(), atol=1e-12)
    assert_pair(got, "missing_mass", np.zeros(H), alive.sum())
    from_position = got["mean_position"][0] * 7 - place[alive].sum()
    assert_pair(got, "signed_distance", from_position, alive.sum())
    assert (got["distance"][0] >= np.abs(got["signed_distance"][0]) - 1e-12).all()
    for less, more in [
        ("entropy", "entropy.uniform"),
        ("effective_keys", "effective_keys.uniform"),
        ("max_weight.uniform", "max_weight"),
        ("sum_of_squares.uniform", "sum_of_squares"),
        ("sum_of_squares", "max_weight"),
    ]:
        assert (got[less][0] <= got[more][0] + 1e-12).all(), (less, more)


def is_offset(name):
    return name.startswith(("offset", "previous_mass", "self", "next")) and "norm" not in name


def test_heads_do_not_mix(rng):
    text = some_text(rng)
    weights = some_map(rng, text)
    together = statistics(weights, text)
    for head in range(H):
        alone = statistics(weights[head : head + 1], replace(text, value_norms=text.value_norms[head : head + 1]))
        for name, pair in alone.items():
            assert_pair(together, name, *together[name])
            assert_allclose([part[head] for part in together[name]], np.ravel(pair), atol=1e-12, err_msg=name)


def test_sinks_leave_mass_missing(rng):
    text = some_text(rng)
    sinks = np.array([-np.inf, 0.0, 2.0])
    got = statistics(some_map(rng, text, sinks), text)
    missing = value(got["missing_mass"])
    assert missing[0] == pytest.approx(0, abs=1e-12)
    assert (missing[1:] > 0.01).all()
    offsets = sum(value for name, (value, _) in got.items() if is_offset(name) and "." not in name)
    assert (offsets <= got["missing_mass"][1] - got["missing_mass"][0] + 1e-12).all()


def test_sink_norm_mass_weighs_by_the_values_length(rng):
    text = replace(some_text(rng), sink=np.arange(N) == 0)
    weights = some_map(rng, text)
    got = statistics(weights, text)
    column = weights.sum(1)
    assert_value(got, "sink_norm_mass", column[:, 0] * text.value_norms[:, 0] / (column * text.value_norms).sum(1))
    alike = statistics(weights, replace(text, value_norms=np.full((H, N), 3.0)))
    assert_value(alike, "sink_norm_mass", value(alike["sink_mass"]))
    without = statistics(weights, replace(text, value_norms=None))
    assert not [name for name in without if "norm" in name] and "rarest_top" in without
    assert not [name for name in statistics(weights, replace(text, rarity=None)) if "_top" in name]


def test_a_float32_map_is_measured_in_float64(rng):
    text = some_text(rng)
    weights = some_map(rng, text).astype(np.float32)
    for name, pair in statistics(weights, text).items():
        assert {part.dtype for part in pair} == {np.dtype(np.float64)}, name
        assert {part.shape for part in pair} == {(H,)}, name


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_shortest_texts_have_every_statistic(rng, n):
    text = facts(list(range(n)), value_norms=np.ones((H, n)), rarity=np.ones(n))
    got = statistics(some_map(rng, text), text)
    for name, pair in got.items():
        assert np.isfinite(pair).all(), name
    assert_array_equal(got["heaviest_key"][1], float(n > 0))  # a text counts once
    assert_pair(got, "self_mass.uniform", min(n, 1), n)


def test_rows_that_see_nothing_are_not_counted(rng):
    known = {"value_norms": np.ones((H, 3)), "rarity": np.arange(3) / 3}
    text = facts([1, 2, 1], np.zeros((3, 3), bool), special=[0], **known)
    for name, pair in statistics(np.zeros((H, 3, 3)), text).items():
        assert_array_equal(pair, np.zeros((2, H)), err_msg=name)


def test_the_names_are_these(rng):
    offsets = {"previous_mass", "self_mass", "next_mass"}
    offsets |= {f"offset_{o:+d}_mass" for o in OFFSETS if abs(o) > 1}
    assert len(offsets) == 17
    assert {"offset_-8_mass", "offset_+8_mass"} <= offsets
    classes = {f"{name}_mass" for name in ("first", "special", "separator", *CLASSES)}
    masses = offsets | classes | {"local_mass", "distant_mass", "sink_mass", *COPIES}
    rows = {"entropy", "effective_keys", "mean_position", "signed_distance", "distance", "max_weight", "sum_of_squares"}
    normed = {name.replace("_mass", "_norm_mass") for name in offsets | classes}
    rarest = {"rarest_top", "two_rarest_top"}
    relabelled = {f"{name}_{mass}" for name in CLASSES for mass in ("mass", "norm_mass")} | rarest | set(COPIES)
    twins = masses | rows | normed | rarest | {"word_top"}
    expected = twins | {"heaviest_key", "missing_mass", "sink_norm_mass"}
    expected |= {name.replace("_mass", f"_{kind}_mass") for name in COPIES for kind in ("norm", "unsunk")}
    expected |= {f"{name}.uniform" for name in twins} | {f"{name}.relabelled" for name in relabelled}
    text = some_text(rng)
    assert set(statistics(some_map(rng, text), text)) == expected
    for name in expected:
        assert "." not in name or name.split(".")[1] in CHANCE


def test_every_statistic_says_what_it_is():
    for name, function in (ROWS | CELLS).items():
        words = inspect.getdoc(getattr(function, "func", function))
        assert words, name


def test_a_map_of_another_text_is_an_error():
    function = inspect.unwrap(statistics)
    with pytest.raises(ShapeError, match=r"weights has shape \(3, 4, 4\).*must be \(heads, 2, 2\)"):
        function(np.zeros((3, 4, 4)), facts([1, 2]))


@pytest.mark.turns(4)
def test_statistics_need_no_torch():
    code = "import manyheads.reference.statistics, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
