"""`python -m tests.versions [--torches | --notebooks] [--keep] [NAME ...]`: with other versions than the lock's.

Without names all overlays of transformers, a few minutes each; `--torches`: the combinations with another torch or
Python, each in an environment of its own (gigabytes), which is removed afterwards unless `--keep` is there. Names run
those alone: floor, colab, image, lock, newest; torch-floor, torch-after, python-3.13, python-3.14. The table's rows of
what was run are written again: tests/versions/results.json and docs/versions.md. `--page` writes the page alone.
`--notebooks`: the notebooks of examples/ (or those named) in Colab's versions (`notebooks.py`). Exit 1 where something
fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from tests.versions import notebooks, report
from tests.versions.combinations import environment, folder_of, overlays, torches
from tests.versions.work import looked, ran


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.versions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for option in ("--torches", "--notebooks", "--keep", "--page"):
        parser.add_argument(option, action="store_true")
    asked = parser.parse_args(arguments)
    if asked.page:
        report.write([])
        return 0
    if asked.notebooks:
        return of_notebooks(parser, asked.names, asked.keep)
    known = {combination.name: combination for combination in (*overlays(), *torches())}
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"{', '.join(unknown)}: no combination. There are {', '.join(known)}.")
    chosen = [known[name] for name in asked.names] or list(torches() if asked.torches else overlays())
    begun = time.monotonic()
    # Measured in every run: the numbers depend on the sources, too.
    of_the_lock = looked(environment(known["lock"]))
    if not of_the_lock:
        sys.exit("`manyheads look` fails with the lock's own versions: nothing can be compared.")
    print(f"the lock's {len(of_the_lock):,} numbers of look: {time.monotonic() - begun:.0f} s", flush=True)
    wrong = 0
    for combination in chosen:
        row = ran(combination, of_the_lock)
        report.write([row])  # at once: what comes after it may be interrupted
        wrong += not row.passes
        versions = f"torch {row.torch}, transformers {row.transformers}, Python {row.python}"
        tests = f"{row.passed} passed, {row.failed} failed, {row.expected} do not apply"
        rest = f"{row.equal:,} of {row.numbers:,} numbers; README {'runs' if row.readme else 'fails'}; {row.seconds} s"
        print(f"{row.name:12} {versions}: {tests}; {rest}", *row.failures, sep="\n    ", flush=True)
        if combination.python and not asked.keep:
            shutil.rmtree(folder_of(combination))
    return int(wrong > 0)


def of_notebooks(parser: argparse.ArgumentParser, names: list[str], keep: bool) -> int:
    """Run the notebooks, and write the page again."""
    there = notebooks.names()
    if unknown := sorted(set(names) - set(there)):
        parser.error(f"{', '.join(unknown)}: no notebook. There are {', '.join(there)}.")
    faults = notebooks.run_all(names or there)
    report.write([])
    if not keep:
        shutil.rmtree(folder_of(notebooks.COLAB))
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
