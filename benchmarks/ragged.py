"""What unlike lengths cost: 64 texts of 8 to 128 tokens against 64 equal texts of as many tokens in all.

`python -m benchmarks.ragged` reads both with the bundled model, in turns, and prints the ratio of times for `record`
and `measure`. A batch padded to its longest text would cost 1.9x.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import manyheads as mh
from benchmarks.rounds import in_turns, medians, ratio

THREADS = 2
ROUNDS = 9
SHORTEST, LONGEST, COUNT = 8, 128, 64
WORD = "cat "  # one token of minilm's


def texts(lengths: list[int]) -> list[str]:
    """Texts of so many tokens, [CLS] and [SEP] among them; in no order."""
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()
    return [WORD * (lengths[i] - 2) for i in order]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    lm = mh.load("minilm")
    lengths = [round(SHORTEST + i * (LONGEST - SHORTEST) / (COUNT - 1)) for i in range(COUNT)]
    ragged, equal = texts(lengths), texts([round(sum(lengths) / COUNT)] * COUNT)
    ways: dict[str, Callable[[list[str]], Any]] = {
        "record": lambda given: mh.record(lm, given),
        "measure": lambda given: mh.measure(lm, given),
    }
    for name, read in ways.items():
        taken = in_turns({"ragged": partial(read, ragged), "equal": partial(read, equal)}, asked.rounds)
        row = {"what": name, "tokens": sum(lengths), **ratio(taken["ragged"], taken["equal"])}
        print(json.dumps({**row, "seconds": medians(taken)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
