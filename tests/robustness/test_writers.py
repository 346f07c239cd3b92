"""Several processes at once: into one file or folder (the last one wins, whole), and where only one may be at work."""

import os
import time
from pathlib import Path

import pytest

import manyheads as mh
from manyheads.errors import PlanError, StatisticError
from manyheads.statistics.corpus_run.store import RunFolder
from manyheads.training.session import alone_in
from tests.robustness.faults import WRITERS, Writer, measure_resumed
from tests.robustness.test_kills import version_of

VERSIONS = (2, 3, 4)  # one process each
READS = 8  # while they write


def in_child(work) -> int:
    """`work` in a process of its own, which ends with 0 if it does."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


SHARED = [name for name in WRITERS if name not in ("c.safetensors", "run.json")]  # a training is alone in its folder


@pytest.mark.thinned(name=("cat.heads", "t.parquet", "pruned"))
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.sampled(1)
def test_of_several_writers_of_one_name_the_last_one_wins_and_whoever_reads_finds_a_whole_one(name, tmp_path):
    writer, path, flag = WRITERS[name], tmp_path / "here" / name, tmp_path / "flag"
    path.parent.mkdir()
    for version in (*VERSIONS, 1):  # what is imported or made once
        writer.write(path, version)
    flag.touch()
    children = [in_child(lambda version=version: write_on(writer, path, version, flag)) for version in VERSIONS]
    try:
        seen = {version_of(writer, path) for _ in range(READS)}
    finally:
        flag.unlink()
        codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0, 0, 0] and seen <= {1, *VERSIONS, None}
    assert version_of(writer, path) in {*VERSIONS, None}
    assert not list(tmp_path.rglob(".manyheads-*"))


def write_on(writer: Writer, path: Path, version: int, flag: Path) -> None:
    writer.write(path, version)
    while flag.exists():
        writer.write(path, version)


def test_a_plan_whose_tensors_are_another_plans_is_refused(tmp_path):
    writer = WRITERS["p.json"]
    writer.write(tmp_path / "p.json", 2)
    json = (tmp_path / "p.json").read_bytes()
    writer.write(tmp_path / "p.json", 3)
    (tmp_path / "p.json").write_bytes(json)
    with pytest.raises(PlanError, match="was computed from another corpus than"):
        writer.version_of(tmp_path / "p.json")


def held_elsewhere(hold, flag: Path) -> int:
    """A process that holds a folder until `flag` is gone."""

    def work():
        with hold():
            flag.touch()
            while flag.exists():
                time.sleep(0.01)

    child = in_child(work)
    until = time.monotonic() + 20
    while not flag.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return child


def test_a_second_run_over_a_corpus_in_the_same_folder_is_refused_until_the_first_is_gone(tmp_path):
    child = held_elsewhere(lambda: RunFolder.opened(tmp_path / "run"), tmp_path / "flag")
    before = sorted(os.listdir(tmp_path / "run"))
    with pytest.raises(
        StatisticError, match=r"another process is still at work in .*run: wait for it, end it, or give"
    ):
        measure_resumed(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == before
    (tmp_path / "flag").unlink()
    assert os.waitpid(child, 0)[1] == 0
    assert measure_resumed(tmp_path / "run").sums.num_texts == 40


def test_a_second_training_in_the_same_folder_is_refused_until_the_first_is_gone(tmp_path):
    child = held_elsewhere(lambda: alone_in(tmp_path / "out"), tmp_path / "flag")
    refused = pytest.raises(PlanError, match=r"another training is at work in .*out: wait for it, or give another fold")
    with refused, alone_in(tmp_path / "out"):
        pass
    (tmp_path / "flag").unlink()
    assert os.waitpid(child, 0)[1] == 0
    with alone_in(tmp_path / "out"):
        pass


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.sampled(3)
def test_what_is_written_may_be_read_by_whoever_may_read_new_files(name, tmp_path):
    (tmp_path / "new").touch()
    for version in (1, 2):
        WRITERS[name].write(tmp_path / name, version)
    modes = {path.name: path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert set(modes.values()) == {modes["new"]}, modes


def test_what_another_process_writes_over_is_still_read_whole_where_it_was_open(tmp_path):
    """A recording is moved into place: who has the older one open goes on reading that."""
    writer, path = WRITERS["cat.heads"], tmp_path / "cat.heads"
    writer.write(path, 2)
    opened = mh.open_recording(path)
    writer.write(path, 3)
    assert opened.layers[0].q.unique().tolist() == [2.0] and writer.version_of(path) == 3
