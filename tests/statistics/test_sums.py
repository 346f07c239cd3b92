"""Sums add: however texts are split into batches, files and machines, in whatever order, the numbers are the same."""

import copy
import hashlib
import unicodedata
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manyheads as mh
from manyheads.attention import Mask, Rule
from manyheads.errors import StatisticError
from manyheads.inputs import read
from manyheads.inputs.reading import groups_of
from manyheads.measurement import loop, measure
from manyheads.measurement import sinks as sinks_module
from manyheads.measurement.loop import find_sinks
from manyheads.measurement.sinks import PROBE_TEXTS, judge
from manyheads.recording import Layer, prepare
from manyheads.recording.exact_map import Maximum
from manyheads.recording.exact_map.one_pass import key_weights
from manyheads.recording.exact_map.requests import Linear
from manyheads.reference import statistics as reference
from manyheads.statistics import STATISTICS, Facts, HeadTable, Sums
from manyheads.statistics.defined import masses as tops
from manyheads.statistics.sums import one_batch
from manyheads.statistics.sums import token_kinds as kinds_module
from manyheads.statistics.sums.sums import HALVES, REPLICATES, text_weights
from manyheads.statistics.sums.token_kinds import TokenKinds
from manyheads.texts import Sinks, Tokens
from tests.models.eager import draw, implementation
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_t5, tiny_tokenizer
from tests.statistics.facts import written_text

HEADS, NAMES = 5, 3
SAME = 1e-12  # float64: the same sums in another order


def seed_of(text: str) -> int:
    """What the library says a text's seed is: blake2b of its words, 63 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def of_texts(num, den, seeds, chosen) -> Sums:
    chosen = list(chosen)
    return Sums.of(num[chosen], den[chosen], [seeds[i] for i in chosen], 10 * len(chosen))


def drawn(fresh, num_texts):
    """Numerators and denominators of texts, a few with nothing to count."""
    num, den = (torch.rand(num_texts, HEADS, NAMES, generator=fresh, dtype=torch.float64) for _ in range(2))
    den = (40 * den).round()
    seeds = torch.randint(2**62, (num_texts,), generator=fresh).tolist()
    return num * den, den, seeds


def assert_same_sums(got: Sums, want: Sums) -> None:
    np.testing.assert_allclose(got.num, want.num, rtol=SAME, atol=SAME)
    np.testing.assert_array_equal(got.den, want.den)  # counts: whole numbers, to the last bit
    np.testing.assert_allclose(got.moments, want.moments, rtol=SAME, atol=SAME)
    assert (got.num_texts, got.num_tokens) == (want.num_texts, want.num_tokens)


# ---------------------------------------------------------------------------------------------------------- arithmetic


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_split_in_any_order_adds_to_the_same_sums(data):
    fresh = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    count = data.draw(st.integers(1, 9))
    num, den, seeds = drawn(fresh, count)
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    total = Sums.empty(HEADS, NAMES)
    for part in parts:
        total = total + of_texts(num, den, seeds, part)
    assert_same_sums(total, of_texts(num, den, seeds, range(count)))


def test_the_plain_sum_is_the_sum_over_texts_and_halves_are_disjoint(fresh):
    num, den, seeds = drawn(fresh, 11)
    sums = of_texts(num, den, seeds, range(11))
    for half in (0, 1):
        mine = [i for i, seed in enumerate(seeds) if seed % 2 == half]
        np.testing.assert_allclose(sums.num[half, :, :, 0], num[mine].sum(0).numpy(), rtol=SAME)
        np.testing.assert_allclose(sums.den[half, :, :, 0], den[mine].sum(0).numpy(), rtol=SAME)
        with np.errstate(invalid="ignore", divide="ignore"):
            want = num[mine].sum(0).numpy() / den[mine].sum(0).numpy()
        np.testing.assert_allclose(sums.value(half)[..., 0], want, rtol=SAME)
    np.testing.assert_allclose(sums.value()[..., 0], (num.sum(0) / den.sum(0)).numpy(), rtol=SAME)
    assert sums.num.shape == (HALVES, HEADS, NAMES, 1 + REPLICATES)


def test_what_was_never_counted_is_nan_and_not_zero():
    empty = Sums.empty(HEADS, NAMES)
    assert np.isnan(empty.value()).all()
    low, high = empty.interval()
    assert np.isnan(low).all() and np.isnan(high).all()


@pytest.mark.parametrize("shape", [(HEADS + 1, NAMES), (HEADS, NAMES + 2)], ids=["other heads", "other statistics"])
def test_sums_of_other_shapes_do_not_add(shape):
    with pytest.raises(
        StatisticError, match=r"sums of shape \(2, 5, 3, 101\) and .* cannot be added: measure the " "same"
    ):
        _ = Sums.empty(HEADS, NAMES) + Sums.empty(*shape)


# ----------------------------------------------------------------------------------------------------------- bootstrap


def test_a_texts_weights_hang_on_its_seed_alone_and_are_poisson(fresh):
    seeds = torch.randint(2**62, (400,), generator=fresh).tolist()
    weights = text_weights(seeds)
    for index in (0, 17, 399):
        np.testing.assert_array_equal(weights[index], text_weights([seeds[index]])[0])
    half = np.array(seeds) & 1
    assert (weights[np.arange(400), 1 - half] == 0).all()  # nothing of a text in the other half
    mine = weights[np.arange(400), half]
    assert (mine[:, 0] == 1).all() and 0.35 < half.mean() < 0.65
    draws = mine[:, 1:]
    assert (draws == draws.round()).all() and draws.min() == 0
    counted = draws.size  # mean and variance of Poisson(1), six standard errors wide
    assert abs(draws.mean() - 1) < 6 / counted**0.5 and abs(draws.var() - 1) < 6 * (3 / counted) ** 0.5
    assert len({tuple(row) for row in draws}) == 400  # no two texts share their weights


# --------------------------------------------------------------------------------------------- of texts through a model


@pytest.fixture(params=["bert", "llama"])
def lm(request, loaded):
    return loaded(request.param)


def measured(lm, texts) -> HeadTable:
    return mh.measure(lm, texts, statistics="all", sinks=Sinks(first=True, because="a test"))


def assert_same_measurement(got: Sums, want: Sums) -> None:
    """Texts in other company are padded and tiled otherwise: float32 rounds otherwise, and no more than that."""
    sums = ["unsunk" in each.name or "values" in each.asks for each in STATISTICS.values()]
    counts = [not each for each in sums]  # other denominators are sums of norms, or of weights
    np.testing.assert_allclose(got.den[..., counts, :], want.den[..., counts, :])
    np.testing.assert_allclose(got.den, want.den, rtol=2e-5)
    np.testing.assert_allclose(got.num, want.num, rtol=2e-5, atol=2e-4)
    assert (got.num_texts, got.num_tokens) == (want.num_texts, want.num_tokens)
    np.testing.assert_allclose(got.value()[..., 0], want.value()[..., 0], rtol=1e-4, atol=1e-5)


def test_shuffled_texts_other_batches_and_merged_halves_measure_the_same(lm, fresh, monkeypatch):
    texts = [written_text(fresh, n) for n in (13, 5, 21, 1, 17, 9, 11)]
    whole = measured(lm, texts)
    assert whole.sums.num_texts == len(texts)
    shuffled = [texts[i] for i in torch.randperm(len(texts), generator=fresh).tolist()]
    assert_same_measurement(measured(lm, shuffled).sums, whole.sums)
    assert_same_measurement(measured(lm, texts[:3]).sums + measured(lm, texts[3:]).sums, whole.sums)
    one_by_one = [measured(lm, text).sums for text in shuffled]
    assert_same_measurement(sum(one_by_one[1:], one_by_one[0]), whole.sums)
    groups = []
    monkeypatch.setattr(
        "manyheads.inputs.reading.groups_of", lambda pieces, *_: groups.extend(groups_of(pieces, 45)) or groups
    )
    assert_same_measurement(measured(lm, texts).sums, whole.sums)
    assert len(groups) > 2 and sorted(i for group in groups for i in group) == list(range(len(texts)))


def test_a_texts_half_is_made_of_its_words_alone(lm, fresh):
    texts = [written_text(fresh, n) for n in (13, 5, 21, 7, 17, 9, 11)]
    table = measured(lm, texts)
    for half in (0, 1):
        mine = [text for text in texts if seed_of(text) % 2 == half]
        if not mine:
            assert np.isnan(table.column("entropy", half)).all()
            continue
        alone = measured(lm, mine)
        for name in ("entropy", "previous_mass", "duplicate_mass.relabelled"):
            np.testing.assert_allclose(table.column(name, half), alone.column(name), rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(np.isnan(table.column(name, half)), np.isnan(alone.column(name)))


def test_the_table_gives_an_interval_around_every_statistic(lm, fresh):
    table = measured(lm, [written_text(fresh, n) for n in range(3, 23)])
    for name in ("entropy", "distance", "previous_mass", "first_mass"):
        low, high = table.interval(name)
        assert (low <= table.column(name) + 1e-9).all() and (table.column(name) <= high + 1e-9).all()
        assert (high > low).any()


def test_memory_does_not_grow_with_the_number_of_texts(lm, fresh):
    few = measured(lm, [written_text(fresh, 5)])
    many = measured(lm, [written_text(fresh, n) for n in (5, 9, 7, 3, 11)])
    assert few.sums.num.nbytes == many.sums.num.nbytes and few.sums.den.nbytes == many.sums.den.nbytes


# ========================================================================================================== chosen keys
# Weights on chosen keys, by any rule and mask, are those of the whole map; the rarest tokens are the reference's.

B, H, G, N, D, C = 2, 6, 3, 11, 5, 4


def some_layer(fresh, kind):
    """A layer under a rule and a mask of some kind, and its maps, written out."""
    q, k = torch.randn(B, H, N, D, generator=fresh) * 3, torch.randn(B, G, N, D, generator=fresh)
    scores = 0.7 * q @ k.repeat_interleave(H // G, 1).transpose(2, 3)
    softcap = bias = None
    seen = torch.ones(N, N, dtype=torch.bool).tril().expand(B, 1, N, N)
    if kind == "softcap":
        softcap = 2.0
        scores = softcap * (scores / softcap).tanh()
    if kind == "bias":
        bias = torch.randn(1, H, N, N, generator=fresh)
        scores = scores + bias
    if kind == "holes":
        seen = torch.rand(B, H, N, N, generator=fresh) < 0.5
        seen[:, :, 3] = False
    scores = scores.masked_fill(~seen, -torch.inf)
    maps, lse = scores.softmax(-1).nan_to_num(), scores.logsumexp(-1)
    mask = Mask.from_dense(seen) if kind == "holes" else Mask.causal(N, N).expand(B)
    assert (mask.dense is not None) == (kind == "holes")
    return Layer(q, k, lse, mask, Rule(0.7, softcap, None, bias)), maps


def facts_of(layer):
    return Facts(prepare(Tokens.unnamed([N] * B), [Maximum()]).run(layer), layer=layer)


@pytest.mark.parametrize("kind", ["causal", "softcap", "bias", "holes"])
def test_weights_on_chosen_keys_are_those_of_the_map(kind, fresh):
    layer, maps = some_layer(fresh, kind)
    keys = torch.stack([torch.randperm(N, generator=fresh)[:C] for _ in range(B)])
    got = key_weights(layer, keys, layer.q.dtype)
    torch.testing.assert_close(got, torch.stack([maps[b][:, :, keys[b]] for b in range(B)]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cells", [1, 1 << 22])
@pytest.mark.parametrize("kind", ["causal", "holes"])
def test_the_largest_of_some_keys_is_found_chunk_by_chunk(kind, cells, fresh, monkeypatch):
    monkeypatch.setattr(tops, "CHUNK_CELLS", cells)
    layer, maps = some_layer(fresh, kind)
    members = torch.rand(B, N, generator=fresh) < 0.4
    members[1, :3] = False  # texts have different numbers of them
    want = (maps * members[:, None, None]).amax(-1)
    torch.testing.assert_close(
        tops._largest(facts_of(layer), "members", lambda: members).float(), want, atol=1e-6, rtol=1e-5
    )
    none = tops._largest(facts_of(layer), "none", lambda: torch.zeros_like(members))
    assert not none.any() and none.shape == (B, H, N)


def test_the_rarest_tokens_of_a_batch_are_the_references(fresh):
    ids = torch.randint(6, (5, N), generator=fresh)
    rarity = torch.tensor([0.1, 0.9, 0.3, 0.9, 0.2, 0.5])[ids]  # two kinds are alike
    special = torch.rand(5, N, generator=fresh) < 0.3
    special[4] = True
    tokens = Tokens(torch.full((5,), N), ids, special=special, rarity=rarity)
    for kinds in (1, 2):
        got = tops.rarest(tokens, kinds)
        for text in range(5):
            each = (ids[text].numpy(), ~special[text].numpy(), rarity[text].numpy())
            assert got[text].tolist() == reference.rarest(*each, kinds).tolist()
        assert not got[4].any()


# ====================================================================================================== kinds of tokens
# What each kind of token receives: from the model's own eager maps, token by token, and sums that add.

NEAR = 1e-4  # shares of rows' attention, summed over some hundred rows in float32


def by_hand(lm, texts):
    """Mass and even share of every kind, in both halves, by plain loops over eager maps."""
    mass, even = {}, {}
    lm.model.set_attn_implementation("eager")
    for text in texts:
        tokens = mh.record(lm, text).tokens
        ids = tokens.ids
        with torch.no_grad():
            maps = lm.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
        half, causal = tokens.seeds[0] & 1, "Llama" in type(lm.model).__name__
        heads = torch.cat([each[0].sum(1) for each in maps]).double().numpy()  # head key
        length = ids.shape[1]
        for place, token in enumerate(ids[0].tolist()):
            if not tokens.ordinary[0, place]:
                continue
            key = (half, token)
            share = sum(1 / (row + 1) for row in range(place, length)) if causal else 1.0
            mass[key] = mass.get(key, 0) + heads[:, place]
            even[key] = even.get(key, 0) + share
    lm.model.set_attn_implementation("sdpa")
    return mass, even


def test_kinds_are_what_eager_maps_give(lm, fresh):
    texts = [written_text(fresh, count) for count in (9, 23, 14, 31, 5)]
    found = measure(lm, texts, ["entropy"], kinds=True).kinds
    mass, even = by_hand(lm, texts)
    assert set(found.ids.tolist()) == {token for _, token in even}
    pieces = lm.tokenizer.convert_ids_to_tokens(found.ids.tolist())
    for at, (token, piece) in enumerate(zip(found.ids.tolist(), pieces, strict=True)):
        if piece != "[UNK]":
            assert found.mark[at] == all(unicodedata.category(char)[0] in "PS" for char in piece)
        for half in (0, 1):
            np.testing.assert_allclose(found.even[half, :, at], even.get((half, token), 0.0), atol=NEAR)
            assert np.abs(found.mass[half, :, at] - mass.get((half, token), 0.0)).max() <= NEAR


def test_any_split_into_batches_adds_to_the_same_kinds(lm, fresh, monkeypatch):
    texts = [written_text(fresh, count) for count in (9, 23, 14, 31, 5, 8)]
    whole = measure(lm, texts, ["entropy"], kinds=True).kinds
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda *_: [[4, 5], [2, 0, 1], [3]])
    added = measure(lm, texts, ["entropy"], kinds=True).kinds
    np.testing.assert_array_equal(added.ids, whole.ids)
    np.testing.assert_array_equal(added.mark, whole.mark)
    np.testing.assert_allclose(added.mass, whole.mass, atol=NEAR)
    np.testing.assert_allclose(added.even, whole.even, atol=NEAR)


def test_favour_counts_pairs_and_each_kind_once(fresh, monkeypatch):
    """Against the plain double loop, with ties, kinds too rare to count, and one kind far more frequent than all."""
    monkeypatch.setattr(kinds_module, "MIN_KINDS", 2)
    heads, kinds = 3, 17
    mark = torch.rand(kinds, generator=fresh).numpy() < 0.4
    mark[:4] = [True, False, True, False]
    even = 2.0 ** torch.randint(1, 6, (2, kinds), generator=fresh).double().numpy()  # ties stay ties: no rounding
    even[:, :4] = [1024.0, 4.0, 8.0, 16.0]
    lift = (4 * torch.rand(2, heads, kinds, generator=fresh, dtype=torch.float64)).round().numpy() / 2
    found = TokenKinds(np.arange(kinds), mark, lift * even[:, None], even[:, None].repeat(heads, 1))
    for half in (0, 1):
        known = [kind for kind in range(kinds) if even[half, kind] >= kinds_module.MIN_EVEN]
        for head in range(heads):
            pairs = [
                1.0 if lift[half, head, a] > lift[half, head, b] else 0.5 * (lift[half, head, a] == lift[half, head, b])
                for a in known
                if mark[a]
                for b in known
                if not mark[b]
            ]
            assert found.favour(half)[head] == pytest.approx(np.mean(pairs))


def test_too_few_kinds_say_nothing():
    few = TokenKinds(np.arange(9), np.arange(9) < 5, np.ones((2, 4, 9)), np.full((2, 4, 9), 50.0))
    assert np.isnan(few.favour(0)).all()


def test_layers_that_see_differently_have_even_shares_of_their_own(fresh):
    """Gemma 2: windows of 7 and full layers in turns; T5: two stacks that read two token rows."""
    windowed = mh.load(tiny_gemma2(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))
    windowed.model.set_attn_implementation("eager")
    found = measure(windowed, [written_text(fresh, 40)], ["entropy"], kinds=True).kinds
    heads = found.even.shape[1] // 3
    narrow, full = found.even[:, :heads], found.even[:, heads : 2 * heads]
    assert np.abs(narrow - full).max() > 0.1
    np.testing.assert_allclose(found.even.sum(2), found.mass.sum(2), atol=NEAR)  # no special tokens: all is ordinary
    both = mh.load(tiny_t5(seed=draw(fresh), num_layers=3), tokenizer=tiny_tokenizer(special_tokens=False))
    table = measure(both, [written_text(fresh, count) for count in (9, 14)], ["entropy"], kinds=True)
    assert len(table.kinds.ids) and table.kinds.mass.shape[1] == len(table.heads)


@pytest.mark.slow
def test_an_encoder_decoder_says_what_its_decoder_reads_and_that_what_crosses_is_left_out(fresh):
    lm = mh.load(tiny_t5(seed=draw(fresh), num_layers=3), tokenizer=tiny_tokenizer(special_tokens=False))
    text = written_text(fresh, 9)
    notes = measure(lm, [text], ["distance"]).notes  # which means nothing between two texts
    crossing = [site.module for site in lm.spec.sites if site.stack == "cross"]
    assert notes["left out, since queries and keys are not the same tokens"] == ", ".join(crossing) and crossing
    for said in (notes, mh.record(lm, text).provenance, mh.effect(lm, mh.Ablate("cross:L0H0"), [text]).notes):
        assert said["decoder"].startswith("reads the encoder's own text, one place later")


def test_kinds_are_counted_only_where_asked_for(lm, fresh):
    assert measure(lm, [written_text(fresh, 9)], ["entropy"]).kinds is None


# ================================================================================================================ sinks
# A model's sinks are found by looking: [CLS] in minilm, the first token of a model rigged so, none in a random one.

SENTENCES = (
    "The old dog slept by the door while rain fell on the roof.",
    "Maria sold 14 paintings in Paris, and gave half of the money away.",
    "Why would anyone build a bridge where there is no river?",
    "He said: 'Take the second street on the left, then ask again.'",
    "Tomatoes need sun, water and patience; basil needs only the first two.",
    "In 1969 two people walked on the moon for the first time.",
)


def rigged_gpt2(fresh, pull=12.0):
    """A GPT-2 whose every key at position 0 draws every query, by its position's embedding."""
    model = tiny_gpt2(seed=draw(fresh), sharpness=1.0)
    width, beacon = model.config.n_embd, torch.zeros(model.config.n_embd)
    beacon[::2], beacon[1::2] = 1.0, -1.0  # zero mean: layer norm leaves it
    with torch.no_grad():
        model.transformer.wpe.weight[0] += 20 * beacon
        for block in model.transformer.h:
            attention = block.attn.c_attn
            attention.bias[:width] = 1.0  # queries all point one way
            attention.weight[:, width : 2 * width] += pull / width * beacon[:, None]  # and only position 0's keys so
    return model


def sinks_of(lm, texts) -> Sinks:
    return find_sinks(read(lm, texts))


def words_of(fresh, count=8):
    return [written_text(fresh, 7 + 2 * n) for n in range(count)]


def test_minilm_parks_on_cls_and_says_with_what_evidence(minilm):
    found = sinks_of(minilm, SENTENCES)
    assert found.names == ("[CLS]",) and found.ids == (minilm.tokenizer.cls_token_id,) and not found.first
    assert "[CLS] draws" in found.because and "times its even share (6 texts)" in found.because


def test_measure_looks_for_sinks_once_and_takes_those_it_is_given(minilm, monkeypatch):
    table = mh.measure(minilm, SENTENCES[:3], statistics=["sink_mass", "first_mass"])
    assert table.sinks.names == ("[CLS]",) and table.notes["sinks"] == table.sinks.because
    torch.testing.assert_close(table.column("sink_mass"), table.column("first_mass"))  # [CLS] stands first, once
    assert table.column("sink_mass").max() > 0.3
    monkeypatch.setattr(loop, "find_sinks", lambda *_: pytest.fail("looked again"))
    monkeypatch.setattr(loop.SinkSearch, "of", lambda *_: pytest.fail("looked again"))
    again = mh.measure(minilm, SENTENCES[:3], statistics=["sink_mass"], sinks=table.sinks)
    torch.testing.assert_close(again.column("sink_mass"), table.column("sink_mass"))
    mh.measure(minilm, SENTENCES[:3], statistics=["entropy"])  # asks for none


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_decoder_rigged_to_park_on_its_first_token_has_that_sink_whatever_the_token_is(attention, fresh):
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    texts = words_of(fresh)
    with implementation(lm.model, attention):
        found = sinks_of(lm, texts)
        table = mh.measure(lm, texts, statistics=["sink_mass", "first_mass", "sink_norm_mass"])
    assert found.first and found.ids == () and found.names == ("the first token",)
    assert "the first token draws" in found.because
    assert (table.column("sink_mass") > 0.5).all()
    torch.testing.assert_close(table.column("sink_mass"), table.column("first_mass"))


def test_texts_too_short_to_find_the_sink_say_so_and_the_table_says_why_it_is_nan(fresh):
    """Of 4 tokens the first gets (1 + 1/2 + 1/3 + 1/4) / 4 = 52 % by an even spread, and never three times that."""
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    texts = [" ".join(text.split()[:4]) for text in words_of(fresh)]
    lengths = [len(lm.tokenizer(text)["input_ids"]) for text in texts]
    even = sum(1 / row for length in lengths for row in range(1, length + 1)) / sum(lengths)
    table = mh.measure(lm, texts, statistics=["sink_mass", "first_mass"])
    share = table.column("first_mass").mean()
    assert table.sinks.names == () and 1.5 < share / even < 3 and np.isnan(table.column("sink_mass")).all()
    words = (
        f"; the first token draws {share:.0%} of all attention, {share / even:.1f} times its even share, and whether "
    )
    assert f"{words}it is a sink only longer texts can tell (8 texts)" in table.sinks.because
    assert table.without_cases == {"sink_mass": table.sinks.because}
    assert str(table) == f"{table!r}\nNaN: sink_mass: {table.sinks.because}" and "NaN" not in repr(table)
    longer = mh.measure(lm, words_of(fresh), statistics=["sink_mass", "next_mass"])
    assert longer.without_cases == {"next_mass": "no row was counted"}


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_a_random_model_has_no_sink_and_says_so(make, fresh):
    """At the usual initialisation. (A causal model's first token draws much, but an even share.)"""
    lm = mh.load(make(seed=draw(fresh), sharpness=1.0), tokenizer=tiny_tokenizer(special_tokens=make is tiny_bert))
    found = sinks_of(lm, words_of(fresh))
    assert (found.first, found.ids, found.names) == (False, (), ())
    assert found.because == "no token draws over 5% of all attention and 3 times its even share (8 texts)"
    table = mh.measure(lm, words_of(fresh), statistics=["sink_mass"])
    assert bool(torch.isnan(torch.tensor(table.column("sink_mass"))).all())  # nothing to measure: not 0


def shapes_read(lm, call) -> list[tuple[int, ...]]:
    """The shapes of the ids in each forward pass that a call makes."""
    shapes: list[tuple[int, ...]] = []
    lm.spec  # noqa: B018  a pass of its own, at the first use
    hook = lm.model.base_model.register_forward_pre_hook(  # a head of a language model is not run
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        call()
    finally:
        hook.remove()
    return shapes


@pytest.mark.parametrize("most", [10_000, 310])
def test_sinks_are_looked_for_on_whole_texts_of_a_bounded_number_of_tokens(most, fresh, monkeypatch):
    monkeypatch.setattr("manyheads.measurement.sinks.PROBE_TOKENS", most)
    lm = mh.load(tiny_gpt2(seed=draw(fresh), n_positions=400), tokenizer=tiny_tokenizer(special_tokens=False))
    reading = read(lm, [written_text(fresh, 280), *words_of(fresh, 60)])
    shapes = shapes_read(lm, lambda: find_sinks(reading))
    texts, longest = sum(texts for texts, _ in shapes), max(longest for _, longest in shapes)
    assert longest == len(reading.pieces[0].ids) > 270
    assert texts == PROBE_TEXTS if most == 10_000 else 1 <= texts < 5


def test_one_text_that_is_longer_than_the_bound_is_looked_at_whole(fresh, monkeypatch):
    monkeypatch.setattr("manyheads.measurement.sinks.PROBE_TOKENS", 5)
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    # A first token has at most n / (1 + 1/2 + ... + 1/n) of its even share, which is 3 from nine tokens on.
    table = mh.measure(lm, [written_text(fresh, 11 + 2 * n) for n in range(3)], ["sink_mass"])
    assert table.sinks.first and "(1 texts)" in table.notes["sinks"]


OF_SINKS = ("sink_mass", "sink_mass.uniform", "sink_norm_mass", "induction_unsunk_mass")


def in_halves(model):
    """A BERT whose second layer attends within either half of its positions, which are then no tokens of the texts."""
    attend = model.encoder.layer[1].attention.self.forward

    def forward(hidden, *_, **__):
        folded = attend(hidden.unflatten(1, (2, -1)).flatten(0, 1), None)
        return (folded[0].unflatten(0, (-1, 2)).flatten(1, 2), *folded[1:])

    model.encoder.layer[1].attention.self.forward = forward
    return model


def models_with_sinks(fresh):
    """Models with sinks, by name: a special token, the first place, those of an encoder and of its decoder."""
    return {
        "minilm": (mh.load("minilm"), list(SENTENCES)),
        "rigged": (mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False)), words_of(fresh)),
        "t5": (mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer()), words_of(fresh)),
        "t5 with targets": (
            mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer()),
            [*zip(words_of(fresh), words_of(fresh), strict=True)],
        ),
    }


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["minilm", "rigged", "t5", "t5 with targets"])
@pytest.mark.parametrize("statistics", [OF_SINKS, "all"])
def test_sinks_found_in_the_same_pass_give_the_same_numbers_to_the_last_bit(name, statistics, fresh, monkeypatch):
    """As those that are given, and as those found in a pass before."""
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, 40))
    for limit, low in (("MASS", 0.01), ("EXCESS", 0.9)):  # so that every model has some
        monkeypatch.setattr(f"manyheads.measurement.sinks.SINK_{limit}", low)
    lm, texts = models_with_sinks(fresh)[name]
    found = mh.measure(lm, texts, statistics)
    assert found.sinks.names
    monkeypatch.setattr(loop, "KEPT_NUMBERS", 0)
    monkeypatch.setattr(loop, "READ_TWICE", 1)
    before = mh.measure(lm, texts, statistics)
    assert before.sinks == found.sinks
    for other in (before, mh.measure(lm, texts, statistics, sinks=found.sinks)):
        assert other.notes == found.notes
        for array in ("num", "den", "moments", "maxima"):
            np.testing.assert_array_equal(getattr(other.sums, array), getattr(found.sums, array))


def test_a_layer_whose_positions_are_no_tokens_of_the_text_has_no_sinks(minilm):
    """Of three texts of 8 tokens it reads six of 4, which have no names."""
    lm = replace(minilm, model=in_halves(copy.deepcopy(minilm.model)))
    texts = ["the cat sat on the mat", "a dog ran on the road", "the old cat ran after it"]
    found = mh.measure(lm, texts, ["sink_mass", "sink_norm_mass"])
    assert found.sinks.names == ("[CLS]",)
    given_ones = mh.measure(lm, texts, ["sink_mass", "sink_norm_mass"], sinks=found.sinks)
    for name in ("num", "den"):
        np.testing.assert_array_equal(getattr(given_ones.sums, name), getattr(found.sums, name))
    of_layer = np.array([head.layer for head in found.heads])
    assert np.isnan(found.column("sink_mass")[of_layer == 1]).all()
    assert (found.column("sink_mass")[of_layer != 1] > 0).all()


@pytest.mark.parametrize("statistics", [OF_SINKS, "default", "all", ("entropy",)])
def test_each_text_is_read_once_also_where_sinks_are_looked_for(statistics, fresh, monkeypatch):
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    texts = [written_text(fresh, 7 + n % 23) for n in range(110)]
    shapes = shapes_read(lm, lambda: mh.measure(lm, texts, statistics))
    reading = replace(read(lm, texts), most_padding=lm.most_padding)
    assert len(shapes) == len(reading.groups()) and sum(count for count, _ in shapes) == len(texts)
    monkeypatch.setattr(loop, "KEPT_NUMBERS", 1)  # too little: then once more, those that are probed
    shapes = shapes_read(lm, lambda: mh.measure(lm, texts, statistics))
    looks = statistics != ("entropy",)
    assert sum(count for count, _ in shapes) == len(texts) + looks * PROBE_TEXTS
    shapes = shapes_read(lm, lambda: mh.measure(lm, texts[:50], statistics))  # but not half of them
    assert sum(count for count, _ in shapes) == 50


def test_nothing_as_large_as_a_map_is_kept_until_the_sinks_are_known(minilm, monkeypatch):
    passes, alive = [], []
    plan, judged = one_batch.prepare, sinks_module.judge
    monkeypatch.setattr(one_batch, "prepare", lambda *given: passes.append(ref(made := plan(*given))) or made)
    monkeypatch.setattr(
        sinks_module, "judge", lambda *given: alive.append([x() for x in passes if x() is not None]) or judged(*given)
    )
    monkeypatch.setattr("manyheads.inputs.reading.groups_of", lambda pieces, *_: groups_of(pieces, 40))
    mh.measure(minilm, list(SENTENCES), "all")
    assert len(passes) > 3 and alive == [[]]


def test_a_list_and_the_same_texts_as_a_corpus_have_the_same_sinks(minilm, fresh):
    rigged = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    for lm, texts in ((minilm, [*SENTENCES, " ".join(SENTENCES * 5)]), (rigged, words_of(fresh, 61))):
        listed, streamed = mh.measure(lm, texts, ["sink_mass"]), mh.measure(lm, iter(texts), ["sink_mass"])
        assert (listed.sinks.first, listed.sinks.ids) == (streamed.sinks.first, streamed.sinks.ids)
        assert listed.sinks.names
        np.testing.assert_allclose(listed.column("sink_mass"), streamed.column("sink_mass"), rtol=1e-5)


def test_a_statistic_of_ones_own_may_read_the_sinks_in_its_requests(fresh):
    """Then the sinks must be known before the pass: they are looked for first."""
    lm = mh.load(rigged_gpt2(fresh), tokenizer=tiny_tokenizer(special_tokens=False))
    request = Linear(lambda tokens: tokens.sink.double())
    own = replace(
        STATISTICS["entropy"],
        name="own",
        needs=lambda _: (request,),
        finish=lambda facts: facts.over_rows(facts[request]),
    )
    table = mh.measure(lm, words_of(fresh), ["sink_mass", own])
    assert table.sinks.first
    np.testing.assert_allclose(table.column("own"), table.column("sink_mass"), rtol=1e-6)


def test_judging_compares_with_the_even_share(fresh):
    """Columns made by hand: what draws much, but about its even share, is not a sink; nor is what draws 2 % of all."""
    lm = mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    tokens = read(lm, ["the cat sat .", "the dog ran ."]).tokens([0, 1])
    even = torch.full(tokens.real.shape, 1 / 12)
    assert tokens.pieces[0] == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")
    received = even.clone()
    received[:, 4] = 0.3  # the full stops
    assert judge(tokens, received, even).names == (".",)
    received[:, 0] = 0.35
    both = judge(tokens, received, even)
    assert both.names == ("[CLS]", ".")  # the strongest first
    assert not both.first  # [CLS] is the reason, not the place
    assert judge(tokens, received / 20, even / 20).names == ()  # too little of all attention
    assert judge(tokens, 2.9 * even, even).names == ()
