"""Every statistic, measured in one pass without a map, equals the reference's on the model's own eager maps.

Not on our record: the maps are transformers' `attentions`, the classes of tokens are read off the text in `facts`, the
values come from the model's own projections. Texts of different lengths share batches; tiles have many borders.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import ShapeError, StatisticError
from manyheads.measurement import measure_call
from manyheads.measurement.of_a_recording import EVERY_ROW, measure_recording, sinks_of
from manyheads.recording.exact_map import one_pass as tiling
from manyheads.recording.layer import small_maps
from manyheads.reference.cells import TextFacts
from manyheads.reference.statistics import statistics as reference_statistics
from manyheads.statistics import OF_SCORES, STATISTICS, Sums
from manyheads.statistics.defined import distant_mass
from manyheads.statistics.sums.one_batch import Finished
from manyheads.statistics.table import choose
from manyheads.texts import Sinks
from tests.models.eager import MAKERS, draw, eager_maps, implementation, padded, spans
from tests.models.tiny import (
    WORDS,
    tiny_bert,
    tiny_gemma2,
    tiny_gpt2,
    tiny_llama,
    tiny_mistral,
    tiny_t5,
    tiny_tokenizer,
)
from tests.statistics.facts import facts_of, value_norms_of, written_text

TOLERANCE = 1e-5  # of a statistic's range
NATURAL = {"nats": math.log, "keys": float, "tokens": float}  # the scale of what has no upper end, for n tokens
PERIOD = 41  # a common word of the tiny vocabulary, to stand in for a sink
NEAR_TIE = 2e-4  # of a weight: two this near may change places by rounding, and with them a row's strongest key
BIDIRECTIONAL = ("minilm", "bert")
WINDOWS = {"gemma2": 7, "gpt_oss": 5}  # of layers 0, 2, ...
CASES = [
    ("minilm", "sdpa"), ("bert", "eager"), ("gpt2", "sdpa"), ("llama", "sdpa"), ("llama", "eager"),
    ("gemma2", "eager"), ("gpt_oss", "eager"),
]  # fmt: skip
Wanted = dict[str, tuple[np.ndarray, np.ndarray]]
"""Name -> numerator and denominator of every head, summed over texts; under "near ties" rows whose first may differ."""


@pytest.fixture(params=[None, 300], ids=["whole tiles", "small tiles"])
def tiles(request, monkeypatch):
    """The pass as it is, and with tiles so small that a sentence has many borders."""
    if request.param:
        monkeypatch.setattr(tiling, "TILE_CELLS", request.param)
        monkeypatch.setattr(tiling, "TILE_KEYS", 5)


def visible(name: str, layer: int, length: int) -> np.ndarray:
    """Who may look where, by what kind of model it is."""
    away = np.arange(length)[:, None] - np.arange(length)[None]
    if name in BIDIRECTIONAL:
        return np.ones((length, length), bool)
    window = length if layer % 2 else WINDOWS.get(name, length)
    return (away >= 0) & (away < window)


def of_maps(maps: list[torch.Tensor], where: list[slice], facts: Callable[[int, int], TextFacts]) -> Wanted:
    """The reference's sums over texts, the heads of all layers after one another. `facts(layer, text)`."""
    layers: list[Wanted] = []
    for layer, of_layer in enumerate(maps):
        sums: Wanted = {}
        for text, span in enumerate(where):
            weights = of_layer[text, :, span, span].double().numpy()
            for name, (num, den) in reference_statistics(weights, facts(layer, text)).items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + num, before[1] + den)
            sums["near ties"] = (sums.get("near ties", (0,))[0] + near_ties(weights), np.ones(len(weights)))
        layers.append(sums)
    return {name: tuple(np.concatenate([sums[name][i] for sums in layers]) for i in (0, 1)) for name in layers[0]}


def near_ties(weights: np.ndarray) -> np.ndarray:
    """Of each head, how many rows have a second key nearly as strong as the first."""
    if weights.shape[-1] < 2:
        return np.zeros(len(weights))
    second, first = np.moveaxis(np.sort(weights, -1)[..., -2:], -1, 0)
    return (second > (1 - NEAR_TIE) * first).sum(-1)


def scale_of(name: str, longest: int) -> float:
    low, high = STATISTICS[name].range
    return high - low if math.isfinite(high - low) else NATURAL[STATISTICS[name].unit](longest)


def assert_same_table(table, wanted: Wanted, longest: int, names) -> None:
    assert list(table.names) == list(names)
    for name in names:
        num, den = wanted[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            want = np.where(den > 0, num / den, np.nan)
        got = table.column(name)
        off = np.abs(got - want)
        if "_top" in name:
            off = off - wanted["near ties"][0] / np.maximum(den, 1)
        worst = off[~np.isnan(want)].max(initial=0) / scale_of(name, longest)
        if not (np.isnan(got) == np.isnan(want)).all() or not worst <= TOLERANCE:
            raise AssertionError(f"{name} is off by {worst:.2g} of its range:\n{got}\nbut the reference says\n{want}")
        (low, high), slack = STATISTICS[name].range, TOLERANCE * scale_of(name, longest)
        assert (np.isnan(got) | (got >= low - slack) & (got <= high + slack)).all(), f"{name} leaves its range"


def test_the_reference_and_the_table_know_the_same_statistics():
    length, ones = 7, np.ones(7, bool)
    where = np.arange(length)
    nothing = TextFacts(
        np.ones((length, length), bool), where, *[~ones] * 6, where, np.ones((2, length)), where / length
    )
    assert set(reference_statistics(np.full((2, length, length), 1 / length), nothing)) == set(STATISTICS)


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "attention"), CASES)
def test_every_statistic_of_texts_equals_the_reference_on_the_models_own_maps(name, attention, tiles, loaded, fresh):
    lm = loaded(name)
    texts = [written_text(fresh, n) for n in (13, 5, 21, 1, 17)]
    inputs = lm.tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    where = spans(inputs["attention_mask"])
    sinks = None if name == "minilm" else Sinks(first=name == "gpt2", ids=(PERIOD,), names=("one",), because="a test")
    with implementation(lm.model, attention):
        table = mh.measure(lm, texts, statistics="all", sinks=sinks)
        norms = [norms.double().numpy() for norms in value_norms_of(lm.model, inputs, name)]

    def facts(layer: int, text: int) -> TextFacts:
        length = where[text].stop
        return facts_of(
            lm.tokenizer, texts[text], visible(name, layer, length), table.sinks, norms[layer][text][:, :length]
        )

    if name == "minilm":
        assert table.sinks.ids == (lm.tokenizer.cls_token_id,)
    wanted = of_maps(eager_maps(lm.model, **inputs), where, facts)
    assert_same_table(table, wanted, max(span.stop for span in where), STATISTICS)
    said = [each for each in STATISTICS if not np.isnan(table.column(each)).all()]
    silent = (
        *("offset_+", "next", "sink", "distant"),  # of texts of 68 tokens and fewer nothing is distant
        *(() if name in BIDIRECTIONAL else ("special", "separator")),
    )
    assert set(STATISTICS) - set(said) <= {n for n in STATISTICS if n.startswith(silent)}


@pytest.mark.thinned
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "attention"), CASES)
def test_every_statistic_of_a_bare_call_equals_the_reference_too(name, attention, side, loaded, fresh):
    model = loaded(name).model
    inputs = padded(fresh, (11, 7, 19, 2), model.config.vocab_size, side)
    where = spans(inputs["attention_mask"])
    with implementation(model, attention):
        table = measure_call(model, **inputs, statistics=list(STATISTICS))

    def facts(layer: int, text: int) -> TextFacts:
        length = where[text].stop - where[text].start
        no, ids = np.zeros(length, bool), inputs["input_ids"][text, where[text]].numpy()
        return TextFacts(visible(name, layer, length), ids, no, no, no, no, no, no, np.arange(length))

    names = [each for each, statistic in STATISTICS.items() if not statistic.asks & {"tokens", "sinks"}]
    assert_same_table(table, of_maps(eager_maps(model, **inputs), where, facts), 19, names)
    left_out = table.notes["left out, for want of a tokenizer"].split(", ")
    assert sorted([*left_out, *names]) == sorted(STATISTICS)


def test_a_text_longer_than_a_tile_equals_the_reference(fresh):
    """TILE_KEYS as they are: 289 tokens have a border of keys and several of rows."""
    lm = mh.load(tiny_gpt2(seed=draw(fresh), n_positions=300), tokenizer=tiny_tokenizer(special_tokens=False))
    text = written_text(fresh, 300)
    while (length := len(lm.tokenizer(text)["input_ids"])) > 289:
        text = text.rsplit(" ", 1)[0]
    inputs = dict(lm.tokenizer([text], return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    sinks = Sinks(first=True)
    table = mh.measure(lm, text, statistics="all", sinks=sinks)
    norms = [norms[0].double().numpy() for norms in value_norms_of(lm.model, inputs, "gpt2")]
    assert length > tiling.TILE_KEYS

    def facts(layer: int, text_: int) -> TextFacts:
        return facts_of(lm.tokenizer, text, visible("gpt2", layer, length), sinks, norms[layer])

    wanted = of_maps(eager_maps(lm.model, **inputs), [slice(0, length)], facts)
    assert_same_table(table, wanted, length, STATISTICS)


@pytest.mark.parametrize(("name", "sink", "recent"), [("minilm", 2, 5), ("llama", 0, 3), ("gemma2", 3, 2)])
def test_what_is_distant_is_whatever_lies_beyond_both_numbers(name, sink, recent, tiles, loaded, fresh):
    """Rows with no such key do not count; of windows (gemma2) what they leave."""
    model = loaded(name).model
    inputs = padded(fresh, (11, 4, 29), model.config.vocab_size, "left")
    where, names = spans(inputs["attention_mask"]), [f"distant_mass_{sink}_{recent}{end}" for end in ("", ".uniform")]
    with implementation(model, "eager"):
        table = measure_call(model, **inputs, statistics=names)
    assert tuple(names) == table.names and choose(names)[0] is distant_mass(sink, recent)
    for layer, maps in enumerate(eager_maps(model, **inputs)):
        sums = np.zeros((3, maps.shape[1]))
        for text, span in enumerate(where):
            place, weights = np.arange(span.stop - span.start), maps[text, :, span, span].double().numpy()
            seen = visible(name, layer, len(place))
            cells = seen & (place >= sink)[None] & (abs(place[:, None] - place[None]) >= recent)
            even = (cells.sum(1) / seen.sum(1)).sum()
            sums += np.stack(
                [(weights * cells).sum((1, 2)), *([even, cells.any(1).sum()] * np.ones((len(weights), 1))).T]
            )
        rows = [index for index, head in enumerate(table.heads) if head.layer == layer]
        for column, total in zip(names, sums, strict=False):
            np.testing.assert_allclose(table.column(column)[rows], total / sums[2], atol=TOLERANCE)


@pytest.mark.parametrize(("name", "window"), [("mistral", 6), ("gemma2", 7)])
def test_first_mass_under_a_window_is_of_the_rows_that_still_see_the_first_token(name, window, tiles, fresh):
    """As its source says, and as a watch counts it: from the model's own eager maps, row by row."""
    model = {"mistral": tiny_mistral, "gemma2": tiny_gemma2}[name](seed=draw(fresh)).eval()
    inputs = padded(fresh, (19, 4, 13), model.config.vocab_size, "right")
    lengths, names = inputs["attention_mask"].sum(1).tolist(), ["first_mass", "first_mass.uniform"]
    with implementation(model, "eager"):
        table = measure_call(model, **inputs, statistics=names)
        with mh.watch(model, statistics=["first_mass"]) as seen:
            model(**inputs)
            seen.step()
        maps = eager_maps(model, **inputs)
    slides = [True, True] if name == "mistral" else [True, False, True]
    for layer, (weights, is_sliding) in enumerate(zip(maps, slides, strict=True)):
        rows = [min(length, window) if is_sliding else length for length in lengths]
        on_first = sum(weights[text, :, : rows[text], 0].double().sum(1) for text in range(len(lengths)))
        even = sum(1 / (row + 1) for count in rows for row in range(count))
        heads = [index for index, head in enumerate(table.heads) if head.layer == layer]
        want = (on_first / sum(rows)).numpy()
        np.testing.assert_allclose(table.column("first_mass")[heads], want, atol=TOLERANCE)
        np.testing.assert_allclose(seen.last["first_mass"][heads], want, atol=TOLERANCE)
        np.testing.assert_allclose(table.column("first_mass.uniform")[heads], even / sum(rows), atol=TOLERANCE)
        hidden = sum(weights[text, :, rows[text] : length, 0].sum() for text, length in enumerate(lengths))
        assert hidden == 0 and (not is_sliding or sum(rows) < sum(lengths)), "some rows see no first token"


@pytest.mark.parametrize("name", ["first_mass", "sink_mass", "special_mass", "duplicate_mass", "previous_mass"])
def test_the_table_says_of_every_mass_which_rows_its_mean_is_of(name):
    assert STATISTICS[name].source.endswith("; the mean over rows with such a key")


@pytest.mark.slow  # ten seconds for 77 passes
def test_each_statistic_alone_is_the_same_as_with_all_the_others(loaded, fresh):
    lm = loaded("llama")
    texts = [written_text(fresh, n) for n in (13, 5, 8)]
    sinks = Sinks(ids=(PERIOD,))
    everything = mh.measure(lm, texts, statistics="all", sinks=sinks)
    for name in STATISTICS:
        alone = mh.measure(lm, texts, statistics=name, sinks=sinks)
        assert alone.names == (name,)
        np.testing.assert_allclose(alone.column(name), everything.column(name), rtol=0, atol=1e-6 * scale_of(name, 26))


@pytest.mark.parametrize("kind", ["holes", "runs anywhere"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_mask_given_by_hand_is_measured_as_it_is(attention, kind, loaded, fresh):
    """Chance levels and denominators go by what each row really sees: not always itself, sometimes nothing at all."""
    model, length = loaded("llama").model, 11
    if kind == "holes":
        seen = (torch.rand(3, 1, length, length, generator=fresh) < 0.6).tril() | torch.eye(length, dtype=torch.bool)
    else:
        edges = torch.randint(length, (3, 1, length, 2), generator=fresh).sort(-1).values
        place = torch.arange(length)
        seen = (place >= edges[..., :1]) & (place <= edges[..., 1:])
    if attention == "eager":  # sdpa gives blind rows another output than eager, so later layers have other maps
        seen[1, :, 4] = seen[2, :, [0, 7]] = False
    inputs = {"input_ids": padded(fresh, (length,) * 3, 99)["input_ids"]}
    mask = {"sdpa": seen, "eager": torch.where(seen, 0.0, torch.finfo(torch.float32).min)}
    with implementation(model, attention):
        table = measure_call(model, **inputs, attention_mask=mask[attention], statistics="all")
    maps = eager_maps(model, **inputs, attention_mask=mask["eager"])
    maps = [torch.where(seen, one, 0.0) for one in maps]  # where a row sees nothing, eager spreads it over everything

    def facts(layer: int, text: int) -> TextFacts:
        no = np.zeros(length, bool)
        return TextFacts(seen[text, 0].numpy(), np.arange(length), no, no, no, no, no, no, np.arange(length))

    assert_same_table(table, of_maps(maps, [slice(0, length)] * 3, facts), length, table.names)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_both_stacks_of_an_encoder_decoder_are_measured(attention, fresh):
    model = tiny_t5(seed=draw(fresh))
    asked, answers = padded(fresh, (11, 7, 13), 99), padded(fresh, (3, 17, 5), 99)
    inputs = {**asked, **{f"decoder_{name}": x for name, x in answers.items()}}
    with implementation(model, attention):
        table = measure_call(model, **inputs, statistics=list(STATISTICS))
    with implementation(model, "eager"), torch.no_grad():
        own = model(**inputs, output_attentions=True)
    parts = []
    for maps, batch, kind in ((own.encoder_attentions, asked, "minilm"), (own.decoder_attentions, answers, "llama")):
        where = spans(batch["attention_mask"])

        def facts(layer: int, text: int, where=where, kind=kind) -> TextFacts:
            n = where[text].stop
            no = np.zeros(n, bool)
            return TextFacts(visible(kind, layer, n), np.arange(n), no, no, no, no, no, no, np.arange(n))

        parts.append(of_maps(list(maps), where, facts))
    wanted = {name: tuple(np.concatenate([part[name][i] for part in parts]) for i in (0, 1)) for name in parts[0]}
    # Layers call in turn: the encoder's, then the decoder's with its cross-attention, which test_cross_attention holds.
    between = [f"{stack}:L{n}H0" for n in (0, 1, 2) for stack in ("decoder", "cross")]
    assert [str(head) for head in table.heads[::4]] == ["encoder:L0H0", "encoder:L1H0", *between]
    own_rows = [head.stack != "cross" for head in table.heads]
    sums = replace(
        table.sums, **{part: getattr(table.sums, part)[:, own_rows] for part in ("num", "den", "moments", "maxima")}
    )
    sites = tuple(site for site in table.sites if site.stack != "cross")
    assert_same_table(replace(table, sites=sites, sums=sums), wanted, 17, table.names)


def test_a_call_whose_every_layer_reads_a_cache_has_nothing_to_measure(fresh):
    model, ids = tiny_gpt2(seed=draw(fresh)), padded(fresh, (7, 7), 99)["input_ids"]
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(StatisticError, match=r"no layer .* attends from a text to itself \(transformer\.h\.0\.attn, "):
        measure_call(model, ids[:, -1:], past_key_values=cache)


# =========================================================================================================== recordings
# A recording's statistics are those of its model: the same names, the same numbers, without the model.

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


def test_a_file_has_the_numbers_of_its_recording(read, tmp_path):
    _, _, rec = read
    rec.save(tmp_path / "three.heads")
    got = measure_recording(mh.open_recording(tmp_path / "three.heads"), text=1)
    assert_same(got, measure_recording(rec, text=1), got.names)


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
    got, want = measure_recording(mh.record_call(layer, x)), measure_call(layer, x)
    shared = [name for name in want.names if name in got.names]
    assert "entropy" in shared
    assert_same(got, want, shared)
    with pytest.raises(StatisticError, match="about words or the model's weights"):
        measure_recording(mh.record_call(layer, x), ["punctuation_mass"])
    with pytest.raises(ShapeError, match="text=1 is not in this recording: it holds 1 texts"):
        measure_recording(mh.record_call(layer, x), text=1)


@pytest.mark.parametrize("rows_a_block", [None, 2])
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


def test_project_of_some_rows_is_those_rows_of_project(read, fresh):
    _, _, rec = read
    layer, length = rec.layers[0], int(rec.layers[0].lengths[1])
    features = torch.randn(length, 3, generator=fresh)
    rows = torch.tensor([length - 1, 0, 4])
    torch.testing.assert_close(layer.project(features, 1, rows), layer.project(features, 1)[:, rows])
    with pytest.raises(ShapeError, match=f"queries run to {length}, but text 1 has {length} of them"):
        layer.project(features, 1, torch.tensor([length]))


# =========================================================================================================== max logits
# The largest logits of every head, measured, are the maxima of the model's own float64 scores, made by hand.
#
# The oracle takes q.k from the eager function of the model itself, as it multiplies them; scale, softcap, window and
# padding are applied here, from the model's configuration.

NAMES = ("max_logit", "max_logit_uncapped", "max_logit_unscaled")
WINDOWED = {**{name: MAKERS[name] for name in ("bert", "gpt2", "llama", "gemma2", "gpt_oss")}, "mistral": tiny_mistral}
EXACT = 1e-5  # q and k are the model's own float32


def products(model, inputs):
    """[b, h, q, k] of every layer: the q and k that the model's own eager function multiplies, in float64."""
    real, out = torch.matmul, []

    def matmul(one, other):
        got = real(one, other)
        if got.ndim == 4 and got.shape[-2:] == (inputs["input_ids"].shape[1],) * 2:
            out.append(real(one.double(), other.double()))
        return got

    with implementation(model, "eager"), mock.patch.object(torch, "matmul", matmul), torch.no_grad():
        model(**inputs)
    assert len(out) == model.config.num_hidden_layers
    return out


def by_hand(name, model, inputs):
    """Name -> [text, head], the heads of all layers after one another."""
    config, out = model.config, {statistic: [] for statistic in NAMES}
    window = getattr(config, "sliding_window", None)
    for layer, product in enumerate(products(model, inputs)):
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scale = getattr(config, "query_pre_attn_scalar", width) ** -0.5
        slides = name == "mistral" or (name in ("gemma2", "gpt_oss") and layer % 2 == 0)
        texts = []
        for text, span in enumerate(spans(inputs["attention_mask"])):
            place = torch.arange(span.stop - span.start)
            away = place[:, None] - place[None]
            seen = torch.ones_like(away, dtype=torch.bool) if name == "bert" else away >= 0
            seen = seen & (away < window) if slides else seen
            texts.append(product[text, :, span, span].masked_fill(~seen, -torch.inf).amax((-1, -2)))
        unscaled = torch.stack(texts)
        uncapped = unscaled * scale
        cap = getattr(config, "attn_logit_softcapping", None)
        finished = uncapped if cap is None else cap * torch.tanh(uncapped / cap)
        for statistic, value in zip(NAMES, (finished, uncapped, unscaled), strict=True):
            out[statistic].append(value)
    return {statistic: torch.cat(layers, 1).numpy() for statistic, layers in out.items()}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", WINDOWED)
def test_they_are_the_maxima_of_the_models_own_scores(name, side, fresh):
    model = WINDOWED[name](seed=draw(fresh))
    inputs = padded(fresh, (41, 7, 59, 2), model.config.vocab_size, side)
    with implementation(model, "eager"):
        table = measure_call(model, **inputs, statistics=["entropy", *NAMES])
    for statistic, want in by_hand(name, model, inputs).items():
        np.testing.assert_allclose(table.column(statistic), want.max(0), rtol=EXACT, atol=EXACT, err_msg=statistic)
    assert "entropy" in table.names and not np.isnan(table.column("entropy")).any()


def test_of_a_bias_both_sides_are_told(fresh):
    """T5: the bias is added to scores that have no scale."""
    model, inputs = tiny_t5(seed=draw(fresh)), padded(fresh, (67, 23), 99)
    layers = mh.record_call(model.encoder, **inputs).layers
    table = measure_call(model.encoder, **inputs, statistics=[*NAMES])
    after, before = [], []
    for layer in layers:
        bias = layer.rule.bias.double()
        product = torch.einsum("bhqd,bhkd->bhqk", layer.q.double(), layer.k.double())
        seen = layer.mask.visible(slice(None), slice(None))  # of an encoder by itself, padding too has rows
        assert seen[1, 0, :23].sum() == 23 * 23
        after.append((product + bias).masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
        before.append(product.masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
    np.testing.assert_allclose(table.column("max_logit"), torch.cat(after), rtol=1e-5, atol=1e-5)
    for name in NAMES[1:]:
        np.testing.assert_allclose(table.column(name), torch.cat(before), rtol=1e-5, atol=1e-5)


def test_over_texts_batches_and_halves_it_is_the_largest_and_has_no_interval(fresh):
    lm = mh.load(tiny_llama(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    sizes = torch.randint(2, 30, (19,), generator=fresh).tolist()  # so many that all in one half are no draw to meet
    texts = [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=fresh).tolist()) for n in sizes]
    alone = [mh.measure(lm, text, NAMES) for text in texts]
    table = mh.measure(lm, texts, ["entropy", *NAMES])
    streamed = mh.measure(lm, iter(texts), NAMES)
    for name in NAMES:
        for half in (None, 0, 1):
            parts = np.stack([part.column(name, half) for part in alone])
            assert np.isfinite(parts).all() == (half is None), "each text is in one half"
            want = np.where(np.isnan(parts).all(0), np.nan, np.nanmax(np.where(np.isnan(parts), -np.inf, parts), 0))
            for got in (table, streamed):
                np.testing.assert_allclose(got.column(name, half), want, rtol=1e-5, atol=1e-5)
        low, high = table.interval(name)
        assert np.isnan(low).all() and np.isnan(high).all()
        assert table.no_interval(name, "L1H2") == "a maximum over texts has no interval"
    sums = sum((part.sums for part in alone[1:]), alone[0].sums)
    np.testing.assert_allclose(sums.value()[..., 0], streamed.sums.value()[..., 0], rtol=1e-5, atol=1e-5)
    assert np.isnan(sums.value()[..., 1:]).all()


def test_maxima_are_not_added_up():
    num, den = torch.tensor([[[-3.0]], [[-5.0]], [[0.0]]]), torch.tensor([[[1.0]], [[1.0]], [[0.0]]])
    sums = Sums.of(num, den, [2, 4, 6], 9, (0,)) + Sums.of(num - 1, den, [3, 5, 7], 9, (0,))
    assert sums.value()[0, 0, 0] == -3.0, "negative, and the text without a value (0 of 0) counts for nothing"
    assert (sums.value(0)[0, 0, 0], sums.value(1)[0, 0, 0]) == (-3.0, -4.0)
    with pytest.raises(StatisticError, match="cannot be added"):
        sums + Sums.of(num, den, [2, 4, 6], 9)


def test_of_a_text_that_is_read_in_windows_the_largest_counts_once():
    """As a Swin layer attends: two texts of three windows each; in one of them the second head sees nothing."""
    num = torch.tensor([[-2.0, -9.0], [-1.0, 0.0], [-3.0, -8.0], [4.0, 0.0], [6.0, 0.0], [5.0, 0.0]])
    own = (num != 0).double()
    numbers = Finished(torch.stack([num, num], -1).double(), torch.ones(6, 2, dtype=torch.float64), {1: own})
    both = numbers.num_of_texts(2, (1,)).unflatten(0, (2, 3)).sum(1)
    assert both[..., 0].tolist() == [[-6.0, -17.0], [15.0, 0.0]], "what is not a maximum is added up as it was"
    assert both[..., 1].tolist() == [[-1.0, -8.0], [6.0, 0.0]]
    assert numbers.num_of_texts(6, (1,)) is numbers.num


def test_they_are_asked_for_by_name(fresh):
    assert tuple(OF_SCORES) == NAMES
    lm = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    assert not {*NAMES} & {*mh.measure(lm, "the cat sat", "all").names}
    assert mh.measure(lm, "the cat sat", "max_logit*").names == NAMES
