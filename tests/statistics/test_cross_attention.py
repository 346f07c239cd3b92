"""What is measured of cross-attention is what its formulas say, in NumPy on a model's own eager maps of two texts."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.recording.exact_map import one_pass as tiling
from manyheads.statistics import DEFAULT, STATISTICS, class_mass, measure_call
from manyheads.statistics.one_batch import CROSSING, NOT_OF_CROSS
from manyheads.statistics.table import OF_CROSS, choose
from tests.models.odd import tiny_bart, tiny_t5
from tests.models.test_targets import PAIRS, fed, loaded
from tests.models.tiny import tiny_gpt2, tiny_tokenizer

NEAR = 2e-6
ANY_MAP = {name for name, statistic in STATISTICS.items() if "cross" in statistic.maps}


@pytest.fixture(scope="module")
def bart():
    return loaded(tiny_bart(3))


@pytest.fixture(scope="module", params=["t5", "bart"])
def lm(request, bart):
    return bart if request.param == "bart" else loaded(tiny_t5(seed=3))


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
        "entropy": (entropy.sum(-1), num_rows),
        "effective_keys": (np.exp(entropy).sum(-1), num_rows),
        "max_weight": (w.max(-1).sum(-1), num_rows),
        "sum_of_squares": ((w**2).sum((1, 2)), num_rows),
        "missing_mass": ((1 - w.sum(-1)).sum(-1), num_rows),
        "mean_position": ((w @ key).sum(-1), num_rows),
        "heaviest_key": (received.max(-1) / num_rows, 1),
        "sharpness": ((1 - entropy / np.log(num_keys)).sum(-1), num_rows),
        "peak_position": (peak.sum(-1), num_rows),
        "peak_distance": (np.abs(peak - row).sum(-1), num_rows),
        "coverage": (np.minimum(received, 1).sum(-1), num_keys),
        "monotonic": (np.array([np.corrcoef(ranks(of_head @ key), row)[0, 1] for of_head in w]), 1),
        "punctuation_mass.relabelled": (w[:, :, ~special].sum((1, 2)) * punctuation.sum() / (~special).sum(), num_rows),
        "entropy.uniform": (num_rows * np.log(num_keys), num_rows),
        "max_weight.uniform": (num_rows / num_keys, num_rows),
        "mean_position.uniform": (num_rows / 2, num_rows),
        "coverage.uniform": (min(1, num_rows / num_keys) * num_keys, num_keys),
    }
    classes = {"first": np.arange(num_keys) == 0, "special": special, "punctuation": punctuation}
    for name, members in (classes | {"separator": special & ~classes["first"]}).items():
        out[f"{name}_mass"] = (w[:, :, members].sum((1, 2)), num_rows)
        out[f"{name}_mass.uniform"] = (num_rows * members.mean(), num_rows)
    return out


@pytest.mark.turns(4)
@pytest.mark.parametrize("tile_cells", [None, 300], ids=["whole tiles", "small tiles"])
@pytest.mark.sampled(2)
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


@pytest.mark.turns(4)
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


@pytest.mark.turns(4)
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
