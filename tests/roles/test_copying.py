"""Copying: equal to the eigenvalues of the whole tokens x tokens matrix, by NumPy from the models' own weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Model, OPTConfig, OPTForCausalLM

import manyheads as mh
from manyheads.circuits.writes import Products, eigenvalue_score
from manyheads.errors import HeadError, ModelError, StatisticError
from manyheads.roles.probes import copying_scores
from manyheads.roles.probes.copying import fold_of
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_t5, tiny_tokenizer
from tests.refusals import refuses


def loaded(model):
    return mh.load(model, tokenizer=tiny_tokenizer(special_tokens=False))


def with_gains(model, fresh):
    """Norms that do something: at initialisation a gain is 1 (Gemma: 0, and 1 is added)."""
    with torch.no_grad():
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                module.weight.add_(torch.rand(module.weight.shape, generator=fresh) - 0.5)
    return model


def numbers(tensor):
    return tensor.detach().double().numpy()


# What a head does to a token, as rows times matrices, written out for three families: (reads, writes, last) of a head.


def gpt2_head(model, layer, head):
    block, width = model.transformer.h[layer], model.config.n_embd
    size = width // model.config.n_head
    columns = slice(2 * width + head * size, 2 * width + (head + 1) * size)
    centre = np.eye(width) - 1 / width
    values = centre @ np.diag(numbers(block.ln_1.weight)) @ numbers(block.attn.c_attn.weight)[:, columns]
    writes = numbers(block.attn.c_proj.weight)[head * size : (head + 1) * size]
    return values, writes, centre @ np.diag(numbers(model.transformer.ln_f.weight))


def llama_head(model, layer, head):
    block, size = model.model.layers[layer], model.config.head_dim
    group = head // (model.config.num_attention_heads // model.config.num_key_value_heads)
    values = numbers(block.self_attn.v_proj.weight)[group * size : (group + 1) * size].T
    writes = numbers(block.self_attn.o_proj.weight)[:, head * size : (head + 1) * size].T
    before, last = (np.diag(numbers(norm.weight)) for norm in (block.input_layernorm, model.model.norm))
    return before @ values, writes, last


def gemma2_head(model, layer, head):
    block, eye = model.model.layers[layer], np.eye(model.config.hidden_size)
    values, writes, last = llama_head(model, layer, head)
    before = np.diag(numbers(block.input_layernorm.weight))
    values = (eye + before) @ np.linalg.solve(before, values)
    return values, writes @ (eye + np.diag(numbers(block.post_attention_layernorm.weight))), eye + last


FAMILIES = {
    "gpt2": (tiny_gpt2, gpt2_head, 3, 4),
    "llama": (tiny_llama, llama_head, 3, 6),
    "gemma2": (tiny_gemma2, gemma2_head, 3, 4),
}


def whole_score(values, writes, last, model, order=None):
    """From every token to every logit, and the eigenvalues of that."""
    embedding, unembedding = (
        numbers(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    unembedding = unembedding - unembedding.mean(0)
    if order is None:
        found = np.linalg.eigvals(embedding @ values @ writes @ last @ unembedding.T)
    else:  # the same but for zeros, and a hundred times as fast
        found = np.linalg.eigvals(writes @ last @ unembedding[order].T @ embedding @ values)
    return found.sum().real / np.abs(found).sum()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_head_equals_the_whole_matrix_of_tokens_by_tokens(name, fresh):
    make, head_of, num_layers, num_heads = FAMILIES[name]
    model = with_gains(make(seed=draw(fresh), vocab_size=71), fresh)
    got = copying_scores(loaded(model), draws=2)
    want = [whole_score(*head_of(model, i, h), model) for i in range(num_layers) for h in range(num_heads)]
    np.testing.assert_allclose(got.score, want, atol=1e-5)
    assert np.ptp(got.score) > 0.1 and (np.abs(got.score) <= 1).all()
    around = "before and after" if name == "gemma2" else "before"
    assert got.notes["folded"] == f"the norm {around} attention in 3 layers; the last norm"


def test_norms_that_are_forgotten_would_change_the_score(fresh):
    model = tiny_llama(seed=draw(fresh))
    plain = copying_scores(loaded(model), draws=2).score
    assert np.abs(copying_scores(loaded(with_gains(model, fresh)), draws=2).score - plain).max() > 1e-3


def test_chance_is_that_of_really_shuffled_vocabularies(fresh):
    """Head 0 writes into few directions, head 1 reads few: chance is wider for them than for the even heads 2 and 3."""
    model = with_gains(tiny_gpt2(seed=draw(fresh), n_layer=1), fresh)
    attention, steep = model.transformer.h[0].attn, 3.0 ** -torch.arange(9)
    with torch.no_grad():
        attention.c_proj.weight[:9] *= steep[:, None]
        attention.c_attn.weight[:, 2 * 36 + 9 : 2 * 36 + 18] *= steep
    got = copying_scores(loaded(model), draws=300)
    assert got.spread[:2].min() > 1.5 * got.spread[2:].max()
    rng = np.random.default_rng(draw(fresh))
    for head in range(3):
        parts = gpt2_head(model, 0, head)
        shuffled = [whole_score(*parts, model, rng.permutation(model.config.vocab_size)) for _ in range(100)]
        assert abs(np.mean(shuffled)) < 5 * np.std(shuffled) / 10
        assert np.sqrt(np.mean(np.square(shuffled))) == pytest.approx(got.spread[head], rel=0.35)  # five deviations
    np.testing.assert_allclose(got.z, got.score / got.spread)


def copier(fresh, sign=1.0):
    """A Llama whose head L1H2 writes what it reads, back by the same numbers; tokens are read as they are embedded."""
    model = tiny_llama(6, seed=draw(fresh))
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        here = slice(2 * 8, 3 * 8)
        attention.o_proj.weight[:, here] = sign * attention.v_proj.weight[here].T
    return model


def test_a_head_that_writes_what_it_reads_copies_and_its_opposite_does_the_opposite(fresh):
    got = copying_scores(loaded(copier(fresh)))
    assert got["L1H2"].score == pytest.approx(1, abs=1e-5) and got["L1H2"].z > 3
    assert got.top(1)[0] == got["L1H2"]
    assert copying_scores(loaded(copier(fresh, -1.0)))["L1H2"].score == pytest.approx(-1, abs=1e-5)


def test_where_no_token_meets_itself_nothing_is_copied(fresh):
    model = copier(fresh)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight[torch.randperm(len(model.lm_head.weight), generator=fresh)])
    got = copying_scores(loaded(model), draws=100)["L1H2"]
    assert abs(got.z) < 5 and abs(got.score) < 0.9


def test_a_decoder_beside_an_encoder_is_scored_by_its_own_heads_past_a_scaled_last_norm(fresh):
    got = copying_scores(loaded(with_gains(tiny_t5(seed=draw(fresh)), fresh)), draws=2)
    assert {head.stack for head in got.heads} == {"decoder"} and len(got.heads) == 12
    assert got.notes["folded"].endswith("the last norm")


def test_the_same_seed_gives_the_same_chance(fresh):
    lm = loaded(tiny_gpt2(seed=draw(fresh)))
    one, same, other = (copying_scores(lm, seed=seed) for seed in (1, 1, 2))
    assert (one.spread == same.spread).all() and not (one.spread == other.spread).any()
    assert (one.score == other.score).all()


def test_products_are_chunked_sums_over_the_vocabulary_and_eigenvalues_by_hand(fresh, monkeypatch):
    e, u = (torch.randn(23, 5, generator=fresh) for _ in range(2))
    monkeypatch.setattr("manyheads.circuits.writes.trace_share.CHUNK_TOKENS", 7)
    got = Products.of(e, u)
    a, b = ((each - each.mean(0)).double() for each in (e, u))
    for have, want in ((got.met, a.T @ b), (got.embedded, a.T @ a), (got.read, b.T @ b)):
        torch.testing.assert_close(have, want, atol=1e-4, rtol=1e-4)
    turned = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)  # i and -i
    each = torch.stack([torch.diag(torch.tensor([3.0, -1.0])).double(), turned, torch.zeros(2, 2).double()])
    np.testing.assert_allclose(eigenvalue_score(each), [0.5, 0, 0], atol=1e-12)


# -------------------------------------------------------------------------------------------------------------- norms


def test_a_norm_is_told_by_what_it_does(fresh):
    norm = nn.LayerNorm(13)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2, generator=fresh)
        norm.bias.normal_(generator=fresh)
    fold = fold_of(norm, 13)
    assert fold.centres
    np.testing.assert_allclose(fold.gain, numbers(norm.weight), atol=1e-4)
    matrix, x = torch.randn(3, 13, generator=fresh), torch.randn(13, generator=fresh)
    sd = x.std(correction=0)
    torch.testing.assert_close(
        fold.before(matrix.double()) @ x.double() / sd,
        matrix.double() @ (norm(x) - norm.bias).double(),
        atol=1e-3,
        rtol=1e-3,
    )
    torch.testing.assert_close(fold.after(x.double()) / sd, (norm(x) - norm.bias).double(), atol=1e-3, rtol=1e-3)
    assert not fold_of(nn.RMSNorm(13), 13).centres and fold_of(None, 13) is None
    assert fold_of(nn.Tanh(), 13) is None, "what bends numbers is not a norm"


# ------------------------------------------------------------------------------------------------------------- errors


def test_models_that_cannot_copy_too_few_draws_and_matrices_that_are_not_found_are_refused(fresh):
    message = r"BertModel .* has no causal self-attention: copying is about models that write"
    refuses(ModelError, message, copying_scores, loaded(tiny_bert(seed=draw(fresh))))
    message = r"GPT2Model .* has no unembedding: .* Load the model with its language-model head"
    refuses(ModelError, message, copying_scores, loaded(tiny_gpt2(GPT2Model, seed=draw(fresh))))
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "ffn_dim": 8, "vocab_size": 50}
    narrow = OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=10, max_position_embeddings=32)).eval()
    message = r"L0 reads 24 numbers and writes 24, but a token is embedded in 10: the steps between"
    refuses(ModelError, message, copying_scores, loaded(narrow))
    lm = loaded(tiny_gpt2(seed=draw(fresh)))
    refuses(StatisticError, r"draws=1: chance needs at least 2 draws", copying_scores, lm, draws=1)
    with pytest.raises(HeadError, match=r"there is no head L9H0 here: there are L0H0 to L2H3"):
        copying_scores(lm, draws=2)["L9H0"]
    model = tiny_llama(seed=draw(fresh))
    lm = loaded(model)
    lm.spec  # noqa: B018
    model.model.layers[1].self_attn.somewhere = model.model.layers[1].self_attn.v_proj
    del model.model.layers[1].self_attn.v_proj
    message = r"L1, module 'model\.layers\.1\.self_attn' .* keeps no value and output matrices"
    refuses(ModelError, message, copying_scores, lm)
