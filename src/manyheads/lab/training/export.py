"""A decoder as a stock Llama checkpoint: `LlamaForCausalLM` alone loads it, and gives the same logits.

The layers here are Llama's under other names, so this is a renaming, and a comparison that proves it. An attention-only
decoder has no counterpart, and is refused. Cost: the weights once more, and one forward pass of either model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manyheads.errors import ModelError
from manyheads.interventions.save import replacing_folder
from manyheads.lab.training.decoder import EPSILON, Decoder
from manyheads.lab.training.presets.code.data import BEGIN_ID, END_ID
from manyheads.models import device_of, quietly
from manyheads.models.loading import Tokenizer
from manyheads.models.weights import MARK

if TYPE_CHECKING:
    from transformers import LlamaConfig

NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.qkv_proj.q.weight": "self_attn.q_proj.weight",
    "attention.qkv_proj.k.weight": "self_attn.k_proj.weight",
    "attention.qkv_proj.v.weight": "self_attn.v_proj.weight",
    "attention.out_proj.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.gate_proj.weight": "mlp.gate_proj.weight",
    "feed_forward.up_proj.weight": "mlp.up_proj.weight",
    "feed_forward.down_proj.weight": "mlp.down_proj.weight",
}
"""A block's parameters -> their names in Llama."""

TOLERANCE = 1e-4  # of logits in float32: the same sums, added in another order
TRIED_TOKENS = 48
READABLE = 0o644


def to_llama(model: Decoder) -> Any:
    """`LlamaForCausalLM` with the model's weights, float32, in eval mode.

    Errors: ModelError for a decoder that is no Llama (attention alone, norms of q and k, attention but softmax), or
    where logits are not the same.
    """
    from transformers import LlamaForCausalLM

    with quietly():
        llama = LlamaForCausalLM(llama_config(model)).eval()
    # Not strict: the tied output layer has no weights of its own, and is tied in the next line.
    llama.load_state_dict(llama_weights(model), strict=False)
    llama.tie_weights()
    # Tried at every export: a name that was mapped wrongly loads without an error, and computes something else.
    ids = torch.randint(model.config.vocab_size, (2, TRIED_TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, stock = model(ids.to(device_of(model))).logits.cpu(), llama(ids).logits
    error = float((logits - stock).abs().max())
    if not error <= TOLERANCE:
        raise ModelError(f"the exported model's logits differ by {error:.1e}: it was not written. Please report that.")
    return llama


def save_llama(model: Decoder, tokenizer: Tokenizer, folder: str | os.PathLike[str], dtype: torch.dtype) -> Path:
    """Write the model with its tokenizer, whole or not at all; a folder of an earlier save is replaced.

    Weights are stored in `dtype`: half precision halves the file. The config says float32, in which they are loaded
    unless somebody chooses otherwise, since half precision would blur what is computed. Errors: as `to_llama`;
    FileAccessError.
    """
    target = Path(folder)
    with replacing_folder(target, "", model) as place, quietly():
        to_llama(model).to(dtype).save_pretrained(place)
        tokenizer.save_pretrained(place)
        config = json.loads((place / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
        (place / "config.json").write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
        (place / "model.safetensors").chmod(READABLE)  # safetensors lets its owner alone read it
        (place / MARK).write_text('{"format": "manyheads trained model", "version": 1}\n', encoding="utf-8")
    return target


def llama_config(model: Decoder) -> LlamaConfig:
    """Errors: ModelError for an attention-only decoder, one that norms q and k, and for attention but softmax."""
    from transformers import LlamaConfig

    config = model.config
    if config.intermediate_size is None:
        raise ModelError("an attention-only decoder is no Llama: export one with a feed-forward.")
    if config.qk_norm:
        raise ModelError("a decoder with norms of q and k is no Llama: export one without qk_norm.")
    if config.attention != "softmax":
        raise ModelError(f"a decoder with {config.attention} attention is no Llama: export one with softmax.")
    unlike_llama = ("is_decoder", "rope_theta", "qk_norm", "attention")
    sizes = {key: value for key, value in config.to_dict().items() if key not in unlike_llama}
    return LlamaConfig(
        **sizes,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        attention_bias=False,
        mlp_bias=False,
    )


def llama_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights under Llama's names. KeyError, our fault, for a parameter that has no name there."""
    renamed = {}
    for name, tensor in model.state_dict().items():
        if name == "embedding.weight":
            renamed["model.embed_tokens.weight"] = tensor.cpu()
        elif name == "norm.weight":
            renamed["model.norm.weight"] = tensor.cpu()
        else:
            _, layer, part = name.split(".", 2)
            renamed[f"model.layers.{layer}.{NAMES[part]}"] = tensor.cpu()
    return renamed
