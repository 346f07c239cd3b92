"""Every statistic, measured in one pass without a map, equals the reference's on the model's own eager maps.

Not on our record: the maps are transformers' `attentions`, the classes of tokens are read off the text in `facts`, the
values come from the model's own projections. Texts of different lengths share batches; tiles have many borders.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.recording import Sinks
from manyheads.recording.exact_map import one_pass as tiling
from manyheads.reference.cells import TextFacts
from manyheads.reference.statistics import statistics as reference_statistics
from manyheads.statistics import STATISTICS, distant_mass
from manyheads.statistics.table import choose
from tests.models.eager import draw, eager_maps, implementation, padded, spans
from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.statistics.facts import facts_of, value_norms_of, written_text

TOLERANCE = 1e-5  # of a statistic's range
NATURAL = {"nats": math.log, "keys": float, "tokens": float}  # the scale of what has no upper end, for n tokens
PERIOD = 41  # a common word of the tiny vocabulary, to stand in for a sink
NEAR_TIE = 2e-4  # of a weight: two this near may change places by rounding, and with them a row's strongest key
BIDIRECTIONAL = ("minilm", "bert")
MAKERS = {"bert": tiny_bert, "gpt2": tiny_gpt2, "llama": tiny_llama, "gemma2": tiny_gemma2, "gpt_oss": tiny_gpt_oss}
PROJECTION = {
    "minilm": "encoder.layer.{}.attention.output.dense",
    "bert": "encoder.layer.{}.attention.output.dense",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "gemma2": "model.layers.{}.self_attn.o_proj",
    "gpt_oss": "model.layers.{}.self_attn.o_proj",
}
WINDOWS = {"gemma2": 7, "gpt_oss": 5}  # of layers 0, 2, ...
CASES = [
    ("minilm", "sdpa"),
    ("bert", "eager"),
    ("gpt2", "sdpa"),
    ("llama", "sdpa"),
    ("llama", "eager"),
    ("gemma2", "eager"),
    ("gpt_oss", "eager"),
]
Wanted = dict[str, tuple[np.ndarray, np.ndarray]]
"""Name -> numerator and denominator of every head, summed over texts; under "near ties" rows whose first may differ."""


@pytest.fixture(params=[None, 300], ids=["whole tiles", "small tiles"])
def tiles(request, monkeypatch):
    """The pass as it is, and with tiles so small that a sentence has many borders."""
    if request.param:
        monkeypatch.setattr(tiling, "TILE_CELLS", request.param)
        monkeypatch.setattr(tiling, "TILE_KEYS", 5)


@pytest.fixture
def loaded(request, fresh):
    def make(name):
        if name == "minilm":
            return request.getfixturevalue("minilm")
        tokenizer = tiny_tokenizer(special_tokens=name in BIDIRECTIONAL)
        return mh.load(MAKERS[name](seed=draw(fresh)), tokenizer=tokenizer)

    return make


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


@pytest.mark.turns(4)
@pytest.mark.thinned
@pytest.mark.parametrize(("name", "attention"), CASES)
@pytest.mark.sampled(2)
def test_every_statistic_of_texts_equals_the_reference_on_the_models_own_maps(name, attention, tiles, loaded, fresh):
    lm = loaded(name)
    texts = [written_text(fresh, n) for n in (13, 5, 21, 1, 17)]
    inputs = lm.tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    where = spans(inputs["attention_mask"])
    sinks = None if name == "minilm" else Sinks(first=name == "gpt2", ids=(PERIOD,), names=("one",), because="a test")
    with implementation(lm.model, attention):
        table = mh.measure(lm, texts, statistics="all", sinks=sinks)
        norms = [value_norms_of(lm.model, inputs, layer, PROJECTION[name]) for layer in range(len(lm.spec.sites))]

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
@pytest.mark.sampled(2)
def test_every_statistic_of_a_bare_call_equals_the_reference_too(name, attention, side, loaded, fresh):
    model = loaded(name).model
    inputs = padded(fresh, (11, 7, 19, 2), model.config.vocab_size, side)
    where = spans(inputs["attention_mask"])
    with implementation(model, attention):
        table = mh.measure_call(model, **inputs, statistics=list(STATISTICS))

    def facts(layer: int, text: int) -> TextFacts:
        length = where[text].stop - where[text].start
        no, ids = np.zeros(length, bool), inputs["input_ids"][text, where[text]].numpy()
        return TextFacts(visible(name, layer, length), ids, no, no, no, no, no, no, np.arange(length))

    names = [each for each, statistic in STATISTICS.items() if not statistic.asks & {"tokens", "sinks"}]
    assert_same_table(table, of_maps(eager_maps(model, **inputs), where, facts), 19, names)
    left_out = table.notes["left out, for want of a tokenizer"].split(", ")
    assert sorted([*left_out, *names]) == sorted(STATISTICS)


@pytest.mark.turns(4)
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
    norms = [value_norms_of(lm.model, inputs, layer, PROJECTION["gpt2"])[0] for layer in range(3)]
    assert length > tiling.TILE_KEYS

    def facts(layer: int, text_: int) -> TextFacts:
        return facts_of(lm.tokenizer, text, visible("gpt2", layer, length), sinks, norms[layer])

    wanted = of_maps(eager_maps(lm.model, **inputs), [slice(0, length)], facts)
    assert_same_table(table, wanted, length, STATISTICS)


@pytest.mark.turns(4)
@pytest.mark.parametrize(("name", "sink", "recent"), [("minilm", 2, 5), ("llama", 0, 3), ("gemma2", 3, 2)])
@pytest.mark.sampled(3)
def test_what_is_distant_is_whatever_lies_beyond_both_numbers(name, sink, recent, tiles, loaded, fresh):
    """Rows with no such key do not count; of windows (gemma2) what they leave."""
    model = loaded(name).model
    inputs = padded(fresh, (11, 4, 29), model.config.vocab_size, "left")
    where, names = spans(inputs["attention_mask"]), [f"distant_mass_{sink}_{recent}{end}" for end in ("", ".uniform")]
    with implementation(model, "eager"):
        table = mh.measure_call(model, **inputs, statistics=names)
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


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", ["holes", "runs anywhere"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.sampled(2)
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
        table = mh.measure_call(model, **inputs, attention_mask=mask[attention], statistics="all")
    maps = eager_maps(model, **inputs, attention_mask=mask["eager"])
    maps = [torch.where(seen, one, 0.0) for one in maps]  # where a row sees nothing, eager spreads it over everything

    def facts(layer: int, text: int) -> TextFacts:
        no = np.zeros(length, bool)
        return TextFacts(seen[text, 0].numpy(), np.arange(length), no, no, no, no, no, no, np.arange(length))

    assert_same_table(table, of_maps(maps, [slice(0, length)] * 3, facts), length, table.names)


@pytest.mark.turns(4)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.sampled(1)
def test_both_stacks_of_an_encoder_decoder_are_measured(attention, fresh):
    model = tiny_t5(seed=draw(fresh))
    asked, answers = padded(fresh, (11, 7, 13), 99), padded(fresh, (3, 17, 5), 99)
    inputs = {**asked, **{f"decoder_{name}": x for name, x in answers.items()}}
    with implementation(model, attention):
        table = mh.measure_call(model, **inputs, statistics=list(STATISTICS))
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
    # Layers call in turn: the encoder's, then the decoder's with its cross-attention, which test_alignment holds.
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
        mh.measure_call(model, ids[:, -1:], past_key_values=cache)
