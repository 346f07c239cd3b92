"""Gates on heads that a training closes: the hard concrete distribution, and what it costs to keep them open.

A head's output is multiplied by a gate before the output projection. In training a gate is drawn anew for each text: a
number in (0, 1) from a stretched and clamped logistic, so that it is exactly 0 or exactly 1 with some probability and
still has a gradient in its location. `expected_open` is the differentiable number of heads whose gate is not 0, the L0
norm's expectation, which a loss adds with a weight. In eval mode a gate is the middle of its distribution, and a head
whose gate is 0 there is gone: it adds what zero ablation leaves, nothing.

The gates reach a model by the seam that ablations use (`models.tap`), so any model that can be tapped can be gated.
Source: Louizos et al. 2018, Learning sparse neural networks through L0 regularization, section 2.2, equations 10 to 13;
Voita et al. 2019 (a gate a head).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import HeadError
from manyheads.heads import Head
from manyheads.models import AttentionCall, tap

TEMPERATURE, BELOW, ABOVE = 2 / 3, -0.1, 1.1
"""Of the hard concrete: its temperature, and the ends to which a draw is stretched. Source: Louizos et al. 2018,
section 4.1."""

START = 3.0  # the location of every gate before training: not 0 in 99 of 100 draws


class GatedHeads(nn.Module):
    """A model of one stack with a gate on every head. It is called as the model is; `layers`: each layer's heads.

    `speed`: how far a gate's location moves when an optimizer moves its parameter by 1. AdamW moves parameters by its
    learning rate whatever their size, and locations have farther to go than weights.
    Errors, when called: HeadError for a layer that `layers` does not count so.
    """

    def __init__(self, model: nn.Module, layers: Mapping[int, int], *, start: float = START, speed: float = 1.0):
        super().__init__()
        self.model = model
        self.start, self.speed = start, speed
        # Vectors: what the loop decays are matrices, and a gate that decays would open by itself.
        self.moved = nn.ParameterDict({str(layer): nn.Parameter(torch.zeros(count)) for layer, count in layers.items()})

    def location(self, layer: int) -> Float[Tensor, "h"]:
        """log alpha of each head's gate in a layer."""
        return self.start + self.speed * self.moved[str(layer)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with tap(self.model, edits=[self._edit], guard=False, training=self.training):
            return self.model(*args, **kwargs)

    def _edit(self, call: AttentionCall) -> Tensor:
        name = str(call.site.layer)
        if call.site.stack or name not in self.moved or self.moved[name].numel() != call.site.num_heads:
            counts = {int(layer): moved.numel() for layer, moved in self.moved.items()}
            raise HeadError(f"{call.site} has {call.site.num_heads} heads, and gates were made for {counts}.")
        location = self.location(call.site.layer)
        gate = hard_concrete(location.expand(len(call.out), -1)) if self.training else middle(location)[None]
        return call.out * gate[..., None, None].to(call.out.dtype)

    @property
    def expected_open(self) -> Float[Tensor, ""]:
        """How many gates are not 0, in expectation, with a gradient."""
        return torch.stack([share_open(self.location(int(layer))).sum() for layer in self.moved]).sum()

    @property
    def kept(self) -> dict[Head, bool]:
        """Whether each head is left in eval mode."""
        return {head: gate > 0 for head, gate in self.gates.items()}

    @property
    def gates(self) -> dict[Head, float]:
        """Each head's gate in eval mode."""
        return {
            Head("", int(layer), index): gate
            for layer in self.moved
            for index, gate in enumerate(middle(self.location(int(layer))).tolist())
        }


def hard_concrete(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """A draw of each gate, from 0 to 1, both included. Source: Louizos et al. 2018, equations 10 and 11."""
    uniform = torch.rand_like(location).clamp(1e-6, 1 - 1e-6)  # the logarithms of 0 are infinite
    concrete = ((uniform.logit() + location) / TEMPERATURE).sigmoid()
    return (concrete * (ABOVE - BELOW) + BELOW).clamp(0, 1)


def share_open(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The probability that a gate is not 0. Source: Louizos et al. 2018, equation 12."""
    return (location - TEMPERATURE * torch.tensor(-BELOW / ABOVE).log()).sigmoid()


def middle(location: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The gate that is used after training. Source: Louizos et al. 2018, equation 13."""
    return (location.sigmoid() * (ABOVE - BELOW) + BELOW).clamp(0, 1)
