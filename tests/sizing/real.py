"""Small real models of every family that is sized from its config alone, and of some that are not: the oracle.

All sizes differ, so that no two can be confused; heads are wider than hidden / heads wherever a family allows it.
"""

import re
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from manyheads.models import quietly
from manyheads.sizing.architecture.encoders import ENCODERS, IMAGES
from manyheads.sizing.architecture.seq2seq import SEQ2SEQ

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 10, "intermediate_size": 56, "max_position_embeddings": 64, "sliding_window": 7, "num_experts": 5,
    "num_local_experts": 5, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 22, "kv_lora_rank": 12, "q_lora_rank": 14, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6, "v_head_dim": 9, "n_group": 1, "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "intermediate_size_mlp": 44, "attention_chunk_size": 5, "linear_num_key_heads": 2,
    "linear_key_head_dim": 6, "linear_num_value_heads": 4, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3,
}  # fmt: skip
"""Sizes for whatever field a family has."""

DERIVED = {"falcon", "deepseek_v2", "deepseek_v3", "minicpm3"}
"""Families whose head_dim is not to be set: it follows from other sizes."""

OWN: dict[str, dict[str, Any]] = {
    "falcon": {"num_kv_heads": 2, "ffn_hidden_size": 56},
    "helium": {"head_dim": 8},  # its output projection takes no other
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8, "num_attention_heads": 4},  # its heads come in fours
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 5},
    "mpt": {"max_seq_len": 64},
    "xglm": {"ffn_dim": 56},
    "opt": {"ffn_dim": 56},
    "minicpm3": {"num_key_value_heads": 6},
    "dots1": {"first_k_dense_replace": 1, "n_shared_experts": 2, "max_window_layers": 2},
    "deepseek_v2": {"first_k_dense_replace": 1, "num_key_value_heads": 6},
    "deepseek_v3": {"first_k_dense_replace": 1, "num_key_value_heads": 6},
    "ernie4_5_moe": {"moe_num_experts": 5, "moe_k": 2},
    "qwen3_next": {"full_attention_interval": 2},
    "electra": {"embedding_size": 20},
    "distilbert": {"dim": 48, "hidden_dim": 56, "n_heads": 6, "n_layers": 3},
    "vit": {"image_size": 24, "patch_size": 8},
    "deit": {"image_size": 24, "patch_size": 8},
    "dinov2": {"image_size": 24, "patch_size": 8, "mlp_ratio": 3},
    "t5": {"d_model": 48, "d_kv": 10, "d_ff": 56, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6},
    "mt5": {"d_model": 48, "d_kv": 10, "d_ff": 56, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6},
    "bart": {
        "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 6,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 56, "decoder_ffn_dim": 52,
    },
    "marian": {
        "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 6,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 56, "decoder_ffn_dim": 52, "decoder_start_token_id": 0,
    },
    "mbart": {
        "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 6,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 56, "decoder_ffn_dim": 52,
    },
}  # fmt: skip

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, MHA": ("llama", {"num_key_value_heads": 6, "head_dim": 8}),
    "llama, MQA": ("llama", {"num_key_value_heads": 1}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "mistral, tied": ("mistral", {"tie_word_embeddings": True}),
    "mixtral, every expert chosen": ("mixtral", {"num_experts_per_tok": 5}),
    "qwen2, windows after layer 1": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen2_moe, sparse every second": ("qwen2_moe", {"decoder_sparse_step": 2, "qkv_bias": False}),
    "qwen2_moe, windows": ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 2}),
    "qwen3, biased, windows": ("qwen3", {"attention_bias": True, "use_sliding_window": True, "max_window_layers": 2}),
    "qwen3_moe, one dense layer": ("qwen3_moe", {"mlp_only_layers": [1], "use_sliding_window": True}),
    "gemma, untied": ("gemma", {"tie_word_embeddings": False}),
    "gemma3, layers said": ("gemma3_text", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    "cohere, qk norm": ("cohere", {"use_qk_norm": True}),
    "phi, qk norm": ("phi", {"qk_layernorm": True}),
    "phi3, tied": ("phi3", {"tie_word_embeddings": True}),
    "stablelm, all options": ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    "persimmon, no qk norm": ("persimmon", {"qk_layernorm": False}),
    "starcoder2, no biases": ("starcoder2", {"use_bias": False}),
    "gpt_neox, no biases": ("gpt_neox", {"attention_bias": False}),
    "gpt2, narrow": ("gpt2", {"n_inner": 60}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt_bigcode, MHA": ("gpt_bigcode", {"multi_query": False}),
    "falcon, new": ("falcon", {"new_decoder_architecture": True}),
    "falcon, new with one norm": ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    "falcon, MHA with biases": (
        "falcon",
        {"multi_query": False, "num_kv_heads": 6, "parallel_attn": False, "bias": True},
    ),
    "opt, narrow tables": ("opt", {"word_embed_proj_dim": 20}),
    "opt, norm after": ("opt", {"do_layer_norm_before": False, "enable_bias": False}),
    "glm4_moe, qk norm": ("glm4_moe", {"use_qk_norm": True, "attention_bias": True}),
    "ernie4_5_moe, biases": ("ernie4_5_moe", {"use_bias": True, "moe_num_shared_experts": 0}),
    "deepseek_v2, whole queries": ("deepseek_v2", {"q_lora_rank": None}),
    "deepseek_v3, biased, all dense": ("deepseek_v3", {"attention_bias": True, "first_k_dense_replace": 3}),
    "deepseek_v3, tied": ("deepseek_v3", {"tie_word_embeddings": True}),
    "llama4, dense and sparse by turns": ("llama4_text", {"interleave_moe_layer_step": 2, "no_rope_layers": [1, 0, 1]}),
    "llama4, sparse where listed": ("llama4_text", {"moe_layers": [0], "attention_bias": True}),
    "qwen3_next, two of three linear": ("qwen3_next", {"full_attention_interval": 3, "mlp_only_layers": [1]}),
    "exaone4, window of two": ("exaone4", {"sliding_window_pattern": 2}),
    "smollm3, windows": ("smollm3", {"use_sliding_window": True, "no_rope_layers": [1, 0, 0]}),
    "gpt_oss, no biases": ("gpt_oss", {"attention_bias": False}),
    "bert, one token type": ("bert", {"type_vocab_size": 1}),
    "electra, as wide": ("electra", {"embedding_size": 48}),
    "t5, gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "bart, untied": ("bart", {"tie_word_embeddings": False}),
    "marian, untied": ("marian", {"tie_word_embeddings": False}),
    "marian, two vocabularies": ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 91}),
    "marian, all apart": (
        "marian",
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 91, "tie_word_embeddings": False},
    ),
    "vit, no qkv bias": ("vit", {"qkv_bias": False}),
}
"""Options that are not a family's default."""

TABLES = {
    **dict.fromkeys(ENCODERS, "MODEL_FOR_MASKED_LM_MAPPING"),
    **dict.fromkeys(IMAGES, "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
    **dict.fromkeys(SEQ2SEQ, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
}


def config_of(family: str, **options: Any) -> Any:
    """A small config of the family, with the options on top; a test ends as expected where transformers lacks it."""
    if family not in CONFIG_MAPPING:
        pytest.xfail(f"transformers {transformers.__version__} has no {family}")
    known = CONFIG_MAPPING[family]()
    sizes = {name: size for name, size in SMALL.items() if hasattr(known, name)}
    if family in DERIVED:
        del sizes["head_dim"]
    return CONFIG_MAPPING[family](**{**sizes, **OWN.get(family, {}), **options})


def class_of(config: Any, *, bare: bool = False) -> Any:
    name = "MODEL_MAPPING" if bare else TABLES.get(config.model_type, "MODEL_FOR_CAUSAL_LM_MAPPING")
    found = getattr(auto, name)[type(config)]
    return found[0] if isinstance(found, tuple) else found


def plain(config: Any, cls: Any) -> dict[str, Any]:
    """What its config.json says."""
    return {**config.to_dict(), "architectures": [cls.__name__]}


def count_on_meta(config: Any, cls: Any) -> int:
    """Parameters of the model built without numbers."""
    with quietly(), torch.device("meta"):
        return sum(each.numel() for each in cls._from_config(config).parameters())


@cache
def ready(family: str, options: tuple[tuple[str, Any], ...] = ()) -> tuple[Any, Any]:
    """A small model with random weights, in eval mode, and its config."""
    config = config_of(family, **{name: list(each) if isinstance(each, tuple) else each for name, each in options})
    with quietly():
        torch.manual_seed(0)
        return class_of(config)._from_config(config, attn_implementation="eager").eval(), config


ROTARY = re.compile(r"\.rotary_embs?(\.\d+)?$")  # Granite SWA has one for each frequency


def flops_of(counter: Any) -> int:
    """What torch counted, without the angles of rotary positions, which transformers up to 5.18 makes by a product."""
    counts = {name: sum(count.values()) for name, count in counter.get_flop_counts().items()}
    return counts.pop("Global", 0) - sum(count for name, count in counts.items() if ROTARY.search(name))


def bytes_in(kept: Any) -> int:
    """All tensors of a cache, states and indexers too, but not its own counters."""
    if hasattr(kept, "self_attention_cache"):
        return bytes_in(kept.self_attention_cache) + bytes_in(kept.cross_attention_cache)
    total = 0
    for layer in kept.layers:
        for name in ("keys", "values", "conv_states", "recurrent_states", "indexer_keys"):
            found = getattr(layer, name, None)
            for each in found.values() if isinstance(found, dict) else [found]:
                total += 0 if each is None else each.numel() * each.element_size()
    return total


@torch.no_grad()
def cache_after(model: Any, batch: int, prefill: int, more: int) -> Any:
    """The model's own cache after a text of `prefill` tokens and `more` single ones."""
    config = model.config
    ids = torch.randint(3, 90, (batch, prefill + more), generator=torch.Generator().manual_seed(1))
    if config.is_encoder_decoder:
        source = {"encoder_outputs": model.get_encoder()(ids[:, :prefill])}
        kept = model(decoder_input_ids=ids[:, :prefill], **source, use_cache=True).past_key_values
        for at in range(prefill, prefill + more):
            kept = model(
                decoder_input_ids=ids[:, at : at + 1], **source, past_key_values=kept, use_cache=True
            ).past_key_values
        return kept
    kept = DynamicCache(config=config)
    model(input_ids=ids[:, :prefill], past_key_values=kept, use_cache=True)
    for at in range(prefill, prefill + more):
        model(input_ids=ids[:, at : at + 1], past_key_values=kept, use_cache=True)
    return kept
