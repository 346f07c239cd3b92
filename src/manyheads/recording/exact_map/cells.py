"""Chosen cells of a map, or a window of it, from q, k and lse: `exp(score - lse)`, in float64, hidden cells 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.nn import Rule, grouped_scores
from manyheads.recording.exact_map.one_pass import Layer


def cell_weights(
    layer: Layer, text: int, queries: Int[Tensor, "pairs"], keys: Int[Tensor, "pairs"]
) -> Float[Tensor, "h pairs"]:
    """The exact weights of some cells of one text, all heads. Cost: O(pairs * h * d)."""
    num_heads = layer.q.shape[1]
    group = torch.arange(num_heads) // (num_heads // layer.k.shape[1])
    q, k = layer.q[text][:, queries].double(), layer.k[text][group][:, keys].double()
    scores = layer.rule.scale * (q * k).sum(-1)
    if layer.rule.softcap is not None:
        scores = layer.rule.softcap * (scores / layer.rule.softcap).tanh()
    if layer.rule.bias is not None:
        bias = layer.rule.bias[min(text, layer.rule.bias.shape[0] - 1)]
        scores = scores + bias.expand(num_heads, -1, -1)[:, queries, keys]
    mask = layer.mask.expand(layer.q.shape[0])
    seen = (keys >= mask.start[text, queries]) & (keys < mask.stop[text, queries])
    if mask.dense is not None:
        seen = mask.dense[min(text, mask.dense.shape[0] - 1)][:, queries, keys]
    return torch.where(seen, (scores - layer.lse[text][:, queries]).exp(), 0.0)


def window_weights(layer: Layer, text: int, heads: Sequence[int], rows: slice, keys: slice) -> Float[Tensor, "h r c"]:
    """A window of one text's map, some heads, in the lse's dtype. Cost: O(window * d) time, some times its memory."""
    at, chosen, num_heads = slice(text, text + 1), list(heads), layer.q.shape[1]
    group = [h // (num_heads // layer.k.shape[1]) for h in heads]
    q, k = layer.q[at][:, chosen, rows].double(), layer.k[at][:, group, keys].double()
    rule, mask = layer.rule.texts(at), layer.mask.expand(layer.q.shape[0]).texts(at)
    bias = None if rule.bias is None else rule.bias.expand(-1, num_heads, -1, -1)[:, chosen]
    scores = Rule(rule.scale, rule.softcap, None, bias).finish(grouped_scores(q, k, rule.scale), rows, keys)
    seen = mask.visible(rows, keys)
    seen = seen[:, chosen] if seen.shape[1] > 1 else seen
    lse = layer.lse[at][:, chosen, rows, None]
    return torch.where(seen, (scores - torch.where(lse == -torch.inf, 0, lse)).exp(), 0.0)[0].to(lse.dtype)
