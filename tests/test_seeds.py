"""A commit's inputs are its own, and the same in every process and after any other test."""

import random
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import seeds

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


def test_hypothesis_has_no_clock_and_no_memory():
    assert (settings().deadline, settings().database) == (None, None)


def test_a_failure_prints_the_seed(pytester):
    pytester.makeconftest("from tests.conftest import pytest_runtest_makereport")
    pytester.makepyfile("def test_wrong(): assert False")
    result = pytester.runpytest_inprocess("-p", "no:xdist")
    result.stdout.fnmatch_lines(["*random inputs*", f"MANYHEADS_SEED={seeds.seed()}"])
