"""How GGUF packs numbers: `FORMATS`, by the number that a file has for it, and how each is unpacked.

A tensor is a row of blocks. A block of a quantised kind holds 32 or 256 numbers as small integers q, with a scale d in
half precision, some with a smallest value m too: the numbers are d q or d q + m. Kinds whose names end in K have a
scale for each group of 16 or 32 of their 256 numbers; the kinds IQ name points of a table.

Each unpacking computes in float32 and rounds where llama.cpp's own does, so that both agree to the bit. Seven kinds are
left to transformers (5.20 and later), which has their tables.

Source: ggml/src/ggml-quants.c of llama.cpp (dequantize_row_*).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads import private_names

__all__ = ["FORMATS", "NOT_READ", "PLAIN", "Format"]

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4_NL and IQ4_XS


class Format(NamedTuple):
    """How numbers are packed: so many in a block of so many bytes. `unpack`: flat bytes to flat numbers."""

    name: str
    numbers: int
    num_bytes: int
    unpack: Callable[[Tensor], Tensor]


def _half(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _fields(packed: Tensor, bits: int, width: int) -> Tensor:
    """The fields of so many bits in each byte, as `[block, number]`: those of `width` bytes' lowest bits first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    groups = packed.reshape(packed.shape[0], -1, 1, width)
    return ((groups >> shifts[:, None]) & (2**bits - 1)).flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_fields(blocks[:, 2:], 4, 16).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    # In place: no further copies of what are nearly all of a model's numbers.
    return _fields(blocks[:, 4:], 4, 16).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """16 for each of the 32 numbers whose fifth bit is set, bit i of four bytes for number i."""
    return _fields(blocks[:, start : start + 4], 1, 1) << 4


def _q5_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * ((_fields(blocks[:, 6:], 4, 16) | _fifth_bits(blocks, 2)).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_fields(blocks[:, 8:], 4, 16) | _fifth_bits(blocks, 4)).float() + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _grouped(scales: Tensor, numbers: Tensor, least: Tensor | None = None) -> Tensor:
    """`scales * numbers - least`, with a scale and a smallest value for each group of numbers."""
    groups = numbers.reshape(*scales.shape, -1).float() * scales[..., None]
    return (groups if least is None else groups - least[..., None]).flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    scales = blocks[:, :16]
    numbers = _fields(blocks[:, 16:80], 2, 32)
    return _grouped(_half(blocks, 80) * (scales & 15).float(), numbers, _half(blocks, 82) * (scales >> 4).float())


def _q3_k(blocks: Tensor) -> Tensor:
    high, packed = blocks[:, :32], blocks[:, 96:108]
    scales = (_fields(packed[:, :8], 4, 8) | _fields(packed[:, 8:], 2, 4) << 4).float() - 32
    numbers = _fields(blocks[:, 32:96], 2, 32).float() - 4 * (1 - _fields(high, 1, 32).float())
    return _grouped(_half(blocks, 108) * scales, numbers)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight smallest values of six bits each, in twelve bytes."""
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([low & 63, rest & 15 | low >> 6 << 4], 1)
    return scales.float(), torch.cat([high & 63, rest >> 4 | high >> 6 << 4], 1).float()


def _q4_k(blocks: Tensor) -> Tensor:
    scales, least = _six_bits(blocks[:, 4:16])
    return _grouped(_half(blocks, 0) * scales, _fields(blocks[:, 16:], 4, 32), _half(blocks, 2) * least)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, least = _six_bits(blocks[:, 4:16])
    numbers = _fields(blocks[:, 48:], 4, 32) | _fields(blocks[:, 16:48], 1, 32) << 4
    return _grouped(_half(blocks, 0) * scales, numbers, _half(blocks, 2) * least)


def _q6_k(blocks: Tensor) -> Tensor:
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    numbers = (_fields(blocks[:, :128], 4, 64) | _fields(blocks[:, 128:192], 2, 32) << 4).float() - 32
    return _grouped(_half(blocks, 208) * scales, numbers)


def _levels(packed: Tensor, width: int) -> Tensor:
    levels = torch.tensor(_LEVELS, dtype=torch.float32, device=packed.device)
    return levels[_fields(packed, 4, width).int()]


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _levels(blocks[:, 2:], 16)


def _iq4_xs(blocks: Tensor) -> Tensor:
    high = _fields(blocks[:, 2:4], 2, 1) << 4
    scales = (_fields(blocks[:, 4:8], 4, 1) | high).float() - 32
    return _grouped(_half(blocks, 0) * scales, _levels(blocks[:, 8:], 16))


def _in_blocks(unpack: Callable[[Tensor], Tensor], num_bytes: int, packed: Tensor) -> Tensor:
    return unpack(packed.reshape(-1, num_bytes)).flatten()


def _plain(dtype: torch.dtype, packed: Tensor) -> Tensor:
    return packed.view(dtype)


def _by_transformers(kind: int, packed: Tensor) -> Tensor:
    return private_names.dequantize(packed, kind)


_OURS: Mapping[int, tuple[str, int, int, Callable[[Tensor], Tensor]]] = {
    2: ("Q4_0", 32, 18, _q4_0),
    3: ("Q4_1", 32, 20, _q4_1),
    6: ("Q5_0", 32, 22, _q5_0),
    7: ("Q5_1", 32, 24, _q5_1),
    8: ("Q8_0", 32, 34, _q8_0),
    10: ("Q2_K", 256, 84, _q2_k),
    11: ("Q3_K", 256, 110, _q3_k),
    12: ("Q4_K", 256, 144, _q4_k),
    13: ("Q5_K", 256, 176, _q5_k),
    14: ("Q6_K", 256, 210, _q6_k),
    20: ("IQ4_NL", 32, 18, _iq4_nl),
    23: ("IQ4_XS", 256, 136, _iq4_xs),
}
_TABLED = {16: ("IQ2_XXS", 66), 17: ("IQ2_XS", 74), 18: ("IQ3_XXS", 98), 19: ("IQ1_S", 50), 21: ("IQ3_S", 110)}
_TABLED |= {22: ("IQ2_S", 82), 29: ("IQ1_M", 56)}

FORMATS: Mapping[int, Format] = MappingProxyType(
    {
        0: Format("F32", 1, 4, partial(_plain, torch.float32)),
        1: Format("F16", 1, 2, partial(_plain, torch.float16)),
        30: Format("BF16", 1, 2, partial(_plain, torch.bfloat16)),
    }
    | {
        kind: Format(name, n, size, partial(_in_blocks, unpack, size))
        for kind, (name, n, size, unpack) in _OURS.items()
    }
    | {kind: Format(name, 256, size, partial(_by_transformers, kind)) for kind, (name, size) in _TABLED.items()}
)
PLAIN = {"F32", "F16", "BF16"}  # of these, the numbers themselves are stored
# What a file may hold and nothing here unpacks, by name, for the message.
NOT_READ: Mapping[int, str] = MappingProxyType(
    {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
    | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
)
