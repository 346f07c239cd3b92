"""The output projection: the heads' outputs side by side, times W_O: a sum of one part a head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from einops import rearrange
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.lessons.cells import Cell, Fact, Loader, Ran, matrix, numbered
from manyheads.lessons.checks import Check, Predict, Right
from manyheads.lessons.format import LessonError
from manyheads.lessons.parameters import Values, choice, fitting, matrix_text, read_matrix, text, whole
from manyheads.lessons.topics.counts import HEADS, KV_HEADS, WIDTH, weights

__all__ = ["CELLS", "CHECKS", "FACTS", "head_parts"]

MIXING = "1 0 0 1\n0 1 1 0\n1 0 -1 0\n0 1 0 -1"
MIXED, NONE, OWN = "a W_O that mixes", "none: heads side by side", "my own, below"
WITH, WITHOUT = "with W_O", "without it"

# -------------------------------------------------------------------------------------------------------------- cells


def sum_of_parts(values: Values, load: Loader) -> Ran:
    """Heads side by side times W_O, and head by head; with the reader's own numbers. Raises LessonError, ShapeError."""
    heads, w_o = read_matrix("heads", values.text("heads")), read_matrix("w_o", values.text("w_o"))
    (h, f), m = heads.shape, w_o.shape[1]
    if len(w_o) != h * f:
        raise ShapeError(
            f"heads has {h} rows of {f}, so {h * f} numbers in all, and w_o {len(w_o)} rows: they must be as many."
        )
    parts = head_parts(heads, w_o)
    whole_way, sums = heads.reshape(1, -1) @ w_o, parts.sum(0, keepdims=True)
    names = numbered("head", h)
    reach = [int((np.abs(rows).max(0) > 0).sum()) for rows in rearrange(w_o, "(h f) m -> h f m", h=h)]
    gap = float(np.abs(whole_way - sums).max())
    return Ran(
        f"The sum of the heads' parts is the output{f', to {gap:.0e}' if gap else ''}. "
        + ", ".join(f"{name} can reach {count} of {m} columns" for name, count in zip(names, reach, strict=True))
        + ".",
        (
            matrix("heads", "what each head says at one token", heads, names, "f"),
            matrix("side by side", "concat: head 0's numbers, then head 1's", heads.reshape(1, -1), ("token",),
                   tuple(f"h{i}.{j}" for i in range(h) for j in range(f))),
            matrix("W_O", "its first rows are head 0's, the next are head 1's", w_o,
                   tuple(f"head {i}, row {j}" for i in range(h) for j in range(f)), numbered("m", m)),
            matrix("parts", "each head times its own rows of W_O", parts, names, numbered("m", m)),
            matrix("sum", "of the parts", sums, ("token",), numbered("m", m)),
            matrix("concat W_O", "all at once: the same", whole_way, ("token",), numbered("m", m)),
        ),
    )  # fmt: skip


def head_parts(heads: Float64[ndarray, "h f"], w_o: Float64[ndarray, "hf m"]) -> Float64[ndarray, "h m"]:
    """What each head adds to the output: its numbers times its rows of W_O."""
    return np.einsum("hf,hfm->hm", heads, rearrange(w_o, "(h f) m -> h f m", h=len(heads)), optimize=True)


_KIND = choice("kind", "W_O", (MIXED, NONE, OWN), {MIXED: {"w_o": MIXING}, NONE: {"w_o": matrix_text(np.eye(4))}})
CELLS: Mapping[str, Cell] = {
    "sum-of-parts": Cell(
        sum_of_parts,
        (
            text("heads", "what the heads say, a row for each", "1 2\n3 4"),
            _KIND,
            text("w_o", "W_O, a row for each number of theirs", MIXING),
        ),
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def part_of_head(values: Values, ran: Ran) -> Right:
    """What a head adds to a column of the output."""
    head, column = values.whole("head"), values.whole("column")
    parts, total = ran.table("parts"), ran.table("sum").values[0]
    if head >= len(parts.rows) or column >= len(parts.columns):
        raise LessonError(f"the cell now has {len(parts.rows)} heads and {len(parts.columns)} columns, counted from 0.")
    answer = float(parts.values[head, column])
    f = ran.table("heads").values.shape[1]
    said, rows = ran.table("heads").values[head], ran.table("W_O").values[head * f : (head + 1) * f, column]
    worked = " + ".join(f"{a:g} x {b:g}" for a, b in zip(said, rows, strict=True))
    apart = abs(total[column] - answer) > 0.05
    return Right(
        answer,
        f"{worked} = {answer:g}.",
        f"Take head {head}'s numbers, and column {column} of the rows of W_O that are head {head}'s.",
        mistakes={float(total[column]): "That is the sum of all heads."} if apart else {},
    )


def reaches(values: Values, load: Loader) -> Right:
    """How many columns of the output change when one head says something else: tried on random numbers."""
    m, h, mixes = values.whole("d_model"), values.whole("heads"), values["how"] == WITH
    answer, other = (_reach(m, h, each) for each in (mixes, not mixes))
    return Right(
        float(answer),
        f"Its {m // h} rows of W_O go into every column."
        if mixes
        else f"Only its own {m // h}: nothing has mixed them.",
        "Which columns does a row of W_O write into? And where does a head's output stand if nothing follows?",
        unit="columns",
        mistakes={float(other): f"So it is {WITHOUT if mixes else WITH}."},
    )


def _reach(m: int, h: int, mixes: bool) -> int:
    rng = np.random.Generator(np.random.PCG64(0))
    f = m // h
    w_o = rng.normal(size=(f, m)) if mixes else np.eye(m)[:f]
    return int((np.abs(rng.normal(size=(1, f)) @ w_o) > 0).sum())


def first_row(values: Values, load: Loader) -> Right:
    """Where a head's rows of W_O begin."""
    m, h, head = values.whole("d_model"), values.whole("heads"), values.whole("head")
    rows = rearrange(np.arange(m), "(h f) -> h f", h=h)[head]
    return Right(
        float(rows[0]),
        f"Rows {rows[0]} to {rows[-1]} are head {head}'s: {m // h} for each of the {head} before it, and then its own.",
        "The heads stand side by side in concat, so their rows stand one below the other in W_O. Count from 0.",
        mistakes={
            float(rows[0] + 1): "Count from 0.",
            float(rows[-1] + 1): f"There head {head + 1} begins.",
            float(head): "Each head has several rows, as many as it is wide.",
        },
    )


def projection_share(values: Values, load: Loader) -> Right:
    """What part of an attention layer's weights W_O is."""
    m, h, g = values.whole("d_model"), values.whole("heads"), values.whole("kv_heads")
    parts = weights(m, h, kv_heads=g)
    answer = 100 * parts["o"] / sum(parts.values())
    plain = weights(m, h)
    usual = 100 * plain["o"] / sum(plain.values())
    return Right(
        answer,
        f"{parts['o']:,} of {sum(parts.values()):,}. W_K and W_V shrink with the key/value heads, W_Q and W_O do not.",
        "W_Q and W_O are d x d each. W_K and W_V have columns for the key/value heads only.",
        unit="%",
        mistakes={
            usual: "That is with a key/value head for every query head.",
            100 * parts["o"] / (sum(parts.values()) - parts["o"]): "Count W_O itself in the sum, too.",
        },
    )


CHECKS: Mapping[str, Check | Predict] = {
    "part-of-head": Predict(
        part_of_head,
        (whole("head", "head", 1, 0, 11, others=(0,)), whole("column", "column", 2, 0, 11, others=(0, 1, 3))),
    ),
    "reaches": Check(reaches, (WIDTH, HEADS, choice("how", "how", (WITH, WITHOUT))), sound=fitting),
    "first-row": Check(first_row, (WIDTH, HEADS, whole("head", "head", 2, 0, 127, others=(1, 3))), sound=fitting),
    "projection-share": Check(projection_share, (WIDTH, HEADS, KV_HEADS), sound=fitting),
}

# -------------------------------------------------------------------------------------------------------------- facts


def share_of_projection(values: Values, load: Loader) -> str:
    return f"{float(projection_share(values, load).answer):.0f} %"


FACTS: Mapping[str, Fact] = {
    "projection-percent": Fact(share_of_projection, CHECKS["projection-share"].parameters),
}
