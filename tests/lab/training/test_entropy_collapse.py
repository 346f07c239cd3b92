"""Trainings whose heads are watched: numbers beside the loss, nothing moved; the presets that show what grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from manyheads.lab.training import GridChart, carry_out, save_chart
from manyheads.lab.training.decoder import Decoder, DecoderConfig, batch_loss
from manyheads.lab.training.loop import train
from manyheads.lab.training.presets import gqa
from manyheads.lab.training.presets.entropy_collapse import COMPARISON, reparametrise
from manyheads.lab.training.presets.qk_clip import COMPARISON as CLIPPED
from manyheads.lab.training.runs import Run, Settings
from manyheads.measurement import measure_call
from manyheads.watching import open_history

from .stopping import stopping_before, whole_and_resumed

LAYERS, HEADS, HEAD_DIM, WIDTH, VOCAB, ROWS, LENGTH = 2, 3, 4, 10, 13, 5, 9
SETTINGS = Settings(steps=7, rate=0.3, warmup=1, checkpoint_every=3, measure_every=2)
WATCHED = ("max_logit", "entropy")


def run_of(settings: Settings = SETTINGS, watched: tuple[str, ...] = WATCHED, sigma: bool = False) -> Run:
    torch.manual_seed(5)
    model = Decoder(DecoderConfig(VOCAB, WIDTH, LAYERS, HEADS, HEADS, HEAD_DIM, 14, LENGTH))
    if sigma:
        reparametrise(model)

    def batch(step: int) -> dict[str, torch.Tensor]:
        return {"ids": torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))}

    return Run("watched", model, settings, batch, batch_loss, watched=watched)


@pytest.mark.parametrize("sigma", [False, True])
def test_losses_and_weights_of_a_watched_run_are_those_of_one_that_is_not(sigma, tmp_path):
    # A spectral norm takes a step whenever its matrix is read in training: a watch must not be one who reads.
    seen = train(run_of(watched=(*WATCHED, "output_share"), sigma=sigma), tmp_path / "a.safetensors")
    plain = train(run_of(watched=(), sigma=sigma), tmp_path / "b.safetensors")
    assert seen.history.columns["loss"][1:] == plain.history.columns["loss"][1:]
    for ours, theirs in zip(seen.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert seen.history.taken("heads/L1H2/entropy")[0] == [1, 2, 4, 6]


def test_what_is_watched_is_of_the_weights_and_the_batch_of_that_very_step(tmp_path):
    seen = train(run_of(), tmp_path / "a.safetensors")
    # Step 6 reads its batch with the weights of five steps.
    fresh = run_of(replace(SETTINGS, checkpoint_every=5), ())
    with stopping_before(6), pytest.raises(KeyboardInterrupt):
        train(fresh, tmp_path / "b.safetensors")
    table = measure_call(fresh.model.eval(), fresh.batch(5)["ids"][:, :-1], statistics=list(WATCHED))
    for name in WATCHED:
        of_heads = [seen.history.columns[f"heads/{head}/{name}"][6] for head in table.heads]
        np.testing.assert_allclose(of_heads, table[name], rtol=1e-5, atol=1e-5)


def test_a_stopped_run_with_clipped_heads_goes_on_the_same(tmp_path):
    settings = replace(SETTINGS, qk_clip=1.5, optimizer="muon")
    whole = train(run_of(settings), tmp_path / "whole.safetensors")
    path = tmp_path / "stopped.safetensors"
    with stopping_before(6), pytest.raises(KeyboardInterrupt):
        train(run_of(settings), path)
    resumed = train(run_of(settings), path)
    assert resumed.resumed_at == 3
    columns = whole.history.columns
    heads = [name for name in columns if name.startswith("heads/")]
    assert len(heads) == LAYERS * HEADS * len(WATCHED)
    for name in ("loss", "norm", *heads):
        assert str(resumed.history.columns[name]) == str(columns[name]), name
    free = train(run_of(replace(settings, qk_clip=None)), tmp_path / "free.safetensors").history.columns
    # Clipped after each step by that step's maxima, which the step itself has moved on by the next.
    logits = [[history[name][6] for name in heads if name.endswith("max_logit")] for history in (columns, free)]
    assert 2 * max(logits[0]) < max(logits[1])


def test_a_reparametrised_matrix_stretches_by_its_gain_and_no_more():
    model = run_of(sigma=True).model
    block = model.blocks[0]
    for module in (block.attention.qkv_proj.q, block.attention.out_proj, block.feed_forward.gate_proj):
        gain = module.parametrizations.weight[1].gain
        with torch.no_grad():
            gain.fill_(1.7)
        # One power iteration a pass, and fifteen before the first: the estimate comes from below.
        for _ in range(60):
            weight = module.weight
        assert np.linalg.svd(weight.detach().double().numpy())[1][0] == pytest.approx(1.7, rel=1e-4)
    assert not hasattr(model.embedding, "parametrizations")


def test_a_killed_start_leaves_no_steps_behind(tmp_path):
    folder = tmp_path / "heads/watched"
    with stopping_before(3), pytest.raises(KeyboardInterrupt):  # before the first checkpoint
        train(run_of(), tmp_path / "a.safetensors", heads=folder)
    assert open_history(folder).steps.tolist() == [1, 2]
    train(run_of(), tmp_path / "a.safetensors", heads=folder)
    assert open_history(folder).steps.tolist() == [1, 2, 4, 6]


def test_heads_are_the_same_in_all_files_and_in_the_report_also_of_a_trial_that_was_stopped(tmp_path):
    whole, resumed = whole_and_resumed("qk-clip", tmp_path, 6)  # the last step of the first run
    assert resumed.report["found"] == whole.report["found"] and resumed.trained["free-0"].resumed_at == 3
    heads = pd.read_parquet(tmp_path / "whole/heads.parquet")
    pd.testing.assert_frame_equal(heads, pd.read_parquet(tmp_path / "other/heads.parquet"))
    for name, run in whole.trained.items():  # what grows beside the training, for who watches
        curves, others = (open_history(tmp_path / which / "heads" / name) for which in ("whole", "other"))
        np.testing.assert_array_equal(curves.values, others.values)
        assert curves.heads == others.heads and list(curves.steps) == [1, 3, 6]
        for place in np.ndindex(len(curves.heads), len(curves.statistics)):
            column = run.history.taken(f"heads/{curves.heads[place[0]]}/{curves.statistics[place[1]]}")[1]
            assert curves.values[:, *place].tolist() == column
    ways = whole.report["found"]["ways"]
    assert list(ways) == list(CLIPPED.ways) and CLIPPED.reference in ways and COMPARISON.reference in COMPARISON.ways
    for key, way in ways.items():
        last = heads[(heads.run == f"{key}-0") & (heads.step == 6)].pivot(index="head", columns="statistic")["value"]
        assert way["max_logit"]["mean"] == last.max_logit.max() and way["lowest_entropy"]["mean"] == last.entropy.min()
        assert way["entropy"]["mean"] == pytest.approx(last.entropy.mean())
        layers = last.entropy.groupby(last.index.str[:2]).mean().tolist()
        assert [layer["mean"] for layer in way["entropy_by_layer"]] == pytest.approx(layers)
    assert len(whole.findings.lines) == 1 + len(ways)
    chart = whole.findings.chart
    assert isinstance(chart, GridChart) and [len(row.cells) for row in chart.rows] == [len(ways)] * 4


@pytest.mark.slow
def test_a_way_that_diverges_is_reported_up_to_where_it_ended(tmp_path, monkeypatch):
    calls: list[int] = []

    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        calls.append(0)
        return batch_loss(model, batch) * (float("inf") if len(calls) == 11 else 1.0)  # the second run's fifth step

    monkeypatch.setattr(gqa, "batch_loss", loss)
    outcome = carry_out("qk-clip", tmp_path, quick=True)
    ended = "the loss of clipped-100-0 became inf at step 4"
    ways = outcome.report["found"]["ways"]
    assert [way["ended"] for way in ways.values()] == [[], [ended], [], []]
    assert outcome.report["runs"]["clipped-100-0"]["ended"] == ended and "ended" not in outcome.report["runs"]["free-0"]
    assert outcome.report["runs"]["clipped-100-0"]["steps"] == 4
    assert f"; {ended}, and the run ended" in "\n".join(outcome.findings.lines)
    save_chart(outcome.findings.chart, tmp_path / "figure.svg")
