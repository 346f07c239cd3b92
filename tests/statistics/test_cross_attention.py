"""What is measured of cross-attention is what its formulas say, in NumPy on a model's own eager maps of two texts."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.attention import Mask, Rule, log_sum_exp
from manyheads.errors import ShapeError, StatisticError
from manyheads.measurement import measure_call
from manyheads.recording import LayerRecord
from manyheads.recording import layer as records
from manyheads.recording.exact_map import one_pass as tiling
from manyheads.spec import Site
from manyheads.statistics import DEFAULT, STATISTICS, alignment
from manyheads.statistics.defined import class_mass
from manyheads.statistics.sums.one_batch import CROSSING, NOT_OF_CROSS
from manyheads.statistics.table import OF_CROSS, choose
from manyheads.texts import Tokens
from tests.inputs.test_texts import PAIRS, fed, with_eager
from tests.models.eager import draw, implementation
from tests.models.tiny import VOCAB_SIZE, tiny_bart, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.models.tiny_media import tiny_whisper
from tests.refusals import refuses

NEAR = 2e-6
ANY_MAP = {name for name, statistic in STATISTICS.items() if "cross" in statistic.maps}


@pytest.fixture(scope="module")
def bart():
    return with_eager(tiny_bart(3))


@pytest.fixture(scope="module", params=["t5", "bart"])
def lm(request, bart):
    return bart if request.param == "bart" else with_eager(tiny_t5(seed=3))


def model_inputs(lm):
    inputs = fed(lm, PAIRS)
    mask = (inputs["labels"] >= 0).long()
    inputs["decoder_input_ids"] = lm.model.prepare_decoder_input_ids_from_labels(labels=inputs.pop("labels"))
    return {**inputs, "decoder_attention_mask": mask}


def maps_of(lm):
    """For each text its map by cross-attention head, padding cut on both sides, and its source's tokens."""
    inputs = model_inputs(lm)
    with torch.no_grad():
        layers = lm.model(**inputs, output_attentions=True).cross_attentions
    heads = torch.cat(list(layers), 1).double().numpy()  # text, head of all layers, row, key
    rows, keys = (inputs[f"{side}attention_mask"].sum(1).tolist() for side in ("decoder_", ""))
    ids = [lm.tokenizer.convert_ids_to_tokens(inputs["input_ids"][text, :count]) for text, count in enumerate(keys)]
    return [(heads[text, :, : rows[text], : keys[text]], ids[text]) for text in range(len(PAIRS))]


def ranks(values):
    assert np.diff(np.sort(values)).min() > 1e-5  # no two so near that float32 may rank them either way
    return np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])


def by_formula(w, pieces):
    """Numerator and denominator of every statistic of one text; `w` is [head, row, key]."""
    _, num_rows, num_keys = w.shape
    row, key = np.arange(num_rows) / (num_rows - 1), np.arange(num_keys) / (num_keys - 1)
    entropy = -(w * np.log(w)).sum(-1)
    peak, received = key[w.argmax(-1)], w.sum(1)
    special = np.array([piece in ("[CLS]", "[SEP]") for piece in pieces])
    punctuation = np.array([piece in ".,:?!" for piece in pieces])
    out = {
        "entropy": (entropy.sum(-1), num_rows), "effective_keys": (np.exp(entropy).sum(-1), num_rows),
        "max_weight": (w.max(-1).sum(-1), num_rows), "sum_of_squares": ((w**2).sum((1, 2)), num_rows),
        "missing_mass": ((1 - w.sum(-1)).sum(-1), num_rows), "mean_position": ((w @ key).sum(-1), num_rows),
        "heaviest_key": (received.max(-1) / num_rows, 1),
        "sharpness": ((1 - entropy / np.log(num_keys)).sum(-1), num_rows), "peak_position": (peak.sum(-1), num_rows),
        "peak_distance": (np.abs(peak - row).sum(-1), num_rows),
        "coverage": (np.minimum(received, 1).sum(-1), num_keys),
        "monotonic": (np.array([np.corrcoef(ranks(of_head @ key), row)[0, 1] for of_head in w]), 1),
        "punctuation_mass.relabelled": (w[:, :, ~special].sum((1, 2)) * punctuation.sum() / (~special).sum(), num_rows),
        "entropy.uniform": (num_rows * np.log(num_keys), num_rows),
        "max_weight.uniform": (num_rows / num_keys, num_rows), "mean_position.uniform": (num_rows / 2, num_rows),
        "coverage.uniform": (min(1, num_rows / num_keys) * num_keys, num_keys),
    }  # fmt: skip
    classes = {"first": np.arange(num_keys) == 0, "special": special, "punctuation": punctuation}
    for name, members in (classes | {"separator": special & ~classes["first"]}).items():
        out[f"{name}_mass"] = (w[:, :, members].sum((1, 2)), num_rows)
        out[f"{name}_mass.uniform"] = (num_rows * members.mean(), num_rows)
    return out


@pytest.mark.parametrize("tile_cells", [None, 300], ids=["whole tiles", "small tiles"])
def test_every_statistic_is_its_formula_on_the_models_own_maps(lm, tile_cells, monkeypatch):
    """Sources and targets of unequal lengths, padded on both sides, the longer text now on this side, now on that."""
    if tile_cells:
        monkeypatch.setattr(tiling, "TILE_CELLS", tile_cells)
        monkeypatch.setattr(tiling, "TILE_KEYS", 5)
    texts = [by_formula(*of_text) for of_text in maps_of(lm)]
    names = list(texts[0])
    table = mh.measure(lm, PAIRS, [*names, "distance", "previous_mass", "duplicate_mass"])
    crossing = [index for index, head in enumerate(table.heads) if head.stack == "cross"]
    assert len(crossing) == sum(site.num_heads for site in lm.spec.sites if site.stack == "cross") > 0
    for name in names:
        wanted = sum(text[name][0] for text in texts) / sum(text[name][1] for text in texts)
        scale = 10 if name == "effective_keys" else 1
        np.testing.assert_allclose(
            table.column(name)[crossing], np.broadcast_to(wanted, len(crossing)), atol=NEAR * scale, err_msg=name
        )
        own = np.delete(table.column(name), crossing)
        assert np.isnan(own).all() == (name in OF_CROSS), name
    for name in ("distance", "previous_mass", "duplicate_mass"):
        assert np.isnan(table.column(name)[crossing]).all() and not np.isnan(table.column(name)).all()
    assert table.notes[NOT_OF_CROSS] == "distance, previous_mass, duplicate_mass" and CROSSING not in table.notes


def test_default_and_all_have_what_means_something_between_two_texts(bart):
    lm = bart
    for request in ("default", "all"):
        table = mh.measure(lm, PAIRS, request)
        crossing = np.array([head.stack == "cross" for head in table.heads])
        filled = {name for name in table.names if not np.isnan(table.column(name)[crossing]).any()}
        always = ANY_MAP - {name for name in ANY_MAP if name.startswith("number")} | set(OF_CROSS)  # no digits here
        assert filled == always & set(table.names)
    assert [each.name for each in choose("default")] == list(DEFAULT)  # a model of one text has no such columns
    decoder = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    assert mh.measure(decoder, "the cat sat", "all").names == tuple(STATISTICS)


def test_a_stream_and_a_bare_call_measure_the_same_maps(bart):
    """A stream of the sources alone, which the decoder repeats; a bare call of targets, which knows no words."""
    lm = bart
    sources = [source for source, _ in PAIRS]
    names = ["entropy", "monotonic", "special_mass", "coverage"]
    listed, streamed = mh.measure(lm, sources, names), mh.measure(lm, iter(sources), names)
    bare, paired = measure_call(lm.model, **model_inputs(lm), statistics=names), mh.measure(lm, PAIRS, names)
    for name in names:
        np.testing.assert_allclose(streamed.column(name), listed.column(name), atol=NEAR)
        if name != "special_mass":
            np.testing.assert_allclose(bare.column(name), paired.column(name), atol=NEAR)
    assert "special_mass" not in bare.names


def test_a_class_of_ones_own_is_of_the_sources_tokens_and_kinds_leave_cross_attention_out(bart):
    lm = bart
    mine = class_mass("cats", lambda tokens: tokens.ids == lm.tokenizer.vocab["cat"], "weight on cats", source="mine")
    table = mh.measure(lm, PAIRS, [mine])
    with_cat = [(w, np.array([piece == "cat" for piece in pieces])) for w, pieces in maps_of(lm) if "cat" in pieces]
    wanted = sum(w[:, :, cats].sum((1, 2)) for w, cats in with_cat) / sum(w.shape[1] for w, _ in with_cat)
    crossing = [index for index, head in enumerate(table.heads) if head.stack == "cross"]
    np.testing.assert_allclose(table.column("cats")[crossing], wanted, atol=NEAR)
    kinds = mh.measure(lm, PAIRS, ["entropy"], kinds=True)
    assert all(head.stack != "cross" for head in kinds.heads) and kinds.notes[CROSSING]


# ============================================================================================================ alignment
# The alignment score is what its formulas say, computed in NumPy from a model's own eager cross-attention.

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
    refuses(ShapeError, r"rows has the shape \(3, 4\): give one for each of \(3, 11\)", alignment, layer, rows[:, :4])


def test_no_window_of_the_map_is_held_and_a_layer_that_reads_its_own_text_is_refused(whisper, fresh, monkeypatch):
    rec, _, _ = recorded(whisper, fresh)
    monkeypatch.setattr(records.LayerRecord, "weights", lambda *_, **__: pytest.fail("a map was made"))
    assert bool(alignment(rec.stacks["cross"][0]).sharp.isfinite().all())
    with pytest.raises(StatisticError, match=r"encoder\.layers\.0\.self_attn attends to its own text: take a layer of"):
        alignment(rec.stacks["encoder"][0])


@pytest.mark.parametrize(("step", "monotonic"), [(2, 1.0), (-2, -1.0)])
def test_a_head_that_moves_on_is_monotonic_and_one_that_sees_one_key_is_sharp(step, monotonic):
    keys = torch.arange(17.0)
    places = (torch.arange(6.0) * step) % 17 if step > 0 else 16 + torch.arange(6.0) * step
    got = alignment(made(-40 * (keys[None] - places[:, None]).abs()))
    assert got.monotonic.tolist() == [[pytest.approx(monotonic)]] and float(got.sharp) == pytest.approx(1, abs=1e-6)


def test_even_heads_rounding_single_rows_and_single_keys_have_no_order_and_equal_places_share_their_rank(fresh):
    got = alignment(made(torch.zeros(6, 17)))
    assert float(got.sharp) == pytest.approx(0, abs=1e-6) and bool(got.monotonic.isnan().all())
    jitter = 1e-7 * torch.randn(6, 17, generator=fresh)
    assert bool(alignment(made(jitter)).monotonic.isnan().all())
    assert bool(alignment(made(1e4 * jitter)).monotonic.isfinite().all())
    scores = torch.full((4, 9), -60.0)
    for row, key in enumerate((1, 4, 4, 8)):
        scores[row, key] = 0
    want = rank_correlation([1, 4, 4, 8])
    assert float(alignment(made(scores)).monotonic) == pytest.approx(want) and want < 1
    got = alignment(made(torch.randn(1, 5)))
    assert bool(got.monotonic.isnan().all()) and 0 <= float(got.sharp) <= 1
    assert bool(alignment(made(torch.randn(3, 1))).sharp.isnan().all())
