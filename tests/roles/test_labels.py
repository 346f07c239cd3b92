"""Claims about labels: what is known of minilm comes out, labels follow their heads, and chance gets none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.roles import MIN_QUERIES, RULES, SINK_RULE, HeadRole
from manyheads.roles import labels as page
from manyheads.roles.labels import label
from manyheads.roles.rules import CONTENT, MIN_LIFT_LOW, NEEDED
from manyheads.statistics import HeadTable, Sums, measure
from manyheads.statistics.corpus_run import chunks as inputs
from tests import seeds
from tests.models.tiny import tiny_bert, tiny_tokenizer

PURE_SINKS = {"L4H5", "L3H4", "L2H7", "L4H2", "L3H3"}


@pytest.fixture(scope="module")
def table(minilm, pytestconfig) -> HeadTable:
    """Of the whole page; `make test` reads every third of its texts, which is enough for what is asked below."""
    quick = pytestconfig.option.markexpr == "not slow"
    return measure(minilm, page_texts()[:: 3 if quick else 1], NEEDED, kinds=True)


@pytest.fixture(scope="module")
def roles(table) -> dict[str, HeadRole]:
    return {str(role.head): role for role in label(table)}


@pytest.mark.turns(4)
def test_the_known_heads_of_minilm_are_named(roles):
    assert roles["L0H2"].name == "previous token" and roles["L0H2"].evidence.score > 0.9
    assert roles["L1H8"].name == "next token" and roles["L1H8"].evidence.score > 0.6
    assert roles["L1H1"].name == roles["L2H9"].name == "duplicate token"
    assert roles["L3H11"].name == "punctuation"
    assert {head for head, role in roles.items() if role.name == "sink [CLS]"} >= PURE_SINKS
    assert "induction" not in {role.name for role in roles.values()}, "an encoder of this kind has none"


def test_the_sink_is_found_to_be_cls_and_no_label_hangs_on_sep(table, roles):
    assert table.sinks.names == ("[CLS]",) and not table.sinks.first
    assert not [role for role in roles.values() if "SEP" in role.name or "SEP" in role.evidence.words]
    used = {rule.statistic for rule in (*RULES, SINK_RULE)}
    assert "special_mass" not in used, "a rule on all special tokens would let [SEP] in"


@pytest.mark.slow  # a corpus, for one figure
def test_plain_and_norm_weighted_attention_to_the_sink_differ_as_known(minilm):
    both = measure(minilm, page_texts()[:60], ["sink_mass", "sink_norm_mass"])
    assert 0.3 < np.nanmean(both["sink_mass"]) < 0.5
    assert np.nanmean(both["sink_norm_mass"]) < 0.12


def test_every_label_has_evidence_that_carries_it(roles):
    for role in roles.values():
        found = role.evidence
        assert found.words and found.num_queries >= MIN_QUERIES
        if role.name not in ("unlabelled", "broad"):
            assert np.isnan(found.low) or found.low <= found.score <= found.high
            assert np.isnan(found.low) or found.low > MIN_LIFT_LOW * found.chance
    known = [role for role in roles.values() if not np.isnan(role.evidence.low)]
    assert len(known) > len(roles) / 2, "most labels rest on what all texts have"


@pytest.mark.slow  # two corpora
def test_a_label_is_reported_on_texts_it_was_not_chosen_on(table, roles):
    """Doubling the choosing half's sums, numerators and denominators alike, moves no reported figure."""
    sums = table.sums
    num, den = sums.num.copy(), sums.den.copy()
    num[0] *= 2
    den[0] *= 2
    again = label(dataclasses.replace(table, sums=dataclasses.replace(sums, num=num, den=den)))
    assert repr(again) == repr(list(roles.values()))  # as text: what has no interval has NaN, unequal to itself
    spoilt = dataclasses.replace(sums, num=np.where(np.arange(2)[:, None, None, None] == 1, 0.0, sums.num))
    names = {role.name for role in label(dataclasses.replace(table, sums=spoilt))}
    assert names <= {"unlabelled", "broad"}, "what the reporting half does not bear out is no label"


@pytest.mark.slow
def test_labels_follow_a_permutation_of_heads(minilm, roles):
    """q, k, v rows and o columns of every layer are shuffled together: the same heads in other places."""
    seed = seeds.seed() % 2**31
    permuted, order = with_heads_permuted(minilm, seed)
    found = {str(role.head): role for role in mh.find_roles(permuted, page_texts())}
    moved = 0
    for layer, places in enumerate(order):
        for new, old in enumerate(places):
            moved += new != old
            ours, theirs = found[f"L{layer}H{new}"], roles[f"L{layer}H{old}"]
            assert ours.name == theirs.name, f"{seed=}: {theirs.head} became {ours.head}"
            assert ours.evidence.score == pytest.approx(theirs.evidence.score, abs=1e-4)
    assert moved > 36, f"{seed=} permuted too little to prove anything"


@pytest.mark.parametrize(
    ("spread", "first"),
    [(0.15, 50), *(pytest.param(spread, 0, marks=pytest.mark.slow) for spread in (0.02, 0.06, 0.15))],
)
@pytest.mark.turns(5)
def test_a_random_weight_model_gets_no_content_role(minilm, spread, first):
    """From near-uniform attention to sharp: chance alone must not look like a role. (The first 50 texts are long.)"""
    seed = seeds.seed() % 2**31
    random = with_random_weights(minilm, spread, seed)
    names = [role.name for role in mh.find_roles(random, page_texts()[first:150])]
    assert not set(names) & {rule.role for rule in CONTENT}, f"{seed=}: {names}"


@pytest.mark.parametrize(
    ("seed", "head"),
    [pytest.param(*each, marks=pytest.mark.slow) for each in ((353287852, "L0H4"), (106, "L0H2"), (111, "L0H1"))],
)
def test_a_head_that_favours_one_mark_by_chance_is_no_punctuation_head(minilm, seed, head):
    """These random heads read punctuation at twice chance, as much as L3H11 does: one mark of it."""
    found = measure(with_random_weights(minilm, 0.15, seed), page_texts()[:150], NEEDED, kinds=True)
    assert found[head, "punctuation_mass"] > 1.8 * found[head, "punctuation_mass.uniform"]
    assert {str(role.head): role.name for role in label(found)}[head] != "punctuation"


@pytest.mark.turns(4)
def test_too_little_text_gives_no_label(minilm):
    names = {role.name for role in mh.find_roles(minilm, ["The cat sat on the mat.", "A dog barked twice at noon."])}
    assert names == {"unlabelled"}


@pytest.mark.turns(4)
def test_labels_need_their_statistics(minilm):
    with pytest.raises(mh.StatisticError, match=r"labelling needs previous_mass, .*: measure with rules\.NEEDED"):
        label(measure(minilm, page_texts()[:3], ["entropy"]))
    with pytest.raises(mh.StatisticError, match=r"what each kind of token receives: measure with kinds=True"):
        label(measure(minilm, page_texts()[:3], NEEDED))


def with_heads_permuted(lm, seed: int) -> tuple[object, Sequence[Sequence[int]]]:
    """A copy of a BERT whose heads are shuffled in every layer, and the order: new place -> old head."""
    model = type(lm.model)(lm.model.config).eval()
    model.load_state_dict(lm.model.state_dict())
    generator, orders = torch.Generator().manual_seed(seed), []
    for layer in model.encoder.layer:
        attention = layer.attention
        heads, width = attention.self.num_attention_heads, attention.self.attention_head_size
        order = torch.randperm(heads, generator=generator)
        rows = (order[:, None] * width + torch.arange(width)).reshape(-1)
        with torch.no_grad():
            for linear in (attention.self.query, attention.self.key, attention.self.value):
                linear.weight.copy_(linear.weight[rows])
                linear.bias.copy_(linear.bias[rows])
            attention.output.dense.weight.copy_(attention.output.dense.weight[:, rows])
        orders.append(order.tolist())
    return mh.load(model, tokenizer=lm.tokenizer), orders


def with_random_weights(lm, spread: float, seed: int):
    """The same architecture with normal weights of one spread."""
    model = type(lm.model)(lm.model.config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return mh.load(model, tokenizer=lm.tokenizer)


@pytest.mark.turns(4)
def test_sums_of_one_half_only_leave_everything_unlabelled(table):
    empty = Sums.empty(len(table.heads), len(table.names))
    assert {role.name for role in label(dataclasses.replace(table, sums=empty))} == {"unlabelled"}


def test_other_code_of_any_package_that_measures_is_another_place_to_remember_labels(monkeypatch):
    lm, sources = mh.load(tiny_bert(), tokenizer=tiny_tokenizer()), inputs.SOURCES
    assert {"nn", "models", "recording", "statistics", "roles"} <= set(sources)
    places = {page._key(lm)}
    for package in sources:
        monkeypatch.setattr(inputs, "SOURCES", tuple(each for each in sources if each != package))
        places.add(page._key(lm))
    assert len(places) == 1 + len(sources)


def test_the_digest_of_our_code_sees_every_file_of_a_package_and_of_its_folders(tmp_path, monkeypatch):
    for package in inputs.SOURCES:
        (tmp_path / package / "inner").mkdir(parents=True)
    deep = tmp_path / inputs.SOURCES[-1] / "inner" / "rule.py"
    monkeypatch.setattr(inputs, "files", lambda package: tmp_path)
    digests = [inputs.code_digest()]
    for source in ("threshold = 3\n", "threshold = 5\n"):
        deep.write_text(source, encoding="utf-8")
        digests.append(inputs.code_digest())
    (deep.parent / "notes.txt").write_text("not code", encoding="utf-8")
    assert len(set(digests)) == 3 and inputs.code_digest() == digests[-1]
