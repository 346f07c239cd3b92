"""A run that is stopped goes on where it was: to the last bit what it would have been, nothing lost, nothing twice.

What a run leaves on the disk: damaged, shut, full or in another run's hands, it is said, and nothing is lost.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

import manyheads as mh
from manyheads.base import parts_folder
from manyheads.corpora import Corpus, corpus_of
from manyheads.errors import FileAccessError, StatisticError, TextError
from manyheads.measurement.corpus_run import chunks as inputs
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run import worker as workers
from manyheads.measurement.corpus_run.store import RunFolder
from manyheads.recording.file import safetensors_io
from manyheads.recording.file.safetensors_io import write_tensors
from manyheads.statistics.defined import class_mass
from tests.measurement.corpus_runs import (
    CHUNK,
    STATISTICS,
    Stopped,
    assert_near,
    assert_same_tables,
    patch_small_batches,
    some_texts,
    stopping_after,
    tiny_lm,
)
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    patch_small_batches(monkeypatch)


@pytest.fixture
def lm():
    return tiny_lm()


# ---------------------------------------------------------------------------------------------------- stopped and on


def test_a_run_that_is_stopped_anywhere_goes_on_to_the_same_last_bit(lm, tmp_path, monkeypatch):
    texts = [*some_texts(2 * CHUNK), "", "the cat"]
    want = mh.measure(lm, iter(texts), STATISTICS, kinds=True)
    stops = 0
    while True:
        with monkeypatch.context() as patch:
            stopping_after(3, patch)
            try:
                got = mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path)
                break
            except Stopped:
                stops += 1
    assert stops >= 2
    assert_same_tables(got, want)
    assert got.notes["resumed"].startswith("gone on with after ") and got.failures == want.failures
    assert "resumed" not in want.notes


def half_written(file, parts, metadata):
    """As much of a file as was on its way to the disk when the end came."""
    with NamedTemporaryFile() as whole:
        safetensors_io._write(whole, parts, metadata)
        whole.seek(0)
        file.write(whole.read()[: whole.tell() // 2])
    file.flush()


def kept_by_a_kill(path, unlink=os.unlink):
    """A killed process does not delete the file that it was writing."""
    if ".manyheads-" not in str(path):
        unlink(path)


WRITES = {
    "written half": (safetensors_io, "_write", half_written),
    "written, not in its place": (os, "replace", None),
    "to be written": (store, "write_state", None),
    "to be deleted": (store, "_remove", None),
    "to be locked": (parts_folder, "locked", None),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_being_written_when_the_end_comes_is_whole_or_not_there(name, lm, tmp_path, monkeypatch):
    """The end comes at each write in turn, as a kill does it: what was being written stays, and nothing tidies up."""
    monkeypatch.setattr(store, "MERGE_BYTES", 1)
    texts = some_texts(CHUNK // 2)
    want = mh.measure(lm, iter(texts), STATISTICS, kinds=True)
    owner, attribute, at_the_end = WRITES[name]
    real = getattr(owner, attribute)
    at = 0
    for at in range(100):
        count = [at]

        def torn(*args, count=count, **kwargs):
            if not count[0]:
                if at_the_end is not None:
                    with monkeypatch.context() as inner:
                        inner.setattr(owner, attribute, real)
                        at_the_end(*args, **kwargs)
                raise Stopped
            count[0] -= 1
            return real(*args, **kwargs)

        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, torn)
            patch.setattr(os, "unlink", kept_by_a_kill)
            try:
                mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder)
            except Stopped:
                left = list(folder.glob(".manyheads-*"))
                assert bool(left) == (name in ("written half", "written, not in its place"))
            else:
                break
        assert_same_tables(mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder), want)
        assert not list(folder.glob(".manyheads-*"))
        shutil.rmtree(folder)
    assert at >= (1 if name == "to be locked" else 3)


def test_only_the_batch_in_hand_is_measured_again(lm, tmp_path, monkeypatch):
    texts, measured = some_texts(3 * CHUNK), []
    real = workers.sums_of

    def counted(run, batches, *rest, **how):
        measured.extend(text for batch in batches for text in batch.tokens.texts)
        return real(run, batches, *rest, **how)

    monkeypatch.setattr(workers, "sums_of", counted)
    with monkeypatch.context() as patch:
        stopping_after(7, patch)
        with pytest.raises(Stopped):
            mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    assert sorted(measured) == sorted(texts)  # each text once, and none of the seven batches again


def test_a_chunk_that_is_done_is_not_even_tokenised(lm, tmp_path, monkeypatch):
    texts = some_texts(4 * CHUNK)
    with monkeypatch.context() as patch:
        patch.setattr("manyheads.measurement.corpus_run.chunks.SURVEY_TOKENS", 10)
        patch.setattr(inputs, "SURVEY_TOKENS", 1)
        with monkeypatch.context() as inner:
            stopping_after(9, inner)
            with pytest.raises(Stopped):
                mh.measure(lm, texts, ["entropy"], resume=tmp_path)
        read, real = [], workers.read_chunk
        patch.setattr(workers, "read_chunk", lambda lm, chunk, long: read.append(chunk.number) or real(lm, chunk, long))
        seen = []
        mh.measure(lm, texts, ["entropy"], resume=tmp_path, progress=lambda *at: seen.append(at))
    assert read and read == list(range(read[0], 4)) and read[0] >= 1
    assert seen[0] == (CHUNK, len(texts)) and seen[-1] == (len(texts), len(texts))


def test_ctrl_c_says_how_to_go_on_and_goes_through(lm, tmp_path, monkeypatch, caplog):
    texts, count = some_texts(2 * CHUNK), [4]
    real = workers.sums_of

    def interrupted(*args, **how):
        count[0] -= 1
        if not count[0]:
            raise KeyboardInterrupt
        return real(*args, **how)

    with monkeypatch.context() as patch, caplog.at_level("WARNING", logger="manyheads"):  # where it is off, too
        patch.setattr(workers, "sums_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    said = caplog.text
    assert f"all of them kept in {tmp_path}: the same call goes on from there" in said and "stopped after " in said
    assert_same_tables(mh.measure(lm, texts, ["entropy"], resume=tmp_path), mh.measure(lm, iter(texts), ["entropy"]))


def test_a_finished_run_is_read_back_at_once_and_says_so(lm, tmp_path, monkeypatch):
    texts = some_texts(CHUNK + 3)
    first = mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path / "a" / "b")
    stopping_after(0, monkeypatch)
    seen = []
    again = mh.measure(
        lm, texts, STATISTICS, kinds=True, resume=str(tmp_path / "a" / "b"), progress=lambda *at: seen.append(at)
    )
    assert_same_tables(again, first)
    assert again.notes["resumed"] == f"finished before, read back from {tmp_path / 'a' / 'b'}"
    assert seen == [(len(texts), len(texts))] and again.sinks == first.sinks
    assert {k: v for k, v in again.notes.items() if k != "resumed"} == first.notes
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["finished.safetensors", "lock", "run.safetensors"]


def test_statistics_made_from_the_survey_are_made_of_the_same_head_again(lm, tmp_path, monkeypatch):
    monkeypatch.setattr("manyheads.measurement.corpus_run.chunks.SURVEY_TOKENS", 60)
    texts, seen = some_texts(3 * CHUNK), []

    def wanted(survey):
        seen.append(survey)
        words = len({word for document in survey.documents for word in document.text.split()})
        return ["entropy", class_mass(f"of_{words}", lambda tokens: tokens.first, "first", source="a test")]

    with monkeypatch.context() as patch:
        stopping_after(5, patch)
        with pytest.raises(Stopped):
            mh.measure(lm, texts, wanted, resume=tmp_path)
    for _ in range(2):  # gone on with, then finished
        got = mh.measure(lm, texts, wanted, resume=tmp_path)
    assert len(seen) == 3 and all(each.documents == seen[0].documents for each in seen)
    assert_same_tables(got, mh.measure(lm, iter(texts), wanted))


# ------------------------------------------------------------------------------------------------------ other inputs


def test_a_run_of_other_inputs_is_refused_by_name_and_left_as_it_is(lm, tmp_path):
    texts = some_texts(CHUNK)
    want = mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    others = {
        "texts": lambda: mh.measure(lm, texts[1:], ["entropy"], resume=tmp_path),
        "model's weights": lambda: mh.measure(tiny_lm(1), texts, ["entropy"], resume=tmp_path),
        "model's config": lambda: mh.measure(
            mh.load(tiny_bert(layer_norm_eps=1e-3), tokenizer=tiny_tokenizer()), texts, ["entropy"], resume=tmp_path
        ),
        "tokenizer": lambda: mh.measure(
            replace(lm, tokenizer=tiny_tokenizer(special_tokens=False)), texts, ["entropy"], resume=tmp_path
        ),
        "statistics": lambda: mh.measure(lm, texts, ["distance"], resume=tmp_path),
        "long": lambda: mh.measure(lm, mh.Inputs(texts, long="truncate"), ["entropy"], resume=tmp_path),
        "kinds": lambda: mh.measure(lm, texts, ["entropy"], resume=tmp_path, kinds=True),
        "sinks": lambda: mh.measure(lm, texts, ["entropy"], resume=tmp_path, sinks=want.sinks),
    }
    for name, other in others.items():
        refuses(StatisticError, rf"the run in .* was begun with other inputs: {name} \(.* then, .* now", other)
    refuses(StatisticError, r"give another folder, or delete that one\.", others["texts"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_code_is_another_input_and_what_can_be_read_once_only_cannot_be_gone_on_with(lm, tmp_path, monkeypatch):
    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    monkeypatch.setattr(inputs, "code_digest", lambda: "other code")
    with pytest.raises(StatisticError, match=r"manyheads' own code \(the code then, other code now\)"):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    message = "needs texts that can be read again, and a stream of texts can be read once"
    refuses(StatisticError, message, mh.measure, lm, iter(["the cat"]), ["entropy"], resume=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_corpus_that_changed_under_an_equal_key_is_noticed(lm, tmp_path, monkeypatch):
    texts = some_texts(2 * CHUNK)
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(Stopped):
            mh.measure(lm, Corpus(corpus_of(texts).open, "a file", "key", 9), ["entropy"], resume=tmp_path)
    other = Corpus(corpus_of([text * 9 for text in texts]).open, "a file", "key", 9)
    message = r"the corpus is not what it was when this run began: its texts from number 0"
    refuses(StatisticError, message, mh.measure, lm, other, ["entropy"], resume=tmp_path)


# ---------------------------------------------------------------------------------------------------- real processes


@pytest.mark.slow
def test_a_process_killed_again_and_again_comes_to_the_same_last_bit(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.measurement.killed", str(tmp_path / "run"), "5"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"] >= 3
    assert {found[name] for name in ("num", "den", "mass", "even", "counts")} == {0.0}
    assert sorted(found["left"]) == ["finished.safetensors", "lock", "run.safetensors"]


def test_a_state_that_is_damaged_says_so(lm, tmp_path):
    texts = some_texts(CHUNK)
    mh.measure(lm, texts, ["entropy"], resume=tmp_path)
    path = tmp_path / "finished.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    message = r"the run in .* cannot be continued: .* To start again, give another"
    refuses(StatisticError, message, mh.measure, lm, texts, ["entropy"], resume=tmp_path)
    path.write_bytes(b"x")
    refuses(StatisticError, "cannot be continued", mh.measure, lm, texts, ["entropy"], resume=tmp_path)


def stopped_before_its_end(lm, texts, folder, monkeypatch) -> list:
    """A run that measured everything and was killed before it was put together: its parts."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(store.RunFolder, "finish", stop)
        mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder)
    return sorted(path.name for path in folder.glob("part-*"))


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
    with pytest.raises(StatisticError, match="cannot be continued: .* is cut off"):
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
        total = store.RunTotal()
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
    with pytest.raises(StatisticError, match=r"was begun with other inputs: .*; texts \(.* then, .* now\)"):
        mh.measure(lm, texts, STATISTICS, kinds=True, resume=tmp_path / "b")


@pytest.mark.parametrize("left", [["run.safetensors", "finished.safetensors"], ["shard-0123-1.journal"]])
def test_a_folder_of_an_older_manyheads_is_refused_in_words_and_left_as_it_is(left, lm, tmp_path):
    for name in left:
        write_tensors(tmp_path / name, {}, {"format": store.FORMAT, "format_version": "1", "said": "{}"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StatisticError, match="an older manyheads began it, which kept less .* give another folder"):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"} == before


def test_a_process_that_outlived_the_first_of_its_run_keeps_others_out(lm, tmp_path):
    with RunFolder.opened(tmp_path), RunFolder.opened(tmp_path, 1), RunFolder.opened(tmp_path, 2):
        assert sorted(os.listdir(tmp_path)) == ["lock", "lock-1", "lock-2"]
    (tmp_path / "lock-7").touch()  # of a process that was killed
    words = "another process is still at work in .*: wait for it"
    with RunFolder.opened(tmp_path, 1), pytest.raises(StatisticError, match=words):
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["finished.safetensors", "lock", "run.safetensors"]


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
        refuses(FileAccessError, "the disk is full", mh.measure, lm, texts, STATISTICS, resume=tmp_path)
    got = mh.measure(lm, texts, STATISTICS, resume=tmp_path)
    assert_same_tables(got, mh.measure(lm, iter(texts), STATISTICS))


def test_two_runs_at_once_in_one_folder_are_refused(lm, tmp_path):
    def meanwhile(done, total):
        with pytest.raises(StatisticError, match=r"another process is still at work in .*: wait for it, end it"):
            mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)

    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path, progress=meanwhile)
    mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)


def test_where_every_text_fails_or_nothing_can_be_written_nothing_is_kept_as_finished(lm, tmp_path):
    refuses(TextError, "no text of 2 texts could be measured", mh.measure, lm, [" ", ""], ["entropy"], resume=tmp_path)
    assert "finished.safetensors" not in os.listdir(tmp_path)
    (tmp_path / "file").write_text("x")
    refuses(FileAccessError, "cannot write .*file", mh.measure, lm, ["the cat"], ["entropy"], resume=tmp_path / "file")
