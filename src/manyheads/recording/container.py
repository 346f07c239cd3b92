"""Writing one safetensors file: whole or not at all, one tensor in memory at a time, with a checksum for each.

The format is small: the length of a header, the header as JSON, the tensors' bytes. The safetensors library writes only
what is all in memory, and its files do not notice a flipped bit. Here each tensor is made, written and dropped, and its
CRC-32 goes into the header: a recording is exact or refused. Any safetensors reader opens what is written.

Cost: the memory of one tensor; the disk's time and about 1 s a GB for the checksums.
Source: https://huggingface.co/docs/safetensors, "Format". Oracle: the safetensors library, in the tests.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from manyheads.errors import FileAccessError, ManyHeadsError, RecordingError

__all__ = ["DTYPES", "Part", "no_access", "write_tensors"]

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

    Whatever happens on the way (no space, Ctrl-C), an older file of that name stays as it was and nothing is left over.
    Errors: FileAccessError, RecordingError, and whatever making a part raises.
    """
    try:
        target = os.path.realpath(path)  # a link stays a link; what it points to is replaced
        _check_target(target)
    except (OSError, ValueError) as error:
        raise no_access("write", path, error) from error
    temporary = os.path.join(os.path.dirname(target), f".manyheads-{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _write(file, parts, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and not isinstance(error, ManyHeadsError):
            raise no_access("write", path, error) from error
        raise
    _sync_folder(os.path.dirname(target))


def metadata_sum(metadata: Mapping[str, str]) -> str:
    """The checksum of the metadata themselves: of their JSON with sorted keys, as Python writes it."""
    return f"{zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode('ascii')):08x}"


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied: what is written to them is in the tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _check_target(target: str) -> None:
    """Refuse what moving a file into place would not mind, but a person would: replacing a device, a protected file."""
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", target)
    if os.path.exists(target):
        if not os.path.isfile(target):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", target)
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "it is write-protected", target)


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


def _sync_folder(folder: str) -> None:
    """Make the move itself survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_NO_PERMISSION = "you have no permission to. Have it changed, or use another folder"
_ADVICE = {
    errno.ENOTDIR: "a part of its path is a file, not a folder. Check the spelling",
    errno.EISDIR: "it is a folder. Name a file in it",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: "it is on a read-only file system. Use another folder",
    errno.ENOSPC: "the disk is full. Free some space, or use another disk",
    errno.EDQUOT: "your share of the disk is used up. Free some space, or use another disk",
    errno.EFBIG: "files there cannot be that large. Use another disk, or record fewer texts",
    errno.ENAMETOOLONG: "its name is too long. Use a shorter one",
}
_MISSING = {
    "read": "there is no such file. Check the spelling",
    "write": "its folder does not exist. Make it first, or check the spelling",
}


def no_access(verb: str, path: str | os.PathLike[str], error: OSError | ValueError) -> FileAccessError:
    """The operating system's error in words that say what to do. `verb` is "read" or "write"."""
    number = error.errno if isinstance(error, OSError) else None
    advice = _MISSING[verb] if number == errno.ENOENT else _ADVICE.get(number or 0)
    return FileAccessError(f"cannot {verb} {os.fspath(path)}: {advice or getattr(error, 'strerror', None) or error}.")
