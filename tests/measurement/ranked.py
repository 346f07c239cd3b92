"""One process of several: `torchrun --nproc-per-node 3 tests/measurement/ranked.py OUT`, and functions to fork them.

Each measures its share of some texts, compares the table with that of one process, and writes what it found to
OUT/RANK.json. `FOLDER=` in the environment: resume from there; `KILL=1:4`: process 1 kills itself (signal 9) before
its fifth batch; `MODEL=minilm`: the bundled model on sentences.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import manyheads as mh
from manyheads.corpora import corpus_of
from manyheads.machine import ALONE, torchrun
from manyheads.measurement.corpus_run import worker as workers
from tests.measurement.corpus_runs import STATISTICS, differences, small_batches, some_texts, tiny_lm
from tests.processes import forked

TEXTS = [*some_texts(90), "", " "]


def measured(rank: int, world: int, given: dict[str, str]) -> dict:
    """What one process does, torch.distributed being initialised."""
    minilm = given.get("MODEL") == "minilm"
    lm, texts = (mh.load("minilm"), sentences()) if minilm else (tiny_lm(), TEXTS)
    if not minilm:
        small_batches()
    own = count_batches(lm, rank, given.get("KILL", ""))
    try:
        got = mh.measure(lm, corpus_of(texts), STATISTICS, kinds=True, resume=given.get("FOLDER"))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    batches = len(own)
    found = differences(got, mh.measure(lm, iter(texts), STATISTICS, kinds=True, ranks=ALONE))
    return found | {"notes": got.notes, "batches": batches, "world": world}


def sentences() -> list[str]:
    from manyheads.corpora import page_texts

    return list(page_texts())


def count_batches(lm, rank: int, kill: str) -> list[int]:
    """Note each batch that this process measures; die before a certain one."""
    real, own = workers.sums_of, []
    victim, after = map(int, kill.split(":")) if kill else (-1, 0)

    def counted(run, batches, *rest, **how):
        if rank == victim and len(own) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        own.append(sum(len(batch.places) for batch in batches))
        return real(run, batches, *rest, **how)

    workers.sums_of = counted
    return own


def several(folder: Path) -> None:
    """What the fast test asks: worlds of 2 and 3, and a run whose processes die twice, gone on with by 2 and by 3."""
    torch.set_num_threads(1)

    def ranked(world: int, name: str, **given: str) -> list[dict]:
        return forked(world, folder / name, lambda rank: measured(rank, world, given))

    out = {
        "two": ranked(2, "two"),
        "three": ranked(3, "three"),
        "killed": ranked(3, "killed", FOLDER=str(folder / "run"), KILL="1:3"),
        "again": ranked(2, "again", FOLDER=str(folder / "run"), KILL="0:1"),
        "more": ranked(3, "more", FOLDER=str(folder / "run")),
        "done": ranked(2, "done", FOLDER=str(folder / "run")),
    }
    out["left"] = sorted(os.listdir(folder / "run"))
    print(json.dumps(out))


if __name__ == "__main__":
    if sys.argv[1] == "several":
        several(Path(sys.argv[2]))
    else:
        torch.set_num_threads(1)
        with torchrun() as (rank, world):
            found = measured(rank, world, dict(os.environ))
        (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
