"""`manyheads train`, `watch` and `reproduce`: what they say and write, how they end, and bad input in one line."""

import json
import re
import time

import numpy as np
import pandas as pd
import pytest

from manyheads.watching import HeadHistory
from tests.cli.conftest import assert_refused
from tests.training.stopping import stopping_before
from tests.watching.histories import HEADS, STATISTICS, begun, numbers

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


# ================================================================================================================ watch
# `manyheads watch`: what it shows of a file is what was written, also while the file grows; bad input is one line.


@pytest.fixture
def writer():
    with begun("heads.parquet") as writer:
        yield writer


def test_a_line_a_layer_with_its_extreme_heads_and_what_is_wrong(run, writer):
    ran = run("watch", "heads.parquet")
    assert ran.code == 0, ran
    assert ran.lines[0] == "heads.parquet · tiny · 5 heads · 6 watched steps, 0 to 50, every 10"
    rows = [re.split(r"\s{2,}", line) for line in ran.lines if re.match(r"L\d ", line)]
    # Logits at step 50: 26 times the head's place in all, from 1.
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("L0", "78", "L0H0 26", "L0H2 78"),
        ("L1", "130", "L1H0 104", "L1H1 130"),
    ]
    assert [row[2] for row in rows] == ["▁▁▂▃▄▅", "▁▂▄▅▇█"]
    alerted = [line.strip() for line in ran.lines if "went over" in line]
    assert alerted == [
        "L1H1: max logit went over 100 at step 40 (105, and is now)",
        "L1H0: max logit went over 100 at step 50 (104, and is now)",
    ]


def test_heads_without_a_number_are_named(run):
    with begun("heads.parquet") as writer:
        for step in (60, 70, 80):
            values = numbers(step)
            values[[0, 3]] = np.nan if step < 80 else values[[0, 3]]
            writer.append(step, values)
    ran = run("watch", "heads.parquet", "--max-logit", "500")
    assert "no number (NaN): max_logit of L0H0, L1H0, first at step 60, last at step 70." in ran.lines


def test_without_alerts_it_says_what_was_looked_for_and_a_line_a_head_of_another_statistic(run, writer):
    ran = run("watch", "heads.parquet", "--max-logit", "200")
    assert "no alerts: no head has max logit over 200, or entropy under 0.1 nats." in ran.lines
    ran = run("watch", "heads.parquet", "--heads", "L*H1", "--statistic", "entropy", "--entropy", "1.57")
    rows = [line.split() for line in ran.lines if re.match(r"L\dH\d ", line)]
    assert [row[:2] for row in rows] == [["L0H1", "1.85"], ["L1H1", "1.55"]] and rows[0][2] > rows[1][2]
    assert any("L1H1: entropy fell under 1.57 nats at step 40" in line for line in ran.lines)


def test_the_document_has_every_number(run, writer):
    values = numbers(60)
    values[2] = [np.nan, -np.inf]
    writer.append(60, values)
    document = json.loads(run("watch", "heads.parquet", "--json").out)
    assert document["steps"] == [0, 10, 20, 30, 40, 50, 60] and document["facts"]["model"] == "tiny"
    assert document["heads"]["L1H0"]["max_logit"] == [numbers(step)[3, 1] for step in document["steps"]]
    assert document["heads"]["L0H2"]["entropy"][-1] is document["heads"]["L0H2"]["max_logit"][-1] is None
    assert [(alert["head"], alert["step"]) for alert in document["alerts"]] == [("L1H1", 40), ("L1H0", 50)]
    assert run("watch", "heads.parquet", "--statistic", "entropy").code == 0


def test_followed_it_shows_each_step_as_it_comes_until_ctrl_c(run, writer, monkeypatch):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) in (2, 4):
            writer.append(60 + len(waits), numbers(60))
        if len(waits) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    ran = run("watch", "heads.parquet", "--follow")
    assert ran.code == 130 and [line[-24:] for line in ran.lines if "watched steps" in line] == [
        "steps, 0 to 50, every 10",
        "steps, 0 to 62, every 10",
        "steps, 0 to 64, every 10",
    ]
    waits.clear()
    monkeypatch.setattr(time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    (line,) = run("watch", "heads.parquet", "--follow", "--json").lines
    assert json.loads(line)["steps"][-1] == 64
    assert run("watch", "not yet there", "--follow").code == 130


def test_limits_of_the_first_token_and_of_dead_heads_are_those_that_are_typed(run):
    with HeadHistory("other.parquet", HEADS, ["first_mass", "output_share"], {}) as writer:
        for step in range(6):  # an even share of three heads is 0.33, of two 0.5
            writer.append(step, np.array([[0.8, 0.05], [0.1, 0.45], [0.2, 0.5], [0.3, 0.4], [0.4, 0.6]]))
    assert json.loads(run("watch", "other.parquet", "--json").out)["alerts"] == []
    document = json.loads(run("watch", "other.parquet", "--first-mass", "0.75", "--dead", "0.2", "--json").out)
    assert [alert["words"].partition(" at step")[0] for alert in document["alerts"]] == [
        "L0H0: weight on the first token went over 0.75",
        "L0H0: output fell under 0.2 of an even share for 5 watched steps",
    ]


@pytest.mark.parametrize("browser", ["--browser", "--no-browser"])
def test_studio_opens_at_the_training_in_a_browser_unless_told_not_to(run, writer, monkeypatch, browser):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("manyheads.studio.serve", lambda serving, *, ready: ready())
    monkeypatch.setattr("manyheads.studio.warm", lambda desk: None)
    ran = run("watch", "heads.parquet", "--studio", browser)
    (line,) = ran.lines
    assert line.startswith("The studio is at http://127.0.0.1:") and "#/training?history=" in line
    assert opened == [line.removeprefix("The studio is at ")] * (browser == "--browser")


def test_what_cannot_be_watched_is_one_line_and_a_run_that_has_not_begun_is_no_error(run, writer, tmp_path):
    (tmp_path / "notes.txt").write_text("no table")
    assert_refused(
        run("watch", "nothing.parquet"), "cannot read nothing.parquet: there is no such file. A training writes"
    )
    assert_refused(run("watch", "notes.txt"), "notes.txt cannot be read as Parquet")
    assert_refused(
        run("watch", "heads.parquet", "--statistic", "distance"), "has no 'distance', only entropy, max_logit"
    )
    assert_refused(run("watch", "heads.parquet", "--heads", "L2"), "there is no layer 2")
    HeadHistory("empty.parquet", HEADS, STATISTICS, {}).close()
    ran = run("watch", "empty.parquet")
    assert ran.code == 0 and "No step yet" in ran.out


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
