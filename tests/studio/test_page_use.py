"""The studio's page in use, in a real Chromium: addresses, keys, hostile texts, narrow screens, a server that goes."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.studio.driving import fragment, open_head, settled, show
from tests.studio.edges import assert_nothing_past_the_edge
from tests.studio.serving import minilm_studio
from tests.studio.workspaces import save_few

HOSTILE = [
    "<script>window.bad=1</script><img src=x onerror=window.bad=1>",
    "שלום עולם hello مرحبا",
    "family \U0001f468‍\U0001f469‍\U0001f467 and flags \U0001f1eb\U0001f1f7",
    f"long {'x' * 4000} word",
    "cat",
    "​ ­",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_few(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def studio(folder, minilm, page_labels):
    with minilm_studio(minilm, folder, page_labels) as studio:
        yield studio


# ---------------------------------------------------------------------------------------------------------- the address


def test_reloading_restores_the_view_from_the_address(page, new_page):
    show(page, "A reloaded text keeps its place.")
    open_head(page, "L4H7")
    page.get_by_test_id("zoom-in").click()
    page.get_by_test_id("zoom-in").click()
    place = settled(page)
    page.reload()
    expect(page.get_by_test_id("head-name")).to_have_text("L4H7")
    np.testing.assert_allclose(settled(page), place, rtol=1e-3)
    assert page.get_by_test_id("text-box").input_value() == "A reloaded text keeps its place."
    other = new_page()
    other.goto(page.url)
    expect(other.get_by_test_id("head-name")).to_have_text("L4H7")
    np.testing.assert_allclose(settled(other), place, rtol=1e-3)
    page.go_back()
    expect(page.get_by_test_id("atlas-grid")).to_be_visible()


@pytest.mark.slow
def test_two_browsers_at_once_see_their_own(new_page, studio):
    pages = [new_page(), new_page()]
    texts = ["the first page reads this", "another page reads something else"]
    for page, text in zip(pages, texts, strict=True):
        page.goto(studio.address)
        expect(page.locator("[data-head=L5H11]")).to_be_visible()
        show(page, text)
    for page, head in zip(pages, ("L0H2", "L5H3"), strict=True):
        open_head(page, head)
    for page, text, head in zip(pages, texts, ("L0H2", "L5H3"), strict=True):
        assert page.get_by_test_id("text-box").input_value() == text
        expect(page.get_by_test_id("head-name")).to_have_text(head)


# ------------------------------------------------------------------------------------------------- by keyboard, hostile


def test_everything_can_be_reached_by_keyboard(page):
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.dataset.testid") == "text-box"
    page.keyboard.press("Escape")
    page.locator("[data-head=L0H0]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "L1H1"
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("head-name")).to_have_text("L1H1")
    page.keyboard.press("]")
    expect(page.get_by_test_id("head-name")).to_have_text("L1H2")
    page.keyboard.press("?")
    expect(page.get_by_test_id("help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("help")).not_to_be_visible()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.closest('[data-testid]')?.dataset.testid"))
    assert {"rail-atlas", "rail-learn", "model-choice", "text-box", "theme-toggle"} <= seen


def test_hostile_texts_show_as_text(page):
    for text in HOSTILE[:5]:
        show(page, text)
        page.get_by_test_id("rail-atlas").click()
        open_head(page, "L0H2")
        if page.get_by_test_id("labels").count():
            page.get_by_test_id("labels").get_by_text("Words").click()
        page.wait_for_timeout(300 if "<" in text else 50)  # for what would run, if anything did
        assert page.evaluate("window.bad") is None
        assert page.evaluate("document.querySelectorAll('script').length") == 1
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, "a long token does not stretch the page"
        body = page.get_by_test_id("room-head").inner_text()
        shown = {"<script>": "script", "שלום": "שלום", "family": "\U0001f468", "long": "xxxx", "cat": "cat"}
        assert next(said for begin, said in shown.items() if text.startswith(begin)) in body
        page.get_by_test_id("rail-atlas").click()


def test_an_empty_text_is_said_and_one_that_cannot_be_seen_is_opened(page):
    page.get_by_test_id("text-box").fill("")
    page.get_by_test_id("open-button").click()
    expect(page.get_by_test_id("trouble")).to_contain_text("empty")
    show(page, HOSTILE[5])
    expect(page.get_by_test_id("trouble")).to_have_count(0)
    show(page, "and then a text")
    expect(page.get_by_test_id("text-box")).to_have_value("and then a text")


@pytest.mark.slow
def test_what_is_being_typed_stays_when_a_recording_arrives(page):
    box = page.get_by_test_id("text-box")
    box.fill("the first of two texts")
    with page.expect_response(re.compile("/atlas")):
        page.get_by_test_id("open-button").click()
        box.fill("half of a sec")
    page.wait_for_timeout(500)
    expect(box).to_have_value("half of a sec")
    assert "first" in fragment(page)[1]["text"]


@pytest.mark.slow
def test_light_dark_and_small_screens_hold_together(page):
    for size in ((1280, 720), (1920, 1080), (1024, 768), (820, 1180)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for _ in range(2):
            page.get_by_test_id("theme-toggle").click()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), size


@pytest.mark.parametrize("width", [420, 768])
def test_no_room_of_a_narrow_page_has_anything_past_its_edge(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("atlas-key")).to_be_visible()
    assert_nothing_past_the_edge(page, "the atlas")
    for room, sign in (
        ("head/L2H9?pin=2", "pinned-row"),
        ("head/L2H9?show=lines", "line-view"),
        ("head/L2H9?show=layer", "layer-figure"),
        ("compare/L2H9?other=L1H1", "compare-map-d"),
        ("experiment", "experiment-run"),
        ("size", "size-conclusion"),
    ):
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        expect(page.get_by_test_id(sign)).to_be_visible()
        assert_nothing_past_the_edge(page, room)
    page.get_by_test_id("rail-experiment").click()
    page.get_by_test_id("experiment-head-L0H2").click()
    page.get_by_test_id("experiment-run").click()
    expect(page.get_by_test_id("experiment-change")).to_be_visible()
    assert_nothing_past_the_edge(page, "a run")


# --------------------------------------------------------------------------------------------------- a server that goes


@pytest.fixture
def process(folder):
    """`manyheads studio` in a process of its own: started, stopped and started again on the same port."""
    running = []

    def start(port="0"):
        command = [sys.executable, "-u", "-m", "manyheads", "studio", str(folder), "--no-browser", "--port", str(port)]
        found = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(found)
        line = found.stdout.readline()
        return found, line.split()[-1]

    yield start
    for each in running:
        each.kill()
        each.communicate()


@pytest.mark.slow
def test_a_server_that_stops_is_said_and_the_page_goes_on_when_it_is_back(process, new_page):
    server, address = process()
    page = new_page(forgive=("Failed to load resource", "failed to load", "net::ERR"))
    page.goto(f"{address}#/atlas?model=tiny-llama&text=the+cat+sat+on+the+mat")
    expect(page.locator("[data-head=L2H5]")).to_be_visible(timeout=60_000)
    server.send_signal(signal.SIGINT)
    assert server.wait(20) in (0, 130)
    page.locator("[data-head=L1H3]").first.click()
    gone = page.get_by_test_id("server-gone")
    expect(gone).to_be_visible()
    expect(gone).to_contain_text("stopped")
    process(address.rstrip("/").rsplit(":", 1)[1])
    expect(gone).not_to_be_visible(timeout=60_000)
    expect(page.get_by_test_id("head-name")).to_have_text("L1H3")
    expect(page.get_by_test_id("mode-words")).to_have_text("exact weights", timeout=60_000)
