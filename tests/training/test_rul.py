"""The `rul` preset: its net, its scores, and a trial from start to end."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.errors import PlanError
from manyheads.figures import save_chart
from manyheads.training import LENGTH, RulNet, carry_out, cycles_read, fit_ridge, predicted, rmse, write_simulated
from manyheads.training.presets import induction
from manyheads.training.presets.preset import Setup
from manyheads.training.presets.rul import preset as rul
from manyheads.training.presets.rul.net import features
from manyheads.training.presets.rul.report import attention_parameters, cmapss_score, scores

from .stopping import whole_and_resumed


def test_the_attention_reads_2_30_512_and_has_1050624_parameters():
    net = RulNet(15)
    seen = []
    net.block.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    assert net(torch.randn(2, 30, 15)).shape == (2,)
    assert seen == [(2, 30, 512)] and net.block(torch.randn(2, 30, 512)).shape == (2, 30, 512)
    assert attention_parameters(net) == 1_050_624 == 4 * (512**2 + 512)
    without = RulNet(15, attention=False)
    sizes = [sum(each.numel() for each in one.parameters()) for one in (net, without)]
    assert sizes[0] - sizes[1] == 1_050_624, "the twin lacks the attention and nothing else"
    assert {name for name, _ in net.named_parameters()} >= {name for name, _ in without.named_parameters()}


def test_the_block_is_attention_added_normed_and_a_feedforward_added_normed():
    torch.manual_seed(0)
    block = RulNet(3, 12, 8).block
    assert block.attention is not None
    x = torch.randn(2, 7, 24)
    attended = block.attention(x, x, x)[0]
    first = torch.nn.functional.layer_norm(x + attended, (24,))
    expected = torch.nn.functional.layer_norm(first + block.feedforward(first), (24,))
    torch.testing.assert_close(block(x), expected)


def test_cycles_read_are_the_mean_of_the_weights_that_the_layer_itself_returns():
    torch.manual_seed(1)
    net = RulNet(5, 12, 8).eval()
    windows = torch.randn(3, LENGTH, 5)
    assert net.block.attention is not None
    with torch.no_grad():
        inner = net.lstm(windows)[0]
        weights = net.block.attention(inner, average_attn_weights=False)[1]
    read = cycles_read(net, windows)
    torch.testing.assert_close(read, weights.mean(2), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(read.sum(2), torch.ones(3, 8))
    assert mh.record_call(net, windows).layers[0].site.num_heads == 8


def test_scores_are_the_formulas_by_hand():
    predictions, true = np.array([10.0, 33.0, 57.0]), np.array([20.0, 33.0, 50.0])
    assert rmse(predictions, true) == pytest.approx(math.sqrt((100 + 0 + 49) / 3))
    assert cmapss_score(predictions, true) == pytest.approx(math.exp(10 / 13) - 1 + 0 + math.exp(7 / 10) - 1)
    assert cmapss_score(true + 5, true) > cmapss_score(true - 5, true), "late is worse than early"
    both = scores(np.array([120.0]), np.array([140]), 125)
    assert (both["rmse"], both["rmse_uncapped"]) == (5.0, 20.0)
    assert both["score"] == pytest.approx(math.expm1(5 / 13))
    assert both["score_uncapped"] == pytest.approx(math.expm1(20 / 13))


def test_ridge_finds_a_line_and_takes_the_penalty_that_validating_engines_like():
    random = np.random.default_rng(2)
    windows = random.normal(size=(400, LENGTH, 3)).astype(np.float32)
    found = features(windows)
    assert found.shape == (400, 9)
    ramp = np.tile(np.arange(LENGTH, dtype=np.float32)[None, :, None], (1, 1, 1))
    assert features(ramp)[0] == pytest.approx([14.5, 14.5, 27.0])  # mean, rise in half a window, last five
    left = 60 + 30 * found[:, 0] - 9 * found[:, 4]
    ridge = fit_ridge(windows[:300], left[:300], windows[300:], left[300:])
    assert ridge.penalty == 0.1 and rmse(ridge(windows[300:]), left[300:]) < 0.1
    noise = fit_ridge(windows[:20], random.normal(size=20), windows[300:], np.zeros(100))
    assert noise.penalty == 1e6


def test_predictions_stay_between_nothing_and_the_cap():
    torch.manual_seed(4)
    net, windows = RulNet(3, 12, 8).eval(), torch.randn(300, LENGTH, 3) + torch.randn(300, 1, 1)
    with torch.no_grad():
        net.dense.weight.mul_(20)
        own = net(windows)
        net.dense.bias.add_(0.5 - own.mean())
        own = (net(windows) * 125).numpy()
    found = predicted(net, windows, 125)
    assert own.min() < 0 and own.max() > 125, "there must be something to cut off"
    np.testing.assert_allclose(found, own.clip(0, 125), rtol=1e-4, atol=1e-3)


def test_both_nets_of_a_pair_read_the_same_windows_and_other_seeds_others(tmp_path):
    setup = Setup(0, True, None, tmp_path, torch.device("cpu"))
    data = rul.read_data(setup, rul.TRIAL)
    runs = [
        rul.make_run("a", rul.TRIAL, data, seed, attention) for seed, attention in ((3, True), (3, False), (4, True))
    ]
    one, twin, other = (run.batch(2) for run in runs)
    assert torch.equal(one["windows"], twin["windows"]) and torch.equal(one["share"], twin["share"])
    assert not torch.equal(one["windows"], other["windows"])
    assert not torch.equal(one["windows"], runs[0].batch(3)["windows"])
    assert float(one["share"].max()) <= 1.0
    assert data.facts["constant_channels_left_out"] == [
        "throttle",
        "T2",
        "P2",
        "P15",
        "epr",
        "farB",
        "Nf_dmd",
        "PCNfR_dmd",
    ]


def test_a_trial_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("rul", tmp_path, 11)  # in the second run of four, after its checkpoint
    assert resumed.trained["no-attention-0"].resumed_at == 3
    assert resumed.report["found"] == whole.report["found"]
    report = json.loads((tmp_path / "whole/report.json").read_text())
    found = report["found"]
    assert report["facts"]["data"] == "SIMULATED by manyheads, not C-MAPSS: SIMULATED_FD001" and found["simulated"]
    assert "SIMULATED" in report["said"][0] and "SIMULATED" in whole.findings.chart.subtitle
    assert [len(found["nets"][kind]["rmse"]["each"]) for kind in ("attention", "no-attention")] == [2, 2]
    assert len(found["heads"]) == 2 and list(found["heads"][0]) == [f"L0H{head}" for head in range(8)]
    assert sum(found["heads"][0]["L0H3"]["worn"]) == pytest.approx(1, abs=1e-3)
    metrics = pd.read_parquet(tmp_path / "whole/metrics.parquet")
    assert set(metrics["run"]) == {"attention-0", "attention-1", "no-attention-0", "no-attention-1"}
    assert metrics["validating_rmse"].notna().sum() == 4 * 3
    heads = pd.read_parquet(tmp_path / "whole/heads.parquet")
    assert set(heads["statistic"]) == {"cycles_back"} and heads["value"].between(0, LENGTH - 1).all()
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "SIMULATED engines, not C-MAPSS" in drawn and all(f">L0H{head}<" in drawn for head in range(8))


def test_given_data_are_read_instead_and_not_called_simulated(tmp_path):
    place = write_simulated(tmp_path / "given", 9, 6, 3)
    for each in list(place.iterdir()):
        each.rename(each.with_name(each.name.replace("SIMULATED_", "")))
    outcome = carry_out(rul.PRESET, tmp_path / "out", quick=True, steps=1, data=place)
    assert not outcome.report["found"]["simulated"] and outcome.report["facts"]["data"] == "as given: FD001"
    assert outcome.report["said"][0] == "The engines are those of FD001, as given."
    assert not (tmp_path / "out/SIMULATED").exists()
    with pytest.raises(PlanError, match="holds another training .facts"):
        carry_out(rul.PRESET, tmp_path / "out", quick=True, steps=1)


def test_data_for_a_preset_that_makes_its_own_are_refused(tmp_path):
    with pytest.raises(PlanError, match="given as data, and induction makes its own: leave it out"):
        carry_out(induction.PRESET, tmp_path / "out", quick=True, data=tmp_path)
