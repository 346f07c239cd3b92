"""How large decoders' caches are and how fast they decode: our own layers and caches, measured on this machine.

Models take turns, round by round and in a turning order, so that a busy moment hits all alike; the median of the rounds
counts, and ratios are taken within a round. Every round decodes the same tokens, from the same filled cache.
Cost: one prompt a model, then rounds x steps x models tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.models import device_of
from manyheads.nn import KVCache
from manyheads.training.decoder import Block, Decoder

CHUNK = 256  # tokens of a prompt that are read at once


@dataclass(frozen=True)
class Decoded:
    """One model's cache when full, and the seconds of one decoded token (of all texts together), round by round."""

    cache_bytes: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def decode_all(
    models: Mapping[str, Decoder], context: int, texts: int, steps: int = 8, rounds: int = 15
) -> dict[str, Decoded]:
    """Each model's cache of `context` tokens of so many texts, and how fast its last `steps` tokens are decoded."""
    device = device_of(next(iter(models.values())))
    vocab = min(model.config.vocab_size for model in models.values())
    ids = torch.randint(vocab, (texts, context), generator=torch.Generator().manual_seed(0)).to(device)
    caches: dict[str, list[KVCache]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with torch.no_grad():
        for name, model in models.items():
            caches[name] = [KVCache.static(context) for _ in model.blocks]
            for part in ids[:, : context - steps].split(CHUNK, 1):
                next_logits(model, part, caches[name])
        names = list(models)
        for at in range(rounds + 1):
            turn = at % len(names)
            for name in names[turn:] + names[:turn]:
                taken = _seconds(models[name], ids[:, context - steps :], caches[name])
                if at:  # the first round warmed up
                    seconds[name].append(taken)
    return {name: Decoded(sum(cache.cache_bytes for cache in caches[name]), tuple(seconds[name])) for name in models}


def next_logits(model: Decoder, ids: Int[Tensor, "b n"], caches: list[KVCache]) -> Float[Tensor, "b v"]:
    """Logits after these tokens, which follow those that the caches hold: a cache a layer."""
    x = model.embedding(ids)
    for block, cache in zip(model.blocks, caches, strict=True):
        assert isinstance(block, Block)
        x = x + block.attention(block.attention_norm(x), need_weights=False, cache=cache)[0]
        if block.feed_forward is not None and block.feed_forward_norm is not None:
            x = x + block.feed_forward(block.feed_forward_norm(x))
    return F.linear(model.norm(x[:, -1]), model.embedding.weight)


def _seconds(model: Decoder, ids: Int[Tensor, "b n"], caches: list[KVCache]) -> float:
    """Of one token; the caches are as they were afterwards."""
    before = caches[0].length
    begun = time.perf_counter()
    for at in range(ids.shape[1]):
        next_logits(model, ids[:, at : at + 1], caches)
    if ids.device.type != "cpu":
        torch.accelerator.synchronize(ids.device)
    taken = time.perf_counter() - begun
    for cache in caches:
        cache.crop(before)
    return taken / ids.shape[1]
