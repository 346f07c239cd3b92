"""Judging a solution: it is run on drawn inputs, and its results are held against the reference's.

A wrong result is compared with those of the known mistakes, alone and in pairs; the mistake that gives the same numbers
is named. What is none of them is described: the shape, a NaN, the first number that is wrong.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from manyheads.base import brief, nearest
from manyheads.lab.lessons.answers import Verdict
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.progress import Progress
from manyheads.lab.practice.exercise import Array, Case, Exercise, Function, SolutionError, in_words, numbers
from manyheads.lab.practice.ioi import IOI_EXERCISES
from manyheads.lab.practice.table import EXERCISES
from manyheads.own_functions import failure, name_of

MAX_SEED = 2**31
LESSON = "practice"  # under which the points of exercises stand among those of lessons
ALL = {**EXERCISES, **IOI_EXERCISES}  # a place in it is part of a seed: new ones go to the end


@dataclass(frozen=True, repr=False)
class SolutionVerdict(Verdict):
    """The verdict on a solution. `words` say what is right or wrong, `str` gives them.

    - `exercise`: its name.
    - `mistakes`: names of the known mistakes that give the same numbers: none, one or two.
    - `seed`: from which the inputs were drawn.
    - `printed`: what a solution in a file printed, the beginning of it.
    """

    exercise: str = ""
    mistakes: tuple[str, ...] = ()
    seed: int = 0
    printed: str = ""

    def __repr__(self) -> str:
        return brief(f"SolutionVerdict({self.exercise}: {self.words})")

    def __str__(self) -> str:
        return self.words


def exercise_of(name: str) -> Exercise:
    """The exercise of this name, or the only one whose name begins so. Errors: LessonError."""
    names = [name] if name in ALL else [known for known in ALL if name and known.startswith(name)]
    if len(names) != 1:
        near = nearest(name, ALL, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise LessonError(f"there is no exercise {name[:60]!r}.{guess} There are: {', '.join(ALL)}.")
    return ALL[names[0]]


def judge(exercise: str, function: Function, *, seed: int | None = None, keep: bool = True) -> SolutionVerdict:
    """Run a solution to an exercise beside the reference, and say whether it is right, or what is wrong.

    - `exercise`: its name, as `EXERCISES` or `IOI_EXERCISES` has it.
    - `function`: the solution. It gets NumPy arrays, and may return any array of numbers: of NumPy, of torch, lists.
    - `seed`: of the inputs; None: others each time.
    - `keep`: note the points of a right solution of `EXERCISES`, where `manyheads learn` keeps its own.

    There is no limit of time here: `judge_file` has one. Cost: some milliseconds, and what the solution takes.
    Errors: LessonError for an unknown exercise, a seed that is none, and what is not a function. What the solution
    itself raises is a verdict.
    """
    task = exercise_of(exercise)
    if not callable(function):
        raise LessonError(f"{in_words(function)} is not a function: give {task.function}, without brackets.")
    verdict = verdict_on(task, function, checked_seed(seed))
    return with_points(task, verdict) if keep else verdict


def checked_seed(seed: int | None) -> int:
    """The seed, or one that is drawn. Errors: LessonError."""
    if seed is None:
        return secrets.randbelow(MAX_SEED)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
        raise LessonError(f"seed={seed!r} is not a seed: give a whole number from 0 to {MAX_SEED - 1:,}.")
    return seed


def with_points(task: Exercise, verdict: SolutionVerdict) -> SolutionVerdict:
    """The verdict, its points kept if it is right; where they cannot be, its words say so."""
    if not verdict.right or task.name not in EXERCISES:
        return verdict
    progress = Progress()
    progress.reach(LESSON, task.name, task.points)
    if not progress.trouble:
        return verdict
    return replace(verdict, words=f"{verdict.words} Your points are not kept: {progress.trouble}")


def verdict_on(task: Exercise, function: Function, seed: int) -> SolutionVerdict:
    """The verdict on a function, from inputs drawn from the seed."""

    def wrong(words: str, *mistakes: str) -> SolutionVerdict:
        return SolutionVerdict(False, 0, f"Not yet. {words}", exercise=task.name, mistakes=mistakes, seed=seed)

    rng = np.random.default_rng([seed, list(ALL).index(task.name)])
    cases = task.cases(rng)
    expected = [task.right(*case) for case in cases]
    results: list[Array] = []
    case: Case = ()
    try:
        # a division by 0 is judged by what it gives, and not announced on the way
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            for case in cases:
                results.append(numbers(task.run(function, copied(case))))
            if all(map(task.same, results, expected)):
                fault = task.check(function, rng) if task.check else ""
                if fault:
                    return wrong(fault)
                words = f"Right: {task.praise}"
                return SolutionVerdict(True, task.points, words, exercise=task.name, seed=seed)
            names = known_mistakes(task, cases, results)
    except SolutionError as error:
        about = error.mistake.capitalize() or name_of(function)
        return wrong(f"{about}: {error}", *filter(None, [error.mistake]))
    except (Exception, SystemExit) as error:
        return wrong(f"{failure(function, error)}.{_called_with(task, case)}")
    if names:
        hints = {mistake.name: mistake.hint for mistake in task.mistakes}
        return wrong(" ".join(f"{name.capitalize()}: {hints[name]}" for name in names), *names)
    pairs = zip(results, expected, strict=True)
    return wrong(next(task.explain(result, right) for result, right in pairs if not task.same(result, right)))


def copied(case: Case) -> Case:
    """The arguments once more: a solution may write into its own."""
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in case)


def _called_with(task: Exercise, case: Case) -> str:
    """Shapes of the arguments in a call that failed: an axis that is taken for another one shows in them."""
    names = task.signature.partition("(")[2].removesuffix(")").split(", ")
    shapes = [
        f"{name} {list(value.shape)}" for name, value in zip(names, case, strict=False) if isinstance(value, np.ndarray)
    ]
    return f" It was called with {', '.join(shapes)}." if shapes else ""


def known_mistakes(task: Exercise, cases: Sequence[Case], results: Sequence[Array]) -> tuple[str, ...]:
    """The mistakes that give these results in all cases: one, else two together; () where none do."""
    singles = [((mistake.name,), form) for mistake in task.mistakes for form in mistake.forms]
    pairs = [
        ((first.name, second.name), {**one, **other})
        for first, second in combinations(task.mistakes, 2)
        for one, other in product(first.forms, second.forms)
        if not one.keys() & other.keys()
    ]
    for names, options in singles + pairs:
        pairs_of_case = zip(results, cases, strict=True)
        # the first case that differs ends it: most differ in the first
        if all(task.same(result, task.wrong(*case, **options)) for result, case in pairs_of_case):
            return names
    return ()
