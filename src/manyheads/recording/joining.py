"""Records of batches, put together to the record of all texts, in their own order.

Texts of like length are read together, so that little of a batch is padding; what is kept of them is one record again,
left-aligned and padded to the longest text. Cost: a copy of what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.nn.masks import Mask
from manyheads.nn.rules import Rule
from manyheads.recording.records import LayerRecord
from manyheads.recording.tokens import Tokens

__all__ = ["together"]


def together(parts: Sequence[LayerRecord], places: Sequence[Sequence[int]], tokens: Tokens) -> LayerRecord:
    """One layer's record of all texts from its records of batches. `places[i]` are the texts of batch i, in its order.

    `tokens` are those of all texts as this layer reads them. What lies past a text's end sees, and is seen by, nobody.
    """
    first = parts[0]
    if len(parts) == 1 and list(places[0]) == list(range(len(first.lengths))):
        return replace(first, tokens=tokens, lengths=tokens.lengths)
    num_texts = sum(len(each) for each in places)
    num_rows, num_keys = max(part.q.shape[2] for part in parts), max(part.k.shape[2] for part in parts)

    def placed(values: Sequence[Tensor], length: int, fill: float = 0.0) -> Tensor:
        out = values[0].new_full((num_texts, values[0].shape[1], length, *values[0].shape[3:]), fill)
        for value, at in zip(values, places, strict=True):
            out[list(at), :, : value.shape[2]] = value
        return out

    kept = [part.v for part in parts if part.v is not None]
    because = "; ".join(dict.fromkeys(part.because for part in parts))
    return replace(
        first,
        q=placed([part.q for part in parts], num_rows),
        k=placed([part.k for part in parts], num_keys),
        v=placed(kept, num_keys) if kept else None,
        lse=placed([part.lse for part in parts], num_rows, -torch.inf),
        mask=_mask([part.mask for part in parts], places, num_texts, num_rows, num_keys),
        rule=_rule([part.rule for part in parts], places, num_texts, num_rows, num_keys),
        lengths=tokens.lengths,
        tokens=tokens,
        because=because,
    )


def _mask(masks: Sequence[Mask], places: Sequence[Sequence[int]], num_texts: int, num_rows: int, num_keys: int) -> Mask:
    start, stop = (torch.zeros(num_texts, num_rows, dtype=torch.long) for _ in range(2))
    dense = None
    if any(mask.dense is not None for mask in masks):
        heads = max(1 if mask.dense is None else mask.dense.shape[1] for mask in masks)
        dense = torch.zeros(num_texts, heads, num_rows, num_keys, dtype=torch.bool)
    for mask, at in zip(masks, places, strict=True):
        whole, rows = mask.expand(len(at)), slice(0, mask.num_queries)
        start[list(at), rows], stop[list(at), rows] = whole.start, whole.stop
        if dense is not None:
            dense[list(at), :, rows, : mask.num_keys] = mask.visible(rows, slice(0, mask.num_keys))
    return Mask(start, stop, num_keys, dense)


def _rule(rules: Sequence[Rule], places: Sequence[Sequence[int]], num_texts: int, num_rows: int, num_keys: int) -> Rule:
    """Scale, softcap and sinks are the layer's; a bias is put in each text's corner."""
    if all(rule.bias is None for rule in rules):
        return rules[0]
    heads = max(rule.bias.shape[1] for rule in rules if rule.bias is not None)
    bias = torch.zeros(num_texts, heads, num_rows, num_keys)
    for rule, at in zip(rules, places, strict=True):
        if rule.bias is not None:
            bias[list(at), :, : rule.bias.shape[2], : rule.bias.shape[3]] = rule.bias.to(bias.dtype)
    return replace(rules[0], bias=bias)
