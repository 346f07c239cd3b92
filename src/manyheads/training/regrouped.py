"""A trained decoder with fewer key/value heads, and what teaches it: `convert_to_gqa`, then distillation.

The decoder becomes a stock Llama, is converted as any model is, and becomes a decoder again: a renaming both ways.
Conversion puts heads that are alike side by side, so the student's heads stand in another order than the teacher's.
Source: Ainslie et al. 2023 (conversion); Hinton et al. 2015 (learning a teacher's whole distribution).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.interventions.convert.convert import convert_to_gqa
from manyheads.models.loading.load import load
from manyheads.models.loading.offloaded import device_of
from manyheads.training.decoder import Decoder
from manyheads.training.export import NAMES, to_llama

THEIRS = {theirs: ours for ours, theirs in NAMES.items()}


def with_fewer_kv_heads(teacher: Decoder, num_kv_heads: int) -> Decoder:
    """A copy whose keys and values are means of the teacher's, before any training. The teacher must be in eval mode.

    Errors: ShapeError where the number does not divide the teacher's; ModelError for an attention-only decoder.
    """
    converted = convert_to_gqa(load(to_llama(teacher), tokenizer=False), num_kv_heads)
    student = Decoder(replace(teacher.config, num_key_value_heads=num_kv_heads))
    student.load_state_dict(decoder_weights(converted.model))
    return student.to(device_of(teacher))


def decoder_weights(llama: nn.Module) -> dict[str, Tensor]:
    """A stock Llama's weights under the decoder's names: `llama_weights` backwards."""
    renamed = {}
    for name, tensor in llama.state_dict().items():
        if name == "model.embed_tokens.weight":
            renamed["embedding.weight"] = tensor
        elif name == "model.norm.weight":
            renamed["norm.weight"] = tensor
        elif name != "lm_head.weight":  # tied: the embedding once more
            _, _, layer, rest = name.split(".", 3)
            renamed[f"blocks.{layer}.{THEIRS[rest]}"] = tensor
    return renamed


def divergence(student: nn.Module, teacher: nn.Module, ids: Int[Tensor, "b n"]) -> Float[Tensor, ""]:
    """KL of the teacher's next-token distribution from the student's, the mean over all tokens but the last, nats."""
    with torch.no_grad():
        wanted = teacher(ids[:, :-1]).logits.float().log_softmax(-1)
    got = student(ids[:, :-1]).logits.float().log_softmax(-1)
    return F.kl_div(got, wanted, log_target=True, reduction="none").sum(-1).mean()
