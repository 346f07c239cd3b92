"""The feed-forward block: 4 d wide and two matrices, or 8/3 d and three.

The small cell computes both kinds on the reader's own numbers, in NumPy. Counts are of our own layers, built without
memory for their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.lessons.cells import Cell, Fact, Loader, Ran, matrix
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.parameters import Values, choice, read_matrix, text, whole
from manyheads.lessons.topics.counts import in_prefix, scaled

__all__ = ["ATTENTION", "CELLS", "CHECKS", "FACTS", "FEED", "WIDENING"]

CLASSIC, GATED = "W2 relu(W1 x)", "W2 (silu(W1 x) * W3 x)"
WIDENING = 4
FEED, ATTENTION = "feed-forward", "attention"

# -------------------------------------------------------------------------------------------------------------- cells


def feed_forward(values: Values, load: Loader) -> Ran:
    """Both kinds on the reader's own numbers, token by token. Raises LessonError, ShapeError."""
    x, w1, w3, w2 = (read_matrix(name, values.text(name)) for name in ("x", "w1", "w3", "w2"))
    gated = values["kind"] == GATED
    _must_fit(x, w1, w3, w2, gated)
    up = x @ w1
    steps = [
        matrix("x", "a row a token, as attention left it", x, "token", "m"),
        matrix("W1 x", "made wide", up, "token", "w"),
    ]
    if gated:
        gate, other = up / (1 + np.exp(-np.clip(up, -700, 700))), x @ w3
        hidden = gate * other
        steps += [
            matrix("silu(W1 x)", "a soft relu: how far each gate is open", gate, "token", "w"),
            matrix("W3 x", "what is to pass", other, "token", "w"),
            matrix("hidden", "gates times what is to pass", hidden, "token", "w"),
        ]
    else:
        hidden = np.maximum(up, 0)
        steps.append(matrix("hidden", "relu: what is below 0 becomes 0", hidden, "token", "w"))
    out = hidden @ w2
    says = ", ".join(f"{each:.3g}" for each in out[0])
    quiet = "" if gated else f" {100 * float((hidden == 0).mean()):.0f} % of the inner numbers are 0."
    return Ran(
        f"Token 0 becomes ({says}), whatever the other tokens are.{quiet}",
        (*steps, matrix("out", "narrow again: added to the token", out, "token", "m")),
    )


def block_sizes(values: Values, load: Loader) -> Ran:
    """Widths and weights of both kinds for one model width, of the layers themselves."""
    m, multiple = values.whole("d_model"), values.whole("multiple")
    classic, gated = _blocks(m, multiple)
    full = _gated(m, WIDENING * m)
    widths, counts, matrices = (WIDENING * m, WIDENING * m, gated[0]), (classic, full, gated[1]), (2, 3, 3)
    names = (f"classic, {WIDENING} d", f"SwiGLU, {WIDENING} d", "SwiGLU, 8/3 d")
    more = 100 * (gated[1] / classic - 1)
    prefix, factor = scaled(max(counts))
    return Ran(
        f"SwiGLU at 8/3 of {m:,}, rounded up to a multiple of {multiple}, is {gated[0]:,} wide and has "
        f"{gated[1]:,} weights: {abs(more):.2f} % {'more' if more >= 0 else 'fewer'} than the classic block.",
        (
            matrix("inner width", "of the middle, and the matrices", np.column_stack((widths, matrices)), names,
                   ("width", "matrices")),
            matrix("weights", in_prefix(prefix, "without biases"), np.array(counts)[:, None] / factor, names,
                   ("weights",)),
        ),
    )  # fmt: skip


def _must_fit(x: ndarray, w1: ndarray, w3: ndarray, w2: ndarray, gated: bool) -> None:
    """Raises ShapeError."""
    up = (("w1", w1), ("w3", w3)) if gated else (("w1", w1),)
    for name, each in up:
        if len(each) != x.shape[1]:
            raise ShapeError(f"x has {x.shape[1]} columns, and {name} {len(each)} rows: they must be as many.")
    if gated and w1.shape != w3.shape:
        raise ShapeError(f"w1 is {w1.shape}, w3 {w3.shape}: each gate has one number to let through.")
    if w2.shape != (w1.shape[1], x.shape[1]):
        raise ShapeError(
            f"w2 is {w2.shape}: from {w1.shape[1]} inner numbers back to {x.shape[1]}, it must be "
            f"{(w1.shape[1], x.shape[1])}."
        )


def _blocks(m: int, multiple: int) -> tuple[int, tuple[int, int]]:
    """Weights of the classic block; width and weights of the gated one."""
    from manyheads.nn.feed_forward import FeedForward
    from manyheads.nn.feed_forward import gated_width

    classic = sum(each.numel() for each in FeedForward(m, bias=False, device="meta").parameters())
    width = gated_width(m, multiple)
    return classic, (width, _gated(m, width))


def _gated(m: int, width: int) -> int:
    from manyheads.nn.feed_forward import SwiGLU

    return sum(each.numel() for each in SwiGLU(m, width, device="meta").parameters())


_W1 = "1 0 -1 0.5\n0 1 1 -0.5"
_W2 = "1 0\n0 1\n0.5 0.5\n-1 1"
CELLS: Mapping[str, Cell] = {
    "feed-forward": Cell(
        feed_forward,
        (
            choice("kind", "kind", (CLASSIC, GATED)),
            text("x", "x, one row a token", "1 0\n0 1\n-1 2"),
            text("w1", "W1", _W1),
            text("w3", "W3 (of SwiGLU)", "1 1 0 0\n0 0 1 1"),
            text("w2", "W2", _W2),
        ),
    ),
    "block-sizes": Cell(
        block_sizes,
        (
            whole("d_model", "model width d", 4096, 8, 32_768, 8),
            whole("multiple", "rounded up to a multiple of", 256, 1, 4096),
        ),
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def classic_weights(values: Values, load: Loader) -> Right:
    m = values.whole("d_model")
    answer, (width, gated) = _blocks(m, 8)
    return Right(
        float(answer),
        f"Two matrices of {m:,} x {WIDENING * m:,}: 8 d^2 = {answer:,}, twice the 4 d^2 of attention.",
        f"It goes from {m:,} to four times as many, and back.",
        unit="weights",
        mistakes={
            float(answer // 2): "That is one matrix: the other makes it narrow again.",
            float(_gated(m, WIDENING * m)): "That has three matrices: the classic block has two.",
            float(gated): f"That is SwiGLU, {width:,} wide.",
        },
    )


def swiglu_width(values: Values, load: Loader) -> Right:
    """The width at which three matrices have as many weights as two of 4 d, rounded up."""
    m, multiple = values.whole("d_model"), values.whole("multiple")
    classic, (answer, gated) = _blocks(m, multiple)
    plain = _blocks(m, 1)[1][0]
    return Right(
        float(answer),
        f"8/3 of {m:,} is {8 * m / 3:,.1f}; the next multiple of {multiple} is {answer:,}. Its three matrices hold "
        f"{gated:,} weights, where two of {WIDENING * m:,} hold {classic:,}.",
        f"Two matrices of 4 d hold 8 d^2. Three of which width do? Then round up to a multiple of {multiple}.",
        mistakes={
            float(WIDENING * m): "At that width three matrices hold half as much again as two.",
            **dict.fromkeys((float(plain), float(plain - 1)), f"Round up to a multiple of {multiple}."),
            float(answer - multiple): "Round up, not down.",
            float(2 * m): "Two thirds of 4 d, not half of it: there are three matrices in place of two.",
        },
    )


def kept_apart(values: Values, load: Loader) -> Right:
    """How many tokens' outputs change with one token's input: in this block, or in attention."""
    n, block = values.whole("tokens"), values["block"]
    alone = block == FEED
    answer = _touched(n, alone)
    return Right(
        float(answer),
        "It reads one token at a time: what a token is becomes something else, and nobody else hears of it. Tokens "
        "speak to each other in attention only."
        if alone
        else f"All {n} of them read its key and its value, so each output changes a little.",
        "Does this block multiply anything of one token with anything of another?",
        unit="tokens",
        mistakes={float(n if alone else 1): f"So it is in {ATTENTION if alone else f'the {FEED} block'}."},
    )


def _touched(n: int, alone: bool) -> int:
    """By trying it: rows of the output that differ after one row of the input is changed."""
    from manyheads.reference import initialise, naive
    from manyheads.reference.multihead import NaiveWeights

    rng = np.random.Generator(np.random.PCG64(0))
    x = rng.normal(size=(n, 8))
    changed = x.copy()
    changed[n // 2] += 1.0
    made = initialise(rng, 8, 2)
    assert isinstance(made, NaiveWeights)
    up, down = rng.normal(size=(8, 32)), rng.normal(size=(32, 8))

    def block(rows: Float64[ndarray, "n m"]) -> Float64[ndarray, "n m"]:
        return np.maximum(rows @ up, 0) @ down if alone else naive(rows, made).out

    return int((np.abs(block(changed) - block(x)).max(1) > 1e-9).sum())


_M = whole("d_model", "model width", 512, 8, 16_384, 8, others=(256, 768, 1024, 4096))
_BLOCK = choice("block", "block", (FEED, ATTENTION))
CHECKS: Mapping[str, Check | Predict] = {
    "classic-weights": Check(classic_weights, (_M,)),
    "swiglu-width": Check(
        swiglu_width,
        (
            whole("d_model", "model width", 4096, 64, 16_384, 64, others=(512, 2048, 5120)),
            whole("multiple", "a multiple of", 256, 1, 4096, others=(64,)),
        ),
    ),
    "kept-apart": Check(kept_apart, (whole("tokens", "tokens", 12, 2, 64, others=(5, 20)), _BLOCK)),
}

# -------------------------------------------------------------------------------------------------------------- facts


def block_weights(values: Values, load: Loader) -> str:
    m = values.whole("d_model")
    classic, (width, gated) = _blocks(m, values.whole("multiple"))
    return {"classic": f"{classic:,}", "SwiGLU": f"{gated:,}", "SwiGLU's width": f"{width:,}"}[values.text("of")]


FACTS: Mapping[str, Fact] = {
    "block-weights": Fact(
        block_weights,
        (
            _M,
            whole("multiple", "a multiple of", 8, 1, 4096),
            choice("of", "of", ("classic", "SwiGLU", "SwiGLU's width")),
        ),
    ),
}  # fmt: skip
