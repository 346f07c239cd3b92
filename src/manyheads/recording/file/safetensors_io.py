"""One safetensors file, written whole or not at all and read tensor by tensor, with a checksum for each tensor.

The format is small: the length of a header, the header as JSON, the tensors' bytes. The safetensors library writes only
what is all in memory, and its files do not notice a flipped bit. Here each tensor is made, written and dropped, and its
CRC-32 goes into the header: a recording is exact or refused. Any safetensors reader opens what is written.

Reading: the safetensors library maps files into memory, where a file that another program cuts short kills the process;
here it is an error. A file that is not a safetensors file, one of another kind, a newer version, a file cut off, and a
file whose bytes are not those that were written each get one line that says so. Nothing in a file decides how much is
allocated: a tensor must have its bytes in the file before memory is allocated for it.

Cost: the memory of one tensor; the disk's time and about 1 s a GB for the checksums. Opening costs the header's bytes.
Source: https://huggingface.co/docs/safetensors, "Format". Oracle: the safetensors library, in the tests.
"""

# device: a file is opened on the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# What a header holds is checked as it is read.

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any, BinaryIO, TypeGuard

import torch
from torch import Tensor

from manyheads.base import no_access, opened, replacing
from manyheads.errors import FileAccessError, ManyHeadsError, RecordingError
from manyheads.units import gb

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


def write_tensors(
    path: str | os.PathLike[str], parts: Mapping[str, Part], metadata: Mapping[str, str], *, flushed: bool = True
) -> None:
    """Write one safetensors file beside its final place, then move it there in one step.

    Whatever happens on the way, an older file of that name stays as it was and nothing is left over (`replacing`, which
    says what `flushed=False` gives up).
    Errors: FileAccessError, also where so much room is not left on the disk, before anything is written;
    RecordingError, and whatever making a part raises.
    """
    with replacing(path, flushed=flushed) as temporary, open(temporary, "r+b") as file:
        disk, size = shutil.disk_usage(os.path.dirname(temporary) or "."), file_bytes(parts, metadata)
        if size > disk.free and disk.total:  # a file system that tells nothing has no size
            raise FileAccessError(
                f"cannot write {os.fspath(path)}: it takes {gb(size)}, and with {gb(disk.free)} left the disk is full. "
                f"Free some space, or use another disk."
            )
        _write(file, parts, metadata)


def file_bytes(parts: Mapping[str, Part], metadata: Mapping[str, str]) -> int:
    """The size of the file that `write_tensors` would write, to the byte. No part is made."""
    draft = _header(_ordered(parts), metadata, dict.fromkeys(_ordered(parts), NO_SUM))
    return len(draft) + sum(math.prod(part.shape) * part.dtype.itemsize for part in parts.values())


def write_state(
    path: str | os.PathLike[str], kind: str, version: int, tensors: Mapping[str, Tensor], words: Mapping[str, Any],
    *, flushed: bool = True,
) -> None:  # fmt: skip
    """Write tensors that are in memory, and words as JSON, as one file of a format. Errors: as `write_tensors`."""
    # `x=x` binds the tensor now: a plain closure would write the last tensor under every name.
    parts = {name: Part(x.dtype, tuple(x.shape), lambda x=x: x) for name, x in tensors.items()}
    metadata = {"format": kind, "format_version": str(version), "about": json.dumps(words)}
    write_tensors(path, parts, metadata, flushed=flushed)


def read_state(
    path: str | os.PathLike[str], kind: str, version: int, oldest: int
) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """The version of a file that `write_state` wrote, its tensors and its words; of one before `oldest`, that alone.

    Errors: FileAccessError, RecordingError.
    """
    file = TensorFile(path, kind=kind, newest=version)
    if (written := int(file.metadata["format_version"])) < oldest:
        return written, {}, {}
    return written, {name: file.read(name) for name in file.entries}, file.json("about")


def metadata_sum(metadata: Mapping[str, str]) -> str:
    """The checksum of the metadata themselves: of their JSON with sorted keys, as Python writes it."""
    return f"{zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode('ascii')):08x}"


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied: what is written to them is in the tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _ordered(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The widest types first, as the library sorts them: so every tensor begins at a multiple of its item size."""
    return dict(sorted(parts.items(), key=lambda item: -item[1].dtype.itemsize))


def _write(file: BinaryIO, parts: Mapping[str, Part], metadata: Mapping[str, str]) -> None:
    ordered = _ordered(parts)
    sums = dict.fromkeys(ordered, NO_SUM)
    draft = _header(ordered, metadata, sums)
    if len(draft) > HEADER_BYTES:
        raise RecordingError(
            f"this recording's description is {len(draft) / 1e6:.0f} MB, above the {HEADER_BYTES / 1e6:.0f} MB that a "
            f"safetensors header may be: put less into its provenance."
        )
    file.write(draft)
    for name, part in ordered.items():
        # Made here and dropped with the next one: the file may be larger than the memory.
        tensor = part.make().detach().cpu().contiguous()
        assert (tensor.dtype, tuple(tensor.shape)) == (part.dtype, part.shape), f"{name} is not what was announced"
        view, total = bytes_of(tensor), 0
        for begin in range(0, len(view), CHUNK_BYTES):
            total = zlib.crc32(view[begin : begin + CHUNK_BYTES], total)
            file.write(view[begin : begin + CHUNK_BYTES])
        sums[name] = f"{total:08x}"
    # The sums are known only now: the header is as long as its draft, and is written once more over it.
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
    # Spaces up to a multiple of 8, as the library does: with the widest types first, every tensor is then aligned.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


# -------------------------------------------------------------------------------------------------------------- reading


MOST_AXES = 8  # and each shorter than 2**62: more is no tensor, only a way to keep a reader multiplying
QUOTED = 80  # characters of a file's own words that an error repeats


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: what it is, and where its bytes are, counted from the header's end."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """A safetensors file open for reading: its header now, a tensor when it is wanted, by any thread.

    `kind` and `newest` say which format is accepted (metadata "format"), and up to which version.
    Errors: FileAccessError where the file cannot be had, RecordingError where it is not what it should be.
    """

    def __init__(self, path: str | os.PathLike[str], *, kind: str, newest: int) -> None:
        try:
            self.path = os.fspath(path)
        except TypeError:
            raise RecordingError(f"{path!r} is not a file to open: give the name of one made by save().") from None
        self._lock = threading.Lock()
        try:
            handle = opened(self.path)
            weakref.finalize(self, os.close, handle)  # open for as long as somebody may still read from it
            # Unbuffered: `readinto` then reads straight into the tensor, with no second copy of its bytes.
            self._file = FileIO(handle, "rb", closefd=False)
            self._size = os.fstat(self._file.fileno()).st_size
            header, self._data = self._read_header()
        except (OSError, ValueError) as error:
            if isinstance(error, ManyHeadsError):
                raise
            raise no_access("read", path, error) from error
        self.metadata = self._read_metadata(header.pop("__metadata__", {}), kind, newest)
        self.entries = self._read_entries(header)
        self._sums = self.json("crc32")
        if not isinstance(self._sums, dict) or self._sums.keys() != self.entries.keys():
            raise self.damaged("it does not hold the tensors that its checksums name")

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU. Errors: RecordingError, FileAccessError."""
        if name not in self.entries:
            raise self.damaged(f"it lacks the tensor {name!r}")
        entry = self.entries[name]
        out = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        view, total, done = bytes_of(out), 0, 0
        try:
            with self._lock:  # one position in the file serves all threads
                self._file.seek(self._data + entry.begin)
                while done < len(view):
                    count = self._file.readinto(view[done : done + CHUNK_BYTES])
                    if not count:
                        raise self.damaged("it became shorter while it was open")
                    total = zlib.crc32(view[done : done + count], total)
                    done += count
        except OSError as error:
            raise no_access("read", self.path, error) from error
        if f"{total:08x}" != self._sums[name]:
            raise self.damaged(f"the bytes of {name!r} are not those that were written (their checksum differs)")
        return out

    def json(self, key: str) -> Any:
        """What the metadata hold as JSON under `key`. Errors: RecordingError."""
        try:
            return json.loads(self.metadata[key])
        except KeyError:
            raise self.damaged(f"its header lacks {key!r}") from None
        except (ValueError, RecursionError):
            raise self.damaged(f"{key!r} in its header is not JSON") from None

    def damaged(self, damage: str) -> RecordingError:
        return RecordingError(f"{self.path} is damaged: {damage}. Copy it again, or record again.")

    def _read_header(self) -> tuple[dict[str, Any], int]:
        """The header, and where the tensors' bytes begin."""
        # Nine bytes: any eight are some length, but the header of
        # every such file is an object, and begins with a brace.
        start = self._file.read(9) or b""
        length = int.from_bytes(start[:8], "little")
        if len(start) < 9 or start[8:] != b"{" or not 2 <= length <= HEADER_BYTES:
            raise RecordingError(
                f"{self.path} is not a recording, and not a safetensors file: give one made by save()."
            )
        if 8 + length > self._size:
            raise self._cut_off(f"its header alone is {length} bytes", self._size - 8)
        self._file.seek(8)
        content = bytearray()
        # A single read may always return less than what it is asked for.
        while len(content) < length and (piece := self._file.read(min(length - len(content), CHUNK_BYTES))):
            content += piece
        try:
            return json.loads(content), 8 + length
        except (ValueError, RecursionError):
            raise self.damaged("its header is not JSON") from None

    def _read_metadata(self, metadata: object, kind: str, newest: int) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self.damaged("its header's metadata are not texts")
        if metadata.get("format") != kind:
            stated = repr(metadata["format"][:QUOTED]) if "format" in metadata else "not said"
            raise RecordingError(
                f"{self.path} is a safetensors file, but not a recording: its format is {stated}, not {kind!r}. "
                f"Give one made by save()."
            )
        version = metadata.get("format_version", "")
        if not (version.isascii() and version.isdigit() and len(version) < 10):
            raise self.damaged(f"its format's version is {version[:QUOTED]!r}")
        if int(version) > newest:
            raise RecordingError(
                f"{self.path} was written by a newer manyheads: format {int(version)}, this one reads up to {newest}. "
                f"Update manyheads to read it."
            )
        # Checked last: a file of another kind has no such sum, and should hear what it is instead.
        written = metadata.pop("crc32_metadata", None)
        if written != metadata_sum(metadata):
            raise self.damaged("its header is not the one that was written (its checksum differs)")
        return metadata

    def _read_entries(self, header: dict[str, Any]) -> dict[str, Entry]:
        """Where each tensor is. Together they must be the rest of the file: nothing missing, twice, or left over."""
        entries: dict[str, Entry] = {}
        for name, about in header.items():
            about, quoted = about if isinstance(about, dict) else {}, name[:QUOTED]
            dtype, shape, offsets = (about.get(key) for key in ("dtype", "shape", "data_offsets"))
            if not (_sizes(shape) and _sizes(offsets) and len(offsets) == 2 and len(shape) <= MOST_AXES):
                raise self.damaged(f"its header does not say where {quoted!r} is")
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise self.damaged(f"{quoted!r} has the type {str(dtype)[:QUOTED]!r}, none of {', '.join(DTYPES)}")
            size, stored = math.prod(shape) * DTYPES[dtype].itemsize, offsets[1] - offsets[0]
            # Axes beside an empty one take no bytes, so the bytes do not bound them; strides would overflow anyway.
            if size != stored or math.prod(length or 1 for length in shape) >= 2**62:
                raise self.damaged(f"{quoted!r} has {stored} bytes, which does not fit {dtype} of shape {shape}")
            entries[name] = Entry(DTYPES[dtype], tuple(shape), *offsets)
        end, size = 0, self._size - self._data
        for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
            if entry.begin != end:
                raise self.damaged("its tensors overlap or leave gaps")
            end = entry.end
        if end > size:
            raise self._cut_off(f"its tensors are {end} bytes", size)
        if end < size:
            raise self.damaged(f"{size - end} bytes follow its last tensor")
        return entries

    def _cut_off(self, promised: str, size: int) -> RecordingError:
        return RecordingError(
            f"{self.path} is cut off: {promised}, but there are {size}. Copy it again, or record again."
        )


def _sizes(numbers: object) -> TypeGuard[list[int]]:
    """Whether this is a list of sizes or offsets. (True is an int to Python, and to JSON it is none.)"""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**62 for number in numbers)
