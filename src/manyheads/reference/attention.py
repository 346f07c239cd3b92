"""Scaled dot-product attention in plain NumPy, float64: the one operation, with everything that real models add to it.

Why: this is the oracle; all faster code in the library is held to it. `multihead` builds multi-head attention on it.
Cost: holds the whole map in float64, O(b h q k) memory. Fine for a sentence, hopeless for a book (see `nn.attend`).
Source: Vaswani et al. 2017, section 3.2; grouped key/value heads: Ainslie et al. 2023 (GQA), Shazeer 2019 (one: MQA).

Axes: b batch, h query head, g key/value head, q query, k key, d width of q and k, f width of v.
"""

from dataclasses import dataclass

import numpy as np
from einops import repeat
from jaxtyping import Float64, Real, Shaped

from manyheads.errors import ShapeError
from manyheads.base.grouping import check_groups
from manyheads.reference.softmax import broadcast, softmax_rows, visible_keys


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
    """Scaled dot-product attention, softmax(scale * q k^T) v with scale = 1 / sqrt(d), and each row's log-sum-exp.

    Scores are made in this order: scale, soft cap `softcap * tanh(scores / softcap)`, bias, mask. `mask` (boolean or
    0/1 integers, 1 = may look) and `bias` (added to the scores) broadcast to "b h q k". `causal` and `window` go by
    position: query i of Q stands at i + K - Q (`visible_keys` says more). `sinks` is one more logit per head in every
    denominator, its column dropped: such rows sum to less than 1. A row that may see nothing has weights 0, output 0,
    lse -inf. Query head h reads key/value head h // (H / G).

    Raises ShapeError for what does not fit. Source: Vaswani et al. 2017, equation 1; the cap: Gemma 2, 2024, section 2.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    serves = _heads_served(q, k, v)
    k = repeat(k, "b g k d -> b (g serves) k d", serves=serves)
    v = repeat(v, "b g k f -> b (g serves) k f", serves=serves)
    shape = (*q.shape[:3], k.shape[2])
    if scale is None:
        scale = 1 / np.sqrt(max(q.shape[3], 1))  # heads of width 0 score 0 everywhere, whatever the scale
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q, k, optimize=True)
    if softcap is not None:
        if not softcap > 0:
            raise ShapeError(f"{softcap=} is no cap: it squeezes scores into (-softcap, softcap). Use None for no cap.")
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + broadcast("bias", bias, shape)
    if sinks is not None and np.shape(sinks) != shape[1:2]:
        raise ShapeError(f"sinks has shape {np.shape(sinks)}, but there is one sink for each query head: {shape[1:2]}.")
    sinks = None if sinks is None else np.asarray(sinks, np.float64)[:, None]  # the same for every query of a head
    visible = visible_keys(shape, mask=mask, causal=causal, window=window)
    weights, lse = softmax_rows(np.where(visible, scores, -np.inf), sinks)
    return Attended(np.einsum("bhqk,bhkf->bhqf", weights, v, optimize=True), weights, lse)


def _heads_served(q: Shaped[np.ndarray, "..."], k: Shaped[np.ndarray, "..."], v: Shaped[np.ndarray, "..."]) -> int:
    """How many query heads each key/value head serves, once q, k and v are known to fit."""
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            f"q has shape {q.shape}, k {k.shape}, v {v.shape}; they must be (b, h, q, d), (b, g, k, d), (b, g, k, f): "
            "the same batch, heads of one width in q and k, and a value for every key."
        )
    if q.shape[1] == k.shape[1]:  # no heads at all on either side is an empty axis, not an error
        return 1
    check_groups(q.shape[1], k.shape[1])
    return q.shape[1] // k.shape[1]
