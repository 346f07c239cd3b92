"""Scenes 3 to 5 in a browser: their numbers are the library's, no text touches another in six sizes, and readers who
want no motion step from still to still.

Oracles: eager maps of stock transformers (rows before and after a changed word), `stream_shares` (what moves a token),
and weights mixed by hand from stock maps for heads made alike, in the first layer, which reads nothing that changed.
"""

import re
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits.says import stream_shares
from manyheads.roles.compare import head_diversity
from tests.studio.driving import assert_nothing_past_the_edge, fragment

TIRED = "The animal didn't cross the street because it was too tired."
IT, CHANGED = 10, 13
SIZES = [(1440, 900), (1920, 1080), (1280, 720), (960, 600), (768, 1024), (390, 844)]
STAGE = "[data-testid=play-stage]"
SCENES = {
    "swap": {"play": "swap", "swap": f"{CHANGED}:wide", "t": "6"},
    "pass": {"play": "pass", "t": "3"},
}
STILLS = """(canvas) => { const { scene } = canvas.player;
  return [...scene.chapters.slice(1).map(({ at }) => at - 0.02), scene.end]; }"""
"""The last moment of each chapter."""
TEXTS = """(canvas, t) => {
  const prototype = CanvasRenderingContext2D.prototype, fill = prototype.fillText, texts = [];
  canvas.player.seek(t);
  prototype.fillText = function (words, x, y) {
    const { width, actualBoundingBoxAscent: up, actualBoundingBoxDescent: down } = this.measureText(words);
    const left = this.textAlign === "center" ? x - width / 2 : this.textAlign === "right" ? x - width : x;
    const box = { words, left, right: left + width, top: y - up, bottom: y + down };
    if (this.globalAlpha > 0.05 && this.canvas === canvas) texts.push(box);
    fill.call(this, words, x, y);
  };
  canvas.player.stage.clear();
  canvas.player.scene.draw(canvas.player.stage, t);
  prototype.fillText = fill;
  const [width, height] = [canvas.clientWidth + 1, canvas.clientHeight + 1];
  const bad = texts.filter(({ left, right, top, bottom }) => left < -1 || top < -1 || right > width || bottom > height)
    .map(({ words }) => `${words} is cut off`);
  texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
    const over = a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5;
    if (over) bad.push(`${a.words} touches ${b.words}`);
  }));
  return { count: texts.length, bad };
}"""
"""Every text of one moment that touches another or is cut off."""


@pytest.fixture
def played(new_page, studio):
    """`played("swap")`: the page of a scene that stands at its moment, and its canvas."""

    def opened(name, head="L3H1", **options):
        page = new_page(**options)
        address = {"model": "minilm", "text": TIRED, "pin": IT, **SCENES[name]}
        page.goto(f"{studio.address}#/head/{head}?{urlencode(address)}")
        expect(page.locator(STAGE)).to_be_visible()
        expect(page.get_by_test_id("player")).to_have_attribute("data-scene", name)
        return page, page.locator(STAGE)

    return opened


def rows_of(page):
    """The table of a scene that a screen reader reads: a list of rows."""
    return (
        page.get_by_test_id("play-table")
        .locator("tbody tr")
        .evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))")
    )


def in_words(row, groups):
    return np.array([row[group].sum() for group in groups])


WORDS = [[0], [1], [2], [3, 4, 5], [6], [7], [8], [9], [10], [11], [12], [13], [14], [15]]


@pytest.mark.slow
def test_a_changed_words_links_are_those_of_two_eager_forwards(played, eager):
    page, stage = played("swap")
    before, after = (eager(text)[3, 1, IT] for text in (TIRED, TIRED.replace("tired", "wide")))
    rows = rows_of(page)
    assert [row[0] for row in rows][:3] == ["[CLS]", "The", "animal"] and rows[11][0] == "tired, then wide"
    shown = np.array([[float(cell) for cell in row[1:3]] for row in rows])
    assert np.abs(shown - np.stack([in_words(before, WORDS), in_words(after, WORDS)], 1)).max() < 1e-4
    said = "With “wide”, L3H1 lets go of “animal” (68 % → 28 %), yet does not swing to “street” (5 % → 12 %)."
    expect(page.get_by_test_id("play-headline")).to_have_text(said)
    expect(page.get_by_test_id("play-figures")).to_contain_text("L5H11 holds on: 67 % → 56 %.")
    stage.evaluate("(canvas) => canvas.player.seek(0)")
    expect(page.get_by_test_id("play-headline")).to_have_text("With “tired”, head L3H1 links “it” to “animal”: 68 %.")

    # A chip is another word; C turns it once more; another word is typed; Escape leaves, and the row is still pinned.
    page.get_by_test_id("word-chips").get_by_text("hungry").click()
    expect(page.get_by_test_id("player")).to_have_attribute("aria-label", "tired ↔ hungry")
    expect(page).to_have_url(re.compile(f"swap={CHANGED}%3Ahungry(&|$)"))  # the address is written once nothing moves
    page.get_by_test_id("swap-own").fill("far away")
    page.get_by_test_id("swap-go").click()
    expect(page.get_by_test_id("player")).to_have_attribute("aria-label", "tired ↔ far away")
    page.get_by_test_id("play-headline").click()
    page.keyboard.press("c")
    expect(page.get_by_test_id("play-button")).to_have_attribute("aria-label", "Pause")
    page.keyboard.press("Escape")
    expect(page.locator(STAGE)).to_have_count(0)
    expect(page.get_by_test_id("pin-strip")).to_be_visible()
    page.wait_for_timeout(400)
    assert not {"play", "swap", "t"} & set(fragment(page)[1]) and fragment(page)[1]["pin"] == str(IT)


@pytest.mark.slow
def test_a_word_of_the_reader_that_cannot_be_is_told_and_the_maps_can_be_compared(played):
    page, _ = played("swap")
    page.get_by_test_id("swap-own").fill("x’s-y.")
    page.get_by_test_id("swap-go").click()
    expect(page.get_by_test_id("player").or_(page.get_by_test_id("swap")).first).to_be_visible()
    page.get_by_test_id("swap-compare").click()
    expect(page.get_by_test_id("rewrite")).to_contain_text("Change “tired”")
    page.get_by_test_id("rewrite-compare").locator("summary").click()
    expect(page.get_by_test_id("rewrite-mask")).to_be_visible()


@pytest.mark.slow
def test_chips_under_the_sentence_of_the_atlas_open_the_scene_over_the_head_that_links_most(new_page, studio):
    page = new_page()
    page.goto(f"{studio.address}#/atlas?{urlencode({'model': 'minilm', 'text': TIRED, 'from': IT, 'to': 2})}")
    page.get_by_test_id("word-chips").get_by_text("wide").click()
    expect(page.get_by_test_id("player")).to_have_attribute("data-scene", "swap")
    path, known = fragment(page)
    assert path == "head/L3H1" and known["swap"] == f"{CHANGED}:wide" and known["pin"] == str(IT)
    other = new_page(alone=True)
    other.goto(f"{studio.address}#/atlas?{urlencode({'model': 'minilm', 'text': 'A dog saw a bird.'})}")
    expect(other.get_by_test_id("play-pass")).to_be_visible()
    expect(other.get_by_test_id("word-chips")).to_have_count(0)


@pytest.mark.slow
def test_a_forward_pass_shows_what_moves_the_word_in_each_layer(played, minilm):
    page, stage = played("pass")
    recording = mh.record(minilm, TIRED)
    shares = stream_shares(minilm, recording.tokens, IT)
    rows = rows_of(page)
    assert [row[0] for row in rows] == [f"L{layer}" for layer in range(6)]
    for layer, row in enumerate(rows):
        own = np.array([shares[f"L{layer}H{head}"] for head in range(12)])
        look = recording.layers[layer].weights(int(own.argmax()), slice(IT, IT + 1))[0]
        assert float(row[1]) == pytest.approx(own.sum(), abs=1e-4) and row[3] == f"L{layer}H{own.argmax()}"
        assert float(row[4]) == pytest.approx(own.max(), abs=1e-4)
        assert float(row[6]) == pytest.approx(float(look.max()), abs=1e-4)
    state = stage.evaluate("(canvas) => [...canvas.player.scene.states.at(-1)]")
    np.testing.assert_allclose(state, shares.final, atol=1e-4)
    for layer, row in enumerate(rows):
        stage.evaluate("(canvas, t) => canvas.player.seek(t)", 1.2 + (8 / 6) * (layer + 0.5))
        said = page.get_by_test_id("play-headline").inner_text()
        kind = f"{row[3]} moves “it” most" if float(row[4]) >= 0.005 else "(no head alone|its feed-forward) moves “it”"
        assert re.match(f"Layer {layer}: {kind}", said) or f"Layer {layer} hardly moves “it”" in said, said
    page.keyboard.press("ArrowUp")
    expect(page.get_by_test_id("play-table")).to_contain_text("What moves “because”")


@pytest.mark.slow
def test_heads_slide_onto_one_map_as_their_weights_are_mixed(new_page, studio, eager, minilm):
    page = new_page(reduced_motion="reduce")
    page.goto(f"{studio.address}#/experiment?{urlencode({'model': 'minilm', 'text': TIRED})}")
    page.get_by_test_id("scene-same").click()
    stage = page.locator(STAGE)
    stage.scroll_into_view_if_needed()
    expect(page.get_by_test_id("alike-share")).to_have_text("100 %")  # it plays once: without motion, at its end
    page.get_by_test_id("alike-layer").select_option("L0")
    expect(page.locator("[data-testid=alike][data-layer=L0][data-steps='11']")).to_be_attached()  # three come first
    own = eager(TIRED)[0]
    for percent in (0, 30, 100):
        page.get_by_test_id("alike-slider").fill(str(percent))
        expect(page.get_by_test_id("alike-share")).to_have_text(f"{percent} %")
        expect(page.get_by_test_id("alike")).to_have_attribute("data-layer", "L0")
        shown = stage.evaluate("(canvas, tenth) => [...canvas.player.scene.maps[tenth]]", percent // 10)
        want = (1 - percent / 100) * own + percent / 100 * own[:1]
        assert np.abs(np.array(shown).reshape(want.shape) - want).max() < 1e-4
        begin = "Each head has its own map." if not percent else rf"{percent}\s% alike: "
        expect(page.get_by_test_id("play-headline")).to_have_text(re.compile(f"^{begin}"))
        plan = mh.Plan(mh.Copy("L*", "L*H0", share=percent / 100)) if percent else mh.Plan([])
        with mh.applied(minilm, plan):
            diversity = head_diversity(minilm, TIRED).value
        shown = float(page.get_by_test_id("diversity-dial").get_attribute("data-value"))
        assert shown == pytest.approx(diversity, abs=1e-6), percent
    page.wait_for_timeout(400)  # the address settles
    assert fragment(page)[1]["play"] == "alike"
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for moment in stage.evaluate(STILLS):
            found = stage.evaluate(TEXTS, moment)
            assert found["count"] > 10 and not found["bad"], (width, moment, found["bad"][:5])


@pytest.mark.slow
def test_a_run_while_steps_are_computed_does_not_say_that_they_were_stopped(new_page, studio):
    page, held = new_page(), []
    page.route("**/api/experiments/blend", lambda route: held.append(route))
    page.goto(f"{studio.address}#/experiment?{urlencode({'model': 'minilm', 'text': TIRED})}")
    page.get_by_test_id("scene-same").click()
    expect(page.get_by_test_id("alike")).to_be_attached()
    with page.expect_response(re.compile("/api/experiments$")):
        page.get_by_test_id("experiment-run").click()
    expect(page.get_by_test_id("experiment-run")).to_be_visible()
    expect(page.get_by_test_id("experiment-verdict")).to_be_visible()
    page.wait_for_timeout(300)
    expect(page.get_by_test_id("alike")).not_to_contain_text("Stopped")
    for route in held:
        route.continue_()
    expect(page.locator(STAGE)).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_no_text_of_a_scene_touches_another_or_is_cut_off_in_six_sizes(name, played):
    page, stage = played(name)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(100)
        for moment in stage.evaluate(STILLS):
            found = stage.evaluate(TEXTS, moment)
            assert found["count"] > 5 and not found["bad"], (width, moment, found["bad"][:5])
        assert_nothing_past_the_edge(page, f"{name} {width}")
    costs = stage.evaluate("(canvas) => canvas.player.cost(200)")
    assert sorted(costs)[100] < 8, "milliseconds of script a frame, at the median"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_readers_without_motion_step_from_still_to_still(name, played):
    page, stage = played(name, reduced_motion="reduce")
    stills = stage.evaluate(STILLS)
    stage.evaluate("(canvas) => canvas.player.seek(0)")
    for moment in stills:
        page.keyboard.press("Space")
        assert stage.evaluate("(canvas) => canvas.player.t") == pytest.approx(moment)
    expect(page.get_by_test_id("play-speed")).to_have_count(0)
