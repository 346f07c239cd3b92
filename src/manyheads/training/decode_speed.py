"""How large decoders' caches are and how fast they decode: our own layers and caches, measured on this machine.

Models take turns, round by round and in a turning order, so that a busy moment hits all alike; the median of the rounds
counts, and ratios are taken within a round. Every round decodes the same tokens, from the same filled cache.
Cost: one prompt a model, then rounds x steps x models tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.interventions import seconds_in_turns
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
    with torch.no_grad():
        for name, model in models.items():
            caches[name] = [KVCache.static(context) for _ in model.blocks]
            for part in ids[:, : context - steps].split(CHUNK, 1):
                next_logits(model, part, caches[name])
        last = ids[:, context - steps :]
        tasks = {name: partial(_decode, model, last, caches[name]) for name, model in models.items()}
        seconds = seconds_in_turns(tasks, rounds)
    per_token = {name: tuple(taken / steps for taken in times) for name, times in seconds.items()}
    return {name: Decoded(sum(cache.cache_bytes for cache in caches[name]), per_token[name]) for name in models}


def next_logits(model: Decoder, ids: Int[Tensor, "b n"], caches: list[KVCache]) -> Float[Tensor, "b v"]:
    """Logits after these tokens, which follow those that the caches hold: a cache a layer."""
    x = model.embedding(ids)
    for block, cache in zip(model.blocks, caches, strict=True):
        assert isinstance(block, Block)
        x = x + block.attention(block.attention_norm(x), need_weights=False, cache=cache)[0]
        if block.feed_forward is not None and block.feed_forward_norm is not None:
            x = x + block.feed_forward(block.feed_forward_norm(x))
    return F.linear(model.norm(x[:, -1]), model.embedding.weight)


def _decode(model: Decoder, ids: Int[Tensor, "b n"], caches: list[KVCache]) -> Iterator[torch.device]:
    """Decode these tokens one by one, suspended around the timed part; afterwards the caches are as they were."""
    length = caches[0].length
    yield ids.device
    for place in range(ids.shape[1]):
        next_logits(model, ids[:, place : place + 1], caches)
    yield ids.device
    for cache in caches:
        cache.crop(length)
