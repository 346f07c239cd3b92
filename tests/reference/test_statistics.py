"""Statistics of whole maps, held to published numbers, to pencil and to loops over cells."""

import inspect
import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from manyheads.errors import ShapeError
from manyheads.reference import attend
from manyheads.reference.cells import CELLS, MATCHES, OFFSETS, TextFacts
from manyheads.reference.statistics import MOVABLE, ROWS, WEIGHTED, norm_masses, rarest, statistics, tops

# ======================================================================================================= texts and maps
# Random texts with all that statistics ask of them, and maps over them, for those who test statistics of maps.

H, N = 3, 11
CLASSES = ("punctuation", "number", "capitalised", "rare")
COPIES = ("duplicate_mass", "induction_mass", "previous_copy_mass")


def facts(ids, visible=None, **known):
    """A text by its ids; nothing is special, in a class or a sink unless said, and all may look everywhere."""
    n = len(ids)
    nowhere = np.zeros(n, bool)
    plain = dict.fromkeys(("special", "sink", *CLASSES), nowhere)
    given = {name: np.isin(np.arange(n), where) for name, where in known.items() if name in plain}
    rest = {name: value for name, value in known.items() if name not in plain}
    visible = np.ones((n, n), bool) if visible is None else visible
    return TextFacts(visible, np.array(ids, int), **({"relabelling": np.arange(n)} | plain | given | rest))


def some_text(rng, n=N, kind="causal"):
    """A random text in which everything occurs, and something of each is missing somewhere."""
    place = np.arange(n)
    visible = {
        "bidirectional": np.ones((n, n), bool),
        "causal": place <= place[:, None],
        "window": (place <= place[:, None]) & (place > place[:, None] - 3),
        "holes": rng.random((n, n)) < 0.5,
        "dead rows": np.broadcast_to((rng.random(n) < 0.5)[:, None], (n, n)).copy(),
    }[kind]
    special = (place == 0) | (place == n - 1)
    classes = {name: (rng.random(n) < 0.3) & ~special for name in CLASSES}
    relabelling = place.copy()
    relabelling[~special] = rng.permutation(place[~special])
    ids = np.where(special, 99, rng.integers(0, 4, n))
    known = {"value_norms": rng.uniform(0.5, 2, (H, n)), "rarity": rng.random(100)[ids]}
    sink = rng.random(n) < 0.3
    return TextFacts(visible, ids, special, **classes, sink=sink, relabelling=relabelling, **known)


def some_map(rng, text, sinks=None):
    """Attention of random queries and keys under the text's mask."""
    n = len(text.ids)
    q, k, v = rng.normal(size=(3, 1, H, n, 5))
    return attend(q, k, v, mask=text.visible, sinks=sinks).weights[0]


def assert_pair(got, name, numerator, denominator):
    assert_allclose(got[name][0], numerator, atol=1e-12, err_msg=f"numerator of {name}")
    assert_allclose(got[name][1], denominator, atol=1e-12, err_msg=f"denominator of {name}")


TEXTS = pytest.mark.parametrize("kind", ["bidirectional", "causal", "window", "holes", "dead rows"])


# ============================================================================================= statistics of whole maps

# ---------------------------------------------------------------------------------------------------- published vectors

BOS_THEN_TWICE = facts([9, 1, 2, 3, 1, 2, 3], np.tri(7, dtype=bool), special=[0])


def looks_at(keys):
    weights = np.zeros((1, len(keys), len(keys)))
    weights[0, np.arange(len(keys)), keys] = 1
    return weights


# The detector's "mul" score is the sum of matched weights over the number of rows (all rows sum to 1).
PUBLISHED = {
    "uniform causal": (np.tri(7)[None] / np.arange(1, 8)[:, None], 0.2276, 0.0728, 0.0728),
    "exact previous": (looks_at([0, 0, 1, 2, 3, 4, 5]), 0.8571, 0, 0),
    "induction, else to BOS": (looks_at([0, 0, 0, 0, 2, 3, 4]), 0.1429, 0, 0.4286),
}


@pytest.mark.parametrize("head", PUBLISHED)
def test_numerators_are_those_of_the_head_detector(head):
    weights, previous, duplicate, induction = PUBLISHED[head]
    got = statistics(weights, BOS_THEN_TWICE)
    for name, score in (("previous", previous), ("duplicate", duplicate), ("induction", induction)):
        assert_allclose(got[f"{name}_mass"][0] / 7, score, atol=5e-5, err_msg=name)


def test_a_perfect_head_scores_1_and_the_key_after_an_earlier_copy_may_be_the_row_itself():
    previous, induction = (statistics(PUBLISHED[head][0], BOS_THEN_TWICE) for head in list(PUBLISHED)[1:])
    assert_pair(previous, "previous_mass", 6, 6)
    assert_pair(induction, "induction_mass", 3, 3)
    assert_pair(induction, "previous_mass", 1, 6)
    assert_pair(induction, "first_mass", 4, 7)
    assert_pair(induction, "special_mass", 4, 7)
    got = statistics(looks_at([0, 1, 2]), facts([5, 5, 7], np.tri(3, dtype=bool)))
    assert_pair(got, "induction_mass", 1, 1)  # row 1 follows its own copy; row 2's token is new
    assert_pair(got, "duplicate_mass", 0, 1)


# -------------------------------------------------------------------------------------------------------- with a pencil


def test_one_small_map_by_hand():
    """Four tokens, the first of them special and a sink, "the" twice; the last row sees nothing."""
    visible = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]], bool)
    weights = np.array([[[1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0, 0, 0.25], [0, 0, 0, 0]]])
    text = facts(
        [101, 7, 8, 7], visible, special=[0], sink=[0], punctuation=[2], rare=[1, 3],
        relabelling=np.array([0, 2, 1, 3]), value_norms=np.array([[0.5, 2, 3, 4]]),
    )  # fmt: skip
    got = statistics(weights, text)
    ln2, ln4 = np.log(2), np.log(4)
    third = 0.5 * ln2 + 0.25 * ln4
    expected = {
        "entropy": (ln4 + third, 3),
        "entropy.uniform": (2 * ln4 + np.log(3), 3),
        "effective_keys": (1 + 4 + np.exp(third), 3),
        "effective_keys.uniform": (11, 3),
        "mean_position": (0 + 1.5 / 3 + 0.75 / 3, 3),
        "signed_distance": (0 + (-1 + 0 + 1 + 2) / 4 + (-1 + 0.25), 3),
        "distance": (0 + (1 + 0 + 1 + 2) / 4 + (1 + 0.25), 3),
        "distance.uniform": (6 / 4 + 4 / 4 + (2 + 0 + 1) / 3, 3),
        "previous_mass": (0.25, 1),  # row 2 does not see key 1, row 0 has none before it
        "previous_mass.uniform": (0.25, 1),
        "self_mass": (1 + 0.25 + 0, 3),
        "next_mass": (0 + 0.25 + 0.25, 3),
        "offset_-2_mass": (0.5, 1),
        "offset_+3_mass": (0, 1),
        "offset_-3_mass": (0, 0),
        "offset_+8_mass": (0, 0),
        "local_mass": (1 + 1 + 0.75, 3),
        "local_mass.uniform": (3, 3),
        "first_mass": (1 + 0.25 + 0.5, 3),
        "sink_mass": (1 + 0.25 + 0.5, 3),
        "special_mass.uniform": (1 / 4 + 1 / 4 + 1 / 3, 3),
        "separator_mass": (0, 0),  # the only special token is the first
        "punctuation_mass": (0 + 0.25 + 0, 3),
        "punctuation_mass.relabelled": ((0 + 0.75 + 0.25) / 3, 3),  # one of three ordinary positions
        "rare_mass": (0 + 0.5 + 0.25, 3),
        "rare_mass.relabelled": (2 * (0 + 0.75 + 0.25) / 3, 3),
        "number_mass": (0, 0),
        "number_mass.relabelled": (0, 0),
        "duplicate_mass": (0.25, 1),  # row 1 sees the other 7; row 3 sees nothing
        "duplicate_mass.relabelled": (0.25, 1),  # 8 7 7: row 2 sees the other one, row 1 is alone
        "duplicate_mass.uniform": (0.25, 1),
        "induction_mass": (0, 0),
        "previous_copy_mass": (0, 0),  # the row that could look before its copy sees nothing
        "max_weight": (1 + 0.25 + 0.5, 3),
        "sum_of_squares": (1 + 0.25 + 0.25 + 0.0625, 3),
        "sum_of_squares.uniform": (1 / 4 + 1 / 4 + 1 / 3, 3),
        "heaviest_key": (1.75 / 3, 1),
        "missing_mass": (0.25, 3),
        "sink_norm_mass": (0.875, 1.75 * 0.5 + 0.25 * 2 + 0.25 * 3 + 0.5 * 4),
    }
    for name, (numerator, denominator) in expected.items():
        assert_pair(got, name, numerator, denominator)


def test_words_that_copy_each_other_across_the_text_of_what_their_own_rows_leave_the_sinks():
    # a b a b: rows 2 and 3 have an earlier copy, and what came after it.
    weights = np.arange(16.0).reshape(1, 4, 4)
    got = statistics(weights, facts([1, 2, 1, 2]))
    assert_pair(got, "duplicate_mass", weights[0, 0, 2] + weights[0, 1, 3] + weights[0, 2, 0] + weights[0, 3, 1], 4)
    assert_pair(got, "induction_mass", weights[0, 2, 1] + weights[0, 3, 2], 2)
    assert_pair(got, "previous_copy_mass", weights[0, 3, 0], 1)  # nothing stands before the first a
    # Rows 0 and 2 hold the copies; what row 1 gives the sink is another matter.
    weights = np.array([[[0.5, 0.25, 0.25], [0, 1, 0], [0.3, 0.6, 0.1]]])
    text = replace(facts([7, 9, 7]), sink=np.array([False, True, False]))
    assert_pair(statistics(weights, text), "duplicate_unsunk_mass", 0.25 + 0.3, 0.75 + 0.4)


def test_special_tokens_have_no_copies_and_open_no_induction():
    weights = np.arange(16.0).reshape(1, 4, 4)
    got = statistics(weights, facts([1, 2, 1, 2], special=[0, 3]))
    for name in ("duplicate_mass", "induction_mass", "previous_copy_mass"):
        assert_pair(got, name, 0, 0)
    got = statistics(weights, facts([1, 2, 1, 2], special=[1]))  # the key itself may be special
    assert_pair(got, "duplicate_mass", weights[0, 0, 2] + weights[0, 2, 0], 2)
    assert_pair(got, "induction_mass", weights[0, 2, 1], 1)
    got = statistics(weights, facts([9, 2, 1, 2], special=[0]))
    assert_pair(got, "previous_copy_mass", weights[0, 3, 0], 1)
    assert_pair(got, "separator_mass", 0, 0)
    assert_pair(statistics(weights, facts([9, 2, 1, 8], special=[0, 3])), "separator_mass", weights[0, :, 3].sum(), 4)


# ----------------------------------------------------------------------------------------------- cell by cell, in loops


def belongs(text):
    """Which cells each mass statistic counts, written once more as a condition on (i, j)."""
    ids, special = text.ids, text.special
    conditions = {
        "first_mass": lambda i, j: j == 0,
        "distant_mass": lambda i, j: j >= 4 and abs(i - j) >= 64,
        "duplicate_mass": lambda i, j: j != i and ids[i] == ids[j] and not special[i] and not special[j],
        "induction_mass": lambda i, j: (
            1 <= j <= i and ids[j - 1] == ids[i] and j - 1 < i and not special[i] and not special[j - 1]
        ),
    }
    conditions["separator_mass"] = lambda i, j: special[j] and j > 0
    conditions["previous_copy_mass"] = lambda i, j: (
        j + 1 < i and ids[j + 1] == ids[i] and not special[i] and not special[j + 1]
    )
    for name in ("sink", "special", *CLASSES):
        conditions[f"{name}_mass"] = lambda i, j, name=name: getattr(text, name)[j]
    for offset in range(-8, 9):
        name = {-1: "previous", 0: "self", 1: "next"}.get(offset, f"offset_{offset:+d}")
        conditions[f"{name}_mass"] = lambda i, j, offset=offset: j - i == offset
    return conditions


def by_the_cell(weights, visible, condition):
    """The mass on some cells over the rows that see any of them, for one head, with its chance level."""
    mass, uniform, rows = 0.0, 0.0, 0
    for i in range(len(visible)):
        sees = [j for j in range(len(visible)) if visible[i, j]]
        cells = [j for j in sees if condition(i, j)]
        mass += sum(weights[i, j] for j in cells)
        uniform += len(cells) / len(sees) if cells else 0
        rows += bool(cells)
    return mass, uniform, rows


@TEXTS
def test_every_mass_is_that_of_its_cells(rng, kind):
    text = some_text(rng, kind=kind)
    weights = some_map(rng, text)
    got, conditions = statistics(weights, text), belongs(text)
    assert set(conditions) == set(CELLS)
    for name, condition in conditions.items():
        loops = [by_the_cell(head, text.visible, condition) for head in weights]
        mass, uniform, rows = map(np.array, zip(*loops, strict=True))
        assert_pair(got, name, mass, rows)
        assert_pair(got, f"{name}.uniform", uniform, rows)
    shuffled = replace(text, ids=text.ids[text.relabelling])
    for name in COPIES:
        loops = [by_the_cell(head, text.visible, belongs(shuffled)[name]) for head in weights]
        mass, _, rows = map(np.array, zip(*loops, strict=True))
        assert_pair(got, f"{name}.relabelled", mass, rows)


# =========================================================================================================== identities
# What holds for every map: its statistics' chance levels are their closed forms, and statistics agree with each other.

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


# =========================================================================================================== identities


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


def test_heads_do_not_mix_and_a_float32_map_is_measured_in_float64(rng):
    text = some_text(rng)
    weights = some_map(rng, text)
    together = statistics(weights, text)
    for head in range(H):
        alone = statistics(weights[head : head + 1], replace(text, value_norms=text.value_norms[head : head + 1]))
        for name, pair in alone.items():
            assert_pair(together, name, *together[name])
            assert_allclose([part[head] for part in together[name]], np.ravel(pair), atol=1e-12, err_msg=name)
    weights = some_map(rng, text).astype(np.float32)
    for name, pair in statistics(weights, text).items():
        assert {part.dtype for part in pair} == {np.dtype(np.float64)}, name
        assert {part.shape for part in pair} == {(H,)}, name


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


def test_every_statistic_says_what_it_is_and_a_map_of_another_text_is_an_error():
    for name, function in (ROWS | CELLS).items():
        words = inspect.getdoc(getattr(function, "func", function))
        assert words, name
    function = inspect.unwrap(statistics)
    with pytest.raises(ShapeError, match=r"weights has shape \(3, 4, 4\).*must be \(heads, 2, 2\)"):
        function(np.zeros((3, 4, 4)), facts([1, 2]))


# ================================================================================================================ norms
# Norm-weighted masses of whole maps, held to pencil, loops over cells, and plain masses where norms are alike.


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
        assert_pair(got, f"{name}_mass.relabelled", *got[f"{name}_mass"])
        assert_pair(got, f"{name}_norm_mass.relabelled", *got[f"{name}_norm_mass"])
        assert_pair(got, f"{name}_norm_mass", *got["special_norm_mass"])


# ======================================================================================================= strongest keys
# Strongest keys of whole maps, held to pencil, to loops over rows and to every order of the words.


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
