"""What several pages share: a head by its name and its map on the bundled model; what one attention layer counts.

Parameters and FLOPs come from `sizing`. A count is written with a prefix: 704.6M, 8.59 GFLOP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads import inputs, models
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.lab.lessons.cells import Arc, Table
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.parameters import whole
from manyheads.sizing import Sizing
from manyheads.sizing.architecture import Attention, projections

if TYPE_CHECKING:
    from manyheads.models import LoadedModel
    from manyheads.recording import Recording

MODEL = "minilm"
PAPER_SOURCE = "Vaswani et al. 2017, table 3 row A"
MAX_TOKENS = 24  # of a sentence: as many rows of a map as fit a page
MAX_UNSEEN = 64  # of a sentence of which no map is shown
LEAST = 0.02  # a link that is fainter is not drawn
SENTENCE = "The cat sat on the mat because it was tired."


def one_named(lm: LoadedModel, name: str) -> Head:
    """The one head of that name. Raises LessonError for several or none, HeadError for a head that the model lacks."""
    heads = tuple(lm.spec.select(name))
    if len(heads) != 1:
        raise LessonError(f"{name[:40]!r} is {len(heads)} heads: name one, as in 'L2H9'.")
    return heads[0]


def map_of(rec: Recording, head: Head) -> Float64[ndarray, "q k"]:
    """A head's whole map of a recording of one text."""
    return np.asarray(rec.stacks[head.stack][head.layer].weights(head.index), np.float64)


def require_short(lm: LoadedModel, sentence: str, most: int = MAX_TOKENS) -> int:
    """How many tokens a sentence has. Raises TextError for too many to show, or none."""
    count = len(inputs.read(lm, sentence).pieces[0].ids)
    if count > most:
        raise TextError(f"the sentence has {count} tokens: give one of {most} at the most, so that it fits here.")
    return count


def recorded(
    lm: LoadedModel, sentence: str, keep: Sequence[inputs.Keep] = ("q", "k", "lse")
) -> tuple[Recording, tuple[str, ...]]:
    """A recording of a sentence whose maps fit here, and its tokens. Raises TextError."""
    require_short(lm, sentence)
    rec = inputs.record(lm, sentence, keep=keep)
    return rec, tuple(rec.tokens.pieces[0])


def looked_at(weights: Table, token: int) -> tuple[Float64[ndarray, "k"], list[int]]:
    """A token's row of a map, and the keys that it is largest at: several where they tie. Raises LessonError."""
    if token >= len(weights.rows):
        raise LessonError(f"there is no token {token} in the cell now: it has {len(weights.rows)}.")
    row = weights.values[token]
    return row, [int(key) for key in np.flatnonzero(np.isclose(row, row.max()))]


def tie(weights: Table, tied: list[int]) -> tuple[str, tuple[str, ...]]:
    """A sentence about the keys that a row is largest at, where they tie; and all names that they may be called by."""
    words = f" It gives {len(tied)} tokens as much: any of them will do." if len(tied) > 1 else ""
    return words, tuple(name for key in tied for name in (weights.columns[key], str(key), f"token {key}"))


def strongest_links(weights: Float64[ndarray, "q k"], queries: Sequence[int], keys: Sequence[int]) -> tuple[Arc, ...]:
    """For each query the key (of these, and not itself) that its row is largest at, as long as it can be seen."""
    arcs = []
    for query in queries:
        others = [key for key in keys if key != query]
        if others:
            key = max(others, key=lambda key: weights[query, key])
            arcs.append(Arc(query, key, round(float(weights[query, key]), 6)))
    return tuple(arc for arc in arcs if arc.weight >= LEAST)


# ---------------------------------------------------------------------------------------------- parameters and FLOPs

UNITS = (("", 1.0), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
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
    """The parameters that go with some heads of a layer, the others staying as wide as they are."""
    d = m // h
    full, remaining = (
        sum(projection.total for projection in projections(m, Attention(n, n, d, d), qkv_bias=biased, o_bias=biased))
        for n in (h, h - gone)
    )
    return full - remaining


def flops(m: int, h: int, tokens: int, causal: bool) -> tuple[Mapping[str, int], int, int]:
    """Operation -> FLOPs of a text; of the four projections together; of scores and weighted sum. Raises ShapeError."""
    prefill = _layer(m, h, {"causal": causal}, tokens).prefill
    assert prefill is not None
    spent = prefill.operations
    return spent, sum(spent[name] for name in STACKED), spent["scores"] + spent["values"]


def _layer(m: int, h: int, shape: Mapping[str, Any], tokens: int = 1) -> Sizing:
    """One attention layer and nothing else. Raises ShapeError."""
    return models.size(
        {"num_layers": 1, "embed_dim": m, "num_heads": h, "ffn_dim": 0, "norm": "none", **shape}, tokens, 1
    )


def even_tokens(m: int, causal: bool) -> int:
    """The first length at which scores and weighted sum cost as much as the projections; found by halving."""

    def costs(n: int) -> bool:
        _, projections, attention = flops(m, 1, n, causal)
        return attention >= projections

    # Halving is sound, since attention's share only grows with the length.
    low, high = 1, 1
    while not costs(high):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if costs(middle) else (middle + 1, high)
    return high


def scaled(most: int | float) -> tuple[str, float]:
    """The largest prefix in which a count is at least 1, and its factor: G and 1e9 for 5e9."""
    return next((unit for unit in reversed(UNITS) if most >= unit[1]), UNITS[0])


def in_prefix(prefix: str, words: str) -> str:
    """The words of a table of counts, with their prefix."""
    return f"{words}, in {prefix}" if prefix else words


def in_words(count: int | float) -> str:
    """A count as 704.6M or 56.4B; one below 100,000 in full."""
    prefix, factor = scaled(count)
    if count < 1e5:
        return f"{count:,.0f}"
    return f"{count / factor:.4g}{prefix.replace('G', 'B')}"


def in_flops(count: int | float) -> str:
    """A count as 8.59 GFLOP."""
    prefix, factor = scaled(count)
    return f"{count / factor:.3g} {prefix}FLOP"
