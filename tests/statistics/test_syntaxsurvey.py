"""A survey of syntax finds what a corpus shows: how often, at which offsets, by which rule."""

import pytest

from manyheads.recording import ROOT, Gold, GoldWord
from manyheads.statistics import survey_syntax
from manyheads.statistics.defined.syntax import MIN_ARCS
from tests.statistics.gold import FAR
from tests.statistics.syntaxtexts import TEXTS, WRITTEN, assert_surveyed


@pytest.mark.parametrize("min_arcs", [1, 2, 3])
def test_a_survey_finds_the_offsets_and_the_best_rule_of_what_is_frequent_enough(min_arcs):
    relations = survey_syntax((each.gold for each in TEXTS), min_arcs)
    assert_surveyed(TEXTS, relations, min_arcs)
    assert len(relations) == {1: 14, 2: 9, 3: 6}[min_arcs]


def test_a_survey_by_hand():
    (det,) = (each for each in survey_syntax((each.gold for each in WRITTEN), 1) if each.name == "det")
    assert (det.num_arcs, det.modal, str(det.rule)) == (9, 1, "the nearest NOUN to the right")
    (conj,) = (each for each in survey_syntax([WRITTEN[2].gold], 1) if each.name == "conj")
    assert (conj.num_arcs, conj.modal) == (3, -9)  # of equals the first
    assert survey_syntax([None, WRITTEN[0].gold]) == () and MIN_ARCS == 50


def test_what_lies_far_away_counts_as_the_farthest_that_is_told_apart():
    words = [GoldWord(2 * at, 2 * at + 1, "X", 70 if at == 0 else ROOT, "dep") for at in range(71)]
    (far,) = survey_syntax([Gold(tuple(words))], 1)
    assert far.offsets[-1] == 1 == far.num_arcs and far.modal == FAR
