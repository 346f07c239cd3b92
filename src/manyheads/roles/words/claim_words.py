"""Words, colours and figures of the picture of all questions, a family's colours also of the picture of families.

Plain data and words: no matplotlib.
"""

from __future__ import annotations

from collections import Counter

from manyheads.roles import Claim, Roles, family_of
from manyheads.roles.results import DOWN, OWN, REFERENCE, UP
from manyheads.roles.rules import AHEAD, PEOPLE_SAY, UNASKED
from manyheads.roles.words.number_words import figure
from manyheads.roles.words.role_table import INK, NO_ROLE, REFERENCE_STYLE, ROLES, SYNTAX_STYLE, RoleStyle, role_style

OWN_STYLE = RoleStyle("your own", INK, "#767676", "your own", "own")
LEGEND = (*ROLES, SYNTAX_STYLE, REFERENCE_STYLE, OWN_STYLE, NO_ROLE)
"""Every look of a head, in the order of legends."""


def style_of(role: str, statistic: str) -> RoleStyle:
    """A label's colour and words: the palette's, a hue for syntax, one for reference, ink for patterns of one's own."""
    if role == NO_ROLE.name:
        return NO_ROLE
    # syntax has hundreds of relations: one hue for all of them, since hues for each could not be told apart
    styles = {UP: SYNTAX_STYLE, DOWN: SYNTAX_STYLE, REFERENCE: REFERENCE_STYLE, OWN: OWN_STYLE}
    return styles.get(family_of(statistic)) or role_style(role)


def words_and_name(claim: Claim) -> tuple[str, str]:
    """A question as a row of its family: in people's words, and by its name."""
    family = family_of(claim.statistic)
    if family in (UP, DOWN):
        relation = claim.statistic.rpartition(".")[0]
        return PEOPLE_SAY.get(relation, relation), relation if relation in PEOPLE_SAY else ""
    question = claim.asks.removeprefix("Which head ").removeprefix("looks at ").removesuffix("?")
    plain = family in (OWN, REFERENCE) or claim.role.startswith("offset ") or question == claim.role
    return claim.role, "" if plain else question


def percent(value: float | None) -> str:
    """A share as commands write it; a dash where nothing was counted."""
    return figure(None if value is None else min(value, 1.0), "share")  # rounding goes above 1


def counted(roles: Roles) -> str:
    """How many texts and tokens all rests on, in words."""
    first, *second = (table.sums for table in roles.tables)
    words = f"{first.num_texts:,} texts, {first.num_tokens:,} tokens"
    return words + "".join(f"; {sums.num_texts:,} passages, {sums.num_tokens:,} tokens" for sums in second)


def left_out(roles: Roles) -> str:
    """How many questions could not be asked, by reason; "" where all were."""
    counts = Counter(roles.unanswerable.values())
    if not counts:
        return ""
    reasons = {AHEAD: "that a head which cannot look ahead is not asked", UNASKED: "that these texts do not ask"}
    return "Left out: " + ", ".join(f"{counts[why]:,} {reasons[why]}" for why in reasons if counts[why])
