"""Gates on heads: the hard concrete distribution against its formulas, and what a gate does against cut weights."""

import copy
import math

import numpy as np
import pytest
import torch

from manyheads.errors import HeadError
from manyheads.heads import Head
from manyheads.reproductions.voita_gates import GatedHeads, hard_concrete, middle, share_open
from manyheads.training.decoder import Decoder, DecoderConfig

HEADS, HEAD_DIM = 6, 4
CONFIG = DecoderConfig(19, 20, 2, HEADS, 3, HEAD_DIM, 28)


@pytest.fixture
def model(fresh) -> Decoder:
    torch.manual_seed(int(torch.randint(2**20, (), generator=fresh)))
    model = Decoder(CONFIG)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out_proj.weight.mul_(5)  # so that a head's absence shows
    return model.eval()


def scaled(model: Decoder, factors: np.ndarray) -> Decoder:
    """The oracle: each head's columns of the output projection times its factor, and no gate anywhere."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for block, row in zip(copied.blocks, factors, strict=True):
            for head, factor in enumerate(row):
                block.attention.out_proj.weight[:, head * HEAD_DIM : (head + 1) * HEAD_DIM] *= float(factor)
    return copied


def test_draws_chances_and_middles_are_the_papers_formulas():
    location = torch.tensor([-3.0, -0.7, 0.0, 1.3, 4.0])
    torch.manual_seed(7)
    drawn = hard_concrete(location.expand(4000, -1))
    torch.manual_seed(7)
    uniform = torch.rand(4000, 5).double().numpy()
    # Louizos et al. 2018, equations 10 to 13, with beta = 2/3, gamma = -0.1, zeta = 1.1.
    logits = np.log(uniform) - np.log(1 - uniform) + location.double().numpy()
    stretched = 1.2 / (1 + np.exp(-logits * 3 / 2)) - 0.1
    assert np.abs(np.minimum(1, np.maximum(0, stretched)) - drawn.numpy()).max() < 1e-4
    expected = 1 / (1 + np.exp(-(location.double().numpy() - 2 / 3 * math.log(0.1 / 1.1))))
    assert np.abs(share_open(location).numpy() - expected).max() < 1e-6
    # The draws themselves: so often is one above 0, and both ends are reached.
    spread = np.sqrt(expected * (1 - expected) / 4000)
    assert (np.abs((drawn > 0).double().mean(0).numpy() - expected) < 5 * spread + 1e-9).all()
    assert float(drawn.min()) == 0 and float(drawn.max()) == 1
    assert middle(location).tolist() == pytest.approx([0, 0.298175, 0.5, 0.84300, 1], abs=2e-5)


def test_closed_gates_are_heads_that_are_cut_and_others_scale_them(model, fresh):
    ids = torch.randint(19, (3, 11), generator=fresh)
    gated = GatedHeads(copy.deepcopy(model), dict.fromkeys(range(2), HEADS), start=0.4, speed=2.0).eval()
    with torch.no_grad():
        gated.moved["0"].copy_(torch.tensor([9.0, -9.0, 0.3, 9.0, -9.0, -0.5]))
        gated.moved["1"].copy_(torch.tensor([-9.0, 9.0, 9.0, 0.1, 9.0, -9.0]))
        locations = 0.4 + 2 * torch.stack([gated.moved["0"], gated.moved["1"]]).double().numpy()
        factors = np.clip(1.2 / (1 + np.exp(-locations)) - 0.1, 0, 1)
        assert set(factors.flatten()) > {0.0, 1.0} and ((factors > 0) & (factors < 1)).sum() == 3
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(gated(ids).logits, scaled(model, factors)(ids).logits, **close)
        assert (gated(ids).logits - model(ids).logits).abs().max() > 1e-2, "what was cut shows"
    assert gated.kept == {
        Head("", layer, head): bool(factors[layer, head]) for layer in range(2) for head in range(HEADS)
    }
    opened = (1 / (1 + np.exp(-(locations - 2 / 3 * math.log(1 / 11))))).sum()
    assert float(gated.expected_open.detach()) == pytest.approx(opened, rel=1e-5)


def test_in_training_each_text_has_draws_of_its_own_and_gates_learn(model, fresh):
    ids = torch.randint(19, (1, 11), generator=fresh).expand(4, -1)
    gated = GatedHeads(model, dict.fromkeys(range(2), HEADS), start=0.0).train()
    logits = gated(ids).logits
    assert (logits[0] - logits[1]).abs().max() > 1e-3, "equal texts, other gates"
    (logits.square().mean() + gated.expected_open).backward()
    for moved in gated.moved.values():
        assert moved.grad is not None and bool((moved.grad != 0).all())
    gated.eval()
    assert torch.equal(gated(ids).logits[0], gated(ids).logits[0])


def test_gates_for_other_layers_are_refused(model):
    with pytest.raises(HeadError, match=r"L1 has 6 heads, and gates were made for \{0: 6, 1: 5\}"):
        GatedHeads(model, {0: 6, 1: 5}).eval()(torch.zeros(1, 3, dtype=torch.long))
