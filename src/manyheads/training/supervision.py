"""An auxiliary loss that pulls one head towards a pattern: minus the log of its weight where the pattern points.

That is the KL divergence of a row's weights from the pattern, which has all of its own on one key. A row of weights is
`exp(score - lse)`, and no fused kernel has a gradient of `lse`: so the one head's map is formed, `[b, n, n]`, which
texts of a training's length (64 tokens here) can afford. Nothing that is measured forms one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.heads import Head
from manyheads.interventions.design.patterns import HeadDesign
from manyheads.interventions.design.patterns import first
from manyheads.interventions.design.patterns import previous
from manyheads.training.decoder import Block, Decoder

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where each row should look: `keys(n)` is a place a row, NOWHERE for a row that has none, or no choice.

    `statistic` measures the weight there; `design` makes a head that has it without any training. `said`: in words.
    """

    said: str
    statistic: str
    design: HeadDesign
    keys: Callable[[int], Int[Tensor, "n"]]


def _before(length: int) -> Int[Tensor, "n"]:
    return torch.arange(length) - 1


def _first(length: int) -> Int[Tensor, "n"]:
    return torch.where(torch.arange(length) > 0, 0, NOWHERE)


PATTERNS = {
    "previous": Pattern("the token before", "previous_mass", previous(), _before),
    "first": Pattern("the first token", "first_mass", first(), _first),
}


def head_weights(model: Decoder, ids: Int[Tensor, "b n"], head: Head) -> Float[Tensor, "b n n"]:
    """One head's map, with gradients. Cost: the layers below it once more, and the map."""
    x = model.embedding(ids)
    for block in model.blocks[: head.layer]:
        x = block(x)
    own = model.blocks[head.layer]
    assert isinstance(own, Block)
    weights = own.attention(own.attention_norm(x), weight_heads=[head.index], average_attn_weights=False)[1]
    assert weights is not None
    return weights[:, 0]


def pattern_loss(weights: Float[Tensor, "b q k"], keys: Int[Tensor, "q"]) -> Float[Tensor, ""]:
    """The mean of -log(weight on its key) over the rows that have one, nats."""
    rows = (keys != NOWHERE).nonzero()[:, 0].to(weights.device)
    aimed = weights[:, rows, keys.to(weights.device)[rows]]
    return -aimed.clamp_min(torch.finfo(aimed.dtype).tiny).log().mean()
