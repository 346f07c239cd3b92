"""Splitting and merging heads: a loop over heads, one wide product, one fused product; the same numbers.

They come from `reference`'s three layouts. The mistake that everybody makes once, a reshape without its transpose, is
made here on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from einops import rearrange
from jaxtyping import Float64
from numpy import ndarray

from manyheads.lessons.cells import Cell, Loader, Ran, matrix
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.format import LessonError
from manyheads.lessons.parameters import Values, choice, require_fitting, whole
from manyheads.reference import batched, fused, initialise, naive, softmax_rows, to_batched, to_fused, to_naive
from manyheads.reference.multihead import BatchedWeights

__all__ = ["CELLS", "CHECKS", "FUSED", "HEADS", "LOOP", "WIDE", "close_to", "split_alone"]

RIGHT, ALONE = "reshape, then transpose", "reshape alone"
LOOP, WIDE, FUSED = "head by head", "with a wide W_Q, W_K and W_V", "with one fused W_QKV"
MAX_ROWS = 24  # of a table of all heads' tokens

# --------------------------------------------------------------------------------------------- where each number goes


def where_numbers_go(values: Values, load: Loader) -> Ran:
    """Numbers that say where they come from, split rightly and wrongly. Raises ShapeError."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    require_fitting(values)
    if h * n > MAX_ROWS:
        raise LessonError(f"{h} heads of {n} tokens are {h * n} rows: take up to {MAX_ROWS} together.")
    wide = 100.0 * np.arange(n)[:, None] + np.arange(m)
    split, alone = _split(wide, h), split_alone(wide, h)
    rows = tuple(f"head {head}, row {row}" for head in range(h) for row in range(n))
    astray = int((split // 100 != alone // 100).sum())
    return Ran(
        f"Reshape alone puts {astray} of {wide.size} numbers into another token's row."
        + (" With one head, or one token, there is nothing to transpose." if not astray else " Its shape is right."),
        (
            matrix("X W_Q", "a row a token: 203 is of token 2, column 3", wide, "token", "c"),
            matrix(RIGHT, "a head's tokens row by row, with its own columns", split.reshape(h * n, -1), rows, "d"),
            matrix(ALONE, "the same shape, and other numbers", alone.reshape(h * n, -1), rows, "d"),
        ),
    )  # fmt: skip


def _split(wide: Float64[ndarray, "n m"], h: int) -> Float64[ndarray, "h n d"]:
    return rearrange(wide, "n (h d) -> h n d", h=h)


def split_alone(wide: Float64[ndarray, "n m"], h: int) -> Float64[ndarray, "h n d"]:
    """The mistake: the shape that is wanted, without a transpose. Pieces of tokens are taken for tokens."""
    return wide.reshape(h, len(wide), -1)


def close_to(gap: float) -> str:
    return f"to {gap:.0e}" if gap else "in every digit"


# -------------------------------------------------------------------------------------------------------- same numbers


def three_ways(values: Values, load: Loader) -> Ran:
    """The same layer in three layouts, and with the mistake. Raises ShapeError."""
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    require_fitting(values)
    rng = np.random.Generator(np.random.PCG64(values.whole("seed")))
    made, x = initialise(rng, m, h), rng.normal(size=(n, m))
    loop = naive(x, to_naive(made)).out
    outs = {
        LOOP: loop,
        WIDE: batched(x, to_batched(made)).out,
        FUSED: fused(x, to_fused(made)).out,
        ALONE: _mistaken(x, to_batched(made)),
    }
    gaps = {name: float(np.abs(out - loop).max()) for name, out in outs.items()}
    rows = ("the loop", "one wide each", "one fused", ALONE)
    same = max(gaps[WIDE], gaps[FUSED])
    return Ran(
        f"The three ways agree {close_to(same)}. Reshape alone is off by up to {gaps[ALONE]:.2g}, and nothing fails.",
        (
            matrix("output", "of token 0, by each way", np.stack([out[0] for out in outs.values()]), rows, "m"),
            matrix("difference", "from the loop, the largest of all tokens", np.array(list(gaps.values()))[:, None],
                   rows, ("largest",)),
        ),
    )  # fmt: skip


def _mistaken(x: Float64[ndarray, "n m"], w: BatchedWeights) -> Float64[ndarray, "n m"]:
    """All of multi-head attention, heads cut and joined by reshape alone."""
    q, k, v = (split_alone(x @ each, w.num_heads) for each in (w.w_q, w.w_k, w.w_v))
    scores = np.einsum("hqd,hkd->hqk", q, k, optimize=True) / np.sqrt(q.shape[2])
    weights, _ = softmax_rows(scores)
    return np.einsum("hqk,hkf->hqf", weights, v, optimize=True).reshape(x.shape) @ w.w_o


_SHAPE = (
    whole("d_model", "model width", 8, 1, 48),
    whole("heads", "heads", 2, 1, 12),
    whole("tokens", "tokens", 3, 1, 12),
)
CELLS: Mapping[str, Cell] = {
    "where-numbers-go": Cell(where_numbers_go, _SHAPE),
    "three-ways": Cell(
        three_ways,
        (
            whole("d_model", "model width", 64, 1, 512),
            whole("heads", "heads", 8, 1, 64),
            whole("tokens", "tokens", 10, 1, 256),
            whole("seed", "seed of the random weights", 0, 0, 1_000_000),
        ),
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def number_in_place(values: Values, ran: Ran) -> Right:
    """What stands in some place of the split, right or wrong, as the cell has it."""
    head, row, how = values.whole("head"), values.whole("row"), values.text("how")
    name = f"head {head}, row {row}"
    table, other = ran.table(how), ran.table(ALONE if how == RIGHT else RIGHT)
    if name not in table.rows:
        raise LessonError(f"there is no {name} in the cell now: its last is {table.rows[-1]}.")
    at = table.rows.index(name)
    answer, mistake = int(table.values[at, 0]), int(other.values[at, 0])
    words = f"{answer}: column {answer % 100} of token {answer // 100}."
    return Right(
        float(answer),
        words,
        "Reshape reads numbers in the order in which they lie: token 0 from left to right, then token 1. A split must "
        f"give head {head} its columns of every token.",
        mistakes={float(mistake): f"That stands there after {other.label}."},
    )


def products(values: Values, load: Loader) -> Right:
    """How many products make all queries, keys and values: counted on the weights of each layout."""
    h, layout = values.whole("heads"), values.text("layout")
    made = initialise(np.random.Generator(np.random.PCG64(0)), 2 * h, h)
    counts = {LOOP: sum(len(each) for each in (to_naive(made).w_q, to_naive(made).w_k, to_naive(made).w_v)),
              WIDE: len((to_batched(made).w_q, to_batched(made).w_k, to_batched(made).w_v)),
              FUSED: len((to_fused(made).w_qkv,))}  # fmt: skip
    answer = counts[layout]
    return Right(
        float(answer),
        f"{counts[LOOP]} small ones, {counts[WIDE]} wide ones, {counts[FUSED]} wider still: the same multiplications.",
        "How many matrices are there for X to be multiplied with?",
        mistakes={float(count): f"So many it is {name}." for name, count in counts.items()},
    )


HEADS = whole("heads", "heads", 8, 2, 128, others=(4, 12, 16))
CHECKS: Mapping[str, Check | Predict] = {
    "number-in-place": Predict(
        number_in_place,
        (
            whole("head", "head", 0, 0, 11, others=(1,)),
            whole("row", "row", 1, 0, 11, others=(0, 2)),
            choice("how", "split", (RIGHT, ALONE)),
        ),
    ),
    "products": Check(products, (HEADS, choice("layout", "layout", (LOOP, WIDE, FUSED)))),
}
