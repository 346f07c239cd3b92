"""A file that is no whole recording of ours is refused in one line, and never gives other numbers than were saved.

What is written anew with checksums that fit is in test_lying_files.py.
Damage is drawn afresh each run. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import os
import re
import struct

import pytest
import torch
from safetensors.torch import save_file

from manyheads.errors import FileAccessError, RecordingError
from manyheads.recording import open_recording
from tests.recording.damage import assert_refused, contents, join, read, split

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
        with pytest.raises(RecordingError, match=rf"^{given} is no file to open: give the name of one made by save"):
            open_recording(given)


OTHER_KINDS = {
    "empty": b"",
    "short": b"\x02\x00\x00",
    "text": b"The cat sat on the mat, and the mat was flat.\n",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "a zip": b"PK\x03\x04" + bytes(100),
    "zeros": bytes(1000),
    "a header of 2**63": struct.pack("<Q", 2**63) + b"{}",
    "a header of 2 GB": struct.pack("<Q", 2**31) + b"{}",
}


@pytest.mark.parametrize("data", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_what_is_no_safetensors_file_is_refused(path, data):
    path.write_bytes(data)
    assert_refused(path, "is not a recording, nor any safetensors file: give one made by save")


def test_other_safetensors_files_are_refused(path):
    save_file({"weight": torch.zeros(2, 3)}, path)
    assert_refused(
        path, "is a safetensors file, but not a recording: its format is not said, not 'manyheads-recording'"
    )
    save_file({"weight": torch.zeros(2, 3)}, path, {"format": "pt"})
    assert_refused(path, "its format is 'pt', not 'manyheads-recording'")


def test_a_newer_version_says_so_whatever_else_it_holds(path):
    for header in ({"x": {"dtype": "F4", "shape": "many"}}, {}):
        header["__metadata__"] = {"format": "manyheads-recording", "format_version": "2"}
        join(path, header, b"", sign=False)
        assert_refused(path, "was written by a newer manyheads: format 2, this one reads up to 1. Update manyheads")


@pytest.mark.parametrize("version", ["", "1.0", "-1", "one", "²", "1" * 5000])
def test_a_version_that_is_no_number_is_damage(path, version):
    join(path, {"__metadata__": {"format": "manyheads-recording", "format_version": version}}, b"")
    assert_refused(path, "is damaged: its format's version is")


# --------------------------------------------------------------------------------------------------------------- damage


def test_a_file_cut_off_anywhere_is_refused(saved, path, random):
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for length in {0, 1, 8, 9, 10, header - 1, header, header + 1, len(data) - 1, *random.sample(range(len(data)), 60)}:
        path.write_bytes(data[:length])
        words = "nor any safetensors file" if length < 9 else "is cut off: its .* bytes, but there are .*Copy it again"
        assert_refused(path, words)


def test_what_is_added_to_a_file_is_refused(saved, path):
    with open(path, "ab") as file:
        file.write(b"\n")
    assert_refused(path, "is damaged: 1 bytes follow its last tensor")


def test_a_changed_byte_is_refused_or_changes_nothing(saved, path, random):
    """Every header's byte and every tensor's, one at a time: exact or refused."""
    data, whole = path.read_bytes(), contents(saved)
    header = 8 + int.from_bytes(data[:8], "little")
    places = random.sample(range(header), 500) + random.sample(range(header, len(data)), 300)
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
            with pytest.raises(RecordingError, match=re.escape(str(path))):
                read(path)


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
    with pytest.raises(RecordingError, match="it became shorter while it was open"):
        list(opened.layers)
    with open(path, "r+b") as file:
        file.truncate(size)
    with pytest.raises(RecordingError, match="checksum differs"):
        list(opened.layers)


def test_a_header_that_is_no_json_is_damage(path):
    for text in (b"{" + b" " * 9, b'{"a":' * 100_000, b'{"a": \xff}', b'{"a": ' + b"9" * 5000 + b"}", b"{} {}"):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        assert_refused(path, "is damaged: its header is not JSON")
    join(path, {"__metadata__": {"format": 3}}, b"")
    assert_refused(path, "its header's metadata are not texts")
    join(path, {"__metadata__": []}, b"")
    assert_refused(path, "its header's metadata are not texts")
