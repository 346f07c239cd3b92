"""Roles over a corpus: what is known of minilm comes out of a treebank, and all else that is promised of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedTokenizer

import manyheads as mh
from manyheads import private_names
from manyheads.corpora import gold_corpus, open_corpus, page_texts
from manyheads.corpora.own_texts import own_corpus
from manyheads.errors import HeadError, StatisticError
from manyheads.inputs import read
from manyheads.measurement import measure, measure_corpus
from manyheads.measurement.corpus_run import RunRequest
from manyheads.measurement.corpus_run import chunks as inputs
from manyheads.roles import MIN_QUERIES, RULES, SINK_RULE, HeadRole, Roles
from manyheads.roles import find as finding
from manyheads.roles import page_labels as page
from manyheads.roles.claims import REPORT
from manyheads.roles.find import LEAST_WEIGHT, TextScores, _best, _cells, find_examples, pairs_of
from manyheads.roles.labels import label
from manyheads.roles.rules import CONTENT, MIN_LIFT_LOW, NEEDED
from manyheads.statistics import STATISTICS, HeadTable, Sums
from manyheads.statistics.defined.coreference import coreference_statistics, survey_coreference
from manyheads.texts import Sinks, text_seed
from tests import seeds
from tests.corpora.conftest import treebank
from tests.models.eager import eager_maps
from tests.models.tiny import SPECIAL, WORDS, tiny_bert, tiny_gpt2, tiny_tokenizer
from tests.refusals import refuses

SENTENCES = 210  # of the treebank: half of them are reported on


@pytest.mark.slow
def test_what_is_found_on_a_treebank(minilm, tmp_path):
    """One test, so that one process reads the treebank."""
    texts = list(open_corpus(treebank("en_ewt-ud-dev.conllu")).open())[:SENTENCES]
    roles = mh.find_roles(minilm, texts, examples=2)
    the_known_heads_of_minilm_are_named(roles)
    a_head_has_every_claim_that_holds(roles)
    a_question_can_be_asked_in_words(roles)
    examples_are_of_the_reporting_half_and_show_what_the_head_does(roles)
    every_questions_best_head_has_examples_where_it_holds(roles)
    links_are_such_as_the_role_means(roles)
    claims_are_written_as_a_table(roles, tmp_path)
    the_notes_say_what_all_rests_on(roles)


def the_known_heads_of_minilm_are_named(roles: Roles):
    named = {str(each.head): each.name for each in roles}
    assert named["L0H2"] == "previous token" and named["L1H8"] == "next token"
    assert named["L2H8"] == "det: dependent to governor"
    assert {str(claim.head) for claim in roles.ranked("duplicate token", 2)} == {"L1H1", "L2H9"}
    assert "induction" not in named.values()
    (best,) = roles.ranked("det: dependent to governor", 1)
    assert str(best.head) == "L2H8" and best.holds and best.given > 0.75
    assert best.chances["relabelled"] < best.given and best.beyond["det.to_governor.off_rule"] > 0.35


def a_head_has_every_claim_that_holds(roles):
    held = [claim.role for claim in roles.of_head("L2H8")]
    assert held and set(held) <= set(roles.questions)
    refuses(HeadError, "there is no head L9H9 here", roles.of_head, "L9H9")


def a_question_can_be_asked_in_words(roles):
    assert roles.role_named("determiner to the word it depends on") == "det: dependent to governor"
    refuses(StatisticError, "'token' may mean several roles", roles.role_named, "token")


def examples_are_of_the_reporting_half_and_show_what_the_head_does(roles):
    shown = roles.examples[roles[2].head, "previous token"]
    assert str(roles[2].head) == "L0H2" and 1 <= len(shown) <= 2
    for example in shown:
        assert text_seed(example.text) & 1 == 1 and example.score > 0.9 and example.links


def every_questions_best_head_has_examples_where_it_holds(roles):
    best = [roles.ranked(role, 1)[0] for role in roles.questions]
    held = {(claim.head, claim.role) for claim in best if claim.holds}
    labels = {(each.head, each.name) for each in roles}
    assert held <= roles.examples.keys() <= held | labels and held - labels
    assert all(example.links for example in roles.examples[roles.ranked("first token", 1)[0].head, "first token"])


def links_are_such_as_the_role_means(roles):
    """From a token to the one before it, to its copies, to a mark: whatever else is strong there is no example."""
    shown = {role: [] for _, role in roles.examples}
    for (_, role), examples in roles.examples.items():
        shown[role] += [(each.text, *link.rpartition(" ")[0].split(" → ")) for each in examples for link in each.links]
    assert all(b + a in text.replace(" ", "") for text, a, b in shown["previous token"])
    assert all(a.casefold() == b.casefold() for _, a, b in shown["duplicate token"])
    assert all(not b.isalnum() for _, _, b in shown["punctuation"])
    assert {b for _, _, b in shown["sink"]} == {"[CLS]"}
    assert not any(link.endswith(" 0.00") for some in roles.examples.values() for each in some for link in each.links)


def claims_are_written_as_a_table(roles, tmp_path):
    roles.save(tmp_path / "roles.parquet")
    frame = pd.read_parquet(tmp_path / "roles.parquet")
    assert len(frame) == len(roles) * len(roles.questions)
    row = frame[(frame["head"] == "L2H8") & (frame["role"] == "det: dependent to governor")].iloc[0]
    claim = roles.ranked("det: dependent to governor", 1)[0]
    assert row["score"] == claim.score and row["q_value"] == claim.q_value and bool(row["holds"]) and bool(row["named"])
    assert json.loads(frame.iloc[:3].to_json())  # plain numbers and words


def the_notes_say_what_all_rests_on(roles):
    assert {"model", "sinks", "rarity", "labels"} <= set(roles.notes)
    assert "attention is not effect" in roles.notes["labels"]
    assert "of 72 heads named" in repr(roles) and "<table" in roles._repr_html_()


@pytest.mark.slow
def test_a_pattern_of_ones_own_is_asked_like_any_other(minilm):
    def before(pieces):
        return [None, *range(len(pieces) - 1)]

    texts = [each.text for each in own_corpus().open()][:80]
    found = mh.find_roles(minilm, texts, patterns={"what stands before": before}, examples=0)
    best, *_ = found.ranked("what stands before")
    assert str(best.head) == "L0H2" and best.holds and list(best.chances) == ["uniform"]
    same = found.ranked("previous token")[0]
    assert best.score == pytest.approx(same.score, abs=1e-4)


@pytest.mark.slow
def test_a_second_corpus_is_asked_the_same(minilm):
    texts = [each.text for each in own_corpus().open()]
    found = mh.find_roles(minilm, texts[:40], elsewhere=texts[200:220], examples=0)
    claim = found.ranked("previous token", 1)[0]
    there = measure(minilm, texts[200:220], ["previous_mass"], sinks=found.table.sinks)
    assert claim.elsewhere == pytest.approx(there[str(claim.head), "previous_mass"], abs=1e-5)
    assert claim.elsewhere != pytest.approx(claim.score, abs=1e-6)


@pytest.fixture(scope="module")
def found(minilm):
    return mh.find_roles(minilm, gold_corpus(), passages=gold_corpus("passage"), examples=0)


@pytest.mark.slow
def test_our_own_sentences_answer_every_question_offline_and_label_nothing_they_cannot_bear_out(found):
    asked = found.questions
    assert {
        "det: dependent to governor",
        "nsubj: governor to dependent",
        "pronoun to antecedent",
        "coreference",
    } <= set(asked)
    positional = {"previous token", "next token", "self", "local", "broad", "sink [CLS]", "unlabelled"}
    assert {each.name for each in found} <= positional
    claim = found.ranked("pronoun to antecedent", 1)[0]
    assert claim.num_queries > 10 and not claim.holds and np.isfinite(claim.given)


def by_hand(lm, document, head, only_pronouns):
    """Every link from a mention to an antecedent, from the model's own map."""
    got = lm.tokenizer(document.text, return_offsets_mapping=True, return_tensors="pt")
    weights = eager_maps(lm.model, input_ids=got["input_ids"])[head.layer][0, head.index]
    gold, spans = document.gold, [(word.begin, word.end) for word in document.gold.words]
    of = {at: word for word, (begin, end) in enumerate(spans) for at in range(begin, end)}
    owner = np.array([of[begin] if end > begin else -1 for begin, end in got["offset_mapping"][0].tolist()])
    links = {}
    for at, mention in enumerate(gold.mentions):
        for other in gold.mentions[:at]:
            around = other.first <= mention.first and mention.last <= other.last
            row, key = mention.head, other.head
            asked = gold.words[row].pos == "PRON" or not only_pronouns
            if asked and other.entity == mention.entity and key != row and not around:
                links[row, key] = float(weights[owner == row][:, owner == key].sum(1).mean())
    words = [document.text[begin:end] for begin, end in spans]
    shown = {cell: weight for cell, weight in links.items() if weight >= LEAST_WEIGHT}
    return sorted(f"{words[row]} → {words[key]} {weight:.2f}" for (row, key), weight in shown.items())


@pytest.mark.parametrize("role", ["pronoun to antecedent", "coreference"])
def test_examples_of_reference_are_passages_with_links_to_antecedents_as_the_model_itself_weighs_them(
    role, found, minilm, monkeypatch
):
    monkeypatch.setattr("manyheads.roles.find.LINKS", 99)
    monkeypatch.setattr("manyheads.roles.find.text_seed", lambda _: REPORT)  # of 14 passages, not of 7
    best = found.ranked(role, 1)[0]
    claims = tuple(tuple(replace(each, holds=each is best) for each in mine) for mine in found.claims)
    passages = {each.text: each for each in gold_corpus("passage").open()}
    statistics = coreference_statistics(survey_coreference(each.gold for each in passages.values()))
    scored = TextScores.of(minilm, tuple(passages.values()), statistics)
    shown = find_examples(minilm, scored, replace(found, claims=claims), found.table.sinks, 9, {})
    assert list(shown) == [(best.head, role)] and len(shown[best.head, role]) > 2
    for example in shown[best.head, role]:
        document = passages[example.text]
        assert example.score > 0
        assert sorted(example.links) == by_hand(minilm, document, best.head, role != "coreference")
        weights = [float(link.rpartition(" ")[2]) for link in example.links]
        assert weights == sorted(weights, reverse=True) and weights


def test_examples_are_looked_for_in_texts_and_in_passages(monkeypatch):
    asked, head = [], mh.Head.parse("L0H0")
    monkeypatch.setattr("manyheads.roles.find.SHORTEST", 1)
    monkeypatch.setattr("manyheads.roles.find.text_seed", lambda _: REPORT)
    monkeypatch.setattr(
        finding, "find_examples", lambda _, of, *more: asked.append(of) or {(head, of.pieces[0][1].name): ()}
    )
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    sentences, passages = (list(gold_corpus(unit).open())[:3] for unit in ("sentence", "passage"))
    found = mh.find_roles(lm, sentences, passages=passages, examples=1)
    names = [[document.name for _, document in of.pieces] for of in asked]
    assert names == [[document.name for document in texts] for texts in (sentences, passages)]
    assert ["pronoun" in {each.name for each in of.statistics} for of in asked] == [False, True]
    assert all(sorted(of.rows) == [0, 1, 2] for of in asked), "all of them were kept as they were measured"
    assert set(found.examples) == {(head, sentences[0].name), (head, passages[0].name)}


def test_examples_of_a_run_that_goes_on_are_those_of_one_run(tmp_path):
    """What the pass over the corpus keeps of each text is what the text has by itself: a resumed run keeps nothing."""
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    texts = [document for document in gold_corpus("sentence").open() if len(document.text) < 120][:30]
    questions = finding._Questions([], False, None, lm)
    what = RunRequest(lm, questions.of_texts, kinds=True, watch=questions.watch)
    table = measure_corpus(what, texts, resume=tmp_path / "a run")
    (scored,) = questions.scored
    assert len(scored.rows) == len(scored.pieces) > 3
    again = finding._Questions([], False, None, lm)
    measure_corpus(replace(what, statistics=again.of_texts, watch=again.watch), texts, resume=tmp_path / "a run")
    assert not again.scored[0].rows, "nothing is measured twice"
    again.scored[0].measure(lm, table.sinks)
    names = [scored.statistics[column].name for column in scored.columns]
    # How rare a token is depends on the texts that are counted: there the corpus' count is not that of a few texts.
    same = [index for index, name in enumerate(names) if "rare" not in name]
    assert len(same) > 9
    for place, numbers in scored.rows.items():
        for kept, measured in zip(numbers, again.scored[0].rows[place], strict=True):
            torch.testing.assert_close(kept[:, same], measured[:, same], rtol=1e-5, atol=1e-5)


class Slow(PreTrainedTokenizer):
    """Words between blanks, with no characters to them."""

    def __init__(self, **others):
        self.known = {word: at for at, word in enumerate((*SPECIAL, *WORDS))}
        super().__init__(pad_token="[PAD]", unk_token="[UNK]", **others)

    @property
    def vocab_size(self):
        return len(self.known)

    def get_vocab(self):
        return dict(self.known)

    def _tokenize(self, text, **_):
        return text.lower().split()

    def _convert_token_to_id(self, token):
        return self.known.get(token, self.known["[UNK]"])

    def _convert_id_to_token(self, index):
        return (*SPECIAL, *WORDS)[index]


def test_a_slow_tokenizer_is_said_once_where_there_is_gold_to_lay_on_its_tokens(caplog):
    slow, fast = (mh.load(tiny_bert(), tokenizer=made) for made in (Slow(), tiny_tokenizer()))
    gold, bare = list(gold_corpus().open())[:12], ["the cat sat on the old table .", "she said no ."]
    with caplog.at_level("WARNING", logger="manyheads"):
        with_gold = mh.find_roles(slow, gold, examples=1)
    assert "Slow is a slow tokenizer" in with_gold.notes["tokenizer"] and "fast" in with_gold.notes["tokenizer"]
    assert [each.message for each in caplog.records] == [with_gold.notes["tokenizer"]]
    assert with_gold.ranked("nsubj: dependent to governor", 1)[0].num_queries == 0
    assert "tokenizer" not in mh.find_roles(slow, bare, examples=0).notes
    assert "tokenizer" not in mh.find_roles(fast, gold, examples=0).notes and len(caplog.records) == 1


TEXT = "the cat saw the dog and the man saw the cat"


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2], ids=["bidirectional", "causal"])
def test_the_pairs_hold_all_that_the_statistic_counts(make):
    lm = mh.load(make(), tokenizer=tiny_tokenizer())
    names = [name for name, statistic in STATISTICS.items() if statistic.cells is not None and name.endswith("_mass")]
    assert len(names) > 20  # offsets, the local window, classes and matches
    table = mh.measure(lm, TEXT, names)
    rarity = read(lm, TEXT).rarity
    layer = mh.record(lm, TEXT).layers[-1]
    tokens = replace(layer.tokens, rarity=rarity[layer.tokens.ids]).with_sinks(table.sinks)
    maps, seen = layer.weights().double(), layer.weights().max(0).values > 0
    for name in names:
        cells = _cells(name, tokens, 0) & seen
        rows = cells.any(-1).sum()
        mean = torch.where(cells, maps, 0.0).sum((1, 2)) / rows
        found = torch.from_numpy(table.column(name)[-len(mean) :])
        assert torch.allclose(mean, found, atol=1e-5) or (not rows and found.isnan().all()), name


def test_texts_with_few_questions_come_last_and_words_are_shown_where_there_are_any():
    asked = torch.tensor([1.0, 4.0, 3.0, 9.0])
    assert [at for _, at in _best(torch.tensor([0.9, 0.8, 0.7, 0.1]) * asked, asked, 3)] == [1, 2, 0]
    assert _best(torch.tensor([0.0, 0.0]), torch.tensor([4.0, 0.0]), 3) == []
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    tokens = mh.record(lm, "the cat saw").layers[0].tokens.with_sinks(Sinks(True, (), ("[CLS]",), ""))
    assert pairs_of("previous_mass", tokens, 0, {}) == ([2, 3], [1, 2])
    assert pairs_of("sink_mass", tokens, 0, {}) == ([1, 2, 3], [0, 0, 0])
    assert pairs_of("mine", tokens, 0, {"mine": lambda pieces: [None, [3, 2], 1, *[None] * (len(pieces) - 3)]}) == (
        [1, 1, 2], [3, 2, 1],
    )  # fmt: skip
    assert set(zip(*pairs_of("entropy", tokens, 0, {}), strict=True)) == {
        (i, j) for i in (1, 2, 3) for j in (1, 2, 3) if i != j
    }


# =============================================================================================================== labels
# Claims about labels: what is known of minilm comes out, labels follow their heads, and chance gets none.

PURE_SINKS = {"L4H5", "L3H4", "L2H7", "L4H2", "L3H3"}


@pytest.fixture(scope="module")
def table(minilm, pytestconfig) -> HeadTable:
    """Of the whole page; `make test` reads every third of its texts, which is enough for what is asked below."""
    quick = pytestconfig.option.markexpr == "not slow"
    return measure(minilm, page_texts()[:: 3 if quick else 1], NEEDED, kinds=True)


@pytest.fixture(scope="module")
def roles(table) -> dict[str, HeadRole]:
    return {str(role.head): role for role in label(table)}


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
    # As text: what has no interval has NaN, unequal to itself.
    assert repr([vars(role) for role in again]) == repr([vars(role) for role in roles.values()])
    spoilt = dataclasses.replace(sums, num=np.where(np.arange(2)[:, None, None, None] == 1, 0.0, sums.num))
    names = {role.name for role in label(dataclasses.replace(table, sums=spoilt))}
    assert names <= {"unlabelled", "broad"}, "what the reporting half does not bear out is not a label"


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
@pytest.mark.slow
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


def test_too_little_text_gives_no_label(minilm):
    names = {role.name for role in mh.find_roles(minilm, ["The cat sat on the mat.", "A dog barked twice at noon."])}
    assert names == {"unlabelled"}


def test_labels_need_their_statistics(minilm):
    with pytest.raises(
        mh.errors.StatisticError, match=r"labelling needs previous_mass, .*: measure with rules\.NEEDED"
    ):
        label(measure(minilm, page_texts()[:3], ["entropy"]))
    with pytest.raises(mh.errors.StatisticError, match=r"what each kind of token receives: measure with kinds=True"):
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


def test_sums_of_one_half_only_leave_everything_unlabelled(table):
    empty = Sums.empty(len(table.heads), len(table.names))
    assert {role.name for role in label(dataclasses.replace(table, sums=empty))} == {"unlabelled"}


def test_other_code_of_any_package_that_measures_is_another_place_to_remember_labels(monkeypatch):
    lm, sources = mh.load(tiny_bert(), tokenizer=tiny_tokenizer()), inputs.SOURCES
    assert {"attention", "texts", "nn", "recording", "models", "inputs", "corpora"} <= set(sources)
    assert {"statistics", "measurement", "roles"} <= set(sources)
    places = {page.key_of(lm, page.reading_of(lm.name).digest())}
    assert {"base", "spec.py", "heads.py"} <= set(sources)  # which number a layer has, and what others are called
    for package in sources:
        monkeypatch.setattr(inputs, "SOURCES", tuple(each for each in sources if each != package))
        places.add(page.key_of(lm, page.reading_of(lm.name).digest()))
    assert len(places) == 1 + len(sources)


@pytest.mark.parametrize("key", ["labels", "a run"])
def test_labels_and_runs_of_another_attention_or_transformers_are_others(key, monkeypatch, tmp_path):
    """transformers before 5.21 computes Gemma 2 by sdpa without its cap: what was measured there holds there alone."""
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    (tmp_path / "page.txt").write_text("One text. And another one.", encoding="utf-8")
    corpus = open_corpus(tmp_path / "page.txt")

    def name():
        if key == "labels":
            return page.key_of(lm, page.reading_of(lm.name).digest())
        return str(inputs.inputs_of(lm, inputs.texts_of(corpus), [], "windows", None, False))

    names = [name()]
    lm.model.set_attn_implementation("eager")
    names.append(name())
    for version in ("5.17.3", "5.99.0"):
        monkeypatch.setattr(private_names, "_version", lambda library, version=version: version)
        names.append(name())
    assert len(set(names)) == 4


def test_the_digest_of_our_code_sees_every_file_of_a_package_and_of_its_folders(tmp_path, monkeypatch):
    for source in inputs.SOURCES:
        if source.endswith(".py"):
            (tmp_path / source).write_text("", encoding="utf-8")
        else:
            (tmp_path / source / "inner").mkdir(parents=True)
    deep = tmp_path / inputs.SOURCES[-1] / "inner" / "rule.py"
    monkeypatch.setattr(inputs, "files", lambda package: tmp_path)
    digests = [inputs.code_digest()]
    for source in ("threshold = 3\n", "threshold = 5\n"):
        deep.write_text(source, encoding="utf-8")
        digests.append(inputs.code_digest())
    (deep.parent / "notes.txt").write_text("not code", encoding="utf-8")
    assert len(set(digests)) == 3 and inputs.code_digest() == digests[-1]


def test_a_remembered_run_is_not_measured_again_and_a_damaged_one_is(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path))
    lm = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    texts = [" ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (9,), generator=fresh)) for _ in range(5)]
    passes = []
    lm.model.transformer.h[0].register_forward_hook(lambda *_: passes.append(1))

    def roles(texts):
        passes.clear()
        found = mh.find_roles(lm, texts, examples=0, remember=True)
        return found.notes["run"], bool(passes), found.claims_to_pandas().to_json()

    first = roles(texts)
    assert first[:2] == (f"measured now, kept for the next run in {next(tmp_path.glob('run-*'))}", True)
    again = roles(texts)
    assert again[0].startswith("of an earlier run, kept in ") and again[1:] == (False, first[2])
    assert roles([*texts[1:], texts[0] + " rain"])[1]  # other texts, another run
    for file in tmp_path.glob("run-*/texts/finished.safetensors"):
        file.write_bytes(file.read_bytes()[:-9])
    damaged = roles(texts)
    assert damaged[0].startswith("measured now, and not kept: ") and damaged[1:] == (True, first[2])
