"""A file with everything a recording may hold, taken apart and written again; and how it is to be refused."""

import json
import re
import struct

import pytest
import torch

from manyheads.attention import Mask, Rule
from manyheads.errors import RecordingError
from manyheads.recording import LayerRecord, Recording, open_recording
from manyheads.recording.file.safetensors_io import metadata_sum
from manyheads.spec import Site
from manyheads.texts import Sinks, Tokens

H, G, D, F = 6, 3, 5, 4
LENGTHS = (7, 11, 2)


def save_whole(path):
    """A recording with everything a file may hold: packed and whole layers, a dense mask, a bias, sinks, texts."""
    lengths = torch.tensor(LENGTHS)
    shape = (3, 11)
    tokens = Tokens(
        lengths, ids=torch.randint(0, 99, shape), pieces=tuple(("piece",) * length for length in LENGTHS),
        special=torch.rand(shape) < 0.5, offsets=torch.randint(0, 9, (*shape, 2)), texts=("der", "Hund", "bellt"),
        rarity=torch.rand(shape), sinks=Sinks(ids=(3,), names=("x",)),
    )  # fmt: skip
    full = Mask.full(11, 11).trimmed(torch.zeros_like(lengths), lengths)
    dense = Mask.from_dense(full.visible(slice(None), slice(None)) & (torch.rand(3, 1, 11, 11) < 0.5))
    layers = []
    for index, (mask, keys) in enumerate(((full, 11), (full, 11), (dense, 11), (Mask.full(11, 13), 13))):
        site = Site("", index, f"layer.{index}", H, G, D, F, False)
        q, k, v = torch.randn(3, H, 11, D), torch.randn(3, G, keys, D), torch.randn(3, G, keys, F)
        q, k, v = (x * tokens.real[:, None, :, None] if x.shape[2] == keys == 11 else x for x in (q, k, v))
        lse = torch.randn(3, H, 11)
        lse = lse.masked_fill(~tokens.real[:, None], -torch.inf) if keys == 11 else lse
        rule = Rule(0.125, 30.0, torch.randn(H), torch.randn(1, H, 11, keys)) if index % 2 else Rule(0.125)
        layers.append(LayerRecord(site, q, k, v, lse, mask, rule, lengths, tokens, "tiles"))
    recording = Recording({"": layers}, tokens, {"model": "minilm"})
    recording.save(path)
    return recording


def contents(recording):
    """Everything a recording holds, read to the end, as plain values."""
    tokens = recording.tokens
    out = [tokens.pieces, tokens.texts, tokens.sinks, tokens.rarity_because, dict(recording.provenance)]
    tensors = [getattr(tokens, name) for name in ("lengths", "ids", "special", "offsets", "rarity")]
    for layers in recording.stacks.values():
        for layer in layers:
            out += [layer.site, layer.because, layer.rule.scale, layer.rule.softcap, layer.mask.num_keys]
            tensors += [layer.q, layer.k, layer.v, layer.lse, layer.lengths, layer.rule.sinks, layer.rule.bias]
            tensors += [layer.mask.start, layer.mask.stop, layer.mask.dense]
    return out, [None if x is None else (x.dtype, tuple(x.shape), x.tolist()) for x in tensors]


def read(path):
    return contents(open_recording(path))


def assert_refused(path, words, error=RecordingError):
    """One line that names the file, and is what `words` says."""
    with pytest.raises(error) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and message.endswith("."), message
    assert re.search(words, message), message


def split(path):
    """A file's header, and the bytes of its tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path, header, tensors, *, sign=True):
    """Write a file; `sign` gives its metadata the checksum that they would have had."""
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if sign and isinstance(metadata, dict):
        metadata.pop("crc32_metadata", None)
        metadata["crc32_metadata"] = metadata_sum(metadata)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
