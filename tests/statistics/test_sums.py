"""Sums add: however texts are split into batches, files and machines, in whatever order, the numbers are the same."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.models import batches
from manyheads.recording import Sinks
from manyheads.statistics import STATISTICS, HeadTable, Sums
from manyheads.statistics.sums import HALVES, REPLICATES, text_weights
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_llama, tiny_tokenizer
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


def test_addition_is_associative_and_commutative_and_empty_is_its_zero(fresh):
    num, den, seeds = drawn(fresh, 7)
    a, b, c = (of_texts(num, den, seeds, part) for part in ([0, 1], [2, 3, 4], [5, 6]))
    assert_same_sums((a + b) + c, a + (b + c))
    assert_same_sums(a + b, b + a)
    assert_same_sums(a + Sums.empty(HEADS, NAMES), a)


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
    with pytest.raises(StatisticError, match=r"sums of shape \(2, 5, 3, 101\) and .* do not add: measure the same"):
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
def lm(request, fresh):
    if request.param == "bert":
        return mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    return mh.load(tiny_llama(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=False))


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


@pytest.mark.turns(4)
@pytest.mark.sampled(1)
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
    monkeypatch.setattr("manyheads.models.reading.batches", lambda read: groups.extend(batches(read, 45)) or groups)
    assert_same_measurement(measured(lm, texts).sums, whole.sums)
    assert len(groups) > 2 and sorted(i for group in groups for i in group) == list(range(len(texts)))


@pytest.mark.turns(4)
@pytest.mark.sampled(1)
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


@pytest.mark.sampled(1)
def test_the_table_gives_an_interval_around_every_statistic(lm, fresh):
    table = measured(lm, [written_text(fresh, n) for n in range(3, 23)])
    for name in ("entropy", "distance", "previous_mass", "first_mass"):
        low, high = table.interval(name)
        assert (low <= table.column(name) + 1e-9).all() and (table.column(name) <= high + 1e-9).all()
        assert (high > low).any()


@pytest.mark.sampled(1)
def test_memory_does_not_grow_with_the_number_of_texts(lm, fresh):
    few = measured(lm, [written_text(fresh, 5)])
    many = measured(lm, [written_text(fresh, n) for n in (5, 9, 7, 3, 11)])
    assert few.sums.num.nbytes == many.sums.num.nbytes and few.sums.den.nbytes == many.sums.den.nbytes
