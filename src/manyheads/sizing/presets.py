"""Architectures by name, each as its config or in plain words, with what to know about it.

Why: the numbers that people compare theirs to should be one word away and need no download. Sizes are the published
ones; where a name stands for less than a model (one attention, one block of a rule of thumb), its note says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from manyheads.errors import ModelError
from manyheads.sizing import building_blocks as blocks
from manyheads.sizing.architecture import SOURCE, Architecture
from manyheads.sizing.families.config import describe_config
from manyheads.sizing.families.seq2seq import pair


@dataclass(frozen=True)
class Preset:
    """`config` is what its config.json says; `words` what `blocks.transformer` takes; neither: made by hand below."""

    title: str
    source: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    words: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    note: str = ""


def _attention_only(title: str, source: str, note: str, **words: Any) -> Preset:
    return Preset(title, source, words={"num_layers": 1, "ffn_dim": 0, "norm": "none", **words}, note=note)


def _rule_of_thumb(size: str, embed_dim: int, num_heads: int) -> Preset:
    words = {"num_layers": 1, "embed_dim": embed_dim, "num_heads": num_heads, "norm": "none"}
    note = "one block, attention and a feed-forward of 4 d, for the rule says nothing of layers or words"
    title = f"{size} by rule of thumb: {embed_dim} wide, {num_heads} heads"
    return Preset(title, "heads of 64", words=words, note=note)


_BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2,
}  # fmt: skip
_GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257}
_GPT3 = {**_GPT2, "n_positions": 2048}
# It is sized by GPT-2's config, which has no word for such bands.
_GPT3_NOTE = "all attention counted as full: its paper alternates it with locally banded layers"
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "llama-2-70b": Preset("Llama 2 70B", "Touvron et al. 2023", {
            **_LLAMA, "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096,
        }),
        "llama-2-7b": Preset("Llama 2 7B", "Touvron et al. 2023", {
            **_LLAMA, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
        }),
        "llama-3-8b": Preset("Llama 3 8B", "Grattafiori et al. 2024", {
            **_LLAMA, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
        }),
        "phi-4-mini": Preset("Phi-4-mini", "Microsoft 2025", {
            "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "vocab_size": 200064, "hidden_size": 3072,
            "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "sliding_window": 262144, "tie_word_embeddings": True,
        }),
        "mistral-7b": Preset("Mistral 7B v0.1", "Jiang et al. 2023", {
            "model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 32768, "sliding_window": 4096, "tie_word_embeddings": False,
        }),
        "gemma-2-9b": Preset("Gemma 2 9B", "Gemma Team 2024", {
            "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256000, "hidden_size": 3584,
            "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096, "tie_word_embeddings": True,
        }),
        "mixtral-8x7b": Preset("Mixtral 8x7B", "Jiang et al. 2024", {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 32768, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
            "tie_word_embeddings": False,
        }),
        "deepseek-v3": Preset("DeepSeek-V3", "DeepSeek-AI 2024", {
            "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280,
            "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        }, note="without the layer that predicts a second token, which is for training"),
        "gpt-oss-20b": Preset("gpt-oss-20b", "OpenAI 2025", {
            "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 201088, "hidden_size": 2880,
            "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
            "max_position_embeddings": 131072, "attention_bias": True, "tie_word_embeddings": False,
        }),
        "gpt2": Preset("GPT-2 small", "Radford et al. 2019", {
            **_GPT2, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        }),
        "gpt3-small": Preset("GPT-3 small", "Brown et al. 2020, table 2.1", {
            **_GPT3, "n_embd": 768, "n_layer": 12, "n_head": 12,
        }, note=_GPT3_NOTE),
        "gpt3-175b": Preset("GPT-3 175B", "Brown et al. 2020, table 2.1", {
            **_GPT3, "n_embd": 12288, "n_layer": 96, "n_head": 96,
        }, note=_GPT3_NOTE),
        "bert-base": Preset("BERT-base, uncased", "Devlin et al. 2019", {
            **_BERT, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        }),
        "bert-large": Preset("BERT-large, uncased", "Devlin et al. 2019", {
            **_BERT, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        }),
        "minilm": Preset("all-MiniLM-L6-v2", "sentence-transformers", {
            **_BERT, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12,
        }),
        "vit-base": Preset("ViT-Base/16, 224 pixels, 1,000 classes", "Dosovitskiy et al. 2021", {
            "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 768,
            "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
            "patch_size": 16, "num_labels": 1000,
        }),
        "transformer": Preset(
            "the original Transformer, base", "Vaswani et al. 2017",
            note="37,000 words shared by both sides and the output; sinusoidal positions; no biases on q, k, v, o",
        ),
        "alphafold2-evoformer": _attention_only(
            "one attention of AlphaFold 2's Evoformer", "Jumper et al. 2021",
            "the four projections of one row-wise attention over the alignment: its gate and pair bias are left out",
            embed_dim=256, num_heads=8, causal=False,
        ),
        "rul-backbone": _attention_only(
            "the attention of a remaining-useful-life regressor", "torch.nn.MultiheadAttention(512, 8)",
            "attention alone, with biases, over windows of 30 cycles", embed_dim=512, num_heads=8, causal=False,
            qkv_bias=True, o_bias=True,
        ),
        "small": _rule_of_thumb("small", 256, 4),
        "medium": _rule_of_thumb("medium", 512, 8),
        "large": _rule_of_thumb("large", 1024, 16),
        "xl": _rule_of_thumb("XL", 2048, 32),
    }
)  # fmt: skip


def preset(name: str) -> Architecture:
    """The architecture of that name. Raises ModelError naming the nearest ones."""
    key = key_of(name)
    if key not in PRESETS:
        raise ModelError(f"there is no preset {name!r}.{nearest(name)} `manyheads size --list` shows all.")
    row = PRESETS[key]
    if row.config:
        architecture = describe_config(row.config)
    elif row.words:
        architecture = blocks.transformer(**row.words)
    else:
        architecture = _original_transformer()
    because = (row.title, row.source, *((row.note,) if row.note else ()))
    return replace(architecture, name=key, because=because)


def key_of(name: str) -> str:
    """Case, spaces and underscores do not matter."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def nearest(name: str) -> str:
    """ " Did you mean 'llama-2-70b'?", or nothing."""
    close = difflib.get_close_matches(key_of(name), PRESETS, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _original_transformer() -> Architecture:
    """Six layers a side, 512 wide, 8 heads, feed-forward 2,048; one table of words for input, output and head."""
    embed_dim, words = 512, 37_000
    feed = blocks.feed_forward(embed_dim, 2048, gated=False, bias=True)
    reads, writes = pair(embed_dim, 8, 64, (replace(feed, rows=SOURCE), feed), bias=False, norm=2)
    return Architecture(
        name="transformer",
        family="transformer",
        embed_dim=embed_dim,
        layers=(reads,) * 6 + (writes,) * 6,
        outside=(blocks.table(words, embed_dim), blocks.head(embed_dim, words, tied=True)),
        vocab_size=words,
    )
