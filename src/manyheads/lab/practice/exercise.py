"""What an exercise is: a function to write, inputs to try it on, what is right, and the mistakes that are known."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ManyHeadsError

Array = Float64[ndarray, "..."]
Case = tuple[object, ...]
"""The arguments of one call."""
Option = str | int | float | bool | None
Function = Callable[..., object]

TOLERANCE = 1e-3  # of a result whose numbers are about 1: float32 and -1e9 in place of -inf are far below it
STUB_WIDTH = 88  # characters of a line


class SolutionError(ManyHeadsError, ValueError):
    """A solution that returns what cannot be judged; the message says what it returned and what to return.

    `mistake`: the name of the known one that it is, if it is one.
    """

    def __init__(self, message: str, mistake: str = "") -> None:
        super().__init__(message)
        self.mistake = mistake


@dataclass(frozen=True)
class Mistake:
    """A known mistake: its name, what to do about it, and the options that make it.

    Several sets of options are several forms of it, as a row that sees nothing is NaN with -inf, and even with -1e9.
    """

    name: str
    hint: str
    forms: tuple[Mapping[str, Option], ...]


def mistake(name: str, hint: str, *forms: Mapping[str, Option], **options: Option) -> Mistake:
    """The known mistake that these options make, or each of several sets of them."""
    return Mistake(name, hint, forms or (options,))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Normally distributed numbers for an exercise's inputs."""
    return rng.standard_normal(shape)


def called(function: Function, case: Case) -> object:
    return function(*case)


def nearly_equal(result: Array, expected: Array) -> bool:
    """Whether two results have one shape and the same numbers, NaN included."""
    if result.shape != expected.shape:
        return False
    sizes = np.abs(expected[np.isfinite(expected)])
    return np.allclose(result, expected, rtol=0, atol=TOLERANCE * max(1.0, sizes.max(initial=0)), equal_nan=True)


def first_difference(result: Array, expected: Array) -> str:
    """What is wrong with a result of no known mistake, in one sentence: its shape, a NaN, or the first wrong number."""
    if result.shape != expected.shape:
        return f"It returns the shape {list(result.shape)}, and {list(expected.shape)} is right."
    if not np.isfinite(result).all():
        place = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(result)))
        return (
            f"result{list(place)} is {result[place]:g}: look for exp of a large number, 0 / 0, or a row in which "
            "every score is -inf."
        )
    wrong = np.abs(result - expected) > TOLERANCE * max(1.0, np.abs(expected).max(initial=0))
    place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    return (
        f"{wrong.sum():,} of {wrong.size:,} numbers are wrong: result{list(place)} is {result[place]:.4g}, and "
        f"{expected[place]:.4g} is right."
    )


@dataclass(frozen=True)
class Exercise:
    """A function to write.

    - `name`, `meaning`: how it is called, and one line about it.
    - `points`: what a right solution gives.
    - `signature`: the function's first line, without `def` and colon.
    - `task`: what it has to do, with shapes.
    - `cases`: inputs of a few calls, all sizes different.
    - `right`: the reference's result for one of them.
    - `wrong`: the same, with the options of mistakes.
    - `mistakes`: the known ones.
    - `run`: calls a solution with one case.
    - `same`, `explain`: whether a result is another one, and what is wrong where no mistake is known.
    - `check`: what else is asked of a right solution; returns a fault in words, or "".
    - `praise`: what is said of a right one.
    """

    name: str
    meaning: str
    points: int
    signature: str
    task: str
    cases: Callable[[np.random.Generator], list[Case]]
    right: Callable[..., Array]
    wrong: Callable[..., Array]
    mistakes: tuple[Mistake, ...]
    run: Callable[[Function, Case], object] = called
    same: Callable[[Array, Array], bool] = nearly_equal
    explain: Callable[[Array, Array], str] = first_difference
    check: Callable[[Function, np.random.Generator], str] | None = None
    praise: str = "the same numbers as the reference, on inputs whose sizes all differ."

    @property
    def function(self) -> str:
        """The function's name."""
        return self.signature.partition("(")[0]

    @property
    def stub(self) -> str:
        """A file to begin with: the task, and the function to fill in."""
        paragraphs = (
            self.meaning + ".",
            "",
            *self.task.split("\n"),
            "",
            f"Judge it: manyheads practice {self.name} FILE",
        )
        text = "\n".join("\n".join(textwrap.wrap(line, STUB_WIDTH)) for line in paragraphs)
        return f'"""{text}\n"""\n\nimport numpy as np\n\n\ndef {self.signature}:\n    raise NotImplementedError\n'


# --------------------------------------------------------------------------------------------------- what was returned


@runtime_checkable
class Tensor(Protocol):
    """A torch tensor, without torch."""

    def detach(self) -> Tensor: ...
    def cpu(self) -> Tensor: ...
    def double(self) -> Tensor: ...


def in_words(value: object) -> str:
    """What a solution returned, for a message."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {list(shape)}" if isinstance(shape, tuple) else "")


def numbers(value: object) -> Array:
    """A result as float64: an array, nested lists, a tensor of any dtype and device. Errors: SolutionError."""
    if isinstance(value, tuple) and any(hasattr(part, "shape") for part in value):
        raise SolutionError(f"it returns {in_words(value)}: return the result alone.")
    try:
        # NumPy reads no tensor that has a gradient, is on another device, or is of bfloat16
        array = np.asarray(value.detach().cpu().double() if isinstance(value, Tensor) else value)
        if array.dtype.kind not in "biuf":
            raise ValueError
        return array.astype(np.float64)
    except (ValueError, TypeError, RuntimeError):
        raise SolutionError(f"it returns {in_words(value)}: return an array of real numbers.") from None
