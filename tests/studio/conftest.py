"""What the studio's tests share: one browser a process, pages that fail a test by what they complain of, labels."""

import pytest
from playwright.sync_api import expect

from manyheads.roles import label_page
from tests.studio.chromium import chromium

expect.set_options(timeout=30_000)  # a machine that runs other tests beside this one is slow, not wrong


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, one for all tests of this process."""
    with chromium() as found:
        yield found


@pytest.fixture
def new_page(browser):
    """`new_page()`: a page of a fresh profile. What it writes to the console as an error fails the test at its end."""
    contexts, complaints = [], []

    def make(*, forgive=(), **options):
        context = browser.new_context(viewport={"width": 1280, "height": 720}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)

        def hear(kind, words):
            if not any(each in words for each in forgive):
                complaints.append(f"{kind}: {words}")

        page.on("console", lambda said: said.type in ("error", "assert") and hear(said.type, said.text))
        page.on("pageerror", lambda error: hear("exception", str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints, complaints


@pytest.fixture(scope="session")
def page_labels(minilm):
    """The bundled model's roles, by the page's texts: read once (and remembered on the disk)."""
    return label_page(minilm)


@pytest.fixture
def page(new_page, studio):
    """The page of the studio that a file of tests has, showing the atlas."""
    page = new_page()
    page.goto(studio.address)
    expect(page.locator("[data-head=L5H11]")).to_be_visible()
    return page
