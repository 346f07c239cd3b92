"""What several topics count: the parameters and FLOPs of one attention layer, by `sizing`; and how a count is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyheads.lessons.parameters import whole
from manyheads.sizing.building_blocks import projections
from manyheads.sizing.architecture import Attention
from manyheads.sizing.costs import Sizing
from manyheads.sizing.sizing import size

__all__ = [
    "HEADS", "KV_HEADS", "STACKED", "WIDTH", "even_tokens", "flops", "in_flops", "in_prefix", "in_words",
    "pruned_away", "scaled", "weights",
]  # fmt: skip

UNITS = (("", 1), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
STACKED = ("q", "k", "v", "o")
WIDTH = whole("d_model", "model width", 512, 64, 16_384, 64, others=(256, 768, 1024, 4096))
HEADS = whole("heads", "heads", 8, 1, 128, others=(4, 16))
KV_HEADS = whole("kv_heads", "KV heads", 2, 1, 128, others=(1, 4))
"""What questions are made from."""


def weights(
    m: int, h: int, *, kv_heads: int | None = None, biased: bool = False, wide: bool = False
) -> Mapping[str, int]:
    """q, k, v, o -> parameters. `wide`: each head as wide as the model. Raises ShapeError."""
    shape = {"num_kv_heads": kv_heads or h, "qkv_bias": biased, "o_bias": biased}
    return _layer(m, h, shape | ({"head_dim": m} if wide else {})).parameters


def pruned_away(m: int, h: int, gone: int, *, biased: bool) -> int:
    """Parameters of a layer, less those of one with fewer heads of the same width."""
    d = m // h
    full, rest = (
        sum(each.total for each in projections(m, Attention(n, n, d, d), qkv_bias=biased, o_bias=biased))
        for n in (h, h - gone)
    )
    return full - rest


def flops(m: int, h: int, tokens: int, causal: bool) -> tuple[Mapping[str, int], int, int]:
    """Operation -> FLOPs of a text; of the four projections together; of scores and weighted sum. Raises ShapeError."""
    found = _layer(m, h, {"causal": causal}, tokens).prefill
    assert found is not None
    spent = found.operations
    return spent, sum(spent[each] for each in STACKED), spent["scores"] + spent["values"]


def _layer(m: int, h: int, shape: Mapping[str, Any], tokens: int = 1) -> Sizing:
    """One attention layer and nothing else. Raises ShapeError."""
    return size({"num_layers": 1, "embed_dim": m, "num_heads": h, "ffn_dim": 0, "norm": "none", **shape}, tokens, 1)


def even_tokens(m: int, causal: bool) -> int:
    """The first length at which scores and weighted sum cost as much as the projections; found by halving."""

    def costs(n: int) -> bool:
        _, projections, attention = flops(m, 1, n, causal)
        return attention >= projections

    low, high = 1, 1
    while not costs(high):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if costs(middle) else (middle + 1, high)
    return high


def scaled(most: int | float) -> tuple[str, float]:
    """The largest prefix in which a count is at least 1, and what it stands for: 5e9 is 5 of G, 1e9."""
    return next((each for each in reversed(UNITS) if most >= each[1]), UNITS[0])


def in_prefix(prefix: str, words: str) -> str:
    """What a table of counts is called, and what they are counted in."""
    return f"{words}, in {prefix}" if prefix else words


def in_words(count: int | float) -> str:
    """704.6M, 56.4B; a count below 100,000 as it is."""
    prefix, factor = scaled(count)
    if count < 1e5:
        return f"{count:,.0f}"
    return f"{count / factor:.4g}{prefix.replace('G', 'B')}"


def in_flops(count: int | float) -> str:
    """8.59 GFLOP."""
    prefix, factor = scaled(count)
    return f"{count / factor:.3g} {prefix}FLOP"
