"""What a command's reading costs alone, and beside processes that keep every core busy.

`python -m benchmarks.busy [--rounds N]` times `record` of one text in a process with the environment that the command
sets (torch's threads spin for a moment only) and in one without it, alone and beside as many busy processes as there
are cores, in turns. A row is a place: seconds of each way, and `ratio`, the command's over the plain one's of the same
round; the last row is the command beside busy processes over the command alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks.rounds import ratio

ROUNDS, READINGS = 3, 7
POLICY = {"GOMP_SPINCOUNT": "5000"}  # as cli.main sets it
READ = f"""
import json, time
import manyheads as mh
lm = mh.load("minilm")
text = "The animal didn't cross the street because it was too tired. " * 6
mh.record(lm, text)
taken = []
for _ in range({READINGS}):
    begin = time.perf_counter()
    mh.record(lm, text)
    taken.append(time.perf_counter() - begin)
print(json.dumps(sorted(taken)[{READINGS} // 2]))
"""


def seconds(policy: dict[str, str], busy: int) -> float:
    """The median of readings in a new process, beside `busy` others that never rest."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        ran = subprocess.run(
            [sys.executable, "-c", READ], env=plain | policy, capture_output=True, text=True, check=True
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    return float(json.loads(ran.stdout.splitlines()[-1]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(argv).rounds
    places = {"alone": 0, "beside busy processes": os.cpu_count() or 2}
    ways = {"command": POLICY, "plain": {}}
    taken: dict[tuple[str, str], list[float]] = {(place, way): [] for place in places for way in ways}
    for _ in range(rounds):
        for place, way in taken:
            taken[place, way].append(seconds(ways[way], places[place]))
    for place in places:
        medians = {way: statistics.median(taken[place, way]) for way in ways}
        print(json.dumps({"what": place, **ratio(taken[place, "command"], taken[place, "plain"]), "seconds": medians}))
    beside, alone = (taken[place, "command"] for place in ("beside busy processes", "alone"))
    print(json.dumps({"what": "the command: busy over alone", **ratio(beside, alone)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
