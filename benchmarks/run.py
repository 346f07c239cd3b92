"""Every benchmark, each in a process of its own: `make bench`. Writes benchmarks/results.json and docs/benchmarks.md.

`python -m benchmarks.run layer roles` runs those again, and leaves the others' results as they are. Each result says
when and on what it was measured. What needs a GPU runs where there is one; elsewhere its last result stays, with its
machine. One that fails leaves its last result, too, and the command ends with 1. `python -m benchmarks.run --page` only
writes docs/benchmarks.md anew; `--take cuda DIR` takes the lines that `benchmarks.cuda --out DIR` wrote elsewhere.
`make bench-check` holds all to their bars.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bars import Judged, judged
from benchmarks.parts import LINES

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- made by python -m benchmarks.run --page -->\n", "<!-- end -->\n"
RUNS = {
    "tax": ["benchmarks.tax"],
    "statistics_pass": ["benchmarks.statistics_pass", "1024", "4096", "8192"],
    "against_eager": ["benchmarks.statistics_pass", "4096", "--eager", "--rounds", "2"],
    "long": ["benchmarks.statistics_pass", "16384", "--rounds", "1"],
    "startup": ["benchmarks.startup"],
    "layer": ["benchmarks.layer"],
    "ragged": ["benchmarks.ragged"],
    "busy": ["benchmarks.busy"],
    "coverage": ["benchmarks.coverage"],
    "int8_cache": ["benchmarks.int8_cache"],
    "streaming": ["benchmarks.streaming"],
    "importance": ["benchmarks.importance"],
    "head_split": ["benchmarks.head_split", "--threads", "1"],
    "patching": ["benchmarks.patching"],
    "circuits": ["benchmarks.circuits"],
    "pruning": ["benchmarks.pruning"],
    "roles": ["benchmarks.roles", "--memory"],
    "known_answers": ["benchmarks.known_answers"],
    "compat": ["benchmarks.compat"],
    "training": ["benchmarks.training"],
    "watching": ["benchmarks.watching", "--rounds", "4"],
    "watching_memory": ["benchmarks.watching", "--memory"],
    "studio": ["benchmarks.studio"],
    "engine": ["benchmarks.engine"],
    "cuda": ["benchmarks.cuda"],
}
ON_GPU = frozenset({"cuda"})
NEEDS = {"engine": "ray"}  # a package that is not in the lock
PACKAGES = ("torch", "transformers", "numpy")


def command_of(name: str) -> str:
    """What to type for one of them."""
    return " ".join(["python -m", *RUNS[name]])


def main(names: list[str]) -> int:
    if names == ["--page"]:
        write_page(json.loads(RESULTS.read_text(encoding="utf-8")))
        return 0
    if names[:1] == ["--take"] and len(names) == 3 and names[1] in ON_GPU:
        return take(names[1], Path(names[2]))
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}: there are {', '.join(RUNS)}.", file=sys.stderr)
        return 2
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    failed = [name for name in names or RUNS if not _run(name, results)]
    write_page(results)
    if failed:
        print(f"failed, so that their last results stay: {', '.join(failed)}.", file=sys.stderr)
    return int(bool(failed))


def take(name: str, folder: Path) -> int:
    """Put what a run on another machine wrote among the results; 1 where it is not whole or not right."""
    lines = [json.loads(line) for line in (folder / LINES).read_text(encoding="utf-8").splitlines()]
    lines = lines[max((at for at, line in enumerate(lines) if line["what"] == "the device"), default=len(lines)) :]
    if not lines or lines[-1]["what"] != "all parts":  # of several runs into one folder the last counts
        print(f"{folder / LINES}: this run did not come to its end, so that it is no result.", file=sys.stderr)
        return 1
    if lines[-1]["wrong"]:
        print(f"{', '.join(lines[-1]['wrong'])} went wrong in {folder}, so that it is no result.", file=sys.stderr)
        return 1
    device, results = lines[0], json.loads(RESULTS.read_text(encoding="utf-8"))
    packages = {package: device[package] for package in PACKAGES}
    results[name] = {"date": device["date"], "machine": device["name"], **packages, "lines": lines}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(results)
    return 0


def _run(name: str, results: dict[str, Any]) -> bool:
    """One benchmark; its lines go into `results`, and into the file as soon as it has ended."""
    gpu = _gpu()
    if name in ON_GPU and gpu is None:
        outcome = f"the result of {results[name]['date']} stays" if name in results else "there is no result yet"
        print(f"{name}: no GPU here, so it is not run; {outcome}.", file=sys.stderr)
        return True
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        print(
            f"{name}: no {NEEDS[name]} here, so it is not run; its last result, if there is one, stays.",
            file=sys.stderr,
        )
        return True
    print(f"{name} ...", file=sys.stderr, flush=True)
    process = subprocess.Popen([sys.executable, "-m", *RUNS[name]], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:  # shown as they come: a run on a lent machine may be cut off
        print(line, end="", flush=True)
        lines += [json.loads(line)] if line.startswith("{") else []
    if process.wait():
        return False
    results.update(json.loads(RESULTS.read_text(encoding="utf-8")))  # what others wrote while this one ran
    results[name] = {
        "date": date.today().isoformat(),
        "machine": gpu if name in ON_GPU else _machine(),
        **{package: version(package) for package in PACKAGES},
        "lines": lines,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return True


def _machine() -> str:
    """Processor and cores, in words."""
    wide = ""
    if Path("/proc/cpuinfo").exists():
        wide = ", AVX-512" if " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8") else ", no AVX-512"
    return f"{platform.machine()}, {os.cpu_count()} cores{wide}, Python {platform.python_version()}"


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


LONG = 20  # lines: a longer list names only what was missed
USUAL = "x86_64, 2 cores, AVX-512, Python 3.11.7, torch 2.13.0+cpu"  # said once, at the head of the page


def written(results: Mapping[str, Any]) -> str:
    """A list for each benchmark: what was measured, the bar, and whether it was met."""
    return "\n".join(
        _section(name, results.get(name), list(bars)) for name, bars in groupby(judged(results), lambda x: x.bar.run)
    )


def _section(name: str, result: Mapping[str, Any] | None, bars: list[Judged]) -> str:
    short = {"not measured", "met"} if len(bars) > LONG else {"not measured"}
    lasts = {x.bar.what.rpartition(", ")[2] for x in bars}
    last = lasts.pop() if len(bars) > 2 and len(lasts) == 1 else ""  # what all are against is said once
    missed = {"missed": " (**missed**)"}  # the head of the page says that the others are met
    rows = [
        f"- {x.bar.what.removesuffix(f', {last}')}: {x.measured}; {x.bar.limit}{missed.get(x.verdict, '')}"
        for x in bars
        if x.verdict not in short
    ]
    for verdict in sorted(short):
        if count := sum(x.verdict == verdict for x in bars):
            rows.append(f"- {count} others: {verdict} (benchmarks/results.json)")
    if result is None:
        measured = "No whole result yet"
    else:
        machine = f"{result['machine']}, torch {result['torch']}".split(", ")
        measured = ", ".join([result["date"], *(part for part in machine if part not in USUAL.split(", "))])
    head = [f"## {name.replace('_', ' ')}", "", f"{measured}.{last and f' Each {last}.'}", ""]
    return "\n".join([*head, *rows, ""])


def write_page(results: Mapping[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{written(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
