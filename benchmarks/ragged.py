"""What unlike lengths cost: 64 texts of 8 to 128 tokens against 64 equal texts of as many tokens in all.

`python -m benchmarks.ragged` reads both with the bundled model, in turns, with `record`, `measure` and the plain
forward pass over the very batches that these read. `ratio` is the time of unlike texts over that of equal ones: maps of
unlike texts have more cells for as many tokens, for the model too. `over_forward` is how much more that is than the
forward pass's own ratio: what we add. A batch padded to its longest text would cost 1.9x.
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
from manyheads.inputs import read

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
    readings = {"ragged": read(lm, ragged), "equal": read(lm, equal)}

    def forward(kind: str) -> None:
        for batch in readings[kind].batches():
            with torch.no_grad():
                lm.model(**batch.inputs)

    texts_of = {"ragged": ragged, "equal": equal}
    ways: dict[str, Callable[[str], Any]] = {
        "record": lambda kind: mh.record(lm, texts_of[kind]),
        "measure": lambda kind: mh.measure(lm, texts_of[kind]),
        "forward": forward,
    }
    calls = {f"{name} {kind}": partial(way, kind) for name, way in ways.items() for kind in texts_of}
    taken = in_turns(calls, asked.rounds)
    for name in ways:
        ours = [a / b for a, b in zip(taken[f"{name} ragged"], taken[f"{name} equal"], strict=True)]
        theirs = [a / b for a, b in zip(taken["forward ragged"], taken["forward equal"], strict=True)]
        row = {"what": name, "tokens": sum(lengths), **ratio(taken[f"{name} ragged"], taken[f"{name} equal"])}
        row["over_forward"] = ratio(ours, theirs)
        print(json.dumps({**row, "seconds": medians({kind: taken[f"{name} {kind}"] for kind in texts_of})}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
