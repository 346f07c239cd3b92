"""The alignment score is what its formulas say, computed in NumPy from a model's own eager cross-attention."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ShapeError, StatisticError
from manyheads.nn import Mask, Rule, log_sum_exp
from manyheads.recording import LayerRecord, Tokens
from manyheads.recording import layer as records
from manyheads.spec import Site
from manyheads.statistics import alignment
from tests.models.eager import draw, implementation
from tests.models.tiny import VOCAB_SIZE
from tests.models.tiny_media import tiny_whisper

LENGTHS = (11, 7, 2)


def rank_correlation(values):
    """Spearman's, of values with their order: Pearson's, of ranks, those of equal values being their mean."""
    values = np.asarray(values)
    ranks = [(values < each).sum() + ((values == each).sum() - 1) / 2 for each in values]
    return np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]


def oracle(weights, rows):
    """Spearman's correlation and sharpness of one head's [q, k] map over some of its rows, by the formulas."""
    w = np.asarray(weights, dtype=np.float64)[rows]
    w = w / w.sum(-1, keepdims=True)
    means = w @ np.arange(w.shape[1])
    entropy = -np.where(w > 0, w * np.log(np.maximum(w, 1e-300)), 0).sum(-1)
    return rank_correlation(means), (1 - entropy / np.log(w.shape[1])).mean()


def clear(weights, rows):
    """Whether no two rows' mean keys are so near each other that rounding may rank them either way."""
    w = np.asarray(weights, dtype=np.float64)[rows]
    return np.diff(np.sort((w / w.sum(-1, keepdims=True)) @ np.arange(w.shape[1]))).min() > 1e-4


def made(scores):
    """A cross-attention layer of one text and head with these scores, [q, k]: q is the identity's rows."""
    num_rows, num_keys = scores.shape
    q, k = torch.eye(num_rows)[None, None], scores.T[None, None].contiguous()
    mask = Mask.full(num_rows, num_keys)
    lse, _ = log_sum_exp(q, k, mask, Rule(1.0))
    site = Site("cross", 0, "made", 1, 1, num_rows, num_rows, False)
    tokens = Tokens.unnamed([num_rows])
    return LayerRecord(site, q, k, None, lse, mask, Rule(1.0), tokens.lengths, tokens)


@pytest.fixture
def whisper(fresh):
    return tiny_whisper(draw(fresh))


def recorded(model, fresh):
    """Three texts of unlike length beside one sound each, and the model's own cross-attentions."""
    ids = torch.randint(5, VOCAB_SIZE, (3, max(LENGTHS)), generator=fresh)
    seen = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    inputs = {
        "input_features": torch.randn(3, 16, 200, generator=fresh),
        "decoder_input_ids": ids,
        "decoder_attention_mask": seen.long(),
    }
    rec = mh.record_call(model, **inputs, use_cache=False)
    with implementation(model, "eager"), torch.no_grad():
        own = model(**inputs, output_attentions=True).cross_attentions
    return rec, own, seen


def test_it_is_its_formulas_on_the_models_own_maps(whisper, fresh):
    rec, own, seen = recorded(whisper, fresh)
    assert float(own[0].max()) > 0.3
    ranked = 0
    for layer, maps in zip(rec.stacks["cross"], own, strict=True):
        got = alignment(layer)
        assert got.monotonic.shape == got.sharp.shape == (3, 3)
        for text, rows in enumerate(seen.numpy()):
            for head in range(3):
                monotonic, sharp = oracle(maps[text, head], rows)
                if clear(maps[text, head], rows):
                    assert float(got.monotonic[text, head]) == pytest.approx(monotonic, abs=1e-9)
                    ranked += 1
                assert float(got.sharp[text, head]) == pytest.approx(sharp, abs=1e-5)
    assert ranked >= 9, "of 18"
    heads = got.monotonic.T.tolist()  # few rows have few ranks: two heads may agree on one text, hardly on all
    assert len({tuple(round(x, 6) for x in head) for head in heads}) == 3


def test_rows_that_are_left_out_do_not_count(whisper, fresh):
    rec, own, seen = recorded(whisper, fresh)
    rows = seen.clone()
    rows[:, ::3] = False
    layer = rec.stacks["cross"][1]
    got, whole = alignment(layer, rows), alignment(layer)
    for head in range(3):
        want = oracle(own[1][0, head], rows[0].numpy())
        assert (float(got.monotonic[0, head]), float(got.sharp[0, head])) == pytest.approx(want, abs=1e-5)
    assert not torch.allclose(got.sharp[0], whole.sharp[0], atol=1e-4)
    with pytest.raises(ShapeError, match=r"rows has the shape \(3, 4\): give one for each of \(3, 11\)"):
        alignment(layer, rows[:, :4])


def test_no_window_of_the_map_is_held(whisper, fresh, monkeypatch):
    rec, _, _ = recorded(whisper, fresh)
    monkeypatch.setattr(records.LayerRecord, "weights", lambda *_, **__: pytest.fail("a map was made"))
    assert bool(alignment(rec.stacks["cross"][0]).sharp.isfinite().all())


@pytest.mark.parametrize(("step", "monotonic"), [(2, 1.0), (-2, -1.0)])
def test_a_head_that_moves_on_is_monotonic_and_one_that_sees_one_key_is_sharp(step, monotonic):
    keys = torch.arange(17.0)
    places = (torch.arange(6.0) * step) % 17 if step > 0 else 16 + torch.arange(6.0) * step
    got = alignment(made(-40 * (keys[None] - places[:, None]).abs()))
    assert got.monotonic.tolist() == [[pytest.approx(monotonic)]] and float(got.sharp) == pytest.approx(1, abs=1e-6)


def test_an_even_head_is_not_sharp_and_has_no_order():
    got = alignment(made(torch.zeros(6, 17)))
    assert float(got.sharp) == pytest.approx(0, abs=1e-6) and bool(got.monotonic.isnan().all())


def test_rounding_is_no_order(fresh):
    jitter = 1e-7 * torch.randn(6, 17, generator=fresh)
    assert bool(alignment(made(jitter)).monotonic.isnan().all())
    assert bool(alignment(made(1e4 * jitter)).monotonic.isfinite().all())


def test_equal_places_share_their_rank():
    scores = torch.full((4, 9), -60.0)
    for row, key in enumerate((1, 4, 4, 8)):
        scores[row, key] = 0
    want = rank_correlation([1, 4, 4, 8])
    assert float(alignment(made(scores)).monotonic) == pytest.approx(want) and want < 1


def test_fewer_than_two_rows_have_no_order_and_one_key_no_sharpness():
    got = alignment(made(torch.randn(1, 5)))
    assert bool(got.monotonic.isnan().all()) and 0 <= float(got.sharp) <= 1
    assert bool(alignment(made(torch.randn(3, 1))).sharp.isnan().all())


def test_a_layer_that_reads_its_own_text_is_refused(whisper, fresh):
    rec, _, _ = recorded(whisper, fresh)
    with pytest.raises(StatisticError, match=r"encoder\.layers\.0\.self_attn attends to its own text: take a layer of"):
        alignment(rec.stacks["encoder"][0])
