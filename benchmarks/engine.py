"""What measuring on Ray costs beside the plain loop, and what a second actor brings.

`python -m benchmarks.engine [--texts 1200] [--rounds 3]`. minilm measures the same texts in this process, by one actor
and by two, in turns. Of each round:

- `measuring`: processor seconds of the one actor between the end of loading and the last chunk, over those of the plain
  loop. Both survey the corpus, and digest the weights. `two_measuring`: those of both actors.
- `driver`: processor seconds of this process while one actor measured.
- `faster`: texts a second of the clock on the wall that two actors measure, over those of one, in the second half of
  the corpus, when all are up. It is one where the machine has no second core to give: `load` stands beside it, how many
  processes waited for a core.

Chunks are of `CHUNK_TEXTS` texts, so that a corpus of some thousand tokens has a dozen of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import manyheads as mh
from benchmarks import subjects
from benchmarks.rounds import ratio
from manyheads.measurement.corpus_run import chunks
from manyheads.models import LoadedModel
from manyheads.ray import Engine, measure

CHUNK_TEXTS, MODEL = 100, "minilm"


def texts_of(count: int) -> list[str]:
    """Sentences of 4 to 17 common words."""
    ids = subjects.ids(12 * count)
    words = ["river", "old", "the", "of", "stone", "walked", "under", "a", "bridge", "and", "slowly", "green"]
    lengths = [4 + int(number) % 14 for number in ids[:count]]
    return [" ".join(words[int(i) % len(words)] for i in ids[at : at + size]) for at, size in enumerate(lengths)]


def loaded(folder: Path) -> LoadedModel:
    """The model, in an actor, which writes down what it has taken until then."""
    lm = mh.load(MODEL)
    (folder / f"{os.getpid()}").write_text(str(time.process_time()), encoding="utf-8")
    return lm


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """Seconds of processors of actors, less loading, and of this process; texts a second of the second half."""

    measuring: float
    loading: float
    driver: float
    rate: float


def by_actors(count: int, texts: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder, seen, taken = Path(name), [], {}

        def progress(done: int, total: int | None) -> None:
            seen.append((done, time.monotonic()))
            taken.update({path.name: processor_seconds(int(path.name)) for path in folder.iterdir()})

        begin = time.process_time()
        measure(partial(loaded, folder), texts, engine=Engine(actors=count), progress=progress)
        driver = time.process_time() - begin
        loading = {path.name: float(path.read_text(encoding="utf-8")) for path in folder.iterdir()}
    half = [(done, at) for done, at in seen if done >= len(texts) / 2]
    measuring = sum(taken[pid] - loading[pid] for pid in taken)
    rate = (half[-1][0] - half[0][0]) / (half[-1][1] - half[0][1]) if half[-1][1] > half[0][1] else float("nan")
    return Run(measuring, statistics.mean(loading.values()), driver, rate)


def measured(count: int, rounds: int) -> dict[str, Any]:
    texts, lm = texts_of(count), mh.load(MODEL)
    table = mh.measure(lm, iter(texts))  # warms up
    runs: dict[str, list[Any]] = {"plain": [], "one": [], "two": []}
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        begin = time.process_time()
        mh.measure(lm, iter(texts))
        runs["plain"].append(time.process_time() - begin)
        runs["one"].append(by_actors(1, texts))
        runs["two"].append(by_actors(2, texts))
    one, two = runs["one"], runs["two"]
    return {
        "what": MODEL,
        "texts": count,
        "tokens": table.sums.num_tokens,
        "rounds": rounds,
        "seconds": {
            "plain": statistics.median(runs["plain"]),
            "loading": statistics.median(run.loading for run in one),
            "driver": statistics.median(run.driver for run in one),
        },
        "measuring": ratio([run.measuring for run in one], runs["plain"]),
        "two_measuring": ratio([run.measuring for run in two], runs["plain"]),
        "faster": ratio([run.rate for run in two], [run.rate for run in one]),
        "load": os.getloadavg()[0],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1_200)
    parser.add_argument("--rounds", type=int, default=3)
    requested = parser.parse_args(argv)
    torch.set_num_threads(1)
    chunks.CHUNK_TEXTS = CHUNK_TEXTS
    print(json.dumps(measured(requested.texts, requested.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
