"""What a watch does by itself: single heads and pictures to loggers, the loss, and what is done where a head alerts."""

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import manyheads as mh
from manyheads.errors import AlertError, HeadError, PlanError
from manyheads.watching import alerts, open_history, rules_with
from tests.models.eager import draw
from tests.models.tiny import VOCAB_SIZE, tiny_gpt2, tiny_llama
from tests.processes import forked
from tests.refusals import refuses

NAMES = ["max_logit", "entropy"]


def ids_of(fresh, *shape):
    return torch.randint(5, VOCAB_SIZE, shape, generator=fresh)


class Writer:
    """TensorBoard's writer, as far as a watch calls it."""

    def __init__(self):
        self.scalars, self.histograms, self.images = {}, {}, {}

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def add_histogram(self, tag, values, step):
        self.histograms[tag, step] = values

    def add_image(self, tag, image, step, dataformats):
        self.images[tag, step] = (image, dataformats)


@pytest.fixture
def tracker(monkeypatch):
    """A module as wandb and trackio are: `log`, `Histogram`, `Image`."""
    module = ModuleType("tracker")
    module.logged = []
    module.log = lambda data, step=None: module.logged.append((step, data))
    module.Histogram = lambda values: ("histogram", values)
    module.Image = lambda array, caption: ("image", array, caption)
    monkeypatch.setitem(sys.modules, "tracker", module)
    return module


def colours(values):
    """Between dark, middle and light by hand, a number at a time."""
    low, high = min(values), max(values)
    stops = ((68, 1, 84), (33, 145, 140), (253, 231, 37))
    for value in values:
        share = 2 * (value - low) / (high - low)
        first, last = (stops[0], stops[1]) if share <= 1 else (stops[1], stops[2])
        part = share if share <= 1 else share - 1
        yield [a + (b - a) * part for a, b in zip(first, last, strict=True)]


def test_single_heads_histograms_and_a_grid_go_to_any_logger(fresh, tracker):
    model, ids, writer = tiny_llama(seed=draw(fresh)), ids_of(fresh, 3, 11), Writer()
    for logger in (writer, tracker):
        options = {"statistics": NAMES, "logger": logger, "log_heads": ["L2H5", "L0H1"], "pictures": True}
        with mh.watch(model, every=2, **options) as seen:
            for _ in range(3):
                model(ids)
                seen.step()
    last = seen.last
    for head in ("L2H5", "L0H1"):
        assert writer.scalars[f"heads/{head}/entropy", 2] == last[head, "entropy"]
    assert ("heads/L0H0/entropy", 2) not in writer.scalars and {step for _, step in writer.scalars} == {1, 2}
    assert writer.scalars["heads/L1/entropy.min", 2] == last["entropy"][6:12].min()
    np.testing.assert_array_equal(
        np.sort(writer.histograms["heads/max_logit.histogram", 2]), np.sort(last["max_logit"])
    )
    picture, order = writer.images["heads/max_logit.grid", 2]
    assert order == "HWC" and picture.shape == (3 * 16, 6 * 16, 3) and picture.dtype == np.uint8
    by_hand = np.array([*colours(last["max_logit"].tolist())]).reshape(3, 6, 3)
    assert np.abs(picture[::16, ::16].astype(float) - by_hand).max() <= 1 and (picture[15::16] == picture[::16]).all()
    (_, numbers), (step, pictures) = tracker.logged[-2:]
    assert step == 2 and numbers["heads/L2H5/entropy"] == last["L2H5", "entropy"]
    kind, array, caption = pictures["heads/entropy.grid"]
    assert kind == "image" and array.shape == picture.shape and "(dark)" in caption
    assert pictures["heads/entropy.histogram"][0] == "histogram"


def test_a_run_of_a_tracker_is_a_logger_too_and_anything_else_is_refused(fresh, tracker):
    model, logged = tiny_gpt2(seed=draw(fresh)), []
    run = type("Run", (), {"__module__": "tracker.sdk.run", "log": lambda self, data, step: logged.append(step)})()
    with mh.watch(model, logger=run) as seen:
        model(ids_of(fresh, 2, 7))
        seen.step()
    assert logged == [1]
    for wrong in (SimpleNamespace(log=print), "runs", sys):
        refuses(
            PlanError, "^logger=.*give TensorBoard's SummaryWriter, the module wandb", mh.watch, model, logger=wrong
        )
    refuses(HeadError, "L3-H5", mh.watch, model, log_heads=["L3-H5"])
    with mh.watch(model, log_heads=["L9H0"]) as seen:  # without a logger, and without a question for its numbers
        model(ids_of(fresh, 2, 7))
        refuses(HeadError, "L9", seen.step)
    assert not model._forward_hooks


def test_the_loss_of_a_step_is_kept_beside_the_heads(fresh, tmp_path):
    model, ids = tiny_gpt2(seed=draw(fresh)), ids_of(fresh, 4, 9)
    expected = []
    with mh.watch(model, every=1, statistics=["max_logit"], out=tmp_path / "heads") as seen:
        losses = [model(part, labels=part).loss.item() for part in (ids[:1], ids[1:])]
        seen.step()
        expected.append(sum(losses) / 2)
        model(ids)  # which returns no loss
        seen.step()
        expected.append(math.nan)
        model(ids)
        seen.step(loss=0.625)
        expected.append(0.625)
        # What a Trainer accumulates: each part is divided by the tokens of the whole step.
        parts = [
            model(part, labels=part, num_items_in_batch=torch.tensor(32)).loss.item() for part in (ids[:1], ids[1:])
        ]
        seen.step()
        expected.append(sum(parts))
        assert seen.last.loss == pytest.approx(sum(parts)) and seen.last.to_dict()["loss"] == seen.last.loss
    curves = open_history(tmp_path / "heads")
    np.testing.assert_allclose(curves.loss, expected, rtol=1e-6)
    assert curves.statistics == ("max_logit",) and curves.to_dict()["loss"][1] is None

    class Own(torch.nn.Module):  # as nanoGPT: logits and the loss
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, ids):
            out = self.net(ids, labels=ids)
            return out.logits, out.loss

    with mh.watch(Own()) as seen:
        loss = seen.model(ids)[1]
        seen.step()
    assert seen.last.loss == pytest.approx(loss.item())


def crossed(model, fresh, tmp_path, steps=3, **options):
    """A watch whose limit of max logits is between two heads', over some steps; which heads are over it, by hand."""
    ids = ids_of(fresh, 2, 9)
    with mh.watch(model, statistics=["max_logit"]) as seen:
        model(ids)
        seen.step()
    largest = np.sort(seen.last["max_logit"])
    limit = float(largest[-3:-1].mean())
    over = {str(head) for head, value in zip(seen.last.heads, seen.last["max_logit"], strict=True) if value > limit}
    options = {"every": 1, "statistics": ["max_logit"], "limits": {"max_logit": limit}, **options}
    with mh.watch(model, **options) as seen:
        for _ in range(steps):
            model(input_ids=ids, labels=ids)
            seen.step()
    return seen, ids, limit, over


def test_an_alert_stops_saves_the_batch_and_calls_once_for_each_head(fresh, tmp_path):
    model, called = tiny_llama(seed=draw(fresh)), []
    seen, ids, limit, over = crossed(model, fresh, tmp_path, on_alert=called.append)
    assert {str(alert.head) for alert in called} == over and len(called) == len(over)  # not again at steps 2 and 3
    assert tuple(called) == seen.alerts and {alert.step for alert in called} == {1}
    out = tmp_path / "heads.parquet"
    options = {"statistics": ["max_logit"], "limits": {"max_logit": limit}, "out": out}
    with mh.watch(model, every=2, **options, on_alert=["save", "stop"]) as seen:
        model(input_ids=ids, labels=ids)
        model(ids[:1], labels=ids[:1])
        with pytest.raises(
            AlertError, match=r"^L\dH\d: max logit went over .* at step 1 .* the batch is in .*stop there"
        ):
            seen.step()
    assert open_history(out).steps.tolist() == [1]  # it is written before the training ends
    saved = load_file(Path(f"{out}.alerts") / "step-1.safetensors")
    assert set(saved) == {"0.input_ids", "0.labels", "1.0", "1.labels"}
    assert torch.equal(saved["0.input_ids"], ids) and torch.equal(saved["1.0"], ids[:1])
    assert not model._forward_hooks


def test_an_alert_clips_from_the_next_step_on(fresh, tmp_path):
    model = tiny_llama(seed=draw(fresh))
    seen, ids, limit, over = crossed(model, fresh, tmp_path, steps=2, on_alert="clip")
    assert seen.clip is not None and seen.clip.tau == limit and {str(one.head) for one in seen.clipped.clipped} >= over
    with mh.watch(model, statistics=["max_logit"]) as after:
        model(ids)
        after.step()
    assert after.last["max_logit"][:6].max() <= limit * 1.001  # of the first layer: later ones read what it changed
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.slow
def test_two_processes_raise_the_same_alerts_save_each_its_batch_and_clip_alike(fresh, tmp_path):
    """Each has half of the texts; what one process sees of all of them is the oracle."""
    seed, ids = draw(fresh), ids_of(fresh, 4, 9)
    model, statistics = tiny_llama(seed=seed), ["max_logit"]
    with mh.watch(model, statistics=statistics) as alone:
        model(ids)
        alone.step()
    largest = dict(zip(map(str, alone.last.heads), alone.last["max_logit"].tolist(), strict=True))
    limit = sum(sorted(largest.values())[-3:-1]) / 2
    over = {head: pytest.approx(value, rel=1e-5) for head, value in largest.items() if value > limit}

    def work(rank):
        model, called = tiny_llama(seed=seed), []
        how = {"statistics": statistics, "limits": {"max_logit": limit}, "out": tmp_path / "heads.parquet"}
        with mh.watch(model, every=1, **how, on_alert=["save", "clip", called.append]) as seen:
            for _ in range(2):
                model(input_ids=ids[2 * rank : 2 * rank + 2])
                seen.step()
        return {
            "alerts": {str(alert.head): alert.value for alert in called if alert.step == 1},
            "clipped": sorted(str(one.head) for one in seen.clipped.clipped),
            "weights": [weight.double().sum().item() for weight in model.state_dict().values()],
        }

    results = forked(2, tmp_path / "processes", work)
    assert [result.get("alerts") for result in results] == [over, over]
    assert results[0]["clipped"] == results[1]["clipped"] and {*results[0]["clipped"]} >= {*over}
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["weights"] != [weight.double().sum().item() for weight in model.state_dict().values()]
    for rank in range(2):
        saved = load_file(tmp_path / "heads.parquet.alerts" / f"step-1-rank-{rank}.safetensors")
        assert torch.equal(saved["0.input_ids"], ids[2 * rank : 2 * rank + 2])


def test_alerts_as_they_are_raised_are_those_of_the_whole_history(fresh, tmp_path):
    """A rule that looks at five steps in a row, seen step by step."""
    model, ids = tiny_llama(seed=draw(fresh)), ids_of(fresh, 2, 9)
    names, limits = ["output_share", "max_logit", "entropy"], {"dead": 0.9, "max_logit": 1.0, "entropy": 1.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with mh.watch(model, every=1, statistics=names, out=tmp_path / "heads", limits=limits) as seen:
        for _ in range(8):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
    curves = open_history(tmp_path / "heads")
    whole = alerts(curves.heads, curves.statistics, curves.steps, curves.values, rules_with(limits))
    assert {(one.head, one.rule.name, one.step, one.value) for one in whole} == {
        (one.head, one.rule.name, one.step, one.value) for one in seen.alerts
    }
    assert any(one.rule.name == "dead" for one in whole)


def test_what_cannot_be_done_at_an_alert_is_refused_at_once(fresh):
    model = tiny_gpt2(seed=draw(fresh))
    for words, options in (
        ("^on_alert='halt': give 'stop', 'clip', 'save', a function", {"on_alert": "halt"}),
        ("^on_alert=3: give", {"on_alert": [3]}),
        ("^on_alert='save' writes the batch beside the file of heads: give out=", {"on_alert": "save"}),
        ("^on_alert='clip' acts where max_logit", {"on_alert": "clip", "statistics": ["entropy"]}),
        ("no alert is of a statistic that is watched: max_logit is of", {"on_alert": "stop", "statistics": ["q_norm"]}),
        ("^limits= has 'entropy', whose statistic", {"limits": {"entropy": 1}, "statistics": ["max_logit"]}),
        ("^limits={'entropy': 'low'}: give one number", {"limits": {"entropy": "low"}}),
        ("^limits={'max_logit': [(]0, 1[)]}: give one number", {"limits": {"max_logit": (0, 1)}}),
        ("^limits=[(]'max_logit', 3[)]: give numbers by the alert's name", {"limits": ("max_logit", 3)}),
    ):
        refuses(PlanError, words, mh.watch, model, **options)
        refuses(PlanError, words, mh.HeadWatch, **options)
    refuses(PlanError, "^qk_clip= clips from the first step on", mh.HeadWatch, qk_clip=9.0, on_alert="clip")


def test_scores_that_are_no_numbers_stop_a_training(fresh, tmp_path):
    """A head whose query weights are NaN has a max logit past every limit; others in its layer keep their numbers."""
    model = tiny_gpt2(seed=draw(fresh))
    ids = ids_of(fresh, 3, 11)
    projection = model.transformer.h[1].attn.c_attn.weight
    with mh.watch(model, every=1, out=tmp_path / "heads", limits={"max_logit": 1e6}, on_alert="stop") as seen:
        loss = model(input_ids=ids, labels=ids).loss
        seen.step(loss=loss)  # as a training has it, with its gradients
        assert seen.last.loss == pytest.approx(loss.item(), rel=1e-6) and not seen.alerts
        with torch.no_grad():
            projection[:, 0] = math.nan  # a number of head 0's queries
        model(input_ids=ids)
        refuses(AlertError, "^L1H0: max logit went over 1e[+]06 at step 2 [(]inf", seen.step)
    heads = {str(alert.head) for alert in seen.alerts}
    assert "L1H0" in heads and not any(head.startswith("L0") for head in heads)
    assert np.isposinf(open_history(tmp_path / "heads").of("L1H0")[1, 0])
