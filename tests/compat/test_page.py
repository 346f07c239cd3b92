"""The page on other tools' numbers names every quirk; its code runs with that of all pages (tests/docs)."""

from manyheads.compat import clark
from tests.docs.pages import ROOT


def test_the_page_names_every_quirk_and_function():
    page = (ROOT / "docs" / "reference" / "compat.md").read_text(encoding="utf-8")
    functions = [name for name in clark.__all__ if name.islower()]
    assert all(f"| `{name}" in page for name in (*clark.QUIRKS, *functions))
