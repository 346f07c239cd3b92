"""The decoder, and its export: a stock Llama with the same logits."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import manyheads as mh
from manyheads.errors import GuardError, HeadError, ModelError, ShapeError
from manyheads.heads import Head
from manyheads.lab.reproductions.voita_gates import GatedHeads, hard_concrete, middle, share_open
from manyheads.lab.training import decoder as export
from manyheads.lab.training.decoder import Decoder, DecoderConfig, next_token_loss, save_llama, to_llama
from manyheads.lab.training.presets.code import first_repeats
from manyheads.lab.training.presets.python_source import as_transformers, train_tokenizer
from manyheads.measurement import measure_call
from tests.refusals import refuses

VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDE, PLACES = 300, 42, 3, 6, 2, 10, 56, 64
CONFIG = DecoderConfig(VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDE, PLACES)
TEXT = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(CONFIG).eval()
    with torch.no_grad():
        for each in model.parameters():  # far from the start, where all maps are even and all logits small
            each.mul_(3 if each.ndim > 1 else 1).add_(0.1 * torch.randn_like(each))
    return model


@pytest.fixture(scope="module")
def reader():
    return as_transformers(train_tokenizer([TEXT * 30], VOCAB), PLACES)


def test_the_export_is_stock_llama_with_the_same_logits(decoder, fresh):
    ids = torch.randint(VOCAB, (2, 37), generator=fresh)
    llama = to_llama(decoder)
    assert type(llama).__module__.startswith("transformers.")
    with torch.no_grad():
        ours, stock = decoder(ids).logits, llama(ids).logits
    assert float(stock.std()) > 0.1
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


def test_the_saved_folder_loads_by_name_and_reads_texts(decoder, reader, tmp_path):
    place = save_llama(decoder, reader, tmp_path / "model", torch.float16)
    stored = load_file(place / "model.safetensors")
    assert {each.dtype for each in stored.values()} == {torch.float16} and "lm_head.weight" not in stored
    lm = mh.load(place)
    assert (type(lm.model).__name__, lm.dtype, lm.max_positions) == ("LlamaForCausalLM", torch.float32, PLACES)
    site = lm.spec.sites[1]
    assert (site.num_heads, site.num_kv_heads, site.qk_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    ids = lm.tokenizer(TEXT)["input_ids"]
    assert ids[0] == lm.tokenizer.bos_token_id == 0 and lm.tokenizer.decode(ids[1:]) == TEXT
    assert lm.model.generation_config.eos_token_id == lm.tokenizer.eos_token_id == 1
    save_llama(decoder, reader, tmp_path / "model", torch.bfloat16)  # over the first
    assert load_file(place / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_an_export_that_differs_is_not_written(decoder, reader, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "EPSILON", 1.0)
    with pytest.raises(ModelError, match="the exported model's logits differ by .*: it was not written"):
        save_llama(decoder, reader, tmp_path / "model", torch.bfloat16)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_llama_and_a_text_longer_than_the_positions_are_refused(decoder):
    with pytest.raises(ModelError, match="an attention-only decoder is not a Llama: export one with a feed-forward"):
        to_llama(Decoder(DecoderConfig(11, 12, 2, 3, 3, 4, None, 16)))
    model = Decoder(DecoderConfig(11, 12, 2, 3, 3, 4, 16, 16, qk_norm=True))
    assert model.blocks[1].attention.q_norm.weight.shape == (4,)
    refuses(ModelError, "a decoder with norms of q and k is not a Llama: export one without qk_norm", to_llama, model)
    with pytest.raises(ShapeError, match="a text of 65 tokens is too long for 64 positions"):
        decoder(torch.zeros(1, 65, dtype=torch.long))


def test_padding_changes_nothing_and_the_future_is_not_seen(decoder, fresh):
    ids = torch.randint(VOCAB, (2, 13), generator=fresh)
    padded = torch.cat([ids, torch.ones(2, 4, dtype=torch.long)], 1)
    mask = torch.cat([torch.ones(2, 13), torch.zeros(2, 4)], 1).long()
    with torch.no_grad():
        alone, beside = decoder(ids).logits, decoder(padded, attention_mask=mask).logits[:, :13]
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-4)


def test_the_loss_is_the_mean_cross_entropy_of_the_next_token(decoder, fresh):
    ids = torch.randint(VOCAB, (3, 9), generator=fresh)
    with torch.no_grad():
        chances = decoder(ids).logits.log_softmax(-1)
        by_hand = -torch.stack([chances[b, n, ids[b, n + 1]] for b in range(3) for n in range(8)]).mean()
        torch.testing.assert_close(next_token_loss(decoder, ids), by_hand)


def test_a_decoder_in_hand_is_recorded_like_any_model(decoder, reader):
    table = mh.measure(mh.load(decoder, tokenizer=reader), [TEXT], ["previous_mass"])
    assert len(table.heads) == LAYERS * HEADS
    assert ((table["previous_mass"] >= 0) & (table["previous_mass"] <= 1)).all()


def test_first_repeats_are_the_rows_whose_token_came_exactly_once_before(decoder, reader):
    text = "x = y + z\ny = x + a\nz = y\n"
    lm = mh.load(decoder, tokenizer=reader)
    plain, null = first_repeats()
    table = mh.measure(lm, [text], [plain, null])
    ids = reader(text, return_tensors="pt")["input_ids"]
    found, count = torch.zeros(LAYERS * HEADS), 0
    llama = to_llama(decoder)
    llama.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(llama(ids, output_attentions=True).attentions)[:, 0].flatten(0, 1)
    tokens = ids[0].tolist()
    for row in range(2, len(tokens)):
        earlier = [key for key in range(1, row) if tokens[key] == tokens[row]]
        if len(earlier) == 1:
            found, count = found + maps[:, row, earlier[0] + 1], count + 1
    assert count > 3
    torch.testing.assert_close(torch.tensor(table.column(plain.name)).float(), found / count, rtol=1e-3, atol=1e-4)
    assert abs(table.column(plain.name) - table.column(null.name)).max() > 0.01


def test_other_attention_is_what_it_says(fresh):
    ids, length = torch.randint(VOCAB, (2, 11), generator=fresh), 11
    for attention in ("learned-sink", "sigmoid"):
        torch.manual_seed(1)
        model = Decoder(replace(CONFIG, attention=attention)).eval()
        layer = model.blocks[0].attention
        inputs: list[torch.Tensor] = []
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(1.5).add_(0.1 * torch.randn_like(each))
            with layer.register_forward_pre_hook(lambda _, given, inputs=inputs: inputs.append(given[0])):
                model(ids)
            x = inputs[0].double()
            out = layer(inputs[0], need_weights=False)[0].double()
            # By hand, head by head: rotated as the layer's own table does, then the two formulas.
            q, k, v = (getattr(layer.qkv_proj, name)(inputs[0]).view(2, length, -1, HEAD_DIM) for name in "qkv")
            turn = layer.rotary.at(0, length, None)
            q, k = (layer.rotary(part.transpose(1, 2), *turn).double() for part in (q, k))
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // KV_HEADS)
                scores = (q[:, head] @ k[:, group].mT / HEAD_DIM**0.5).masked_fill(
                    torch.ones(length, length).triu(1).bool(), -torch.inf
                )
                if attention == "sigmoid":
                    weights = 1 / (1 + (-scores).exp())
                else:
                    raised = scores.exp()
                    weights = raised / (raised.sum(-1, keepdim=True) + layer.sinks[head].double().exp())
                heads.append(weights @ v[:, :, group].double())
            expected = torch.cat(heads, -1) @ layer.out_proj.weight.double().T
        assert x.shape == out.shape and not torch.allclose(weights.sum(-1), torch.ones(()).double(), atol=0.01)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        refuses(ModelError, f"a decoder with {attention} attention is not a Llama", to_llama, model)
    # No softmax has such outputs, and nobody is told that one had.
    with pytest.raises(GuardError):
        measure_call(model, ids, statistics=["entropy"])
    with pytest.raises(ModelError, match="'relu' is not supported: use one of softmax, learned-sink, sigmoid"):
        replace(CONFIG, attention="relu")


# ================================================================================================================ gates
# Gates on heads: the hard concrete distribution against its formulas, and what a gate does against cut weights.

GATED_HEADS, GATED_DIM = 6, 4
GATED = DecoderConfig(19, 20, 2, GATED_HEADS, 3, GATED_DIM, 28)


@pytest.fixture
def model(fresh) -> Decoder:
    torch.manual_seed(int(torch.randint(2**20, (), generator=fresh)))
    model = Decoder(GATED)
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
                block.attention.out_proj.weight[:, head * GATED_DIM : (head + 1) * GATED_DIM] *= float(factor)
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
    gated = GatedHeads(copy.deepcopy(model), dict.fromkeys(range(2), GATED_HEADS), start=0.4, speed=2.0).eval()
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
        Head("", layer, head): bool(factors[layer, head]) for layer in range(2) for head in range(GATED_HEADS)
    }
    opened = (1 / (1 + np.exp(-(locations - 2 / 3 * math.log(1 / 11))))).sum()
    assert float(gated.expected_open.detach()) == pytest.approx(opened, rel=1e-5)


def test_in_training_each_text_has_draws_of_its_own_and_gates_learn(model, fresh):
    ids = torch.randint(19, (1, 11), generator=fresh).expand(4, -1)
    gated = GatedHeads(model, dict.fromkeys(range(2), GATED_HEADS), start=0.0).train()
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
