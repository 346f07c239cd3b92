"""The operation, step by step: one head on the reader's own numbers, and on a sentence with a real model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from manyheads.errors import ShapeError
from manyheads.lab.lessons.answers import Check, Predict, Right
from manyheads.lab.lessons.cells import Cell, Fact, HeadLink, Loader, Ran, Table, listing, matrix, numbered, quoted
from manyheads.lab.lessons.pages.shared import MODEL, looked_at, map_of, one_named, recorded
from manyheads.lab.lessons.parameters import Values, choice, matrix_text, number, read_matrix, text, whole
from manyheads.reference import attend, naive, softmax_rows, visible_keys, worked_example

SCALED, UNSCALED = "1 / sqrt(d)", "none"
ALL, CAUSAL = "all tokens", "only itself and earlier ones"
HEADS, OWN = ("head 0 of the example", "head 1 of the example"), "my own"
ADD, TIMES = "add", "multiply by"
EVEN, UNEVEN, SAME = "become more even", "become more uneven", "stay as they are"

NUMPY = listing("NumPy", """
import numpy as np

q = x @ w_q                                              #: Q
k = x @ w_k                                              #: K
v = x @ w_v                                              #: V
products = q @ k.T                                       #: Q K^T
scores = np.where(visible, scale * products, -np.inf)    #: scores
weights = np.exp(scores - scores.max(1, keepdims=True))  #: weights
weights = weights / weights.sum(1, keepdims=True)        #: weights
sums = weights.sum(1)                                    #: row sums
out = weights @ v                                        #: weights V
""")  # fmt: skip
TORCH = listing("PyTorch", """
import torch

q, k, v = x @ w_q, x @ w_k, x @ w_v                           #: Q; K; V
products = q @ k.mT                                           #: Q K^T
scores = (scale * products).masked_fill(~visible, -torch.inf) #: scores
weights = scores.softmax(-1)                                  #: weights
sums = weights.sum(-1)                                        #: row sums
out = weights @ v                                             #: weights V
# the whole of it in one call:
one_call = torch.nn.functional.scaled_dot_product_attention
out = one_call(q[None], k[None], v[None], attn_mask=visible, scale=scale)[0] #: weights V
""")  # fmt: skip

# ----------------------------------------------------------------------------------- one head, on numbers or a sentence


def one_head(values: Values, load: Loader) -> Ran:
    """Every step of one head on the reader's own numbers, in float64. Raises LessonError, ShapeError."""
    x, w_q, w_k, w_v = (read_matrix(name, values.text(name)) for name in ("x", "w_q", "w_k", "w_v"))
    for name, table in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)):
        if len(table) != x.shape[1]:
            raise ShapeError(
                f"x has {x.shape[1]} columns, and {name} {len(table)} rows: the two numbers must be "
                f"equal for X W to exist."
            )
    if w_q.shape != w_k.shape:
        raise ShapeError(
            f"w_q is {w_q.shape}, w_k {w_k.shape}: queries and keys must be equally wide to be multiplied."
        )
    scale = 1 / np.sqrt(w_q.shape[1]) if values["scale"] == SCALED else 1.0
    tokens = numbered("token", len(x))
    inside = tuple(matrix(*row, "m", "d") for row in (
        ("W_Q", "what a token asks for: model width by head width", w_q),
        ("W_K", "what a token offers", w_k),
        ("W_V", "what a token hands over when it is looked at", w_v),
    ))  # fmt: skip
    first = matrix("X", "one row a token: what comes into the layer", x, tokens, "m")
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    visible = visible_keys((1, 1, len(x), len(x)), causal=values["mask"] == CAUSAL)[0, 0]
    steps, weights, out = head_steps(q, k, v, scale, visible, tokens, tokens)
    return Ran(reading(tokens[-1], tokens, weights[-1], out[-1]), (first, *inside, *steps))


def sentence_head(values: Values, load: Loader) -> Ran:
    """The same steps with a real model's q, k and v, compared with the model's own map.

    Raises LessonError, TextError, HeadError.
    """
    lm, sentence = load(MODEL), values.text("sentence")
    head = one_named(lm, values.text("head"))
    rec, tokens = recorded(lm, sentence, keep=("q", "k", "v", "lse"))
    layer = rec.stacks[head.stack][head.layer]
    assert layer.v is not None
    group = layer.site.kv_head_of(head.index)
    q, k, v = (
        np.asarray(x[0, index].double()) for x, index in ((layer.q, head.index), (layer.k, group), (layer.v, group))
    )
    scale = 1 / np.sqrt(layer.site.qk_dim)
    visible = visible_keys((1, 1, len(q), len(k)), causal=layer.site.causal)[0, 0]
    steps, weights, out = head_steps(q, k, v, scale, visible, tokens, tokens)
    gap = float(np.abs(weights - map_of(rec, head)).max())
    # The sentence in words is of the token whose look at another word is the firmest; of the last where there is none.
    ordinary = np.asarray(rec.tokens.ordinary[0])
    between = weights * np.outer(ordinary, ordinary) * (1 - np.eye(len(weights)))
    token = int(between.max(1).argmax()) if between.any() else len(weights) - 1
    words = reading(tokens[token], tokens, weights[token], out[token])
    words = f"{words} The model's own map of {head} is the same, to {gap:.0e}."
    return Ran(words, steps, (HeadLink(str(head), sentence, MODEL),))


def head_steps(
    q: Float64[ndarray, "q d"],
    k: Float64[ndarray, "k d"],
    v: Float64[ndarray, "k f"],
    scale: float,
    visible: Bool[ndarray, "q k"],
    queries: Sequence[str],
    keys: Sequence[str],
    made: tuple[str, str, str] = ("X W_Q: one query a token", "X W_K: one key a token", "X W_V: one value a token"),
) -> tuple[tuple[Table, ...], Float64[ndarray, "q k"], Float64[ndarray, "q f"]]:
    """softmax(scale Q K^T) V as tables, step by step; the weights; the output.

    - `q`: queries.
    - `k`: keys.
    - `v`: values.
    - `scale`: of the scores.
    - `visible`: which key each query may look at.
    - `queries`: the rows' names.
    - `keys`: the columns' names.
    - `made`: in words, how q, k and v were made.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    products = q @ k.T
    scores = np.where(visible, scale * products, -np.inf)
    weights, _ = softmax_rows(scores)
    out = weights @ v
    scaling = f"times {scale:.4g}" if scale != 1 else "left as they are"
    hidden = ", what may not be seen hidden" if not visible.all() else ""
    tables = (
        matrix("Q", made[0], q, queries, "d"),
        matrix("K", made[1], k, keys, "d"),
        matrix("V", made[2], v, keys, "d"),
        matrix("Q K^T", "every query times every key: how well they fit", products, queries, keys),
        matrix("scores", f"{scaling}{hidden}", scores, queries, keys),
        matrix("weights", "softmax: every row becomes shares of 1", weights, queries, keys, as_map=True),
        matrix("row sums", "each is 1", weights.sum(1, keepdims=True), queries, ("sum",)),
        matrix("weights V", "what the head says: a mean of values, by weight", out, queries, "d"),
    )
    return tables, weights, out


def reading(token: str, keys: Sequence[str], row: Float64[ndarray, "k"], out: Float64[ndarray, "f"]) -> str:
    """One token's row in words."""
    best = int(row.argmax())
    ties = [key for key, is_tie in zip(keys, np.isclose(row, row[best]), strict=True) if is_tie]
    if len(ties) > 1:
        named = ", ".join(quoted(key) for key in ties[:4])
        more = ", ..." if len(ties) > 4 else ""
        return f"{quoted(token)} looks at {len(ties)} tokens alike, {row[best]:.3f} each ({named}{more})."
    says = ", ".join(f"{value:.3f}" for value in out[:4])
    more = ", ..." if len(out) > 4 else ""
    subject = quoted(token)
    looks = f"{subject[:1].upper()}{subject[1:]} looks most at {quoted(keys[best])}"
    return f"{looks}, with weight {row[best]:.3f}; the head says ({says}{more}) there."


_X, _EXAMPLE = worked_example()
_TABLES = {"w_q": _EXAMPLE.w_q, "w_k": _EXAMPLE.w_k, "w_v": _EXAMPLE.w_v}
_FILLS = {
    head: {name: matrix_text(np.asarray(table[index], np.float64)) for name, table in _TABLES.items()}
    for index, head in enumerate(HEADS)
}
CELLS: Mapping[str, Cell] = {
    "one-head": Cell(
        one_head,
        (
            text("x", "X, one row a token", matrix_text(np.asarray(_X, np.float64))),
            choice("weights", "W_Q, W_K, W_V", (*HEADS, OWN), _FILLS),
            *(text(name, name.upper(), _FILLS[HEADS[0]][name]) for name in _TABLES),
            choice("scale", "scores are multiplied by", (SCALED, UNSCALED)),
            choice("mask", "a token may look at", (ALL, CAUSAL)),
        ),
        (NUMPY, TORCH),
        in_page=True,
    ),
    "sentence-head": Cell(
        sentence_head,
        (text("sentence", "A sentence", "The cat sat on the mat"), text("head", "A head", "L2H4")),
    ),
}

# ------------------------------------------------------------------------------------------------------------- checks


def example_weight(values: Values, load: Loader) -> Right:
    """A weight of the worked example, head by head."""
    x, weights = worked_example()
    head, query, key = (values.whole(name) for name in ("head", "query", "key"))
    q, k = x @ weights.w_q[head], x @ weights.w_k[head]
    row, scores = naive(x, weights).weights[head][query], q[query] @ k.T
    unscaled, _ = softmax_rows(scores[None])
    shares = ", ".join(f"{value:.3f}" for value in row)
    query_numbers = ", ".join(f"{value:g}" for value in q[query])
    even = "every score is 0, and softmax shares out evenly" if not scores.any() else "softmax makes of its scores"
    return Right(
        float(row[key]),
        f"The query of token {query} is ({query_numbers}), so {even}: ({shares}).",
        f"Work out the query of token {query} in head {head} first. What are its products with the keys?",
        mistakes={
            float(scores[key] / np.sqrt(q.shape[1])): "That is the score. Softmax still has to make shares of the row.",
            float(unscaled[0, key]): "That is the weight without the division by sqrt(d).",
        },
    )


def without_scale(values: Values, load: Loader) -> Right:
    x, weights = worked_example()
    head, query, key = (values.whole(name) for name in ("head", "query", "key"))
    q, k, v = ((x @ w[head])[None, None] for w in (weights.w_q, weights.w_k, weights.w_v))
    plain, scaled = (attend(q, k, v, scale=scale).weights[0, 0, query, key] for scale in (1.0, None))
    why = "larger scores make rows more uneven"
    if np.isclose(plain, scaled):
        why = "all scores of this row are 0, and dividing leaves them so"
    return Right(
        float(plain),
        f"{plain:.3f}, where it was {scaled:.3f}: {why}. In wide heads products grow with the width, and dividing by "
        f"sqrt(d) is what keeps a row from falling to one token.",
        f"Choose 'none' as the scale in the first cell, and read the row of token {query} of the weights.",
        mistakes={float(scaled): "That is the weight with the division: choose 'none' as the scale."},
    )


def changed_row(values: Values, load: Loader) -> Right:
    """A row of scores, each added to or multiplied: the weights follow the differences between scores alone."""
    scores, amount = read_matrix("scores", values.text("scores")), values.number("amount")
    adds = values["operation"] == ADD
    (before, _), (after, _) = softmax_rows(scores), softmax_rows(scores + amount if adds else scores * amount)
    first, second = (-float((row * np.log(row)).sum()) for row in (before, after))  # entropies: evenness in a number
    answer = SAME if np.isclose(first, second) else EVEN if second > first else UNEVEN
    if adds:
        words = (
            f"exp(s + {amount:g}) = exp({amount:g}) exp(s): the factor is above and below the line, and goes. Only "
            f"differences count, which is why softmax may subtract the largest score before it begins."
        )
        hint = f"Add {amount:g} to every s in exp(s) / sum of exp(s), above and below the line. What becomes of it?"
        wrong = "Adding to all leaves every difference between two scores as it was, and only these count."
    else:
        words = (
            f"The largest weight goes from {before.max():.3f} to {after.max():.3f}: differences between scores are "
            f"what counts, and these are multiplied by {amount:g}."
        )
        hint = "Only differences between scores count. What happens to these?"
        wrong = "That is so when you add to every score. Multiplying changes the differences between them."
    return Right(answer, words, hint, mistakes=dict.fromkeys((EVEN, UNEVEN) if adds else (SAME,), wrong))


def looks_most(values: Values, ran: Ran) -> Right:
    """Which token a row of the cell's map is largest at; with ties, any of them."""
    weights, token = ran.table("weights"), values.whole("token")
    row, tied = looked_at(weights, token)
    best = [weights.columns[key] for key in tied]
    shares = ", ".join(f"{value:.3f}" for value in row)
    tie = f" {len(best)} tokens tie: any of them will do." if len(best) > 1 else ""
    least = weights.columns[int(row.argmin())]
    also = tuple(name.removeprefix("token ") for name in best)
    return Right(
        best[0],
        f"The row of token {token} is ({shares}).{tie}",
        f"Multiply the query of token {token} with every key: the largest product has it.",
        mistakes={least: f"It looks least at {least}.", least.removeprefix("token "): f"It looks least at {least}."}
        if len(best) < len(row)
        else {},
        also=(*best[1:], *also),
    )


_PLACES = (whole("head", "head", 0, 0, 1), whole("query", "token that looks", 2, 0, 2),
           whole("key", "token looked at", 0, 0, 2))  # fmt: skip
_SCORES = text("scores", "scores", "1 0 -0.5 0.3", others=("2 1 0 -1", "0.4 0.1 -0.2", "3 1 1"))
CHECKS: Mapping[str, Check | Predict] = {
    "example-weight": Check(example_weight, _PLACES),
    "without-scale": Check(without_scale, _PLACES),
    "changed-row": Check(
        changed_row,
        (_SCORES, choice("operation", "done to each", (ADD, TIMES)), number("amount", "amount", 2, 0.5, 10, 0.5)),
        sound=lambda values: values["operation"] == ADD or values.number("amount") > 1,
    ),
    "looks-most": Predict(looks_most, (whole("token", "token that looks", 2, 0, 11, others=(0, 1)),)),
}

# -------------------------------------------------------------------------------------------------------------- facts


def example_shape(values: Values, load: Loader) -> str:
    """Of the worked example: tokens by width."""
    return " x ".join(map(str, _example(values.text("of")).shape))


def example_row(values: Values, load: Loader) -> str:
    return "(" + ", ".join(f"{value:.3f}" for value in _example(values.text("of")).values[values.whole("row")]) + ")"


def spread_of_products(values: Values, load: Loader) -> str:
    """The standard deviation of a product of two random vectors: the root of their width."""
    return f"{float(np.sqrt(values.whole('width'))):g}"


def largest_share(values: Values, load: Loader) -> str:
    """The mean of the largest weight of a row of random scores, n of them, divided by sqrt(d) or not."""
    width, keys = values.whole("width"), values.whole("keys")
    rng = np.random.Generator(np.random.PCG64(0))
    q, k = rng.normal(size=(400, 1, width)), rng.normal(size=(400, keys, width))
    scores = np.einsum("bqd,bkd->bk", q, k, optimize=True)
    if values["scaled"] == "yes":
        scores = scores / np.sqrt(width)
    return f"{float(softmax_rows(scores)[0].max(axis=1).mean()):.2f}"


def _example(label: str) -> Table:
    usual = Values({parameter.name: parameter.value for parameter in CELLS["one-head"].parameters})
    return one_head(usual, lambda name: None).table(label)


_OF = choice("of", "which", ("X", "Q", "K", "V", "Q K^T", "scores", "weights", "weights V"))
FACTS: Mapping[str, Fact] = {
    "example-shape": Fact(example_shape, (_OF,)),
    "example-row": Fact(example_row, (_OF, whole("row", "row", 0, 0, 2))),
    "spread-of-products": Fact(spread_of_products, (whole("width", "width", 64, 1, 4096),)),
    "largest-share": Fact(
        largest_share,
        (
            whole("width", "width", 64, 1, 512),
            whole("keys", "keys", 16, 2, 64),
            choice("scaled", "scaled", ("yes", "no")),
        ),
    ),
}
