"""`python -m tests.sweep [names ...]`: judge every architecture, or the ones named.

Without names the whole table is made again: tests/sweep/results.json and docs/models.md. With names only these are
judged and printed; `--write` puts them in their places of the table. Exit 1 where one is inexact.
"""

from __future__ import annotations

import sys
import time

import torch
import transformers

from tests.sweep import report
from tests.sweep.architectures import names
from tests.sweep.judge import INEXACT
from tests.sweep.work import judged


def main(asked: list[str]) -> int:
    write, asked = "--write" in asked, [name for name in asked if name != "--write"]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    begun, verdicts = time.monotonic(), []
    for name in asked or names():
        verdict = judged(name)
        verdicts.append(verdict)
        print(f"{verdict.name:34} {verdict.outcome:10} {verdict.seconds:5.1f} s  {verdict.because}", flush=True)
    counts = report.counts(verdicts)
    print(f"\n{counts} in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    if not asked:
        report.write(verdicts)
    elif write:
        anew = {verdict.name: verdict for verdict in verdicts}
        report.write([anew.get(verdict.name, verdict) for verdict in report.read()])
    return int(any(verdict.outcome == INEXACT for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
