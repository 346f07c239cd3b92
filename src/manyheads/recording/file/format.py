"""Recordings as files: one safetensors file each, written whole or not at all, read where it is used.

What was saved comes back bit for bit, in its own dtype; what stood in padding does not come back. docs/format.md
describes the file; nothing in it is code. This page knows the parts of a recording, and not the class `Recording`: that
one stands above, and saves and opens itself by `save_recording` and `read_recording`.

Writing: layers are planned first and packed when their turn comes, so that saving needs the memory of one tensor, not
of a second recording. What layers share (a mask, a bias, tokens) is stored once.

Reading: opening checks everything that the header says (each tensor there, of a shape that fits its site and its texts)
and reads the tokens. A layer read once is kept while somebody holds it, and the last `KEPT_LAYERS` after that, so that
a recording larger than memory can be worked through. Layers that were saved with one mask get one mask again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from manyheads.base import MEMORY_SHARE, Cache, free_memory_bytes
from manyheads.errors import RecordingError, ShapeError
from manyheads.nn import Mask, Rule
from manyheads.recording.file import layout
from manyheads.recording.file.layout import POSITIONED, TOKEN_COLUMNS, TOKEN_TEXTS, Misfit, fill_of, real_positions
from manyheads.recording.file.safetensors_io import NAMES, Part, TensorFile, bytes_of, write_tensors
from manyheads.recording.layer import LayerRecord
from manyheads.recording.tokens import Tokens
from manyheads.sizing.units import gb
from manyheads.spec import Site

FORMAT = "manyheads-recording"
FORMAT_VERSION = 1  # goes up when an older reader would misread a file; what it may overlook needs no new number


def save_recording(
    path: str | os.PathLike[str],
    stacks: Mapping[str, Sequence[LayerRecord]],
    tokens: Tokens,
    provenance: Mapping[str, object],
) -> None:
    """Write the parts of a recording as one safetensors file, whole or not at all.

    What stands in padding is left out. Cost: the memory of one packed tensor; about 1 s a GB besides the disk.
    Errors: FileAccessError where it cannot be written, RecordingError where its parts do not fit each other.
    """
    plan = _Plan()
    plan.add_tokens(tokens)
    described_stacks = {
        stack: [plan.add_layer(stack, layers, index) for index in range(len(layers))]
        for stack, layers in stacks.items()
    }
    described = {"tokens": plan.described_tokens, "masks": plan.described_masks, "stacks": described_stacks}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "recording": _json("its layers", described),
        "provenance": _json("its provenance", dict(provenance)),
    }
    write_tensors(path, plan.parts, metadata)


class _Plan:
    """What a file will hold: its tensors, and what its header says of them. What is shared is planned once."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.described_tokens: list[dict[str, Any]] = []
        self.described_masks: list[int] = []
        self._tokens: list[Tokens] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add_tokens(self, tokens: Tokens) -> int:
        """The number under which these tokens are stored; the same object gets the same number."""
        for number, known in enumerate(self._tokens):
            if known is tokens:
                return number
        number = len(self._tokens)
        with _fitting("its tokens"):
            layout.check_tokens(tokens, "tokens")
            tensors, real = {"lengths": tokens.lengths}, real_positions(tokens.lengths)
            for field in TOKEN_COLUMNS:
                if (column := getattr(tokens, field)) is not None:
                    tensors[field] = layout.pack_where_lossless(column, real, 1, fill_of(field))
            # Texts go into a tensor as JSON: a header has a limit, and a reader may skip them.
            for field in TOKEN_TEXTS:
                if texts := getattr(tokens, field):
                    written = json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")
                    tensors[field] = torch.frombuffer(bytearray(written), dtype=torch.uint8)
            for field, tensor in tensors.items():
                self._add(f"tokens.{number}.{field}", tensor.dtype, tensor.shape, lambda tensor=tensor: tensor)
        self._tokens.append(tokens)
        described: dict[str, Any] = {"rarity_because": tokens.rarity_because, "sinks": asdict(tokens.sinks)}
        if tokens.stretches:
            described["stretches"] = [list(stretch) for stretch in tokens.stretches]
        if tokens.images:
            described["images"] = [[asdict(image) for image in images] for images in tokens.images]
            described["answers"] = list(tokens.answers)
        self.described_tokens.append(described)
        return number

    def add_layer(self, stack: str, layers: Sequence[LayerRecord], index: int) -> dict[str, Any]:
        """Plan a layer's tensors and describe the rest of it."""
        layer, name = layers[index], layout.layer_name(stack, index)
        described = {"site": asdict(layer.site), "because": layer.because, "tokens": self.add_tokens(layer.tokens)}
        with _fitting(f"layer {layer.site}"):
            layout.check_lengths(layer.lengths, "lengths")
            for field, (dtype, shape) in _stored_shapes(layer).items():
                self._add(f"{name}.{field}", dtype, shape, partial(_stored, layers, index, field))
            if not torch.equal(layer.lengths, layer.tokens.lengths):
                self._add(f"{name}.lengths", layer.lengths.dtype, layer.lengths.shape, lambda: layer.lengths)

            layout.check_mask(layer.mask, "its mask")
            tensors, num_keys = _mask_tensors(layer), layer.mask.num_keys
            # Packed runs of equal bits are equal masks only for texts of the same lengths, and as many keys.
            mask, is_new = self._number("mask", tensors, _digest(layer.lengths), num_keys)
            if is_new:
                self.described_masks.append(num_keys)
                for field, tensor in tensors.items():
                    self._add(
                        f"mask.{mask}.{field}", tensor.dtype, tensor.shape, partial(_stored, layers, index, field)
                    )
            bias = bias_name = None
            if (added := layer.rule.bias) is not None:
                bias, is_new = self._number("bias", {"bias": added})
                bias_name = f"bias.{bias}"
                if is_new:
                    self._add(bias_name, added.dtype, added.shape, partial(_stored, layers, index, "bias"))
            layout.check_layer(self.parts, name, layer.site, layer.lengths, f"mask.{mask}", bias_name)
            if num_keys != layout.num_keys_of(self.parts, name, layer.lengths):
                raise Misfit(f"its mask is for {num_keys} keys")
        rule = layer.rule
        return {**described, "mask": mask, "bias": bias, "scale": rule.scale, "softcap": rule.softcap}

    def _number(self, kind: str, tensors: dict[str, Tensor], *more: object) -> tuple[int, bool]:
        """The number of what is equal to this, bit for bit, and whether it is new."""
        # By content, not identity: batches read apart make equal masks anew, and a file needs each of them once.
        key = (kind, *((name, _digest(tensor)) for name, tensor in tensors.items()), *more)
        new = key not in self._known
        return self._known.setdefault(key, sum(known[0] == kind for known in self._known)), new

    def _add(self, name: str, dtype: torch.dtype, shape: Sequence[int], make: Callable[[], Tensor]) -> None:
        if dtype not in NAMES:
            raise Misfit(f"{name} holds {dtype}, which is none of {', '.join(map(str, NAMES))}")
        self.parts[name] = Part(dtype, tuple(shape), make)


def _stored_shapes(layer: LayerRecord) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What q, k, v, lse and the sinks of a layer will be in the file, without packing them yet."""
    packed, out = layout.is_packable(layer.mask, layer.lengths, layer.q.shape[2]), {}
    for field in POSITIONED:
        if (tensor := getattr(layer, field)) is not None:
            shape = tuple(tensor.shape)
            fits = packed and shape[2:3] == (layer.mask.num_keys,)
            out[field] = (tensor.dtype, (int(layer.lengths.sum()), shape[1], *shape[3:]) if fits else shape)
    if (sinks := layer.rule.sinks) is not None:
        out["sinks"] = (sinks.dtype, tuple(sinks.shape))
    return out


def _stored(layers: Sequence[LayerRecord], index: int, field: str) -> Tensor:
    """One tensor of a layer as it stands in the file."""
    # The layer is fetched anew for each tensor: of a recording that is itself in a file, none is held until its turn.
    layer = layers[index]
    if field in POSITIONED:
        tensor = getattr(layer, field)
        _, shape = _stored_shapes(layer)[field]
        return layout.pack_rows(tensor, real_positions(layer.lengths), 2) if len(shape) < tensor.ndim else tensor
    return _mask_tensors(layer)[field] if field in ("start", "stop", "dense") else getattr(layer.rule, field)


def _mask_tensors(layer: LayerRecord) -> dict[str, Tensor]:
    mask, real = layer.mask, real_positions(layer.lengths)
    small = torch.int32 if mask.num_keys <= torch.iinfo(torch.int32).max else torch.int64
    runs = {"start": mask.start.to(small), "stop": mask.stop.to(small)}
    tensors = {field: layout.pack_where_lossless(run, real, 1, fill_of(field)) for field, run in runs.items()}
    if (dense := mask.dense) is not None:
        square = dense.shape[0] == real.shape[0] and dense.shape[2:] == (real.shape[1], real.shape[1])
        cells = layout.pack_cells(dense, real) if square else dense
        tensors["dense"] = cells if square and torch.equal(layout.unpack_cells(cells, real), dense) else dense
    return tensors


def _digest(tensor: Tensor) -> bytes:
    """Equal for tensors that are equal in dtype, shape and every bit."""
    about = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.blake2b(bytes_of(tensor.detach().cpu().contiguous()), digest_size=16, key=about[:64]).digest()


def _json(subject: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordingError(
            f"this recording cannot be saved: {subject} must be JSON: texts, numbers, lists, mappings ({error})."
        ) from error


@contextmanager
def _fitting(subject: str) -> Iterator[None]:
    try:
        yield
    except (Misfit, ShapeError) as error:
        raise RecordingError(f"this recording cannot be saved, {subject} does not fit together: {error}.") from error


# -------------------------------------------------------------------------------------------------------------- reading

KEPT_LAYERS = 2  # of a stack, though nobody holds them: one, and the one that it is compared with
RUN_BYTES = 3 * 16  # a position: start and stop of what it may see, as they are read, unpacked and widened
NUM_AXES = {"q": 4, "k": 4, "v": 4, "lse": 3}  # of a whole tensor; a packed one has no axis of texts


class StoredRecording(NamedTuple):
    """The parts of a recording in a file; `num_bytes` is the size of its layers in memory, as the header has it."""

    stacks: dict[str, LazyLayers]
    tokens: Tokens
    provenance: dict[str, object]
    num_bytes: int


def read_recording(path: str | os.PathLike[str]) -> StoredRecording:
    """The recording in a file, its layers yet to be read. Errors: FileAccessError; RecordingError for a misfit."""
    file = TensorFile(path, kind=FORMAT, newest=FORMAT_VERSION)
    with _damage_in(file):
        about = file.json("recording")
        headers = layout.take(about, "tokens", list)
        tokens = [layout.read_tokens(file, f"tokens.{index}", header) for index, header in enumerate(headers)]
        masks = layout.each_of(layout.take(about, "masks", list), int, "masks")
        stacks = layout.take(about, "stacks", dict)
        source, provenance = _Source(file, tokens, masks), file.json("provenance")
        if not tokens or not isinstance(provenance, dict):
            raise Misfit("its header does not say what it was made from")
        described = {
            stack: [
                source.describe(layout.layer_name(stack, index), layer)
                for index, layer in enumerate(layout.take(stacks, stack, list))
            ]
            for stack in stacks
        }
    opened = {stack: LazyLayers(len(layers), partial(source.load, layers)) for stack, layers in described.items()}
    size = sum(source.num_bytes(layer) for layers in described.values() for layer in layers)
    return StoredRecording(opened, tokens[0], provenance, size)


class LazyLayers(Sequence[LayerRecord]):
    """The layers of a stack, each made by `load(index)` when it is used. Any thread may do so."""

    def __init__(self, count: int, load: Callable[[int], LayerRecord]) -> None:
        self._count, self._load, self._lock = count, load, threading.Lock()
        # Alive: a layer that somebody holds is never read into memory a second time. Recent: see `KEPT_LAYERS`.
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
        # The lock is held while a layer is read: two threads that want the same one must not both pay its memory.
        with self._lock:
            layer = self._alive.get(index)
            if layer is None:
                layer = self._alive[index] = self._load(index)
            return self._recent.put(index, layer)


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
        take, entries = partial(layout.take, about), self.file.entries
        site = layout.read_site(take("site", dict))
        tokens = self.tokens[layout.number_in(about, "tokens", len(self.tokens))]
        lengths = self._optional(f"{name}.lengths")
        lengths = tokens.lengths if lengths is None else lengths
        layout.check_lengths(lengths, f"{name}.lengths")
        mask = layout.number_in(about, "mask", len(self.masks))
        # Nothing lists the biases, so this bound is only against
        # absurd numbers: that the tensor is there is checked below.
        bias = None if take("bias", int, NoneType) is None else layout.number_in(about, "bias", 1 << 30)
        bias_name = None if bias is None else f"bias.{bias}"
        layout.check_layer(entries, name, site, lengths, f"mask.{mask}", bias_name)
        if self.masks[mask] != (num_keys := layout.num_keys_of(entries, name, lengths)):
            raise Misfit(f"mask.{mask} is for {self.masks[mask]!r} keys, but {name} has {num_keys}")
        scale, softcap = take("scale", float, int), take("softcap", float, int, NoneType)
        softcap = None if softcap is None else float(softcap)
        return _Described(name, site, take("because", str), tokens, lengths, mask, bias, float(scale), softcap)

    def load(self, layers: Sequence[_Described], index: int) -> LayerRecord:
        """Read a layer. Errors: RecordingError, FileAccessError."""
        layer, file = layers[index], self.file
        self._require_memory(layer)
        with _damage_in(file):
            real = real_positions(layer.lengths)
            tensors: dict[str, Tensor | None] = {}
            for field in POSITIONED:
                stored = self._optional(f"{layer.name}.{field}") if field == "v" else file.read(f"{layer.name}.{field}")
                if stored is not None and stored.ndim < NUM_AXES[field]:
                    stored = layout.unpack_rows(stored, real, 2, fill_of(field))
                tensors[field] = stored
            sinks = self._optional(f"{layer.name}.sinks")
            mask = self._once(f"mask.{layer.mask}", lambda name: self._mask(name, self.masks[layer.mask], real))
            bias = None if layer.bias is None else self._once(f"bias.{layer.bias}", file.read)
        rule = Rule(layer.scale, layer.softcap, sinks, bias)
        q, k, v, lse = (tensors[field] for field in POSITIONED)
        assert q is not None and k is not None and lse is not None
        return LayerRecord(layer.site, q, k, v, lse, mask, rule, layer.lengths, layer.tokens, layer.because)

    def num_bytes(self, layer: _Described) -> int:
        """The size of a layer's q, k, v and lse in memory, padding included."""
        total, padded = 0, real_positions(layer.lengths).numel()
        for field in POSITIONED:
            if (entry := self.file.entries.get(f"{layer.name}.{field}")) is not None:
                packed = len(entry.shape) < NUM_AXES[field]
                shape = (padded, *entry.shape[1:]) if packed else entry.shape
                total += math.prod(shape) * entry.dtype.itemsize
        return total

    def _require_memory(self, layer: _Described) -> None:
        """Raises RecordingError where a layer would take more memory than is free."""
        # A file's bytes bound what is read, not what it is unpacked to: one long text beside many short ones is mostly
        # padding, and a small file could make the process be killed.
        real = real_positions(layer.lengths)
        positions, longest = real.numel(), real.shape[1]
        size = self.num_bytes(layer) + RUN_BYTES * positions
        dense = self.file.entries.get(f"mask.{layer.mask}.dense")
        if dense is not None and len(dense.shape) == 1:
            cells = max(1, int((layer.lengths.long() ** 2).sum()))
            size += positions * longest * math.ceil(dense.shape[0] / cells)
        free = free_memory_bytes()
        if free is not None and size > MEMORY_SHARE * free:
            raise RecordingError(
                f"{layer.name} of {self.file.path} would take {gb(size)} with its padding, and "
                f"{gb(free)} are free: record fewer texts, or texts of like lengths."
            )

    def _mask(self, name: str, num_keys: int, real: Bool[Tensor, "b n"]) -> Mask:
        start, stop = (self.file.read(f"{name}.{field}") for field in ("start", "stop"))
        start, stop = (layout.unpack_rows(run, real, 1, 0.0) if run.ndim == 1 else run for run in (start, stop))
        dense = self._optional(f"{name}.dense")
        if dense is not None and dense.ndim == 1:
            dense = layout.unpack_cells(dense, real)
        mask = Mask(start.long(), stop.long(), num_keys, dense)
        layout.check_mask(mask, name)
        return mask

    def _optional(self, name: str) -> Tensor | None:
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
