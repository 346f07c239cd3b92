"""Architectures by name, each as its config or in plain words, with what to know about it.

Why: the numbers that people compare theirs to should be one word away and need no download. Sizes are the published
ones; where a name stands for less than a model (one attention, one block of a rule of thumb), its note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from manyheads import units
from manyheads.base import nearest
from manyheads.errors import ModelError
from manyheads.sizing.architecture import building_blocks as blocks
from manyheads.sizing.architecture.architecture import SOURCE, Architecture
from manyheads.sizing.architecture.config import describe_config
from manyheads.sizing.architecture.seq2seq import pair


@dataclass(frozen=True)
class Preset:
    """`config` is what its config.json says; `words` what `blocks.transformer` takes; neither: made by hand below."""

    title: str
    source: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    words: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    note: str = ""


def _attention_only(title: str, source: str, note: str, **words: object) -> Preset:
    return Preset(title, source, words={"num_layers": 1, "ffn_dim": 0, "norm": "none", **words}, note=note)


def _rule_of_thumb(size: str, embed_dim: int, num_heads: int) -> Preset:
    words = {"num_layers": 1, "embed_dim": embed_dim, "num_heads": num_heads, "norm": "none"}
    note = "one block, attention and a feed-forward of 4 d, for the rule says nothing of layers or words"
    title = f"{size} by rule of thumb: {embed_dim} wide, {num_heads} heads"
    return Preset(title, "heads of 64", words=words, note=note)


_BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "torch_dtype": "float32",
}  # fmt: skip
_GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "torch_dtype": "float32",
}  # fmt: skip
_GPT3 = {**_GPT2, "n_positions": 2048, "torch_dtype": None}
# It is sized by GPT-2's config, which has no word for such bands.
_GPT3_NOTE = "all attention counted as full: its paper alternates it with locally banded layers"
_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16"}
_QWEN3 = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "head_dim": 128,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN3_MOE = {
    **_QWEN3, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128,
    "num_experts_per_tok": 8, "num_key_value_heads": 4, "decoder_sparse_step": 1, "tie_word_embeddings": False,
}  # fmt: skip
_MISTRAL = {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_GEMMA2 = {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256000, "sliding_window": 4096,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
_GEMMA3 = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262208, "head_dim": 256,
    "sliding_window": 1024, "max_position_embeddings": 131072, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
_GEMMA3_NOTE = "the text model: its vision tower and the projection into it, 0.42 B more, are left out"
_DEEPSEEK = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "max_position_embeddings": 163840, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_MTP_NOTE = "without the layer that predicts a second token, which is for training"
_LLAMA4 = {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "vocab_size": 202048, "head_dim": 128,
    "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
    "no_rope_layer_interval": 4, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_LLAMA4_NOTE = "the text model: its vision tower and the projection into it, 0.87 B more, are left out"
_GLM4_MOE = {
    "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "vocab_size": 151552, "head_dim": 128,
    "attention_bias": True, "max_position_embeddings": 131072, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_GPT_OSS_NOTE = "active parameters with the embedding, 0.58 B, which OpenAI's 5.13 B and 3.61 B (120b, 20b) leave out"
_GPT_OSS = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 201088, "attention_bias": True,
    "max_position_embeddings": 131072, "sliding_window": 128, "num_experts_per_tok": 4, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


def _published(title: str, paper: str, repository: str, shape: str, family: Mapping[str, Any], **fields: Any) -> Preset:
    """A decoder from the config.json of its repository on huggingface.co.

    `shape`: layers, hidden_size, intermediate_size, query heads, key/value heads.
    """
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    numbers = dict(zip(names, map(int, shape.split()), strict=True))
    note = fields.pop("note", "")
    return Preset(title, f"{paper}; config.json of {repository}", {**family, **numbers, **fields}, note=note)


def _llama3(title: str, repository: str, shape: str, positions: int) -> Preset:
    words = {"vocab_size": 128256, "max_position_embeddings": positions}
    return _published(title, "Grattafiori et al. 2024", f"meta-llama/{repository}", shape, _LLAMA, **words)


def _qwen2(size: str, shape: str, *, vocab: int = 152064, positions: int = 131072, tied: bool = False) -> Preset:
    words = {"vocab_size": vocab, "max_position_embeddings": positions, "tie_word_embeddings": tied}
    return _published(f"Qwen2.5 {size}", "Qwen Team 2024", f"Qwen/Qwen2.5-{size}", shape, _QWEN2, **words)


def _qwen3(size: str, shape: str, *, tied: bool = False, family: Mapping[str, Any] = _QWEN3, **fields: int) -> Preset:
    words = {"tie_word_embeddings": tied, **fields}
    return _published(f"Qwen3 {size}", "Qwen Team 2025", f"Qwen/Qwen3-{size}", shape, family, **words)


def _mistral(title: str, source: str, repository: str, shape: str, **fields: object) -> Preset:
    return _published(title, source, f"mistralai/{repository}", shape, _MISTRAL, **fields)


def _gemma(generation: int, size: str, shape: str, **fields: object) -> Preset:
    family, suffix = (_GEMMA2, "") if generation == 2 else (_GEMMA3, "-pt")
    source, repository = f"Gemma Team {2022 + generation}", f"google/gemma-{generation}-{size.lower()}{suffix}"
    return _published(f"Gemma {generation} {size}", source, repository, shape, family, **fields)


def _gpt_oss(size: str, shape: str, num_experts: int) -> Preset:
    fields = {"num_local_experts": num_experts, "head_dim": 64, "note": _GPT_OSS_NOTE}
    return _published(f"gpt-oss-{size}", "OpenAI 2025", f"openai/gpt-oss-{size}", shape, _GPT_OSS, **fields)


def _deepseek(title: str, source: str, *, note: str = _MTP_NOTE, family: str = "deepseek_v3", **fields: Any) -> Preset:
    """One of DeepSeek-V3's architecture, or of its kin; `fields` are what differs."""
    classes = {"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}
    config = {"model_type": family, "architectures": [classes[family]], **_DEEPSEEK, **fields}
    if family == "deepseek_v3":
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return Preset(title, source, config, note=note)


def _llama4(size: str, **fields: Any) -> Preset:
    return _published(
        f"Llama 4 {size.split('-')[0]}", "Meta AI 2025", f"meta-llama/Llama-4-{size}-Instruct", "48 5120 8192 40 8",
        _LLAMA4, note=_LLAMA4_NOTE, **fields,
    )  # fmt: skip


def _glm(name: str, shape: str, **fields: Any) -> Preset:
    return _published(name, "Zeng et al. 2025", f"zai-org/{name}", shape, {**_GLM4_MOE, **fields}, note=_MTP_NOTE)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "llama-2-70b": Preset("Llama 2 70B", "Touvron et al. 2023", {
            **_LLAMA, "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096,
            "torch_dtype": "float16",
        }),
        "llama-2-7b": Preset("Llama 2 7B", "Touvron et al. 2023", {
            **_LLAMA, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "torch_dtype": "float16",
        }),
        "llama-3-8b": _llama3("Llama 3 8B", "Meta-Llama-3-8B", "32 4096 14336 32 8", 8192),
        "llama-3-70b": _llama3("Llama 3 70B", "Meta-Llama-3-70B", "80 8192 28672 64 8", 8192),
        "llama-3.1-8b": _llama3("Llama 3.1 8B", "Llama-3.1-8B", "32 4096 14336 32 8", 131072),
        "llama-3.1-70b": _llama3("Llama 3.1 70B", "Llama-3.1-70B", "80 8192 28672 64 8", 131072),
        "llama-3.1-405b": _llama3("Llama 3.1 405B", "Llama-3.1-405B", "126 16384 53248 128 8", 131072),
        "qwen2.5-0.5b": _qwen2("0.5B", "24 896 4864 14 2", vocab=151936, positions=32768, tied=True),
        "qwen2.5-1.5b": _qwen2("1.5B", "28 1536 8960 12 2", vocab=151936, tied=True),
        "qwen2.5-3b": _qwen2("3B", "36 2048 11008 16 2", vocab=151936, positions=32768, tied=True),
        "qwen2.5-7b": _qwen2("7B", "28 3584 18944 28 4"),
        "qwen2.5-14b": _qwen2("14B", "48 5120 13824 40 8"),
        "qwen2.5-32b": _qwen2("32B", "64 5120 27648 40 8"),
        "qwen2.5-72b": _qwen2("72B", "80 8192 29568 64 8"),
        "qwen3-0.6b": _qwen3("0.6B", "28 1024 3072 16 8", tied=True),
        "qwen3-1.7b": _qwen3("1.7B", "28 2048 6144 16 8", tied=True),
        "qwen3-4b": _qwen3("4B", "36 2560 9728 32 8", tied=True),
        "qwen3-8b": _qwen3("8B", "36 4096 12288 32 8"),
        "qwen3-14b": _qwen3("14B", "40 5120 17408 40 8"),
        "qwen3-32b": _qwen3("32B", "64 5120 25600 64 8"),
        "qwen3-30b-a3b": _qwen3("30B-A3B", "48 2048 6144 32 4", family=_QWEN3_MOE, moe_intermediate_size=768),
        "qwen3-235b-a22b": _qwen3("235B-A22B", "94 4096 12288 64 4", family=_QWEN3_MOE, moe_intermediate_size=1536),
        "mistral-7b": _mistral(
            "Mistral 7B v0.1", "Jiang et al. 2023", "Mistral-7B-v0.1", "32 4096 14336 32 8",
            vocab_size=32000, max_position_embeddings=32768, sliding_window=4096,
        ),
        "mistral-7b-v0.3": _mistral(
            "Mistral 7B v0.3", "Mistral AI 2024", "Mistral-7B-v0.3", "32 4096 14336 32 8",
            vocab_size=32768, max_position_embeddings=32768, sliding_window=None,
        ),
        "mistral-nemo-12b": _mistral(
            "Mistral Nemo 12B", "Mistral AI and NVIDIA 2024", "Mistral-Nemo-Base-2407", "40 5120 14336 32 8",
            head_dim=128, vocab_size=131072, max_position_embeddings=128000, sliding_window=None,
        ),
        "mistral-small-24b": _mistral(
            "Mistral Small 3 24B", "Mistral AI 2025", "Mistral-Small-24B-Base-2501", "40 5120 32768 32 8",
            head_dim=128, vocab_size=131072, max_position_embeddings=32768, sliding_window=None,
        ),
        "mixtral-8x7b": Preset("Mixtral 8x7B", "Jiang et al. 2024", {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 32768, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        }),
        "gemma-2-2b": _gemma(2, "2B", "26 2304 9216 8 4", head_dim=256),
        "gemma-2-9b": _gemma(2, "9B", "42 3584 14336 16 8", head_dim=256),
        "gemma-2-27b": _gemma(2, "27B", "46 4608 36864 32 16", head_dim=128),
        "gemma-3-1b": _gemma(
            3, "1B", "26 1152 6912 4 1", vocab_size=262144, sliding_window=512, max_position_embeddings=32768,
        ),
        "gemma-3-4b": _gemma(3, "4B", "34 2560 10240 8 4", note=_GEMMA3_NOTE),
        "gemma-3-12b": _gemma(3, "12B", "48 3840 15360 16 8", note=_GEMMA3_NOTE),
        "gemma-3-27b": _gemma(3, "27B", "62 5376 21504 32 16", head_dim=128, note=_GEMMA3_NOTE),
        "deepseek-v2": _deepseek(
            "DeepSeek-V2", "DeepSeek-AI 2024; config.json of deepseek-ai/DeepSeek-V2", note="", family="deepseek_v2",
            vocab_size=102400, hidden_size=5120, intermediate_size=12288, moe_intermediate_size=1536,
            num_hidden_layers=60, n_shared_experts=2, n_routed_experts=160, num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        "deepseek-v3": _deepseek("DeepSeek-V3", "DeepSeek-AI 2024; config.json of deepseek-ai/DeepSeek-V3"),
        "deepseek-r1": _deepseek("DeepSeek-R1", "DeepSeek-AI 2025; config.json of deepseek-ai/DeepSeek-R1"),
        "kimi-k2": _deepseek(
            "Kimi K2", "Kimi Team 2025; config.json of moonshotai/Kimi-K2-Instruct",
            note="of DeepSeek-V3's architecture", vocab_size=163840, num_attention_heads=64, num_key_value_heads=64,
            n_routed_experts=384, first_k_dense_replace=1, max_position_embeddings=131072,
        ),
        "llama-4-scout": _llama4(
            "Scout-17B-16E", num_local_experts=16, interleave_moe_layer_step=1, max_position_embeddings=10485760,
        ),
        "llama-4-maverick": _llama4(
            "Maverick-17B-128E", num_local_experts=128, interleave_moe_layer_step=2, max_position_embeddings=1048576,
        ),
        "qwen3-next-80b-a3b": _published(
            "Qwen3-Next 80B-A3B", "Qwen Team 2025", "Qwen/Qwen3-Next-80B-A3B-Instruct", "48 2048 5120 16 2", {
                "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "vocab_size": 151936,
                "head_dim": 256, "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10,
                "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
                "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
                "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
                "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            }, note=f"{_MTP_NOTE}; FLOPs without the update of its recurrent states",
        ),
        "glm-4.5": _glm(
            "GLM-4.5", "92 5120 12288 96 8", moe_intermediate_size=1536, n_routed_experts=160,
            first_k_dense_replace=3, use_qk_norm=True,
        ),
        "glm-4.5-air": _glm(
            "GLM-4.5-Air", "46 4096 10944 96 8", moe_intermediate_size=1408, n_routed_experts=128,
            first_k_dense_replace=1, use_qk_norm=False,
        ),
        "gpt-oss-20b": _gpt_oss("20b", "24 2880 2880 64 8", 32),
        "gpt-oss-120b": _gpt_oss("120b", "36 2880 2880 64 8", 128),
        "phi-4-mini": Preset("Phi-4-mini", "Microsoft 2025", {
            "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "vocab_size": 200064, "hidden_size": 3072,
            "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "sliding_window": 262144, "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
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
            "patch_size": 16, "num_labels": 1000, "torch_dtype": "float32",
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
        raise ModelError(f"there is no preset {name!r}.{did_you_mean(name)} `manyheads size --list` shows all.")
    row = PRESETS[key]
    if row.config:
        architecture = describe_config(row.config)
    elif row.words:
        architecture = blocks.transformer(**row.words)
    else:
        # The original Transformer: six layers a side, and one table of words for input, output and head.
        embed_dim, vocab_size = 512, 37_000
        feed = blocks.feed_forward(embed_dim, 2048, gated=False, bias=True)
        reads, writes = pair(embed_dim, 8, 64, (replace(feed, rows=SOURCE), feed), bias=False, norm=2)
        architecture = Architecture(
            name="transformer",
            family="transformer",
            embed_dim=embed_dim,
            layers=(reads,) * 6 + (writes,) * 6,
            outside=(blocks.table(vocab_size, embed_dim), blocks.head(embed_dim, vocab_size, tied=True)),
            vocab_size=vocab_size,
        )
    stored = ""
    if architecture.stored and architecture.stored.parts:
        num_bytes = architecture.stored.num_bytes(architecture.weights)
        stored = f"published in {architecture.stored.form}: about {units.brief(num_bytes, units.DECIMAL)}"
    because = tuple(filter(None, (row.title, row.source, row.note, stored)))
    return replace(architecture, name=key, because=because)


def key_of(name: str) -> str:
    """Case, spaces and underscores do not matter; "Qwen/Qwen3-8B", whose config.json a preset is from, means that."""
    if "/" in name:
        origin = f"config.json of {name.strip()}".lower()
        return next((key for key, row in PRESETS.items() if row.source.lower().endswith(origin)), name)
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def did_you_mean(name: str) -> str:
    """ " Did you mean 'llama-2-70b'?", or nothing."""
    close = nearest(key_of(name), PRESETS)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
