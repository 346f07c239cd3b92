"""A text as TransformerLens reads it: with a beginning-of-sequence token in front, or without. Checked on 4.3.

A score over few tokens hangs on whether that token is there, so which models get one is part of the figure.
"""

from __future__ import annotations

from typing import Any

FALLBACK_BOS = "<|endoftext|>"
NO_BOS = frozenset({
    "audioflamingo3", "bloom", "Dream", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "glm4v", "glm_moe_dsa", "glmasr", "gpt_neox", "granite", "granitemoe", "granitemoehybrid", "llada",
    "minimax_m2", "mpt", "musicflamingo", "phi", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_audio", "qwen2_moe", "qwen3",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe",
    "recurrent_gemma", "seed_oss", "smollm3", "starcoder2",
})  # fmt: skip
"""Families (`config.model_type`) to which 4.3 adds none by default. Earlier versions did to some (Pythia)."""


def prepends_by_default(lm: Any) -> bool:
    """`cfg.default_prepend_bos` of TransformerLens 4.3 for this model."""
    return getattr(getattr(lm.model, "config", None), "model_type", "") not in NO_BOS


def lens_ids(lm: Any, text: str, prepend_bos: bool | None = None) -> list[int]:
    """What `model.to_tokens(text)` gives there. `prepend_bos=None` is their default for this model.

    A tokenizer that adds a token of its own in front (`<s>`, `[CLS]`) adds no second one, and loses it where none is
    wanted. One without adds its BOS, else its end token, else "<|endoftext|>", where that is one token. An end token
    that the tokenizer appends is cut off.
    """
    tokenizer = lm.tokenizer
    prepend = prepends_by_default(lm) if prepend_bos is None else prepend_bos
    probe = _encoded(tokenizer, "a")
    leading = {tokenizer.bos_token_id, getattr(tokenizer, "cls_token_id", None)} - {None}
    leads = len(probe) > 1 and probe[0] in leading
    ends = len(probe) > 1 and tokenizer.eos_token_id is not None and probe[-1] == tokenizer.eos_token_id
    ids = _encoded(tokenizer, text)
    if prepend and not leads:
        if tokenizer.bos_token_id is not None:
            ids = [tokenizer.bos_token_id, *ids]
        else:
            bos = tokenizer.eos_token or FALLBACK_BOS
            atomic = len(_encoded(tokenizer, bos, add_special_tokens=False)) == 1
            ids = _encoded(tokenizer, bos + text) if atomic else ids
    while ends and len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    return ids[1:] if leads and not prepend else ids


def _encoded(tokenizer: Any, text: str, **how: Any) -> list[int]:
    return list(tokenizer(text, truncation=False, verbose=False, **how)["input_ids"])
