"""One token behind a long text, with half of the key/value heads streaming: `python -m benchmarks.streaming`

One layer of a Llama with random weights: 32 query heads on 8 key/value heads of 128, float32, two threads. Its residual
stream and MLP are narrow, so that attention and its cache are nearly all of a step. The caches are filled with random
keys and values (no text is read), and read tokens one by one through the whole model, in turns:

- `half`: a streaming cache, 4 of 8 heads keep all, the others 128 + 256 positions;
- `full`: the same code, all heads kept: against it, what streaming itself saves;
- `stock`: transformers' DynamicCache, which copies all keys and values at each step (`torch.cat`), and attends by the
  same function.

Each round of wall time has one step of each, on two threads; then again on one thread, in seconds of the processor,
which other processes' load moves less. `floor` is the share of the cache's bytes that a step of `half` reads. `growing`
is the first step, in which a cache takes room for 256 positions more, and copies what is kept; one step in 256 does.
`held` are bytes of the storages.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import manyheads as mh
from benchmarks.rounds import in_turns, medians, ratio
from manyheads.long_context.split_layer import split_layers
from manyheads.long_context.streaming_cache import Call, StreamingLayer

THREADS = 2
ROUNDS = 11
CONTEXT = 32_768
PIECE = 4_096
NARROW = 128
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SINK, RECENT = 128, 256
NO_ENDS: Any = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def model_of(context: int) -> Any:
    config = LlamaConfig(
        hidden_size=NARROW,
        intermediate_size=NARROW,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=NARROW,
        max_position_embeddings=2 * context,
        **NO_ENDS,
    )
    return mh.load(LlamaForCausalLM(config).eval(), tokenizer=False)


def split_of(lm: Any, kept: int) -> mh.HeadSplit:
    """A split by hand: the first `kept` key/value heads of each layer keep everything."""
    flags = {site.layer: [index < kept for index in range(KV_HEADS)] for site in lm.spec.layers}
    return mh.HeadSplit(lm.name, "", "", split_layers(lm, "", flags, {}, {}), SINK, RECENT, "hand", "none", "none")


def fill(model: Any, cache: Any, context: int) -> None:
    """Random keys and values of `context` positions, as if a text had been read."""

    def nothing(_: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, None]:
        return torch.zeros(1, query.shape[2], query.shape[1], HEAD_DIM), None

    (layer,) = cache.layers
    for begin in range(0, context, PIECE):
        keys, values = (torch.randn(1, KV_HEADS, min(PIECE, context - begin), HEAD_DIM) for _ in range(2))
        if isinstance(layer, StreamingLayer):
            queries = torch.zeros(1, HEADS, keys.shape[2], HEAD_DIM)
            layer.attend(Call(nothing, "sdpa", model.model.layers[0].self_attn, None, {}), queries, keys, values)
        else:
            layer.update(keys, values)


@torch.no_grad()
def one_token(context: int, rounds: int) -> dict[str, Any]:
    held: dict[str, int] = {}
    growing: dict[str, float] = {}
    steps: dict[str, Callable[[], object]] = {}
    with ExitStack() as stack:
        for name, kept in (("half", KV_HEADS // 2), ("full", KV_HEADS), ("stock", None)):
            lm = model_of(context)
            model: Any = lm.model
            if kept is None:
                cache: Any = DynamicCache(config=model.config)
            else:
                split = split_of(lm, kept)
                cache = stack.enter_context(mh.streaming(lm, split)).cache()
            fill(model, cache, context)
            if kept is not None:
                held[name] = cache.held_bytes
                assert cache.held_bytes == split.cache_bytes(context, 1, 4.0)
            steps[name] = partial(model, torch.tensor([[5]]), past_key_values=cache, use_cache=True)
            begin = time.perf_counter()
            steps[name]()
            growing[name] = time.perf_counter() - begin
        taken = in_turns(steps, rounds)
        torch.set_num_threads(1)
        processor = in_turns(steps, rounds, time.process_time)
    seconds = medians(taken)
    line = f"one token, {HEADS} query heads on {KV_HEADS} of {HEAD_DIM}, {context:,} cached, float32"
    return {
        "what": line,
        "ms": {name: {"median": 1000 * seconds[name], "low": 1000 * min(each), "high": 1000 * max(each)}
               for name, each in taken.items()},
        "floor": held["half"] / held["full"],
        "held": held,
        "over_full": ratio(taken["half"], taken["full"]),
        "over_stock": ratio(taken["half"], taken["stock"]),
        "full_over_stock": ratio(taken["full"], taken["stock"]),
        "processor_over_full": ratio(processor["half"], processor["full"]),
        "processor_over_stock": ratio(processor["half"], processor["stock"]),
        "processor_ms": {name: 1000 * each for name, each in medians(processor).items()},
        "growing_ms": {name: 1000 * growing[name] for name in held},
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    requested = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    print(json.dumps(one_token(requested.context, requested.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
