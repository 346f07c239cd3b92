"""Numbers over seeds: spreads, pairs, and what is said of them."""

import math

import pytest

from manyheads.training.runs import change_lines, paired, spread_of


def test_spreads_and_pairs_are_those_of_a_table():
    assert spread_of([1.0, 2.0, 6.0]) == {"each": [1.0, 2.0, 6.0], "mean": 3.0, "sd": pytest.approx(math.sqrt(7))}
    assert spread_of([4.0])["sd"] == 0.0
    # differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(2.5 / 5), t of 4 degrees of freedom 2.776
    found = paired([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == {"mean": 3.0, "low": pytest.approx(3 - 1.96293, rel=1e-4), "high": pytest.approx(4.96293, rel=1e-4)}
    assert paired([2.0], [1.5]) == {"mean": 0.5, "low": None, "high": None}


def test_a_change_is_said_with_its_interval_and_whether_it_holds():
    changes = {
        "two over one": {"mean": -0.5, "low": -0.75, "high": -0.25},
        "four over two": {"mean": 0.25, "low": -0.125, "high": 0.625},
        "of one seed": {"mean": 0.5, "low": None, "high": None},
    }
    assert change_lines(changes) == [
        "two over one, seed by seed: -0.500 nats (-0.750 to -0.250)",
        "four over two, seed by seed: +0.250 nats (-0.125 to +0.625): no difference seen",
    ]
