"""The papers' definitions against what is computed by hand, and every reproduction in a trial."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from manyheads.errors import FileAccessError
from manyheads.figures import save_chart
from manyheads.heads import Head
from manyheads.nn import Mask
from manyheads.nn.mixing import LayerCall, Mixed
from manyheads.nn.scores import Rule
from manyheads.reproductions import gu_sinks, kimi_clip, olsson_phase, reproduce, wu_scores, zhai_collapse
from manyheads.statistics import measure_call
from manyheads.training.checkpoints import History
from manyheads.training.decoder import ATTENTIONS, Decoder, DecoderConfig, sigmoid_attend

VOCAB, WIDTH, LAYERS, HEADS, HEAD_DIM, TEXTS, LENGTH = 29, 18, 2, 3, 6, 5, 11


def decoder(attention: str) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(DecoderConfig(VOCAB, WIDTH, LAYERS, HEADS, HEADS, HEAD_DIM, 20, attention=attention)).eval()
    with torch.no_grad():
        for each in model.parameters():  # far from the start, where all maps are even
            each.mul_(3 if each.ndim > 1 else 1).add_(0.2 * torch.randn_like(each))
    return model


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_mean_weights_on_the_first_key_are_those_of_maps_made_by_hand(kind, fresh):
    q, k, v = (torch.randn(TEXTS, HEADS, LENGTH, HEAD_DIM, generator=fresh) for _ in range(3))
    sinks = torch.randn(HEADS, generator=fresh) if kind == "learned-sink" else None
    module = torch.nn.Identity()
    module.attend = sigmoid_attend if kind == "sigmoid" else None
    rule, mask = Rule(0.7, sinks=sinks), Mask.causal(LENGTH, LENGTH)
    seen = gu_sinks.MeanWeights(frozenset())
    seen.seen(LayerCall(module, q, k, v, rule, lambda: mask, False, lambda: Mixed(v, "")))
    first, learned = (np.zeros((TEXTS, HEADS)) for _ in range(2))
    for text, head, row in np.ndindex(TEXTS, HEADS, LENGTH):
        scores = [0.7 * float(q[text, head, row] @ k[text, head, key]) for key in range(row + 1)]
        if kind == "sigmoid":
            weights, sink = [1 / (1 + math.exp(-score)) for score in scores], 0.0
        else:
            weights = [math.exp(score) for score in scores]
            sink = math.exp(float(sinks[head])) if sinks is not None else 0.0
        first[text, head] += weights[0] / (sum(weights) + sink) / LENGTH
        learned[text, head] += sink / (sum(weights) + sink) / LENGTH
    np.testing.assert_allclose(seen.first_key[0], first, rtol=1e-4)
    np.testing.assert_allclose(seen.learned_sink[0], learned, rtol=1e-4, atol=1e-6)


@pytest.mark.turns(4)
def test_the_share_of_sinks_counts_every_text_layer_and_head_by_itself(monkeypatch, fresh):
    model, ids = decoder("softmax"), torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    one_by_one = [measure_call(model, ids[text : text + 1], statistics=["first_mass"]) for text in range(TEXTS)]
    masses = np.array([table.column("first_mass") for table in one_by_one])  # the library's own statistic
    assert masses.shape == (TEXTS, LAYERS * HEADS)
    for threshold in np.quantile(masses, [0.2, 0.5, 0.9]) + 1e-4:
        monkeypatch.setattr(gu_sinks, "THRESHOLD", float(threshold))
        with torch.no_grad():
            shares = gu_sinks.sink_shares(model, ids)
        assert shares == {"first_key": pytest.approx((masses > threshold).mean()), "learned_sink": 0.0}
    with torch.no_grad():
        before = model(ids).logits
        assert torch.equal(before, model(ids).logits)  # nobody is watched any more


def test_the_in_context_score_is_the_late_tokens_loss_minus_the_early_ones(fresh):
    model, ids = decoder("softmax"), torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    with torch.no_grad():
        score = olsson_phase.in_context_score(model, ids, early=3, late=10)
        logits = model(ids).logits.double().numpy()
    by_hand = 0.0
    for text in range(TEXTS):
        # The tenth token is predicted from nine, by the logits at the ninth place, whose index is 8.
        for sign, token in ((1, 10), (-1, 3)):
            row = logits[text, token - 2]
            by_hand += sign * (np.log(np.exp(row).sum()) - row[ids[text, token - 1]]) / TEXTS
    assert score == pytest.approx(by_hand, rel=1e-4)


def test_when_a_curve_changes_is_read_between_two_measurements():
    history = History()
    for step, value in ((0, 1.0), (10, 1.0), (20, 0.5), (30, -0.5), (40, -1.0)):
        history.add({"step": step, "score": value})
    # From 1 to -1: 10 % is 0.8, on the line from 10 to 20 at 14; half is 0, at 25; 90 % is -0.8, at 36. Of 40 steps.
    assert olsson_phase.change(history, "score") == pytest.approx({"at_10%": 14 / 40, "at_50%": 25 / 40, "at_90%": 0.9})


def test_a_spike_is_a_loss_far_over_those_before():
    losses = [4.0 + 0.1 * (step % 3) for step in range(30)] + [2.0 + 0.1 * (step % 3) for step in range(40)]
    assert kimi_clip.spikes_of(losses) == 0
    # The first has too few steps before it. 1.5 times the median, 2.1, of the last 20 steps is 3.15; of all it is more.
    losses[5], losses[60], losses[65] = 9.0, 3.2, 3.1
    assert kimi_clip.spikes_of(losses) == 1


@pytest.mark.turns(4)
def test_retrieval_heads_of_a_published_file_are_counted(tmp_path):
    # 7 layers of 9 heads: 4 over 0.1, 1 at it, 40 never active.
    places = [(layer, head) for layer in range(7) for head in range(9)]
    means = dict.fromkeys(places, 0.05) | dict.fromkeys(places[:40], 0.0)
    means |= {places[50]: 0.11, places[51]: 0.9, places[60]: 0.4, places[62]: 0.10001, places[55]: 0.1}
    scores = {f"{a}-{b}": [2 * mean, 0.0, mean] for (a, b), mean in means.items()}
    (tmp_path / "toy.json").write_text(json.dumps(scores))
    made = reproduce("wu-scores", tmp_path / "out", file=tmp_path / "toy.json")
    active, never = made.document["rows"]
    assert (active["mean"], active["low"], active["verdict"]) == (4 / 63, None, "does not come out")
    assert (never["mean"], never["verdict"]) == (40 / 63, "not judged")
    assert f"{Head('', *places[51])} 0.90, {Head('', *places[60])} 0.40, " in made.document["notes"][0]
    save_chart(made.result.chart, tmp_path / "figure.svg")
    (tmp_path / "other.json").write_text('{"sparsity": 0.5}')
    with pytest.raises(FileAccessError, match="none of the lists of heads"):
        reproduce("wu-scores", tmp_path / "other", file=tmp_path / "other.json")
    assert not (tmp_path / "other").exists()
    assert "3.2 % of this file" in wu_scores.rows_of({Head("", 0, 0): 0.2}, "llama-2-7b-80k")[0].paper


def test_claims_are_read_from_what_the_presets_found():
    def way(**numbers):
        layers = [{"each": [0.01, 0.02]}, {"each": [0.30, 0.05]}]
        return {name: {"each": list(each)} for name, each in numbers.items()} | {"entropy_by_layer": layers}

    ways = {
        "stable": way(held_out_loss=(2.0, 2.1), lowest_entropy=(0.5, 0.6)),
        "high": way(held_out_loss=(2.5, 3.1), lowest_entropy=(0.0, 0.0)),
        "sigma": way(held_out_loss=(2.2, 2.2), lowest_entropy=(0.7, 0.8)),
    }
    rows = zhai_collapse.rows_of(ways, (0.0, 1.0))
    assert [row.values for row in rows] == [
        (0.30, 0.05), (0.5, 0.6), (0.5, 1.0), (0.0, 1.0), (0.7, 0.8), pytest.approx((-0.3, -0.9))
    ]  # fmt: skip
    ways = {
        "free": way(held_out_loss=(2.0, 2.5), highest_max_logit=(1200.0, 1300.0), max_logit=(900.0, 800.0)),
        "clipped-100": way(held_out_loss=(1.9, 2.0), highest_max_logit=(104.0, 107.0), max_logit=(99.0, 80.0)),
    }
    rows = kimi_clip.rows_of(ways, {"free": (2.0, 3.0), "clipped-100": (0.0, 1.0)})
    assert [row.values for row in rows] == [
        (1200.0, 1300.0), (104.0, 107.0), (99.0, 80.0), pytest.approx((-0.1, -0.5)), (0.0, 1.0), (2.0, 3.0)
    ]  # fmt: skip


@pytest.mark.turns(5)
def test_a_quick_trial_of_own_trainings_shows_seeds_steps_and_both_curves(tmp_path):
    made = reproduce("olsson-phase", tmp_path / "out", quick=True, seeds=2)
    rows = made.document["rows"]
    assert [len(row["each"]) for row in rows] == [2] * 6 and made.document["seeds"] == 2
    assert sorted(path.name for path in (tmp_path / "out/training").glob("checkpoint-*")) == [
        f"checkpoint-{run}.safetensors" for run in ("1-0", "1-1", "2-0", "2-1")
    ]
    save_chart(made.result.chart, tmp_path / "figure.svg")
    again = reproduce("olsson-phase", tmp_path / "out", quick=True, seeds=2)
    assert again.document["rows"] == rows  # read back, not trained again


@pytest.mark.slow  # trials of the others: what they train is held by its own tests, what they read by those above
@pytest.mark.parametrize("name", ["gu-sinks", "zhai-collapse", "kimi-clip"])
def test_a_quick_trial_runs(name, tmp_path):
    made = reproduce(name, tmp_path / "out", quick=True)
    assert all(len(row["each"]) == 1 and row["verdict"] in ("undecided", "not judged") for row in made.document["rows"])
    save_chart(made.result.chart, tmp_path / "figure.svg")


@pytest.mark.slow  # a training of a seed: the circuit forms in it, and only with two layers
def test_induction_heads_form_with_two_layers_and_not_with_one(tmp_path):
    made = reproduce("olsson-phase", tmp_path / "out", seeds=1)
    values = [row["mean"] for row in made.document["rows"]]
    assert values[0] < -1.0 and values[1] < 0 and values[2] > 0.5 and values[3] < 0.1
