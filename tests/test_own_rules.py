"""How these tests run: their seed, which cases always run, which a change touches, and checks of types made quicker."""

import math
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Literal

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from manyheads.base import one_of
from manyheads.errors import StatisticError
from manyheads.heads import in_layer
from tests import seeds, touched
from tests.checking import checked, running, unchecked
from tests.refusals import refuses
from tests.thinning import chosen

# ============================================================================================================= the seed
# A commit's inputs are its own, and the same in every process and after any other test.

pytest_plugins = ["pytester"]


@pytest.fixture
def surroundings(monkeypatch):
    """No variable that chooses a seed, and none remembered."""
    monkeypatch.delenv("MANYHEADS_SEED", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    seeds.seed.cache_clear()
    yield monkeypatch
    seeds.seed.cache_clear()


def drawn_anew() -> int:
    seeds.seed.cache_clear()
    return seeds.seed()


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.txt").write_text("first")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git


def test_a_commit_draws_what_it_drew_and_the_next_draws_something_else(surroundings, repository):
    folder, git = repository
    surroundings.setattr(seeds, "ROOT", folder)
    first = drawn_anew()
    assert drawn_anew() == first < 2**32
    git("commit", "--amend", "-qm", "the same files, told otherwise")
    assert drawn_anew() == first
    (folder / "a.txt").write_text("second")
    git("commit", "-qam", "second")
    assert drawn_anew() != first


def test_a_seed_that_is_named_is_used_and_fresh_draws_another_each_time(surroundings):
    surroundings.setenv("MANYHEADS_SEED", "123")
    assert drawn_anew() == 123
    surroundings.setenv("MANYHEADS_SEED", "fresh")
    assert len({drawn_anew() for _ in range(5)}) > 3


def test_without_git_processes_of_one_run_agree_and_runs_differ(surroundings, tmp_path):
    surroundings.setattr(seeds, "ROOT", tmp_path)
    surroundings.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    surroundings.setenv("PYTEST_XDIST_TESTRUNUID", "one run")
    one = drawn_anew()
    assert drawn_anew() == one
    surroundings.setenv("PYTEST_XDIST_TESTRUNUID", "another")
    assert drawn_anew() != one
    surroundings.delenv("PYTEST_XDIST_TESTRUNUID")
    assert drawn_anew() != drawn_anew()
    surroundings.setenv("PATH", "")  # nor is git installed
    assert seeds.commit(tmp_path) == ""


def global_numbers():
    return torch.rand(()).item(), np.random.random(), random.random()


@pytest.mark.parametrize("before", [0, 3])
def test_global_numbers_do_not_depend_on_the_tests_before(before, fresh):
    """The first case draws, the second begins after draws of the first, and both begin with the same."""
    expected = torch.Generator().manual_seed(seeds.seed_of("global numbers"))
    assert torch.rand(()).item() == torch.rand((), generator=expected).item()
    for _ in range(before):
        global_numbers()
    seeds.draw_all()
    first = global_numbers()
    seeds.draw_all()
    assert global_numbers() == first and first[0] != torch.rand((), generator=fresh).item()


def examples() -> list:
    drawn = []

    @settings(max_examples=100)
    @given(st.integers() | st.text(), st.floats())
    def collect(one, other):
        drawn.append(repr((one, other)))

    collect()
    return drawn


def test_hypothesis_draws_the_same_again_whatever_modules_are_loaded(monkeypatch, tmp_path):
    """Of a module that is loaded, it would try the constants."""
    before = examples()
    module = ModuleType("constants")
    module.__file__ = str(tmp_path / "constants.py")
    (tmp_path / "constants.py").write_text(f"numbers = {[*range(1_000_003, 1_000_403)]}")
    monkeypatch.setitem(sys.modules, "constants", module)
    assert examples() == before and len({*before}) > 50


def test_a_failure_prints_the_seed_and_hypothesis_has_no_clock_and_no_memory(pytester):
    assert (settings().deadline, settings().database) == (None, None)
    pytester.makeconftest("from tests.conftest import pytest_runtest_makereport")
    pytester.makepyfile("def test_wrong(): assert False")
    result = pytester.runpytest_inprocess("-p", "no:xdist")
    result.stdout.fnmatch_lines(["*random inputs*", f"MANYHEADS_SEED={seeds.seed()}"])


# ================================================================================================================ grids
# A grid that is thinned still holds every value of every parameter, and the same cases in every process.

GRID = [{"name": name, "attention": attention} for name, attention in product("abcde", ("sdpa", "eager"))]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_every_value_of_every_parameter_is_held_by_no_more_cases_than_values(sizes, data):
    grid = [dict(zip("xyz", case, strict=False)) for case in product(*map(range, sizes))]
    cases = data.draw(st.lists(st.sampled_from(grid), min_size=1, unique_by=str))
    kept = [cases[at] for at in chosen(cases, {})]
    for name in cases[0]:
        assert {case[name] for case in kept} == {case[name] for case in cases}
    assert len(kept) <= sum(sizes)


def test_of_a_grid_as_many_are_held_as_its_longest_side_has_values_or_those_of_listed_kinds():
    kept = [GRID[at] for at in sorted(chosen(GRID, {}))]
    assert len(kept) == 5
    assert sorted(case["attention"] for case in kept).count("sdpa") in (2, 3)
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


def test_a_kind_of_a_parameter_that_is_not_there_is_told(pytester):
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile(SUITE.replace("thinned", "thinned(z=(1,))"))
    result = pytester.runpytest_inprocess("-p", "no:xdist", "-o", "markers=slow\nthinned")
    result.stderr.fnmatch_lines(["*test_grid is thinned by z, which is not a parameter of it"])


# ====================================================================================================== checks of types
# What is checked more quickly is checked no less: wrong types and shapes are told, with the name of the function.

Maps = tuple[Float[Tensor, "q k"], Float[Tensor, "k d"]]
check = checked(typechecker=beartype)


@check
def count(word: str, *, times: int = 1) -> int:
    return len(word) * times if word else word


@check
def multiplied(pair: Maps | None, other: Float[Tensor, "d m"]) -> Float[Tensor, "q m"]:
    return pair[0] @ pair[1] @ other


@check
def numbers(many: int) -> Iterator[int]:
    yield from range(many)


@check
def anything(x, y=3):
    return x, y


def test_a_wrong_argument_and_a_wrong_result_are_told_with_the_functions_name_in_the_library_too():
    assert count("four", times=2) == 8
    for wrong in (lambda: count(4), lambda: count("four", times="2"), lambda: count("")):
        with pytest.raises(BeartypeCallHintViolation, match="count"):
            wrong()
    with pytest.raises(BeartypeCallHintViolation, match="in_layer"):
        in_layer("L*H1", "", "0", 4)


def test_shapes_are_compared_also_where_arrays_stand_inside_other_types():
    q, k, d, m = 3, 5, 2, 7
    pair, other = (torch.ones(q, k), torch.ones(k, d)), torch.ones(d, m)
    assert multiplied(pair, other).shape == (q, m)
    with pytest.raises(jaxtyping.TypeCheckError, match="multiplied"):
        multiplied((pair[0], torch.ones(q, d)), other)


def test_generators_are_checked_and_what_may_be_anything_is_left_alone():
    assert list(numbers(3)) == [0, 1, 2]
    with pytest.raises(jaxtyping.TypeCheckError):
        numbers("3")
    assert anything(1) == (1, 3) and not hasattr(anything, "__wrapped__")


def test_the_first_calls_in_a_file_are_checked_and_those_of_the_next_file_again(monkeypatch):
    monkeypatch.setattr(running, "calls", 2)
    for file in ("a", "b"):
        monkeypatch.setattr(running, "file", file)
        for _ in range(2):
            with pytest.raises(BeartypeCallHintViolation):
                count(["no", "word"])
        assert count(["no", "word"]) == 2
    monkeypatch.setattr(running, "calls", math.inf)
    with pytest.raises(BeartypeCallHintViolation):
        count(["no", "word"])


def test_of_functions_that_a_function_makes_the_first_is_checked_and_all_where_every_call_is(monkeypatch):
    def made():
        def inner(word: str) -> int:
            return len(word)

        return check(inner)

    monkeypatch.setattr(running, "calls", 2)
    first, second = made(), made()
    with pytest.raises(BeartypeCallHintViolation):
        first([1])
    assert second([1]) == 1
    monkeypatch.setattr(running, "calls", math.inf)
    with pytest.raises(BeartypeCallHintViolation):
        made()([1])


def test_what_a_function_refuses_itself_is_refused_in_its_own_words():
    calls = []

    @check
    def pooled(how: Literal["mean", "max"], rows: Float[Tensor, "n d"] | None = None) -> int:
        calls.append(how)
        one_of("how", how, ("mean", "max"), StatisticError)
        return len(how)

    @check
    def outer(how: str, more: int = 0) -> int:
        calls.append("outer")
        return pooled(how) + more

    for call in (pooled, outer):
        with pytest.raises(StatisticError, match="how='sum' is unknown: use one of mean, max"):
            call("sum")
    assert calls == ["sum", "outer", "sum"]  # each of them ran once
    for call, arguments in ((pooled, ("mean", 3)), (outer, ("max", "2")), (count, (["no"],))):
        with pytest.raises((BeartypeCallHintViolation, TypeCheckError)):
            call(*arguments)  # nothing that it refuses: a wrong type, as everywhere


def test_where_checks_are_turned_off_nothing_is_checked():
    with unchecked():
        with unchecked():
            pass
        assert count(["no", "word"]) == 2
    with pytest.raises(BeartypeCallHintViolation):
        count(["no", "word"])


def test_refused_value_meets_our_own_message_and_types_are_checked_again_afterwards():
    def refusing(word: str) -> None:
        raise ValueError(f"{word!r} is not a word")

    refuses(ValueError, "3 is not a word", check(refusing), 3)
    with pytest.raises(BeartypeCallHintViolation):
        count(["no", "word"])


# ===================================================================================================== what is touched
# `make test-touched` runs every case of the tests of what was changed since main.


@pytest.fixture
def branch(repository):
    """A repository with a package, a module and their tests, on a branch of its own."""
    folder, git = repository
    for name in (
        *("src/manyheads/nn/layer.py", "src/manyheads/plan.py", "src/manyheads/lightning.py", "web/src/App.svelte"),
        *("tests/nn/test_layers.py", "tests/studio/test_page.py", "tests/roles/test_claims.py", "tests/test_plan.py"),
        *("tests/nn/helper.py", "tests/roles/test_plans_of_roles.py", "docs/nn.md"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first")
    git("add", ".")
    git("commit", "-qm", "the tree")
    git("branch", "-M", "main")
    git("checkout", "-qb", "mine")
    return folder, git


def test_nothing_is_touched_on_main_itself_and_text_touches_no_test(branch):
    folder, _ = branch
    assert touched.tests_of(touched.changed(folder), folder) == ([], [])
    (folder / "docs/nn.md").write_text("second")
    assert touched.changed(folder) == ["docs/nn.md"] and touched.tests_of(["docs/nn.md"], folder) == ([], [])


def test_what_is_touched_is_committed_or_not_or_unknown_to_git_and_main_may_have_gone_on(branch):
    folder, git = branch
    (folder / "src/manyheads/nn/layer.py").write_text("second")
    git("commit", "-qam", "mine")
    (folder / "src/manyheads/plan.py").write_text("second")
    (folder / "web/src/New.svelte").write_text("new")
    git("checkout", "-q", "--detach", "main")
    (folder / "tests/roles/test_claims.py").write_text("another's")
    git("add", "tests")
    git("commit", "-qm", "another's")
    git("branch", "-f", "main")
    git("checkout", "-q", "mine")
    tests, without = touched.tests_of(touched.changed(folder), folder)
    others = ["tests/roles/test_plans_of_roles.py", "tests/studio", "tests/test_plan.py"]
    assert tests == ["tests/nn", *others] and without == []


def test_file_of_tests_is_its_own_and_a_helper_its_folders_and_what_has_no_test_is_named(branch):
    folder, _ = branch
    paths = [
        "tests/nn/test_layers.py",
        "tests/roles/test_claims.py",
        "tests/test_gone.py",
        "src/manyheads/lightning.py",
    ]
    assert touched.tests_of(paths, folder) == (paths[:2], ["src/manyheads/lightning.py"])
    assert touched.tests_of([*paths, "tests/nn/helper.py"], folder)[0] == ["tests/nn", "tests/roles/test_claims.py"]


def test_without_a_main_git_says_so(repository):
    folder, _ = repository
    refuses(
        SystemExit, "cannot tell what was changed since no-such-branch: ", touched.changed, folder, "no-such-branch"
    )
