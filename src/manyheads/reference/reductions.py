"""What can be asked of one attention map, answered from the whole map: one short function for each reduction.

What: row sums, entropies, strongest keys, weight at an offset, weight on keys with the row's own label, column sums,
the map in blocks. `weights[h, i, j]` is what query i of head h gives to key j; `visible[i, j]`: whether it may look.
Why: the library computes these without ever holding a map, tile by tile, which is fast and easy to get wrong. Here the
map is simply there, and each answer is its definition. Written apart from that pass, so that the two can disagree.
Cost: the whole map in float64, and loops where a loop says it best. For a page of text, not for a book.
Source: the requests of `recording.exact_map.requests`, name by name.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64, Real

from manyheads.base import one_of
from manyheads.errors import ShapeError

HOW = {"mean": np.mean, "max": np.max}


def mass(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h q"]:
    """Each row's whole weight: 1, less where a sink takes its share, 0 for a row that sees nothing."""
    return weights.sum(axis=2)


def entropy(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h q"]:
    """-sum_j w ln w, in nats: 0 for one key, ln n for n keys alike. A weight of 0 adds nothing."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(axis=2)


def square(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h q"]:
    """sum_j w^2: 1 for one key, 1/n for n keys alike."""
    return (weights**2).sum(axis=2)


def maximum(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h q"]:
    """The row's largest weight; 0 where there is no key at all."""
    return weights.max(axis=2, initial=0.0)


def strongest(weights: Float64[np.ndarray, "h q k"], visible: Bool[np.ndarray, "*h q k"]) -> Int64[np.ndarray, "h q"]:
    """The key of the row's largest weight, the first of equals; -1 in rows that see nothing."""
    visible = np.broadcast_to(visible, weights.shape)
    out = np.full(weights.shape[:2], -1)
    for h, i in np.ndindex(out.shape):
        keys = np.flatnonzero(visible[h, i])
        if len(keys):
            out[h, i] = keys[np.argmax(weights[h, i, keys])]
    return out


def distance(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h q"]:
    """sum_j w |j - i|, in tokens."""
    row, key = _positions(weights)
    return (weights * np.abs(key - row)).sum(axis=2)


def linear(weights: Float64[np.ndarray, "h q k"], column: Real[np.ndarray, " k"]) -> Float64[np.ndarray, "h q"]:
    """sum_j w c_j for a column c over the keys: the mass of a class where c is 0 and 1."""
    return (weights * np.asarray(column, np.float64)).sum(axis=2)


def match(
    weights: Float64[np.ndarray, "h q k"],
    row_labels: Int[np.ndarray, " q"],
    key_labels: Int[np.ndarray, " k"],
    *,
    earlier: bool = False,
    elsewhere: bool = False,
    apart: int = 0,
) -> Float64[np.ndarray, "h q k"]:
    """The weights on keys whose label equals the row's, 0 on others.

    - `weights`: maps.
    - `row_labels`: a number for each row; below 0 it matches nothing.
    - `key_labels`: a number for each key.
    - `earlier`: keys `j <= i - apart` only.
    - `elsewhere`: without `j = i`, and without those nearer than `apart`.
    - `apart`: how many positions.

    Summed over keys: what each row gives to its matches; over rows: what each key receives from them.
    """
    row, key = _positions(weights)
    equal = (row_labels[:, None] == key_labels[None]) & (row_labels[:, None] >= 0)
    if earlier:
        equal &= key <= row - apart
    if elsewhere:
        equal &= (key != row) & (np.abs(key - row) >= apart)
    return weights * equal


def band(weights: Float64[np.ndarray, "h q k"], offsets: Sequence[int]) -> Float64[np.ndarray, "h q o"]:
    """The weight at key `i + offset`, for each of `offsets`; 0 where there is no such key."""
    num_heads, num_rows, num_keys = weights.shape
    out = np.zeros((num_heads, num_rows, len(offsets)))
    for i in range(num_rows):
        for index, offset in enumerate(offsets):
            if 0 <= i + offset < num_keys:
                out[:, i, index] = weights[:, i, i + offset]
    return out


def received(weights: Float64[np.ndarray, "h q k"]) -> Float64[np.ndarray, "h k"]:
    """What each key receives in all, sum_i w."""
    return weights.sum(axis=1)


def word_rows(
    weights: Float64[np.ndarray, "h q k"], words: Int[np.ndarray, " q"], num_words: int
) -> Float64[np.ndarray, "h w k"]:
    """The mean of the rows of each word; 0 for a word of no token. `words` numbers each token's word, -1 for none."""
    out = np.zeros((len(weights), num_words, weights.shape[2]))
    for word in set(words.tolist()) - {-1}:
        out[:, word] = weights[:, words == word].mean(1)
    return out


def pooled(
    weights: Float64[np.ndarray, "h q k"], visible: Bool[np.ndarray, "*h q k"], size: int, how: str = "mean"
) -> Float64[np.ndarray, "h p p"]:
    """The map in `size` x `size` blocks, by mean or max of each block's visible cells; NaN where none is visible.

    Position i of n lies in block `i * p // n`, p = min(size, n): a text shorter than `size` fills the first p only.
    """
    one_of("how", how, HOW, ShapeError, "is not a way to pool a block's cells")
    visible = np.broadcast_to(visible, weights.shape)
    of_rows, of_keys = (places(length) * min(size, length) // max(length, 1) for length in weights.shape[1:])
    out = np.full((len(weights), size, size), np.nan)
    for row_block, key_block in np.ndindex(size, size):
        rows, keys = of_rows == row_block, of_keys == key_block
        blocks = (array[:, rows][:, :, keys] for array in (weights, visible))
        for h, (cells, visible_cells) in enumerate(zip(*blocks, strict=True)):
            if visible_cells.any():
                out[h, row_block, key_block] = HOW[how](cells[visible_cells])
    return out


def places(count: int) -> Int64[np.ndarray, " n"]:
    """0, 1, 2, ...: where rows or keys stand."""
    return np.arange(count)


def _positions(weights: Float64[np.ndarray, "h q k"]) -> tuple[Int64[np.ndarray, "q 1"], Int64[np.ndarray, "1 k"]]:
    """Each row's position as a column and each key's as a row, so that `key - row` is the whole table of offsets."""
    return places(weights.shape[1])[:, None], places(weights.shape[2])[None]
