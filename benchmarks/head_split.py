"""What choosing heads costs: each key/value group of a decoder streaming by itself, against a forward pass a group.

`python -m benchmarks.head_split` times the sweep by which `mh.split_heads` scores heads by effect, and as many plain
forward passes over the same texts, in turns, in processor seconds. The model has random weights: tiny-code's widths and
tokenizer in 12 layers, since 4 would share less than any real model does (with L layers the floor is (L + 1) / 2L).
Only the choosing is counted: what a split reports afterwards (a curve of shares, random splits, needles) is passes over
another half of the texts, as many as one asks for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import manyheads as mh
from benchmarks.rounds import ratio
from manyheads.corpora import reading_of
from manyheads.edits import METRICS, Runner, plan_edits
from manyheads.inputs import forward, read
from manyheads.plan import Ablate, Plan

ROUNDS, TEXTS, LAYERS, SINK, RECENT = 3, 12, 12, 4, 64
PLAIN_TOKENS = (512, 1024)  # of a batch, with padding


def seconds(run: Callable[[], object]) -> float:
    """Of the processor: other work on the machine does not count."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    small, page = mh.load("tiny-code"), reading_of("tiny-code").texts()
    torch.manual_seed(0)
    config = LlamaConfig(**{**small.model.config.to_dict(), "num_hidden_layers": LAYERS})
    lm = mh.load(LlamaForCausalLM(config).eval(), tokenizer=small.tokenizer)
    texts = ["\n\n".join(page[place : place + 3]) for place in range(0, 3 * TEXTS, 3)]
    groups = [
        [mh.Head("", site.layer, g * size + index) for index in range(size)]
        for site in lm.spec.sites
        for size in (site.num_heads // site.num_kv_heads,)
        for g in range(site.num_kv_heads)
    ]
    plans = [Plan(Ablate(group, kind="streaming", sink=SINK, recent=RECENT)) for group in groups]
    plain = {size: tuple(read(lm, texts).batches(size)) for size in PLAIN_TOKENS}

    def read_all(size: int) -> None:
        for batch in plain[size]:
            METRICS["loss"].read(forward(lm, batch, guard=False, head=True).outputs, batch)

    read_all(512)
    passes, sweeps = [], []
    for _ in range(options.rounds):
        passes.append(min(len(plans) * seconds(lambda size=size: read_all(size)) for size in PLAIN_TOKENS))
        sweeps.append(seconds(lambda: Runner.of(lm, plan_edits(lm, plans), METRICS["loss"]).over(plain[512])))
    row = {
        "what": "head_split",
        "groups": len(plans),
        "layers": LAYERS,
        "texts": len(texts),
        "tokens": plain[512].num_tokens,
        **ratio(sweeps, passes),
        "seconds": {"forward passes": passes[-1], "ours": sweeps[-1]},
    }
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
