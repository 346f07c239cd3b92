"""The table of roles: how each is called, coloured, abbreviated and grouped, wherever heads are shown.

Figures, the commands and the studio's page all read this table. The page reads the part of it that it needs
from a file that this module writes: `python -m manyheads.roles.words.role_table web/src/lib/draw/roles.generated.ts`
(`make web` does so, and a test holds the file to the table).

Whoever adds a role adds a rule (`roles.rules`) and a row here, and builds the page if the row has words of its own (a
group); CONTRIBUTING says what else a new question needs. Plain data: importing it costs
nothing, so that commands may read it before anything heavy is loaded.

Hues are those of Okabe and Ito 2008 (Color Universal Design) and kin. Any two are told apart by normal eyes and under
the three kinds of colour blindness, and all that stand for a group show at 2 to 1 or more on light and on dark paper,
but the grey of heads without a role, which is meant to recede. A colour never stands without its word or its letter.
Terminal colours are of the 256 that all terminals have, legible on black and on white.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

UNLABELLED = "unlabelled"
"""The name of a head of which the evidence is not enough for a role."""

NOT_EFFECT = "attention is not effect"
"""What every page that shows roles must say, in whatever sentence."""

ONLY_READS = "what a head reads, not what is lost without it"
"""What a role, a map and a picture of claims say, and what they do not."""

CAVEAT = f"{NOT_EFFECT.capitalize()}: a role says {ONLY_READS}."


INK = "#1B1E26"


@dataclass(frozen=True)
class RoleStyle:
    """How a role is shown: its colour on paper and in terminals, its name, and shorter words where room is scarce.

    `group` is the kind of role that the studio's page shows: several roles may share one. The row that gives a group
    its colour has the group's `letter`, and in `words` what such a head does.
    """

    name: str
    colour: str
    terminal: str
    short: str
    tiny: str
    group: str = ""
    letter: str = ""
    words: str = ""


ROLES = (
    RoleStyle(
        "previous token", "#0072B2", "#0087d7", "previous", "prev",
        group="previous", letter="P", words="reads the token before",
    ),
    RoleStyle(
        "next token", "#56B4E9", "#008787", "next", "next",
        group="next", letter="N", words="reads the token after",
    ),
    RoleStyle("offset", "#332288", "#5f5fd7", "offset", "offs", group="local"),
    RoleStyle(
        "self", "#04564A", "#5f8700", "self", "self",
        group="self", letter="S", words="reads the token itself",
    ),
    RoleStyle(
        "local", "#009E73", "#00875f", "local", "local",
        group="local", letter="L", words="reads its neighbours, or a fixed step away",
    ),
    RoleStyle(
        "sink", "#6F6F6F", "#878787", "sink", "sink",
        group="sink", letter="R", words="parks on the first token or a mark",
    ),
    RoleStyle(
        "duplicate token", "#D55E00", "#d75f00", "duplicate", "dupl",
        group="duplicate", letter="D", words="reads the same token elsewhere",
    ),
    RoleStyle(
        "induction", "#CC79A7", "#d75f87", "induction", "ind",
        group="induction", letter="I", words="reads what followed an earlier copy",
    ),
    RoleStyle(
        "punctuation", "#E69F00", "#af8700", "punctuation", "punct",
        group="punctuation", letter="U", words="reads punctuation",
    ),
    RoleStyle(
        "rare tokens", "#7F3113", "#af5f5f", "rare", "rare",
        group="content", letter="C", words="reads tokens for what they are: rare ones, numbers, names",
    ),
    RoleStyle(
        "broad", "#8C510A", "#af875f", "broad", "broad",
        group="broad", letter="B", words="reads everything a little",
    ),
)  # fmt: skip
"""The roles that are found in any text, in the order of legends."""

NO_ROLE = RoleStyle(
    UNLABELLED, "#C9C4B8", "#767676", UNLABELLED, "",
    group=UNLABELLED, words="not enough evidence for a role",
)  # fmt: skip
SYNTAX_STYLE = RoleStyle("syntax", "#AA55EE", "#af5fff", "syntax", "synt")
REFERENCE_STYLE = RoleStyle("reference", "#CC00AA", "#d700af", "reference", "ref")
"""One hue for all relations of syntax, and one for coreference: such roles are found in treebanks alone."""


GROUPS = {style.group: style for style in (*ROLES, NO_ROLE) if style.words}
"""The row that gives each group of roles its colour, letter and words, by the group's name; the last is not a role."""

OF_SYNTAX = ("dependent to governor", "governor to dependent")
"""The two directions of a relation, as names of roles end: "det: dependent to governor". A head is one of attention."""


def role_style(name: str) -> RoleStyle:
    """The row of a role as `HeadRole.name` gives it: "offset -3" and "sink [CLS]" too; `NO_ROLE` for any other name."""
    for style in ROLES:
        if name == style.name or name.startswith(f"{style.name} "):
            return style
    return NO_ROLE


def group_of(name: str) -> str:
    """The group of a role: "sink [CLS]" is in "sink", "offset -3" in "local"; a role without a row is its own group."""
    style = role_style(name)
    return name if style is NO_ROLE else style.group


def letter_of(name: str) -> str:
    """The letter of a role's group, as on the studio's page; a dot where a head has no role."""
    return "." if role_style(name) is NO_ROLE else GROUPS[group_of(name)].letter


def hue(name: str) -> str:
    """The role's colour in a terminal; unlabelled heads are faint."""
    return "dim" if name == UNLABELLED else role_style(name).terminal


def page_table() -> str:
    """The groups of roles as the TypeScript that the studio's page imports."""
    rows = [
        f"  {{ name: {json.dumps(style.group)}, letter: {json.dumps(style.letter)}, "
        f"colour: {json.dumps(style.colour.lower())}, words: {json.dumps(style.words)} }},\n"
        for style in GROUPS.values()
    ]
    return f"""\
// Made from the library's table of roles by `make web`, and held to it by a test. The groups of
// roles are in the order of legends and rankings; `name` is what the server calls `family` in a role. The last entry
// stands for a head without a role.

export const ROLE_GROUP_TABLE = [
{"".join(rows)}] as const;
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page_table(), encoding="utf-8")
