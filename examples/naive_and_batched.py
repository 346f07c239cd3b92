"""One matrix a head in a loop, or one wide matrix: the same numbers, timed. `python examples/naive_and_batched.py`

Four ways, from the textbook's formula to the library's layer. The first two are `manyheads.reference`, NumPy in
float64; then a loop over heads in torch, and the layer, whose heads are one product and one fused attention call.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torch import Tensor

import manyheads as mh
from manyheads import reference
from manyheads.reference import initialise, to_batched, to_fused


def loop(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """The formula, head by head: `softmax(x W_i^Q (x W_i^K)^T / sqrt(d)) x W_i^V`, side by side, times W^O."""
    heads = []
    for q, k, v in zip(x @ w_q[:, None], x @ w_k[:, None], x @ w_v[:, None], strict=True):
        heads.append((q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v)
    return torch.cat(heads, -1) @ w_o


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"batch": 4, "length": 128, "embed-dim": 256, "heads": 8, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    naive = initialise(rng, asked.embed_dim, asked.heads)
    batched, fused = to_batched(naive), to_fused(naive)
    x = rng.normal(size=(asked.batch, asked.length, asked.embed_dim))
    layer = mh.MultiHeadAttention(asked.embed_dim, asked.heads, batch_first=True, bias=False).double()
    with torch.no_grad():
        layer.qkv_proj.weight.copy_(torch.from_numpy(fused.w_qkv.T))
        layer.out_proj.weight.copy_(torch.from_numpy(naive.w_o.T))
    tensors = [torch.from_numpy(each) for each in (x, naive.w_q, naive.w_k, naive.w_v, naive.w_o)]
    ways = {
        "NumPy, one matrix a head": lambda: reference.naive(x, naive).out,
        "NumPy, one wide matrix": lambda: reference.batched(x, batched).out,
        "torch, a loop over heads": lambda: loop(*tensors).numpy(),
        "MultiHeadAttention": lambda: layer(tensors[0], need_weights=False)[0].numpy(),
    }
    results: dict[str, np.ndarray] = {}
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for _ in range(asked.rounds):
            for name, way in ways.items():
                begin = time.perf_counter()
                results[name] = way()
                times[name].append(1000 * (time.perf_counter() - begin))
    first, *others = results.values()
    worst = max(float(np.abs(each - first).max()) for each in others)
    medians = {name: statistics.median(ms) for name, ms in times.items()}
    for name, ms in medians.items():
        print(f"{name:26} {ms:8.2f} ms   {medians['NumPy, one matrix a head'] / ms:5.1f}x")
    print(f"largest difference {worst:.1e}")
    assert worst < 1e-9
    return medians


if __name__ == "__main__":
    main()
