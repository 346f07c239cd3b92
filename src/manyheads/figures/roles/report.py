"""What was found about a model's heads as one HTML page: it opens anywhere, prints on paper, and asks nobody anything.

No script, no request; light or dark as the reader's system prefers. Top down: every head in a grid, every question with
its best heads beside chance and fixed guesses, every label with sentences, and how all of it was found. A score says
nothing without what a guess gets that never saw the sentence, so every row has them side by side, in figures and on one
small axis. A claim that does not hold stays in, in grey, with the condition it fails: what was looked for and not found
is a result, too.

Everything from outside (texts, names, notes) is data: escaped, cleaned of what no page may hold, and each isolated in
its own direction of writing. The page's frame and look are the Jinja2 template `report.html`.

Cost: half a second and 0.5 MB for 72 heads and 109 questions.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import manyheads
from manyheads.base import replacing
from manyheads.errors import FileAccessError
from manyheads.figures.roles.words import (
    GUESSES,
    OWN_STYLE,
    counted,
    data,
    guesses,
    isolated,
    percent,
    short_word,
    style_of,
    table_of,
    terms_of,
)
from manyheads.heads import Head
from manyheads.roles import MAX_FALSE, SINK_RULE, Claim, HeadRole, Roles, by_family, failing, family_of
from manyheads.roles.claims import FIXED, RULES_IN_WORDS
from manyheads.roles.probes.all import SHARE
from manyheads.roles.results import DOWN, EFFECT, REFERENCE, UP, Family, Ranked
from manyheads.roles.role_table import NO_ROLE, NOT_EFFECT, REFERENCE_STYLE, ROLES, SYNTAX_STYLE, UNLABELLED
from manyheads.statistics import Statistic

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
KINDS = (".html", ".htm")
MANY = 16  # heads across from which on cells are small
ANY = "…"  # stands for any relation's name
NO_EFFECT = f"effect: {EFFECT} ({NOT_EFFECT})"
STYLES = (*ROLES, SYNTAX_STYLE, REFERENCE_STYLE, OWN_STYLE, NO_ROLE)
TOP, NAMED = 3, 6  # heads a question or probe that are shown; of those for which it holds, so many are named
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
PROBE_TITLES = ("head", "score", "chance", "95% interval", "cases", "above chance?")
PROBES_LEAD = (
    "Texts made for one question, or the weights alone. No label rests on them, since labels rest on natural text: "
    "what a head does with random tokens it need not do with words."
)


def write_report(roles: Roles, path: str | os.PathLike[str]) -> None:
    """Write one HTML file, whole or not at all. Errors: FileAccessError."""
    if Path(path).suffix.lower() not in KINDS:
        raise FileAccessError(f"cannot tell what kind of page {Path(path).name!r} is: end it in {', '.join(KINDS)}.")
    # made before the file is opened: what fails leaves no half of a page
    page = page_of(roles)
    with replacing(path, ".html") as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(page)


def page_of(roles: Roles) -> str:
    """The whole page."""
    model = roles.table.notes.get("model", "a model")
    named = sum(role.name != UNLABELLED for role in roles)
    ranked = {role: roles.ranked(role) for role in roles.answerable}
    directions = {UP: "Syntax, to the governor", DOWN: "Syntax, to the dependent"}
    families = [(family.key, directions.get(family, family.title.partition(":")[0])) for family, _ in by_family(ranked)]
    probes = (("probes", "Probes"),) if roles.probes else ()
    ends = (("labels", "The labels, with examples"), ("found", "How this was found"))
    places = (("heads", "The heads"), *families, *probes, *ends)
    parts = {
        "policy": Markup(escape(POLICY)),
        "version": manyheads.__version__,
        "not_effect": NOT_EFFECT,
        "title": Markup(data(f"{model}: what its heads look at")),
        # what is in ink is in light ink where the page is dark
        "colours": ["var(--ink)" if style is OWN_STYLE else style.colour for style in STYLES],
        "heading": Markup(f"{isolated(model)}: what its heads look at"),
        "lead": f"{named:,} of {len(roles):,} heads are named, on the evidence of {counted(roles)}.",
        "contents": [(key, Markup(escape(name))) for key, name in places],
        "grid": Markup(grid_of(roles)),
        "questions": Markup(questions_of(roles, ranked)),
        "probes": Markup(probes_of(roles)),
        "labels": Markup(labels_of(roles)),
        "found": Markup(methods_of(roles, ranked)),
    }
    template = (files("manyheads.figures") / "roles/report.html").read_text(encoding="utf-8")
    # the parts that are pages already are Markup; anything else that reaches the template is escaped
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True)
    return environment.from_string(template).render(parts)


def _chip(role: HeadRole) -> int:
    """The number of a label's style, which is the class of its colour on the page."""
    return STYLES.index(style_of(role.name, role.evidence.statistic))


# ---------------------------------------------------------------------------------------------------------- the heads


def grid_of(roles: Roles) -> str:
    """Every stack as a table of its heads, then what the colours mean."""

    def cell(index: int, role: HeadRole) -> str:
        title = data(f"{role.head}, {role.name}: {role.evidence.words}")
        if role.name == UNLABELLED:
            return f'<td title="{title}"><a href="#h{index}" aria-label="{title}">&nbsp;</a></td>'
        word = isolated(short_word(role.name, role.evidence.statistic))
        return f'<td class="named c{_chip(role)}" title="{title}"><a href="#h{index}">{word}</a></td>'

    out = []
    for stack, of_stack in groupby(enumerate(roles), key=lambda item: item[1].head.stack):
        rows = [(layer, list(items)) for layer, items in groupby(of_stack, key=lambda item: item[1].head.layer)]
        across = 1 + max(role.head.index for _, items in rows for _, role in items)
        body = "".join(
            f'<tr><th scope="row">L{layer}</th>{"".join(cell(index, role) for index, role in items)}</tr>'
            for layer, items in rows
        )
        kind = "grid many" if across > MANY else "grid"
        titles = ("", *(f"H{index}" for index in range(across)))
        out.append((f"<h3>{isolated(stack)}</h3>" if stack else "") + table_of(kind, titles, f"<tbody>{body}</tbody>"))
    # only colours that occur, each with its number of heads
    counts = Counter(map(_chip, roles))
    words = {SYNTAX_STYLE: "syntax (↑ to the governor, ↓ to a dependent)", NO_ROLE: "no label"}
    entries = "".join(
        f'<li class="c{index}"><span class="chip"></span>{escape(words.get(style, style.name))} '
        f'<span class="second">{counts[index]:,}</span></li>'
        for index, style in enumerate(STYLES)
        if counts[index]
    )
    return "".join(out) + f'<ul class="legend">{entries}</ul>'


# -------------------------------------------------------------------------------------------------------- by question


class Column(NamedTuple):
    """A column of a family's table; it is left out where it `applies` to no claim."""

    title: str
    cell: Callable[[Claim], str]
    applies: Callable[[Claim], bool] = lambda _: True


def kind_of(family: Family) -> str:
    return "attention" if not family.accuracy else "reference" if family is REFERENCE else "syntax"


def questions_of(roles: Roles, ranked: Ranked) -> str:
    """The tables by question: its best heads, each beside chance and fixed guesses, and whether it holds."""
    if not ranked:
        return "<p>No question was asked.</p>"
    labels = {role.head: role.name for role in roles}
    # Which offset or rule a fixed guess stands for, as statistics say it: "offset +1", "NOUN to the right".
    details: dict[str, str] = {}
    for statistic in (statistic for table in roles.tables for statistic in table.statistics):
        match = re.search(r"\(([^()]+)\)$", statistic.meaning)
        if match and statistic.name.endswith(".to_governor.rule"):
            details[statistic.name] = match[1].removeprefix("the nearest ")
        elif match and statistic.name.endswith(".to_governor.mode"):
            details[statistic.name] = f"offset {match[1]}"
            # the same arc read from its other end: the offset turns round
            details[statistic.name.replace(".to_governor.", ".to_dependent.")] = f"offset {-int(match[1]):+d}"
    out = []
    for family, role_names in by_family(ranked):
        claims = [claim for role in role_names for claim in ranked[role][:TOP]]
        columns = [column for column in _columns(family, details, labels) if any(map(column.applies, claims))]
        kind, titles = kind_of(family), [column.title for column in columns]
        bodies: dict[bool, list[str]] = {True: [], False: []}
        for role in role_names:
            heads = [str(claim.head) for claim in ranked[role] if claim.holds]
            more = f" and {len(heads) - NAMED:,} more" if len(heads) > NAMED else ""
            answer = f"holds for {data(', '.join(heads[:NAMED]))}{more}" if heads else "holds for no head"
            rows = "".join(
                f'<tr class="{"holds" if claim.holds else "weak"}">{"".join(part.cell(claim) for part in columns)}</tr>'
                for claim in ranked[role][:TOP]
            )
            bodies[bool(heads)].append(
                f'<tbody><tr><th class="asked" scope="rowgroup" colspan="{len(columns)}">'
                f"{isolated(roles.questions[role])}<span>{isolated(role)}</span><span>{answer}</span></th></tr>"
                f"{rows}</tbody>"
            )
        out.append(f'<h3 id="{family.key}">{escape(family.title)}</h3><p class="second">{SCORES[kind]}</p>')
        if bodies[True]:
            out.append(table_of(f"claims {kind}", titles, "".join(bodies[True])))
        if count := len(bodies[False]):
            words = "1 question that no head answers" if count == 1 else f"{count:,} questions that no head answers"
            table = table_of(f"claims {kind}", titles, "".join(bodies[False]))
            out.append(f"<details><summary>{words}</summary>{table}</details>")
    by_reason: dict[str, list[str]] = {}
    for role, why in roles.unanswerable.items():
        by_reason.setdefault(why, []).append(role)
    if by_reason:
        terms = terms_of((why, ", ".join(questions)) for why, questions in by_reason.items())
        out.append(f'<h3 id="unasked">Not asked</h3>{terms}')
    marks = (
        (f'<path class="span" d="M1 9h22"/>{_dot(12)}', "score and its 95% interval"),
        ('<path d="M12 9v6"/>', "the highest chance level"),
        (_flag(12, "full"), "fixed guesses that must be beaten"),
        (_flag(12, "open"), "nearest word of one part of speech, for comparison"),
        (_diamond(12), "score where special tokens may win"),
    )
    key = "".join(
        f'<li class="holds"><svg class="plot" viewBox="0 0 24 18" aria-hidden="true">{mark}</svg>{escape(words)}</li>'
        for mark, words in marks
    )
    return f'<ul class="key">{key}</ul>' + HINT + "".join(out)


def _columns(family: Family, details: Mapping[str, str], labels: Mapping[Head, str]) -> list[Column]:
    kind, sure = kind_of(family), family.accuracy
    score = "special tokens may win" if sure else "of all attention"
    conditions = {"attention": "of what no sink takes", "syntax": "among words", "reference": "among mentions"}[kind]

    def beyond(claim: Claim) -> dict[str, float]:
        return {name.rpartition(".")[2]: value for name, value in claim.beyond.items()}

    def guessed(claim: Claim) -> list[tuple[str, float]]:
        names = {name: details.get(f"{claim.statistic}.{name}", FIXED[name][0]) for name in guesses(claim)}
        return [(names[name], value) for name, value in guesses(claim).items()]

    def where_it_fails(claim: Claim) -> list[tuple[str, float]]:
        scores = beyond(claim)
        return [("", scores.get(GUESSES[name], math.nan)) for name in guesses(claim)]

    def otherwise(claim: Claim) -> list[tuple[str, float]]:
        of_guesses = {*GUESSES, *GUESSES.values()}
        return [(OTHERWISE.get(name, name), value) for name, value in beyond(claim).items() if name not in of_guesses]

    def chance(claim: Claim) -> str:
        """The highest chance level, and which it is: beside it where there is room."""
        if not claim.chances:
            return _figure("–")
        # every level must be beaten, so the highest is the one that counts
        name = max(claim.chances, key=claim.chances.__getitem__)
        words, figure = f"<small>{escape(NULLS.get((kind, name), (name, ''))[0])}</small>", percent(claim.chance)
        return f'<td class="n">{f"{words} {figure}" if kind == "attention" else f"{figure} {words}"}</td>'

    def verdict(claim: Claim) -> str:
        if not claim.holds:
            return f"no: {escape('; '.join(failing(claim)))}"
        label = labels[claim.head]
        is_label = label == claim.role or (claim.role == SINK_RULE.role and label.startswith(f"{claim.role} "))
        return "yes, its label" if is_label else f"yes; its label: {isolated(label)}"

    return [
        Column("head", lambda claim: f'<th scope="row" class="mono">{data(claim.head)}</th>'),
        Column("0% to 100%", lambda claim: f"<td>{_plot(claim)}</td>"),
        Column(score, lambda claim: _figure(percent(claim.score), not sure)),
        Column(conditions, lambda claim: _figure(percent(claim.given), sure), lambda claim: claim.given is not None),
        Column("95% interval", lambda claim: _figure(interval(claim.low, claim.high))),
        Column("weight × norm", lambda claim: _figure(percent(claim.norm)), lambda claim: claim.norm is not None),
        Column("chance, the highest", chance),
        Column("fixed guess", lambda claim: _pairs(guessed(claim)), lambda claim: bool(guesses(claim))),
        Column("score where it fails", lambda claim: _pairs(where_it_fails(claim)), lambda claim: bool(guesses(claim))),
        Column("counted otherwise", lambda claim: _pairs(otherwise(claim)), lambda claim: bool(otherwise(claim))),
        Column("cases", lambda claim: _figure(f"{claim.num_queries:,}")),
        Column("q", lambda claim: _figure(q_words(claim.q_value))),
        Column(
            "second corpus", lambda claim: _figure(percent(claim.elsewhere)), lambda claim: claim.elsewhere is not None
        ),
        Column("holds?", lambda claim: f'<td class="verdict">{verdict(claim)}</td>'),
    ]


def _figure(figure: str, tested: bool = False) -> str:
    return f'<td class="n{" tested" if tested else ""}">{escape(figure)}</td>'


def _pairs(pairs: Iterable[tuple[str, float]]) -> str:
    """Figures with their names, one below the other."""
    named = [(f"<small>{escape(name)}</small> " if name else "", percent(value)) for name, value in pairs]
    lines = "".join(f'<span class="pair">{name}{value}</span>' for name, value in named)
    return f'<td class="n">{lines or "–"}</td>'


def interval(low: float, high: float, written: Callable[[float], str] = percent) -> str:
    """The interval as commands write it, its sign once."""
    if math.isnan(low) or math.isnan(high):
        return "–"
    return f"{written(low).removesuffix('%')}–{written(high)}"


def q_words(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


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


# ------------------------------------------------------------------------------------------------------------- probes


def probes_of(roles: Roles) -> str:
    """The section of probes: each one's best heads beside chance and its variant, or why it was not asked.

    "" where there is no probe.
    """
    if not roles.probes:
        return ""
    bodies = []
    for probe in roles.probes.values():
        best = probe.top(TOP)
        lacking = "not asked: " if probe.scores is None else "" if best else "no head was counted: "
        written = percent if probe.unit == SHARE else "{:.2f}".format
        rows = ""
        for score in best:
            beats, z = probe.beats_chance(score), probe.z(score)
            chance = written(score.chance) if z is None else f"0 ± {score.score / z if z else 0:.2f}"
            between = interval(score.low, score.high, written) if z is None else f"{z:+.1f} standard deviations"
            cases = f"{score.num_queries:,}" if score.num_queries else "–"
            cells = "".join(f'<td class="n">{figure}</td>' for figure in (written(score.score), chance, between, cases))
            rows += (
                f'<tr class="{"holds" if beats else "weak"}"><th scope="row" class="mono">{data(score.head)}</th>'
                f'{cells}<td class="verdict">{"yes" if beats else "within chance"}</td></tr>'
            )
        bodies.append(
            f'<tbody><tr><th class="asked" scope="rowgroup" colspan="{len(PROBE_TITLES)}">{isolated(probe.asks)}'
            f"<span>{isolated(probe.name)}</span></th></tr>{rows}"
            f'<tr><td class="second" colspan="{len(PROBE_TITLES)}">{lacking}{isolated(probe.says)}</td></tr></tbody>'
        )
    return (
        '<section id="probes" aria-labelledby="probes-title"><h2 id="probes-title">Probes</h2>'
        f'<p class="second">{PROBES_LEAD}</p>{table_of("claims attention", PROBE_TITLES, "".join(bodies))}</section>'
    )


# --------------------------------------------------------------------------------------------------------- the labels


def labels_of(roles: Roles) -> str:
    """Labels in the order of the questions, the strongest head first; then the heads without one."""
    order = {name: index for index, name in enumerate(roles.questions)}
    anchors = {role.head: f"h{index}" for index, role in enumerate(roles)}

    def place(role: HeadRole) -> tuple[int, str, float]:
        rank = order.get(role.name, order.get(role.name.partition(" ")[0], len(order)))
        return rank, role.name, -role.evidence.score

    named = sorted((role for role in roles if role.name != UNLABELLED), key=place)
    out = []
    for name, group in groupby(named, key=lambda role: role.name):
        members = list(group)
        chip = f'<span class="chip c{_chip(members[0])}"></span>'
        out.append(f'<h3>{chip}{isolated(name)} <span class="effect">{NO_EFFECT}</span></h3>')
        for role in members:
            claims = [claim for claim in roles.of_head(role.head) if claim.role not in (role.name, SINK_RULE.role)]
            also = ", ".join(f"{isolated(claim.role)} ({percent(claim.tested)})" for claim in claims)
            also_holds = f'<p class="second">Also holds: {also}.</p>' if also else ""
            examples = _examples(roles, role.head, role.name, role.evidence.statistic)
            if roles.examples and not examples:
                examples = '<p class="second">No example: too few short texts ask it.</p>'
            for claim in claims:
                if more := _examples(roles, role.head, claim.role, claim.statistic):
                    examples += f'<p class="second">{isolated(claim.role)}:</p>{more}'
            out.append(
                f'<article class="label" id="{anchors[role.head]}"><h4><span class="mono">{data(role.head)}</span> '
                f"{isolated(role.name)}</h4><p>{isolated(role.evidence.words)}.</p>{also_holds}{examples}</article>"
            )
    bare = "".join(
        f'<tr id="{anchors[role.head]}"><th scope="row" class="mono">{data(role.head)}</th>'
        f"<td>{isolated(role.evidence.words)}</td></tr>"
        for role in roles
        if role.name == UNLABELLED
    )
    if bare:
        chip = f'<span class="chip c{STYLES.index(NO_ROLE)}"></span>'
        table = table_of("list", ("head", "what it came nearest to"), f"<tbody>{bare}</tbody>")
        out.append(f"<h3>{chip}No label</h3>{table}")
    return "".join(out)


def _examples(roles: Roles, head: Head, role: str, statistic: str) -> str:
    """The texts in which a head does it most, with the strongest links between words there."""
    known = (entry for table in roles.tables for entry in table.statistics)
    unit = next((entry.unit for entry in known if entry.name == statistic), "share")
    figures = []
    for example in roles.examples.get((head, role), ()):
        score = percent(example.score) if unit.startswith("share") else f"{example.score:.2f} {unit}"
        links = "".join(f'<span class="link">{_link(link)}</span>' for link in example.links)
        figures.append(
            f'<figure class="example"><blockquote dir="auto" lang="">{data(example.text)}</blockquote><figcaption>'
            f'{links}<span class="src">here {escape(score)}; {isolated(example.name)}</span></figcaption></figure>'
        )
    return "".join(figures)


def _link(link: str) -> str:
    """ "from → to weight", each word isolated: else words written from the right would change places."""
    # a word may hold the arrow itself: then nobody knows where it ends, and the link stays whole
    words, _, weight = link.rpartition(" ")
    ends = words.split(" → ")
    if len(ends) != 2:
        return isolated(link)
    return f"{isolated(ends[0])} → {isolated(ends[1])} {data(weight)}"


# ------------------------------------------------------------------------------------------------- how this was found


def methods_of(roles: Roles, ranked: Ranked) -> str:
    """How claims were tested, what scores are held against, what failed, and every statistic's formula."""
    claims = [claim for claims in ranked.values() for claim in claims]
    tests, sound = sum(bool(claim.num_queries) for claim in claims), sum(claim.holds for claim in claims)
    again = any(claim.elsewhere is not None for claim in claims)
    paragraphs = (
        "Each text belongs by its own words to one of two halves. On one, heads are chosen; every figure here is of "
        "the other, so that the best of many is no lucky one. Intervals are 95% over texts, by bootstrap.",
        "The p-value of a claim is that of its score being no higher than the highest chance level, by the spread of "
        "their difference over the bootstrap's replicates. The q-value corrects it for all "
        f"{tests:,} tests, every head by every question: of claims with a q up to {MAX_FALSE:g}, {MAX_FALSE:.0%} at "
        "most are false on average, however the tests hang together (Benjamini and Yekutieli 2001). "
        f"{sound:,} of {tests:,} claims hold.",
        f"That something is no chance does not make it large. A claim holds where both halves satisfy its rule, too. "
        f"{RULES_IN_WORDS}",
        "A head is named after its surest claim, the one furthest on the way from chance to always, on the choosing "
        "half; resting on sinks, and local, yield to any other. Every claim is in the tables that "
        "<code>Roles.save</code> writes.",
        "Second corpus: the same score there, over all of its texts." * again,
    )
    halves = "<h3>Halves, intervals, p and q</h3>" + "".join(f"<p>{text}</p>" for text in paragraphs if text)
    failed = [table.failures for table in roles.tables]
    count = sum(failures.count for failures in failed)
    named = [failure for failures in failed for failure in failures.named]
    failures = "<h3>Texts that failed</h3><p>None.</p>"
    if count:  # of many, the first by name
        more = f" The first {len(named):,}:" if count > len(named) else ""
        terms = terms_of((failure.name, failure.reason) for failure in named)
        failures = f"<h3>Texts that failed</h3><p>{count:,} could not be measured.{more}</p>{terms}"
    sinks = f"<h3>Sinks</h3><p>{isolated(roles.table.sinks.because)}.</p>"
    notes = f"<h3>Notes</h3>{terms_of(roles.notes.items())}"
    return halves + against(ranked) + sinks + failures + _statistics(roles) + notes


def _statistics(roles: Roles) -> str:
    """Every statistic with its formula's variant; those of a treebank's relations once for all of them."""

    def row(statistic: Statistic) -> tuple[str, str, str, str]:
        """What stands in its row; of a relation's ("det.to_governor", "det: ...") without the relation."""
        relation, _, meaning = statistic.meaning.partition(": ")
        if not statistic.name.startswith(f"{relation}."):
            return statistic.name, statistic.meaning, statistic.unit, statistic.source
        name, meaning = statistic.name.removeprefix(f"{relation}."), re.sub(r" \([^()]+\)$", "", meaning)
        return f"{ANY}.{name}", meaning, statistic.unit, statistic.source

    rows = Counter(row(statistic) for table in roles.tables for statistic in table.statistics)
    body = "".join(
        f'<tr><th scope="row" class="mono">{data(name)}</th><td>{data(meaning)}'
        f"{f' ({count} relations)' if name.startswith(ANY) else ''}</td>"
        f"<td>{data(unit)}</td><td>{data(source)}</td></tr>"
        for (name, meaning, unit, source), count in rows.items()
    )
    titles = ("statistic", "what it is", "unit", "formula after")
    return f"<h3>Statistics</h3>{table_of('list', titles, f'<tbody>{body}</tbody>')}"
