"""What was found about a model's heads as one HTML page: it opens anywhere, prints on paper, and asks nobody anything.

No script, no request; light or dark as the reader's system prefers. Top down: every head in a grid, every question with
its best heads beside chance and fixed guesses, every label with sentences, and how all of it was found. A claim that
does not hold stays in, in grey, with the condition it fails: what was looked for and not found is a result, too.
Everything from outside (texts, names, notes) is data: escaped, cleaned of what no page may hold, and each isolated in
its own direction of writing. The page's frame and look are the Jinja2 template `report.html`, its tables by
question are in `report_tables`.

Cost: half a second and 0.5 MB for 72 heads and 109 questions.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from manyheads.base import replacing
from manyheads.errors import FileAccessError
from manyheads.figures.roles.report_tables import against, questions_of
from manyheads.figures.roles.words import (
    OWN_STYLE,
    counted,
    data,
    isolated,
    percent,
    short_word,
    style_of,
    table_of,
    terms_of,
)
from manyheads.heads import Head
from manyheads.roles import MAX_FALSE, SINK_RULE, Claim, HeadRole, Probe, Roles, by_family
from manyheads.roles.probes.all import SHARE
from manyheads.roles.probes.score import HeadScore
from manyheads.roles.question_families import DOWN, UP, Ranked
from manyheads.roles.results import EFFECT, Example
from manyheads.roles.role_table import (
    NO_ROLE,
    NOT_EFFECT,
    REFERENCE_STYLE,
    ROLES,
    SYNTAX_STYLE,
    UNLABELLED,
    RoleStyle,
)
from manyheads.roles.why_not import RULES_IN_WORDS
from manyheads.statistics import Statistic

__all__ = ["page_of", "write_report", "probes_of"]


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
KINDS = (".html", ".htm")
MANY = 16  # heads across from which on cells are small
ANY = "…"  # stands for any relation's name
NO_EFFECT = f"effect: {EFFECT} ({NOT_EFFECT})"
STYLES = (*ROLES, SYNTAX_STYLE, REFERENCE_STYLE, OWN_STYLE, NO_ROLE)


def write_report(roles: Roles, path: str | os.PathLike[str]) -> None:
    """Write one HTML file, whole or not at all. Errors: FileAccessError."""
    if Path(path).suffix.lower() not in KINDS:
        raise FileAccessError(f"cannot tell what kind of page {Path(path).name!r} is: end it in {', '.join(KINDS)}.")
    page = page_of(roles)
    with replacing(path, ".html") as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.write(page)


def page_of(roles: Roles) -> str:
    """The whole page."""
    from manyheads import __version__

    model = roles.table.notes.get("model", "a model")
    named = sum(role.name != UNLABELLED for role in roles)
    ranked = {role: roles.ranked(role) for role in roles.answerable}
    parts = {
        "policy": Markup(escape(POLICY)),
        "version": __version__,
        "not_effect": NOT_EFFECT,
        "title": Markup(data(f"{model}: what its heads look at")),
        "colours": [_hue(style) for style in STYLES],
        "heading": Markup(f"{isolated(model)}: what its heads look at"),
        "lead": f"{named:,} of {len(roles):,} heads are named, on the evidence of {counted(roles)}.",
        "contents": _contents(roles, ranked),
        "grid": Markup(_grid(roles)),
        "questions": Markup(questions_of(roles, ranked)),
        "probes": Markup(probes_of(roles)),
        "labels": Markup(_labels(roles)),
        "found": Markup(_found(roles, ranked)),
    }
    template = (files("manyheads.figures") / "roles/report.html").read_text(encoding="utf-8")
    # the parts that are pages already are Markup; anything else that reaches the template is escaped
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True)
    return environment.from_string(template).render(parts)


def _contents(roles: Roles, ranked: Ranked) -> list[tuple[str, str]]:
    """The page's places and their names."""
    directions = {UP: "Syntax, to the head", DOWN: "Syntax, to the dependent"}
    families = [(family.key, directions.get(family, family.title.partition(":")[0])) for family, _ in by_family(ranked)]
    probes = (("probes", "Probes"),) if roles.probes else ()
    ends = (("labels", "The labels, with examples"), ("found", "How this was found"))
    return [(key, Markup(escape(name))) for key, name in (("heads", "The heads"), *families, *probes, *ends)]


# ----------------------------------------------------------------------------------------------------------- the grid


def _grid(roles: Roles) -> str:
    """Every stack as a table, then what the colours mean."""
    out = []
    for stack, of_stack in groupby(enumerate(roles), key=lambda item: item[1].head.stack):
        rows = [(layer, list(items)) for layer, items in groupby(of_stack, key=lambda item: item[1].head.layer)]
        across = 1 + max(role.head.index for _, items in rows for _, role in items)
        body = "".join(
            f'<tr><th scope="row">L{layer}</th>{"".join(_cell(at, role) for at, role in items)}</tr>'
            for layer, items in rows
        )
        kind = "grid many" if across > MANY else "grid"
        titles = ("", *(f"H{index}" for index in range(across)))
        out.append((f"<h3>{isolated(stack)}</h3>" if stack else "") + table_of(kind, titles, f"<tbody>{body}</tbody>"))
    return "".join(out) + _legend(roles)


def _cell(at: int, role: HeadRole) -> str:
    title = data(f"{role.head}, {role.name}: {role.evidence.words}")
    if role.name == UNLABELLED:
        return f'<td title="{title}"><a href="#h{at}" aria-label="{title}">&nbsp;</a></td>'
    word = isolated(short_word(role.name, role.evidence.statistic))
    return f'<td class="named {_colour(role)}" title="{title}"><a href="#h{at}">{word}</a></td>'


def _hue(style: RoleStyle) -> str:
    """A style's colour; what is in ink is in light ink where the page is dark."""
    return "var(--ink)" if style is OWN_STYLE else style.colour


def _colour(role: HeadRole) -> str:
    return f"c{STYLES.index(style_of(role.name, role.evidence.statistic))}"


def _legend(roles: Roles) -> str:
    counts = Counter(style_of(role.name, role.evidence.statistic) for role in roles)
    words = {SYNTAX_STYLE: "syntax (↑ to the head, ↓ to a dependent)", NO_ROLE: "no label"}
    entries = [
        f'<li class="c{at}"><span class="chip"></span>{escape(words.get(style, style.name))} '
        f'<span class="second">{counts[style]:,}</span></li>'
        for at, style in enumerate(STYLES)
        if counts[style]
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>'


# --------------------------------------------------------------------------------------------------------- the labels


def _labels(roles: Roles) -> str:
    """Labels in the order of the questions, the strongest head first; then the heads without one."""
    order = {name: index for index, name in enumerate(roles.questions)}
    anchors = {role.head: f"h{index}" for index, role in enumerate(roles)}

    def place(role: HeadRole) -> tuple[int, str, float]:
        rank = order.get(role.name, order.get(role.name.partition(" ")[0], len(order)))
        return rank, role.name, -role.evidence.score

    named = sorted((role for role in roles if role.name != UNLABELLED), key=place)
    out = []
    for name, members in groupby(named, key=lambda role: role.name):
        first, *rest = members
        chip = f'<span class="chip {_colour(first)}"></span>'
        out.append(f'<h3>{chip}{isolated(name)} <span class="effect">{NO_EFFECT}</span></h3>')
        out += [_label(roles, role, anchors[role.head]) for role in (first, *rest)]
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


def _label(roles: Roles, role: HeadRole, anchor: str) -> str:
    others = [claim for claim in roles.of_head(role.head) if claim.role not in (role.name, SINK_RULE.role)]
    also = ", ".join(f"{isolated(claim.role)} ({percent(claim.tested)})" for claim in others)
    held = f'<p class="second">Also holds: {also}.</p>' if also else ""
    shown = _examples(roles, role.head, role.name, role.evidence.statistic)
    if roles.examples and not shown:
        shown = '<p class="second">No example: too few short texts ask it.</p>'
    for claim in others:
        if more := _examples(roles, role.head, claim.role, claim.statistic):
            shown += f'<p class="second">{isolated(claim.role)}:</p>{more}'
    return (
        f'<article class="label" id="{anchor}"><h4><span class="mono">{data(role.head)}</span> {isolated(role.name)}'
        f"</h4><p>{isolated(role.evidence.words)}.</p>{held}{shown}</article>"
    )


def _examples(roles: Roles, head: Head, role: str, statistic: str) -> str:
    unit = _unit(roles, statistic)
    return "".join(_example(each, unit) for each in roles.examples.get((head, role), ()))


def _unit(roles: Roles, statistic: str) -> str:
    return next((each.unit for table in roles.tables for each in table.statistics if each.name == statistic), "share")


def _example(example: Example, unit: str) -> str:
    score = percent(example.score) if unit.startswith("share") else f"{example.score:.2f} {unit}"
    links = "".join(f'<span class="link">{_link(link)}</span>' for link in example.links)
    return (
        f'<figure class="example"><blockquote dir="auto" lang="">{data(example.text)}</blockquote><figcaption>{links}'
        f'<span class="src">here {escape(score)}; {isolated(example.name)}</span></figcaption></figure>'
    )


def _link(link: str) -> str:
    """ "from → to weight", each word isolated: else words written from the right would change places."""
    words, _, weight = link.rpartition(" ")
    ends = words.split(" → ")
    if len(ends) != 2:
        return isolated(link)
    return f"{isolated(ends[0])} → {isolated(ends[1])} {data(weight)}"


# ------------------------------------------------------------------------------------------------- how this was found


def _found(roles: Roles, ranked: Ranked) -> str:
    claims = [claim for claims in ranked.values() for claim in claims]
    notes = f"<h3>Notes</h3>{terms_of(roles.notes.items())}"
    sinks = f"<h3>Sinks</h3><p>{isolated(roles.table.sinks.because)}.</p>"
    return _halves(claims) + against(ranked) + sinks + _failures(roles) + _statistics(roles) + notes


def _halves(claims: Sequence[Claim]) -> str:
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
        "A head is named after the claim that is furthest above what it is held against, on the choosing half; resting "
        "on sinks, and local, yield to any other. Every claim is in the tables that <code>Roles.save</code> writes.",
        "Second corpus: the same score there, over all of its texts." * again,
    )
    return "<h3>Halves, intervals, p and q</h3>" + "".join(f"<p>{said}</p>" for said in paragraphs if said)


def _failures(roles: Roles) -> str:
    """Texts that could not be measured; of many, the first by name."""
    failed = [table.failures for table in roles.tables]
    count, named = (
        sum(failure.count for failure in failed),
        [failure for failures in failed for failure in failures.named],
    )
    if not count:
        return "<h3>Texts that failed</h3><p>None.</p>"
    more = f" The first {len(named):,}:" if count > len(named) else ""
    terms = terms_of((failure.name, failure.reason) for failure in named)
    return f"<h3>Texts that failed</h3><p>{count:,} could not be measured.{more}</p>{terms}"


def _statistics(roles: Roles) -> str:
    """Every statistic with its formula's variant; those of a treebank's relations once for all of them."""
    rows = Counter(_general(statistic) for table in roles.tables for statistic in table.statistics)
    body = "".join(
        f'<tr><th scope="row" class="mono">{data(name)}</th><td>{data(meaning)}'
        f"{f' ({count} relations)' if name.startswith(ANY) else ''}</td>"
        f"<td>{data(unit)}</td><td>{data(source)}</td></tr>"
        for (name, meaning, unit, source), count in rows.items()
    )
    titles = ("statistic", "what it is", "unit", "formula after")
    return f"<h3>Statistics</h3>{table_of('list', titles, f'<tbody>{body}</tbody>')}"


def _general(each: Statistic) -> tuple[str, str, str, str]:
    """A statistic's row; of a relation's ("det.to_head", "det: ...") without the relation."""
    relation, _, meaning = each.meaning.partition(": ")
    if not each.name.startswith(f"{relation}."):
        return each.name, each.meaning, each.unit, each.source
    name, meaning = each.name.removeprefix(f"{relation}."), re.sub(r" \([^()]+\)$", "", meaning)
    return f"{ANY}.{name}", meaning, each.unit, each.source


# ---------------------------------------------------------------------------------------------------------------------
# The report's section of probes: each one's best heads beside chance and its variant, or why it was not asked.


TOP = 3  # heads a probe that are shown
TITLES = ("head", "score", "chance", "95% interval", "cases", "above chance?")
LEAD = (
    "Texts made for one question, or the weights alone. No label rests on them, since labels rest on natural text: "
    "what a head does with random tokens it need not do with words."
)


def probes_of(roles: Roles) -> str:
    """The whole section; "" where no probe was asked."""
    if not roles.probes:
        return ""
    bodies = "".join(_probe(probe) for probe in roles.probes.values())
    return (
        '<section id="probes" aria-labelledby="probes-title"><h2 id="probes-title">Probes</h2>'
        f'<p class="second">{LEAD}</p>{table_of("claims attention", TITLES, bodies)}</section>'
    )


def _probe(probe: Probe) -> str:
    best = probe.top(TOP)
    lacking = "not asked: " if probe.scores is None else "" if best else "no head was counted: "
    rows = "".join(_row(probe, each) for each in best)
    return (
        f'<tbody><tr><th class="asked" scope="rowgroup" colspan="{len(TITLES)}">{isolated(probe.asks)}'
        f"<span>{isolated(probe.name)}</span></th></tr>{rows}"
        f'<tr><td class="second" colspan="{len(TITLES)}">{lacking}{isolated(probe.says)}</td></tr></tbody>'
    )


def _row(probe: Probe, each: HeadScore) -> str:
    beats, z = probe.beats_chance(each), probe.z(each)
    chance = _figure(each.chance, probe) if z is None else f"0 ± {each.score / z if z else 0:.2f}"
    between = _interval(each, probe) if z is None else f"{z:+.1f} standard deviations"
    cases = f"{each.num_queries:,}" if each.num_queries else "–"
    cells = "".join(f'<td class="n">{said}</td>' for said in (_figure(each.score, probe), chance, between, cases))
    return (
        f'<tr class="{"holds" if beats else "weak"}"><th scope="row" class="mono">{data(each.head)}</th>{cells}'
        f'<td class="verdict">{"yes" if beats else "within chance"}</td></tr>'
    )


def _figure(value: float, probe: Probe) -> str:
    return percent(value) if probe.unit == SHARE else f"{value:.2f}"


def _interval(each: HeadScore, probe: Probe) -> str:
    if math.isnan(each.low) or math.isnan(each.high):
        return "–"
    return f"{_figure(each.low, probe).removesuffix('%')}–{_figure(each.high, probe)}"
