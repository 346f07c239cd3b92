"""Small models of pictures and sounds with random weights, and their own processors, saved as a hub model would lie.

Sizes differ, so that no swapped axis can pass; pictures are not square where the model allows. The weights of q and k
are scaled up, as in `tiny`: near-uniform maps agree with almost anything.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    YolosConfig,
    YolosModel,
)

from tests.models.tiny import VOCAB_SIZE

HEIGHT, WIDTH, PATCH = 24, 40, 8  # 3 rows of 5 patches
SQUARE = 40
RATE = 16_000
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 44}
FEWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "mlp_ratio": 2}


def tiny_vit(seed: int = 0, **config: Any) -> Any:
    return made(ViTModel, ViTConfig(**{"image_size": (HEIGHT, WIDTH), "patch_size": PATCH, **SIZES, **config}), seed)


def tiny_deit(seed: int = 0) -> Any:
    return made(DeiTModel, DeiTConfig(image_size=(HEIGHT, WIDTH), patch_size=PATCH, **SIZES), seed)


def tiny_dinov2(seed: int = 0) -> Any:
    """4 registers; it takes pictures of any size."""
    config = Dinov2WithRegistersConfig(image_size=SQUARE, patch_size=PATCH, num_register_tokens=4, **FEWER)
    return made(Dinov2WithRegistersModel, config, seed)


def tiny_dinov3(seed: int = 0) -> Any:
    config = DINOv3ViTConfig(image_size=SQUARE, patch_size=PATCH, num_register_tokens=2, **SIZES)
    return made(DINOv3ViTModel, config, seed)


def tiny_clip(seed: int = 0) -> Any:
    return made(CLIPVisionModel, CLIPVisionConfig(image_size=SQUARE, patch_size=PATCH, **SIZES), seed)


def tiny_siglip(seed: int = 0) -> Any:
    config = SiglipVisionConfig(image_size=SQUARE, patch_size=PATCH, **SIZES)
    return made(SiglipVisionModel, config, seed, sharpness=2.0)  # its weights are large from the start


def tiny_yolos(seed: int = 0) -> Any:
    """5 tokens of its own after the patches."""
    config = YolosConfig(image_size=(HEIGHT, WIDTH), patch_size=PATCH, num_detection_tokens=5, **SIZES)
    return made(YolosModel, config, seed)


def tiny_swin(seed: int = 0) -> Any:
    """Windows of 4 x 4 in a grid of 16 x 16."""
    sizes = {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]}
    return made(SwinModel, SwinConfig(image_size=64, patch_size=4, window_size=4, **sizes), seed)


def tiny_whisper(seed: int = 0, **config: Any) -> Any:
    """2 layers on each side, 3 heads of 8; 2 seconds in 100 frames, 50 tokens."""
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "num_mel_bins": 16}
    limits = {"max_source_positions": 100, "max_target_positions": 50, "vocab_size": VOCAB_SIZE}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 2}
    quiet = {"suppress_tokens": None, "begin_suppress_tokens": None}
    whole = {**sizes, **heads, **limits, **ends, **quiet, **config}
    return made(WhisperForConditionalGeneration, WhisperConfig(**whole), seed, sharpness=30.0)


def tiny_wav2vec2(seed: int = 0, **config: Any) -> Any:
    """7 convolutions as in the real one: 320 samples a frame."""
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    whole = {**convolutions, "feat_extract_norm": "layer", **SIZES, **config}
    return made(Wav2Vec2Model, Wav2Vec2Config(**whole), seed, sharpness=20.0)


def wide() -> Any:
    """A processor to pictures of 24 x 40."""
    return ViTImageProcessorPil(size={"height": HEIGHT, "width": WIDTH})


def square() -> Any:
    """A processor that resizes the shorter side, and cuts the middle out."""
    return CLIPImageProcessorPil(size={"shortest_edge": SQUARE}, crop_size={"height": SQUARE, "width": SQUARE})


def windowed() -> Any:
    return ViTImageProcessorPil(size={"height": 64, "width": 64})


def spectra() -> Any:
    return WhisperFeatureExtractor(feature_size=16, chunk_length=2)


def waves(mask: bool = True) -> Any:
    return Wav2Vec2FeatureExtractor(return_attention_mask=mask)


PICTURES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "vit": (tiny_vit, wide),
    "deit": (tiny_deit, wide),
    "dinov2": (tiny_dinov2, wide),
    "dinov3": (tiny_dinov3, wide),
    "clip": (tiny_clip, square),
    "siglip": (tiny_siglip, square),
    "yolos": (tiny_yolos, wide),
    "swin": (tiny_swin, windowed),
}


def saved(folder: Path, model: Any, processor: Any) -> str:
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return str(folder)


def some_picture(fresh: torch.Generator, height: int = 31, width: int = 53) -> ndarray:
    """Noise in coarse blocks, so that resizing leaves something of it."""
    coarse = torch.randint(256, (height // 4 + 1, width // 4 + 1, 3), generator=fresh, dtype=torch.uint8)
    return coarse.numpy().repeat(4, 0).repeat(4, 1)[:height, :width]


def some_sound(fresh: torch.Generator, seconds: float) -> ndarray:
    """Noise that swells and fades."""
    noise = torch.randn(round(seconds * RATE), generator=fresh)
    return (noise * torch.linspace(0, 20, len(noise)).sin() * 0.2).numpy().astype(np.float32)


def made(cls: Any, config: Any, seed: int, sharpness: float = 12.0) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = cls(config).eval()
        for name, weight in model.named_parameters():
            last = name.rsplit(".", 2)[-2:]
            if any(word in last[0] for word in ("query", "key", "q_proj", "k_proj")) and last[-1] == "weight":
                weight.mul_(sharpness)
            elif "token" in name or "embedding" in name or "position" in name or name.endswith(".bias"):
                weight.normal_(std=0.3)
            if ("patch" in name and weight.ndim == 4) or name.endswith("feature_projection.projection.weight"):
                weight.mul_(12.0)  # or all patches, and all frames, would look alike beside the biases
    return model
