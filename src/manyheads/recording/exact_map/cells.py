"""Chosen parts of a map, from q, k and lse: some cells, some keys of every row, or a window. Hidden cells are 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.nn import Mask, exact_weights, grouped_scores
from manyheads.recording.exact_map.one_pass import Layer


def cell_weights(
    layer: Layer, text: int, queries: Int[Tensor, "pairs"], keys: Int[Tensor, "pairs"]
) -> Float[Tensor, "h pairs"]:
    """The exact weights of some cells of one text, all heads, in float64. Cost: O(pairs * h * d)."""
    num_heads, bias = layer.q.shape[1], layer.rule.bias
    group = torch.arange(num_heads) // (num_heads // layer.k.shape[1])
    q, k = layer.q[text][:, queries].double(), layer.k[text][group][:, keys].double()
    if bias is not None:
        bias = bias[min(text, bias.shape[0] - 1)].expand(num_heads, -1, -1)[:, queries, keys]
    scores = layer.rule.finish_cells(layer.rule.scale * (q * k).sum(-1), bias)
    mask = layer.mask.expand(layer.q.shape[0])
    visible = (keys >= mask.start[text, queries]) & (keys < mask.stop[text, queries])
    if mask.dense is not None:
        visible = mask.dense[min(text, mask.dense.shape[0] - 1)][:, queries, keys]
    return exact_weights(scores, layer.lse[text][:, queries], visible)


def key_weights(layer: Layer, mask: Mask, keys: Int[Tensor, "b c"], dtype: torch.dtype) -> Float[Tensor, "b h q c"]:
    """The exact weights of every row on chosen keys of each text. `mask`: the layer's, with a row of runs a text.

    Cost: O(b * h * q * c * d).
    """
    k = layer.k.gather(2, keys[:, None, :, None].expand(-1, layer.k.shape[1], -1, layer.k.shape[3]))
    bias = None if layer.rule.bias is None else _columns(layer.rule.bias, keys)
    scores = layer.rule.finish_cells(grouped_scores(layer.q.to(dtype), k.to(dtype), layer.rule.scale), bias)
    if mask.dense is not None:
        visible = _columns(mask.dense, keys)
    else:
        visible = ((keys[:, None] >= mask.start[..., None]) & (keys[:, None] < mask.stop[..., None]))[:, None]
    return exact_weights(scores, layer.lse[..., None], visible)


def _columns(cells: Tensor, keys: Int[Tensor, "b c"]) -> Tensor:
    """The same keys' columns of every head and row: `[b h q k]` to `[b h q c]`; one text's serves all."""
    index = keys[:, None, None].expand(-1, *cells.shape[1:3], -1)
    return cells.expand(len(keys), -1, -1, -1).gather(3, index)


def window_weights(layer: Layer, text: int, heads: Sequence[int], rows: slice, keys: slice) -> Float[Tensor, "h r c"]:
    """A window of one text's map, some heads, in the lse's dtype. Cost: O(window * d) time, some times its memory."""
    texts, heads = slice(text, text + 1), list(heads)
    group = [head // (layer.q.shape[1] // layer.k.shape[1]) for head in heads]
    q, k = layer.q[texts][:, heads, rows].double(), layer.k[texts][:, group, keys].double()
    scores = layer.rule.texts(texts).heads(heads).finish(grouped_scores(q, k, layer.rule.scale), rows, keys)
    visible = layer.mask.expand(layer.q.shape[0]).texts(texts).visible(rows, keys, heads)
    return exact_weights(scores, layer.lse[texts][:, heads, rows, None], visible)[0].to(layer.lse.dtype)
