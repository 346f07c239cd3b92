"""The fixed set, run in one environment: tests, the numbers of `look`, the README's code."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.versions.combinations import ROOT, Combination, environment, versions_of

TESTS = (
    "tests/models/test_dimensions.py", "tests/models/test_flash.py", "tests/models/test_flex.py",
    "tests/models/test_guard.py", "tests/models/test_kernels.py", "tests/models/test_loading.py",
    "tests/inputs/test_media.py", "tests/models/test_plain.py", "tests/inputs/test_recorder.py",
    "tests/models/test_taps.py", "tests/inputs/test_texts.py", "tests/attention/test_attention.py",
    "tests/attention/test_fused_kernels.py", "tests/attention/test_masks.py", "tests/recording/test_passes.py",
    "tests/watching/test_watch.py", "tests/watching/test_loops.py", "tests/long_context/test_streaming_cache.py",
    "tests/edits/test_applied.py", "tests/edits/test_streaming.py",
    "tests/interventions/test_prune.py", "tests/interventions/test_saving.py",
)  # fmt: skip
SEED = "36"  # one for all combinations and all days: of all random inputs
OURS = ("MANYHEADS_", "HF_", "TRANSFORMERS_", "PYTHON", "VIRTUAL_ENV")  # variables that would change what is run


@dataclass(frozen=True)
class Row:
    """What came of one combination. `numbers` is how many `look` printed, `equal` how many of them are the lock's;
    `failures` names tests, and what the README's code said where it failed."""

    name: str
    about: str
    python: str
    torch: str
    transformers: str
    triton: str
    numpy: str
    passed: int
    failed: int
    expected: int
    numbers: int
    equal: int
    readme: bool
    failures: tuple[str, ...]
    seconds: int
    date: str

    @property
    def tests(self) -> int:
        """How many tests were run."""
        return self.passed + self.failed + self.expected

    @property
    def passes(self) -> bool:
        return not self.failed and self.passed > 0 and self.numbers == self.equal > 0 and self.readme


def ran(combination: Combination, of_the_lock: dict[str, float]) -> Row:
    """One row of the table. The environment is made where it is not there. `of_the_lock` are the lock's numbers."""
    python = environment(combination)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        passed, expected, failures = tested(python, Path(folder) / "tests.xml")
    numbers, fault = looked(python), readme(python)
    apart, unlike = "", [place for place, number in numbers.items() if of_the_lock.get(place) != number]
    if both := [place for place in unlike if place in of_the_lock]:
        far = max(abs(numbers[place] / of_the_lock[place] - 1) if of_the_lock[place] else 1.0 for place in both)
        apart = f"{len(both)} numbers of look differ, by {far:.0e} of their size at most"
    equal = len(numbers) - len(unlike)
    return Row(
        name=combination.name, about=combination.about, **versions_of(python), passed=passed, failed=len(failures),
        expected=expected, numbers=len(of_the_lock | numbers), equal=equal, readme=not fault,
        failures=(*failures, *filter(None, [fault, apart])), seconds=round(time.monotonic() - begun),
        date=time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def tested(python: Path, report: Path) -> tuple[int, int, list[str]]:
    """How many tests passed, how many failed as they expect to, and the names of those that failed or were skipped."""
    quiet = [f"-Wignore::{kind}" for kind in ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning")]
    spread = ["-n", "logical", "--maxprocesses", "8", "--dist", "worksteal"]
    done = said(python, "pytest", "-q", "-p", "no:cacheprovider", *spread, *quiet, f"--junitxml={report}", *TESTS)
    if not report.exists():
        return 0, 0, [f"pytest ended with {done.returncode}: {last_line(done)}"]
    passed, expected, failures = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.get("type") if child.tag == "skipped" else child.tag for child in case}
        if kinds & {"failure", "error", "pytest.skip"}:  # whatever is skipped was not tried
            failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif "pytest.xfail" in kinds:
            expected += 1
        else:
            passed += 1
    return passed, expected, sorted(set(failures))


def looked(python: Path) -> dict[str, float]:
    """The numbers that `manyheads look` prints, by document and place; none where it fails."""
    with tempfile.TemporaryDirectory(prefix="versions-") as name:
        folder = Path(name)
        # The treebanks of the other documents are not read: the folder need not have any.
        said(python, "benchmarks.same_numbers", "write", str(folder), "--only", "look-", MANYHEADS_GOLD=name)
        documents = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return dict(_numbers(documents, ""))


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _numbers(part, f"{place}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{place}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def readme(python: Path) -> str:
    """Empty where all code of the README runs, else what failed."""
    done = said(python, "tests.docs", "README.md")
    # A line for the page, what failed, an empty line, what was run and what not.
    fault, _, summary = done.stdout.partition("\n\n1 pages: ")
    if not done.returncode:
        return ""
    return f"README.md: {fault.splitlines()[-1] if summary else last_line(done)}"


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing was said"


def said(python: Path, *module: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m module` in this checkout, with one thread a process, as `make test` has it."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    fixed = {"MANYHEADS_SEED": SEED, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [str(python), "-m", *module], cwd=ROOT, env={**outside, **fixed}, capture_output=True, text=True, check=False
    )
