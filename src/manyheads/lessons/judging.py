"""How an answer is judged: a choice, a word, a number. What is no answer at all is told, too, and costs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from manyheads.lessons.checks import Right, Verdict
from manyheads.lessons.numberanswers import judged_number

__all__ = ["judged"]


def judged(right: Right, kind: str, choices: Sequence[str], points: int, given: str, question: str = "") -> Verdict:
    """Whether an answer is right. `kind` is number, choice or text. What `question` names may be said as a unit."""
    written = " ".join(given.split())
    if not written:
        return Verdict.no_answer("Write an answer first.")
    if kind == "number":
        return judged_number(right, points, written, question)
    if kind == "choice":
        chosen = _chosen(choices, written)
        if chosen is None:
            return Verdict.no_answer(f"{written[:40]!r} is none of the choices: {'; '.join(choices)}.")
        written = chosen
    known = {form for each in (right.answer, *right.also) for form in _forms(str(each))}
    if known & set(_forms(written)):
        return Verdict.correct(right, points)
    return Verdict.wrong(_mistake(right, written) or _counted_from_one(known, written) or right.hint)


def _chosen(choices: Sequence[str], written: str) -> str | None:
    """The choice that is meant: all of it, its number on the page (2), or words that begin a part of only one."""
    forms, folded = _forms(written), [each.casefold() for each in choices]
    for form in forms:
        if form in folded:
            return choices[folded.index(form)]
    meant = forms[-1]
    number = re.fullmatch(r"([1-9])\)?", meant)
    if number is not None:
        return choices[int(number[1]) - 1] if int(number[1]) <= len(choices) else None
    part = re.compile(rf"(?<!\w){re.escape(meant)}")
    found = [each for each, fold in zip(choices, folded, strict=True) if part.search(fold)]
    return found[0] if len(found) == 1 else None


def _forms(written: str) -> tuple[str, ...]:
    """A word as it is written, and without quotes, final punctuation and a leading article: "The cat." is cat."""
    exact = " ".join(written.split()).casefold()
    bare = exact.strip("\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb\u201e ")
    short = re.sub(r"[.,;:!?\"'`\u201d\u2019\u00bb ]+$", "", bare) or bare
    word = re.sub(r"^(?:the|an?) (?=\S)", "", short)
    found = [re.sub(r"^token\s*#?\s*(\d+)$", r"token \1", each) for each in (exact, bare, short, word)]
    return tuple(dict.fromkeys(each for each in found if each))


def _counted_from_one(known: set[str], written: str) -> str | None:
    """A place that is right but for where counting begins."""
    for form in _forms(written):
        if (place := re.fullmatch(r"(?:token )?(\d+)", form)) and f"token {int(place[1]) - 1}" in known:
            return "Count from 0: the first one is token 0."
    return None


def _mistake(right: Right, written: str) -> str | None:
    known = {form: said for each, said in right.mistakes.items() for form in _forms(str(each))}
    return next((known[form] for form in _forms(written) if form in known), None)
