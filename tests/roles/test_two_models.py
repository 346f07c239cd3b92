"""Claims about two models: maps, differences and labels are what each model alone gives, and a model with itself none.

How far apart maps are comes from the models' own eager maps, text by text, in NumPy.
"""

import copy
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.corpora import gold_corpus, page_texts
from manyheads.errors import HeadError, ModelError, StatisticError, TextError
from manyheads.roles.compare import head_families
from manyheads.statistics import DEFAULT, Sums
from manyheads.statistics.sums.sums import paired_interval
from tests.models.eager import MAKERS, draw, eager_maps
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_t5, tiny_tokenizer
from tests.refusals import refuses

TEXTS = [
    "the old cat sat on the table and the dog said why is the cat here",
    "seven birds sat near the river",
    "why is the old dog here",
]
FEW = ("entropy", "distance", "duplicate_mass")
LEAST_KEYS = 2


def pair(name, fresh, **how):
    """Two tiny models of one shape with other weights, and one tokenizer."""
    tokenizer = tiny_tokenizer(special_tokens=name == "bert")
    models = (MAKERS[name](seed=draw(fresh), **how) for _ in range(2))
    return tuple(mh.load(model, tokenizer=tokenizer, name=label) for model, label in zip(models, "ab", strict=True))


def apart(p, q, sees):
    """By the definition, in nats: the mean over rows of the mean divergence of both from their mean; [h]."""
    p, q = (np.concatenate([x, np.clip(1 - x.sum(-1, keepdims=True), 0, None)], -1) for x in (p, q))
    middle = (p + q) / 2

    def from_middle(x):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(x > 0, x * np.log(x / middle), 0.0).sum(-1)

    return ((from_middle(p) + from_middle(q)) / 2)[:, sees.sum(-1) >= LEAST_KEYS]


@pytest.mark.parametrize(
    "name", ["bert", "gemma2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama", "gpt_oss"))]
)
def test_how_far_apart_maps_are_is_what_eager_maps_say(name, fresh):
    """Whole maps, causal ones, windows, and rows that sum to less than 1, over every row of all texts."""
    a, b = pair(name, fresh)
    found = mh.compare(a, b, TEXTS, FEW, labels=False)
    rows = []
    for text in TEXTS:
        inputs = dict(a.tokenizer(text, return_tensors="pt", return_token_type_ids=False))
        maps = [[one[0].double().numpy() for one in eager_maps(lm.model, **inputs)] for lm in (a, b)]
        count = inputs["input_ids"].shape[1]
        row, key = np.arange(count)[:, None], np.arange(count)
        layers = []
        for layer, (p, q) in enumerate(zip(*maps, strict=True)):
            sees = np.ones((count, count), dtype=bool) if name == "bert" else key <= row
            config: Any = a.model.config
            if name in ("gemma2", "gpt_oss") and config.layer_types[layer] == "sliding_attention":
                sees = sees & (key > row - config.sliding_window)
            assert (p[:, ~sees] == 0).all(), "the oracle has the mask right"
            layers.append(apart(p, q, sees))
        rows.append(layers)
    want = np.concatenate([np.concatenate(layer, -1).mean(-1) for layer in zip(*rows, strict=True)])
    assert found.moved.max() > 0.01 and found.num_texts == len(TEXTS)
    np.testing.assert_allclose(found.moved, want, atol=2e-5)
    assert np.isnan(found.moved_low).all(), "three texts have no interval"
    drawn = mh.compare(a, b, TEXTS, FEW, labels=False, rows=3)
    assert drawn.num_rows == 9 and (drawn.moved <= np.log(2)).all() and drawn.notes["rows"].startswith("at most 3 rows")


@pytest.mark.slow
def test_heads_between_two_texts_are_compared_too_and_have_no_label(fresh):
    """An encoder-decoder that reads a text and writes the same: cross-attention's own maps, all rows of both texts."""
    a, b = (mh.load(tiny_t5(seed=draw(fresh)), tokenizer=tiny_tokenizer(), name=name) for name in "ab")
    found = mh.compare(a, b, TEXTS[1:], ["entropy"])
    rows = []
    for text in TEXTS[1:]:
        ids = a.tokenizer(text, return_tensors="pt").input_ids
        maps = []
        for lm in (a, b):
            lm.model.set_attn_implementation("eager")
            written = lm.model._shift_right(ids)
            with torch.no_grad():
                read = lm.model(input_ids=ids, decoder_input_ids=written, output_attentions=True).cross_attentions
            maps.append([one[0].double().numpy() for one in read])
        sees = np.ones((ids.shape[1], ids.shape[1]), dtype=bool)
        rows.append([apart(p, q, sees) for p, q in zip(*maps, strict=True)])
    want = np.concatenate([np.concatenate(layer, -1).mean(-1) for layer in zip(*rows, strict=True)])
    cross = [index for index, head in enumerate(found.heads) if head.stack == "cross"]
    np.testing.assert_allclose(found.moved[cross], want, atol=2e-5)
    frame = found.to_pandas().set_index("stack")
    assert (
        frame.loc["cross", "label_after"].isna().all() and (frame.loc["encoder", "label_after"] == "unlabelled").all()
    )
    assert len(found.labels) + len(cross) == len(found.heads) and not found.relabelled
    assert mh.compare(a, a, TEXTS[1:], ["entropy"]).summary == "no head differs"


def test_differences_are_those_of_the_two_tables(fresh):
    a, b = pair("gpt2", fresh)
    found = mh.compare(a, b, TEXTS, [*FEW, "sink_*"], labels=False)
    before = mh.measure(a, TEXTS, list(found.statistics))
    after = mh.measure(b, TEXTS, list(found.statistics), sinks=before.sinks)
    assert found.statistics[:4] == (*FEW, "sink_mass") and "sink_mass.uniform" in found.statistics
    frame = found.to_pandas().set_index("head")
    for name in found.statistics:
        np.testing.assert_array_equal(found.difference(name), after.column(name) - before.column(name))
        low, high = found.interval(name)
        known = np.isfinite(low)
        assert (low[known] <= high[known]).all()
        np.testing.assert_array_equal(frame[f"{name} difference"], found.difference(name))
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    (row,) = (row for row in data["heads"] if row["head"] == "L1H2")
    assert row["differences"]["entropy"]["difference"] == pytest.approx(
        after["L1H2", "entropy"] - before["L1H2", "entropy"]
    )
    assert row["moved"] == pytest.approx(found.moved[found.head_place("L1H2")]) and "label_before" in row
    assert [head.head for head in found.changed] == [found.heads[index] for index in np.argsort(-found.moved)]
    assert f"heads differ: {found.changed[0].head} " in str(found)
    with pytest.raises(HeadError, match="no head L9H0 here: L0H0 to L2H3 were compared"):
        found["L9H0"]
    refuses(StatisticError, "this table has no 'self_mass'", found.interval, "self_mass")


def test_the_interval_of_a_difference_pairs_the_texts():
    """Texts unlike each other, by which both models change alike: resampled together the difference does not vary."""
    texts, heads = 40, 3
    values = torch.linspace(0, 9, texts, dtype=torch.float64)[:, None, None].expand(-1, heads, 1)
    ones, seeds = torch.ones(texts, heads, 1, dtype=torch.float64), list(range(100, 100 + texts))
    before, after = Sums.of(values, ones, seeds, 0), Sums.of(values + 0.25, ones, seeds, 0)
    low, high = paired_interval(before, after)
    np.testing.assert_allclose((low, high), 0.25, atol=1e-12)
    alone_low, alone_high = before.interval()
    assert (alone_high - alone_low > 0.5).all()
    others = Sums.of(values + 0.25, ones, [seed + texts for seed in seeds], 0)  # as if they were other texts
    apart_low, apart_high = paired_interval(before, others)
    assert (apart_high - apart_low > 0.5).all()


def test_a_model_with_itself_or_a_copy_shows_nothing(fresh):
    a, _ = pair("llama", fresh)
    for other in (a, mh.load(copy.deepcopy(a.model), tokenizer=a.tokenizer, name="copy")):
        found = mh.compare(a, other, TEXTS, labels=other is a)
        assert found.changed == found.relabelled == () and found.num_clear == 0 and not found.differs.any()
        assert (found.moved == 0).all() and "no head differs; 3 texts" in str(found)
        assert found.to_dict()["summary"] == "no head differs"
        assert len(found.labels) == len(found.heads) * (other is a)


def test_one_text_has_no_interval_nor_have_three_and_the_largest_difference_is_named_all_the_same(fresh):
    a, b = pair("gpt2", fresh)
    found = mh.compare(a, b, [TEXTS[0], TEXTS[0]], FEW, labels=False)
    assert found.num_texts == 1 and found.num_clear == 0 and np.isnan(found.moved_low).all()
    assert found["L0H0"].moved_low is found["L0H0"].differences[0].low is None
    assert found["L0H0"].moved is not None
    for result in (found, mh.compare(a, b, TEXTS, FEW, labels=False)):
        largest = result.largest("L0H0")
        assert largest is not None and largest.low is None and largest in result["L0H0"].differences
    assert isinstance(found.to_pandas(), pd.DataFrame)


def swapped(lm, layer, one, other):
    """The same function with two heads of a BERT's layer in each other's place."""
    model = copy.deepcopy(lm.model)
    attention = model.encoder.layer[layer].attention
    width = attention.self.attention_head_size
    order = torch.arange(attention.self.all_head_size).view(-1, width)
    order[[one, other]] = order[[other, one]]
    with torch.no_grad():
        for part in (attention.self.query, attention.self.key, attention.self.value):
            part.weight.copy_(part.weight[order.flatten()])
            part.bias.copy_(part.bias[order.flatten()])
        out = attention.output.dense.weight
        out.copy_(out[:, order.flatten()])
    return mh.load(model, tokenizer=lm.tokenizer, name="swapped")


@pytest.mark.parametrize("step", [40, pytest.param(4, marks=pytest.mark.slow)])
def test_two_heads_in_each_others_place_are_the_only_ones_that_differ(step, minilm):
    """They are as far apart as families say; other layers compute the same, but for rounding; labels go with them."""
    texts = page_texts()[::step]
    found = mh.compare(minilm, swapped(minilm, 0, 2, 5), texts, labels=step == 4)
    assert {str(head.head) for head in found.changed} == {"L0H2", "L0H5"} and len(found.statistics) == len(DEFAULT)
    families = head_families(minilm, texts, rows=1_000)
    assert found["L0H2"].moved == pytest.approx(families["L0H2", "L0H5"], abs=1e-6)
    assert found["L0H5"].moved == pytest.approx(found["L0H2"].moved, abs=1e-6)
    one, other = found["L0H2"], found["L0H5"]
    assert (one.label_before, one.label_after) == (other.label_after, other.label_before)
    most = found.largest("L0H2")
    assert most is not None and most.statistic == "previous_mass" and (most.difference or 0) < -0.5 and most.is_clear
    if step == 4:  # texts enough for labels
        assert one.label_before == "previous token" and len(found.relabelled) == 2
        assert "2 of 72 heads differ, 2 labels changed: L0H2 0.368 nats (previous_mass -0.699)" in str(found)


@pytest.mark.slow
def test_statistics_of_a_treebank_are_compared_by_name(minilm):
    other = swapped(minilm, 2, 8, 3)
    found = mh.compare(minilm, other, gold_corpus(), ["det.to_governor.given", "obj.*"], labels=False)
    assert {str(head.head) for head in found.changed} == {"L2H8", "L2H3"} and "obj.received" in found.statistics
    low, high = found.interval("det.to_governor.given")
    place = found.head_place("L2H8")
    assert found.difference("det.to_governor.given")[place] < -0.3 and low[place] <= high[place] < 0


def test_what_cannot_be_compared_is_told(fresh, minilm):
    a, b = pair("bert", fresh)
    with pytest.raises(ModelError, match="a has 2 layers of 5 heads, but minilm has 6 layers of 12 heads: give two"):
        mh.compare(a, minilm, TEXTS)
    refuses(ModelError, "a int is not a loaded model", mh.compare, a, 5, TEXTS)
    words = tiny_tokenizer(special_tokens=False)
    other = mh.load(b.model, tokenizer=words, name="b")
    told = (
        r"cut text 0 into different tokens \(a reads '\[CLS\]' 'the' 'old' 'cat' and b reads 'the' 'old' 'cat' 'sat'\)"
    )
    refuses(TextError, told, mh.compare, a, other, TEXTS)
    with pytest.raises(TextError, match="can be read once only, and comparing reads the texts three times"):
        mh.compare(a, b, iter(TEXTS))
    refuses(TextError, "rows=0: give how many rows of each text to compare", mh.compare, a, b, TEXTS, rows=0)
    with pytest.raises(StatisticError, match="'det.to_governor' is about syntax, these texts lack that annotation"):
        mh.compare(a, b, TEXTS, ["det.to_governor"])
    refuses(TextError, "text 1 is empty", mh.compare, a, b, [TEXTS[0], " "])
    short = mh.load(tiny_gpt2(n_positions=8), tokenizer=words, name="short")
    long = mh.load(tiny_gpt2(n_positions=64), tokenizer=words, name="long")
    message = "short has 8 positions and long 64, so they read long texts in different pieces"
    refuses(TextError, message, mh.compare, short, long, TEXTS)


def test_folders_are_loaded(fresh, tmp_path):
    """Two checkpoints of one training, as the training saved them."""
    tokenizer = tiny_tokenizer()
    model = tiny_bert(seed=draw(fresh))
    for step in (1, 2):
        model.save_pretrained(tmp_path / f"step-{step}")
        tokenizer.save_pretrained(tmp_path / f"step-{step}")
        with torch.no_grad():
            model.encoder.layer[1].attention.self.query.weight.mul_(-1)
    found = mh.compare(tmp_path / "step-1", str(tmp_path / "step-2"), TEXTS, FEW, labels=False)
    assert {head.head.layer for head in found.changed} == {1} and len(found.changed) == 5


def test_model_under_an_edit_is_compared_as_under_a_hook_of_ones_own(fresh):
    a, _ = pair("gpt2", fresh)
    b = mh.load(copy.deepcopy(a.model), tokenizer=a.tokenizer, name="b")
    with mh.applied(b, mh.Edit("L0H2", lambda output: 0.3 * output)):
        found = mh.compare(a, b, TEXTS, FEW, labels=False)
    width = b.spec.sites[0].v_dim

    def third(module, args):
        out = args[0].clone()
        out[..., 2 * width : 3 * width] *= 0.3
        return (out,)

    with b.model.get_submodule(b.spec.sites[0].module).c_proj.register_forward_pre_hook(third):
        by_hand = mh.compare(a, b, TEXTS, FEW, labels=False)
    pd.testing.assert_frame_equal(found.to_pandas(), by_hand.to_pandas(), atol=1e-5, rtol=1e-4)
    assert {head.head.layer for head in found.changed} == {1, 2}, "its own layer's maps are before the edit"
    assert not mh.compare(a, b, TEXTS, FEW, labels=False).changed
