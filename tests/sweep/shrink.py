"""A tiny config of any architecture: few layers, few heads, small widths, few experts; everything else as it is.

How large a field is by its name, then the relations between fields, and the layers that are kept: one of each kind.
What a family needs besides stands in `architectures`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sweep.architectures import CONFIGS

# ================================================================================================================ sizes
# How large each field of a tiny config is, by its name: the table is all that is known of names.
#
# There are several recipes, from the oddest sizes (more query heads than key heads, no two alike) to the most usual,
# since some architectures accept only these: the first that builds and runs is taken.


@dataclass(frozen=True)
class Recipe:
    """Sizes to try."""

    name: str
    heads: int
    kv_heads: int
    width: int
    inner: int
    layers: int = 3
    vision_heads: int = 5
    narrow: bool = True  # whether widths are touched at all


RECIPES = (
    Recipe("grouped", heads=6, kv_heads=2, width=96, inner=112),
    Recipe("even", heads=4, kv_heads=2, width=64, inner=128, layers=4, vision_heads=4),
    Recipe("usual", heads=4, kv_heads=4, width=64, inner=128, layers=2, vision_heads=4),
    Recipe("as wide as it is", heads=0, kv_heads=0, width=0, inner=0, layers=2, narrow=False),
)

HEAD_DIM = 16
EXPERT_INNER = 40
WINDOW = 7
VOCABULARY = 160
IDS_FROM_TOP = VOCABULARY - 1
PLAIN_IDS = range(5, 100)  # ids of words; those above have a meaning (a picture's place, say)

LAYERS = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_decoder_layers|num_encoder_layers|"
    r"depth|.*_num_hidden_layers|.*_num_layers|num_.*_layers|.*_depth|entity_depth|n_layer|encoder_num_layers)$"
)
NO_LAYERS = re.compile(
    r"(nextn|conv|register|shared|kv_shared|hidden_layers_per|dense|residual|mtp|feat_extract|adapter)"
)
HEADS = re.compile(
    r"^(num_attention_heads|num_heads|n_heads?|.*_attention_heads|.*_num_heads|num_.*_attention_heads|nhead)$"
)
KV_HEADS = re.compile(
    r"^(.*num_key_value_heads|n_kv_heads|num_kv_heads|kv_n_heads|.*_key_value_heads|multi_query_group_num)$"
)
WIDTHS = re.compile(
    r"^(hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|hidden_dim|emb_dim|model_dim|attention_hidden_size|"
    r".*encoder_hidden_size|decoder_hidden_size|cross_attention_hidden_size|encoder_hidden_dim|d_embed|out_hidden_size|"
    r"text_hidden_size|vision_hidden_size|pooler_output_size|output_hidden_size|cross_hidden_size|audio_hidden_size|conditioning_dim)$"
)
INNER = re.compile(
    r"^(intermediate_size|.*ffn_dim|n_inner|ffn_hidden_size|d_ff|d_inner|.*_intermediate_size|mlp_dim|linear_units|"
    r"feed_forward_size|.*feedforward_dim|feedforward_size|hidden_mlp)$"
)
NAMED: dict[str, Any] = {
    "head_dim": HEAD_DIM, "d_kv": HEAD_DIM, "attention_head_dim": HEAD_DIM, "kv_channels": HEAD_DIM,
    "global_head_dim": HEAD_DIM, "swa_head_dim": HEAD_DIM, "attention_head_size": HEAD_DIM,
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_topk": 2, "moe_k": 2, "top_k_experts": 2, "num_experts_per_token": 2, "num_selected_experts": 2,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "qk_head_dim": 20, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8, "index_kpool": 4, "o_lora_rank": 16,
    "mamba_d_state": 8, "mamba_n_heads": 12, "mamba_d_head": 16, "mamba_num_heads": 12, "mamba_head_dim": 16,
    "mamba_chunk_size": 8, "mamba_n_groups": 1, "n_groups": 1, "ssm_state_size": 8, "state_size": 8, "chunk_size": 8,
    "mamba_dt_rank": 6, "time_step_rank": 6, "lru_width": 96,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "sliding_window": WINDOW, "attention_window_size": WINDOW, "attention_chunk_size": 8, "window_size": 4,
    "max_window_layers": 1, "full_attention_interval": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "moe_layer_start_index": 1, "num_kv_shared_layers": 0,
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "text_vocab_size": VOCABULARY,
    "audio_vocab_size": VOCABULARY, "codebook_size": 64, "codebook_vocab_size": 64, "num_codebooks": 3,
    "hidden_size_per_layer_input": 12, "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128,
    "max_source_positions": 30, "max_target_positions": 128, "max_positions": 128, "num_position_embeddings": 36,
    "num_conv_pos_embeddings": 16, "num_queries": 26, "mask_ratio": 0.25, "num_query_tokens": 26, "embedding_dim": 32,
    "projection_dim": 36, "classifier_proj_size": 20, "num_frames": 3, "num_labels": 3, "hidden_act_dim": 8,
    "entity_vocab_size": 40, "encoder_hash_byte_group_vocab": 64, "crop_size": 48, "frames_per_clip": 4,
    "projector_hidden_size": 40, "fusion_hidden_size": 32, "layer_scale_init_value": 0.7, "layerscale_value": 0.7,
    "layer_scale_initial_scale": 0.7, "initializer_range": 0.05, "init_std": 0.05, "initializer_factor": 1.0,
    "rotary_dim": 8, "tie_word_embeddings": False, "num_nextn_predict_layers": 0, "query_pre_attn_scalar": 14,
    "query_rescale_scalar": 0.3,
}  # fmt: skip
STAGED_PICTURE = 224  # halved five times, it is 7: a whole window
VISION_ONLY = {"image_size": 48, "patch_size": 8}
ALWAYS = {"vocab_size", "initializer_range", "init_std", "layerscale_value"}  # also where widths stay


class Ids:
    """Small ids for tokens that have a meaning: the same id for the same name, also in a config's parts."""

    def __init__(self) -> None:
        self.known = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 1, "sep": 2, "cls": 1, "unk": 3}

    def of(self, name: str) -> int:
        stem = re.sub(r"_(token_id|token_index|id)$", "", name)
        return self.known.setdefault(stem, IDS_FROM_TOP - len(self.known))


@dataclass(frozen=True)
class Kind:
    """What a config describes: a text, a picture or a sound; layers alike, or stages of unlike width.

    `before` is its number of layers as it is, `keep` which of them stay.
    """

    recipe: Recipe
    is_vision: bool = False
    is_audio: bool = False
    by_stage: bool = False
    before: Any = None
    keep: list[int] = field(default_factory=list)
    ids: Ids = field(default_factory=Ids)


def size(name: str, value: Any, kind: Kind) -> Any:
    """What a field becomes; None leaves it as it is."""
    if re.search(r"(_token_id|_token_index)$", name):
        return _token(name, value, kind.ids)
    if isinstance(value, list | tuple):
        return _of_many(name, value, kind)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if LAYERS.match(name) and not NO_LAYERS.search(name) and whole:
        return min(value, kind.recipe.layers)
    if name in NAMED and isinstance(value, int | float):
        kept = name == "window_size" if kind.by_stage else False
        narrows = kind.recipe.narrow or name in ALWAYS
        return NAMED[name] if value and narrows and not kept else None
    if name in VISION_ONLY and whole and not kind.is_audio:
        return VISION_ONLY[name] if not kind.by_stage else STAGED_PICTURE if name == "image_size" else None
    if not kind.recipe.narrow:
        return None
    if value is None:  # it means "as another field": head counts that may differ are made to differ
        return kind.recipe.kv_heads if KV_HEADS.match(name) else HEAD_DIM if name == "head_dim" else None
    if not whole or not value:
        return None
    if kind.by_stage:
        return value // 4 if WIDTHS.match(name) and value % 4 == 0 else None
    return _narrow(name, kind)


def _narrow(name: str, kind: Kind) -> int | None:
    """Heads and widths."""
    heads = kind.recipe.vision_heads if kind.is_vision else kind.recipe.heads
    if HEADS.match(name):
        return heads
    if KV_HEADS.match(name):
        return heads if kind.is_vision else kind.recipe.kv_heads
    if WIDTHS.match(name):
        return heads * HEAD_DIM
    if INNER.match(name):
        return EXPERT_INNER if "moe" in name or "expert" in name else kind.recipe.inner
    return None


def _token(name: str, value: Any, ids: Ids) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return ids.of(name)
    return [ids.of(name)] if isinstance(value, list | tuple) and value and isinstance(value[0], int) else None


def _of_many(name: str, value: Any, kind: Kind) -> Any:
    """One entry a layer: those of the layers that stay. One a stage: at most 2 layers, widths a quarter."""
    if kind.keep and kind.before and kind.before > 1 and len(value) == kind.before:
        return [value[index] for index in kind.keep]
    if name in VISION_ONLY and kind.recipe.narrow and not kind.by_stage:
        return [VISION_ONLY[name]] * len(value)
    if not kind.by_stage or not value or not all(isinstance(x, int) and not isinstance(x, bool) for x in value):
        return None
    if name in ("depths", "depth", "num_blocks", "layers"):
        return [min(x, 2) for x in value]
    if kind.recipe.narrow and re.search(r"(hidden_sizes|embed_dims?|dims|widths|encoder_hidden)$", name):
        return [x // 4 for x in value] if all(x % 4 == 0 for x in value) else None
    return None


# ============================================================================================================ relations

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
    """Fields that must agree with others; and those that are read though they are not fields."""
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
