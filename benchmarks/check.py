"""Hold what was measured to the bars: `make bench-check`. Ends with 1 where one is missed, or not measured."""

from __future__ import annotations

import json
import sys

from benchmarks.bars import judged
from benchmarks.run import RESULTS, command_of


def main() -> int:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = judged(results)
    for each in found:
        print(f"{each.verdict:<14}{each.bar.what}: {each.measured}; {each.bar.limit}")
    short = [each for each in found if not each.met]
    print(f"\n{len(found) - len(short)} of {len(found)} bars are met.")
    for name in dict.fromkeys(each.bar.run for each in short):
        print(f"To measure it again: {command_of(name)}", file=sys.stderr)
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
