"""Induction: a previous-token head and an induction head, built by their weights, and what is left without the first.

The model is of `manyheads.lab.design`: two layers whose weights are written down, not trained, so that it is known what
each head does. It reads a text of the reader's, or random tokens that repeat (`probe_repeats`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from manyheads import edits, inputs
from manyheads.circuits import why as explained
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, matrix
from manyheads.lab.lessons.pages.shared import MAX_TOKENS, MODEL, looked_at, require_short, tie
from manyheads.lab.lessons.parameters import Values, choice, text, whole
from manyheads.plan import Ablate
from manyheads.roles import probes

if TYPE_CHECKING:
    from manyheads.models import LoadedModel
    from manyheads.models.loading import Tokenizer

PREVIOUS, INDUCTION = "L0H0", "L1H0"
POSITIONS = 128  # that the model has: few, so that its previous-token head is sharp over all of them
WITH, WITHOUT = "with L0H0", "without L0H0"
TEXT = "red moon key bird stone red moon key bird stone"
SECOND_KEY, AFTER_FIRST_KEY = 8, 4  # tokens of it, [CLS] the first
WRITERS = ("first", "second")
SHARPNESS = 10  # nats
OFFSETS = {"just after": 1, "at": 0, "just before": -1}
PLACES = {"what follows the copy": "after", "the copy itself": "copy", "what precedes the copy": "before"}
NEARLY_ALL, SOME, NEARLY_NOTHING = "nearly all of it", "something in between", "nearly nothing"

# -------------------------------------------------------------------------------------------------------------- cells


def pair(values: Values, load: Loader) -> Ran:
    """The two heads' maps of a text, with the first head and without, and what is predicted. Raises TextError."""
    import torch

    words = values.text("text")
    lm = _pair(load(MODEL).tokenizer, values.whole("sharpness"))
    require_short(lm, words)
    ids = torch.tensor([lm.required_tokenizer(words)["input_ids"]])
    maps, chances = {}, {}
    tokens: tuple[str, ...] = ()
    for state in (WITH, WITHOUT):
        with edits.applied(lm, Ablate(PREVIOUS)) if state == WITHOUT else nullcontext(), torch.no_grad():
            rec = inputs.record(lm, words)
            next_ones = lm.model(input_ids=ids).logits[0, :-1].softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        tokens = tuple(rec.tokens.pieces[0])
        maps[state] = [np.asarray(rec.layers[layer].weights(0)) for layer in (0, 1)]
        chances[state] = 100 * np.asarray(next_ones.double())
    guessed = np.stack([chances[WITH], chances[WITHOUT]], 1)
    copied = [position for position in range(1, len(tokens) - 2) if tokens[position] in tokens[1:position]]
    mean = guessed[copied].mean(0) if copied else np.zeros(2)
    summary = (
        f"At the {len(copied)} tokens that were there before, it gives the next one {mean[0]:.0f} % on average, and "
        f"without {PREVIOUS} {mean[1]:.0f} %."
        if copied
        else "No token comes twice here, so there is nothing for the induction head to find."
    )
    rows = [f"{token} -> {after}" for token, after in pairwise(tokens)]
    return Ran(
        summary,
        (
            *(
                matrix(label, words, weights, tokens, tokens, as_map=True)
                for label, words, weights in (
                    (PREVIOUS, "layer 0: the token before", maps[WITH][0]),
                    (f"{INDUCTION}, {WITH}", "layer 1: what followed the copy", maps[WITH][1]),
                    (f"{INDUCTION}, {WITHOUT}", "the first head taken away", maps[WITHOUT][1]),
                )
            ),
            matrix("next token", "what it gives the one that comes, in percent", guessed, rows, ("with", "without")),
        ),
    )


def repeats(values: Values, load: Loader) -> Ran:
    """Random tokens, twice: where each head looks around the first copy, with the first head and without."""
    lm = _pair(load(MODEL).tokenizer, values.whole("sharpness"))
    length, seed = values.whole("length"), values.whole("seed")
    columns = (*PLACES.values(), "chance")
    tables, followed = [], {}
    for state in (WITH, WITHOUT):
        with edits.applied(lm, Ablate(PREVIOUS)) if state == WITHOUT else nullcontext():
            probe = probes.probe_repeats(lm, length=length, samples=2, seed=seed)
        heads = [str(score.head) for score in probe.after]
        table = [
            [100 * value for value in (after.score, on_copy.score, before.score, after.chance)]
            for after, on_copy, before in zip(probe.after, probe.same, probe.before, strict=True)
        ]
        meaning = "weight after the copy, on it, before it, in percent; chance of the first"
        tables.append(matrix(state, meaning, np.array(table), heads, columns))
        followed[state] = table[heads.index(INDUCTION)][0]
    return Ran(
        f"{INDUCTION} puts {followed[WITH]:.1f} % on what followed the copy; without {PREVIOUS}, "
        f"{followed[WITHOUT]:.1f} %.",
        tuple(tables),
    )


def _pair(tokenizer: Tokenizer | None, sharpness: int) -> LoadedModel:
    """Two layers of two heads: the pair, and beside each a head that looks at the first token."""
    from manyheads.lab import design  # torch comes with it, and listing the lessons needs none

    layers = [[design.previous(), design.first()], [design.induction(sharpness=sharpness), design.first()]]
    return design.build(layers, causal=True, tokenizer=tokenizer, max_positions=POSITIONS)


_SHARP = whole("sharpness", "sharpness of the induction head, in nats", SHARPNESS, 1, 20)
CELLS: Mapping[str, Cell] = {
    "induction-pair": Cell(pair, (text("text", "A text that repeats", TEXT), _SHARP)),
    "repeats": Cell(
        repeats, (whole("length", "random tokens, twice", 12, 4, 50), _SHARP, whole("seed", "seed", 0, 0, 999))
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def pair_looks(values: Values, ran: Ran) -> Right:
    """The token that a row of the induction head's map is largest at."""
    state, token = values.text("state"), values.whole("token")
    weights = ran.table(f"{INDUCTION}, {state}")
    row, tied = looked_at(weights, token)
    looks, word, rest_word = weights.columns[tied[0]], weights.rows[token], weights.columns[0]
    several, also = tie(weights, tied)
    row_in_words = f"Token {token} is {word!r}. It gives {looks!r} {row.max():.2f}.{several}"
    why = {
        WITH: f"Where was {word!r} before, and what came after it? If it was nowhere, the head rests on {rest_word!r}.",
        WITHOUT: f"The keys no longer say what came before them. A head that finds nothing rests on {rest_word!r}.",
    }[state]
    return Right(looks, row_in_words, why, mistakes={word: "That is the token itself, or its copy."}, also=also)


def beside_copy(values: Values, load: Loader) -> Right:
    """The word at an offset from the last earlier copy of a text's last word."""
    words, where = values.text("text").split(), values.text("where")
    copy = max(position for position, word in enumerate(words[:-1]) if word == words[-1])
    return Right(
        words[copy + OFFSETS[where]],
        f"The copy of {words[-1]!r} is at place {copy}, counted from 0.",
        f"Find where {words[-1]!r} was before, and look {where} that place.",
        mistakes={words[copy + by]: f"That is {name} the copy." for name, by in OFFSETS.items()},
    )


def least_mass(values: Values, load: Loader) -> Right:
    """What a gap between scores leaves for the one target, at the least."""
    from manyheads.lab import design  # torch comes with it, and listing the lessons needs none

    sharpness, keys = values.whole("sharpness"), values.whole("keys")
    answer = 100 * design.induction(sharpness=sharpness).least_mass(num_keys=keys)
    return Right(
        answer,
        f"Its key counts 1, each of the {keys - 1} others exp(-{sharpness}) = {np.exp(-sharpness):.2g} at the most.",
        f"Let the target's score be 0 and all others -{sharpness}. What is softmax of that?",
        unit="%",
        mistakes={
            100 * float(1 - np.exp(-sharpness)): "There are many other keys, and each takes a little.",
            100 / keys: "That is an even spread.",
        },
    )


def rows_with_copy(values: Values, load: Loader) -> Right:
    """How many tokens of a repeated text have been there before."""
    length, times = values.whole("length"), values.whole("times")
    ids = np.tile(np.arange(length), times)
    answer = int(((ids[:, None] == ids) & np.tri(len(ids), k=-1, dtype=bool)).any(1).sum())
    return Right(
        float(answer),
        "All but the first time. On the first reading, random tokens cannot be foreseen by anybody.",
        "Which tokens have an earlier copy? Those of the first reading do not.",
        unit="tokens",
        mistakes={
            float(length * times): "On the first reading no token has been there before.",
            float(length): "That is one reading.",
        },
    )


def collapse(values: Values, ran: Ran) -> Right:
    """How much of the induction head's weight is on a place beside the copy, in the cell."""
    table = ran.table(values.text("state"))
    share = float(table.values[table.rows.index(INDUCTION), table.columns.index(PLACES[values.text("place")])])
    answer = NEARLY_ALL if share > 90 else NEARLY_NOTHING if share < 10 else SOME
    words = f"It is {share:.1f} % of its weight."
    hint = {
        WITH: "Which place says what comes next: the copy, or one beside it?",
        WITHOUT: "Who tells this head where something was before? Where does it look if nobody does?",
    }[values.text("state")]
    return Right(answer, words, hint)


_STATE = choice("state", "the first head", (WITH, WITHOUT))
CHECKS: Mapping[str, Check | Predict] = {
    "pair-looks": Predict(pair_looks, (_STATE, whole("token", "token", 7, 0, MAX_TOKENS - 1, others=(6, 8, 9)))),
    "beside-copy": Check(
        beside_copy,
        (
            text(
                "text",
                "text",
                "the red fox saw a red",
                others=("one two three four two", "a b c d e c", "we like tea and you like"),
            ),
            choice("where", "where", tuple(OFFSETS)),
        ),
    ),
    "least-mass": Check(
        least_mass,
        (
            whole("sharpness", "sharpness", 4, 1, 20, others=(2, 3, 6)),
            whole("keys", "keys", 100, 2, 4096, others=(20, 50, 512)),
        ),
    ),
    "rows-with-copy": Check(
        rows_with_copy,
        (
            whole("length", "tokens", 25, 2, 200, others=(12, 50)),
            whole("times", "times", 4, 2, 8, others=(2, 3)),
        ),
    ),
    "collapse": Predict(collapse, (_STATE, choice("place", "place", tuple(PLACES)))),
}

# -------------------------------------------------------------------------------------------------------------- facts


def sharp_share(values: Values, load: Loader) -> str:
    return f"{float(least_mass(values, load).answer):.1f} %"


def trained_induction(values: Values, load: Loader) -> str:
    """The head of a trained model that does it most on random repeats, and how much."""
    (probe,) = probes.probe_repeats(load(values.text("model")), length=25, samples=2).after.top(1)
    return (
        f"{probe.head} puts {100 * probe.score:.0f} % on what followed the copy, {100 * probe.chance:.0f} % by chance"
    )


def whom_it_hears(values: Values, load: Loader) -> str:
    """The writer that gave the key's side of the induction head's look most, or second most, with its share."""
    answer = explained.why(_pair(load(MODEL).tokenizer, SHARPNESS), TEXT, INDUCTION, SECOND_KEY, AFTER_FIRST_KEY)
    row = answer.key[WRITERS.index(values.text("place"))]
    return f"{row.writer if row.kind == 'head' else f'the {row.writer}'}, {row.share:+.1f} nats"


FACTS: Mapping[str, Fact] = {
    "whom-it-hears": Fact(whom_it_hears, (choice("place", "which writer", WRITERS),)),
    "sharp-share": Fact(sharp_share, CHECKS["least-mass"].parameters),
    "trained-induction": Fact(trained_induction, (text("model", "model", "tiny-code"),)),
}
