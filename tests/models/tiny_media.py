"""Small models of pictures and sounds with random weights, and their own processors, saved as a hub model would lie.

Sizes differ, so that no swapped axis can pass; pictures are not square where the model allows. The weights of q and k
are scaled up, as in `tiny`: near-uniform maps agree with almost anything.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from numpy import ndarray

from manyheads.inputs.media import picture_of
from tests.models.tiny import VOCAB_SIZE, tiny_tokenizer

HEIGHT, WIDTH, PATCH = 24, 40, 8  # 3 rows of 5 patches
SQUARE = 40
RATE = 16_000
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 44}
FEWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "mlp_ratio": 2}


def tiny_vit(seed: int = 0, **config: Any) -> Any:
    return made(
        hf.ViTModel, hf.ViTConfig(**{"image_size": (HEIGHT, WIDTH), "patch_size": PATCH, **SIZES, **config}), seed
    )


def tiny_deit(seed: int = 0) -> Any:
    return made(hf.DeiTModel, hf.DeiTConfig(image_size=(HEIGHT, WIDTH), patch_size=PATCH, **SIZES), seed)


def tiny_dinov2(seed: int = 0) -> Any:
    """4 registers; it takes pictures of any size."""
    config = hf.Dinov2WithRegistersConfig(image_size=SQUARE, patch_size=PATCH, num_register_tokens=4, **FEWER)
    return made(hf.Dinov2WithRegistersModel, config, seed)


def tiny_dinov3(seed: int = 0) -> Any:
    config = hf.DINOv3ViTConfig(image_size=SQUARE, patch_size=PATCH, num_register_tokens=2, **SIZES)
    return made(hf.DINOv3ViTModel, config, seed)


def tiny_clip(seed: int = 0) -> Any:
    return made(hf.CLIPVisionModel, hf.CLIPVisionConfig(image_size=SQUARE, patch_size=PATCH, **SIZES), seed)


def tiny_siglip(seed: int = 0) -> Any:
    config = hf.SiglipVisionConfig(image_size=SQUARE, patch_size=PATCH, **SIZES)
    return made(hf.SiglipVisionModel, config, seed, sharpness=2.0)  # its weights are large from the start


def tiny_yolos(seed: int = 0) -> Any:
    """5 tokens of its own after the patches."""
    config = hf.YolosConfig(image_size=(HEIGHT, WIDTH), patch_size=PATCH, num_detection_tokens=5, **SIZES)
    return made(hf.YolosModel, config, seed)


def tiny_swin(seed: int = 0) -> Any:
    """Windows of 4 x 4 in a grid of 16 x 16."""
    sizes = {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]}
    return made(hf.SwinModel, hf.SwinConfig(image_size=64, patch_size=4, window_size=4, **sizes), seed)


def tiny_whisper(seed: int = 0, **config: Any) -> Any:
    """2 layers on each side, 3 heads of 8; 2 seconds in 100 frames, 50 tokens."""
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "num_mel_bins": 16}
    limits = {"max_source_positions": 100, "max_target_positions": 50, "vocab_size": VOCAB_SIZE}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 2}
    quiet = {"suppress_tokens": None, "begin_suppress_tokens": None}
    whole = {**sizes, **heads, **limits, **ends, **quiet, **config}
    return made(hf.WhisperForConditionalGeneration, hf.WhisperConfig(**whole), seed, sharpness=30.0)


def tiny_wav2vec2(seed: int = 0, **config: Any) -> Any:
    """7 convolutions as in the real one: 320 samples a frame."""
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    whole = {**convolutions, "feat_extract_norm": "layer", **SIZES, **config}
    return made(hf.Wav2Vec2Model, hf.Wav2Vec2Config(**whole), seed, sharpness=20.0)


def wide() -> Any:
    """A processor to pictures of 24 x 40."""
    return hf.ViTImageProcessorPil(size={"height": HEIGHT, "width": WIDTH})


def square() -> Any:
    """A processor that resizes the shorter side, and cuts the middle out."""
    return hf.CLIPImageProcessorPil(size={"shortest_edge": SQUARE}, crop_size={"height": SQUARE, "width": SQUARE})


def windowed() -> Any:
    return hf.ViTImageProcessorPil(size={"height": 64, "width": 64})


def spectra() -> Any:
    return hf.WhisperFeatureExtractor(feature_size=16, chunk_length=2)


def waves(mask: bool = True) -> Any:
    return hf.Wav2Vec2FeatureExtractor(return_attention_mask=mask)


PICTURES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "vit": (tiny_vit, wide), "deit": (tiny_deit, wide), "dinov2": (tiny_dinov2, wide), "dinov3": (tiny_dinov3, wide),
    "clip": (tiny_clip, square), "siglip": (tiny_siglip, square), "yolos": (tiny_yolos, wide),
    "swin": (tiny_swin, windowed),
}  # fmt: skip


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


def pixels(lm, pictures):
    """What the model's own processor makes of them."""
    return lm.processor(images=[picture_of(each) for each in pictures], return_tensors="pt")["pixel_values"]


# =============================================================================================== vision-language models
# Small vision-language models with random weights, saved with their processors as a hub model would lie.

SIDE = 40  # pictures of LLaVA and PaliGemma: 5 x 5 patches
TEXT = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4}
EYES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{% for m in messages %}user : {% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %} .{% endfor %}"
    "{% if add_generation_prompt %} he said : {% endif %}"
)


def tokenizer(*names: str, **more: str) -> Any:
    out = tiny_tokenizer(special_tokens=False)
    out.add_special_tokens({"additional_special_tokens": list(names), **more})
    return out


def saved_qwen(folder: Path, seed: int = 0, *, older: bool = False, template: str | None = None) -> str:
    """Patches of 8 x 8 are merged 2 x 2; its vision tower attends within windows, and once to the whole picture."""
    words = tokenizer(*MARKS)
    words.chat_template = template
    processor = hf.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 96}
    )
    start, end, image, video = words.convert_tokens_to_ids(list(MARKS))
    ids = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "vocab_size": len(words), "num_key_value_heads": 2, "max_position_embeddings": 128}
    text |= {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": None}
    eyes: dict[str, Any] = {"depth": 2, "num_heads": 3, "patch_size": PATCH, "spatial_merge_size": 2}
    newer = {"hidden_size": 24, "out_hidden_size": 32, "intermediate_size": 40, "window_size": 32}
    newer |= {"fullatt_block_indexes": [1]}
    eyes |= {"embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2} if older else newer
    config, cls = (
        (hf.Qwen2VLConfig, hf.Qwen2VLForConditionalGeneration)
        if older
        else (hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLForConditionalGeneration)
    )
    _sharp(cls, config(text_config=text, vision_config=eyes, **ids), seed).save_pretrained(folder)
    processor.save_pretrained(folder)  # Qwen's own repositories: no processor_config.json
    words.save_pretrained(folder)
    return str(folder)


def saved_llava(folder: Path, seed: int = 0, strategy: str = "default") -> str:
    """Its CLIP has a class token, which the strategy "default" drops."""
    words = tokenizer("<image>")
    images = hf.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = hf.LlavaProcessor(
        images, words, patch_size=PATCH, vision_feature_select_strategy=strategy, num_additional_image_tokens=1
    )
    text = hf.LlamaConfig(**TEXT, vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=128)
    eyes = hf.CLIPVisionConfig(**EYES, image_size=SIDE, patch_size=PATCH)
    image = words.convert_tokens_to_ids("<image>")
    config = hf.LlavaConfig(
        vision_config=eyes, text_config=text, image_token_index=image, vision_feature_select_strategy=strategy
    )
    _sharp(hf.LlavaForConditionalGeneration, config, seed).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def saved_paligemma(folder: Path, seed: int = 0) -> str:
    """What stands before the answer reads all of itself, in both directions."""
    words = tokenizer(bos_token="<bos>", eos_token="<eos>")
    images = hf.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = 25
    processor = hf.PaliGemmaProcessor(images, words)
    eyes = {"model_type": "siglip_vision_model", "image_size": SIDE, "patch_size": PATCH, **EYES}
    eyes |= {"vision_use_head": False, "projection_dim": 32}
    text = {"model_type": "gemma", "vocab_size": len(words), "num_key_value_heads": 1, "head_dim": 8}
    image = words.convert_tokens_to_ids("<image>")
    config = hf.PaliGemmaConfig(
        vision_config=eyes,
        text_config={**text, **TEXT, "max_position_embeddings": 128},
        image_token_index=image,
        projection_dim=32,
    )
    _sharp(hf.PaliGemmaForConditionalGeneration, config, seed).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


READERS: dict[str, Callable[..., str]] = {
    "qwen2.5": saved_qwen,
    "qwen2": lambda folder, seed=0: saved_qwen(folder, seed, older=True, template=TEMPLATE),
    "llava": saved_llava,
    "paligemma": saved_paligemma,
}


def _sharp(cls: Any, config: Any, seed: int) -> Any:
    """Float64, so that comparisons are not about rounding."""
    config.dtype = config.text_config.dtype = config.vision_config.dtype = torch.float64
    model = made(cls, config, seed, sharpness=10.0).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".attn.qkv." in name or "merger" in name or "projector" in name:
                weight.mul_(12.0)  # or all patches would look alike to the language model
    return model
