"""What training takes: the induction preset, whole; a trial of every preset; what the bundled model's heads are worth.

`python -m benchmarks.training` runs the commands as a person would, each in a process and a folder of its own, and
measures tiny-code's induction at first repeats of held-out source, beside the same rows with words shuffled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

LENGTH = 3_000  # characters of each held-out module


def trained(preset: str, *options: str) -> tuple[dict[str, Any], float]:
    """What `manyheads train` said, and the seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "manyheads", "train", preset, "--out", folder, "--json", *options]
        begun = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout), time.perf_counter() - begun


def induction() -> dict[str, Any]:
    report, seconds = trained("induction")
    found = report["found"]
    without = found["ablated"][found["previous_token_head"]]["best_induction"]
    return {"what": "induction", "seconds": seconds, "induction": found["induction"], "without_previous_token": without}


def trials() -> dict[str, Any]:
    from manyheads.lab.training.presets.table import PRESETS

    seconds = {name: trained(name, "--quick")[1] for name in PRESETS}
    return {"what": "quick", "seconds": seconds, "slowest": max(seconds.values())}


def tiny_code() -> dict[str, Any]:
    """The best head on one half of the modules, reported on the other."""
    import manyheads as mh
    from manyheads.lab.training.presets.code import first_repeats
    from manyheads.lab.training.presets.python_source import is_held_out, read_sources
    from manyheads.roles.claims import CHOOSE, REPORT

    texts = [each.text[:LENGTH] for each in read_sources() if is_held_out(each.path)]
    table = mh.measure(mh.load("tiny-code"), texts, list(first_repeats()))
    best = int(table.sums.value(CHOOSE)[:, 0, 0].argmax())
    score, null = (float(each) for each in table.sums.value(REPORT)[best, :, 0])
    row = {"what": "tiny-code", "head": str(table.heads[best]), "modules": len(texts)}
    return row | {"first_repeats": score, "shuffled": null, "times_null": score / null}


def main() -> int:
    for measured in (induction, trials, tiny_code):
        print(json.dumps(measured()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
