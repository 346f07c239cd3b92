"""docs/benchmarks.md from benchmarks/results.json: `python -m benchmarks.page`. A test holds the page to both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bars import Judged, judged
from benchmarks.run import RESULTS, RUNS, command_of

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- made by python -m benchmarks.page -->\n", "<!-- end -->\n"


def written(results: Mapping[str, Any]) -> str:
    """A table a benchmark: what was measured, beside its bar."""
    return "\n".join(
        _table(name, results.get(name), list(bars)) for name, bars in groupby(judged(results), lambda x: x.bar.run)
    )


def _table(name: str, result: Mapping[str, Any] | None, bars: list[Judged]) -> str:
    rows = [f"| {x.bar.what} | {x.measured} | {x.bar.limit} | {x.verdict} |" for x in bars]
    seen = "never run" if result is None else f"{result['date']}, {result['machine']}, torch {result['torch']}"
    head = [f"## {name.replace('_', ' ')}", "", f"`{command_of(name)}`: {seen}.", ""]
    return "\n".join([*head, "| what | measured | bar | |", "|---|---|---|---|", *rows, ""])


def write_page(results: Mapping[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{written(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    assert set(RUNS) >= {x.bar.run for x in judged({})}
    write_page(json.loads(RESULTS.read_text(encoding="utf-8")))
