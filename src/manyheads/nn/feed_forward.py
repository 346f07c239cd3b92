"""The other half of a Transformer block: each token by itself, wide and back.

`FeedForward` is `W2 act(W1 x)`, 4 m wide: 8 m^2 numbers. `SwiGLU` is `W2 (silu(W1 x) * W3 x)`: three matrices, so it is
8/3 m wide to have as many. 8/3 m is rarely whole: it is rounded *up* to a multiple of `multiple_of`, as Llama does.
Source: Vaswani et al. 2017, section 3.3; Shazeer 2020 (SwiGLU), section 2; Llama 2023, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.base import one_of
from manyheads.errors import ShapeError
from manyheads.nn.projections import Projection

WIDENING = 4
GATED_WIDENING = Fraction(8, 3)  # 2/3 of 4: three matrices of this width hold what two of width 4 do
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """`W2 act(W1 x)`. `hidden_dim` defaults to `4 * embed_dim`; `activation`: relu, gelu, gelu_tanh or silu.

    Parameters: `2 m w`, and `w + m` biases. `dropout` falls on the inner activations, in training only.
    Errors: ShapeError. Source: Vaswani et al. 2017, equation 2.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int | None = None,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check(embed_dim, hidden_dim, dropout)
        one_of("activation", activation, ACTIVATIONS, ShapeError, "is not an activation here")
        self.embed_dim, self.hidden_dim = embed_dim, hidden_dim or WIDENING * embed_dim
        self.activation: Activation = activation
        self.dropout = dropout
        self.up_proj = Projection(embed_dim, self.hidden_dim, bias, device=device, dtype=dtype)
        self.down_proj = Projection(self.hidden_dim, embed_dim, bias, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        _check_width(x, self.embed_dim)
        hidden = ACTIVATIONS[self.activation](self.up_proj(x))
        return self.down_proj(F.dropout(hidden, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"{self.embed_dim} -> {self.hidden_dim} -> {self.embed_dim}, {self.activation}"


class SwiGLU(nn.Module):
    """`W2 (silu(W1 x) * W3 x)`: `gate_proj` is W1, `up_proj` W3, `down_proj` W2, as Llama names them.

    `hidden_dim` defaults to `8/3 * embed_dim`, rounded up to a multiple of `multiple_of` (8: what fast matrix products
    like; Llama took 256). Parameters: `3 m w`: as many as `FeedForward` without biases, and less than
    `3 m * multiple_of` more. Errors: ShapeError. Source: Shazeer 2020, equation 6.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int | None = None,
        *,
        multiple_of: int = 8,
        bias: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check(embed_dim, hidden_dim, dropout)
        if multiple_of < 1:
            raise ShapeError(f"{multiple_of=}: the width is rounded up to a multiple of it. Use 1 or more.")
        self.embed_dim, self.hidden_dim = embed_dim, hidden_dim or gated_width(embed_dim, multiple_of)
        self.dropout = dropout
        self.gate_proj = Projection(embed_dim, self.hidden_dim, bias, device=device, dtype=dtype)
        self.up_proj = Projection(embed_dim, self.hidden_dim, bias, device=device, dtype=dtype)
        self.down_proj = Projection(self.hidden_dim, embed_dim, bias, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        _check_width(x, self.embed_dim)
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(F.dropout(hidden, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"{self.embed_dim} -> {self.hidden_dim} -> {self.embed_dim}"


def gated_width(embed_dim: int, multiple_of: int = 8) -> int:
    """`8/3 * embed_dim`, rounded up to a multiple.

    >>> gated_width(4096, multiple_of=256)  # Llama 7B
    11008
    """
    return -(-GATED_WIDENING * embed_dim // multiple_of) * multiple_of


def _check(embed_dim: int, hidden_dim: int | None, dropout: float) -> None:
    for name, value in {"embed_dim": embed_dim, "hidden_dim": hidden_dim}.items():
        if value is not None and value < 1:
            raise ShapeError(f"{name}={value} is not a width: use 1 or more.")
    if not 0 <= dropout < 1:
        raise ShapeError(f"{dropout=} is not a share to drop: use 0 up to, not including, 1.")


def _check_width(x: Tensor, embed_dim: int) -> None:
    if x.shape[-1] != embed_dim:
        raise ShapeError(
            f"x has width {x.shape[-1]}, but this layer reads width {embed_dim}: its shape is {tuple(x.shape)}."
        )
