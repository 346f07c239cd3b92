"""A process that is killed (signal 9) at any moment of writing: what is there afterwards is whole, old or new.

Runs over a corpus that are killed and gone on with: test_resume.py and test_divided.py of tests/statistics. Trainings:
here by the command, and in tests/lab/training/test_engine.py to the last bit.
"""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import manyheads as mh
from manyheads.errors import FileAccessError, PlanError, StatisticError
from manyheads.lab.training.session import alone_in
from manyheads.measurement.corpus_run.store import RunFolder
from manyheads.studio import NotHere, Workspace
from tests.measurement.corpus_runs import assert_same_tables
from tests.processes import assert_killed, in_child
from tests.refusals import refuses
from tests.robustness.faults import WRITERS, Writer, measure_resumed, recording, write_page
from tests.seeds import seed

# =============================================================================================================== killed

ROOT = Path(__file__).parents[2]
KILLS, MANY = 6, 60
LONGEST = 0.12  # seconds that a writer is left alone: it writes some dozens of times


@pytest.fixture
def moments():
    """Other moments for every commit. A failure prints its seed: MANYHEADS_SEED=... repeats it."""
    return random.Random(seed())


def killed_after(seconds: float, work) -> None:
    """`work` in a process of its own, for so long."""
    child = in_child(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert_killed(child)


def writes_on(writer: Writer, path: Path) -> None:
    while True:
        for version in (2, 3):
            writer.write(path, version)


def version_of(writer: Writer, path: Path) -> int | None:
    """Of a plan, whose tensors are a file of their own, the two may be of two plans: then they are refused."""
    try:
        return writer.version_of(path)
    except PlanError as error:
        assert path.name == "p.json" and "was not computed from the corpus that" in str(error)
        return None


def kill_often(name: str, folder: Path, moments, kills: int) -> None:
    writer, path = WRITERS[name], folder / name
    writer.write(path, 1)
    for version in (2, 3):  # whatever is imported or made once is there when the clock begins to run
        writer.write(path, version)
    found = set()
    for _ in range(kills):
        killed_after(moments.uniform(0.01, LONGEST), lambda: writes_on(writer, path))
        found.add(version_of(writer, path))
    assert found <= {2, 3, None}
    left = [each.name for each in folder.iterdir() if not each.name.startswith(path.stem)]
    assert all(each.startswith((".manyheads-", ".tmp")) for each in left), left  # ".tmp": safetensors' own writer
    writer.write(path, 4)  # and what a killed one left beside it is in nobody's way
    assert writer.version_of(path) == 4


@pytest.mark.thinned(name=("cat.heads", "t.parquet", "pruned", "run.json"))
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_again_and_again_is_whole_after_every_kill(name, tmp_path, moments):
    kill_often(name, tmp_path, moments, KILLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_again_and_again_is_whole_after_many_kills(name, tmp_path, moments):
    kill_often(name, tmp_path, moments, MANY)


def trained(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "manyheads", "train", "collapse", "--quick", "--out", str(folder), "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_training_by_command_that_is_killed_again_and_again_has_the_same_losses(tmp_path, moments):
    whole, folder, killed = trained(tmp_path / "whole"), tmp_path / "killed", 0
    assert whole.communicate() and whole.returncode == 0
    while True:
        process, before = trained(folder), written(folder)
        while process.poll() is None and written(folder) == before:  # until it has written something
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        if killed == 8 or process.poll() is not None:
            break
        process.kill()
        process.communicate()
        killed += 1
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert killed >= 2 and json.loads(out)["preset"] == "collapse"
    one, other = (pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("whole", "killed"))
    columns = [name for name in one.columns if name != "seconds"]
    assert one[columns].equals(other[columns])
    assert not list(folder.glob(".manyheads-*"))


def written(folder: Path) -> set[tuple[str, int]]:
    """What there is, by name and time."""
    return {(each.name, each.stat().st_mtime_ns) for each in folder.glob("[!.]*")}


# =========================================================================================================== full disks
# A disk that is full: one error that names the file and what to do, the older file as it was, nothing left over.
#
# The disk is a real one, of some megabytes, where this process may mount one (as root). A limit to the size of files
# stands in for it everywhere: the system then ends a write in the same place, with another number.

LEFT = r"(it takes [\d.]+ [kM]?B, and with [\d.]+ [kM]?B left )?"  # of a file whose size is known before
FULL = LEFT + r"the disk is full\. Free some space, or use another disk\."
TOO_LARGE = r"files there cannot be that large\. Use another disk, or write less\."
DISK_MB = 16
BLOCK = 4096
ROOMS = {"no room at all": 0, "a little room": 2 * BLOCK}  # some writers fail at once, others midway


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("only root may mount a disk; the tests with a limit to files' sizes stand in for it")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk, room: int) -> None:
    """Leave `room` bytes of the disk."""
    with open(disk / "filling", "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(BLOCK))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
        file.truncate(file.tell() - room)


def contents(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "filling"
    }


@pytest.mark.thinned
@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_the_older_file_stays_and_the_error_says_what_to_do(name, room, disk):
    writer, path = WRITERS[name], disk / name
    writer.write(path, 1)
    before = contents(disk)
    fill(disk, 0 if name in SMALL else room)
    refuses(FileAccessError, rf"^cannot write {re.escape(str(path))}: {FULL}$", writer.write, path, 2)
    assert contents(disk) == before and writer.version_of(path) == 1
    assert not list(disk.rglob(".manyheads-*"))
    (disk / "filling").unlink()
    writer.write(path, 2)
    assert writer.version_of(path) == 2


SMALL = set(WRITERS) - {"cat.heads", "c.safetensors", "pruned"}  # the others are smaller than the little room


@pytest.fixture
def limited_files():
    """`limited_files(count)`: no file of this process may grow past so many bytes, until the test's end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_where_files_may_not_be_that_large_the_older_one_stays(name, limited_files, tmp_path):
    writer, path = WRITERS[name], tmp_path / name
    writer.write(path, 1)
    before = contents(tmp_path)
    limited_files(5)
    refuses(FileAccessError, rf"^cannot write {re.escape(str(path))}: {TOO_LARGE}$", writer.write, path, 2)
    limited_files(resource.RLIM_INFINITY)
    assert contents(tmp_path) == before and writer.version_of(path) == 1


def test_the_single_page_is_not_begun_on_a_full_disk(disk):
    fill(disk, 0)
    refuses(FileAccessError, rf"^cannot write .*look\.html: {FULL}$", write_page, disk / "look.html")
    assert sorted(path.name for path in disk.iterdir()) == ["filling"]


@pytest.mark.slow
def test_a_run_over_a_corpus_ends_in_words_and_goes_on_when_there_is_room(disk):
    """Wherever the disk is full: while the run begins, in one of its parts, or when all is put together."""
    want, ended = measure_resumed(disk / "whole"), 0
    shutil.rmtree(disk / "whole")
    for room in range(0, 16 * BLOCK, BLOCK):
        fill(disk, room)
        try:
            got = measure_resumed(disk / "run")
        except FileAccessError as error:
            assert re.fullmatch(rf"cannot write .*/run.*: {FULL}", str(error))
            assert not list(disk.rglob(".manyheads-*"))
            ended += 1
            (disk / "filling").unlink()
            got = measure_resumed(disk / "run")
        assert_same_tables(got, want)
        shutil.rmtree(disk / "run")
    assert 3 <= ended < 16


def test_the_commands_say_a_full_disk_in_one_line(disk, capfd):
    from manyheads.cli.main import main

    fill(disk, 0)
    plan = disk / "sizes.png"
    assert main(["size", "gpt2", "--plot", str(plan)]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and re.search(FULL, said[0]) and str(plan) in said[0]
    assert not plan.exists() and mh.size("gpt2").num_parameters


# ====================================================================================================== several writers
# Several processes at once: into one file or folder (the last one wins, whole), and where only one may be at work.

VERSIONS = (2, 3, 4)  # one process each
READS = 8  # while they write


SHARED = [name for name in WRITERS if name not in ("c.safetensors", "run.json")]  # a training is alone in its folder


@pytest.mark.thinned(name=("cat.heads", "t.parquet", "pruned"))
@pytest.mark.parametrize("name", SHARED)
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
    refuses(PlanError, "was not computed from the corpus that", writer.version_of, tmp_path / "p.json")


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
    message = r"another process is still at work in .*run: wait for it, end it, or give"
    refuses(StatisticError, message, measure_resumed, tmp_path / "run")
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


# =========================================================================================================== workspaces
# What a studio offers is what the command line named: nothing beside it, by no link.


def test_links_that_lead_out_of_a_folder_are_not_followed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside / "model"):
        folder.mkdir(parents=True)
    for place in (inside / "a.heads", outside / "b.heads"):
        recording(1, 7).save(place)
    (outside / "model" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (inside / "b.heads").symlink_to(outside / "b.heads")
    (inside / "model").symlink_to(outside / "model")
    (inside / "same.heads").symlink_to(inside / "a.heads")
    found = Workspace.of([inside])
    assert set(found.files) == {"a.heads", "same.heads"} and "model" not in found.models
    refuses(NotHere, "there is no recording 'b.heads' in this workspace", found.file_of, "b.heads")


def test_hidden_files_and_folders_are_not_offered(tmp_path):
    (tmp_path / ".cache").mkdir()
    for place in (tmp_path / ".a.heads", tmp_path / ".cache" / "b.heads", tmp_path / "c.heads"):
        recording(1, 7).save(place)
    assert set(Workspace.of([tmp_path]).files) == {"c.heads"}
