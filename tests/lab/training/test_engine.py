"""The loop and its checkpoints: runs go on to the last bit, what is damaged is refused; numbers over seeds; figures."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyheads.errors import FileAccessError, ModelError, PlanError
from manyheads.lab.training import Chart, Panel, carry_out, checkpoints, save_chart
from manyheads.lab.training.charts import GridChart, GridRow, Line
from manyheads.lab.training.checkpoints import History, heads_table, metrics_table, read_state
from manyheads.lab.training.loop import autocast, choose_precision, optimizers_of, train
from manyheads.lab.training.runs import Run, Settings, change_lines, paired, spread_of
from manyheads.lab.training.together import SINGLE, require_gpu_for_each_process, together
from tests.processes import assert_killed, in_child
from tests.refusals import refuses

CPU = torch.device("cpu")
BLOWN_UP = (1.0, math.nan)
SETTINGS = Settings(steps=12, rate=0.02, warmup=3, floor=0.25, checkpoint_every=5, measure_every=4)


def run_of(settings: Settings = SETTINGS, *, dropout: float = 0.2, measure=None) -> Run:
    """A small regressor with dropout, so that the global random numbers count."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 2))

    def batch(step: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(11, 7, generator=generator)
        return {"x": x, "y": x[:, :2] * x[:, 2:4]}

    return Run("small", model, settings, batch, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), measure)


def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine():
    settings = Settings(steps=110, rate=0.5, warmup=10, floor=0.2)
    assert [settings.rate_at(step) for step in (0, 4, 9)] == [0.05, 0.25, 0.5]
    assert settings.rate_at(10) == 0.5
    assert settings.rate_at(60) == pytest.approx(0.3)  # half way down from 0.5 to 0.1
    assert settings.rate_at(110) == pytest.approx(0.1)


def test_losses_and_weights_are_those_of_adamw_written_by_hand(tmp_path):
    settings = replace(SETTINGS, steps=3, clip=0.1, decay=0.3)
    run = run_of(settings, dropout=0.0)
    weights = [each.detach().clone().requires_grad_() for each in run.model.parameters()]
    trained = train(run, tmp_path / "c.safetensors")
    first, second = ([torch.zeros_like(each) for each in weights] for _ in range(2))
    losses = []
    for step in range(3):
        data = run.batch(step)
        out = F.linear(torch.tanh(F.linear(data["x"], weights[0], weights[1])), weights[2], weights[3])
        loss = (out - data["y"]).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
        rate, (b1, b2) = settings.rate_at(step), settings.betas
        for at, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            gradient = gradient * min(1.0, 0.1 / (norm + 1e-6))
            first[at] = b1 * first[at] + (1 - b1) * gradient
            second[at] = b2 * second[at] + (1 - b2) * gradient**2
            move = first[at] / (1 - b1 ** (step + 1)) / ((second[at] / (1 - b2 ** (step + 1))).sqrt() + 1e-8)
            decay = 0.3 if weight.ndim > 1 else 0.0  # biases do not decay
            weights[at] = (weight - rate * (decay * weight + move)).detach().requires_grad_()
        losses.append(float(loss.detach()))
        assert norm > 0.1, "the clip must matter"
    assert trained.history.columns["loss"][1:] == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(trained.model.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)


def stopped(run: Run, path: Path, at: int) -> None:
    """Train until a step's progress is told, and no further."""

    def progress(done: int, total: int | None, note: str = "", /) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, path, progress=progress)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_stopped_has_the_losses_of_one_that_was_not(optimizer, tmp_path):
    settings = replace(SETTINGS, optimizer=optimizer)
    whole = train(run_of(settings), tmp_path / "whole.safetensors")
    path = tmp_path / "stopped.safetensors"
    stopped(run_of(settings), path, 8)
    assert read_state(path).step == 5
    resumed = train(run_of(settings), path)
    assert resumed.resumed_at == 5
    for name in ("step", "loss", "rate", "norm"):
        assert str(resumed.history.columns[name]) == str(whole.history.columns[name]), name
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("lost", ["random.cpu", "optimizer"])
def test_every_part_of_a_checkpoint_matters(lost, tmp_path, monkeypatch):
    whole = train(run_of(), tmp_path / "whole.safetensors")
    path = tmp_path / "stopped.safetensors"
    stopped(run_of(), path, 8)
    torch.manual_seed(77)
    if lost == "random.cpu":
        monkeypatch.setattr(checkpoints, "set_random_states", lambda states: None)
    else:
        read = checkpoints.Saved.part
        monkeypatch.setattr(
            checkpoints.Saved, "part", lambda self, name: {} if name.startswith(lost) else read(self, name)
        )
    assert train(run_of(), path).history.columns["loss"] != whole.history.columns["loss"]


def test_muon_steps_matrices_but_embeddings_and_adamw_the_rest():
    model = nn.ModuleDict({"words": nn.Embedding(7, 5), "out": nn.Linear(5, 3)})
    muon, adamw = optimizers_of(model, replace(SETTINGS, optimizer="muon", decay=0.3))
    assert isinstance(muon, torch.optim.Muon) and [group["weight_decay"] for group in muon.param_groups] == [0.3]
    assert [list(group["params"]) for group in muon.param_groups] == [[model["out"].weight]]
    decayed = {group["weight_decay"]: [id(each) for each in group["params"]] for group in adamw.param_groups}
    assert decayed == {0.3: [id(model["words"].weight)], 0.0: [id(model["out"].bias)]}


def test_a_step_of_muon_is_an_orthogonal_matrix_as_large_as_adamws(fresh):
    layer = nn.Linear(5, 8, bias=False)
    before = layer.weight.detach().double().numpy().copy()
    (muon,) = optimizers_of(layer, replace(SETTINGS, optimizer="muon", decay=0.0, rate=0.01))
    layer.weight.grad = torch.randn(8, 5, generator=fresh)
    muon.step()
    step = (layer.weight.detach().double().numpy() - before) / 0.01
    singular = np.linalg.svd(step / (0.2 * math.sqrt(8)))[1]
    # Five rounds of Newton and Schulz end near 1, by design between 0.7 and 1.2 (Jordan et al. 2024); bfloat16.
    assert ((singular > 0.6) & (singular < 1.3)).all()


def test_a_checkpoint_from_before_a_setting_was_there_goes_on(tmp_path):
    path = tmp_path / "c.safetensors"
    train(run_of(), path)
    saved = read_state(path)
    older = {name: value for name, value in saved.facts["settings"].items() if name not in ("optimizer", "qk_clip")}
    rewritten(path, saved, settings=older)
    assert train(run_of(), path).resumed_at == 12
    refuses(ModelError, "optimizer adamw then, muon now", train, run_of(replace(SETTINGS, optimizer="muon")), path)


def rewritten(path: Path, saved: checkpoints.Saved, **facts: object) -> None:
    from safetensors.torch import save_file

    save_file(dict(saved.tensors), path, {checkpoints.FORMAT: json.dumps({**saved.facts, **facts})})


def test_a_run_killed_by_the_system_goes_on_bit_by_bit(tmp_path):
    path = tmp_path / "c.safetensors"

    def killed(done: int, total: int | None, note: str = "", /) -> None:
        if done == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    assert_killed(in_child(lambda: train(run_of(), path, progress=killed)))
    assert read_state(path).step == 5
    resumed, whole = train(run_of(), path), train(run_of(), tmp_path / "whole.safetensors")
    assert resumed.history.columns["loss"][1:] == whole.history.columns["loss"][1:]


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    train(run_of(), path)
    before = path.read_bytes()

    def half(tensors, file, header):
        Path(file).write_bytes(before[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    longer = replace(SETTINGS, steps=12, checkpoint_every=1)
    with pytest.raises(FileAccessError, match="cannot write .*c2.safetensors: the disk is full"):
        train(run_of(longer), tmp_path / "c2.safetensors")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_finished_run_is_read_back_and_not_trained_again(tmp_path):
    first = train(run_of(), tmp_path / "c.safetensors")
    calls: list[int] = []
    again = train(run_of(), tmp_path / "c.safetensors", progress=lambda done, total, note="", /: calls.append(done))
    assert (calls, again.resumed_at) == ([], 12)
    assert again.history.columns["loss"][1:] == first.history.columns["loss"][1:]
    assert not again.model.training


def test_what_is_measured_leaves_no_trace_in_the_training(tmp_path):
    seen: list[bool] = []

    def measure(model: nn.Module, step: int) -> dict[str, float]:
        seen.append(model.training or torch.is_grad_enabled())
        return {"noise": float(torch.randn(()))}

    with_it = train(run_of(measure=measure), tmp_path / "a.safetensors")
    without = train(run_of(), tmp_path / "b.safetensors")
    assert with_it.history.columns["loss"][1:] == without.history.columns["loss"][1:]
    assert with_it.history.taken("noise")[0] == [0, 4, 8, 12] and not any(seen)


@pytest.mark.parametrize(("device", "forked"), [("cpu", []), ("cuda:1", [torch.device("cuda", 1)])])
def test_random_numbers_are_put_back_on_the_models_device_alone(device, forked, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("manyheads.lab.training.loop.device_of", lambda model: torch.device(device))
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: asked.append(devices) or nullcontext())
    train(run_of(measure=lambda model, step: {}), tmp_path / "a.safetensors")
    assert asked == [forked] * 4


@pytest.mark.parametrize(
    ("factor", "told"), [(math.nan, "loss of small became nan"), (1e38, "gradient of small became inf")]
)
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_checkpoint(factor, told, tmp_path):
    path, run = tmp_path / "c.safetensors", run_of(dropout=0.0)
    bad = replace(run, loss=lambda model, batch: run.loss(model, batch) * (factor if read_step(path) else 1.0))
    refuses(ModelError, f"the {told} at step 5: the last checkpoint is as it was", train, bad, path)
    assert read_state(path).step == 5


def test_a_run_that_may_diverge_ends_with_what_it_found_and_is_not_trained_again(tmp_path):
    path, run = tmp_path / "c.safetensors", run_of(measure=lambda model, step: {"size": float(model[0].weight.norm())})
    bad = replace(
        run, may_diverge=True, loss=lambda model, batch: run.loss(model, batch) * BLOWN_UP[int(read_step(path) > 4)]
    )
    calls: list[int] = []
    ended = train(bad, path, progress=lambda done, total, note="", /: calls.append(done))
    assert ended.ended == "the loss of small became nan at step 5"
    # Steps, numbers and weights are those of the last sound step: the steps before are the sound run's to the bit.
    assert calls == ended.history.columns["step"][1:] == [1, 2, 3, 4, 5] and ended.history.taken("size")[0] == [0, 4]
    sound = train(run_of(), tmp_path / "sound.safetensors")
    assert ended.history.columns["loss"][1:] == sound.history.columns["loss"][1:6]
    assert all(bool(parameter.isfinite().all()) for parameter in ended.model.parameters())
    again = train(bad, path, progress=lambda *_: pytest.fail("trained again"))
    assert (again.ended, again.resumed_at, len(again.history)) == (ended.ended, 5, 6)
    # A run that cannot even begin is no finding.
    with pytest.raises(ModelError, match="the loss of small became nan at step 0"):
        train(replace(bad, loss=lambda model, batch: run.loss(model, batch) * math.nan), tmp_path / "d.safetensors")


def read_step(path: Path) -> int:
    return read_state(path).step if path.exists() else 0


def test_another_runs_checkpoint_is_refused(tmp_path):
    train(run_of(), tmp_path / "c.safetensors")
    with pytest.raises(ModelError, match="belongs to another run .'small'; rate 0.02 then, 0.5 now.: give another"):
        train(run_of(replace(SETTINGS, rate=0.5)), tmp_path / "c.safetensors")


@pytest.mark.parametrize("where", ["model.", "optimizer.", "random."])
def test_a_checkpoint_with_other_tensors_than_its_models_is_refused(where, tmp_path):
    from safetensors.torch import load_file, save_file

    path = tmp_path / "c.safetensors"
    train(run_of(), path)
    whole, facts = load_file(path), read_state(path).facts
    name = next(name for name, value in whole.items() if name.startswith(where) and value.ndim)
    save_file(whole | {name: whole[name].flatten()[:3].clone()}, path, {checkpoints.FORMAT: json.dumps(facts)})
    refuses(ModelError, "the checkpoint's tensors are not those of this model .*: delete it", train, run_of(), path)


def test_files_that_are_no_checkpoint_are_told_apart(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.ones(2)}, tmp_path / "headless.safetensors", {checkpoints.FORMAT: json.dumps({"run": "toy"})})
    with pytest.raises(ModelError, match="is damaged .its header says no version.: delete it"):
        read_state(tmp_path / "headless.safetensors")
    for step in ("", ', "step": -1', ', "step": "5"', ', "step": true'):
        header = f'{{"version": {checkpoints.VERSION}{step}}}'
        save_file({"x": torch.ones(2)}, tmp_path / "stepless.safetensors", {checkpoints.FORMAT: header})
        with pytest.raises(ModelError, match="is damaged .its header says no step.: delete it"):
            read_state(tmp_path / "stepless.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"not a checkpoint at all")
    with pytest.raises(ModelError, match="is damaged .*: delete it, and the training starts again"):
        read_state(tmp_path / "damaged.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="is not a training checkpoint: its header lacks 'manyheads.training'"):
        read_state(tmp_path / "other.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "newer.safetensors", {"manyheads.training": '{"version": 9}'})
    refuses(ModelError, "is of version 9, and this manyheads reads 1", read_state, tmp_path / "newer.safetensors")
    refuses(FileAccessError, "there is no such file", read_state, tmp_path / "nothing.safetensors")


def test_settings_that_cannot_be_are_refused():
    refuses(PlanError, "steps=0: give 1 or more", Settings, steps=0)
    refuses(PlanError, "precision='fp8' is not supported: use one of float32, bf16", Settings, steps=1, precision="fp8")
    refuses(PlanError, "optimizer='sgd' is not supported: use one of adamw, muon", Settings, steps=1, optimizer="sgd")


def test_histories_keep_what_was_not_taken_apart_from_what_was():
    history = History()
    history.add({"step": 0, "heads/L1H0/induction": 0.25})
    history.add({"step": 1, "loss": 2.5})
    history.add({"step": 2, "loss": 1.5, "heads/L1H0/induction": 0.75})
    assert history.taken("loss") == ([1, 2], [2.5, 1.5]) and history.last("loss") == 1.5
    assert history.of_heads("induction") == {"L1H0": "heads/L1H0/induction"}
    back = History.from_tensors(history.to_tensors())
    assert str(back.columns) == str(history.columns)
    table = heads_table({"a": history})
    assert table.values.tolist() == [["a", 0, "L1H0", "induction", 0.25], ["a", 2, "L1H0", "induction", 0.75]]
    metrics = metrics_table({"a": history, "b": history})
    assert list(metrics.columns) == ["run", "step", "loss"] and len(metrics) == 6


def test_narrow_models_and_processors_without_bf16_train_in_float32(monkeypatch):
    assert choose_precision(64, CPU).name == "float32"
    monkeypatch.setattr("manyheads.lab.training.loop.native_bf16", lambda: True)
    assert choose_precision(256, CPU) == choose_precision(256, CPU)
    assert choose_precision(256, CPU).name == "bf16"
    monkeypatch.setattr("manyheads.lab.training.loop.native_bf16", lambda: False)
    assert choose_precision(256, CPU).because == "this CPU has no native bf16"
    with autocast("bf16", CPU):
        assert (torch.ones(2, 3) @ torch.ones(3, 2)).dtype == torch.bfloat16


def test_spreads_pairs_and_changes_are_said_with_their_intervals():
    assert spread_of([1.0, 2.0, 6.0]) == {"each": [1.0, 2.0, 6.0], "mean": 3.0, "sd": pytest.approx(math.sqrt(7))}
    assert spread_of([4.0])["sd"] == 0.0
    # differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(2.5 / 5), t of 4 degrees of freedom 2.776
    found = paired([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == {"mean": 3.0, "low": pytest.approx(3 - 1.96293, rel=1e-4), "high": pytest.approx(4.96293, rel=1e-4)}
    assert paired([2.0], [1.5]) == {"mean": 0.5, "low": None, "high": None}
    changes = {
        "two over one": {"mean": -0.5, "low": -0.75, "high": -0.25},
        "four over two": {"mean": 0.25, "low": -0.125, "high": 0.625},
        "of one seed": {"mean": 0.5, "low": None, "high": None},
    }
    assert change_lines(changes) == [
        "two over one, seed by seed: -0.500 nats (-0.750 to -0.250)",
        "four over two, seed by seed: +0.250 nats (-0.125 to +0.625): no difference seen",
    ]


# ------------------------------------------------------------------------------ the figure of a training


@pytest.fixture
def chart() -> Chart:
    history = History()
    for step in range(3000):
        history.add({"step": step, "loss": 12.0 / (step + 1), **({"held": 2.0} if step % 500 == 0 else {})})
    losses = (Line.of(history, "loss", "trained on", False), Line.of(history, "held", "held out"))
    heads = tuple(Line(f"L0H{head}", (0.0, 2999.0), (0.0, 0.5)) for head in range(3))  # names would lie on each other
    return Chart("A title", "and below", (Panel("losses", losses), Panel("heads", heads, 0.0, 1.0)))


def test_lines_names_and_steps_are_there(chart, tmp_path):
    save_chart(chart, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for words in ("A title", "and below", "losses", "trained on", "held out", "L0H0", "L0H1", "L0H2", "training step"):
        assert f">{words}<" in drawn, words
    assert ">1,000<" in drawn and drawn.count('id="LineCollection_') == 5  # two losses, three heads
    at = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^<]*>L0H\d<', drawn))
    assert len(at) == 3 and all(below - above > 8 for above, below in pairwise(at))
    save_chart(chart, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == drawn
    save_chart(chart, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_ways_stand_side_by_side_over_one_axis_a_row(tmp_path):
    falling = Line("L0", (1.0, 40.0), (5.0, 3.0))
    cells = ((falling, replace(falling, name="", bold=False)), (Line("L1", (1.0, 40.0), (2.0, 0.5)),))
    growing = tuple((Line("", (1.0, 40.0), values),) for values in ((0.0, 31.0), (-7.0, 4_200.0)))
    rows = (GridRow("entropy, nats", cells, 0.0), GridRow("max logit", growing, powers=True))
    save_chart(GridChart("A title", "and below", ("one way", "another\nway"), rows), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    words = "A title|and below|one way|another|way|entropy, nats|max logit|L0|L1|40|10,000"
    for word in words.split("|"):
        assert f">{word}<" in drawn, word
    # A figure a power, once a row; a head whose largest logit is 0 or less has no power of ten, and draws nothing.
    assert drawn.count(">10,000<") == drawn.count(">100<") == 1 and drawn.count('id="LineCollection_') == 5
    save_chart(GridChart("t", "s", (), ()), tmp_path / "empty.svg")


def test_a_training_without_numbers_still_has_a_figure_and_an_ending_that_is_none_is_refused(tmp_path, chart):
    save_chart(Chart("t", "s", (Panel("p", (Line("flat", (0.0,), (1.0,)),)), Panel("none", ()))), tmp_path / "a.svg")
    assert ">flat<" in (tmp_path / "a.svg").read_text()
    refuses(FileAccessError, "cannot tell what kind of figure 'a.txt' is", save_chart, chart, tmp_path / "a.txt")


# ==================================================================================================== several processes
# Several processes train what one trains: real ones, that speak by gloo, some of which die.
#
# Oracle: the same run in one process. Sums over two or three processes are added in another order, so losses and
# weights are compared to a few units of float32's last place (losses here are about 1, and came out 2.4e-7 apart at the
# most).

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SAME = 2e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory, pytestconfig) -> dict[str, Any]:
    few = ["few"] if pytestconfig.option.markexpr == "not slow" else []
    command = [sys.executable, "-m", "tests.lab.training.ranked", str(tmp_path_factory.mktemp("ranked")), *few]
    ran = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def assert_trained_alike(each: dict[str, Any], one: dict[str, Any]) -> None:
    for name in ("loss", "norm", "rate", "weights"):
        assert each[name] == pytest.approx(one[name], abs=SAME), name


@pytest.mark.slow
@pytest.mark.parametrize("world", ["two", pytest.param("three", marks=pytest.mark.slow)])
def test_processes_that_share_uneven_batches_train_what_one_trains(world, found):
    ranks = found[world]
    assert len(ranks) == {"two": 2, "three": 3}[world]
    for each in ranks:
        assert_trained_alike(each, found["one"])
        assert each["weights"] == ranks[0]["weights"], "every process must have the same weights, to the last bit"
        assert each["measured"] == ranks[0]["measured"] and each["because"].endswith(f"processes: {len(ranks)}")
        assert each["measured"][0] == found["one"]["measured"][0], "random numbers outside of the loss are one's own"


def test_the_first_process_alone_writes_and_the_number_of_terms_matters(found):
    assert "two.safetensors" in found["files"] and "second's" not in found["files"]
    assert found["by rows"][0]["loss"] != pytest.approx(found["one"]["loss"], abs=1e-3)


def test_random_numbers_of_the_loss_are_each_process_own_and_all_others_alike(found):
    one, other = found["drawn"]
    assert len({*one["inside"], *other["inside"]}) == 4 and one["outside"] == other["outside"]
    assert one["inside"][0] == one["inside"][2], "they follow from the step"


def test_a_run_whose_process_was_killed_goes_on_in_any_number_of_them(found):
    told, dead = found["killed"]
    assert dead == {} and told["error"].startswith("LostProcessError: another process of this run is gone")
    for each in found["again by two"]:
        assert each["at"] == 5
        assert (each["loss"], each["weights"]) == (found["two"][0]["loss"], found["two"][0]["weights"]), "bit by bit"
    assert found["again by one"]["at"] == 5
    assert_trained_alike(found["again by one"], found["one"])


@pytest.mark.slow
def test_dropout_goes_on_bit_by_bit_in_as_many_processes(found):
    assert found["noisy killed"][0] == {}
    for each in found["noisy again"]:
        assert (each["at"], each["loss"]) == (5, found["noisy"][0]["loss"])
        assert each["weights"] == found["noisy"][0]["weights"] != found["two"][0]["weights"]


@pytest.mark.slow  # processes that import torch
def test_a_batch_of_fewer_rows_than_processes_is_refused_by_all_alike(found):
    told = (
        "PlanError: step 0 of small has a batch of 2 rows, too few for 3 processes. Start the same line with at most 2"
    )
    assert [each["error"][: len(told)] for each in found["too few"]] == [told] * 3


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_processes_that_see_different_files_are_refused(found):
    for each in found["apart"]:
        assert "processes would go on from steps [12, 0]: they see different files" in each["error"]


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_a_preset_is_trained_by_all_and_reported_by_the_first(found):
    one, (first, second) = found["heads, one"], found["heads, two"]
    assert (first["rank"], second["rank"], second["found"]) == (0, 1, None)
    assert first["losses"].keys() == one["losses"].keys() and first["losses"] == second["losses"]
    for name, losses in one["losses"].items():
        assert first["losses"][name] == pytest.approx(losses, abs=SAME), name
    for told in found["foreign"]:
        assert (
            "PlanError" in told["error"] and "holds another training (preset heads then, collapse now)" in told["error"]
        )


@pytest.mark.slow  # more processes: a run that is shared, killed and taken up again stands for it
def test_a_preset_whose_process_is_gone_says_how_it_goes_on_and_does(found):
    told, dead = found["lost"]
    assert dead == {} and told["error"].startswith("LostProcessError: another process of this training is gone")
    assert "Start the same line again: it goes on from the last checkpoint in" in told["error"]
    assert found["found again"][0]["losses"] == found["heads, two"][0]["losses"]


def test_alone_nothing_is_shared_and_more_processes_than_gpus_are_refused(monkeypatch):
    with together(torch.device("cpu")) as team:
        assert team == SINGLE and team.is_first and team.world == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    with pytest.raises(PlanError, match="3 processes on a machine with 2 GPUs: start one a GPU .--nproc-per-node 2."):
        require_gpu_for_each_process()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    require_gpu_for_each_process()


def started(folder: Path, steps: int) -> subprocess.CompletedProcess[str]:
    """Two processes by torchrun, as a user would start them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "manyheads", "train", "heads", "--quick", "--steps", str(steps), "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.slow
def test_torchrun_starts_them_and_the_first_speaks_for_all(tmp_path):
    ran = started(tmp_path / "two", 2)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("heads: a trial of 20 steps, seed 0") == 1 and ran.stdout.count("wrote ") == 5
    assert ran.stderr.count("note: 2 processes share every batch") == 1
    assert json.loads((tmp_path / "two/report.json").read_text())["runs"]["h8-1"]["computed"].endswith("processes: 2")
    carry_out("heads", tmp_path / "one", quick=True, steps=2)
    ours, theirs = (pd.read_parquet(tmp_path / name / "metrics.parquet") for name in ("two", "one"))
    for column in ("loss", "norm", "held_out_loss"):
        assert ours[column].to_list() == pytest.approx(theirs[column].to_list(), abs=SAME, nan_ok=True), column
    again = started(tmp_path / "two", 3)
    assert again.returncode != 0 and again.stdout == ""
    assert again.stderr.count("manyheads: ") == again.stderr.count("holds another training (steps 2 then, 3 now)") == 1
