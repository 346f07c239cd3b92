"""Weights on chosen keys, by any rule and mask, are those of the whole map; the rarest tokens are the reference's."""

import pytest
import torch

from manyheads.nn import Mask, Rule
from manyheads.recording import Layer, Maximum, Tokens, prepare
from manyheads.recording.exact_map.one_pass import key_weights
from manyheads.reference import statistics as reference
from manyheads.statistics import Facts
from manyheads.statistics.defined import masses as tops

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
    torch.testing.assert_close(tops._largest(facts_of(layer), members).float(), want, atol=1e-6, rtol=1e-5)
    none = tops._largest(facts_of(layer), torch.zeros_like(members))
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
