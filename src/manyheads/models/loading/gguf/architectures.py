"""What a GGUF file's keys and tensors are in transformers: `FAMILIES`, and a file's config and names by its family.

A key or a tensor that is left out is another model: a scaled rotary embedding, a softcap, a window. So every key of the
architecture and every tensor has to be read; a file with one that is not is refused, and named. What a file does not
say, a family's `fixed` says, where all of its models have it so.

Source: the names in llama.cpp's gguf-py (constants.py, tensor_mapping.py), and what convert_hf_to_gguf.py does to the
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from manyheads.base import few
from manyheads.errors import ModelError
from manyheads.models.loading.gguf.file import GgufFile, Strings

if TYPE_CHECKING:  # sizing reads a file's config, and does without torch
    from torch import Tensor

__all__ = ["FAMILIES", "Family", "Plan", "config_of", "family_of", "plan_of"]

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK, _LAYER = "blk.{}.", "model.layers.{}."
_ATTENTION = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_ATTENTION |= {"attn_output": "self_attn.o_proj"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    # Of all experts in one tensor each; the model has the first two in one.
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_SANDWICH = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Llama 3's scaling of rotary frequencies is stored as its factors; these are the settings it was ever published with.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_CLOSE = 1e-4  # relative: factors are stored in float32


def _layers(names: Mapping[str, str]) -> dict[str, str]:
    return {_BLOCK + stored: _LAYER + name for stored, name in names.items()}


@dataclass(frozen=True)
class Family:
    """Models that llama.cpp calls by one name: their class in transformers, and the names of config and tensors.

    - `model_type`: what a config.json calls them.
    - `keys`: the file's key, without the architecture, to the config's.
    - `tensors`: the file's tensor to the model's module, or its parameter where it has no module; {} is the layer's
      number. Tensors of one parameter are its parts, in alphabetical order.
    - `fixed`: what every config of the family has and no file says.
    - `rope`: whether positions are rotary.
    - `as_stored`: tensors that the file holds otherwise than the model: a pattern of their names, and what undoes it.
    """

    model: str
    model_type: str
    keys: Mapping[str, str]
    tensors: Mapping[str, str]
    fixed: Mapping[str, object] = field(default_factory=dict)
    rope: bool = True
    as_stored: tuple[tuple[str, Callable[[Tensor, Mapping[str, object]], Tensor]], ...] = ()


def _number(config: Mapping[str, object], name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def _halves_from_pairs(stored: Tensor, num_heads: int) -> Tensor:
    # llama.cpp turns neighbours i, i + 1 of a head by one angle, transformers i, i + width / 2: rows were moved.
    return stored.reshape(num_heads, stored.shape[0] // num_heads // 2, 2, -1).transpose(1, 2).reshape(stored.shape)


def _queries(stored: Tensor, config: Mapping[str, object]) -> Tensor:
    return _halves_from_pairs(stored, _number(config, "num_attention_heads"))


def _keys(stored: Tensor, config: Mapping[str, object]) -> Tensor:
    return _halves_from_pairs(stored, _number(config, "num_key_value_heads"))


def _less_one(stored: Tensor, _: Mapping[str, object]) -> Tensor:
    return stored - 1  # Gemma multiplies by 1 + w, and the sum is stored


def _as_row(stored: Tensor, _: Mapping[str, object]) -> Tensor:
    return stored.reshape(1, -1)


def _turned(stored: Tensor, _: Mapping[str, object]) -> Tensor:
    return stored.T.contiguous()  # GPT-2's Conv1D holds [in, out]


_ALL_SPARSE: Mapping[str, object] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_EXPERT_PARTS = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
_GEMMA: Mapping[str, object] = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            "LlamaForCausalLM",
            "llama",
            _KEYS | _RMS,
            _ENDS | _layers(_PRE_NORMS | _ATTENTION | _GATED),
            {"hidden_act": "silu"},
            as_stored=((r"\.attn_q\.", _queries), (r"\.attn_k\.", _keys)),
        ),
        "qwen2": Family(
            "Qwen2ForCausalLM",
            "qwen2",
            _KEYS | _RMS,
            _ENDS | _layers(_PRE_NORMS | _ATTENTION | _GATED),
            {"hidden_act": "silu", "use_sliding_window": False},
        ),
        "qwen3": Family(
            "Qwen3ForCausalLM",
            "qwen3",
            _KEYS | _RMS,
            _ENDS | _layers(_PRE_NORMS | _ATTENTION | _HEAD_NORMS | _GATED),
            {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
        ),
        "qwen2moe": Family(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            _KEYS | _RMS | _EXPERT_KEYS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
            _ENDS
            | _layers(_PRE_NORMS | _ATTENTION | _EXPERTS | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"})
            | _layers({f"{name}_shexp": f"mlp.shared_expert.{part}" for name, part in _EXPERT_PARTS.items()}),
            {"hidden_act": "silu", "use_sliding_window": False, **_ALL_SPARSE, "norm_topk_prob": False},
            as_stored=((r"\.ffn_gate_inp_shexp\.", _as_row),),
        ),
        "qwen3moe": Family(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            _KEYS | _RMS | _EXPERT_KEYS,
            _ENDS | _layers(_PRE_NORMS | _ATTENTION | _HEAD_NORMS | _EXPERTS),
            # llama.cpp divides the chosen experts' shares by their sum in this family, and not in the last.
            {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False, **_ALL_SPARSE}
            | {"norm_topk_prob": True},
        ),
        "phi3": Family(
            "Phi3ForCausalLM",
            "phi3",
            _KEYS | _RMS | {"attention.sliding_window": "sliding_window"},
            _ENDS
            | _layers(_PRE_NORMS | {"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj"})
            | _layers({"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}),
            {"hidden_act": "silu"},
        ),
        "gemma2": Family(
            "Gemma2ForCausalLM",
            "gemma2",
            _KEYS
            | _RMS
            | {"attention.sliding_window": "sliding_window"}
            | {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
            _ENDS | _layers(_SANDWICH | _ATTENTION | _GATED),
            _GEMMA,
            as_stored=((r"norm\.weight$", _less_one),),
        ),
        "gemma3": Family(
            "Gemma3ForCausalLM",
            "gemma3_text",
            _KEYS | _RMS | {"attention.sliding_window": "sliding_window"},
            _ENDS | _layers(_SANDWICH | _ATTENTION | _HEAD_NORMS | _GATED),
            _GEMMA,
            as_stored=((r"norm\.weight$", _less_one),),
        ),
        "starcoder2": Family(
            "Starcoder2ForCausalLM",
            "starcoder2",
            _KEYS | {"attention.layer_norm_epsilon": "norm_epsilon"},
            _ENDS | _layers(_PRE_NORMS | _ATTENTION | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
            {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None},
        ),
        "gpt2": Family(
            "GPT2LMHeadModel",
            "gpt2",
            {
                "block_count": "n_layer",
                "context_length": "n_positions",
                "embedding_length": "n_embd",
                "feed_forward_length": "n_inner",
                "attention.head_count": "n_head",
                "attention.layer_norm_epsilon": "layer_norm_epsilon",
            },
            {
                "token_embd": "transformer.wte",
                "position_embd": "transformer.wpe",
                "output_norm": "transformer.ln_f",
                "output": "lm_head",
                **{
                    f"blk.{{}}.{stored}": f"transformer.h.{{}}.{name}"
                    for stored, name in {
                        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
                        "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
                    }.items()
                },
            },
            {"activation_function": "gelu_new"},
            rope=False,
            as_stored=((r"^blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$", _turned),),
        ),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How a file becomes a model: its class, its config, and the tensors of which each of the model's weights is."""

    family: Family
    config: Mapping[str, object]
    sources: Mapping[str, Sequence[str]]


class _Keys:
    """The keys of a file's architecture, each taken once; what is left at the end was not read."""

    def __init__(self, file: GgufFile) -> None:
        self.file, prefix = file, f"{file.architecture}."
        self.left = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}

    def has(self, key: str) -> bool:
        return key in self.left

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.left.pop(key, default)
        if isinstance(value, np.ndarray):  # a number for each layer
            if not len(value) or (value != value[0]).any():
                raise ModelError(
                    f"{self.file.path} says {self._name(key)} for each layer ({few(map(str, value), 4)}): layers that "
                    f"differ are not read."
                )
            value = value[0].item()
        if type(value) is not int or not 0 <= value < 2**40:
            raise self.missing(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.left.pop(key, default)
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise self.missing(key, value)
        # Single precision in the file; the shortest decimal that rounds to it is what was meant (1e-05).
        return float(str(np.float32(value)))

    def missing(self, key: str, value: object) -> ModelError:
        fault = "does not say" if value is None else f"says {value!r} for"
        return ModelError(f"{self.file.path} is damaged: it {fault} {self._name(key)}. Copy or fetch it again.")

    def not_read(self, key: str, value: object) -> ModelError:
        return ModelError(
            f"{self.file.path} says {self._name(key)} = {value!r}, which is not read, and without it this would be "
            f"another model. Convert the original to safetensors instead."
        )

    def _name(self, key: str) -> str:
        return f"{self.file.architecture}.{key}"


def family_of(file: GgufFile) -> Family:
    """The family of a file's architecture. Errors: ModelError for one that is not read."""
    family = FAMILIES.get(file.architecture)
    if family is None:
        raise ModelError(f"{file.path} is of architecture {file.architecture!r}; GGUF is read for {few(FAMILIES, 20)}.")
    return family


def plan_of(file: GgufFile) -> Plan:
    """What `file` is in transformers.

    Errors: ModelError for an architecture that is not read, a key or tensor that is not, or one that is missing.
    """
    family, keys = family_of(file), _Keys(file)
    config: dict[str, object] = {"architectures": [family.model], **family.fixed}
    for key, name in family.keys.items():
        if key.endswith("epsilon"):
            config[name] = keys.number(key)
        elif key.endswith("softcapping"):
            config[name] = keys.number(key) if keys.has(key) else None
        elif key == "attention.sliding_window":
            config[name] = keys.whole(key, 0) or None
        elif key == "attention.head_count_kv":
            config[name] = keys.whole(key, _number(config, family.keys["attention.head_count"]))
        else:
            config[name] = keys.whole(key)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise _lacking(file, ["token_embd.weight"])
    config["vocab_size"] = embedding.shape[0]
    if (vocabulary := keys.whole("vocab_size", embedding.shape[0])) != embedding.shape[0]:
        raise ModelError(
            f"{file.path} is damaged: a vocabulary of {vocabulary:,}, and {embedding.shape[0]:,} embeddings. Copy or "
            f"fetch it again."
        )
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Strings) and len(tokens) > embedding.shape[0]:
        raise ModelError(
            f"{file.path} is damaged: {len(tokens):,} tokens, and {embedding.shape[0]:,} embeddings. Copy or fetch it "
            f"again."
        )
    for name in ("bos", "eos", "padding", "unknown"):
        key = f"tokenizer.ggml.{name}_token_id"
        value = file.metadata.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < embedding.shape[0]):
            raise ModelError(
                f"{file.path} is damaged: it says {value!r} for {key}, and its vocabulary is of "
                f"{embedding.shape[0]:,} tokens. Copy or fetch it again."
            )
        if name != "unknown":
            config[f"{'pad' if name == 'padding' else name}_token_id"] = value
    if family.model == "LlamaForCausalLM":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    num_layers = _number(config, family.keys["block_count"])
    if num_layers > len(file.tensors):
        raise ModelError(
            f"{file.path} is damaged: {num_layers:,} layers, and {len(file.tensors):,} tensors. Copy or fetch it again."
        )
    read_besides = _positions(keys, family, config)
    for key in ("expert_count", "expert_used_count"):
        if keys.has(key) and keys.whole(key):
            raise keys.not_read(key, "some experts")
    if keys.left:
        key, value = next(iter(keys.left.items()))
        raise keys.not_read(key, f"{len(value):,} values" if isinstance(value, Strings | np.ndarray) else value)
    return Plan(family, config, _sources(file, family, config, num_layers, read_besides))


def config_of(file: GgufFile) -> dict[str, object]:
    """The config.json that `file` stands for. Errors: as `plan_of`."""
    plan = plan_of(file)
    return {"model_type": plan.family.model_type, **plan.config}


def _positions(keys: _Keys, family: Family, config: dict[str, object]) -> set[str]:
    """Adds to `config` the width of a head and the rotary embedding; returns the tensors that were read for it."""
    num_heads = _number(config, family.keys["attention.head_count"])
    embed_dim = _number(config, family.keys["embedding_length"])
    if not num_heads:
        raise keys.missing("attention.head_count", 0)
    width = keys.whole("attention.key_length", embed_dim // num_heads)
    if not width:
        raise keys.missing("attention.key_length", width)
    if (value_width := keys.whole("attention.value_length", width)) != width:
        raise keys.not_read("attention.value_length", value_width)
    if not family.rope:
        return set()
    theta, turned = keys.number("rope.freq_base", 10_000.0), keys.whole("rope.dimension_count", width)
    if turned > width:
        raise keys.missing("rope.dimension_count", turned)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": theta}
    besides: set[str] = set()
    scaling = keys.left.pop("rope.scaling.type", "none")
    keys.left.pop("rope.scaling.finetuned", None)  # says how the model was trained, not what it computes
    if scaling in ("linear", "yarn"):
        rope |= {"rope_type": scaling, "factor": keys.number("rope.scaling.factor")}
        if scaling == "yarn":
            rope["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
        keys.left.pop("rope.scaling.original_context_length", None)
    elif scaling != "none":
        raise keys.not_read("rope.scaling.type", scaling)
    if "rope_freqs.weight" in keys.file.tensors:
        rope |= {"rope_type": "llama3", **_llama3(keys.file, theta, width)}
        besides.add("rope_freqs.weight")
    if turned != width and family.model == "Phi3ForCausalLM":
        rope["partial_rotary_factor"] = turned / width
    elif turned != width:
        raise keys.not_read("rope.dimension_count", turned)
    config["head_dim"] = width
    if family.model.startswith("Gemma"):
        config["query_pre_attn_scalar"] = embed_dim // num_heads if _is_27b(config) else width
    if family.model == "Gemma3ForCausalLM":
        own = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10_000.0)}
        rope = {"full_attention": rope, "sliding_attention": own}
    config["rope_parameters"] = rope
    return besides


def _is_27b(config: Mapping[str, object]) -> bool:
    """Whether a Gemma is one of 27 billion, whose queries are scaled otherwise, as llama.cpp tells them."""
    return (config["architectures"] == ["Gemma2ForCausalLM"] and config["num_hidden_layers"] == 46) or (
        config["architectures"] == ["Gemma3ForCausalLM"] and config["num_hidden_layers"] == 62
    )


def _llama3(file: GgufFile, theta: float, width: int) -> dict[str, object]:
    """The settings of Llama 3's scaling whose factors the file holds. Errors: ModelError where they are of none."""
    name = "rope_freqs.weight"
    if (form := file.tensors[name].format.name) != "F32":
        raise ModelError(f"{file.path} is damaged: {name} in {form}, and it is written in F32. Copy or fetch it again.")
    stored = np.frombuffer(file.packed(name), "<f4").astype(np.float64)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    old = _LLAMA3["original_max_position_embeddings"]
    wavelengths = 2 * math.pi * theta ** (np.arange(0, width, 2, dtype=np.float64) / width)
    factor = round(float(stored.max()), 4)
    smooth = np.clip((old / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=_CLOSE, atol=0):
        raise ModelError(
            f"{file.path} holds rope_freqs.weight, factors of rotary frequencies that are not those of Llama 3 and are "
            f"not read: without them this would be another model. Convert the original to safetensors instead."
        )
    return {"factor": factor, **_LLAMA3}


def _sources(
    file: GgufFile, family: Family, config: Mapping[str, object], num_layers: int, besides: set[str]
) -> dict[str, list[str]]:
    """The tensors of each of the model's weights. Errors: ModelError for a tensor that has no place in the model."""
    modules: dict[str, str] = {}
    for stored, name in family.tensors.items():
        layers = range(num_layers) if "{}" in stored else (0,)
        modules |= {stored.format(layer): name.format(layer) for layer in layers}
    sources: dict[str, list[str]] = {}
    for stored in file.tensors:
        stem, _, kind = stored.rpartition(".")
        if stem in modules and kind in ("weight", "bias"):
            is_parameter = ".experts." in modules[stem]
            sources.setdefault(modules[stem] if is_parameter else f"{modules[stem]}.{kind}", []).append(stored)
        elif stored not in besides:
            raise ModelError(
                f"{file.path} holds the tensor {stored!r}, which has no place in a {family.model} of {num_layers} "
                f"layers, and without it this would be another model. Convert the original to safetensors instead."
            )
    return {name: sorted(parts) for name, parts in sources.items()}


def _lacking(file: GgufFile, names: list[str]) -> ModelError:
    return ModelError(f"{file.path} is damaged: it lacks {few(names)}. Copy or fetch it again.")
