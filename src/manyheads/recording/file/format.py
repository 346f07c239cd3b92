"""Recordings as files: one safetensors file each, written whole or not at all, read where it is used.

What was saved comes back bit for bit, in its own dtype; what stood in padding does not come back. docs/format.md
describes the file; nothing in it is code. This page knows the parts of a recording, and not the class `Recording`: that
one stands above, and saves and opens itself by `save_recording` and `read_recording`.

Writing: layers are planned first and packed when their turn comes, so that saving needs the memory of one tensor, not
of a second recording. What layers share (a mask, a bias, tokens) is stored once.

Reading: opening checks everything that the header says (each tensor there, of a shape that fits its site and its texts)
and reads the tokens. A layer read once is kept while somebody holds it, and the last `KEPT_LAYERS` after that, so that
a recording larger than memory can be worked through. Layers that were saved with one mask get one mask again.

Packing leaves out padding: of an axis of positions, the rows that are tokens are kept, text after text, the position
first, so that a layer's tensor is one run of bytes and a text is one run within it. Something is packed only where
nothing is lost: a layer whose mask never looks past a text's end, a column that is nothing but filling there. The rest
(mostly cross-attention, whose queries and keys are not the same tokens) is stored whole, with the axis of texts; how
many axes a stored tensor has says which it is.

Writer and reader share the checks, so that nothing is saved that could not be opened. A header is anybody's JSON: a
value that is missing, of another kind or out of range is a `Misfit`, before anything is made of it.
"""

# device: a file is opened on the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnnecessaryIsInstance=false
# What a header holds is checked as it is read; torch does not say of what numbers the lists of `tolist` are.

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from manyheads.attention import Mask, Rule
from manyheads.base import Cache
from manyheads.errors import RecordingError, ShapeError
from manyheads.machine import MEMORY_SHARE, free_bytes
from manyheads.recording.file.safetensors_io import (
    NAMES,
    Entry,
    Part,
    TensorFile,
    bytes_of,
    file_bytes,
    metadata_sum,
    write_tensors,
)
from manyheads.recording.layer import LayerRecord, site_of
from manyheads.spec import Layers, Site
from manyheads.texts import ImageSpan, Sinks, Stretch, Tokens
from manyheads.units import gb

Value = TypeVar("Value")

log = logging.getLogger("manyheads")

LARGE_FILE = 250_000_000  # bytes: of a model of 135 M parameters 2,700 tokens; more than anybody expects of a text
FORMAT = "manyheads-recording"
FORMAT_VERSION = 1  # goes up when an older reader would misread a file; what it may overlook needs no new number


def save_recording(
    path: str | os.PathLike[str],
    stacks: Mapping[str, Layers[LayerRecord]],
    tokens: Tokens,
    provenance: Mapping[str, object],
) -> None:
    """Write the parts of a recording as one safetensors file, whole or not at all.

    What stands in padding is left out. The size of a large file (`LARGE_FILE`) is logged before it is written.
    Cost: the memory of one packed tensor; about 1 s a GB besides the disk.
    Errors: FileAccessError where it cannot be written, and where so much room is not left, before anything is written;
    RecordingError where its parts do not fit each other.
    """
    parts, metadata = _planned(stacks, tokens, provenance)
    if (size := file_bytes(parts, metadata)) >= LARGE_FILE:
        log.warning("writing %s: %s", os.fspath(path), gb(size))
    write_tensors(path, parts, metadata)


def recording_bytes(stacks: Mapping[str, Layers[LayerRecord]], tokens: Tokens, provenance: Mapping[str, object]) -> int:
    """The size of the file that `save_recording` would write, to the byte. Errors: RecordingError, as there."""
    return file_bytes(*_planned(stacks, tokens, provenance))


def _planned(
    stacks: Mapping[str, Layers[LayerRecord]], tokens: Tokens, provenance: Mapping[str, object]
) -> tuple[dict[str, Part], dict[str, str]]:
    """The tensors of a recording's file, none of them made yet, and its header's words."""
    plan = _Plan()
    plan.add_tokens(tokens)
    # By place, not by number: what the tensors of a layer are called counts the layers that are there.
    described_stacks = {
        stack: [plan.add_layer(stack, layers[:], index) for index in range(len(layers))]
        for stack, layers in stacks.items()
    }
    described = {"tokens": plan.described_tokens, "masks": plan.described_masks, "stacks": described_stacks}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "recording": _json("its layers", described),
        "provenance": _json("its provenance", dict(provenance)),
    }
    return plan.parts, metadata


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
            check_tokens(tokens, "tokens")
            tensors, real = {"lengths": tokens.lengths}, real_positions(tokens.lengths)
            for field in TOKEN_COLUMNS:
                if (column := getattr(tokens, field)) is not None:
                    tensors[field] = pack_where_lossless(column, real, 1, fill_of(field))
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
        layer, name = layers[index], layer_name(stack, index)
        described = {"site": asdict(layer.site), "because": layer.because, "tokens": self.add_tokens(layer.tokens)}
        with _fitting(f"layer {layer.site}"):
            check_lengths(layer.lengths, "lengths")
            for field, (dtype, shape) in _stored_shapes(layer).items():
                self._add(f"{name}.{field}", dtype, shape, partial(_stored, layers, index, field))
            if not torch.equal(layer.lengths, layer.tokens.lengths):
                self._add(f"{name}.lengths", layer.lengths.dtype, layer.lengths.shape, lambda: layer.lengths)

            check_mask(layer.mask, "its mask")
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
            check_layer(self.parts, name, layer.site, layer.lengths, f"mask.{mask}", bias_name)
            if num_keys != num_keys_of(self.parts, name, layer.lengths):
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
    packed, out = is_packable(layer.mask, layer.lengths, layer.q.shape[2]), {}
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
        return pack_rows(tensor, real_positions(layer.lengths), 2) if len(shape) < tensor.ndim else tensor
    return _mask_tensors(layer)[field] if field in ("start", "stop", "dense") else getattr(layer.rule, field)


def _mask_tensors(layer: LayerRecord) -> dict[str, Tensor]:
    mask, real = layer.mask, real_positions(layer.lengths)
    small = torch.int32 if mask.num_keys <= torch.iinfo(torch.int32).max else torch.int64
    runs = {"start": mask.start.to(small), "stop": mask.stop.to(small)}
    tensors = {field: pack_where_lossless(run, real, 1, fill_of(field)) for field, run in runs.items()}
    if (dense := mask.dense) is not None:
        square = dense.shape[0] == real.shape[0] and dense.shape[2:] == (real.shape[1], real.shape[1])
        cells = pack_cells(dense, real) if square else dense
        tensors["dense"] = cells if square and torch.equal(unpack_cells(cells, real), dense) else dense
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
def _fitting(subject: str) -> Generator[None]:
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

    stacks: dict[str, Layers[LayerRecord]]
    tokens: Tokens
    provenance: dict[str, object]
    num_bytes: int


def read_recording(path: str | os.PathLike[str]) -> StoredRecording:
    """The recording in a file, its layers yet to be read. Errors: FileAccessError; RecordingError for a misfit."""
    file = TensorFile(path, kind=FORMAT, newest=FORMAT_VERSION)
    with _damage_in(file):
        about = file.json("recording")
        headers = take(about, "tokens", list)
        tokens = [read_tokens(file, f"tokens.{index}", header) for index, header in enumerate(headers)]
        masks = each_of(take(about, "masks", list), int, "masks")
        stacks = take(about, "stacks", dict)
        source, provenance = _Source(file, tokens, masks), file.json("provenance")
        if not tokens or not isinstance(provenance, dict):
            raise Misfit("its header does not say what it was made from")
        described = {
            # An earlier manyheads wrote layers in the order of their calls.
            stack: sorted(
                (
                    source.describe(layer_name(stack, index), layer)
                    for index, layer in enumerate(take(stacks, stack, list))
                ),
                key=lambda layer: layer.site.layer,
            )
            for stack in stacks
        }
    stored = StoredFile(os.path.abspath(path), metadata_sum(file.metadata), (*described,), tokens[0])
    opened = {
        stack: Layers(
            LazyLayers(len(layers), partial(source.load, layers), stored, stack),
            site_of,
            [layer.site for layer in layers],
        )
        for stack, layers in described.items()
    }
    size = sum(source.num_bytes(layer) for layers in described.values() for layer in layers)
    return StoredRecording(opened, tokens[0], provenance, size)


@dataclass(frozen=True, eq=False)
class StoredFile:
    """Which file a recording is read from, and what was read of it: the stacks' names, in order, and the tokens.

    `checksum` is of its metadata, which has the checksums of its tensors.
    """

    path: str
    checksum: str
    stacks: tuple[str, ...]
    tokens: Tokens


class LazyLayers(Sequence[LayerRecord]):
    """The layers of a stack by place, each made by `load(place)` when it is used. Any thread may do so.

    `file`: where all of a stack is, as `stack`, by which the whole recording is pickled. Some layers alone are pickled
    whole.
    """

    def __init__(
        self, count: int, load: Callable[[int], LayerRecord], file: StoredFile | None = None, stack: str = ""
    ) -> None:
        self._count, self._load, self._lock, self.file, self.stack = count, load, threading.Lock(), file, stack
        # Alive: a layer that somebody holds is never read into memory a second time. Recent: see `KEPT_LAYERS`.
        self._alive: weakref.WeakValueDictionary[int, LayerRecord] = weakref.WeakValueDictionary()
        self._recent: Cache[int, LayerRecord] = Cache(KEPT_LAYERS)

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ([*self],)

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
        part, entries = partial(take, about), self.file.entries
        site = read_site(part("site", dict))
        tokens = self.tokens[number_in(about, "tokens", len(self.tokens))]
        lengths = self._optional(f"{name}.lengths")
        lengths = tokens.lengths if lengths is None else lengths
        check_lengths(lengths, f"{name}.lengths")
        mask = number_in(about, "mask", len(self.masks))
        # Nothing lists the biases, so this bound is only against
        # absurd numbers: that the tensor is there is checked below.
        bias = None if part("bias", int, NoneType) is None else number_in(about, "bias", 1 << 30)
        bias_name = None if bias is None else f"bias.{bias}"
        check_layer(entries, name, site, lengths, f"mask.{mask}", bias_name)
        if self.masks[mask] != (num_keys := num_keys_of(entries, name, lengths)):
            raise Misfit(f"mask.{mask} is for {self.masks[mask]!r} keys, but {name} has {num_keys}")
        scale, softcap = part("scale", float, int), part("softcap", float, int, NoneType)
        softcap = None if softcap is None else float(softcap)
        return _Described(name, site, part("because", str), tokens, lengths, mask, bias, float(scale), softcap)

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
                    stored = unpack_rows(stored, real, 2, fill_of(field))
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
        free = free_bytes(torch.device("cpu"))
        if free is not None and size > MEMORY_SHARE * free:
            raise RecordingError(
                f"{layer.name} of {self.file.path} would take {gb(size)} with its padding, and "
                f"{gb(free)} are free: record fewer texts, or texts of similar lengths."
            )

    def _mask(self, name: str, num_keys: int, real: Bool[Tensor, "b n"]) -> Mask:
        start, stop = (self.file.read(f"{name}.{field}") for field in ("start", "stop"))
        start, stop = (unpack_rows(run, real, 1, 0.0) if run.ndim == 1 else run for run in (start, stop))
        dense = self._optional(f"{name}.dense")
        if dense is not None and dense.ndim == 1:
            dense = unpack_cells(dense, real)
        mask = Mask(start.long(), stop.long(), num_keys, dense)
        check_mask(mask, name)
        return mask

    def _optional(self, name: str) -> Tensor | None:
        return self.file.read(name) if name in self.file.entries else None

    def _once(self, name: str, make: Callable[[str], Value]) -> Value:
        with self._lock:
            value = self._shared.get(name)
            if value is None:
                value = self._shared[name] = make(name)
            return value


@contextmanager
def _damage_in(file: TensorFile) -> Generator[None]:
    try:
        yield
    except (Misfit, ShapeError) as error:
        raise file.damaged(str(error).rstrip(".")) from error


FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
INTEGERS = {torch.int64, torch.int32}
Parts: TypeAlias = Mapping[str, Part] | Mapping[str, Entry]  # dtypes and shapes, before making or reading anything

MOST_POSITIONS = 100_000_000  # padding included: no machine could have held q of as many, so no honest file says so
MOST_PADDED = 10_000_000  # positions of which nearly all may be padding: what is said of so many tokens takes 0.3 GB
MOST_PADDING = 64  # ... of more positions, so many for each token: it goes for q, k and lse too, in whoever's memory
POSITIONED = ("q", "k", "v", "lse")  # a layer's tensors that have positions: [b heads positions ...]
TOKEN_COLUMNS = ("ids", "special", "offsets", "rarity")  # what is said of each token: [b positions ...]
TOKEN_TEXTS = ("pieces", "texts")
TOKEN_LISTS = (*TOKEN_TEXTS, "stretches", "images", "answers")  # what is said of each text, or of none
FILL: Mapping[str, float] = {"lse": -torch.inf, "ids": -1.0}


class Misfit(Exception):
    """What does not fit, in words. Whoever knows whether it is being saved or opened says the rest."""


def layer_name(stack: str, index: int) -> str:
    """What the names of a layer's tensors begin with: "layer.3", or "cross.layer.3" in a stack that has a name."""
    return f"{stack}.layer.{index}" if stack else f"layer.{index}"


def fill_of(field: str) -> float:
    """What stands in padding: -1 for ids, -inf for lse, else 0 (False)."""
    return FILL.get(field, 0.0)


def real_positions(lengths: Int[Tensor, "b"]) -> Bool[Tensor, "b n"]:
    """True where a token is, False on padding."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest)[None] < lengths[:, None]


def pack_rows(padded: Shaped[Tensor, "..."], real: Bool[Tensor, "b n"], axis: int) -> Shaped[Tensor, "..."]:
    """[b, ..., n, ...] with the positions on `axis` to [sum of lengths, ...], each text's rows after another's."""
    rows = padded.movedim(axis, 1)
    texts = [rows[text, :length] for text, length in enumerate(real.sum(-1).tolist())]
    return torch.cat(texts) if texts else rows.flatten(0, 1)


def unpack_rows(
    packed: Shaped[Tensor, "..."], real: Bool[Tensor, "b n"], axis: int, fill: float
) -> Shaped[Tensor, "..."]:
    """Undo `pack_rows`; `fill` goes into the padding."""
    shape = [real.shape[0], *packed.shape[1:]]
    shape.insert(axis, real.shape[1])
    out = packed.new_full(shape, fill)
    lengths = real.sum(-1).tolist()
    # One text at a time: indexing by `real` would make a second copy of all positions.
    for text, rows in enumerate(packed.split(lengths) if lengths else ()):
        out[text : text + 1].movedim(axis, 1)[0, : len(rows)] = rows
    return out


def pack_cells(padded: Bool[Tensor, "b h n n"], real: Bool[Tensor, "b n"]) -> Bool[Tensor, "cells"]:
    """A dense mask without padding: each text's [h, length, length] after another's, as one run."""
    return padded[_square(real).expand_as(padded)]


def unpack_cells(packed: Bool[Tensor, "cells"], real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b h n n"]:
    """Undo `pack_cells`; the padding is hidden."""
    square = _square(real)
    # Nothing in the file says whether the mask was one for all heads: its length does. `max`: all texts may be empty.
    num_heads = len(packed) // max(1, int(square.sum()))
    out = torch.zeros(square.shape[0], num_heads, *square.shape[2:], dtype=torch.bool)
    out[square.expand_as(out)] = packed
    return out


def _square(real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b one n n"]:
    return (real[:, :, None] & real[:, None, :])[:, None]


def pack_where_lossless(padded: Tensor, real: Bool[Tensor, "b n"], axis: int, fill: float) -> Tensor:
    """Packed if its padding is nothing but `fill`, else as it is."""
    if padded.shape[0] != real.shape[0] or padded.shape[axis] != real.shape[1]:
        return padded
    # Unpacked again and compared: what a mask or a column has in its padding may mean something to whoever reads it.
    packed = pack_rows(padded, real, axis)
    return packed if torch.equal(unpack_rows(packed, real, axis, fill), padded) else padded


def is_packable(mask: Mask, lengths: Int[Tensor, "b"], num_queries: int) -> bool:
    """Whether queries and keys are the same tokens and no row, of a text or of padding, sees any padding."""
    real = real_positions(lengths)
    if not (num_queries == mask.num_queries == mask.num_keys == real.shape[1]):
        return False
    if mask.start.shape[0] not in (1, len(lengths)):
        return False
    sees = mask.stop > mask.start
    return not bool((sees & (~real | (mask.stop > lengths[:, None]))).any())


def check_lengths(lengths: Tensor, subject: str) -> None:
    """That these are lengths of texts, and how much padding they ask for. Raises Misfit."""
    if lengths.ndim != 1 or lengths.dtype not in (torch.int64, torch.int32):
        raise Misfit(f"{subject} has shape {tuple(lengths.shape)} of {lengths.dtype}, not one whole number a text")
    if len(lengths) and int(lengths.min()) < 0:
        raise Misfit(f"{subject} holds {int(lengths.min())}, but a text has no fewer than 0 tokens")
    # Before anything of this size is made: lengths are a few bytes in a file, and may ask for any amount of memory.
    positions = len(lengths) * int(lengths.max()) if len(lengths) else 0
    if positions > MOST_POSITIONS:
        raise Misfit(
            f"{subject}: {len(lengths)} texts, padded to {int(lengths.max())} tokens, are over {MOST_POSITIONS} "
            f"positions"
        )
    if positions > MOST_PADDED and positions > MOST_PADDING * int(lengths.sum()):
        raise Misfit(
            f"{subject}: {len(lengths)} texts of {int(lengths.sum())} tokens, padded to {int(lengths.max())} each, are "
            f"nearly nothing but padding. Record texts of such unlike lengths apart"
        )


def check_tokens(tokens: Tokens, subject: str) -> None:
    """That everything said of tokens is said for each. Raises Misfit."""
    check_lengths(tokens.lengths, f"{subject}.lengths")
    shape = tuple(real_positions(tokens.lengths).shape)
    shapes = {"ids": shape, "special": shape, "offsets": (*shape, 2), "rarity": shape}
    for field, want in shapes.items():
        value = getattr(tokens, field)
        if value is not None and tuple(value.shape) != want:
            raise Misfit(f"{subject}.{field} has shape {tuple(value.shape)}, not {want}")
    for field in TOKEN_LISTS:
        if len(getattr(tokens, field)) not in (0, shape[0]):
            raise Misfit(f"{subject}.{field} is for {len(getattr(tokens, field))} texts, but there are {shape[0]}")
    for images, answer, length in zip(tokens.images, tokens.answers, tokens.lengths.tolist(), strict=False):
        sizes = [size for image in images for size in (image.rows, image.columns, *image.size)]
        if min(sizes, default=1) < 1 or not 0 <= answer <= length or len(tokens.answers) != len(tokens.images):
            raise Misfit(f"{subject}.images has sizes or an answer that are none")
        if any(image.begin < 0 or image.span.stop > length for image in images):
            raise Misfit(f"{subject}.images reaches beyond its text of {length} tokens")
    for text, (pieces, length) in enumerate(zip(tokens.pieces, tokens.lengths.tolist(), strict=False)):
        if len(pieces) < length:
            raise Misfit(f"{subject}.pieces has {len(pieces)} for text {text}, which has {length} tokens")


def check_mask(mask: Mask, subject: str) -> None:
    """That runs lie among the keys. Raises Misfit."""
    if not bool(((mask.start >= 0) & (mask.start <= mask.stop) & (mask.stop <= mask.num_keys)).all()):
        raise Misfit(f"{subject} has runs that are not 0 <= start <= stop <= {mask.num_keys}")


def check_layer(parts: Parts, name: str, site: Site, lengths: Int[Tensor, "b"], mask: str, bias: str | None) -> None:
    """Check shapes and dtypes of a layer's tensors against its site and texts, without reading them.

    `mask` and `bias` are what the names of its mask's tensors begin with, and of its bias. Raises Misfit.
    """
    texts, longest = real_positions(lengths).shape
    # `long` first: the square of an int32 length overflows from 46,341 tokens on, and would be another number.
    heads, groups, rows, cells = site.num_heads, site.num_kv_heads, int(lengths.sum()), int((lengths.long() ** 2).sum())
    q, k = (parts[f"{name}.{field}"].shape if f"{name}.{field}" in parts else () for field in ("q", "k"))
    if len(q) == 4 and len(k) == 4:  # whole
        num_queries, num_keys = q[2], k[2]
        queried, keyed = (texts, heads, num_queries), (texts, groups, num_keys)
    else:  # packed: no axis of texts
        num_queries = num_keys = longest
        queried, keyed = (rows, heads), (rows, groups)
    shapes = {"q": (*queried, site.qk_dim), "k": (*keyed, site.qk_dim), "v": (*keyed, site.v_dim), "lse": queried}
    runs: set[tuple[int, ...]] = {(1, num_queries), (texts, num_queries)}
    dense: set[tuple[int, ...]] = {(t, h, num_queries, num_keys) for t in (1, texts) for h in (1, heads)}
    for field, shape in shapes.items():
        check_tensor(parts, f"{name}.{field}", {shape}, FLOATS, needed=field != "v")
    check_tensor(parts, f"{name}.sinks", {(heads,)}, FLOATS, needed=False)
    if bias is not None:
        check_tensor(parts, bias, dense, FLOATS)
    if num_queries == longest:
        runs.add((rows,))
    if num_queries == num_keys == longest:
        dense |= {(cells,), (cells * heads,)}
    for field in ("start", "stop"):
        check_tensor(parts, f"{mask}.{field}", runs, INTEGERS)
    check_tensor(parts, f"{mask}.dense", dense, {torch.bool}, needed=False)


def num_keys_of(parts: Parts, name: str, lengths: Int[Tensor, "b"]) -> int:
    """How many keys a layer's map is wide: of a packed layer, as many as the longest text has tokens."""
    shape = parts[f"{name}.k"].shape
    return shape[2] if len(shape) == 4 else real_positions(lengths).shape[1]


def check_tensor(
    parts: Parts, name: str, shapes: set[tuple[int, ...]], dtypes: set[torch.dtype], needed: bool = True
) -> None:
    if name not in parts:
        if needed:
            raise Misfit(f"{name} is missing")
        return
    shape, dtype = tuple(parts[name].shape), parts[name].dtype
    if shape not in shapes:
        raise Misfit(f"{name} has shape {shape}, not {' or '.join(map(str, sorted(shapes)))}")
    if dtype not in dtypes:
        raise Misfit(f"{name} holds {dtype}, not {' or '.join(sorted(map(str, dtypes)))}")


# ----------------------------------------------------------------------------------------------------------- the header


MOST_HEADS = 1 << 20  # and layers, and their widths: a Site lists the divisors of what does not divide
KINDS: dict[Any, type] = {"str": str, "int": int, "bool": bool}  # a Site's fields say their kinds as texts
DTYPES = {"ids": INTEGERS, "offsets": INTEGERS, "special": {torch.bool}, "rarity": FLOATS}


def take(about: object, key: str, *kinds: type[Value]) -> Value:
    """What a mapping from JSON holds under `key`, if it is of one of these kinds. (True is no int here.)"""
    if not isinstance(about, dict) or key not in about or type(about[key]) not in kinds:
        raise Misfit(f"its header's {key!r} is missing or no {' or '.join(kind.__name__ for kind in kinds)}")
    return about[key]


def number_in(about: object, key: str, count: int) -> int:
    """The same, a number from 0 to `count - 1`."""
    number = take(about, key, int)
    if not 0 <= number < count:
        raise Misfit(f"its header's {key!r} is {number}, not 0 to {count - 1}")
    return number


def each_of(values: list[Any], kind: type[Value], subject: str) -> list[Value]:
    """The values, if each is of this kind; `subject` names them in the error."""
    if not all(type(value) is kind for value in values):
        raise Misfit(f"its {subject} are not all {kind.__name__}")
    return values


def read_site(about: dict[str, Any]) -> Site:
    """The site that a layer's header describes. Raises Misfit, ShapeError."""
    for field in fields(Site):
        # Before a Site is built: its own checks list divisors of
        # these numbers, which takes as long as a header wants it to.
        if field.type == "int":
            number_in(about, field.name, MOST_HEADS)
    return Site(**{field.name: take(about, field.name, KINDS[field.type]) for field in fields(Site)})


def _read_image(about: object) -> ImageSpan:
    begin, rows, columns = (take(about, name, int) for name in ("begin", "rows", "columns"))
    size = each_of(take(about, "size", list), int, "size")
    if len(size) != 2:
        raise Misfit(f"an image's size is {size}, not a height and a width")
    return ImageSpan(begin, rows, columns, (size[0], size[1]))


def read_tokens(file: TensorFile, name: str, about: object) -> Tokens:
    """The tokens whose tensors are called `name` in the file. Raises Misfit, RecordingError."""
    lengths = file.read(f"{name}.lengths")
    check_lengths(lengths, f"{name}.lengths")
    real, columns = real_positions(lengths), {}
    for field in TOKEN_COLUMNS:
        if f"{name}.{field}" in file.entries:
            more = (2,) if field == "offsets" else ()
            shapes = {(int(lengths.sum()), *more), (*real.shape, *more)}
            check_tensor(file.entries, f"{name}.{field}", shapes, DTYPES[field])
            stored = file.read(f"{name}.{field}")
            packed = stored.ndim == 1 + len(more)
            columns[field] = unpack_rows(stored, real, 1, fill_of(field)) if packed else stored
    lists: dict[str, list[Any]] = {"pieces": [], "texts": []}  # each stored as JSON in a tensor of bytes
    for field in TOKEN_TEXTS:
        if (tensor := f"{name}.{field}") in file.entries:
            check_tensor(file.entries, tensor, {file.entries[tensor].shape}, {torch.uint8})
            stored = bytes(file.read(tensor).numpy().data)
            try:
                lists[field] = json.loads(stored.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError):
                raise Misfit(f"{tensor} is not JSON") from None
            if not isinstance(lists[field], list):
                raise Misfit(f"{tensor} is not a list")
    pieces = tuple(tuple(each_of(text, str, "pieces")) for text in each_of(lists["pieces"], list, "pieces"))
    texts, because, sinks = (
        tuple(each_of(lists["texts"], str, "texts")),
        take(about, "rarity_because", str),
        take(about, "sinks", dict),
    )
    first, ids, names = take(sinks, "first", bool), take(sinks, "ids", list), take(sinks, "names", list)
    ids, names = tuple(each_of(ids, int, "ids")), tuple(each_of(names, str, "names"))
    sinks = Sinks(first, ids, names, take(sinks, "because", str))
    assert isinstance(about, dict), "what was taken of it before has shown that"
    # Missing where there are no windows of long texts, and in files that are older than they.
    pairs = take(about, "stretches", list) if "stretches" in about else []
    if not all(type(pair) is list and len(each_of(pair, int, "stretches")) in (2, 3) for pair in pairs):
        raise Misfit("its stretches are not all two or three numbers")
    stretches = tuple(Stretch(*pair) for pair in pairs)
    lists["images"] = take(about, "images", list) if "images" in about else []
    images = tuple(tuple(map(_read_image, each_of(pictures, dict, "images"))) for pictures in lists["images"])
    answers = tuple(each_of(take(about, "answers", list), int, "answers")) if images else ()
    tokens = Tokens(
        lengths, pieces=pieces, texts=texts, rarity_because=because, sinks=sinks, stretches=stretches,
        images=images, answers=answers, **columns,
    )  # fmt: skip
    check_tokens(tokens, name)
    return tokens
