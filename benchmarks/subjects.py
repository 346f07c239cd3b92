"""The model and texts that the speed figures are taken on: Llama-shaped, 4 layers, 12 heads of 64, float32.

Random weights: speed does not hang on what they are. Words follow Zipf's law, so that tokens repeat as in prose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VOCABULARY = 8_192
NUM_LAYERS = 4
SEED = 20


def llama(implementation: str = "sdpa", **sizes: float) -> Any:
    """The bare transformers model; `sizes`: fields of its config in place of those above."""
    import torch
    from transformers import LlamaModel

    torch.manual_seed(SEED)
    return LlamaModel(config(implementation, **sizes)).eval()


def config(implementation: str = "sdpa", **sizes: float) -> Any:
    from transformers import LlamaConfig

    shape = {
        "hidden_size": 768,
        "intermediate_size": 2_048,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 131_072,
    }
    return LlamaConfig(**shape | sizes, attn_implementation=implementation)


def tokenizer() -> Any:
    """One word, one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=131_072)


def ids(num_tokens: int) -> np.ndarray:
    """Token ids by Zipf's law."""
    rank = np.arange(1, VOCABULARY + 1)
    share = 1 / rank
    return np.random.default_rng(SEED).choice(VOCABULARY, num_tokens, p=share / share.sum())


def text(num_tokens: int) -> str:
    return " ".join(f"w{i}" for i in ids(num_tokens))
