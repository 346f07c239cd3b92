"""Actors that read their own files count every text once, and come to the sums of the file shards, added.

Actors are functions (`fake_cluster`), texts are numbers: what comes out must be their sum and their count.
"""

import pickle
import random
import tempfile
from functools import partial
from pathlib import Path

import pytest

import manyheads as mh
from manyheads.corpora import as_corpus, open_corpus
from manyheads.errors import TextError
from manyheads.measurement.corpus_run import RunRequest, chunks, driver, store
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.file_driver import FileDriver
from tests.measurement.corpus_runs import STATISTICS, assert_same_tables, patch_few_texts, some_texts
from tests.measurement.fake_cluster import Chance, FakeActor, FakeCluster
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses

SIZES = (9, 0, 31, 4, 1, 17)  # texts of each file: one has none, one just fills a chunk
TEXTS = 4  # of a chunk
NUMBERS = [[str(100 * index + 7 * number) for number in range(size)] for index, size in enumerate(SIZES)]
TOTAL = sum(int(text) for texts in NUMBERS for text in texts)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", TEXTS)
    monkeypatch.setattr(driver.log, "disabled", True)  # a line for each death


def files_in(folder, texts):
    for index, lines in enumerate(texts):
        (folder / f"{index}.txt").write_text("\n".join(lines), encoding="utf-8")
    return open_corpus(folder, lines=True)


def driven(cluster, corpus, num_actors=3, **how):
    how = {"every": 5.0, "deaths": 10**6, "clock": cluster.clock, "sleep": cluster.sleep, **how}
    return FileDriver(cluster, corpus, num_actors, **how).run()


def assert_each_once(run):
    sums = run.total.sums
    assert float(sums.num[..., 0].sum()) == TOTAL
    assert float(sums.den[..., 0].sum()) == run.total.num_texts == sum(SIZES)
    ranges = [(index << 32, (index << 32) + -(-size // TEXTS)) for index, size in enumerate(SIZES) if size]
    assert [(first, stop) for first, stop, _ in run.total.done.whole] == ranges and not run.total.done.begun
    assert run.total.parts == {f"{index}/{len(SIZES)}": size for index, size in enumerate(SIZES)}
    assert not (run.events["refused"] or run.events["forgotten"])


class Stopped(KeyboardInterrupt):
    """The driver's process ends."""


@pytest.mark.parametrize("seed", [0, 1, pytest.param(range(2, 20), marks=pytest.mark.slow)])
def test_every_text_of_every_file_counts_once_whatever_dies(seed, tmp_path, monkeypatch):
    real = store.write_part
    monkeypatch.setattr(store, "write_part", lambda path, part, basis, flushed=True: real(path, part, basis, False))
    monkeypatch.setattr(driver, "PAIRED_BYTES", 0)
    corpus = files_in(tmp_path, NUMBERS)
    for one in seed if isinstance(seed, range) else [seed]:
        draw, seen = random.Random(one), []
        with tempfile.TemporaryDirectory() as folder:
            for stop in (draw.randint(1, 9), 0):

                def progress(done, total, seen=seen, stop=stop):
                    seen.append(done)
                    if len(seen) == stop:
                        raise Stopped

                seen.clear()
                cluster = FakeCluster(FakeActor, draw, Chance(dies=draw.choice([0.0, 0.05, 0.2]), unavailable=0.05))
                how = {"every": draw.choice([1.0, 5.0, 1e3]), "ahead": draw.randint(1, 3), "progress": progress}
                try:
                    run = driven(cluster, corpus, draw.randint(1, 8), folder=Path(folder), **how)
                except Stopped:
                    assert stop
                assert {*cluster.actors} == cluster.killed
            assert seen == sorted(seen) and seen[-1] == corpus.total
        assert_each_once(run)


def test_each_file_is_opened_once_and_by_one_actor(tmp_path, monkeypatch):
    corpus, opened = files_in(tmp_path, NUMBERS), []
    monkeypatch.setattr(
        chunks, "FileReading", lambda chunk, real=chunks.FileReading: opened.append(chunk.name) or real(chunk)
    )
    monkeypatch.setattr("manyheads.measurement.corpus_run.actor.FileReading", chunks.FileReading)
    assert_each_once(driven(FakeCluster(FakeActor), corpus, 4))
    assert sorted(opened) == [file.origin for file in corpus.files]
    opened.clear()
    assert_each_once(driven(FakeCluster(FakeActor), corpus, 1))
    assert [int(name[0]) for name in opened] == [2, 5, 0, 3, 4, 1], "the largest would be the last to end"


@pytest.mark.slow
def test_sums_are_those_of_the_file_shards_added(tmp_path, monkeypatch):
    patch_few_texts(monkeypatch)
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")
    lm = mh.load(tiny_bert(num_hidden_layers=1).double(), tokenizer=tiny_tokenizer())
    texts = some_texts(43)
    corpus = files_in(tmp_path, [texts[:19], [*texts[19:23], " "], texts[23:]])
    want = sum(mh.HeadSums(lm, STATISTICS, kinds=True).update(corpus.shard(i, 3, "file")) for i in range(3))
    cluster = FakeCluster(partial(Actor, lambda: lm, partial(RunRequest, statistics=STATISTICS, kinds=True)))
    cluster.chance = Chance(dies=0.2)
    run = driven(cluster, corpus, 2, every=0.5)
    got = mh.HeadSums.of_run(run)
    assert_same_tables(got.table(), want.table(), within=1e-9)
    assert (got.parts, got.missing) == (want.parts, ())
    assert run.basis.inputs["shard"] == "all of 3 by file"
    got.save(tmp_path / "all.sums")
    with pytest.raises(mh.errors.StatisticError, match="both hold shard 0/3, which would count twice"):
        mh.HeadSums.open(tmp_path / "all.sums") + want


def test_corpus_without_files_a_shard_and_a_file_that_changed_are_refused(tmp_path):
    cluster = FakeCluster(FakeActor)
    refuses(TextError, "shard_by='file' deals out the files of a corpus, and 1 text has none", driven, cluster,
            as_corpus(["1"]))  # fmt: skip
    corpus = files_in(tmp_path, NUMBERS)
    refuses(TextError, "is a shard of one: give files", driven, cluster, corpus.shard(0, 2, "file"))
    file = pickle.loads(pickle.dumps(corpus.files[2]))
    assert [document.text for document in file.open()] == NUMBERS[2]
    (tmp_path / "1.txt").write_text("9")  # another file of the corpus is not looked at
    assert pickle.loads(pickle.dumps(file)).key == corpus.files[2].key
    (tmp_path / "2.txt").write_text("8")
    refuses(TextError, "2.txt has changed since this corpus was pickled", driven, cluster, corpus)
