"""Claims about distances between heads. The oracle: the model's own eager maps, in NumPy, sum p ln(p / m)."""

import json
from math import log

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError
from manyheads.roles import head_families
from manyheads.roles.compare import rows as sampledrows
from manyheads.roles.compare.rows import pair_divergences, row_divergences
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw, implementation
from tests.models.tiny import tiny_llama, tiny_tokenizer

ALL = 1_000  # rows of a text: none has so many
SAME = 2e-5  # nats: eager maps are float32, and those of large scores are coarse


def rows_that_see_two(weights):
    """[h, q, k] of all heads: rows in which every head sees at least two keys. (Weights of tiny models are never 0.)"""
    return ((weights > 0).sum(-1) > 1).all(0)


def by_hand(maps):
    """Every pair's divergences, summed over rows, and how many rows; what a row lacks to 1 is a key of its own."""
    weights = np.concatenate([m.double().numpy()[0] for m in maps])
    weights = weights[:, rows_that_see_two(weights)]
    rest = np.maximum(1 - weights.sum(-1, keepdims=True), 0)
    p = np.concatenate([weights, np.where(rest > 1e-4, rest, 0)], -1)
    out = np.zeros((len(p), len(p)))
    for i, first in enumerate(p):
        for j, second in enumerate(p):
            middle = (first + second) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = [np.where(x > 0, x * np.log(x / middle), 0).sum() for x in (first, second)]
            out[i, j] = sum(terms) / 2
    return out, p.shape[1]


def eager_maps_of(lm, text, field="attentions"):
    ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)["input_ids"]
    inputs = {"input_ids": ids}
    if lm.model.config.is_encoder_decoder:
        start = torch.full((1, 1), lm.model.config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat([start, ids[:, :-1]], 1)
    with implementation(lm.model, "eager"), torch.no_grad():
        return lm.model(**inputs, output_attentions=True)[field]


def assert_as_by_hand(lm, texts, field="attentions", **asked):
    found = head_families(lm, list(texts), rows=ALL, **asked)
    sums, rows = zip(*(by_hand(eager_maps_of(lm, text, field)) for text in texts), strict=True)
    assert found.num_rows == sum(rows) > 20
    want = sum(sums) / sum(rows)
    assert np.abs(found.divergences - want).max() < SAME < want.max() / 100
    assert np.abs(found.distances**2 - want).max() < SAME
    sites = {head.layer: [at for at, h in enumerate(found.heads) if h.layer == head.layer] for head in found.heads}
    for layer, members in zip(found.diversity, sites.values(), strict=True):
        pairs = want[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        assert layer.num_heads == len(members) and abs(layer.value - pairs.mean() / log(2)) < SAME / log(2)
    return found


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss"])
def test_divergences_and_diversity_are_those_of_the_models_own_maps(name, fresh):
    """Padded batches, causal maps, windows, softcaps, shared keys; sinks, whose mass is a key of its own."""
    found = assert_as_by_hand(loaded(name, draw(fresh)), TEXTS)
    assert np.array_equal(found.divergences, found.divergences.T) and not found.divergences.diagonal().any()
    assert found.divergences.min() >= 0 and found.divergences.max() <= log(2)
    sides = found.distances[:, :, None] <= found.distances[:, None] + found.distances[None] + 1e-9
    assert sides.all(), "roots obey the triangle inequality"


@pytest.mark.parametrize(
    ("stack", "field"),
    [("encoder", "encoder_attentions"), ("decoder", "decoder_attentions"), ("cross", "cross_attentions")],
)
def test_each_stack_of_an_encoder_decoder_is_compared_by_itself(stack, field, fresh):
    lm = loaded("t5", draw(fresh))
    found = assert_as_by_hand(lm, TEXTS, field, stack=stack)
    assert {head.stack for head in found.heads} == {stack}


def test_a_model_of_several_stacks_is_asked_for_one(fresh):
    lm = loaded("t5", 0)
    with pytest.raises(HeadError, match=r"several stacks, .* stack= one of 'encoder'"):
        head_families(lm, TEXTS[0])
    with pytest.raises(HeadError, match="has no stack 'vision'"):
        head_families(lm, TEXTS[0], stack="vision")


def test_row_divergences_are_the_same_formula_and_exactly_0_for_equal_rows(fresh):
    p, q = (torch.rand(3, 5, 11, generator=fresh, dtype=torch.float64).pow(6) for _ in range(2))
    p[torch.rand(p.shape, generator=fresh) < 0.3] = 0
    q[torch.rand(q.shape, generator=fresh) < 0.3] = 0
    p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    assert not row_divergences(p, p.clone()).any()
    got = row_divergences(p, q)
    for head in range(3):
        pairs = pair_divergences(torch.stack([p[head], q[head]]))
        assert abs(float(pairs[0, 1] - got[head].sum())) < 1e-12
    apart = torch.eye(2, dtype=torch.float64)[:, None]
    assert float(pair_divergences(apart)[0, 1]) == pytest.approx(log(2), abs=1e-15)


def test_order_is_nothing_and_a_text_given_twice_counts_twice(fresh):
    lm, few = loaded("gpt2", draw(fresh)), list(TEXTS)
    found = head_families(lm, few, rows=5)
    again = head_families(lm, few[::-1], rows=5)
    assert np.abs(found.divergences - again.divergences).max() < 1e-6
    assert [each.heads for each in found.families] == [each.heads for each in again.families]
    assert [each.value for each in again.diversity] == pytest.approx([each.value for each in found.diversity], abs=1e-6)
    first, rest = head_families(lm, few[0], rows=5), head_families(lm, few[1:], rows=5)
    twice = head_families(lm, [few[0], *few], rows=5)
    want = 2 * first.num_rows * first.divergences + rest.num_rows * rest.divergences
    assert twice.num_rows == 2 * first.num_rows + rest.num_rows
    assert np.abs(twice.divergences - want / twice.num_rows).max() < 1e-6


def test_rows_are_drawn_by_a_texts_own_words_and_said(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = head_families(lm, list(TEXTS), rows=3)
    assert found.num_rows == 12 and found.because.startswith(
        "12 rows: at most 3 rows of each text (as asked), drawn by"
    )
    alone = [head_families(lm, text, rows=3).divergences for text in TEXTS]
    assert np.abs(np.mean(alone, 0) - found.divergences).max() < 1e-6, "no text's rows hang on the other texts"
    every = head_families(lm, list(TEXTS))
    assert every.num_rows == sum(len(lm.tokenizer(text)["input_ids"]) - 1 for text in TEXTS), "row 0 sees one key"
    assert "16, or more where that makes fewer than 2,048 in all" in every.because
    assert np.abs(every.divergences - found.divergences).max() > 1e-3


def test_blocks_of_rows_and_long_texts_in_windows_change_nothing(fresh, monkeypatch):
    lm = loaded("llama", draw(fresh))
    text = " ".join(TEXTS * 5)  # 235 words in 80 positions
    found = head_families(lm, text, rows=20)
    assert "read in" in found.because and "windows of 80" in found.because and found.num_texts > 2
    monkeypatch.setattr(sampledrows, "BLOCK_CELLS", 500)
    blocks = head_families(lm, text, rows=20)
    assert np.abs(found.divergences - blocks.divergences).max() < 1e-12


@pytest.mark.parametrize("step", [mh.Average("L1"), pytest.param(mh.Copy("L1", source="L1H2"), marks=pytest.mark.slow)])
def test_heads_made_the_same_have_no_diversity_and_earlier_layers_are_as_they_were(step, fresh):
    lm = loaded("gpt2", draw(fresh))
    before = head_families(lm, list(TEXTS))
    with mh.applied(lm, step):
        now = head_families(lm, list(TEXTS))
    assert now.diversity[1].value < 1e-9 < before.diversity[1].value
    assert now.diversity[0] == before.diversity[0]
    assert abs(now.diversity[2].value - before.diversity[2].value) > 1e-6
    assert "weights as the plan around it shares them in L1" in now.because and "plan" not in before.because
    assert head_families(lm, list(TEXTS)).diversity == before.diversity
    with mh.applied(lm, mh.Ablate("L1H0")):
        silenced = head_families(lm, list(TEXTS))
    assert silenced.diversity[:2] == before.diversity[:2], "what a head says is not where it looks"


def test_averaged_heads_look_where_their_mean_looks(fresh):
    lm = loaded("bert", draw(fresh))
    weights = np.stack([mh.record(lm, TEXTS[0]).layers[0].weights()[h].double().numpy() for h in range(5)])
    with mh.applied(lm, mh.Average("L0H1-3")):
        now = head_families(lm, TEXTS[0], rows=ALL)
    weights[1:4] = weights[1:4].mean(0)
    want, rows = by_hand([torch.tensor(weights)[None]])
    assert np.abs(now.divergences[:5, :5] - want / rows).max() < SAME
    assert now["L0H1", "L0H3"] < 1e-12 < now["L0H1", "L0H0"]


def test_plans_for_single_samples_are_refused(fresh):
    lm = loaded("gpt2", 0)
    with mh.applied(lm, [mh.Plan(mh.Average("L1"))]), pytest.raises(StatisticError, match="apply one plan for all"):
        head_families(lm, TEXTS[0])


@pytest.mark.slow
def test_the_bundled_models_families_are_known(minilm):
    found = head_families(minilm, page_texts()[::20], rows=12)
    assert found.nearest("L1H1", 1)[0][0] == mh.Head("", 2, 9), "both look for the same token elsewhere"
    assert found.nearest("L2H9", 1)[0][0] == mh.Head("", 1, 1)
    assert found.family_of("L0H2").heads == (mh.Head("", 0, 2),), "the previous piece, and nothing else"
    sinks = {found.family_of(head).medoid for head in ("L4H5", "L3H4", "L2H7", "L4H2", "L3H3")}
    assert len(sinks) == 1
    assert all(0.1 < each.low < each.value < each.high < 0.5 for each in found.diversity)
    assert 0.2 < found.explained < 0.5
    with mh.applied(minilm, mh.Plan([mh.Average("L2")])):
        now = head_families(minilm, page_texts()[::20], rows=12)
    assert now.diversity[2].value < 1e-6 and now.diversity[:2] == found.diversity[:2]


def test_one_text_however_often_has_no_interval(fresh):
    lm = loaded("gpt2", draw(fresh))
    for texts in (TEXTS[0], [TEXTS[0]] * 3):
        assert all(each.low is None and each.high is None for each in head_families(lm, texts).diversity)
    several = head_families(lm, list(TEXTS)).diversity
    assert all(each.low <= each.value <= each.high and each.low < each.high for each in several)


def test_a_table_json_and_a_line_say_what_was_found(fresh, tmp_path):
    lm = loaded("gpt2", draw(fresh))
    found = head_families(lm, list(TEXTS), clusters=3)
    frame = found.to_pandas()
    assert len(frame) == 12 and set(frame["family"]) == {0, 1, 2} and frame["silhouette"].between(-1, 1).all()
    assert [len(family.heads) for family in found.families] == frame["family"].value_counts().tolist()
    near, apart = found.nearest("L2H1", 1)[0]
    row = frame[frame["head"] == "L2H1"].iloc[0]
    assert row["nearest"] == str(near) and row["nearest_divergence"] == apart == found["L2H1", near]
    found.save(tmp_path / "families.csv")
    assert (tmp_path / "families.csv").read_text().startswith("head,stack,layer,index,family")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["families"][0]["medoid"] in data["families"][0]["heads"] and len(data["diversity"]) == 3
    assert "12 heads in 3 families" in repr(found) and "3 families, as asked" in found.because
    with pytest.raises(FileAccessError, match="what kind of table"):
        found.save(tmp_path / "families.xyz")


def test_progress_ends_at_all_tokens(fresh):
    told = []
    head_families(loaded("gpt2", 0), list(TEXTS), progress=lambda done, of: told.append((done, of)))
    assert told and told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"rows": 0}, "rows=0: give how many rows"),
        ({"rows": True}, "rows=True"),
        ({"clusters": 0}, "clusters=0: give a number of families"),
        ({"clusters": 13}, "clusters=13 families of 12 heads"),
    ],
)
def test_numbers_that_cannot_be_are_refused(asked, match):
    with pytest.raises(StatisticError, match=match):
        head_families(loaded("gpt2", 0), TEXTS[0], **asked)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(ModelError, match="not a loaded model"):
        head_families("minilm", TEXTS[0])
    one = tiny_llama(1, num_attention_heads=1, num_hidden_layers=1)
    lm = mh.load(one, tokenizer=tiny_tokenizer(special_tokens=False))
    with pytest.raises(StatisticError, match="has one head here: there is nothing to compare"):
        head_families(lm, TEXTS[0])
    with pytest.raises(StatisticError, match="no row that sees two keys"):
        head_families(loaded("gpt2", 0), "cat")
    with pytest.raises(HeadError, match="there is no head L7H0 here: L0H0 to L2H3"):
        head_families(loaded("gpt2", 0), TEXTS[0]).nearest("L7H0")
