"""What a run leaves on the disk: damaged, shut, full or in another run's hands, it is said, and nothing is lost."""

import os
import shutil

import pytest

import manyheads as mh
from manyheads.errors import FileAccessError, StatisticError, TextError
from manyheads.recording.file import safetensors_io
from manyheads.recording.file.safetensors_io import write_tensors
from manyheads.statistics.corpus_run import store
from manyheads.statistics.corpus_run.store import RunFolder
from tests.statistics.corpusruns import (
    CHUNK,
    STATISTICS,
    assert_near,
    assert_same_tables,
    patch_small_batches,
    some_texts,
    tiny_lm,
)


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


def stopped_before_its_end(lm, texts, folder, monkeypatch) -> list:
    """A run that measured everything and was killed before it was put together: its parts."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(store.RunFolder, "finish", stop)
        mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder)
    return sorted(path.name for path in folder.glob("part-*"))


class Stopped(BaseException):
    pass


def stop(*_):
    raise Stopped


def test_a_batch_that_a_power_cut_left_torn_is_measured_again_and_said(lm, tmp_path, monkeypatch, caplog):
    texts = some_texts(CHUNK)
    monkeypatch.setattr(store, "MERGE_BYTES", 1 << 30)
    parts = stopped_before_its_end(lm, texts, tmp_path, monkeypatch)
    assert len(parts) >= 3
    for name, data in zip(parts[-3:], (b"", b"x" * 99, (tmp_path / parts[-1]).read_bytes()[:-9]), strict=True):
        (tmp_path / name).write_bytes(data)
    with caplog.at_level("WARNING", logger="manyheads"):
        got = mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path)
    assert caplog.text.count("is damaged, as after a power cut: its batch is measured again") == 3
    assert_same_tables(got, mh.measure(lm, iter(texts), STATISTICS, kinds=True))


def test_a_merged_part_that_is_damaged_is_refused(lm, tmp_path, monkeypatch):
    texts = some_texts(CHUNK)
    monkeypatch.setattr(store, "MERGE_BYTES", 1)
    (part,) = stopped_before_its_end(lm, texts, tmp_path, monkeypatch)
    data = (tmp_path / part).read_bytes()
    (tmp_path / part).write_bytes(data[:-1])
    with pytest.raises(StatisticError, match="cannot be gone on with: .* is cut off"):
        mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path)
    assert (tmp_path / part).read_bytes() == data[:-1]


@pytest.mark.parametrize("merged", [3, 5])
def test_a_batch_that_several_parts_cover_counts_once(merged, lm, tmp_path, monkeypatch):
    """A merged part beside those it replaces; two merged ones that share batches, as a late process leaves them."""
    texts = some_texts(3 * CHUNK)
    monkeypatch.setattr(store, "MERGE_BYTES", 1 << 30)
    want = mh.measure(lm, iter(texts), STATISTICS, kinds=True)
    stopped_before_its_end(lm, texts, tmp_path, monkeypatch)
    monkeypatch.setattr(store, "_remove", lambda path: None)
    batches = [path for path in sorted(tmp_path.glob("part-*")) if "sum" not in path.name]
    for chosen in (batches[:merged], batches[2:4]):
        total = store.Total()
        for path in chosen:
            part, inputs = store.read_part(path)
            total.add(part)
        store.write_part(tmp_path / total.file_name, total, inputs)
    parts = store.Parts.opened(tmp_path, inputs)
    assert parts.total.num_texts == want.sums.num_texts and len(parts.paths) == len(batches) - merged + 1
    got = mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path)
    assert_near(got, want)


def test_a_part_of_another_run_is_refused_by_name(lm, tmp_path, monkeypatch):
    texts = some_texts(CHUNK)
    parts = stopped_before_its_end(lm, texts[1:], tmp_path / "a", monkeypatch)
    stopped_before_its_end(lm, texts, tmp_path / "b", monkeypatch)
    shutil.copy(tmp_path / "a" / parts[0], tmp_path / "b" / parts[0])
    with pytest.raises(StatisticError, match=r"was begun with other inputs: texts \(.* then, .* now\)"):
        mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path / "b")


@pytest.mark.parametrize("left", [["run.safetensors", "finished.safetensors"], ["shard-0123-1.journal"]])
def test_a_folder_of_an_older_manyheads_is_refused_in_words_and_left_as_it_is(left, lm, tmp_path):
    for name in left:
        write_tensors(tmp_path / name, {}, {"format": store.FORMAT, "format_version": "1", "said": "{}"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        StatisticError, match="an older manyheads began it, which kept a journal .* give another folder"
    ):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"} == before


def test_a_process_that_outlived_the_first_of_its_run_keeps_others_out(lm, tmp_path):
    with (
        RunFolder.opened(tmp_path),
        RunFolder.opened(tmp_path, 1),
        RunFolder.opened(tmp_path, 2),
    ):
        assert sorted(os.listdir(tmp_path)) == ["lock", "lock-1", "lock-2"]
    (tmp_path / "lock-7").touch()  # of a process that was killed
    with (
        RunFolder.opened(tmp_path, 1),
        pytest.raises(StatisticError, match="another process is still at work in .*: wait for it"),
    ):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["finished.safetensors", "lock", "run.safetensors"]


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
