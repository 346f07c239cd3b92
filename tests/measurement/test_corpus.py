"""A corpus of any length: what streams is what a list gives, in memory that stays flat, with gold and progress.

Oracle: `measure` of the same texts in a list, which is held to the models' own maps elsewhere.

Texts that fail are named, counted and left out; what is no text's fault goes through.
"""

import os
import pickle
import random
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import manyheads as mh
from manyheads.corpora import Corpus, Failure, Failures, as_corpus, corpus_of, is_about_texts, open_corpus
from manyheads.corpora.corpus import NAMED
from manyheads.errors import FileAccessError, GuardError, StatisticError, TextError
from manyheads.measurement.corpus_run import chunks, merged_sums, require_whole, store
from manyheads.measurement.corpus_run import chunks as surveys
from manyheads.measurement.corpus_run import run as workers
from manyheads.roles import role_sums, roles_of
from manyheads.statistics import PerText, Statistic
from manyheads.statistics.defined import class_mass
from manyheads.statistics.statistic import Block
from manyheads.texts import ROOT, Document, Gold, GoldWord, Sinks
from tests.measurement.corpus_runs import (
    CHUNK,
    ROUNDING,
    STATISTICS,
    assert_near,
    assert_same_tables,
    patch_few_texts,
    patch_small_batches,
    some_texts,
    tiny_lm,
)
from tests.models.eager import draw
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses


@pytest.fixture
def small(monkeypatch):
    patch_few_texts(monkeypatch)


@pytest.fixture(params=["bert", "llama"])
def lm(request, loaded):
    return loaded(request.param)


# ----------------------------------------------------------------------------------------------------------- streaming


def test_a_stream_gives_what_a_list_gives(lm, fresh, small):
    texts, sinks = some_texts(3 * CHUNK, draw(fresh)), Sinks(first=True, because="a test")
    want = mh.measure(lm, texts, STATISTICS, kinds=True, sinks=sinks)
    for given in (iter(texts), corpus_of(texts), (Document(text, "x") for text in texts)):
        got = mh.measure(lm, given, STATISTICS, kinds=True, sinks=sinks)
        assert_near(got, want)
        np.testing.assert_array_equal(got.kinds.ids, want.kinds.ids)
        np.testing.assert_allclose(got.kinds.mass, want.kinds.mass, atol=ROUNDING)
        assert got.sites == want.sites and not len(got.failures)


def test_with_one_chunk_a_stream_is_a_list_to_the_last_bit(fresh):
    lm, texts = tiny_lm(draw(fresh)), some_texts(30, draw(fresh))
    assert_same_tables(
        mh.measure(lm, iter(texts), STATISTICS, kinds=True), mh.measure(lm, texts, STATISTICS, kinds=True)
    )


def test_chunks_are_whole_and_in_order_whatever_their_limits(small, monkeypatch):
    documents = [Document("x" * size, str(at), at=10 * (at + 1)) for at, size in enumerate([3, 9, 1, 50, 2, 2] * 5)]
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 20)
    found = list(chunks.chunks_of(documents))
    assert [each for chunk in found for each in chunk.documents] == documents
    assert [chunk.number for chunk in found] == list(range(len(found))) and len(found) > 5
    assert [chunk.begin for chunk in found] == [int(chunk.documents[0].name) for chunk in found]
    assert [chunk.end_at for chunk in found] == [chunk.documents[-1].at for chunk in found]
    assert [chunk.begin_at for chunk in found] == [0, *(chunk.end_at for chunk in found[:-1])]
    for chunk in found:
        assert len(chunk.documents) <= CHUNK and (
            len(chunk.documents) == 1 or sum(len(each.text) for each in chunk.documents) <= 20
        )
    assert list(chunks.chunks_of([])) == []


def test_no_more_than_a_few_chunks_are_held_however_long_the_corpus(small, monkeypatch):
    monkeypatch.setattr(surveys, "SURVEY_TOKENS", 20)
    alive, most = weakref.WeakSet(), [0]

    def documents():
        for index in range(12 * CHUNK):
            made = Document(f"the cat {index}", "x")
            alive.add(made)
            most[0] = max(most[0], len(alive))
            yield made
            del made

    mh.measure(tiny_lm(), documents(), ["entropy"])
    assert most[0] <= 4 * CHUNK + 1  # the head, the chunk in hand, the next, and one that is being put together


@pytest.mark.slow
def test_memory_is_the_same_for_ten_times_the_sentences():
    """The whole process, at its largest: 4,000 sentences against 40,000."""
    peaks = [
        int(subprocess.run([sys.executable, "-c", PEAK, str(count)], capture_output=True, check=True, text=True).stdout)
        for count in (4_000, 40_000)
    ]
    assert peaks[1] < peaks[0] + 30_000, peaks  # kB


PEAK = """
import resource, sys
import manyheads as mh
from tests.measurement.corpus_runs import STATISTICS, some_texts, tiny_lm

some, count = some_texts(500), int(sys.argv[1])
table = mh.measure(tiny_lm(), (f"{some[i % 500]} {i}" for i in range(count)), STATISTICS, kinds=True)
assert table.sums.num_texts >= count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_nothing_of_a_stream_is_read_before_it_is_needed(small, monkeypatch):
    monkeypatch.setattr(surveys, "SURVEY_TOKENS", 60)
    read, done = [], []

    def documents():
        for index in range(5 * CHUNK):
            read.append(index)
            yield f"the cat sat on {index}"

    mh.measure(tiny_lm(), documents(), ["entropy"], progress=lambda at, _: done.append((at, len(read))))
    head = next(count for at, count in done if at == 0)
    assert 2 * CHUNK <= head <= 2 * CHUNK + 1  # the head, one chunk more to see whether it is all, the next one's first
    assert all(count <= at + 3 * CHUNK for at, count in done)


def test_what_is_no_text_at_all_is_refused_and_what_is_none_among_texts_is_named(unchecked_types):
    lm = tiny_lm()
    refuses(TextError, "no text was given: a stream of texts holds none", mh.measure, lm, iter(()))
    table = mh.measure(lm, iter(["the cat", 3]), ["entropy"])
    assert [each.reason for each in table.failures] == ["it is of type int, not a text"] and table.sums.num_texts == 1
    refuses(TextError, "texts is a dict: give a text, or a list of texts", mh.measure, lm, {"the": "cat"})
    refuses(TextError, "is not a way to read a long text", mh.measure, lm, mh.Inputs(iter(["the cat"]), long="somehow"))
    with pytest.raises(StatisticError, match="resume=, engine= and statistics made from a survey are for texts"):
        mh.measure(lm, mh.Inputs(image=torch.zeros(3, 3, 3)), resume="x")


# -------------------------------------------------------------------------------------------------------------- survey


def test_statistics_may_be_made_from_the_head_of_the_corpus(small, monkeypatch):
    monkeypatch.setattr(surveys, "SURVEY_TOKENS", 60)
    documents = [Document(text, f"d{at}", at=at + 1) for at, text in enumerate(some_texts(5 * CHUNK))]
    seen = []

    def wanted(survey):
        seen.append(survey)
        name = f"of_{len(survey.documents)}"
        return ["entropy", class_mass(name, lambda tokens: tokens.first, "the first token", source="a test")]

    table = mh.measure(tiny_lm(), iter(documents), wanted)
    assert seen[0].documents == tuple(documents[:CHUNK]) and not seen[0].whole
    assert table.names == ("entropy", f"of_{CHUNK}") and table.sums.num_texts == len(documents)
    assert table.notes["surveyed"].startswith(f"the first {CHUNK} texts")
    whole = mh.measure(tiny_lm(), documents[:CHUNK], wanted)
    assert seen[1].documents[-1].text == documents[CHUNK - 1].text and seen[1].whole
    assert whole.notes["surveyed"].startswith(f"all {CHUNK} texts")


def test_rarity_and_sinks_are_learned_from_the_head(small, monkeypatch, fresh):
    monkeypatch.setattr(surveys, "SURVEY_TOKENS", 60)
    monkeypatch.setattr("manyheads.inputs.pieces.CORPUS_TOKENS", 60)
    lm, head, rest = tiny_lm(draw(fresh)), some_texts(CHUNK, 1), some_texts(3 * CHUNK, 2)
    got = mh.measure(lm, iter(head + rest), ["rare_mass", "sink_mass"])
    assert got.notes["rarity"].startswith("counts over the first ")
    of_head = mh.measure(lm, head, ["rare_mass", "sink_mass"])
    assert got.sinks == of_head.sinks
    other = mh.measure(lm, iter(rest + head), ["rare_mass", "sink_mass"])
    assert (got.column("rare_mass") != other.column("rare_mass")).any()  # another head, another rarity
    assert mh.measure(lm, iter(head), ["entropy"]).sinks.because == "not looked for"


# --------------------------------------------------------------------------------------------------------------- gold


def gold_of(text: str) -> Gold:
    words, at = [], 0
    for index, word in enumerate(text.split()):
        begin = text.index(word, at)
        words.append(GoldWord(begin, begin + len(word), "NOUN", index - 1 if index else ROOT, "dep"))
        at = begin + len(word)
    return Gold(tuple(words))


def test_gold_reaches_the_statistics_and_a_text_that_is_cut_has_none(small, fresh):
    seen = []

    def finish(facts):
        seen.extend(zip(facts.tokens.texts, facts.tokens.gold, strict=True))
        return facts.over_rows(facts.rows[:, None].double())

    mine = Statistic(
        name="mine",
        unit="share",
        range=(0.0, 1.0),
        source="a test",
        meaning="a test",
        needs=lambda _: (),
        finish=finish,
    )
    texts = [*some_texts(2 * CHUNK, draw(fresh)), "the cat " * 50]
    # By its length: of two texts that happen to be equal, both have gold or none.
    documents = [Document(text, "x", gold_of(text) if len(text) % 3 else None) for text in texts]
    for given in (iter(documents), documents):  # a list in memory too
        seen.clear()
        table = mh.measure(tiny_lm(), given, [mine])
        gold = dict(seen)
        assert all(gold[each.text] == each.gold for each in documents[:-1])
        windows = [found for text, found in seen if text not in texts]
        assert windows and all(found is None for found in windows)
    table = mh.measure(tiny_lm(), iter(documents), [mine])
    assert table.notes["gold"] == "left out of 1 text too long to be read whole"
    assert "1 of 21 texts is longer than the model's positions: read in 2 windows" in table.notes["windows"]


# ------------------------------------------------------------------------------------------------------------ progress


def test_progress_is_in_the_corpus_own_units_and_comes_to_its_end(small):
    texts = some_texts(3 * CHUNK)
    documents = [Document(text, "x", at=7 * (at + 1)) for at, text in enumerate(texts)]
    seen = []
    mh.measure(
        tiny_lm(),
        Corpus(lambda: iter(documents), "a test", "key", 1000),
        ["entropy"],
        progress=lambda *at: seen.append(at),
    )
    assert seen == sorted(seen) and seen[0] == (0, 1000) and seen[-1] == (1000, 1000)
    assert len(seen) > 6 and (7 * len(texts), 1000) in seen
    seen.clear()
    mh.measure(tiny_lm(), iter(texts), ["entropy"], progress=lambda *at: seen.append(at))
    assert seen[-1] == (len(texts), None) and {total for _, total in seen} == {None}


def test_denominators_that_heads_share_are_kept_once_and_shown_for_each(fresh, monkeypatch):
    """A statistic whose heads have denominators of their own in some batches alone."""

    def finish(facts):
        num = facts.layer.lse.double().sigmoid().masked_fill(~facts.rows[:, None], 0).sum(-1)
        long = facts.tokens.longest > 9
        return PerText(num, num.abs() + 1 if long else facts.rows.sum(-1, dtype=torch.float64)[:, None])

    mine = Statistic(
        name="mine",
        unit="share",
        range=(0.0, 1.0),
        source="a test",
        meaning="a test",
        needs=lambda _: (),
        finish=finish,
    )
    lm, texts = tiny_lm(draw(fresh)), ["the cat", "a dog sat", " ".join(["the old cat sat"] * 4), "one two"]
    apart = [mh.measure(lm, text, ["entropy", mine]).sums for text in texts]
    together = apart[0] + apart[1] + apart[2] + apart[3]
    monkeypatch.setattr(chunks, "BATCH_TOKENS", 18)
    for order in (texts, texts[::-1], texts[2:] + texts[:2]):
        in_batches = mh.measure(lm, iter(order), ["entropy", mine]).sums
        np.testing.assert_allclose(in_batches.den, together.den, rtol=1e-5)
        np.testing.assert_allclose(in_batches.num, together.num, rtol=1e-5)


def breaking(word: str, error: type[BaseException] = StatisticError) -> Statistic:
    """A statistic that cannot bear a word."""

    def finish(facts):
        if any(word in text.split() for text in facts.tokens.texts):
            raise error(f"what is {word}?")
        return facts.over_rows(facts.rows[:, None].double())

    return Statistic(
        name="breaking",
        unit="share",
        range=(0.0, 1.0),
        source="a test",
        meaning="a test",
        needs=lambda _: (),
        finish=finish,
    )


def test_texts_that_fail_are_named_counted_and_left_out(small, fresh):
    lm, texts = tiny_lm(draw(fresh)), [text for text in some_texts(25, draw(fresh)) if "king" not in text.split()]
    good = mh.measure(lm, iter(texts), ["entropy", breaking("nothing")], sinks=Sinks())
    documents = [Document(text, f"page:{at}") for at, text in enumerate(texts)]
    bad = {3: "the king sat", 7: "  ", 20: "a king", 21: "\n"}
    for at, text in sorted(bad.items()):
        documents.insert(at, Document(text, f"bad:{at}"))
    documents.append(Document("", "bad:last", problem="a broken line"))
    found = mh.measure(lm, iter(documents), ["entropy", breaking("king")], sinks=Sinks())
    assert_near(found, good)
    assert found.failures.count == len(found.failures) == 5
    assert [each.name for each in found.failures] == [*(f"bad:{at}" for at in sorted(bad)), "bad:last"]
    assert [each.number for each in found.failures] == [*sorted(bad), len(documents) - 1]
    reasons = [each.reason for each in found.failures]
    assert reasons[0] == reasons[2] == "StatisticError: what is king?" and reasons[4] == "a broken line"
    assert reasons[1] == reasons[3] == "the text is empty: give at least one word"
    said = found.notes["failed"]
    assert said.startswith("5 texts could not be measured: bad:3: StatisticError: what is king?; bad:7: ")
    assert said.endswith("; and 2 more")
    assert found.notes["corpus"] == f"a stream of texts ({len(documents):,} read)"


def test_only_the_first_failures_are_kept_by_name_and_where_all_fail_the_first_is_raised_itself(small):
    texts = [text for _ in range(NAMED + 5) for text in (" ", "the cat")]
    table = mh.measure(tiny_lm(), iter(texts), ["entropy"])
    assert table.failures.count == NAMED + 5 and len(table.failures.named) == NAMED
    assert [each.number for each in table.failures] == list(range(0, 2 * NAMED, 2))
    refuses(StatisticError, "what is king?", mh.measure, tiny_lm(), iter(["the king"] * CHUNK), [breaking("king")])
    message = r"no text of a stream of texts could be measured: 2 texts could not be .* empty"
    refuses(TextError, message, mh.measure, tiny_lm(), iter(["", " "]), ["entropy"])

    class Broken(type(tiny_tokenizer())):
        def __call__(self, *args, **kwargs):
            raise ZeroDivisionError("a broken tokenizer")

    lm = tiny_lm()
    lm.tokenizer.__class__ = Broken
    with pytest.raises(ZeroDivisionError, match="a broken tokenizer"):
        mh.measure(lm, iter(["the cat"] * 5), ["entropy"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError, torch.OutOfMemoryError, SystemExit])
def test_what_is_no_texts_fault_goes_through(error, small):
    with pytest.raises((error, mh.errors.ModelError), match="what is zebra"):
        mh.measure(tiny_lm(), iter([*some_texts(CHUNK), "the zebra king"]), [breaking("zebra", error)])


def test_errors_of_memory_are_known_however_they_are_wrapped():
    def wrapped(inner):
        try:
            try:
                raise inner
            except BaseException as error:
                raise mh.errors.ModelError("could not read its input") from error
        except mh.errors.ModelError as error:
            return error

    assert not is_about_texts(wrapped(torch.OutOfMemoryError("CUDA out of memory")))
    assert not is_about_texts(wrapped(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")))
    assert is_about_texts(wrapped(IndexError("index out of range in self"))) and is_about_texts(GuardError("no"))


def test_a_text_that_one_tokenizer_call_cannot_read_costs_no_other_and_failures_add_in_any_order(small, fresh):
    lm, texts = tiny_lm(draw(fresh)), some_texts(20, draw(fresh))
    table = mh.measure(lm, iter([*texts[:5], "a \ud800 cat", *texts[5:]]), ["entropy"])
    assert table.failures.count == 1 and table.failures.named[0].number == 5
    assert table.sums.num_texts == 20
    every = [(number, f"d{number}", "why") for number in range(50)]
    parts = [Failures.of([Failure(*each) for each in every[start::3]]) for start in (2, 0, 1)]
    assert parts[0] + parts[1] + parts[2] == Failures.of([Failure(*each) for each in every])
    assert Failures.read((parts[0] + parts[1]).to_dict()) == parts[1] + parts[0]


def test_a_block_that_gives_nan_is_refused_by_name():
    def compute(facts):
        ones = facts.rows.sum(-1).double()[:, None, None].expand(-1, facts.layer.q.shape[1], 3).clone()
        ones[..., 1] = torch.nan
        return ones, torch.ones_like(ones[:, :1])

    block = Block("mine", compute)

    def unused(facts):
        raise AssertionError("a column of a block has no finish of its own")

    def column(name, at):
        return Statistic(
            name=name,
            unit="share",
            range=(0.0, 1.0),
            source="a test",
            meaning="a test",
            needs=lambda _: (),
            finish=unused,
            block=block,
            column=at,
        )

    lm, texts = tiny_lm(), ["the cat", "a dog sat"]
    fine = mh.measure(lm, texts, [column("c", 2), "entropy", column("a", 0)])
    assert (fine.column("a") == fine.column("c")).all() and (fine.column("a") > 0).all()
    with pytest.raises(StatisticError, match=r"block 'mine' \('b'\) gave NaN or infinity, which would spread"):
        mh.measure(lm, texts, [column("a", 0), column("b", 1), "entropy"])


# ==================================================================================================== parts of a corpus
# Parts of a corpus, measured apart and carried anywhere, add to what one run measures; wrong parts are named.
#
# In float64, where a text's numbers do not depend on its company in a batch: then 1e-12 is a bound on the order of
# sums.

EXACT = 1e-12
TREEBANK = Path(os.environ.get("MANYHEADS_GOLD", "none")) / "en_ewt-ud-dev.conllu"


def double_lm(seed: int = 0):
    return mh.load(tiny_bert(seed=seed, num_hidden_layers=1).double(), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def one_layer():
    return double_lm()


def assert_equal_to_one_run(got, want) -> None:
    """To 1e-12 of the largest number of a statistic: sums of texts in another order."""
    assert got.failures == want.failures and got.names == want.names and got.sites == want.sites
    assert (got.sums.num_texts, got.sums.num_tokens) == (want.sums.num_texts, want.sums.num_tokens)
    for name in ("num", "den", "moments", "maxima"):
        one, two = getattr(got.sums, name), getattr(want.sums, name)
        np.testing.assert_allclose(one, two, rtol=EXACT, atol=EXACT * np.abs(two[np.isfinite(two)]).max(initial=0.0))
    if want.kinds is not None:
        assert got.kinds.ids.tolist() == want.kinds.ids.tolist()
        np.testing.assert_allclose(got.kinds.mass, want.kinds.mass, rtol=EXACT, atol=EXACT)


def test_shards_that_were_pickled_saved_and_left_in_runs_folders_add_to_one_run(one_layer, tmp_path, fresh):
    texts = [*some_texts(40), "", *some_texts(13, seed=1)]
    want = mh.measure(one_layer, iter(texts), STATISTICS, kinds=True)
    corpus, parts = as_corpus(texts), []
    for index in range(7):
        sums = mh.HeadSums(one_layer, STATISTICS, kinds=True)
        folder = tmp_path / f"run-{index}"
        sums.update(corpus.shard(index, 7), resume=folder)
        sums.save(tmp_path / f"{index}.sums")
        carried = (
            pickle.loads(pickle.dumps(sums)),
            mh.HeadSums.open(tmp_path / f"{index}.sums"),
            mh.HeadSums.open(folder / "finished.safetensors"),
        )
        parts.append(carried[index % 3])
    random.Random(int(fresh.initial_seed())).shuffle(parts)
    before = parts[0].num_texts
    total = sum(parts)
    assert parts[0].num_texts == before, "adding must not change what is added"
    assert total.missing == () and total.num_texts == 53 and sum(total.parts.values()) == len(texts)
    assert_equal_to_one_run(total.table(), want)
    assert total.table().notes["parts"] == "7" and "parts" not in want.notes
    some = sum(parts[:5])
    assert sorted((*some.missing, *(int(name.split("/")[0]) for name in some.parts))) == [*range(7)]
    refuses(StatisticError, r"2 of 7 shards are missing: \d, \d\. Measure them", require_whole, some)
    assert some.table().notes["parts"].startswith("5 of 7, without ")
    with pytest.raises(StatisticError, match=r"both hold shard \d/7, which would count twice"):
        some + parts[2]


def test_sums_compute_merge_and_reset_as_torchmetrics_metrics_do(one_layer):
    """`merge_state` and `reset` work in place, return None, and leave what is merged as it was (torchmetrics 1.9)."""
    texts, names = some_texts(9), ["entropy", "sink_mass"]
    one, two = (mh.HeadSums(one_layer, names, survey=texts).update(some) for some in (texts[:5], texts[5:]))
    assert one.merge_state(two) is None and (one.num_texts, two.num_texts) == (9, 4)
    assert_equal_to_one_run(one.compute(), mh.measure(one_layer, iter(texts), names))
    assert one.reset() is None and one.num_texts == 0 and not one.parts and two.num_texts == 4
    refuses(StatisticError, "these sums hold no text", one.compute)
    one.update(texts[5:])  # it has its model still, and what was merged before is no part of it
    assert_equal_to_one_run(one.compute(), two.compute())
    refuses(StatisticError, "merge_state takes HeadSums, and this is a dict", one.merge_state, {})
    refuses(StatisticError, "both hold the same texts, which would count twice", one.merge_state, two)


def test_the_batches_of_a_run_that_was_killed_are_parts_too(one_layer, tmp_path, monkeypatch):
    patch_small_batches(monkeypatch)
    monkeypatch.setattr(store, "MERGE_BYTES", 1 << 30)
    texts = some_texts(3 * CHUNK)
    corpus = as_corpus(texts)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.RunFolder, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        mh.HeadSums(one_layer, STATISTICS).update(corpus.shard(1, 2), resume=tmp_path)
    batches = sorted(tmp_path.glob("part-*"))
    other = mh.HeadSums(one_layer, STATISTICS).update(corpus.shard(0, 2))
    total = sum(map(mh.HeadSums.open, batches), other)
    assert_equal_to_one_run(total.table(), mh.measure(one_layer, iter(texts), STATISTICS))
    assert len(batches) > 3 and total.missing == (1,), "nobody knows that a run is whole before its end"
    with pytest.raises(StatisticError, match="both hold the same texts"):
        total + mh.HeadSums.open(batches[2])


@pytest.mark.slow
def test_texts_that_come_as_they_come_are_surveyed_alike_and_known_by_their_digest(one_layer, monkeypatch):
    texts = some_texts(20)
    heads = []
    monkeypatch.setattr(workers, "read_head", lambda *given, real=workers.read_head: heads.append(1) or real(*given))
    one = mh.HeadSums(one_layer, STATISTICS).update(texts[:5]).update(iter(texts[5:9])).update(texts[:5])
    assert len(heads) == 1, "the survey is made once"
    whole = mh.HeadSums(one_layer, STATISTICS).update([*texts, *texts[:5]])
    both = one + mh.HeadSums(one_layer, STATISTICS).update(texts[9:])
    assert_equal_to_one_run(both.table(), whole.table())
    again = mh.HeadSums(one_layer, STATISTICS).update(texts[:5]).update(texts[:5]).update(iter(texts[5:9]))
    with pytest.raises(StatisticError, match="both hold the same texts, which would count twice"):
        both + again
    surveyed = mh.HeadSums(one_layer, STATISTICS, survey=texts).update(texts[:5])
    with pytest.raises(StatisticError, match=r"differ in surveyed texts \(\w+ in these sums, \w+ in what is added\)"):
        one + surveyed
    assert_equal_to_one_run(
        (surveyed + mh.HeadSums(one_layer, STATISTICS, survey=texts).update(texts[5:])).table(),
        mh.measure(one_layer, iter(texts), STATISTICS),
    )


@pytest.mark.parametrize("by", ["text", "file"])
def test_shards_have_every_text_once_and_those_by_file_open_their_own_alone(by, tmp_path, monkeypatch):
    for number, count in enumerate((3, 1, 4, 2, 5)):
        lines = [f"text {index} of file {number}" for index in range(count)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    corpus = open_corpus(sorted(tmp_path.iterdir()), lines=True)
    everything = [document.text for document in corpus.open()]
    shards = [[document.text for document in corpus.shard(index, 3, by).open()] for index in range(3)]
    assert sorted(text for shard in shards for text in shard) == sorted(everything) and all(shards)
    if by == "text":
        assert shards == [everything[index::3] for index in range(3)]
    else:
        assert {text[-1] for text in shards[1]} == {"1", "4"}
        shard = corpus.shard(1, 3, by)
        assert shard.total == sum((tmp_path / f"{n}.txt").stat().st_size for n in (1, 4))
        assert [document.at for document in shard.open()][-1] == shard.total
        os.truncate(tmp_path / "0.txt", 0)  # a file of another shard
        assert [document.text for document in shard.open()] == shards[1]


def test_a_shard_without_texts_or_with_bad_ones_alone_is_a_part(one_layer):
    corpus = as_corpus(["the cat sat", "  ", "a dog"])
    parts = [mh.HeadSums(one_layer, "entropy").update(corpus.shard(index, 5)) for index in range(5)]
    assert [(part.num_texts, part.failures.count) for part in parts] == [(1, 0), (0, 1), (1, 0), (0, 0), (0, 0)]
    total = sum(map(pickle.loads, map(pickle.dumps, parts)))
    assert total.missing == () and [failure.number for failure in total.failures] == [1]
    assert_equal_to_one_run(total.table(), mh.measure(one_layer, iter(["the cat sat", "  ", "a dog"]), "entropy"))
    refuses(StatisticError, "these sums hold no text, .*: 1 text could not be measured", parts[1].table)


OTHERS = {
    "model's weights": lambda lm: mh.HeadSums(double_lm(seed=1), "entropy"),
    "dtype": lambda lm: mh.HeadSums(mh.load(tiny_bert(num_hidden_layers=1), tokenizer=tiny_tokenizer()), "entropy"),
    r"statistics \(entropy in .*, distance in .*\)": lambda lm: mh.HeadSums(lm, "distance"),
    "kinds": lambda lm: mh.HeadSums(lm, "entropy", kinds=True),
    "long": lambda lm: mh.HeadSums(lm, "entropy", long="truncate"),
    "sinks": lambda lm: mh.HeadSums(lm, "entropy", sinks=mh.measure(lm, ["the cat"], "sink_mass").sinks),
    r"reading \(texts in .*, passages in .*\)": lambda lm: mh.HeadSums(lm, "entropy", reading="passages"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_parts_of_anything_else_are_refused_by_what_differs(what, one_layer):
    one, other = mh.HeadSums(one_layer, "entropy"), OTHERS[what](one_layer)
    corpus = as_corpus(some_texts(4))
    one.update(corpus.shard(0, 2))
    other.update(corpus.shard(1, 2))
    with pytest.raises(
        StatisticError, match=f"these sums and what is added cannot be added, since they differ in .*{what}"
    ):
        one + other
    divided = mh.HeadSums(one_layer, "entropy").update(corpus.shard(1, 3))
    with pytest.raises(
        StatisticError, match=r"differ in shard \(2 by text in these sums, 3 by text in what is added\)"
    ):
        one + divided


def test_files_that_do_not_add_are_named(one_layer, tmp_path):
    corpus = as_corpus(some_texts(4))
    paths = [tmp_path / f"{name}.sums" for name in "abcd"]
    for path, names, index in zip(paths, ("entropy", "entropy", "distance", "entropy"), (0, 1, 1, 0), strict=True):
        mh.HeadSums(one_layer, names).update(corpus.shard(index, 2)).save(path)
    (whole,) = merged_sums(paths[:2])
    assert_equal_to_one_run(whole.table(), mh.measure(one_layer, corpus, "entropy"))
    message = r"a\.sums and .*c\.sums cannot be added, .* \(entropy in .*a\.sums, distance in"
    refuses(StatisticError, message, merged_sums, [paths[0], paths[2]])
    refuses(StatisticError, r"a\.sums and .*d\.sums both hold shard 0/2", merged_sums, [paths[0], paths[1], paths[3]])


def test_what_is_no_part_is_refused_in_one_line(one_layer, tmp_path, monkeypatch):
    sums = mh.HeadSums(one_layer, "entropy")
    refuses(StatisticError, "nothing was measured, so there is nothing to save", sums.save, tmp_path / "x.sums")
    refuses(StatisticError, "these sums hold no text", sums.table)
    path = tmp_path / "a.sums"
    sums.update(["the cat sat"]).save(path)
    with safe_open(path, "pt") as file:
        assert file.metadata()["format_version"] == str(store.VERSION)
    with pytest.raises(StatisticError, match="these sums came from a file, .* without their model: make HeadSums"):
        mh.HeadSums.open(path).update(["a dog"])
    with pytest.raises(FileAccessError, match=r"is a folder: name a file of sums; .* finished\.safetensors, which"):
        mh.HeadSums.open(tmp_path)
    mh.HeadSums(one_layer, "entropy").update(as_corpus(["the cat"]).shard(0, 1), resume=tmp_path / "run" / "texts")
    with pytest.raises(FileAccessError, match=r"for a run that is done, \S*run.texts.finished\.safetensors\."):
        mh.HeadSums.open(tmp_path / "run")
    (tmp_path / "b.sums").write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StatisticError, match=r"b\.sums holds no sums of heads that can be read: .* is cut off"):
        mh.HeadSums.open(tmp_path / "b.sums")
    monkeypatch.setattr(store, "VERSION", store.VERSION + 1)
    monkeypatch.setattr(store, "OLDEST", store.VERSION)
    refuses(StatisticError, "was written by an older manyheads", mh.HeadSums.open, path)
    corpus = as_corpus(["the cat"])
    for shard, message in {
        (3, 3): "there is no shard 3/3: shards are counted from 0, so 3 of them are 0/3 to 2/3",
        (0, 0): "there is no shard 0/0",
        (0, 2, "word"): "divided by text or file, not by 'word'",
        (0, 2, "file"): "shards by file need a file each, and 1 text has 0 for 2 shards",
    }.items():
        refuses(TextError, message, corpus.shard, *shard)
    with pytest.raises(TextError, match="can be read once only, and a shard reads the beginning of it twice"):
        as_corpus(iter(["the cat"])).shard(0, 2)
    refuses(TextError, "is a shard already", corpus.shard(0, 2).shard, 0, 2)


@pytest.mark.slow  # 512 runs
@pytest.mark.skipif(not TREEBANK.is_file(), reason="no treebank")
def test_512_parts_of_a_treebank_in_any_order_are_one_run(one_layer, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")  # which others may be editing in these minutes
    corpus = as_corpus(list(open_corpus(TREEBANK).open()))
    # Not the chance levels of shuffled words (*.relabelled): they are rounded to float32 whatever the model's dtype.
    names = [
        "entropy",
        "sink_mass",
        "rare_mass",
        "max_logit",
        "det.to_governor",
        "det.to_governor.norm",
        "nsubj.to_*.given",
    ]
    want = mh.measure(one_layer, corpus, names)
    paths: list[Path] = []
    prepared = None
    for index in range(512):
        paths.append(tmp_path / f"{index}.sums")
        sums = mh.HeadSums(one_layer, names)
        # The first and the last make the survey by themselves, a second each; it is the same for all.
        sums._prepared = prepared if 0 < index < 511 else None
        sums.update(corpus.shard(index, 512)).save(paths[-1])
        prepared = sums._prepared
    for seed in range(3):
        random.Random(seed).shuffle(paths)
        (total,) = merged_sums(paths)
        require_whole(total)
        assert_equal_to_one_run(total.table(), want)


def test_roles_of_merged_shards_are_those_of_one_run(one_layer):
    corpus = as_corpus(some_texts(60))
    want = mh.find_roles(one_layer, corpus, examples=0)
    by_part = [role_sums(one_layer, corpus.shard(index, 3)) for index in range(3)]
    got = roles_of([sum(readings).table() for readings in zip(*by_part, strict=True)])
    assert [(role.head, role.name) for role in got] == [(role.head, role.name) for role in want]
    assert_equal_to_one_run(got.table, want.table)
    assert_same_tables(got.table, want.table, within=1e-9)
    one, two = got.claims_to_pandas(), want.claims_to_pandas()
    assert list(one["role"]) == list(two["role"])
    np.testing.assert_allclose(one["score"], two["score"], rtol=1e-9, equal_nan=True)
