"""Presets are listed without being loaded, and two trainings do not share a folder."""

import subprocess
import sys

import pytest

from manyheads.errors import PlanError
from manyheads.training import carry_out
from manyheads.training.presets import table
from manyheads.training.session import alone_in

from .stopping import whole_and_resumed

LISTS = """
import sys
from manyheads.cli.main import main
main(["train"])
loaded = [name for name in sys.modules if name == "torch" or name.startswith("manyheads.training.presets.")]
print(loaded)
"""


@pytest.mark.turns(4)
def test_listing_loads_no_preset_and_no_torch():
    ran = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "['manyheads.training.presets.table']"


def test_every_preset_is_the_one_that_is_listed():
    for name in table.PRESETS:
        assert table.preset_of(name).name == name


def test_a_broken_preset_kills_no_other(monkeypatch):
    monkeypatch.setitem(sys.modules, "manyheads.training.presets.rul.preset", None)
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


@pytest.mark.slow  # gqa's and rul's own trials, and processes that train `heads` together, stop and go on in every run
@pytest.mark.parametrize(
    ("preset", "run"),
    [("heads", "h2-0"), ("collapse", "tied-0"), ("supervised", "previous-0.01-0"), ("entropy-collapse", "high-0")],
)
def test_a_trial_that_was_stopped_goes_on_the_same(preset, run, tmp_path):
    whole, resumed = whole_and_resumed(preset, tmp_path, 11)  # in the second run, after its checkpoint
    assert resumed.trained[run].resumed_at == 3 and resumed.report["found"] == whole.report["found"]


@pytest.mark.turns(4)
def test_induction_says_what_its_ablations_do_not_show(tmp_path):
    from manyheads.training.presets.induction import control

    def gone(**scores):
        return {head: {"best_induction": score} for head, score in scores.items()}

    assert "are both needed" in control("L0H1", gone(L0H0=0.01, L0H1=0.03, L1H0=0.98))
    assert "needs L0H1 alone" in control("L0H1", gone(L0H0=0.9, L0H1=0.03, L1H0=0.98))
    assert "outlives L0H1" in control("L0H1", gone(L0H0=0.01, L0H1=0.9, L1H0=0.1))
    outcome = carry_out("induction", tmp_path / "quick", quick=True, steps=2)
    said = "\n".join(outcome.findings.lines)
    assert "the token before, the most of layer 0, and" in said and "Without L1H1 the best remaining head" in said
    assert set(outcome.report["found"]["ablated_to_the_mean"]) == {"L0H0", "L0H1", "L1H0", "L1H1"}
