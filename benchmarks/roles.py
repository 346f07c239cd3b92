"""What finding roles costs: every role of all heads of the bundled model over 2,000 sentences of about 20 words.

`python -m benchmarks.roles` prints, a JSON line each:

- the sentences a second of `mh.find_roles`, beside those of the plain forward pass over the same batches;
- the same by two processes on two cores, beside one that is held to one core;
- the peak memory of a process that reads 1,000, 10,000 and 100,000 sentences (`--memory`; a model of two layers: what
  grows with the corpus does not hang on the model's size).

The sentences are those of the treebanks in $MANYHEADS_GOLD that have 12 to 30 words, syntax and all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds import medians, memory_bytes, ratio

COUNT = 2_000
SHORTEST, LONGEST = 12, 30  # words
ROUNDS = 3
SIZES = (1_000, 10_000, 100_000)


def sentences(count: int = COUNT) -> list[Any]:
    """Gold sentences, over again where there are not enough of them."""
    from manyheads.corpora import open_corpus

    folder = os.environ.get("MANYHEADS_GOLD")
    if not folder:
        sys.exit("MANYHEADS_GOLD names no folder of treebanks (.conllu): this benchmark reads gold sentences.")
    found = [
        each
        for path in sorted(Path(folder).glob("*.conllu"))
        for each in open_corpus(path).open()
        if each.gold is not None and SHORTEST <= len(each.gold.words) <= LONGEST
    ]
    return [found[at % len(found)] for at in range(count)]


def plain(lm: Any, texts: list[Any]) -> float:
    """Seconds of the forward pass alone, over the batches that measuring makes of these texts."""
    from manyheads.inputs import forward, read

    batches = list(read(lm, [each.text for each in texts]).batches())
    begun = time.perf_counter()
    for batch in batches:
        forward(lm, batch, guard=False)
    return time.perf_counter() - begun


def roles(lm: Any, texts: list[Any]) -> float:
    import manyheads as mh

    begun = time.perf_counter()
    found = mh.find_roles(lm, texts, examples=0)
    seconds = time.perf_counter() - begun
    assert len(found.questions) > 50, "syntax was not asked"
    return seconds


def against_plain(rounds: int) -> dict[str, Any]:
    import torch

    import manyheads as mh

    torch.set_num_threads(2)
    lm, texts = mh.load("minilm"), sentences()
    taken: dict[str, list[float]] = {"plain": [], "roles": []}
    for turn in range(rounds + 1):
        for name, way in (("plain", plain), ("roles", roles)):
            seconds = way(lm, texts)
            if turn:
                taken[name].append(seconds)
    rates = {f"{name}_per_second": COUNT / seconds for name, seconds in medians(taken).items()}
    return {"what": "roles", "sentences": COUNT, **rates, **ratio(taken["plain"], taken["roles"])}


def two_processes(rounds: int) -> dict[str, Any]:
    """Each way in processes of its own, the sums of all ranks merged."""
    alone = ["taskset", "-c", "0", sys.executable, "-m", "benchmarks.roles", "--worker"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ways = {"one": alone, "two": [*launch, "-m", "benchmarks.roles", "--worker"]}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                sys.exit(done.stderr)
            taken[name].append(json.loads(done.stdout.splitlines()[-1])["seconds"])
    return {"what": "two processes", **medians(taken), **ratio(taken["one"], taken["two"])}


def worker() -> None:
    """One rank: its share of the sentences; the first says how long all took."""
    import torch
    import torch.distributed as dist

    import manyheads as mh

    torch.set_num_threads(1)
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if many:
        dist.init_process_group("gloo")
    lm, texts = mh.load("minilm"), sentences()
    if many:
        dist.barrier()
    seconds = roles(lm, texts)
    if not many or dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    if many:
        dist.destroy_process_group()


def memory(count: int) -> None:
    """The peak of this process after `count` sentences, which are made as they are asked for."""
    import transformers

    import manyheads as mh
    from manyheads.corpora import Corpus
    from manyheads.texts import Document

    found = sentences()
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    lm = mh.load(transformers.BertModel(config).eval(), tokenizer=mh.load("minilm").tokenizer)

    def documents() -> Any:
        for at in range(count):
            each = found[at % len(found)]
            yield Document(each.text, f"{each.name} {at}", each.gold, at=at + 1)

    begun = time.perf_counter()
    mh.find_roles(lm, Corpus(documents, "sentences", f"{count}", count), examples=0)
    seconds, peak = time.perf_counter() - begun, memory_bytes("VmHWM") / 1e9
    print(json.dumps({"what": "memory", "sentences": count, "peak_gb": peak, "seconds": seconds}))


def growth() -> None:
    """The peaks of processes that read more and more, and what the last is over the first."""
    peaks = []
    for size in SIZES:
        command = [sys.executable, "-m", "benchmarks.roles", "--memory-of", str(size)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        print(said, flush=True)
        peaks.append(json.loads(said)["peak_gb"])
    print(json.dumps({"what": "growth", "sentences": SIZES, "peak_gb": peaks, "ratio": peaks[-1] / peaks[0]}))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--memory", action="store_true", help="the peak memory too: minutes")
    parser.add_argument("--memory-of", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.worker:
        worker()
    elif asked.memory_of:
        memory(asked.memory_of)
    else:
        print(json.dumps(against_plain(asked.rounds)), flush=True)
        print(json.dumps(two_processes(asked.rounds)), flush=True)
        if asked.memory:
            growth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
