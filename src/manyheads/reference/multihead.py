"""Multi-head attention in plain NumPy, float64, three ways that give the same numbers. The page to learn from.

`naive`, `batched` and `fused` are multi-head attention over one matrix per head, one wide matrix, and one matrix for
queries, keys and values. Start at `naive`, which is the textbook's formula line by line, and see that the other two
only rearrange its weights: `NaiveWeights` are the textbook's W_i^Q, `BatchedWeights` and `FusedWeights` what fast code
and checkpoints hold. `to_naive`, `to_batched` and `to_fused` go from any layout to any other.
Cost: as `attend`, O(b h q k) memory. Source: Vaswani et al. 2017, section 3.2.2; GQA: Ainslie et al. 2023.

Axes: b batch, h query head, g key/value head, q query, k key, d width of q and k, f width of v, m width of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from einops import rearrange
from jaxtyping import Float64, Real, Shaped

from manyheads.base import check_groups, divisors, one_of
from manyheads.errors import ShapeError
from manyheads.reference.attention import attend, softmax_rows, visible_keys

# ----------------------------------------------------------------------------------------- the weights in three layouts


@dataclass(frozen=True)
class NaiveWeights:
    """One matrix per head: `w_q[i]` is the textbook's W_i^Q. Fewer key/value heads than query heads make it GQA."""

    w_q: Real[np.ndarray, "h m d"]
    w_k: Real[np.ndarray, "g m d"]
    w_v: Real[np.ndarray, "g m f"]
    w_o: Real[np.ndarray, "h*f m"]
    b_q: Real[np.ndarray, "h d"] | None = None
    b_k: Real[np.ndarray, "g d"] | None = None
    b_v: Real[np.ndarray, "g f"] | None = None
    b_o: Real[np.ndarray, " m"] | None = None

    def __post_init__(self):
        (h, m, d), g, f = self.w_q.shape, len(self.w_k), self.w_v.shape[-1]
        check_groups(h, g)
        _expect(self, w_k=(g, m, d), w_v=(g, m, f), w_o=(h * f, m), b_q=(h, d), b_k=(g, d), b_v=(g, f), b_o=(m,))


@dataclass(frozen=True)
class BatchedWeights:
    """The heads' matrices side by side: columns 0..d-1 of `w_q` are head 0's, the next d are head 1's."""

    num_heads: int
    num_kv_heads: int
    w_q: Real[np.ndarray, "m hd"]
    w_k: Real[np.ndarray, "m gd"]
    w_v: Real[np.ndarray, "m gf"]
    w_o: Real[np.ndarray, "hf m"]
    b_q: Real[np.ndarray, " hd"] | None = None
    b_k: Real[np.ndarray, " gd"] | None = None
    b_v: Real[np.ndarray, " gf"] | None = None
    b_o: Real[np.ndarray, " m"] | None = None

    def __post_init__(self):
        h, g, m = self.num_heads, self.num_kv_heads, self.w_q.shape[0]
        check_groups(h, g)
        hd, gf = self.w_q.shape[1] // h * h, self.w_v.shape[1] // g * g
        gd, hf = hd // h * g, gf // g * h
        _expect(self, w_q=(m, hd), w_k=(m, gd), w_v=(m, gf), w_o=(hf, m), b_q=(hd,), b_k=(gd,), b_v=(gf,), b_o=(m,))


@dataclass(frozen=True)
class FusedWeights:
    """Queries, keys and values in one matrix: all heads' query columns, then all key columns, then all value columns.

    So GPT-2 stores them. Some models interleave head by head instead (GPT-NeoX): those need a transpose first.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int  # the width d of one head's queries and keys: says where the columns of one end and the next begin
    w_qkv: Real[np.ndarray, "m columns"]
    w_o: Real[np.ndarray, "hf m"]
    b_qkv: Real[np.ndarray, " columns"] | None = None
    b_o: Real[np.ndarray, " m"] | None = None

    def __post_init__(self):
        h, g, (hf, m) = self.num_heads, self.num_kv_heads, self.w_o.shape
        check_groups(h, g)
        columns = (h + g) * self.head_dim + hf // h * g
        _expect(self, w_o=(hf // h * h, m), w_qkv=(m, columns), b_qkv=(columns,), b_o=(m,))

    @property
    def borders(self) -> list[int]:
        """The column where the keys begin, and the one where the values begin."""
        keys = self.num_heads * self.head_dim
        return [keys, keys + self.num_kv_heads * self.head_dim]


Weights = NaiveWeights | BatchedWeights | FusedWeights


def to_batched(weights: Weights) -> BatchedWeights:
    """The same heads with their matrices side by side, from any layout."""
    w = weights
    if isinstance(w, BatchedWeights):
        return w
    if isinstance(w, FusedWeights):
        w_q, w_k, w_v = np.split(w.w_qkv, w.borders, axis=1)
        b_q, b_k, b_v = (None, None, None) if w.b_qkv is None else np.split(w.b_qkv, w.borders)
        return BatchedWeights(w.num_heads, w.num_kv_heads, w_q, w_k, w_v, w.w_o, b_q, b_k, b_v, w.b_o)
    w_q, w_k, w_v = (rearrange(matrix, "h m d -> m (h d)") for matrix in (w.w_q, w.w_k, w.w_v))
    b_q, b_k, b_v = (None if bias is None else rearrange(bias, "h d -> (h d)") for bias in (w.b_q, w.b_k, w.b_v))
    return BatchedWeights(len(w.w_q), len(w.w_k), w_q, w_k, w_v, w.w_o, b_q, b_k, b_v, w.b_o)


def to_naive(weights: Weights) -> NaiveWeights:
    """The same heads with one matrix each, from any layout."""
    if isinstance(weights, NaiveWeights):
        return weights
    w = to_batched(weights)
    counts = (w.num_heads, w.num_kv_heads, w.num_kv_heads)
    wide, biases = zip((w.w_q, w.w_k, w.w_v), counts, strict=True), zip((w.b_q, w.b_k, w.b_v), counts, strict=True)
    w_q, w_k, w_v = (rearrange(matrix, "m (h d) -> h m d", h=count) for matrix, count in wide)
    b_q, b_k, b_v = (None if bias is None else rearrange(bias, "(h d) -> h d", h=count) for bias, count in biases)
    return NaiveWeights(w_q, w_k, w_v, w.w_o, b_q, b_k, b_v, w.b_o)


def to_fused(weights: Weights) -> FusedWeights:
    """The same heads with queries, keys and values in one matrix, from any layout. A missing bias among others is 0."""
    if isinstance(weights, FusedWeights):
        return weights
    w = to_batched(weights)
    wide, biases = (w.w_q, w.w_k, w.w_v), (w.b_q, w.b_k, w.b_v)
    b_qkv = None
    if any(bias is not None for bias in biases):
        parts = zip(wide, biases, strict=True)
        b_qkv = np.concatenate([np.zeros(part.shape[1]) if bias is None else bias for part, bias in parts])
    head_dim = w.w_q.shape[1] // w.num_heads
    return FusedWeights(w.num_heads, w.num_kv_heads, head_dim, np.concatenate(wide, axis=1), w.w_o, b_qkv, w.b_o)


LAYOUTS: dict[str, Callable[[Weights], Weights]] = {"naive": to_naive, "batched": to_batched, "fused": to_fused}


def initialise(
    rng: np.random.Generator,
    embed_dim: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    layout: str = "naive",
    bias: bool = False,
) -> Weights:
    """Fresh weights, with heads of width embed_dim / num_heads.

    - `rng`: draws them.
    - `embed_dim`: the model's width, m.
    - `num_heads`: query heads.
    - `num_kv_heads`: key/value heads; None: as many as query heads.
    - `layout`: "naive", "batched" or "fused".
    - `bias`: with biases, which begin at 0.

    Both scales are Glorot's sqrt(2 / (rows + columns)), and differ in what they take for the matrix: a head's own
    m x d_k ("naive": sqrt(2 / (m + d_k))) or the square one it is a slice of (the others: sqrt(2 / (2 m))).
    Raises ShapeError where the heads do not divide the width. Source: Glorot and Bengio 2010, equation 12.
    """
    one_of("layout", layout, LAYOUTS, ShapeError, "is not a layout of the weights")
    if num_heads < 1 or embed_dim % num_heads:
        raise ShapeError(
            f"{embed_dim=} is not a multiple of {num_heads=}: every head gets an equal share of the model's width. "
            f"Use one of {divisors(embed_dim)} heads."
        )
    h, m, d = num_heads, embed_dim, embed_dim // num_heads
    g = h if num_kv_heads is None else num_kv_heads
    check_groups(h, g)
    bound = np.sqrt(2 / (m + m))
    scale = np.sqrt(2 / (m + d)) if layout == "naive" else bound
    w_q, w_k, w_v = (rng.normal(0, scale, (count, m, d)) for count in (h, g, g))
    b_q, b_k, b_v, b_o = map(np.zeros, ((h, d), (g, d), (g, d), m)) if bias else (None,) * 4
    return LAYOUTS[layout](NaiveWeights(w_q, w_k, w_v, rng.normal(0, bound, (h * d, m)), b_q, b_k, b_v, b_o))


def count_parameters(weights: Weights) -> int:
    """How many numbers the weights hold: 3 m^2 / h a head, and 4 m^2 with W^O, whatever h is; biases and GQA aside."""
    parts = (getattr(weights, field.name) for field in fields(weights))
    return sum(part.size for part in parts if isinstance(part, np.ndarray))


def _expect(weights: Weights, **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        array = getattr(weights, name)
        if array is not None and array.shape != shape:
            owner = type(weights).__name__
            raise ShapeError(f"{owner}.{name} has shape {array.shape}; to fit the other weights it must be {shape}.")


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
    results: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # each head's output, map and lse
    for i in range(num_heads):
        g = i // serves  # with as many key/value heads as query heads, g is i
        q = _linear(x, weights.w_q[i], _pick(weights.b_q, i))
        k = _linear(context, weights.w_k[g], _pick(weights.b_k, g))
        v = _linear(context, weights.w_v[g], _pick(weights.b_v, g))
        scores = np.einsum("bqd,bkd->bqk", q, k, optimize=True) / np.sqrt(head_dim)
        head_map, lse = softmax_rows(np.where(visible[:, i], scores, -np.inf))
        results.append((np.einsum("bqk,bkf->bqf", head_map, v, optimize=True), head_map, lse))
    heads, maps, lses = (np.stack(parts, axis=1) for parts in zip(*results, strict=True))
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
    return MultiHead(*(result if np.ndim(like) == 3 else result[0] for result in results))


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
