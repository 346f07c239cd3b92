"""What each kind of token receives: from the model's own eager maps, token by token, and sums that add."""

import unicodedata

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.statistics import measure
from manyheads.statistics import token_kinds as kinds_module
from manyheads.statistics.token_kinds import TokenKinds
from tests.models.eager import draw
from tests.models.odd import tiny_t5
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_llama, tiny_tokenizer
from tests.statistics.facts import written_text

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


@pytest.fixture(params=[tiny_bert, tiny_llama], ids=["bidirectional", "causal"])
def lm(request, fresh):
    special = request.param is tiny_bert
    return mh.load(request.param(seed=draw(fresh)), tokenizer=tiny_tokenizer(special_tokens=special))


@pytest.mark.turns(4)
@pytest.mark.sampled(1)
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


@pytest.mark.sampled(1)
def test_any_split_into_batches_adds_to_the_same_kinds(lm, fresh, monkeypatch):
    texts = [written_text(fresh, count) for count in (9, 23, 14, 31, 5, 8)]
    whole = measure(lm, texts, ["entropy"], kinds=True).kinds
    monkeypatch.setattr("manyheads.models.reading.batches", lambda read: [[4, 5], [2, 0, 1], [3]])
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


@pytest.mark.turns(4)
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
