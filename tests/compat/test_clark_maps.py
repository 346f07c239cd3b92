"""Clark et al.'s measurements of whole maps (masses, entropies, distances) are those of the model's own eager maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.compat import clark, inputs
from manyheads.compat.clark import general as distances
from manyheads.errors import RecordingError, TextError
from tests.compat import clark_oracle as oracle
from tests.compat.clark_reader import small_bert
from tests.compat.crafted import crafted

NEAR = 2e-6
PAIRS = [("the cat saw mary .", "she saw it , abc"), ("king of it", "cat .")]


def ids_of(lm, pair):
    return lm.tokenizer(*pair)["input_ids"]


@pytest.mark.parametrize("texts, quirks", [(PAIRS, True), ([a for a, _ in PAIRS], False)], ids=["pairs", "single"])
def test_masses_are_those_of_the_models_own_maps(lm, texts, quirks):
    got = clark.attention_masses(lm, texts, quirks=quirks)
    read = [ids_of(lm, text if isinstance(text, tuple) else (text,)) for text in texts]
    pieces = [lm.tokenizer.convert_ids_to_tokens(ids) for ids in read]
    each = [oracle.masses(p, oracle.maps_of(lm, ids), quirks) for p, ids in zip(pieces, read, strict=True)]
    assert got.keys() == each[0].keys()
    for name, values in got.items():
        assert values.numpy() == pytest.approx(np.mean([one[name] for one in each], 0), abs=NEAR), name


def test_the_quirk_of_two_separators_matters_for_single_texts(lm):
    plain, quirky = (clark.attention_masses(lm, "the cat saw it", quirks=q) for q in (False, "two separators"))
    assert torch.allclose(quirky["sep_sep"], plain["sep_sep"] / 2)
    assert torch.allclose(quirky["rest_sep"], plain["rest_sep"] * 5 / 4)


def test_entropies_are_those_of_the_models_own_maps(lm, monkeypatch):
    monkeypatch.setattr(inputs, "BLOCK_CELLS", 100)
    read = [ids_of(lm, pair) for pair in PAIRS]
    for quirks in (True, False):
        got = clark.entropies(lm, PAIRS, quirks=quirks)
        rows = [oracle.entropy(oracle.maps_of(lm, ids), quirks) for ids in read]
        assert got.heads.numpy() == pytest.approx(np.mean([one.mean(-1) for one in rows], 0), abs=NEAR)
        assert got.from_cls.numpy() == pytest.approx(np.mean([one[..., 0] for one in rows], 0), abs=NEAR)
        assert got.uniform == pytest.approx(np.mean(np.log([len(ids) for ids in read])))
    assert (clark.entropies(lm, PAIRS).heads > got.heads).all()  # smoothing is towards even attention


def test_distances_are_those_of_the_models_own_maps(lm, monkeypatch):
    monkeypatch.setattr(distances, "BLOCK_CELLS", 500)
    got = clark.head_distances(lm, PAIRS)
    read = [ids_of(lm, pair) for pair in PAIRS]
    wanted = sum(oracle.distances(oracle.maps_of(lm, ids)) for ids in read)
    assert got.sums.numpy() == pytest.approx(wanted, abs=1e-5)
    assert got.num_rows == sum(map(len, read)) and got.num_texts == 2 and len(got.heads) == 10
    assert torch.equal(got.sums, got.sums.T) and (got.means <= np.log(2)).all()
    assert str(got.heads[7]) == "L1H2"


def test_distances_of_known_maps():
    """Two heads that share nothing are about ln 2 a row apart; 144 of 1 are all alike."""
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, 1)])
    got = clark.head_distances(crafted([apart], range(4), list("abcd")))
    assert got.means[0, 1].item() == pytest.approx(np.log(2), abs=0.01) and got.means[0, 0].item() == pytest.approx(0)


def test_a_recording_gives_the_same_as_its_texts(lm):
    texts = [" ".join(pair) for pair in PAIRS]
    recording = mh.record(lm, texts)
    pairs = [
        (clark.entropies(recording).heads, clark.entropies(lm, texts).heads),
        (clark.head_distances(recording).sums, clark.head_distances(lm, texts).sums),
        *zip(clark.attention_masses(recording).values(), clark.attention_masses(lm, texts).values(), strict=True),
    ]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    with pytest.raises(RecordingError, match="a recording holds its own texts"):
        clark.entropies(recording, texts)
    with pytest.raises(TextError, match="knows no pieces of its texts"):
        clark.attention_masses(crafted([torch.eye(3)[None]], range(3)))


def test_layers_of_unlike_numbers_of_heads_leave_places_empty():
    """A pruned model's layers have fewer heads: what is not there is not a number, and -1 to detect_head."""
    even = torch.full((4, 4), 0.25)
    recording = crafted([even.expand(3, 4, 4), even.expand(1, 4, 4)], range(4), list("abcd"))
    got = clark.entropies(recording, quirks=False).heads
    assert got.shape == (2, 3) and got.isnan().tolist() == [[False] * 3, [False, True, True]]
    assert mh.compat.transformer_lens.detect_head(recording)[1].tolist() == pytest.approx([3 / 16, -1, -1])
