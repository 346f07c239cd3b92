"""What differs between model families: where the output projection is, and which stack a layer belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.base import check_groups
from manyheads.errors import ModelError, ShapeError
from manyheads.models.loading.offloaded import local_part, weight_of
from manyheads.spec import CROSS, Site

__all__ = ["Holder", "Sizes", "holders_of", "out_rows", "Cut", "Projections", "projections_of", "OwnCounts", "recount"]


OUTPUT_NAMES = (
    "o_proj", "out_proj", "c_proj", "dense", "wo", "o", "proj", "out", "to_out", "output.dense", "proj_out", "out_lin",
    "Wo", "projection_layer", "projection", "output",
)  # fmt: skip
CROSS_NAMES = re.compile(r"(cross|encoder_attn|encdec|enc_dec)", re.IGNORECASE)


def output_projection(model: nn.Module, path: str, width: int) -> tuple[str, nn.Module] | None:
    """The linear map that mixes a layer's heads, looked for inside the attention module, then beside it.

    It must take `num_heads * v_dim` inputs; anything else is not it. None where there is no such module.
    """
    parents = [path] + ([path.rsplit(".", 1)[0]] if "." in path else [""])
    for parent in parents:
        for name in OUTPUT_NAMES:
            full = f"{parent}.{name}" if parent else name
            try:
                module = model.get_submodule(full)
            except AttributeError:
                continue
            if input_width(module) == width:
                return full, module
    return None


def input_width(module: nn.Module) -> int | None:
    """How many inputs a linear map takes: Linear, or transformers' Conv1D (GPT-2), whose matrix is transposed."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    weight = local_part(weight)
    return weight.shape[0] if is_transposed(module) else weight.shape[1]


def is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def weight_by_head(module: nn.Module, num_heads: int) -> Float[Tensor, "h f m"]:
    """The output projection cut into one matrix a head, from the head's width to the model's."""
    weight = weight_of(module)
    rows = weight if is_transposed(module) else weight.T
    return rows.reshape(num_heads, rows.shape[0] // num_heads, rows.shape[1])


def stack_of(path: str, *, encoder_decoder: bool, crosses: bool) -> str:
    """The stack of a layer by its path: "" in a model that has one kind, else encoder, decoder or cross."""
    if crosses or CROSS_NAMES.search(path):
        return CROSS
    if encoder_decoder:
        return "encoder" if re.search(r"(^|\.)encoder(\.|$)", path) else "decoder"
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# How attention modules keep their q, k and v: a table of names, and which rows of each matrix are whose.
#
# A family keeps three linear maps or one, under a handful of names, and where it is one, heads lie in it either part by
# part (all of q, then k, then v: GPT-2, Phi-3, ViTs) or group by group (the queries of a group, its key, its value:
# GPT-NeoX, Falcon). That is all that differs: once it is known which rows are whose, heads are cut, moved and read
# alike everywhere. Which layout a module has is told by names and shapes only, so whoever changes weights by it must
# compare outputs afterwards.


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


# ---------------------------------------------------------------------------------------------------------------------
# The places where an attention module, or its config, says how many heads there are: all of them, kept true together.
#
# Forward passes read these numbers (to reshape, to split a fused product, to repeat keys), so a module whose weights
# were cut must also count fewer. A name is changed only where it says the number that it should say for the old count,
# so that a field which happens to be called alike stays as it is.


QUERY = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "num_head", "num_attn_heads")
KEY_VALUE = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")
GROUPS = ("num_key_value_groups", "n_rep", "num_groups")
QUERY_WIDTH = ("all_head_size", "inner_dim", "split_size", "embed_dim")
KEY_WIDTH = ("kv_dim",)
IN_CONFIGS = (*QUERY, *KEY_VALUE, "encoder_attention_heads", "decoder_attention_heads")


class OwnCounts:
    """A config with other numbers of heads, for one module; everything else is what the config says at that moment."""

    def __init__(self, config: Any, counts: dict[str, int]) -> None:
        self.__dict__.update(of=config, **counts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of":  # copy and pickle ask before there is anything to ask
            raise AttributeError(name)
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["of"], name, value)


def recount(module: nn.Module, before: Sizes, after: Sizes) -> None:
    """Make everything in `module` that counted `before` count `after`. Its config is not changed, but stood in for."""
    sizes = getattr(module, "sizes", None)
    is_ours = is_dataclass(sizes) and hasattr(sizes, "num_kv_heads")
    for name, old, new in _pairs(before, after):
        said = vars(module).get(name)
        if said == old and not isinstance(said, bool) and not (is_ours and name in QUERY_WIDTH):
            setattr(module, name, new)  # in our own layer, embed_dim is the width of its input
    if is_ours:
        module.sizes = replace(sizes, num_heads=after.heads, num_kv_heads=after.kv_heads)  # type: ignore[type-var]
    fused = getattr(module, "qkv_proj", None)
    if hasattr(fused, "widths"):
        fused.widths = tuple(after.count(part) * after.width(part) for part in "qkv")  # type: ignore[union-attr]
    config = vars(module).get("config")
    if config is not None:
        module.config = _own(config, before, after)  # type: ignore[assignment]


def _own(config: Any, before: Sizes, after: Sizes) -> OwnCounts:
    whole = config.of if isinstance(config, OwnCounts) else config
    counts = {name: value for name, value in vars(config).items() if name in IN_CONFIGS}
    for name, old, new in _pairs(before, after):
        if name in IN_CONFIGS and _said(config, name) == old:
            counts[name] = new
    return OwnCounts(whole, {name: value for name, value in counts.items() if _said(whole, name) != value})


def _said(config: Any, name: str) -> Any:
    """What a config says under a name; None where it says nothing, or refuses to say one number for all layers."""
    try:
        return getattr(config, name, None)
    except Exception:  # of a kind of transformers' own
        return None


def _pairs(before: Sizes, after: Sizes) -> list[tuple[str, int, int]]:
    """Name, what it says now, what it is to say."""
    groups = [each.heads // each.kv_heads for each in (before, after)]
    said = [
        (QUERY, before.heads, after.heads),
        (KEY_VALUE, before.kv_heads, after.kv_heads),
        (GROUPS, *groups),
        (QUERY_WIDTH, before.heads * before.qk_dim, after.heads * after.qk_dim),
        (KEY_WIDTH, before.kv_heads * before.qk_dim, after.kv_heads * after.qk_dim),
    ]
    return [(name, old, new) for names, old, new in said for name in names]


# ---------------------------------------------------------------------------------------------------------------------
# A site's q, k, v and output projections, and its heads cut out of them or put in another order.
#
# What: `projections_of` finds them, whatever the family calls them and however they lie in memory (`layouts`);
# `Projections` reads and writes them by head, and `select` keeps some heads, in any order, in place.
# Why: pruning, merging heads into groups, and saving what is left all change the same few matrices, and everything that
# goes along with them: biases, sinks, per-head norms, position biases, and each attribute that counts heads.
# Cost: the chosen rows are copied; nothing else is. Errors: ModelError naming the module and what was looked for.


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
