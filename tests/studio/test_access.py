"""Every room for readers of all kinds: axe finds nothing wrong, and each has one heading of the first rank.

axe-core comes with `axe-playwright-python`. Each room is looked at wide and light, and on a phone in the dark; the other
two ways are slow tests, as are lessons and dialogs on both.
"""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

ROOMS = {
    "atlas": "atlas-grid",
    "atlas?from=10&to=2&sort=word&sinks=out": "best-head",
    "head/L2H9?pin=2&key=2": "neuron",
    "head/L2H9?show=lines": "line-view",
    "head/L2H9?show=layer": "layer-figure",
    "compare/L2H9?other=L1H1": "compare-map-d",
    "experiment?scene": "diversity-dial",
    "size": "size-conclusion",
    "learn?lesson=four-archetypes": "lesson-arcs",
    "learn?lesson=whole-layer": "lesson-flow",
    "learn?lesson=birth": "lesson-check-two-layers",
    "learn?lesson=interview": "interview-show",
    "learn?lesson=no-such-lesson": "trouble",
}
DIALOGS = {
    "size?help": ("help-button", "help"),
    "head/L2H9?pin=2": ("rewrite-open", "rewrite"),
    "atlas?from=10&to=2&sort=word": ("share", "share-card"),
    "atlas?guess=1": (None, "guess-choice"),
}
WIDE, PHONE = (1280, 720), (390, 844)


def complaints(page, where, root="document"):
    result = page.evaluate(f"axe.run({root}, {{ resultTypes: ['violations'] }})")
    headings = page.locator("h1").all_inner_texts()
    return [
        f"{where}: {violation['id']}: {node['html'][:160]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ] + ([] if len(headings) == 1 else [f"{where}: headings of the first rank: {headings}"])


@pytest.fixture
def look(new_page, studio):
    """`look(size, theme)`: a page with axe in it."""

    def opened(size, theme):
        page = new_page(reduced_motion="reduce", color_scheme=theme)
        page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        page.goto(studio.address)
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        return page

    return opened


@pytest.mark.parametrize(
    ("size", "theme"),
    [
        (WIDE, "light"),
        (PHONE, "dark"),
        pytest.param(WIDE, "dark", marks=pytest.mark.slow),
        pytest.param(PHONE, "light", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_in_any_room(look, size, theme):
    page, found = look(size, theme), []
    for room, sign in ROOMS.items():
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        if "scene" in room:
            page.get_by_test_id("scene-same").click()
        expect(page.get_by_test_id(sign).first).to_be_visible()
        found += complaints(page, room)
    for room, (button, sign) in DIALOGS.items():
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        if button:
            page.get_by_test_id(button).first.click()
        expect(page.get_by_test_id(sign).first).to_be_visible()
        found += complaints(page, room, "document.querySelector('dialog[open]')")
        page.evaluate("document.querySelector('dialog[open]').close()")
    assert not found, "\n".join(found)
