"""The driver of a run over actors: it hands out numbered chunks, counts each of them once, and writes the folder.

It needs neither model, tokenizer nor accelerator, and knows no engine: what an engine must do is a `Cluster`. Actors
hold the sums of what they measured; the driver holds one total, one part of it at a time, and of the corpus what is out
(`ahead` chunks for each actor, and those that an actor has in its sums). An actor may end at any moment. So that each
chunk counts once all the same:

1. The engine repeats no call and restarts no actor: a second one would have empty sums, and nobody would know.
2. A chunk counts when a part that covers it has arrived, not when an actor says that it measured it.
3. Whatever goes wrong with a call, that actor is ended, no further answer of it is taken, and all that it held or was
   given is handed out again.
4. A part that overlaps what is counted is refused as a whole.
5. What is handed out again is handed over as soon as it is measured: else actors that live shorter than `every` would
   never get anywhere.
6. A chunk with which `deaths` actors have died ends the run, which names its texts. Only the call that ran counts, not
   those behind it, and not an actor that was out of memory: the memory may have been another's.
7. When all is measured, an actor that is still starting is not waited for: there may be no room for it.
8. Where one actor adds another's sums to its own, and one of the two dies, both have lost what they held.

In the end every chunk must be counted, from the first to the last: the run does not return otherwise.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from manyheads.base import plural
from manyheads.corpora import WHOLE, Corpus
from manyheads.errors import EngineError, LostProcessError, ManyHeadsError, StatisticError, TextError
from manyheads.measurement.corpus_run import store
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.basis import Basis
from manyheads.measurement.corpus_run.chunks import (
    Chunk,
    StartFacts,
    Work,
    chunks_of,
    differences,
    require_read_again,
    require_same,
    texts_of,
)
from manyheads.measurement.corpus_run.worker import RunRequest
from manyheads.progress import Progress
from manyheads.statistics import Statistic, Survey

if TYPE_CHECKING:
    from manyheads.measurement.corpus_run.items import Items

ENGINES = {"ray": "manyheads.ray"}  # by name, the module of each
TRAFFIC = 50e6  # bytes a second that the driver takes in: with more and larger parts, actors hand over more seldom
PAIRED_BYTES = 100 << 20  # of a part: from here on actors add each other's sums first, in pairs
SPREAD_SHARES = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, lie evenly from 0 to 1
MOST_MEMORY_DEATHS = 20  # in a row: then no other process gives the memory back
LONGEST_PAUSE = 60.0  # seconds

log = logging.getLogger("manyheads")


class ActorLost(Exception):
    """A call of an actor came to nothing, for whatever reason. `memory`: there was too little of it."""

    def __init__(self, reason: str, memory: bool = False) -> None:
        super().__init__(reason)
        self.memory = memory


@runtime_checkable
class Cluster(Protocol):
    """What the driver needs of an engine. An actor is an `Actor` in a process of its own, which may not be up yet.

    Calls of one actor run one after another in the order in which they were made. Nothing is ever repeated.
    """

    def start(self) -> Hashable:
        """A new actor."""
        ...

    def share(self, value: object) -> object:
        """A value that all actors take as an argument."""
        ...

    def call(self, actor: Hashable, method: str, *arguments: object) -> Hashable:
        """Begin a call. An argument may be a call of another actor, whose result is then sent to this one."""
        ...

    def first_done(self, calls: Sequence[Hashable], seconds: float) -> Hashable | None:
        """The first of these calls that has come to something, or to nothing; None after so many seconds."""
        ...

    def result(self, call: Hashable) -> Any:
        """What a call returned; waits for it. Errors: ActorLost."""
        ...

    def kill(self, actor: Hashable) -> None:
        """End an actor, so that it certainly hands nothing over any more."""
        ...


@runtime_checkable
class Engine(Protocol):
    """What runs over a corpus in processes of its own, on one machine or many (`manyheads.ray.Engine`)."""

    @property
    def every(self) -> float:
        """Seconds after which a process hands over its sums."""
        ...

    def room(self, corpus: Corpus) -> int:
        """How many processes would measure this corpus. Errors: EngineError; TextError where they could not read it."""
        ...

    def run(
        self, what: RunRequest, corpus: Corpus, *, resume: Path | None = None, progress: Progress | None = None
    ) -> Driver:
        """Run over a corpus, or a shard of it, to the end. Errors: as of a run in one process; EngineError."""
        ...

    def run_items(self, items: Items, *, resume: Path | None = None, progress: Progress | None = None) -> Driver:
        """Run over a verb's numbered items to the end: `total.results` of the driver. Errors as above."""
        ...


def engine_of(engine: Engine | str) -> Engine:
    """The engine of a name, with its defaults; one in hand as it is. Errors: EngineError."""
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise EngineError(f"there is no engine {engine!r}: give {' or '.join(map(repr, ENGINES))}, or an Engine.")
    # By its name: an engine stands above what it runs, and few who measure need one.
    return importlib.import_module(ENGINES[engine]).Engine()


@dataclass(eq=False)
class Driver:
    """A run over a corpus by `num_actors` actors, and in the end what it comes to: `total`, its `basis`, and `notes`.

    - cluster, corpus: the engine; the texts, or a shard of them.
    - survey: the corpus whose beginning is surveyed; None: the corpus itself, of a shard its whole.
    - folder: where the run keeps its parts, as one process does: either goes on with what the other left.
    - every: seconds after which an actor hands over what it holds; stretched where that is more than `TRAFFIC`.
    - ahead: how many chunks an actor is given at a time.
    - deaths: how many actors may end with the same chunk, or one after another without having started.
    - patience: after how many seconds without an answer an actor counts as hung; at least ten times the slowest answer,
      and of one that is up and loads the model, ten times as long as another took.
    - clock, sleep: time's own.
    - chosen: the statistics of a survey, where this process can tell them, before anything is measured: what it raises
      ends the run. Else the table's can be read, and not measured again.

    Errors: LostProcessError where no actor is left or a chunk ends all of them; those of a run in one process.
    """

    actor: ClassVar[type[Actor]] = Actor

    cluster: Cluster
    corpus: Corpus
    num_actors: int
    survey: Corpus | None = None
    folder: Path | None = None
    every: float = 30.0
    ahead: int = 2
    deaths: int = 3
    patience: float = 600.0
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chosen: Callable[[Survey], Sequence[Statistic]] | None = None
    total: store.RunTotal = field(default_factory=store.RunTotal)
    notes: dict[str, str] = field(default_factory=dict)
    basis: Basis = field(init=False)
    events: Counter[str] = field(default_factory=Counter)
    """How often what happened: actors "lost" and "hung", chunks "again", "parts", parts "refused", chunks "forgotten"
    by an actor that had measured them."""

    def __post_init__(self) -> None:
        self._add: Callable[[store.RunTotal], None] = self.total.add
        self._held: dict[Hashable, dict[int, Work]] = {}  # of each actor, what is in its sums
        self._calls: dict[Hashable, tuple[Hashable, Work | None]] = {}
        self._queues: dict[Hashable, deque[Hashable]] = {}  # of each actor, its calls in order
        self._with_room: dict[Hashable, None] = {}  # actors that are up and have fewer than `ahead` calls, in order
        self._first_share: dict[Hashable, float] = {}  # of an actor that has handed nothing over: which share of an age
        self._num_started = 0
        self._since: dict[Hashable, float] = {}  # of each actor, since when the first of its calls may run
        self._starts: list[float] = []  # when actors are started in place of those that are gone
        self._again: deque[Work] = deque()
        self._lost_chunks: set[int] = set()  # those that were handed out again, until they are counted
        self._reported: set[int] = set()  # those of them that were measured before
        self._deaths_with: Counter[int] = Counter()  # by chunk
        self._unstarted = self._memory_deaths = self._part_bytes = self._read_to = 0
        self._slowest = self._slowest_begin = 0.0  # seconds of the slowest answer, and of the slowest actor to begin
        self._starting: set[Hashable] = set()  # actors that are not up yet: there may be no room for them
        self._next_look = 0.0  # when actors that hang are looked for
        self._read: tuple[int, int] | None = None  # the first chunk that was read, and the one behind the last
        # A line of a terminal has room for more than two numbers (`cli.terminal.progress`).
        self._takes_note = self.progress is not None and "note" in inspect.signature(self.progress).parameters
        self._begin_call: tuple[object, ...] = ()
        self._inputs: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------------- the run

    @classmethod
    def check(cls, corpus: Corpus, folder: Path | None) -> None:
        """Errors, before any actor is started: StatisticError for texts that cannot be read again, as a folder asks."""
        if folder is not None:
            require_read_again(corpus)

    def run(self) -> Driver:
        """Measure everything, and return this driver."""
        self.check(self.corpus, self.folder)
        with ExitStack() as stack:
            stack.callback(self._end_actors)
            try:
                self._run(stack)
            except (KeyboardInterrupt, LostProcessError):
                if self.folder is not None:
                    log.warning(
                        "stopped after %s texts, all of them kept in %s: the same call goes on from there, with this "
                        "engine or another",
                        f"{self.total.num_texts:,}",
                        self.folder,
                    )
                raise
        return self

    def _run(self, stack: ExitStack) -> None:
        place, files, known = self.corpus.place or WHOLE, None, None
        if self.folder is not None:
            files = stack.enter_context(store.RunFolder.opened(self.folder))
            known = files.begun()
        surveyed = self._surveyed
        head, rest, whole, learned = self._learned(
            chunks_of((surveyed or self.corpus).open()), None if known is None else known[1]
        )
        origin = (self.corpus.whole or self.corpus).origin
        survey = Survey(tuple(document for chunk in head for document in chunk.documents), whole)
        statistics = None if self.chosen is None else tuple(self.chosen(survey))
        self._begin_call = (self.cluster.share(head), whole, learned, self._texts, origin)
        words = self._first_begins(*self._begin_call)
        self._inputs, self.basis = words["inputs"], Basis.read(words["basis"])
        # Before the first part: else all would hand over at once, and wait for each other.
        self._part_bytes = words.get("part_bytes", 0)
        if statistics is not None:
            self.basis = replace(self.basis, statistics=statistics)
        if files is not None and self.folder is not None:
            if known is None:
                files.begin(self._inputs, _facts(learned))
            else:
                require_same(self._inputs, known[0], self.folder)
            if (finished := files.finished()) is not None:
                self.total, self.notes["resumed"] = finished, f"finished before, read back from {self.folder}"
                self._report_all()
                return
            parts = store.Parts.opened(self.folder, self.basis)
            self.total, self._add = parts.total, parts.add
        before = self.total.num_texts
        self._measure(chain(head, rest) if surveyed is None else chunks_of(self.corpus.open(), place))
        # A shard may hold no text, or none that can be read: the others have what there is.
        if not self.total.num_texts and place == WHOLE:
            reasons = str(self.total.failures).rstrip(".") or "it holds none"
            raise TextError(f"no text of {self.corpus.origin} could be measured: {reasons}.")
        self.total.parts = self._parts
        if files is not None:
            files.finish(self.total, self.basis)
        lost, again = self.events["lost"], plural(self.events["again"], "chunk")
        self.notes["actors"] = f"{self.num_actors:,}" + (f" ({lost:,} lost, {again} measured again)" if lost else "")
        self.notes["resumed"] = f"gone on with after {before:,} texts" if before else ""
        self._report_all()

    def _learned(
        self, stream: Iterator[Chunk], known: StartFacts | None
    ) -> tuple[tuple[Chunk, ...], Iterator[Chunk], bool, bytes]:
        """The beginning of the corpus, what follows it, whether that is nothing, and what the beginning shows.

        What an earlier run learned says how long it is. Else an actor is shown more and more chunks until they do.
        """
        head: list[Chunk] = []
        data = None if known is None else store.packed(known.tensors(), known.words())
        while True:
            head += islice(stream, max(1, len(head)))
            if not head:
                origin, empty_list = (self.survey or self.corpus).origin, self.corpus.total == 0
                why = "the list is empty" if empty_list and origin.startswith("0 ") else f"{origin} holds none"
                raise TextError(f"no text was given: {why}.")
            following = [*islice(stream, 1)]  # one chunk more, to know whether the head is the whole corpus
            if known is None:
                data = self._answer_of_one("learn", tuple(head), not following)
            need = 0 if data is None else _facts(data).num_documents
            counts = [*accumulate(len(chunk.documents) for chunk in head)]
            if data is not None and (counts[-1] >= need or not following):
                taken = sum(count < need for count in counts[:-1]) + 1
                rest = [*head[taken:], *following]
                return tuple(head[:taken]), chain(rest, stream), not rest, data
            head += following

    def _measure(self, stream: Iterator[Chunk]) -> None:
        """Every chunk that is not counted yet, until all are."""
        queue, exhausted = self._queue(stream), False
        for actor in self._held:  # the one that made the survey
            self._queues[actor], self._with_room[actor] = deque(), None
        self._starts += [self.clock()] * (self.num_actors - len(self._held))
        while True:
            self._start_due()
            exhausted = self._give(queue) or exhausted
            # An actor that is not up yet is not waited for: there may be no room for it.
            if self._has_given_all(exhausted) and all(chunk is None for _, chunk in self._calls.values()):
                if not self._collect():
                    break
            elif self._calls:
                self._take()
            else:
                self.sleep(max(0.0, min(self._starts) - self.clock()))
        done, ranges = self.total.done, self._ranges
        if done.begun or [(first, stop) for first, stop, _ in done.whole] != ranges:
            raise LostProcessError(
                f"of chunks {ranges[0][0]} to {ranges[-1][1] - 1} of {self.corpus.origin}, not all "
                f"were handed over: the engine repeats calls, or loses them silently."
            )

    # What another way to read the corpus decides for itself (`file_driver`): these seven.

    @property
    def _surveyed(self) -> Corpus | None:
        """Whose beginning is surveyed, where what is measured is not what follows it."""
        return self.survey or self.corpus.whole

    @property
    def _texts(self) -> dict[str, str]:
        """The inputs that say which texts are measured, and how they are dealt out."""
        return texts_of(self.corpus)

    @property
    def _parts(self) -> dict[str, int]:
        """What is whole in the sums, and of how many texts."""
        return {str(self.corpus.place or WHOLE): self.total.counts.get("texts", 0)}

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        """All chunks that there are, as ranges."""
        return [] if self._read is None else [self._read]

    def _has_given_all(self, exhausted: bool) -> bool:
        """Whether no chunk is left to hand out. `exhausted`: whether `_give` has come to the end of the corpus."""
        return exhausted and not self._again

    def _queue_again(self, chunks: Sequence[Work]) -> None:
        """Hand these out before others."""
        self._again.extend(chunks)

    def _was_measured(self, actor: Hashable, chunk: Work, answer: bytes | None) -> None:
        """A chunk is in an actor's sums; the answer is what it hands over, or None."""
        self._held[actor][chunk.number] = chunk
        self._report(chunk)
        if answer is not None:
            self._count(actor, answer)

    def _queue(self, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        """The chunks that no earlier run has measured, as they are read."""
        for chunk in stream:
            self._read = (chunk.number if self._read is None else self._read[0], chunk.number + 1)
            if self.total.done.has_whole(chunk.number):
                self._report(chunk)
            else:
                yield chunk

    # ---------------------------------------------------------------------------------------------- handing out chunks

    def _give(self, queue: Iterator[Chunk]) -> bool:
        """Give each actor that is up as many chunks as it may have. Returns whether the corpus is read to its end."""
        while self._with_room:
            # Read no further than that: so the driver holds a few chunks, however fast the corpus is read.
            chunk = self._again.popleft() if self._again else next(queue, None)
            if chunk is None:
                return True
            actor = next(iter(self._with_room))
            if not self._queues[actor]:
                self._since[actor] = self.clock()
            # Of the first chunk an error is raised, as by one process: then it is the model, or a statistic.
            before = int(self.total.num_texts > 0 or self._read is None or chunk.number != self._read[0])
            age = 0.0 if chunk.number in self._lost_chunks else self._age_of(actor)
            begun = self.total.done.begun.get(chunk.number)
            self._call(actor, chunk, "measure", chunk, begun, before, age)
            del self._with_room[actor]
            if len(self._queues[actor]) < self.ahead:
                self._with_room[actor] = None  # behind the others: each has one chunk before any has two
        return False

    def _call(self, actor: Hashable, chunk: Work | None, method: str, *arguments: object) -> None:
        call = self.cluster.call(actor, method, *arguments)
        self._calls[call] = actor, chunk
        self._queues[actor].append(call)

    @property
    def _age(self) -> float:
        """After how many seconds an actor hands over what it holds: the driver must keep up with all of them."""
        return max(self.every, len(self._held) * self._part_bytes / TRAFFIC)

    def _age_of(self, actor: Hashable) -> float:
        """The same of one actor: for the first time a share of it, another one for each.

        They begin together, and would hand over together: the driver would take in a queue of parts, each actor would
        wait for the end of it, and so on every time.
        """
        return self._age if self._age <= self.every else self._age * self._first_share.get(actor, 1.0)

    def _take(self) -> None:
        """Take the next answer of some actor; or end one that has been silent for too long."""
        self._end_hung()
        wait = min([*self._starts, self._next_look]) - self.clock()
        # Of each actor the call that may run: those behind it come to nothing before.
        done = self.cluster.first_done([calls[0] for calls in self._queues.values() if calls], max(0.0, wait))
        if done is None:
            return
        actor, chunk = self._calls[done]
        try:
            answer = self._result(done)
        except ActorLost as error:
            self._lose(actor, error)
            return
        del self._calls[done]
        self._queues[actor].popleft()
        took, self._since[actor] = self.clock() - self._since[actor], self.clock()
        if actor in self._starting:
            self._starting.remove(actor)
            self._call(actor, None, "begin", *self._begin_call)
            return
        self._with_room[actor] = None
        if chunk is None:
            self._require_same(answer["inputs"])
            self._unstarted, self._slowest_begin = 0, max(self._slowest_begin, took)
            return
        self._slowest, self._memory_deaths = max(self._slowest, took), 0
        self._was_measured(actor, chunk, answer)

    def _end_hung(self) -> None:
        """End actors that have been silent for too long. One that is not up yet may wait for room."""
        now = self.clock()
        if now < self._next_look:
            return
        self._next_look = now + self._limit / 10
        for actor, calls in [*self._queues.items()]:
            begins = calls and self._calls[calls[0]][1] is None
            limit = max(self._limit, 10 * self._slowest_begin) if begins else self._limit
            if calls and actor not in self._starting and now - self._since[actor] >= limit:
                self.events["hung"] += 1
                self._lose(actor, ActorLost(f"no answer for {now - self._since[actor]:.0f} seconds"))

    # ------------------------------------------------------------------------------------------- counting them once

    def _count(self, actor: Hashable, data: bytes) -> None:
        """Add a part that an actor handed over; from now on it holds nothing."""
        self._first_share.pop(actor, None)
        part, held = store.RunTotal.read(*store.unpacked(data)), self._held[actor]
        self._held[actor] = {}
        self.events["parts"] += 1
        if self.total.done.overlaps(part.done):
            self.events["refused"] += 1
            log.warning("a part covers batches that are counted: it is refused, and what it lacks measured again")
        else:
            self._part_bytes = len(data)
            self._add(part)
        forgotten = {number: chunk for number, chunk in held.items() if not self.total.done.has_whole(number)}
        self.events["forgotten"] += len(forgotten)
        self._reported |= forgotten.keys()
        self._hand_out_again(forgotten)
        for number in held.keys() - forgotten.keys():
            self._lost_chunks.discard(number)
            self._reported.discard(number)
            self._deaths_with.pop(number, None)

    def _lose(self, actor: Hashable, error: ActorLost) -> None:
        """End an actor, hand out again all that it held or was given, and start another in its place."""
        self.cluster.kill(actor)
        self.events["lost"] += 1
        lost = self._held.pop(actor, {})
        self._reported |= lost.keys()
        self._with_room.pop(actor, None)
        self._first_share.pop(actor, None)
        self._starting.discard(actor)
        chunks = [self._calls.pop(call)[1] for call in self._queues.pop(actor)]
        lost |= {chunk.number: chunk for chunk in chunks if chunk is not None}
        self._hand_out_again(lost)
        log.warning("an actor was lost (%s): %s again", error, plural(len(lost), "chunk"))
        pause = 0.0
        if error.memory:
            pause = self._pause_for_memory(error)
        elif chunks and (running := chunks[0]) is not None:
            self._deaths_with[running.number] += 1
            if self._deaths_with[running.number] >= self.deaths:
                raise LostProcessError(
                    f"{self.deaths} actors were lost with the same texts, {running} of {self.corpus.origin} "
                    f"({error}): measure them by themselves to see why, or leave them out."
                ) from error
        elif chunks:
            self._unstarted += 1
            starting = {owner for owner, chunk in self._calls.values() if chunk is None}
            if self._unstarted >= self.deaths:
                if self._held.keys() == starting:
                    raise LostProcessError(f"no actor is left: {error}.") from error
                pause = min(LONGEST_PAUSE, 2.0**self._unstarted)
        self._starts.append(self.clock() + pause)

    def _pause_for_memory(self, error: ActorLost) -> float:
        """How many seconds to wait for the memory of others. Errors: LostProcessError where it never comes."""
        self._memory_deaths += 1
        if self._memory_deaths >= MOST_MEMORY_DEATHS:
            raise LostProcessError(
                f"{self._memory_deaths} actors in a row were out of memory ({error}): run fewer of them on a machine "
                f"(actors=), or give each more."
            ) from error
        return min(LONGEST_PAUSE, 2.0**self._memory_deaths)

    def _hand_out_again(self, chunks: Mapping[int, Work]) -> None:
        self._lost_chunks |= chunks.keys()
        self._queue_again([chunk for _, chunk in sorted(chunks.items())])
        self.events["again"] += len(chunks)

    def _collect(self) -> bool:
        """Take in what actors hold when all is measured, one of them at a time. Returns whether some held anything."""
        holding = [actor for actor, chunks in self._held.items() if chunks]
        if len(holding) > 1 and self._part_bytes > PAIRED_BYTES:
            self._pair(holding)
        elif holding:
            try:
                self._count(holding[0], self._within_limit(self.cluster.call(holding[0], "hand_over")))
            except ActorLost as error:
                self._lose(holding[0], error)
        return bool(holding)

    def _pair(self, holding: Sequence[Hashable]) -> None:
        """Half of the actors take in what the others hold, without the driver."""
        pairs = list(zip(holding[::2], holding[1::2], strict=False))
        calls = [self.cluster.call(one, "absorb", self.cluster.call(two, "hand_over")) for one, two in pairs]
        for (one, two), call in zip(pairs, calls, strict=True):
            try:
                self._within_limit(call)
            except ActorLost as error:
                # Which of the two, and before or after the sums went over, is not known: both are ended.
                self._lose(one, error)
                self._lose(two, error)
            else:
                self._held[one] |= self._held[two]
                self._held[two] = {}

    # -------------------------------------------------------------------------------------------------------- actors

    @property
    def _limit(self) -> float:
        """After how many seconds without an answer an actor counts as hung."""
        return max(self.patience, 10 * self._slowest)

    def _start_due(self) -> None:
        """Start the actors whose time has come."""
        now = self.clock()
        due, self._starts = [x for x in self._starts if x <= now], [x for x in self._starts if x > now]
        for _ in due:
            actor = self.cluster.start()
            self._held[actor], self._since[actor], self._queues[actor] = {}, now, deque()
            self._num_started += 1
            self._first_share[actor] = self._num_started * SPREAD_SHARES % 1
            self._starting.add(actor)
            self._call(actor, None, "up")

    def _first_begins(self, *arguments: object) -> Any:
        """What the first actor begins with, and how long that takes: what others may take is ten times as long."""
        since = self.clock()
        words = self._answer_of_one("begin", *arguments)
        self._slowest_begin = self.clock() - since
        return words

    def _answer_of_one(self, method: str, *arguments: object) -> Any:
        """What one actor answers, whichever it is: before any chunk is handed out."""
        while True:
            if not self._held:
                self._held[self.cluster.start()] = {}
            (actor,) = self._held
            call = self.cluster.call(actor, method, *arguments)
            if self.cluster.first_done([call], LONGEST_PAUSE) is None:
                log.warning(
                    "no actor has answered for %.0f seconds: it is loading the model, or waiting for room on the "
                    "cluster",
                    LONGEST_PAUSE,
                )
            try:
                return self._result(call)
            except ActorLost as error:
                self.cluster.kill(actor)
                del self._held[actor]
                self.events["lost"] += 1
                if error.memory:
                    self.sleep(self._pause_for_memory(error))
                    continue
                self._unstarted += 1
                if self._unstarted >= self.deaths:
                    raise LostProcessError(f"no actor is left: {error}.") from error

    def _require_same(self, inputs: dict[str, str]) -> None:
        """Errors: StatisticError names what an actor would measure otherwise."""
        if different := differences(self._inputs, inputs, "in the first", "in another"):
            raise StatisticError(
                f"the engine's processes do not measure alike, they differ in {different}: give all of them the same "
                f"model and the same manyheads."
            )

    def _result(self, call: Hashable) -> Any:
        if isinstance(answer := self.cluster.result(call), ManyHeadsError):
            raise answer
        return answer

    def _within_limit(self, call: Hashable) -> Any:
        if self.cluster.first_done([call], self._limit) is None:
            self.events["hung"] += 1
            raise ActorLost(f"no answer for {self._limit:.0f} seconds")
        return self._result(call)

    def _end_actors(self) -> None:
        for actor in self._held:
            self.cluster.kill(actor)

    # ------------------------------------------------------------------------------------------------------ progress

    @property
    def num_texts_held(self) -> int:
        """Texts that are measured, and in actors' sums alone."""
        return sum(chunk.num_texts for chunks in self._held.values() for chunk in chunks.values())

    @property
    def note(self) -> str:
        """What there is to say beside how far reading has come."""
        at_work = sum(any(self._calls[call][1] is not None for call in calls) for calls in self._queues.values())
        again, held = self.events["again"], self.num_texts_held
        return ", ".join([
            f"{plural(at_work, 'actor')} at work",
            *([f"{plural(again, 'chunk')} measured again"] if again else []),
            *([f"{plural(held, 'text')} not handed over yet"] if held else []),
        ])  # fmt: skip

    def _report(self, chunk: Work) -> None:
        """How far reading has come, in the corpus' own units: a chunk counts when it is measured for the first time."""
        if chunk.number not in self._reported:
            self._advance(chunk.size)

    def _advance(self, size: int) -> None:
        self._read_to += size
        if self._takes_note and self.progress is not None:
            self.progress(self._read_to, self.corpus.total, self.note)  # type: ignore[call-arg]  # it takes one
        elif self.progress is not None:
            self.progress(self._read_to, self.corpus.total)

    def _report_all(self) -> None:
        if self.progress is not None and self.corpus.total is not None:
            self.progress(self.corpus.total, self.corpus.total)


def _facts(data: bytes) -> StartFacts:
    return StartFacts.read(*store.unpacked(data))
