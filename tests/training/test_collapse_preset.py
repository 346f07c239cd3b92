"""The `collapse` preset: tied heads have one map, averaged ones too, and every way has as many parameters."""

from __future__ import annotations

import pytest
import torch

from manyheads.figures import save_chart
from manyheads.models import record_call
from manyheads.training.presets import collapse
from manyheads.training.presets.heads import TRIAL, held_out_of

from .stopping import whole_and_resumed


def test_a_trial_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("collapse", tmp_path, 11)  # in the second run, after its checkpoint
    assert resumed.trained["tied-0"].resumed_at == 3 and resumed.report["found"] == whole.report["found"]

    found = whole.report["found"]
    assert {run["parameters"] for run in whole.report["runs"].values()} == {found["parameters"]}
    assert list(found["ways"]) == ["free", "averaged", "tied", "skipped", "unmixed"]
    apart = {way: each["diversity"]["mean"] for way, each in found["ways"].items()}
    assert apart["averaged"] == pytest.approx(0, abs=1e-9) and apart["tied"] == pytest.approx(0, abs=1e-9)
    assert apart["free"] == apart["skipped"] > 0.05 and apart["unmixed"] > 0.05
    assert list(found["loss_over_free"]) == ["averaged", "tied", "skipped", "unmixed"]
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().count(">trained free<") == 3

    trained = whole.trained["tied-1"].model
    maps = record_call(trained, held_out_of(TRIAL, 1)["cards"]).layers[0].weights()
    assert len(maps) == collapse.HEADS
    torch.testing.assert_close(maps, maps[:1].expand(collapse.HEADS, -1, -1), rtol=0, atol=1e-6)


def test_ways_of_running_a_net_change_what_it_says_and_leave_it_as_it_was():
    from manyheads.training.presets.heads import reader_run

    model = reader_run("a", TRIAL, 0, collapse.HEADS).model.eval()
    held_out = held_out_of(TRIAL, 0)
    with torch.no_grad():
        before = collapse.measured(model, held_out)
        found = {way: collapse.measured_under(model, plan, held_out) for way, plan in collapse.PLANS.items()}
        assert collapse.measured(model, held_out) == before
    assert len({each["held_out_loss"] for each in (before, *found.values())}) == 3
    assert found["averaged"]["diversity"] < 1e-9 < found["skipped"]["diversity"] == before["diversity"]
