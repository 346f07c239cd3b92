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

from manyheads.statistics.defined.masses import LOCAL
from manyheads.statistics.defined.masses import OFFSETS
from manyheads.statistics.defined.masses import offset_name
from manyheads.statistics.defined.norms import weighted_name

MIN_QUERIES = 100
"""Rows on the reporting half: below 100, an interval is about +-10 points wide."""

MIN_TEXTS = 10
"""Independent texts on each half: the spread over fewer says little, and what one author does is no rule."""

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


LEFT = "left"


@dataclass(frozen=True)
class Rule:
    """`role` is given by `statistic`; `chances` are the twins that must be beaten; `floor` is the least score.

    `by_kind`: the class must be favoured also where each of its kinds counts once (`MIN_FAVOUR`). `asks` is the
    question in words. `norm` names the same figure by weight x value norm, where there is one.

    A mass is a share of all attention. An accuracy (`given` is set: the same figure, special tokens left out) is how
    often the strongest key is the right one: it must also beat its `baselines`, and what it scores where they fail
    (`beyond`) must beat even chance. `names_heads=False`: asked and reported, but no head is named after it.
    `unsunk` says what a mass is of what does not go to the sinks: a statistic, or `LEFT`, the score over what is left,
    where it counts nearly all rows; "" where the question is about such tokens themselves.
    """

    role: str
    statistic: str
    floor: float
    chances: tuple[str, ...]
    saying: str
    by_kind: bool = False
    asks: str = ""
    norm: str = ""
    given: str = ""
    baselines: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    names_heads: bool = True
    unsunk: str = LEFT

    @property
    def tested(self) -> str:
        """The statistic that is held against chance."""
        return self.given or self.statistic

    @property
    def needed(self) -> tuple[str, ...]:
        """Every statistic that the rule reads."""
        unsunk, twins = (
            "" if self.unsunk == LEFT else self.unsunk,
            (f"{self.statistic}.{name}" for name in self.chances),
        )
        own = (self.statistic, self.norm, self.given, unsunk, *twins, *self.baselines, *self.beyond)
        return tuple(dict.fromkeys(name for name in own if name))


def _positional(role: str, offset: int, saying: str) -> Rule:
    asks, name = f"Which head looks at {saying}?", offset_name(offset)
    return Rule(role, name, MIN_POSITIONAL, ("uniform",), saying, asks=asks, norm=weighted_name(name))


def _content(
    role: str,
    statistic: str,
    saying: str,
    asks: str,
    norm: str = "",
    *,
    by_kind: bool = False,
    names_heads: bool = True,
    unsunk: str = LEFT,
) -> Rule:
    return Rule(
        role, statistic, MIN_CONTENT, ("uniform", "relabelled"), saying, by_kind=by_kind, norm=norm,
        asks=f"Which head looks at {asks}?", names_heads=names_heads, unsunk=unsunk,
    )  # fmt: skip


POSITIONAL = (
    _positional("previous token", -1, "the token before"),
    _positional("next token", 1, "the token after"),
    _positional("self", 0, "the token itself"),
    *(_positional(f"offset {o:+d}", o, f"the token {o:+d} away") for o in OFFSETS if abs(o) > 1),
)
CONTENT = (
    _content(
        "duplicate token",
        "duplicate_mass",
        "the same token elsewhere",
        "other copies of the same token",
        "duplicate_norm_mass",
        unsunk="duplicate_unsunk_mass",
    ),
    _content(
        "induction",
        "induction_mass",
        "what followed an earlier copy",
        "what followed an earlier copy of the token",
        "induction_norm_mass",
        unsunk="induction_unsunk_mass",
    ),
    _content("punctuation", "punctuation_mass", "punctuation", "punctuation", "punctuation_norm_mass", by_kind=True),
    _content("rare tokens", "rare_mass", "the text's rarest tokens", "the text's rarest tokens", "rare_norm_mass"),
)
NEAR = f"tokens within {LOCAL} either way"
LOCAL_RULE = Rule("local", "local_mass", MIN_LOCAL, ("uniform",), NEAR, asks=f"Which head looks at {NEAR}?")
SINK_RULE = Rule(
    "sink", "sink_mass", MIN_SINK, ("uniform",), "the sink", asks="Which head rests on the model's sinks?",
    norm="sink_norm_mass", unsunk="",
)  # fmt: skip
ASKED = (
    Rule(
        "first token", "first_mass", MIN_SINK, ("uniform",), "the first token",
        asks="Which head looks at the first token?", norm="first_norm_mass", names_heads=False, unsunk="",
    ),
    Rule(
        "separator", "separator_mass", MIN_SINK, ("uniform",), "the separator", asks="Which head looks at separators?",
        norm="separator_norm_mass", names_heads=False, unsunk="",
    ),
    _content(
        "induction, offset -1", "previous_copy_mass", "what preceded an earlier copy",
        "what preceded an earlier copy of the token (the letter of Olsson et al.)", "previous_copy_norm_mass",
        names_heads=False, unsunk="previous_copy_unsunk_mass",
    ),
    _content(
        "rarest word", "rarest_top", "the text's rarest word, where its strongest key is a word",
        "the text's rarest word most of all (Voita et al.)", names_heads=False,
    ),
    _content(
        "two rarest words", "two_rarest_top", "one of the text's two rarest words, where its strongest key is a word",
        "one of the text's two rarest words most of all (Voita et al.)", names_heads=False,
    ),
)  # fmt: skip
"""Asked over a corpus beside the others, by other people's formulas; what names heads is above."""
RULES = (*POSITIONAL, *CONTENT, LOCAL_RULE)
"""Rules that compete: the one that is furthest from chance to always wins. `local` yields to any finer one."""

NORMS = tuple(rule.norm for rule in (*RULES, SINK_RULE) if rule.norm)
_READ = tuple(name for rule in (*RULES, SINK_RULE) for name in rule.needed)
NEEDED = tuple(dict.fromkeys((*_READ, "entropy", "entropy.uniform")))
"""The statistics that labelling asks for."""
