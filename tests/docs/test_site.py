"""Claims about the site: it builds without a warning, hangs together, and asks nobody for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect

from tests.docs.pages import ROOT
from tests.studio.chromium import chromium

pytestmark = pytest.mark.slow
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)"|<link\b[^>]*?\bhref="([^"]+)"|url\(["']?(http[^)]+)"""
)
OPENED = (
    "index.html", "reference/layer.html", "gallery.html", "house.html", "reference/models.html",
    "reference/command.html",
)  # fmt: skip


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.website", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "No issues found" in done.stderr, done.stdout + done.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere_and_every_link_leads_somewhere(site):
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for found in LOADED.findall(page.read_text(encoding="utf-8")):
            assert "://" not in "".join(found) and not "".join(found).startswith("//"), (page, found)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"#:]+)(?:#[^"]*)?"', text):
            assert page.name == "404.html" or (page.parent / unquote(link)).exists(), (page, link)


def test_every_link_of_llms_txt_is_a_page_in_markdown(site):
    links = re.findall(r"\]\(([^)#]+)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 100 and [link for link in links if not (site / link).is_file()] == []


def test_a_browser_is_asked_for_nothing_else_and_a_phone_need_not_scroll_sideways(site):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 420, "height": 800})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for name in OPENED:
            page.goto((site / name).as_uri())
            page.wait_for_load_state()
            assert page.evaluate("document.documentElement.scrollWidth") <= 420, name
        page.locator("label.md-header__button[for=__search]").click()
        page.keyboard.type("entropy")
        expect(page.get_by_text(re.compile(r"^\d+ results$"))).to_be_visible()
        assert len(asked) > len(OPENED)
        assert [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:", "about:"))] == []
