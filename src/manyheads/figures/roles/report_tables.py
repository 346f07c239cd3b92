"""The report's tables by question: its best heads, each beside chance and fixed guesses, and whether it holds.

A score says nothing without what a guess gets that never saw the sentence; so every row has them side by side, in
figures and on one small axis. A claim that does not hold stays in, in grey, with the condition it fails
(`roleswhynot`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from manyheads.figures.roles.words import GUESSES, data, guesses, isolated, percent, table_of, terms_of
from manyheads.heads import Head
from manyheads.roles import SINK_RULE, Claim, Roles, by_family, failing, family_of
from manyheads.roles.question_families import REFERENCE, Family, Ranked
from manyheads.roles.why_not import FIXED

__all__ = ["TOP", "against", "interval", "q_words", "questions_of"]


TOP, NAMED = 3, 6  # heads a question that are shown; of those for which it holds, so many are named
SCORES = {
    "attention": "A score is the mean share of all attention that goes there. Cases are rows of all tokens, special "
    "ones ([CLS], [SEP]) among them.",
    "syntax": "A score is how often the strongest key is the right word, among words: special tokens left out.",
    "reference": "A score is how often the strongest key is right among the head words of all earlier mentions.",
}
NULLS = {
    ("attention", "uniform"): ("evenly spread", "what a row gives there if it spreads its weight evenly"),
    ("attention", "relabelled"): (
        "words shuffled", "what the head gives there if the text's words are shuffled among the ordinary places"
    ),
    ("syntax", "uniform"): ("any word", "any other word that the row sees, each as likely"),
    ("syntax", "relabelled"): (
        "part of speech kept",
        "another word of the right part of speech, drawn by where the relation's other end tends to lie: position and "
        "part of speech kept, the link destroyed",
    ),
    ("reference", "uniform"): ("any mention", "any earlier mention, each as likely"),
    ("reference", "relabelled"): (
        "part of speech kept",
        "another mention with an antecedent's part of speech, drawn by how far back antecedents tend to lie",
    ),
}  # fmt: skip
"""Chance levels: a name that fits a table, and a sentence."""

HINT = '<p class="second narrow">Tables are wider than this window: they scroll sideways.</p>'
OTHERWISE = {"any": "any of them", "received": "who looks at it most", "given": "among all words"}


class Column(NamedTuple):
    """A column of a family's table; it is left out where `there` holds for no claim."""

    title: str
    cell: Callable[[Claim], str]
    there: Callable[[Claim], bool] = lambda _: True


def kind_of(family: Family) -> str:
    return "attention" if not family.accuracy else "reference" if family is REFERENCE else "syntax"


def questions_of(roles: Roles, ranked: Ranked) -> str:
    if not ranked:
        return "<p>No question was asked.</p>"
    labels, details = {role.head: role.name for role in roles}, _details(roles)
    out = []
    for family, role_names in by_family(ranked):
        shown = [claim for role in role_names for claim in ranked[role][:TOP]]
        columns = [column for column in _columns(family, details, labels) if any(map(column.there, shown))]
        kind, titles = kind_of(family), [column.title for column in columns]
        sides: dict[bool, list[str]] = {True: [], False: []}
        for role in role_names:
            held = any(claim.holds for claim in ranked[role])
            sides[held].append(_asked(roles.questions[role], role, ranked[role], columns))
        out.append(f'<h3 id="{family.key}">{escape(family.title)}</h3><p class="second">{SCORES[kind]}</p>')
        if sides[True]:
            out.append(table_of(f"claims {kind}", titles, "".join(sides[True])))
        if count := len(sides[False]):
            words = "1 question that no head answers" if count == 1 else f"{count:,} questions that no head answers"
            table = table_of(f"claims {kind}", titles, "".join(sides[False]))
            out.append(f"<details><summary>{words}</summary>{table}</details>")
    return _key() + HINT + "".join(out) + _left_out(roles)


def _left_out(roles: Roles) -> str:
    """Questions that no head could be asked, by name."""
    by_reason: dict[str, list[str]] = {}
    for role, why in roles.unanswerable.items():
        by_reason.setdefault(why, []).append(role)
    terms = terms_of((why, ", ".join(questions)) for why, questions in by_reason.items())
    return f'<h3 id="unasked">Not asked</h3>{terms}' if by_reason else ""


def _asked(question: str, role: str, claims: Sequence[Claim], columns: Sequence[Column]) -> str:
    """A question, for which heads it holds, and its best heads, a row each."""
    sure = [str(claim.head) for claim in claims if claim.holds]
    more = f" and {len(sure) - NAMED:,} more" if len(sure) > NAMED else ""
    holds = f"holds for {data(', '.join(sure[:NAMED]))}{more}" if sure else "holds for no head"
    rows = "".join(
        f'<tr class="{"holds" if claim.holds else "weak"}">{"".join(column.cell(claim) for column in columns)}</tr>'
        for claim in claims[:TOP]
    )
    return (
        f'<tbody><tr><th class="asked" scope="rowgroup" colspan="{len(columns)}">{isolated(question)}'
        f"<span>{isolated(role)}</span><span>{holds}</span></th></tr>{rows}</tbody>"
    )


def _columns(family: Family, details: Mapping[str, str], labels: Mapping[Head, str]) -> list[Column]:
    kind, sure = kind_of(family), family.accuracy
    score = "special tokens may win" if sure else "of all attention"
    conditions = {"attention": "of what no sink takes", "syntax": "among words", "reference": "among mentions"}[kind]
    return [
        Column("head", lambda claim: f'<th scope="row" class="mono">{data(claim.head)}</th>'),
        Column("0% to 100%", lambda claim: f"<td>{_plot(claim)}</td>"),
        Column(score, lambda claim: _figure(percent(claim.score), not sure)),
        Column(conditions, lambda claim: _figure(percent(claim.given), sure), lambda claim: claim.given is not None),
        Column("95% interval", lambda claim: _figure(interval(claim))),
        Column("weight × norm", lambda claim: _figure(percent(claim.norm)), lambda claim: claim.norm is not None),
        Column("chance, the highest", lambda claim: _chance(claim, kind)),
        Column("fixed guess", lambda claim: _pairs(_guessed(claim, details)), lambda claim: bool(guesses(claim))),
        Column("score where it fails", lambda claim: _pairs(_off_guess(claim)), lambda claim: bool(guesses(claim))),
        Column("counted otherwise", lambda claim: _pairs(_otherwise(claim)), lambda claim: bool(_otherwise(claim))),
        Column("cases", lambda claim: _figure(f"{claim.num_queries:,}")),
        Column("q", lambda claim: _figure(q_words(claim.q_value))),
        Column(
            "second corpus", lambda claim: _figure(percent(claim.elsewhere)), lambda claim: claim.elsewhere is not None
        ),
        Column("holds?", lambda claim: f'<td class="verdict">{_verdict(claim, labels)}</td>'),
    ]


def _figure(figure: str, tested: bool = False) -> str:
    return f'<td class="n{" tested" if tested else ""}">{escape(figure)}</td>'


def _pairs(pairs: Iterable[tuple[str, float]]) -> str:
    """Figures with their names, one below the other."""
    named = [(f"<small>{escape(name)}</small> " if name else "", percent(value)) for name, value in pairs]
    lines = "".join(f'<span class="pair">{name}{value}</span>' for name, value in named)
    return f'<td class="n">{lines or "–"}</td>'


def _chance(claim: Claim, kind: str) -> str:
    """The highest chance level, and which it is: beside it where there is room."""
    if not claim.chances:
        return _figure("–")
    name = max(claim.chances, key=lambda each: claim.chances[each])
    words, figure = f"<small>{escape(NULLS.get((kind, name), (name, ''))[0])}</small>", percent(claim.chance)
    return f'<td class="n">{f"{words} {figure}" if kind == "attention" else f"{figure} {words}"}</td>'


def _guessed(claim: Claim, details: Mapping[str, str]) -> list[tuple[str, float]]:
    return [(details.get(f"{claim.statistic}.{name}", FIXED[name][0]), value) for name, value in guesses(claim).items()]


def _off_guess(claim: Claim) -> list[tuple[str, float]]:
    beyond = _beyond(claim)
    return [("", beyond.get(GUESSES[name], math.nan)) for name in guesses(claim)]


def _otherwise(claim: Claim) -> list[tuple[str, float]]:
    """What else is known: other ways to count."""
    shown = {*GUESSES, *GUESSES.values()}
    return [(OTHERWISE.get(name, name), value) for name, value in _beyond(claim).items() if name not in shown]


def _beyond(claim: Claim) -> dict[str, float]:
    return {name.rpartition(".")[2]: value for name, value in claim.beyond.items()}


def _verdict(claim: Claim, labels: Mapping[Head, str]) -> str:
    if not claim.holds:
        return f"no: {escape('; '.join(failing(claim)))}"
    label = labels[claim.head]
    own = label == claim.role or (claim.role == SINK_RULE.role and label.startswith(f"{claim.role} "))
    return "yes, its label" if own else f"yes; its label: {isolated(label)}"


def interval(claim: Claim) -> str:
    """The interval as commands write it, its sign once."""
    if math.isnan(claim.low) or math.isnan(claim.high):
        return "–"
    return f"{percent(claim.low).removesuffix('%')}–{percent(claim.high)}"


def q_words(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _details(roles: Roles) -> dict[str, str]:
    """Which offset or rule a fixed guess stands for, as statistics say it: "offset +1", "NOUN to the right"."""
    details = {}
    for asked_statistic in (statistic for table in roles.tables for statistic in table.statistics):
        match = re.search(r"\(([^()]+)\)$", asked_statistic.meaning)
        if match and asked_statistic.name.endswith(".to_head.rule"):
            details[asked_statistic.name] = match[1].removeprefix("the nearest ")
        elif match and asked_statistic.name.endswith(".to_head.mode"):
            details[asked_statistic.name] = f"offset {match[1]}"
            details[asked_statistic.name.replace(".to_head.", ".to_dependent.")] = f"offset {-int(match[1]):+d}"
    return details


def against(ranked: Ranked) -> str:
    """Every chance level and fixed guess that occurs, in a sentence."""
    first = [claims[0] for claims in ranked.values()]
    levels = {(kind_of(family_of(claim.statistic)), name) for claim in first for name in claim.chances}
    fixed = {name for claim in first for name in guesses(claim)}
    terms = [
        (f"chance of {letter[0]}: {name}", meaning) for letter, (name, meaning) in NULLS.items() if letter in levels
    ]
    terms += [(f"guess: {name}", meaning) for guess, (name, meaning) in FIXED.items() if guess in fixed]
    return f"<h3>What scores are held against</h3>{terms_of(terms)}" if terms else ""


# ----------------------------------------------------------------------------------- a row's figures on one small axis


def _key() -> str:
    """What the marks of the small plots mean."""
    marks = (
        (f'<path class="span" d="M1 9h22"/>{_dot(12)}', "score and its 95% interval"),
        ('<path d="M12 9v6"/>', "the highest chance level"),
        (_flag(12, "full"), "fixed guesses that must be beaten"),
        (_flag(12, "open"), "nearest word of one part of speech, for comparison"),
        (_diamond(12), "score where special tokens may win"),
    )
    items = "".join(
        f'<li class="holds"><svg class="plot" viewBox="0 0 24 18" aria-hidden="true">{mark}</svg>{escape(words)}</li>'
        for mark, words in marks
    )
    return f'<ul class="key">{items}</ul>'


def _plot(claim: Claim) -> str:
    if math.isnan(claim.tested):
        return ""
    inside = ['<path class="axis" d="M5 9h140M5 6v6M75 7v4M145 6v6"/>', f'<path d="M{_x(claim.chance)} 9v6"/>']
    inside += [_flag(_x(value), "open" if name == "rule" else "full") for name, value in guesses(claim).items()]
    if family_of(claim.statistic).accuracy:
        inside.append(_diamond(_x(claim.score)))
    if not math.isnan(claim.low):
        inside.append(f'<path class="span" d="M{_x(claim.low)} 9H{_x(claim.high)}"/>')
    inside.append(_dot(_x(claim.tested)))
    return f'<svg class="plot" viewBox="0 0 150 18" aria-hidden="true">{"".join(inside)}</svg>'


def _x(share: float) -> float:
    return round(5 + 140 * min(1.0, max(0.0, share)), 1)


def _dot(x: int | float) -> str:
    return f'<circle class="dot" cx="{x}" cy="9" r="3.5"/>'


def _flag(x: int | float, fill: str) -> str:
    return f'<path d="M{x} 3v12"/><path class="{fill}" d="M{round(x - 2.5, 1)} 1h5l-2.5 4z"/>'


def _diamond(x: int | float) -> str:
    return f'<path class="open" d="M{round(x - 3, 1)} 9l3-3 3 3-3 3z"/>'
