"""A real Chromium, headless, for what only a browser can show. Where there is none, tests say which line brings one."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--enable-unsafe-swiftshader",  # WebGL without a graphics card
]  # fmt: skip
MISSING = "no Chromium here: apt-get update && apt-get install -y chromium (or say where: MANYHEADS_CHROMIUM=...)"


def find_chromium():
    """The path of the system's Chromium, None where there is none."""
    chosen = os.environ.get("MANYHEADS_CHROMIUM")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium():
    """Playwright's handle of the browser. Skips, with the line to type, where there is none."""
    path = find_chromium()
    if path is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
