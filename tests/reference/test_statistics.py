"""Statistics of whole maps, held to published numbers, to pencil and to loops over cells.

Inputs are drawn afresh for each commit. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from manyheads.reference.cells import CELLS
from manyheads.reference.statistics import statistics
from tests.reference.facts import CLASSES, COPIES, TEXTS, assert_pair, facts, some_map, some_text

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


def test_a_perfect_head_scores_1_because_only_rows_with_a_target_count():
    previous, induction = (statistics(PUBLISHED[head][0], BOS_THEN_TWICE) for head in list(PUBLISHED)[1:])
    assert_pair(previous, "previous_mass", 6, 6)
    assert_pair(induction, "induction_mass", 3, 3)
    assert_pair(induction, "previous_mass", 1, 6)
    assert_pair(induction, "first_mass", 4, 7)
    assert_pair(induction, "special_mass", 4, 7)


def test_the_key_after_an_earlier_copy_may_be_the_row_itself():
    got = statistics(looks_at([0, 1, 2]), facts([5, 5, 7], np.tri(3, dtype=bool)))
    assert_pair(got, "induction_mass", 1, 1)  # row 1 follows its own copy; row 2's token is new
    assert_pair(got, "duplicate_mass", 0, 1)


# -------------------------------------------------------------------------------------------------------- with a pencil


def test_one_small_map_by_hand():
    """Four tokens, the first of them special and a sink, "the" twice; the last row sees nothing."""
    visible = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]], bool)
    weights = np.array([[[1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0, 0, 0.25], [0, 0, 0, 0]]])
    text = facts(
        [101, 7, 8, 7],
        visible,
        special=[0],
        sink=[0],
        punctuation=[2],
        rare=[1, 3],
        relabelling=np.array([0, 2, 1, 3]),
        value_norms=np.array([[0.5, 2, 3, 4]]),
    )
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


def test_words_that_copy_each_other_across_the_text():
    """a b a b: rows 2 and 3 have an earlier copy, and what came after it."""
    weights = np.arange(16.0).reshape(1, 4, 4)
    got = statistics(weights, facts([1, 2, 1, 2]))
    assert_pair(got, "duplicate_mass", weights[0, 0, 2] + weights[0, 1, 3] + weights[0, 2, 0] + weights[0, 3, 1], 4)
    assert_pair(got, "induction_mass", weights[0, 2, 1] + weights[0, 3, 2], 2)
    assert_pair(got, "previous_copy_mass", weights[0, 3, 0], 1)  # nothing stands before the first a


def test_a_match_is_of_what_its_own_rows_leave_the_sinks():
    """Rows 0 and 2 hold the copies; what row 1 gives the sink is another matter."""
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
