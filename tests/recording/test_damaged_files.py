"""A file that is not a whole recording of ours is refused in one line, and never gives other numbers than were saved.

First damage, that the checksums show; then files whose checksums fit but that contradict themselves.
"""

import json
import os
import re
import struct
import time
import zlib

import pytest
import torch
from safetensors.torch import save_file

from manyheads.errors import FileAccessError, ManyHeadsError, RecordingError
from manyheads.recording import open_recording
from manyheads.recording.file import format as recording_format
from tests.recording.damage import assert_refused, contents, join, read, split
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("unchecked_types")

# ------------------------------------------------------------------------------------------------- files of other kinds


def test_a_file_that_cannot_be_had_is_said(tmp_path, monkeypatch):
    assert_refused(tmp_path / "no.heads", r"^cannot read .*no\.heads: there is no such file", FileAccessError)
    assert_refused(tmp_path, "it is a folder", FileAccessError)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert_refused(tmp_path / "pipe", "it is a device or a pipe, not a file", FileAccessError)
    (tmp_path / "file").touch()
    assert_refused(tmp_path / "file" / "cat.heads", "a part of its path is a file", FileAccessError)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert_refused(tmp_path / "file", "you have no permission to", FileAccessError)


def test_what_is_no_name_of_a_file_is_refused_in_words():
    for given in (None, 3):
        with pytest.raises(RecordingError, match=rf"^{given} is not a file to open: give the name of one made by save"):
            open_recording(given)


OTHER_KINDS = {
    "empty": b"", "short": b"\x02\x00\x00", "text": b"The cat sat on the mat, and the mat was flat.\n",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94.", "a zip": b"PK\x03\x04" + bytes(100),
    "zeros": bytes(1000), "a header of 2**63": struct.pack("<Q", 2**63) + b"{}",
    "a header of 2 GB": struct.pack("<Q", 2**31) + b"{}",
}  # fmt: skip


@pytest.mark.parametrize("data", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_what_is_no_safetensors_file_is_refused(path, data):
    path.write_bytes(data)
    assert_refused(path, "is not a recording, and not a safetensors file: give one made by save")


def test_other_safetensors_files_are_refused_and_a_newer_version_says_so_whatever_else_it_holds(path):
    save_file({"weight": torch.zeros(2, 3)}, path)
    words = "is a safetensors file, but not a recording: its format is not said, not 'manyheads-recording'"
    assert_refused(path, words)
    save_file({"weight": torch.zeros(2, 3)}, path, {"format": "pt"})
    assert_refused(path, "its format is 'pt', not 'manyheads-recording'")
    for header in ({"x": {"dtype": "F4", "shape": "many"}}, {}):
        header["__metadata__"] = {"format": "manyheads-recording", "format_version": "2"}
        join(path, header, b"", sign=False)
        assert_refused(path, "was written by a newer manyheads: format 2, this one reads up to 1. Update manyheads")


@pytest.mark.parametrize("version", ["", "1.0", "-1", "one", "²", "1" * 5000])
def test_a_version_that_is_no_number_is_damage(path, version):
    join(path, {"__metadata__": {"format": "manyheads-recording", "format_version": version}}, b"")
    assert_refused(path, "is damaged: its format's version is")


# --------------------------------------------------------------------------------------------------------------- damage


def test_a_file_cut_off_anywhere_is_refused_and_what_is_added_to_it(saved, path, random):
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    assert_refused(path, "is damaged: 1 bytes follow its last tensor")
    header = 8 + int.from_bytes(data[:8], "little")
    for length in {0, 1, 8, 9, 10, header - 1, header, header + 1, len(data) - 1, *random.sample(range(len(data)), 60)}:
        path.write_bytes(data[:length])
        words = (
            "and not a safetensors file" if length < 9 else "is cut off: its .* bytes, but there are .*Copy it again"
        )
        assert_refused(path, words)


def test_a_changed_byte_is_refused_or_changes_nothing(saved, path, random):
    """Bytes of the header and of tensors, drawn again for each commit, one at a time: exact or refused."""
    data, whole = path.read_bytes(), contents(saved)
    header = 8 + int.from_bytes(data[:8], "little")
    places = random.sample(range(header), 250) + random.sample(range(header, len(data)), 150)
    for place in places:
        byte = random.choice([data[place] ^ 1 << random.randrange(8), random.randrange(256)])
        path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        try:
            assert read(path) == whole, place
        except RecordingError as error:
            assert str(path) in str(error)


def test_many_changed_bytes_are_refused(saved, path, random):
    data = path.read_bytes()
    for _ in range(100):
        begin = random.randrange(len(data))
        end = min(len(data), begin + random.choice([2, 30, 1000]))
        noise = random.randbytes(end - begin)
        if noise != data[begin:end]:
            path.write_bytes(data[:begin] + noise + data[end:])
            refuses(RecordingError, re.escape(str(path)), read, path)


def test_damage_in_a_layer_is_found_when_it_is_read_and_leaves_the_others(saved, path):
    header, tensors = split(path)
    begin = header["layer.2.k"]["data_offsets"][0]
    join(path, header, tensors[:begin] + bytes([tensors[begin] ^ 1]) + tensors[begin + 1 :])
    opened = open_recording(path)
    assert torch.equal(opened.layers[1].k, saved.layers[1].k)
    with pytest.raises(RecordingError, match=r"damaged: the bytes of 'layer\.2\.k' are not those that were written"):
        opened.layers[2]


def test_a_file_changed_or_cut_short_while_it_is_open_is_refused(saved, path):
    opened = open_recording(path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size // 4)
    refuses(RecordingError, "it became shorter while it was open", list, opened.layers)
    with open(path, "r+b") as file:
        file.truncate(size)
    refuses(RecordingError, "checksum differs", list, opened.layers)


def test_a_header_that_is_no_json_is_damage(path):
    for text in (b"{" + b" " * 9, b'{"a":' * 100_000, b'{"a": \xff}', b'{"a": ' + b"9" * 5000 + b"}", b"{} {}"):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        assert_refused(path, "is damaged: its header is not JSON")
    join(path, {"__metadata__": {"format": 3}}, b"")
    assert_refused(path, "its header's metadata are not texts")
    join(path, {"__metadata__": []}, b"")
    assert_refused(path, "its header's metadata are not texts")


def edit_tensor(path, name, change):
    """Change the bytes of one tensor and sign it, as somebody might who means harm."""
    header, tensors = split(path)
    begin, end = header[name]["data_offsets"]
    new = change(tensors[begin:end])
    assert len(new) == end - begin
    sums = json.loads(header["__metadata__"]["crc32"])
    sums[name] = f"{zlib.crc32(new):08x}"
    header["__metadata__"]["crc32"] = json.dumps(sums)
    join(path, header, tensors[:begin] + new + tensors[end:])


ENTRIES = {
    "no mapping": ("layer.0.q", 7, "does not say where 'layer.0.q' is"),
    "no dtype": ("layer.0.q", {"shape": [2], "data_offsets": [0, 8]}, "'layer.0.q' has the type 'None', none of F64"),
    "other dtype": ("layer.0.q", {"dtype": "I16", "shape": [2], "data_offsets": [0, 4]}, "has the type 'I16'"),
    "negative": ("layer.0.q", {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "does not say where"),
    "true": ("layer.0.q", {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "does not say where"),
    "float": ("layer.0.q", {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "does not say where"),
    "backwards": ("layer.0.q", {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "has -8 bytes"),
    "many axes": ("layer.0.q", {"dtype": "U8", "shape": [1] * 99, "data_offsets": [0, 1]}, "does not say where"),
    "endless axis": ("layer.0.q", {"dtype": "U8", "shape": [0, 2**61, 8], "data_offsets": [0, 0]}, "does not fit U8"),
    "other size": (
        "layer.0.q",
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        r"does not fit F32 of shape \[3\]",
    ),
    "overlap": ("layer.0.q", {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}, "overlap or leave gaps"),
    "beyond": ("zz", {"dtype": "U8", "shape": [2**50], "data_offsets": [-1, -1]}, "is cut off: its tensors are"),
    "unnamed": ("zz", {"dtype": "U8", "shape": [0], "data_offsets": [-1, -1]}, "the tensors that its checksums name"),
}


@pytest.mark.parametrize("name, entry, words", ENTRIES.values(), ids=ENTRIES)
def test_a_header_that_lies_about_where_tensors_are_is_refused(saved, path, name, entry, words):
    header, tensors = split(path)
    if name == "zz":  # one more, after the last
        entry = {**entry, "data_offsets": [len(tensors), len(tensors) + entry["shape"][0]]}
    header[name] = entry
    join(path, header, tensors)
    assert_refused(path, words)


def described(change):
    """An edit of the description of layers."""

    def edit(metadata):
        about = json.loads(metadata["recording"])
        change(about)
        metadata["recording"] = json.dumps(about)

    return edit


def in_layer(**changes):
    return described(lambda about: about["stacks"][""][1].update(changes))


def in_site(**changes):
    return described(lambda about: about["stacks"][""][1]["site"].update(changes))


DESCRIPTIONS = {
    "no layers": (lambda metadata: metadata.pop("recording"), "its header lacks 'recording'"),
    "no provenance": (lambda metadata: metadata.pop("provenance"), "its header lacks 'provenance'"),
    "no sums": (lambda metadata: metadata.pop("crc32"), "its header lacks 'crc32'"),
    "sums are a list": (lambda metadata: metadata.update(crc32="[]"), "tensors that its checksums name"),
    "not JSON": (lambda metadata: metadata.update(recording="{"), "'recording' in its header is not JSON"),
    "deep": (lambda metadata: metadata.update(recording="[" * 100_000), "'recording' in its header is not JSON"),
    "a list": (lambda metadata: metadata.update(recording="[]"), "'tokens' is missing or no list"),
    "provenance 3": (lambda metadata: metadata.update(provenance="3"), "does not say what it was made from"),
    "no tokens": (described(lambda about: about.update(tokens=[])), "does not say what it was made from"),
    "more tokens": (described(lambda about: about["tokens"].append({})), r"it lacks the tensor 'tokens\.1\.lengths'"),
    "no sinks": (described(lambda about: about["tokens"][0].pop("sinks")), "'sinks' is missing or no dict"),
    "sink ids": (described(lambda about: about["tokens"][0]["sinks"].update(ids=["a"])), "its ids are not all int"),
    "mask keys": (
        described(lambda about: about.update(masks=[12, 12, 12])),
        r"mask\.0 is for 12 keys, but layer\.0 has 11",
    ),
    "fewer stretches": (
        described(lambda about: about["tokens"][0].update(stretches=[[0, 0]])),
        r"tokens\.0\.stretches is for 1 texts, but there are 3",
    ),
    "stretches of four": (
        described(lambda about: about["tokens"][0].update(stretches=[[0, 0, 0, 0]] * 3)),
        "its stretches are not all two or three numbers",
    ),
    "stretches of words": (
        described(lambda about: about["tokens"][0].update(stretches=[["a", 0]] * 3)),
        "its stretches are not all int",
    ),
    "mask texts": (described(lambda about: about.update(masks=["11"] * 3)), "its masks are not all int"),
    "other mask": (in_layer(mask=2), r"mask\.2 is for 13 keys, but layer\.1 has 11"),
    "no such mask": (in_layer(mask=3), "'mask' is 3, not 0 to 2"),
    "no such bias": (in_layer(bias=2), r"bias\.2 is missing"),
    "another's bias": (in_layer(bias=1), r"bias\.1 has shape \(1, 6, 11, 13\), not"),
    "no such tokens": (in_layer(tokens=-1), "'tokens' is -1, not 0 to 0"),
    "true tokens": (in_layer(tokens=True), "'tokens' is missing or no int"),
    "no scale": (in_layer(scale=None), "'scale' is missing or no float or int"),
    "text softcap": (in_layer(softcap="30"), "'softcap' is missing or no float or int or NoneType"),
    "no because": (in_layer(because=None), "'because' is missing or no str"),
    "no site": (in_layer(site=[]), "'site' is missing or no dict"),
    "heads": (in_site(num_heads=9), r"layer\.1\.q has shape \(20, 6, 5\), not \(20, 9, 5\)"),
    "groups": (in_site(num_kv_heads=4), "num_heads=6 is not a multiple of num_kv_heads=4"),
    "width": (in_site(v_dim=5), r"layer\.1\.v has shape \(20, 3, 4\), not \(20, 3, 5\)"),
    "endless heads": (in_site(num_heads=2**31 + 6), "'num_heads' is 2147483654, not 0 to 1048575"),
    "negative layer": (in_site(layer=-1), "'layer' is -1, not 0 to"),
    "causal": (in_site(causal=0), "'causal' is missing or no bool"),
    "more layers": (
        described(lambda about: about["stacks"][""].append(about["stacks"][""][0])),
        r"layer\.4\.q is missing",
    ),
    "other stack": (
        described(lambda about: about["stacks"].update(x=[about["stacks"][""][0]])),
        r"x\.layer\.0\.q is missing",
    ),
}


@pytest.mark.parametrize("change, words", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_that_does_not_fit_its_tensors_is_refused(saved, path, change, words):
    header, tensors = split(path)
    change(header["__metadata__"])
    join(path, header, tensors)
    assert_refused(path, words)


def longs(*values):
    return lambda _: struct.pack(f"<{len(values)}q", *values)


TENSORS = {
    "other sum": ("tokens.0.lengths", longs(7, 11, 3), r"tokens\.0\.pieces has 2 for text 2, which has 3"),
    "negative": ("tokens.0.lengths", longs(-7, 25, 2), "holds -7, but a text has no fewer than 0 tokens"),
    "endless": ("tokens.0.lengths", longs(2**62, 2**62, 2), "are over 100000000 positions"),
    "runs": ("mask.0.stop", lambda old: b"\xff" * len(old), "has runs that are not 0 <= start <= stop <= 11"),
    "pieces": ("tokens.0.pieces", lambda old: b"{}" + b" " * (len(old) - 2), r"tokens\.0\.pieces is not a list"),
    "texts": ("tokens.0.texts", lambda old: b"[1]" + b" " * (len(old) - 3), "its texts are not all str"),
    "fewer texts": ("tokens.0.texts", lambda old: b'["a"]' + b" " * (len(old) - 5), "is for 1 texts, but there are 3"),
    "fewer pieces": (
        "tokens.0.pieces",
        lambda old: b"[[],[],[]]" + b" " * (len(old) - 10),
        "has 0 for text 0, which has 7",
    ),
    "no text": ("tokens.0.texts", lambda old: b"\xff" * len(old), r"tokens\.0\.texts is not JSON"),
    "deep": ("tokens.0.pieces", lambda old: b"[" * len(old), r"tokens\.0\.pieces is not JSON"),
}


@pytest.mark.parametrize("name, change, words", TENSORS.values(), ids=TENSORS)
def test_tensors_that_contradict_each_other_are_refused(saved, path, name, change, words):
    edit_tensor(path, name, change)
    assert_refused(path, words)


def test_texts_that_are_no_bytes_are_refused_and_a_small_file_cannot_ask_for_much_memory(saved, path, monkeypatch):
    monkeypatch.setattr(recording_format, "MOST_POSITIONS", 32)
    assert_refused(path, r"3 texts, padded to 11 tokens, are over 32 positions")
    monkeypatch.undo()
    header, tensors = split(path)
    size = header["tokens.0.texts"]["shape"][0]
    assert size % 2 == 0
    header["tokens.0.texts"] |= {"dtype": "BF16", "shape": [size // 2]}
    join(path, header, tensors)
    assert_refused(path, r"tokens\.0\.texts holds torch\.bfloat16, not torch\.uint8")


def mutated(random, value):
    """JSON with one thing in it changed, wherever that is."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = random.choice(keys)
        out = value.copy()
        if random.random() < 0.1:
            del out[key]
        else:
            out[key] = mutated(random, value[key])
        return out
    if isinstance(value, int) and random.random() < 0.6:
        return value + random.choice([-1, 1, 2**31, 2**62, -(2**70)])
    return random.choice([None, True, False, 0, 1, -1, 3, 0.5, 1e400, "", "a", "q\n\ud800", [], {}, [0], [[]], 2**64])


def test_any_signed_lie_is_refused_or_has_tensors_of_the_right_shapes(saved, path, random):
    """The checksums protect from accidents; this is about somebody who writes them again."""
    header, tensors = split(path)
    refused, begun = 0, time.monotonic()
    for _ in range(300):
        lie = json.loads(json.dumps(header))
        what = random.choice(["recording", "recording", "provenance", "crc32", "header", "header"])
        if what == "header":
            lie = mutated(random, lie)
        else:
            lie["__metadata__"][what] = json.dumps(mutated(random, json.loads(lie["__metadata__"][what])))
        join(path, lie, tensors)
        try:
            opened = open_recording(path)
            for layer in opened.layers if len(opened.stacks) == 1 else ():
                site, texts = layer.site, len(layer.lengths)
                assert layer.q.shape[:2] == (texts, site.num_heads) and layer.q.shape[3] == site.qk_dim
                assert layer.k.shape[:2] == (texts, site.num_kv_heads) and layer.lse.shape == layer.q.shape[:3]
                assert (layer.mask.num_queries, layer.mask.num_keys) == (layer.q.shape[2], layer.k.shape[2])
        except ManyHeadsError as error:
            assert "\n" not in str(error)
            str(error).encode()
            refused += 1
    assert 50 < refused < 300
    assert time.monotonic() - begun < 120
