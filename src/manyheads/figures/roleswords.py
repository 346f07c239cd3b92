"""Questions to heads in families, with their colours and their words: what the figure and the report share.

Plain data and words: no matplotlib, so that commands and the report do without.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from manyheads.figures.style import INK, UNLABELLED, RoleStyle, role_style
from manyheads.roles.asking import AHEAD, UNASKED
from manyheads.roles.claims import Claim
from manyheads.roles.found import Roles
from manyheads.roles.goldrules import PEOPLE_SAY, coreference_rules
from manyheads.roles.rules import ASKED, CONTENT, LOCAL_RULE, POSITIONAL, SINK_RULE


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

SYNTAX_STYLE = RoleStyle("syntax", "#AA55EE", "#af5fff", "syntax", "synt")
REFERENCE_STYLE = RoleStyle("reference", "#CC00AA", "#d700af", "reference", "ref")
OWN_STYLE = RoleStyle("your own", INK, "#767676", "your own", "own")
REFERENCES = frozenset(rule.statistic for rule in coreference_rules())
FLOORS = {rule.statistic: rule.floor for rule in (*POSITIONAL, *CONTENT, LOCAL_RULE, SINK_RULE, *ASKED)}
BY_OTHERS = frozenset(rule.statistic for rule in ASKED)
PLACES = frozenset(rule.statistic for rule in (*POSITIONAL, LOCAL_RULE))
BROAD = "entropy"  # what the label "broad" rests on
GUESSES = {"mode": "off_mode", "rule": "off_rule", "nearest": "off_nearest", "same_word": "off_same_word"}
"""What knows nothing of the sentence, and by which name the score where that fails goes."""


def family_of(statistic: str) -> Family:
    """The family of a claim or a label, by what it rests on."""
    if statistic in REFERENCES:
        return REFERENCE
    if statistic.endswith((".to_head", ".to_dependent")):
        return UP if statistic.endswith(".to_head") else DOWN
    if statistic in PLACES or statistic in BY_OTHERS:
        return POSITIONS if statistic in PLACES else OTHERS
    return TOKENS if statistic in FLOORS or statistic == BROAD else OWN


def style_of(role: str, statistic: str) -> RoleStyle:
    """A label's colour and words: the palette's, a hue for syntax, one for reference, ink for patterns of one's own."""
    if role == UNLABELLED.name:
        return UNLABELLED
    others = {UP: SYNTAX_STYLE, DOWN: SYNTAX_STYLE, REFERENCE: REFERENCE_STYLE, OWN: OWN_STYLE}
    return others.get(family_of(statistic)) or role_style(role)


def short_word(role: str, statistic: str) -> str:
    """A label where room is scarce: "prev", "det ↑" (to the head), "det ↓" (to the dependent), "coref", "pronoun"."""
    style, family = style_of(role, statistic), family_of(statistic)
    if style is SYNTAX_STYLE:
        return statistic.rpartition(".")[0] + (" ↑" if family is UP else " ↓")
    if style is REFERENCE_STYLE:
        return statistic.replace("coreference", "coref")
    return role.removeprefix("offset ") if style.name == "offset" or style is OWN_STYLE else style.tiny


def said(claim: Claim) -> tuple[str, str]:
    """A question as a row of its family: in people's words, and by its name."""
    family = family_of(claim.statistic)
    if family in (UP, DOWN):
        relation = claim.statistic.rpartition(".")[0]
        return PEOPLE_SAY.get(relation, relation), relation if relation in PEOPLE_SAY else ""
    asked = claim.asks.removeprefix("Which head ").removeprefix("looks at ").removesuffix("?")
    plain = family in (OWN, REFERENCE) or claim.role.startswith("offset ") or asked == claim.role
    return claim.role, "" if plain else asked


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


def percent(value: float | None) -> str:
    """A share as commands write it; a dash where nothing was counted."""
    return "–" if value is None or math.isnan(value) else f"{100 * min(value, 1.0):.1f}%"  # rounding goes above 1


def counted(roles: Roles) -> str:
    """How many texts and tokens all rests on, in words."""
    first, *others = (table.sums for table in roles.tables)
    words = f"{first.num_texts:,} texts, {first.num_tokens:,} tokens"
    return words + "".join(f"; {each.num_texts:,} passages, {each.num_tokens:,} tokens" for each in others)


def left_out(roles: Roles) -> str:
    """How many questions could not be asked, by reason; "" where all were."""
    counts = Counter(roles.unanswerable.values())
    said = {AHEAD: "that a head which cannot look ahead is not asked", UNASKED: "that these texts do not ask"}
    return "Left out: " + ", ".join(f"{counts[why]:,} {said[why]}" for why in said if counts[why]) if counts else ""


def guesses(claim: Claim) -> dict[str, float]:
    """What fixed guesses get, by name ("mode", "rule", "nearest", "same_word"), as far as they are known."""
    every = {name.rpartition(".")[2]: value for name, value in (claim.baselines | claim.beyond).items()}
    return {name: every[name] for name in GUESSES if not math.isnan(every.get(name, math.nan))}
