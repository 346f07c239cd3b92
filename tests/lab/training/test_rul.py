"""Remaining useful life: C-MAPSS files and their windows, simulated engines, the nets and their report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manyheads as mh
from manyheads.errors import FileAccessError, PlanError, TextError
from manyheads.lab import training
from manyheads.lab.training import save_chart
from manyheads.lab.training.presets import induction
from manyheads.lab.training.presets import rul as rul
from manyheads.lab.training.presets.preset import Setup
from manyheads.lab.training.presets.rul import (
    COLUMNS,
    LIVES,
    SENSORS,
    SETTINGS,
    TEST_LEFT,
    TEST_SHORTEST,
    Engine,
    Fleet,
    _life,
    cmapss_score,
    features,
    scores,
)
from tests.refusals import refuses

from .stopping import whole_and_resumed

REST = " ".join(f"{value}.5" for value in range(len(COLUMNS) - 2))


def written(folder: Path, train: str = f"1 1 {REST}\n", test: str = f"1 1 {REST}\n", left: str = "7\n") -> Path:
    for kind, text in (("train", train), ("test", test), ("RUL", left)):
        (folder / f"{kind}_FD001.txt").write_text(text)
    return folder


def written_fleet(folder: Path, fleet: Fleet) -> Path:
    """A fleet as C-MAPSS writes it: so many decimals for each column, and two blanks at the end of a line."""
    decimals = dict.fromkeys(training.CHANNELS, 2)
    decimals |= {"altitude": 4, "Mach": 4, "throttle": 1, "BPR": 4, "W32": 4, "htBleed": 0, "Nf_dmd": 0}
    places = list(decimals.values())
    train, test = (
        "".join(
            f"{each.unit} {cycle} {' '.join(f'{value:.{n}f}' for value, n in zip(row, places, strict=True))}  \n"
            for each in engines
            for cycle, row in enumerate(each.rows.tolist(), 1)
        )
        for engines in (fleet.train, fleet.test)
    )
    return written(folder, train, test, "".join(f"{each.left} \n" for each in fleet.test))


def engine(unit: int, cycles: int, left: int = 0) -> Engine:
    """Its first sensor says the unit, its second the cycle."""
    rows = np.zeros((cycles, len(training.CHANNELS)))
    rows[:, 3], rows[:, 4] = unit, np.arange(1, cycles + 1)
    return Engine(unit, rows, left)


def test_a_set_written_by_hand_is_read_as_it_stands(tmp_path):
    first = "1 1 -0.0007 -0.0004 100.0 518.67 641.82 1589.70 1400.60 14.62 21.61 554.36 2388.06 9046.19 1.30 47.47 " \
            "521.66 2388.02 8138.62 8.4195 0.03 392 2388 100.00 39.06 23.4190  \n"  # fmt: skip
    second = first.replace("1 1 -0.0007", "1 2 +1e-3").replace(" 392 ", "\t393 ")
    other = first.replace("1 1 ", "2 1 ")
    written(tmp_path, first + second + other, first + other.replace("392", "400"), "112 \r\n0\n\n")
    fleet = training.read_cmapss(tmp_path)
    assert fleet.name == "FD001" and [each.unit for each in fleet.train] == [1, 2]
    one, two = fleet.train
    assert one.rows.shape == (2, 24) and one.rows[0, :5].tolist() == [-0.0007, -0.0004, 100.0, 518.67, 641.82]
    assert one.rows[1, 0] == 0.001 and one.rows[:, training.CHANNELS.index("htBleed")].tolist() == [392, 393]
    assert one.rows[0, training.CHANNELS.index("W32")] == 23.419
    assert one.left == two.left == 0 and two.rows.shape == (1, 24)
    assert [each.left for each in fleet.test] == [112, 0] and not fleet.simulated
    assert training.read_cmapss(tmp_path / "train_FD001.txt").digest == fleet.digest
    written(tmp_path, first + second + other, first + other.replace("392", "401"), "112\n0\n")
    assert training.read_cmapss(tmp_path).digest != fleet.digest


GOOD = f"1 1 {REST}\n"


@pytest.mark.parametrize(("files", "told"), [
    ({"train": GOOD + "1 2 3\n"}, "train_FD001.txt, line 2: 3 columns came, and a line has 26: unit, cycle, 3 set"),
    ({"train": f"1 1 {REST} 9\n"}, "train_FD001.txt, line 1: 27 columns came"),
    ({"test": f"1 1 {REST.replace('2.5', 'warm', 1)}\n"}, "line 1: 'warm' came as its throttle, which is not a numb"),
    ({"train": f"1 1 {REST.replace('3.5', 'nan', 1)}\n"}, "line 1: 'nan' came as its T2, which is not a number"),
    ({"train": f"1 1 {REST.replace('4.5', '1_0', 1)}\n"}, "line 1: '1_0' came as its T24, which is not a number"),
    ({"train": f"1 1 {REST.replace('5.5', '1e999', 1)}\n"}, "line 1: '1e999' came as its T30, which is not a number"),
    ({"train": f"1 1 {REST.replace('5.5', '５', 1)}\n"}, "came as its T30, which is not a number"),
    ({"train": f"1.5 1 {REST}\n"}, "line 1: '1.5' came as its unit, which is not a whole number"),
    ({"train": f"1 2 {REST}\n"}, "line 1: cycle 2 of unit 1 came, and here follows cycle 1 of unit 1. Repair"),
    ({"train": GOOD + f"1 3 {REST}\n"}, "line 2: cycle 3 of unit 1 came, and here follows cycle 2 of unit 1, or"),
    ({"train": GOOD + GOOD}, "line 2: cycle 1 of unit 1 came"),
    ({"train": GOOD + f"3 1 {REST}\n"}, "cycle 1 of unit 3 came, and here follows cycle 2 of unit 1, or cycle 1 of"),
    ({"train": GOOD + f"2 1 {REST}\n1 2 {REST}\n"}, "line 3: cycle 2 of unit 1 came"),
    ({"train": GOOD + f"\n\n2 2 {REST}\n"}, "line 4: cycle 2 of unit 2 came"),
    ({"train": "\n \n"}, "train_FD001.txt has only empty lines"),
    ({"left": ""}, "RUL_FD001.txt has 0 rows, and test_FD001.txt has 1 units: each needs its row"),
    ({"left": "7\n8\n"}, "RUL_FD001.txt has 2 rows, and test_FD001.txt has 1 units"),
    ({"left": "7 8\n"}, "RUL_FD001.txt, line 1: 2 columns came, and a line has one"),
    ({"left": "-1\n"}, "RUL_FD001.txt, line 1: -1 came, and nothing has less than 0 cycles left"),
    ({"left": "many\n"}, "RUL_FD001.txt, line 1: 'many' came as its number of cycles left, which is not a number"),
    ({"left": "7.5\n"}, "'7.5' came as its number of cycles left, which is not a whole number"),
])  # fmt: skip
def test_whatever_is_wrong_is_named_with_file_line_and_what_came(files, told, tmp_path):
    written(tmp_path, **files)
    with pytest.raises(TextError) as refused:
        training.read_cmapss(tmp_path)
    assert told in str(refused.value)


def test_folders_without_a_set_or_with_several_are_refused(tmp_path):
    refuses(TextError, "holds no train_<set>.txt: give the folder of a C-MAPSS set", training.read_cmapss, tmp_path)
    written(tmp_path)
    (tmp_path / "train_FD003.txt").write_text(GOOD)
    with pytest.raises(TextError, match="holds 2 sets .train_FD001.txt, train_FD003.txt.: give one of these files"):
        training.read_cmapss(tmp_path)
    with pytest.raises(FileAccessError, match="cannot read .*test_FD003.txt: there is no such file"):
        training.read_cmapss(tmp_path / "train_FD003.txt")
    refuses(TextError, "test_FD001.txt is not a train_<set>.txt", training.read_cmapss, tmp_path / "test_FD001.txt")
    refuses(FileAccessError, "nowhere: there is no such file", training.read_cmapss, tmp_path / "nowhere")


@given(st.lists(st.integers(1, 70), min_size=1, max_size=5), st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_windows_never_mix_engines_and_know_what_was_left(cycles, left):
    engines = [engine(unit, count, left) for unit, count in enumerate(cycles, 1)]
    plain = training.Scaling((3, 4), np.zeros(2), np.ones(2))
    windows = training.windows_of(engines, plain)
    counts = [max(1, count - training.LENGTH + 1) for count in cycles]
    assert windows.padded == sum(count < training.LENGTH for count in cycles)
    read = windows.cycles
    assert read.shape == (sum(counts), training.LENGTH, 2) and windows.left.shape == (sum(counts),)
    owner = torch.arange(len(cycles)).repeat_interleave(torch.tensor(counts))
    assert torch.equal(read[:, :, 0], (owner[:, None] + 1.0).expand(-1, training.LENGTH))
    assert bool((read[:, :, 1].diff(dim=1) >= 0).all())
    ends = torch.tensor(cycles)[owner]
    assert torch.equal(read[:, -1, 1], (ends - (windows.left - left)).float())


def test_short_engines_begin_again_windows_are_spread_over_each_life_and_the_target_is_capped():
    windows = training.windows_of([engine(1, 3, 9)], training.Scaling((3, 4), np.zeros(2), np.ones(2)))
    assert windows.cycles[0, :, 1].tolist() == [1.0] * 28 + [2.0, 3.0] and windows.left.tolist() == [9]
    engines = [engine(1, 100), engine(2, 40)]
    plain = training.Scaling((3, 4), np.zeros(2), np.ones(2))
    assert training.windows_of(engines, plain, 3).left.tolist() == [70, 35, 0, 10, 5, 0]
    last = training.windows_of(engines, plain, 1)
    assert last.left.tolist() == [0, 0] and last.cycles[:, -1, 1].tolist() == [100, 40]
    windows = training.windows_of([engine(1, 300)], training.Scaling((4,), np.zeros(1), np.ones(1)))
    assert windows.left[0] == 270 and windows.capped[0] == training.CAP == 125
    assert windows.capped[-126:].tolist() == list(range(125, -1, -1))


def test_scaling_is_of_the_engines_trained_on_and_leaves_out_what_never_changes():
    engines = [engine(unit, 40 + unit) for unit in range(1, 12)]
    trained, held = training.split(engines)
    assert [each.unit for each in held] == [5, 10] and len(trained) == 9
    scaling = training.Scaling.of(trained)
    assert (
        [training.CHANNELS[channel] for channel in scaling.kept] == ["T2", "T24"]
        and len(scaling.constant) == 22
        and "epr" in scaling.constant
    )
    rows = np.concatenate([scaling.scaled(each) for each in trained])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(0), 1, rtol=1e-5)
    louder = [each._replace(rows=each.rows * 1000) for each in held]
    again, _ = training.split([*trained[:4], louder[0], *trained[4:8], louder[1], trained[8]])
    assert np.array_equal(training.Scaling.of(again).mean, scaling.mean), "engines held out must not count"
    with pytest.raises(TextError, match="no setting and no sensor of these engines ever changes"):
        training.Scaling.of([engines[0]._replace(rows=engines[0].rows[:1])])


UP = ("T24", "T30", "T50", "Nf", "Nc", "Ps30", "NRf", "NRc", "BPR", "htBleed")
DOWN = ("P30", "phi", "W31", "W32")
STILL = ("T2", "P2", "P15", "epr", "farB", "Nf_dmd", "PCNfR_dmd")


@pytest.fixture(scope="module")
def fleet():
    return training.simulate(5, 30, 12)


def test_simulated_engines_have_the_files_decimals_and_say_that_they_are_simulated(tmp_path, fleet):
    read = training.read_cmapss(written_fleet(tmp_path, fleet))
    for theirs, ours in ((read.train, fleet.train), (read.test, fleet.test)):
        assert [(each.unit, each.left) for each in theirs] == [(each.unit, each.left) for each in ours]
        for one, other in zip(theirs, ours, strict=True):
            assert one.rows.tobytes() == np.ascontiguousarray(other.rows).tobytes()
    assert fleet.simulated and "SIMULATED" in fleet.name


def test_simulated_engines_are_those_of_the_published_results(fleet):
    """Golden: the engines behind docs/reference/rul.md, here of another seed, as they were when it was written."""
    assert fleet.digest == "0d706719132d5954"
    assert training.simulate(5, 30, 11).digest != fleet.digest != training.simulate(6, 30, 12).digest


def test_sensors_begin_where_fd001s_do_and_go_the_way_of_a_worn_compressor(fleet):
    rows = {name: [each.rows[:, training.CHANNELS.index(name)] for each in fleet.train] for name in training.CHANNELS}
    assert {*UP, *DOWN, *STILL} == set(SENSORS)
    for name, (baseline, *_, noise, _) in SENSORS.items():
        new = np.mean([each[:20].mean() for each in rows[name]])
        old = np.mean([each[-5:].mean() for each in rows[name]])
        if name in STILL:
            assert all(np.ptp(each) == 0 for each in rows[name])
            continue
        sign = 1 if name in UP else -1
        assert sign * (old - new) > 2 * noise, name
        assert abs(new / baseline - 1) < 0.002, name
    for name, about in (("T24", 642), ("T30", 1587), ("T50", 1402), ("P30", 554), ("Nf", 2388), ("Nc", 9052)):
        assert np.mean([each[:20].mean() for each in rows[name]]) == pytest.approx(about, rel=1e-3)
    assert SETTINGS[2] == "throttle" and np.ptp(np.concatenate(rows["throttle"])) == 0


def test_health_stays_then_falls_ever_faster_until_it_is_gone():
    random = np.random.default_rng(3)
    for _ in range(10):
        efficiency, flow, health = _life(random)
        assert LIVES[0] <= len(health) <= LIVES[1]
        assert health[-1] == 0 and (health[:-1] > 0).all()
        assert (np.diff(health) <= 0).all() and (np.diff(efficiency) >= 0).all()
        assert (np.diff(flow) >= 0).all() and health[:20].min() > 0.97
        fell = -np.diff(health)
        assert fell[-20:].sum() > 3 * fell[-80:-60].sum()


def test_seeds_make_other_engines_and_test_engines_stop_before_they_fail(fleet):
    other = training.simulate(6, 30, 12)
    assert [len(each.rows) for each in fleet.train] != [len(each.rows) for each in other.train]
    assert {each.left for each in fleet.train} == {0}
    for each in fleet.test:
        assert TEST_LEFT[0] <= each.left <= TEST_LEFT[1] and len(each.rows) >= TEST_SHORTEST
        assert len(each.rows) + each.left <= LIVES[1]
    assert len({each.left for each in fleet.test}) > 6


def test_the_attention_reads_2_30_512_and_has_1050624_parameters():
    net = training.RulNet(15)
    seen = []
    net.block.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    assert net(torch.randn(2, 30, 15)).shape == (2,)
    assert seen == [(2, 30, 512)] and net.block(torch.randn(2, 30, 512)).shape == (2, 30, 512)
    assert net.block.attention is not None
    assert sum(each.numel() for each in net.block.attention.parameters()) == 1_050_624 == 4 * (512**2 + 512)
    without = training.RulNet(15, attention=False)
    sizes = [sum(each.numel() for each in one.parameters()) for one in (net, without)]
    assert sizes[0] - sizes[1] == 1_050_624, "the twin lacks the attention and nothing else"
    assert {name for name, _ in net.named_parameters()} >= {name for name, _ in without.named_parameters()}


def test_the_block_is_attention_added_normed_and_a_feedforward_added_normed():
    torch.manual_seed(0)
    block = training.RulNet(3, 12, 8).block
    assert block.attention is not None
    x = torch.randn(2, 7, 24)
    attended = block.attention(x, x, x)[0]
    first = torch.nn.functional.layer_norm(x + attended, (24,))
    expected = torch.nn.functional.layer_norm(first + block.feedforward(first), (24,))
    torch.testing.assert_close(block(x), expected)


def test_cycles_read_are_the_mean_of_the_weights_that_the_layer_itself_returns():
    torch.manual_seed(1)
    net = training.RulNet(5, 12, 8).eval()
    windows = torch.randn(3, training.LENGTH, 5)
    assert net.block.attention is not None
    with torch.no_grad():
        inner = net.lstm(windows)[0]
        weights = net.block.attention(inner, average_attn_weights=False)[1]
    read = training.cycles_read(net, windows)
    torch.testing.assert_close(read, weights.mean(2), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(read.sum(2), torch.ones(3, 8))
    assert mh.record_call(net, windows).layers[0].site.num_heads == 8


def test_scores_are_the_formulas_by_hand():
    predictions, true = np.array([10.0, 33.0, 57.0]), np.array([20.0, 33.0, 50.0])
    assert training.rmse(predictions, true) == pytest.approx(math.sqrt((100 + 0 + 49) / 3))
    assert cmapss_score(predictions, true) == pytest.approx(math.exp(10 / 13) - 1 + 0 + math.exp(7 / 10) - 1)
    assert cmapss_score(true + 5, true) > cmapss_score(true - 5, true), "late is worse than early"
    both = scores(np.array([120.0]), np.array([140]), 125)
    assert (both["rmse"], both["rmse_uncapped"]) == (5.0, 20.0)
    assert both["score"] == pytest.approx(math.expm1(5 / 13))
    assert both["score_uncapped"] == pytest.approx(math.expm1(20 / 13))


def test_ridge_finds_a_line_and_takes_the_penalty_that_validating_engines_like():
    random = np.random.default_rng(2)
    windows = random.normal(size=(400, training.LENGTH, 3)).astype(np.float32)
    found = features(windows)
    assert found.shape == (400, 9)
    ramp = np.tile(np.arange(training.LENGTH, dtype=np.float32)[None, :, None], (1, 1, 1))
    assert features(ramp)[0] == pytest.approx([14.5, 14.5, 27.0])  # mean, rise in half a window, last five
    left = 60 + 30 * found[:, 0] - 9 * found[:, 4]
    ridge = training.fit_ridge(windows[:300], left[:300], windows[300:], left[300:])
    assert ridge.penalty == 0.1 and training.rmse(ridge(windows[300:]), left[300:]) < 0.1
    noise = training.fit_ridge(windows[:20], random.normal(size=20), windows[300:], np.zeros(100))
    assert noise.penalty == 1e6


def test_predictions_stay_between_nothing_and_the_cap():
    torch.manual_seed(4)
    net, windows = training.RulNet(3, 12, 8).eval(), torch.randn(300, training.LENGTH, 3) + torch.randn(300, 1, 1)
    with torch.no_grad():
        net.dense.weight.mul_(20)
        own = net(windows)
        net.dense.bias.add_(0.5 - own.mean())
        own = (net(windows) * 125).numpy()
    found = training.predicted(net, windows, 125)
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
    left_out = data.facts["constant_channels_left_out"]
    assert left_out == ["throttle", "T2", "P2", "P15", "epr", "farB", "Nf_dmd", "PCNfR_dmd"]


@pytest.mark.slow
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
    back = heads[heads["statistic"] == "cycles_back"]
    assert len(back) == 2 * 3 * 8 and back["value"].between(0, training.LENGTH - 1).all()
    watched = heads[heads["statistic"] == "entropy"]
    assert set(watched["run"]) == {"attention-0", "attention-1"} and watched["value"].between(0, 3.41).all()  # ln 30
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "SIMULATED engines, not C-MAPSS" in drawn and all(f">L0H{head}<" in drawn for head in range(8))


def test_given_data_are_read_instead_and_not_called_simulated(tmp_path):
    place = tmp_path / "given"
    place.mkdir()
    written_fleet(place, training.simulate(9, 6, 3))
    outcome = training.carry_out(rul.PRESET, tmp_path / "out", quick=True, steps=1, data=place)
    assert not outcome.report["found"]["simulated"] and outcome.report["facts"]["data"] == "as given: FD001"
    assert outcome.report["said"][0] == "The engines are those of FD001, as given."
    with pytest.raises(PlanError, match="holds another training .facts"):
        training.carry_out(rul.PRESET, tmp_path / "out", quick=True, steps=1)


def test_data_for_a_preset_that_makes_its_own_are_refused(tmp_path):
    with pytest.raises(PlanError, match="given as data, and induction makes its own: leave it out"):
        training.carry_out(induction.PRESET, tmp_path / "out", quick=True, data=tmp_path)
