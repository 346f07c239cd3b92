"""results.json and docs/versions.md, from what was run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.versions import notebooks
from tests.versions.combinations import ROOT, floor
from tests.versions.work import TESTS, Row

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "versions.md"

HEAD = """\
<!-- made by `make test-versions` and `make test-torches` from tests/versions/results.json, held to it by a test -->
# Versions

manyheads installs beside torch {torch} or newer and transformers {transformers} or newer, each up to its next major
version, on Python 3.11 or newer. Others release every few days, so the range is wider than what can be tried. The
guard makes that safe: in every recording, rows of every attention layer are computed again and compared with what the
model's own call returned. A version that attends in another way is refused, never recorded wrongly.

These combinations were run, {same}: the tests of taps, guard, masks, media, watching, streaming,
pruning and saved models ({files} files, one seed for all), the numbers of `manyheads look`, and all code of the README.
Tests that *do not apply* are for architectures that this version of transformers computes by hand; they are refused by
name. *Numbers of look* counts the numbers that equal, digit by digit, those of the versions that `make` installs.
{unlike}
| torch | transformers | Python | Triton | NumPy | what it is | tests | numbers of look | README | date |
|---|---|---|---|---|---|---|---|---|---|
"""

TAIL = """
`manyheads doctor`, a loaded model's `because`, every table's notes and a recording's provenance say when torch or
transformers is newer than the newest that passes here. On Python 3.14, with another C library (glibc 2.43 for 2.36),
`erfc` rounds otherwise, so q-values differ in their last digits.

`make test-versions` runs other versions of transformers, `make test-torches` other versions of torch and Python. The
public workflow `.github/workflows/versions.yml` runs the same, and the newest transformers as a canary that may fail.
"""


def read() -> list[Row]:
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return [Row(**{**row, "failures": tuple(row["failures"])}) for row in rows]


def write(rows: list[Row]) -> None:
    """Both files: the rows that were run in the places of those of the same name."""
    anew = {row.name: row for row in [*read(), *rows]}
    ordered = sorted(anew.values(), key=lambda row: (numbered(row.torch), numbered(row.transformers), row.python))
    RESULTS.write_text(json.dumps([asdict(row) for row in ordered], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(rows: list[Row]) -> str:
    lowest = {name: ".".join(floor(name).split(".")[:2]) for name in ("torch", "transformers")}
    # A row keeps the tests of the day when it was run, and others are added later: its count is then no other row's.
    counts = Counter(row.tests for row in rows)
    usual = max(counts, key=counts.__getitem__)
    earlier = [
        f"torch {row.torch} with transformers {row.transformers} on Python {row.python} ran {row.tests:,} on {row.date}"
        for row in rows
        if row.tests != usual
    ]
    unlike = f"The numbers of tests differ: {'; '.join(earlier)}; each other row {usual:,}.\n" if earlier else ""
    same = "each with the set of its day" if earlier else "the same set for each"
    text = HEAD.format(**lowest, files=len(TESTS), same=same, unlike=unlike) + "".join(_line(row) for row in rows)
    failing = [row for row in rows if not row.passes]
    if failing:
        text += "\n## What fails\n\n"
        for row in failing:
            text += f"- torch {row.torch}, transformers {row.transformers}, Python {row.python}:"
            text += "".join(f"\n    - `{failure}`" for failure in row.failures) + "\n"
    return text + of_notebooks(notebooks.read()) + TAIL


def of_notebooks(ran: dict[str, Any]) -> str:
    """A paragraph on the notebooks: where they were run, how long they took, and which failed."""
    rows, there = ran["notebooks"], notebooks.names()
    versions = {name: ran["versions"][name] for name in ("python", "torch", "transformers", "numpy", "pandas")}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    failing = "".join(f"\n- `{row['name']}` **fails**: `{row['fault']}`" for row in rows if row["fault"])
    missing = sorted(set(there) - {row["name"] for row in rows})
    return (
        f"\n## Notebooks\n\nIn Colab's versions ({named}), {sum(not row['fault'] for row in rows)} of {len(there)} "
        f"notebooks of [examples](examples.md) ran from their first cell on, which installs the built packages beside "
        f"these, in {sum(row['seconds'] for row in rows)} s by the clock, added up ({ran['date']}); the widget's "
        f"cell held the page. `make test-notebooks` does it."
        f"{' Not run: ' + ', '.join(missing) + '.' if missing else ''}{failing}\n"
    )


def _line(row: Row) -> str:
    tests = f"{row.passed} pass" if row.passed else "**0 pass**"
    tests += f", **{row.failed} fail**" if row.failed else ""
    tests += f", {row.expected} do not apply" if row.expected else ""
    numbers = f"{row.equal:,} of {row.numbers:,}"
    numbers = numbers if row.equal == row.numbers > 0 else f"**{numbers}**"
    cells = (
        row.torch, row.transformers, row.python, row.triton or "none", row.numpy, row.about, tests, numbers,
        "runs" if row.readme else "**fails**", row.date,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def newest_passing(rows: list[Row], package: str) -> str:
    """Major and minor of the newest version of torch or transformers with which everything passes."""
    newest = max(numbered(str(getattr(row, package))) for row in rows if row.passes)
    return ".".join(map(str, newest[:2]))


def numbered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
