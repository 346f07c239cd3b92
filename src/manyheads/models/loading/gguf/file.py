"""A GGUF file: what it says of a model, and where its tensors lie. Nothing in it is believed before it is checked.

The file is mapped, not read: opening it costs its metadata alone (49,152 tokens and their merges: 0.1 s). A tensor is
read when `blocks` unpacks it, and only that needs torch. One rule meets a damaged file, and one made to harm: every
length is compared with the bytes that are left before it is used. So nothing is allocated that the file could not fill,
and nothing beyond its end is read. No code is in such a file; a chat template in it is a text to us. Opening takes no
more memory than the file has bytes, and 100 MB: the number of entries and their letters are bounded, far above those of
any model.

Source: the format as llama.cpp describes it (ggml/docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from manyheads.errors import FileAccessError, ModelError

__all__ = ["FORMATS", "PLAIN", "Format", "GgufFile", "StoredTensor", "Strings"]


class Format(NamedTuple):
    """How numbers are packed: so many in a block of so many bytes. `blocks.UNPACK` has what unpacks each."""

    name: str
    numbers: int
    num_bytes: int


FORMATS: Mapping[int, Format] = MappingProxyType(
    {
        0: Format("F32", 1, 4),
        1: Format("F16", 1, 2),
        2: Format("Q4_0", 32, 18),
        3: Format("Q4_1", 32, 20),
        6: Format("Q5_0", 32, 22),
        7: Format("Q5_1", 32, 24),
        8: Format("Q8_0", 32, 34),
        10: Format("Q2_K", 256, 84),
        11: Format("Q3_K", 256, 110),
        12: Format("Q4_K", 256, 144),
        13: Format("Q5_K", 256, 176),
        14: Format("Q6_K", 256, 210),
        16: Format("IQ2_XXS", 256, 66),
        17: Format("IQ2_XS", 256, 74),
        18: Format("IQ3_XXS", 256, 98),
        19: Format("IQ1_S", 256, 50),
        20: Format("IQ4_NL", 32, 18),
        21: Format("IQ3_S", 256, 110),
        22: Format("IQ2_S", 256, 82),
        23: Format("IQ4_XS", 256, 136),
        29: Format("IQ1_M", 256, 56),
        30: Format("BF16", 1, 2),
    }
)
"""By the number that a file has for it."""
PLAIN = {"F32", "F16", "BF16"}  # of these, the numbers themselves are stored
# What a file may hold and nothing here unpacks, by name, for the message.
NOT_READ: Mapping[int, str] = MappingProxyType(
    {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
    | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
)

VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9  # kinds of a value; the others are numbers
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_LEAST_KEY, _LEAST_TENSOR, _LEAST_STRING = 13, 32, 8  # bytes of the smallest entry of each
_MOST_DIMENSIONS, _MOST_NUMBERS, _MOST_ALIGNMENT = 4, 2**40, 2**20
# Python needs some hundred bytes for an entry of 13, and four for a letter: these bound what a file made of them takes.
_MOST_ENTRIES, _MOST_LETTERS = 2**16, 2**22
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")


class Strings(Sequence[str]):
    """An array of strings as it lies in the file, each decoded when it is asked for: a list would be larger by far.

    `places`: where each begins, with its length in eight bytes, and where the last one ends.
    """

    def __init__(self, contents: memoryview, places: array[int]) -> None:
        self._contents, self._places = contents, places

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return str(self._contents[self._places[place] + 8 : self._places[place + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        contents = self._contents
        return (str(contents[start + 8 : end], "utf-8") for start, end in pairwise(self._places))

    def __len__(self) -> int:
        return len(self._places) - 1


Value = str | int | float | bool | Strings | NDArray[np.generic]


class StoredTensor(NamedTuple):
    """Where a tensor lies in its file: its shape in torch's order, how it is packed, its first byte, and how many."""

    shape: tuple[int, ...]
    format: Format
    start: int
    num_bytes: int


class GgufFile:
    """A GGUF file, opened and checked: `metadata` by key, `tensors` by name.

    Errors: FileAccessError where it cannot be read; ModelError, one line, where it is none, is damaged, or one part of
    several, or holds what is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if part := _PART.search(path.stem):
            raise ModelError(
                f"{path} is part {int(part[1])} of {int(part[2])} of a model, and split files are not read. Make one "
                f"file of them: llama-gguf-split --merge."
            )
        try:
            with open(path, "rb") as file:
                # Pages are copied if they are written to, which none is: torch warns of bytes that it may not write.
                self._contents = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except ValueError:  # an empty file cannot be mapped
            raise ModelError(f"{path} is damaged: it is empty. Copy or fetch it again.") from None
        except OSError as error:
            raise FileAccessError(f"cannot read {path}: {error}. Check its permissions.") from error
        self._at = self._letters = 0
        version = self._checked_version()
        num_tensors = self._count(_LEAST_TENSOR, "tensors", _MOST_ENTRIES)
        num_keys = self._count(_LEAST_KEY, "keys", _MOST_ENTRIES)
        self.metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            start, key = self._at, self._text("a key")
            if key in self.metadata:
                raise self._damaged(f"the key {key!r} a second time", start)
            self.metadata[key] = self._value(key)
        if not isinstance(self.metadata.get("general.architecture"), str):
            raise self._damaged("no general.architecture")
        self.tensors = self._table(num_tensors)
        self.architecture, self.version = str(self.metadata["general.architecture"]), version

    def packed(self, name: str) -> memoryview:
        """The bytes of one tensor, as they lie in the file."""
        stored = self.tensors[name]
        return self._contents[stored.start : stored.start + stored.num_bytes]

    @cached_property
    def sha256(self) -> str:
        """The digest of the file. Cost: it is read once (98 MB: 0.1 s)."""
        return hashlib.sha256(self._contents).hexdigest()

    @property
    def formats(self) -> Mapping[str, int]:
        """How many tensors are stored in which way, the most common first."""
        return dict(Counter(tensor.format.name for tensor in self.tensors.values()).most_common())

    @property
    def formats_in_words(self) -> str:
        """How many tensors are stored in which way: "Q4_1 (210 tensors), F32 (61)"."""
        (first, many), *others = self.formats.items() or [("nothing", 0)]
        return ", ".join(
            [f"{first} ({many} tensor{'s' * (many != 1)})", *(f"{name} ({count})" for name, count in others)]
        )

    @property
    def unpacked_in_words(self) -> str:
        """What a model's weights were before they were unpacked, as a part of a sentence."""
        if self.formats.keys() <= PLAIN:
            return f"stored as {self.formats_in_words}"
        return f"unpacked from {self.formats_in_words}: rounded weights, not the original's"

    def _checked_version(self) -> int:
        if bytes(self._contents[:4]) != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file: its first bytes are {bytes(self._contents[:4])!r}.")
        self._at = 4
        version = self._whole("<I")
        if version not in VERSIONS:
            is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            kind = "big-endian" if is_swapped else f"of GGUF version {version}"
            raise ModelError(f"{self.path} is {kind}; versions 2 and 3, little-endian, are read. Convert it again.")
        return version

    def _table(self, num_tensors: int) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        entries: list[int] = []
        for _ in range(num_tensors):
            entry = self._at
            name = self._text("a tensor's name")
            if name in tensors:
                raise self._damaged(f"the tensor {name!r} a second time", entry)
            sizes = [self._whole("<Q") for _ in range(self._whole("<I", most=_MOST_DIMENSIONS, what="dimensions"))]
            if not all(sizes) or prod(sizes) > _MOST_NUMBERS:
                raise self._damaged(f"the tensor {name!r} of shape {sizes}", entry)
            form = self._format(name, self._whole("<I"))
            offset, num_bytes = self._whole("<Q"), prod(sizes) // form.numbers * form.num_bytes
            if (row := (sizes or [1])[0]) % form.numbers:
                raise self._damaged(f"rows of {row} in the tensor {name!r}, of blocks of {form.numbers}", entry)
            tensors[name] = StoredTensor(tuple(reversed(sizes)), form, offset, num_bytes)  # the fastest size is first
            entries.append(entry)
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
            raise self._damaged(f"an alignment of {alignment!r}, no power of two")
        first = -(-self._at // alignment) * alignment
        for (name, stored), entry in zip(tensors.items(), entries, strict=True):
            tensors[name] = moved = stored._replace(start=first + stored.start)
            if moved.start + moved.num_bytes > len(self._contents):
                end = f"{moved.start + moved.num_bytes:,} of {len(self._contents):,}"
                raise self._damaged(f"the tensor {name!r}, which would end at byte {end}", entry)
            if stored.start % alignment:
                raise self._damaged(f"the tensor {name!r}, which is not aligned to {alignment} bytes", entry)
        return tensors

    def _format(self, name: str, kind: int) -> Format:
        if kind in NOT_READ:
            raise ModelError(
                f"{self.path} holds {NOT_READ[kind]} tensors ({name}), which are not read: convert it to Q8_0 or "
                f"safetensors."
            )
        if kind not in FORMATS:
            raise self._damaged(f"the tensor {name!r} of the unknown type {kind}")
        return FORMATS[kind]

    def _value(self, key: str) -> Value:
        kind = self._whole("<I")
        if kind == _STRING:
            return self._text(f"the value of {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise self._damaged(f"a value of the unknown type {kind} for {key!r}")
        return self._numbers(_NUMBERS[kind], 1, key)[0].item()

    def _array(self, key: str) -> Strings | NDArray[np.generic]:
        kind = self._whole("<I")
        if kind in _NUMBERS:
            return self._numbers(
                _NUMBERS[kind], self._count(np.dtype(_NUMBERS[kind]).itemsize, f"values of {key!r}"), key
            )
        if kind != _STRING:
            raise self._damaged(f"an array of {'arrays' if kind == _ARRAY else f'the unknown type {kind}'} for {key!r}")
        what, count = f"a value of {key!r}", self._count(_LEAST_STRING, f"values of {key!r}")
        places, place = array("q", [0]) * (count + 1), self._at
        contents, size, length_at = self._contents, len(self._contents), struct.Struct("<Q").unpack_from
        # `_text`, written out: by calls, the 98,000 strings of a vocabulary took 0.3 s. It says what is wrong.
        for index in range(count):
            places[index] = self._at = place
            start = place + 8
            place = start + length_at(contents, place)[0] if start <= size else size + 1
            if place > size or place - start > _MOST_LETTERS:
                self._text(what, is_item=True)
            try:
                str(contents[start:place], "utf-8")
            except UnicodeDecodeError:
                self._text(what, is_item=True)
        places[count] = self._at = place
        return Strings(contents, places)

    def _numbers(self, kind: str, count: int, key: str) -> NDArray[np.generic]:
        start = self._taken(count * np.dtype(kind).itemsize, f"the value of {key!r}")
        return np.frombuffer(self._contents, kind, count, start)

    def _text(self, what: str, *, is_item: bool = False) -> str:
        """A text; `is_item`: of an array, whose texts stay in the file."""
        length = self._whole("<Q")
        start = self._taken(length, what)
        letters = length if is_item else length + self._letters
        if letters > _MOST_LETTERS:
            raise self._damaged(f"texts of {letters:,} bytes with {what}, where {_MOST_LETTERS:,} are the most", start)
        if not is_item:
            self._letters = letters
        try:
            return str(self._contents[start : self._at], "utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{what}, which is not UTF-8", start) from None

    def _count(self, least: int, what: str, most: int | None = None) -> int:
        """How many of something follow, of which each takes at least so many bytes."""
        count = self._whole("<Q")
        if count > (len(self._contents) - self._at) // least:
            raise self._damaged(f"{count:,} {what} in the {len(self._contents) - self._at:,} bytes that are left")
        if most is not None and count > most:
            raise self._damaged(f"{count:,} {what}, where {most:,} are the most")
        return count

    def _whole(self, code: str, *, most: int | None = None, what: str = "") -> int:
        start = self._taken(struct.calcsize(code), "a number")
        (value,) = struct.unpack_from(code, self._contents, start)
        if most is not None and value > most:
            raise self._damaged(f"{value:,} {what}, where {most:,} are the most", start)
        return value

    def _taken(self, num_bytes: int, what: str) -> int:
        """Where the next bytes begin, which are now behind us. Errors: ModelError where so many are not left."""
        start, left = self._at, len(self._contents) - self._at
        if num_bytes > left:
            raise self._damaged(f"{what} of {num_bytes:,} bytes, where {left:,} are left")
        self._at += num_bytes
        return start

    def _damaged(self, what: str, at: int | None = None) -> ModelError:
        return ModelError(
            f"{self.path} is damaged: {what} at byte {self._at if at is None else at:,}. Copy or fetch it again."
        )
