"""`manyheads watch`: a line a layer, the document, a file that grows, and bad input in one line."""

import json
import re
import time

import numpy as np
import pytest

from manyheads.watching import HeadHistory
from tests.cli.conftest import assert_refused
from tests.watching.histories import HEADS, STATISTICS, begun, numbers

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
    missing = ran.lines.index("no number (NaN): max_logit of L0H0, L1H0, first at step 60, last at step 70.")
    assert ran.lines[missing + 1] == "no number (NaN): entropy of L0H0, L1H0, first at step 60, last at step 70."
    none = "no alerts where there are numbers: no head has max logit over 500, or entropy under 0.1 nats."
    assert ran.lines.index(none) > missing and not any(line.startswith("no alerts:") for line in ran.lines)


def test_one_watched_step_is_counted_as_one(run):
    with HeadHistory("one.parquet", HEADS, STATISTICS, {"every": 10}) as writer:
        writer.append(40, numbers(1))
    assert run("watch", "one.parquet").lines[0] == "one.parquet · 5 heads · 1 watched step, 40, every 10"


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
    assert_refused(
        run("watch", "notes.txt"),
        "notes.txt cannot be read as Parquet: it is another kind of file. Name what a watched training wrote, as "
        "mh.watch(model, out='heads.parquet') does",
    )
    assert_refused(
        run("watch", "heads.parquet", "--statistic", "distance"), "has no 'distance', only entropy, max_logit"
    )
    assert_refused(run("watch", "heads.parquet", "--heads", "L2"), "there is no layer 2")
    HeadHistory("empty.parquet", HEADS, STATISTICS, {}).close()
    ran = run("watch", "empty.parquet")
    assert ran.code == 0 and "No step yet" in ran.out
