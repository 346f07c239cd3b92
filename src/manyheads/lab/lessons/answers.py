"""Checks: what a lesson asks, and how an answer is judged.

A right answer is found by a function when somebody answers. A number is right if it is the right one as far as it was
written out (three figures at least), or nearly so. A wrong one is then tried as what else it may be: a mistake that the
check knows, the right figure in another unit, a decimal comma in the thousands; and is explained as what it is. What is
no answer at all costs nothing.

A wrong answer, or a look at the hint, costs half of the points; the second one shows the solution, and with it the
points are gone. A question with two choices has one try: after a wrong answer, the other choice is no find.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyheads.base import Json, brief
from manyheads.lab.lessons.cells import Loader, Ran
from manyheads.lab.lessons.parameters import (
    COUNT,
    DIMENSIONS,
    NOUNS,
    POINTS,
    SHARES,
    Parameter,
    Quantity,
    Values,
    counts_bits,
    dimension_of,
    factor_of,
    read_quantity,
    system_of,
)
from manyheads.results import Shown

PLACES, SHARE = 0.006, 0.005  # how far a number may be off: two places behind the point, or three figures
FIGURES = 3  # of a rounded answer, at the least
NEAR = 0.05  # a wrong number within this share is called close
TRIES = 2  # answers to a question until its solution is shown


@dataclass(frozen=True)
class Right:
    """The right answer, what to say to it, and what to say to a wrong one.

    `unit`: what the number counts or measures, as the question asks for it: "GiB", "%", "ms", "parameters". With
    `free`, the unit is the reader's to choose, and must be written. `tolerance`: how far off a number may be, in that
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
        mistakes = {mistake: words for mistake, words in self.mistakes.items() if not same(mistake, self.answer)}
        object.__setattr__(self, "mistakes", mistakes)


def same(first: int | float | str, second: int | float | str) -> bool:
    """Whether two answers are equal, but for rounding or capitals."""
    if isinstance(first, str) or isinstance(second, str):
        return str(first).casefold() == str(second).casefold()
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)


@dataclass(frozen=True)
class Check:
    """A question. `find(values, load)` computes what is right from the inputs.

    `sound`: whether inputs make a question worth asking; only such inputs are drawn. None: all do.
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
class Verdict(Shown):
    """`answered`: whether it was an answer at all, right or wrong; what was none costs nothing.

    `solution`: the right answer with its reason, once no try is left; else "".
    """

    right: bool
    points: int | float
    words: str
    answered: bool = True
    solution: str = ""

    def to_dict(self) -> Json:
        """Plain data for JSON."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return brief(f"Verdict({self.words})")

    @classmethod
    def correct(cls, right: Right, points: int | float, note: str = "") -> Verdict:
        return cls(True, points, f"Right. {note}{right.words}")

    @classmethod
    def wrong(cls, words: str) -> Verdict:
        return cls(False, 0, f"Not yet. {words}")

    @classmethod
    def no_answer(cls, words: str) -> Verdict:
        return cls(False, 0, words, answered=False)


def tries_of(choices: Sequence[str]) -> int:
    """How many answers a question takes until its solution is shown: a single one where there are two choices."""
    return 1 if len(choices) == 2 else TRIES


def points_left(points: int, num_wrong: int, num_tries: int = TRIES) -> int | float:
    """The points of a right answer after so many wrong ones: half of them after each, none once the solution is shown.

    >>> [points_left(2, num_wrong) for num_wrong in range(3)], points_left(1, 1)
    ([2, 1, 0], 0.5)
    """
    left = points / 2**num_wrong if num_wrong < num_tries else 0
    return int(left) if left == int(left) else left


def solution_of(right: Right) -> str:
    """The right answer in words, and why."""
    answer = right.answer if isinstance(right.answer, str) else _plain(right.answer).replace("-", "−")
    return f"{answer}{f' {right.unit}' if right.unit else ''}. {right.words}"


def judge(
    right: Right,
    kind: str,
    choices: Sequence[str],
    points: int,
    answer: str,
    question: str = "",
    num_wrong: int = 0,
) -> Verdict:
    """Judge an answer.

    - `right`: what is right.
    - `kind`: number, choice or text.
    - `choices`: of a choice, all of them.
    - `points`: what a right answer gives at the first try.
    - `answer`: what was written.
    - `question`: its words; a noun of it may stand as a unit.
    - `num_wrong`: how many wrong answers to it there were before.
    """
    num_tries = tries_of(choices)
    verdict = _judge(right, kind, choices, points_left(points, num_wrong, num_tries), answer, question)
    if verdict.answered and not verdict.right and num_wrong + 1 >= num_tries:
        return replace(verdict, solution=solution_of(right))
    return verdict


def _judge(right: Right, kind: str, choices: Sequence[str], points: int | float, answer: str, question: str) -> Verdict:
    written = " ".join(answer.split())
    if not written:
        return Verdict.no_answer("Write an answer first.")
    if kind == "number":
        return _judge_number(right, points, written, question)
    if kind == "choice":
        choice = _choice(choices, written)
        if choice is None:
            return Verdict.no_answer(f"{written[:40]!r} is not one of the choices: {'; '.join(choices)}.")
        written = choice
    forms = _forms(written)
    right_forms = {form for text in (right.answer, *right.also) for form in _forms(str(text))}
    if right_forms & set(forms):
        return Verdict.correct(right, points)
    mistakes = {form: words for mistake, words in right.mistakes.items() for form in _forms(str(mistake))}
    if explained := next((mistakes[form] for form in forms if form in mistakes), None):
        return Verdict.wrong(explained)
    for form in forms:
        if (place := re.fullmatch(r"(?:token )?(\d+)", form)) and f"token {int(place[1]) - 1}" in right_forms:
            return Verdict.wrong("Count from 0: the first one is token 0.")
    return Verdict.wrong(right.hint)


# ------------------------------------------------------------------------------------------------- choices and words


def _choice(choices: Sequence[str], written: str) -> str | None:
    """The choice that is meant: all of it, its number on the page (2), or words that begin a part of only one."""
    # tried from the most literal reading to the loosest: a choice may itself be a number or hold quotes
    forms, folded = _forms(written), [choice.casefold() for choice in choices]
    for form in forms:
        if form in folded:
            return choices[folded.index(form)]
    shortest = forms[-1]
    number = re.fullmatch(r"([1-9])\)?", shortest)
    if number is not None:
        return choices[int(number[1]) - 1] if int(number[1]) <= len(choices) else None
    part = re.compile(rf"(?<!\w){re.escape(shortest)}")
    matches = [choice for choice, text in zip(choices, folded, strict=True) if part.search(text)]
    return matches[0] if len(matches) == 1 else None


def _forms(written: str) -> tuple[str, ...]:
    """A word as it is written, and without quotes, final punctuation and a leading article: "The cat." is cat."""
    exact = " ".join(written.split()).casefold()
    bare = exact.strip("\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb\u201e ")
    # A mark of punctuation may be the answer itself, and then nothing would be left of it.
    short = re.sub(r"[.,;:!?\"'`\u201d\u2019\u00bb ]+$", "", bare) or bare
    word = re.sub(r"^(?:the|an?) (?=\S)", "", short)
    forms = [re.sub(r"^token\s*#?\s*(\d+)$", r"token \1", form) for form in (exact, bare, short, word)]
    return tuple(dict.fromkeys(form for form in forms if form))


# ----------------------------------------------------------------------------------------------------------- numbers


def _judge_number(right: Right, points: int | float, written: str, question: str) -> Verdict:
    """Whether a number is right, in whatever unit it is written."""
    quantity = read_quantity(written)
    if quantity is None:
        like = "0.25 or 1/4" if not right.unit or right.unit in NOUNS or right.free else f"4 {right.unit}"
        return Verdict.no_answer(f"{written[:40]!r} is not a number: write one, as in {like}.")
    dimension, unit = dimension_of(right.unit), quantity.unit
    if right.free and (not unit or _completed(unit, "B") is not None):
        return Verdict.no_answer(f"{written} of what? The unit is part of the answer: write it after the number.")
    factor = _factor(right, unit, dimension, question)
    if factor is None:
        other = next((name for name in DIMENSIONS if name != COUNT and factor_of(unit, name) is not None), None)
        words = f"{unit[:20]!r} is not a unit here" if other is None else f"{unit} measures {other}"
        words = f"{unit} says a share" if unit.casefold() in SHARES else words
        return Verdict.no_answer(f"{words}; the question asks for {dimension if right.free else right.unit or COUNT}.")
    # From here on numbers are compared in the question's unit.
    scale = factor / (factor_of(right.unit, dimension) or 1.0)
    value = quantity.value * scale
    nearest = _nearest(right, value, quantity.half * scale, quantity.digits)
    bits = counts_bits(unit) and dimension == "memory"
    if isinstance(nearest, Right):
        # Right in another system of bytes is wrong: whoever asks for GiB asks whether GB are known from them.
        other_system = system_of(_completed(unit, right.unit) or unit) != system_of(right.unit)
        if unit and not right.free and (bits or (dimension == "memory" and other_system)):
            return Verdict.wrong(f"{written} is right in {unit}; the question asks for {right.unit}.")
        converted = unit and scale != 1 and dimension != COUNT and not right.free
        return Verdict.correct(right, points, f"{written} is {_plain(value)} {right.unit}. " if converted else "")
    if nearest is None and (message := _ambiguous(right, written, quantity)):
        return Verdict.no_answer(message)
    explained = nearest or _unit_mixed(right, dimension, quantity, factor) or _near(right, value, question)
    words = explained or right.hint
    return Verdict.wrong(f"{unit} are bits, 8 to a byte. {words}" if bits else words)


def _factor(right: Right, unit: str, dimension: str, question: str) -> float | None:
    """How many of the dimension's first unit this unit is; None where it is not a unit for this question."""
    if not unit:
        return factor_of(right.unit, dimension)
    if unit.casefold() in POINTS:
        return 0.01 if right.unit == "%" else 1.0 if dimension == COUNT else None
    if unit.casefold() in SHARES and right.unit in NOUNS:
        return None
    factor = factor_of(unit, dimension)
    if factor is None and (completed := _completed(unit, right.unit)) is not None:
        factor = factor_of(completed, dimension)
    # A noun of the question may stand behind a count ("4 sheep"), unless it is a unit that measures something else.
    if factor is None and dimension == COUNT and right.unit != "%":
        measures = any(factor_of(unit, name) is not None for name in DIMENSIONS if name != COUNT)
        if not measures and re.search(rf"(?<!\w){re.escape(unit.casefold())}s?(?!\w)", question.casefold()):
            return 1.0
    return factor


def _completed(unit: str, right_unit: str) -> str | None:
    """A prefix alone, completed by the question's unit: G is GiB where GiB are asked for."""
    stem = re.fullmatch(r"[kKMGTPE]?(?P<stem>i?B|FLOPs?|FLOPS)", right_unit)
    if stem is None or not re.fullmatch(r"[kKMGTPE]i?", unit):
        return None
    return f"{unit[0].upper() if 'i' in unit + stem['stem'] else unit[0].replace('K', 'k')}" + (
        "iB" if unit.endswith("i") else stem["stem"]
    )


def _nearest(right: Right, value: float, half: float, digits: int) -> Right | str | None:
    """The right answer, or the words of the known mistake, that this number is; of two, the nearer. None: neither.

    A whole number that was rounded to three figures is right even if a mistake is nearer to the rounded one.
    """
    answer = float(right.answer)
    within: list[tuple[float, int, Right | str]] = []
    if _close(answer, value, half, digits, right.tolerance):
        within.append((abs(value - answer), 0, right))
    mistakes = [(float(key), words) for key, words in right.mistakes.items() if isinstance(key, int | float)]
    for mistake, words in mistakes:
        if _close(mistake, value, half, digits, min(0.5, usual_tolerance(mistake))):
            within.append((abs(value - mistake), 1, words))
    # whoever writes a mistake's own figure made that mistake, even if it rounds to the right one
    exact_mistake = any(same(mistake, value) for mistake, _ in mistakes)
    if within and within[0][1] == 0 and _whole(answer) and not exact_mistake:
        return right
    return min(within, key=lambda candidate: candidate[:2])[2] if within else None


def _whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-9


def usual_tolerance(target: float) -> float:
    """How far off a number may be where the check gives no tolerance."""
    size = abs(target)
    return 0.0 if _whole(target) else max(SHARE * size, min(PLACES, 10 * SHARE * size))


def _close(target: float, value: float, half: float, digits: int, tolerance: int | float | None) -> bool:
    """Within the tolerance, or equal to the target as far as it is written out, in three figures or more.

    4.2 M is 4.20 M: what rounds to it in three figures is equal as well.
    """
    size = abs(target)
    if tolerance is None:
        tolerance = usual_tolerance(target)
    allowed = max(tolerance, half if digits >= FIGURES else 0.0)
    # 4.2 M cannot be told from 4.20 M once it is read: three figures are granted to large whole numbers
    rounded = _whole(target) and size >= 1000 and math.isclose(float(f"{target:.3g}"), value, rel_tol=1e-9)
    return rounded or abs(value - target) <= allowed * (1 + 1e-9) + 1e-9 * max(size, 1e-3)


def _ambiguous(right: Right, written: str, quantity: Quantity) -> str | None:
    """For 78.643 where 78,643 is right, or the other way round: how it was read."""
    number = re.match(r"[+-]?[1-9]\d{0,2}[.,]\d{3}(?!\d)", written)
    if number is None:
        return None
    point = "." in number[0]
    if not _close(float(right.answer), quantity.value * (1000 if point else 0.001), 0.0, 0, right.tolerance):
        return None
    kind = "with a decimal point" if point else "in the thousands"
    alternative = number[0].replace(".", "") if point else number[0].replace(",", ".")
    return f"{number[0]} is read as a number {kind}. Write {alternative} if that is what you mean."


def _unit_mixed(right: Right, dimension: str, quantity: Quantity, factor: float) -> str | None:
    """The right figure, or a known mistake's, in another unit than its own: 10 GB for 10 GiB, or 10.7 for GB."""
    question_factor = factor_of(right.unit, dimension) or 1.0
    units = [
        (unit, size / question_factor)
        for unit, size in DIMENSIONS[dimension].items()
        if size != question_factor and not counts_bits(unit)
    ]

    def is_right_times(scale: float) -> bool:
        half, value = quantity.half * scale, quantity.value * scale
        return _close(float(right.answer), value, half, quantity.digits, right.tolerance)

    def mistake_times(scale: float) -> str | None:
        nearest = _nearest(right, quantity.value * scale, quantity.half * scale, quantity.digits)
        return nearest if isinstance(nearest, str) else None

    def mistake_in(units: Sequence[tuple[str, float]]) -> str | None:
        readings = ((unit, mistake_times(scale)) for unit, scale in units)
        return next((f"Read in {unit}: {words}" for unit, words in readings if words), None)

    if quantity.unit and dimension != COUNT:
        # The figure of one unit, with another behind it: 1.25 GB or 1.34 GiB, where 1.25 GiB are 1.34 GB.
        answer, units = float(right.answer), [(right.unit, 1.0), *units]
        for unit, scale in units:
            if not is_right_times(scale):
                continue
            if right.free:
                return f"The figure is right in another unit: {quantity.unit} is not the one."
            if scale != 1:
                equal = f"{_plain(answer)} {right.unit} are {_plain(answer / scale)} {unit}"
                return f"That is the number in {unit}, not in {quantity.unit}: {equal}."
            equal = f"{_plain(answer)} {right.unit} are {_plain(answer * (question_factor / factor))} {quantity.unit}"
            return f"The number is right, the unit is not: {equal}."
        return None if right.free else mistake_in(units)
    if quantity.unit and factor >= 1e3 and right.unit != "%":
        for unit, scale in (("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)):
            if scale != factor and is_right_times(scale):
                return f"The figure is right, the unit is not: it is in {unit}, not in {quantity.unit}."
    if quantity.unit or (dimension == COUNT and right.unit != "%"):
        return None
    if right.unit == "%":
        if is_right_times(100.0):
            return "That is the share; the question asks for percent."
        words = mistake_times(100.0)
        return f"Read as a share: {words}" if words else None
    for unit, scale in units:
        if is_right_times(scale):
            return f"That is the number in {unit}; the question asks for {right.unit}."
    return mistake_in(units)


def _near(right: Right, value: float, question: str) -> str | None:
    """Message for a number that is close to the right one, or one too many where counting begins at 0."""
    answer = float(right.answer)
    if _whole(answer) and value == answer + 1 and re.search(r"[Cc]ount(ed)? from 0", question):
        return "Count from 0: that is one too many."
    if _whole(answer) and abs(value - answer) == 1:
        return None  # one off is a mistake in counting, not in rounding
    if not answer or abs(value - answer) > NEAR * abs(answer):
        return None
    return f"Close, but not there: work it out to three figures. {right.hint}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if _whole(value) or abs(value) >= 1000 else f"{value:,.3g}"
