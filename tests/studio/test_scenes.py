"""Break it, as a scene: on the real server, a switch is the library's plan, and its dial the library's number."""

import json

import numpy as np
import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads.roles import head_diversity
from tests.studio.driving import assert_nothing_past_the_edge, fragment

TEXT = "The animal didn't cross the street because it was too tired."
SAME = {"step": "copy", "heads": "L*", "source": "L*H0"}
CELLS = """(canvas) => {
  const context = canvas.getContext("2d"), [columns, rows] = [12, 6];
  const pitch = [canvas.width / columns, canvas.height / rows];
  const [width, height] = pitch.map(Math.floor);
  const at = (place, axis) => Math.round(place * pitch[axis]);
  const cell = (r, c) => context.getImageData(at(c, 0), at(r, 1), width, height).data.join();
  return Array.from({ length: rows }, (_, r) => new Set(Array.from({ length: columns }, (_, c) => cell(r, c))).size);
}"""
"""How many different pictures each row of the stage holds."""
NESTED = """() => [...document.querySelectorAll("button, a, [role=switch], summary")].filter((outer) =>
  outer.querySelector("button, a, input, select, textarea, [role=switch]")).map((outer) => outer.outerHTML)"""


@pytest.fixture
def scenes(new_page, studio):
    def opened(**options):
        page = new_page(**options)
        page.goto(f"{studio.address}#/experiment?model=minilm&text={TEXT}")
        expect(page.get_by_test_id("experiment-maps")).to_be_visible()
        return page

    return opened


def diversity(minilm, plan):
    with mh.applied(minilm, plan):
        return head_diversity(minilm, TEXT).value


def dial(page):
    meter = page.get_by_test_id("diversity-dial")
    expect(meter).to_be_visible()
    return meter


def listed(page, side):
    return page.get_by_test_id(f"experiment-{side}").locator("li").all_inner_texts()


@pytest.mark.turns(5)
def test_all_heads_with_the_same_weights_by_one_switch(scenes, minilm):
    plan = mh.Plan(mh.Copy("L*", source="L*H0"))
    before, after = (diversity(minilm, some) for some in (mh.Plan([]), plan))
    page = scenes()
    maps, switch = page.get_by_test_id("experiment-maps"), page.get_by_test_id("scene-same")
    expect(maps).to_have_attribute("data-share", "0")
    assert maps.evaluate(CELLS) == [12] * 6, "each head has a map of its own"
    switch.press("Space")
    expect(switch).to_have_attribute("aria-checked", "true")
    meter = dial(page)
    assert float(meter.get_attribute("data-value")) == pytest.approx(after, abs=1e-9)
    assert float(meter.get_attribute("data-before")) == pytest.approx(before, abs=1e-9) and before > 0.2
    expect(meter).to_have_attribute("aria-valuetext", "0")
    expect(maps).to_have_attribute("data-share", "1")
    assert maps.evaluate(CELLS) == [1] * 6, "six rows of one map, twelve times"
    near, now = listed(page, "before"), listed(page, "after")
    assert len(near) == len(now) == 5 and near != now
    expect(page.get_by_test_id("experiment-verdict")).to_contain_text("of the 5 nearest sentences")
    expect(page.get_by_test_id("experiment-stage")).to_contain_text("No verdict: there is no control: the plan is on")
    trained = page.get_by_test_id("experiment-trained")
    expect(trained).to_contain_text("right at 4% of places, not 93%. Their diversity is 0, not 0.725.")
    page.get_by_test_id("experiment-side").get_by_text("before").click()
    expect(maps).to_have_attribute("data-share", "0")
    assert maps.evaluate(CELLS) == [12] * 6 and float(meter.get_attribute("data-value")) == pytest.approx(before)

    # The address restores the scene.
    known = fragment(page)[1]
    assert json.loads(known["plan"]) == [SAME] and known["ran"] == "1"
    page.reload()
    expect(switch).to_have_attribute("aria-checked", "true")
    assert float(dial(page).get_attribute("data-value")) == pytest.approx(after, abs=1e-9)
    assert listed(page, "after") == now

    # From one scene to the next, and off again.
    page.get_by_test_id("scene-positions").click()
    expect(switch).to_have_attribute("aria-checked", "false")
    expect(page.get_by_test_id("experiment-trained")).to_contain_text("No net was trained here without positions.")
    without = diversity(minilm, mh.Plan(mh.SkipPositions()))
    assert float(dial(page).get_attribute("data-value")) == pytest.approx(without, abs=1e-6) and without > 0.1
    page.get_by_test_id("scene-positions").click()
    expect(page.get_by_test_id("experiment-verdict")).to_have_count(0)
    expect(page.get_by_test_id("experiment-stage").locator("h2")).to_have_text("72 heads, each with its own map")


@pytest.mark.turns(5)
def test_a_verdict_comes_first_and_a_phones_finger_hits_every_switch(scenes, minilm):
    page = scenes(reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_test_id("experiment-head-L3H7").click()
    page.get_by_test_id("experiment-run").click()
    known = mh.interventions.verdict(mh.effect(minilm, mh.Ablate("L3H7"), TEXT))
    expect(page.get_by_test_id("experiment-verdict")).to_have_text(known.words)
    first, strip, number = (
        page.get_by_test_id(name).bounding_box()["y"]
        for name in ("experiment-verdict", "experiment-control-chart", "experiment-change")
    )
    assert first < strip < number
    boxes = [page.get_by_test_id(f"scene-{name}").bounding_box() for name in ("same", "unmixed", "one", "half")]
    boxes += [page.get_by_test_id("experiment-head-L0H0").bounding_box()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 44
    assert page.evaluate(NESTED) == [] and page.locator("h1").count() <= 1
    assert_nothing_past_the_edge(page, "experiment")


@pytest.mark.turns(4)
def test_a_recordings_thumbnails_are_of_the_weights_that_heads_use(studio):
    plain = studio.open(TEXT)
    edited = studio.open(TEXT, plan=[SAME, {"step": "average", "heads": "L5H1-3"}])
    (header, old), (_, new) = (
        studio.get(f"/api/recordings/{rec['id']}/thumbnails").arrays() for rec in (plain, edited)
    )
    peaks = new["peaks"].reshape(6, 12)
    maps = {
        name: arrays["maps"].reshape(6, 12, *arrays["maps"].shape[1:]) for name, arrays in (("old", old), ("new", new))
    }
    assert header["heads"][12] == "L1H0"
    assert np.array_equal(maps["new"][0], np.broadcast_to(maps["old"][0, :1], maps["new"][0].shape))
    assert all(np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)) for rows in maps["new"][:5])
    assert np.allclose(peaks[5, 1:4], peaks[5, 1]) and not np.array_equal(maps["new"][5, 1], maps["new"][5, 0])
