"""What those share who test the reference's attention, of one kernel and of many heads."""

import inspect

from numpy.testing import assert_allclose


def as_user(function):
    """The function without the tests' type checks, which would speak up before its own errors do."""
    return inspect.unwrap(function)


def assert_same(got, expected, **tolerance):
    for name in ("out", "weights", "lse"):
        assert_allclose(getattr(got, name), getattr(expected, name), err_msg=name, **({"atol": 1e-12} | tolerance))
