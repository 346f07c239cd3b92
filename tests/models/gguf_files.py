"""GGUF files for the tests, written as llama.cpp's convert_hf_to_gguf.py writes a model: no code of the reader's."""

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

F32, F16, BF16 = 0, 1, 30
CODES = {int: 4, float: 6, bool: 7, str: 8}  # u32, f32, bool, string


class Packed(NamedTuple):
    """A tensor's bytes as a file has them, its shape as torch has it, and the number of its kind."""

    shape: tuple[int, ...]
    kind: int
    contents: bytes


def text(value: str) -> bytes:
    contents = value.encode()
    return struct.pack("<Q", len(contents)) + contents


def value_bytes(value: Any) -> bytes:
    """A value of a key with its type: a number, a text, or a list of one of these."""
    if isinstance(value, bool | int | float | str):
        code = CODES[type(value)]
        if isinstance(value, str):
            return struct.pack("<I", code) + text(value)
        return struct.pack("<I", code) + struct.pack({4: "<I", 6: "<f", 7: "<?"}[code], value)
    items = list(value)
    code = 5 if items and isinstance(items[0], int) else CODES[type(items[0])] if items else 4
    head = struct.pack("<IIQ", 9, code, len(items))
    pack = text if code == 8 else (lambda item: struct.pack("<i" if code == 5 else "<f", item))
    return head + b"".join(map(pack, items))


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Packed], *, version: int = 3, alignment: int | None = None
) -> bytes:
    if alignment is not None:
        metadata = {**metadata, "general.alignment": alignment}
    step = alignment or 32
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + value_bytes(value)
    offset, data = 0, b""
    for name, tensor in tensors.items():
        sizes = tuple(reversed(tensor.shape))
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.kind, offset)
        padded = tensor.contents + b"\0" * (-len(tensor.contents) % step)
        offset, data = offset + len(padded), data + padded
    return head + b"\0" * (-len(head) % step) + data


def packed(numbers: torch.Tensor, kind: int = F32) -> Packed:
    dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[kind]
    plain = numbers.detach().to(dtype).contiguous()
    return Packed(tuple(plain.shape), kind, plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def random_blocks(shape: tuple[int, ...], kind: int, numbers: int, num_bytes: int, rng: np.random.Generator) -> Packed:
    """Random bytes as blocks; halves of their scales are finite, since every pair of bytes has a small exponent."""
    count = int(np.prod(shape)) // numbers
    blocks = rng.integers(0, 256, (count, num_bytes), np.uint8)
    blocks[:, 1::2] &= 0xB3  # the exponent of a half that begins at an even byte is below 13 of 31
    return Packed(shape, kind, blocks.tobytes())


# ------------------------------------------------------------------------------------------------------------- models


def pairs_from_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp's order of the rows of q and k, whose rotary embedding turns neighbours."""
    rows = weight.shape[0]
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


LLAMA = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT2 = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
ENDS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip


def stored_name(name: str, architecture: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in ENDS:
        return f"{ENDS[module]}.{kind}"
    names = GPT2 if architecture == "gpt2" else GEMMA if architecture.startswith("gemma") else LLAMA
    layer, _, part = module.removeprefix("model.layers.").removeprefix("transformer.h.").partition(".")
    return f"blk.{layer}.{names[part]}.{kind}"


def stored_weights(model: nn.Module, architecture: str) -> dict[str, torch.Tensor]:
    """A model's weights as such a file has them, by their names there."""
    config: Any = model.config
    weights: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):  # [expert, gate and then up, ...]
            halves = zip(("gate_proj", "up_proj"), weight.chunk(2, 1), strict=True)
            weights |= {name.replace("gate_up_proj", f"{part}.weight"): half for part, half in halves}
        elif not (name == "lm_head.weight" and getattr(config, "tie_word_embeddings", False)):
            weights[f"{name}.weight" if name.endswith("experts.down_proj") else name] = weight
    named = ((stored_name(name, architecture), weight) for name, weight in weights.items())
    return {stored: stored_weight(weight, stored, architecture, config) for stored, weight in named}


def stored_weight(weight: torch.Tensor, stored: str, architecture: str, config: Any) -> torch.Tensor:
    if architecture == "llama" and ".attn_q." in stored:
        return pairs_from_halves(weight, config.num_attention_heads)
    if architecture == "llama" and ".attn_k." in stored:
        return pairs_from_halves(weight, config.num_key_value_heads)
    if architecture.startswith("gemma") and stored.endswith("norm.weight"):
        return weight + 1
    if stored.endswith("ffn_gate_inp_shexp.weight"):
        return weight[0]
    linear = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return weight.T if architecture == "gpt2" and stored.endswith(linear) else weight


def metadata_of(model: Any, architecture: str, tokens: Sequence[str] | None = None) -> dict[str, Any]:
    """The keys that llama.cpp writes for a model of that family."""
    config = model.config
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None),
        "attention.head_count": config.num_attention_heads,
    }
    if architecture != "gpt2":
        rope = config.rope_parameters
        rope = rope.get("full_attention", rope)
        values |= {
            "attention.head_count_kv": config.num_key_value_heads,
            "rope.freq_base": float(rope["rope_theta"]),
            "vocab_size": config.vocab_size,
        }
    if architecture in ("gpt2", "starcoder2"):
        epsilon = getattr(config, "layer_norm_epsilon", None) or config.norm_epsilon
        values["attention.layer_norm_epsilon"] = float(epsilon)
    else:
        values["attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    if architecture.endswith("moe"):
        values |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if architecture == "qwen2moe":
        values["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if getattr(config, "head_dim", None) and architecture in ("qwen3", "qwen3moe", "gemma2", "gemma3"):
        values |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    elif architecture in ("llama", "phi3"):
        values["rope.dimension_count"] = config.hidden_size // config.num_attention_heads
    if architecture.startswith("gemma") or (architecture == "phi3" and config.sliding_window):
        values["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        values |= {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    return {"general.architecture": architecture, "general.name": "tiny", "general.file_type": 0, **named} | (
        byte_level(tokens) if tokens is not None else {}
    )


def byte_level(tokens: Sequence[str], merges: Sequence[str] = (), pre: str = "gpt-2") -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
    }


def write_model(
    path: Path,
    model: nn.Module,
    architecture: str,
    pack: Callable[[str, torch.Tensor], Packed] = lambda name, weight: packed(weight),
    *,
    extra: Mapping[str, Packed] = MappingProxyType({}),
    **metadata: Any,
) -> Path:
    """The GGUF file of a transformers model. `pack`: how each tensor, by its name in the file, is stored."""
    tensors = {name: pack(name, weight) for name, weight in stored_weights(model, architecture).items()}
    path.write_bytes(gguf_bytes(metadata_of(model, architecture) | metadata, {**tensors, **extra}))
    return path
