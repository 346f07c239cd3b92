"""Checks: what a lesson asks. What is right is found by a function when somebody answers; `judging` then judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from manyheads.lessons.cells import Loader, Ran
from manyheads.lessons.parameters import Parameter, Values

__all__ = ["Check", "Predict", "Right", "Verdict", "same"]


@dataclass(frozen=True)
class Right:
    """The right answer, what to say to it, and what to say to a wrong one.

    `unit`: what the number counts or measures, as the question asks for it: "GiB", "%", "ms", "parameters". With
    `free`, the unit is the reader's to choose, and must be said. `tolerance`: how far off a number may be, in that
    unit; None is exact for a whole number, else two places or three figures. `mistakes`: wrong answers (a number in
    that unit, a choice, a word) and the sentence that explains each. `also`: other words that are right.
    """

    answer: int | float | str
    words: str
    hint: str
    unit: str = ""
    free: bool = False
    tolerance: int | float | None = None
    mistakes: Mapping[Any, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """A mistake that comes out right with these inputs is none."""
        kept = {each: said for each, said in self.mistakes.items() if not same(each, self.answer)}
        object.__setattr__(self, "mistakes", kept)


def same(one: Any, other: int | float | str) -> bool:
    """Equal, but for rounding or capitals."""
    if isinstance(one, str) or isinstance(other, str):
        return str(one).casefold() == str(other).casefold()
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


@dataclass(frozen=True)
class Check:
    """A question. `find(values, load)` computes what is right from the inputs.

    `sound`: whether inputs make a question worth asking; such are drawn. None: any do.
    """

    find: Callable[[Values, Loader], Right]
    parameters: tuple[Parameter, ...] = ()
    sound: Callable[[Values], bool] | None = None


@dataclass(frozen=True)
class Predict:
    """A question about a cell: `find(values, ran)` reads what is right in what the cell has just computed."""

    find: Callable[[Values, Ran], Right]
    parameters: tuple[Parameter, ...] = ()
    sound: Callable[[Values], bool] | None = None


@dataclass(frozen=True)
class Verdict:
    """`answered`: whether it was an answer at all, right or wrong; what was none costs nothing."""

    right: bool
    points: int
    words: str
    answered: bool = True

    @classmethod
    def correct(cls, right: Right, points: int, note: str = "") -> Verdict:
        return cls(True, points, f"Right. {note}{right.words}")

    @classmethod
    def wrong(cls, words: str) -> Verdict:
        return cls(False, 0, f"Not yet. {words}")

    @classmethod
    def no_answer(cls, words: str) -> Verdict:
        return cls(False, 0, words, answered=False)
