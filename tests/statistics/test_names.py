"""Claims about asking by name: a treebank's statistics have roles' own numbers, and nothing else is computed."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.corpora import gold_corpus, page_texts
from manyheads.errors import ModelError, StatisticError
from manyheads.recording import Gold
from manyheads.statistics import STATISTICS, distant_mass
from manyheads.statistics.corpus_run.chunks import Survey
from manyheads.statistics.defined import syntax, treebank_words
from manyheads.statistics.table import choose, may_need_survey

SYNTAX = ["nsubj.to_head.given", "det.*", "obj.received"]


@pytest.fixture(scope="module")
def survey():
    return Survey(tuple(gold_corpus("passage").open()), whole=True)


@pytest.mark.turns(5)
def test_a_treebanks_statistics_by_name_have_the_numbers_of_roles(minilm):
    """Syntax of sentences, coreference of passages: to the last bit what `find_roles` measures, intervals too."""
    sentences, passages = gold_corpus(), gold_corpus("passage")
    roles = mh.find_roles(minilm, sentences, passages=passages, examples=0)
    for names, texts, full in ((SYNTAX, sentences, roles.tables[0]), (["coreference.*"], passages, roles.tables[1])):
        table = mh.measure(minilm, texts, names)
        assert len(table.names) == {3: 19, 1: 10}[len(names)] and set(table.names) < set(full.names)
        for name in table.names:
            np.testing.assert_array_equal(table.column(name), full.column(name), name)
            np.testing.assert_array_equal(table.interval(name), full.interval(name), name)
    listed = mh.measure(minilm, list(sentences.open()), "nsubj.to_head.given")
    np.testing.assert_array_equal(listed["nsubj.to_head.given"], roles.tables[0]["nsubj.to_head.given"])
    assert np.nanmax(listed["nsubj.to_head.given"]) > 0.3


@pytest.mark.turns(4)
def test_what_is_not_named_is_not_computed(minilm, monkeypatch):
    """Neither maps times the norms of values, nor columns, nor other relations."""

    def refuse(looks):
        raise AssertionError("nobody asked for this")

    sentences = list(gold_corpus().open())[:30]
    monkeypatch.setattr(treebank_words.Looks, "normed", property(refuse))
    monkeypatch.setattr(treebank_words.Looks, "received", property(refuse))
    counted, columns = [], syntax._columns
    monkeypatch.setattr(syntax, "_columns", lambda facts, *how: (counted.append(how[0]), columns(facts, *how))[1])
    table = mh.measure(minilm, sentences, ["det.to_head.given"])
    (statistic,) = table.statistics
    assert statistic.asks == {"tokens"}
    measured = [relation.name for relations in counted for relation in relations]
    assert set(measured) == {"det"}
    for name in ("det.to_head.norm", "det.received"):
        with pytest.raises(AssertionError, match="nobody asked for this"):
            mh.measure(minilm, sentences, name)


def test_patterns_are_a_shells(survey):
    assert [one.name for one in choose("duplicate_mass*")] == [n for n in STATISTICS if n.startswith("duplicate_mass")]
    assert [one.name for one in choose(["sink_mass.*", "entrop[y]"])] == [
        *(name for name in STATISTICS if name == "sink_mass" or name.startswith("sink_mass.")),
        "entropy",
    ]
    names = [one.name for one in choose(["*.to_head.given", "pronoun", "entropy"], survey)]
    assert "det.to_head.given" in names and names[-2:] == ["pronoun", "entropy"]
    assert [one.name for one in choose("coreference.*", survey)][:2] == ["coreference", "coreference.given"]
    assert len(choose("all", survey)) == len(STATISTICS), "all is what every text has"
    assert may_need_survey(["entropy", "det.*"]) and not may_need_survey(["entropy", "offset_-1_mass"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("entropi", r"^there is no statistic 'entropi': did you mean entropy, .* --list shows them all\.$"),
        ("zzz", r"^there is no statistic 'zzz'\. manyheads stats --list shows them all\.$"),
        ("zzz*", r"^no statistic is called like 'zzz\*'\. manyheads stats"),
        ("nsubj.to_head", r"^'nsubj.to_head' is about syntax, these texts lack that annotation: give a "),
        ("det.*", r"no other statistic is called like 'det\.\*', and if that is about syntax, these texts lack"),
        ("coreference.*", r"is about coreference, and these texts lack that annotation: give .*unit=\"passage\""),
    ],
)  # fmt: skip
def test_a_name_that_plain_texts_lack_is_told_in_one_short_line(name, told):
    with pytest.raises(StatisticError, match=told) as caught:
        choose(name)
    assert len(str(caught.value)) < 260 and "\n" not in str(caught.value)


def test_a_name_that_a_treebank_lacks_is_told_with_the_nearest(survey):
    for name, told in (
        ("nsbj.to_head", r"^'nsbj.to_head': this treebank has no relation 'nsbj': did you mean nsubj"),
        ("det.to_haed", r"^there is no statistic 'det.to_haed': did you mean det.to_head"),
        ("root.to_head", r"^'root.to_head': these texts have the relation 'root' \d+ times, and at least 20 links"),
    ):
        with pytest.raises(StatisticError, match=told):
            choose(name, survey)
    bare = Survey(tuple(document for document in survey.documents[:0]), whole=True)
    with pytest.raises(StatisticError, match="these texts lack that annotation"):
        choose("pronoun", bare)
    assert Gold(()).has_syntax, "gold has syntax unless it says that it has none"


def test_what_is_no_loaded_model_is_told_as_ever():
    with pytest.raises(ModelError, match="not a loaded model"):
        mh.measure("minilm", page_texts()[:2], "duplicate_*")
    with pytest.raises(ModelError, match="not a loaded model"):
        mh.measure("minilm", gold_corpus(), "duplicate_*")


def test_plain_texts_and_slow_tokenizers_are_told_what_is_needed(minilm):
    with pytest.raises(StatisticError, match="'det.to_head' is about syntax, these texts lack that annotation"):
        mh.measure(minilm, page_texts()[:2], ["entropy", "det.to_head"])

    class Slow:
        is_fast = False

    class Named:
        model, spec, name, tokenizer = torch.nn.Identity(), None, "mine", Slow()

    with pytest.raises(
        StatisticError, match=r"^Slow is a slow tokenizer, .* load mine with a fast one \(tokenizer=\)\.$"
    ):
        mh.measure(Named(), gold_corpus(), ["det.to_head"])


def test_distant_mass_takes_its_numbers_in_its_name():
    assert choose("distant_mass_4_64") == choose("distant_mass") == (distant_mass(),) == (STATISTICS["distant_mass"],)
    mine, even = choose(["distant_mass_16_128", "distant_mass_16_128.uniform", distant_mass(16, 128)])
    assert (mine.name, even.name, even.kind) == ("distant_mass_16_128", "distant_mass_16_128.uniform", "chance")
    assert not may_need_survey(["distant_mass_16_128"])
    for wrong in ("distant_mass_4_0", "distant_mass_4", "distant_mass_04_64", "distant_mass_4_64.relabelled"):
        with pytest.raises(StatisticError, match="there is no statistic"):
            choose(wrong)
    for numbers in ((-1, 64), (4, 0), (True, 64)):
        with pytest.raises(
            StatisticError, match=r"distant_mass: (sink|recent)=\S+ should be a number of keys, [01] or"
        ):
            distant_mass(*numbers)
