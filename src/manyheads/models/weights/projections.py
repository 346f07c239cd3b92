"""Where an attention module keeps the weights of each head, and its heads cut out of them or put in another order.

A family keeps q, k and v in three linear maps or one, under a handful of names (`LAYOUTS`), and where it is one, heads
lie in it either part by part (all of q, then k, then v: GPT-2, Phi-3, ViTs) or group by group (the queries of a group,
its key, its value: GPT-NeoX, Falcon). That is all that differs: once it is known which rows belong to which head, heads
are cut, moved and read alike everywhere. The layout follows from names and shapes only, so compare outputs after every
change of weights that relies on it.

`projections_of` finds a site's projections. `Projections` reads and writes them by head, and `select` keeps some heads,
in any order, in place: pruning, merging heads into groups, and saving what is left all change the same few matrices,
and everything that belongs to a head beside them: biases, sinks, per-head norms, position biases, and each attribute
that counts heads (`recount`). Cost: the chosen rows are copied, nothing else is.
Errors: ModelError naming the module and what was looked for.
"""

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
from manyheads.models.loading.offloaded import local_part, read_weight, weight_of, whole_weight
from manyheads.spec import CROSS, VISION, Site

OUTPUT_NAMES = (
    "o_proj", "out_proj", "c_proj", "dense", "wo", "o", "proj", "out", "to_out", "output.dense", "proj_out", "out_lin",
    "Wo", "projection_layer", "projection", "output",
)  # fmt: skip
CROSS_NAMES = re.compile(r"(cross|encoder_attn|encdec|enc_dec)", re.IGNORECASE)
QUERY = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "num_head", "num_attn_heads")
KEY_VALUE = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")
GROUPS = ("num_key_value_groups", "n_rep", "num_groups")
QUERY_WIDTH = ("all_head_size", "inner_dim", "split_size", "embed_dim")
KEY_WIDTH = ("kv_dim",)
IN_CONFIGS = (*QUERY, *KEY_VALUE, "encoder_attention_heads", "decoder_attention_heads")
BY_HEAD = {  # tensors beside the projections that have a part for each head: path -> (axis of heads, whose heads)
    "sinks": (0, "q"),
    "head_scale": (0, "q"),
    "scale_by_head": (0, "q"),
    "bias_k": (0, "k"),
    "bias_v": (0, "v"),
    "relative_attention_bias.weight": (1, "q"),
    "relative_bias.weight": (1, "q"),
    "relative_position_bias_table": (1, "q"),
    "relative_position_bias.relative_position_bias_table": (1, "q"),
}
OURS = ("bias_k", "bias_v")  # [g, 1, width] in our own layer; another thing under the same name in others
NORM = re.compile(r"(^|\.)((q|k|query|key)_?(layer)?norm|norm_(q|k)|\w*sub_?norm|inner_attn_ln)(\.|$)", re.IGNORECASE)
LATENT = ("kv_b_proj", "kv_a_proj_with_mqa")
ADVICE = "Zero these heads instead: their columns of the output projection."


def output_projection(model: nn.Module, path: str, width: int) -> tuple[str, nn.Module] | None:
    """The linear map that mixes a layer's heads, looked for inside the attention module, then beside it.

    It must take `num_heads * v_dim` inputs; anything else is not it. None where there is no such module.
    """
    for parent in (path, path.rsplit(".", 1)[0] if "." in path else ""):
        for name in OUTPUT_NAMES:
            module = child(model, _join(parent, name))
            if width in (input_width(module), input_width(module, in_all_processes=True)):
                return _join(parent, name), module
    return None


def input_width(module: nn.Module, *, in_all_processes: bool = False) -> int | None:
    """How many inputs a linear map takes: Linear, or transformers' Conv1D (GPT-2), whose matrix is transposed.

    `in_all_processes`: together, where several hold parts of it.
    """
    weight = read_weight(module)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    weight = weight if in_all_processes else local_part(weight)
    return weight.shape[0] if is_transposed(module) else weight.shape[1]


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear map keeps its inputs in rows, as transformers' Conv1D does."""
    # By name: transformers need not be imported for it.
    return type(module).__name__ == "Conv1D"


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm, by its class's name: LayerNorm, LlamaRMSNorm, T5LayerNorm, our own."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def weight_by_head(module: nn.Module, num_heads: int, width: int) -> Float[Tensor, "h f m"]:
    """The output projection cut into one matrix for each head, from the head's `width` to the model's.

    Of a projection that is divided among processes whose heads are not, all of it: every process must call this.
    """
    weight = read_weight(module)
    assert isinstance(weight, Tensor)
    is_own = input_width(module) == num_heads * width
    weight = weight_of(module) if is_own else whole_weight(weight.detach())
    rows = weight if is_transposed(module) else weight.T
    return rows.reshape(num_heads, width, rows.shape[1])


def image_token_of(config: object) -> int | None:
    """The token in whose places a language model reads a picture's patches; None where it reads no pictures so."""
    tokens = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((token for token in tokens if type(token) is int), None)


def vision_towers(model: nn.Module) -> tuple[str, ...]:
    """What the paths of a vision tower's modules begin with, beside a language model that reads pictures in its text.

    The tower is the module that was built from the config's part about vision.
    """
    config = getattr(model, "config", None)
    tower = getattr(config, "vision_config", None)
    if tower is None or image_token_of(config) is None:
        return ()
    built = (path for path, module in model.named_modules() if type(getattr(module, "config", None)) is type(tower))
    return tuple(f"{path.replace('_orig_mod.', '')}." for path in built if path)


def stack_of(path: str, *, encoder_decoder: bool, crosses: bool, vision: bool = False) -> str:
    """The stack of a layer by its path: "" in a model that has one kind, else encoder, decoder, cross or vision."""
    if vision:
        return VISION
    if crosses or CROSS_NAMES.search(path):
        return CROSS
    if encoder_decoder:
        return "encoder" if re.search(r"(^|\.)encoder(\.|$)", path) else "decoder"
    return ""


class Sizes(NamedTuple):
    """The sizes of one site: query heads, key/value heads, the width of a head of q and k, and of v."""

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
        rows[part] = begin + torch.arange(count * width, device="cpu").view(count, width)
        begin += count * width
    return rows


def group_by_group(sizes: Sizes, parts: str) -> Rows:
    """Group after group: its query heads, its key head, its value head. Of MHA each head is a group."""
    per_group = sizes.heads // sizes.kv_heads
    wide = per_group * sizes.qk_dim
    size = wide + sizes.qk_dim + sizes.v_dim
    rows = torch.arange(sizes.kv_heads * size, device="cpu").view(sizes.kv_heads, size)
    q, k, v = rows.split([wide, sizes.qk_dim, sizes.v_dim], 1)
    return {"q": q.reshape(sizes.heads, sizes.qk_dim), "k": k, "v": v}


Arrange = Callable[[Sizes, str], Rows]


@dataclass(frozen=True)
class Layout:
    """Modules by name inside the attention module, with the parts (of "qkv") that each holds, in order."""

    modules: tuple[tuple[str, str], ...]
    arrange: Arrange = part_by_part
    where: Callable[[nn.Module], bool] = lambda module: True


def _three(q: str, k: str, v: str) -> Layout:
    return Layout(((q, "q"), (k, "k"), (v, "v")))


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
    Layout((("q_attn", "q"), ("c_attn", "kv"))),  # GPT-2's cross-attention
    Layout((("c_attn", "qkv"),), group_by_group, lambda module: getattr(module, "multi_query", True) is False),
    Layout((("c_attn", "qkv"),)),
    Layout((("qkv_proj", "qkv"),)),
    Layout((("query_key_value", "qkv"),), group_by_group),
    Layout((("qkv", "qkv"),)),
    Layout((("Wqkv", "qkv"),)),
    Layout((("att_proj", "qkv"),)),
    Layout((("q_proj", "q"), ("kv_proj", "kv"))),
    Layout((("q", "q"), ("kv", "kv"))),
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
    """Where `module` keeps q, k and v; [] where no entry of the table fits. Three names come in the order q, k, v.

    Matrices that are there but have another number of rows do not fit: a gate beside q, say, is not known here.
    """
    sizes = Sizes.of(site)

    def fits(holder: Holder) -> bool:
        count = out_rows(holder.module)
        if holder.arrange is group_by_group and sizes.heads % sizes.kv_heads:
            return False
        return count is not None and count == sum(rows.numel() for rows in holder.rows(sizes).values())

    for layout in LAYOUTS:
        holders = [Holder(name, child(module, name), parts, layout.arrange) for name, parts in layout.modules]
        if layout.where(module) and all(map(fits, holders)):
            return holders
    return []


def child(module: nn.Module, name: str) -> nn.Module:
    """The submodule of that name; an empty module where there is none."""
    try:
        return module.get_submodule(name)
    except AttributeError:
        return nn.Module()


def out_rows(module: nn.Module) -> int | None:
    """How many numbers a linear map gives; None for what is not a matrix of numbers that can be cut (quantised,
    say)."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.shape[1] if is_transposed(module) else weight.shape[0]


class OwnCounts:
    """A config with other numbers of heads, for one module; every other field is read from the config itself."""

    def __init__(self, config: object, counts: dict[str, int]) -> None:
        self.__dict__.update(of=config, **counts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of":  # copy and pickle ask before `of` is set: no endless recursion
            raise AttributeError(name)
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["of"], name, value)


def recount(module: nn.Module, before: Sizes, after: Sizes) -> None:
    """Make every attribute of `module` that counted `before` count `after`.

    Forward passes read these numbers (to reshape, to split a fused product, to repeat keys). The config, which other
    modules share, is not changed: the module gets an `OwnCounts` in its place.
    """
    # A name is changed only where it has the number that it should have for the old count, so that a field which
    # happens to be called alike stays as it is.
    sizes = getattr(module, "sizes", None)
    is_ours = is_dataclass(sizes) and hasattr(sizes, "num_kv_heads")
    for name, old, new in _pairs(before, after):
        count = vars(module).get(name)
        if count == old and not isinstance(count, bool) and not (is_ours and name in QUERY_WIDTH):
            setattr(module, name, new)  # in our own layer, embed_dim is the width of its input
    if is_ours:
        module.sizes = replace(sizes, num_heads=after.heads, num_kv_heads=after.kv_heads)  # type: ignore[type-var]
    fused = getattr(module, "qkv_proj", None)
    if hasattr(fused, "widths"):
        fused.widths = tuple(after.count(part) * after.width(part) for part in "qkv")  # type: ignore[union-attr]
    config = vars(module).get("config")
    if config is None:
        return
    original = config.of if isinstance(config, OwnCounts) else config
    counts = {name: value for name, value in vars(config).items() if name in IN_CONFIGS}
    for name, old, new in _pairs(before, after):
        if name in IN_CONFIGS and _field(config, name) == old:
            counts[name] = new
    # Against the config itself, so that a module that is cut twice has one wrapper around it, not two.
    changed = {name: value for name, value in counts.items() if _field(original, name) != value}
    module.config = OwnCounts(original, changed)  # type: ignore[assignment]


def _field(config: object, name: str) -> object:
    """A config's field; None where it has none, or has no one number for all layers and raises."""
    try:
        return getattr(config, name, None)
    except Exception:  # of a kind of transformers' own
        return None


def _pairs(before: Sizes, after: Sizes) -> list[tuple[str, int, int]]:
    """Each name of an attribute that counts heads, its number before, and its number after."""
    groups = [sizes.heads // sizes.kv_heads for sizes in (before, after)]
    pairs = [
        (QUERY, before.heads, after.heads),
        (KEY_VALUE, before.kv_heads, after.kv_heads),
        (GROUPS, *groups),
        (QUERY_WIDTH, before.heads * before.qk_dim, after.heads * after.qk_dim),
        (KEY_WIDTH, before.kv_heads * before.qk_dim, after.kv_heads * after.qk_dim),
    ]
    return [(name, old, new) for names, old, new in pairs for name in names]


@dataclass(frozen=True, eq=False)
class Cut:
    """A selection from one tensor of a model: which indices along an axis stay, in their new order."""

    path: str
    axis: int
    index: Int[Tensor, "n"]


@dataclass(eq=False)
class Projections:
    """One site's projections. `site` changes with `select`. Weights are read and written by head.

    A head's slice is `[width, m]`, as a Linear keeps it, also where the model's matrix is transposed (GPT-2).
    """

    site: Site
    module: nn.Module
    holders: list[Holder]
    output_path: str
    output: nn.Module
    by_head: dict[str, tuple[int, str]]  # the entries of BY_HEAD that this module has

    def read(self, part: str) -> tuple[Float[Tensor, "heads width m"], Float[Tensor, "heads width"] | None]:
        """Weight and bias (None where there is none) of "q", "k" or "v", by head: copies, without gradient."""
        holder, rows = self._place(part)
        weight, bias = holder.module.weight.detach(), getattr(holder.module, "bias", None)  # type: ignore[union-attr]
        taken = (weight.T if is_transposed(holder.module) else weight)[rows.to(weight.device)]  # type: ignore[union-attr,index]
        return taken, None if bias is None else bias.detach()[rows.to(bias.device)]

    def write(
        self, part: str, weight: Float[Tensor, "heads width m"], bias: Float[Tensor, "heads width"] | None
    ) -> None:
        """Replace the numbers that `read` returns. Raises ShapeError unless the shapes are the same."""
        holder, rows = self._place(part)
        old, old_bias = self.read(part)
        if weight.shape != old.shape or (bias is None) != (old_bias is None):
            new_shape, old_shape = (
                f"{list(numbers.shape)} with{'out' if added is None else ''} bias"
                for numbers, added in ((weight, bias), (old, old_bias))
            )
            raise ShapeError(
                f"{self.site.module}: {part} written as {new_shape}, but it is {old_shape}. `select` changes counts."
            )
        with torch.no_grad():
            matrix = holder.module.weight.T if is_transposed(holder.module) else holder.module.weight  # type: ignore[union-attr]
            matrix[rows.to(matrix.device)] = weight.to(matrix.dtype)  # type: ignore[union-attr,index]
            if bias is not None:
                holder.module.bias[rows.to(matrix.device)] = bias.to(matrix.dtype)  # type: ignore[union-attr,index]

    def read_output(self) -> Float[Tensor, "h f m"]:
        """The output projection by head, from the head's width to the model's: a copy, without gradient."""
        return weight_by_head(self.output, self.site.num_heads, self.site.v_dim).clone()

    def output_and_name(self) -> tuple[nn.Module, str | None]:
        """The output projection, and its name inside the attention module; None where it stands beside it."""
        prefix = _join(self.site.module, "")
        inside = self.output_path.startswith(prefix)
        return self.output, self.output_path.removeprefix(prefix) if inside else None

    def cuts(self, heads: Sequence[int], kv_heads: Sequence[int]) -> list[Cut]:
        """The selection that `select` would make from each tensor of the model. Changes nothing."""
        before = Sizes.of(self.site)
        after = before._replace(heads=len(heads), kv_heads=len(kv_heads))
        chosen = {
            "q": torch.tensor(heads, dtype=torch.long, device="cpu"),
            "k": torch.tensor(kv_heads, dtype=torch.long, device="cpu"),
        }
        chosen["v"] = chosen["k"]
        cuts: list[Cut] = []
        for holder in self.holders:
            old, new = holder.rows(before), holder.rows(after) if heads else {}
            index = torch.empty(sum(rows.numel() for rows in new.values()), dtype=torch.long, device="cpu")
            for part, rows in new.items():
                # By the places in the new matrix: heads of a fused product
                # need not lie one after another (`group_by_group`).
                index[rows.reshape(-1)] = old[part][chosen[part]].reshape(-1)
            path = _join(self.site.module, holder.name)
            cuts.append(Cut(f"{path}.weight", int(is_transposed(holder.module)), index))
            if getattr(holder.module, "bias", None) is not None:
                cuts.append(Cut(f"{path}.bias", 0, index))
        columns = torch.arange(before.heads * before.v_dim, device="cpu").view(before.heads, before.v_dim)[chosen["q"]]
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
        for numbers, count in ((heads, self.site.num_heads), (kv_heads, self.site.num_kv_heads)):
            if len(set(numbers)) < len(numbers) or min(numbers) < 0 or max(numbers) >= count:
                raise ShapeError(f"{self.site.module}: {numbers} should be different heads of 0 to {count - 1}.")
        is_mha = self.site.num_heads == self.site.num_kv_heads and self.holders[0].arrange is group_by_group
        if is_mha and len(heads) != len(kv_heads):
            raise ModelError(
                f"{self.site.module} ({type(self.module).__name__}) keeps q, k and v of each head together, so each "
                f"query head has its own key/value head: {len(heads)} over {len(kv_heads)} cannot be expressed in it."
            )
        # Every selection is made before any is applied: they are computed from the shapes of before.
        for cut in self.cuts(heads, kv_heads):
            path, _, name = cut.path.rpartition(".")
            inside = path.removeprefix(self.site.module).lstrip(".")
            owner = self.output if path == self.output_path else self.module.get_submodule(inside)
            old = getattr(owner, name)
            new = old.detach().index_select(cut.axis, cut.index.to(old.device)).contiguous()
            setattr(owner, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
        for module in (*(holder.module for holder in self.holders), self.output):
            weight = module.weight
            assert isinstance(weight, Tensor)
            # Linear maps have attributes that name their size.
            names = ("nx", "nf") if is_transposed(module) else ("out_features", "in_features")
            for name, size in zip(names, weight.shape, strict=True):
                if hasattr(module, name):
                    object.__setattr__(module, name, size)
        before = Sizes.of(self.site)
        self.site = replace(self.site, num_heads=len(heads), num_kv_heads=len(kv_heads))
        recount(self.module, before, Sizes.of(self.site))

    def _place(self, part: str) -> tuple[Holder, Int[Tensor, "heads width"]]:
        for holder in self.holders:
            if part in holder.parts:
                return holder, holder.rows(Sizes.of(self.site))[part]
        raise ShapeError(f"{part=} is not a projection: 'q', 'k' or 'v'.")


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
    holders = holders_of(module, site)
    if not holders:
        sought = "; ".join(", ".join(name for name, _ in layout.modules) for layout in LAYOUTS)
        raise ModelError(
            f"{_named(module, site)}: q, k and v were not found. It should have matrices for {site.num_heads} query "
            f"heads over {site.num_kv_heads} of width {site.qk_dim}, called {sought}; it has {_has(module)}."
        )
    width = site.num_heads * site.v_dim
    output = output_projection(model, site.module, width)
    if output is None:
        raise ModelError(
            f"{_named(module, site)}: the output projection, a matrix with {width} inputs ({site.num_heads} heads of "
            f"{site.v_dim}), was found neither in it nor beside it; it has {_has(module)}."
        )
    # A norm over all heads together divides by a sum over every head: without one of them the others grow.
    together = {site.num_heads * site.qk_dim, site.num_kv_heads * site.qk_dim, site.num_heads * site.v_dim}
    for name, weight in module.named_parameters() if site.num_heads > 1 else ():
        if NORM.search(name) and weight.ndim == 1 and len(weight) in together - {site.qk_dim}:
            raise ModelError(
                f"{_named(module, site)}: its {name.rsplit('.', 1)[0]} norms all heads together, so without one head "
                f"the others would be scaled up. {ADVICE}"
            )
    by_head: dict[str, tuple[int, str]] = {}
    sizes = Sizes.of(site)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in BY_HEAD and (name not in OURS or tensor.ndim == 3):
            axis, part = BY_HEAD[name]
            if tensor.ndim <= axis or tensor.shape[axis] != sizes.count(part):
                raise ModelError(
                    f"{_named(module, site)}: its {name} is {list(tensor.shape)}, but axis {axis} should be its "
                    f"{sizes.count(part)} heads."
                )
            by_head[name] = axis, part
        elif NORM.search(name) and tensor.ndim == 2:  # Cohere: a row of gains for each head
            by_head[name] = 0, "q" if tensor.shape[0] == sizes.heads and "q" in name.split(".")[0].lower() else "k"
    return Projections(site, module, holders, *output, by_head)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(module: nn.Module, site: Site) -> str:
    return f"{site}, module {site.module!r} ({type(module).__name__})"


def _has(module: nn.Module) -> str:
    shapes = [f"{name} {list(weight.shape)}" for name, weight in module.named_parameters()]
    return ", ".join(shapes[:8]) or "no parameters"
