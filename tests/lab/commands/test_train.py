"""`manyheads train` and `reproduce`: what they say and write, how they end, and bad input in one line."""

import json

import pandas as pd
import pytest

from tests.cli.conftest import assert_refused
from tests.lab.training.stopping import stopping_before

# ================================================================================================================ train
# `manyheads train`: what it says, what it writes, and how it ends.

WRITTEN = ["checkpoint-induction.safetensors", "figure.svg", "heads", "heads.parquet", "metrics.parquet",
           "report.json", "run.json"]  # fmt: skip


def test_without_a_preset_they_are_listed_and_a_device_that_is_not_there_is_refused(run, tmp_path):
    ran = run("train")
    assert ran.code == 0 and ran.lines[0].split(maxsplit=1)[0] == "induction"
    assert "  two attention-only layers learn to repeat" in ran.lines[0]
    assert "Train one: manyheads train induction" in ran.out
    said = json.loads(run("train", "--json").out)
    assert [each["name"] for each in said["presets"]][:2] == ["induction", "heads"]
    assert_refused(run("train", "--quick"), "--quick was given, but no preset: say which of induction, heads")
    refused = run("train", "induction", "--quick", "--out", "here", "--device", "toaster")
    assert_refused(refused, "--device='toaster' cannot be used: ")
    assert not (tmp_path / "here").exists()
    assert_refused(run("train", "--device", "cpu"), "--device was given, but no preset")


def test_a_quick_induction_writes_everything_and_a_second_start_trains_nothing(run, tmp_path):
    ran = run("train", "induction", "--quick", "--out", "here", "--device", "cpu")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "here/report.json").read_text())["device"] == "cpu, as asked"
    assert ran.lines[0] == "induction: a trial of 20 steps, seed 0"
    assert "no induction head yet: the best of layer 1, L1H" in ran.out and "wrote here/figure.svg" in ran.out
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == WRITTEN
    metrics = pd.read_parquet(tmp_path / "here/metrics.parquet")
    assert list(metrics["step"]) == list(range(21)) and metrics["loss"].notna().sum() == 20
    heads = pd.read_parquet(tmp_path / "here/heads.parquet")
    steps = heads.groupby("statistic")["step"].agg(lambda column: sorted(set(column))).to_dict()
    assert steps.pop("induction") == [0, 10, 20]
    assert set(steps) == {"max_logit", "entropy", "first_mass", "previous_mass"}
    assert all(of_statistic == [1, 10, 20] for of_statistic in steps.values())
    (listed,) = json.loads(run("studio", "here", "--get", "/api/histories").out)
    assert (listed["name"], listed["unreadable"]) == ("heads/induction", None), "the studio opens the folder's training"
    (tmp_path / "here/.manyheads-0123.safetensors").write_bytes(b"half")  # as a kill leaves it
    again = run("train", "induction", "--quick", "--out", "here")
    assert again.code == 0 and "taken up at step 20" in again.out
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == WRITTEN
    assert pd.read_parquet(tmp_path / "here/metrics.parquet").equals(metrics)


@pytest.mark.slow  # test_gqa_preset holds the same of the library
def test_a_stopped_training_goes_on_with_the_same_losses(run, tmp_path):
    whole = run("train", "induction", "--quick", "--out", "whole", "--seed", "3", "--json")
    with stopping_before(13):
        stopped = run("train", "induction", "--quick", "--out", "other", "--seed", "3", "--json")
    assert (stopped.code, stopped.out) == (130, "")
    resumed = run("train", "induction", "--quick", "--out", "other", "--seed", "3", "--json")
    one, other = json.loads(whole.out), json.loads(resumed.out)
    assert other["runs"]["induction"]["resumed_at"] == 10
    assert one["found"] == other["found"] and one["runs"]["induction"]["loss"] == other["runs"]["induction"]["loss"]
    assert list(other) == ["preset", "seed", "quick", "steps", "device", "facts", "runs", "found", "said",
                           "seconds_this_start", "versions", "folder", "files"]  # fmt: skip


@pytest.mark.slow  # a training
def test_a_quick_code_model_is_a_checkpoint_that_every_command_takes(run, tmp_path):
    ran = run("train", "code", "--quick", "--out", "here", "--steps", "8")
    assert ran.code == 0, ran.err
    assert ran.lines[0] == "code: a trial of 8 steps, seed 0" and "wrote here/model" in ran.out
    assert "The folder model is a stock Llama checkpoint" in ran.out
    looked = run("ablate", "L1H2", "def f(x): return x", "--model", "here/model", "--json")
    assert looked.code == 0, looked.err
    report = json.loads((tmp_path / "here/report.json").read_text())
    assert report["facts"]["modules"] > 10 and "json/__init__.py" in report["found"]["held_out_modules"]
    assert set(report["found"]["heads"]) == {f"L{layer}H{head}" for layer in range(4) for head in range(8)}


@pytest.mark.parametrize("seed", ["-1", "4294967296", "99999999999999999999"])
def test_a_seed_out_of_range_is_refused_and_nothing_is_written(run, tmp_path, seed):
    refused = run("train", "induction", "--quick", "--out", "here", "--seed", seed)
    assert_refused(refused, f"seed={seed} is out of range: give a whole number from 0 to 4,294,967,295")
    assert not (tmp_path / "here").exists()


@pytest.mark.slow
def test_folders_of_something_else_are_refused(run, tmp_path):
    assert run("train", "induction", "--quick", "--out", "here", "--steps", "1").code == 0
    for other, told in (
        (["code", "--quick", "--steps", "1"], "here holds another training (preset induction then, code now): give"),
        (["induction", "--quick", "--steps", "2"], "(steps 1 then, 2 now)"),
        (["induction", "--steps", "1", "--seed", "5"], "(seed 0 then, 5 now; quick True then, False now)"),
    ):
        assert_refused(run("train", *other, "--out", "here"), told)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/novel.txt").write_text("words")
    assert_refused(run("train", "induction", "--out", "full"), "full is not empty and holds no training (novel.txt)")
    (tmp_path / "here/run.json").write_text("{")
    assert_refused(run("train", "induction", "--quick", "--out", "here"), "run.json is not JSON", "it is damaged")


@pytest.mark.parametrize(("typed", "told"), [
    (["inductoin"], ("there is no preset 'inductoin': train one of induction, heads", "Did you mean induction?")),
    (["induction", "--out", "a.txt"], ("cannot write a.txt: it is a file. Name a folder.",)),
    (["induction", "--steps", "0"], ("steps=0: train at least 1 step",)),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(typed, told, run, tmp_path):
    (tmp_path / "a.txt").touch()
    assert_refused(run("train", *typed), *told)


# ============================================================================================================ reproduce
# `manyheads reproduce`: its list, what it says of a result, and what it refuses.


def test_without_a_name_they_are_listed(run):
    ran = run("reproduce")
    assert ran.code == 0 and ran.lines[0].startswith("What papers report") and ran.lines[3].startswith("  gu-sinks")
    assert "Make one: manyheads reproduce zhai-collapse" in ran.out
    listed = json.loads(run("reproduce", "--json").out)["reproductions"]
    assert {"name", "meaning", "takes"} == set(listed[0]) and "wu-scores" in [each["name"] for each in listed]
    assert_refused(run("reproduce", "--quick"), "--quick was given, but no name: say which of gu-sinks")
    assert_refused(run("reproduce", "--seeds", "2"), "--seeds was given, but no name")
    assert_refused(run("reproduce", "olson-phase"), "there is no reproduction 'olson-phase'")
    assert_refused(run("reproduce", "wu-scores"), "wu-scores: give a file of scores")
    assert "nightdessert/Retrieval_Head" in run("reproduce", "wu-scores").err


def test_a_result_is_told_and_written(run, tmp_path):
    (tmp_path / "toy.json").write_text(json.dumps({"0-0": [0.0, 0.3], "0-1": [0.0, 0.0], "1-0": [0.0, 0.1]}))
    ran = run("reproduce", "wu-scores", "toy.json", "--out", "here")
    assert ran.code == 0, ran.err
    # One of three heads has a mean above 0.1, and a third is far over 5 %.
    told = "does not come out  heads of toy with a mean score above 0.1\n"
    assert told in ran.out and f"{'':<17}  here: 33.3%\n" in ran.out and "wrote here/page.md" in ran.out
    written = {path.name for path in (tmp_path / "here").iterdir() if path.is_file() and path.suffix != ".lock"}
    assert {"page.md", "figure.svg", "result.json", "run.json"} <= written
    assert "| 33.3% |" in (tmp_path / "here/page.md").read_text()
    said = json.loads(run("reproduce", "wu-scores", "toy.json", "--out", "here", "--json").out)
    assert said["folder"] == "here" and said["rows"][0]["mean"] == 1 / 3
    assert_refused(run("reproduce", "olsson-phase", "--out", "here"), "here holds another training (reproduction")
