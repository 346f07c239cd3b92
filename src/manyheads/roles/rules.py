"""The rules by which a head is given a role, and every threshold in them with its reason.

A rule reads one statistic, its chance levels, and how much of the head's attention the sinks take. A head takes the
role when, on the texts set apart for choosing,

- it puts enough of *all* its attention there, sinks competing (`score`), or, where it mostly rests on a sink, enough of
  what it gives to words at all (`given`: the label's evidence says so); and
- that is far enough above chance: even spread over what each row sees, and the text's words shuffled;

and when the other half of the texts bears it out. Anything else is "unlabelled": a label is evidence, not a guess.

Two kinds of rules need a treebank: for each relation of syntax and direction, and for coreference. They read an
accuracy on words alone, which is easily high: most determiners stand before their noun. So the accuracy must beat, on
texts that the head was not chosen on, the most frequent offset (by a tenth and three points), the same link with
position and part of speech preserved and the link itself destroyed, and even chance where the offset fails
(`statistics.defined.syntax`).

The conditions that a rule sets are in `roles.claims`, and their words as well. How a role is shown is in
`roles.words.role_table`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from manyheads.statistics.defined import LOCAL, OFFSETS, offset_name, weighted_name

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

MIN_DISTANCE = 0.1
"""The least distance from chance of any label: a tenth of the way from chance to always (`distance`). A mass has it by
`MIN_EXCESS`. An accuracy may be easily high: right in 61 % where chance is right in 58 % has gone 9 % of the way. Of 27
claims of syntax that hold without this floor in one of two treebanks, 6 of 15 below it hold in the other as well, and 8
of 12 above it. In two models of minilm's shape and random weights the furthest of 6,000 accuracies went 5 % of it."""

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


def distance(score: float, chance: float) -> float:
    """How far a score is from its chance level: the share of the way from chance (0) to always (1).

    Of several labels or claims the surest is that of the largest distance. It is comparable between questions, where
    points above chance are not: 61 % is little beside a chance of 58 % and much beside one of 3 %. -1 where nothing was
    counted. Source: Cohen 1960, whose kappa has this form for agreement beyond chance.
    """
    return -1.0 if math.isnan(score) else (score - chance) / max(1 - chance, 1e-9)


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
        """The statistic that is compared with chance."""
        return self.given or self.statistic

    @property
    def needed(self) -> tuple[str, ...]:
        """Every statistic that the rule reads."""
        unsunk = "" if self.unsunk == LEFT else self.unsunk
        twins = (f"{self.statistic}.{name}" for name in self.chances)
        names = (self.statistic, self.norm, self.given, unsunk, *twins, *self.baselines, *self.beyond)
        return tuple(dict.fromkeys(name for name in names if name))


def _content(role: str, statistic: str, saying: str, asks: str, norm: str = "", unsunk: str = LEFT) -> Rule:
    """The rule of tokens that are chosen by what they are."""
    chances, question = ("uniform", "relabelled"), f"Which head looks at {asks}?"
    return Rule(role, statistic, MIN_CONTENT, chances, saying, asks=question, norm=norm, unsunk=unsunk)


PLACES = {
    "previous token": (-1, "the token before"),
    "next token": (1, "the token after"),
    "self": (0, "the token itself"),
    **{
        f"offset {offset:+d}": (offset, f"the token {abs(offset)} places {'before' if offset < 0 else 'after'}")
        for offset in OFFSETS
        if abs(offset) > 1
    },
}
POSITIONAL = tuple(
    Rule(
        role, offset_name(offset), MIN_POSITIONAL, ("uniform",), saying, asks=f"Which head looks at {saying}?",
        norm=weighted_name(offset_name(offset)),
    )
    for role, (offset, saying) in PLACES.items()
)  # fmt: skip
CONTENT = (
    _content(
        "duplicate token", "duplicate_mass", "the same token elsewhere", "other copies of the same token",
        "duplicate_norm_mass", unsunk="duplicate_unsunk_mass",
    ),
    _content(
        "induction", "induction_mass", "what followed an earlier copy", "what followed an earlier copy of the token",
        "induction_norm_mass", unsunk="induction_unsunk_mass",
    ),
    replace(
        _content("punctuation", "punctuation_mass", "punctuation", "punctuation", "punctuation_norm_mass"),
        by_kind=True,
    ),
    _content("rare tokens", "rare_mass", "the text's rarest tokens", "the text's rarest tokens", "rare_norm_mass"),
)  # fmt: skip
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
    *(
        replace(rule, names_heads=False)
        for rule in (
            _content(
                "induction, offset -1", "previous_copy_mass", "what preceded an earlier copy",
                "what preceded an earlier copy of the token (the letter of Olsson et al.)", "previous_copy_norm_mass",
                unsunk="previous_copy_unsunk_mass",
            ),
            _content(
                "rarest word", "rarest_top", "the text's rarest word, where its strongest key is a word",
                "the text's rarest word most of all (Voita et al.)",
            ),
            _content(
                "two rarest words", "two_rarest_top",
                "one of the text's two rarest words, where its strongest key is a word",
                "one of the text's two rarest words most of all (Voita et al.)",
            ),
        )
    ),
)  # fmt: skip
"""Asked over a corpus beside the others, by other people's formulas; what names heads is above."""
RULES = (*POSITIONAL, *CONTENT, LOCAL_RULE)
"""Rules that compete: the one that is furthest from chance to always wins. `local` yields to any finer one."""

NORMS = tuple(rule.norm for rule in (*RULES, SINK_RULE) if rule.norm)
NEEDED = tuple(
    dict.fromkeys((*(name for rule in (*RULES, SINK_RULE) for name in rule.needed), "entropy", "entropy.uniform"))
)
"""The statistics that labelling reads."""

MIN_ACCURACY = 0.3
"""Of its questions, among words: below a third of them, a head does many other things."""

PEOPLE_SAY = {
    "acl": "clause on a noun", "acl:relcl": "relative clause", "advcl": "adverbial clause", "advmod": "adverb",
    "amod": "adjective", "appos": "apposition", "aux": "auxiliary", "aux:pass": "passive auxiliary",
    "auxpass": "passive auxiliary", "case": "preposition", "cc": "conjunction (and, or)",
    "cc:preconj": "first conjunction (both, either)", "ccomp": "clausal object", "compound": "noun in a compound",
    "compound:prt": "verb particle", "conj": "second conjunct", "cop": "copula", "csubj": "clausal subject",
    "det": "determiner", "det:predet": "predeterminer", "dobj": "object", "expl": "expletive",
    "fixed": "part of a fixed expression", "flat": "later part of a name", "iobj": "indirect object",
    "mark": "subordinator", "nmod": "noun on a noun", "nmod:desc": "description of a name", "nmod:poss": "possessor",
    "nmod:unmarked": "noun on a noun, without a preposition", "nsubj": "subject", "nsubj:pass": "passive subject",
    "nummod": "number", "obj": "object", "obl": "oblique", "obl:agent": "agent of a passive",
    "obl:unmarked": "oblique without a preposition", "parataxis": "clause beside a clause",
    "pobj": "object of a preposition", "poss": "possessor", "prep": "preposition", "prt": "verb particle",
    "punct": "punctuation mark", "vocative": "name that is called", "xcomp": "open clausal complement",
}  # fmt: skip
"""Relations of Universal Dependencies and of Stanford as nouns; a relation without one is called by its own name."""


def syntax_rules(relations: Sequence[str]) -> tuple[Rule, ...]:
    """Two rules for each relation: from the dependent to its governor, and from the governor to the dependent."""
    rules: list[Rule] = []
    for relation in relations:
        noun = PEOPLE_SAY.get(relation, relation)
        article = "an" if noun[0] in "aeiou" else "a"
        up, down = f"{relation}.to_governor", f"{relation}.to_dependent"
        rules += [
            Rule(
                f"{relation}: dependent to governor", up, MIN_ACCURACY, ("relabelled", "uniform"),
                f"the governor of a {relation}",
                asks=f"Which head looks from {article} {noun} to the word it depends on?",
                norm=f"{up}.norm", given=f"{up}.given",
                baselines=(f"{up}.mode",), beyond=(f"{up}.off_mode", f"{up}.off_rule", f"{up}.rule"),
            ),
            Rule(
                f"{relation}: governor to dependent", down, MIN_ACCURACY, ("relabelled", "uniform"),
                f"the {relation} of a word", asks=f"Which head looks from a word to its {noun}?", given=f"{down}.given",
                baselines=(f"{down}.mode",), beyond=(f"{down}.off_mode", f"{down}.any", f"{relation}.received"),
            ),
        ]  # fmt: skip
    return tuple(rules)


def coreference_rules() -> tuple[Rule, ...]:
    """From any mention to an antecedent, and from pronouns alone; among mentions' head words where specials are out."""
    questions = {
        "coreference": ("coreference", "Which head links mentions to what they mean?"),
        "pronoun to antecedent": ("pronoun", "Which head links pronouns to what they mean?"),
    }
    return tuple(
        Rule(
            role, name, MIN_ACCURACY, ("relabelled", "uniform"), "an antecedent", asks=asks, norm=f"{name}.norm",
            given=f"{name}.mentions", baselines=(f"{name}.nearest", f"{name}.same_word"),
            beyond=(f"{name}.off_nearest", f"{name}.off_same_word", f"{name}.given"),
        )
        for role, (name, asks) in questions.items()
    )  # fmt: skip


def own_rule(name: str) -> Rule:
    """The rule of a pattern of the caller's own."""
    return Rule(
        name, name, MIN_CONTENT, ("uniform", "relabelled"), f"what {name!r} points at",
        asks=f"Which head looks where {name!r} points?",
    )  # fmt: skip


FIXED_RULES = {rule.statistic: rule for rule in (*RULES, SINK_RULE, *ASKED, *coreference_rules())}
"""The rules that any texts may be tried by, by their statistic; those of relations depend on the treebank."""


def rule_of(statistic: str) -> Rule:
    """The rule that reads a statistic, with the thresholds that a claim of it must reach."""
    if statistic in FIXED_RULES:
        return FIXED_RULES[statistic]
    relation, _, direction = statistic.rpartition(".")
    to_governor, to_dependent = syntax_rules([relation or statistic])
    return {"to_governor": to_governor, "to_dependent": to_dependent}.get(direction) or own_rule(statistic)


AHEAD = "cannot look ahead"
UNASKED = "these texts do not ask it"
