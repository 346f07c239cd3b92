"""How tests drive the studio's page: open a text or a head, wait until the map rests, read its address and edges."""

import re
from urllib.parse import parse_qs

from playwright.sync_api import expect

PAST = """() => [...document.querySelectorAll(".manyheads *")].filter((each) => {
  const { left, right, width, height } = each.getBoundingClientRect();
  const past = width && height && (right > innerWidth + 1 || left < -1);
  return past && !each.closest("figure, pre, table, svg, .ruler, .sr-only, .strip, .scenes");
}).map((each) => `${each.tagName} ${each.getAttribute("class")} ${each.textContent.trim().slice(0, 30)}`)"""
"""Left out: what scrolls in a frame of its own (matrices, drawings, code, tables, a phone's line of
words), rulers, whose labels lean out."""


def show(page, text):
    """Type a text and open it; a long one that is open is behind its button."""
    if page.get_by_test_id("text-button").is_visible():
        page.get_by_test_id("text-button").click()
    page.get_by_test_id("text-box").fill(text)
    with page.expect_response(re.compile("/atlas")):
        page.get_by_test_id("open-button").click()
    page.get_by_test_id("rail-atlas").click()
    expect(page.get_by_test_id("atlas-grid")).to_be_visible()


def fragment(page):
    path, _, query = page.evaluate("location.hash").removeprefix("#/").partition("?")
    return path, {key: values[0] for key, values in parse_qs(query).items()}


def open_head(page, head):
    page.locator(f"[data-head={head}]").first.click()
    expect(page.get_by_test_id("head-name")).to_have_text(head)
    expect(page.get_by_test_id("mode-words")).to_be_visible()


def settled(page):
    """Until the map moves no more: the address, written 0.25 s after the last move, holds where it is."""
    before = None
    for _ in range(60):
        now = page.evaluate("location.hash")
        if now == before and "at" in fragment(page)[1]:
            return [float(x) for x in fragment(page)[1]["at"].split(",")]
        before = now
        page.wait_for_timeout(300)
    raise AssertionError(f"the map never came to rest: {before}")


def assert_nothing_past_the_edge(page, where=""):
    """Nothing lies past the window's left or right edge, where nobody sees it without scrolling sideways."""
    found = page.evaluate(PAST)
    assert not found, f"{where}: {len(found)} past the edge: {found[:8]}"
    inside = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert inside[0] <= inside[1], f"{where}: the page is {inside[0]} pixels wide in a window of {inside[1]}"


def digits(text):
    """A text of the page with powers of ten as Python reads them: 1.20 × 10⁻⁵ becomes 1.20e-5."""
    raised = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    return re.sub(r" × 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda power: "e" + power[1].translate(raised), text)
