"""What all heads' effects cost: the ablation of each of minilm's 72 heads on 200 sentences against 72 forward passes.

`python -m benchmarks.importance` times both over the same length-bucketed batches, each at several batch sizes, and
compares the best of each, in turns. The floor, with half of the layers shared, is about 0.53x.
The sentences are of the bundled page, or of a file: `--file persuasion.txt`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import manyheads as mh
from benchmarks.rounds import ratio
from manyheads.corpora import page_texts
from manyheads.edits import METRICS, Runner, plan_edits
from manyheads.inputs import Batch, forward, read

THREADS = 2
ROUNDS = 3
SENTENCES = 200
PLAIN_TOKENS = (256, 512, 1024, 2048)  # of a batch, with padding
SWEPT_TOKENS = ((256, 1024), (256, 2048), (512, 2048))  # of a batch, and of one that is expanded


def sentences(file: Path | None) -> list[str]:
    text = " ".join(page_texts()) if file is None else file.read_text(encoding="utf-8")
    parts = (" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text))
    return [part for part in parts if 20 < len(part) < 250][:SENTENCES]


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--file", type=Path)
    asked = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    lm, texts, cosine = mh.load("minilm"), sentences(asked.file), METRICS["cosine"]
    plans = plan_edits(lm, [mh.Plan(mh.Ablate(head)) for head in lm.spec.heads])

    def read_all(batches: Sequence[Batch]) -> None:
        for batch in batches:
            forward(lm, batch, guard=False)

    reading = read(lm, texts)
    plain = {size: tuple(reading.batches(size)) for size in PLAIN_TOKENS}
    swept = {sizes: tuple(reading.batches(sizes[0])) for sizes in SWEPT_TOKENS}
    read_all(plain[512])
    rows = []
    for _ in range(asked.rounds):
        passes = {size: plans.count * seconds(lambda c=batches: read_all(c)) for size, batches in plain.items()}
        sweeps = {
            sizes: seconds(lambda c=batches, s=sizes: Runner.of(lm, plans, cosine, num_tokens=s[1]).over(c))
            for sizes, batches in swept.items()
        }
        rows.append((min(passes.values()), min(sweeps.values())))
    theirs, ours = zip(*rows, strict=True)
    row = {
        "what": "importance",
        "heads": plans.count,
        "sentences": len(texts),
        "tokens": reading.num_tokens,
        **ratio(ours, theirs),
        "seconds": {"forward passes": theirs[-1], "ours": ours[-1]},
    }
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
