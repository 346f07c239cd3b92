"""The layer against its peers, in one run: interleaved rounds, medians, two threads. `python -m benchmarks.layer`

Peers, each in its documented fastest mode: bare linear maps around `scaled_dot_product_attention` (the least anybody
can do), `nn.MultiheadAttention` with `need_weights=False`, batch first (its fused C++ path in eval), and for one
decoded token `scaled_dot_product_attention` with `enable_gqa=True`, with keys and values repeated, and a copy of K
(what reading one of the two costs). A busy machine shows in `low` and `high`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyheads as mh
from benchmarks.rounds import Calls, in_turns, ratio
from manyheads.attention.attention import decode_one

THREADS = 2
ROUNDS = 15
SHAPE, HEADS = (8, 512, 512), 8
OURS = "ours"
DECODE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "keys": 32_768}


def report(name: str, calls: Calls, rounds: int) -> dict:
    """Milliseconds, and the ratio of ours to each peer: of their medians, and the median of the ratios of each round.

    The second is what a busy machine disturbs least, since both of a round's calls met the same moment.
    """
    taken = {name: [1000 * each for each in seconds] for name, seconds in in_turns(calls, rounds).items()}
    times = {name: {"median": statistics.median(ms), "low": min(ms), "high": max(ms)} for name, ms in taken.items()}
    peers = [peer for peer in calls if peer != OURS]
    ratios = {peer: times[OURS]["median"] / times[peer]["median"] for peer in peers}
    paired = {peer: ratio(taken[OURS], taken[peer])["ratio"] for peer in peers}
    return {"what": name, "ms": times, "ratio": ratios, "ratio_by_round": paired}


def without_grad(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return call()

    return run


def bare(layer: mh.MultiHeadAttention, x: Tensor) -> Tensor:
    """What the layer computes, written down with nothing around it."""
    qkv = F.linear(x, layer.qkv_proj.weight, layer.qkv_proj.bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv)
    return layer.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def training_and_inference(rounds: int) -> list[dict]:
    x = torch.randn(SHAPE)
    tracked = x.clone().requires_grad_()
    layer = mh.MultiHeadAttention(512, HEADS, batch_first=True)
    torchs = nn.MultiheadAttention(512, HEADS, batch_first=True)
    forward: dict[str, Callable[[Tensor], Tensor]] = {
        OURS: lambda x: layer(x, need_weights=False)[0],
        "linear + sdpa": lambda x: bare(layer, x),
        "nn.MultiheadAttention": lambda x: torchs(x, x, x, need_weights=False)[0],
    }

    def both(call: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: call(tracked).sum().backward()

    line = f"{SHAPE}, {HEADS} heads"
    layer.eval(), torchs.eval()
    calls = {name: partial(call, x) for name, call in forward.items()}
    plain = {name: without_grad(call) for name, call in calls.items()}
    rows = [report(f"{line}, eval, no gradient", plain, rounds)]
    layer.train(), torchs.train()
    rows.append(report(f"{line}, train, forward", calls, rounds))
    trained = {name: both(call) for name, call in forward.items()}
    return [*rows, report(f"{line}, train, forward + backward", trained, rounds)]


def weights_of_one_head(rounds: int) -> dict:
    layer, x = mh.MultiHeadAttention(768, 12, batch_first=True).eval(), torch.randn(8, 512, 768)
    calls = {
        OURS: without_grad(lambda: layer(x, weight_heads=[3])),
        "no weights": without_grad(lambda: layer(x, need_weights=False)),
        "all heads' weights": without_grad(lambda: layer(x, average_attn_weights=False)),
    }
    return report("weights of one head of 12, (8, 512, 768)", calls, rounds)


def one_token(dtype: torch.dtype, rounds: int) -> dict:
    h, g, d, n = DECODE.values()
    q, k, v = torch.randn(1, h, 1, d).to(dtype), torch.randn(1, g, n, d).to(dtype), torch.randn(1, g, n, d).to(dtype)
    room = torch.empty_like(k)

    def repeated() -> Tensor:
        return F.scaled_dot_product_attention(q, k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1))

    calls = {
        OURS: without_grad(lambda: decode_one(q, k, v, d**-0.5, None)),
        "sdpa, enable_gqa": without_grad(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
        "sdpa, k and v repeated": without_grad(repeated),
        "copy of k": without_grad(lambda: room.copy_(k)),
    }
    name = f"one token, {h} query heads on {g} of {d}, {n:,} cached, {str(dtype).removeprefix('torch.')}"
    return report(name, calls, rounds)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=["forward", "weights", "decode"])
    asked = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    rows: list[dict] = []
    if asked.only in (None, "forward"):
        rows += training_and_inference(asked.rounds)
    if asked.only in (None, "weights"):
        rows.append(weights_of_one_head(asked.rounds))
    if asked.only in (None, "decode"):
        rows += [one_token(dtype, asked.rounds) for dtype in (torch.float32, torch.bfloat16)]
    for row in rows:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
