"""Writing one safetensors file: whole or not at all, one tensor in memory at a time, with a checksum for each.

The format is small: the length of a header, the header as JSON, the tensors' bytes. The safetensors library writes only
what is all in memory, and its files do not notice a flipped bit. Here each tensor is made, written and dropped, and its
CRC-32 goes into the header: a recording is exact or refused. Any safetensors reader opens what is written.

Cost: the memory of one tensor; the disk's time and about 1 s a GB for the checksums.
Source: https://huggingface.co/docs/safetensors, "Format". Oracle: the safetensors library, in the tests.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from manyheads.errors import RecordingError
from manyheads.base.files import replacing

__all__ = ["DTYPES", "Part", "write_tensors"]

HEADER_BYTES = 100_000_000  # the safetensors library refuses longer headers
CHUNK_BYTES = 1 << 22  # moved at once: the checksum finds it still in the cache, and Ctrl-C never waits long
NO_SUM = "00000000"  # stands in the header until the bytes are written: as long as any checksum

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Part:
    """A tensor to be written: what it will be, and how to make it when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]


def write_tensors(path: str | os.PathLike[str], parts: Mapping[str, Part], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file beside its final place, then move it there in one step.

    Whatever happens on the way, an older file of that name stays as it was and nothing is left over (`wholefiles`).
    Errors: FileAccessError, RecordingError, and whatever making a part raises.
    """
    with replacing(path) as temporary, open(temporary, "r+b") as file:
        _write(file, parts, metadata)


def metadata_sum(metadata: Mapping[str, str]) -> str:
    """The checksum of the metadata themselves: of their JSON with sorted keys, as Python writes it."""
    return f"{zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode('ascii')):08x}"


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied: what is written to them is in the tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _write(file: BinaryIO, parts: Mapping[str, Part], metadata: Mapping[str, str]) -> None:
    # The widest types first, as the library sorts them: so every tensor's bytes begin at a multiple of its item size.
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1].dtype.itemsize))
    sums = dict.fromkeys(ordered, NO_SUM)
    draft = _header(ordered, metadata, sums)
    if len(draft) > HEADER_BYTES:
        raise RecordingError(
            f"what describes this recording is {len(draft) / 1e6:.0f} MB, above the {HEADER_BYTES / 1e6:.0f} MB that a "
            f"safetensors header may be: put less into its provenance."
        )
    file.write(draft)
    for name, part in ordered.items():
        tensor = part.make().detach().cpu().contiguous()
        assert (tensor.dtype, tuple(tensor.shape)) == (part.dtype, part.shape), f"{name} is not what was announced"
        view, total = bytes_of(tensor), 0
        for begin in range(0, len(view), CHUNK_BYTES):
            total = zlib.crc32(view[begin : begin + CHUNK_BYTES], total)
            file.write(view[begin : begin + CHUNK_BYTES])
        sums[name] = f"{total:08x}"
    final = _header(ordered, metadata, sums)
    assert len(final) == len(draft)
    file.seek(0)
    file.write(final)


def _header(parts: Mapping[str, Part], metadata: Mapping[str, str], sums: Mapping[str, str]) -> bytes:
    about = {**metadata, "crc32": json.dumps(dict(sums))}
    entries: dict[str, object] = {"__metadata__": {**about, "crc32_metadata": metadata_sum(about)}}
    end = 0
    for name, part in parts.items():
        begin, end = end, end + math.prod(part.shape) * part.dtype.itemsize
        entries[name] = {"dtype": NAMES[part.dtype], "shape": list(part.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
