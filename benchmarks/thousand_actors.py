"""A run over millions of texts by 1,024 simulated actors, which fail as a large cluster's machines do.

`python -m benchmarks.thousand_actors` runs the driver of corpora (`corpus_run.driver`) against actors that are
functions, in simulated time: a chunk takes as long as twenty real ones with a model of 70B on one H100, a part of sums
as long as its bytes at 50 MB a second, and a machine of eight actors fails as often as those of Llama 3's training (419
times in 54 days of 16,384 GPUs), times `--worse`. Texts are numbers: their sum and their count say whether one was
lost, or counted twice.

It says by how much the run was longer than measuring alone, how much was measured again, and what the driver held.
No model, no GPU and no network is tried here: the driver is, and what it does with time, parts and losses.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import random
import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from benchmarks.rounds import memory_bytes
from manyheads.corpora import Corpus, Failures
from manyheads.measurement.corpus_run import chunks, driver, store
from manyheads.measurement.corpus_run.actor import Actor
from manyheads.measurement.corpus_run.basis import ALWAYS_NOTED, Basis
from manyheads.measurement.corpus_run.chunks import StartFacts
from manyheads.measurement.corpus_run.driver import ActorLost, Driver
from manyheads.measurement.corpus_run.file_driver import FileDriver
from manyheads.spec import Site
from manyheads.statistics import STATISTICS
from manyheads.statistics.sums import BatchSums
from manyheads.texts import Document, Sinks

FAILURES, DAYS, GPUS, OF_MACHINE = 419, 54, 16_384, 8  # Grattafiori et al. 2024, section 3.3.4
CHUNK_SECONDS = 42.5  # 120,000 tokens, 2 x 70e9 operations each, at 40 % of 989 TFLOPS
START_SECONDS = 300.0  # 141 GB of weights
PART_BYTES = 132.6e6  # 80 layers of 64 heads, 14 statistics
BYTES_A_SECOND = 50e6
CHUNK_BYTES = 512 << 10  # of a chunk of real texts, which the driver keeps until it is counted
SITE = Site("", 0, "attention", 1, 1, 4, 4, False)


class Numbers(Actor):
    """Adds up numbers: what the texts of a chunk say, as one head's one statistic."""

    def __init__(self, cluster: Machines, number: int) -> None:
        self._begin(lambda: cluster.at[number])

    def learn(self, chunks: Sequence[Any], whole: bool) -> bytes:
        count = sum(len(chunk.documents) for chunk in chunks)
        facts = StartFacts(torch.zeros(3, device="cpu"), "none", Sinks(), count, "all", "digest")
        return store.packed(facts.tensors(), facts.words())

    def begin(self, *_: object) -> dict[str, Any]:
        inputs = {"texts": "numbers", "shard": "0 of 1 by text", "reading": "texts"}
        basis = Basis(inputs, (STATISTICS["entropy"],), Sinks(), dict.fromkeys(ALWAYS_NOTED, "none"), None)
        return {"inputs": inputs, "basis": basis.words(), "part_bytes": PART_BYTES * driver.TRAFFIC / BYTES_A_SECOND}

    def add(self, chunk: Any, done: store.Done, before: int) -> None:
        value = sum(int(document.text) for document in chunk.documents)
        num = torch.tensor([[[value]]], dtype=torch.float64, device="cpu")
        one, none = torch.ones(1, 1, 1, device="cpu"), torch.zeros(1, 1, 0, device="cpu")
        counts = {"cut": 0, "windows": 0, "cut_gold": 0, "texts": len(chunk.documents)}
        adds = BatchSums((SITE,), (chunk.number,), num, one, none)
        self.total.add(store.BatchPart(chunk.number, 0, 1, adds, Failures(), counts))


@dataclass(eq=False)
class Machines:
    """A cluster in simulated time. `rate`: failures of a machine a second; all its actors end with it.

    `chunk_seconds`: what a chunk takes.
    """

    rate: float
    chunk_seconds: float
    draw: random.Random
    seconds: float = 0.0
    busy: float = 0.0  # seconds of measuring, of all actors
    failures: int = 0
    at: dict[int, float] = field(default_factory=dict)  # of each actor, when the last of its calls is done

    def __post_init__(self) -> None:
        self.actors: dict[int, Numbers] = {}
        self.calls: dict[int, tuple[int, str, tuple[Any, ...]]] = {}
        self.done: dict[int, tuple[float, bool]] = {}  # of each call, when, and whether its machine was there
        self.queue: list[tuple[float, int]] = []
        self.ends: list[float] = []  # of each place for eight actors, when its machine fails next
        self.place: dict[int, int] = {}
        self.num_calls = 0

    def clock(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def start(self) -> int:
        number = len(self.at)
        place = number // OF_MACHINE
        while len(self.ends) <= place:
            self.ends.append(self.seconds + self.draw.expovariate(self.rate))
        self.at[number], self.place[number] = self.seconds, place
        self.actors[number] = Numbers(self, number)
        return number

    def share(self, value: object) -> object:
        return value

    def call(self, actor: Hashable, method: str, *arguments: object) -> int:
        assert isinstance(actor, int)
        self.num_calls += 1
        takes = START_SECONDS if method == "begin" else self.chunk_seconds * method.startswith("measure")
        self.at[actor] = end = max(self.seconds, self.at[actor]) + takes
        fails = self.ends[self.place[actor]]
        self.calls[self.num_calls] = actor, method, arguments
        self.done[self.num_calls] = (fails, False) if fails < end else (end, True)
        heapq.heappush(self.queue, (self.done[self.num_calls][0], self.num_calls))
        return self.num_calls

    def first_done(self, calls: Sequence[Hashable], seconds: float) -> Hashable | None:
        while self.queue and self.queue[0][1] not in self.calls:
            heapq.heappop(self.queue)
        if not self.queue or self.queue[0][0] > self.seconds + seconds:
            self.seconds += seconds + 1e-3
            return None
        end, call = heapq.heappop(self.queue)
        self.seconds = max(self.seconds, end)
        return call

    def result(self, call: Hashable) -> Any:
        assert isinstance(call, int)
        actor, method, arguments = self.calls.pop(call)
        end, is_there = self.done.pop(call)
        if not is_there:
            raise ActorLost("its machine failed")
        self.seconds = max(self.seconds, end)
        ahead, self.at[actor] = self.at[actor], end
        arguments = tuple(self.result(x) if method == "absorb" and isinstance(x, int) else x for x in arguments)
        answer = getattr(self.actors[actor], method)(*arguments)
        self.at[actor] = ahead
        if method.startswith("measure"):
            self.busy += self.chunk_seconds
        data = answer[1] if isinstance(answer, tuple) else answer
        if isinstance(data, bytes) and method != "learn":
            self.seconds += PART_BYTES / BYTES_A_SECOND
        return answer

    def kill(self, actor: Hashable) -> None:
        assert isinstance(actor, int)
        if self.ends[self.place[actor]] <= self.seconds and all(
            other not in self.actors for other, place in self.place.items() if place == self.place[actor] != actor
        ):
            self.failures += 1
        del self.actors[actor]
        for call in [call for call, (owner, *_) in self.calls.items() if owner == actor]:
            del self.calls[call], self.done[call]


def numbers(begin: int, end: int) -> Iterator[Document]:
    for number in range(begin, end):
        yield Document(str(number), f"text {number}", at=number - begin + 1)


def simulated(
    num_texts: int, num_actors: int, worse: float, by_file: bool, texts_of_chunk: int, in_one: int
) -> dict[str, Any]:
    """One run, and what came of it. Raises AssertionError where a text was lost or counted twice."""
    chunks.CHUNK_TEXTS = texts_of_chunk
    rate = worse * FAILURES / (DAYS * 86_400 * GPUS / OF_MACHINE)
    seconds = in_one * CHUNK_SECONDS
    cluster, most, memory = Machines(rate, seconds, random.Random(0)), [0], []
    sample = Numbers(cluster, cluster.start())
    sample.add(next(chunks.chunks_of(numbers(0, 9))), store.Done(), 0)
    driver.TRAFFIC = BYTES_A_SECOND * len(sample.hand_over()) / PART_BYTES  # so that these parts count as large ones
    files: tuple[Corpus, ...] = ()
    if by_file:
        of = 4 * num_actors
        borders = [num_texts * index // of for index in range(of + 1)]
        files = tuple(
            Corpus(lambda a=a, b=b: numbers(a, b), f"file {a}", f"{a}", b - a, again=lambda a=a, b=b: Corpus(
                lambda: numbers(a, b), f"file {a}", f"{a}", b - a))
            for a, b in pairwise(borders)
        )  # fmt: skip
    corpus = Corpus(lambda: numbers(0, num_texts), f"{num_texts:,} numbers", "numbers", num_texts, files)
    run: Driver

    def progress(done: int, total: int | None) -> None:
        held = sum(map(len, run._held.values()))
        most[0] = max(most[0], held)
        if total and done * 10 // total > len(memory) - 1:
            memory.append(memory_bytes("VmRSS"))

    # A chunk here stands for several: an actor may be silent for as many times as long.
    how = {"every": 30.0, "deaths": 10**6, "patience": in_one * Driver.patience,
           "progress": progress, "clock": cluster.clock, "sleep": cluster.sleep}  # fmt: skip
    run = (FileDriver if by_file else Driver)(cluster, corpus, num_actors, **how)
    run.run()
    sums = run.total.sums
    assert float(sums.num[..., 0].sum()) == num_texts * (num_texts - 1) / 2, "a text was lost, or counted twice"
    assert run.total.counts["texts"] == num_texts, "a text was lost, or counted twice"
    num_chunks = run.total.done.num_batches
    alone = num_chunks * seconds / num_actors
    return {
        "texts": num_texts, "chunks": num_chunks, "actors": num_actors, "by file": by_file, "worse": worse,
        "hours": cluster.seconds / 3600, "against measuring alone": cluster.seconds / alone,
        "actors lost": run.events["lost"], "chunks again": run.events["again"], "parts": run.events["parts"],
        "busy": cluster.busy / (num_actors * cluster.seconds), "most chunks held": most[0] * in_one,
        "held as texts, GB": 0.0 if by_file else most[0] * in_one * CHUNK_BYTES / 1e9,
        "memory at tenths, MB": [round(size / 1e6) for size in memory],
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=2_000_000)
    parser.add_argument("--actors", type=int, default=1_024)
    parser.add_argument("--of-chunk", type=int, default=200, help="texts of a chunk")
    parser.add_argument("--in-one", type=int, default=20, help="chunks of real size that one here stands for")
    parser.add_argument("--worse", type=float, default=1.0, help="how often machines fail, times the published rate")
    parser.add_argument("--by-file", action="store_true")
    chosen = parser.parse_args(arguments)
    logging.getLogger("manyheads").disabled = True  # a line for each loss
    print(
        json.dumps(
            simulated(chosen.texts, chosen.actors, chosen.worse, chosen.by_file, chosen.of_chunk, chosen.in_one),
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
