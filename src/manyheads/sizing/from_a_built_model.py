"""What a built model shows of itself, for families that no row describes: where each parameter belongs, by its path,
and how attention is shaped, by what is kept of a few tokens.

Why: names of modules are the one thing that hundreds of model files share. They decide only under which part a
parameter is counted, and whether a row is multiplied by it; the count itself is the parameter's own. Where that cannot
be seen the answer is None, and whoever asked has to say that FLOPs cannot be told.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

from manyheads.sizing.architecture import LAST, Attention, Weights

# The order decides: BERT's `attention.output.dense` is an o, every other `output.dense` a feed-forward, and a router
# that stands in an `mlp` is a router.
PLACES = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("o", r"att\w*\.output\.dense"),
        ("router", r"router|shared_expert_gate|(mlp|moe|mixer|feed_forward)\.gate\.|e_score_|expert_bias"),
        ("feed-forward", r"expert|mlp|ffn|feed_?forward|\.fc|intermediate|DenseRelu|\.wi|output\.dense"),
        ("feed-forward", r"(?<!attn\.)(gate|up|down)_proj"),
        ("mixer", r"mamba|mixer\.(x|dt|out)_proj|linear_attn|\bconv|rg_lru|\.ssm|linear_[xy]|forget_gate|dt_bias"),
        ("mixer", r"A_log|\bin_proj\b"),
        ("latent", r"kv_a_proj"),
        ("qkv", r"qkv|query_key_value|c_attn|in_proj_weight|kv_proj|kv_b_proj"),
        ("q", r"[._](q|query|q_[ab])(_proj|_lin)?\b|\.Wq\b"),
        ("k", r"[._](k|key)(_proj|_lin)?\b|\.Wk\b"),
        ("v", r"[._](v|value)(_proj|_lin)?\b|\.Wv\b"),
        ("o", r"\b(o|out)_(proj|lin)\b|att\S*\.(dense|c_proj|o|Wo)\b"),
    )
)
"""Part -> what the path of its parameters has in it; the first that fits."""

KEY_NORM = re.compile(r"\bk_(layer)?norm")


def part_of(path: str) -> str:
    return next((name for name, pattern in PLACES if pattern.search(path)), "other")


def weights_of(path: str, kind: str, shape: tuple[int, ...], *, is_head: bool, chosen: int | None) -> Weights | None:
    """The parameter at `path`, owned by a module of the class `kind`; None if it is not known who is multiplied by it.

    `is_head`: it is of the projection to the vocabulary. `chosen`: how many experts a token goes through, if known.
    """
    size = prod(shape)
    if is_head:
        return Weights("head", size, size if len(shape) > 1 else 0, rows=LAST)
    if "Embedding" in kind:
        return Weights("other" if "bias" in path else "embedding", size)
    part = "norm" if "Norm" in kind else part_of(path)
    keys = part in ("k", "v") or (part == "norm" and KEY_NORM.search(path) is not None)
    if part == "norm" or len(shape) < 2:
        return Weights(part, size, per_kv_head=keys)
    if kind in ("Conv1D", "Conv1d") or kind.endswith("Linear") or (part == "router" and min(shape) > 1):
        return Weights(part, size, size, per_kv_head=keys)
    if size == max(shape):
        return Weights(part, size)
    if "expert" in path:
        size_of_one = size // shape[0]
        matmul = size_of_one if len(shape) == 3 else 0  # of two axes: a bias for each expert
        return None if chosen is None else Weights(part, size_of_one, matmul, experts=shape[0], chosen=chosen)
    return Weights(part, size) if part == "mixer" else None  # a recurrence's own numbers: no matrix product


def attention_of(kept: Any, text: Any) -> Attention | None:
    """The attention whose keys and values a layer of a cache kept; None if none were. `text`: the model's config."""
    keys, values = getattr(kept, "keys", None), getattr(kept, "values", None)
    if keys is None or values is None or not keys.numel():
        return None
    window, num_heads = getattr(kept, "sliding_window", None), text.num_attention_heads
    kv_heads, k_width, v_width = keys.shape[1], keys.shape[-1], values.shape[-1]
    # MLA keeps the compressed keys and values of all heads in place of keys, and the rotary part in place of values.
    if kv_heads == 1 and k_width == getattr(text, "kv_lora_rank", None):
        qk_dim, latent = text.qk_nope_head_dim + text.qk_rope_head_dim, (k_width, v_width)
        return Attention(num_heads, num_heads, qk_dim, text.v_head_dim, window=window, latent=latent)
    chunked = bool(window) and getattr(text, "attention_chunk_size", None) == window
    return Attention(num_heads, kv_heads, k_width, v_width, window=window, chunked=chunked)


def settled(weights: list[Weights], attention: Attention | None) -> tuple[Weights, ...]:
    """The weights of a layer, those of a norm that every key head shares no longer counted for each."""
    kv_width = attention.num_kv_heads * attention.qk_dim if attention else 0
    return tuple(
        replace(weight, per_kv_head=False) if weight.part == "norm" and weight.size != kv_width else weight
        for weight in weights
    )


def state_of(kept: Any) -> tuple[int, int]:
    """Numbers of a recurrence or convolution: in the cache's dtype, and in 32 bits whatever that is."""
    sizes = [0, 0]
    for name in ("conv_states", "recurrent_states"):
        states: dict[int, Any] = getattr(kept, name, None) or {}
        for state in states.values():
            if state is not None:
                sizes[state.element_size() == 4] += state.numel()
    return sizes[0], sizes[1]


def fault_of(attention: Attention | None, weights: list[Weights], embed_dim: int) -> str:
    """Why the FLOPs of a layer's attention cannot be told; "" if they can, or there is none."""
    if attention is None:
        has_one = any(weight.part in ("q", "qkv") for weight in weights)
        return "its attention leaves nothing in a cache to tell its shape by" if has_one else ""
    # The widths are read off a cache, which may hold something else than keys and values: o must agree with them.
    out = sum(weight.matmul for weight in weights if weight.part == "o")
    if out != attention.num_heads * attention.v_dim * embed_dim:
        return f"its output projection is not one of {attention.num_heads} heads of {attention.v_dim}"
    return ""
