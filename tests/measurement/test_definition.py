"""A statistic of one's own is held against its definition: what is right holds, what is wrong is named with its head.

The oracle of the maps themselves: the model's own eager attention.
"""

import re
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.measurement import check_definition
from manyheads.recording.exact_map import Band, Entropy, Maximum, Received
from manyheads.statistics import Facts, PerText, Statistic
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw, implementation
from tests.refusals import refuses

UNLIKE = [TEXTS[0], TEXTS[3]]  # in length, so that one of them is padded
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "measure-your-own-statistic.md"


def mean_maximum(**changed):
    fields = {
        "name": "mine",
        "needs": (Maximum(),),
        "finish": lambda facts: facts.over_rows(facts[Maximum()]),
        "definition": lambda weights: weights.amax(-1).mean(),
    }
    return Statistic(**fields | changed)


@pytest.fixture
def lm(fresh):
    return loaded("llama", draw(fresh))


def test_definition_sees_the_models_own_map_and_the_texts_own_tokens(lm):
    """Each head of a layer and text by itself; llama is causal, and the second text is padded in its batch."""
    seen = []

    def looking(weights, visible, pieces, value_norms):
        seen.append((weights, visible, pieces, value_norms))
        return weights.amax(-1).mean()

    assert check_definition(lm, mean_maximum(definition=looking), UNLIKE) < 1e-5
    heads, layers = 6, len(lm.spec.sites)
    assert len(seen) == heads * layers * len(UNLIKE)
    by_length = {len(weights): [] for weights, *_ in seen}
    for entry in seen:
        by_length[len(entry[0])].append(entry)
    assert len(by_length) == 2
    for text in UNLIKE:
        inputs = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with implementation(lm.model, "eager"), torch.no_grad():
            maps = lm.model(**inputs, output_attentions=True).attentions
        mine = by_length[inputs["input_ids"].shape[1]]
        assert mine[0][2] == lm.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        for index, (weights, visible, _, norms) in enumerate(mine):
            torch.testing.assert_close(weights.float(), maps[index // heads][0, index % heads], atol=1e-5, rtol=1e-4)
            assert torch.equal(visible, torch.ones_like(weights).tril().bool()) and norms.shape == weights.shape[:1]


WRONG = {
    "padding is counted": {"finish": lambda facts: PerText(
        facts[Maximum()].sum(-1), torch.full((len(facts.rows), 1), float(facts.rows.shape[1]))
    )},
    "an offset of the other sign": {
        "needs": (Band((1,)),), "finish": lambda facts: facts.over_rows(facts[Band((1,))][..., 0]),
        "definition": lambda weights: weights.diagonal(-1).sum() / len(weights),
    },
    "rows that do not count": {
        "needs": (Entropy(),), "finish": lambda facts: facts.over_rows(facts[Entropy()]),
        "definition": lambda weights: -torch.special.xlogy(weights, weights).sum(-1)[1:].mean(),
    },
    "heads that are mixed up": {"finish": lambda facts: facts.over_rows(facts[Maximum()].roll(1, 1))},
    "no case where there is one": {"definition": lambda weights: float("nan")},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_head_and_text(case, lm):
    message = r"^'mine' is \S+ of L\dH\d on text [01], and its definition gives \S+ there\.$"
    refuses(StatisticError, message, check_definition, lm, mean_maximum(**WRONG[case]), UNLIKE)


def test_text_without_a_case_is_nan_on_both_sides(lm):
    def first_rows(facts):
        return facts.over_rows(facts[Maximum()], (facts.tokens.lengths > 8)[:, None] & (facts.row_index < 3))

    def of_map(weights):
        return weights[:3].amax(-1).mean() if len(weights) > 8 else torch.nan

    assert check_definition(lm, mean_maximum(finish=first_rows, definition=of_map), UNLIKE) < 1e-5


def failing(weights):
    return weights.amax(-1)  # a number a row, not one


def test_definition_that_cannot_be_used_is_told(lm, monkeypatch):
    check = lambda **changed: check_definition(lm, mean_maximum(**changed), UNLIKE)  # noqa: E731
    refuses(StatisticError, "'mine' has no definition to be compared with: give it one", check, definition=None)
    message = r"the definition of 'mine': .* takes 'wieghts', .* weights, visible, pieces, value_norms \(did you mean"
    refuses(StatisticError, message, check, definition=lambda wieghts: 1.0)
    message = r"the definition of 'mine' returns one number of a head's whole map: failing \(test_definition\.py, line"
    refuses(StatisticError, message, check, definition=failing)
    refuses(StatisticError, "'mine' is for cross-attention alone", check, maps=frozenset({"cross"}))
    monkeypatch.setattr("manyheads.measurement.definition.MOST_KEYS", 8)
    refuses(StatisticError, "a text of 15 tokens is too long for whole maps: give texts of at most 8", check)


def test_needs_may_be_a_function_of_the_tokens_and_true_counts_one(lm):
    by_tokens = mean_maximum(needs=lambda tokens: (Maximum(),) if tokens.num_texts else ())
    sharp = mean_maximum(
        name="sharp", finish=lambda facts: facts.over_rows(facts[Maximum()] > 0.5),
        definition=lambda weights: (weights.amax(-1) > 0.5).double().mean(),
    )  # fmt: skip
    popular = mean_maximum(
        name="popular", needs=(Received(),), definition=lambda weights: weights.sum(0).max() / weights.sum(),
        finish=lambda facts: PerText(facts[Received()].amax(-1), facts[Received()].sum(-1)),
    )  # fmt: skip
    for statistic in (by_tokens, sharp, popular):
        assert check_definition(lm, statistic, UNLIKE) < 1e-5
    table = mh.measure(lm, UNLIKE, [by_tokens, sharp, popular])
    assert ((table["sharp"] >= 0) & (table["sharp"] <= 1)).all() and table.statistics[1].unit == ""


def test_page_names_everything_that_facts_offers():
    page = PAGE.read_text(encoding="utf-8")
    offered = {name for name in vars(Facts) if not name.startswith("_")} | set(Facts.__annotations__)
    missing = [name for name in sorted(offered) if not re.search(rf"`facts\.{name}\b", page)]
    assert not missing, f"{PAGE.name} does not say what these of facts are: {missing}"
