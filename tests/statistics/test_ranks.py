"""Several processes measure what one measures: real ones, that speak by gloo, some of which die.

Oracle: the same texts measured by one process (`ranks=ALONE`), in each of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import manyheads as mh
from manyheads.base import ALONE, torchrun
from manyheads.base.processes import _interrupt, joined_processes
from manyheads.corpora import is_about_texts
from manyheads.errors import LostProcessError
from tests.statistics.corpus_runs import some_texts, tiny_lm

ROOT = Path(__file__).parents[2]
SAME = 1e-6
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "src")])
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}


def assert_the_same_table(found, world: int) -> None:
    """Each process has the table of one process, and none measured all of it."""
    assert len(found) == world
    for each in found:
        assert max(each[name] for name in ("num", "den", "mass", "even", "maxima")) <= SAME, each
        assert each["counts"] == 0.0 and each["notes"]["processes"] == str(world)


def launched(world: int, out: Path, **given: str) -> tuple[int, str, list[dict]]:
    """By torchrun, as a user would."""
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    run = subprocess.run(
        [*command, "-m", "tests.statistics.ranked", str(out)],
        cwd=ROOT, capture_output=True, text=True, env={**ENVIRONMENT, **given},
    )  # fmt: skip
    paths = [out / f"{rank}.json" for rank in range(world)]
    return run.returncode, run.stderr, [json.loads(path.read_text()) for path in paths if path.exists()]


@pytest.mark.slow  # two processes measure in test_divided, two and three train in test_together
def test_two_and_three_processes_measure_what_one_does_and_go_on_in_any_number(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.statistics.ranked", "several", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for name, world in (("two", 2), ("three", 3), ("more", 3)):
        assert_the_same_table(found[name], world)
    shares = [each["batches"] for each in found["three"]]
    assert max(shares) - min(shares) <= 1 and sum(shares) == sum(each["batches"] for each in found["two"])
    dead, *others = found["killed"][1], found["killed"][0], found["killed"][2]
    assert dead == {} and all(
        each["error"].startswith("LostProcessError: another process of this run is gone") for each in others
    )
    assert found["again"][0] == {} and "it goes on with what is on the disk" in found["again"][1]["error"]
    # Processes 0 and 2 had finished their batches before they missed process 1: little is left of the second run's.
    assert 0 < sum(each["batches"] for each in found["more"]) < sum(shares) / 2
    assert all(each["notes"]["resumed"].startswith("gone on with after ") for each in found["more"])
    assert all(each["batches"] == 0 and "finished before" in each["notes"]["resumed"] for each in found["done"])
    assert_the_same_table(found["done"], 2)
    assert found["left"] == ["finished.safetensors", "lock", "run.safetensors"]


def test_being_told_to_end_by_torchrun_says_what_happened_and_how_it_goes_on():
    """And is no text's fault: a run that took it for one would go on with the next."""
    with pytest.raises(LostProcessError, match=r"is gone \(killed, or out of memory\).*--resume FOLDER") as caught:
        _interrupt()
    assert not is_about_texts(caught.value)


@pytest.mark.slow
def test_torchrun_starts_them_and_what_a_killed_one_leaves_others_go_on_with(tmp_path):
    code, said, found = launched(2, tmp_path / "a", FOLDER=str(tmp_path / "run"), KILL="1:3")
    assert code != 0 and "SIGKILL" in said and len(found) <= 1  # process 0 is told to end, or misses process 1
    code, said, found = launched(3, tmp_path / "b", FOLDER=str(tmp_path / "run"))
    assert code == 0, said
    assert_the_same_table(found, 3)
    assert all(each["notes"]["resumed"].startswith("gone on with after ") for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_bundled_model(world, tmp_path):
    code, said, found = launched(world, tmp_path / "a", MODEL="minilm")
    assert code == 0, said
    assert_the_same_table(found, world)


def test_one_process_needs_no_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with torchrun() as both, joined_processes() as ranks:
        assert both == (0, 1) and ranks == ALONE
        table = mh.measure(tiny_lm(), iter(some_texts(3)), ["entropy"])
    assert "processes" not in table.notes
