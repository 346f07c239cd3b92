"""A tiny config of any architecture: few layers, few heads, small widths, few experts; everything else as it is.

`sizes` says how large a field is by its name; here are the relations between fields, and the layers that are kept: one
of each kind. What a family needs besides stands in `special`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sweep.sizes import HEAD_DIM, Ids, Kind, Recipe, size
from tests.sweep.special import CONFIGS

LEFT = {"stage_names", "model_type", "id2label", "label2id", "num_labels", "dtype", "rope_parameters"}


def config(config_class: type[Any], name: str, recipe: Recipe) -> Any:
    """A tiny config of the class. Errors: whatever the class raises about its sizes."""
    fields = _fields(config_class, recipe, Ids())
    for path, value in CONFIGS.get(name, {}).items():
        _set(fields, path, value)
    return config_class(**fields)


def _set(fields: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        if not isinstance(fields.get(parent), dict):
            fields[parent] = {}
        fields = fields[parent]
    if value == "drop":
        fields.pop(last, None)
    else:
        fields[last] = value


def _fields(config_class: type[Any], recipe: Recipe, ids: Ids) -> dict[str, Any]:
    """Every field of a config, and of its parts, that is not left as it is."""
    default = config_class()
    names = {field.name for field in dataclasses.fields(config_class)} | set(vars(default))
    names = {name for name in names - LEFT if not name.startswith("_")}
    kind = _kind(default, names, recipe, ids)
    out: dict[str, Any] = {}
    for name in sorted(names):
        value = _raw(default, name)
        if hasattr(value, "model_type"):
            out[name] = {**_fields(type(value), recipe, ids), "model_type": value.model_type}
        elif name not in (getattr(config_class, "sub_configs", None) or {}):
            out[name] = size(name, value, kind)
    out = {name: value for name, value in out.items() if value is not None}
    _relate(out, default, names, kind)
    return out


def _kind(default: Any, names: set[str], recipe: Recipe, ids: Ids) -> Kind:
    before = _raw(default, "num_hidden_layers") or _raw(default, "num_layers")
    keep = _layers_kept(default, before, recipe.layers) if isinstance(before, int) else []
    staged = any(
        isinstance(_raw(default, name), list | tuple) for name in ("num_heads", "num_attention_heads", "depths")
    )
    silent = "vocab_size" not in names
    is_vision = silent and bool({"image_size", "patch_size"} & names)
    is_audio = silent and bool({"num_mel_bins", "feature_size", "sampling_rate"} & names)
    return Kind(recipe, is_vision, is_audio, staged, before, keep, ids)


def _relate(out: dict[str, Any], default: Any, names: set[str], kind: Kind) -> None:
    """Fields that must agree with others; and those that are read though they are no fields."""
    recipe, source = kind.recipe, _source(type(default))
    if "qk_rope_head_dim" in names and "head_dim" in out:
        same = _raw(default, "head_dim") == _raw(default, "qk_rope_head_dim")
        out["head_dim"] = out.get("qk_rope_head_dim", out["head_dim"]) if same else out["head_dim"]
    if kind.keep and "num_hidden_layers" in out:
        out["num_hidden_layers"] = len(kind.keep)
    if _raw(default, "_out_indices"):
        out["out_indices"] = _stages_kept(list(default._out_indices), kind.before, out.get("num_hidden_layers"))
    if "kv_lora_rank" in names and "num_key_value_heads" in out:
        out["num_key_value_heads"] = recipe.heads  # latent attention has a key head for every query head
    rope = _raw(default, "rope_parameters")
    if "mrope_section" in source and recipe.narrow and "vocab_size" in names:
        rope = dict(rope or {"rope_type": "default", "rope_theta": 10_000.0})
        rope.setdefault("mrope_section", [1, 1, 1])
    if isinstance(rope, dict):
        head_dim = out.get("head_dim") or HEAD_DIM
        out["rope_parameters"] = _rope(rope, head_dim, _raw(default, "partial_rotary_factor"))
    if "global_head_dim" in source and recipe.narrow and "layer_types" in names:
        out["global_head_dim"] = 2 * HEAD_DIM


def _raw(config: Any, name: str) -> Any:
    """A field as it stands, also where an architecture forbids to read it because layers differ in it."""
    return vars(config)[name] if name in vars(config) else getattr(type(config), name, None)


@functools.cache
def _source(config_class: type[Any]) -> str:
    """The text of the config's file and of its model's: what is not a field may be looked for there."""
    folder = Path(inspect.getfile(config_class)).parent
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))


def _layers_kept(default: Any, before: int, wanted: int) -> list[int]:
    """Which of its layers: one of each kind first, then the first others."""
    kinds: dict[Any, int] = {}
    lists = [value for value in vars(default).values() if isinstance(value, list | tuple) and len(value) == before]
    for index in range(before):
        kinds.setdefault(tuple(str(value[index]) for value in lists), index)
    chosen = list(kinds.values())[:6]
    chosen += [index for index in range(before) if index not in chosen][: max(0, wanted - len(chosen))]
    return sorted(chosen)


def _stages_kept(indices: list[int], before: Any, after: Any) -> list[int]:
    """Which stages a backbone hands on, where it has fewer of them."""
    if not isinstance(before, int) or not isinstance(after, int) or max(indices) <= after:
        return indices
    return [max(1, after - (len(indices) - 1 - place)) for place in range(len(indices))]


def _rope(rope: Mapping[str, Any], head_dim: int, partial: float | None) -> dict[str, Any]:
    """The same rotation for a narrower head: sections of it are cut in proportion."""
    out = copy.deepcopy(dict(rope))
    for key, value in out.items():
        if isinstance(value, dict):
            out[key] = _rope(value, head_dim, partial)
        elif key == "mrope_section" and value:
            half = int(head_dim * (out.get("partial_rotary_factor") or partial or 1.0)) // 2
            parts = [max(1, round(half * part / sum(value))) for part in value]
            parts[-1] += half - sum(parts)
            out[key] = parts
    return out
