"""A whole layer: heads in parallel, put side by side, times W^O; the worked example, and layers of any shape.

Oracle: the two listings beside the cells, which are run by a test, and `reference.naive`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran, Table, listing, matrix, numbered
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.parameters import (
    Values,
    choice,
    fitting,
    matrix_text,
    read_matrix,
    require_fitting,
    text,
    whole,
)
from manyheads.reference import NaiveWeights, naive, worked_example

IDENTITY, MIXING, OWN = "the example's: the identity", "one that mixes the heads", "my own"
MIXED = "1 0 0 1\n0 1 1 0\n1 0 -1 0\n0 1 0 -1"

NUMPY = listing("NumPy", """
import numpy as np

heads = []
for head in range(len(w_q)):
    q, k, v = x @ w_q[head], x @ w_k[head], x @ w_v[head]    #: Q; K; V
    scores = q @ k.T / np.sqrt(q.shape[1])                   #: scores
    weights = np.exp(scores - scores.max(1, keepdims=True))  #: weights
    weights = weights / weights.sum(1, keepdims=True)        #: weights
    heads.append(weights @ v)                                #: weights V
concat = np.concatenate(heads, axis=1)                       #: concat
out = concat @ w_o                                           #: out
""")  # fmt: skip
TORCH = listing("PyTorch", """
import torch

q = torch.einsum("nm,hmd->hnd", x, w_q)      #: Q
k = torch.einsum("nm,hmd->hnd", x, w_k)      #: K
v = torch.einsum("nm,hmd->hnd", x, w_v)      #: V
scores = q @ k.mT / q.shape[-1] ** 0.5       #: scores
weights = scores.softmax(-1)                 #: weights
heads = weights @ v                          #: weights V
concat = heads.transpose(0, 1).flatten(1)    #: concat
out = concat @ w_o                           #: out
""")  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- cells


def whole_layer(values: Values, load: Loader) -> Ran:
    """The worked example's heads on the reader's X, with the reader's W^O. Raises LessonError, ShapeError."""
    x, w_o = read_matrix("x", values.text("x")), read_matrix("w_o", values.text("w_o"))
    weights = worked_example()[1]
    h, m, d = weights.w_q.shape
    if x.shape[1] != m:
        raise ShapeError(f"x has {x.shape[1]} columns, and the heads read {m}: write rows of {m} numbers.")
    if w_o.shape != (h * d, m):
        raise ShapeError(f"w_o is {w_o.shape}: {h} heads of width {d}, and a model {m} wide, need {h * d} rows of {m}.")
    shown, out = layer_tables(x, NaiveWeights(weights.w_q, weights.w_k, weights.w_v, w_o))
    row = ", ".join(f"{value:.3f}" for value in out[0])
    words = f"Token 0 goes in as ({', '.join(f'{value:g}' for value in x[0])}) and comes out as ({row})."
    return Ran(words, shown, flow=layer_flow(h))


def random_layer(values: Values, load: Loader) -> Ran:
    """A layer of random weights of any shape, head by head. Raises ShapeError."""
    require_fitting(values)
    m, h, n = (values.whole(name) for name in ("d_model", "heads", "tokens"))
    d, rng = m // h, np.random.Generator(np.random.PCG64(values.whole("seed")))
    w_q, w_k, w_v = rng.normal(size=(3, h, m, d)) / np.sqrt(m)
    weights = NaiveWeights(w_q, w_k, w_v, rng.normal(size=(m, m)) / np.sqrt(m))
    shown, _ = layer_tables(rng.normal(size=(n, m)), weights)
    words = f"{h} heads, each {d} wide, so {h} maps of {n} x {n}. Side by side they are {h} x {d} = {m} wide again."
    return Ran(words, shown, flow=layer_flow(h), found={"width": d, "maps": h * n * n, "projection": m * m})


def layer_tables(
    x: Float64[ndarray, "n m"], weights: NaiveWeights
) -> tuple[tuple[Table, ...], Float64[ndarray, "n m"]]:
    """Every value of a layer in the order of the computation, and its output."""
    tokens, h = numbered("token", len(x)), len(weights.w_q)
    layer = naive(x, weights)
    shown = [matrix("X", "one row a token: every head reads all of it", x, tokens, "m")]
    heads = []
    for head in range(h):
        q, k, v = (x @ part[head] for part in (weights.w_q, weights.w_k, weights.w_v))
        scores, per_key = q @ k.T / np.sqrt(q.shape[1]), layer.weights[head]
        heads.append(per_key @ v)
        shown += [
            matrix(f"Q, head {head}", f"X W_Q[{head}]: what each token asks", q, tokens, "d"),
            matrix(f"K, head {head}", f"X W_K[{head}]: what each token offers", k, tokens, "d"),
            matrix(f"V, head {head}", f"X W_V[{head}]: what each token hands over", v, tokens, "d"),
            matrix(f"scores, head {head}", "Q K^T / sqrt(d_k)", scores, tokens, tokens),
            matrix(f"weights, head {head}", "softmax of each row", per_key, tokens, tokens, as_map=True),
            matrix(f"weights V, head {head}", "what this head says", heads[-1], tokens, "d"),
        ]
    shown += [
        matrix("concat", "the heads side by side: head 0's columns first", np.concatenate(heads, 1), tokens, "m"),
        matrix("W_O", "the output projection", np.asarray(weights.w_o, np.float64), "row", "m"),
        matrix("out", "concat W_O: what the layer gives", layer.out, tokens, "m"),
    ]
    return tuple(shown), layer.out


def layer_flow(h: int) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The diagram: X, the heads beside each other, concat, W^O, the output."""
    steps = ("Q", "K", "V", "scores", "weights", "weights V")
    lanes = tuple(tuple(f"{step}, head {head}" for step in steps) for head in range(h))
    return ((("X",),), lanes, (("concat", "W_O", "out"),))


_X, _WEIGHTS = worked_example()
CELLS: Mapping[str, Cell] = {
    "whole-layer": Cell(
        whole_layer,
        (
            text("x", "X, one row a token", matrix_text(np.asarray(_X, np.float64))),
            choice("kind", "which W_O", (IDENTITY, MIXING, OWN), {
                IDENTITY: {"w_o": matrix_text(np.eye(4))}, MIXING: {"w_o": MIXED},
            }),
            text("w_o", "W_O", matrix_text(np.eye(4))),
        ),
        (NUMPY, TORCH),
        in_page=True,
    ),
    "random-layer": Cell(
        random_layer,
        (whole("d_model", "model width", 8, 1, 16), whole("heads", "heads", 4, 1, 8),
         whole("tokens", "tokens", 4, 1, 8), whole("seed", "seed", 0, 0, 999)),
        (NUMPY, TORCH),
        in_page=True,
    ),
}  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- checks


def example_output(values: Values, load: Loader) -> Right:
    """One number of the worked example's output, with its own W^O or with the one that mixes."""
    x, weights = worked_example()
    mixes = values["kind"] == MIXING
    w_o = read_matrix("w_o", MIXED) if mixes else np.eye(4)
    token, column = values.whole("token"), values.whole("column")
    plain = naive(x, weights).out
    out = plain @ w_o
    concat, projection = (", ".join(f"{value:.3g}" for value in row) for row in (plain[token], w_o[:, column]))
    return Right(
        float(out[token, column]),
        f"Side by side the heads say ({concat}) at token {token}; times column {column} of W_O, ({projection}), that "
        f"is {out[token, column]:.3f}.",
        f"Run the cell and go to concat: take the row of token {token}, and column {column} of W_O.",
        mistakes={float(plain[token, column]): "That is before W_O: the heads side by side."} if mixes else {},
    )


def layer_width(values: Values, ran: Ran) -> Right:
    """Of the cell's layer: how wide a head is, or how many numbers its maps hold."""
    width, maps = int(ran.found["width"]), int(ran.found["maps"])
    if values["of"] == "one head's width":
        return Right(float(width), ran.words, "The heads share the width of the model.")
    return Right(float(maps), ran.words, "Each head has a map of its own: one row and one column for each token.",
                 mistakes={float(maps // len(ran.flow[1])): "That is one head's map."})  # fmt: skip


def whose_columns(values: Values, load: Loader) -> Right:
    """Which head a column of concat belongs to."""
    m, h, column = (values.whole(name) for name in ("d_model", "heads", "column"))
    owner = int(np.repeat(np.arange(h), m // h)[column])
    return Right(
        float(owner),
        f"Each head fills {m // h} columns, so column {column} is head {owner}'s.",
        f"Each of the {h} heads fills {m // h} columns, head 0 the first ones.",
        mistakes={float(column % (m // h)): "That is its place within the head."},
    )


def moved_by(values: Values, load: Loader) -> Right:
    """How many columns of the output can change if one head's output does: with the identity for W^O, or a full one."""
    m, h = values.whole("d_model"), values.whole("heads")
    full = values["projection"] == "full of numbers"
    rng = np.random.Generator(np.random.PCG64(0))
    change = np.zeros(m)
    change[: m // h] = 1
    moved = int((np.abs(change @ (rng.normal(size=(m, m)) if full else np.eye(m))) > 0).sum())
    return Right(
        float(moved),
        "A full W_O hands every head's numbers to every column." if full else "The identity leaves each head's numbers "
        "in its own columns: nothing is mixed.",
        "Follow one head's columns of concat through the product with W_O.",
        unit="columns",
        mistakes={float(m // h): "That is how many it has in concat.", float(m): "So it is where W_O is full."},
    )  # fmt: skip


_WIDTH = whole("d_model", "model width", 12, 2, 4096, others=(8, 24, 512))
_HEADS = whole("heads", "heads", 3, 1, 64, others=(2, 4))
CHECKS: Mapping[str, Check | Predict] = {
    "example-output": Check(
        example_output,
        (whole("token", "token", 2, 0, 2), whole("column", "column", 3, 0, 3),
         choice("kind", "W_O", (MIXING, IDENTITY))),
    ),
    "layer-width": Predict(layer_width, (choice("of", "of", ("one head's width", "all maps' numbers")),)),
    "whose-columns": Check(
        whose_columns,
        (_WIDTH, _HEADS, whole("column", "column", 7, 0, 4095, others=(0, 5, 6))),
        lambda values: fitting(values) and values.whole("column") < values.whole("d_model"),
    ),
    "moved-by": Check(
        moved_by, (_WIDTH, _HEADS, choice("projection", "W_O", ("full of numbers", "the identity"))), fitting
    ),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- facts


def layer_row(values: Values, load: Loader) -> str:
    """A row of the worked example: of a head's weights, of concat or of the output."""
    shown, _ = layer_tables(*worked_example())
    (table,) = (table for table in shown if table.label == values.text("of"))
    if values.whole("row") >= len(table.values):
        raise LessonError(f"{table.label} has {len(table.values)} rows.")
    return "(" + ", ".join(f"{value:.3f}" for value in table.values[values.whole("row")]) + ")"


FACTS: Mapping[str, Fact] = {
    "layer-row": Fact(
        layer_row,
        (
            choice("of", "which", ("out", "concat", "weights, head 0", "weights, head 1", "scores, head 0")),
            whole("row", "row", 0, 0, 2),
        ),
    ),
}
