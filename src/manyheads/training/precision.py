"""Float32 or bf16: decided by what the processor multiplies natively, and said, so that a run can be repeated.

Weights, optimizer and sums stay float32; under bf16 it is the matrix products that are rounded (autocast). Measured on
a CPU with avx512_bf16, CPU seconds a step against float32's: 0.6 of them in the `code` preset's model (256 wide), 0.75
of a model 128 wide, 1.4 of one 64 wide, where conversions cost more than products gain (docs/lab.md).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

NARROW = 128  # numbers a token: below it bf16 did not pay on the CPU


@dataclass(frozen=True)
class Precision:
    """`name` is float32 or bf16; `because` says why."""

    name: str
    because: str


def choose_precision(width: int, device: torch.device) -> Precision:
    """For a model of this width on this device."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bf16", "this GPU multiplies it natively")
        return Precision("float32", "this GPU lacks bf16")
    if device.type != "cpu":
        return Precision("float32", f"bf16 was not measured on {device.type!r}")
    if width < NARROW:
        return Precision("float32", f"in a model {width} wide, conversions to bf16 cost more than they save")
    if native_bf16():
        return Precision("bf16", "this CPU multiplies it natively; weights and optimizer stay float32")
    return Precision("float32", "this CPU has no native bf16")


def native_bf16() -> bool:
    """Whether the CPU has instructions for products of bf16."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
