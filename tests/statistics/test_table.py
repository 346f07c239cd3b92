"""Statistics by name, one of your own in ten lines, and the table that comes back: read, saved, refused."""

import json
import os
import re
import stat
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest
from scipy.stats import t as student

import manyheads as mh
from manyheads.corpora import gold_corpus, page_texts
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError
from manyheads.heads import Head
from manyheads.measurement import measure_call, measure_recording
from manyheads.roles.claims import REPORT, Half
from manyheads.spec import Site
from manyheads.statistics import DEFAULT, STATISTICS, HeadTable, Statistic, Sums, mean_interval
from manyheads.statistics.defined import (
    class_mass,
    class_relabelled,
    class_uniform,
    distant_mass,
    syntax,
    treebank_words,
)
from manyheads.statistics.sums.intervals import (
    MIN_BURSTY,
    MOMENTS,
    Spread,
    share_difference_interval,
    t_95,
    unevenness,
    wilson_interval,
)
from manyheads.statistics.sums.sums import paired_interval
from manyheads.statistics.table import Survey, choose, may_need_survey
from manyheads.texts import Gold, Sinks
from tests.models.eager import Twice, draw, eager_maps
from tests.models.tiny import tiny_bert, tiny_llama, tiny_tokenizer
from tests.refusals import refuses
from tests.statistics.facts import written_text


@pytest.fixture
def lm(fresh):
    return mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())


@pytest.fixture
def texts(fresh):
    return [written_text(fresh, n) for n in (9, 4, 13)]


# -------------------------------------------------------------------------------------------------------------- choose


def test_default_and_all_are_what_the_table_says_and_names_lists_and_your_own_can_be_mixed():
    assert tuple(each.name for each in choose("default")) == DEFAULT
    assert tuple(each.name for each in choose("all")) == tuple(STATISTICS)
    assert set(DEFAULT) < set(STATISTICS)
    assert all(STATISTICS[name].kind == "statistic" for name in DEFAULT)
    own = class_mass("mine", lambda tokens: tokens.first, "mean weight on the first", source="a test")
    got = choose(["entropy", own, "distance", "entropy"])
    assert [each.name for each in got] == ["entropy", "mine", "distance"] and got[1] is own
    assert [each.name for each in choose("entropy")] == ["entropy"]


@pytest.mark.parametrize(("offset", "name"), [("-1", "previous_mass"), ("+0", "self_mass"), ("+1", "next_mass")])
def test_offsets_that_have_a_name_are_found_by_their_number_too(offset, name):
    assert choose(f"offset_{offset}_mass") == choose(name)


def test_a_misspelt_name_is_told_the_nearest():
    refuses(StatisticError, r"there is no statistic 'entropie': did you mean entropy", choose, "entropie")
    wanted = r"^there is no statistic 'qqq'\. manyheads stats --list shows them all\.$"
    refuses(StatisticError, wanted, choose, ["distance", "qqq"])
    refuses(StatisticError, "no statistic was asked for: give 'default', 'all', or names", choose, [])


def test_every_statistic_says_what_it_is():
    for name, each in STATISTICS.items():
        assert each.name == name and each.unit and each.meaning and each.source
        assert each.range[0] < each.range[1]
        assert each.kind == ("chance" if "." in name else "statistic")
        if each.kind == "chance":
            plain = STATISTICS[name.split(".")[0]]
            assert (each.unit, each.range, each.asks) == (plain.unit, plain.range, plain.asks)
    assert {f"offset_{n:+d}_mass" for n in range(-8, 9) if abs(n) > 1} < set(STATISTICS)


# ------------------------------------------------------------------------------------------------------ one of your own


def test_a_statistic_of_your_own_takes_ten_lines(lm, texts):
    letters = {lm.tokenizer.tokenize(text)[0][0] for text in texts[:2]}  # some that occur, whatever the words

    def some(tokens):
        out = torch.zeros_like(tokens.real)
        for text, pieces in enumerate(tokens.pieces):
            out[text, : len(pieces)] = torch.tensor([piece[0] in letters for piece in pieces])
        return out

    mine = class_mass("letter_mass", some, "mean weight on tokens that begin with these letters", source="mine")
    table = mh.measure(lm, texts, statistics=["entropy", mine, class_uniform(mine, some), class_relabelled(mine, some)])

    num, den, even = np.zeros(10), 0, 0.0
    for text in texts:
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
        column = np.array([piece[0] in letters for piece in lm.tokenizer.convert_ids_to_tokens(ids[0])])
        if column.any():
            maps = np.concatenate([one[0].numpy() for one in eager_maps(lm.model, input_ids=ids)])
            num, den, even = num + maps[:, :, column].sum((1, 2)), den + len(column), even + column.sum()
    assert table.names == ("entropy", "letter_mass", "letter_mass.uniform", "letter_mass.relabelled")
    np.testing.assert_allclose(table["letter_mass"], num / den, atol=1e-5)
    np.testing.assert_allclose(table["letter_mass.uniform"], even / den, atol=1e-9)
    assert ((table["letter_mass.relabelled"] > 0) & (table["letter_mass.relabelled"] < 1)).all()


def test_a_statistic_from_scratch_asks_the_pass_and_finishes_it_itself(lm, texts):
    from manyheads.recording.exact_map import Maximum

    def finish(facts):
        return facts.over_rows((facts[Maximum()] > 0.5).double())

    sharp = Statistic(
        name="sharp_rows",
        unit="share",
        range=(0.0, 1.0),
        source="mine",
        meaning="rows with a key above one half",
        needs=lambda _: (Maximum(),),
        finish=finish,
    )
    table = mh.measure(lm, texts, statistics=[sharp])
    rows = [
        np.concatenate(
            [one[0].amax(-1).numpy() for one in eager_maps(lm.model, **lm.tokenizer(text, return_tensors="pt"))]
        )
        for text in texts
    ]
    np.testing.assert_allclose(table["sharp_rows"], (np.concatenate(rows, 1) > 0.5).mean(1), atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- the table


def test_a_table_is_read_by_column_by_head_and_as_a_frame(lm, texts):
    table = mh.measure(lm, texts)
    assert table.names == DEFAULT and len(table) == 10 and str(table.heads[7]) == "L1H2"
    assert table["entropy"].shape == (10,)
    assert table["L1H2", "entropy"] == table["entropy"][7] == table.column("entropy")[7]
    assert repr(table).startswith(f"HeadTable(10 heads x {len(DEFAULT)} statistics over 3 texts, ")
    frame = table.to_pandas()
    assert list(frame.columns) == ["head", "stack", "layer", "index", "module", *DEFAULT]
    row = frame.iloc[7]
    assert (row["head"], row["stack"], row["layer"], row["index"]) == ("L1H2", "", 1, 2)
    assert row["module"] == "encoder.layer.1.attention.self" and row["entropy"] == table["entropy"][7]
    assert {"model", "loaded", "rarity", "sinks", "backend", "guard_error"} <= table.notes.keys()
    assert "windows" not in table.notes  # nothing was cut


def test_asking_a_table_for_what_it_lacks_says_what_it_has(lm, texts):
    table = mh.measure(lm, texts)
    message = r"this table has no 'max_weight', only entropy, effective_keys.*by name, or 'all'"
    refuses(StatisticError, message, table.column, "max_weight")
    for key in (("L2H0", "entropy"), "L2H0", ("entropy", "L2H0")):
        with pytest.raises(HeadError, match="there is no head L2H0 in this table: it holds L0H0 to L1H4"):
            _ = table[key]


def test_head_in_the_place_of_a_statistic_is_told_where_it_stands(lm, texts):
    table = mh.measure(lm, texts, ["entropy", "distance"])
    message = r"^'L1H3' is a head, and a column is a statistic: write table\['L1H3', 'entropy'\] for one number\.$"
    for key in ("L1H3", ("entropy", "L1H3"), Head("", 1, 3), ("L0H0", "L1H3")):
        refuses(StatisticError, message, table.__getitem__, key)
    message = r"^this table has no 'entropie', only entropy, distance: measure it by name, or 'all'\.$"
    refuses(StatisticError, message, table.column, "entropie")


def test_statistics_that_are_no_names_are_refused(lm, texts):
    for request in (5, None, b"entropy"):
        message = rf"^statistics={request!r}: give 'default', 'all', a name, or a list of names\.$"
        refuses(StatisticError, message, mh.measure, lm, texts, request)
    refuses(StatisticError, "^statistics=5: give", measure_call, lm.model, torch.tensor([[2, 7, 3]]), statistics=5)


def test_table_that_is_read_by_number_says_how_it_is_read(lm, texts, unchecked_types):
    table = mh.measure(lm, texts, statistics=["entropy", "self_mass"])
    for key in (0, ("L0H1",), ("L0H1", "entropy", "self_mass"), slice(2), 1.5, None):
        message = re.escape(f"table[{key!r}]") + r": a table is read by names: write table\['entropy'\] for a column, "
        refuses(StatisticError, rf"^{message}or table\['L0H0', 'entropy'\] for one number\.$", table.__getitem__, key)
    assert table["L0H0", "entropy"] == table["entropy"][0]  # as the message says


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_saved_table_reads_back_the_same(kind, lm, texts, tmp_path):
    table = mh.measure(lm, texts, statistics="all")
    path = tmp_path / f"table.{kind}"
    table.save(path)
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": lambda p: pd.DataFrame(json.loads(p.read_text()))}[
        kind
    ](path)
    want = table.to_pandas()
    assert list(read.columns) == list(want.columns) and list(read["head"]) == list(want["head"])
    for name in table.names:
        np.testing.assert_allclose(read[name].astype(float), want[name], rtol=1e-9, atol=1e-9, equal_nan=True)
    assert stat.S_IMODE(path.stat().st_mode) & 0o044  # readable by others, as files are
    assert os.listdir(tmp_path) == [path.name]
    table.save(str(path))  # and again, over itself
    assert os.listdir(tmp_path) == [path.name]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(lm, texts, tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("old")
    table = mh.measure(lm, texts, statistics="entropy")

    def full(self, target, **_):
        with open(target, "w") as file:
            file.write("half a ta")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    refuses(FileAccessError, r"cannot write .*table\.csv: the disk is full\. Free some space", table.save, path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["table.csv"]

    def interrupted(self, target, **_):
        full_disk = open(target, "w")  # noqa: SIM115
        full_disk.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["table.csv"]


def test_a_table_says_where_it_cannot_be_written(lm, texts, tmp_path):
    table = mh.measure(lm, texts, statistics="entropy")
    message = r"what kind of table 'table\.xlsx' is: end it in \.parquet, \.csv, \.json"
    refuses(FileAccessError, message, table.save, tmp_path / "table.xlsx")
    message = r"cannot write .*nowhere/table\.csv: its folder does not exist\. Make it first"
    refuses(FileAccessError, message, table.save, tmp_path / "nowhere" / "table.csv")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------- measure


def test_measure_reports_progress_in_tokens_and_ends_at_all(lm, texts):
    seen = []
    table = mh.measure(lm, texts, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1] == (table.sums.num_tokens,) * 2
    assert seen == sorted(seen) and {total for _, total in seen} == {table.sums.num_tokens}


def test_measure_reads_a_long_text_in_windows_and_says_so(fresh):
    lm = mh.load(tiny_bert(seed=draw(fresh), max_position_embeddings=16), tokenizer=tiny_tokenizer())
    text = "the cat sat on the table and the dog sat on the chair in the house"
    table = mh.measure(lm, [text, "the cat"])
    windows = "1 of 2 texts is longer than the model's positions: read in 2 windows of 16, overlapping by 2"
    assert table.notes["windows"] == windows
    assert table.sums.num_texts == 3
    assert (
        mh.measure(lm, mh.Inputs(text, long="truncate")).notes["windows"] == "the text cut to the model's 16 positions"
    )


def test_measure_call_names_what_it_leaves_out_and_refuses_when_nothing_is_left(fresh):
    model, ids = tiny_llama(seed=draw(fresh)), torch.arange(5, 16)[None]
    table = measure_call(model, input_ids=ids)
    left_out = "sink_mass, special_mass, punctuation_mass, rare_mass, duplicate_mass, induction_mass"
    assert table.notes["left out, for want of a tokenizer"] == left_out
    assert sorted([*table.names, *left_out.split(", ")]) == sorted(DEFAULT)
    with pytest.raises(StatisticError, match=r"all these statistics need a tokenizer: use measure\(lm, texts\)"):
        measure_call(model, input_ids=ids, statistics=["rare_mass", "sink_mass"])


def test_a_module_that_reads_two_texts_in_one_call_has_its_layers_twice(fresh):
    model, ids = tiny_llama(seed=draw(fresh)), torch.arange(5, 16)[None]
    both = measure_call(Twice(model).eval(), ids, statistics=["entropy"])["entropy"]
    alone = [measure_call(model, x, statistics=["entropy"])["entropy"] for x in (ids, ids.flip(1))]
    np.testing.assert_allclose(both, np.concatenate(alone), atol=1e-6)


def test_rarity_is_counted_in_a_large_corpus_and_is_the_vocabularys_rank_in_a_small_one(lm, texts, monkeypatch):
    few = mh.measure(lm, texts, statistics="rare_mass")
    assert "rank in the vocabulary" in few.notes["rarity"] and f"{few.sums.num_tokens:,} tokens" in few.notes["rarity"]
    monkeypatch.setattr("manyheads.inputs.pieces.CORPUS_TOKENS", 3)
    counted = mh.measure(lm, ["the cat the cat the cat the dog the dog"], statistics="rare_mass")
    assert counted.notes["rarity"] == "counts over the corpus' 12 tokens"
    maps = eager_maps(lm.model, **lm.tokenizer("the cat the cat the cat the dog the dog", return_tensors="pt"))
    want = torch.cat([one[0][:, :, [8, 10]].sum(-1).mean(-1) for one in maps])  # "dog", the rarest word of the text
    np.testing.assert_allclose(counted["rare_mass"], want, atol=1e-5)


# ============================================================================================================== by name
# Claims about asking by name: a treebank's statistics have roles' own numbers, and nothing else is computed.

SYNTAX = ["nsubj.to_governor.given", "det.*", "obj.received"]


@pytest.fixture(scope="module")
def survey():
    return Survey(tuple(gold_corpus("passage").open()), whole=True)


@pytest.mark.slow
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
    listed = mh.measure(minilm, list(sentences.open()), "nsubj.to_governor.given")
    np.testing.assert_array_equal(listed["nsubj.to_governor.given"], roles.tables[0]["nsubj.to_governor.given"])
    assert np.nanmax(listed["nsubj.to_governor.given"]) > 0.3


@pytest.mark.slow
def test_what_is_not_named_is_not_computed(minilm, monkeypatch):
    """Neither maps times the norms of values, nor columns, nor other relations."""

    def refuse(looks):
        raise AssertionError("nobody asked for this")

    sentences = list(gold_corpus().open())[:30]
    monkeypatch.setattr(treebank_words.Looks, "normed", property(refuse))
    monkeypatch.setattr(treebank_words.Looks, "received", property(refuse))
    counted, columns = [], syntax._columns
    monkeypatch.setattr(syntax, "_columns", lambda facts, *how: (counted.append(how[0]), columns(facts, *how))[1])
    table = mh.measure(minilm, sentences, ["det.to_governor.given"])
    (statistic,) = table.statistics
    assert statistic.asks == {"tokens"}
    measured = [relation.name for relations in counted for relation in relations]
    assert set(measured) == {"det"}
    for name in ("det.to_governor.norm", "det.received"):
        refuses(AssertionError, "nobody asked for this", mh.measure, minilm, sentences, name)


def test_patterns_are_a_shells(survey):
    assert [one.name for one in choose("duplicate_mass*")] == [n for n in STATISTICS if n.startswith("duplicate_mass")]
    assert [one.name for one in choose(["sink_mass.*", "entrop[y]"])] == [
        *(name for name in STATISTICS if name == "sink_mass" or name.startswith("sink_mass.")),
        "entropy",
    ]
    names = [one.name for one in choose(["*.to_governor.given", "pronoun", "entropy"], survey)]
    assert "det.to_governor.given" in names and names[-2:] == ["pronoun", "entropy"]
    assert [one.name for one in choose("coreference.*", survey)][:2] == ["coreference", "coreference.given"]
    assert len(choose("all", survey)) == len(STATISTICS), "all is what every text has"
    assert may_need_survey(["entropy", "det.*"]) and not may_need_survey(["entropy", "offset_-1_mass"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("entropi", r"^there is no statistic 'entropi': did you mean entropy\? manyheads stats --list shows"),
        ("zzz", r"^there is no statistic 'zzz'\. manyheads stats --list shows them all\.$"),
        ("image_mas", r"^there is no statistic 'image_mas'\. manyheads stats --list"),  # no pictures
        ("zzz*", r"^no statistic is called like 'zzz\*'\. manyheads stats"),
        ("nsubj.to_governor", r"^'nsubj.to_governor' is about syntax, these texts lack that annotation: give a "),
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
        ("nsbj.to_governor", r"^'nsbj.to_governor': this treebank has no relation 'nsbj': did you mean nsubj"),
        ("det.to_govrnor", r"^there is no statistic 'det.to_govrnor': did you mean det.to_governor"),
        (
            "root.to_governor",
            r"^'root.to_governor': these texts have the relation 'root' \d+ times, and at least 20 links",
        ),
    ):
        refuses(StatisticError, told, choose, name, survey)
    bare = Survey(tuple(document for document in survey.documents[:0]), whole=True)
    refuses(StatisticError, "these texts lack that annotation", choose, "pronoun", bare)
    assert Gold(()).has_syntax, "gold has syntax unless it says that it has none"


def test_what_is_no_loaded_model_is_told_as_ever():
    refuses(ModelError, "not a loaded model", mh.measure, "minilm", page_texts()[:2], "duplicate_*")
    refuses(ModelError, "not a loaded model", mh.measure, "minilm", gold_corpus(), "duplicate_*")


def test_plain_texts_and_slow_tokenizers_are_told_what_is_needed(minilm):
    with pytest.raises(StatisticError, match="'det.to_governor' is about syntax, these texts lack that annotation"):
        mh.measure(minilm, page_texts()[:2], ["entropy", "det.to_governor"])

    class Slow:
        is_fast = False

    class Named:
        model, spec, name, tokenizer = torch.nn.Identity(), None, "mine", Slow()

    message = r"^Slow is a slow tokenizer, .* load mine with a fast one \(tokenizer=\)\.$"
    refuses(StatisticError, message, mh.measure, Named(), gold_corpus(), ["det.to_governor"])


def test_distant_mass_takes_its_numbers_in_its_name():
    assert choose("distant_mass_4_64") == choose("distant_mass") == (distant_mass(),) == (STATISTICS["distant_mass"],)
    mine, even = choose(["distant_mass_16_128", "distant_mass_16_128.uniform", distant_mass(16, 128)])
    assert (mine.name, even.name, even.kind) == ("distant_mass_16_128", "distant_mass_16_128.uniform", "chance")
    assert not may_need_survey(["distant_mass_16_128"])
    for wrong in ("distant_mass_4_0", "distant_mass_4", "distant_mass_04_64", "distant_mass_4_64.relabelled"):
        refuses(StatisticError, "there is no statistic", choose, wrong)
    for numbers in ((-1, 64), (4, 0), (True, 64)):
        message = r"distant_mass: (sink|recent)=\S+ should be a number of keys, [01] or"
        refuses(StatisticError, message, distant_mass, *numbers)


# ============================================================================================================ intervals
# Intervals hold the truth as often as they say, in populations that are known; where they cannot, there is none.
#
# Oracles: NumPy on the texts themselves for every moment, scipy's Student's t and Wilson's interval, a published
# difference, populations made here. What populations of real texts show is `python -m benchmarks.coverage`.

DRAWS = 600


@pytest.fixture
def rng(fresh):
    return np.random.default_rng(torch.randint(2**31, (1,), generator=fresh).item())


def sums_of(num, den, rng) -> Sums:
    """Sums over texts of `[text, figure]`, as figures of one head."""
    seeds = rng.integers(0, 2**62, len(num)).tolist()
    return Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], seeds, 0)


def coverage(num, den, truth, rng):
    """How often the intervals of all shares hold the truth, of those that are given, and the share that is."""
    low, high = sums_of(num, den, rng).interval(shares=(True,) * num.shape[1])
    given = ~np.isnan(low)
    return ((low <= truth) & (truth <= high))[given].mean(), given.mean()


def shares(rng, sizes):
    """Cases right of `sizes`, where every text has a rate of its own, and the rate of the population."""
    rates = rng.beta(2, 5, sizes.shape)
    return rng.binomial(sizes.astype(int), rates).astype(float), 2 / 7


def test_moments_are_the_sums_of_products_of_each_half(rng):
    num, den = rng.normal(size=(13, 4)), rng.integers(0, 5, (13, 4)).astype(float)
    seeds = rng.integers(0, 2**62, 13).tolist()
    moments = Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], seeds, 0).moments
    for half in (0, 1):
        texts = np.array(seeds) % 2 == half
        for index, (a, b) in enumerate(MOMENTS):
            want = (num[texts] ** a * den[texts] ** b).sum(0) if a or b else (den[texts] > 0).sum(0)
            np.testing.assert_allclose(moments[half, 0, :, index], want, rtol=1e-12, atol=1e-12)


def test_skewness_and_freedom_are_those_of_the_residuals(rng):
    sizes = rng.integers(1, 40, (60, 5)).astype(float)
    num, _ = shares(rng, sizes)
    spread, worth = sums_of(num, sizes, rng).spread()
    residuals = num - num.sum(0) / sizes.sum(0) * sizes
    squares = (residuals**2).sum(0)
    np.testing.assert_allclose(spread.skew[0], (residuals**3).sum(0) / squares**1.5, rtol=1e-6)
    rests_on = np.minimum(2 * squares**2 / (residuals**4).sum(0), sizes.sum(0) ** 2 / (sizes**2).sum(0)) - 1
    np.testing.assert_allclose(1 / (1 / spread.freedom[0] - 1 / 99), rests_on, rtol=1e-6)
    # By the variance of 100 replicates, which is below half or above 1.75 times what it should be once in 50,000 draws.
    ratio = sizes.sum(0) ** 2 / (sizes**2).sum(0) / worth.texts[0]
    assert ((ratio > 0.5) & (ratio < 1.75)).all()
    assert (worth.largest[0] <= sizes.max(0) / sizes.sum(0) + 1e-12).all() and (worth.num_texts == 60).all()
    np.testing.assert_allclose(spread.error[0], np.sqrt(squares) / sizes.sum(0), rtol=0.4)  # of 100 replicates


def test_hundreds_of_equal_texts_rest_on_as_many_and_rounding_is_no_skewness(rng):
    """Numbers that hardly vary leave nothing of their fourth powers in float64: then texts count as equal ones."""
    den = np.full((300, 8), 9.0)
    num = den * (5.0 + 1e-9 * rng.normal(size=den.shape))
    spread, _ = sums_of(num, den, rng).spread()
    assert (spread.skew == 0).all() and (spread.freedom > 60).all()


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3, 4.2, 7.5, 11, 17, 45, 90, 500])
def test_t_is_students(freedom):
    exact = student.ppf(0.975, freedom)
    assert -6e-4 < float(t_95(np.array([float(freedom)]))[0]) - exact < exact * (1e-3 if freedom >= 4 else 0.03)


@pytest.mark.parametrize("skew", [-0.6, -0.05, 0.0, 0.2, 0.9])
def test_the_pivot_is_halls_cubic_turned_round(skew, rng):
    t = rng.normal(size=50)
    pivot = Spread(np.ones(50), np.ones(50), np.full(50, skew))._pivot(t)
    np.testing.assert_allclose(pivot + skew * pivot**2 / 3 + skew**2 * pivot**3 / 27 + skew / 6, t, atol=1e-9)


@pytest.mark.parametrize(("right", "cases"), [(1, 8), (5, 29), (41, 53), (2, 211), (96, 97)])
def test_an_interval_of_cases_that_are_texts_is_wilsons(right, cases):
    share = np.array([right / cases])
    spread = Spread(np.sqrt(share * (1 - share) / cases), np.array([np.inf]), np.zeros(1))
    exact = binomtest(right, cases).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose(np.concatenate(wilson_interval(share, spread)), exact, atol=2e-4)


@pytest.mark.parametrize(("wrong", "most"), [(1, 3.5), (2, 1.5), (5, 1.4)])
def test_texts_that_are_wholly_right_or_wrong_have_wilsons_interval_however_few_are_wrong(wrong, most, rng):
    """The spread rests on the few that are wrong, as Wilson's knows: with their t of 11 it was five times as wide."""
    sizes = np.full((211, 1), 9.0)
    num = np.where(np.arange(211)[:, None] < wrong, 0.0, sizes)
    low, high = sums_of(num, sizes, rng).interval(shares=(True,))
    exact = binomtest(211 - wrong, 211).proportion_ci(0.95, "wilson")
    # The error is of 100 replicates of a few Poisson weights, and t follows it: of 400 draws the medians are 1.16, 1.02
    # and 1.02, the largest 3.2, 1.35 and 1.29.
    assert 0.75 < (high - low).item() / (exact.high - exact.low) < most


@pytest.mark.parametrize(("correlation", "low", "high"), [(0.0, 0.0524, 0.3339), (0.5, None, None), (-0.5, None, None)])
def test_an_interval_of_a_difference_is_newcombes(correlation, low, high, rng):
    """56 of 70 less 48 of 80, which Newcombe 1998 gives as 0.0524 to 0.3339; what goes together is narrower."""
    counts = (56, 70), (48, 80)
    ends = [binomtest(*count).proportion_ci(0.95, "wilson") for count in counts]
    noise = rng.normal(size=(400, 2))
    noise = np.linalg.qr(noise - noise.mean(0))[0]  # not correlated to the last bit, and of mean 0
    mixed = np.stack([noise[:, 0], correlation * noise[:, 0] + np.sqrt(1 - correlation**2) * noise[:, 1]])
    shares = np.array([[right / cases] for right, cases in counts])
    replicates = np.concatenate([shares, shares + 0.01 * mixed], 1)[:, None]
    parts = [(replicates[side], (np.array([ends[side][0]]), np.array([ends[side][1]]))) for side in (0, 1)]
    found = [float(end[0]) for end in share_difference_interval(*parts[0], *parts[1])]
    if low is not None:
        np.testing.assert_allclose(found, (low, high), atol=1e-4)
    one, other = shares[0, 0] - ends[0][0], ends[1][1] - shares[1, 0]
    below = np.sqrt(one**2 + other**2 - 2 * correlation * one * other)
    np.testing.assert_allclose(found[0], shares[0, 0] - shares[1, 0] - below, atol=1e-9)


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
@pytest.mark.parametrize("kind", ["equal", "sentences", "lognormal"])
def test_an_interval_of_shares_covers_what_it_says(texts, kind, rng):
    """Right answers among cases: texts of one size, of sentences' sizes, and sizes of which a tenth holds half."""
    shape = (texts, DRAWS)
    sizes = {
        "equal": lambda: np.full(shape, 10.0),
        "sentences": lambda: np.ceil(rng.gamma(2.0, 8.0, shape)),
        "lognormal": lambda: np.ceil(np.exp(rng.normal(1.5, 1.2, shape))),
    }[kind]()
    num, truth = shares(rng, sizes)
    held, given = coverage(num, sizes, truth, rng)
    # Draws are independent: four standard errors of 600 at 0.95 are 0.036.
    assert held > 0.92 - 0.02 and (kind == "lognormal" or given > 0.99)


@pytest.mark.parametrize("texts", [50, 200, 800])
def test_an_interval_of_shares_is_as_wide_as_its_texts_are_uncertain(texts, rng):
    """Shares of attention hardly differ from sentence to sentence: with a text of one kind alone, 1.2 to 2.5 times."""
    sizes = np.ceil(rng.gamma(2.0, 8.0, (texts, DRAWS)))
    num = sizes * rng.beta(20, 50, sizes.shape)
    low, high = sums_of(num, sizes, rng).interval(shares=(True,) * DRAWS)
    # The error of the population, which no sample knows: E (n - r d)^2 = var(rate) E d^2.
    error = np.sqrt((2 / 7) * (5 / 7) / 71 * (sizes**2).mean() / texts) / sizes.mean()
    ratio = np.median(high - low) / (2 * 1.96 * error)
    assert 0.98 < ratio < 1.2  # all draws have the same 100 replicates' weights: 1.00 to 1.02 at 800 texts
    # Draws share the texts' weights, so that they are not independent: 0.93 to 0.97, and 0.03 beyond.
    assert 0.90 < ((low <= 2 / 7) & (high >= 2 / 7)).mean() < 0.995


@pytest.mark.parametrize("texts", [200, 800])
def test_an_interval_of_shares_reckons_with_a_text_that_is_yet_to_come(texts, rng):
    """Sizes that have no variance (Pareto, 1.5), with rates that follow them: 0.70 to 0.82 without that text."""
    made = np.random.default_rng(2)  # one population: they differ by more than draws from one do
    population = np.ceil(3 * (1 + made.pareto(1.5, 20_000)))[:, None]
    rates = 1 / (1 + np.exp(1 - 0.5 * (np.log(population) - 1) - made.normal(0, 0.5, population.shape)))
    drawn = rng.integers(0, len(population), (texts, DRAWS))
    sizes, right = population[drawn, 0], (population * rates)[drawn, 0]
    held, _ = coverage(right, sizes, (population * rates).sum() / population.sum(), rng)
    assert held > 0.92 - 0.02


@pytest.mark.parametrize("texts", [50, 200, 800])
def test_unevenness_tells_sentences_from_sizes_without_a_variance(texts, rng):
    sizes = {
        "sentences": np.ceil(rng.gamma(2.0, 8.0, (texts, DRAWS))),
        "pareto": np.ceil(3 * (1 + rng.pareto(1.5, (texts, DRAWS)))),
    }
    uneven = {kind: unevenness(sums_of(size / 2, size, rng).spread()[1]) for kind, size in sizes.items()}
    assert np.median(uneven["sentences"]) < 0.02 and np.median(uneven["pareto"]) > 0.9


@pytest.mark.parametrize("texts", [40, 100, 400, 800])
def test_a_score_above_a_chance_level_from_which_few_texts_differ_has_an_interval_that_covers(texts, rng):
    """Of 100 texts 3 are answered, where a guess is not: by both shares' ends alone 0.88 of 100 texts."""
    sizes = np.ceil(rng.gamma(2.0, 3.0, (texts, DRAWS)))
    guess = rng.binomial(sizes.astype(int), rng.beta(2, 5, sizes.shape)).astype(float)
    answered = np.where(rng.random(sizes.shape) < 0.03, sizes, guess)
    num, den = (torch.from_numpy(np.stack(both, -1)) for both in ((answered, guess), (sizes, sizes)))
    seeds = (2 * rng.integers(0, 2**61, texts) + REPORT).tolist()
    statistics = tuple(STATISTICS[name] for name in ("previous_mass", "previous_mass.uniform"))
    site = Site("", 0, "layer", DRAWS, DRAWS, 4, 4, False)
    table = HeadTable((site,), statistics, Sums.of(num, den, seeds, 0), Sinks(), {})
    above = Half(table, REPORT).above("previous_mass", "previous_mass.uniform")
    truth, given = 0.03 * 5 / 7, ~np.isnan(above.low)  # where no text differs there is no interval
    assert ((above.low <= truth) & (truth <= above.high))[given].mean() > 0.92 - 0.02
    none = 0.97**texts  # the share of draws in which no text is answered; below it by four of its standard errors
    assert given.mean() > 1 - none - 0.02 - 4 * (none * (1 - none) / DRAWS) ** 0.5


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_an_interval_of_a_mean_covers_what_it_says(texts, draw, rng):
    values = rng.normal(size=(texts, DRAWS)) if draw == "normal" else rng.exponential(size=(texts, DRAWS)) - 1
    low, high = mean_interval(values)
    assert 0.90 < ((low <= 0) & (high >= 0)).mean() <= 1
    # No wider than needed: 18 % more than Student's t of the texts at most, from 20 texts on.
    wide = 2 * student.ppf(0.975, texts - 1) * values.std(0, ddof=1) / texts**0.5
    assert draw == "exponential" or np.median((high - low) / wide) < 1.25


@pytest.mark.parametrize("texts", [20, 50, 200, 800])
def test_an_interval_of_a_difference_covers_what_it_says(texts, rng):
    """Two rates of the same texts, which are high together: a score above chance, a model after and before."""
    sizes = np.ceil(rng.gamma(2.0, 8.0, (texts, DRAWS)))
    rates = rng.beta(2, 5, sizes.shape)
    before, after = (rng.binomial(sizes.astype(int), share * rates).astype(float) for share in (0.5, 0.9))
    seeds = rng.integers(0, 2**62, texts).tolist()
    sums = [
        Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(sizes)[:, None], seeds, 0) for num in (before, after)
    ]
    low, high = paired_interval(*sums)
    assert ((low <= 0.4 * 2 / 7) & (high >= 0.4 * 2 / 7)).mean() > 0.92 - 0.02 and not np.isnan(low).any()
    alone = sums[1].interval()
    assert texts < 200 or np.median((high - low) / (alone[1] - alone[0])) < 0.9, "what texts share cancels"


def test_equal_texts_are_one_and_few_have_no_interval(rng):
    num, den = rng.random((40, 3)), np.ones((40, 3))
    one = Sums.of(torch.from_numpy(num)[:, None], torch.from_numpy(den)[:, None], [77] * 40, 0)
    assert np.isnan(one.interval()).all(), "a text that is read 40 times is one text"
    assert np.isnan(sums_of(num[:4], den[:4], rng).interval()).all() and np.isnan(mean_interval(num[:4])).all()
    alike = sums_of(den * [0.0, 0.25, 1.0], den, rng)
    assert np.isnan(alike.interval()).all() and np.isnan(mean_interval(den)).all(), "no text differs from another"
    heavy = den.copy()
    heavy[0] = 100.0
    assert np.isnan(sums_of(num, heavy, rng).interval()).all(), "one text has most of the cases"


def test_a_table_says_why_there_is_no_interval(rng):
    statistics = tuple(STATISTICS[name] for name in ("entropy", "duplicate_mass", "duplicate_mass.relabelled"))
    site = Site("", 0, "layer", 1, 1, 4, 4, False)

    def table(num_texts, sizes=1.0) -> HeadTable:
        den = np.ones((num_texts, 3)) * np.broadcast_to(sizes, num_texts)[:, None]
        sums = sums_of(rng.random((num_texts, 3)) * den, den, rng)
        return HeadTable((site,), statistics, sums, Sinks(), {})

    many, few = table(MIN_BURSTY + 20), table(40)
    for name in many.names:
        assert not np.isnan(many.interval(name)).any() and many.no_interval(name, "L0H0") == ""
    assert not np.isnan(few.interval("entropy")).any() and few.no_interval("entropy", "L0H0") == ""
    for name in ("duplicate_mass", "duplicate_mass.relabelled"):
        assert np.isnan(few.interval(name)).all()
        assert "40 have cases, and an interval needs 300" in few.no_interval(name, "L0H0")
    assert "worth" in table(3).no_interval("entropy", "L0H0")
    assert "(one text has 84% of them)" in table(30, [150.0] + [1.0] * 29).no_interval("entropy", "L0H0")
    empty = replace(few, sums=Sums.empty(1, 3))
    assert empty.no_interval("entropy", "L0H0") == "no text has a case of it"


class Halved(torch.nn.Module):
    """Attends among a text's tokens, then among every second one of them."""

    def __init__(self, num_tokens):
        super().__init__()
        self.embed = torch.nn.Embedding(num_tokens, 8)
        self.layers = torch.nn.ModuleList(torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)
        x = (x + self.layers[0](x, x, x, need_weights=False)[0])[:, ::2]
        return x + self.layers[1](x, x, x, need_weights=False)[0]


def test_words_of_a_layer_whose_positions_are_no_tokens_are_refused_by_name(texts):
    lm = mh.load(Halved(len(tiny_tokenizer())).eval(), tokenizer=tiny_tokenizer())
    recording = mh.record(lm, texts[:1])
    message = r"duplicate_mass is about a text's words, and L1 \(layers.1\) attends among \d+ positions that are not"
    refuses(StatisticError, message, mh.measure, lm, texts[:1], ["entropy", "duplicate_mass"])
    refuses(StatisticError, message, measure_recording, recording, ["duplicate_mass"])
    refuses(StatisticError, r"are about a text's words, and L1 \(layers.1\)", mh.measure, lm, texts)
    refuses(StatisticError, "statistics of copies .* compare tokens", mh.measure, lm, texts, "duplicate_unsunk_mass")
    for table in (mh.measure(lm, texts[:1], ["entropy", "sink_mass"]), measure_recording(recording, ["entropy"])):
        assert np.isfinite(table["entropy"]).all() and len(table.sites) == 2
