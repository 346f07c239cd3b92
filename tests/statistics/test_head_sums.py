"""Parts of a corpus, measured apart and carried anywhere, add to what one run measures; wrong parts are named.

In float64, where a text's numbers do not depend on its company in a batch: then 1e-12 is a bound on the order of sums.
"""

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import manyheads as mh
from manyheads.corpora import as_corpus, open_corpus
from manyheads.errors import FileAccessError, StatisticError, TextError
from manyheads.roles import role_sums, roles_of
from manyheads.statistics import merged_sums, require_whole
from manyheads.statistics.corpus_run import chunks, store
from manyheads.statistics.corpus_run import run as workers
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.statistics.corpus_runs import CHUNK, STATISTICS, assert_same_tables, patch_small_batches, some_texts

EXACT = 1e-12
TREEBANK = Path(os.environ.get("MANYHEADS_GOLD", "none")) / "en_ewt-ud-dev.conllu"


def double_lm(seed: int = 0):
    return mh.load(tiny_bert(seed=seed, num_hidden_layers=1).double(), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def lm():
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


@pytest.mark.turns(4)
def test_shards_that_were_pickled_saved_and_left_in_runs_folders_add_to_one_run(lm, tmp_path, fresh):
    texts = [*some_texts(40), "", *some_texts(13, seed=1)]
    want = mh.measure(lm, iter(texts), STATISTICS, kinds=True)
    corpus, parts = as_corpus(texts), []
    for index in range(7):
        sums = mh.HeadSums(lm, STATISTICS, kinds=True)
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
    with pytest.raises(StatisticError, match=r"2 of 7 shards are missing: \d, \d\. Measure them"):
        require_whole(some)
    assert some.table().notes["parts"].startswith("5 of 7, without ")
    with pytest.raises(StatisticError, match=r"both hold shard \d/7, which would count twice"):
        some + parts[2]


@pytest.mark.turns(4)
def test_the_batches_of_a_run_that_was_killed_are_parts_too(lm, tmp_path, monkeypatch):
    patch_small_batches(monkeypatch)
    monkeypatch.setattr(store, "MERGE_BYTES", 1 << 30)
    texts = some_texts(3 * CHUNK)
    corpus = as_corpus(texts)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.RunFolder, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        mh.HeadSums(lm, STATISTICS).update(corpus.shard(1, 2), resume=tmp_path)
    batches = sorted(tmp_path.glob("part-*"))
    other = mh.HeadSums(lm, STATISTICS).update(corpus.shard(0, 2))
    total = sum(map(mh.HeadSums.open, batches), other)
    assert_equal_to_one_run(total.table(), mh.measure(lm, iter(texts), STATISTICS))
    assert len(batches) > 3 and total.missing == (1,), "nobody knows that a run is whole before its end"
    with pytest.raises(StatisticError, match="both hold the same texts"):
        total + mh.HeadSums.open(batches[2])


@pytest.mark.turns(4)
def test_texts_that_come_as_they_come_are_surveyed_alike_and_known_by_their_digest(lm, monkeypatch):
    texts = some_texts(20)
    heads = []
    monkeypatch.setattr(workers, "read_head", lambda *given, real=workers.read_head: heads.append(1) or real(*given))
    one = mh.HeadSums(lm, STATISTICS).update(texts[:5]).update(iter(texts[5:9])).update(texts[:5])
    assert len(heads) == 1, "the survey is made once"
    whole = mh.HeadSums(lm, STATISTICS).update([*texts, *texts[:5]])
    both = one + mh.HeadSums(lm, STATISTICS).update(texts[9:])
    assert_equal_to_one_run(both.table(), whole.table())
    again = mh.HeadSums(lm, STATISTICS).update(texts[:5]).update(texts[:5]).update(iter(texts[5:9]))
    with pytest.raises(StatisticError, match="both hold the same texts, which would count twice"):
        both + again
    surveyed = mh.HeadSums(lm, STATISTICS, survey=texts).update(texts[:5])
    with pytest.raises(StatisticError, match=r"differ in surveyed texts \(\w+ in these sums, \w+ in what is added\)"):
        one + surveyed
    assert_equal_to_one_run(
        (surveyed + mh.HeadSums(lm, STATISTICS, survey=texts).update(texts[5:])).table(),
        mh.measure(lm, iter(texts), STATISTICS),
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


def test_a_shard_without_texts_or_with_bad_ones_alone_is_a_part(lm):
    corpus = as_corpus(["the cat sat", "  ", "a dog"])
    parts = [mh.HeadSums(lm, "entropy").update(corpus.shard(index, 5)) for index in range(5)]
    assert [(part.num_texts, part.failures.count) for part in parts] == [(1, 0), (0, 1), (1, 0), (0, 0), (0, 0)]
    total = sum(map(pickle.loads, map(pickle.dumps, parts)))
    assert total.missing == () and [failure.number for failure in total.failures] == [1]
    assert_equal_to_one_run(total.table(), mh.measure(lm, iter(["the cat sat", "  ", "a dog"]), "entropy"))
    with pytest.raises(StatisticError, match="these sums are of no text, .*: 1 text could not be measured"):
        parts[1].table()


OTHERS = {
    "model's weights": lambda lm: mh.HeadSums(double_lm(seed=1), "entropy"),
    "dtype": lambda lm: mh.HeadSums(mh.load(tiny_bert(num_hidden_layers=1), tokenizer=tiny_tokenizer()), "entropy"),
    r"statistics \(entropy in .*, distance in .*\)": lambda lm: mh.HeadSums(lm, "distance"),
    "kinds": lambda lm: mh.HeadSums(lm, "entropy", kinds=True),
    "long": lambda lm: mh.HeadSums(lm, "entropy", long="truncate"),
    "sinks": lambda lm: mh.HeadSums(lm, "entropy", sinks=mh.measure(lm, ["the cat"], "sink_mass").sinks),
    r"reading \(texts in .*, passages in .*\)": lambda lm: mh.HeadSums(lm, "entropy", reading="passages"),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.sampled(3)
def test_parts_of_anything_else_are_refused_by_what_differs(what, lm):
    one, other = mh.HeadSums(lm, "entropy"), OTHERS[what](lm)
    corpus = as_corpus(some_texts(4))
    one.update(corpus.shard(0, 2))
    other.update(corpus.shard(1, 2))
    with pytest.raises(StatisticError, match=f"these sums and what is added do not add, since they differ in .*{what}"):
        one + other
    divided = mh.HeadSums(lm, "entropy").update(corpus.shard(1, 3))
    with pytest.raises(
        StatisticError, match=r"differ in shard \(2 by text in these sums, 3 by text in what is added\)"
    ):
        one + divided


def test_files_that_do_not_add_are_named(lm, tmp_path):
    corpus = as_corpus(some_texts(4))
    paths = [tmp_path / f"{name}.sums" for name in "abcd"]
    for path, names, index in zip(paths, ("entropy", "entropy", "distance", "entropy"), (0, 1, 1, 0), strict=True):
        mh.HeadSums(lm, names).update(corpus.shard(index, 2)).save(path)
    (whole,) = merged_sums(paths[:2])
    assert_equal_to_one_run(whole.table(), mh.measure(lm, corpus, "entropy"))
    with pytest.raises(
        StatisticError, match=r"a\.sums and .*c\.sums do not add, .* \(entropy in .*a\.sums, distance in"
    ):
        merged_sums([paths[0], paths[2]])
    with pytest.raises(StatisticError, match=r"a\.sums and .*d\.sums both hold shard 0/2"):
        merged_sums([paths[0], paths[1], paths[3]])


def test_what_is_no_part_is_refused_in_one_line(lm, tmp_path, monkeypatch):
    sums = mh.HeadSums(lm, "entropy")
    with pytest.raises(StatisticError, match="nothing was measured, so there is nothing to save"):
        sums.save(tmp_path / "x.sums")
    with pytest.raises(StatisticError, match="these sums are of no text"):
        sums.table()
    path = tmp_path / "a.sums"
    sums.update(["the cat sat"]).save(path)
    with safe_open(path, "pt") as file:
        assert file.metadata()["format_version"] == str(store.VERSION)
    with pytest.raises(StatisticError, match="these sums came from a file, .* without their model: make HeadSums"):
        mh.HeadSums.open(path).update(["a dog"])
    with pytest.raises(FileAccessError, match=r"is a folder: name a file of sums; .* finished\.safetensors, which"):
        mh.HeadSums.open(tmp_path)
    mh.HeadSums(lm, "entropy").update(as_corpus(["the cat"]).shard(0, 1), resume=tmp_path / "run" / "texts")
    with pytest.raises(FileAccessError, match=r"of a run that is done, \S*run.texts.finished\.safetensors\."):
        mh.HeadSums.open(tmp_path / "run")
    (tmp_path / "b.sums").write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StatisticError, match=r"b\.sums holds no sums of heads that can be read: .* is cut off"):
        mh.HeadSums.open(tmp_path / "b.sums")
    monkeypatch.setattr(store, "VERSION", store.VERSION + 1)
    with pytest.raises(StatisticError, match="was written by an older manyheads"):
        mh.HeadSums.open(path)
    corpus = as_corpus(["the cat"])
    for shard, message in {
        (3, 3): "there is no shard 3/3: shards are counted from 0, so 3 of them are 0/3 to 2/3",
        (0, 0): "there is no shard 0/0",
        (0, 2, "word"): "divided by text or file, not by 'word'",
        (0, 2, "file"): "shards by file need a file each, and 1 texts has 0 for 2 shards",
    }.items():
        with pytest.raises(TextError, match=message):
            corpus.shard(*shard)
    with pytest.raises(TextError, match="can be read once only, and a shard reads the beginning of it twice"):
        as_corpus(iter(["the cat"])).shard(0, 2)
    with pytest.raises(TextError, match="is a shard already"):
        corpus.shard(0, 2).shard(0, 2)


@pytest.mark.slow  # 512 runs
@pytest.mark.skipif(not TREEBANK.is_file(), reason="no treebank")
def test_512_parts_of_a_treebank_in_any_order_are_one_run(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")  # which others may be editing in these minutes
    corpus = as_corpus(list(open_corpus(TREEBANK).open()))
    # Not the chance levels of shuffled words (*.relabelled): they are rounded to float32 whatever the model's dtype.
    names = ["entropy", "sink_mass", "rare_mass", "max_logit", "det.to_head", "det.to_head.norm", "nsubj.to_*.given"]
    want = mh.measure(lm, corpus, names)
    paths: list[Path] = []
    prepared = None
    for index in range(512):
        paths.append(tmp_path / f"{index}.sums")
        sums = mh.HeadSums(lm, names)
        # The first and the last make the survey by themselves, a second each; it is the same for all.
        sums._prepared = prepared if 0 < index < 511 else None
        sums.update(corpus.shard(index, 512)).save(paths[-1])
        prepared = sums._prepared
    for seed in range(3):
        random.Random(seed).shuffle(paths)
        (total,) = merged_sums(paths)
        require_whole(total)
        assert_equal_to_one_run(total.table(), want)


@pytest.mark.turns(4)
def test_roles_of_merged_shards_are_those_of_one_run(lm):
    corpus = as_corpus(some_texts(60))
    want = mh.find_roles(lm, corpus, examples=0)
    by_part = [role_sums(lm, corpus.shard(index, 3)) for index in range(3)]
    got = roles_of([sum(readings).table() for readings in zip(*by_part, strict=True)])
    assert [(role.head, role.name) for role in got] == [(role.head, role.name) for role in want]
    assert_equal_to_one_run(got.table, want.table)
    assert_same_tables(got.table, want.table, within=1e-9)
    one, two = got.claims_to_pandas(), want.claims_to_pandas()
    assert list(one["role"]) == list(two["role"])
    np.testing.assert_allclose(one["score"], two["score"], rtol=1e-9, equal_nan=True)
