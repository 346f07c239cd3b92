"""Several processes train what one trains: real ones, that speak by gloo, some of which die.

Oracle: the same run in one process. Sums over two or three processes are added in another order, so losses and weights
are compared to a few units of float32's last place (losses here are about 1, and came out 2.4e-7 apart at the most).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from manyheads.errors import PlanError
from manyheads.training import carry_out
from manyheads.training.together import SINGLE, require_gpu_for_each_process, together

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SAME = 2e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory, pytestconfig) -> dict[str, Any]:
    few = ["few"] if pytestconfig.option.markexpr == "not slow" else []
    command = [sys.executable, "-m", "tests.training.ranked", str(tmp_path_factory.mktemp("ranked")), *few]
    ran = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def assert_trained_alike(each: dict[str, Any], one: dict[str, Any]) -> None:
    for name in ("loss", "norm", "rate", "weights"):
        assert each[name] == pytest.approx(one[name], abs=SAME), name


@pytest.mark.turns(4)
@pytest.mark.parametrize("world", ["two", pytest.param("three", marks=pytest.mark.slow)])
def test_processes_that_share_uneven_batches_train_what_one_trains(world, found):
    ranks = found[world]
    assert len(ranks) == {"two": 2, "three": 3}[world]
    for each in ranks:
        assert_trained_alike(each, found["one"])
        assert each["weights"] == ranks[0]["weights"], "every process must have the same weights, to the last bit"
        assert each["measured"] == ranks[0]["measured"] and each["because"].endswith(f"processes: {len(ranks)}")
        assert each["measured"][0] == found["one"]["measured"][0], "random numbers outside of the loss are one's own"


def test_the_first_process_alone_writes(found):
    assert "two.safetensors" in found["files"] and "second's" not in found["files"]


def test_the_number_of_terms_matters_where_rows_have_unlike_many(found):
    assert found["by rows"][0]["loss"] != pytest.approx(found["one"]["loss"], abs=1e-3)


def test_random_numbers_of_the_loss_are_each_process_own_and_all_others_alike(found):
    one, other = found["drawn"]
    assert len({*one["inside"], *other["inside"]}) == 4 and one["outside"] == other["outside"]
    assert one["inside"][0] == one["inside"][2], "they follow from the step"


def test_a_run_whose_process_was_killed_goes_on_in_any_number_of_them(found):
    told, dead = found["killed"]
    assert dead == {} and told["error"].startswith("LostProcessError: another process of this run is gone")
    for each in found["again by two"]:
        assert each["at"] == 5
        assert (each["loss"], each["weights"]) == (found["two"][0]["loss"], found["two"][0]["weights"]), "bit by bit"
    assert found["again by one"]["at"] == 5
    assert_trained_alike(found["again by one"], found["one"])


@pytest.mark.slow
def test_dropout_goes_on_bit_by_bit_in_as_many_processes(found):
    assert found["noisy killed"][0] == {}
    for each in found["noisy again"]:
        assert (each["at"], each["loss"]) == (5, found["noisy"][0]["loss"])
        assert each["weights"] == found["noisy"][0]["weights"] != found["two"][0]["weights"]


@pytest.mark.slow  # processes that import torch
def test_a_batch_of_fewer_rows_than_processes_is_refused_by_all_alike(found):
    told = (
        "PlanError: step 0 of small has a batch of 2 rows, too few for 3 processes. Start the same line with at most 2"
    )
    assert [each["error"][: len(told)] for each in found["too few"]] == [told] * 3


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_processes_that_see_different_files_are_refused(found):
    for each in found["apart"]:
        assert "processes would go on from steps [12, 0]: they see different files" in each["error"]


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_a_preset_is_trained_by_all_and_reported_by_the_first(found):
    one, (first, second) = found["heads, one"], found["heads, two"]
    assert (first["rank"], second["rank"], second["found"]) == (0, 1, None)
    assert first["losses"].keys() == one["losses"].keys() and first["losses"] == second["losses"]
    for name, losses in one["losses"].items():
        assert first["losses"][name] == pytest.approx(losses, abs=SAME), name
    for told in found["foreign"]:
        assert (
            "PlanError" in told["error"] and "holds another training (preset heads then, collapse now)" in told["error"]
        )


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_a_preset_whose_process_is_gone_says_how_it_goes_on_and_does(found):
    told, dead = found["lost"]
    assert dead == {} and told["error"].startswith("LostProcessError: another process of this training is gone")
    assert "Start the same line again: it goes on from the last checkpoint in" in told["error"]
    assert found["found again"][0]["losses"] == found["heads, two"][0]["losses"]


def test_alone_nothing_is_shared():
    with together(torch.device("cpu")) as team:
        assert team == SINGLE and team.is_first and team.world == 1


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    with pytest.raises(PlanError, match="3 processes on a machine with 2 GPUs: start one a GPU .--nproc-per-node 2."):
        require_gpu_for_each_process()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    require_gpu_for_each_process()


def started(folder: Path, steps: int) -> subprocess.CompletedProcess[str]:
    """Two processes by torchrun, as a user would start them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "manyheads", "train", "heads", "--quick", "--steps", str(steps), "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.slow
def test_torchrun_starts_them_and_the_first_speaks_for_all(tmp_path):
    ran = started(tmp_path / "two", 2)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("heads: a trial of 20 steps, seed 0") == 1 and ran.stdout.count("wrote ") == 4
    assert ran.stderr.count("note: 2 processes share every batch") == 1
    assert json.loads((tmp_path / "two/report.json").read_text())["runs"]["h8-1"]["computed"].endswith("processes: 2")
    carry_out("heads", tmp_path / "one", quick=True, steps=2)
    ours, theirs = (pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("two", "one"))
    for column in ("loss", "norm", "held_out_loss"):
        assert ours[column].to_list() == pytest.approx(theirs[column].to_list(), abs=SAME, nan_ok=True), column
    again = started(tmp_path / "two", 3)
    assert again.returncode != 0 and again.stdout == ""
    assert again.stderr.count("manyheads: ") == again.stderr.count("holds another training (steps 2 then, 3 now)") == 1
