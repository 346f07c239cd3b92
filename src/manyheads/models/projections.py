"""A site's q, k, v and output projections, and its heads cut out of them or put in another order.

What: `projections_of` finds them, whatever the family calls them and however they lie in memory (`layouts`);
`Projections` reads and writes them by head, and `select` keeps some heads, in any order, in place.
Why: pruning, merging heads into groups, and saving what is left all change the same few matrices, and everything that
goes along with them: biases, sinks, per-head norms, position biases, and each attribute that counts heads.
Cost: the chosen rows are copied; nothing else is. Errors: ModelError naming the module and what was looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import ModelError, ShapeError
from manyheads.base.grouping import check_groups
from manyheads.models.families import is_transposed, output_projection, weight_by_head
from manyheads.models.headcounts import recount
from manyheads.models.layouts import LAYOUTS, Holder, Sizes, group_by_group, holders_of
from manyheads.spec import Site

__all__ = ["Cut", "Projections", "projections_of"]

BY_HEAD = {  # what else belongs to a head: path in the attention module -> (axis of heads, whose heads)
    "sinks": (0, "q"),
    "head_scale": (0, "q"),
    "scale_by_head": (0, "q"),
    "bias_k": (0, "k"),
    "bias_v": (0, "v"),
    "relative_attention_bias.weight": (1, "q"),
    "relative_position_bias_table": (1, "q"),
    "relative_position_bias.relative_position_bias_table": (1, "q"),
}
OURS = ("bias_k", "bias_v")  # [g, 1, width] in our own layer; something else under the same name in others
NORM = re.compile(r"(^|\.)((q|k|query|key)_?(layer)?norm|norm_(q|k)|\w*sub_?norm|inner_attn_ln)(\.|$)", re.IGNORECASE)
LATENT = ("kv_b_proj", "kv_a_proj_with_mqa")
ADVICE = "Zero these heads instead: their columns of the output projection."


@dataclass(frozen=True, eq=False)
class Cut:
    """Of one tensor of a model, by its path: which places along an axis stay, in their new order."""

    path: str
    axis: int
    index: Int[Tensor, "n"]


@dataclass(eq=False)
class Projections:
    """Where one site's projections are. `site` follows what `select` does. Weights are read and written by head.

    A head's slice is `[width, m]`, as a Linear keeps it, also where the model's matrix is transposed (GPT-2).
    """

    site: Site
    module: nn.Module
    holders: list[Holder]
    output_path: str
    output: nn.Module
    by_head: dict[str, tuple[int, str]]  # as in BY_HEAD, those that are there

    def read(self, part: str) -> tuple[Float[Tensor, "heads width m"], Float[Tensor, "heads width"] | None]:
        """Weight and bias (None where there is none) of "q", "k" or "v", by head: copies, without gradient."""
        holder, rows = self._place(part)
        weight, bias = holder.module.weight.detach(), getattr(holder.module, "bias", None)  # type: ignore[union-attr]
        taken = (weight.T if is_transposed(holder.module) else weight)[rows.to(weight.device)]  # type: ignore[union-attr,index]
        return taken, None if bias is None else bias.detach()[rows.to(bias.device)]

    def write(
        self, part: str, weight: Float[Tensor, "heads width m"], bias: Float[Tensor, "heads width"] | None
    ) -> None:
        """Put other numbers in the place of what `read` gave. Raises ShapeError unless the shapes are the same."""
        holder, rows = self._place(part)
        old, old_bias = self.read(part)
        if weight.shape != old.shape or (bias is None) != (old_bias is None):
            got, had = (
                f"{list(numbers.shape)} with{'out' if added is None else ''} bias"
                for numbers, added in ((weight, bias), (old, old_bias))
            )
            raise ShapeError(f"{self.site.module}: {part} written as {got}, but it is {had}. `select` changes counts.")
        with torch.no_grad():
            whole = holder.module.weight.T if is_transposed(holder.module) else holder.module.weight  # type: ignore[union-attr]
            whole[rows.to(whole.device)] = weight.to(whole.dtype)  # type: ignore[union-attr,index]
            if bias is not None:
                holder.module.bias[rows.to(whole.device)] = bias.to(whole.dtype)  # type: ignore[union-attr,index]

    def read_output(self) -> Float[Tensor, "h f m"]:
        """The output projection by head, from the head's width to the model's: a copy, without gradient."""
        return weight_by_head(self.output, self.site.num_heads).clone()

    def output_and_name(self) -> tuple[nn.Module, str | None]:
        """The output projection, and its name inside the attention module; None where it stands beside it."""
        prefix = _join(self.site.module, "")
        inside = self.output_path.startswith(prefix)
        return self.output, self.output_path.removeprefix(prefix) if inside else None

    def cuts(self, heads: Sequence[int], kv_heads: Sequence[int]) -> list[Cut]:
        """What `select` would keep of each tensor, by its path in the model. Changes nothing."""
        before = Sizes.of(self.site)
        after = before._replace(heads=len(heads), kv_heads=len(kv_heads))
        chosen = {"q": torch.tensor(heads, dtype=torch.long), "k": torch.tensor(kv_heads, dtype=torch.long)}
        chosen["v"] = chosen["k"]
        cuts: list[Cut] = []
        for holder in self.holders:
            old, new = holder.rows(before), holder.rows(after) if heads else {}
            index = torch.empty(sum(rows.numel() for rows in new.values()), dtype=torch.long)
            for part, rows in new.items():
                index[rows.reshape(-1)] = old[part][chosen[part]].reshape(-1)
            path = _join(self.site.module, holder.name)
            cuts.append(Cut(f"{path}.weight", int(is_transposed(holder.module)), index))
            if getattr(holder.module, "bias", None) is not None:
                cuts.append(Cut(f"{path}.bias", 0, index))
        columns = torch.arange(before.heads * before.v_dim).view(before.heads, before.v_dim)[chosen["q"]]
        cuts.append(Cut(f"{self.output_path}.weight", int(not is_transposed(self.output)), columns.reshape(-1)))
        return cuts + [
            Cut(_join(self.site.module, name), axis, chosen[part]) for name, (axis, part) in self.by_head.items()
        ]

    def select(self, heads: Sequence[int], kv_heads: Sequence[int]) -> None:
        """Keep these query heads and key/value heads, in this order, in place; a permutation is one such choice.

        The query heads given must lie as the model will read them: the first `len(heads) / len(kv_heads)` are served
        by the first key/value head given, and so on. Dtype, device and requires_grad stay. Raises ShapeError where
        the counts do not divide, or where there is no such head.
        """
        heads, kv_heads = list(heads), list(kv_heads)
        check_groups(len(heads), len(kv_heads), self.site.module)
        for asked, count in ((heads, self.site.num_heads), (kv_heads, self.site.num_kv_heads)):
            if len(set(asked)) < len(asked) or min(asked) < 0 or max(asked) >= count:
                raise ShapeError(f"{self.site.module}: {asked} should be different heads of 0 to {count - 1}.")
        self._require_room(len(heads), len(kv_heads))
        for cut in self.cuts(heads, kv_heads):
            self._apply(cut)
        for module in (*(holder.module for holder in self.holders), self.output):
            _resize(module)
        before = Sizes.of(self.site)
        self.site = replace(self.site, num_heads=len(heads), num_kv_heads=len(kv_heads))
        recount(self.module, before, Sizes.of(self.site))

    def _require_room(self, num_heads: int, num_kv_heads: int) -> None:
        is_mha = self.site.num_heads == self.site.num_kv_heads and self.holders[0].arrange is group_by_group
        if is_mha and num_heads != num_kv_heads:
            raise ModelError(
                f"{self.site.module} ({type(self.module).__name__}) keeps q, k and v of each head together, so each "
                f"query head has its own key/value head: {num_heads} over {num_kv_heads} cannot be said in it."
            )

    def _apply(self, cut: Cut) -> None:
        path, _, name = cut.path.rpartition(".")
        inside = path.removeprefix(self.site.module).lstrip(".")
        owner = self.output if path == self.output_path else self.module.get_submodule(inside)
        old = getattr(owner, name)
        new = old.detach().index_select(cut.axis, cut.index.to(old.device)).contiguous()
        setattr(owner, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)

    def _place(self, part: str) -> tuple[Holder, Int[Tensor, "heads width"]]:
        for holder in self.holders:
            if part in holder.parts:
                return holder, holder.rows(Sizes.of(self.site))[part]
        raise ShapeError(f"{part=} is no projection: 'q', 'k' or 'v'.")


def projections_of(model: nn.Module, site: Site) -> Projections:
    """Where `site` of `model` keeps its projections. Changes nothing.

    Raises ModelError where they are not found, or where a head cannot be cut out without changing the others: modules
    that several layers share, latent attention, norms over all heads together, ALiBi slopes.
    """
    if "#" in site.module:
        raise ModelError(
            f"{site} is another call of module {site.module.split('#')[0]!r}, which several layers share: a head cut "
            f"out of it would be missing in all of them. {ADVICE}"
        )
    module = model.get_submodule(site.module)
    _refuse(module, site)
    holders = holders_of(module, site)
    if not holders:
        sought = "; ".join(", ".join(name for name, _ in layout.modules) for layout in LAYOUTS)
        raise ModelError(
            f"{_named(module, site)}: q, k and v were not found. Sought were matrices for {site.num_heads} query heads "
            f"over {site.num_kv_heads} of width {site.qk_dim}, called {sought}; it has {_has(module)}."
        )
    output = _output(model, module, site)
    _refuse_norms(module, site)
    return Projections(site, module, holders, *output, _by_head(module, site))


def _output(model: nn.Module, module: nn.Module, site: Site) -> tuple[str, nn.Module]:
    width = site.num_heads * site.v_dim
    found = output_projection(model, site.module, width)
    if found is not None:
        return found
    raise ModelError(
        f"{_named(module, site)}: the output projection, a matrix with {width} inputs ({site.num_heads} heads of "
        f"{site.v_dim}), was found neither in it nor beside it; it has {_has(module)}."
    )


def _refuse(module: nn.Module, site: Site) -> None:
    """Modules whose heads do not come apart."""
    if any(hasattr(module, name) for name in LATENT):
        raise ModelError(
            f"{_named(module, site)} is latent attention (MLA): its heads share one compressed key, and are not rows "
            f"of q, k and v. {ADVICE}"
        )
    if isinstance(module, nn.MultiheadAttention):
        raise ModelError(
            f"{_named(module, site)}: torch's own layer takes the width of a head to be embed_dim / num_heads, so it "
            f"cannot have fewer. Use mh.MultiHeadAttention, or: {ADVICE}"
        )
    if getattr(module, "alibi", None) not in (None, False):
        raise ModelError(
            f"{_named(module, site)}: ALiBi's slopes follow from the number of heads, so the others' would change. "
            f"{ADVICE}"
        )


def _refuse_norms(module: nn.Module, site: Site) -> None:
    """A norm over all heads together divides by what every head has: without one of them the others grow."""
    if site.num_heads == 1:
        return
    together = {site.num_heads * site.qk_dim, site.num_kv_heads * site.qk_dim, site.num_heads * site.v_dim}
    for name, weight in module.named_parameters():
        if NORM.search(name) and weight.ndim == 1 and len(weight) in together - {site.qk_dim}:
            raise ModelError(
                f"{_named(module, site)}: its {name.rsplit('.', 1)[0]} norms all heads together, so without one head "
                f"the others would be scaled up. {ADVICE}"
            )


def _by_head(module: nn.Module, site: Site) -> dict[str, tuple[int, str]]:
    """What else belongs to a head, by path, and norms with a row a head. Raises ModelError for a strange shape."""
    found: dict[str, tuple[int, str]] = {}
    sizes = Sizes.of(site)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in BY_HEAD and (name not in OURS or tensor.ndim == 3):
            axis, part = BY_HEAD[name]
            if tensor.ndim <= axis or tensor.shape[axis] != sizes.count(part):
                raise ModelError(
                    f"{_named(module, site)}: its {name} is {list(tensor.shape)}, but axis {axis} should be its "
                    f"{sizes.count(part)} heads."
                )
            found[name] = axis, part
        elif NORM.search(name) and tensor.ndim == 2:  # Cohere: a row of gains for each head
            found[name] = 0, "q" if tensor.shape[0] == sizes.heads and "q" in name.split(".")[0].lower() else "k"
    return found


def _resize(module: nn.Module) -> None:
    """The attributes by which linear maps say their size."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    if is_transposed(module):
        sizes = dict(zip(("nx", "nf"), weight.shape, strict=True))
    else:
        sizes = dict(zip(("out_features", "in_features"), weight.shape, strict=True))
    for name, size in sizes.items():
        if hasattr(module, name):
            object.__setattr__(module, name, size)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(module: nn.Module, site: Site) -> str:
    return f"{site}, module {site.module!r} ({type(module).__name__})"


def _has(module: nn.Module) -> str:
    shapes = [f"{name} {list(weight.shape)}" for name, weight in module.named_parameters()]
    return ", ".join(shapes[:8]) or "no parameters"
