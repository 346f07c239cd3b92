"""A process that is killed (signal 9) at any moment of writing: what is there afterwards is whole, old or new.

Runs over a corpus that are killed and gone on with: tests/statistics/test_resume.py, test_ranks.py. Trainings: here by
the command, and in tests/training/test_engine.py to the last bit.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from manyheads.errors import PlanError
from tests.robustness.faults import WRITERS, Writer
from tests.seeds import seed

ROOT = Path(__file__).parents[2]
KILLS, MANY = 6, 60
LONGEST = 0.12  # seconds that a writer is left alone: it writes some dozens of times


@pytest.fixture
def moments():
    """Other moments for every commit. A failure prints its seed: MANYHEADS_SEED=... repeats it."""
    return random.Random(seed())


def killed_after(seconds: float, work) -> None:
    """`work` in a process of its own, for so long."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "it ended by itself"


def writes_on(writer: Writer, path: Path) -> None:
    while True:
        for version in (2, 3):
            writer.write(path, version)


def version_of(writer: Writer, path: Path) -> int | None:
    """Of a plan, whose tensors are a file of their own, the two may be of two plans: then they are refused."""
    try:
        return writer.version_of(path)
    except PlanError as error:
        assert path.name == "p.json" and "was computed from another corpus than" in str(error)
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
@pytest.mark.sampled(2)
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
