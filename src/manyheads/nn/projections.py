"""How x becomes q, k and v: one fused product, three, or modules of the caller's own.

Whatever the layout, each of W^Q, W^K, W^V is drawn alike, Glorot and Bengio 2010 with its own rows and columns
(std sqrt(2 / (in + out))), in the order q, k, v: one seed gives one layer. (`nn.MultiheadAttention` counts the rows of
all three as one matrix, so its are sqrt(1/2) of these.) Biases start at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import ShapeError

LAYOUTS = ("fused", "split")


@dataclass(frozen=True)
class Sizes:
    """A layer's sizes with every default filled in. `biases` of q, k, v and out; `layout` None where injected."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kdim: int
    vdim: int
    biases: tuple[bool, bool, bool, bool]
    layout: str | None

    @property
    def widths(self) -> tuple[int, int, int]:
        """How many numbers a token has as q, as k and as v, all heads together."""
        keys, values = self.num_kv_heads * self.head_dim, self.num_kv_heads * self.v_head_dim
        return self.num_heads * self.head_dim, keys, values


class FusedProjections(nn.Module):
    """One weight `[h d + g d + g f, m]`: all query rows, then all key rows, then all value rows, as GPT-2 has it."""

    def __init__(self, embed_dim: int, widths: tuple[int, int, int], bias: bool, **factory: Any) -> None:
        super().__init__()
        self.widths = widths
        self.weight = nn.Parameter(torch.empty(sum(widths), embed_dim, **factory))
        self.bias = nn.Parameter(torch.empty(sum(widths), **factory)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for part in self.weight.split_with_sizes(self.widths):
                nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if key is query and value is query:
            q, k, v = F.linear(query, self.weight, self.bias).split_with_sizes(self.widths, -1)
            return q, k, v
        sizes = [self.widths[0], sum(self.widths[1:])]
        weight_q, weight_kv = self.weight.split_with_sizes(sizes)
        bias_q, bias_kv = (None, None) if self.bias is None else self.bias.split_with_sizes(sizes)
        q = F.linear(query, weight_q, bias_q)
        if value is key:
            k, v = F.linear(key, weight_kv, bias_kv).split_with_sizes(self.widths[1:], -1)
            return q, k, v
        weight_k, weight_v = weight_kv.split_with_sizes(self.widths[1:])
        bias_k, bias_v = (None, None) if bias_kv is None else bias_kv.split_with_sizes(self.widths[1:])
        return q, F.linear(key, weight_k, bias_k), F.linear(value, weight_v, bias_v)

    def query_only(self, query: Tensor) -> Tensor:
        rows = slice(self.widths[0])
        return F.linear(query, self.weight[rows], None if self.bias is None else self.bias[rows])

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> q, k, v: {self.widths}, bias={self.bias is not None}"


class SplitProjections(nn.Module):
    """Three modules, `q`, `k` and `v`: linear maps of ours, or whatever the caller puts in."""

    def __init__(self, q: nn.Module, k: nn.Module, v: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v = q, k, v

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.v(value)

    def query_only(self, query: Tensor) -> Tensor:
        return self.q(query)

    def reset_parameters(self) -> None:
        for part in (self.q, self.k, self.v):
            if isinstance(part, Projection):
                part.reset_parameters()


class Projection(nn.Linear):
    """A linear map that starts as this page says."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison] of nn.Linear it may be
            nn.init.zeros_(self.bias)


def own_projections(
    embed_dim: int, sizes: Sizes, factory: dict[str, Any]
) -> tuple[FusedProjections | SplitProjections, Projection]:
    """The projections that the layer's sizes ask for, in the layout that they ask for: q, k and v, and out."""
    q, k, v, out = sizes.biases
    widths = sizes.widths
    qkv: FusedProjections | SplitProjections
    if sizes.layout == "fused":
        qkv = FusedProjections(embed_dim, widths, q, **factory)
    else:
        qkv = SplitProjections(
            Projection(embed_dim, widths[0], q, **factory),
            Projection(sizes.kdim, widths[1], k, **factory),
            Projection(sizes.vdim, widths[2], v, **factory),
        )
    return qkv, Projection(sizes.num_heads * sizes.v_head_dim, embed_dim, out, **factory)


def injected(modules: Mapping[str, object]) -> tuple[SplitProjections, nn.Module]:
    """The caller's own: exactly q, k, v and out. Errors: ShapeError for what is missing, strange, or no module."""
    if set(modules) != {"q", "k", "v", "out"}:
        raise ShapeError(f"projections has {sorted(modules)}: inject all of 'q', 'k', 'v' and 'out', and nothing else.")
    maps: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise ShapeError(
                f"projections[{name!r}] is a {type(module).__name__}: give an nn.Module, so that it moves with the "
                f"layer."
            )
        maps[name] = module
    return SplitProjections(maps["q"], maps["k"], maps["v"]), maps["out"]
