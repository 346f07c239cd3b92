"""Masks, causal and cross-attention: what a head may look at, and where its keys come from.

The cells are a table of scores with its mask, then one head whose keys come from another text. Nothing of it is special
to a mask: it is the same row of scores, some of them minus infinity.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, matrix, numbered
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages.one_head import head_steps, reading
from manyheads.lab.lessons.parameters import Values, choice, read_matrix, text, whole
from manyheads.reference import softmax_rows, visible_keys

ALL, CAUSAL, WINDOW, OWN = "every token", "itself and earlier ones", "itself and near earlier ones", "a mask of my own"
OWN_MASK = "1 0 0 0; 1 1 0 0; 1 0 1 0; 0 1 1 1"
IDENTITY = ("X itself: W_Q is the identity here", "the context itself, W_K too", "the context itself, W_V too")
SCORES = "2 1 0 1; 0 1 2 1; 1 1 1 3; 0 2 1 1"

# -------------------------------------------------------------------------------------------------------------- cells


def masked(values: Values, load: Loader) -> Ran:
    """A table of scores, a mask, and the weights with it and without. Raises LessonError, ShapeError."""
    scores = read_matrix("scores", values.text("scores"))
    if (kind := values["kind"]) == OWN:
        read_mask = read_matrix("mask", values.text("mask"))
        if read_mask.shape != scores.shape or not np.isin(read_mask, (0, 1)).all():
            raise LessonError(
                f"mask: write {len(scores)} rows of {scores.shape[1]} numbers, each 1 (may look) or 0, as the scores "
                f"have."
            )
        visible = read_mask.astype(bool)
    else:
        window = values.whole("window") if kind == WINDOW else None
        visible = visible_keys((1, 1, *scores.shape), causal=kind != ALL, window=window)[0, 0]
    queries, keys = numbered("token", len(scores)), numbered("token", scores.shape[1])
    hidden = np.where(visible, scores, -np.inf)
    (weights, _), (unmasked, _) = softmax_rows(hidden), softmax_rows(scores)
    blind = [query for query, row in zip(queries, visible, strict=True) if not row.any()]
    share = 100 * float((unmasked * ~visible).sum(1).mean())
    words = (
        f"{', '.join(blind)} may look at nothing, so there is no weight to share out, and the head says 0."
        if blind
        else f"The mask hides {int((~visible).sum())} of {visible.size} cells, which would have had {share:.1f} % "
        f"of the weight. The others share it."
    )
    return Ran(
        words,
        (
            matrix("scores", "as they come from Q and K", scores, queries, keys),
            matrix("mask", "1 where a token (row) may look at a token (column)", visible, queries, keys),
            matrix("masked scores", "minus infinity where it may not", hidden, queries, keys),
            matrix("weights", "softmax of these: what is hidden gets 0", weights, queries, keys, as_map=True),
            matrix("without a mask", "what they would be: the same ratios, other shares", unmasked, queries, keys),
            matrix("row sums", "of the weights", weights.sum(1, keepdims=True), queries, ("sum",)),
        ),
    )


def crossing(values: Values, load: Loader) -> Ran:
    """One head whose queries come from one text and whose keys and values from another. Raises ShapeError."""
    x, context = (read_matrix(name, values.text(name)) for name in ("x", "context"))
    if x.shape[1] != context.shape[1]:
        raise ShapeError(
            f"x has {x.shape[1]} columns, context {context.shape[1]}: both are read by matrices of one width."
        )
    queries, keys = numbered("written", len(x)), numbered("read", len(context))
    visible = np.ones((len(x), len(context)), bool)
    scale = 1 / np.sqrt(x.shape[1])
    steps, weights, out = head_steps(x, context, context, scale, visible, queries, keys, IDENTITY)
    return Ran(
        f"The map is {len(x)} x {len(context)}: a row for each written token, a column for each that is read. "
        f"{reading(queries[-1], keys, weights[-1], out[-1])}",
        (
            matrix("X", "what is being written: queries come from here", x, queries, "m"),
            matrix("context", "what is read: keys and values come from here", context, keys, "m"),
            *steps,
        ),
    )


_KIND = choice("kind", "a token may look at", (CAUSAL, ALL, WINDOW, OWN))
_SCORES = text("scores", "scores, a row for each token that looks", SCORES.replace("; ", "\n"))
CELLS: Mapping[str, Cell] = {
    "masked-scores": Cell(
        masked,
        (
            _SCORES,
            _KIND,
            whole("window", "near: its own and so many before, in all", 2, 1, 12),
            text("mask", "the mask (where chosen)", OWN_MASK.replace("; ", "\n")),
        ),
        in_page=True,
    ),
    "cross-attention": Cell(
        crossing,
        (
            text("x", "X, being written", "1 0 1 0\n0 1 0 1\n1 1 0 0"),
            text("context", "context, being read", "0 1 1 0\n1 0 0 1\n1 1 1 1\n2 0 0 0\n0 0 2 1"),
        ),
        in_page=True,
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def causal_cells(values: Values, load: Loader) -> Right:
    """How many cells of a causal map can hold a weight."""
    n = values.whole("tokens")
    answer = int(visible_keys((1, 1, n, n), causal=True).sum())
    return Right(
        float(answer),
        f"Token 0 sees one key, token 1 two, the last one {n}: n (n + 1) / 2 = {answer:,}, over half of {n * n:,}.",
        "Count the keys that token 0 may see, then token 1, and so on to the last; then add.",
        mistakes={
            float(n * n): "That is the whole square: a causal mask hides what is above the diagonal.",
            float(n * (n - 1) // 2): "That leaves the diagonal out: a token may look at itself.",
            n * n / 2: "A little more than half: the diagonal is not halved, every token sees itself.",
        },
    )


def window_cells(values: Values, load: Loader) -> Right:
    """The same with a sliding window."""
    n, window = values.whole("tokens"), values.whole("window")
    answer = int(visible_keys((1, 1, n, n), causal=True, window=window).sum())
    causal = int(visible_keys((1, 1, n, n), causal=True).sum())
    return Right(
        float(answer),
        f"{answer:,} of {causal:,}: it grows with n times the window, not with n squared.",
        f"From some token on, each sees {window} keys, itself among them. The first ones see fewer.",
        mistakes={
            float(n * window): f"The first {window - 1} tokens have fewer than {window} keys behind them.",
            float(causal): "That is without the window.",
            float(sum(min(query, window) + 1 for query in range(n))): "The window counts the token itself.",
        },
    )


def masked_weight(values: Values, load: Loader) -> Right:
    """A row with one key hidden: the others share its weight, in the ratios that they had."""
    scores = read_matrix("scores", values.text("scores"))
    hidden, key = values.whole("hidden"), values.whole("key")
    before, after, zeroed = (  # the hidden score as it is, as a mask makes it, as a common mistake makes it
        softmax_rows(np.where(np.arange(scores.shape[1]) == hidden, instead, scores))[0]
        for instead in (scores, -np.inf, 0.0)
    )
    return Right(
        float(after[0, key]),
        f"Without a mask it is {before[0, key]:.3f}. Hidden keys leave the sum below the line, and what is left is "
        f"divided by 1 - {before[0, hidden]:.3f}.",
        f"Leave key {hidden} out of the sum below the line, then take exp of score {key} over it.",
        mistakes={
            float(before[0, key]): "That is the weight without the mask: what is hidden still has its share there.",
            float(zeroed[0, key]): "A hidden score is not 0 but minus infinity: exp(0) is 1, and takes a share.",
        },
    )


def cross_shape(values: Values, load: Loader) -> Right:
    """The shape of a map whose keys come from another text."""
    written, read = values.whole("written"), values.whole("read")
    x, context = np.ones((written, 1)), np.ones((read, 1))
    cells = (x @ context.T).size
    return Right(
        float(cells),
        f"The map is {written} x {read}: a row for each token that asks, a column for each that is asked.",
        "Which tokens have queries here, and which have keys?",
        mistakes={
            float(written**2): "That is a map of the written text on itself: keys come from the one that is read.",
            float(read**2): "That is a map of the text that is read on itself: queries come from the other.",
            float((written + read) ** 2): "The two texts are not put together: one asks, the other is asked.",
        },
    )


def dropped_mask(values: Values, load: Loader) -> Right:
    """What a layer that takes a mask and drops it gives the first token, beside what it should."""
    x = read_matrix("x", values.text("x"))
    if x.shape[1] != values.whole("d"):
        raise LessonError(f"x has {x.shape[1]} columns, and d is {values.whole('d')}: they are the same.")
    ahead = _ahead(x)
    plain, _ = softmax_rows(x @ x.T)
    return Right(
        100 * ahead,
        "Nothing fails: shapes are right, rows sum to 1. Only what is read ahead gives it away, so test that a mask "
        "matters: change a later token, and see that an earlier output stays.",
        "Without a mask, take softmax over all of the first row, its scores divided. All but its "
        "first weight looks ahead.",
        unit="%",
        mistakes={
            0.0: "So it should be. But the mask is dropped here, and the first row is shared out over all tokens.",
            100 * (1 - ahead): "That is what is left for token 0 itself.",
            100 * float(plain[0, 1:].sum()): "That is without dividing the scores.",
        },
    )


def first_row(values: Values, ran: Ran) -> Right:
    """How much weight the token gives the asked key in the cell as it is now."""
    weights = ran.table("weights")
    query, key = values.whole("query"), values.whole("key")
    if query >= len(weights.rows) or key >= len(weights.columns):
        size = f"{len(weights.rows)} x {len(weights.columns)}"
        raise LessonError(f"there is no weight of token {query} on token {key} now: the cell's map is {size}.")
    visible, plain = ran.table("mask").values[query], ran.table("without a mask").values[query, key]
    answer = float(weights.values[query, key])
    words = (
        f"Token {query} may look at {int(visible.sum())} of {len(visible)} tokens, and gives token {key} {answer:.3f}."
    )
    hint = f"Token {query} may look at {int(visible.sum())} of {len(visible)} tokens: softmax of their scores alone."
    return Right(answer, words, hint, mistakes={float(plain): "That is its weight without the mask."})


def _ahead(x: Float64[ndarray, "n d"]) -> float:
    """The share of the first row that falls on later tokens where nothing is hidden: keys and queries are x itself."""
    weights, _ = softmax_rows(x @ x.T / np.sqrt(x.shape[1]))
    return float(weights[0, 1:].sum())


_ROW = text("scores", "scores of the row", "2 1 0 1", others=("1 1 1 3", "0 2 0 1", "0.5 1.5 1 0"))
CHECKS: Mapping[str, Check | Predict] = {
    "causal-cells": Check(causal_cells, (whole("tokens", "tokens", 8, 2, 1024, others=(6, 12, 20, 100)),)),
    "window-cells": Check(
        window_cells,
        (
            whole("tokens", "tokens", 8, 4, 1024, others=(10, 12, 100)),
            whole("window", "window", 3, 1, 4),
        ),
        sound=lambda values: values.whole("window") > 1,
    ),
    "masked-weight": Check(masked_weight, (_ROW, whole("hidden", "hidden key", 3, 2, 3), whole("key", "key", 0, 0, 1))),
    "cross-shape": Check(
        cross_shape,
        (
            whole("written", "tokens written", 5, 1, 4096, others=(3, 7, 12)),
            whole("read", "tokens read", 9, 1, 4096, others=(4, 11, 20)),
        ),
    ),
    "dropped-mask": Check(
        dropped_mask,
        (
            text("x", "X", "1 0; 0 1; 1 1", others=("2 0; 0 1; 1 1", "1 1; 1 0; 0 1; 1 1")),
            whole("d", "its width", 2, 1, 12, others=(2,)),
        ),
    ),
    "masked-row": Predict(first_row, (whole("query", "token that looks", 1, 0, 11, others=(0, 2)),
                                      whole("key", "token looked at", 0, 0, 11, others=(1,)))),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def causal_share(values: Values, load: Loader) -> str:
    n = values.whole("tokens")
    return f"{int(visible_keys((1, 1, n, n), causal=True).sum()):,} of {n * n:,}"


def reads_ahead(values: Values, load: Loader) -> str:
    """What a dropped causal mask lets the first of some equal tokens read of later ones."""
    return f"{100 * _ahead(np.ones((values.whole('tokens'), 1))):.0f} %"


_TOKENS = whole("tokens", "tokens", 8, 1, 4096)
FACTS: Mapping[str, Fact] = {
    "causal-share": Fact(causal_share, (_TOKENS,)),
    "reads-ahead": Fact(reads_ahead, (_TOKENS,)),
}
