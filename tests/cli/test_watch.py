"""`manyheads watch`: what it shows of a file is what was written, also while the file grows; bad input is one line."""

import json
import re
import time

import numpy as np
import pytest

from manyheads.watching import HeadHistory
from tests.watching.histories import HEADS, STATISTICS, begun, numbers

from .conftest import assert_refused


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


def test_without_alerts_it_says_what_was_looked_for(run, writer):
    ran = run("watch", "heads.parquet", "--max-logit", "200")
    assert "no alerts: no head has max logit over 200, or entropy under 0.1 nats." in ran.lines


def test_a_line_a_head_of_another_statistic(run, writer):
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


def test_a_run_that_has_not_begun_is_no_error(run):
    HeadHistory("empty.parquet", HEADS, STATISTICS, {}).close()
    ran = run("watch", "empty.parquet")
    assert ran.code == 0 and "No step yet" in ran.out


def test_what_cannot_be_watched_is_one_line(run, writer, tmp_path):
    (tmp_path / "notes.txt").write_text("no table")
    assert_refused(
        run("watch", "nothing.parquet"), "cannot read nothing.parquet: there is no such file. A training writes"
    )
    assert_refused(run("watch", "notes.txt"), "notes.txt cannot be read as Parquet")
    assert_refused(
        run("watch", "heads.parquet", "--statistic", "distance"), "has no 'distance', only entropy, max_logit"
    )
    assert_refused(run("watch", "heads.parquet", "--heads", "L2"), "there is no layer 2")
