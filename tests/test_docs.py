"""Claims about the documents: their code runs, their tables are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manyheads.statistics.table import STATISTICS, table_markdown

DOCS = Path(__file__).parents[1] / "docs"
README = Path(__file__).parents[1] / "README.md"


def code_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


NAMES = ("statistics", "words", "media", "running", "interventions", "roles", "corpus-runs", "tiny-code")
SAVING = (
    "pruning",
    "converting",
    "families",
    "probes",
)  # each folder is tried in a process of its own; or heads all compared
PAGES = [
    README,
    *(DOCS / f"{name}.md" for name in NAMES),
    *(pytest.param(DOCS / f"{name}.md", marks=pytest.mark.slow, id=f"{name}.md") for name in SAVING),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: getattr(page, "name", None))
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    blocks = code_of(page)
    assert blocks, f"{page.name} has no code to run"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{page.name}", "exec"), names)


def test_the_table_of_statistics_is_the_codes_own():
    assert table_markdown() in (DOCS / "statistics.md").read_text(encoding="utf-8")


def test_every_statistic_says_what_it_is():
    for name, each in STATISTICS.items():
        assert each.unit and each.meaning and each.source and each.name == name
        assert each.range[0] < each.range[1]
