"""Composition from weights against products of whole matrices in NumPy, and against rotations that are drawn.

On texts, against a pass of the model in which plain hooks do the path patching by hand.
"""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.circuits import composition
from manyheads.circuits import virtual_weights as module
from manyheads.circuits.virtual_weights import Grams, gram_products
from manyheads.errors import HeadError, ModelError, StatisticError
from manyheads.lab import design
from tests.circuits.test_attribution import loaded
from tests.models.eager import draw
from tests.models.tiny import tiny_gpt2, tiny_llama, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TEXT = "the old cat sat on the table"
WIDTH = 48  # of the tiny Llama


def llama(fresh, num_kv_heads=3):
    model = tiny_llama(num_kv_heads, seed=draw(fresh))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.3 * torch.randn(weight.shape, generator=fresh))
    return mh.load(model, tokenizer=tiny_tokenizer())


def products(lm, layer, head):
    """W_OV and W_QK of a Llama's head as whole matrices, column convention, norms folded."""
    block = lm.model.model.layers[layer]
    attention, gain = block.self_attn, np.diag(block.input_layernorm.weight.detach().double().numpy())
    q, k, v, o = (getattr(attention, f"{part}_proj").weight.detach().double().numpy() for part in ("q", "k", "v", "o"))
    group = head // (len(q) // len(k))
    rows, shared = slice(8 * head, 8 * head + 8), slice(8 * group, 8 * group + 8)
    return o[:, rows] @ v[shared] @ gain, (q[rows] @ gain).T @ (k[shared] @ gain)


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_scores_are_those_of_the_whole_matrices(num_kv_heads, fresh):
    lm = llama(fresh, num_kv_heads)
    result = composition(lm)

    def score(a, b):
        return np.linalg.norm(a @ b) / np.linalg.norm(a) / np.linalg.norm(b)

    for writer, reader in (("L0H1", "L1H4"), ("L0H5", "L2H0"), ("L1H2", "L2H3")):
        a, b = mh.Head.parse(writer), mh.Head.parse(reader)
        wrote, _ = products(lm, a.layer, a.index)
        ov, qk = products(lm, b.layer, b.index)
        for kind, matrix in (("q", qk.T), ("k", qk), ("v", ov)):
            assert result.link(writer, reader, kind).score == pytest.approx(score(matrix, wrote), rel=1e-6)
    assert np.isnan(result.link("L1H0", "L1H2", "k").score) and np.isnan(result.link("L2H0", "L1H2", "k").score)


def test_strongest_pairs_of_one_head_are_those_that_it_reads_or_that_read_it(fresh):
    result = composition(llama(fresh))
    every = result.strongest(count=10_000)
    for name, one in (("writer", "L0H3"), ("reader", "L2H4")):
        chosen = result.strongest(count=10_000, **{name: one})
        assert chosen == tuple(link for link in every if str(getattr(link, name)) == one) and len(chosen) > 20
    (link,) = result.strongest("k", writer="L0H3", reader="L2H4")
    assert link == result.link("L0H3", "L2H4", "k")
    with pytest.raises(HeadError, match="'L1' should be one head"):
        result.strongest(writer="L1")


def test_centring_of_layer_norm_folds(fresh):
    lm = loaded("gpt2", fresh)
    result = composition(lm)
    centre = np.eye(36) - np.full((36, 36), 1 / 36)
    ov, qk = [], []
    for block in lm.model.transformer.h:
        gain = np.diag(block.ln_1.weight.detach().numpy()) @ centre
        q, k, v = np.split(block.attn.c_attn.weight.detach().numpy().T, 3)
        rows = slice(9, 18)
        out = block.attn.c_proj.weight.detach().numpy().T
        ov.append(centre @ out[:, rows] @ v[rows] @ gain)
        qk.append((q[rows] @ gain).T @ (k[rows] @ gain))
    expected = np.linalg.norm(qk[1] @ ov[0]) / np.linalg.norm(qk[1]) / np.linalg.norm(ov[0])
    assert result.link("L0H1", "L1H1", "k").score == pytest.approx(expected, rel=1e-9)
    assert result.chance == pytest.approx(35**-0.5) and "centring" in result.notes["folded"]


def test_gram_products_are_products_of_every_pair(fresh, monkeypatch):
    x, a = (torch.randn(3, 5, 29, generator=fresh, dtype=torch.float64) for _ in range(2))
    y, b = (torch.randn(4, 7, 29, generator=fresh, dtype=torch.float64) for _ in range(2))
    wide = [second.transpose(1, 2) @ first for first, second in ((x, a), (y, b))]
    expected = torch.einsum("iam,jbm->ijab", *wide).square().sum((2, 3))
    for cells in (1, 29 * 7 * 4, 1 << 20):  # a row of the Gram matrices at a time, some, all
        monkeypatch.setattr(module, "GRAM_CELLS", cells)
        readers = [Grams.of(x[:1], a[:1]), Grams.of(x[1:], a[1:])]
        torch.testing.assert_close(gram_products(readers, [Grams.of(y, b)]), expected)


def test_the_null_is_what_drawn_rotations_give(fresh):
    """Mean and deviation of the squared score over 4,000 Haar-random rotations of one of two matrices."""
    lm = llama(fresh)
    result, link = composition(lm), ("L0H3", "L2H4", "k")
    wrote, _ = products(lm, 0, 3)
    _, qk = products(lm, 2, 4)
    # A rotation acts on what A writes alone: 8 of its 48 columns are enough.
    values = np.linalg.svd(wrote, compute_uv=False)
    q, r = torch.linalg.qr(torch.randn(4_000, WIDTH, 8, generator=fresh, dtype=torch.float64))
    rotated = (q * r.diagonal(dim1=1, dim2=2).sign()[:, None]).numpy() * values[:8]
    squares = (np.linalg.norm(qk @ rotated, axis=(1, 2)) / np.linalg.norm(qk) / np.linalg.norm(wrote)) ** 2
    assert squares.mean() == pytest.approx(1 / WIDTH, rel=0.02)
    assert result.chance**2 == pytest.approx(1 / WIDTH)
    deviation = (result.link(*link).score ** 2 - 1 / WIDTH) / result.link(*link).z
    assert squares.std() == pytest.approx(deviation, rel=0.08)


def test_random_weights_lie_around_chance(fresh):
    result = composition(mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer()))
    for kind in "qkv":
        z = result.z[kind][~np.isnan(result.z[kind])]
        assert len(z) == 3 * 16 and abs(z.mean()) < 1.5 and z.std() < 3 and np.abs(z).max() < 10


@pytest.mark.parametrize("seed", range(20))
def test_the_induction_pair_stands_out_among_random_heads_and_noise(seed):
    layers = [[None] * 3 for _ in range(2)]
    a, b = seed % 3, seed * 7 % 3
    layers[0][a], layers[1][b] = design.previous(), design.induction()
    result = composition(design.build(layers, causal=True, noise=0.5, seed=seed, max_positions=64, tokenizer=TOKENIZER))
    best = result.strongest(count=1)[0]
    assert (str(best.writer), str(best.reader), best.kind) == (f"L0H{a}", f"L1H{b}", "k")
    assert best.z > 5 > max(link.z for link in result.strongest(count=2)[1:])


# ------------------------------------------------------------------------------------------------------------ on texts


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_measured_on_texts_is_path_patching_by_hand(kind, fresh):
    lm = loaded("llama", fresh)
    model = lm.model.set_attn_implementation("eager") or lm.model
    writer, reader, at = 4, 1, lm.model.model.layers[1]
    result = composition(lm, [TEXT, "a dog"], writers=f"L0H{writer}", readers=f"L1H{reader}")
    changes = []
    for text in (TEXT, "a dog"):
        ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        kept = {}
        first = model.model.layers[0].self_attn.o_proj
        handles = [
            first.register_forward_hook(lambda m, a, o, kept=kept: kept.update(wrote=a[0])),
            at.input_layernorm.register_forward_hook(lambda m, a, o, kept=kept: kept.update(stream=a[0])),
        ]
        with torch.no_grad():
            before = model(**ids, output_attentions=True)
        for handle in handles:
            handle.remove()
        columns = slice(8 * writer, 8 * writer + 8)
        without = kept["stream"] - kept["wrote"][..., columns] @ first.weight.T[columns]
        projection = getattr(at.self_attn, f"{kind}_proj")
        values = []
        with torch.no_grad():
            changed = at.input_layernorm(without)
            if kind != "v":
                handle = projection.register_forward_pre_hook(lambda m, a, changed=changed: (changed,))
                after = model(**ids, output_attentions=True)
                handle.remove()
                moved = 0.5 * (after.attentions[1][0, reader] - before.attentions[1][0, reader]).abs().sum(-1)
                changes.append(float(moved.mean()))
            else:
                group = slice(8 * (reader // 2), 8 * (reader // 2) + 8)
                weights = before.attentions[1][0, reader]
                rows = at.self_attn.o_proj.weight.T[8 * reader : 8 * reader + 8]
                for x in (at.input_layernorm(kept["stream"]), changed):
                    values.append(weights @ projection(x)[0, :, group] @ rows)
                changes.append(float((values[1] - values[0]).norm() / values[0].norm()))
    place = result.heads.index(mh.Head("", 1, reader)), result.heads.index(mh.Head("", 0, writer))
    assert result.measured[kind][place] == pytest.approx(np.mean(changes), abs=1e-5)
    assert np.mean(changes) > 0.001
    known = ~np.isnan(result.measured[kind])
    assert known.sum() == 1


def test_the_designed_pair_loses_its_map_without_the_head_that_it_reads():
    lm = design.build([[design.previous(), None], [None, design.induction()]], causal=True, max_positions=64)
    result = composition(lm, "one two three four one two three four one", readers="L1H1")
    frame = result.to_pandas().dropna().set_index(["writer", "kind"])["measured"]
    assert frame["L0H0", "k"] > 0.4 and frame["L0H0", "q"] < 1e-6 and frame["L0H1"].max() < 1e-6


def test_all_families_of_streams_have_pairs_where_they_can_be(fresh):
    lm = loaded("t5", fresh)
    result = composition(lm, writers=None)
    assert not np.isnan(result.link("encoder:L2H1", "cross:L0H2", "k").z)
    assert np.isnan(result.link("encoder:L2H1", "cross:L0H2", "q").z)
    assert np.isnan(result.link("encoder:L2H1", "decoder:L1H2", "k").z)
    assert not np.isnan(result.link("decoder:L0H1", "cross:L0H2", "q").z)
    assert np.isnan(result.link("decoder:L0H1", "cross:L0H2", "v").z)


@pytest.mark.parametrize(
    ("name", "words"), [("gemma2", "after them"), ("qwen3", "query and key"), ("bert", "post-norm")]
)
def test_what_folds_and_what_does_not_is_said(name, words, fresh):
    notes = composition(loaded(name, fresh)).notes
    assert words in notes["folded"] + notes["not folded"] and "scale" in notes["not folded"]
    assert "distance 0" in notes["positions"]


def test_a_table_has_a_row_for_each_pair_that_can_be(fresh):
    result = composition(llama(fresh))
    frame = result.to_pandas()
    assert len(frame) == 3 * 3 * 36 and list(frame) == ["writer", "reader", "kind", "score", "z"]
    links = result.strongest("v", 7)
    assert [link.z for link in links] == sorted(frame.loc[frame["kind"] == "v", "z"], reverse=True)[:7]
    assert "furthest above chance: L" in str(result)


def test_what_cannot_be_asked(fresh, minilm):
    lm = llama(fresh)
    with pytest.raises(StatisticError, match="kind='o' is not a composition: use one of q, k, v"):
        composition(lm).strongest("o")
    with pytest.raises(HeadError, match="give texts, or leave them out"):
        composition(lm, writers="L0")
    with pytest.raises(HeadError, match="should be one head each"):
        composition(lm).link("L0", "L1H1", "k")
    with pytest.raises(ModelError, match="a str is not a loaded model"):
        composition("minilm")
