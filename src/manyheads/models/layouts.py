"""How attention modules keep their q, k and v: a table of names, and which rows of each matrix are whose.

A family keeps three linear maps or one, under a handful of names, and where it is one, heads lie in it either part by
part (all of q, then k, then v: GPT-2, Phi-3, ViTs) or group by group (the queries of a group, its key, its value:
GPT-NeoX, Falcon). That is all that differs: once it is known which rows are whose, heads are cut, moved and read alike
everywhere. Which layout a module has is told by names and shapes only, so whoever changes weights by it must compare
outputs afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.models.families import is_transposed
from manyheads.spec import Site

__all__ = ["Holder", "Sizes", "holders_of", "out_rows"]


class Sizes(NamedTuple):
    """Of one site: query heads, key/value heads, the width of a head of q and k, and of v."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int

    @classmethod
    def of(cls, site: Site) -> Sizes:
        return cls(site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim)

    def count(self, part: str) -> int:
        return self.heads if part == "q" else self.kv_heads

    def width(self, part: str) -> int:
        return self.v_dim if part == "v" else self.qk_dim


Rows = dict[str, Int[Tensor, "heads width"]]
"""Part ("q", "k", "v") -> the rows of each of its heads."""


def part_by_part(sizes: Sizes, parts: str) -> Rows:
    """All heads of the first part, then all of the next."""
    rows, begin = {}, 0
    for part in parts:
        count, width = sizes.count(part), sizes.width(part)
        rows[part] = begin + torch.arange(count * width).view(count, width)
        begin += count * width
    return rows


def group_by_group(sizes: Sizes, parts: str) -> Rows:
    """Group after group: its query heads, its key head, its value head. Of MHA each head is a group."""
    per_group = sizes.heads // sizes.kv_heads
    wide = per_group * sizes.qk_dim
    size = wide + sizes.qk_dim + sizes.v_dim
    whole = torch.arange(sizes.kv_heads * size).view(sizes.kv_heads, size)
    q, k, v = whole.split([wide, sizes.qk_dim, sizes.v_dim], 1)
    return {"q": q.reshape(sizes.heads, sizes.qk_dim), "k": k, "v": v}


Arrange = Callable[[Sizes, str], Rows]


@dataclass(frozen=True)
class Kept:
    """An entry: modules by name inside the attention module, with the parts that each holds, in order."""

    modules: tuple[tuple[str, str], ...]
    arrange: Arrange = part_by_part
    where: Callable[[nn.Module], bool] = lambda module: True


def _three(q: str, k: str, v: str) -> Kept:
    return Kept(((q, "q"), (k, "k"), (v, "v")))


LAYOUTS = (
    _three("q_proj", "k_proj", "v_proj"),
    _three("query", "key", "value"),
    _three("q_lin", "k_lin", "v_lin"),
    _three("to_q", "to_k", "to_v"),
    _three("Wq", "Wk", "Wv"),
    _three("wq", "wk", "wv"),
    _three("q", "k", "v"),
    _three("query_proj", "key_proj", "value_proj"),
    _three("linear_q", "linear_k", "linear_v"),
    _three("qkv_proj.q", "qkv_proj.k", "qkv_proj.v"),  # our own layer, its projections apart
    Kept((("q_attn", "q"), ("c_attn", "kv"))),  # GPT-2's cross-attention
    Kept((("c_attn", "qkv"),), group_by_group, lambda module: getattr(module, "multi_query", True) is False),
    Kept((("c_attn", "qkv"),)),
    Kept((("qkv_proj", "qkv"),)),
    Kept((("query_key_value", "qkv"),), group_by_group),
    Kept((("qkv", "qkv"),)),
    Kept((("Wqkv", "qkv"),)),
    Kept((("att_proj", "qkv"),)),
    Kept((("q_proj", "q"), ("kv_proj", "kv"))),
    Kept((("q", "q"), ("kv", "kv"))),
)
"""Tried in this order; the first whose modules are all there, and are matrices of the right size, is taken."""


@dataclass(frozen=True, eq=False)
class Holder:
    """A module that holds some of q, k and v as rows of its weight (columns of a Conv1D's), and how they lie in it."""

    name: str
    module: nn.Module
    parts: str
    arrange: Arrange

    def rows(self, sizes: Sizes) -> Rows:
        return self.arrange(sizes, self.parts)


def holders_of(module: nn.Module, site: Site) -> list[Holder]:
    """Where `module` keeps q, k and v; nothing where no entry of the table fits. Three names come in the order q, k, v.

    Matrices that are there but have another number of rows do not fit: a gate beside q, say, is not known here.
    """
    for layout in LAYOUTS:
        found = [Holder(name, child(module, name), parts, layout.arrange) for name, parts in layout.modules]
        if layout.where(module) and all(fits(holder, Sizes.of(site)) for holder in found):
            return found
    return []


def fits(holder: Holder, sizes: Sizes) -> bool:
    rows = out_rows(holder.module)
    if holder.arrange is group_by_group and sizes.heads % sizes.kv_heads:
        return False
    return rows is not None and rows == sum(each.numel() for each in holder.rows(sizes).values())


def child(module: nn.Module, name: str) -> nn.Module:
    """The submodule of that name; an empty module where there is none."""
    try:
        return module.get_submodule(name)
    except AttributeError:
        return nn.Module()


def out_rows(module: nn.Module) -> int | None:
    """How many numbers a linear map gives; None for what is no matrix of numbers that can be cut (quantised, say)."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.shape[1] if is_transposed(module) else weight.shape[0]
