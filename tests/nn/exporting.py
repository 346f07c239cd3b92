"""The layer exported for any number of texts and tokens, traced, and compiled for lengths; run by test_conformance.

A program of its own: the tests' type checks are not part of a graph. What each program gives is held to the layer
itself at sizes that it was not made at.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch.export import Dim, export

import manyheads as mh
from manyheads.nn import RelativeBias, Rope

WIDTH, HEADS, LONGEST = 48, 6, 64
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {}, "rope and groups": {"num_kv_heads": 2, "causal": True, "rope": Rope(max_positions=LONGEST)},
    "window": {"window": 7}, "causal and window": {"causal": True, "window": 7},
    "alibi": {"alibi": True, "causal": True}, "relative bias": {"relative_bias": RelativeBias(8, 20)},
    "softcap": {"softcap": 20.0, "causal": True}, "sinks and window": {"sinks": True, "causal": True, "window": 7},
    "norms": {"qk_norm": True}, "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True, "causal": True},
}  # fmt: skip


class Reads(torch.nn.Module):
    """Tensors in, tensors out: what a program can have."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = mh.MultiHeadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        return self.layer(x, key_padding_mask=padding, need_weights=False)[0]


def sizes() -> dict[int, Any]:
    return {0: Dim("texts"), 1: Dim("tokens", min=2, max=LONGEST)}


def exported(strict: bool) -> None:
    for name, options in OPTIONS.items():
        module = Reads(**options).eval()
        program = export(module, (torch.randn(3, 10, WIDTH),), dynamic_shapes={"x": sizes()}, strict=strict).module()
        for texts, tokens in ((3, 10), (2, LONGEST), (5, 33), (1, 2)):
            assert_same(program, module, torch.randn(texts, tokens, WIDTH), told=name)


def padded() -> None:
    module = Reads(causal=True, window=7).eval()
    given = torch.randn(3, 10, WIDTH), torch.zeros(3, 10, dtype=torch.bool)
    program = export(module, given, dynamic_shapes={"x": sizes(), "padding": sizes()}).module()
    x, padding = torch.randn(4, 21, WIDTH), torch.rand(4, 21) < 0.3
    assert_same(program, module, x, padding, told="padding")
    assert (module(x, padding) - module(x)).abs().max() > 1e-3


def traced() -> None:
    warnings.simplefilter("ignore")  # that it is the older way, and of Python's own tests of sizes
    for groups in (HEADS, 2):
        module = Reads(num_kv_heads=groups, causal=True).eval()
        program = torch.jit.trace(module, torch.randn(2, 9, WIDTH))
        assert_same(program, module, torch.randn(3, 30, WIDTH), told=f"traced, {groups} groups")


def compiled() -> None:
    """torch makes the length a variable at the second one."""
    module = Reads(causal=True, window=7).eval()
    program = torch.compile(module, fullgraph=True, backend="eager")
    for tokens in (10, 33, 5, 20):
        assert_same(program, module, torch.randn(2, tokens, WIDTH), told=f"compiled, {tokens} tokens")


def assert_same(program: Any, module: Any, *given: torch.Tensor, told: str) -> None:
    torch.testing.assert_close(
        program(*given), module(*given), atol=1e-6, rtol=1e-6, msg=lambda said: f"{told}: {said}"
    )


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[2]))
    {
        "exported": lambda: exported(strict=False), "strictly": lambda: exported(strict=True), "padded": padded,
        "traced": traced, "compiled": compiled,
    }[sys.argv[1]]()  # fmt: skip
    print("held")
