"""Claims about the way to the code and its numbers: the tree, where to find what, files a page names, the lab log."""

from __future__ import annotations

import re

import pytest

from docs.house import PACKAGE, tree
from docs.house import PAGE as HOUSE_PAGE
from docs.lab import FIELDS, RECORDS, lab_markdown, records
from docs.lab import PAGE as LAB_PAGE
from tests.docs.pages import ROOT, named, pages

DOCS = ROOT / "docs"


@pytest.mark.turns(5)
def test_the_tree_has_every_package_and_file_as_the_code_has_them():
    page = HOUSE_PAGE.read_text(encoding="utf-8")
    assert tree() in page, "anew: make pages"
    names = {path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert len(names) > 100 and all(f"- `{name}`" in page for name in names)


def test_every_answer_to_where_do_i_find_is_a_file_that_exists():
    section = HOUSE_PAGE.read_text(encoding="utf-8").partition("## Where do I find")[2].partition("\n## ")[0]
    answers = re.findall(r"^\|[^|]+\| (?:`([\w/]+/)`)? ?\| `(\w+\.py)` \|$", section, re.MULTILINE)
    assert len(answers) >= 30 and len(answers) == section.count(".py` |")
    assert [f"{folder}{name}" for folder, name in answers if not (PACKAGE / folder / name).is_file()] == []


def test_every_file_of_code_that_a_page_names_exists():
    """Lab log, decisions and changelog speak of their day."""
    dated = (DOCS / "lab.md", *(DOCS / "decisions").glob("*.md"))
    roots = (ROOT, ROOT / "src", PACKAGE)
    missing = [
        f"{named(page)}: {path}"
        for page in [*pages(), ROOT / "CONTRIBUTING.md"]
        if page not in dated
        for path in re.findall(r"`((?:[a-z_.]+/)+[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
        if not any((root / path).is_file() for root in roots)
    ]
    assert missing == []


def test_the_lab_log_is_made_from_its_records_newest_first():
    assert LAB_PAGE.read_text(encoding="utf-8") == lab_markdown(), "anew: make pages"
    dates = [record["date"] for record in records()]
    assert len(dates) >= 70 and dates == sorted(dates, reverse=True)
    assert all(list(record) == list(FIELDS) and all(record.values()) for record in records())
    written = RECORDS.read_text(encoding="utf-8")  # a field that comes twice would be lost in silence
    assert all(written.count(f"\n  {name}:") == len(dates) for name in FIELDS if name != "date")
