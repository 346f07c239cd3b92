"""The sums: FLOPs of a whole text and of one more token, numbers in the cache, numbers read to decode.

What is counted. A multiply and an add are 2 FLOPs. Counted are matrix products: projections, feed-forward (the experts
that a token goes through), router, scores (q times k), values (weights times v), the head. Not counted: softmax, norms,
activations, rotary positions, biases, the update of a recurrent state; together a few percent at most.
Causal attention is counted by what is visible: n (n + 1) / 2 pairs, fewer where there is a window. `dense` says what an
implementation computes that masks instead of skipping: all n n.
A text's head runs once, on the last token, where a model generates; at every token where it does not.
MLA is counted as its authors run it: a whole text with the keys and values of every head, one more token on the latents
themselves (the up-projections are absorbed into the queries and the output; DeepSeek-AI 2024, section 2.1.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from manyheads.sizing.shapes import LAST, ONCE, PARTS, SOURCE, TEXT, Architecture, Attention, Weights

__all__ = ["allocated_numbers", "cached_numbers", "decoding", "dense_pairs", "prefill", "read_numbers", "visible_pairs"]

OPERATIONS: tuple[str, ...] = (*PARTS[:6], "scores", "values", *PARTS[6:])
"""Where FLOPs can be spent: the parts, and attention's two products."""


def visible_pairs(attention: Attention, length: int, source: int) -> int:
    """How many pairs of a query and a key that it may see there are in one text."""
    if attention.cross:
        return length * source
    if not attention.causal:
        return length * length
    if attention.window is None or attention.window >= length:
        return length * (length + 1) // 2
    window = attention.window
    triangle = window * (window + 1) // 2
    if attention.chunked:
        rest = length % window
        return length // window * triangle + rest * (rest + 1) // 2
    return triangle + (length - window) * window


def dense_pairs(attention: Attention, length: int, source: int) -> int:
    return length * (source if attention.cross else length)


def seen_keys(attention: Attention, length: int, source: int) -> int:
    """How many keys the last of `length` tokens sees, itself included."""
    if attention.cross:
        return source
    if attention.window is None:
        return length
    return (length - 1) % attention.window + 1 if attention.chunked else min(length, attention.window)


def prefill(architecture: Architecture, length: int, source: int, *, dense: bool = False) -> dict[str, int]:
    """Operation -> FLOPs of one text of `length` tokens, all at once (and of the other text, of `source` tokens)."""
    rows = {TEXT: length, LAST: 1, SOURCE: source, ONCE: 1}
    spent = _products(architecture.weights, rows)
    pairs = dense_pairs if dense else visible_pairs
    for layer in architecture.layers:
        length_here = source if layer.stack == "encoder" else length
        for each in layer.attention:
            count = 2 * each.num_heads * pairs(each, length_here, source)
            spent["scores"] += count * each.qk_dim
            spent["values"] += count * each.v_dim
    return _kept(spent)


def decoding(architecture: Architecture, length: int, source: int) -> dict[str, int]:
    """Operation -> FLOPs of one more token, the last of `length`."""
    spent = _products(architecture.weights, {TEXT: 1, LAST: 1, SOURCE: 0, ONCE: 0})
    for layer in architecture.layers:
        if layer.stack == "encoder":
            continue
        for each in layer.attention:
            qk_dim, v_dim = (sum(each.latent), each.latent[0]) if each.latent else (each.qk_dim, each.v_dim)
            count = 2 * each.num_heads * seen_keys(each, length, source)
            spent["scores"] += count * qk_dim
            spent["values"] += count * v_dim
    return _kept(spent)


def cached_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers that one text of `length` tokens leaves in the cache: what it needs for the next token, not more."""
    return sum(each.cache_width * _kept_tokens(each, length, source) for each in _caching(architecture))


def allocated_numbers(architecture: Architecture, length: int, source: int) -> int:
    """Numbers to set aside beforehand for one text of `length` tokens: a window has a place for the newest, too."""
    total = 0
    for each in _caching(architecture):
        tokens = source if each.cross else length
        if each.window is not None and each.sheds:
            tokens = min(tokens, each.window)
        total += each.cache_width * tokens
    return total


def read_numbers(architecture: Architecture, length: int, source: int, batch: int) -> tuple[float, int]:
    """Numbers read to decode one more token of each of `batch` texts: of the weights, once; of the cache, for each
    text.

    Of experts, as many as that many tokens choose on average if every choice is as likely as any other. Tables count as
    nothing (a row a token), an encoder's weights neither.
    """
    weights = 0.0
    for each in architecture.weights:
        if each.rows in (SOURCE, ONCE) or (each.part == "embedding" and not each.matmul):
            continue
        touched = each.experts * (1 - (1 - each.chosen / each.experts) ** batch) if each.experts > 1 else 1
        weights += touched * max(each.size, each.matmul)  # a tied head has no numbers of its own, and is read
    cache = sum(each.cache_width * seen_keys(each, length, source) for each in _caching(architecture))
    return weights, cache


def _kept_tokens(attention: Attention, length: int, source: int) -> int:
    if attention.cross:
        return source
    if attention.window is None or not attention.sheds:
        return length
    return min(length, attention.window - 1)  # the next token brings its own


def _caching(architecture: Architecture) -> Iterable[Attention]:
    return (each for each in architecture.attention if each.cached) if architecture.generates else ()


def _products(weights: Iterable[Weights], rows: Mapping[str, int]) -> dict[str, int]:
    spent = dict.fromkeys(OPERATIONS, 0)
    for each in weights:
        spent[each.part] += 2 * each.matmul * each.chosen * rows[each.rows]
    return spent


def _kept(spent: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in spent.items() if count}
