"""An induction head being born: a stored training, checkpoint by checkpoint, and what its circuit rests on.

Every number is of one real run of the preset `induction` (`lab.lessons.stored` makes it again).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Curve, Fact, Loader, Panel, Ran, matrix
from manyheads.lab.lessons.parameters import Values, choice, whole
from manyheads.lab.lessons.stored import read_birth

INDUCTION, PREVIOUS = "the induction head", "the previous-token head"
STATISTICS = {INDUCTION: "induction", PREVIOUS: "previous_mass"}
SEEN = {INDUCTION: "the token after an earlier copy", PREVIOUS: "the token before"}
HEADS = ("L0H0", "L0H1", "L1H0", "L1H1")
STAYS, BREAKS = "it stays", "it breaks"
NOTHING, SETTLED = 0.1, 0.9  # of its weight: less is nothing yet, more is a head that does it and little else
BROKEN = 0.5  # the best remaining head of layer 1 has less of its weight there: the preset's own bound for "born"


def birth(values: Values, load: Loader) -> Ran:
    """A head's map at each checkpoint, beside the losses and scores of the training."""
    training, watched = read_birth(), values.text("watch")
    head = head_of(watched)
    tokens = training.tokens
    maps = tuple(
        matrix(f"step {step:,}", f"the map of {head}, of {SEEN[watched]}", weights, tokens, tokens, as_map=True)
        for step, weights in zip(training.steps, training.maps[head], strict=True)
    )
    steps = tuple(map(float, training.measured))

    def heads(layer: int, kind: str) -> tuple[Curve, ...]:
        names = [name for name in HEADS if name.startswith(f"L{layer}")]
        return tuple(Curve(name, steps, scores_of(name, kind), name == head_of(kind)) for name in names)

    scores = dict(zip(training.measured, scores_of(head, watched), strict=True))
    n, offset = len(tokens), len(tokens) // 2 - 1  # what came after the last copy stands one less than a block back
    marked = (
        tuple((row, row - offset) for row in range(offset + 1, n))
        if watched == INDUCTION
        else tuple((row, row - 1) for row in range(1, n))
    )
    losses = (Curve("repeated", steps, training.curves["loss_repeated"]),
              Curve("new", steps, training.curves["loss_new"], False))  # fmt: skip
    return Ran(
        f"By step {training.numbers['born_at_step']} {head_of(INDUCTION)} has half of its weight on {SEEN[INDUCTION]}. "
        f"At the end {head} has {100 * scores_of(head, watched)[-1]:.0f} % on {SEEN[watched]}.",
        maps,
        chart=(
            Panel("loss, nats a token", losses),
            Panel(f"layer 1: weight on {SEEN[INDUCTION]}", heads(1, INDUCTION), 1.0),
            Panel(f"layer 0: weight on {SEEN[PREVIOUS]}", heads(0, PREVIOUS), 1.0),
        ),
        frames=tuple(map(float, training.steps)),
        headlines=tuple(headline(step, scores[step], watched) for step in training.steps),
        marked=marked,
        born=float(training.numbers["born_at_step"]),
    )


def headline(step: int, score: float, watched: str) -> str:
    """What a checkpoint shows, in a sentence that its score decides."""
    if score < NOTHING:
        return f"Step {step}: the head looks everywhere and nowhere."
    if watched == PREVIOUS:
        return f"Step {step}: {100 * score:.0f} % of its weight is on the token before."
    if score < SETTLED:
        return f"Step {step}: a line appears. The head looks at what came after the last copy."
    return f"Step {step}: an induction head. Repeated text is now almost free to guess."


def head_of(watched: str) -> str:
    """The head that the training's report names as this one."""
    return read_birth().numbers["induction_head" if watched == INDUCTION else "previous_token_head"]


def scores_of(head: str, watched: str) -> tuple[float, ...]:
    """The head's score at every measured step."""
    return read_birth().curves[f"heads/{head}/{STATISTICS[watched]}"]


CELLS: Mapping[str, Cell] = {"birth": Cell(birth, (choice("watch", "watch", (INDUCTION, PREVIOUS)),))}

# ------------------------------------------------------------------------------------------------------------- checks


def first_step(values: Values, load: Loader) -> Right:
    """The first checkpoint of the stored training at which a head has so much of its weight where it belongs."""
    training, percent, watched = read_birth(), values.whole("percent"), values.text("watch")
    scores = dict(zip(training.measured, scores_of(head_of(watched), watched), strict=True))
    answer = next(step for step in training.steps if 100 * scores[step] >= percent)
    before = training.steps[training.steps.index(answer) - 1]
    return Right(
        float(answer),
        f"At step {before} it has {100 * scores[before]:.0f} %, at step {answer} {100 * scores[answer]:.0f} %.",
        "Go through the checkpoints beside the curve of that head: the first one at which it is so high.",
        mistakes={float(before): f"There it has {100 * scores[before]:.0f} %."},
    )


def guess_nats(values: Values, load: Loader) -> Right:
    """What a guess costs."""
    tokens = values.whole("tokens")
    answer = math.log(tokens)
    return Right(
        answer,
        f"ln {tokens} = {answer:.2f}: nothing tells one token from another. The loss on new tokens stays near there: "
        f"the best that a model can do is not to guess those that were in the text already.",
        "All tokens are as likely: minus the logarithm of one over their number.",
        unit="nats",
        mistakes={math.log2(tokens): "Those are bits: nats use the natural logarithm."},
    )


def without_head(values: Values, load: Loader) -> Right:
    """Whether induction outlives the removal of a head of the trained model."""
    head = values.text("head")
    gone = read_birth().numbers["ablated"][head]
    best, loss = gone["best_induction"], gone["loss_repeated_tokens"]
    words = (
        f"Without {head} the best remaining head of layer 1 has {100 * best:.0f} % of its weight after the copy, and "
        f"repeated tokens cost {loss:.2f} nats."
    )
    other_way = BREAKS if best >= BROKEN else STAYS
    return Right(
        BREAKS if best < BROKEN else STAYS, words, words,
        mistakes={other_way: f"{words} A layer's heads may share work."}
    )  # fmt: skip


def repeats_from(values: Values, load: Loader) -> Right:
    """At how many places of a text of blocks the next token can be known by induction."""
    block, length = values.whole("block"), values.whole("length")
    # the token that comes is known once the present one was there before
    known = sum(1 for place in range(length - 1) if place >= block)
    return Right(
        float(known),
        f"From place {block} on each token was there before: {known} of the {length - 1} that have a next one.",
        "The first block is new. From where on has the present token an earlier copy?",
        mistakes={float(length - block): "The last token has no next one to predict."},
    )


CHECKS: Mapping[str, Check | Predict] = {
    "first-step": Check(
        first_step,
        (choice("watch", "head", (INDUCTION, PREVIOUS)), whole("percent", "percent", 40, 10, 90, others=(15, 30, 75))),
        # the previous-token head shares its work, and never has more
        lambda values: values.text("watch") == INDUCTION or values.whole("percent") <= 45,
    ),
    "guess-nats": Check(guess_nats, (whole("tokens", "tokens", 64, 2, 100_000, others=(32, 128)),)),
    "without-head": Check(without_head, (choice("head", "head", HEADS),)),
    "repeats-from": Check(
        repeats_from,
        (whole("block", "tokens of a block", 10, 2, 100, others=(8, 16)),
         whole("length", "tokens", 64, 4, 1000, others=(20, 32))),
        lambda values: values.whole("block") < values.whole("length") - 1,
    ),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def birth_number(values: Values, load: Loader) -> str:
    """A number of the stored training."""
    training, name = read_birth(), values.text("of")
    match name:
        case "step":
            return str(training.numbers["born_at_step"])
        case "repeated loss" | "new loss":
            return f"{training.curves['loss_repeated' if name.startswith('repeated') else 'loss_new'][-1]:.2f}"
        case "induction head" | "previous-token head":
            return head_of(f"the {name}")
        case _:
            return f"{100 * training.numbers['ablated'][name]['best_induction']:.0f} %"


FACTS: Mapping[str, Fact] = {
    "birth": Fact(
        birth_number,
        (
            choice(
                "of", "which", ("step", "repeated loss", "new loss", "induction head", "previous-token head", *HEADS)
            ),
        ),
    ),
}
