"""What is checked more quickly is checked no less: wrong types and shapes are told, with the name of the function."""

import math
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

from manyheads.heads import in_layer
from tests.checking import checked, running

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


def test_a_wrong_argument_and_a_wrong_result_are_told_with_the_functions_name():
    assert count("four", times=2) == 8
    for wrong in (lambda: count(4), lambda: count("four", times="2"), lambda: count("")):
        with pytest.raises(BeartypeCallHintViolation, match="count"):
            wrong()


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


def test_where_checks_are_turned_off_nothing_is_checked():
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert count(["no", "word"]) == 2
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_the_library_is_checked_so():
    with pytest.raises(BeartypeCallHintViolation, match="in_layer"):
        in_layer("H1", "", "0", 4)
