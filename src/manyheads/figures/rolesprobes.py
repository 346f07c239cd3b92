"""The report's section of probes: each one's best heads beside chance and its variant, or why it was not asked."""

from __future__ import annotations

import math

from manyheads.figures.markup import data, isolated, table_of
from manyheads.figures.roleswords import percent
from manyheads.roles.results import Roles
from manyheads.roles.probes.score import HeadScore
from manyheads.roles.probes.all import SHARE
from manyheads.roles.probes.all import Probe

__all__ = ["probes_of"]

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
    bodies = "".join(_probe(each) for each in roles.probes.values())
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
