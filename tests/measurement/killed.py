"""A run that is killed again and again: `python -m tests.measurement.killed FOLDER KILLS`. Prints JSON.

Children are forked from one process that has all modules loaded: each measures with `resume=FOLDER`, and is killed
(signal 9) at a random moment of the time that the whole takes, until the last one is left alone to its end.
"""

import json
import os
import random
import signal
import sys
import time

import torch

import manyheads as mh
from tests.measurement.corpus_runs import STATISTICS, differences, small_batches, some_texts, tiny_lm


def main(folder: str, kills: int) -> None:
    torch.set_num_threads(1)
    small_batches()
    lm, texts = tiny_lm(), [*some_texts(150), "", " "]
    begin = time.monotonic()
    want = mh.measure(lm, iter(texts), STATISTICS, kinds=True)
    takes = time.monotonic() - begin
    ended, killed = 0, 0
    while not ended:
        child = os.fork()
        if not child:
            mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder)
            os._exit(0)
        if killed < kills:
            time.sleep(random.uniform(0.02, 0.3) * takes)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        ended = not os.WIFSIGNALED(status)
        assert not ended or status == 0, status
    got = mh.measure(lm, texts, STATISTICS, kinds=True, resume=folder)
    print(json.dumps({"killed": killed, "notes": got.notes, "left": os.listdir(folder), **differences(got, want)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
