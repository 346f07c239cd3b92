"""How scores are made from q and k: scale, softcap, additive bias, and sinks in the denominator.

The order is the field's: `score = scale * q.k`, then `cap * tanh(score / cap)` (Gemma 2), then the bias (T5,
ALiBi), then the mask. Sinks (gpt-oss) add `exp(sink)` to the denominator only: rows then sum to less than 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Rule:
    """`scale` multiplies q.k; `softcap`, `sinks` (one logit a head) and `bias` (added to the score) are optional."""

    scale: float
    softcap: float | None = None
    sinks: Float[Tensor, "h"] | None = None
    bias: Float[Tensor, "#b #h q k"] | None = None

    @property
    def plain(self) -> bool:
        """Whether a score is `scale * q.k` and nothing more."""
        return self.softcap is None and self.bias is None

    def finish(self, scores: Float[Tensor, "b h r c"], rows: slice, keys: slice) -> Float[Tensor, "b h r c"]:
        """Softcap and bias, in place, on a tile of scaled dot products."""
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            scores.add_(self.bias[:, :, rows, keys])
        return scores

    def texts(self, chosen: slice | Tensor) -> Rule:
        """The rule of some texts."""
        if self.bias is None or self.bias.shape[0] == 1:
            return self
        return Rule(self.scale, self.softcap, self.sinks, self.bias[chosen])


def check_softcap(softcap: float | None) -> None:
    """Errors: ShapeError."""
    if softcap is not None and not softcap > 0:
        raise ShapeError(f"{softcap=} is no cap: it squeezes scores into (-softcap, softcap). Use None for no cap.")


def grouped_scores(
    q: Float[Tensor, "b h r d"], k: Float[Tensor, "b g c d"], scale: float, out: Tensor | None = None
) -> Float[Tensor, "b h r c"]:
    """`scale * q.k` for every query head against its key head, keys read once and never repeated.

    The query heads of a group are packed into the row axis: one matrix product a key head. Computed in the
    inputs' dtype; callers pass float32 (or float64).
    """
    num_texts, num_heads, num_rows, dim = q.shape
    groups = k.shape[1]
    packed = q.reshape(num_texts * groups, num_heads // groups * num_rows, dim)
    keys = k.reshape(num_texts * groups, k.shape[2], dim).transpose(1, 2)
    shape = (*packed.shape[:2], k.shape[2])
    target = packed.new_empty(shape) if out is None else out[: packed.shape[0] * packed.shape[1] * shape[2]].view(shape)
    torch.baddbmm(target, packed, keys, beta=0, alpha=scale, out=target)
    return target.view(num_texts, num_heads, num_rows, k.shape[2])
