"""The rules by which a head is given a role, and every threshold in them with its reason.

A rule reads one statistic, its chance levels, and how much of the head's attention the sinks take. A head takes the
role when, on the texts set apart for choosing,

- it puts enough of *all* its attention there, sinks competing (`score`), or, where it mostly rests on a sink, enough of
  what it gives to words at all (`given`: said so in the label's evidence); and
- that is far enough above chance: even spread over what each row sees, and the text's words shuffled;

and when the other half of the texts bears it out. Anything else is "unlabelled": a label is evidence, not a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.statistics.masses import LOCAL, OFFSETS, offset_name

MIN_QUERIES = 100
"""Rows on the reporting half: below 100, an interval is about +-10 points wide."""

MIN_POSITIONAL = 0.4
"""A head that reads one fixed distance does so for 40 % of all its attention: random heads stay below 10 %."""

MIN_LOCAL = 0.5
"""Half of all attention within three tokens either way; a text of 30 tokens gives a quarter of it by chance."""

MIN_CONTENT = 0.2
"""A fifth of all attention on tokens chosen by what they are; with a sink taking its share, rarely more is left."""

MIN_GIVEN = 0.6
"""Of what does not go to a sink, this share: the head has one job on words, and rests between."""

MIN_GIVEN_SCORE = 0.1
"""... and at least a tenth of all attention, or the job is too rare to be named after."""

MIN_LIFT = 1.75
"""Times chance: keeps out heads that read words evenly, yet lets in those that seek what is common (punctuation)."""

MIN_EXCESS = 0.1
"""... and a tenth of all attention above chance: chance of 1 % is beaten seven times by next to nothing."""

MIN_LIFT_LOW = 1.5
"""The interval's lower end must be this many times chance, on the reporting half."""

MIN_SINK = 0.5
"""A head whose attention goes to a sink by half, and which has no other role: it rests."""

MIN_BROAD = 0.75
"""Entropy at least three quarters of the evenest possible: the head reads everything a little."""


MIN_FAVOUR = 0.7
"""Of pairs of a mark and a word, those whose mark is read more, on both halves. In every third model of random weights
some head favours the comma or the full stop to twice chance; over all kinds of marks 0.68 was the most of 1,080 random
heads. minilm's L3H11 has 0.79 and 0.89."""


@dataclass(frozen=True)
class Rule:
    """`role` is given by `statistic`; `chances` are the twins that must be beaten; `floor` is the least score.

    `by_kind`: the class must be favoured also where each of its kinds counts once (`MIN_FAVOUR`).
    """

    role: str
    statistic: str
    floor: float
    chances: tuple[str, ...]
    saying: str
    positional: bool = False
    by_kind: bool = False


def _positional(role: str, offset: int, saying: str) -> Rule:
    return Rule(role, offset_name(offset), MIN_POSITIONAL, ("uniform",), saying, positional=True)


POSITIONAL = (
    _positional("previous token", -1, "the token before"),
    _positional("next token", 1, "the token after"),
    _positional("self", 0, "the token itself"),
    *(_positional(f"offset {o:+d}", o, f"the token {o:+d} away") for o in OFFSETS if abs(o) > 1),
)
CONTENT = (
    Rule("duplicate token", "duplicate_mass", MIN_CONTENT, ("uniform", "relabelled"), "the same token elsewhere"),
    Rule("induction", "induction_mass", MIN_CONTENT, ("uniform", "relabelled"), "what followed an earlier copy"),
    Rule("punctuation", "punctuation_mass", MIN_CONTENT, ("uniform", "relabelled"), "punctuation", by_kind=True),
    Rule("rare tokens", "rare_mass", MIN_CONTENT, ("uniform", "relabelled"), "the text's rarest tokens"),
)
LOCAL_RULE = Rule("local", "local_mass", MIN_LOCAL, ("uniform",), f"tokens within {LOCAL} either way", positional=True)
SINK_RULE = Rule("sink", "sink_mass", MIN_SINK, ("uniform",), "the sink")
RULES = (*POSITIONAL, *CONTENT, LOCAL_RULE)
"""Rules that compete: the one with most attention above chance wins. `local` yields to any finer one."""

CONTENT_ROLES = tuple(rule.role for rule in CONTENT)

_TWINS = tuple(
    name
    for rule in (*RULES, SINK_RULE)
    for name in (rule.statistic, *(f"{rule.statistic}.{chance}" for chance in rule.chances))
)
NEEDED = tuple(dict.fromkeys((*_TWINS, "entropy", "entropy.uniform")))
"""The statistics that labelling asks for."""
