"""Small models with odd rules, made like those of `tiny`: gpt-oss has sinks, T5 a bias on scores, T5, BART 3 stacks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GptOssConfig,
    GptOssForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.models.tiny import VOCAB_SIZE


def tiny_gpt_oss(*, seed: int = 0) -> Any:
    """2 layers, 6 heads over 3, a sink a head in the denominator; the first layer with a window of 5. Eager only."""
    sizes = {"hidden_size": 40, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "sliding_window": 5}
    other = {"num_local_experts": 3, "num_experts_per_tok": 2, "vocab_size": VOCAB_SIZE}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    with _seeded(seed):
        model = GptOssForCausalLM(GptOssConfig(**sizes, **heads, **other, **ends, **kinds, **rope)).eval()
        for name, weight in model.named_parameters():
            if name.endswith("sinks"):
                weight.normal_(mean=1.0)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(6)
    return model


def tiny_t5(*, seed: int = 0, **config: Any) -> Any:
    """2 layers of an encoder, 3 of a decoder, 4 heads of 7; scores have a bias by distance and no scale."""
    sizes = {"d_model": 30, "d_kv": 7, "d_ff": 44, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    with _seeded(seed):
        made = T5Config(**{"vocab_size": VOCAB_SIZE, "decoder_start_token_id": 0, **sizes, **config})
        model = T5ForConditionalGeneration(made).eval()
        for name, weight in model.named_parameters():
            if "relative_attention_bias" in name:
                weight.normal_(std=2.0)
    return model


def tiny_bart(seed: int = 0) -> Any:
    """2 layers of an encoder, 2 of a decoder, 4 heads of 8; maps far from even."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 48}
    ends = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "bos_token_id": 2}
    with _seeded(seed):
        return BartForConditionalGeneration(BartConfig(vocab_size=VOCAB_SIZE, init_std=0.25, **sizes, **ends)).eval()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same weights for the same seed, and the global random state left alone."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        yield
