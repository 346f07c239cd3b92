"""Multi-head attention in plain NumPy, float64, three ways that give the same numbers. The page to learn from.

`naive`, `batched` and `fused` are multi-head attention over one matrix per head, one wide matrix, and one matrix for
queries, keys and values (`layouts`). Start at `naive`, which is the textbook's formula line by line, and see that the
other two only rearrange its weights.
Cost: as `attend`, O(b h q k) memory. Source: Vaswani et al. 2017, section 3.2.2; GQA: Ainslie et al. 2023.

Axes: b batch, h query head, g key/value head, q query, k key, d width of q and k, f width of v, m width of the model.
"""

from dataclasses import dataclass

import numpy as np
from einops import rearrange
from jaxtyping import Float64, Real, Shaped

from manyheads.errors import ShapeError
from manyheads.reference.attention import attend
from manyheads.reference.layouts import BatchedWeights, FusedWeights, NaiveWeights, Weights
from manyheads.reference.softmax import softmax_rows, visible_keys


@dataclass(frozen=True)
class MultiHead:
    """What multi-head attention returns. An input without a batch axis gets results without one."""

    out: Float64[np.ndarray, "*b q m"]
    weights: Float64[np.ndarray, "*b h q k"]
    heads: Float64[np.ndarray, "*b h q f"]  # each head's own output, before W^O mixes them
    lse: Float64[np.ndarray, "*b h q"]


def naive(
    x: Real[np.ndarray, "*b q m"],
    weights: NaiveWeights,
    *,
    context: Real[np.ndarray, "*b k m"] | None = None,
    mask: Shaped[np.ndarray, "..."] | None = None,
    causal: bool = False,
) -> MultiHead:
    """Multi-head attention as the textbook writes it: head by head, one matrix at a time, in a loop.

    `x` is [n, m] or [batch, n, m]; keys and values come from `context` where it is given (cross-attention), else from
    `x` itself. `mask` is [n, n] for everybody, or has all the axes of the weights; 0 = may not look.
    Raises ShapeError for shapes that do not fit. Source: Vaswani et al. 2017, section 3.2.2.
    """
    like, (x, context) = x, _with_batch(x, context, weights.w_o.shape[1])
    num_heads, _, head_dim = weights.w_q.shape
    shape = (len(x), num_heads, x.shape[1], context.shape[1])
    visible = visible_keys(shape, mask=_for_heads(mask, like), causal=causal)
    serves = num_heads // len(weights.w_k)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # each head's output, map and lse
    for i in range(num_heads):
        g = i // serves  # with as many key/value heads as query heads, g is i
        q = _linear(x, weights.w_q[i], _pick(weights.b_q, i))
        k = _linear(context, weights.w_k[g], _pick(weights.b_k, g))
        v = _linear(context, weights.w_v[g], _pick(weights.b_v, g))
        scores = np.einsum("bqd,bkd->bqk", q, k, optimize=True) / np.sqrt(head_dim)
        head_map, lse = softmax_rows(np.where(visible[:, i], scores, -np.inf))
        found.append((np.einsum("bqk,bkf->bqf", head_map, v, optimize=True), head_map, lse))
    heads, maps, lses = (np.stack(each, axis=1) for each in zip(*found, strict=True))
    return _mix(heads, maps, lses, weights, like)


def batched(
    x: Real[np.ndarray, "*b q m"],
    weights: BatchedWeights,
    *,
    context: Real[np.ndarray, "*b k m"] | None = None,
    mask: Shaped[np.ndarray, "..."] | None = None,
    causal: bool = False,
) -> MultiHead:
    """The same numbers as `naive` from one wide product each for queries, keys and values, then split into heads.

    A product with matrices side by side is the products side by side: that is all the trick. Arguments as for `naive`.
    """
    like, (x, context) = x, _with_batch(x, context, weights.w_o.shape[1])
    q = _linear(x, weights.w_q, weights.b_q)
    k = _linear(context, weights.w_k, weights.b_k)
    v = _linear(context, weights.w_v, weights.b_v)
    return _split_and_attend(q, k, v, weights, like, mask, causal)


def fused(
    x: Real[np.ndarray, "*b q m"],
    weights: FusedWeights,
    *,
    context: Real[np.ndarray, "*b k m"] | None = None,
    mask: Shaped[np.ndarray, "..."] | None = None,
    causal: bool = False,
) -> MultiHead:
    """The same numbers once more, from one product: `x` is read once, not three times. Arguments as for `naive`."""
    like, (x, context) = x, _with_batch(x, context, weights.w_o.shape[1])
    of_x = _linear(x, weights.w_qkv, weights.b_qkv)
    # Cross-attention has two inputs, so two products, and a part of each is thrown away: fusing is for self-attention.
    of_context = of_x if context is x else _linear(context, weights.w_qkv, weights.b_qkv)
    q, _, _ = np.split(of_x, weights.borders, axis=2)
    _, k, v = np.split(of_context, weights.borders, axis=2)
    return _split_and_attend(q, k, v, weights, like, mask, causal)


def worked_example() -> tuple[Float64[np.ndarray, "q m"], NaiveWeights]:
    """Three tokens, two heads of width 2, numbers small enough to follow with a pencil: (x, weights).

    Head 0 reads columns 0 and 1 of a token, head 1 columns 2 and 3; both swap theirs to make keys. W^O is the identity,
    so the output is the two heads side by side. The article that the example comes from prints two rows of head 0's
    scores wrongly; these are right:

    >>> x, weights = worked_example()
    >>> q, k = x @ weights.w_q[0], x @ weights.w_k[0]
    >>> (q @ k.T / np.sqrt(2)).round(2)
    array([[0.  , 0.71, 0.71],
           [0.71, 0.  , 0.71],
           [0.71, 0.71, 1.41]])
    >>> naive(x, weights).weights[0].round(3)
    array([[0.198, 0.401, 0.401],
           [0.401, 0.198, 0.401],
           [0.248, 0.248, 0.503]])
    """
    x = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], np.float64)
    w_q = np.array([[[1, 0], [0, 1], [0, 0], [0, 0]], [[0, 0], [0, 0], [1, 0], [0, 1]]], np.float64)
    w_k = np.array([[[0, 1], [1, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 1], [1, 0]]], np.float64)
    w_v = np.array([[[1, 0], [0, 0], [1, 0], [0, 0]], [[0, 1], [0, 1], [0, 0], [0, 0]]], np.float64)
    return x, NaiveWeights(w_q, w_k, w_v, np.eye(4))


def _split_and_attend(
    q: Float64[np.ndarray, "b q hd"],
    k: Float64[np.ndarray, "b k gd"],
    v: Float64[np.ndarray, "b k gf"],
    weights: BatchedWeights | FusedWeights,
    like: Real[np.ndarray, "..."],
    mask: Shaped[np.ndarray, "..."] | None,
    causal: bool,
) -> MultiHead:
    # The famous reshape + transpose: the wide axis is cut into heads, and the head axis goes before the positions.
    q = rearrange(q, "b q (h d) -> b h q d", h=weights.num_heads)
    k = rearrange(k, "b k (g d) -> b g k d", g=weights.num_kv_heads)
    v = rearrange(v, "b k (g f) -> b g k f", g=weights.num_kv_heads)
    attended = attend(q, k, v, mask=_for_heads(mask, like), causal=causal)
    return _mix(attended.out, attended.weights, attended.lse, weights, like)


def _mix(
    heads: Float64[np.ndarray, "b h q f"],
    maps: Float64[np.ndarray, "b h q k"],
    lse: Float64[np.ndarray, "b h q"],
    weights: Weights,
    like: Real[np.ndarray, "..."],
) -> MultiHead:
    """Concat(head_1 .. head_h) W^O, with the batch axis only where the input `like` has one."""
    out = _linear(rearrange(heads, "b h q f -> b q (h f)"), weights.w_o, weights.b_o)
    results = (out, maps, heads, lse)
    return MultiHead(*(each if np.ndim(like) == 3 else each[0] for each in results))


def _linear(
    x: Float64[np.ndarray, "b n m"], weight: Real[np.ndarray, "m w"], bias: Real[np.ndarray, " w"] | None
) -> Float64[np.ndarray, "b n w"]:
    product = x @ np.asarray(weight, np.float64)
    return product if bias is None else product + bias


def _pick(bias: Real[np.ndarray, "h w"] | None, head: int) -> Real[np.ndarray, " w"] | None:
    return None if bias is None else bias[head]


def _with_batch(
    x: Real[np.ndarray, "..."], context: Real[np.ndarray, "..."] | None, embed_dim: int
) -> tuple[Float64[np.ndarray, "b q m"], Float64[np.ndarray, "b k m"]]:
    """x and context as float64 [batch, n, m]; context is x itself where there is none."""
    x = np.asarray(x, np.float64)
    context = x if context is None else np.asarray(context, np.float64)
    for name, array in (("x", x), ("context", context)):
        if array.ndim not in (2, 3) or array.shape[-1] != embed_dim:
            raise ShapeError(f"{name} has shape {array.shape}; it must be [n, {embed_dim}] or [batch, n, {embed_dim}].")
    if x.shape[:-2] != context.shape[:-2]:
        raise ShapeError(f"x has shape {x.shape}, context {context.shape}: both need the same batch axis, or none.")
    if x.ndim == 3:
        return x, context
    return (lifted := x[None]), lifted if context is x else context[None]


def _for_heads(mask: Shaped[np.ndarray, "..."] | None, x: Real[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."] | None:
    # NumPy would line a [batch, n, n] mask up with the heads, and say nothing where there are as many of those.
    if mask is not None and np.ndim(mask) not in (2, np.ndim(x) + 1):
        raise ShapeError(
            f"mask has shape {np.shape(mask)}, but for an x of shape {np.shape(x)} it must have 2 axes (query, key) or "
            f"{np.ndim(x) + 1} (those of the weights). A mask for each text needs a head axis too: mask[:, None]."
        )
    return mask
