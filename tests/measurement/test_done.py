"""Which batches of a corpus are counted: whole chunks as ranges, in memory and in files, of this version and the last.

Oracle: a plain set of (chunk, batch).
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import manyheads as mh
from manyheads.corpora import Failures, as_corpus
from manyheads.errors import StatisticError
from manyheads.measurement.corpus_run import chunks, store
from manyheads.measurement.corpus_run.store import BatchPart, Done, RunTotal
from manyheads.recording.file import write_state
from tests.measurement.corpus_runs import STATISTICS, assert_same_tables, patch_few_texts, some_texts, tiny_lm
from tests.refusals import refuses

BATCHES = (1, 3, 2, 1, 4)  # of the chunks, in turns: sizes that differ
ALL = [(chunk, batch) for chunk in range(13) for batch in range(BATCHES[chunk % 5])]
SHARD = 5 << chunks.SHARD_BITS


def done_of(batches, first=0):
    done = Done()
    for chunk, batch in batches:
        done.add_batch(first + chunk, BATCHES[chunk % 5], batch)
    return done


def batches_of(done, first=0):
    """All that is counted, batch by batch."""
    out = [(chunk - first, batch) for chunk, (_, numbers) in done.begun.items() for batch in numbers]
    for begin, stop, count in done.whole:
        inside = [(chunk, batch) for chunk in range(begin - first, stop - first) for batch in range(BATCHES[chunk % 5])]
        assert count == len(inside)
        out += inside
    assert len(out) == len(set(out)) == done.num_batches
    return set(out)


def assert_in_form(done):
    """Ranges in order and apart from each other; what is begun is neither whole nor empty."""
    assert all(stop < first for (_, stop, _), (first, *_) in zip(done.whole, done.whole[1:], strict=False))
    assert all(0 < len(numbers) < of for of, numbers in done.begun.values())


drawn = st.lists(st.sampled_from(ALL), unique=True)


@given(drawn, st.sampled_from([0, SHARD]))
def test_done_batches_in_any_order_are_those_that_were_counted(batches, first):
    done = done_of(batches, first)
    assert batches_of(done, first) == set(batches)
    assert_in_form(done)
    whole = [chunk for chunk in range(13) if {*batches} >= {(chunk, batch) for batch in range(BATCHES[chunk % 5])}]
    assert [chunk for chunk in range(-1, 15) if done.has_whole(first + chunk)] == whole
    if batches:
        chunk, batch = min(batches)
        assert done.first == (first + chunk, batch)
    read = Done.read(done.tensors())
    assert (read.begun, read.whole) == (done.begun, done.whole)


@given(drawn, drawn)
def test_done_batches_of_two_overlap_where_their_sets_do_and_else_add(one, two):
    first, second = done_of(one), done_of(two)
    assert first.overlaps(second) == second.overlaps(first) == bool({*one} & {*two})
    apart = done_of(rest := [batch for batch in two if batch not in one])
    first.add(apart)
    assert batches_of(first) == {*one, *rest} and batches_of(apart) == {*rest}
    assert_in_form(first)


def test_done_takes_the_same_memory_and_the_same_bytes_however_many_chunks_are_whole():
    sizes = []
    for count in (100, 20_000):
        done = Done()
        for chunk in range(count):
            for batch in range(BATCHES[chunk % 5]):
                done.add_batch(SHARD + chunk, BATCHES[chunk % 5], batch)
        sizes.append((len(done.whole), len(done.begun), len(store.packed(done.tensors(), {}))))
    assert sizes[0] == sizes[1] and sizes[0][:2] == (1, 0)


def test_done_of_a_damaged_file_is_refused():
    none = torch.zeros(0, 3, dtype=torch.int64)
    for rows in ([[3, 3, 0]], [[-1, 2, 3]], [[0, 5, 4]], [[0, 5, 5], [4, 6, 2]], [[4, 6, 2], [0, 2, 2]]):
        with pytest.raises(ValueError, match="no chunks are"):
            Done.read({"done": none, "whole": torch.tensor(rows)})
    for row in ([0, 2, 2], [-1, 2, 0], [0, 2, -1], [0, 0, 0]):
        with pytest.raises(ValueError, match="has no batch"):
            Done.read({"done": torch.tensor([row])})


@pytest.fixture
def lm(monkeypatch):
    patch_few_texts(monkeypatch)
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")
    return tiny_lm()


def as_version_5(path, sums):
    """Write sums as the last version did: each batch of every chunk in a row, chunks of a shard numbered by steps."""
    total, basis = sums._whole(), sums._basis
    tensors = {**total.sums.tensors(), "done": torch.tensor([[7, 2, 0], [7, 2, 1], [3, 2, 1]])}
    write_state(path, store.FORMAT, 5, tensors, {**basis.words(), **total.words()})


def test_sums_of_the_last_version_are_read_still_and_added(lm, tmp_path):
    corpus = as_corpus(some_texts(23))
    parts = [mh.HeadSums(lm, STATISTICS).update(corpus.shard(index, 2)) for index in range(2)]
    as_version_5(tmp_path / "old.sums", parts[0])
    old = mh.HeadSums.open(tmp_path / "old.sums")
    assert old._total.done.whole == [(7, 8, 2)] and old._total.done.begun == {3: (2, {1})}
    assert_same_tables((old + parts[1]).table(), (parts[0] + parts[1]).table())
    (old + parts[1]).save(tmp_path / "both.sums")
    assert_same_tables(mh.HeadSums.open(tmp_path / "both.sums").table(), (parts[0] + parts[1]).table())


def test_older_folder_is_refused_since_its_code_is_another(lm, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "code_digest", lambda: "older code")
        patch.setattr(store, "VERSION", 5)
        mh.measure(lm, ["the cat"], ["entropy"], resume=tmp_path)
    message = r"was begun with other inputs: manyheads' own code \(older code then, the code now\)"
    refuses(StatisticError, message, mh.measure, lm, ["the cat"], ["entropy"], resume=tmp_path)


def part_of(chunk, batches, of):
    counts = dict.fromkeys(store.COUNTED, 0)
    total = RunTotal()
    for batch in batches:
        total.add(BatchPart(chunk, batch, of, None, Failures(), {**counts, "texts": 5} if batch == 0 else {}))
    return total


def test_sums_of_several_batches_are_a_part_of_a_folder_that_outlives_the_process(lm, tmp_path, monkeypatch):
    basis = mh.HeadSums(lm, ["entropy"]).update(as_corpus(["the cat"]).shard(0, 1))._basis
    synced = []
    monkeypatch.setattr(store, "write_part", lambda *a, real=store.write_part, **k: synced.append(k) or real(*a, **k))
    parts = store.Parts(tmp_path, basis)
    parts.add(part_of(4, range(3), 3))
    parts.add(part_of(9, [1], 2))
    parts.add(BatchPart(9, 0, 2, None, Failures(), {**dict.fromkeys(store.COUNTED, 0), "texts": 7}))
    # What is torn by a power cut is measured again where it is a batch; sums would be refused, so they are flushed.
    assert [how["flushed"] for how in synced] == [True, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "part-000004-0000-sum-of-3.safetensors", "part-000009-0000.safetensors",
        "part-000009-0001-sum-of-1.safetensors",
    ]  # fmt: skip
    again = store.Parts.opened(tmp_path, basis)
    assert again.total.done.whole == [(4, 5, 3), (9, 10, 2)] and again.total.counts["texts"] == 12
