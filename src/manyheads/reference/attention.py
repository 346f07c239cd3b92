"""Scaled dot-product attention in plain NumPy, float64: the one operation, with everything that real models add to it.

Why: this is the oracle; all faster code in the library is held to it. `multihead` builds multi-head attention on it.

Two steps turn a row of scores into a row of weights: `visible_keys` says which keys a query may see by position alone
(causal, sliding window); `softmax_rows` turns scores into weights and keeps each row's log-sum-exp, `lse`. Everything
that can go wrong between a score and a weight goes wrong there: an overflow, a row with nothing to look at, a mask that
sits one position off, a sink that somebody renormalised away.

Cost: holds the whole map in float64, O(b h q k) memory. Fine for a sentence, hopeless for a book (see
`attention.attend`).
Source: Vaswani et al. 2017, section 3.2; grouped key/value heads: Ainslie et al. 2023 (GQA), Shazeer 2019 (one: MQA).
The sink logit is that of gpt-oss (OpenAI 2025, model card).

Axes: b batch, h query head, g key/value head, q query, k key, d width of q and k, f width of v.
"""

from dataclasses import dataclass

import numpy as np
from einops import repeat
from jaxtyping import Bool, Float, Float64, Real, Shaped

from manyheads.base import check_groups
from manyheads.errors import ShapeError


@dataclass(frozen=True)
class Attended:
    """What `attend` returns. For every cell, weights = exp(scores - lse), so q, k and lse are enough to rebuild any."""

    out: Float64[np.ndarray, "b h q f"]
    weights: Float64[np.ndarray, "b h q k"]
    lse: Float64[np.ndarray, "b h q"]  # natural log of the whole denominator, sinks included


def attend(
    q: Real[np.ndarray, "b h q d"],
    k: Real[np.ndarray, "b g k d"],
    v: Real[np.ndarray, "b g k f"],
    *,
    mask: Shaped[np.ndarray, "..."] | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float | None = None,
    sinks: Real[np.ndarray, " h"] | None = None,
    bias: Real[np.ndarray, "..."] | None = None,
    window: int | None = None,
) -> Attended:
    """Scaled dot-product attention, softmax(scale * q k^T) v, and each row's log-sum-exp.

    - `q`: queries.
    - `k`: keys. Query head h reads key/value head h // (H / G).
    - `v`: values.
    - `mask`: boolean or 0/1 integers, 1 = may look; broadcasts to "b h q k".
    - `scale`: of the scores; None: 1 / sqrt(d).
    - `causal`: by position: query i of Q stands at i + K - Q (`visible_keys` says more).
    - `softcap`: softcap * tanh(scores / softcap).
    - `sinks`: one more logit per head in every denominator, its column dropped: such rows sum to less than 1.
    - `bias`: added to the scores; broadcasts to "b h q k".
    - `window`: how many keys a row sees, its own the last, by position as `causal`.

    Scores are made in this order: scale, soft cap, bias, mask. A row that may see nothing has weights 0, output 0, lse
    -inf. Raises ShapeError for what does not fit.
    Source: Vaswani et al. 2017, equation 1; the cap: Gemma 2, 2024, section 2.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            f"q has shape {q.shape}, k {k.shape}, v {v.shape}; they must be (b, h, q, d), (b, g, k, d), (b, g, k, f): "
            "the same batch, heads of one width in q and k, and a value for every key."
        )
    serves = 1  # no heads at all on either side is an empty axis, not an error
    if q.shape[1] != k.shape[1]:
        check_groups(q.shape[1], k.shape[1])
        serves = q.shape[1] // k.shape[1]
    k = repeat(k, "b g k d -> b (g serves) k d", serves=serves)
    v = repeat(v, "b g k f -> b (g serves) k f", serves=serves)
    shape = (*q.shape[:3], k.shape[2])
    if scale is None:
        scale = 1 / np.sqrt(max(q.shape[3], 1))  # heads of width 0 score 0 everywhere, whatever the scale
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q, k, optimize=True)
    if softcap is not None:
        if not softcap > 0:
            raise ShapeError(
                f"{softcap=} is not a cap: it squeezes scores into (-softcap, softcap). Use None for no cap."
            )
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + broadcast("bias", bias, shape)
    if sinks is not None and np.shape(sinks) != shape[1:2]:
        raise ShapeError(f"sinks has shape {np.shape(sinks)}, but there is one sink for each query head: {shape[1:2]}.")
    sinks = None if sinks is None else np.asarray(sinks, np.float64)[:, None]  # the same for every query of a head
    visible = visible_keys(shape, mask=mask, causal=causal, window=window)
    weights, lse = softmax_rows(np.where(visible, scores, -np.inf), sinks)
    return Attended(np.einsum("bhqk,bhkf->bhqf", weights, v, optimize=True), weights, lse)


# -------------------------------------------------------------------------------------- who may look where, and softmax


def softmax_rows(
    scores: Float[np.ndarray, "*rows k"], sinks: Float[np.ndarray, "..."] | None = None
) -> tuple[Float64[np.ndarray, "*rows k"], Float64[np.ndarray, "*rows"]]:
    """Each row's softmax, and its log-sum-exp (natural log): `weights = exp(scores - lse)`.

    A score of -inf means "may not look" and gets weight 0. `sinks`, broadcastable to "*rows", is one more logit in each
    row's denominator whose column is dropped: what the sink takes is missing, so such rows sum to less than 1.
    A row with nothing to look at has weights 0 and lse -inf; with a sink, lse is the sink itself.
    """
    scores = np.asarray(scores, np.float64)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)  # `initial` answers for a row of no keys at all
    sink = np.full_like(top, -np.inf)  # exp(-inf) = 0: a sink that takes nothing is no sink
    if sinks is not None:
        sink[..., 0] = sinks
        top = np.maximum(top, sink)
    # Softmax does not change when a row is shifted, so shift its largest entry to 0: exp can no longer overflow.
    # A row of nothing but -inf stays where it is, because -inf - (-inf) would be nan.
    top = np.where(top == -np.inf, 0.0, top)
    raised = np.exp(scores - top)
    total = raised.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    sees_any = total > 0
    weights = np.divide(raised, total, out=np.zeros_like(raised), where=sees_any)
    lse = top + np.log(total, out=np.full_like(total, -np.inf), where=sees_any)
    return weights, lse[..., 0]


def visible_keys(
    shape: tuple[int, int, int, int],
    *,
    mask: Shaped[np.ndarray, "..."] | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Bool[np.ndarray, "b h q k"]:
    """True where a query may see a key: allowed by the mask *and* by their positions. `shape` is (b, h, q, k).

    `mask` is boolean or 0/1 integers, 1 = may look, and broadcasts to `shape`. The queries are the *last* of the text's
    positions, as when new tokens meet a cache of old ones: query i of Q stands at position i + K - Q. Causal: no key
    after that. Window: only keys less than `window` positions away, so that a causal window of w shows the last w keys.

    >>> visible_keys((1, 1, 2, 4), causal=True, window=2)[0, 0].astype(int)
    array([[0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    num_queries, num_keys = shape[2:]
    ahead = np.arange(num_keys) - (np.arange(num_queries)[:, None] + num_keys - num_queries)
    visible = np.ones(shape, bool)
    if causal:
        visible &= ahead <= 0
    if window is not None:
        if window < 1:
            raise ShapeError(f"{window=} shows no key: it counts keys, the query's own among them. Use 1 or more.")
        visible &= np.abs(ahead) < window
    if mask is not None:
        mask = np.asarray(mask)
        # A float mask of zeros may mean "add nothing" or "see nothing", so it is not for us to guess.
        if mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            raise ShapeError(
                f"mask is {mask.dtype} and must be booleans, or integers 0 and 1 (1 = may look). Numbers to add to the "
                "scores go into bias=; a 0/1 mask of floats becomes boolean with mask.astype(bool)."
            )
        visible &= broadcast("mask", mask.astype(bool), shape)
    return visible


def broadcast(name: str, array: Shaped[np.ndarray, "..."], shape: tuple[int, ...]) -> Shaped[np.ndarray, "..."]:
    """`array` seen as `shape`, or an error that says which argument would not fit."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ShapeError(
            f"{name} has shape {np.shape(array)}, which does not broadcast to (batch, heads, queries, keys) = {shape}."
        ) from None
