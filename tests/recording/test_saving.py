"""A recording is saved whole or not at all, and one line says why not.

Inputs are drawn afresh for each commit. A failure prints its seed: MANYHEADS_SEED=... repeats it.
"""

import errno
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyheads.errors import FileAccessError, RecordingError
from manyheads.nn import Mask, Rule
from manyheads.recording import open_recording
from manyheads.recording.file import safetensors_io as container
from tests.recording.bits import D, H, assert_same_recording, make_recording

# -------------------------------------------------------------------------------------------------- whole or not at all


def test_a_recording_can_be_saved_over_the_file_it_is_read_from(fresh, path):
    recording = make_recording(fresh, 4)
    recording.save(path)
    opened = open_recording(path)
    assert opened.layers[1].q is not None
    opened.save(str(path))
    assert_same_recording(opened, recording)
    assert_same_recording(open_recording(path), recording)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("out of memory"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("older", [True, False], ids=["over an older file", "anew"])
def test_an_interrupted_save_leaves_the_folder_as_it_was(fresh, path, monkeypatch, fault, older):
    recording = make_recording(fresh)
    if older:
        recording.save(path)
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    bytes_of, seen = container.bytes_of, []

    def fail_late(tensor):
        seen.append(len(list(path.parent.iterdir())) > len(before))
        if len(seen) == 9:
            raise fault
        return bytes_of(tensor)

    monkeypatch.setattr(container, "bytes_of", fail_late)
    with pytest.raises(type(fault)):
        make_recording(fresh).save(path)
    assert any(seen), "nothing was being written when it was interrupted"
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.turns(5)
def test_ctrl_c_while_saving_leaves_nothing_behind(tmp_path):
    script = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from manyheads.nn import Mask, Rule
from manyheads.recording import LayerRecord, Recording, Tokens
from manyheads.spec import Site
n = 20_000
of = Tokens.unnamed([n])
q, lse = torch.zeros(1, 8, n, 16), torch.zeros(1, 8, n)
mask = Mask.causal(n, n)
sites = [Site("", at, "m", 8, 8, 16, 16, True) for at in range(100)]
layers = [LayerRecord(site, q, q, None, lse, mask, Rule(1.0), of.lengths, of) for site in sites]
print("saving", flush=True)
Recording({"": layers}, of).save(sys.argv[1])
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cat.heads")], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"saving\n"
    while not any(entry.stat().st_size > 1_000_000 for entry in tmp_path.iterdir()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


NO_ROOM = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "your share of the disk is used up",
    errno.EFBIG: "files there cannot be that large",
    errno.EACCES: "you have no permission to. Have it changed",
    errno.EPERM: "you have no permission to",
    errno.EROFS: "it is on a read-only file system. Use another folder",
    errno.EIO: os.strerror(errno.EIO),
}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", NO_ROOM, ids=errno.errorcode.get)
def test_a_disk_that_refuses_is_said_with_what_to_do(fresh, path, monkeypatch, number, call):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(FileAccessError, match=rf"^cannot write {re.escape(str(path))}: {NO_ROOM[number]}.*\.$"):
        make_recording(fresh).save(path)
    assert list(path.parent.iterdir()) == []


def test_paths_that_cannot_be_written_are_refused_each_in_its_words(fresh, tmp_path, monkeypatch):
    recording, file = make_recording(fresh), tmp_path / "file"
    file.write_text("mine")
    refused = {
        tmp_path / "no" / "cat.heads": "its folder does not exist. Make it first",
        file / "cat.heads": "a part of its path is a file, not a folder",
        tmp_path: "it is a folder. Name a file in it",
        Path(os.devnull): "it is a device or a pipe, not a file",
        tmp_path / ("x" * 300): "its name is too long",
        "nul\0l": "embedded null",
    }
    for path, words in refused.items():
        with pytest.raises(FileAccessError, match=rf"^cannot write .*: {words}"):
            recording.save(path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anything
    with pytest.raises(FileAccessError, match="you have no permission to"):
        recording.save(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"] and file.read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_stays_a_link(fresh, path):
    link = path.with_name("link.heads")
    link.symlink_to(path)
    make_recording(fresh).save(link)
    assert link.is_symlink() and not path.is_symlink() and len(open_recording(path).layers) == 3


def test_a_new_file_has_the_permissions_that_new_files_have(fresh, path):
    other = path.with_name("other")
    other.touch()
    make_recording(fresh).save(path)
    assert path.stat().st_mode == other.stat().st_mode


# ------------------------------------------------------------------------------------------------- what cannot be saved


def test_provenance_must_be_plain_data(fresh, path):
    recording = replace(make_recording(fresh), provenance={"dtype": torch.float32})
    with pytest.raises(RecordingError, match=r"cannot be saved: its provenance must be JSON: .*dtype"):
        recording.save(path)
    assert not path.exists()


MISFITS = {
    "q is for": (lambda layer: replace(layer, site=replace(layer.site, qk_dim=D + 1)), r"layer\.0\.q has shape"),
    "groups": (lambda layer: replace(layer, site=replace(layer.site, num_kv_heads=2)), r"layer\.0\.k has shape"),
    "mask keys": (lambda layer: replace(layer, mask=Mask.full(11, 12)), r"mask is for 12 keys"),
    "mask rows": (lambda layer: replace(layer, mask=Mask.full(12, 11)), r"mask\.0\.start has shape \(1, 12\)"),
    "runs": (lambda layer: replace(layer, mask=Mask(layer.mask.start - 1, layer.mask.stop, 11)), "runs that are not 0"),
    "lengths": (lambda layer: replace(layer, lengths=torch.tensor([7, 11])), r"layer\.0\.q has shape"),
    "negative": (lambda layer: replace(layer, lengths=torch.tensor([7, 11, -1])), "holds -1"),
    "pieces": (
        lambda layer: replace(layer, tokens=replace(layer.tokens, pieces=(("a",),) * 3)),
        "pieces has 1 for text 0",
    ),
    "texts": (
        lambda layer: replace(layer, tokens=replace(layer.tokens, texts=("a",))),
        "texts is for 1 texts, but .* 3",
    ),
    "float8": (
        lambda layer: replace(layer, q=layer.q.to(torch.float8_e5m2)),
        "holds torch.float8_e5m2, which is none of",
    ),
    "sinks": (lambda layer: replace(layer, rule=Rule(0.1, sinks=torch.zeros(H + 1))), r"layer\.0\.sinks has shape"),
    "bias": (lambda layer: replace(layer, rule=Rule(0.1, bias=torch.zeros(1, 1, 11, 12))), r"bias\.0 has shape"),
}


@pytest.mark.parametrize("change, words", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_together_is_refused_before_anything_is_written(fresh, path, change, words, reads):
    recording = make_recording(fresh, 1)
    with pytest.raises(RecordingError, match=rf"^this recording cannot be saved, .* does not fit together: .*{words}"):
        replace(recording, stacks={"": [change(recording.layers[0])]}).save(path)
    assert not path.exists()


def test_a_description_too_long_for_any_header_is_refused(fresh, path, monkeypatch):
    monkeypatch.setattr(container, "HEADER_BYTES", 5_000)
    recording = replace(make_recording(fresh), provenance={"notes": "x" * 5_000})
    with pytest.raises(RecordingError, match="put less into its provenance"):
        recording.save(path)
