"""The weights of multi-head attention in three layouts: a matrix a head, side by side, or all in one.

`NaiveWeights` are the textbook's W_i^Q, `BatchedWeights` and `FusedWeights` what fast code and checkpoints hold. The
numbers are the same: `to_naive`, `to_batched` and `to_fused` go from any layout to any other. What is computed from
them is in `multihead`.

Axes: h query head, g key/value head, d width of q and k, f width of v, m width of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from einops import rearrange
from jaxtyping import Real

from manyheads.errors import ShapeError
from manyheads.base.grouping import check_groups
from manyheads.base.grouping import divisors


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
    w_q, w_k, w_v = (rearrange(each, "h m d -> m (h d)") for each in (w.w_q, w.w_k, w.w_v))
    b_q, b_k, b_v = (None if each is None else rearrange(each, "h d -> (h d)") for each in (w.b_q, w.b_k, w.b_v))
    return BatchedWeights(len(w.w_q), len(w.w_k), w_q, w_k, w_v, w.w_o, b_q, b_k, b_v, w.b_o)


def to_naive(weights: Weights) -> NaiveWeights:
    """The same heads with one matrix each, from any layout."""
    if isinstance(weights, NaiveWeights):
        return weights
    w = to_batched(weights)
    counts = (w.num_heads, w.num_kv_heads, w.num_kv_heads)
    wide, biases = zip((w.w_q, w.w_k, w.w_v), counts, strict=True), zip((w.b_q, w.b_k, w.b_v), counts, strict=True)
    w_q, w_k, w_v = (rearrange(each, "m (h d) -> h m d", h=count) for each, count in wide)
    b_q, b_k, b_v = (None if each is None else rearrange(each, "(h d) -> h d", h=count) for each, count in biases)
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
    """Fresh weights, "naive", "batched" or "fused", with heads of width embed_dim / num_heads; biases, if any, are 0.

    Both scales are Glorot's sqrt(2 / (rows + columns)), and differ in what they take for the matrix: a head's own
    m x d_k ("naive": sqrt(2 / (m + d_k))) or the square one it is a slice of (the others: sqrt(2 / (2 m))).
    Raises ShapeError where the heads do not divide the width. Source: Glorot and Bengio 2010, equation 12.
    """
    if layout not in LAYOUTS:
        raise ShapeError(f"{layout=} is no layout of the weights. Use one of {list(LAYOUTS)}.")
    if num_heads < 1 or embed_dim % num_heads:
        raise ShapeError(
            f"{embed_dim=} is not a multiple of {num_heads=}: every head gets an equal share of the model's width. "
            f"Use one of {divisors(embed_dim)} heads."
        )
    h, m, d = num_heads, embed_dim, embed_dim // num_heads
    g = h if num_kv_heads is None else num_kv_heads
    check_groups(h, g)
    whole = np.sqrt(2 / (m + m))
    scale = np.sqrt(2 / (m + d)) if layout == "naive" else whole
    w_q, w_k, w_v = (rng.normal(0, scale, (count, m, d)) for count in (h, g, g))
    b_q, b_k, b_v, b_o = map(np.zeros, ((h, d), (g, d), (g, d), m)) if bias else (None,) * 4
    return LAYOUTS[layout](NaiveWeights(w_q, w_k, w_v, rng.normal(0, whole, (h * d, m)), b_q, b_k, b_v, b_o))


def count_parameters(weights: Weights) -> int:
    """How many numbers the weights hold: 3 m^2 / h a head, and 4 m^2 with W^O, whatever h is; biases and GQA aside."""
    parts = (getattr(weights, field.name) for field in fields(weights))
    return sum(part.size for part in parts if isinstance(part, np.ndarray))


def _expect(weights: Weights, **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        array = getattr(weights, name)
        if array is not None and array.shape != shape:
            owner = type(weights).__name__
            raise ShapeError(f"{owner}.{name} has shape {array.shape}; beside the other weights it must be {shape}.")
