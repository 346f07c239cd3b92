"""Draw a head: a picture of who should look at whom, the weights that do so, and what they do on another sentence.

The fit is `lab.design.draw`; the page has the same program, so that it can be painted there. Nothing here is stored.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import replacing
from manyheads.lab import design
from manyheads.lab.design import drawing
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, listing, matrix
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.parameters import Values, choice, number, text, whole

PAINTED = "The cat sat on the mat, and the dog ate the fish."
OTHER = "A fox saw the bird, and the bird saw a fox."
OWN = "my own"
MAX_TOKENS = 24  # as many rows as fit a page
WIDTHS = (1, 2, 4, 8, 16, MAX_TOKENS)  # a wider head than the sentence has tokens can do nothing more
READS: Mapping[str, tuple[drawing.Feature, ...]] = {
    "places, words and kinds": ("places", "words", "kinds"),
    "places": ("places",),
    "words": ("words",),
    "kinds": ("kinds",),
    "places and words": ("places", "words"),
    "places and kinds": ("places", "kinds"),
    "words and kinds": ("words", "kinds"),
}
RULES: Mapping[str, drawing.Rule] = {rule: rule for rule in drawing.RULES}
TRAINED, FITTED = "least squares, then training", "least squares alone"
WELL, LITTLE = 0.9, 1 / 3  # of a painted share: drawn, and not drawn

NUMPY = listing("NumPy", """
import numpy as np

angle = 2 * np.pi * np.arange(tokens) / around
key = np.stack([np.cos(angle), np.sin(angle)], 1)                  #: k
turned = angle - 2 * np.pi / around                                # one step back
query = gain * np.stack([np.cos(turned), np.sin(turned)], 1)       #: q
scores = query @ key.T                                             #: scores
weights = np.exp(scores - scores.max(1, keepdims=True))            #: weights
weights = weights / weights.sum(1, keepdims=True)                  #: weights
""")  # fmt: skip

# ----------------------------------------------------------------------------------------------------- a drawn head


@dataclass(frozen=True, eq=False)
class Drawn:
    """A head beside what was asked of it: shares of the painted rows that arrive, on both sentences.

    `widest`: what a head of any width would reach. `chance`: what one does that looks everywhere alike. `other` and
    `chance` are None for one's own picture, which has no rule, and NaN where the rule paints nothing; `alike` is then
    how far the head agrees with the widest one.
    """

    head: design.DrawnHead
    painted: float
    widest: float
    other: float | None
    chance: float | None
    alike: float


def tokens_of(name: str, sentence: str) -> tuple[str, ...]:
    """The tokens of a sentence. Raises LessonError for fewer than two, or more than fit."""
    tokens = design.split_words(sentence)
    if not 2 <= len(tokens) <= MAX_TOKENS:
        raise LessonError(f"{name}: that is {len(tokens)} words and marks: write 2 to {MAX_TOKENS}.")
    return tokens


def drawn(
    picture: Float64[ndarray, "n n"],
    rule: drawing.Rule | None,
    tokens: Sequence[str],
    others: Sequence[str],
    width: int,
    reads: Sequence[drawing.Feature],
    steps: int = drawing.STEPS,
) -> Drawn:
    """Draw a head and judge it. Raises PlanError for an empty picture."""
    wished = drawing.wished_rows(tokens, picture)
    head = design.draw(tokens, picture, width=width, reads=reads, steps=steps)
    widest = design.draw(tokens, picture, width=MAX_TOKENS, reads=reads)
    shares, shares_elsewhere = head.weights(tokens), head.weights(others)
    other = chance = None
    if rule is not None:
        target = design.picture_of(rule, others)
        target = target / np.maximum(1, target.sum(1, keepdims=True))
        other, chance = (
            design.arrived(target, looks)
            for looks in (shares_elsewhere, np.full_like(shares_elsewhere, 1 / len(others)))
        )
    alike = design.arrived(widest.weights(others), shares_elsewhere)
    return Drawn(
        head, design.arrived(wished, shares), design.arrived(wished, widest.weights(tokens)), other, chance, alike
    )


def conclusion(result: Drawn, width: int, reads: str) -> str:
    """What the numbers say, in one or two sentences. The page has the same words."""
    numbers = f"{width} number{'s' * (width > 1)} a token"
    if result.painted >= WELL:
        first = f"{numbers} draw{'s' * (width == 1)} this picture: {percent(result.painted)} of it arrives."
    elif result.widest >= result.painted + 0.1:
        first = (
            f"{numbers} {'are' if width > 1 else 'is'} too few: {percent(result.painted)} of the picture arrives, with "
            f"a wide head {percent(result.widest)}."
        )
    else:
        first = f"At no width can this be drawn from {reads} alone: {percent(result.painted)} of the picture arrives."
    if result.other is None or result.chance is None:
        return f"{first} On the other sentence it agrees with the widest head to {percent(result.alike)}."
    if math.isnan(result.other):
        return f"{first} The other sentence has no place for the rule."
    second = f"On the other sentence it is {percent(result.other)}"
    if result.other <= 2 * result.chance:
        second += f", near chance ({percent(result.chance)})"
        return f"{first} {second}{': it learned the sentence, not the rule' * (result.painted >= 0.5)}."
    if result.painted < 0.5:
        return f"{first} {second}."
    return f"{first} {second}: it learned {'the rule' if result.other >= 0.8 else 'some of the rule'}."


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def read_picture(written: str, count: int) -> Float64[ndarray, "n n"]:
    """A picture of cells "row>column" or "row>column=strength", counted from 0. Raises LessonError."""
    picture = np.zeros((count, count))
    for cell in written.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,2})>(\d{1,2})(?:=(\d*\.?\d+))?", cell)
        if match is None or max(int(match[1]), int(match[2])) >= count or not float(match[3] or 1) <= 1:
            raise LessonError(
                f"picture: {cell[:40]!r} is not a cell: write 5>1 for token 5 that looks at token 1, of 0 to "
                f"{count - 1}, or 5>1=0.5 for half as much."
            )
        picture[int(match[1]), int(match[2])] = float(match[3] or 1)
    if not picture.any():
        raise LessonError("picture: it is empty. Write cells as 5>1 4>1=0.5: who looks at whom, and how much.")
    return picture


def draw_a_head(values: Values, load: Loader) -> Ran:
    """A picture, the head that draws it, and what it does on another sentence. Raises LessonError."""
    tokens, others = (tokens_of(name, values.text(name)) for name in ("sentence", "other"))
    name, width, reads = values.text("rule"), values.whole("width"), values.text("reads")
    rule = RULES.get(name)
    picture = read_picture(values.text("picture"), len(tokens)) if rule is None else design.picture_of(rule, tokens)
    if not picture.any():
        raise LessonError(f"sentence: nothing in it is painted by {name!r}: choose another rule, or another sentence.")
    steps = drawing.STEPS if values["how"] == TRAINED else 0
    result = drawn(picture, rule, tokens, others, width, READS[reads], steps)
    head = result.head
    scores = (result.painted, result.widest, result.other, result.chance)
    names = ("arrives", "with the widest head", "on the other sentence", "by chance")
    known = {
        name: 100 * score
        for name, score in zip(names, scores, strict=True)
        if score is not None and not math.isnan(score)
    }
    return Ran(
        conclusion(result, width, reads),
        (
            matrix("picture", "how much each token (row) should look at each", drawing.wished_rows(tokens, picture),
                   tokens, tokens, as_map=True),
            matrix("the head", "what it does on the painted sentence", head.weights(tokens), tokens, tokens,
                   as_map=True),
            matrix("elsewhere", "what it does on the other sentence", head.weights(others), others, others,
                   as_map=True),
            matrix("arrives", "of each painted row's share, in the mean", np.array(list(known.values()))[:, None],
                   tuple(known), ("%",)),
            matrix("W_Q", "what a token asks for, feature by feature", head.query, head.feature_names, "d"),
            matrix("W_K", "what a token offers", head.key, head.feature_names, "d"),
        ),
    )  # fmt: skip


def rules_and_features(values: Values, load: Loader) -> Ran:
    """Every rule with heads that read different things: what arrives, and what of it on the other sentence."""
    width, tokens, others = values.whole("width"), design.split_words(PAINTED), design.split_words(OTHER)
    names = ("places", "words", "kinds", "places, words and kinds")
    results = [
        [drawn(design.picture_of(rule, tokens), rule, tokens, others, width, READS[name]) for name in names]
        for rule in drawing.RULES
    ]
    arrives = np.array([[100 * result.painted for result in row] for row in results])
    elsewhere = np.array([[100 * (result.other or 0.0) for result in row] for row in results])
    travels = sum(row.max() >= 100 * WELL for row in elsewhere)
    return Ran(
        f"{int((arrives >= 100 * WELL).sum())} of {arrives.size} pictures can be drawn so. On the other sentence "
        f"{travels} of {len(elsewhere)} rules are still kept by one of the heads at least.",
        (
            matrix(
                "here", "percent of the picture that arrives on the painted sentence", arrives, drawing.RULES, names
            ),
            matrix("there", "percent that arrives on the other sentence", elsewhere, drawing.RULES, names),
        ),
    )


def two_numbers(values: Values, load: Loader) -> Ran:
    """A head of width 2 for the token before: places on a circle, and queries one step back."""
    tokens, around, gain = values.whole("tokens"), values.whole("around"), values.number("gain")
    if around < tokens:
        raise LessonError(
            f"around={around}: with {tokens} tokens two of them would share a place: take {tokens} or more."
        )
    angle = 2 * np.pi * np.arange(tokens) / around
    turned = angle - 2 * np.pi / around
    key = np.stack([np.cos(angle), np.sin(angle)], 1)
    query = gain * np.stack([np.cos(turned), np.sin(turned)], 1)
    scores = query @ key.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    names = tuple(f"token {place}" for place in range(tokens))
    share = float(weights[np.arange(1, tokens), np.arange(tokens - 1)].mean())
    return Ran(
        f"Each token but the first gives {percent(share)} of its weight to the one before, in the mean.",
        (
            matrix("k", "each place on a circle of radius 1", key, names, ("cos", "sin")),
            matrix("q", "one step back, and as long as the gain", query, names, ("cos", "sin")),
            matrix("scores", "gain times the cosine of the angle between", scores, names, names, as_map=True),
            matrix("weights", "softmax of each row", weights, names, names, as_map=True),
        ),
        found={"gap": gain * (1 - math.cos(2 * math.pi / around))},
    )


_RULE = choice("rule", "the picture", (*drawing.RULES, OWN))
_READS = choice("reads", "the head reads", tuple(READS))
_WIDTH = whole("width", "width of the head", 2, 1, MAX_TOKENS)

CELLS: Mapping[str, Cell] = {
    "draw-a-head": Cell(
        draw_a_head,
        (
            text("sentence", "painted on", PAINTED),
            text("other", "tried on", OTHER),
            _RULE,
            text("picture", "my own picture", "5>1 9>1 4>5=0.5 4>8=0.5"),
            _READS,
            _WIDTH,
            choice("how", "fitted by", (TRAINED, FITTED)),
        ),
        page_part="draw-a-head",
    ),
    "rules-and-features": Cell(rules_and_features, (whole("width", "width of the heads", 8, 1, MAX_TOKENS),)),
    "two-numbers": Cell(
        two_numbers,
        (
            whole("tokens", "tokens", 14, 3, MAX_TOKENS),
            whole("around", "places on the circle", 16, 3, 64),
            number("gain", "gain", 40, 0, 200, 1),
        ),
        (NUMPY,),
    ),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- checks

ALIKE, APART = "always alike", "they may differ"
MOST, LEAST = "nearly all of it", "a third of it, or less"


def nats_for_share(values: Values, load: Loader) -> Right:
    """How far above the others a score must be for its share."""
    share, tokens = values.number("percent") / 100, values.whole("tokens")
    answer = math.log(share * (tokens - 1) / (1 - share))
    return Right(
        answer,
        f"exp(x) / (exp(x) + {tokens - 1}) = {share:g}, so x = ln({share:g} * {tokens - 1} / {1 - share:.3g}) = "
        f"{answer:.2f} nats.",
        f"Set the others' scores to 0: each has exp(0) = 1, and there are {tokens - 1} of them.",
        unit="nats",
        mistakes={math.log(share / (1 - share)): f"That is against one other token: there are {tokens - 1}."},
    )


def same_word_rows(values: Values, load: Loader) -> Right:
    """Whether two copies of a word can have rows of their own: on a picture in which they look at different tokens."""
    tokens, reads = design.split_words(PAINTED), values.text("reads")
    picture = np.zeros((len(tokens), len(tokens)))
    first, second = (place for place, token in enumerate(tokens) if token == "the" and place in (4, 8))
    picture[first, 1] = picture[second, 2] = 1
    rows = design.draw(tokens, picture, reads=READS[reads]).weights(tokens)[[first, second]]
    same = bool(np.allclose(rows[0], rows[1], atol=1e-6))
    words = {
        ALIKE: f"A head that reads {reads} sees the same features at both, so it asks the same question twice.",
        APART: f"A head that reads {reads} sees that they stand in different places.",
    }
    return Right(
        ALIKE if same else APART, words[ALIKE if same else APART],
        "A row comes from the features of its token, and from nothing else. Do the two differ in any?",
        mistakes={choice: words[APART if choice == ALIKE else ALIKE] for choice in (ALIKE, APART)},
    )  # fmt: skip


def travels(values: Values, load: Loader) -> Right:
    """What of a rule arrives on the other sentence, with a head that reads one kind of feature."""
    rule = RULES[values.text("rule")]
    tokens, others, reads = design.split_words(PAINTED), design.split_words(OTHER), values.text("reads")
    result = drawn(design.picture_of(rule, tokens), rule, tokens, others, 8, READS[reads])
    answer = MOST if (result.other or 0.0) >= WELL else LEAST
    words = (
        f"{percent(result.painted)} arrives on the painted sentence, {percent(result.other or 0.0)} on the other one."
    )
    return Right(
        answer,
        words,
        f"What does the rule go by? Does a head that reads {reads} see that of a token which is new?",
        mistakes=dict.fromkeys((MOST, LEAST), words),
    )


def circle_gap(values: Values, ran: Ran) -> Right:
    """How far the token before is above its neighbour, on the circle."""
    gap = float(ran.found["gap"])
    return Right(
        gap,
        f"The angle to it is 0, to its neighbour one step: gain * (1 - cos(step)) = {gap:.3g} nats.",
        "A score is the gain times the cosine of the angle between query and key. What are the two angles?",
        unit="nats",
        mistakes={0.0: "Their cosines differ: that of 0 is 1."},
    )


CHECKS: Mapping[str, Check | Predict] = {
    "nats-for-share": Check(
        nats_for_share,
        (number("percent", "percent", 90, 50, 99, 1, others=(75, 95)),
         whole("tokens", "tokens", 14, 3, 1000, others=(8, 101))),
    ),
    "same-word-rows": Check(same_word_rows, (choice("reads", "the head reads", ("words", "kinds", "places")),)),
    "rule-travels": Check(
        travels,
        (choice("rule", "rule", ("marks", "previous", "after a copy")),
         choice("reads", "the head reads", ("places", "words", "kinds"))),
        # Words tell where marks are, and a little of what stands before what: that would be no clear question.
        lambda values: (values["rule"], values["reads"]) != ("previous", "words"),
    ),
    "circle-gap": Predict(circle_gap),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def drawn_share(values: Values, load: Loader) -> str:
    """What arrives of a rule's picture, on the painted sentence or on the other one."""
    rule = RULES[values.text("rule")]
    tokens, others = design.split_words(PAINTED), design.split_words(OTHER)
    steps = drawing.STEPS if values["how"] == TRAINED else 0
    picture = design.picture_of(rule, tokens)
    result = drawn(picture, rule, tokens, others, values.whole("width"), READS[values.text("reads")], steps)
    return percent((result.painted if values["on"] == "the painted sentence" else result.other) or 0.0)


def drawing_number(values: Values, load: Loader) -> str:
    """A constant of the fit, or a size of the example."""
    head = design.draw(tokens := design.split_words(PAINTED), np.eye(len(tokens)), steps=0)
    return {
        "depth": f"{drawing.DEPTH:g}",
        "steps": f"{drawing.STEPS}",
        "waves": ", ".join(f"{wave}" for wave in drawing.WAVES),
        "features": f"{len(head.feature_names)}",
        "kinds": ", ".join(drawing.KINDS),
    }[values.text("of")]


FACTS: Mapping[str, Fact] = {
    "drawn-share": Fact(
        drawn_share,
        (
            choice("rule", "rule", drawing.RULES),
            _READS,
            whole("width", "width", 8, 1, MAX_TOKENS),
            choice("how", "fitted by", (TRAINED, FITTED)),
            choice("on", "on", ("the painted sentence", "the other sentence")),
        ),
    ),
    "drawing": Fact(drawing_number, (choice("of", "of", ("depth", "steps", "waves", "features", "kinds")),)),
}

# ------------------------------------------------------------------------------------------------------------- the page


def page_numbers() -> str:
    """What the page's own program has in common with the library's, as JSON: names, sizes and constants of the fit."""
    shared = {
        "rules": drawing.RULES,
        "features": drawing.FEATURES,
        "kinds": drawing.KINDS,
        "waves": drawing.WAVES,
        "depth": drawing.DEPTH,
        "ridge": drawing.RIDGE,
        "fade": drawing.FADE,
        "nothing": drawing.NOTHING,
        "steps": drawing.STEPS,
        "rate": drawing.RATE,
        "decay": drawing.DECAY,
        "moments": drawing.MOMENTS,
        "damping": drawing.DAMPING,
        "most_tokens": MAX_TOKENS,
        "widths": WIDTHS,
    }
    return json.dumps(shared, indent=1) + "\n"


if __name__ == "__main__":  # python -m manyheads.lab.lessons.pages.draw_a_head FILE
    with replacing(sys.argv[1]) as temporary:
        Path(temporary).write_text(page_numbers(), encoding="utf-8")
