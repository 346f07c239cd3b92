"""Every architecture that transformers knows: its config class, and the class of model that a person would load.

An architecture is a model type (a key of `CONFIG_MAPPING`); several may live in one folder (a model, its text part, its
picture part). The class is the base model where there is one, else the first that some task offers, else the first
public class of the folder that takes the config.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# ====================================================================================================== single families
# What single families need beyond the table of `shrink`, and inputs that no signature tells.

ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
SECTIONED = {**ROPE, "mrope_section": [2, 3, 3]}
RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
DETR = {"use_timm_backbone": False, "backbone": None, "backbone_config": RESNET, "d_model": 96, "image_size": 224}
DINO = {
    "model_type": "dinov2", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "image_size": 48,
    "patch_size": 8, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "apply_layernorm": True,
}  # fmt: skip
DEPTH = {"backbone_config": DINO, "neck_hidden_sizes": [16, 24, 32, 40], "reassemble_hidden_size": 64}
HIERA = {
    "image_size": [128, 128], "hidden_size": 96, "num_attention_heads": 1, "blocks_per_stage": [1, 1, 2, 1],
    "global_attention_blocks": [2],
}  # fmt: skip
SERIES = {"prediction_length": 8, "context_length": 26, "num_time_features": 2}
MERGED_WINDOW = {"window_size": 32, "fullatt_block_indexes": [1]}  # two by two merged patches

CONFIGS: dict[str, dict[str, Any]] = {
    "autoformer": SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"sliding_attention": SECTIONED, "full_attention": SECTIONED}},
    "cohere_compass": {"text_config.rope_parameters": {"sliding_attention": SECTIONED, "full_attention": SECTIONED}},
    "conditional_detr": DETR, "dab-detr": DETR, "deformable_detr": DETR, "detr": DETR, "table-transformer": DETR,
    "dbrx": {"attn_config.rope_theta": 10_000.0, "attn_config.kv_n_heads": 2, "attn_config.clip_qkv": 30},
    "depth_anything": DEPTH, "prompt_depth_anything": DEPTH,
    "blt": {"num_hidden_layers": 3},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1,
              "moe_intermediate_size": 40},
    "esm": {"vocab_size": 160, "pad_token_id": 0, "mask_token_id": 4},
    "exaone4_5_vision": MERGED_WINDOW, "qwen2_5_vl_vision": MERGED_WINDOW, "qwen2_5_omni_vision_encoder": MERGED_WINDOW,
    "falcon_h1": {"mamba_d_ssm": 192, "mamba_d_head": 16},
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0},
    "granite_speech_encoder": {"input_dim": 96}, "granite_speech_plus_encoder": {"input_dim": 96},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "attention"]},
    "informer": SERIES,
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "full_attention"]},
    "longcat_flash": {"n_routed_experts": 4, "zero_expert_num": 1, "moe_topk": 2, "expert_ffn_hidden_size": 40,
                      "ffn_hidden_size": 112},
    "patchtst": {"context_length": 52, "patch_length": 2, "patch_stride": 2, "num_input_channels": 2},
    "pix2struct_text_model": {"initializer_range": 0.05},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 101, "vision_end_token_id": 102},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 101, "vision_end_token_id": 102},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 40},
    "sam3_vit_model": {"global_attn_indexes": [1]},
    "sam3_vision_model": {"backbone_config.global_attn_indexes": [1]},
    "videoprism_vision_model": {"tubelet_size": [1, 8, 8]},
    "vivit": {"image_size": 96},
    "sam2_hiera_det_model": HIERA,
    "sam2_vision_model": {f"backbone_config.{key}": value for key, value in HIERA.items()} | {
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]], "backbone_channel_list": [768, 384, 192, 96]},
    "step3p5": {"sliding_window": 7}, "step3p7": {"text_config.sliding_window": 7},
    "t5gemma2_decoder": {"dropout_rate": 0.0}, "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "time_series_transformer": SERIES,
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
"""Model type -> path of a field -> value ("drop": left at its default)."""


def _ids(*shape: int) -> Any:
    return lambda config, fresh: torch.randint(5, 60, shape, generator=fresh)


def _ones(*shape: int) -> Any:
    return lambda config, fresh: torch.ones(*shape, dtype=torch.long)


def _zeros(*shape: int) -> Any:
    return lambda config, fresh: torch.zeros(*shape, dtype=torch.long)


def _patches(config: Any, fresh: torch.Generator) -> torch.Tensor:
    """Pix2Struct's: each patch says its row and column first."""
    width = getattr(config, "vision_config", config).patch_embed_hidden_size
    place = torch.arange(36)
    places = torch.stack([place // 6 + 1, place % 6 + 1], -1).float().expand(2, -1, -1)
    return torch.cat([places, torch.randn(2, 36, width, generator=fresh)], -1)


def _flat(config: Any, fresh: torch.Generator) -> torch.Tensor:
    part = getattr(config, "vision_config", config)
    return torch.randn(2, 36, 3 * part.patch_size**2, generator=fresh)


def _beside(config: Any, fresh: torch.Generator) -> torch.Tensor:
    return torch.randn(2, 20, config.encoder_hidden_size, generator=fresh)


_PAST = {
    "past_values": (2, 33), "past_time_features": (2, 33, 2), "past_observed_mask": _ones(2, 33),
    "future_values": (2, 8), "future_time_features": (2, 8, 2),
}  # fmt: skip
_NAFLEX = {
    "pixel_values": _flat, "pixel_attention_mask": _ones(2, 36),
    "spatial_shapes": lambda config, fresh: torch.tensor([[6, 6], [6, 6]]),
}  # fmt: skip
_TEXT = {"input_ids": "input_ids", "attention_mask": "attention_mask"}

INPUTS: dict[str, dict[str, Any]] = {
    "autoformer": _PAST, "informer": _PAST, "time_series_transformer": _PAST,
    "blip_2_qformer": {"query_embeds": "query_embeds", "encoder_hidden_states": _beside},
    "decision_transformer": {
        "states": (2, 10, 17), "actions": (2, 10, 4), "rewards": (2, 10, 1), "returns_to_go": (2, 10, 1),
        "timesteps": lambda config, fresh: torch.arange(10).expand(2, -1), "attention_mask": _ones(2, 10),
    },
    "dia_decoder": {"input_ids": _ids(2, 29, 9)},
    "efficientloftr": {"pixel_values": (1, 2, 3, 224, 224)},
    "kyutai_speech_to_text": {"input_ids": lambda config, fresh: torch.randint(
        5, 60, (2, 29, config.num_codebooks + 1), generator=fresh)},
    "musicgen_decoder": {"input_ids": _ids(6, 29)}, "musicgen_melody_decoder": {"input_ids": _ids(6, 29)},
    "musicgen": {**_TEXT, "decoder_input_ids": _ids(6, 27)},
    "musicgen_melody": {**_TEXT, "decoder_input_ids": _ids(6, 27)},
    "patchtst": {"past_values": (2, 52, 2)},
    "pix2struct": {"flattened_patches": _patches, "decoder_input_ids": "decoder_input_ids"},
    "pix2struct_vision_model": {"flattened_patches": _patches},
    "siglip2": {**_TEXT, **_NAFLEX}, "siglip2_vision_model": _NAFLEX,
    "timesfm": {"past_values": (2, 832), "past_values_padding": _zeros(2, 832), "freq": _zeros(2, 1)},
    "timesfm2_5": {"past_values": (2, 832)},
    "udop": {**_TEXT, "bbox": lambda config, fresh: torch.rand(2, 29, 4, generator=fresh),
             "decoder_input_ids": "decoder_input_ids"},
}  # fmt: skip
"""Model type -> input -> shape of noise, the name of an input of `inputs`, or a function of config and chance."""

CLASSES = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "speecht5": "SpeechT5ForSpeechToText",
}
"""Where the base model does not run by itself."""

ATTENDS_WITHOUT_SOFTMAX = {"reformer", "mra", "yoso", "autoformer"}
"""They attend, by hashing, by blocks or by correlation, without a softmax over keys."""

SOFTER = {"efficientloftr": 0.95}
"""Scores of several hundred, nearly the same for all keys: a float32 lse tells weights there to 3e-5 and no better."""


# ======================================================================================================== architectures


class NoClass(Exception):
    """There is no model for this config, or its file does not import."""


@dataclass(frozen=True)
class Architecture:
    """One model type and where it lives."""

    name: str
    folder: str
    config_class: type[Any]


def names() -> list[str]:
    """All model types, sorted; aliases of one config class (other names for the same folder) only once."""
    return sorted(CONFIG_MAPPING.keys())


def architecture(name: str) -> Architecture:
    """Errors: NoClass, where the config does not import."""
    try:
        config_class = CONFIG_MAPPING[name]
    except (ImportError, AttributeError, KeyError, OSError) as error:
        raise NoClass(f"its config does not import: {one_line(error)}") from error
    return Architecture(name, config_class.__module__.split(".")[-2], config_class)


def model_class(found: Architecture) -> type[PreTrainedModel]:
    """Errors: NoClass."""
    if found.name in CLASSES:
        return getattr(transformers, CLASSES[found.name])
    for table in [modeling_auto.MODEL_MAPPING, *_task_tables()]:
        cls = _entry(table, found.config_class)
        if cls is not None and issubclass(cls, PreTrainedModel):
            return cls
    candidates = list(_in_folder(found))
    if not candidates:
        raise NoClass(f"no public model takes {found.config_class.__name__}")
    return candidates[0]


def _task_tables() -> list[Any]:
    tables = {name: value for name, value in vars(modeling_auto).items() if name.endswith("_MAPPING")}
    return [tables[name] for name in sorted(tables) if name not in ("MODEL_MAPPING", "CONFIG_MAPPING")]


def _entry(table: Any, config_class: type[Any]) -> Any:
    try:
        cls = table[config_class]
    except (KeyError, ValueError, AttributeError, ImportError, OSError, RuntimeError):
        return None
    return cls[0] if isinstance(cls, tuple) else cls


def _in_folder(found: Architecture) -> list[type[PreTrainedModel]]:
    """Classes of the folder's modelling files for this config that can run, those listed as public first."""
    package = found.config_class.__module__.rsplit(".", 1)[0]
    config_file = found.config_class.__module__.rsplit(".", 1)[1]
    wanted = []
    for file in dict.fromkeys([config_file.replace("configuration_", "modeling_"), f"modeling_{found.folder}"]):
        try:
            module = importlib.import_module(f"{package}.{file}")
        except ImportError as error:
            if file in str(error):
                continue
            raise NoClass(f"its model does not import: {one_line(error)}") from error
        public = getattr(module, "__all__", [])
        classes = [
            cls
            for cls in vars(module).values()
            if inspect.isclass(cls)
            and issubclass(cls, PreTrainedModel)
            and cls.__module__ == module.__name__
            and getattr(cls, "config_class", None) is found.config_class
            and "forward" in vars(cls)
        ]
        wanted += sorted(classes, key=lambda cls: cls.__name__ not in public)
    return wanted


def one_line(error: BaseException) -> str:
    """An error as one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:220]}"
