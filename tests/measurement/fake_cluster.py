"""An engine of functions: actors in this process that die, hang, run out of memory or never come up, as is drawn.

Calls run when they are waited for. What two actors send each other, and the driver, is bytes, as between processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

import torch

from manyheads.corpora import Failures
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.basis import ALWAYS_NOTED, Basis
from manyheads.measurement.corpus_run.chunks import StartFacts
from manyheads.measurement.corpus_run.driver import ActorLost
from manyheads.spec import Site
from manyheads.statistics import STATISTICS
from manyheads.statistics.sums import BatchSums
from manyheads.texts import Sinks

SITE = Site("", 0, "attention", 1, 1, 4, 4, False)
MOST_CALLS = 2_000  # of one run: then it will never end


class Endless(AssertionError):
    """The run waits for what never comes, or goes on for ever."""


@dataclass(frozen=True)
class Chance:
    """How actors fare. `dies`: of an actor, before a call and after it, by a call. `lives`: calls that an actor has
    at most. `poison(chunk)`: how an actor ends with a chunk, "dies", "hangs", "memory" or "". `absent`: actors that
    never come up, by number; `stuck`: those that hang as they begin. `repeats`: whether the engine repeats a call that
    was lost, with a new actor."""

    dies: float = 0.0
    lives: int = 10**9
    poison: Callable[[int], str] = lambda chunk: ""
    absent: frozenset[int] = frozenset()
    stuck: frozenset[int] = frozenset()
    repeats: bool = False
    unavailable: float = 0.0  # a call is lost, and its actor lives on


@dataclass
class FakeCluster:
    make: Callable[[], Actor]
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self):
        self.actors, self.queues, self.done, self.dead, self.hung, self.age = {}, {}, {}, {}, set(), {}
        self.killed, self.calls, self.owner, self.num_calls, self.seconds = set(), {}, {}, 0, 0.0
        self.most_out = self.waits = 0

    def clock(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    # --------------------------------------------------------------------------------------------------- as a Cluster

    def start(self) -> int:
        actor = len(self.actors)
        self.actors[actor], self.queues[actor], self.age[actor] = self.make(), [], 0
        return actor

    def share(self, value):
        return value

    def call(self, actor: int, method: str, *arguments):
        call = ("call", len(self.calls))
        self.calls[call], self.owner[call] = (method, arguments), actor
        self.queues[actor].append(call)
        self.most_out = max(self.most_out, len(self.queues[actor]))
        self.num_calls += 1
        if self.num_calls > MOST_CALLS:
            raise Endless("the run goes on for ever")
        return call

    def first_done(self, calls, seconds: float):
        owners = list(dict.fromkeys(self.owner[call] for call in calls))
        able = [actor for actor in owners if actor not in self.hung and actor not in self.chance.absent]
        if not able:
            self.waits += 1
            if self.waits > 100:
                raise Endless("what is waited for never comes")
            self.seconds += seconds + 1e-3
            return None
        self.waits = 0
        actor = self.draw.choice(able)
        own = [call for call in calls if self.owner[call] == actor]
        # Several may be done by the time that somebody looks, and the engine may name any of them.
        chosen = self.draw.randrange(len(own))
        for call in own[: chosen + 1]:
            self._run(call)
            if actor in self.hung:
                return self.first_done(calls, seconds)
        return own[chosen]

    def result(self, call):
        self._run(call)
        value = self.done[call]
        if isinstance(value, ActorLost):
            raise value
        return value

    def kill(self, actor: int) -> None:
        self.killed.add(actor)
        self.dead.setdefault(actor, ActorLost("killed"))

    # ---------------------------------------------------------------------------------------------------------- calls

    def _run(self, call) -> None:
        if call in self.done:
            return
        actor = self.owner[call]
        while self.queues[actor]:
            first = self.queues[actor].pop(0)
            self.done[first] = self._outcome(actor, *self.calls[first])
            if first == call or actor in self.hung:
                return

    def _outcome(self, actor: int, method: str, arguments):
        arguments = [self.result(x) if x in self.calls else x for x in arguments] if method == "absorb" else arguments
        chance, self.age[actor] = self.chance, self.age[actor] + 1
        self.seconds += 0.1
        mortal = method in ("measure", "measure_of_file", "hand_over", "absorb", "begin")
        if mortal and (self.draw.random() < chance.dies or self.age[actor] > chance.lives):
            self.dead.setdefault(actor, ActorLost("died before a call"))
        if method == "begin" and actor in chance.stuck and actor not in self.dead:
            self.hung.add(actor)
            return ActorLost("hung")
        measures = method in ("measure", "measure_of_file")
        if measures and (end := chance.poison(arguments[0].number)) and actor not in self.dead:
            if end == "hangs":
                self.hung.add(actor)
                return ActorLost("hung")
            self.dead[actor] = ActorLost(end, memory=end == "memory")
        if actor in self.dead and chance.repeats and actor not in self.killed and method != "begin":
            del self.dead[actor]
            self.actors[actor] = self.make()
            self.age[actor] = 0
        if actor in self.dead:
            return self.dead[actor]
        value = getattr(self.actors[actor], method)(*arguments)
        if measures and self.draw.random() < chance.unavailable:
            return ActorLost("unavailable for a moment")
        if mortal and self.draw.random() < chance.dies:
            self.dead[actor] = ActorLost("died before its answer arrived")
            return self.dead[actor]
        return value


# ------------------------------------------------------------------------------------------ actors without a model

INPUTS = {"texts": "some", "shard": "0 of 1 by text", "reading": "texts", "model's weights": "those"}


class FakeActor(Actor):
    """Measures nothing: the one head's numerator of a text is the text, its denominator 1. It is a second older
    after each chunk."""

    def __init__(self):
        self.seconds = 0
        self._begin(lambda: self.seconds)

    def learn(self, chunks, whole):
        count = sum(len(chunk.documents) for chunk in chunks)
        facts = StartFacts(torch.zeros(3), "none", Sinks(), count, "all", "digest")
        return store.packed(facts.tensors(), facts.words())

    def begin(self, chunks, whole, learned, texts, origin):
        basis = Basis(INPUTS, (STATISTICS["entropy"],), Sinks(), dict.fromkeys(ALWAYS_NOTED, "none"), None)
        return {"inputs": INPUTS, "basis": basis.words()}

    def add(self, chunk, done, before):
        self.seconds += 1
        finished = done.begun.get(chunk.number, (0, set()))[1]
        values = tuple(int(document.text) for document in chunk.documents)
        self.total.add(deepcopy(measured(chunk.number, values, frozenset(finished))))


@cache  # runs are of the same texts, and most of their time would go into these sums
def measured(chunk: int, values: tuple[int, ...], finished: frozenset[int]) -> store.RunTotal:
    """The sums of a chunk of these texts, without the batches that are finished."""
    total, of = store.RunTotal(), num_batches(chunk)
    for number in range(of):
        if number in finished:
            continue
        some = values[number::of]
        num = torch.tensor(some, dtype=torch.float64).view(-1, 1, 1)
        own = torch.zeros(len(some), 1, 0)
        adds = BatchSums((SITE,), some, num, torch.ones(len(some), 1, 1), own) if some else None
        counts = {"cut": 0, "windows": 0, "cut_gold": 0, "texts": len(values)} if number == 0 else {}
        total.add(store.BatchPart(chunk, number, of, adds, Failures(), counts))
    return total


def num_batches(chunk: int) -> int:
    return 1 + chunk % 3
