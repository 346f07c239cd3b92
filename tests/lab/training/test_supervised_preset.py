"""The `supervised` preset: the pull is a KL, of one head's own map, and pulls no other; what is measured is so."""

from __future__ import annotations

import math

import pytest
import torch

from manyheads.heads import Head
from manyheads.inputs import record_call
from manyheads.lab.training import save_chart
from manyheads.lab.training.decoder import Decoder, DecoderConfig
from manyheads.lab.training.loop import train
from manyheads.lab.training.presets import supervised
from manyheads.lab.training.presets.supervised import (
    NOWHERE,
    PATTERNS,
    PERIOD,
    WAYS,
    Way,
    after_copy,
    designed_net,
    head_weights,
    pattern_loss,
    seen_of,
)
from manyheads.measurement import measure_call

from .stopping import whole_and_resumed

TEXTS, LENGTH, VOCAB, HEADS = 3, 11, 23, 2
FREE, PULLED = WAYS[0], WAYS[3]


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(1)
    model = Decoder(DecoderConfig(VOCAB, 24, 2, HEADS, HEADS, 6, None))
    with torch.no_grad():
        model.embedding.weight.mul_(40)  # so that rows differ from even ones
    return model


def test_a_heads_map_is_the_recorded_one(model, fresh):
    ids = torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    rec = record_call(model.eval(), ids)
    for layer in range(2):
        for index in range(HEADS):
            ours = head_weights(model, ids, Head("", layer, index))
            for text in range(TEXTS):
                theirs = rec.layers[layer].weights(head=index, text=text)
                torch.testing.assert_close(ours[text].detach(), theirs, rtol=1e-4, atol=1e-5)


def test_the_pull_is_the_kl_from_the_pattern_and_moves_its_own_head_and_no_other(model, fresh):
    weights = torch.tensor([[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.125, 0.375]]])
    previous, first = (PATTERNS[name].keys(3) for name in ("previous", "first"))
    assert (previous.tolist(), first.tolist()) == ([NOWHERE, 0, 1], [NOWHERE, 0, 0])
    assert float(pattern_loss(weights, previous)) == pytest.approx((math.log(4) + math.log(8)) / 2)
    assert float(pattern_loss(weights, first)) == pytest.approx((math.log(4) + math.log(2)) / 2)
    assert math.isfinite(float(pattern_loss(torch.zeros(1, 3, 3), first))), "a weight of 0 must not end a training"
    ids = torch.randint(VOCAB, (TEXTS, LENGTH), generator=fresh)
    pattern_loss(head_weights(model, ids, Head("", 0, 1)), PATTERNS["previous"].keys(LENGTH)).backward()
    below, above = (block.attention.qkv_proj for block in model.blocks)
    for projection in (below.q, below.k):
        other, own = projection.weight.grad.unflatten(0, (HEADS, -1)).abs().amax((1, 2)).tolist()
        assert other == 0 < own
    assert above.q.weight.grad is None and below.v.weight.grad is None


@pytest.mark.slow  # a training
def test_a_pulled_head_has_its_pattern_and_a_free_one_has_not(tmp_path):
    scale = supervised.RunScale(
        supervised.Settings(120, 2e-2, 5, checkpoint_every=120, measure_every=120), supervised.TRIAL.config, 1, 8
    )
    masses = {}
    for way in (FREE, PULLED, Way("first", "", "first", 1.0)):
        done = train(supervised.way_run(way.name, way, scale, 3), tmp_path / f"{way.name}.safetensors")
        masses[way.name] = [done.history.last(f"heads/L0H0/{name}") for name in ("previous_mass", "first_mass")]
    assert masses["previous-1"][0] > 0.8 > 0.3 > masses["free"][0]
    assert masses["first"][1] > 0.25 > 0.15 > masses["free"][1], "harder: rotary layers know distances, no places"


def test_ways_of_a_seed_begin_alike_and_read_the_same():
    one, other = (supervised.way_run(way.name, way, supervised.TRIAL, 4) for way in (FREE, PULLED))
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert one.batch(2)["ids"].equal(other.batch(2)["ids"])
    batch = one.batch(2)
    with torch.no_grad():
        assert float(other.loss(other.model, batch)) > float(one.loss(one.model, batch)) + 1


def test_the_weight_after_an_earlier_copy_is_that_of_the_full_map(model, fresh):
    ids = torch.randint(VOCAB, (TEXTS, PERIOD), generator=fresh).repeat(1, 2)
    statistics = [after_copy(by) for by in supervised.AFTER]
    table, rec = measure_call(model.eval(), ids, statistics=statistics), record_call(model, ids)
    rows = torch.arange(PERIOD, 2 * PERIOD)
    for at, head in enumerate(table.heads):
        maps = torch.stack([rec.layers[head.layer].weights(head=head.index, text=text) for text in range(TEXTS)])
        for by in supervised.AFTER:
            expected = float(maps[:, rows, rows - PERIOD + by].double().mean())
            assert table.column(f"after_copy_{by}")[at] == pytest.approx(expected, rel=1e-4)


def test_the_designed_net_keeps_its_promise_and_its_first_head_is_needed():
    data = supervised.texts_of(supervised.WHOLE, 0)
    seen = seen_of(designed_net(data.vocab_size, data.length), data)
    least = PATTERNS["previous"].design.least_mass(data.length)
    assert min(seen["pulled_previous_mass"], seen["other_first_mass"]) > least > 0.99
    assert seen["after_copy_1"] > 0.9 and seen["loss_repeated"] < 0.5
    assert seen["loss_without_pulled"] == pytest.approx(math.log(data.vocab_size), abs=0.01)
    assert seen["loss_without_other"] == pytest.approx(seen["loss_repeated"], abs=1e-3)


@pytest.mark.slow  # test_gqa_preset's trial runs, stops and goes on
def test_a_trial_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("supervised", tmp_path, 11)  # in the second run, after its checkpoint
    found = whole.report["found"]
    assert resumed.trained["previous-0.01-0"].resumed_at == 3 and resumed.report["found"] == found
    assert list(found["ways"]) == [way.name for way in WAYS] and len(whole.report["runs"]) == 2 * len(WAYS)
    assert (found["half_way"], found["ways"]["free"]["learned_by"]) == (3, [None, None])
    assert list(found["loss_over_free"]) == [way.name for way in WAYS[1:]]
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().count(">designed,<") == 4
