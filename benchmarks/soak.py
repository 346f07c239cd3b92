"""The studio's real server under many kinds of requests for a while: no request fails, and memory stays flat.

`python -m benchmarks.soak --minutes 10` starts `manyheads studio` as a user does and asks it from several clients at
once: texts, files, tiles, rows, tables, experiments, worth, sizes, lessons and their cells, the page, and requests that
no page would make (damaged JSON, foreign names, cut connections, other people's jobs). Its resident memory is read
twice a second.

What a studio keeps has limits (open recordings, tiles, what jobs found): they are filled before the clock starts, and
the first third is left out. Flat means: over the last two thirds, the straight line through all samples rises by at
most `BAR_MB`. A leak of 6 kB a request would rise by more than that in ten minutes of 20 requests a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds import memory_bytes
from benchmarks.serving import port_of, serving
from benchmarks.soakclient import Client, Log
from manyheads.corpora import page_texts

BAR_MB = 40.0
CLIENTS = 3
EVERY = 0.5  # seconds between two samples
TEXTS = 36  # different ones: more than are kept open, so that some are dropped and made anew all the time


def write_files(folder: Path) -> None:
    """A recording of 2,048 tokens through 40 heads, and one that is damaged."""
    import torch

    import manyheads as mh

    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(320, 40, causal=True, batch_first=True).eval()
    mh.record_call(layer, torch.randn(1, 2048, 320), need_weights=False).save(folder / "long.heads")
    whole = (folder / "long.heads").read_bytes()
    (folder / "damaged.heads").write_bytes(whole[: len(whole) // 2])


def some_texts() -> list[str]:
    """Texts of 40 to 320 words of the bundled page, all different."""
    words = " ".join(page_texts()).split()
    return [" ".join(words[7 * at : 7 * at + 40 + 8 * at]) for at in range(TEXTS)]


def judged(samples: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Whether memory is flat: (second, MB) samples; how much the line through the last two thirds of them rises."""
    end = samples[-1][0]
    late = [(second, mb) for second, mb in samples if second >= end / 3]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope
    rise = slope * (late[-1][0] - late[0][0])
    return {
        "first_mb": round(samples[0][1]),
        "third_mb": round(late[0][1]),
        "last_mb": round(samples[-1][1]),
        "peak_mb": round(max(mb for _, mb in samples)),
        "curve_mb": [round(mb) for _, mb in samples[:: max(1, len(samples) // 20)]],
        "rise_mb": round(rise, 1),
        "bar_mb": BAR_MB,
        "flat": rise <= BAR_MB,
    }


def soak(minutes: float, clients: int = CLIENTS, seed: int = 0) -> dict[str, Any]:
    """Ask for so long; what came of it."""
    log, samples, texts = Log(), [], some_texts()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        environment = {"MANYHEADS_CACHE": str(folder / "cache"), "TOKENIZERS_PARALLELISM": "false"}
        with serving(place, said=folder / "said.txt", **environment) as (process, address):
            over = threading.Event()
            made = [Client(port_of(address), seed + at, texts, log) for at in range(clients)]
            made[0].fill()
            begin = time.monotonic()
            threads = [threading.Thread(target=each.run, args=(over,), daemon=True) for each in made]
            for thread in threads:
                thread.start()
            while (now := time.monotonic() - begin) < 60 * minutes and process.poll() is None:
                samples.append((now, memory_bytes("VmRSS", process.pid) / 2**20))
                time.sleep(EVERY)
            over.set()
            for thread in threads:
                thread.join(180)
            died = process.poll()
        said = (folder / "said.txt").read_text(encoding="utf-8")
    if died is not None:
        log.faults.append(f"the studio ended with {died}: {said[-500:]}")
    found = {"minutes": minutes, "clients": clients, "requests": sum(log.counts.values()), "busy": log.busy}
    found |= {"kinds": dict(sorted(log.counts.items())), "faults": log.faults[:10], "num_faults": len(log.faults)}
    return {**found, **judged(samples), "traceback": said[-2000:] if "Traceback" in said else ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = soak(asked.minutes, asked.clients, asked.seed)
    print(json.dumps(found))
    fine = found["flat"] and not found["num_faults"] and not found["traceback"]
    print("passed" if fine else "not passed", file=sys.stderr)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
