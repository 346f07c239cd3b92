"""On an accelerator: first whether the numbers are true there, then what they cost.

`PYTHONPATH=src python -m benchmarks.cuda --minutes 9 --out DIR`, in a bare checkout, is for a machine that is there
once: parts in the order of their worth, each sure of its share of the minutes, each line written to DIR at once
(`benchmarks.parts`). It needs torch, triton, transformers, NumPy and what `import manyheads` asks for; no package of
the tests, and not manyheads installed. `benchmarks.gpu_parts` has what each part does:

device      what is here: versions, memory, a product of matrices for a measure; whether Triton can compile
kernels     every request in all kinds of masks, dtypes, shared keys, softcap and sinks, against NumPy's float64
records     ten architectures, cell by cell, against the maps that the models make by `eager` on the device
pass        the pass alone against sdpa
statistics  the forward pass with "default" and "all" statistics against the plain one, layers of an 8 B Llama
memory      what statistics and recordings add to it
generation  with statistics of every step, against `generate`
watching    the numbers of a watched step against the CPU's; its time
longest     a layer over a million tokens
tiles       of the studio
profile     where the time of "all" statistics goes

Where memory is small, half as many tokens are tried, and the line says so. Where Triton cannot compile, all but the
kernels is measured with the tiles, and every line says so. The exit status is 0 where all that ran was right.
`python -m benchmarks.run --take cuda DIR` puts the lines among the results. `--device cpu --small` runs the same code
at toy sizes where there is no accelerator: a check of these files, no result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.parts import run_parts

# What a part leaves over is for those after it; the first, on which all depend, may take long to start up.
SHARES = {
    "device": 100, "kernels": 140, "records": 60, "pass": 40, "statistics": 90, "memory": 40, "generation": 40,
    "watching": 50, "longest": 70, "tiles": 30, "profile": 20,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0, help="of all parts together; 9 if left out")
    parser.add_argument("--out", type=Path, help="a folder for lines.jsonl, and stderr.txt beside it")
    parser.add_argument("--small", action="store_true", help="toy sizes: a check of this file")
    parser.add_argument("--only", choices=SHARES, action="append", help="this part; may be given again")
    options = parser.parse_args(argv)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g} is no time: give a number above 0.")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is loaded from there, and nothing shall wait for it
    # Compiled kernels, for all processes of the run: there may be no home folder to write to.
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir(), "manyheads-triton")))
    # Without a look at the device nothing is measured: whoever reads the lines must know what they were taken on.
    shares = {name: share for name, share in SHARES.items() if name in {"device", *(options.only or SHARES)}}
    worker = [sys.executable, "-m", "benchmarks.gpu_parts", "--device", options.device]
    return run_parts(shares, [*worker, *(["--small"] if options.small else [])], 60 * options.minutes, options.out)


if __name__ == "__main__":
    sys.exit(main())
