"""Who may look where, and softmax: the two steps that turn a row of scores into a row of weights.

What: `visible_keys` says which keys a query may see by position alone (causal, sliding window); `softmax_rows` turns
scores into weights and keeps each row's log-sum-exp, `lse`.
Why: everything that can go wrong between a score and a weight goes wrong here: an overflow, a row with nothing to
look at, a mask that sits one position off, a sink that somebody renormalised away. One short page settles each case.
Cost: O(scores) time and memory; the scores are the whole map, which is why this is the reference and not the product.
Source: Vaswani et al. 2017, section 3.2.1; the sink logit is that of gpt-oss (OpenAI 2025, model card).
"""

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from manyheads.errors import ShapeError


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
    seen = total > 0
    weights = np.divide(raised, total, out=np.zeros_like(raised), where=seen)
    lse = top + np.log(total, out=np.full_like(total, -np.inf), where=seen)
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
        visible &= broadcast("mask", _as_boolean(mask), shape)
    return visible


def broadcast(name: str, array: Shaped[np.ndarray, "..."], shape: tuple[int, ...]) -> Shaped[np.ndarray, "..."]:
    """`array` seen as `shape`, or an error that says which argument would not fit."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ShapeError(
            f"{name} has shape {np.shape(array)}, which does not broadcast to (batch, heads, queries, keys) = {shape}."
        ) from None


def _as_boolean(mask: Shaped[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
    mask = np.asarray(mask)
    # A float mask of zeros may mean "add nothing" or "see nothing", so it is not for us to guess.
    if mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
        raise ShapeError(
            f"mask is {mask.dtype} and must be booleans, or integers 0 and 1 (1 = may look). Numbers to add to the "
            "scores go into bias=; a 0/1 mask of floats becomes boolean with mask.astype(bool)."
        )
    return mask.astype(bool)
