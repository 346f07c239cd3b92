"""A grid that is thinned still holds every value of every parameter, and the same cases in every process."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import seeds
from tests.thinning import chosen, thin

pytest_plugins = ["pytester"]
GRID = [{"name": name, "attention": attention} for name, attention in product("abcde", ("sdpa", "eager"))]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_every_value_of_every_parameter_is_held_by_no_more_cases_than_values(sizes, data):
    grid = [dict(zip("xyz", case, strict=False)) for case in product(*map(range, sizes))]
    cases = data.draw(st.lists(st.sampled_from(grid), min_size=1, unique_by=str))
    kept = [cases[at] for at in chosen(cases, {})]
    for name in cases[0]:
        assert {case[name] for case in kept} == {case[name] for case in cases}
    assert len(kept) <= sum(sizes)


def test_of_a_full_grid_as_many_are_held_as_the_longest_side_has_values_and_the_others_take_turns():
    kept = [GRID[at] for at in sorted(chosen(GRID, {}))]
    assert len(kept) == 5
    assert sorted(case["attention"] for case in kept).count("sdpa") in (2, 3)


def test_of_a_parameter_whose_kinds_are_listed_those_are_held_and_no_others():
    kept = [GRID[at] for at in chosen(GRID, {"name": ("b", "d")})]
    assert [case["name"] for case in kept] == ["b", "d"] and {case["attention"] for case in kept} == {"sdpa", "eager"}


SUITE = """
import pytest

@pytest.mark.thinned
@pytest.mark.parametrize("x", range(5))
@pytest.mark.parametrize("y", [lambda: 1, None])
def test_grid(x, y): pass
"""


def test_what_is_left_out_is_slow_and_no_case_is_lost(pytester):
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile(SUITE)
    register = ["-p", "no:xdist", "-p", "no:randomly", "-o", "markers=slow\nthinned"]
    pytester.inline_run(*register, "-m", "not slow").assertoutcome(passed=5)
    pytester.inline_run(*register).assertoutcome(passed=10)


def test_of_a_sampled_grid_so_many_cases_are_held_by_the_seed(pytester):
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile(SUITE.replace("thinned", "sampled(3)"))
    register = ["-p", "no:xdist", "-o", "markers=slow\nsampled"]
    runs = [pytester.inline_run(*register, "-m", "not slow") for _ in range(2)]
    for run in runs:
        run.assertoutcome(passed=3)
    first, again = ({report.nodeid for report in run.getreports("pytest_runtest_logreport")} for run in runs)
    assert first == again
    pytester.inline_run(*register).assertoutcome(passed=10)


class Item:
    """A test that takes turns, as far as `thin` looks at it."""

    def __init__(self, nodeid):
        self.nodeid, self.marks = nodeid, {"turns": pytest.mark.turns(3).mark}
        self.get_closest_marker = self.marks.get

    def add_marker(self, mark):
        self.marks[mark.name] = mark


def test_what_takes_turns_runs_in_one_commit_of_three_whatever_else_is_collected(monkeypatch):
    def quick(functions):
        items = [Item(f"tests/test_a.py::test_{name}[{case}]") for name in functions for case in (0, 1)]
        thin(items)
        return {item.nodeid for item in items if "slow" not in item.marks}

    ran = []
    for seed in range(40):
        monkeypatch.setattr(seeds, "seed", lambda seed=seed: seed)
        ran.append(quick("abcd"))
        assert quick("b") == {name for name in ran[-1] if "test_b" in name}
        assert all(name.replace("[0]", "[1]") in ran[-1] for name in ran[-1]), "all cases of a function, or none"
    assert set.union(*ran) == {f"tests/test_a.py::test_{name}[{case}]" for name in "abcd" for case in (0, 1)}
    assert len({*map(frozenset, ran)}) > 5 and 40 / 3 < sum(map(len, ran)) / 4 < 40


def test_a_kind_of_a_parameter_that_is_not_there_is_told(pytester):
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile(SUITE.replace("thinned", "thinned(z=(1,))"))
    result = pytester.runpytest_inprocess("-p", "no:xdist", "-o", "markers=slow\nthinned")
    result.stderr.fnmatch_lines(["*test_grid is thinned by z, which is no parameter of it"])
