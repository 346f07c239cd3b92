"""From q and k to a weight: the one place where scores are finished and turned into the cells of a map.

The order is the field's: `score = scale * q.k`, then `cap * tanh(score / cap)` (Gemma 2), then the additive bias (T5,
ALiBi, float masks), then the mask. Sinks (gpt-oss) add `exp(sink)` to the denominator only, so rows then sum to less
than 1. With the row's log-sum-exp a weight is `exp(score - lse)`: see `exact_weights`.

Nothing else in the library applies a softcap or a bias, except for the two that must not share a mistake with this
page: the NumPy oracle (`manyheads.reference`) and the guard that checks recorded calls (`manyheads.models`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
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

    @property
    def options(self) -> dict[str, Any]:
        """The rule as the keyword arguments of `attend`."""
        return {"scale": self.scale, "softcap": self.softcap, "sinks": self.sinks, "bias": self.bias}

    def finish(
        self, scores: Float[Tensor, "b h r c"], rows: slice = slice(None), keys: slice = slice(None)
    ) -> Float[Tensor, "b h r c"]:
        """Softcap and bias on a window of scaled dot products, which are overwritten unless they carry gradients."""
        return self.finish_cells(scores, None if self.bias is None else self.bias[:, :, rows, keys])

    def finish_cells(self, scores: Float[Tensor, "..."], bias: Float[Tensor, "..."] | None) -> Float[Tensor, "..."]:
        """`finish` for scores of any cells, with the bias of these cells."""
        bias = None if bias is None else bias.to(scores.dtype)
        # Autograd needs the output of tanh, which an operation in place would destroy.
        if scores.requires_grad or (bias is not None and bias.requires_grad):
            scores = scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()
            return scores if bias is None else scores + bias
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores if bias is None else scores.add_(bias)

    def texts(self, chosen: slice | Tensor) -> Rule:
        """The rule of some texts."""
        if self.bias is None or self.bias.shape[0] == 1:
            return self
        return Rule(self.scale, self.softcap, self.sinks, self.bias[chosen])

    def heads(self, chosen: Sequence[int] | Tensor) -> Rule:
        """The rule of some heads; a bias that all heads share stays shared."""
        heads = chosen if isinstance(chosen, Tensor) else list(chosen)
        bias = self.bias if self.bias is None or self.bias.shape[1] == 1 else self.bias[:, heads]
        return Rule(self.scale, self.softcap, None if self.sinks is None else self.sinks[heads], bias)


def check_softcap(softcap: float | None) -> None:
    """Errors: ShapeError."""
    if softcap is not None and not softcap > 0:
        raise ShapeError(f"{softcap=} is not a cap: it squeezes scores into (-softcap, softcap). Use None for no cap.")


class _Exact:
    """How many are in `exact_arithmetic` now, of all threads, and what the first of them found set."""

    lock = threading.Lock()
    inside = 0
    before: bool | str = "none"


@contextmanager
def exact_arithmetic() -> Generator[None]:
    """Products of matrices in the dtype that they have, also in a model that runs under autocast or with TF32.

    Autocast would round float32 factors to bfloat16, TF32 to ten bits: an lse that the model's kernel computed would no
    longer fit the scores, and no row would add up to 1. The setting for TF32 is the process's: what another thread
    multiplies meanwhile is exact as well.
    """
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    matmul = torch.backends.cuda.matmul
    with _Exact.lock:
        if _Exact.inside == 0:
            _Exact.before, matmul.fp32_precision = matmul.fp32_precision, "ieee"
        _Exact.inside += 1
    try:
        for kind in kinds:
            torch.set_autocast_enabled(kind, False)
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)
        with _Exact.lock:
            _Exact.inside -= 1
            if _Exact.inside == 0:
                matmul.fp32_precision = _Exact.before


def grouped_scores(
    q: Float[Tensor, "b h r d"], k: Float[Tensor, "b g c d"], scale: float, out: Tensor | None = None
) -> Float[Tensor, "b h r c"]:
    """`scale * q.k` for every query head against its key head, keys read once and never repeated.

    The query heads of a group are packed into the row axis: one matrix product a key head. Computed in the inputs'
    dtype; callers pass float32 (or float64). `out`: a flat buffer, at least as large as the result, to write to.
    """
    num_texts, num_heads, num_rows, dim = q.shape
    groups = k.shape[1]
    packed = q.reshape(num_texts * groups, num_heads // groups * num_rows, dim)
    keys = k.reshape(num_texts * groups, k.shape[2], dim).transpose(1, 2)
    shape = (*packed.shape[:2], k.shape[2])
    target = packed.new_empty(shape) if out is None else out[: packed.shape[0] * packed.shape[1] * shape[2]].view(shape)
    torch.baddbmm(target, packed, keys, beta=0, alpha=scale, out=target)
    return target.view(num_texts, num_heads, num_rows, k.shape[2])


def exact_weights(
    scores: Float[Tensor, "*h c"], lse: Float[Tensor, "..."], visible: Bool[Tensor, "..."]
) -> Float[Tensor, "*h c"]:
    """`exp(score - lse)` of every visible cell, 0 for hidden ones. `lse` broadcasts against the finished scores.

    Source: Dao 2023, FlashAttention-2, Algorithm 1.
    """
    # The lse of a row that sees nothing is -inf. Its cells are hidden, but exp(inf) would make any gradient NaN.
    return torch.where(visible, (scores - finite(lse)).exp(), 0.0)


def finite(lse: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The lse with 0 for rows that see nothing, so that it can be subtracted from scores."""
    return torch.where(lse == -torch.inf, 0, lse)
