"""A layer whose heads two processes share gives what it gives in one: outputs, weights, gradients, steps, decoding.

Two gloo processes on the CPU, in float64: what differs is the order of a sum, so 1e-10 of numbers near 1 is much.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import manyheads as mh
from manyheads.errors import ShapeError
from manyheads.nn import HeadParallel, KVCache, MultiHeadAttention, RelativeBias, Rope, dump_state, load_state
from manyheads.nn.state_dicts import plain_state
from manyheads.recording.recording import gathered
from tests.nn.layer_oracle import stirred
from tests.refusals import refuses

B, Q, K, M, H, D = 2, 7, 5, 24, 6, 8
SAME = {"rtol": 0, "atol": 1e-10}
LAYERS: dict[str, dict[str, Any]] = {
    "fused": {},
    "split, groups, rope": {"num_kv_heads": 2, "projections": "split", "causal": True, "rope": Rope(max_positions=40)},
    "one key/value head": {"num_kv_heads": 1, "head_dim": D, "bias": False, "causal": True},
    "one, with biases and a learned key": {"num_kv_heads": 1, "add_bias_kv": True, "add_zero_attn": True},
    "learned by head": {"num_kv_heads": 2, "sinks": True, "head_scale": True, "add_bias_kv": True, "v_head_dim": 5},
    "norms": {"qk_norm": True, "num_kv_heads": 2, "softcap": 3.0, "window": 4, "causal": True},
    "distances": {"alibi": True, "relative_bias": RelativeBias(8, 6), "causal": True},
    "scales": {"scale": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "attend": mh.attend},
    "injected": {"projections": {name: nn.Linear(M, M, bias=name != "k") for name in ("q", "k", "v", "out")}},
    "another text": {"kdim": 10, "vdim": 14},
}


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_same(got: dict[str, Any], want: dict[str, Any], name: str) -> None:
    assert got.keys() == want.keys()
    for part, tensor in want.items():
        torch.testing.assert_close(
            whole(got[part]).detach(), tensor.detach(), **SAME, msg=lambda text, part=part: f"{name}, {part}: {text}"
        )


def differentiated(layer: MultiHeadAttention, inputs: list[torch.Tensor], **call: Any) -> dict[str, torch.Tensor]:
    """Out, all heads' weights, and the gradients of the inputs; those of the parameters are left in them."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out, weights = layer(*inputs, average_attn_weights=False, **call)
    assert weights is not None
    layer.zero_grad()
    (out.sin().sum() + weights.square().sum()).backward()
    return {"out": out, "weights": weights} | {f"input {index}": cast(Any, x.grad) for index, x in enumerate(inputs)}


def decoded(layer: MultiHeadAttention, inputs: list[torch.Tensor], cache: KVCache) -> torch.Tensor:
    with torch.no_grad():
        if len(inputs) > 1:  # another text, once; then it is in the cache
            return torch.cat([layer(*inputs, cache=cache)[0], layer(inputs[0], cache=cache)[0]], 1)
        parts = inputs[0].split([4, 1, 2], 1)
        return torch.cat([layer(part, need_weights=False, cache=cache)[0] for part in parts], 1)


def divided(rank: int, meet: Path, seed: int) -> None:
    """What each of two processes does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name, options in LAYERS.items():
        fresh = torch.Generator().manual_seed(seed)
        alone = stirred(MultiHeadAttention(M, H, batch_first=True, **options).double(), fresh)
        shared = copy.deepcopy(alone)
        owner = nn.ModuleDict({"block": nn.ModuleDict({"attention": shared})})
        parallelize_module(owner, mesh, {"*.attention": HeadParallel()})
        rows = cast(Any, shared.qkv_proj).q.weight.to_local().shape[0]
        assert rows == H // 2 * alone.head_dim, "a process keeps the rows of its own heads"
        widths = (M, 10, 14) if "kdim" in options else (M,)
        inputs = [torch.randn(B, K if n else Q, width, generator=fresh).double() for n, width in enumerate(widths)]
        by_head = torch.randn(B, H, Q, inputs[-1].shape[1], generator=fresh).double()
        optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.01, eps=0.01) for layer in (alone, shared)]
        for call in ({}, {"attn_mask": by_head}, {"attn_mask": by_head > 1.2}):
            assert_same(differentiated(shared, inputs, **call), differentiated(alone, inputs, **call), name)
            for optimizer in optimizers:  # the next outputs are of the weights that the gradients made
                optimizer.step()
            assert_same(plain_state(shared), plain_state(alone), name)
        assert_same({"mean": shared(*inputs)[1]}, {"mean": alone(*inputs)[1]}, name)
        for dtype in (None, torch.int8):
            kind = KVCache.cross if len(widths) > 1 else KVCache
            caches = [kind(dtype=dtype) for _ in range(2)]
            got, want = (decoded(layer, inputs, cache) for layer, cache in zip((shared, alone), caches, strict=True))
            assert_same({"decoded": got}, {"decoded": want}, name)
            assert caches[0].cache_bytes == caches[1].cache_bytes // (1 if alone.num_kv_heads == 1 else 2)
        recording = gathered(mh.record_call(shared.eval(), *inputs, need_weights=False))
        if recording is not None:
            maps = mh.record_call(alone.eval(), *inputs, need_weights=False).layers[0].weights(text=1)
            torch.testing.assert_close(recording.layers[0].weights(text=1), maps, rtol=0, atol=1e-5)
        if name == "split, groups, rope":
            refused_when_divided(shared, inputs[0], mesh)
            back = dump_state(shared, "llama")
            load_state(alone, back, "llama")
            assert_same(back, dump_state(alone, "llama"), name)
    dist.destroy_process_group()


def refused_when_divided(layer: MultiHeadAttention, x: torch.Tensor, mesh: Any) -> None:
    with pytest.raises(ShapeError, match="weight_heads on a layer whose heads are divided among processes, each with"):
        layer(x, weight_heads=[1])
    message = "heads are divided among processes: load its state before parallelize_module."
    refuses(ShapeError, message, load_state, layer, {}, "llama")
    message = "this layer's heads are divided among processes already: parallelize it once."
    refuses(ShapeError, message, parallelize_module, layer, mesh, HeadParallel())


@pytest.mark.slow  # 20 seconds
def test_two_processes_give_what_one_gives(fresh, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # spawned processes import this file by its name
    mp.spawn(divided, (tmp_path / "meet", int(fresh.initial_seed() % 2**31)), nprocs=2)


@pytest.mark.parametrize(
    ("heads", "groups", "world", "fitting"), [(6, 2, 4, "[1, 2]"), (6, 3, 2, "[1, 3]"), (6, 1, 4, "[1, 2, 3, 6]")]
)
def test_heads_that_processes_cannot_share_are_refused(heads, groups, world, fitting):
    mesh = Mock(DeviceMesh, ndim=1, size=lambda: world)
    words = (
        f"{heads} heads on {groups} key/value heads cannot be divided among {world} processes: use {fitting} of them."
    )
    with pytest.raises(ShapeError, match=re.escape(words)):
        parallelize_module(MultiHeadAttention(M, heads, groups), mesh, HeadParallel())


def test_what_is_no_layer_mesh_or_matrix_is_refused():
    mesh = Mock(DeviceMesh, ndim=1, size=lambda: 2)
    with pytest.raises(ShapeError, match="HeadParallel is for an mh.MultiHeadAttention, and this is a Linear."):
        parallelize_module(nn.Linear(2, 2), mesh, HeadParallel())
    with pytest.raises(ShapeError, match="HeadParallel divides over one dimension, and this mesh has 2: slice it."):
        parallelize_module(MultiHeadAttention(M, H), Mock(DeviceMesh, ndim=2, size=lambda: 4), HeadParallel())
    maps = {name: nn.Linear(M, M) for name in ("q", "k", "out")} | {"v": nn.Sequential(nn.Linear(M, M))}
    message = "the v projection is a Sequential, whose rows by head are not known: only nn.Li"
    refuses(ShapeError, message, parallelize_module, MultiHeadAttention(M, H, projections=maps), mesh, HeadParallel())
