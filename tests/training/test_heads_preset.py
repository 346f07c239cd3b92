"""The `heads` preset: nets of one size, a trial that stops and goes on, and the paper's own numbers."""

from __future__ import annotations

import json

import pandas as pd

from manyheads.figures import save_chart
from manyheads.training import carry_out
from manyheads.training.presets import heads
from manyheads.training.presets.heads import RELATIONS

from .stopping import whole_and_resumed


def test_a_trial_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("heads", tmp_path, 11)  # in the second run, after its checkpoint
    assert resumed.trained["h2-0"].resumed_at == 3 and resumed.report["found"] == whole.report["found"]

    report = json.loads((tmp_path / "whole/report.json").read_text())
    found = report["found"]
    assert {run["parameters"] for run in report["runs"].values()} == {found["parameters"]}
    assert list(found["by_heads"]) == ["1", "2", "4", "8", "16"] and len(report["runs"]) == 5 * 2
    for each in found["by_heads"].values():
        assert each.keys() == {"held_out_loss", "all_right", *(f"right_{name}" for name in RELATIONS)}
        assert len(each["held_out_loss"]["each"]) == 2
    assert list(found["loss_change"]) == ["2 over 1", "4 over 2", "8 over 4", "16 over 8"]
    metrics = pd.read_parquet(tmp_path / "whole/metrics.parquet")
    assert metrics["held_out_loss"].notna().sum() == 10 * 3

    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "Vaswani et al. 2017, table 3 (A)" in drawn and drawn.count(">16<") == 3 and drawn.count(">32<") == 1


def test_the_papers_numbers_are_the_papers_and_the_others_are_called_what_they_are(tmp_path):
    assert heads.PAPER_BLEU == {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}
    said = carry_out("heads", tmp_path, quick=True, steps=1).findings.lines
    assert "24.9 (1), 25.5 (4), 25.8 (8), 25.8 (16), 25.4 (32)" in said[-2]
    assert "25.8 (1), 27.1 (2), 27.5 (4), 28.0 (8), 28.0 (16), are not in it" in said[-1]


def test_nets_of_one_seed_read_the_same_texts_and_held_out_ones_are_no_steps():
    one, other = (heads.reader_run("a", heads.TRIAL, 3, count) for count in (2, 8))
    assert one.batch(1)["cards"].equal(other.batch(1)["cards"])
    assert not one.batch(1)["cards"].equal(heads.reader_run("a", heads.TRIAL, 4, 2).batch(1)["cards"])
    held_out = heads.held_out_of(heads.WHOLE, 3)
    assert len(held_out["cards"]) == heads.HELD_OUT_ROWS and heads.WHOLE.settings.steps < heads.HELD_OUT_STEP
