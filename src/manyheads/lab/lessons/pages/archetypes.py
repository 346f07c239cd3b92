"""Four archetypes of heads, on real heads of the bundled model and one sentence: what a head's map says it reads.

Cells show the maps of known heads side by side, or one head's map with its shares beside those of an even spread and
beside what it moves. All figures are `measure`'s, which also says what each share means.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from manyheads import measurement
from manyheads.circuits import why as explained
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, KindCard, Loader, Ran, matrix
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages.shared import (
    MAX_TOKENS,
    MODEL,
    looked_at,
    map_of,
    one_named,
    recorded,
    strongest_links,
    tie,
)  # fmt: skip
from manyheads.lab.lessons.parameters import Values, choice, text, whole

if TYPE_CHECKING:
    from manyheads.models import LoadedModel
    from manyheads.statistics import HeadTable

SENTENCE = "The dog saw the cat, and the cat saw the dog."
FIRST_DOG, SECOND_DOG = 2, 12  # tokens of it, [CLS] the first
OTHERS = (
    "The old clock stopped, so the children could not see the time on the clock.",
    "A red box, a blue box, and a green box stood on the shelf.",
)
HEADS = {
    "L0H2": "previous token",
    "L2H9": "the same token elsewhere",
    "L2H8": "syntax: from an article or preposition to its noun",
    "L3H11": "punctuation",
    "L4H5": "a sink: it rests on the first token",
}
KINDS = {
    "the token before": "previous",
    "the token after": "next",
    "the same token elsewhere": "duplicate",
    "punctuation": "punctuation",
    "the first token": "first",
}
"""The kind of token, in words -> the stem of its statistic's name."""
ENDS = {"weight": "_mass", "even": "_mass.uniform", "moved": "_norm_mass"}
"""What is shared out (weight, what is moved), or the share of an even spread -> the end of the statistic's name."""
ASKED = ("the token before", "the same token elsewhere", "punctuation", "the first token")
MORE, LESS = "more than an even spread", "less than an even spread"

# -------------------------------------------------------------------------------------------------------------- cells


def archetypes(values: Values, load: Loader) -> Ran:
    """The known heads' maps of one sentence. Raises TextError."""
    lm, sentence = load(MODEL), values.text("sentence")
    rec, tokens = recorded(lm, sentence)
    maps = tuple(
        matrix(name, kind, map_of(rec, one_named(lm, name)), tokens, tokens, as_map=True)
        for name, kind in HEADS.items()
    )
    table = _measured(lm, sentence)
    percent = {
        (name, kind): 100 * float(table[name, f"{KINDS[kind]}_mass"])
        for name, kind in zip(("L0H2", "L2H9", "L3H11", "L4H5"), ASKED, strict=True)
    }
    cards = tuple(
        KindCard(
            name, name, f"a head of {MODEL}, as trained", tokens,
            strongest_links(one.values, range(1, len(tokens) - 1), range(len(tokens))),
            f"{kind[0].upper()}{kind[1:]}.", "", "", "", "",
        )
        for (name, kind), one in zip(HEADS.items(), maps, strict=True)
    )  # fmt: skip
    shares = "; ".join(f"{name} {share:.0f} % on {kind}" for (name, kind), share in percent.items() if not isnan(share))
    links = tuple(HeadLink(name, sentence, MODEL) for name in HEADS)
    words = f"Of their weight, where there is such a token to look at: {shares}."
    return Ran(words, maps, links, cards=cards)


def shares(values: Values, load: Loader) -> Ran:
    """One head's map, and its shares beside an even spread and beside what it moves. Raises TextError, HeadError."""
    lm, sentence = load(MODEL), values.text("sentence")
    head = one_named(lm, values.text("head"))
    rec, tokens = recorded(lm, sentence)
    table = _measured(lm, sentence)
    percent = 100 * np.array([[table[str(head), f"{kind}{end}"] for end in ENDS.values()] for kind in KINDS.values()])
    best = int(np.nanargmax(percent[:, 0] - percent[:, 1]))
    columns = ("of its weight, %", "an even spread, %", "of what it moves, %")
    return Ran(
        f"{head} stands out most on {tuple(KINDS)[best]}: {percent[best, 0]:.0f} % of its weight, where an even spread "
        f"gives {percent[best, 1]:.0f} %.",
        (
            matrix("weights", f"the map of {head}", map_of(rec, head), tokens, tokens, as_map=True),
            matrix("shares", "over the tokens that see such a key", percent, tuple(KINDS), columns),
        ),
        (HeadLink(str(head), sentence, MODEL),),
    )


def _measured(lm: LoadedModel, sentence: str) -> HeadTable:
    return measurement.measure(lm, sentence, [f"{kind}{end}" for kind in KINDS.values() for end in ENDS.values()])


CELLS: Mapping[str, Cell] = {
    "archetypes": Cell(archetypes, (text("sentence", "A sentence", SENTENCE),)),
    "head-shares": Cell(
        shares,
        (text("sentence", "A sentence", SENTENCE), text("head", "A head", "L1H8")),
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def archetype_looks(values: Values, ran: Ran) -> Right:
    """The token that a row of a known head's map is largest at."""
    name, token = values.text("head"), values.whole("token")
    weights = ran.table(name)
    row, tied = looked_at(weights, token)
    looks, resting_place = weights.columns[tied[0]], weights.columns[0]
    several, also = tie(weights, tied)
    words = (
        f"{name} is {HEADS[name]}: token {token}, {weights.rows[token]!r}, gives {looks!r} {row.max():.2f}.{several}"
    )
    if looks != resting_place:
        mistakes = {resting_place: f"It rests on {resting_place!r} where it finds nothing. Here it finds something."}
    else:
        mistakes = {weights.rows[token]: "That is the token itself, and there is no other of its kind to look at."}
    hint = f"{name} is {HEADS[name]}. Which token is that, from token {token}, {weights.rows[token]!r}?"
    return Right(looks, words, hint, mistakes=mistakes, also=also)


def beside_even(values: Values, ran: Ran) -> Right:
    """Whether the head in the cell gives a kind of token more than an even spread would."""
    kind = values.text("kind")
    table = ran.table("shares")
    percent, even, _ = table.values[table.rows.index(kind)]
    if isnan(percent):
        raise LessonError(f"the sentence in the cell has no place where {kind} could be looked at.")
    words = f"It gives {kind} {percent:.1f} % of its weight; an even spread gives {even:.1f} %."
    return Right(MORE if percent > even else LESS, words, words, mistakes=dict.fromkeys((MORE, LESS), words))


def which_head(values: Values, load: Loader) -> Right:
    """Which of four known heads gives a kind of token the largest share, on some sentence."""
    sentence, kind = values.text("sentence"), values.text("kind")
    table = _measured(load(MODEL), sentence)
    masses = {name: float(table[name, f"{KINDS[kind]}_mass"]) for name in HEADS if name != "L2H8"}
    best = max(masses, key=masses.__getitem__)
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in masses.items())
    return Right(
        best,
        f"Of their weight they give it: {shares}.",
        "Each of the four has one thing that it is for: the list above has it.",
        mistakes={name: f"It gives {kind} {100 * share:.0f} %." for name, share in masses.items()},
    )


def perfect_share(values: Values, load: Loader) -> Right:
    """What a perfect previous-token head gives the tokens before, counted over all rows."""
    n = values.whole("tokens")
    weights = np.eye(n, k=-1)
    weights[0, 0] = 1  # the first token has none before it, and some key must get its weight
    answer = 100 * float(np.trace(weights, offset=-1) / weights.sum())
    return Right(
        answer,
        f"The first row cannot be right: {n - 1} of {n} rows are. So the same head scores higher on a longer text, "
        f"unless rows without a target are left out, as we do.",
        "Every row has a weight of 1 in all. How many rows have a token before them?",
        unit="%",
        mistakes={100.0: "The first token has none before it, and its weight must fall somewhere."},
    )


def even_share(values: Values, load: Loader) -> Right:
    """What a head that looks everywhere alike gives to marks of punctuation."""
    n, marks = values.whole("tokens"), values.whole("marks")
    answer = 100 * float(np.full(n, 1 / n)[:marks].sum())
    return Right(
        answer,
        f"{marks} of {n} keys. A head that gives punctuation no more than this has shown nothing.",
        "Every key gets the same share of 1. How many of them are marks?",
        unit="%",
        mistakes={
            100 / n: "That is one key.",
            100 * marks / (n - 1): "A token may also look at itself: all keys share the weight.",
        },
    )


_ELSEWHERE = text("sentence", "sentence", SENTENCE, others=OTHERS)
CHECKS: Mapping[str, Check | Predict] = {
    "archetype-looks": Predict(
        archetype_looks,
        (choice("head", "head", tuple(HEADS)), whole("token", "token", 5, 0, MAX_TOKENS - 1, others=(3, 4, 8, 9))),
    ),
    "beside-even": Predict(beside_even, (choice("kind", "kind of token", ("the token after", *ASKED)),)),
    "which-head": Check(which_head, (_ELSEWHERE, choice("kind", "kind of token", ASKED))),
    "perfect-share": Check(perfect_share, (whole("tokens", "tokens", 8, 2, 1024, others=(5, 12, 20, 50)),)),
    "even-share": Check(
        even_share,
        (whole("tokens", "tokens", 15, 4, 512, others=(12, 20, 24)), whole("marks", "marks", 2, 1, 4)),
    ),
}

# -------------------------------------------------------------------------------------------------------------- facts


def head_share(values: Values, load: Loader) -> str:
    """What a head gives a kind of token on the page's sentence: of its weight, or of what it moves."""
    table = _measured(load(MODEL), values.text("sentence"))
    share = table[values.text("head"), KINDS[values.text("of")] + ENDS[values.text("by")]]
    return f"{100 * float(share):.0f} %"


def why_it_looks(values: Values, load: Loader) -> str:
    """The writer that gave one side of a duplicate head's look most, on the page's sentence, with its share."""
    answer = explained.why(load(MODEL), SENTENCE, "L2H9", SECOND_DOG, FIRST_DOG)
    top = (answer.query if values.text("side") == "query" else answer.key)[0]
    return f"{top.writer if top.kind == 'head' else f'the {top.writer}'} ({top.share:+.1f})"


FACTS: Mapping[str, Fact] = {
    "why-it-looks": Fact(why_it_looks, (choice("side", "side", ("query", "key")),)),
    "head-share": Fact(
        head_share,
        (
            text("head", "head", "L0H2"),
            choice("of", "kind of token", tuple(KINDS)),
            choice("by", "counted by", ("weight", "moved", "even")),
            text("sentence", "sentence", SENTENCE),
        ),
    ),
}
