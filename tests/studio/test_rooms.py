"""The rooms in a real Chromium: what Head opens with and says, what Escape leaves, a long text, presenter mode."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits import head_output
from manyheads.corpora import OWN_TEXT
from tests.studio.driving import fragment, show
from tests.studio.serving import TEXT

LONG = "\n\n".join(
    f"Part {number}. The old dog sat by the door, and the cat that saw it ran into the garden.\n"
    f"  It was {number} o'clock."
    for number in range(1, 12)
)


@pytest.fixture
def opened(new_page, studio):
    """`opened(fragment)`: a page of the studio at that address."""

    def at(path, before="", **options):
        page = new_page(**options)
        page.goto(f"{studio.address}/{before}#/{path}")
        return page

    return at


# ------------------------------------------------------------------------------------------------------------- the head


def test_head_opens_with_the_head_that_tells_most_and_both_halves_of_what_it_does(opened, minilm):
    page = opened("head?model=minilm")
    expect(page.get_by_test_id("head-name")).to_have_text("L3H1")
    row = page.get_by_test_id("pinned-row")
    expect(row).to_have_attribute("data-kept", "true")
    expect(row).to_have_attribute("data-row", "10")
    sentence = page.get_by_test_id("head-sentence")
    expect(sentence).to_have_text("links “it” to “animal”, 68 %; over 299 texts it has no role")
    output = head_output(mh.record(minilm, OWN_TEXT, keep=("q", "k", "v", "lse")), "L3H1", "it", minilm)
    expect(page.get_by_test_id("says")).to_have_attribute("data-query", "10")
    heard = page.get_by_test_id("heard").locator("li")
    shares = dict(zip(output.tokens, output.heard, strict=True))
    for line in heard.all()[:4]:
        name, value = line.locator("bdi").inner_text(), line.locator("[data-value]").get_attribute("data-value")
        assert float(value) == pytest.approx(shares[name], abs=1e-5), name
    drawn = page.get_by_test_id("says-out").locator("rect").evaluate_all("all => all.map(each => +each.dataset.value)")
    np.testing.assert_allclose(drawn, output.out, atol=1e-5)
    expect(page.get_by_test_id("wrote")).to_contain_text("20 %")
    expect(page.get_by_test_id("head-card")).to_have_count(0)  # the drawer lies folded
    assert fragment(page)[0] == "head/L3H1" and fragment(page)[1]["pin"] == "10"
    # A head that parks on most texts and may not on this one: the sentence holds both.
    page.evaluate("() => (location.hash = location.hash.replace('L3H1', 'L1H10'))")
    expect(sentence).to_contain_text("; over 299 texts it parks on [CLS]")


def test_atlas_names_the_link_to_begin_with(studio):
    recording = studio.open(OWN_TEXT)
    telling = studio.get(f"/api/recordings/{recording['id']}/atlas").json["telling"]
    words = [recording["tokens"][telling[side]]["label"] for side in ("query", "key")]
    assert (telling["head"], words) == ("L3H1", ["it", "animal"])  # what the example's question asks
    other = studio.open("A dog")
    telling = studio.get(f"/api/recordings/{other['id']}/atlas").json["telling"]
    assert telling is None or telling["query"] != telling["key"]


def test_escape_leaves_the_topmost_thing_alone(opened):
    page = opened("head/L3H1?model=minilm&pin=10&key=2&card=1")
    neuron, row = page.get_by_test_id("neuron"), page.get_by_test_id("pinned-row")
    expect(neuron).to_be_visible()
    page.get_by_test_id("view-menu").click()
    expect(page.get_by_test_id("contrast")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("contrast")).to_have_count(0)
    expect(neuron).to_be_visible()
    page.get_by_test_id("map-frame").focus()
    page.keyboard.press("p")
    expect(page.get_by_test_id("rail-atlas")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("rail-atlas")).to_be_visible()
    expect(neuron).to_be_visible()
    page.keyboard.press("Escape")
    expect(neuron).to_have_count(0)
    expect(row).to_have_attribute("data-kept", "true")
    page.keyboard.press("Escape")
    expect(row).to_have_attribute("data-kept", "false")


# ------------------------------------------------------------------------------------------------------------ the atlas


def test_an_order_is_forgotten_with_the_model_it_was_chosen_for(opened):
    page = opened("atlas?model=minilm&sort=entropy&colour=entropy")
    order = page.get_by_test_id("sort-by")
    expect(order).to_have_value("entropy")
    page.get_by_test_id("model-choice").select_option("tiny-llama")
    expect(page.locator("h1")).to_have_text("tiny-llama")
    expect(order).to_have_value("layer")
    expect(page.get_by_test_id("colour-by")).to_have_value("role")
    assert order.locator("option").all_inner_texts()[:2] == ["by layer", "by role"]
    assert len(order.locator("option").all()) <= 3  # and importance: the filter takes any other statistic
    page.get_by_test_id("filter").fill("previous share > 2")
    expect(page.get_by_test_id("filter-nothing")).to_be_visible()


def test_words_of_a_byte_level_vocabulary_are_plain(studio):
    recording = studio.open("def f(x):\n    return x  é\n", "tiny-code")
    assert recording["words"] and not re.search("[ĠĊâÃ]", "".join(word["text"] for word in recording["words"]))


# ---------------------------------------------------------------------------------------------------------- a long text


def test_a_long_text_has_a_pane_that_follows_the_row_and_folds(opened, minilm):
    page = opened("head/L3H1?model=minilm")
    expect(page.get_by_test_id("pinned-row")).to_be_visible()
    show(page, LONG)
    page.get_by_test_id("rail-head").click()
    pane = page.get_by_test_id("text-pane")
    expect(pane).to_be_visible()
    expect(page.get_by_test_id("pin-strip")).to_have_count(0)
    tokens = mh.record(minilm, LONG).tokens
    at = tokens.pieces[0].index("cat", 60)
    word = page.get_by_test_id("pane-text").locator(f"[data-token='{at}']")
    expect(word).to_have_text("cat")
    word.click()
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", str(at))
    expect(word).to_have_class(re.compile("now"))
    weights = mh.record(minilm, LONG).layers[3].weights(1)[at]
    best = next(int(key) for key in weights.argsort(descending=True) if int(key) not in (0, at))
    tinted = page.get_by_test_id("pane-text").locator(f"[data-token='{best}']")
    expect(tinted).to_have_attribute("title", re.compile(r"\d+\.\d %"))
    assert float(tinted.get_attribute("title").strip("< %")) == pytest.approx(100 * float(weights[best]), abs=0.051)
    assert page.get_by_test_id("pane-gutter").locator(".read").count() == int(
        sum(weights[token] >= 0.01 for token in range(len(weights)) if not tokens.pieces[0][token].startswith("["))
    )
    text = page.get_by_test_id("pane-text").inner_text()
    assert "1 o'clock.\n\nPart 2." in text  # lines as in the file
    page.keyboard.press("\\")
    expect(pane).to_have_count(0)
    expect(page.get_by_test_id("pin-strip")).to_be_visible()
    page.get_by_test_id("pane-open").click()
    edge = page.get_by_test_id("pane-edge").bounding_box()
    width = pane.bounding_box()["width"]
    page.mouse.move(edge["x"] + 4, edge["y"] + 200)
    page.mouse.down()
    page.mouse.move(edge["x"] + 104, edge["y"] + 200)
    page.mouse.up()
    assert pane.bounding_box()["width"] == pytest.approx(width + 100, abs=12)
    page.get_by_test_id("text-button").click()  # the box on top is a button with the first words
    expect(page.get_by_test_id("text-box")).to_have_value(LONG)


def test_a_file_of_text_opens_and_what_is_no_text_is_refused_in_one_sentence(opened, tmp_path):
    page = opened("atlas?model=minilm")
    expect(page.locator("[data-head=L5H11]")).to_be_visible()
    (tmp_path / "harbour.md").write_text("The harbour was closed because it was frozen.", encoding="utf-8")
    with page.expect_response(re.compile("/atlas")):
        page.get_by_test_id("open-file").set_input_files(tmp_path / "harbour.md")
    expect(page.get_by_test_id("text-box")).to_have_value("The harbour was closed because it was frozen.")
    (tmp_path / "latin.txt").write_bytes("é ".encode("latin-1"))
    page.get_by_test_id("open-file").set_input_files(tmp_path / "latin.txt")
    expect(page.get_by_test_id("drop-refused")).to_contain_text("latin.txt is not a text in UTF-8")
    (tmp_path / "empty.py").write_text(" \n", encoding="utf-8")
    page.get_by_test_id("open-file").set_input_files(tmp_path / "empty.py")
    expect(page.get_by_test_id("drop-refused")).to_contain_text("empty.py is empty")
    expect(page.get_by_test_id("text-box")).to_have_value("The harbour was closed because it was frozen.")


# -------------------------------------------------------------------------------------------------------- the last row


def font(page, name):
    return float(page.get_by_test_id(name).first.evaluate("each => parseFloat(getComputedStyle(each).fontSize)"))


def test_presenter_mode_is_type_for_the_last_row(opened):
    page = opened("head/L3H1?model=minilm&pin=10", before="?present")
    expect(page.get_by_test_id("headline")).to_contain_text("asked and")
    for hidden in ("rail-head", "model-choice", "drawer-handle", "export"):
        expect(page.get_by_test_id(hidden)).to_be_hidden()
    assert font(page, "headline") == 32
    sizes = page.locator("[data-testid=reads-from] .value, [data-testid=heard] .value").evaluate_all(
        "all => all.map(each => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) >= 18
    expect(page.get_by_test_id("map")).to_have_count(0)
    page.keyboard.press("2")
    expect(page.get_by_test_id("map")).to_be_visible()
    page.keyboard.press("b")
    expect(page.get_by_test_id("blank")).to_be_visible()
    page.keyboard.press("b")
    expect(page.get_by_test_id("blank")).to_have_count(0)
    page.keyboard.press("p")
    expect(page.get_by_test_id("rail-head")).to_be_visible()
    assert "present" not in page.evaluate("location.hash")


def test_presented_the_atlas_has_one_headline_and_six_heads_that_digits_open(opened):
    page = opened("atlas?model=minilm&from=10&to=2&sort=word")
    expect(page.get_by_test_id("best-head").first).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_test_id("headline")).to_have_text("L3H1 links “it” to “animal”: 68 % of its look.")
    assert page.get_by_test_id("atlas-present").locator("canvas").count() == 6
    expect(page.get_by_test_id("present-keys")).to_contain_text("1 to 6 opens a head")
    assert font(page, "headline") == 32
    page.keyboard.press("1")
    expect(page.get_by_test_id("head-name")).to_have_text("L3H1")
    expect(page.get_by_test_id("rail-head")).to_be_hidden()


# ------------------------------------------------------------------------------------------------------ the other rooms


@pytest.mark.slow
def test_a_tablet_is_filled_by_large_heads_and_by_maps_of_one_size(opened):
    page = opened("atlas?model=minilm&from=10&to=2")
    page.set_viewport_size({"width": 768, "height": 1024})
    for path, heads in (("atlas?from=10&to=2", ["L3H1", "L5H11"]), ("atlas", [])):
        page.evaluate("to => (location.hash = `#/${to}`)", path)
        large = page.get_by_test_id("telling").locator("canvas")
        expect(large).to_have_count(6)
        sides = {round(box["width"]) for box in (canvas.bounding_box() for canvas in large.all())}
        assert len(sides) == 1 and sides.pop() > 100
        for place, head in enumerate(heads, 1):
            expect(page.get_by_test_id(f"telling-{place}")).to_have_attribute("data-head", head)
        last = large.last.bounding_box()
        assert 800 < last["y"] + last["height"] < 1024
    page.evaluate("to => (location.hash = `#/${to}`)", "compare/L3H1?other=L5H11")
    boxes = [page.get_by_test_id(f"compare-{which}").bounding_box() for which in ("a", "b", "diff")]
    assert [round(box["width"]) for box in boxes] == [round(boxes[0]["width"])] * 3
    assert [round(box["height"]) for box in boxes] == [round(boxes[0]["height"])] * 3
    words = page.get_by_test_id("compare-readout").bounding_box()
    assert words["x"] > boxes[2]["x"] + boxes[2]["width"] - 1 and words["y"] > boxes[0]["y"] + boxes[0]["height"] - 1


@pytest.mark.slow
def test_circuit_frames_every_head_and_says_what_it_does_until_all_are_measured(opened):
    page = opened("circuit?model=minilm&asks=tiny-code")
    page.route("**/api/circuits/effects", lambda route: None)  # they never come
    page.reload()
    coming = page.get_by_test_id("circuit-coming")
    expect(coming).to_contain_text("each of its 32 heads in turn takes its output from the other text")
    expect(coming.locator(".grid i")).to_have_count(32)
    expect(page.get_by_test_id("circuit-coming-head")).to_contain_text("the one that changes the answer most")
    expect(page.get_by_test_id("circuit-grid")).to_have_count(0)


def test_rooms_that_show_no_text_have_no_line_for_one(opened):
    page = opened("atlas?model=minilm")
    page.get_by_test_id("text-box").fill("half a sentence")
    for room in ("size", "learn", "circuit"):
        page.get_by_test_id(f"rail-{room}").click()
        expect(page.get_by_test_id("text-box")).to_be_hidden()
    page.get_by_test_id("rail-head").click()
    expect(page.get_by_test_id("text-box")).to_have_value("half a sentence")


def test_compare_offers_texts_and_models_where_one_is_wanted(opened):
    page = opened("compare?model=minilm")
    expect(page.get_by_test_id("compare-head-b")).to_be_visible()
    expect(page.get_by_test_id("compare-recording-b")).to_have_count(0)
    page.get_by_test_id("compare-other-b").click()
    page.get_by_test_id("compare-recording-b").select_option("type")
    page.get_by_test_id("compare-text-b").fill(TEXT)
    page.get_by_test_id("compare-text-b").press("Enter")
    expect(page.get_by_test_id("compare-map-b")).to_be_visible()
    expect(page.get_by_test_id("compare-recording-b")).to_be_visible()
    expect(page.get_by_test_id("compare-recording-a")).to_have_count(0)
