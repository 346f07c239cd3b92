"""What a run leaves on the disk: damaged, shut, full or in another run's hands, it is said, and nothing is lost."""

import os

import pytest

import manyheads as mh
from manyheads.errors import FileAccessError, StatisticError, TextError
from manyheads.recording.file import safetensors_io
from tests.statistics.corpusruns import CHUNK, STATISTICS, assert_same_tables, patch_small_batches, some_texts, tiny_lm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    patch_small_batches(monkeypatch)


@pytest.fixture
def lm():
    return tiny_lm()


def test_a_state_that_is_damaged_says_so(lm, tmp_path):
    texts = some_texts(CHUNK)
    mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    path = tmp_path / "finished.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        StatisticError, match=r"what a run left in .* cannot be gone on with: .* To begin anew, give another"
    ):
        mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    path.write_bytes(b"x")
    with pytest.raises(StatisticError, match="cannot be gone on with"):
        mh.measure(lm, texts, ["entropy"], resume=tmp_path)


def test_a_folder_that_cannot_be_written_says_so(lm, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileAccessError, match="cannot write .*file"):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path / "file")


def test_a_full_disk_ends_the_run_in_words_and_loses_nothing(lm, tmp_path, monkeypatch):
    texts, count = some_texts(2 * CHUNK), [5]
    real = safetensors_io._write

    def full(file, *rest):
        count[0] -= 1
        if not count[0]:
            file.write(b"123")
            raise OSError(28, "No space left on device")
        real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors_io, "_write", full)
        with pytest.raises(FileAccessError, match="the disk is full"):
            mh.measure(lm, texts, STATISTICS, resume=tmp_path)
    got = mh.measure(lm, texts, STATISTICS, resume=tmp_path)
    assert_same_tables(got, mh.measure(lm, iter(texts), STATISTICS))


def test_two_runs_at_once_in_one_folder_are_refused(lm, tmp_path):
    def meanwhile(done, total):
        with pytest.raises(StatisticError, match=r"another process is still at work in .*: wait for it, end it"):
            mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)

    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path, progress=meanwhile)
    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)


def test_where_every_text_fails_nothing_is_kept_as_finished(lm, tmp_path):
    with pytest.raises(TextError, match="no text of 2 texts could be measured"):
        mh.measure(lm, [" ", ""], ["entropy"], resume=tmp_path)
    assert "finished.safetensors" not in os.listdir(tmp_path)
