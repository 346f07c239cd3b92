"""How long a person waits: `import manyheads`, and `manyheads look` once the page has been measured."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 5


def seconds(command: list[str], env: dict[str, str], rounds: int = ROUNDS) -> dict[str, float]:
    """Wall seconds of a whole process: median, least and most."""
    taken = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        subprocess.run(command, env=env, check=True, capture_output=True)
        taken.append(time.perf_counter() - begin)
    return {"median": statistics.median(taken[1:]), "low": min(taken[1:]), "high": max(taken[1:]), "first": taken[0]}


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "MANYHEADS_CACHE": cache}
        bare = seconds([sys.executable, "-c", "pass"], env)["median"]
        imported = seconds([sys.executable, "-c", "import manyheads"], env)
        look = seconds([sys.executable, "-m", "manyheads", "look"], env)
    print(json.dumps({"python_alone": bare, "import_seconds": imported["median"] - bare, "look": look}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
