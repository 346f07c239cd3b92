"""What the studio's tests share: one browser and one studio a process, pages that fail a test by what they complain of.

The studio serves the bundled model with its roles, a tiny model, and recordings. No test may change what others see.
"""

from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import expect

from manyheads.models.loading.checkpoints import find_bundled
from manyheads.roles import label_page
from tests.short_pages import shorten_pages
from tests.studio.chromium import chromium
from tests.studio.serving import TEXT, minilm_studio, save_mixed

expect.set_options(timeout=30_000)  # a machine that runs other tests beside this one is slow, not wrong


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, one for all tests of this process."""
    with chromium() as browser:
        yield browser


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
            if not any(pardoned in words for pardoned in forgive):
                complaints.append(f"{kind}: {words}")

        page.on("console", lambda line: line.type in ("error", "assert") and hear(line.type, line.text))
        page.on("pageerror", lambda error: hear("exception", str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints, complaints


@pytest.fixture(scope="session")
def page_labels(minilm):
    """The bundled model's roles by the first texts of the page: quick, and the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_pages(patch, 100)
        return label_page(minilm, remember=False)


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
