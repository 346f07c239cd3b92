"""docs/reference/sizing.md: its tables are the code's own. (Its code and its command lines: tests/docs.)"""

from __future__ import annotations

from pathlib import Path

from manyheads.sizing.__main__ import families_markdown, presets_markdown

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sizing.md").read_text(encoding="utf-8")


def test_the_tables_are_made_from_the_code():
    assert presets_markdown() in PAGE
    assert families_markdown() in PAGE
