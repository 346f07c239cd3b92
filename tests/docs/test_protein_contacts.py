"""The recipe on protein contacts: its functions are the formulas, pair by pair; planted contacts are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

import manyheads as mh
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "howto" / "protein-contacts.md"
SIZE = 23


@pytest.fixture(scope="module")
def recipe():
    """The functions that the page defines."""
    code = next(block.code for block in blocks_of(PAGE) if "def apc" in block.code)
    space = {"np": np}
    exec(code.partition("\nwalk =")[0], space)
    return space["apc"], space["precision"]


def apc_by_pairs(weights):
    """Dunn et al. 2008: F_ij - F_i F_j / F of the symmetrised map, in loops."""
    size = len(weights)
    both = [[weights[i][j] + weights[j][i] for j in range(size)] for i in range(size)]
    sums = [sum(row) for row in both]
    return [[both[i][j] - sums[i] * sums[j] / sum(sums) for j in range(size)] for i in range(size)]


def precision_by_pairs(scores, contacts, count, apart=6):
    """The share of contacts among the pairs with the largest scores."""
    pairs = [(scores[i][j], bool(contacts[i][j])) for i in range(len(scores)) for j in range(i + apart, len(scores))]
    return sum(hit for _, hit in sorted(pairs, key=lambda pair: -pair[0])[:count]) / count


def maps_of(rng, *heads):
    scores = rng.standard_normal((*heads, SIZE, SIZE))
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


def contacts_of(rng):
    """Some pairs, both ways round, also near ones, which do not count."""
    upper = np.triu(rng.random((SIZE, SIZE)) < 0.12, 2)
    upper[2, 9] = True
    return upper | upper.T


def test_numbers_of_every_head_are_those_of_the_formulas(recipe, rng):
    apc, precision = recipe
    maps, contacts = maps_of(rng, 2, 3), contacts_of(rng)
    corrected = apc(maps)
    for layer in range(2):
        for head in range(3):
            np.testing.assert_allclose(corrected[layer, head], apc_by_pairs(maps[layer, head].tolist()), atol=1e-12)
            for count in (SIZE, SIZE // 2, SIZE // 5):
                expected = precision_by_pairs(corrected[layer, head], contacts, count)
                assert precision(corrected, contacts, count)[layer, head] == pytest.approx(expected)


def test_head_that_looks_at_planted_contacts_has_precision_one_and_no_other(recipe, rng):
    apc, precision = recipe
    contacts, order = np.zeros((SIZE, SIZE), bool), rng.permutation(SIZE)[: SIZE - 1]
    contacts[order[::2], order[1::2]] = contacts[order[1::2], order[::2]] = True  # each residue touches one
    count = int(np.triu(contacts, 6).sum())
    maps = 0.02 * maps_of(rng, 4)
    maps[2] += contacts * (1 + rng.random((SIZE, SIZE)))  # each row by itself, as softmax would: not symmetric
    shares = precision(apc(maps), contacts, count)
    assert shares[2] == 1 and (np.delete(shares, 2) < 0.7).all()
    assert precision(apc(maps), contacts, 2 * count)[2] == 0.5


@pytest.mark.parametrize("kind", ["esm", "esmc"])
def test_maps_of_both_kinds_of_models_are_their_own(kind, fresh):
    if kind == "esm":
        config = hf.EsmConfig(
            vocab_size=33, hidden_size=60, num_hidden_layers=3, num_attention_heads=5, intermediate_size=90,
            position_embedding_type="rotary", pad_token_id=1, mask_token_id=32, initializer_range=0.3,
        )  # fmt: skip
        model = hf.EsmModel(config, add_pooling_layer=False).eval()
    else:
        model = hf.AutoModel.from_config(
            hf.AutoConfig.for_model(
                "esmc", hidden_size=60, intermediate_size=90, num_hidden_layers=3, num_attention_heads=5
            )
        ).eval()
    chain = torch.randint(4, 24, (1, SIZE), generator=fresh)
    rec = mh.record_call(model, input_ids=chain)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(input_ids=chain, output_attentions=True).attentions
    assert len(rec.layers) == 3
    for layer, maps in zip(rec.layers, own, strict=True):
        torch.testing.assert_close(layer.weights(), maps[0], rtol=0, atol=1e-5)
