"""The `gqa` preset: sizes are equal, students begin as their converted teachers and learn from them, caches shrink."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import manyheads as mh
from manyheads.errors import ShapeError
from manyheads.lab.training import save_chart
from manyheads.lab.training.decoder import Decoder, DecoderConfig, to_llama
from manyheads.lab.training.loop import train
from manyheads.lab.training.presets import gqa
from manyheads.lab.training.presets.gqa import EQUAL, decode_all, divergence, next_logits, with_fewer_kv_heads
from tests.refusals import refuses

from .stopping import whole_and_resumed

VOCAB, WIDTH, LAYERS, HEADS, HEAD_DIM, WIDE, PLACES = 97, 24, 2, 6, 4, 40, 64
CONFIG = DecoderConfig(VOCAB, WIDTH, LAYERS, HEADS, HEADS, HEAD_DIM, WIDE, PLACES)


@pytest.fixture(scope="module")
def teacher() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(CONFIG).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(3 if each.ndim > 1 else 1)
    return model


def test_a_student_begins_with_its_teachers_weights(teacher):
    student = with_fewer_kv_heads(teacher, 2)
    assert student.config == replace(CONFIG, num_key_value_heads=2)
    old, new = teacher.state_dict(), student.state_dict()
    moved = ("qkv_proj", "out_proj")
    assert all(torch.equal(old[name], new[name]) for name in old if not any(part in name for part in moved))
    converted = mh.convert_to_gqa(mh.load(to_llama(teacher), tokenizer=False), 2)
    for layer in range(LAYERS):
        for part in "kv":
            heads = old[f"blocks.{layer}.attention.qkv_proj.{part}.weight"].unflatten(0, (HEADS, HEAD_DIM))
            mean = torch.stack([heads[list(group)].mean(0) for group in converted.groups[layer]]).flatten(0, 1)
            torch.testing.assert_close(new[f"blocks.{layer}.attention.qkv_proj.{part}.weight"], mean)
        queries = old[f"blocks.{layer}.attention.qkv_proj.q.weight"].unflatten(0, (HEADS, HEAD_DIM))
        order = list(converted.permutation[layer])
        assert torch.equal(new[f"blocks.{layer}.attention.qkv_proj.q.weight"], queries[order].flatten(0, 1))


def test_as_many_heads_are_the_same_model_others_must_divide_and_divergence_is_the_mean_kl(teacher, fresh):
    ids = torch.randint(VOCAB, (2, 13), generator=fresh)
    with torch.no_grad():
        assert torch.equal(with_fewer_kv_heads(teacher, HEADS)(ids).logits, teacher(ids).logits)
        assert float(divergence(teacher, teacher, ids)) == pytest.approx(0, abs=1e-6)
        assert float(divergence(with_fewer_kv_heads(teacher, 1), teacher, ids)) > 1e-3
    refuses(ShapeError, "num_kv_heads=4 does not divide the 6 key/value heads", with_fewer_kv_heads, teacher, 4)
    ids, student = torch.randint(VOCAB, (3, 9), generator=fresh), with_fewer_kv_heads(teacher, 3)
    with torch.no_grad():
        p, q = (model(ids[:, :-1]).logits.double().softmax(-1) for model in (teacher, student))
        expected = float((p * (p / q).log()).sum(-1).mean())
        assert float(divergence(student, teacher, ids)) == pytest.approx(expected, rel=1e-4)


def test_distillation_lowers_the_kl_from_the_teacher_which_stays_as_it_is(teacher, tmp_path):
    data = gqa.read_data(quick=True)
    scale = replace(gqa.TRIAL, settings=replace(gqa.TRIAL.settings, steps=200), rows=8)
    torch.manual_seed(1)
    teacher = Decoder(gqa.config_of(scale, "mha")).eval()
    with torch.no_grad():
        for each in teacher.parameters():
            each.mul_(4 if each.ndim > 1 else 1)
    before = {name: each.clone() for name, each in teacher.state_dict().items()}
    run = gqa.uptraining_run("up", scale, data, 5, "mqa", teacher)
    assert run.settings.steps == 20
    columns = train(run, tmp_path / "c.safetensors").history.taken("held_out_kl")[1]
    assert columns[-1] < 0.8 * columns[0]
    assert all(torch.equal(each, before[name]) for name, each in teacher.state_dict().items())
    assert all(each.grad is None for each in teacher.parameters())


def test_decoding_with_caches_gives_the_models_own_logits_and_leaves_the_caches_as_they_were(teacher, fresh):
    from manyheads.nn import KVCache

    ids, caches = torch.randint(VOCAB, (2, 11), generator=fresh), [KVCache.static(11) for _ in range(LAYERS)]
    with torch.no_grad():
        next_logits(teacher, ids[:, :6], caches)
        for at in range(6, 11):
            got = next_logits(teacher, ids[:, at : at + 1], caches)
        torch.testing.assert_close(got, teacher(ids).logits[:, -1], rtol=1e-4, atol=1e-4)
    models = {"all": teacher, "one": with_fewer_kv_heads(teacher, 1)}
    found = decode_all(models, context=40, texts=3, steps=4, rounds=2)
    assert found["all"].cache_bytes == 2 * LAYERS * HEADS * HEAD_DIM * 40 * 3 * 4 == HEADS * found["one"].cache_bytes
    assert all(len(each.seconds) == 2 and each.median > 0 for each in found.values())


@pytest.mark.parametrize("scale", [gqa.WHOLE, gqa.TRIAL])
def test_sizes_are_equal_within_a_hundredth(scale):
    sizes = [sum(each.numel() for each in Decoder(gqa.config_of(scale, kind)).parameters()) for kind in gqa.KV_HEADS]
    assert max(sizes) <= (1 + EQUAL) * min(sizes)
    bare = DecoderConfig(gqa.BYTES, scale.width, scale.layers, 8, 1, scale.head_dim, scale.wide, scale.timing.context)
    assert sum(each.numel() for each in Decoder(bare).parameters()) < (1 - EQUAL) * sizes[0], "it must matter"


def test_held_out_windows_are_of_modules_that_nobody_learns_from():
    data = gqa.read_data(quick=True)
    inside = bytes(data.train.tolist())
    windows = data.held_out_windows(4, 64)
    assert windows.shape == (4, 64) and all(bytes(row.tolist()) not in inside for row in windows)
    assert data.windows(1, 2, 3, 50).equal(data.windows(1, 2, 3, 50))
    assert not data.windows(1, 2, 3, 50).equal(data.windows(1, 3, 3, 50))


@pytest.mark.slow
def test_a_trial_runs_from_start_to_end_stops_and_goes_on_the_same(tmp_path):
    whole, resumed = whole_and_resumed("gqa", tmp_path, 3 * 4 + 1)  # the student's only step
    assert (resumed.trained["mqa-0"].resumed_at, resumed.trained["mha-to-gqa-0"].resumed_at) == (4, 0)
    ours, theirs = resumed.report["found"], whole.report["found"]
    assert ours["kinds"] == theirs["kinds"] and ours["converted"] == theirs["converted"]

    assert list(whole.report["runs"]) == ["mha-0", "gqa-0", "mqa-0", "mha-to-gqa-0", "mha-to-mqa-0"]
    assert [each["kv_heads"] for each in ours["kinds"].values()] == [8, 2, 1]
    caches = {kind: ours["decoding"][kind]["cache_bytes"] for kind in gqa.KV_HEADS}
    assert caches["mha"] == 4 * caches["gqa"] == 8 * caches["mqa"] == 2 * 2 * 8 * 4 * 64 * 2 * 4
    assert ours["converted"]["gqa"]["uptraining_steps"] == 1 and len(whole.report["facts"]["data"]) == 64
    save_chart(whole.findings.chart, tmp_path / "figure.svg")
    assert "MHA to MQA" in (tmp_path / "figure.svg").read_text()
