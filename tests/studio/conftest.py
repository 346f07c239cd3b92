"""What the studio's tests share: one browser and one studio a process, pages that fail a test by what they complain of.

The studio serves the bundled model with its roles, a tiny model, and recordings. No test may change what others see.
"""

from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import expect

from manyheads.models.loading import find_bundled
from tests.studio.chromium import chromium
from tests.studio.serving import TEXT, minilm_studio, save_mixed

ICON = Path(__file__).parents[2] / "src/manyheads/studio/static/favicon.svg"
expect.set_options(timeout=30_000)  # a machine that runs other tests beside this one is slow, not wrong


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, one for all tests of this process."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def shared_pages(browser):
    """`shared_pages(offline)`: the page, with a network or without, that tests of this process use one after another.

    A page of a fresh profile costs a second and a half of CPU, one that has shown the studio before a third of that.
    """
    known = {}

    def page_of(offline):
        if offline not in known or known[offline].is_closed():
            known[offline] = browser.new_context(offline=offline).new_page()
        return known[offline]

    yield page_of
    for page in known.values():
        page.context.close()


@pytest.fixture
def new_page(browser, shared_pages, request):
    """`new_page()`: a page as of a fresh profile. What it writes to the console as an error fails the test at its end.

    The first of a test is the shared one, with its storage emptied, unless `options` ask for what only a new one has,
    or `alone` says that what the test does to it stays on it.
    """
    taken, contexts, listeners, complaints = set(), [], [], []

    def make(
        *, alone=False, forgive=(), offline=False, color_scheme="light", reduced_motion="no-preference", **options
    ):
        if alone or offline in taken or options:
            contexts.append(browser.new_context(offline=offline, **options))
            page = contexts[-1].new_page()
        else:
            taken.add(offline)
            page = shared_pages(offline)
            page.goto(ICON.as_uri() if offline else f"{request.getfixturevalue('studio').address}/favicon.svg")
            page.evaluate("localStorage.clear()")
            page.mouse.move(0, 0)
        page.set_viewport_size({"width": 1280, "height": 720})
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        page.set_default_timeout(30_000)

        def hear(kind, words):
            if not any(pardoned in words for pardoned in forgive):
                complaints.append(f"{kind}: {words}")

        def hear_line(line):  # but that a picture has no icon of its own
            if line.type in ("error", "assert") and not line.location["url"].endswith("/favicon.ico"):
                hear(line.type, line.text)

        heard = {"console": hear_line, "pageerror": lambda error: hear("exception", str(error))}  # fmt: skip
        for event, listener in heard.items():
            page.on(event, listener)
            listeners.append((page, event, listener))
        return page

    yield make
    for offline in taken:
        shared_pages(offline).unroute_all()
        shared_pages(offline).goto("about:blank")  # its requests and timers end with the test
    for page, event, listener in listeners:
        page.remove_listener(event, listener)
    for context in contexts:
        context.close()
    assert not complaints, complaints


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return save_mixed(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="session")
def studio(folder, minilm, page_labels):
    with minilm_studio(minilm, folder, page_labels) as studio:
        yield studio


@pytest.fixture
def page(new_page, studio):
    """The page of the studio, showing the atlas of `TEXT`."""
    page = new_page()
    page.goto(f"{studio.address}#/atlas?{urlencode({'model': 'minilm', 'text': TEXT})}")
    expect(page.locator("[data-head=L5H11]")).to_be_visible()
    return page


@pytest.fixture(scope="session")
def eager():
    """`eager(text)`: the bundled model's own maps, layer, head, query, key, computed by stock transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    place, known = find_bundled("minilm"), {}
    model = AutoModel.from_pretrained(place, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(place)

    def maps(text):
        if text not in known:
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
            with torch.no_grad():
                known[text] = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0].numpy()
        return known[text]

    return maps
