"""What a head writes, against NumPy from the models' own weights and plain hooks on their modules.

The oracles make whole matrices tokens x tokens where the library makes none, compose a token's vector from the model's
own modules by hand, and carry a head's output through the last norm with the scale that it had in that run.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

import manyheads as mh
from manyheads.circuits import logit_attribution
from manyheads.circuits.writes import SOURCES, Products, Ranks, TraceShare, Writes, centred_product, writes, writes_of
from manyheads.circuits.writes import from_weights as module
from manyheads.circuits.writes.vocabulary import token_vectors
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError, TextError
from tests.circuits.test_attribution import WITH_LOGITS, loaded
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

TEXT = "the old cat sat on the table"
DISTANCES = (1, 8, 24)


def with_gains(model, fresh):
    """Norms that do something, biases that are not zero, numbers in float64."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name.lower() or "ln_" in name or name.endswith("bias"):
                weight.add_(0.4 * torch.randn(weight.shape, generator=fresh))
    return mh.load(model.double(), tokenizer=tiny_tokenizer())


def numbers(tensor):
    return tensor.detach().double().numpy()


# Three families by hand: vectors of tokens by each source; a head's matrices as rows times matrices; the way to logits.


def llama(lm, layer, head):
    body, block = lm.model.model, lm.model.model.layers[layer]
    first, table = body.layers[0], body.embed_tokens.weight
    with torch.no_grad():
        token = table + first.mlp(first.post_attention_layernorm(table))
    size, attention, before = 8, block.self_attn, numbers(block.input_layernorm.weight)
    group = head // (6 // (len(attention.k_proj.weight) // size))
    rows, shared = slice(head * size, head * size + size), slice(group * size, group * size + size)
    q, k, v = (
        (numbers(projection.weight)[places] * before).T
        for projection, places in ((attention.q_proj, rows), (attention.k_proj, shared), (attention.v_proj, shared))
    )
    last = np.diag(numbers(body.norm.weight))
    return numbers(token), numbers(table), last, (q, k, v, numbers(attention.o_proj.weight)[:, rows].T), False


def gpt2(lm, layer, head):
    body, block = lm.model.transformer, lm.model.transformer.h[layer]
    table, first = body.wte.weight, body.h[0]
    with torch.no_grad():
        # The output projection of attention gives zeros, its bias included.
        token = table + first.mlp(first.ln_2(table))
    width, size = 36, 9
    centre, gain = np.eye(width) - 1 / width, np.diag(numbers(block.ln_1.weight))
    fused = numbers(block.attn.c_attn.weight)
    q, k, v = (
        centre @ gain @ fused[:, part * width + head * size : part * width + (head + 1) * size] for part in range(3)
    )
    o = numbers(block.attn.c_proj.weight)[head * size : (head + 1) * size]
    return numbers(token), numbers(table), centre @ np.diag(numbers(body.ln_f.weight)), (q, k, v, o), True


def gemma2(lm, layer, head):
    body, block = lm.model.model, lm.model.model.layers[layer]
    first, table = body.layers[0], body.embed_tokens.weight * lm.model.config.hidden_size**0.5
    with torch.no_grad():
        given = first.mlp(first.pre_feedforward_layernorm(table))
        token = table + first.post_feedforward_layernorm(given)
    attention, size = block.self_attn, lm.model.config.head_dim
    group = head // (lm.model.config.num_attention_heads // lm.model.config.num_key_value_heads)
    rows, shared = slice(head * size, head * size + size), slice(group * size, group * size + size)
    before = 1 + numbers(block.input_layernorm.weight)
    q, k, v = (
        (numbers(projection.weight)[places] * before).T
        for projection, places in ((attention.q_proj, rows), (attention.k_proj, shared), (attention.v_proj, shared))
    )
    o = numbers(attention.o_proj.weight)[:, rows].T * (1 + numbers(block.post_attention_layernorm.weight))
    return numbers(token), numbers(table), np.diag(1 + numbers(body.norm.weight)), (q, k, v, o), False


HAND = {"llama": (tiny_llama, llama), "gpt2": (tiny_gpt2, gpt2), "gemma2": (tiny_gemma2, gemma2)}


def by_hand(lm, family, layer, head):
    """Sources by name, of root mean square 1; the unembedding less its mean with the last norm; q, k, v, o."""
    token, table, last, matrices, centred = HAND[family][1](lm, layer, head)
    unembedding = numbers(lm.model.get_output_embeddings().weight)
    sources = {"token": token, "embedding": table, "prediction": unembedding @ last.T}
    for name, x in sources.items():
        x = x - x.mean(1, keepdims=True) if centred else x
        sources[name] = x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-30)  # padding's row may be zeros
    return sources, last @ (unembedding - unembedding.mean(0)).T, matrices


def trace_share(matrix):
    values = np.linalg.eigvals(matrix)
    return values.sum().real / np.abs(values).sum()


def turned(x, distance, theta=10_000.0):
    """Rotary positions by hand: the first half of a head's dimensions with the second."""
    half = x.shape[1] // 2
    angle = distance * theta ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 1)


@pytest.mark.thinned
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", HAND)
def test_copying_is_that_of_the_whole_matrix_of_tokens_by_tokens(family, source, fresh):
    lm = with_gains(HAND[family][0](seed=draw(fresh)), fresh)
    for layer, head in ((0, 1), (2, 3)):
        sources, to_logits, (_, _, v, o) = by_hand(lm, family, layer, head)
        got = mh.writes(lm, f"L{layer}H{head}", source=source)
        assert got.copying.value == pytest.approx(trace_share(sources[source] @ v @ o @ to_logits), abs=2e-5)
        assert 0 < got.copying.chance < 1


@pytest.mark.parametrize("family", HAND)
def test_matching_is_that_of_the_whole_matrix_of_queries_by_keys(family, fresh):
    lm = with_gains(HAND[family][0](seed=draw(fresh)), fresh)
    sources, _, (q, k, _, _) = by_hand(lm, family, 2, 1)
    centred = {name: x - x.mean(0) for name, x in sources.items()}
    got = writes(lm, "L2H1").matching
    for name, source in (("the same token", "token"), ("the token predicted", "prediction")):
        queries, keys = centred[source] @ q, centred["token"] @ k
        whole = [queries @ keys.T] if family == "gpt2" else [turned(queries, d) @ keys.T for d in DISTANCES]
        assert got[name].value == pytest.approx(np.mean([trace_share(x) for x in whole]), abs=2e-5)
    first = writes(lm, "L0H1")
    assert first.matching == {} and first.looks_for is None and "first layer" in first.notes["matching"]
    # It reads no token past a feed-forward: by default its words are embeddings.
    assert first.source == "embedding" and writes(lm, "L2H1").source == "token"
    assert first.copying == writes(lm, "L0H1", source="embedding").copying


def test_matching_at_another_distance_is_another_number(fresh):
    """Were the rotation left out, every distance would give the same."""
    lm = with_gains(tiny_llama(seed=draw(fresh)), fresh)
    sources, _, (q, k, _, _) = by_hand(lm, "llama", 1, 2)
    x = sources["token"] - sources["token"].mean(0)
    shares = [trace_share(turned(x @ q, d) @ (x @ k).T) for d in (0, *DISTANCES)]
    assert np.ptp(shares) > 1e-2


@pytest.mark.thinned
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("family", HAND)
def test_tables_and_ranks_are_those_of_the_weights(family, source, fresh):
    lm = with_gains(HAND[family][0](seed=draw(fresh)), fresh)
    sources, to_logits, (_, _, v, o) = by_hand(lm, family, 1, 2)
    logits = sources[source] @ v @ o @ to_logits
    got = writes(lm, "L1H2", source=source, tokens=["cat", 17])
    for token, name in ((lm.tokenizer("cat", add_special_tokens=False)["input_ids"][0], "cat"), (17, 17)):
        table = got.table(name) if name == "cat" else got.tables[1]
        order = np.argsort(-logits[token])
        for side, places in ((table.promoted, order[:8]), (table.suppressed, order[::-1][:8])):
            assert [word for word, _ in side] == [lm.tokenizer.decode([place]) for place in places]
            np.testing.assert_allclose([value for _, value in side], logits[token][places], rtol=1e-6, atol=1e-8)
    words = module.whole_words(lm, 400)
    assert {lm.tokenizer.decode([word]) for word in words} <= {*lm.tokenizer.get_vocab()} and len(words) > 20
    own = logits[words, words][:, None]
    high, low = (logits[words] > own).sum(1), (logits[words] < own).sum(1)
    assert got.ranks == Ranks(
        pytest.approx((high < 5).mean()), pytest.approx((low < 5).mean()), np.median(high), 5 / len(logits), len(words)
    )


def test_words_of_which_it_writes_most_are_the_tables_where_none_are_named(fresh):
    lm = with_gains(tiny_llama(seed=draw(fresh)), fresh)
    sources, _, (_, _, v, o) = by_hand(lm, "llama", 1, 2)
    last = numbers(lm.model.model.norm.weight)
    words = module.whole_words(lm, 400)
    order = np.argsort(-np.linalg.norm(sources["token"][words] @ v @ o * last, axis=1))[:5]
    assert [table.token for table in writes(lm, "L1H2").tables] == [lm.tokenizer.decode([i]) for i in words[order]]


def copier(fresh, sign):
    """A Llama whose head L1H2 writes what it reads of a token, in the directions that raise (or lower) its logit."""
    model = tiny_llama(6, seed=draw(fresh))
    attention, table = model.model.layers[1].self_attn, model.model.embed_tokens.weight
    first = model.model.layers[0]
    with torch.no_grad():
        model.lm_head.weight.copy_(table + first.mlp(first.post_attention_layernorm(table)))
        attention.o_proj.weight[:, 16:24] = sign * attention.v_proj.weight[16:24].T
    return mh.load(model, tokenizer=tiny_tokenizer())


def test_designed_head_copies_its_opposite_suppresses_and_a_dead_one_does_neither(fresh):
    got = writes(copier(fresh, 1.0), "L1H2")
    assert got.does == "promotes" and got.copying.value > 0.99 and got.ranks.copies > 5 * got.ranks.chance
    assert repr(got) == f"Writes(L1H2: promotes the token it looks at, copying {got.copying.value:+.2f})"
    lm = copier(fresh, -1.0)
    got = writes(lm, "L1H2")
    assert got.does == "suppresses" and got.copying.value < -0.99 and got.ranks.suppresses > 5 * got.ranks.chance
    with torch.no_grad():
        lm.model.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0
    dead = writes(lm, "L1H2")
    assert dead.does == "neither" and dead.copying.value == 0 and dead.ranks.copies == dead.ranks.suppresses == 0
    assert dead.ranks.median == pytest.approx((lm.spec.vocab_size - 1) / 2)


def test_changed_weights_are_read_anew_and_unchanged_ones_are_not(fresh, monkeypatch):
    lm = with_gains(tiny_llama(seed=draw(fresh)), fresh)
    calls = []
    monkeypatch.setattr(
        module, "token_vectors", lambda *how, **more: calls.append(how[2]) or token_vectors(*how, **more)
    )
    one = writes(lm, "L1H2")
    assert calls == ["token", "prediction"]
    again, other = writes(lm, "L1H2"), writes(lm, "L2H0")
    assert calls == ["token", "prediction"] and again.copying == one.copying != other.copying
    with torch.no_grad():
        lm.model.lm_head.weight.copy_(lm.model.lm_head.weight.roll(1, 0))
    assert writes(lm, "L1H2").copying != one.copying and len(calls) == 4


def test_all_heads_are_those_asked_one_by_one(fresh):
    lm = with_gains(tiny_gpt2(seed=draw(fresh)), fresh)
    every = writes_of(lm)
    assert tuple(every) == lm.spec.heads.heads
    for name in ("L0H0", "L2H3"):
        assert every[mh.Head.parse(name)].to_dict() == writes(lm, name).to_dict()
    assert {str(head) for head in writes_of(lm, "L1")} == {f"L1H{head}" for head in range(4)}


def test_products_are_those_of_centred_tables(fresh):
    e, u = torch.randn(23, 5, generator=fresh), torch.randn(23, 4, generator=fresh)
    got, (a, b) = Products.of(e, u), ((x - x.mean(0)).double() for x in (e, u))
    for have, want in ((got.met, a.T @ b), (got.embedded, a.T @ a), (got.read, b.T @ b)):
        torch.testing.assert_close(have, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(centred_product(e, u), a.T @ b, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------- other architectures


def test_embedding_of_another_width_is_read_through_its_projections(fresh):
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "ffn_dim": 8, "vocab_size": 101}
    config = OPTConfig(**sizes, word_embed_proj_dim=10, max_position_embeddings=32, do_layer_norm_before=True)
    lm = with_gains(OPTForCausalLM(config).eval(), fresh)
    body = lm.model.model.decoder
    first, block, centre = body.layers[0], body.layers[1], np.eye(24) - 1 / 24
    with torch.no_grad():
        x = body.project_in(body.embed_tokens.weight)
        token = x + first.fc2(torch.relu(first.fc1(first.final_layer_norm(x))))
    token = numbers(token) @ centre
    token /= np.sqrt((token**2).mean(1, keepdims=True))
    rows = slice(8, 16)
    values = (numbers(block.self_attn.v_proj.weight)[rows] * numbers(block.self_attn_layer_norm.weight)) @ centre
    written = numbers(block.self_attn.out_proj.weight)[:, rows]
    steps = numbers(body.project_out.weight)
    if body.final_layer_norm is not None:
        steps = steps @ np.diag(numbers(body.final_layer_norm.weight)) @ centre
    table = numbers(lm.model.lm_head.weight)
    whole = token @ values.T @ written.T @ steps.T @ (table - table.mean(0)).T
    got = writes(lm, "L1H1")
    assert got.copying.value == pytest.approx(trace_share(whole), abs=2e-5) and got.notes["read out"] == "by its logits"


def test_encoder_without_an_unembedding_is_read_out_by_its_embedding_table_and_says_so(fresh):
    lm = with_gains(tiny_bert(seed=draw(fresh)), fresh)
    block, first, width = lm.model.encoder.layer[1], lm.model.encoder.layer[0], lm.model.config.hidden_size
    words = lm.model.embeddings.word_embeddings.weight
    with torch.no_grad():
        x = lm.model.embeddings.LayerNorm(words + lm.model.embeddings.token_type_embeddings.weight[0])
        x = first.attention.output.LayerNorm(x)
        token = numbers(first.output.LayerNorm(x + first.output.dense(first.intermediate(x))))
    token /= np.sqrt((token**2).mean(1, keepdims=True))
    size = width // lm.model.config.num_attention_heads
    rows = slice(size, 2 * size)
    values = numbers(block.attention.self.value.weight)[rows]
    written = numbers(block.attention.output.dense.weight)[:, rows]
    table = numbers(words)
    logits = token @ values.T @ written.T @ (table - table.mean(0)).T
    got = writes(lm, "L1H1", tokens=[9])
    assert got.copying.value == pytest.approx(trace_share(logits), abs=2e-5)
    order = np.argsort(-logits[9])[:8]
    np.testing.assert_allclose([value for _, value in got.tables[0].promoted], logits[9][order], rtol=1e-6)
    assert got.notes["read out"] == "by the embedding table: the model has no unembedding"
    assert "the norms that the stream itself passes" in got.notes["left out"]
    rows = writes(lm, "L1H1", TEXT).positions
    assert len(rows) == len(lm.tokenizer(TEXT)["input_ids"])


def test_queries_that_are_changed_in_an_unknown_way_are_not_asked_what_they_match(fresh):
    got = writes(loaded("cohere", fresh), "L1H1")
    assert got.matching == {} and got.notes["matching"].endswith("in a way that is not known here")
    assert "looks for: not asked" in str(got)


def test_model_of_few_positions_is_read_but_not_asked_what_it_matches(fresh):
    got = writes(with_gains(tiny_gpt2(seed=draw(fresh), n_positions=12), fresh), "L1H1", "a dog")
    assert got.matching == {} and "could not read its input" in got.notes["matching"] and len(got.positions) > 1


# --------------------------------------------------------------------------------------------------------- on a text


def ids_by_name(lm):
    """Each token's number by its name, where no other token has that name."""
    names = [module.named(lm, index) for index in range(lm.spec.vocab_size)]
    return {name: index for index, name in enumerate(names) if names.count(name) == 1}


@pytest.mark.parametrize("family", WITH_LOGITS)
def test_what_is_promoted_on_a_text_is_direct_attribution(family, fresh):
    lm = loaded(family, fresh)
    head = "L1H1" if len(lm.spec.shape) == 1 else "decoder:L1H1"
    row = writes(lm, head, TEXT).positions[3]
    known = ids_by_name(lm)
    high, low = (next(pair for pair in side if pair[0] in known) for side in (row.promoted, row.suppressed))
    result = logit_attribution(lm, TEXT, (known[high[0]], known[low[0]]), 3)
    assert high[1] - low[1] == pytest.approx(result[head], rel=1e-9) and high[1] > low[1]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_rows_on_a_text_are_what_hooks_on_the_modules_give(family, fresh):
    lm = loaded(family, fresh)
    name, head = {"gpt2": ("transformer.h.1", 2)}.get(family, ("model.layers.1", 2))
    block, body = lm.model.get_submodule(name), lm.model.base_model
    attention = block.attn if family == "gpt2" else block.self_attn
    output = attention.c_proj if family == "gpt2" else attention.o_proj
    last = body.ln_f if family == "gpt2" else body.norm
    kept, num_heads = {}, lm.spec.sites[1].num_heads
    handles = [
        block.register_forward_pre_hook(lambda m, a: kept.update(before=a[0][0].clone())),
        output.register_forward_hook(lambda m, a, o: kept.update(z=a[0][0], gave=o[0])),
        last.register_forward_pre_hook(lambda m, a: kept.update(end=a[0][0].clone())),
    ]
    ids = lm.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        lm.model(**ids)
        z, layer = kept["z"].clone(), kept["gave"]
        size = z.shape[1] // num_heads
        z[:, : head * size], z[:, (head + 1) * size :] = 0, 0
        added = output(z) - (output.bias if family == "gpt2" else 0)
        if family == "gemma2":  # the norm after the branch, its scale that of the run
            norm = block.post_attention_layernorm
            scale = (1 + norm.weight) * (layer.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
            added, layer = added * scale, layer * scale
        end = kept["end"]
        if family == "gpt2":
            read = (added - added.mean(-1, keepdim=True)) / (end.var(-1, keepdim=True, correction=0) + last.eps).sqrt()
            read = read * last.weight
        else:
            eps = last.eps if family == "gemma2" else last.variance_epsilon
            gain = 1 + last.weight if family == "gemma2" else last.weight
            read = added * (end.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
        logits = read @ lm.model.lm_head.weight.T
        logits = logits - logits.mean(-1, keepdim=True)
    for handle in handles:
        handle.remove()
    got = writes(lm, f"L1H{head}", TEXT)
    assert len(got.positions) == len(ids["input_ids"][0])
    for place, row in enumerate(got.positions):
        length = float(added[place].norm())
        assert row.length == pytest.approx(length, rel=1e-9)
        assert row.of_layer == pytest.approx(length / float(layer[place].norm()), rel=1e-9)
        assert row.along == pytest.approx(float(added[place] @ layer[place] / layer[place].square().sum()), rel=1e-8)
        assert row.of_stream == pytest.approx(length / float(kept["before"][place].norm()), rel=1e-9)
        order = logits[place].argsort(descending=True)
        for side, places in ((row.promoted, order[:8]), (row.suppressed, order.flip(0)[:8])):
            assert [word for word, _ in side] == [module.named(lm, int(index)) for index in places]
            np.testing.assert_allclose([value for _, value in side], numbers(logits[place][places]), rtol=1e-8)
    assert list(got.strongest) == sorted(got.positions, key=lambda row: row.length)[::-1][:3]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "gemma2"])
def test_shares_along_the_layer_sum_to_one_with_the_bias(family, fresh):
    lm = loaded(family, fresh)
    rows = [writes(lm, str(head), TEXT).positions for head in lm.spec.sites[1].heads]
    sums = np.sum([[row.along for row in of_head] for of_head in rows], 0)
    if family in ("llama", "gemma2"):
        np.testing.assert_allclose(sums, 1, atol=1e-9)
    else:  # the rest is the output projection's bias
        assert np.abs(sums - 1).max() > 1e-6


def test_keys_that_gave_it_are_weights_times_values_along_the_output(fresh):
    lm = loaded("llama", fresh)
    rec = mh.record(lm, TEXT, keep=("q", "k", "v", "lse"))
    weights, values = rec.layers[1].weights(2).double(), rec.layers[1].v[0, lm.spec.sites[1].kv_head_of(2)].double()
    for place, row in enumerate(writes(lm, "L1H2", TEXT).positions):
        out = weights[place] @ values
        shares = weights[place] * (values @ out) / (out @ out)
        order = shares.abs().argsort(descending=True)[: min(3, place + 1)]
        assert [key.position for key in row.keys] == order.tolist()
        np.testing.assert_allclose([key.value for key in row.keys], numbers(shares[order]), rtol=1e-6)
        np.testing.assert_allclose([key.weight for key in row.keys], numbers(weights[place][order]), rtol=1e-6)


def test_directions_are_the_singular_values_of_centred_scores(fresh):
    lm = loaded("llama", fresh)
    texts = [TEXT, "why is the dog here ? the cat said no"]
    block, streams = lm.model.model.layers[1], []
    hook = block.register_forward_pre_hook(lambda m, a: streams.append(a[0][0, 1:].clone()))
    for text in texts:
        with torch.no_grad():
            lm.model(**lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False))
    hook.remove()
    x = numbers(torch.cat(streams))
    x = x / np.sqrt((x**2).mean(1, keepdims=True)) * numbers(block.input_layernorm.weight)
    site = lm.spec.sites[1]
    head, group, size = 2, site.kv_head_of(2), site.qk_dim
    q = x @ numbers(block.self_attn.q_proj.weight)[head * size : (head + 1) * size].T
    k = x @ numbers(block.self_attn.k_proj.weight)[group * size : (group + 1) * size].T
    scores = q @ k.T
    scores = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    left, sizes, right = np.linalg.svd(scores)
    got = writes(lm, f"L1H{head}", texts).directions
    np.testing.assert_allclose([row.share for row in got], (sizes**2 / (sizes**2).sum())[:3], rtol=1e-8)
    assert all(0 < row.chance < 1 for row in got)
    contexts = []
    for text in texts:
        names = [module.named(lm, index) for index in lm.tokenizer(text)["input_ids"]]
        contexts += [f"{''.join(names[max(0, i - 3) : i])}[{names[i]}]" for i in range(1, len(names))]
    # Queries of a pole and its keys lie on the same side; which side is first, nobody says.
    for rank, row in enumerate(got):
        ends = [
            tuple({contexts[i] for i in np.argsort(-sign * side)[:4]} for side in (left[:, rank], right[rank]))
            for sign in (1, -1)
        ]
        poles = [({*pole.queries}, {*pole.keys}) for pole in row.poles]
        assert poles in (ends, ends[::-1])


def test_queries_made_for_some_keys_stand_out_of_random_rotations(fresh):
    """Keys of head L1H3 are its queries: one direction is no more than others, but each query finds itself."""
    lm = loaded("llama, five heads", fresh)
    texts = ["the old cat sat on the table", "why is the dog here ? the cat said no", "a dog"]
    block = lm.model.model.layers[1].self_attn
    size = lm.spec.sites[1].qk_dim
    with torch.no_grad():  # what queries and keys read, one direction strong on both sides
        x = torch.randn(block.q_proj.weight.shape[1], generator=fresh, dtype=torch.float64)
        block.q_proj.weight[:size] = 0.02 * block.q_proj.weight[:size]
        block.q_proj.weight[0] += x
        block.k_proj.weight[:size] = 0.02 * block.k_proj.weight[:size]
        block.k_proj.weight[0] += x
    first = writes(lm, "L1H0", texts).directions[0]
    assert first.share > 0.9


def test_texts_of_few_tokens_have_no_directions(fresh):
    got = writes(loaded("llama", fresh), "L1H1", "a dog")
    assert got.directions == () and got.notes["directions"] == (
        "the texts have fewer than 8 tokens after their first: not asked"
    )


# ------------------------------------------------------------------------------------------------- results and errors


def test_result_is_a_table_a_document_a_page_and_lines(fresh, tmp_path):
    lm = loaded("llama", fresh)
    plain, on_text = writes(lm, "L1H2", tokens=["cat"]), writes(lm, "L1H2", [TEXT, "a dog"])
    assert isinstance(plain, Writes) and isinstance(plain.copying, TraceShare) and plain.positions == ()
    frame = plain.to_pandas()
    assert list(frame.columns) == ["looks_at", "does", "token", "value"] and len(frame) == 16
    assert on_text.to_pandas()["text"].tolist() == [row.text for row in on_text.positions]
    assert {*on_text.to_pandas()["text"]} == {0, 1}
    for result in (plain, on_text):
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
        assert "<table" in result._repr_html_() and str(result).startswith("L1H2 writes: it ")
    assert "at " in str(on_text) and "promotes" in str(on_text)
    on_text.save(tmp_path / "w.csv")
    assert list(pd.read_csv(tmp_path / "w.csv")["position"]) == [row.position for row in on_text.positions]
    refuses(FileAccessError, "what kind of table", plain.save, tmp_path / "w.txt")
    refuses(HeadError, "Writes is not iterated: its tables are", iter, plain)


def test_bad_input_is_refused_in_words(fresh):
    lm = loaded("llama", fresh)
    refuses(ModelError, "load", writes, lm.model, "L1H2")
    refuses(HeadError, "'L1' is .* heads: writes is about one; writes_of", writes, lm, "L1")
    refuses(HeadError, "L9H9", writes, lm, "L9H9")
    refuses(
        StatisticError,
        "source='words' stands for no token: use one of token, embedding",
        writes,
        lm,
        "L1H2",
        source="words",
    )
    refuses(TextError, r"the token 'the cat' has 2 tokens \(.*\), not one", writes, lm, "L1H2", tokens=["the cat"])
    refuses(TextError, "token 9999 is not a token: ids are 0 to", writes, lm, "L1H2", tokens=[9999])
    refuses(TextError, "token 1.5 is a float: give a word, a token's id.", writes, lm, "L1H2", tokens=[1.5])
    got = writes(lm, "L1H2", tokens=["cat"])
    refuses(
        TextError,
        r"there is no table for 'dog', only for 'cat': call writes\(\.\.\., tokens=\['dog'\]\)",
        got.table,
        "dog",
    )
    pair = loaded("t5", fresh)
    refuses(ModelError, "cross-attention, which reads the encoder's stream", writes, pair, "cross:L1H1")
    refuses(
        ModelError,
        "an encoder whose stream leads to no logits: ask for a head of the decoder",
        writes,
        pair,
        "encoder:L1H1",
    )
    refuses(
        ModelError,
        "reads pictures or sounds, so what its heads write is not a token",
        writes,
        loaded("vit", fresh),
        "L1H1",
    )
    attention = lm.model.model.layers[1].self_attn
    attention.elsewhere, attention.v_proj = attention.v_proj, torch.nn.Identity()
    message = r"layers\.1\.self_attn' .*, were not found as matrices by head, so what its heads write is not known from"
    refuses(ModelError, message, writes, lm, "L1H2")
    message = "the model has no unembedding, and its embedding table is 24 wide where the stream is 40"
    refuses(ModelError, message, writes, loaded("electra", fresh), "L1H1")


# ------------------------------------------------------------------------------------------------------- a real model


@pytest.mark.slow  # the vocabulary's first block and a text: ten seconds
def test_name_mover_and_suppressing_head_of_smollm2_are_found_as_such(smollm2):
    text = "When Mary and John went to the store, John gave a drink to"
    mover, negative, giver = (writes(smollm2, head, text) for head in ("L23H0", "L24H4", "L23H3"))
    assert (mover.does, negative.does, giver.does) == ("promotes", "suppresses", "suppresses")
    assert mover.copying.value > 0.9 and mover.copying.chance < 0.1 and mover.ranks.copies > 0.2
    assert negative.copying.value < -0.9 and negative.ranks.suppresses > 0.2
    assert negative.looks_for == "the token predicted" and negative.matching["the token predicted"].value > 0.7
    assert mover.positions[-1].keys[0].token == negative.positions[-1].keys[0].token == " Mary"
    assert " Mary" in {word for word, _ in negative.positions[-1].suppressed}
    assert " Mary" in {word for word, _ in mover.positions[-1].promoted}
    assert " John" in {word for word, _ in giver.positions[-1].suppressed}
    attributed = logit_attribution(smollm2, text, (" Mary", " John"))
    both = dict(negative.positions[-1].suppressed)
    assert both[" Mary"] < 0 > attributed["L24H4"]
