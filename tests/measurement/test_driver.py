"""A run over actors counts every text once, whatever becomes of its actors and of its driver.

The driver runs against actors that are functions (`fake_cluster`): hundreds of runs, deaths and restarts in seconds.
Oracle: texts are numbers, and what comes out must be their sum and their count.
"""

import math
import random
import re
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyheads as mh
from manyheads.corpora import as_corpus
from manyheads.errors import FileAccessError, LostProcessError, ModelError, StatisticError, TextError
from manyheads.measurement.corpus_run import RunRequest, chunks, driver, store
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.driver import ActorLost, Driver
from manyheads.recording.file import safetensors_io
from tests.measurement.corpus_runs import (
    STATISTICS,
    Stopped,
    assert_near,
    assert_same_tables,
    patch_few_texts,
    some_texts,
    stopping_after,
    tiny_lm,
)
from tests.measurement.fake_cluster import INPUTS, Chance, FakeActor, FakeCluster, num_batches
from tests.models.tiny import tiny_bert, tiny_tokenizer
from tests.refusals import refuses

TEXTS = 4  # of a chunk


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", TEXTS)
    monkeypatch.setattr(driver.log, "disabled", True)  # a line for each death


def texts_of(count):
    return [str(7 + 3 * number) for number in range(count)]


def assert_each_once(run, count):
    """Every text once: their sum, their number, and all chunks as one range."""
    num_chunks = math.ceil(count / TEXTS)
    sums = run.total.sums
    assert float(sums.num[..., 0].sum()) == sum(map(int, texts_of(count)))
    assert float(sums.den[..., 0].sum()) == run.total.num_texts == run.total.counts["texts"] == count
    assert run.total.done.whole == [(0, num_chunks, sum(map(num_batches, range(num_chunks))))]
    assert not run.total.done.begun and run.total.parts == {"0/1": count}
    assert not (run.events["refused"] or run.events["forgotten"]), run.events


class Killed(KeyboardInterrupt):
    """The driver's process ends."""


@dataclass
class Case:
    """One simulated run."""

    seed: int = 0
    count: int = 61
    actors: int = 3
    every: float = 5.0
    ahead: int = 2
    deaths: int = 10**6
    paired: bool = False
    stops: int = 0  # how often the driver is killed; then there is a folder
    chance: Chance = field(default_factory=Chance)
    driver: type = Driver

    def run(self, folder=None, **more):
        draw = random.Random(self.seed)
        corpus, last = as_corpus(texts_of(self.count)), []
        for attempt in range(self.stops + 1):
            stop = draw.randint(1, 9) if attempt < self.stops else 0
            seen = []

            def progress(done, total, seen=seen, stop=stop):
                seen.append(done)
                if len(seen) == stop:
                    raise Killed

            cluster = FakeCluster(FakeActor, draw, self.chance)
            run = self.driver(
                cluster, corpus, draw.randint(1, self.actors), None, folder, self.every, self.ahead, self.deaths,
                progress=progress, clock=cluster.clock, sleep=cluster.sleep, **more,
            )  # fmt: skip
            try:
                run.run()
            except Killed:
                assert attempt < self.stops
            assert {*cluster.actors} == cluster.killed, "an actor outlived its run"
            assert cluster.most_out <= self.ahead, "an actor was given more than it may have"
            last = seen
        assert last == sorted(last) and last[-1] == self.count
        return run, cluster


def simulated(case):
    if not case.stops:
        run, _ = case.run()
        assert_each_once(run, case.count)
        return run
    with tempfile.TemporaryDirectory() as folder:
        run, _ = case.run(Path(folder))
        assert_each_once(run, case.count)
        assert sorted(path.name for path in Path(folder).iterdir()) == [
            "finished.safetensors",
            "lock",
            "run.safetensors",
        ]
        return run


def cases(*counts):
    """Runs over as many texts as one of `counts`."""
    return st.builds(
        Case,
        seed=st.integers(0, 2**32),
        count=st.sampled_from(counts),
        actors=st.integers(1, 7),
        every=st.sampled_from([1.0, 2.0, 5.0, 1e3]),
        ahead=st.integers(1, 3),
        paired=st.booleans(),
        stops=st.sampled_from([0, 0, 0, 1, 2]),
        chance=st.builds(Chance, dies=st.sampled_from([0.0, 0.02, 0.1, 0.2]), unavailable=st.sampled_from([0.0, 0.1])),
    )


def simulate(case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write_part", unflushed(store.write_part))  # what a disk takes is not what is tried
        if case.paired:
            patch.setattr(driver, "PAIRED_BYTES", -1)
        return simulated(case)


def unflushed(real):
    return lambda path, part, basis, flushed=True: real(path, part, basis, flushed=False)


@settings(max_examples=150, deadline=None)
@given(cases(1, 3, 4, 5, 8, 17, 25))
def test_every_text_counts_once_whatever_dies(case):
    simulate(case)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(cases(53, 97))
def test_every_text_counts_once_in_hundreds_of_runs_with_deaths_and_restarts(case):
    simulate(case)


# ------------------------------------------------------------------------------------------- each rule, broken once


class ForgetsWhatWasMeasured(Driver):
    """Rule 2: what an actor measured counts, though it was never handed over."""

    def _lose(self, actor, error):
        self._held[actor] = {}
        super()._lose(actor, error)


class LeavesActorsAlive(Driver):
    """Rule 3: the call that failed is made again elsewhere, and its actor goes on."""

    def _lose(self, actor, error):
        chunk = self._calls.pop(self._queues[actor].popleft())[1]
        if chunk is not None:
            self._hand_out_again({chunk.number: chunk})
            self._with_room[actor] = None


class AddsWhatOverlaps(Driver):
    """Rule 4."""

    def _count(self, actor, data):
        held, self._held[actor] = self._held[actor], {}
        self._add(store.RunTotal.read(*store.unpacked(data)))
        self._hand_out_again({n: chunk for n, chunk in held.items() if not self.total.done.has_whole(n)})


class WaitsWithWhatWasLost(Driver):
    """Rule 5."""

    @property
    def _lost_chunks(self):
        return set()

    @_lost_chunks.setter
    def _lost_chunks(self, value):
        pass


class CountsAllThatWasGiven(Driver):
    """Rule 6: chunks that lay behind the one that ran count, too."""

    def _lose(self, actor, error):
        given = [chunk for owner, chunk in self._calls.values() if owner == actor and chunk]
        for chunk in given[1:]:
            self._deaths_with[chunk.number] += 1
            if self._deaths_with[chunk.number] >= self.deaths:
                raise LostProcessError(f"with the same texts, {chunk.documents[0].name}")
        super()._lose(actor, error)


class CountsMemory(Driver):
    """Rule 6: an actor without memory is a death like any other."""

    def _lose(self, actor, error):
        error.memory = False
        super()._lose(actor, error)


class WaitsForWhoIsNotUp(Driver):
    """Rule 7."""

    def _collect(self):
        while any(chunk is None for _, chunk in self._calls.values()):
            self._take()
        return super()._collect()


class LosesOneOfTwo(Driver):
    """Rule 8: of two that were adding, what the second held is thought to be safe."""

    def _pair(self, holding):
        before = dict(self._held)
        super()._pair(holding)
        for one, two in zip(holding[::2], holding[1::2], strict=False):
            if one not in self._held and two not in self._held:
                for number in before[two]:
                    self._again = type(self._again)(chunk for chunk in self._again if chunk.number != number)


def poisoned(chunk_number, how, times=10**9):
    left = [times]

    def poison(chunk):
        if chunk != chunk_number or not left[0]:
            return ""
        left[0] -= 1
        return how

    return poison


class HandsOverTwice(FakeActor):
    """Once in its life, what it has handed over stays in its sums."""

    twice = False

    def hand_over(self):
        total = self.total
        data = super().hand_over()
        if not HandsOverTwice.twice:
            HandsOverTwice.twice, self.total = True, total
        return data


BROKEN = {
    "1 the engine repeats calls": (Driver, {"dies": 0.1, "repeats": True}, {}),
    "2 what was measured counts": (ForgetsWhatWasMeasured, {"dies": 0.1}, {"every": 1e3}),
    "3 a call that failed is made again": (LeavesActorsAlive, {"unavailable": 0.1}, {}),
    "5 what was lost waits": (WaitsWithWhatWasLost, {"lives": 4}, {"every": 1e3}),
    "6 memory counts": (CountsMemory, {"poison": (5, "memory", 4)}, {"deaths": 3}),
    "7 who is not up is waited for": (WaitsForWhoIsNotUp, {"absent": frozenset({2})}, {"actors": 4}),
    "8 one of two is lost": (LosesOneOfTwo, {"dies": 0.1}, {"every": 1e3, "actors": 4, "paired": True}),
}
"""Of each rule a driver (or an engine) that breaks it, how its actors fare, and the case."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
def test_rule_that_is_broken_is_seen_and_only_then(rule):
    broken, chance, case = BROKEN[rule]

    def run(seed, kind, **kept):
        poison = {"poison": poisoned(*chance["poison"])} if "poison" in chance else {}
        simulate(Case(seed, driver=kind, chance=Chance(**{**chance, **poison, **kept}), **case))

    for seed in range(3):
        run(seed, Driver, repeats=False)
    with pytest.raises((AssertionError, LostProcessError)):
        for seed in range(60):
            run(seed, broken)


@pytest.mark.parametrize("kind", [Driver, AddsWhatOverlaps])
def test_part_that_overlaps_what_is_counted_is_refused_as_a_whole(kind, monkeypatch):
    """Rule 4: it never happens while the others hold. Broken, sums refuse what they hold."""
    monkeypatch.setattr(HandsOverTwice, "twice", False)
    cluster = FakeCluster(HandsOverTwice)
    run = kind(cluster, as_corpus(texts_of(41)), 3, every=2.0, clock=cluster.clock, sleep=cluster.sleep)
    if kind is Driver:
        run.run()
        assert run.events["refused"] == 1 and run.events["forgotten"] >= 1
        assert float(run.total.sums.num[..., 0].sum()) == sum(map(int, texts_of(41))) and run.total.num_texts == 41
    else:
        refuses(AssertionError, "a batch counts once", run.run)


@pytest.mark.parametrize("kind", [Driver, CountsAllThatWasGiven])
def test_chunk_that_ends_whoever_measures_it_ends_the_run_and_its_texts_are_named(kind):
    """Rule 6: its own, not those of the chunks that lay behind it. Broken, others are blamed."""
    first, last = 5 * TEXTS, 5 * TEXTS + TEXTS - 1
    named = rf"3 actors were lost with the same texts, text {first} to text {last} of 61 texts \(dies\): measure"
    rights = set()
    for seed in range(8):
        case = Case(seed, actors=1, ahead=4, deaths=3, chance=Chance(poison=poisoned(5, "dies")), driver=kind)
        with pytest.raises(LostProcessError) as caught:
            case.run()
        rights.add(bool(re.search(named, str(caught.value))))
        if False in rights:
            break
    assert rights == ({True} if kind is Driver else rights | {False})


def test_chunk_behind_another_that_ends_actors_is_not_blamed():
    """Rule 6: of four deaths, two are with one chunk and two with the one behind it."""
    left = {5: 2, 6: 2}

    def poison(chunk):
        left[chunk] = left.get(chunk, 0) - 1
        return "dies" if left[chunk] >= 0 else ""

    run = driven(FakeCluster(FakeActor, chance=Chance(poison=poison)), texts_of(61), 1, ahead=4, deaths=3)
    assert_each_once(run, 61)
    assert run.events["lost"] == 4


def test_actor_for_which_there_is_no_room_is_not_waited_for_once_all_is_measured():
    """Rule 7."""
    run = driven(FakeCluster(FakeActor, chance=Chance(absent=frozenset({1}))), texts_of(41))
    assert_each_once(run, 41)


def test_two_of_whom_one_dies_as_it_adds_the_others_sums_have_both_lost_what_they_held(monkeypatch):
    """Rule 8."""
    monkeypatch.setattr(driver, "PAIRED_BYTES", -1)
    absorbed = []

    class DiesOnce(FakeActor):
        def absorb(self, part):
            absorbed.append(part)
            if len(absorbed) == 1:
                raise AssertionError("dies")
            super().absorb(part)

    cluster = FakeCluster(DiesOnce)
    cluster._outcome = lambda *call, real=cluster._outcome: as_lost(real, *call)
    run = driven(cluster, texts_of(41))
    assert_each_once(run, 41)
    assert absorbed and run.events["lost"] == 2


# ------------------------------------------------------------------------------------------------- what else may happen


def driven(cluster, corpus, num_actors=2, **how):
    how = {"every": 1e3, "clock": cluster.clock, "sleep": cluster.sleep, **how}
    return Driver(cluster, as_corpus(corpus) if isinstance(corpus, list) else corpus, num_actors, **how).run()


def test_actor_that_hangs_is_ended_and_what_it_held_is_measured_again():
    cluster = FakeCluster(FakeActor, chance=Chance(poison=poisoned(3, "hangs", 2)))
    run = driven(cluster, texts_of(41))
    assert_each_once(run, 41)
    assert run.events["hung"] == run.events["lost"] == 2
    assert 2 * run.patience <= cluster.seconds <= 2.3 * run.patience
    assert run.notes["actors"].startswith("2 (2 lost, ")


def test_actor_that_hangs_as_it_begins_is_ended_and_one_for_which_there_is_no_room_is_not():
    # The first one dies with a chunk: the next two hang, and the run would wait for ever.
    chance = Chance(poison=poisoned(3, "dies", 1), stuck=frozenset({1, 2}))
    cluster = FakeCluster(FakeActor, chance=chance)
    run = driven(cluster, texts_of(41), 1, deaths=4)
    assert_each_once(run, 41)
    assert (run.events["hung"], run.events["lost"], len(cluster.actors)) == (2, 3, 4)
    assert 2 * run.patience <= cluster.seconds <= 2.5 * run.patience
    # One that waits for room is let wait, however long the other measures.
    cluster = FakeCluster(FakeActor, chance=Chance(absent=frozenset({1})))
    run = driven(cluster, texts_of(241), 2, patience=1.0)
    assert_each_once(run, 241)
    assert not run.events["lost"] and cluster.seconds > 2 * run._limit


def test_memory_of_others_is_waited_for_and_ends_the_run_where_it_never_comes():
    cluster = FakeCluster(FakeActor, chance=Chance(poison=poisoned(3, "memory", 5)))
    assert_each_once(driven(cluster, texts_of(41), 1), 41)
    assert 5 * 2 <= cluster.seconds <= 100
    cluster = FakeCluster(FakeActor, chance=Chance(poison=poisoned(3, "memory")))
    message = r"20 actors in a row were out of memory \(memory\): run fewer of them on a machine"
    refuses(LostProcessError, message, driven, cluster, texts_of(41), 1)


class FailsToLoad:
    """A model that comes after `errors`, one a process."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return tiny_lm()


def loading(load, texts):
    cluster = FakeCluster(partial(Actor, load, partial(RunRequest, statistics=["entropy"])))
    cluster._outcome = lambda *call, real=cluster._outcome: as_lost(real, *call)
    return driven(cluster, texts, 1), cluster


def test_error_in_loading_is_that_of_one_process_and_one_of_memory_is_waited_for():
    refuses(ModelError, "^no such model$", loading, FailsToLoad(ModelError("no such model")), ["the cat"])
    run, cluster = loading(FailsToLoad(MemoryError(), MemoryError(), MemoryError(), MemoryError()), ["the cat"])
    assert run.total.num_texts == 1 and run.events["lost"] == 4 and cluster.seconds >= 2 + 4 + 8 + 16


def test_wait_for_the_first_actor_is_said(monkeypatch, caplog):
    monkeypatch.setattr(driver.log, "disabled", False)
    driven(FakeCluster(FakeActor, chance=Chance(absent=frozenset({0}))), ["7"], 1)
    assert "no actor has answered for 60 seconds: it is loading the model, or waiting for room" in caplog.text


def test_actors_that_never_start_end_the_run_and_one_that_does_goes_on():
    refuses(LostProcessError, "no actor is left: died", driven, FakeCluster(FakeActor, chance=Chance(lives=0)), ["1"])
    begun = []

    class StartsOnce(FakeActor):
        def begin(self, *arguments):
            begun.append(1)
            if len(begun) > 1:
                raise AssertionError("a fault of this process")
            return super().begin(*arguments)

    cluster = FakeCluster(StartsOnce)
    cluster._outcome = lambda *call, real=cluster._outcome: as_lost(real, *call)
    run = driven(cluster, texts_of(41), 4)
    assert_each_once(run, 41)


def as_lost(real, *call):
    """An exception in an actor's process is a call that came to nothing."""
    try:
        return real(*call)
    except (AssertionError, MemoryError) as error:
        return ActorLost(str(error), isinstance(error, MemoryError))


def test_actor_that_would_measure_otherwise_is_refused_by_what_differs():
    begun = []

    class Other(FakeActor):
        def begin(self, *arguments):
            begun.append(1)
            words = super().begin(*arguments)
            return {**words, "inputs": {**INPUTS, "model's weights": f"set {len(begun)}"}}

    message = r"do not measure alike, they differ in model's weights \(set 1 in the first, set 2 in another\): give all"
    refuses(StatisticError, message, driven, FakeCluster(Other), texts_of(61), 3)


def test_error_that_every_process_would_meet_ends_the_run_as_it_is():
    class Faulty(FakeActor):
        def add(self, chunk, done, before):
            raise StatisticError("the corpus is not what it was")

    cluster = FakeCluster(Faulty)
    refuses(StatisticError, "the corpus is not what it was", driven, cluster, texts_of(9))
    assert len(cluster.actors) <= 2 and {*cluster.actors} == cluster.killed


def test_texts_that_are_none_and_those_that_are_read_once_are_refused(tmp_path):
    refuses(TextError, "no text was given: the list is empty", driven, FakeCluster(FakeActor), [])
    stream = as_corpus(iter(texts_of(9)))
    refuses(StatisticError, "can be read once only", driven, FakeCluster(FakeActor), stream, folder=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    run = driven(FakeCluster(FakeActor), as_corpus(iter(texts_of(9))))
    assert run.total.num_texts == 9


def test_folder_of_another_run_is_refused_and_a_finished_one_is_read_back(tmp_path, monkeypatch):
    driven(FakeCluster(FakeActor), texts_of(19), folder=tmp_path)
    cluster = FakeCluster(FakeActor)
    run = driven(cluster, texts_of(19), folder=tmp_path)
    assert_each_once(run, 19)
    assert len(cluster.actors) == 1 and run.notes["resumed"] == f"finished before, read back from {tmp_path}"
    monkeypatch.setitem(INPUTS, "model's weights", "others")
    message = r"was begun with other inputs: model's weights \(those then, others now\)"
    refuses(StatisticError, message, driven, FakeCluster(FakeActor), texts_of(19), folder=tmp_path)


def test_full_disk_ends_the_run_in_words_and_loses_nothing(tmp_path, monkeypatch):
    count, real = [4], safetensors_io._write

    def full(file, *rest):
        count[0] -= 1
        if not count[0]:
            raise OSError(28, "No space left on device")
        real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors_io, "_write", full)
        refuses(
            FileAccessError,
            "the disk is full",
            driven,
            FakeCluster(FakeActor),
            texts_of(61),
            folder=tmp_path,
            every=1.0,
        )
    run = driven(FakeCluster(FakeActor), texts_of(61), folder=tmp_path)
    assert_each_once(run, 61)
    assert run.notes["resumed"].startswith("gone on with after ")


def test_driver_holds_no_more_however_many_texts_there_are():
    """Chunks that are out, and what is done as one range."""
    most = []
    for count in (60, 240):
        held = []

        class Seen(Driver):
            def _take(self, held=held):
                super()._take()
                chunks_out = sum(chunk is not None for _, chunk in self._calls.values())
                held.append(chunks_out + sum(map(len, self._held.values())) + len(self._again))

        cluster = FakeCluster(FakeActor)
        run = Seen(cluster, as_corpus(texts_of(count)), 3, every=2.0, clock=cluster.clock, sleep=cluster.sleep).run()
        most.append(max(held))
        assert len(run.total.done.whole) == 1
    assert most[1] <= most[0] + 3 <= 3 * (2 + 3) + 3


# ---------------------------------------------------------------------------------------------------- with real models


def actors_of(lm, statistics=STATISTICS, **how):
    return FakeCluster(partial(Actor, lambda: lm, partial(RunRequest, statistics=statistics, kinds=True, **how)))


@pytest.fixture
def few_texts(monkeypatch):
    patch_few_texts(monkeypatch)
    monkeypatch.setattr(chunks, "code_digest", lambda: "the code")
    return [*some_texts(47), "", " "]


def table_of(run):
    return run.basis.table(run.total.sums, run.total.counts, run.total.failures, run.notes)


def test_one_actor_is_one_process_to_the_last_bit(few_texts):
    lm = tiny_lm()
    want = mh.measure(lm, iter(few_texts), STATISTICS, kinds=True)
    run = driven(actors_of(lm), few_texts, 1)
    assert_same_tables(table_of(run), want)
    assert table_of(run).notes | {"actors": "", "corpus": ""} == want.notes | {"actors": "", "corpus": ""}


def test_three_actors_some_of_which_die_are_one_process_up_to_the_order_of_adding(few_texts):
    lm = mh.load(tiny_bert(num_hidden_layers=1).double(), tokenizer=tiny_tokenizer())
    want = mh.measure(lm, iter(few_texts), STATISTICS, kinds=True)
    cluster = actors_of(lm)
    cluster.chance = Chance(dies=0.3)
    run = driven(cluster, few_texts, 3, every=0.5, deaths=10**6)
    assert run.events["lost"]
    assert_same_tables(table_of(run), want, within=1e-9)


def test_run_that_one_process_began_goes_on_by_actors_and_back(few_texts, tmp_path, monkeypatch):
    lm = tiny_lm()
    want = mh.measure(lm, iter(few_texts), STATISTICS, kinds=True)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stopping_after(7, patch)
        mh.measure(lm, few_texts, STATISTICS, kinds=True, resume=tmp_path)

    def progress(done, total):
        if done >= 30:
            raise Killed

    with pytest.raises(Killed):
        driven(actors_of(lm), few_texts, folder=tmp_path, every=0.0, progress=progress)
    left = sorted(path.name for path in tmp_path.glob("part-*"))
    got = mh.measure(lm, few_texts, STATISTICS, kinds=True, resume=tmp_path)
    assert left and got.notes["resumed"].startswith("gone on with after ")
    assert_near(got, want)
    assert (got.failures, got.names) == (want.failures, want.names)


def test_shards_by_actors_add_to_one_run(few_texts, tmp_path):
    lm, corpus = tiny_lm(), as_corpus(few_texts)
    want = sum(mh.HeadSums(lm, STATISTICS, kinds=True).update(corpus.shard(index, 2)) for index in range(2))
    got = []
    for index in range(2):
        run = driven(actors_of(lm, survey=None), corpus.shard(index, 2))
        store.write_part(tmp_path / f"{index}.sums", run.total, run.basis)
        got.append(mh.HeadSums.open(tmp_path / f"{index}.sums"))
    assert_same_tables(sum(got).table(), want.table())


def test_request_that_nobody_can_serve_ends_the_run_as_in_one_process(few_texts):
    refuses(StatisticError, "there is no statistic 'entropi'", driven, actors_of(tiny_lm(), ["entropi"]), few_texts)
    refuses(TextError, "no text of 2 texts could be measured", driven, actors_of(tiny_lm(), ["entropy"]), [" ", ""])


def test_each_actor_has_a_chunk_before_any_has_two():
    """Of few chunks, all that are up measure."""
    given = []

    class Given(FakeCluster):
        def call(self, actor, method, *arguments):
            given.extend([actor] * (method == "measure"))
            return super().call(actor, method, *arguments)

    class UpAtOnce(Driver):
        def _give(self, queue):
            while any(chunk is None for _, chunk in self._calls.values()):
                self._take()
            return super()._give(queue)

    cluster = Given(FakeActor)
    UpAtOnce(cluster, as_corpus(texts_of(3 * TEXTS)), 3, clock=cluster.clock, sleep=cluster.sleep).run()
    assert sorted(given) == [0, 1, 2]
