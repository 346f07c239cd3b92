"""What half the heads cost: a 12-head decoder of Llama's shape before and after `prune_heads`, in interleaved rounds.

`python -m benchmarks.pruning` times the attention layers (projections, attention and output, all layers) and the whole
model over 2,048 tokens, and counts the bytes that the cache holds after them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import manyheads as mh
from benchmarks import subjects
from benchmarks.rounds import in_turns, medians, ratio

THREADS = 2
ROUNDS = 9
TOKENS = 2_048


def attention_layers(model: Any, x: torch.Tensor) -> Callable[[], None]:
    """One pass through every attention module of the model, each on the same states."""
    places = torch.arange(x.shape[1])[None]
    rotary = model.rotary_emb(x, places)

    def run() -> None:
        with torch.no_grad():
            for layer in model.layers:
                layer.self_attn(x, position_embeddings=rotary, attention_mask=None)

    return run


def whole_model(model: Any, ids: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    return run


def cache_bytes(model: Any, ids: torch.Tensor) -> int:
    """Keys and values that are kept of these tokens."""
    with torch.no_grad():
        layers = model(ids, use_cache=True).past_key_values.layers
    return sum(kept.nbytes for layer in layers for kept in (layer.keys, layer.values))


def timed(before: Callable[[], None], after: Callable[[], None], rounds: int) -> dict[str, Any]:
    """Seconds of both, in turns, and how many times as fast the second is: median, least and most of the rounds."""
    taken = in_turns({"before": before, "after": after}, rounds)
    return {**ratio(taken["before"], taken["after"], "times_as_fast"), "seconds": medians(taken)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    lm = mh.load(subjects.llama(), tokenizer=False)
    small = mh.prune_heads(lm, "L*H0, L*H2, L*H4, L*H6, L*H8, L*H10")
    ids = torch.as_tensor(subjects.ids(TOKENS))[None]
    x = torch.randn(1, TOKENS, lm.spec.embed_dim)
    layers = timed(attention_layers(lm.model, x), attention_layers(small.model, x), asked.rounds)
    print(json.dumps({"what": "attention layers", "tokens": TOKENS, "heads": "6 of 12", **layers}))
    whole = timed(whole_model(lm.model, ids), whole_model(small.model, ids), asked.rounds)
    print(json.dumps({"what": "the whole model", "tokens": TOKENS, **whole}))
    kept = [cache_bytes(model, ids) for model in (lm.model, small.model)]
    sizes = [lm.spec.num_parameters, small.spec.num_parameters]
    print(json.dumps({"what": "cache", "bytes": kept, "ratio": kept[1] / kept[0], "parameters": sizes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
