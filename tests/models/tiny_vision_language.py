"""Small vision-language models with random weights, saved with their processors as a hub model would lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
)

from tests.models.tiny import tiny_tokenizer
from tests.models.tiny_media import made

SIDE, PATCH = 40, 8  # pictures of LLaVA and PaliGemma: 5 x 5 patches
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
    processor = Qwen2VLImageProcessorPil(
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
        (Qwen2VLConfig, Qwen2VLForConditionalGeneration)
        if older
        else (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration)
    )
    _sharp(cls, config(text_config=text, vision_config=eyes, **ids), seed).save_pretrained(folder)
    processor.save_pretrained(folder)  # Qwen's own repositories: no processor_config.json
    words.save_pretrained(folder)
    return str(folder)


def saved_llava(folder: Path, seed: int = 0, strategy: str = "default") -> str:
    """Its CLIP has a class token, which the strategy "default" drops."""
    words = tokenizer("<image>")
    images = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = LlavaProcessor(
        images, words, patch_size=PATCH, vision_feature_select_strategy=strategy, num_additional_image_tokens=1
    )
    text = LlamaConfig(**TEXT, vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=128)
    eyes = CLIPVisionConfig(**EYES, image_size=SIDE, patch_size=PATCH)
    image = words.convert_tokens_to_ids("<image>")
    config = LlavaConfig(
        vision_config=eyes, text_config=text, image_token_index=image, vision_feature_select_strategy=strategy
    )
    _sharp(LlavaForConditionalGeneration, config, seed).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def saved_paligemma(folder: Path, seed: int = 0) -> str:
    """What stands before the answer reads all of itself, in both directions."""
    words = tokenizer(bos_token="<bos>", eos_token="<eos>")
    images = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = 25
    processor = PaliGemmaProcessor(images, words)
    eyes = {"model_type": "siglip_vision_model", "image_size": SIDE, "patch_size": PATCH, **EYES}
    eyes |= {"vision_use_head": False, "projection_dim": 32}
    text = {"model_type": "gemma", "vocab_size": len(words), "num_key_value_heads": 1, "head_dim": 8}
    image = words.convert_tokens_to_ids("<image>")
    config = PaliGemmaConfig(
        vision_config=eyes,
        text_config={**text, **TEXT, "max_position_embeddings": 128},
        image_token_index=image,
        projection_dim=32,
    )
    _sharp(PaliGemmaForConditionalGeneration, config, seed).save_pretrained(folder)
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
