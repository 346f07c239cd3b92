"""A layer's sizes, read off its arguments, and how x becomes q, k and v: one product, three, or the caller's modules.

`read_sizes` checks the arguments; each message names the argument, its value, and a remedy.

Whatever the layout, each of W^Q, W^K, W^V is drawn alike, Glorot and Bengio 2010 with its own rows and columns
(std sqrt(2 / (in + out))), in the order q, k, v: one seed gives one layer. (`nn.MultiheadAttention` counts the rows of
all three as one matrix, so its are sqrt(1/2) of these.) Biases start at 0.
"""

# pyright: reportUnnecessaryIsInstance=false
# What people give is checked, whatever its type says.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.attention import check_softcap
from manyheads.base import check_groups, divisors
from manyheads.errors import ShapeError
from manyheads.nn.layer_inputs import MASK_TRUE
from manyheads.nn.positions import RelativeBias, Rope

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


def read_sizes(options: Mapping[str, Any]) -> Sizes:
    """The sizes that a constructor's arguments make. Errors: ShapeError."""
    _check_options(options)
    embed_dim, num_heads = options["embed_dim"], options["num_heads"]
    num_kv_heads = num_heads if options["num_kv_heads"] is None else options["num_kv_heads"]
    check_groups(num_heads, num_kv_heads)
    head_dim = options["head_dim"]
    if head_dim is None:
        if embed_dim % num_heads:
            raise ShapeError(
                f"{embed_dim=} is not a multiple of {num_heads=}: say head_dim=, or use one of {divisors(embed_dim)} "
                f"heads."
            )
        head_dim = embed_dim // num_heads
    kdim, vdim = (embed_dim if options[name] is None else options[name] for name in ("kdim", "vdim"))
    biases = tuple(
        options["bias"] if options[f"{name}_bias"] is None else options[f"{name}_bias"]
        for name in ("q", "k", "v", "out")
    )
    layout, one_input, one_bias = options["projections"], kdim == vdim == embed_dim, len(set(biases[:3])) == 1
    if isinstance(layout, Mapping):
        sized = [
            name for name in ("q_bias", "k_bias", "v_bias", "out_bias", "kdim", "vdim") if options[name] is not None
        ]
        sized += [] if options["bias"] else ["bias"]
        if sized:
            raise ShapeError(
                f"{', '.join(sized)} with injected projections: those have their own. Leave these arguments out."
            )
        layout = None
    elif layout is None:
        layout = "fused" if one_input and one_bias else "split"
    elif layout not in LAYOUTS:
        raise ShapeError(f"projections={layout!r}: use 'fused', 'split', or a mapping of modules q, k, v and out.")
    elif layout == "fused" and not (one_input and one_bias):
        why = "kdim or vdim differ from embed_dim" if not one_input else "q, k and v differ in having a bias"
        raise ShapeError(f"projections='fused', but {why}, and one product has one input and one bias: use 'split'.")
    v_head_dim = options["v_head_dim"] or head_dim
    return Sizes(num_heads, num_kv_heads, head_dim, v_head_dim, kdim, vdim, biases, layout)


def _check_options(options: Mapping[str, Any]) -> None:
    dtype = options.get("dtype")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ShapeError(f"{dtype=} is not a dtype for weights: use torch.float32, bfloat16, float16 or float64.")
    if isinstance(options["num_kv_heads"], float):
        raise ShapeError(
            f"num_kv_heads={options['num_kv_heads']} is not a count: the argument that is dropout in "
            f"nn.MultiheadAttention is num_kv_heads here. Write dropout={options['num_kv_heads']}."
        )
    for name in ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "kdim", "vdim", "window"):
        value = options[name]
        if value is None and name not in ("embed_dim", "num_heads"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeError(f"{name}={value!r} is not a count: use a whole number, 1 or more.")
    dropout, softcap, scale = options["dropout"], options["softcap"], options["scale"]
    if not 0 <= dropout < 1:
        raise ShapeError(f"{dropout=} is not a share of the weights to drop: use 0 up to, not including, 1.")
    if dropout and options["attend"] is not None:
        raise ShapeError(
            f"{dropout=} with attend=: an injected attend takes no dropout. Use dropout=0.0, or leave attend out."
        )
    check_softcap(softcap)
    if scale is not None and not isinstance(scale, float | int) and len(scale) != options["num_heads"]:
        raise ShapeError(f"scale has {len(scale)} numbers: give one for all, or one a head, {options['num_heads']}.")
    if options["mask_true"] not in MASK_TRUE:
        raise ShapeError(
            f"mask_true={options['mask_true']!r}: say 'hide' (True = may not look) or 'see' (True = may look)."
        )
    if options["rope"] is not None and not isinstance(options["rope"], Rope):
        raise ShapeError(
            f"rope is a {type(options['rope']).__name__}: give a Rope, as in Rope(base=10_000.0, max_positions=4096)."
        )
    relative_bias = options["relative_bias"]
    if relative_bias is not None and not isinstance(relative_bias, RelativeBias):
        raise ShapeError(
            f"relative_bias is a {type(relative_bias).__name__}: give RelativeBias(num_buckets=32, max_distance=128)."
        )


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
        # By identity: to compare numbers would cost more than the product that it saves, and break a graph.
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
