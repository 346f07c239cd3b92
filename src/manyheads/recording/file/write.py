"""Recordings as files: one safetensors file each, written whole or not at all, read where it is used.

What was saved comes back bit for bit, in its own dtype; what stood in padding does not come back. Layers are planned
first and packed when their turn comes, so that saving needs the memory of one tensor, not of a second recording.
docs/format.md describes the file; nothing in it is code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import RecordingError, ShapeError
from manyheads.recording.file.layout import (
    POSITIONED,
    TOKEN_COLUMNS,
    TOKEN_TEXTS,
    Misfit,
    check_layer,
    check_lengths,
    check_mask,
    check_tokens,
    fill_of,
    is_packable,
    layer_name,
    num_keys_of,
    pack_cells,
    pack_rows,
    pack_where_lossless,
    real_positions,
    unpack_cells,
)
from manyheads.recording.file.read import read_recording
from manyheads.recording.file.safetensors_io import NAMES, Part, TensorFile, bytes_of, write_tensors
from manyheads.recording.recording import LayerRecord, Recording
from manyheads.recording.tokens import Tokens

__all__ = ["FORMAT", "FORMAT_VERSION", "open_recording", "save_recording"]


FORMAT = "manyheads-recording"
FORMAT_VERSION = 1  # goes up when an older reader would misread a file; what it may overlook needs no new number


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file. A layer's tensors are read when `rec.layers[i]` is asked for, not before.

    Layers are kept while somebody holds them, and the last few after that. Cost: the header's and the tokens' size.
    Errors: FileAccessError for a file that cannot be had; RecordingError for one that is no recording, damaged, cut
    off, or written by a newer version. Damage inside a layer is found, and raised, when that layer is read.
    """
    return read_recording(TensorFile(path, kind=FORMAT, newest=FORMAT_VERSION))


def save_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording as one safetensors file (by convention `.heads`), whole or not at all.

    What stands in padding is left out. Cost: the memory of one packed tensor; about 1 s a GB besides the disk.
    Errors: FileAccessError where it cannot be written, RecordingError where its parts do not fit each other.
    """
    plan = _Plan()
    plan.add_tokens(recording.tokens)
    stacks = {
        stack: [plan.add_layer(stack, layers, index) for index in range(len(layers))]
        for stack, layers in recording.stacks.items()
    }
    described = {"tokens": plan.described_tokens, "masks": plan.described_masks, "stacks": stacks}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "recording": _json("its layers", described),
        "provenance": _json("its provenance", dict(recording.provenance)),
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
            check_tokens(tokens, "tokens")
            for field, tensor in _token_tensors(tokens).items():
                self._add(f"tokens.{number}.{field}", tensor.dtype, tensor.shape, lambda tensor=tensor: tensor)
        self._tokens.append(tokens)
        described: dict[str, Any] = {"rarity_because": tokens.rarity_because, "sinks": asdict(tokens.sinks)}
        if tokens.stretches:
            described["stretches"] = [list(stretch) for stretch in tokens.stretches]
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
            described["mask"] = mask = self._add_mask(layers, index)
            described["bias"] = bias = self._add_bias(layers, index)
            bias_name = None if bias is None else f"bias.{bias}"
            check_layer(self.parts, name, layer.site, layer.lengths, f"mask.{mask}", bias_name)
            if layer.mask.num_keys != num_keys_of(self.parts, name, layer.lengths):
                raise Misfit(f"its mask is for {layer.mask.num_keys} keys")
        return {**described, "scale": layer.rule.scale, "softcap": layer.rule.softcap}

    def _add_mask(self, layers: Sequence[LayerRecord], index: int) -> int:
        layer = layers[index]
        check_mask(layer.mask, "its mask")
        tensors = _mask_tensors(layer)
        number, new = self._number("mask", tensors, _digest(layer.lengths), layer.mask.num_keys)
        if new:
            self.described_masks.append(layer.mask.num_keys)
            for field, tensor in tensors.items():
                self._add(f"mask.{number}.{field}", tensor.dtype, tensor.shape, partial(_stored, layers, index, field))
        return number

    def _add_bias(self, layers: Sequence[LayerRecord], index: int) -> int | None:
        bias = layers[index].rule.bias
        if bias is None:
            return None
        number, new = self._number("bias", {"bias": bias})
        if new:
            self._add(f"bias.{number}", bias.dtype, bias.shape, partial(_stored, layers, index, "bias"))
        return number

    def _number(self, kind: str, tensors: dict[str, Tensor], *more: object) -> tuple[int, bool]:
        """The number of what is equal to this, bit for bit, and whether it is new."""
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
    """One tensor of a layer as it stands in the file. The layer is fetched anew: none is held until its turn."""
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


def _token_tensors(tokens: Tokens) -> dict[str, Tensor]:
    """Everything said of tokens. Texts go into a tensor as JSON: a header has a limit, and a reader may skip them."""
    tensors, real = {"lengths": tokens.lengths}, real_positions(tokens.lengths)
    for field in TOKEN_COLUMNS:
        if (column := getattr(tokens, field)) is not None:
            tensors[field] = pack_where_lossless(column, real, 1, fill_of(field))
    for field in TOKEN_TEXTS:
        if texts := getattr(tokens, field):
            written = json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")
            tensors[field] = torch.frombuffer(bytearray(written), dtype=torch.uint8)
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
