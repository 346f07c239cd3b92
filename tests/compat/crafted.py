"""Recordings whose maps are given: scores are a bias, the logarithm of the map, so any map at all can be recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.attention import Mask, Rule
from manyheads.recording import LayerRecord, Recording
from manyheads.spec import Site
from manyheads.texts import Tokens

DIM = 2


def crafted(maps: Sequence[Tensor], ids: Sequence[int], pieces: Sequence[str] = ()) -> Recording:
    """One text, a layer for each of `maps` [h, n, n]; rows may sum to less than 1. Causal where all of them are."""
    length = len(ids)
    tokens = Tokens(torch.tensor([length]), torch.tensor([list(ids)]), (tuple(pieces),) if pieces else ())
    causal = all(bool((one.triu(1) == 0).all()) for one in maps)
    mask = Mask.causal(length, length) if causal else Mask.full(length, length)
    layers = []
    for number, one in enumerate(maps):
        heads = len(one)
        site = Site("", number, f"layers.{number}", heads, heads, DIM, DIM, causal)
        zeros = torch.zeros(1, heads, length, DIM)
        rule = Rule(1.0, bias=one.double().log().clamp_min(-1e4).float()[None])
        layers.append(LayerRecord(site, zeros, zeros, None, zeros[..., 0], mask, rule, tokens.lengths, tokens))
    return Recording({"": layers}, tokens)
