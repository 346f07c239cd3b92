"""Questions to heads in families: positions, tokens, syntax in two directions, reference, others' and one's own."""

from __future__ import annotations

import math
from typing import NamedTuple

from manyheads.roles.claims import Claim
from manyheads.roles.rules import ASKED, FIXED_RULES, LOCAL_RULE, POSITIONAL, coreference_rules


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
BY_OTHERS = frozenset(rule.statistic for rule in ASKED)
AT_PLACES = frozenset(rule.statistic for rule in (*POSITIONAL, LOCAL_RULE))
BROAD = "entropy"  # what the label "broad" rests on


def family_of(statistic: str) -> Family:
    """The family of a claim or a label, by what it rests on."""
    if statistic in REFERENCES:
        return REFERENCE
    if statistic.endswith((".to_head", ".to_dependent")):
        return UP if statistic.endswith(".to_head") else DOWN
    if statistic in AT_PLACES or statistic in BY_OTHERS:
        return POSITIONS if statistic in AT_PLACES else OTHERS
    return TOKENS if statistic in FIXED_RULES or statistic == BROAD else OWN


Ranked = dict[str, list[Claim]]


def by_family(ranked: Ranked) -> list[tuple[Family, list[str]]]:
    """Roles in families. Syntax: roles that hold first, then by the best head's score; the others in the order given,
    but offsets for which no claim holds last."""
    families = []
    for family in FAMILIES:
        roles = [role for role, claims in ranked.items() if family_of(claims[0].statistic) is family]
        if family in (UP, DOWN):
            roles.sort(key=lambda role: (not ranked[role][0].holds, -known(ranked[role][0].tested), role))
        elif family is POSITIONS:
            roles.sort(key=lambda role: role.startswith("offset ") and not any(claim.holds for claim in ranked[role]))
        families += [(family, roles)] if roles else []
    return families


def known(value: float | None) -> float:
    """0 for what was not counted."""
    return 0.0 if value is None or math.isnan(value) else value
