"""Words, colours and figures that the picture of all questions and the report share, and how a page writes any text.

Questions stand in families, each with its words and its look. Texts, names and notes are data, whatever they hold: a
page gets them escaped, without what no page may hold, and within a sentence each in its own direction of writing.
Plain data and words: no matplotlib, so that commands and the report do without.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from manyheads.figures.palette import INK
from manyheads.roles import Claim, Roles, family_of
from manyheads.roles.results import DOWN, OWN, REFERENCE, UP
from manyheads.roles.role_table import NO_ROLE, REFERENCE_STYLE, SYNTAX_STYLE, RoleStyle, role_style
from manyheads.roles.rules import AHEAD, PEOPLE_SAY, UNASKED

OWN_STYLE = RoleStyle("your own", INK, "#767676", "your own", "own")
GUESSES = {"mode": "off_mode", "rule": "off_rule", "nearest": "off_nearest", "same_word": "off_same_word"}
"""Guesses that know nothing of the sentence, and the names of the scores where they fail."""
LONGEST = 2_000  # characters of a text that a page shows


def style_of(role: str, statistic: str) -> RoleStyle:
    """A label's colour and words: the palette's, a hue for syntax, one for reference, ink for patterns of one's own."""
    if role == NO_ROLE.name:
        return NO_ROLE
    # syntax has hundreds of relations: one hue for all of them, since hues for each could not be told apart
    styles = {UP: SYNTAX_STYLE, DOWN: SYNTAX_STYLE, REFERENCE: REFERENCE_STYLE, OWN: OWN_STYLE}
    return styles.get(family_of(statistic)) or role_style(role)


def short_word(role: str, statistic: str) -> str:
    """A label where room is scarce: "prev", "det ↑" (to the head), "det ↓" (to the dependent), "coref", "pronoun"."""
    style, family = style_of(role, statistic), family_of(statistic)
    if style is SYNTAX_STYLE:
        return statistic.rpartition(".")[0] + (" ↑" if family is UP else " ↓")
    if style is REFERENCE_STYLE:
        return statistic.replace("coreference", "coref")
    return role.removeprefix("offset ") if style.name == "offset" or style is OWN_STYLE else style.tiny


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
    return "–" if value is None or math.isnan(value) else f"{100 * min(value, 1.0):.1f}%"  # rounding goes above 1


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


def guesses(claim: Claim) -> dict[str, float]:
    """The score of each fixed guess, by name ("mode", "rule", "nearest", "same_word"), as far as it is known."""
    scores = {name.rpartition(".")[2]: value for name, value in (claim.baselines | claim.beyond).items()}
    return {name: scores[name] for name in GUESSES if not math.isnan(scores.get(name, math.nan))}


def data(text: object) -> str:
    """Any text as a page may hold it: escaped, without control characters and halves of characters."""
    # What is cut off is never looked at: a text may have millions of characters.
    printable = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" else char
        for char in str(text)[:LONGEST]
    )
    return escape(printable + "…" * (len(str(text)) > LONGEST))


def isolated(text: object) -> str:
    """The same within a sentence of ours, its direction of writing its own."""
    return f"<bdi>{data(text)}</bdi>"


def table_of(kind: str, titles: Sequence[str], bodies: str) -> str:
    """A table that scrolls sideways where the page is narrow. Titles and bodies are HTML already."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def terms_of(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names, each with its meaning."""
    return f"<dl>{''.join(f'<dt>{isolated(name)}</dt><dd>{isolated(words)}</dd>' for name, words in pairs)}</dl>"
