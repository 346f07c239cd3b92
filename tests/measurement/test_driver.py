"""A run over actors counts every text once, whatever becomes of its actors and of its driver.

The driver runs against actors that are functions (`fake_cluster`): hundreds of runs, deaths and restarts in seconds.
Oracle: texts are numbers, and what comes out must be their sum and their count.
"""

import math
import random
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.corpora import as_corpus
from manyheads.errors import LostProcessError, StatisticError, TextError
from manyheads.measurement.corpus_run import chunks, driver, store
from manyheads.measurement.corpus_run.driver import Driver
from tests.measurement.fake_cluster import INPUTS, Chance, Endless, FakeActor, FakeCluster, num_batches
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
    chance: Chance = Chance()
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
            assert cluster.most_out <= len(cluster.actors) * self.ahead
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


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 3, 4, 5, 8, 53, 97]),
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
            patch.setattr(driver, "PAIRED_BYTES", 0)
        return simulated(case)


def unflushed(real):
    return lambda path, part, basis, flushed=True: real(path, part, basis, flushed=False)


@settings(max_examples=25, deadline=None)
@given(cases)
def test_every_text_counts_once_whatever_dies(case):
    simulate(case)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(cases)
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
        call = next(call for call, (owner, _) in self._calls.items() if owner == actor)
        chunk = self._calls.pop(call)[1]
        if chunk is not None:
            self._hand_out_again({chunk.number: chunk})


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


SEEDS = range(60)
BROKEN = {
    "1 the engine repeats calls": (lambda seed, kind: Case(seed, chance=Chance(dies=0.1, repeats=kind is not Driver)), object),
    "2": (lambda seed, kind: Case(seed, chance=Chance(dies=0.1), every=1e3, driver=kind), ForgetsWhatWasMeasured),
    "3": (lambda seed, kind: Case(seed, chance=Chance(unavailable=0.1), driver=kind), LeavesActorsAlive),
    "5": (lambda seed, kind: Case(seed, chance=Chance(lives=4), every=1e3, driver=kind), WaitsWithWhatWasLost),
    "6 memory": (
        lambda seed, kind: Case(seed, chance=Chance(poison=poisoned(5, "memory", 4)), deaths=3, driver=kind), CountsMemory,
    ),
    "7": (lambda seed, kind: Case(seed, actors=4, chance=Chance(absent=frozenset({2})), driver=kind), WaitsForWhoIsNotUp),
    "8": (
        lambda seed, kind: Case(seed, actors=4, chance=Chance(dies=0.1), every=1e3, paired=True, driver=kind), LosesOneOfTwo,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_rule_that_is_broken_is_seen_and_only_then(rule):
    make, broken = BROKEN[rule]
    for seed in SEEDS[:8]:
        simulate(make(seed, Driver))
    with pytest.raises((AssertionError, LostProcessError)):
        for seed in SEEDS:
            simulate(make(seed, broken))


@pytest.mark.parametrize("kind", [Driver, AddsWhatOverlaps])
def test_part_that_overlaps_what_is_counted_is_refused_as_a_whole(kind, monkeypatch):
    """Rule 4: it never happens while the others hold. Broken, the run sees at its end that ranges overlap."""
    monkeypatch.setattr(HandsOverTwice, "twice", False)
    cluster = FakeCluster(HandsOverTwice)
    run = kind(cluster, as_corpus(texts_of(41)), 3, every=2.0, clock=cluster.clock, sleep=cluster.sleep)
    if kind is Driver:
        run.run()
        assert run.events["refused"] == 1 and run.events["forgotten"] >= 1
        assert float(run.total.sums.num[..., 0].sum()) == sum(map(int, texts_of(41))) and run.total.num_texts == 41
    else:
        refuses(LostProcessError, "not all were handed over", run.run)
        assert run.total.num_texts > 41


@pytest.mark.parametrize("kind", [Driver, CountsAllThatWasGiven])
def test_chunk_that_ends_whoever_measures_it_ends_the_run_and_its_texts_are_named(kind):
    """Rule 6: its own, not those of the chunks that lay behind it. Broken, others are blamed."""
    first, last = 5 * TEXTS, 5 * TEXTS + TEXTS - 1
    named = rf"3 actors were lost with the same texts, text {first} to text {last} of 61 texts \(dies\): measure"
    right = 0
    for seed in range(20):
        case = Case(seed, actors=1, ahead=4, deaths=3, chance=Chance(poison=poisoned(5, "dies")), driver=kind)
        with pytest.raises(LostProcessError) as caught:
            case.run()
        right += bool(re.search(named, str(caught.value)))
    assert right == 20 if kind is Driver else right < 20
