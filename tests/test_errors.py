"""Every kind of error is one of ours and one that Python users already catch."""

import inspect

import pytest

from manyheads import errors
from manyheads.errors import ManyHeadsError

BUILT_IN = {
    "FileAccessError": OSError,
    "GuardError": RuntimeError,
    "HeadError": ValueError,
    "LostProcessError": RuntimeError,
    "ManyHeadsError": Exception,
    "ModelError": RuntimeError,
    "PatternError": ValueError,
    "PlanError": ValueError,
    "RecordingError": ValueError,
    "ShapeError": ValueError,
    "StatisticError": ValueError,
    "TextError": ValueError,
    "WindowError": MemoryError,
}


def test_the_table_of_this_test_and_all_and_the_module_name_the_same_classes():
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert set(BUILT_IN) == set(errors.__all__) == defined


@pytest.mark.parametrize(("name", "built_in"), BUILT_IN.items())
def test_an_error_is_caught_as_ours_and_as_the_built_in_one(name, built_in):
    kind = getattr(errors, name)
    for caught_as in (ManyHeadsError, built_in):
        with pytest.raises(caught_as, match=r"^asked for 3, got 5\. Use 3\.$"):
            raise kind("asked for 3, got 5. Use 3.")


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_error_says_what_it_is_for(name):
    assert getattr(errors, name).__doc__.strip().endswith(".")
