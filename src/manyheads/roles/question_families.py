"""Questions asked of heads, grouped: each family has its reference level, name and rank."""

from __future__ import annotations

import math
from typing import NamedTuple

from manyheads.roles.claims import Claim
from manyheads.roles.rules import (
    ASKED,
    CONTENT,
    LOCAL_RULE,
    POSITIONAL,
    SINK_RULE,
    coreference_rules,
)


class Family(NamedTuple):
    """Questions of one kind; `unit`: what a score is a share of. `accuracy`: it says how often the strongest key is the
    right one, else how much attention goes there."""

    key: str
    title: str
    unit: str
    accuracy: bool = False


POSITIONS = Family("positions", "Positions: looks at a fixed place", "of all attention")
TOKENS = Family("tokens", "Tokens: looks at what tokens are", "of all attention")
UP = Family("up", "Syntax: from a word to the word it depends on", "right among words", True)
DOWN = Family("down", "Syntax: from a word to what depends on it", "right among words", True)
REFERENCE = Family("reference", "Reference: from a mention to what it means", "right among earlier mentions", True)
OTHERS = Family("others", "By others' formulas", "of all attention")
OWN = Family("own", "Your own patterns", "of all attention")
FAMILIES = (POSITIONS, TOKENS, UP, DOWN, REFERENCE, OTHERS, OWN)
REFERENCES = frozenset(rule.statistic for rule in coreference_rules())
FLOORS = {rule.statistic: rule.floor for rule in (*POSITIONAL, *CONTENT, LOCAL_RULE, SINK_RULE, *ASKED)}
BY_OTHERS = frozenset(rule.statistic for rule in ASKED)
PLACES = frozenset(rule.statistic for rule in (*POSITIONAL, LOCAL_RULE))
BROAD = "entropy"  # what the label "broad" rests on


def family_of(statistic: str) -> Family:
    """The family of a claim or a label, by what it rests on."""
    if statistic in REFERENCES:
        return REFERENCE
    if statistic.endswith((".to_head", ".to_dependent")):
        return UP if statistic.endswith(".to_head") else DOWN
    if statistic in PLACES or statistic in BY_OTHERS:
        return POSITIONS if statistic in PLACES else OTHERS
    return TOKENS if statistic in FLOORS or statistic == BROAD else OWN


Ranked = dict[str, list[Claim]]


def by_family(ranked: Ranked) -> list[tuple[Family, list[str]]]:
    """Roles in families. Syntax: what holds first, then by the best head's score; else in the order they come in, but
    offsets that no head keeps to last."""
    out = []
    for family in FAMILIES:
        mine = [role for role, claims in ranked.items() if family_of(claims[0].statistic) is family]
        if family in (UP, DOWN):
            mine.sort(key=lambda role: (not ranked[role][0].holds, -known(ranked[role][0].tested), role))
        elif family is POSITIONS:
            mine.sort(key=lambda role: role.startswith("offset ") and not any(each.holds for each in ranked[role]))
        out += [(family, mine)] if mine else []
    return out


def known(value: float | None) -> float:
    """0 for what was not counted."""
    return 0.0 if value is None or math.isnan(value) else value
