"""Presets are listed without being loaded, and two trainings do not share a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.edits import applied
from manyheads.errors import ModelError, PlanError
from manyheads.inputs import record_call
from manyheads.lab.training import carry_out, save_chart
from manyheads.lab.training.bundle import keep_report
from manyheads.lab.training.presets import collapse, heads, table
from manyheads.lab.training.presets.heads import (
    KINDS,
    NOTHING,
    RELATIONS,
    TRIAL,
    Cards,
    Reader,
    answers,
    diversity,
    held_out_of,
    loss_of,
    scores_of,
)
from manyheads.lab.training.presets.table import stored_report
from manyheads.lab.training.session import alone_in
from manyheads.plan import Average, Plan
from manyheads.roles.compare.rows import row_divergences
from tests.lab.training.stopping import whole_and_resumed
from tests.refusals import refuses

LISTS = """
import sys
from manyheads.cli.main import main
main(["train"])
loaded = [name for name in sys.modules if name == "torch" or name.startswith("manyheads.lab.training.presets.")]
print(loaded)
"""


def test_listing_loads_no_preset_and_no_torch():
    ran = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "['manyheads.lab.training.presets.table']"


def test_every_preset_is_the_one_that_is_listed_and_a_broken_one_kills_no_other(monkeypatch):
    for name in table.PRESETS:
        assert table.preset_of(name).name == name
    monkeypatch.setitem(sys.modules, "manyheads.lab.training.presets.rul", None)
    assert table.preset_of("induction").name == "induction"
    with pytest.raises(ImportError):
        table.preset_of("rul")


def test_a_second_training_in_the_same_folder_is_refused_until_the_first_has_ended(tmp_path):
    folder = tmp_path / "here"
    with alone_in(folder):
        with pytest.raises(PlanError, match=r"another training is at work in .*here: wait for it, or give another"):
            carry_out("induction", folder, quick=True, steps=1)
        assert list(folder.iterdir()) == []
    with alone_in(folder):
        pass


@pytest.mark.slow
def test_induction_says_what_its_ablations_do_not_show(tmp_path):
    from manyheads.lab.training.presets.induction import control

    def gone(**scores):
        return {head: {"best_induction": score} for head, score in scores.items()}

    assert "are both needed" in control("L0H1", gone(L0H0=0.01, L0H1=0.03, L1H0=0.98))
    assert "needs L0H1 alone" in control("L0H1", gone(L0H0=0.9, L0H1=0.03, L1H0=0.98))
    assert "outlives L0H1" in control("L0H1", gone(L0H0=0.01, L0H1=0.9, L1H0=0.1))
    outcome = carry_out("induction", tmp_path / "quick", quick=True, steps=2)
    said = "\n".join(outcome.findings.lines)
    assert "the token before, the most of layer 0, and" in said and "Without L1H1 the best remaining head" in said
    assert set(outcome.report["found"]["ablated_to_the_mean"]) == {"L0H0", "L0H1", "L1H0", "L1H1"}


# =================================================================================================== heads and collapse
# The cards, and the two presets that read them: `heads` (how many) and `collapse` (one map for all heads).

LETTERS, NUMBERS, LENGTH, ROWS, WIDTH, HEADS = 5, 7, 11, 3, 24, 4


def test_answers_are_those_of_a_text_read_by_hand():
    letters = torch.tensor([[2, 0, 2, 1, 0, 2, 2]])
    numbers = torch.tensor([[6, 5, 4, 3, 2, 1, 0]])
    n = NOTHING
    assert answers(letters, numbers)[0].tolist() == [
        [n, n, n, n, n],  # 1 back, 3 back, 5 back, first, the last card before with this letter
        [6, n, n, 6, n],
        [5, n, n, 6, 6],
        [4, 6, n, 6, n],
        [3, 5, n, 6, 5],
        [2, 4, 6, 6, 4],
        [1, 3, 5, 6, 1],
    ]


def test_a_batch_follows_from_seed_and_step():
    cards = Cards(LETTERS, NUMBERS, LENGTH, ROWS, seed=1)
    one, again = cards.batch(4), cards.batch(4)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["cards"], cards.batch(5)["cards"])
    assert not torch.equal(one["cards"], Cards(LETTERS, NUMBERS, LENGTH, ROWS, seed=2).batch(4)["cards"])


@pytest.fixture(scope="module")
def nets() -> dict[str, Reader]:
    torch.manual_seed(0)
    return {kind: Reader(LETTERS, NUMBERS, LENGTH, WIDTH, HEADS, kind).eval() for kind in KINDS}


@pytest.fixture(scope="module")
def data() -> dict[str, torch.Tensor]:
    return dict(Cards(LETTERS, NUMBERS, LENGTH, 9, seed=3).batch(0))


def test_every_kind_and_every_number_of_heads_has_as_many_parameters(nets):
    others = [Reader(LETTERS, NUMBERS, LENGTH, WIDTH, heads) for heads in (1, 2, 3, 6, 12)]
    assert len({sum(each.numel() for each in net.parameters()) for net in (*nets.values(), *others)}) == 1


def test_tied_heads_have_one_map_and_free_ones_do_not(nets, data):
    maps = {kind: record_call(net, data["cards"]).layers[0].weights() for kind, net in nets.items()}
    assert maps["tied"].shape == (HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(maps["tied"], maps["tied"][:1].expand(HEADS, -1, -1), rtol=0, atol=1e-6)
    assert float((maps["free"][0] - maps["free"][1]).abs().max()) > 0.05
    assert diversity(nets["tied"], data["cards"]) == pytest.approx(0, abs=1e-9)
    values = nets["tied"].attention.qkv_proj.v(torch.randn(1, 2, WIDTH)).unflatten(-1, (HEADS, -1))
    assert not torch.allclose(values[..., 0, :], values[..., 1, :]), "only the maps are one: values are each head's own"


def test_diversity_is_the_mean_over_pairs_and_rows_that_see_two_cards(nets, data):
    layer = record_call(nets["free"], data["cards"]).layers[0]
    apart = []
    for text in range(9):
        maps = layer.weights(text=text)[:, 1:].double()
        for one in range(HEADS):
            for other in range(one):
                apart.append(row_divergences(maps[[one]], maps[[other]])[0])
    expected = float(torch.cat(apart).mean()) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert diversity(nets["free"], data["cards"]) == pytest.approx(float(expected), rel=1e-6)
    with applied(nets["free"], Plan([Average("L*")])) as now:
        assert diversity(nets["free"], data["cards"]) == pytest.approx(0, abs=1e-9)
    assert not now.unchanged


def test_an_unmixed_net_puts_its_heads_side_by_side(nets):
    attention, x = nets["unmixed"].attention, torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        out, weights = attention(x, average_attn_weights=False)
        values = attention.qkv_proj.v(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(out, (weights @ values).transpose(1, 2).flatten(2))


def test_scores_are_of_answers_that_exist(nets, data):
    class Oracle(torch.nn.Module):
        """Right everywhere, but for "same letter" in the first text."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, cards):
            said = data["answers"].clamp_min(0).clone()
            said[0, :, 4] = (said[0, :, 4] + 1) % NUMBERS
            return 50.0 * torch.nn.functional.one_hot(said, NUMBERS).float()

    found = scores_of(Oracle(), data)
    there = (data["answers"] != NOTHING).all(-1)
    assert found["right_first"] == found["right_3 back"] == 1.0
    assert found["all_right"] == pytest.approx(1 - float(there[0].sum() / there.sum())) and found["all_right"] < 1
    assert float(loss_of(Oracle(), data)) == pytest.approx(found["held_out_loss"])
    assert mh.record_call(nets["free"], data["cards"]).layers[0].site.num_heads == HEADS


def test_a_trial_of_heads_runs_from_start_to_end(tmp_path):
    whole = carry_out("heads", tmp_path / "whole", quick=True)
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
    # The paper's numbers are the paper's, and the others are called what they are.
    assert heads.PAPER_BLEU == {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}
    assert "24.9 (1), 25.5 (4), 25.8 (8), 25.8 (16), 25.4 (32)" in whole.findings.lines[-2]
    assert "25.8 (1), 27.1 (2), 27.5 (4), 28.0 (8), 28.0 (16), are not in it" in whole.findings.lines[-1]


def test_nets_of_one_seed_read_the_same_texts_and_held_out_ones_are_no_steps():
    one, other = (heads.reader_run("a", heads.TRIAL, 3, count) for count in (2, 8))
    assert one.batch(1)["cards"].equal(other.batch(1)["cards"])
    assert not one.batch(1)["cards"].equal(heads.reader_run("a", heads.TRIAL, 4, 2).batch(1)["cards"])
    held_out = heads.held_out_of(heads.WHOLE, 3)
    assert len(held_out["cards"]) == heads.HELD_OUT_ROWS and heads.WHOLE.settings.steps < heads.HELD_OUT_STEP


@pytest.mark.slow  # test_gqa_preset's trial runs, stops and goes on
def test_a_trial_of_collapse_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("collapse", tmp_path, 11)  # in the second run, after its checkpoint
    found = whole.report["found"]
    assert resumed.trained["tied-0"].resumed_at == 3 and resumed.report["found"] == found
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
    model = heads.reader_run("a", TRIAL, 0, collapse.HEADS).model.eval()
    held_out = held_out_of(TRIAL, 0)
    with torch.no_grad():
        before = collapse.measured(model, held_out)
        found = {way: collapse.measured_under(model, plan, held_out) for way, plan in collapse.PLANS.items()}
        assert collapse.measured(model, held_out) == before
    assert len({each["held_out_loss"] for each in (before, *found.values())}) == 3
    assert found["averaged"]["diversity"] < 1e-9 < found["skipped"]["diversity"] == before["diversity"]


def test_the_documents_numbers_are_those_of_the_stored_reports():
    """Drift check: docs/reference/training.md and the studio's scenes show one whole run of each preset."""
    page = (Path(__file__).parents[3] / "docs/reference/training.md").read_text()
    ways = stored_report("collapse")["found"]["ways"]
    assert list(ways) == list(collapse.WAYS)
    names = ("trained free", "the free net, run with maps averaged", "trained with one map for all",
             "the free net, run without W^O", "trained without W^O")  # fmt: skip
    for name, way in zip(names, ways.values(), strict=True):
        loss, right, apart = (way[key] for key in ("held_out_loss", "all_right", "diversity"))
        share = "0 %" if right["mean"] < 0.005 else f"{100 * right['mean']:.0f} ± {100 * right['sd']:.0f} %"
        different = "0" if apart["mean"] < 1e-9 else f"{apart['mean']:.3f} ± {apart['sd']:.3f}"
        assert f"| {name} | {loss['mean']:.3f} ± {loss['sd']:.3f} | {share} | {different} |" in page
    for count, scores in stored_report("heads")["found"]["by_heads"].items():
        loss, right = scores["held_out_loss"], scores["all_right"]
        words = f"{loss['mean']:.3f} ± {loss['sd']:.3f} | {100 * right['mean']:.0f} ± {100 * right['sd']:.0f} %"
        assert f"| {count} | {64 // int(count)} | {words} |" in page
    message = "no report of a training of 'gqa' comes with manyheads: there is collapse, heads"
    refuses(PlanError, message, stored_report, "gqa")


def test_only_a_whole_training_is_kept(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"preset": "heads", "quick": True, "steps": None, "found": {}}))
    refuses(ModelError, "holds no whole training of collapse or heads", keep_report, tmp_path, tmp_path / "stored.json")
    report = {"preset": "heads", "quick": False, "steps": None, "found": {"a": 1}, "versions": {"torch": "2"}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    keep_report(tmp_path, tmp_path / "stored.json")
    kept = json.loads((tmp_path / "stored.json").read_text())
    assert kept == {
        "heads": {"command": "manyheads train heads --out FOLDER", "found": {"a": 1}, "versions": {"torch": "2"}}
    }
