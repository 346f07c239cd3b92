"""A disk that is full: one error that names the file and what to do, the older file as it was, nothing left over.

The disk is a real one, of some megabytes, where this process may mount one (as root). A limit to the size of files
stands in for it everywhere: the system then ends a write in the same place, with another number.
"""

import errno
import os
import re
import resource
import shutil
import subprocess

import pytest

import manyheads as mh
from manyheads.errors import FileAccessError
from tests.robustness.faults import WRITERS, measure_resumed, write_page
from tests.statistics.corpus_runs import assert_same_tables

FULL = r"the disk is full\. Free some space, or use another disk\."
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
@pytest.mark.sampled(2)
def test_on_a_full_disk_the_older_file_stays_and_the_error_says_what_to_do(name, room, disk):
    writer, path = WRITERS[name], disk / name
    writer.write(path, 1)
    before = contents(disk)
    fill(disk, 0 if name in SMALL else room)
    with pytest.raises(FileAccessError, match=rf"^cannot write {re.escape(str(path))}: {FULL}$"):
        writer.write(path, 2)
    assert contents(disk) == before and writer.version_of(path) == 1
    assert not list(disk.rglob(".manyheads-*"))
    (disk / "filling").unlink()
    writer.write(path, 2)
    assert writer.version_of(path) == 2


SMALL = {
    "t.parquet",
    "t.csv",
    "t.json",
    "run.json",
    "p.json",
    "sheet.png",
    "a.sums",
    "s.json",
}  # smaller than the little room


@pytest.fixture
def limited_files():
    """`limited_files(count)`: no file of this process may grow past so many bytes, until the test's end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.sampled(3)
def test_where_files_may_not_be_that_large_the_older_one_stays(name, limited_files, tmp_path):
    writer, path = WRITERS[name], tmp_path / name
    writer.write(path, 1)
    before = contents(tmp_path)
    limited_files(5)
    with pytest.raises(FileAccessError, match=rf"^cannot write {re.escape(str(path))}: {TOO_LARGE}$"):
        writer.write(path, 2)
    limited_files(resource.RLIM_INFINITY)
    assert contents(tmp_path) == before and writer.version_of(path) == 1


def test_the_single_page_is_not_begun_on_a_full_disk(disk):
    fill(disk, 0)
    with pytest.raises(FileAccessError, match=rf"^cannot write .*look\.html: {FULL}$"):
        write_page(disk / "look.html")
    assert sorted(path.name for path in disk.iterdir()) == ["filling"]


@pytest.mark.turns(5)
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


@pytest.mark.turns(4)
def test_the_commands_say_a_full_disk_in_one_line(disk, capfd):
    from manyheads.cli.main import main

    fill(disk, 0)
    plan = disk / "sizes.png"
    assert main(["size", "gpt2", "--plot", str(plan)]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and re.search(FULL, said[0]) and str(plan) in said[0]
    assert not plan.exists() and mh.size("gpt2").num_parameters
