"""A recording's statistics are those of its model: the same names, the same numbers, without the model."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ShapeError, StatisticError
from manyheads.recording.layer import small_maps
from manyheads.statistics import STATISTICS
from manyheads.statistics.of_a_recording import EVERY_ROW, measure_recording, sinks_of
from tests.models.tiny import WORDS, tiny_bert, tiny_gpt2, tiny_llama, tiny_tokenizer

MODELS = {"bert": tiny_bert, "gpt2": tiny_gpt2, "gqa": lambda seed: tiny_llama(2, seed=seed)}


BY_ROW = {
    *("entropy", "effective_keys", "max_weight", "sum_of_squares", "missing_mass", "first_mass", "sink_mass"),
    *("special_mass", "separator_mass", "punctuation_mass", "number_mass", "capitalised_mass", "rare_mass"),
}


@pytest.fixture(params=MODELS)
def read(request, fresh):
    """A model, three texts of unlike length, and their recording."""
    seed = int(torch.randint(1000, (1,), generator=fresh))
    lm = mh.load(MODELS[request.param](seed=seed), tokenizer=tiny_tokenizer())
    order = torch.randperm(len(WORDS), generator=fresh).tolist()
    texts = [" ".join(WORDS[at] for at in order[begin:end]) for begin, end in ((0, 19), (3, 34), (5, 12))]
    return lm, texts, mh.record(lm, texts)


def assert_same(got, want, names):
    for name in names:
        np.testing.assert_allclose(got.column(name), want.column(name), atol=1e-5, err_msg=name)


@pytest.mark.turns(4)
@pytest.mark.sampled(1)
def test_every_statistic_of_each_text_is_what_measure_finds(read):
    lm, texts, rec = read
    names = [name for name, each in STATISTICS.items() if "values" not in each.asks]
    for at, text in enumerate(texts):
        want = mh.measure(lm, text, names)
        got = measure_recording(rec, "all", text=at, sinks=want.sinks)
        assert set(got.names) == set(names) and got.heads == want.heads
        assert got.notes["rows"] == EVERY_ROW and "sink_norm_mass" in str(got.notes)
        assert_same(got, want, [name for name in names if not name.startswith("rare")])  # rarity: over all the texts
    assert not np.allclose(
        measure_recording(rec, ["entropy"], text=0).column("entropy"),
        measure_recording(rec, ["entropy"], text=1).column("entropy"),
    )


@pytest.mark.turns(4)
@pytest.mark.sampled(2)
def test_a_file_has_the_numbers_of_its_recording(read, tmp_path):
    _, _, rec = read
    rec.save(tmp_path / "three.heads")
    got = measure_recording(mh.open_recording(tmp_path / "three.heads"), text=1)
    assert_same(got, measure_recording(rec, text=1), got.names)


@pytest.mark.turns(4)
@pytest.mark.sampled(2)
def test_sampled_rows_tell_what_a_row_tells_by_itself_and_nothing_else(read):
    _, _, rec = read
    whole = measure_recording(rec, "all", text=1)
    length = int(rec.layers[0].lengths[1])
    cells = sum(
        layer.site.num_heads * int(layer.mask.expand(3).texts(slice(1, 2)).counts().sum()) for layer in rec.layers
    )
    told = []
    got = measure_recording(
        rec, "all", text=1, sinks=whole.sinks, most_cells=cells // 2, on_layer=lambda *at: told.append(at)
    )
    assert got.notes["rows"] == f"{length // 2} of {length} rows, spread evenly" and told[0] == (0, len(rec.layers))
    for name in got.names:
        if name.removesuffix(".uniform") not in BY_ROW:
            assert np.isnan(got.column(name)).all(), name
    assert {name for name, statistic in STATISTICS.items() if statistic.by_row and "." not in name} == BY_ROW
    rows = ((np.arange(length // 2) + 0.5) * length / (length // 2)).astype(int)
    maps = np.concatenate([layer.weights(text=1).double().numpy() for layer in rec.layers])[:, rows]
    entropy = -np.where(maps > 0, maps * np.log(np.maximum(maps, 1e-300)), 0).sum(-1).mean(1)
    np.testing.assert_allclose(got.column("entropy"), entropy, atol=1e-5)
    np.testing.assert_allclose(got.column("first_mass"), maps[:, :, 0].mean(1), atol=1e-5)
    np.testing.assert_allclose(got.column("max_weight"), maps.max(-1).mean(1), atol=1e-5)
    special = rec.tokens.special[1, :length].numpy()
    if special.any():
        np.testing.assert_allclose(got.column("special_mass"), maps[:, :, special].sum(-1).mean(1), atol=1e-5)
    assert not np.allclose(got.column("entropy"), whole.column("entropy"), atol=1e-4)


def test_sinks_are_those_that_a_model_finds_on_the_same_text(minilm):
    text = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."
    assert sinks_of(mh.record(minilm, text)) == mh.measure(minilm, text, ["sink_mass"]).sinks


def test_a_bare_module_is_measured_by_what_needs_no_words(fresh):
    layer = mh.MultiHeadAttention(24, 6, batch_first=True).eval()
    x = torch.randn(1, 17, 24, generator=fresh)
    got, want = measure_recording(mh.record_call(layer, x)), mh.measure_call(layer, x)
    shared = [name for name in want.names if name in got.names]
    assert "entropy" in shared
    assert_same(got, want, shared)
    with pytest.raises(StatisticError, match="asked of words or of the model's weights"):
        measure_recording(mh.record_call(layer, x), ["punctuation_mass"])
    with pytest.raises(ShapeError, match="text=1 is not in this recording: it holds 1 texts"):
        measure_recording(mh.record_call(layer, x), text=1)


@pytest.mark.parametrize("rows_a_block", [None, 2])
@pytest.mark.sampled(3)
def test_small_maps_are_means_of_the_visible_cells_of_the_rows_read(rows_a_block, read):
    _, _, rec = read
    layer, length = rec.layers[1], int(rec.layers[1].lengths[1])
    got = small_maps(layer, 5, 1, rows_a_block)
    place = np.arange(length) * 5 // length
    rows = np.arange(length)
    if rows_a_block is not None:
        rows = ((np.arange(10) + 0.5) / 10 * length).astype(int)
    assert (got.rows_read, got.rows_in_all) == (len(rows), length)
    seen = layer.mask.expand(3).visible(slice(0, length), slice(0, length))[1, 0].numpy()
    for head, cells in enumerate(layer.weights(text=1).double().numpy()):
        cells = np.where(seen, cells, np.nan)
        for i in range(5):
            for j in range(5):
                block = cells[np.ix_(rows[place[rows] == i], place == j)]
                known = float(got.maps[head, i, j])
                if np.isnan(block).all():
                    assert np.isnan(known)
                else:
                    assert known == pytest.approx(np.nanmean(block), abs=1e-5)


@pytest.mark.sampled(2)
def test_project_of_some_rows_is_those_rows_of_project(read, fresh):
    _, _, rec = read
    layer, length = rec.layers[0], int(rec.layers[0].lengths[1])
    features = torch.randn(length, 3, generator=fresh)
    rows = torch.tensor([length - 1, 0, 4])
    torch.testing.assert_close(layer.project(features, 1, rows), layer.project(features, 1)[:, rows])
    with pytest.raises(ShapeError, match=f"queries run to {length}, but text 1 has {length} of them"):
        layer.project(features, 1, torch.tensor([length]))
