"""Weights in and out: torch's own layer, Llama / Mistral / Qwen, GPT-2, BERT, T5 and x-transformers, name by name.

Families differ in names, in layout (one matrix or three, rows or columns first) and in nothing else: between each of
them and a layer of ours stands one plain form, `q k v out` with `weight` and `bias`. `layer_from_config` builds the
layer that a transformers config describes; then `load_state` fills it and outputs agree within 1e-5.
Query head i reads key/value head `i // (h / g)` in all of them, as here, but in x-transformers `i % g`: its query heads
are put in our order, and back. A name that nothing reads is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.nn.layer import MultiHeadAttention
from manyheads.nn.positions import RelativeBias, Rope
from manyheads.nn.projections import FusedProjections

Tensors = dict[str, Tensor]


def load_state(layer: MultiHeadAttention, state: Mapping[str, Tensor], family: str, prefix: str = "") -> None:
    """Fill `layer` from one attention module's entries of a state dict: those under `prefix`.

    Families: torch, llama (Mistral and Qwen too), gpt2, bert, t5, x-transformers. Numbers are copied into the layer's
    dtype and device.
    Errors: ShapeError for a missing name, a name that nothing reads, or a shape that is not the layer's.
    """
    if layer.shard is not None:
        raise ShapeError("this layer's heads are divided among processes: load its state before parallelize_module.")
    tensors = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    form = _family(family)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in form.left_out}
    plain = form.read(tensors, layer)
    # All names and shapes before the first copy: a layer that is refused must not be half filled.
    layer_state = plain_state(layer)
    if missing := sorted(layer_state.keys() - plain.keys()):
        raise ShapeError(
            f"{family} state dict lacks {', '.join(missing)} (under {prefix!r} it has "
            f"{', '.join(sorted(tensors)) or 'nothing'}): build the layer without them, or give the right prefix."
        )
    if unread := sorted(plain.keys() - layer_state.keys()):
        raise ShapeError(
            f"{family} state dict has {', '.join(unread)}, and this layer has no such part: build it with them."
        )
    for name, target in layer_state.items():
        if target.shape != plain[name].shape:
            raise ShapeError(
                f"{name} of the {family} state dict has shape {tuple(plain[name].shape)} and the layer's "
                f"{tuple(target.shape)}: build the layer with that model's sizes."
            )
    with torch.no_grad():
        for name, target in layer_state.items():
            target.copy_(plain[name])


def dump_state(layer: MultiHeadAttention, family: str, prefix: str = "") -> Tensors:
    """The layer's numbers under a family's names: what its own `load_state_dict` takes. Copies.

    If `HeadParallel` has divided the layer, all heads are included: every process must call this.
    Errors: ShapeError for a layer with a part that the family has no name for.
    """
    plain: Tensors = {}
    for name, tensor in plain_state(layer).items():
        gather = getattr(tensor, "full_tensor", None)
        plain[name] = (tensor if gather is None else gather()).detach().clone()
    # `write` takes out of `plain` what it has a name for: what is left has none, and would be lost in silence.
    state = _family(family).write(plain, layer)
    if plain:
        raise ShapeError(
            f"{family} state dicts have no place for {', '.join(sorted(plain))}: this layer cannot be one."
        )
    return {prefix + name: tensor.contiguous() for name, tensor in state.items()}


def plain_state(layer: MultiHeadAttention) -> Tensors:
    """Views of the layer's parameters in the plain form, whatever its layout: q.weight, q.bias, ..., q_norm."""
    of = layer.qkv_proj
    plain: dict[str, Any] = {}
    if isinstance(of, FusedProjections):
        parts = (
            of.weight.split_with_sizes(of.widths),
            (None,) * 3 if of.bias is None else of.bias.split_with_sizes(of.widths),
        )
        for name, weight, bias in zip("qkv", *parts, strict=True):
            plain |= {f"{name}.weight": weight, f"{name}.bias": bias}
    else:
        for name, part in zip("qkv", (of.q, of.k, of.v), strict=True):
            plain |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    plain |= {"out.weight": layer.out_proj.weight, "out.bias": layer.out_proj.bias}
    plain |= {"bias_k": layer.bias_k, "bias_v": layer.bias_v, "sinks": layer.sinks, "head_scale": layer.head_scale}
    plain["relative_bias"] = None if layer.relative_bias is None else layer.relative_bias.weight
    for name, norm in {"q_norm": layer.q_norm, "k_norm": layer.k_norm}.items():
        plain[name] = None if norm is None else norm.weight
    return {name: tensor for name, tensor in plain.items() if tensor is not None}


@dataclass(frozen=True)
class Family:
    """`read` makes the plain form of a family's entries, `write` empties it into them; `left_out` hold no weights."""

    read: Callable[[Tensors, MultiHeadAttention], Tensors]
    write: Callable[[Tensors, MultiHeadAttention], Tensors]
    left_out: frozenset[str] = frozenset()


def _renamed(
    names: Mapping[str, str],
    left_out: frozenset[str] = frozenset(),
    require: Callable[[MultiHeadAttention], None] = lambda layer: None,
) -> Family:
    """A family that has our layout under other names. `require` refuses layers that it does not have."""
    back = {foreign: own_name for own_name, foreign in names.items()}

    def read(state: Tensors, layer: MultiHeadAttention) -> Tensors:
        require(layer)
        return {back.get(name, name): tensor for name, tensor in state.items()}

    def write(plain: Tensors, layer: MultiHeadAttention) -> Tensors:
        require(layer)
        return {foreign: plain.pop(own_name) for own_name, foreign in names.items() if own_name in plain}

    return Family(read, write, left_out)


def _named(q: str, k: str, v: str, out: str, **extra: str) -> dict[str, str]:
    modules = {"q": q, "k": k, "v": v, "out": out}
    named = {
        f"{own_name}.{part}": f"{foreign}.{part}"
        for own_name, foreign in modules.items()
        for part in ("weight", "bias")
    }
    return named | extra


def _cut(tensor: Tensor, layer: MultiHeadAttention, name: str) -> tuple[Tensor, ...]:
    if tensor.shape[0] != sum(layer.sizes.widths):
        raise ShapeError(
            f"{name} has {tensor.shape[0]} rows for q, k and v, but this layer's are {layer.sizes.widths}."
        )
    return tensor.split_with_sizes(layer.sizes.widths)


def _read_torch(state: Tensors, layer: MultiHeadAttention) -> Tensors:
    apart = {f"{head}_proj_weight": f"{head}.weight" for head in "qkv"}
    plain: Tensors = {}
    for name, tensor in state.items():
        if name in ("in_proj_weight", "in_proj_bias"):
            part = name.removeprefix("in_proj_")
            plain |= {f"{head}.{part}": block for head, block in zip("qkv", _cut(tensor, layer, name), strict=True)}
        elif name in ("bias_k", "bias_v"):
            plain[name] = tensor.reshape(layer.num_kv_heads, 1, -1)
        else:
            plain[apart.get(name, name.replace("out_proj", "out"))] = tensor
    return plain


def _write_torch(plain: Tensors, layer: MultiHeadAttention) -> Tensors:
    if len(set(layer.sizes.widths)) != 1 or layer.sizes.widths[0] != layer.embed_dim:
        raise ShapeError(
            f"nn.MultiheadAttention has q, k and v as wide as the model, {layer.embed_dim}, not {layer.sizes.widths}."
        )
    weights = [plain.pop(f"{name}.weight") for name in "qkv"]
    if (layer.kdim, layer.vdim) == (layer.embed_dim, layer.embed_dim):
        state = {"in_proj_weight": torch.cat(weights)}
    else:
        state = {f"{name}_proj_weight": weight for name, weight in zip("qkv", weights, strict=True)}
    biases = [plain.pop(f"{name}.bias", None) for name in "qkv"]
    if any(bias is not None for bias in biases):
        # torch's layer has one bias for q, k and v: zeros stand for a part that has none.
        pairs = zip(biases, weights, strict=True)
        state["in_proj_bias"] = torch.cat([torch.zeros_like(w[:, 0]) if b is None else b for b, w in pairs])
    for name in ("bias_k", "bias_v"):
        if name in plain:
            state[name] = plain.pop(name).reshape(1, 1, -1)
    mixed = [part for part in ("weight", "bias") if f"out.{part}" in plain]
    return state | {f"out_proj.{part}": plain.pop(f"out.{part}") for part in mixed}


def _read_gpt2(state: Tensors, layer: MultiHeadAttention) -> Tensors:
    plain = {name: tensor for name, tensor in state.items() if name.partition(".")[0] not in ("c_attn", "c_proj")}
    for part in ("weight", "bias"):
        if (columns := state.get(f"c_attn.{part}")) is not None:  # a Conv1D: inputs are rows
            cut = _cut(columns.T if part == "weight" else columns, layer, "c_attn")
            plain |= {f"{head}.{part}": block for head, block in zip("qkv", cut, strict=True)}
        if (mixed := state.get(f"c_proj.{part}")) is not None:
            plain[f"out.{part}"] = mixed.T if part == "weight" else mixed
    return plain


def _write_gpt2(plain: Tensors, layer: MultiHeadAttention) -> Tensors:
    state: Tensors = {}
    for part in ("weight", "bias"):
        if all(f"{head}.{part}" in plain for head in "qkv"):
            rows = torch.cat([plain.pop(f"{head}.{part}") for head in "qkv"])
            state[f"c_attn.{part}"] = rows.T if part == "weight" else rows
        if f"out.{part}" in plain:
            mixed = plain.pop(f"out.{part}")
            state[f"c_proj.{part}"] = mixed.T if part == "weight" else mixed
    return state


def _require_no_scale(layer: MultiHeadAttention) -> None:
    """T5's scores are `q.k` as it is: under another scale the same weights are another layer."""
    if layer.scale != 1.0 or layer.scale_by_head is not None:
        scale = "one a head" if layer.scale_by_head is not None else f"{layer.scale:.4g}"
        raise ShapeError(f"t5 does not scale its scores, and this layer's scale is {scale}: build it with scale=1.0.")


def _read_tiled(state: Tensors, layer: MultiHeadAttention) -> Tensors:
    plain = {_TILED_NAMES.get(name, name): tensor for name, tensor in state.items()}
    for name in ("bias_k", "bias_v"):
        if (learned := plain.get(name)) is not None and learned.shape[1] != 1:
            raise ShapeError(
                f"x-transformers state dict has num_mem_kv={learned.shape[1]} learned keys, but a layer here has one."
            )
    if "head_scale" in plain:
        plain["head_scale"] = plain["head_scale"].flatten()  # [1, h, 1, 1] there
    return plain | _heads_ordered(plain, layer, "(r g f) ... -> (g r f) ...")


def _write_tiled(plain: Tensors, layer: MultiHeadAttention) -> Tensors:
    plain |= _heads_ordered(plain, layer, "(g r f) ... -> (r g f) ...")
    state = {foreign: plain.pop(own_name) for foreign, own_name in _TILED_NAMES.items() if own_name in plain}
    if "head_scale_params" in state:
        state["head_scale_params"] = state["head_scale_params"].reshape(1, -1, 1, 1)
    return state


def _heads_ordered(plain: Tensors, layer: MultiHeadAttention, order: str) -> Tensors:
    """What has a part for each query head, those parts in another order."""
    h, g = layer.num_heads, layer.num_kv_heads
    ordered: Tensors = {}
    for name, axis in {"q.weight": 0, "out.weight": 1, "sinks": 0, "head_scale": 0}.items():
        if (tensor := plain.get(name)) is None:
            continue
        if tensor.shape[axis] % h:
            raise ShapeError(
                f"{name} of the x-transformers state dict has shape {tuple(tensor.shape)}, which is not that of {h} "
                f"heads: build the layer with that model's sizes."
            )
        ordered[name] = rearrange(tensor.movedim(axis, 0), order, g=g, r=h // g).movedim(0, axis)
    return ordered


_TILED_NAMES = {
    **{f"to_{part}.weight": f"{part}.weight" for part in ("q", "k", "v", "out")},
    "mem_k": "bias_k",
    "mem_v": "bias_v",
    "attend.head_attn_sink": "sinks",
    "head_scale_params": "head_scale",
}
_T5 = _named("q", "k", "v", "o", relative_bias="relative_attention_bias.weight")
_LLAMA = _named("q_proj", "k_proj", "v_proj", "o_proj", q_norm="q_norm.weight", k_norm="k_norm.weight", sinks="sinks")
FAMILIES = {
    "torch": Family(_read_torch, _write_torch),
    "llama": _renamed(_LLAMA, frozenset({"rotary_emb.inv_freq"})),
    "gpt2": Family(_read_gpt2, _write_gpt2, frozenset({"bias", "masked_bias"})),  # its causal triangle, as a buffer
    "bert": _renamed(
        _named("self.query", "self.key", "self.value", "output.dense"),
        frozenset({"output.LayerNorm.weight", "output.LayerNorm.bias"}),  # of the block, not of attention
    ),
    "t5": _renamed(_T5, require=_require_no_scale),
    "x-transformers": Family(_read_tiled, _write_tiled),
}
_FAMILY_OF = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), "llama"),
    **{"gpt2": "gpt2", "bert": "bert", "t5": "t5", "mt5": "t5"},
}


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ShapeError(f"{name!r} is not a family of state dicts here: use one of {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def layer_from_config(config: Any, layer: int = 0, **options: Any) -> tuple[MultiHeadAttention, str]:
    """The attention layer that a transformers config describes, empty, batch first, and its family's name.

    For Llama, Mistral, Qwen2, Qwen3, GPT-2, BERT, T5 and mT5. `options` go to the layer, over what the config says.
    T5's first layer has the table of relative positions, and hands it to the others: `other.relative_bias =
    first.relative_bias`. Its decoder's layers are `causal=True`, its cross-attention has `relative_bias=None`.
    Errors: ShapeError for another model, or for what we have no part for.
    """
    kind = getattr(config, "model_type", type(config).__name__)
    if kind not in _FAMILY_OF:
        raise ShapeError(
            f"{kind!r} is not a config that a layer can be built from: use one of {', '.join(_FAMILY_OF)}."
        )
    heads, width = config.num_attention_heads, config.hidden_size
    if _FAMILY_OF[kind] == "llama":
        head_dim = getattr(config, "head_dim", None) or width // heads
        positions = config.max_position_embeddings
        types = getattr(config, "layer_types", None)
        slides = types[layer] == "sliding_attention" if types else kind == "mistral"
        described: dict[str, Any] = {
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": head_dim,
            "causal": True,
            "window": (getattr(config, "sliding_window", None) or None) if slides else None,
            "rope": Rope.from_parameters(config.rope_parameters, max_positions=positions, head_dim=head_dim),
            "qk_norm": kind == "qwen3",
            "qk_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
            "dropout": config.attention_dropout,
            "bias": kind == "qwen2" or bool(getattr(config, "attention_bias", False)),
        }
        if kind == "qwen2":  # which has biases on q, k and v alone, whatever its config says
            described["out_bias"] = False
    elif kind == "gpt2":
        head_dim = width // heads
        scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
        described = {"causal": True, "scale": scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale}
        described["dropout"] = config.attn_pdrop
    elif _FAMILY_OF[kind] == "t5":
        table = RelativeBias(config.relative_attention_num_buckets, config.relative_attention_max_distance)
        described = {"head_dim": config.d_kv, "bias": False, "scale": 1.0, "causal": bool(config.is_decoder)}
        described |= {"dropout": config.dropout_rate, "relative_bias": table if layer == 0 else None}
    else:
        described = {"dropout": config.attention_probs_dropout_prob, "causal": bool(config.is_decoder)}
    described["batch_first"] = True
    return MultiHeadAttention(width, heads, **(described | options)), _FAMILY_OF[kind]
