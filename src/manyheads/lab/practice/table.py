"""The ten exercises of `manyheads practice`: what each asks, what is right, and which mistakes are known.

What is right is what `manyheads.reference` says. A mistake is a change of a few options of a second, small
implementation (`attend_with` and what stands around it); without a change it gives the right numbers as well, which the
tests hold to the reference. Options of two mistakes can be changed at once, so that both are named.

Inputs are drawn, their sizes all different: a transpose that is missing, or an axis that is another, then either fails
or gives numbers of its own.

Axes: b text, h query head, g key/value head, n token, q query, k key, d width of q and k, f width of v, m width of the
model.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np
from einops import rearrange, repeat
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from manyheads import reference
from manyheads.lab.practice.exercise import (
    Array,
    Case,
    Exercise,
    Function,
    Mistake,
    Option,
    SolutionError,
    in_words,
    mistake,
    nearly_equal,
    normal,
    numbers,
)

LARGE = 1000.0  # nats: exp of it is no float64
LEAST_SHARE = 0.9  # of a designed head's weight, on the word before
LOOKS = 0.3  # of it, somewhere: less is no look at anything
MAP_QUERIES, MAP_KEYS, MAP_BLOCK = 768, 1024, 64  # of the call whose memory is measured
SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "Nobody in the village had seen the river so high.",
    "She reads the letter twice and burns it.",
    "A small boat left the harbour before the storm came in from the west.",
    "When the music stopped, every dancer looked at the door.",
    "Rain fell.",
)


# ---------------------------------------------------------------------------------- attention, right and wrong at will


def _softmax(scores: Array, axis: int | None = -1, *, top: str = "row", form: str = "weights") -> Array:
    """Softmax, and its mistakes. `top`: which maximum is taken away. `form`: what is returned."""
    if top == "row":
        scores = scores - scores.max(axis=axis, keepdims=True)
    elif top == "all":
        scores = scores - scores.max()
    raised = np.exp(-scores if form == "minus" else scores)
    if form == "raised":
        return raised
    weights = raised / raised.sum(axis=axis, keepdims=True)
    return np.log(weights) if form == "logarithm" else weights


def attend_with(
    q: Array,
    k: Array,
    v: Array,
    visible: Bool[ndarray, "..."] | None = None,
    *,
    scale: str = "right",
    width: int | None = None,
    axis: int = -1,
    top: str = "row",
    masked: Literal["before", "after", "as zero", "not"] = "before",
    fill: float = -np.inf,
    result: str = "out",
) -> Array:
    """softmax(q k^T / sqrt(d)) v on the last two axes, and its mistakes.

    - `visible`: True where a query may look.
    - `scale`: "right", or how it is wrong.
    - `width`: of the model, where a solution could take the wrong one.
    - `axis`: of the softmax.
    - `top`: as `_softmax`.
    - `masked`: where the mask is applied.
    - `fill`: the score of a hidden key.
    - `result`: what is returned.
    """
    head_dim = q.shape[-1]
    scales = {
        "right": 1 / math.sqrt(head_dim),
        "none": 1.0,
        "d": 1 / head_dim,
        "times": math.sqrt(head_dim),
        "keys": 1 / math.sqrt(k.shape[-2]),
        "values": 1 / math.sqrt(v.shape[-1]),
        "model": 1 / math.sqrt(width or head_dim),
        "weights": 1.0,
    }
    scores = scales[scale] * (q @ np.swapaxes(k, -1, -2))
    if visible is not None and masked == "before":
        scores = np.where(visible, scores, fill)
    elif visible is not None and masked == "as zero":
        scores = scores * visible
    weights = scores if result == "scores" else _softmax(scores, axis, top=top)
    if visible is not None and masked == "after":
        weights = weights * visible
    if scale == "weights":
        weights = weights / math.sqrt(head_dim)
    return weights if result == "weights" else weights @ (k if result == "keys" else v)


def _reference(q: Array, k: Array, v: Array, **options: bool | Array) -> Array:
    """The reference's output, for q, k and v with or without axes of texts and heads."""
    missing = (None,) * (4 - q.ndim)
    out = reference.attend(q[missing], k[missing], v[missing], **options).out  # type: ignore[arg-type]
    return out.reshape(*q.shape[:-1], v.shape[-1])


NO_SCALE = mistake("missing scale", "divide the scores by the square root of d, the width of a query.", scale="none")
SCALE_BY_D = mistake("scaled by d", "divide the scores by the square root of d, not by d.", scale="d")
QUERY_AXIS = mistake(
    "wrong axis", "each query's weights over all keys must sum to 1: softmax over the last axis, that of keys.", axis=-2
)
MASK_AFTER = mistake(
    "mask after softmax",
    "rows no longer sum to 1. Set hidden scores to -inf before the softmax; the weights then need no mask.",
    masked="after",
)
MASK_AS_ZERO = mistake(
    "masked with zero",
    "a score of 0 is not a mask, since exp(0) = 1: a hidden key keeps its weight. Set hidden scores to -inf.",
    masked="as zero",
)
NO_MASK = mistake("no mask", "every query still looks at every key.", masked="not")
OVERFLOW = mistake(
    "overflow",
    "exp of a large score is infinite. Take each row's maximum away first: softmax does not see the difference.",
    top="none",
)


def _with_large_scores(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    """q and k with scores that are LARGE, or as far below 0, in a whole row: its softmax stays what it is."""
    signs = np.where(np.arange(q.shape[-2]) % 2, -1.0, 1.0)
    q, k = q.copy(), k.copy()
    q[..., 0] = signs * rng.uniform(0.9, 1.1, q.shape[:-1])
    k[..., 0] = LARGE * math.sqrt(q.shape[-1])
    return q, k


# --------------------------------------------------------------------------------------------------- the ten exercises


def _softmax_cases(rng: np.random.Generator) -> list[Case]:
    scores = 2 * normal(rng, 3, 5, 7)
    shifts = rng.permutation([LARGE, -LARGE, 0.0])[:, None, None] * np.array([1, -1, 0, 1, -1.0])[:, None]
    return [(scores,), (scores[..., :6] + shifts,)]


SOFTMAX = Exercise(
    "softmax",
    "Softmax of each row, for scores of any size",
    1,
    "softmax(scores)",
    "scores: [h, q, k]. Returns weights of the same shape: each row, along the last axis, is exp(scores) divided by "
    "its sum.\nScores may be as large as 1,000.",
    _softmax_cases,
    lambda scores: reference.softmax_rows(scores)[0],
    _softmax,
    (
        mistake("wrong axis", "rows lie along the last axis: axis=-1.", {"axis": 0}, {"axis": 1}),
        mistake("one sum for all", "each row has a sum of its own: axis=-1, keepdims=True.", {"axis": None}),
        OVERFLOW,
        mistake(
            "one maximum for all", "take each row's own maximum away: far below another's, all exp are 0.", top="all"
        ),
        mistake("not divided", "divide exp(scores) by the sum of its row.", form="raised"),
        mistake("logarithm", "return the weights, not their logarithms.", form="logarithm"),
        mistake("wrong sign", "it is exp(scores), not exp(-scores): the largest score gets most.", form="minus"),
    ),
)


def _plain_cases(rng: np.random.Generator) -> list[Case]:
    q, k, v = normal(rng, 2, 6, 5, 4), normal(rng, 2, 6, 7, 4), normal(rng, 2, 6, 7, 3)
    return [(q, k, v), (*_with_large_scores(rng, q, k), v)]


SCALED_DOT_PRODUCT = Exercise(
    "scaled-dot-product",
    "softmax(q k^T / sqrt(d)) v",
    1,
    "attention(q, k, v)",
    "q: [b, h, q, d], k: [b, h, k, d], v: [b, h, k, f]. Returns [b, h, q, f].\n"
    "No mask. Scores may be as large as 1,000.",
    _plain_cases,
    _reference,
    attend_with,
    (
        NO_SCALE,
        SCALE_BY_D,
        mistake("scale the wrong way", "divide by sqrt(d), do not multiply.", scale="times"),
        mistake("scaled by the number of keys", "d is the width of a query, not the number of keys.", scale="keys"),
        mistake("scaled by the width of v", "d is the width of q and k, not of v.", scale="values"),
        mistake("scale after softmax", "divide the scores by sqrt(d), before the softmax.", scale="weights"),
        QUERY_AXIS,
        mistake("softmax over heads", "each head has a softmax of its own: over the last axis.", axis=-3),
        mistake("no softmax", "turn scores into weights: softmax over the keys, then times v.", result="scores"),
        OVERFLOW,
        mistake("weights returned", "multiply the weights by v.", result="weights"),
        mistake("keys in place of values", "multiply the weights by v, not by k.", result="keys"),
    ),
)


def _causal_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (normal(rng, h, n, d), normal(rng, h, n, d), normal(rng, h, n, f))
        for h, n, d, f in ((3, 6, 4, 5), (2, 7, 5, 3))
    ]


def _causal(q: Array, k: Array, v: Array, *, show: str = "past", **options: Option) -> Array:
    keys, queries = np.arange(k.shape[-2]), np.arange(q.shape[-2])[:, None]
    visible = {
        "past": keys <= queries,
        "before": keys < queries,
        "one more": keys <= queries + 1,
        "future": keys >= queries,
        "after": keys > queries,
    }[show]
    return attend_with(q, k, v, visible, **options)  # type: ignore[arg-type]


CAUSAL_MASK = Exercise(
    "causal-mask",
    "Attention in which no token sees a later one",
    2,
    "causal_attention(q, k, v)",
    "q and k: [h, n, d], v: [h, n, f], of the same n tokens. Returns [h, n, f].\n"
    "Token i looks at tokens 0 to i, itself among them; the scale is 1 / sqrt(d).",
    _causal_cases,
    lambda q, k, v: _reference(q, k, v, causal=True),
    _causal,
    (
        NO_MASK,
        MASK_AFTER,
        MASK_AS_ZERO,
        mistake(
            "diagonal hidden",
            "a token also sees itself; the first one has nothing else. Hide keys after the query: np.triu(..., 1).",
            {"show": "before"},
            {"show": "before", "fill": -1e9},
        ),
        mistake("one key too many", "token i must not see token i + 1.", show="one more"),
        mistake(
            "mask reversed",
            "tokens see the future, and not the past: queries are rows and keys columns, hidden is key > query.",
            {"show": "future"},
            {"show": "after"},
            {"show": "after", "fill": -1e9},
        ),
        NO_SCALE,
        SCALE_BY_D,
        QUERY_AXIS,
    ),
)


def _padding_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for b, q, k, d, f in ((4, 5, 8, 3, 6), (3, 6, 7, 5, 4)):
        shorter = 2 + rng.permutation(k - 3)[: b - 1]  # the first text is: its length for all is then a mistake
        lengths = np.array([shorter[0], *rng.permutation([k, *shorter[1:]])])
        cases.append((normal(rng, b, q, d), normal(rng, b, k, d), normal(rng, b, k, f), lengths))
    return cases


def _padded(q: Array, k: Array, v: Array, lengths: Int64[ndarray, " b"], *, show: str = "real", **options: Option):
    keys, queries = np.arange(k.shape[1])[None, None], np.arange(q.shape[1])[None, :, None]
    length = lengths[:, None, None]
    visible = {
        "real": keys < length,
        "one more": keys <= length,
        "one fewer": keys < length - 1,
        "padding": keys >= length,
        "left": keys >= k.shape[1] - length,
        "first text's": keys < lengths[0],
        "queries": (queries < length) & (keys >= 0),
    }[show]
    return attend_with(q, k, v, visible, **options)  # type: ignore[arg-type]


PADDING_MASK = Exercise(
    "padding-mask",
    "Texts of different lengths in one batch: padding is not looked at",
    2,
    "masked_attention(q, k, v, lengths)",
    "q: [b, q, d], k: [b, k, d], v: [b, k, f], lengths: [b] whole numbers. Returns [b, q, f].\n"
    "Of text b, keys 0 to lengths[b] - 1 are real and the others padding, which no query may look at. All queries are "
    "real.\nThe scale is 1 / sqrt(d).",
    _padding_cases,
    lambda q, k, v, lengths: reference.attend(
        q[:, None],
        k[:, None],
        v[:, None],
        mask=(np.arange(k.shape[1]) < lengths[:, None])[:, None, None],
    ).out[:, 0],
    _padded,
    (
        NO_MASK,
        MASK_AFTER,
        MASK_AS_ZERO,
        mistake(
            "one key too many", "key number lengths[b] is padding already: real is index < length.", show="one more"
        ),
        mistake("one key too few", "key number lengths[b] - 1 is real: real is index < length.", show="one fewer"),
        mistake(
            "mask inverted",
            "queries look at the padding alone: hide index >= length.",
            {"show": "padding"},
            {"show": "padding", "fill": -1e9},
        ),
        mistake("padding taken to be in front", "real keys come first here, padding behind them.", show="left"),
        mistake(
            "one length for all", "each text has a length of its own: lengths[:, None, None].", show="first text's"
        ),
        mistake(
            "queries masked",
            "the mask is on keys, the last axis of the scores, not on queries.",
            {"show": "queries"},
            {"show": "queries", "fill": -1e9},
        ),
        NO_SCALE,
        SCALE_BY_D,
        QUERY_AXIS,
    ),
)


def _naive_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (
            normal(rng, n, m),
            *(normal(rng, h, m, width) / math.sqrt(m) * 2 for width in (d, d, f)),
            normal(rng, h * f, m),
        )
        for h, n, m, d, f in ((3, 5, 10, 4, 2), (2, 6, 7, 3, 4))
    ]


def _naive(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    *,
    heads: str = "all",
    keys: str = "w_k",
    merge: str = "side by side",
    **options: Option,
) -> Array:
    if heads == "first":
        w_q, w_k, w_v = (repeat(w[0], "m d -> h m d", h=len(w)) for w in (w_q, w_k, w_v))
    k = x @ (w_q if keys == "w_q" else w_k)
    out = attend_with(x @ w_q, k, x @ w_v, width=x.shape[-1], **options)  # type: ignore[arg-type]
    if merge == "mixed":
        merged = out.reshape(len(x), -1)
    elif merge == "reversed":
        merged = rearrange(out[::-1], "h n f -> n (h f)")
    else:
        merged = rearrange(out, "h n f -> n (f h)" if merge == "interleaved" else "h n f -> n (h f)")
    return merged if merge == "no w_o" else merged @ w_o


SCALE_BY_MODEL = mistake(
    "scaled by the model's width", "d is the width of one head, not of the model or of all heads.", scale="model"
)
MULTI_HEAD_NAIVE = Exercise(
    "multi-head-naive",
    "Multi-head attention in a loop, one matrix per head",
    2,
    "multi_head(x, w_q, w_k, w_v, w_o)",
    "x: [n, m], w_q and w_k: [h, m, d], w_v: [h, m, f], w_o: [h * f, m]. Returns [n, m].\n"
    "Head i is attention of x w_q[i], x w_k[i], x w_v[i], without a mask. Heads are put side by side, head 0 first, "
    "and multiplied by w_o.",
    _naive_cases,
    lambda *case: reference.naive(case[0], reference.NaiveWeights(*case[1:])).out,
    _naive,
    (
        NO_SCALE,
        SCALE_BY_D,
        SCALE_BY_MODEL,
        QUERY_AXIS,
        mistake("one head again and again", "head i has matrices of its own: w_q[i], w_k[i], w_v[i].", heads="first"),
        mistake("keys from w_q", "keys are x w_k[i].", keys="w_q"),
        mistake(
            "heads mixed by a reshape",
            "a reshape of [h, n, f] to [n, h * f] cuts through tokens: move the head axis behind the tokens first, "
            "or concatenate along the last axis.",
            merge="mixed",
        ),
        mistake("columns interleaved", "each head's columns stay together: h before f.", merge="interleaved"),
        mistake("heads reversed", "head 0 comes first.", merge="reversed"),
        mistake("no w_o", "multiply the heads, side by side, by w_o.", merge="no w_o"),
    ),
)


def _batched_cases(rng: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    for b, h, n, m, d, f in ((2, 3, 5, 10, 4, 6), (4, 2, 6, 9, 3, 5)):
        wide = (normal(rng, m, h * width) / math.sqrt(m) * 2 for width in (d, d, f))
        cases.append((normal(rng, b, n, m), *wide, normal(rng, h * f, m), h))
    return cases


def _batched_right(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, num_heads: int) -> Array:
    return reference.batched(x, reference.BatchedWeights(num_heads, num_heads, w_q, w_k, w_v, w_o)).out


def _batched(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    num_heads: int,
    *,
    split: str = "right",
    merge: str = "right",
    **options: Option,
) -> Array:
    def heads_of(wide: Array) -> Array:
        match split:
            case "mixed":
                return wide.reshape(len(x), num_heads, x.shape[1], -1)
            case "interleaved":
                return rearrange(wide, "b n (d h) -> b h n d", h=num_heads)
            case "none":
                return wide[:, None]
            case "over heads":
                return rearrange(wide, "b n (h d) -> b n h d", h=num_heads)
            case _:
                return rearrange(wide, "b n (h d) -> b h n d", h=num_heads)

    out = attend_with(*(heads_of(x @ w) for w in (w_q, w_k, w_v)), width=w_q.shape[1], **options)  # type: ignore[arg-type]
    if split == "over heads" or merge == "mixed":
        merged = out.reshape(len(x), x.shape[1], -1)
    else:
        merged = rearrange(out, "b h n f -> b n (f h)" if merge == "interleaved" else "b h n f -> b n (h f)")
    return merged if merge == "no w_o" else merged @ w_o


MULTI_HEAD_BATCHED = Exercise(
    "multi-head-batched",
    "The same at once: wide matrices, cut into heads",
    2,
    "multi_head(x, w_q, w_k, w_v, w_o, num_heads)",
    "x: [b, n, m], w_q and w_k: [m, h * d], w_v: [m, h * f], w_o: [h * f, m], num_heads: h. Returns [b, n, m].\n"
    "Columns 0 to d - 1 of w_q are head 0's, the next d head 1's, and so on. No mask.",
    _batched_cases,
    _batched_right,
    _batched,
    (
        mistake(
            "heads mixed by a reshape",
            "a reshape of [b, n, h * d] to [b, h, n, d] cuts through tokens: make it [b, n, h, d], then swap n and h.",
            split="mixed",
        ),
        mistake(
            "heads merged by a reshape",
            "a reshape of [b, h, n, f] to [b, n, h * f] cuts through heads: swap h and n back first.",
            merge="mixed",
        ),
        mistake(
            "columns interleaved",
            "a head's columns stand together: reshape to (h, d), not (d, h).",
            split="interleaved",
        ),
        mistake("columns interleaved at the end", "merge (h, f) in this order, not (f, h).", merge="interleaved"),
        mistake(
            "heads attend to heads",
            "the transpose is missing: attention runs over the heads of a token, not over tokens. Swap n and h.",
            split="over heads",
        ),
        mistake(
            "one wide head",
            "the columns are never cut into heads: each head has a softmax of its own.",
            {"split": "none"},
            {"split": "none", "scale": "model"},
        ),
        NO_SCALE,
        SCALE_BY_D,
        SCALE_BY_MODEL,
        QUERY_AXIS,
        mistake("no w_o", "multiply the heads, side by side, by w_o.", merge="no w_o"),
    ),
)


def _grouped_cases(rng: np.random.Generator) -> list[Case]:
    return [
        (normal(rng, b, h, q, d), normal(rng, b, g, k, d), normal(rng, b, g, k, f))
        for b, h, g, q, k, d, f in ((2, 6, 3, 5, 7, 4, 8), (3, 8, 2, 4, 6, 5, 7))
    ]


def _grouped(q: Array, k: Array, v: Array, *, keys: str = "repeat", values: str = "repeat", **options: Option) -> Array:
    serves = q.shape[1] // k.shape[1]

    def for_queries(heads: Array, how: str) -> Array:
        match how:
            case "tile":
                return np.tile(heads, (1, serves, 1, 1))
            case "first":
                return np.repeat(heads[:, :1], q.shape[1], axis=1)
            case "mean":
                return np.repeat(heads.mean(axis=1, keepdims=True), q.shape[1], axis=1)
            case _:
                return np.repeat(heads, serves, axis=1)

    if keys == "mean of queries":
        q, keys = rearrange(q, "b (g s) q d -> b g s q d", s=serves).mean(axis=2), "none"
    elif keys == "few":
        q, keys = q[:, : k.shape[1]], "none"
    if keys == "none":
        return attend_with(q, k, v, **options)  # type: ignore[arg-type]
    return attend_with(q, for_queries(k, keys), for_queries(v, values), **options)  # type: ignore[arg-type]


GROUPED_QUERY = Exercise(
    "grouped-query",
    "Grouped-query attention: several query heads share a key/value head",
    2,
    "grouped_attention(q, k, v)",
    "q: [b, h, q, d], k: [b, g, k, d], v: [b, g, k, f], h a multiple of g. Returns [b, h, q, f].\n"
    "Query head i reads key/value head i // (h / g): the first h / g query heads read the first one. No mask; the "
    "scale is 1 / sqrt(d).",
    _grouped_cases,
    _reference,
    _grouped,
    (
        mistake(
            "tiled, not repeated",
            "query head i reads i // (h / g), and not i % g: np.repeat(k, h // g, axis=1), not np.tile.",
            keys="tile",
            values="tile",
        ),
        mistake("keys tiled, not repeated", "keys as values: query head i reads i // (h / g).", keys="tile"),
        mistake("values tiled, not repeated", "values as keys: query head i reads i // (h / g).", values="tile"),
        mistake(
            "first key/value head for all",
            "there are g of them, each for h / g query heads.",
            keys="first",
            values="first",
        ),
        mistake(
            "key/value heads averaged",
            "none is averaged: each query head reads one of them.",
            keys="mean",
            values="mean",
        ),
        mistake(
            "queries averaged", "every query head keeps its own map: the result has h heads.", keys="mean of queries"
        ),
        mistake("first query heads only", "the result has h heads: repeat keys and values for the others.", keys="few"),
        NO_SCALE,
        SCALE_BY_D,
        QUERY_AXIS,
    ),
)


def _cache_cases(rng: np.random.Generator) -> list[Case]:
    h, d, f = 3, 4, 5
    texts = tuple((normal(rng, h, n, d), normal(rng, h, n, d), normal(rng, h, n, f)) for n in (6, 7))
    return [(texts,)]


SHARED_CACHE = Mistake(  # it is seen where the same call gives another result, and needs no form
    "cache kept between texts",
    "where cache is None a text starts again, and its first token gives the same output every time: keep nothing "
    "outside of the cache.",
    (),
)
Texts = tuple[tuple[Array, Array, Array], ...]


def _run_steps(function: Function, case: Case) -> object:
    """The outputs of all steps of all texts, one text after another, an empty cache for each: [n, h, f]."""
    (texts,) = case
    outs: list[Array] = []

    def step(rows: tuple[Array, ...], token: int, cache: object) -> tuple[Array, object]:
        returned = function(*(row[:, token].copy() for row in rows), cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise SolutionError(f"it returns {in_words(returned)}: return the output and the cache, two values.")
        return numbers(returned[0]), returned[1]

    for rows in texts:  # type: ignore[attr-defined]
        first, again = (step(rows, 0, None)[0] for _ in range(2))
        if not nearly_equal(again, first):
            raise SolutionError(SHARED_CACHE.hint, SHARED_CACHE.name)
        cache: object = None
        for token in range(rows[0].shape[1]):
            out, cache = step(rows, token, cache)
            outs.append(out)
    shapes = list(dict.fromkeys(str(list(out.shape)) for out in outs))
    if len(shapes) > 1:
        raise SolutionError(f"its output has another shape from step to step: {', '.join(shapes[:4])}. Return [h, f].")
    return outs


def _steps(texts: Texts, *, cache: str = "all", **options: Option) -> Array:
    outs: list[Array] = []
    for q, k, v in texts:
        old: list[tuple[Array, Array]] = []
        for token in range(q.shape[1]):
            own = (k[:, token], v[:, token])
            rows = [*old, own]
            seen = {"itself": [own], "two": rows[-2:], "others": old or [own]}.get(cache, rows)
            keys, values = (np.stack(part, axis=1) for part in zip(*seen, strict=True))
            if cache == "turned":
                keys = keys[:, ::-1]
            outs.append(attend_with(q[:, token, None], keys, values, **options)[:, 0])  # type: ignore[arg-type]
            old = [*old, own]
    return np.stack(outs)


KV_CACHE = Exercise(
    "kv-cache",
    "One token at a time with a cache, the same numbers as all at once",
    2,
    "step(q, k, v, cache)",
    "q and k: [h, d], v: [h, f], of one new token. cache: what your last call returned, None before the first token of "
    "a text.\nReturns the output [h, f], and a cache. The token looks at all tokens of its text so far and at itself; "
    "the scale is 1 / sqrt(d).",
    _cache_cases,
    lambda texts: np.concatenate([rearrange(_reference(q, k, v, causal=True), "h n f -> n h f") for q, k, v in texts]),
    _steps,
    (
        mistake(
            "cache that stays empty",
            "every token sees itself alone: put its key and value behind those in the cache, and return all.",
            cache="itself",
        ),
        mistake("cache of one token", "return all keys and values so far, not only the newest.", cache="two"),
        mistake(
            "token does not see itself", "put the new key and value into the cache before you attend.", cache="others"
        ),
        SHARED_CACHE,
        mistake(
            "keys and values in another order",
            "append both at the same end: weight j belongs to value j.",
            cache="turned",
        ),
        NO_SCALE,
        SCALE_BY_D,
        mistake("softmax over heads", "each head's weights over the keys must sum to 1.", axis=-3),
    ),
    run=_run_steps,
)


def _streaming_cases(rng: np.random.Generator) -> list[Case]:
    q, k, v = normal(rng, 5, 4), normal(rng, 11, 4), normal(rng, 11, 3)
    k = k * np.linspace(0.5, 2, 11)[:, None]  # later scores are larger: the running maximum has to move
    return [(q, k, v, 4), (*_with_large_scores(rng, q, k), v, 2), (q[:2], k[:6], v[:6], 8)]


def _streaming(
    q: Array,
    k: Array,
    v: Array,
    block: int,
    *,
    blocks: str = "all",
    combine: str = "right",
    scale: str = "right",
    top: str = "row",
) -> Array:
    if combine in ("mean", "sum") or blocks == "last":
        starts = range(0, len(k), block)
        parts = [
            attend_with(q, k[i : i + block], v[i : i + block], scale=scale, top=top)
            for i in (starts[-1:] if blocks == "last" else starts)
        ]
        total = np.sum(parts, axis=0)
        return total / len(parts) if combine == "mean" else total
    factor = {"right": 1 / math.sqrt(q.shape[1]), "none": 1.0, "d": 1 / q.shape[1]}[scale]
    largest, total, out = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), v.shape[1]))
    for start in range(0, len(k) - len(k) % block if blocks == "whole" else len(k), block):
        scores = factor * q @ k[start : start + block].T
        new = np.maximum(largest, scores.max(axis=1)) if top == "row" else np.zeros(len(q))
        raised, rescale = np.exp(scores - new[:, None]), np.exp(largest - new)
        if top != "row":
            rescale = np.ones(len(q)) if start else np.zeros(len(q))
        total = total * (1 if combine in ("not rescaled", "sum not rescaled") else rescale) + raised.sum(axis=1)
        kept_out = 1 if combine in ("not rescaled", "output not rescaled") else rescale[:, None]
        out = out * kept_out + raised @ v[start : start + block]
        largest = new
    return out if combine == "not divided" else out / total[:, None]


def _memory_fault(function: Function, rng: np.random.Generator) -> str:
    """Whether a call holds as much as the map of all queries and keys: a sentence that says so, or ""."""
    width = 16
    case = normal(rng, MAP_QUERIES, width), normal(rng, MAP_KEYS, width), normal(rng, MAP_KEYS, width)
    map_bytes = 8 * MAP_QUERIES * MAP_KEYS
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        function(*case, MAP_BLOCK)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not was_tracing:
            tracemalloc.stop()
    if peak - before < map_bytes / 2:
        return ""
    return (
        f"The numbers are right, but it held {(peak - before) / 2**20:.1f} MiB at once, for {MAP_QUERIES} queries, "
        f"{MAP_KEYS} keys and blocks of {MAP_BLOCK}: their whole map takes {map_bytes / 2**20:.1f}, and half of it is "
        "the limit. Hold the scores of one block, and of earlier ones only a maximum, a sum and an output per query."
    )


ONLINE_SOFTMAX = Exercise(
    "online-softmax",
    "Exact attention over blocks of keys, never holding the map",
    3,
    "streaming_attention(q, k, v, block)",
    "q: [q, d], k: [k, d], v: [k, f], block: how many keys to read at a time. Returns [q, f], exactly as "
    "softmax(q k^T / sqrt(d)) v.\nKeep for each query a running maximum, sum and output. The last block may be "
    "shorter.\nScores may be as large as 1,000, and a call's memory in NumPy must stay below half of the map's.",
    _streaming_cases,
    lambda q, k, v, block: _reference(q, k, v),
    _streaming,
    (
        mistake(
            "not rescaled",
            "where the maximum grows, the sum and the output so far are in the old unit: multiply both by "
            "exp(old maximum - new maximum).",
            combine="not rescaled",
        ),
        mistake(
            "sum not rescaled",
            "the sum so far is also multiplied by exp(old - new maximum).",
            combine="sum not rescaled",
        ),
        mistake(
            "output not rescaled",
            "the output so far is also multiplied by exp(old - new maximum).",
            combine="output not rescaled",
        ),
        mistake("blocks averaged", "a block counts by the sum of its exp, not as every other.", combine="mean"),
        mistake(
            "blocks added",
            "each block is normalised by itself: divide once, at the end, by the sum over all.",
            combine="sum",
        ),
        mistake("last block only", "carry sum and output on from block to block.", blocks="last"),
        mistake("last keys left out", "the last block may be shorter than the others.", blocks="whole"),
        mistake("not divided", "divide the output by the sum, at the end.", combine="not divided"),
        OVERFLOW,
        NO_SCALE,
        SCALE_BY_D,
    ),
    check=_memory_fault,
    praise="the same numbers as the reference, and never the whole map (which is measured of NumPy, not of torch).",
)


# ----------------------------------------------------------------------------------------------------- a head by design


def _design_cases(rng: np.random.Generator) -> list[Case]:
    waves = tuple(int(rng.integers(low, high)) for low, high in ((4, 7), (8, 12), (14, 20), (32, 48)))
    words = [sentence.lower().replace(".", " .").replace(",", " ,").split() for sentence in SENTENCES]
    vocabulary = sorted({word for sentence in words for word in sentence})
    ids = dict(zip(vocabulary, rng.permutation(len(vocabulary)).tolist(), strict=True))
    sentences = tuple(np.array([ids[word] for word in sentence]) for sentence in words)
    return [(len(vocabulary), waves, sentences)]


def _token_features(num_words: int, waves: tuple[int, ...], words: Int64[ndarray, " n"]) -> Float64[ndarray, "n m"]:
    angles = 2 * math.pi * np.arange(len(words))[:, None] / np.array(waves)
    places = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.concatenate([np.eye(num_words)[words], rearrange(places, "n w two -> n (w two)")], axis=1)


OFFSETS = (-2, -1, 0, 1, 2)


def _looks(num_words: int, waves: tuple[int, ...], sentences: tuple[ndarray, ...], w_q: Array, w_k: Array) -> Array:
    """Of each sentence, the mean weight on the words at OFFSETS: [sentences, 5]."""
    rows: list[list[float]] = []
    for words in sentences:
        x = _token_features(num_words, waves, words)
        weights, _ = reference.softmax_rows((x @ w_q) @ (x @ w_k).T / math.sqrt(w_q.shape[1]))
        rows.append(
            [float(np.diagonal(weights, offset).mean()) if len(words) > abs(offset) else 0.0 for offset in OFFSETS]
        )
    return np.array(rows)


def _run_design(function: Function, case: Case) -> Array:
    num_words, waves, sentences = case
    returned = function(num_words, waves)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise SolutionError(f"it returns {in_words(returned)}: return w_q and w_k, two matrices.")
    w_q, w_k = (numbers(matrix) for matrix in returned)
    rows = num_words + 2 * len(waves)  # type: ignore[operator,arg-type]
    if w_q.ndim != 2 or w_q.shape != w_k.shape or len(w_q) != rows or not w_q.shape[1]:
        raise SolutionError(
            f"its matrices have the shapes {list(w_q.shape)} and {list(w_k.shape)}: both must be [{rows}, d], a row "
            f"for each of {num_words} words and of {2 * len(waves)} numbers of a place."  # type: ignore[arg-type]
        )
    return _looks(num_words, waves, sentences, w_q, w_k)  # type: ignore[arg-type]


def _design(
    num_words: int, waves: tuple[int, ...], sentences: tuple[ndarray, ...], *, turn: int = 1, gain: float = 60.0
) -> Array:
    """Places turned `turn` tokens back as queries, as they are as keys: scores are largest that many tokens before."""
    width = 2 * len(waves)
    w_q, w_k = np.zeros((num_words + width, width)), np.zeros((num_words + width, width))
    w_k[num_words:] = np.eye(width)
    for index, wave in enumerate(waves):
        angle, rows = 2 * math.pi * turn / wave, slice(num_words + 2 * index, num_words + 2 * index + 2)
        turned = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        w_q[rows, 2 * index : 2 * index + 2] = gain * np.array(turned)
    return _looks(num_words, waves, sentences, w_q, w_k)


def _strongest(looks: Array) -> tuple[int, bool]:
    """The place among OFFSETS with most weight, and whether every sentence has LEAST_SHARE of it there; -1 where none
    has LOOKS of it."""
    index = int(looks.mean(axis=0).argmax())
    return index if looks[:, index].mean() >= LOOKS else -1, bool(looks[:, index].min() >= LEAST_SHARE)


def _explain_design(looks: Array, expected: Array) -> str:
    if not np.isfinite(looks).all():
        return "The weights are not finite: make the matrices smaller."
    return (
        f"Of the weight, {looks[:, 1].min():.0%} is on the word before in the worst of {len(looks)} sentences, and "
        f"{LEAST_SHARE:.0%} is needed in each; {looks[:, 2].mean():.0%} is on the word itself, in the mean."
    )


DESIGN_A_HEAD = Exercise(
    "design-a-head",
    "W_Q and W_K of a head that looks at the word before",
    3,
    "previous_token_head(num_words, waves)",
    "Returns w_q and w_k, both [m, d]: m = num_words + 2 * len(waves), d is yours to choose.\n"
    "A token is x = [which word it is: a 1 among num_words | for each wave w: cos(2 pi i / w), sin(2 pi i / w)], i its "
    "place.\nWeights are softmax(x w_q (x w_k)^T / sqrt(d)), without a mask. In every sentence, none of which you see, "
    f"{LEAST_SHARE:.0%} of the\nweight must be on the word before, in the mean over all words but the first.",
    _design_cases,
    _design,
    _design,
    (
        mistake("looks at itself", "turn each wave of the query back by one token: an angle of 2 pi / w.", turn=0),
        mistake("looks at the next word", "the query is turned the wrong way: change the sign of the angle.", turn=-1),
        mistake("looks two words back", "turn by one token, an angle of 2 pi / w: not by two.", turn=2),
        mistake(
            "too flat",
            "the weight is spread over too many words: multiply w_q, so that scores differ by more.",
            {"gain": 2.0},
            {"gain": 4.0},
            {"gain": 6.0},
        ),
    ),
    run=_run_design,
    same=lambda looks, expected: bool(np.isfinite(looks).all()) and _strongest(looks) == _strongest(expected),
    explain=_explain_design,
    praise=f"in every sentence, {LEAST_SHARE:.0%} of the weight or more is on the word before.",
)

EXERCISES: Mapping[str, Exercise] = MappingProxyType(
    {
        exercise.name: exercise
        for exercise in (
            SOFTMAX,
            SCALED_DOT_PRODUCT,
            CAUSAL_MASK,
            PADDING_MASK,
            MULTI_HEAD_NAIVE,
            MULTI_HEAD_BATCHED,
            GROUPED_QUERY,
            KV_CACHE,
            ONLINE_SOFTMAX,
            DESIGN_A_HEAD,
        )
    }
)
"""The exercises by name, in their order. A progress code has a bit for each: new ones go to the end."""
