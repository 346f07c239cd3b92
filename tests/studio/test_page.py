"""The studio's page in a real Chromium, driven as a person would: what it shows is the model's own.

The oracle of every weight is the model's own eager map, computed by stock transformers. Which cell is under the pointer
is computed here from the view in the page's address, and must be the cell that the page names. Then the page in use:
addresses, keys, hostile texts, narrow screens, a server that goes.
"""

import csv
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import manyheads as mh
from manyheads.roles.words.glossary import TERMS
from manyheads.studio import Workspace
from manyheads.studio.views import tiles as tiles_module
from tests import seeds
from tests.studio.driving import assert_nothing_past_the_edge, digits, fragment, open_head, settled, show
from tests.studio.serving import TEXT, studio_of

HOSTILE = [
    "<script>window.bad=1</script><img src=x onerror=window.bad=1>", "שלום עולם hello مرحبا",
    "family \U0001f468‍\U0001f469‍\U0001f467 and flags \U0001f1eb\U0001f1f7", f"long {'x' * 4000} word", "cat", "​ ­",
]  # fmt: skip


@pytest.fixture(scope="module")
def long_text():
    """A text of just under 512 tokens."""
    words = Path(mh.__file__).parent.joinpath("corpora/page.txt").read_text(encoding="utf-8").split()
    return " ".join(words[:390])


def point(page, x, y):
    """Move the pointer there, with real mouse events, and read what the page says."""
    page.mouse.move(x - 1, y)
    page.mouse.move(x, y)
    weight = page.get_by_test_id("readout-weight")
    expect(weight).to_be_visible()
    expect(weight).not_to_have_text("…")
    query, key = (page.get_by_test_id(f"readout-{name}") for name in ("query", "key"))
    return int(query.get_attribute("data-query")), int(key.get_attribute("data-key")), weight.inner_text()


def box_at_rest(part):
    """Where a part of the page lies, once it has stayed there for half a second."""
    before, same = None, 0
    for _ in range(120):
        box = part.bounding_box()
        before, same = box, same + 1 if box == before else 0
        if same == 5:
            return box
        part.page.wait_for_timeout(100)
    raise AssertionError("the page never came to rest")


def point_at_rest(page, x, y):
    """The level that is shown, and what the page says there; asked again where the level changed meanwhile."""
    words = page.get_by_test_id("mode-words")
    for _ in range(60):
        level = words.get_attribute("data-level")
        page.wait_for_timeout(100)
        found = point(page, x, y)
        if words.get_attribute("data-level") == level:
            return int(level), *found
    raise AssertionError("the map's level never came to rest")


# ---------------------------------------------------------------------------------------------------------- open, click


@pytest.mark.slow
def test_the_atlas_shows_every_head_with_what_it_does(page):
    assert page.locator("[data-testid=atlas-grid] [data-head]").count() == 72
    assert page.title() and "minilm" in page.get_by_test_id("room-atlas").inner_text()
    expect(page.get_by_test_id("because")).to_be_visible()
    page.locator("[data-head=L2H9]").hover()
    expect(page.get_by_test_id("hover-card")).to_contain_text("duplicate token")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "one screen, no page scroll"


def test_a_click_on_a_head_shows_its_map_with_its_evidence(page):
    open_head(page, "L2H9")
    expect(page.get_by_test_id("head-sentence")).to_contain_text("over 299 texts its role is “duplicate token”")
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("head-card")).to_contain_text("duplicate token")
    expect(page.get_by_test_id("evidence")).to_contain_text("by chance")
    expect(page.get_by_test_id("mode-words")).to_have_text("exact weights")
    page.get_by_test_id("worth-button").click()
    expect(page.get_by_test_id("worth-verdict")).to_contain_text("random heads")
    expect(page.get_by_test_id("worth")).to_contain_text("random heads")


# ----------------------------------------------------------------------------------------------------- the exact weight


def test_the_pixel_that_is_pointed_at_reads_the_models_own_weight(page, eager):
    maps = eager(TEXT)[1, 1]
    open_head(page, "L1H1")
    page.get_by_test_id("zoom-in").click()
    x, y, scale = settled(page)
    box = page.get_by_test_id("map").bounding_box()
    generator, seen = np.random.default_rng(seeds.seed()), set()
    while len(seen) < 6:
        px, py = (float(generator.uniform(0.02, 0.98) * box[side]) for side in ("width", "height"))
        places = [y + (py - box["height"] / 2) / scale, x + (px - box["width"] / 2) / scale]
        if not all(0 <= at < 25 and 2 < at % 1 * scale < scale - 2 for at in places):
            continue  # beside the map, or on the line between two cells
        query, key, said = point(page, box["x"] + px, box["y"] + py)
        assert (query, key) == tuple(int(at) for at in places)
        assert abs(float(said) - maps[query, key]) < 1e-4
        seen.add((query, key))


@pytest.mark.parametrize("how", [pytest.param("mean", marks=pytest.mark.slow), "max"])
@pytest.mark.slow
def test_at_every_level_the_number_is_the_mean_or_the_largest_of_its_block(page, eager, long_text, how):
    show(page, long_text)
    maps = eager(long_text)[3, 5]
    open_head(page, "L3H5")
    levels = set()
    page.get_by_test_id("view-menu").click()
    page.get_by_test_id("how").get_by_text("largest" if how == "max" else "mean", exact=False).first.click()
    page.get_by_test_id("zoom-home").click()
    box = box_at_rest(page.get_by_test_id("map"))  # the text and what the head says come beside it
    assert page.get_by_test_id("head-sentence").bounding_box()["height"] < 60, "it has room beside the text's pane"
    assert box["y"] + box["height"] < 720, "the whole map is on the screen"
    middle = box["x"] + min(box["width"], box["height"]) / 2  # the whole map is a square at the left
    for _ in range(7):
        for share in (0.31, 0.64):
            px, py = middle + (share - 0.5) * 90, box["y"] + box["height"] * share
            level, query, key, said = point_at_rest(page, px, py)
            side = 1 << level
            block = maps[query // side * side :, key // side * side :][:side, :side]
            want = block.mean() if how == "mean" or not level else block.max()
            assert abs(float(said) - want) < 1e-4, (how, level, query, key)
            levels.add(level)
        if level == 0:
            break
        page.mouse.move(middle, box["y"] + box["height"] / 2)
        page.mouse.wheel(0, -400)
    assert {0, 1} <= levels


@pytest.mark.slow
def test_a_pinned_row_lists_where_the_word_looks_strongest_first(page, eager):
    maps = eager(TEXT)[2, 9]
    open_head(page, "L2H9")
    page.get_by_test_id("zoom-in").click()
    settled(page)
    box = page.get_by_test_id("map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    query, _, _ = point(page, x, y)
    page.mouse.click(x, y)
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(query))
    rows = page.get_by_test_id("reads-from").locator("[data-value]")
    weights = rows.evaluate_all("all => all.map(part => +part.dataset.value)")[:5]
    np.testing.assert_allclose(weights, np.sort(maps[query])[::-1][:5], atol=1e-4)
    expect(page).to_have_url(re.compile(f"pin={query}(&|$)"))


@pytest.mark.slow
def test_what_a_causal_head_cannot_see_is_absent_and_never_zero(page, studio):
    page.get_by_test_id("model-choice").select_option("tiny-llama")
    show(page, "the cat sat on the mat . the dog saw it")
    open_head(page, "L1H3")
    page.get_by_test_id("zoom-in").click()
    settled(page)
    box = page.get_by_test_id("map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    query, key, _ = point(page, x + 60, y - 60)
    assert key > query
    expect(page.get_by_test_id("readout-weight")).to_have_text("no weight")
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("shares-with")).to_be_visible()


# ------------------------------------------------------------------------------------------------------ ablate, compare


@pytest.mark.slow
def test_an_ablations_before_and_after_are_the_librarys(page, minilm):
    page.get_by_test_id("rail-experiment").click()
    page.get_by_test_id("experiment-text").fill(TEXT)
    for head in ("L2H9", "L0H2"):
        page.get_by_test_id(f"experiment-head-{head}").click()
    page.get_by_test_id("experiment-run").click()
    page.get_by_test_id("experiment-numbers").locator("summary").click(timeout=60_000)
    change = page.get_by_test_id("experiment-change")
    expect(change).to_be_visible()
    known = mh.effect(minilm, mh.Plan(mh.Ablate("L0H2, L2H9")), TEXT)
    shown = float(re.findall(r"\d+\.\d+(?:e-\d+)?", change.inner_text())[0])
    assert shown == pytest.approx(known.change, rel=2e-2)
    expect(page.get_by_test_id("experiment-control")).to_contain_text("random")
    expect(page.get_by_test_id("experiment-tokens")).to_be_visible()
    assert page.get_by_test_id("experiment-entry").count() == 1
    page.reload()
    expect(page.get_by_test_id("experiment-entry")).to_have_count(1)


def test_a_stored_run_says_its_unit_and_then_that_it_stands_out(page):
    run = {
        "key": "one", "name": "without L3H1", "made": 0, "metric": "cosine", "unit": "", "change": 0.416, "low": None,
        "high": None, "control": [0.01, 0.02, 0.03, 0.02, 0.01], "ask": {"model": "minilm", "text": TEXT, "plan": []},
    }  # fmt: skip
    page.evaluate("runs => localStorage.setItem('manyheads.experiments', JSON.stringify(runs))", [run])
    page.reload()
    page.get_by_test_id("rail-experiment").click()
    words = page.get_by_test_id("experiment-entry").evaluate("entry => entry.textContent")
    assert "cosine with before 0.584 stands out" in words


@pytest.mark.slow
def test_the_atlas_ranks_heads_by_what_is_lost_without_them(page, minilm):
    known = mh.importance(minilm, TEXT)  # before the studio's own thread takes heads away from the same model
    page.get_by_test_id("sort-by").select_option("importance")
    expect(page.get_by_test_id("sort-by").locator("option[value=importance]")).to_have_text("most first: importance")
    best = [str(head) for head in known.ranking()[::-1][:5]]
    for at, head in enumerate(best):  # each is waited for: the page may still be putting heads in order
        expect(page.locator("[data-head]").nth(at)).to_have_attribute("data-head", head)
    page.get_by_test_id("colour-by").select_option("importance")
    words = "what is lost when the head is ablated: 1 - cosine of the mean-pooled embeddings, on this text"
    expect(page.get_by_test_id("scale-words")).to_contain_text(words)
    assert known.values.max() >= 0.1 or "thousandths" in page.get_by_test_id("scale-words").inner_text()


@pytest.mark.slow  # the pixel test, twice
def test_two_heads_side_by_side_read_the_same_cell(page, eager):
    maps = eager(TEXT)
    page.goto(page.url.replace("#/atlas", "#/compare"))
    page.get_by_test_id("compare-head-a").select_option("L2H9")
    page.get_by_test_id("compare-head-b").select_option("L1H1")
    readout = page.get_by_test_id("compare-readout")
    gaps = maps[2, 9] - maps[1, 1]  # until a cell is pointed at, the one that differs most is read
    most = np.unravel_index(np.abs(gaps).argmax(), gaps.shape)
    expect(readout).to_have_attribute("data-query", str(most[0]))
    expect(readout).to_have_attribute("data-difference", re.compile(r"\d"))
    assert_cell(readout, maps[2, 9], maps[1, 1], most)
    # Another row is slow to come: its cell is read from the maps that are drawn, never from the row before.
    page.route("**/rows/**", lambda route: None)
    box = page.get_by_test_id("compare-map-a").bounding_box()
    seen = set()
    for down in (0.35, 0.5, 0.65):
        page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] * down + 3)
        expect(readout).not_to_have_attribute("data-query", str(most[0] if not seen else max(seen)))
        query, key = (int(readout.get_attribute(f"data-{name}")) for name in ("query", "key"))
        assert_cell(readout, maps[2, 9], maps[1, 1], (query, key))
        seen.add(query)
    assert len(seen) == 3


def assert_cell(readout, a, b, cell):
    """The readout of Compare names a cell, and its three numbers are of that cell."""
    text = digits(readout.inner_text()).replace("−", "-")
    digit = r"[+-]?\d\.\d+(?:e-\d+)?"
    places = [int(number) for number in re.findall(r"\b\d{1,2}\b(?!\.)", re.sub(digit, "", text))]
    assert places[:2] == list(cell), text
    numbers = [float(number) for number in re.findall(digit, text)]
    np.testing.assert_allclose(numbers[:3], [a[cell], b[cell], a[cell] - b[cell]], atol=2e-4)


# -------------------------------------------------------------------------------------------------------------- exports


@pytest.mark.slow  # two formats of a picture
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_an_exported_picture_opens_and_holds_the_tokens(page, kind, tmp_path, new_page):
    open_head(page, "L2H9")
    page.wait_for_timeout(600)
    page.get_by_test_id("export").click()
    with page.expect_download() as download:
        page.get_by_test_id(f"export-{kind}").click()
    path = tmp_path / f"map.{kind}"
    download.value.save_as(path)
    if kind == "svg":
        import xml.etree.ElementTree as tree

        words = " ".join("".join(each.itertext()) for each in tree.parse(path).iter() if each.tag.endswith("text"))
        assert all(word in words for word in ("[CLS]", "mat", "because", "tired", "beside")), words[:400]
        other = new_page()
        other.goto(path.as_uri())
        assert other.evaluate("document.querySelector('svg') !== null")
    else:
        from PIL import Image

        with Image.open(path) as picture:
            assert min(picture.size) > 300 and len(picture.convert("RGB").getcolors(1 << 24)) > 20


@pytest.mark.slow
def test_the_data_in_view_is_exported_as_it_is(page, eager, tmp_path):
    open_head(page, "L2H9")
    expect(page.get_by_test_id("mode-words")).to_have_text("exact weights")
    page.get_by_test_id("export").click()
    with page.expect_download() as download:
        page.get_by_test_id("export-csv").click()
    download.value.save_as(tmp_path / "cells.csv")
    with open(tmp_path / "cells.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 625
    for row in rows[::37]:
        assert abs(float(row["weight"]) - eager(TEXT)[2, 9, int(row["query"]), int(row["key"])]) < 1e-5


# ---------------------------------------------------------------------------------------------------------- the address


@pytest.mark.slow
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
    expect(page.get_by_test_id("words")).to_contain_text(TERMS["chance level"].short)
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("help")).not_to_be_visible()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.closest('[data-testid]')?.dataset.testid"))
    assert {"rail-atlas", "rail-learn", "model-choice", "text-box", "theme-toggle"} <= seen


@pytest.mark.parametrize("texts", [(0, 3), pytest.param((1, 2, 4), marks=pytest.mark.slow)], ids=str)
def test_hostile_texts_show_as_text(page, texts):
    for text in (HOSTILE[index] for index in texts):
        show(page, text)
        page.get_by_test_id("rail-atlas").click()
        open_head(page, "L0H2")
        page.get_by_test_id("view-menu").click()
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
    show(page, HOSTILE[5])  # nothing of it can be seen
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


@pytest.mark.parametrize("width", [420, pytest.param(768, marks=pytest.mark.slow)])  # where 420 fits, 768 mostly does
@pytest.mark.slow
def test_no_room_of_a_narrow_page_has_anything_past_its_edge(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_test_id("drawer-handle").click()
    expect(page.get_by_test_id("atlas-key")).to_be_visible()
    assert_nothing_past_the_edge(page, "the atlas")
    for room, sign in (
        ("head/L2H9?pin=2", "pinned-row"),
        ("head/L2H9?show=lines", "line-view"),
        ("head/L2H9?show=layer", "play-stage"),
        ("compare/L2H9?other=L1H1", "compare-map-d"),
        ("experiment", "experiment-run"),
        ("size", "size-conclusion"),
    ):
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        expect(page.get_by_test_id(sign)).to_be_visible()
        assert_nothing_past_the_edge(page, room)


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


# ====================================================================================================== long recordings
# Long recordings: an overview at once, said to be of sampled rows, then exact; single cells anywhere.


def recorded(folder, length):
    """A causal layer of two heads over random vectors, as a file."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    layer = mh.MultiHeadAttention(32, 2, causal=True, batch_first=True).eval()
    x = 3 * torch.randn(1, length, 32, generator=generator)
    mh.record_call(layer, x, need_weights=False).save(folder / f"{length}.heads")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    recorded(folder, 8_192)
    return folder


@pytest.fixture(scope="module")
def long_studio(files):
    with studio_of(Workspace.of([files])) as studio:
        yield studio


def opened(studio, length):
    job = studio.job("/api/recordings", {"file": f"{length}.heads"})
    assert job["state"] == "done", job
    return job["result"]


@pytest.mark.slow  # thousands of tokens
def test_every_level_of_8192_tokens_is_of_the_same_weights(long_studio, files):
    rec = opened(long_studio, 8192)
    layer = mh.open_recording(files / "8192.heads").layers[0]
    base = f"/api/recordings/{rec['id']}/tiles/L0H1"
    assert rec["max_level"] == 5
    for level, column, row in ((5, 0, 0), (3, 1, 3), (1, 9, 12), (0, 7, 30)):
        side = 1 << level
        for how in ("mean", "max"):
            header, arrays = long_studio.get(f"{base}/{level}/{column}/{row}?how={how}").arrays()
            values = arrays["values"]
            assert header["exact"]
            for i, j in ((0, 0), (17, 200), (255, 3), (130, 129)):
                top, left = (256 * row + i) * side, (256 * column + j) * side
                cells = layer.weights(head=1, queries=slice(top, top + side), keys=slice(left, left + side)).numpy()
                seen = np.arange(left, left + side)[None] <= np.arange(top, top + side)[:, None]
                if not seen.any():
                    assert np.isnan(values[i, j])
                    continue
                want = cells[seen].mean() if how == "mean" else cells[seen].max()
                assert abs(values[i, j] - want) < 1e-5


@pytest.mark.slow
def test_100_000_tokens_open_with_an_overview_that_says_so_and_are_refined(tmp_path):
    recorded(tmp_path, 100_000)
    with studio_of(Workspace.of([tmp_path])) as studio:
        assert_overview(studio, tmp_path)


def assert_overview(studio, files):
    begun = time.perf_counter()
    rec = opened(studio, 100_000)
    base = f"/api/recordings/{rec['id']}"
    assert rec["num_tokens"] == 100_000 and rec["max_level"] == 9
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0").arrays()
    assert not header["exact"] and "rows read" in header["words"]
    sampled = arrays["values"]
    assert studio.get(f"{base}/thumbnails").arrays()[0]["exact"] is False
    atlas = studio.get(f"{base}/atlas").json
    assert atlas["exact"].startswith("sampled: ") and atlas["heads"][0]["values"]
    print(f"open, overview, thumbnails, atlas: {time.perf_counter() - begun:.1f} s")
    assert time.perf_counter() - begun < 60
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0?rows=all").arrays()
    assert header["exact"] and "rows read" not in header["words"]
    exact = arrays["values"]
    assert (np.isnan(exact) == np.isnan(sampled)).mean() > 0.99
    both = ~np.isnan(exact) & ~np.isnan(sampled)
    assert np.corrcoef(exact[both], sampled[both])[0, 1] > 0.5, "of the same map"
    header, arrays = studio.get(f"{base}/tiles/L0H0/9/0/0").arrays()
    assert header["exact"], "what was refined is kept"
    layer = mh.open_recording(files / "100000.heads").layers[0]
    _, arrays = studio.get(f"{base}/tiles/L0H0/0/390/390").arrays()
    want = layer.weights(head=0, queries=slice(99_840, 100_000), keys=slice(99_840, 100_000)).numpy()
    np.testing.assert_allclose(np.nan_to_num(arrays["values"]), want, atol=1e-6)
    _, arrays = studio.get(f"{base}/rows/L0H1/99999").arrays()
    np.testing.assert_allclose(arrays["weights"], layer.weights(head=1, queries=slice(99_999, None))[0], atol=1e-6)


@pytest.mark.slow
def test_a_region_of_too_many_cells_is_sampled_unless_all_rows_are_asked_for(long_studio, files, monkeypatch):
    monkeypatch.setattr(tiles_module, "SAMPLED_CELLS", 1 << 20)
    rec = opened(long_studio, 8192)
    path = f"/api/recordings/{rec['id']}/tiles/L0H0/5/0/0"
    sampled, _ = long_studio.get(path).arrays()
    assert not sampled["exact"] and sampled["rows_read"] < 8192 // 8
    exact, _ = long_studio.get(f"{path}?rows=all").arrays()
    assert exact["exact"] and exact["rows_read"] == 8192
    again, _ = long_studio.get(path).arrays()
    assert again["exact"]
