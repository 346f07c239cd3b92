"""Asking a word in the Atlas, on the real page: the order and the numbers are those of the model's own eager maps.

Then what stands around it: sinks left out, the share card, the game, the phone, and the frame of the page.
"""

import json
import re
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import manyheads as mh
from manyheads.circuits.says import head_output
from manyheads.corpora import OWN_TEXT
from manyheads.models import load
from manyheads.studio import Workspace, address_of, write_report
from tests.models.tiny import tiny_llama, tiny_tokenizer
from tests.studio.driving import assert_nothing_past_the_edge, fragment, show
from tests.studio.serving import TEXT, studio_of

WORDS = [[0], [1], [2], [3, 4, 5], *([token] for token in range(6, 16))]  # of OWN_TEXT: "didn ' t" is one
NAMES = ["[CLS]", *OWN_TEXT.removesuffix(".").split(), ".", "[SEP]"]
ROUNDING = 2e-4


def word_map(maps):
    """Maps of pieces, layer, head, query, key, as maps of words: columns summed, then rows averaged."""
    summed = np.stack([maps[..., word].sum(-1) for word in WORDS], -1)
    return np.stack([summed[..., word, :].mean(-2) for word in WORDS], -2).reshape(72, len(WORDS), len(WORDS))


def word(page, text):
    return page.get_by_test_id("sentence").get_by_text(text, exact=True)


@pytest.fixture(scope="module")
def first_visit(browser, studio):
    """A page of a first visit, for all tests of this module."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(studio.address)
    expect(page.locator("[data-head=L5H11]")).to_be_visible()
    yield page
    context.close()
    assert not complaints, complaints


@pytest.fixture
def fresh(first_visit, studio):
    """That page, in the Atlas again after the test, whether it passed or not: a failure is not a failure of the
    next."""
    yield first_visit
    first_visit.unroute_all()
    first_visit.goto(f"{studio.address}/#/atlas")


# ---------------------------------------------------------------------------------------------------------- ask a word


def test_three_clicks_lead_from_a_fresh_page_to_the_head_that_links_two_words(fresh, studio, eager):
    maps = word_map(eager(OWN_TEXT))
    query, key = NAMES.index("it"), NAMES.index("animal")
    fits = "document.querySelector('[data-testid=atlas-grid]').getBoundingClientRect().bottom <= innerHeight"
    assert fresh.evaluate(fits), "all heads without scrolling"
    word(fresh, "it").click()
    expect(fresh.get_by_test_id("asked")).to_be_visible()
    word(fresh, "animal").click()
    expect(fresh.get_by_test_id("claim")).to_have_text("“it” looks at “animal” most in")
    assert fresh.evaluate(fits), "nor once they are in another order"
    heads = fresh.locator("[data-testid=atlas-grid] [data-head]")
    expect(heads.first).to_have_attribute("data-head", "L3H1")
    order = [cell.get_attribute("data-head") for cell in heads.all()]
    places = [12 * int(head[1]) + int(head[3:]) for head in order]
    weights = maps[places, query, key]
    assert sorted(places) == list(range(72)) and (np.diff(weights) < ROUNDING).all()
    for chip, weight in zip(fresh.get_by_test_id("best-head").all(), weights, strict=False):
        assert abs(float(re.findall(r"(\d+) %", chip.inner_text())[0]) - 100 * weight) < 0.51
    assert fresh.get_by_test_id("best-head").first.inner_text() == "L3H1 68 %"
    expect(fresh.get_by_test_id("room-atlas")).to_contain_text("evenly spread: 6.3 %. One sentence, not a role.")
    heads.first.click()
    expect(fresh.get_by_test_id("head-name")).to_have_text("L3H1")
    expect(fresh.get_by_test_id("pinned-row")).to_have_attribute("data-row", "10")
    assert fresh.evaluate("document.activeElement.dataset.testid") == "map-frame", (
        "arrow keys move over the map at once"
    )
    # The address holds the question: back, a reload, another browser.
    fresh.go_back()
    expect(heads.first).to_have_attribute("data-head", "L3H1")
    named = {"model": "minilm", "text": OWN_TEXT}  # so that a link says what it is about wherever it is opened
    assert fragment(fresh)[1] == {**named, "from": "10", "to": "2", "sort": "word"}
    fresh.reload()
    expect(fresh.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    fresh.keyboard.press("Escape")
    expect(fresh.get_by_test_id("asked")).to_be_visible()
    expect(heads.first).to_have_attribute("data-head", "L0H0")
    fresh.keyboard.press("Escape")
    expect(fresh.get_by_test_id("asked")).to_have_count(0)
    assert fragment(fresh)[0] == "atlas"


def test_a_words_row_in_every_head_is_the_merged_row_of_the_models_own_map(studio, eager):
    maps, rec = word_map(eager(OWN_TEXT)), studio.open(OWN_TEXT)
    assert [entry["text"] for entry in rec["words"]] == NAMES
    for token, index in ((10, 8), (4, 3)):  # "it", and the middle piece of "didn't"
        header, arrays = studio.get(f"/api/recordings/{rec['id']}/words/{token}").arrays()
        np.testing.assert_allclose(arrays["weights"], maps[:, index], atol=1e-5)
        np.testing.assert_allclose(arrays["even"], [[len(word) / 16 for word in WORDS]], atol=1e-6)
        assert (header["begin"], header["end"], header["keys"]) == (WORDS[index][0], WORDS[index][-1] + 1, [0, 14])
    _, arrays = studio.get(f"/api/recordings/{rec['id']}/words/10?keys=2:5").arrays()
    np.testing.assert_allclose(arrays["weights"], maps[:, 8, 2:5], atol=1e-5)
    refused = {
        path: studio.get(f"/api/recordings/{rec['id']}/words/{path}") for path in ("16", "10?keys=5:2", "10?keys=x")
    }
    assert [said.status for said in refused.values()] == [404, 413, 400]
    assert "16, counted from 0" in refused["16"].json["words"]


@pytest.mark.slow
def test_a_causal_model_says_that_no_head_looks_ahead_and_what_chance_is(page, studio):
    text = "the cat sat on the mat"
    page.get_by_test_id("model-choice").select_option("tiny-llama")
    show(page, text)
    rec = studio.open(text, "tiny-llama")
    names = [entry["text"] for entry in rec["words"]]
    sat, mat = names.index("sat"), names.index("mat")
    _, arrays = studio.get(f"/api/recordings/{rec['id']}/words/{rec['words'][sat]['begin']}").arrays()
    assert np.isnan(arrays["weights"][:, sat + 1 :]).all() and np.isfinite(arrays["weights"][:, : sat + 1]).all()
    np.testing.assert_allclose(arrays["even"][0].sum(), 1, atol=1e-5)
    word(page, "sat").click()
    word(page, "mat").click()
    expect(page.get_by_test_id("refusal")).to_have_text(
        "“mat” comes after “sat”, and this model looks back only: no head can see it."
    )
    page.get_by_test_id("clear").click()
    word(page, "mat").click()
    word(page, "sat").click()
    assert mat > sat
    expect(page.get_by_test_id("best-head")).to_have_count(3)


@pytest.mark.slow
def test_the_first_visit_offers_the_question_and_the_next_one_does_not(new_page, studio):
    page = new_page()
    page.goto(studio.address)
    page.get_by_test_id("offer").click()
    expect(page.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    expect(page.get_by_test_id("text-box")).to_have_value(OWN_TEXT)
    expect(page.get_by_test_id("sort-by")).to_have_value("word")
    page.get_by_test_id("clear").click()
    expect(page.get_by_test_id("sort-by")).to_have_value("layer")
    page.reload()
    expect(page.get_by_test_id("sentence")).to_be_visible()
    expect(page.get_by_test_id("offer")).to_have_count(0)


@pytest.mark.slow
def test_nobody_who_has_looked_at_a_text_of_their_own_is_offered_the_examples_question(new_page, studio):
    page = new_page()
    page.goto(studio.address)
    expect(page.get_by_test_id("offer")).to_be_visible()
    for text, noun in ((TEXT, "dog"), (OWN_TEXT, "animal")):
        show(page, text)
        expect(word(page, noun)).to_be_visible()
        expect(page.get_by_test_id("offer")).to_have_count(0)


@pytest.mark.slow
def test_a_saved_page_answers_where_it_holds_the_weights_and_offers_nothing_where_not(
    minilm, new_page, eager, tmp_path
):
    maps, text = word_map(eager(OWN_TEXT)), " ".join([OWN_TEXT] * 10)
    for name, words in (("short", OWN_TEXT), ("long", text)):
        write_report(tmp_path / f"{name}.html", mh.record(minilm, words))
    page = new_page(offline=True)
    page.goto(f"{(tmp_path / 'short.html').as_uri()}#/atlas?from=10&to=2&sort=word")
    expect(page.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    word(page, "it").click()
    word(page, "didn't").click()
    word(page, "street").click()
    best = maps[:, 3, NAMES.index("street")].argmax()
    expect(page.get_by_test_id("best-head").first).to_contain_text(f"L{best // 12}H{best % 12} ")
    weight = float(re.findall(r"(\d+) %", page.get_by_test_id("best-head").first.inner_text())[0])
    assert abs(weight - 100 * maps[best, 3, NAMES.index("street")]) < 0.51
    page.goto((tmp_path / "long.html").as_uri())
    expect(page.locator("[data-head=L5H11]")).to_be_visible()
    expect(page.get_by_test_id("sentence")).to_have_count(0)


# ---- sinks, the card, the game


def test_sinks_are_left_out_with_their_share_said_and_nothing_is_scaled_up(fresh, eager):
    fresh.goto(fresh.url.split("#")[0] + "#/atlas?from=10&to=2&sort=word")
    expect(fresh.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    picture = "document.querySelector('[data-testid=atlas-grid] canvas').toDataURL()"
    before = fresh.evaluate(picture)
    fresh.get_by_test_id("sinks-out").check()
    shares = eager(OWN_TEXT)[..., 0].mean(-1)  # [CLS] is the sink of this text; every row weighs the same
    said = fresh.get_by_test_id("sinks-say").inner_text()
    assert "left out: [CLS]." in said and "not scaled up" in said
    typical, low, high = (int(number) for number in re.findall(r"(\d+) %", said))
    assert abs(low - 100 * shares.min()) < 0.51 and abs(high - 100 * shares.max()) < 0.51
    assert min(abs(typical - 100 * np.sort(shares.ravel())[35:37])) < 0.51
    expect(fresh.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    assert fresh.evaluate(picture) != before
    fresh.wait_for_function("() => location.hash.includes('sinks=out')")
    fresh.get_by_test_id("sinks-out").uncheck()


def test_the_share_card_is_a_picture_with_the_librarys_sentence_the_claim_its_chance_and_the_address(
    fresh, minilm, tmp_path
):
    fresh.goto(fresh.url.split("#")[0] + "#/atlas?from=10&to=2&sort=word")
    fresh.get_by_test_id("share").click()
    card = fresh.get_by_test_id("share-card").get_by_role("img")
    said = head_output(mh.record(minilm, OWN_TEXT, keep=("q", "k", "v", "lse")), "L3H1", "it").sentence
    said = re.sub('"([^"]*)"', "“\\1”", said)
    expect(card).to_have_attribute(
        "aria-label", re.compile(f"^{re.escape(said)} L3H1 looks from “it” to “animal”: 68 %. ")
    )
    assert "Spread evenly, it is 6.3 %." in card.get_attribute("aria-label")
    with fresh.expect_download() as download:
        fresh.get_by_test_id("share-save").click()
    assert download.value.suggested_filename == "minilm-L3H1-it.png"
    download.value.save_as(tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert pixels.shape == (630, 1200, 3)
    accent = np.abs(pixels - [0xA8, 0x40, 0x1F]).max(-1) < 4
    arc = accent[200:390]  # above the words: from "it" to "animal", which stand apart
    assert arc.sum() > 2_000 and np.ptp(np.nonzero(arc)[1]) > 300
    fresh.keyboard.press("Escape")


def test_shift_and_a_click_gathers_heads_whose_lines_are_drawn_together(fresh):
    fresh.goto(fresh.url.split("#")[0] + "#/atlas?from=10")
    for head in ("L4H2", "L3H1", "L4H2", "L5H11"):  # a second time lets it go
        fresh.get_by_test_id(f"cell-{head}").click(modifiers=["Shift"])
    fresh.get_by_test_id("cell-L1H8").press("Shift+Enter")
    fresh.get_by_test_id("draw-lines").click()
    expect(fresh.get_by_test_id("line-heads")).to_contain_text(re.compile("L3H1.*L5H11.*L1H8"))
    lines = fresh.get_by_test_id("line-view").locator("path[data-head]")
    for head in ("L3H1", "L5H11", "L1H8"):  # a head's lines come with its map, one after another
        lines.and_(fresh.locator(f"[data-head={head}]")).first.wait_for()
    assert set(lines.evaluate_all("paths => paths.map((path) => path.dataset.head)")) == {"L3H1", "L5H11", "L1H8"}
    fresh.wait_for_function("() => location.hash.includes('with=')")
    path, known = fragment(fresh)
    assert path == "head/L3H1" and known["with"] == "L5H11,L1H8" and known["pin"] == "10"


MARY = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.slow  # a studio of its own
def test_an_address_without_a_text_opens_the_models_own_and_its_question_is_offered_there_alone(new_page, minilm):
    workspace = Workspace.of(model="smollm2")  # it begins with that one's text
    workspace.loaded.put("minilm", minilm)
    with studio_of(workspace) as own:
        assert own.get("/api/workspace").json["default_text"] == MARY
        page = new_page(alone=True)
        page.goto(f"{own.address}#/atlas?model=minilm")
        page.get_by_test_id("offer").click()
        expect(page.get_by_test_id("claim")).to_have_text("“it” looks at “animal” most in")
        page.wait_for_timeout(400)
        assert fragment(page)[1]["text"] == OWN_TEXT

        # The question of a model is about words: it is not asked of a text without them.
        other = new_page(alone=True)
        other.goto(f"{own.address}#/atlas?{urlencode({'model': 'minilm', 'text': MARY})}")
        expect(other.get_by_test_id("sentence")).to_contain_text("Mary")
        expect(other.get_by_test_id("offer")).to_have_count(0)

        # A changed word of an address is of the model's own text, or it is left out with a word about it.
        other.goto(f"{own.address}#/head/L3H1?model=minilm&pin=10&play=swap&swap=13:wide&t=6")
        expect(other.get_by_test_id("play-headline")).to_contain_text("With “wide”, L3H1 lets go of “animal”")
        expect(other.get_by_test_id("show-as").locator("input:checked")).to_have_count(0)
        other.wait_for_timeout(400)
        assert fragment(other)[1]["text"] == OWN_TEXT
        other.goto(f"{own.address}#/head/L3H1?model=minilm&pin=10&play=swap&swap=6:run&t=6")
        expect(other.get_by_test_id("unread")).to_contain_text("swap=6:run in the address comes without its text")
        expect(other.get_by_test_id("play-stage")).to_have_count(0)

        # The room of trainings waits, and says so; its figures say what they are shares of.
        held = []
        other.route("**/api/lessons/birth/cells/birth", lambda route: held.append(route))
        other.goto(f"{own.address}#/training?model=minilm")
        waiting = other.get_by_test_id("room-training").get_by_test_id("job-progress")
        expect(waiting).to_contain_text("Opening the stored training")
        held[0].continue_()
        expect(other.get_by_test_id("play-figures")).to_contain_text(
            re.compile(r"^L1H1 .*\s%\son the token after an earlier copy")
        )


@pytest.mark.slow
def test_guess_the_head_by_keyboard_scores_what_it_called_right(fresh, page_labels):
    fresh.get_by_test_id("guess").click()
    names, right = {str(role.head): role.name for role in page_labels.roles}, 0
    for number in range(10):
        expect(fresh.get_by_test_id("guess-game")).to_contain_text(f"{number + 1} of 10")
        fresh.keyboard.press("1")
        verdict = fresh.get_by_test_id("guess-verdict").inner_text()
        head = re.findall(r"(L\d+H\d+) has the role", verdict)[0]
        assert f"has the role {names[head]}." in verdict
        right += verdict.startswith("Right.")
        fresh.keyboard.press("Enter")
    expect(fresh.get_by_test_id("guess-score")).to_have_text(f"{right} of 10 right")
    link = fresh.get_by_test_id("guess-game").get_by_role("link").first
    head = link.inner_text()
    link.click()
    expect(fresh.get_by_test_id("head-name")).to_have_text(head)
    fresh.go_back()
    expect(fresh.get_by_test_id("guess-game")).to_be_visible()
    fresh.keyboard.press("Escape")
    expect(fresh.get_by_test_id("guess-game")).to_have_count(0)


# ---- the frame, the phone


def test_the_focus_goes_with_the_reader_from_a_square_to_its_map_and_back(fresh):
    # A square that is drawn anew loses the focus, and a key then goes nowhere: it is pressed once the focus has stayed.
    # It is pressed once: on a slow page a second one may come when the square has gone.
    focus_stays = """() => {
      const square = document.querySelector("[data-testid=atlas-grid] [data-head=L2H9]");
      return document.activeElement === square || (square.focus(), false);
    }"""
    fresh.wait_for_function(focus_stays, polling=250)
    fresh.keyboard.press("Enter")
    expect(fresh.get_by_test_id("head-name")).to_have_text("L2H9")
    fresh.wait_for_function("() => document.activeElement.dataset.testid === 'map-frame'")
    fresh.keyboard.press("1")
    fresh.wait_for_function("() => document.activeElement.dataset.head === 'L2H9'")


def test_space_plays_the_scene_of_the_texts_most_telling_link(fresh):
    name = fresh.get_by_test_id("play-asked")
    expect(name).to_be_visible()
    head = name.inner_text().split()[-1]
    # A square that was visited has the focus still, and Space would press it.
    fresh.evaluate("document.activeElement.blur()")
    fresh.keyboard.press("Space")
    fresh.wait_for_function("() => location.hash.includes('play=word')")
    expect(fresh.get_by_test_id("head-name")).to_have_text(head)


def test_an_empty_text_is_said_beside_the_room_that_stays(fresh):
    fresh.get_by_test_id("text-box").fill("  ")
    fresh.get_by_test_id("open-button").click()
    expect(fresh.get_by_test_id("empty-text")).to_contain_text("empty")
    expect(fresh.locator("[data-head=L5H11]")).to_be_visible()
    fresh.get_by_test_id("text-box").fill("x" * 10)
    expect(fresh.get_by_test_id("empty-text")).to_have_count(0)
    # A text that the server refuses leaves the room too: nothing is lost by it.
    fresh.route(
        "**/api/recordings", lambda route: route.fulfill(status=413, json={"kind": "TooLarge", "words": "too long"})
    )
    address = fresh.url
    fresh.get_by_test_id("open-button").click()
    expect(fresh.get_by_test_id("trouble")).to_have_text("too long")
    expect(fresh.locator("[data-head=L5H11]")).to_be_visible()
    # The room's own name may come to the address by then, and nothing else: it is of what is shown.
    assert fresh.url.removesuffix("#/atlas") == address.removesuffix("#/atlas")
    fresh.unroute_all()


def test_progress_is_shown_in_the_top_line_and_covers_no_headline(fresh):
    running = {
        "id": "ab", "kind": "recording", "state": "running", "progress": {"words": "reading", "done": 1, "total": 2},
    }  # fmt: skip
    answer = json.dumps({**running, "result": None, "problem": None})
    for path in ("**/api/recordings", "**/api/jobs/**"):
        fresh.route(path, lambda route: route.fulfill(status=202, content_type="application/json", body=answer))
    fresh.get_by_test_id("text-box").fill("another text")
    fresh.get_by_test_id("open-button").click()
    expect(fresh.get_by_test_id("job-progress")).to_be_visible()
    box = fresh.get_by_test_id("job-progress").bounding_box()
    top = fresh.locator("header.top").bounding_box()
    assert box["y"] >= top["y"] and box["y"] + box["height"] <= top["y"] + top["height"]
    fresh.get_by_test_id("job-cancel").click()
    expect(fresh.get_by_test_id("job-progress")).to_have_count(0)
    fresh.unroute_all()


@pytest.mark.slow
def test_an_address_that_cannot_be_read_is_said(fresh):
    for address, said in (
        ("nowhere", "There is no room “nowhere”: this is the Atlas."),
        ("atlas?part=x", "part=x in the address is not a number from 0"),
        ("atlas?colour=beauty", "There is no statistic “beauty” to colour by."),
        ("atlas?from=99", "This text has no token 99."),
        ("atlas?z=AAAA", "The address was cut off"),
        ("head/L9H99", "There is no head L9H99 here"),
        ("head/L3H1?pin=999", "pin=999 in the address is beyond this text of 16 tokens"),
        ("compare/L99H1", "There is no head “L99H1” on side A: another is shown."),
        ("learn/nope", "There is no lesson 'nope'"),
        ("experiment?plan=zzz", "plan=zzz in the address is not a plan"),
        ("size?size=zzz", "size=zzz in the address is not a size"),
        ("size?model=zzz", "there is no model 'zzz' in this workspace"),
    ):
        # The page writes its own address a little later, but not once it has heard of another: so it hears at once.
        fresh.evaluate("to => { location.hash = `#/${to}`; dispatchEvent(new Event('hashchange')); }", address)
        expect(fresh.get_by_test_id("studio")).to_contain_text(said, timeout=20_000)


@pytest.mark.slow
def test_the_address_of_a_long_text_is_short_and_opens_in_another_browser(page, new_page):
    text = " ".join(f"{TEXT} And {number} more words, so that it is long." for number in range(11))
    show(page, text)
    page.wait_for_function("() => location.hash.includes('z=')")
    assert len(text) > 1_400 and len(page.url) < 700
    other = new_page()
    other.goto(page.url)
    expect(other.get_by_test_id("text-box")).to_have_value(text)
    # The command opens its own long texts by the same address.
    other.goto(page.url.split("#")[0] + address_of("minilm", text[:900]))
    other.reload()
    expect(other.get_by_test_id("text-box")).to_have_value(text[:900])


@pytest.mark.slow
def test_on_a_phone_words_and_squares_are_met_by_a_finger_and_the_drawer_is_a_sheet(new_page, studio):
    page = new_page(has_touch=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(studio.address)
    expect(page.locator("[data-head=L5H11]")).to_be_attached()
    word(page, "it").tap()
    word(page, "animal").tap()
    expect(page.get_by_test_id("best-head").first).to_have_text("L3H1 68 %")
    small = page.evaluate(
        """() => [...document.querySelectorAll("main button, header button, header select, header textarea")]
          .map((element) => [element, element.getBoundingClientRect()])
          .filter(([, box]) => box.width && Math.min(box.width, box.height) < 43.5)
          .map(([element, box]) => [element.textContent.slice(0, 20), element.className, box.width, box.height])"""
    )
    assert not small, small
    assert_nothing_past_the_edge(page, "the atlas of a phone")
    page.locator("[data-head=L3H1]").tap()
    expect(page.get_by_test_id("pinned-row")).to_have_attribute("data-row", "10")
    handle = page.get_by_test_id("drawer-handle")
    assert handle.bounding_box()["height"] >= 43.5 and handle.bounding_box()["width"] > 380
    handle.tap()
    card = page.get_by_test_id("head-card").bounding_box()
    assert card["width"] > 340 and card["y"] > 844 * 0.2, "a sheet that rises from below"
    assert_nothing_past_the_edge(page, "the sheet")


# ---------------------------------------------------------------------------------------------------------------------
# A deep model, as many are: hundreds of heads, several to a key/value head.


@pytest.fixture(scope="module")
def deep():
    """A studio with a tiny Llama of 30 layers x 9 heads in 3 groups, which is the first of its models."""
    model = tiny_llama(3, num_hidden_layers=30, num_attention_heads=9, hidden_size=72)
    workspace = Workspace.of()
    workspace.add_model(load(model, tokenizer=tiny_tokenizer(), name="deep"))
    with studio_of(workspace) as studio:
        yield studio


IN_VIEW = """() => [...document.querySelectorAll("[data-testid=atlas-grid] [data-head]")].map((cell) => {
  const { left, top, right, bottom } = cell.getBoundingClientRect();
  return [cell.dataset.head, left, top, right, bottom];
})"""


@pytest.mark.slow
def test_all_heads_of_a_deep_model_are_on_one_screen_and_groups_stand_apart(new_page, deep):
    page = new_page()
    page.goto(f"{deep.address}#/atlas?{urlencode({'model': 'deep', 'text': 'the cat sat on the mat'})}")
    expect(page.locator("[data-testid=atlas-grid][data-drawn=true]")).to_be_visible()
    places = {head: box for head, *box in page.evaluate(IN_VIEW)}
    assert list(places) == [f"L{layer}H{head}" for layer in range(30) for head in range(9)]
    assert all(
        left >= 0 and top >= 0 and right <= 1280 and bottom <= 720 for left, top, right, bottom in places.values()
    )
    assert min(right - left for left, _, right, _ in places.values()) >= 20, "a map can be seen in it"
    gaps = [places[f"L0H{head + 1}"][0] - places[f"L0H{head}"][2] for head in range(8)]
    assert min(gaps[2], gaps[5]) > max(gaps[:2] + gaps[3:5] + gaps[6:]) > 0
    expect(page.get_by_test_id("sharing")).to_have_text("3 query heads share one key/value head")
    assert_nothing_past_the_edge(page)
    # Down from a block's last layer comes the next one, on top of the block beside it.
    page.locator("[data-head=L14H5]").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "L15H5"
    # Another model is one click away, with a text of the kind that it reads.
    expect(page.get_by_test_id("other-model")).to_have_text("or look at minilm")


@pytest.mark.slow
def test_a_phone_shows_all_heads_at_once_and_leads_to_those_that_a_finger_meets(new_page, deep):
    page = new_page()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{deep.address}#/atlas?{urlencode({'model': 'deep', 'text': 'the cat sat on the mat'})}")
    expect(page.locator("[data-testid=atlas-grid][data-drawn=true]")).to_be_visible()
    overview = page.get_by_test_id("overview").bounding_box()
    assert overview["x"] >= 0 and overview["x"] + overview["width"] <= 390 and overview["y"] + overview["height"] < 700
    assert all(right - left >= 44 and bottom - top >= 44 for _, left, top, right, bottom in page.evaluate(IN_VIEW))
    # The last layer's last head is far below: a touch of the overview's corner brings it.
    assert not shown(page, "L29H8")
    page.mouse.click(overview["x"] + overview["width"] - 4, overview["y"] + overview["height"] - 12)
    page.wait_for_timeout(300)
    assert shown(page, "L29H8")
    page.locator("[data-head=L29H8]").click()
    expect(page.get_by_test_id("head-name")).to_have_text("L29H8")
    page.get_by_test_id("rail-atlas").click()
    page.get_by_role("combobox", name="Model").select_option("minilm")
    expect(page.get_by_test_id("room-atlas").locator("h1")).to_have_text("minilm")
    expect(page.get_by_test_id("overview")).to_have_count(0)  # 72 heads: they are scrolled to
    assert_nothing_past_the_edge(page)


def shown(page, head):
    """Whether a head's square is within the part of the grid that is in view."""
    place = page.locator(f"[data-head={head}]").bounding_box()
    return place["y"] > 300 and place["y"] + place["height"] < 844 - 90
