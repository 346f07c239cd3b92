"""A recording that is still in its file: layers are read when they are asked for.

Opening checks everything that the header says (each tensor there, of a shape that fits its site and its texts) and
reads the tokens. A layer read once is kept while somebody holds it, and the last `KEPT_LAYERS` after that, so that a
recording larger than memory can be worked through. Layers that were saved with one mask get one mask again.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, overload

from jaxtyping import Bool, Int
from torch import Tensor

from manyheads.base import MEMORY_SHARE, Cache, free_memory_bytes
from manyheads.errors import RecordingError, ShapeError
from manyheads.nn import Mask, Rule
from manyheads.recording.file.layout import (
    POSITIONED,
    Misfit,
    check_layer,
    check_lengths,
    check_mask,
    each_of,
    fill_of,
    layer_name,
    num_keys_of,
    number_in,
    read_site,
    read_tokens,
    real_positions,
    take,
    unpack_cells,
    unpack_rows,
)
from manyheads.recording.file.safetensors_io import TensorFile
from manyheads.recording.recording import LayerRecord, Recording
from manyheads.recording.tokens import Tokens
from manyheads.spec import Site

__all__ = ["LazyLayers", "read_recording"]


KEPT_LAYERS = 2  # of a stack, though nobody holds them: one, and the one that it is compared with


def read_recording(file: TensorFile) -> Recording:
    """The recording in a file whose format is known. Errors: RecordingError for whatever does not fit."""
    with _damage_in(file):
        about = file.json("recording")
        tokens = [
            read_tokens(file, f"tokens.{index}", header) for index, header in enumerate(take(about, "tokens", list))
        ]
        masks, stacks = each_of(take(about, "masks", list), int, "masks"), take(about, "stacks", dict)
        source, provenance = _Source(file, tokens, masks), file.json("provenance")
        if not tokens or not isinstance(provenance, dict):
            raise Misfit("its header does not say what it was made from")
        described = {
            stack: [
                source.describe(layer_name(stack, index), layer)
                for index, layer in enumerate(take(stacks, stack, list))
            ]
            for stack in stacks
        }
    opened = {stack: LazyLayers(len(layers), partial(source.load, layers)) for stack, layers in described.items()}
    size = sum(source.num_bytes(layer) for layers in described.values() for layer in layers)
    return _StoredRecording(opened, tokens[0], provenance, size)


class LazyLayers(Sequence[LayerRecord]):
    """The layers of a stack, each made by `load(index)` when it is asked for. Any thread may ask."""

    def __init__(self, count: int, load: Callable[[int], LayerRecord]) -> None:
        self._count, self._load, self._lock = count, load, threading.Lock()
        self._alive: weakref.WeakValueDictionary[int, LayerRecord] = weakref.WeakValueDictionary()
        self._recent: Cache[int, LayerRecord] = Cache(KEPT_LAYERS)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> LayerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerRecord]: ...
    def __getitem__(self, index: int | slice) -> LayerRecord | Sequence[LayerRecord]:
        if isinstance(index, slice):
            chosen = range(self._count)[index]
            return LazyLayers(len(chosen), lambda index: self[chosen[index]])
        try:
            index = range(self._count)[index]
        except IndexError:
            raise IndexError(f"layer {index} is not in this stack: it has {self._count} layers, from 0.") from None
        with self._lock:
            layer = self._alive.get(index)
            if layer is None:
                layer = self._alive[index] = self._load(index)
            return self._recent.put(index, layer)


@dataclass(frozen=True, eq=False, repr=False)
class _StoredRecording(Recording):
    """A recording in a file. Its size is known from the header: asking for it, or printing it, reads nothing."""

    stored_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.stored_bytes


@dataclass(frozen=True)
class _Described:
    """What the header says of a layer."""

    name: str
    site: Site
    because: str
    tokens: Tokens
    lengths: Int[Tensor, "b"]
    mask: int
    bias: int | None
    scale: float
    softcap: float | None


class _Source:
    """The file that layers are read from, and what they share: a mask or a bias is one object while it is in use."""

    def __init__(self, file: TensorFile, tokens: Sequence[Tokens], masks: Sequence[int]) -> None:
        self.file, self.tokens, self.masks = file, tokens, masks
        self._lock = threading.Lock()
        self._shared: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def describe(self, name: str, about: object) -> _Described:
        """Read and check all that the header says of a layer. Raises Misfit, ShapeError."""
        site = read_site(take(about, "site", dict))
        tokens = self.tokens[number_in(about, "tokens", len(self.tokens))]
        lengths = self._found(f"{name}.lengths")
        lengths = tokens.lengths if lengths is None else lengths
        check_lengths(lengths, f"{name}.lengths")
        mask = number_in(about, "mask", len(self.masks))
        bias = None if take(about, "bias", int, NoneType) is None else number_in(about, "bias", 1 << 30)
        bias_name = None if bias is None else f"bias.{bias}"
        check_layer(self.file.entries, name, site, lengths, f"mask.{mask}", bias_name)
        if self.masks[mask] != (num_keys := num_keys_of(self.file.entries, name, lengths)):
            raise Misfit(f"mask.{mask} is for {self.masks[mask]!r} keys, but {name} has {num_keys}")
        scale, softcap = take(about, "scale", float, int), take(about, "softcap", float, int, NoneType)
        softcap = None if softcap is None else float(softcap)
        return _Described(name, site, take(about, "because", str), tokens, lengths, mask, bias, float(scale), softcap)

    def load(self, layers: Sequence[_Described], index: int) -> LayerRecord:
        """Read a layer. Errors: RecordingError, FileAccessError."""
        layer, file = layers[index], self.file
        self._require_memory(layer)
        with _damage_in(file):
            real = real_positions(layer.lengths)
            q, k, lse = (self._positioned(layer, field, real) for field in ("q", "k", "lse"))
            v = self._positioned(layer, "v", real) if f"{layer.name}.v" in file.entries else None
            sinks = self._found(f"{layer.name}.sinks")
            mask = self._once(f"mask.{layer.mask}", lambda name: self._mask(name, self.masks[layer.mask], real))
            bias = None if layer.bias is None else self._once(f"bias.{layer.bias}", file.read)
        rule = Rule(layer.scale, layer.softcap, sinks, bias)
        return LayerRecord(layer.site, q, k, v, lse, mask, rule, layer.lengths, layer.tokens, layer.because)

    def num_bytes(self, layer: _Described) -> int:
        """The size of a layer's q, k, v and lse in memory, padding included."""
        total, padded = 0, real_positions(layer.lengths).numel()
        for field in POSITIONED:
            if (entry := self.file.entries.get(f"{layer.name}.{field}")) is not None:
                packed = len(entry.shape) < _NUM_AXES[field]
                shape = (padded, *entry.shape[1:]) if packed else entry.shape
                total += math.prod(shape) * entry.dtype.itemsize
        return total

    def _require_memory(self, layer: _Described) -> None:
        """A packed layer may be a small part of what it becomes. Raises RecordingError where that is not free."""
        real = real_positions(layer.lengths)
        positions, longest = real.numel(), real.shape[1]
        size = self.num_bytes(layer) + _RUNS_BYTES * positions
        dense = self.file.entries.get(f"mask.{layer.mask}.dense")
        if dense is not None and len(dense.shape) == 1:
            cells = max(1, int((layer.lengths.long() ** 2).sum()))
            size += positions * longest * math.ceil(dense.shape[0] / cells)
        free = free_memory_bytes()
        if free is not None and size > MEMORY_SHARE * free:
            raise RecordingError(
                f"{layer.name} of {self.file.path} would take {size / 1e9:.1f} GB with its padding, and "
                f"{free / 1e9:.1f} GB are free: record fewer texts, or texts of like lengths."
            )

    def _positioned(self, layer: _Described, field: str, real: Bool[Tensor, "b n"]) -> Tensor:
        stored = self.file.read(f"{layer.name}.{field}")
        return unpack_rows(stored, real, 2, fill_of(field)) if stored.ndim < _NUM_AXES[field] else stored

    def _mask(self, name: str, num_keys: int, real: Bool[Tensor, "b n"]) -> Mask:
        start, stop = (self.file.read(f"{name}.{field}") for field in ("start", "stop"))
        start, stop = (unpack_rows(run, real, 1, 0.0) if run.ndim == 1 else run for run in (start, stop))
        dense = self._found(f"{name}.dense")
        if dense is not None and dense.ndim == 1:
            dense = unpack_cells(dense, real)
        mask = Mask(start.long(), stop.long(), num_keys, dense)
        check_mask(mask, name)
        return mask

    def _found(self, name: str) -> Tensor | None:
        return self.file.read(name) if name in self.file.entries else None

    def _once(self, name: str, make: Callable[[str], Any]) -> Any:
        with self._lock:
            value = self._shared.get(name)
            if value is None:
                value = self._shared[name] = make(name)
            return value


@contextmanager
def _damage_in(file: TensorFile) -> Iterator[None]:
    try:
        yield
    except (Misfit, ShapeError) as error:
        raise file.damaged(str(error).rstrip(".")) from error


_RUNS_BYTES = 3 * 16  # a position: start and stop of what it may see, as they are read, unpacked and widened
_NUM_AXES = {"q": 4, "k": 4, "v": 4, "lse": 3}  # of a whole tensor; a packed one has no axis of texts
