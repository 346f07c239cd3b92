"""How the numbers of a GGUF file are unpacked: `unpacked`, and `UNPACK` for each kind.

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

import torch
from torch import Tensor

from manyheads import private_names
from manyheads.models.loading.gguf.file import FORMATS, Format, GgufFile

__all__ = ["UNPACK", "unpacked"]

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4_NL and IQ4_XS


def unpacked(file: GgufFile, name: str) -> Tensor:
    """The numbers of one tensor, on the CPU: float32, float16 or bfloat16 where they are stored so."""
    stored = file.tensors[name]
    packed = torch.frombuffer(file.packed(name), dtype=torch.uint8)
    # A copy, which is aligned whatever the file's alignment is, and which the model may keep.
    return UNPACK[stored.format](packed.clone()).reshape(stored.shape)


def _half(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _fields(packed: Tensor, bits: int, width: int) -> Tensor:
    """The fields of so many bits in each byte, as `[block, number]`: those of `width` bytes' lowest bits first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    groups = packed.reshape(packed.shape[0], -1, 1, width)
    return ((groups >> shifts[:, None]) & (2**bits - 1)).flatten(1)


def _scaled(numbers: Tensor, scale: Tensor, least: Tensor | None = None) -> Tensor:
    """`scale * numbers + least`, written over the numbers once they are floats: memory is what unpacking waits for."""
    product = numbers.float().mul_(scale)
    return product if least is None else product.add_(least)


def _q4_0(blocks: Tensor) -> Tensor:
    return _scaled(_fields(blocks[:, 2:], 4, 16).float().sub_(8), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _scaled(_fields(blocks[:, 4:], 4, 16), _half(blocks, 0), _half(blocks, 2))


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """16 for each of the 32 numbers whose fifth bit is set, bit i of four bytes for number i."""
    return _fields(blocks[:, start : start + 4], 1, 1) << 4


def _q5_0(blocks: Tensor) -> Tensor:
    numbers = _fields(blocks[:, 6:], 4, 16) | _fifth_bits(blocks, 2)
    return _scaled(numbers.float().sub_(16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    return _scaled(_fields(blocks[:, 8:], 4, 16) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return _scaled(blocks[:, 2:].view(torch.int8), _half(blocks, 0))


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
    return _scaled(_levels(blocks[:, 2:], 16), _half(blocks, 0))


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


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OURS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def _unpacking(kind: int, form: Format) -> Callable[[Tensor], Tensor]:
    if form.name in _PLAIN:
        return partial(_plain, _PLAIN[form.name])
    return partial(_in_blocks, _OURS.get(form.name) or partial(_by_transformers, kind), form.num_bytes)


UNPACK: Mapping[Format, Callable[[Tensor], Tensor]] = MappingProxyType(
    {form: _unpacking(kind, form) for kind, form in FORMATS.items()}
)
"""What turns the flat bytes of each kind into flat numbers."""
