"""Every room for readers of all kinds: axe finds nothing wrong, each has one heading of the first rank, and its terms
have the glossary's sentences.

axe-core comes with `axe-playwright-python`. Each commit's seed draws some rooms to look at, wide and light, and some of
what a phone lays out again, in the dark; all of it in all four ways is a slow test.
"""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

from manyheads.roles.words.glossary import TERMS
from tests.studio.test_learning import skip_all

ROOMS = {
    "atlas": "atlas-grid", "atlas?from=10&to=2&sort=word&sinks=out": "best-head",
    "head/L2H9?pin=2&key=2&card=1": "neuron", "head/L3H1?pin=10&pane=1": "text-pane",
    "head/L2H9?show=lines": "line-view", "head/L2H9?show=layer": "play-stage",
    "compare/L2H9?other=L1H1": "compare-map-d", "experiment?scene": "alike-slider", "size": "size-conclusion",
    "training": "training-table", "circuit": "circuit-grid", "learn?lesson=four-archetypes": "lesson-arcs",
    "learn?lesson=draw-a-head": "draw-map", "learn?lesson=whole-layer": "lesson-flow",
    "learn?lesson=birth": "play-stage",
    "learn?lesson=interview": "interview-show", "learn?lesson=no-such-lesson": "trouble",
}  # fmt: skip
DIALOGS = {
    "size?help": ("help-button", "help"),
    "head/L2H9?pin=2": ("rewrite-open", "rewrite"),
    "atlas?from=10&to=2&sort=word": ("share", "share-card"),
    "atlas?guess=1": (None, "guess-choice"),
}
PHONED = (
    "atlas", "head/L2H9?pin=2&key=2&card=1", "size", "training", "circuit", "learn?lesson=whole-layer", "size?help",
    "learn?lesson=draw-a-head",
)  # fmt: skip
SHOWN = {
    "atlas": {"map", "head", "role", "weight"},
    "head/L2H9?pin=2&key=2&card=1": {"link", "sink", "chance level", "interval", "log-sum-exp", "weight"},
    "experiment?scene": {"head", "role", "plan", "diversity", "cosine", "effect", "interval"},
    "size": {"KV cache", "context", "KV head", "parameter", "head"},
    "learn?lesson=four-archetypes": {"chance level"},
}
PRESENTED = {"head/L3H1?pin=10": "headline", "atlas?from=10&to=2&sort=word": "atlas-present"}
WIDE, HALL, TABLET, PHONE = (1440, 900), (1920, 1080), (768, 1024), (390, 844)


def strange_terms(page, room):
    """What the glossary has and the room does not show, and tooltips that are not the glossary's sentence."""
    shown = dict(page.locator("[data-term]").evaluate_all("all => all.map(term => [term.dataset.term, term.title])"))
    wrong = [name for name, title in shown.items() if name in TERMS and title.replace("’", "'") != TERMS[name].short]
    return [f"{room}: {name}" for name in (*sorted(SHOWN.get(room, set()) - set(shown)), *wrong)]


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
    ("size", "theme", "every"),
    [
        (WIDE, "light", 4),
        (PHONE, "dark", 3),
        *[
            pytest.param(size, theme, 1, marks=pytest.mark.slow)
            for size in (WIDE, HALL, TABLET, PHONE)
            for theme in ("light", "dark")
        ],
    ],
)
def test_axe_finds_nothing_in_any_room(look, size, theme, every):
    page, found = look(size, theme), []
    rooms = [*ROOMS, *DIALOGS]
    if every > 1:
        rooms = [room for room in rooms if size == WIDE or room in PHONED][::every]
    for room in rooms:
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        if room in ROOMS:
            if "scene" in room:
                page.get_by_test_id("scene-same").click()
            if room.startswith("learn?") and ROOMS[room] != "trouble":  # what follows a question is folded
                expect(page.locator(f"[data-lesson={room.partition('=')[2]}]")).to_be_attached()
                skip_all(page)
            expect(page.get_by_test_id(ROOMS[room]).first).to_be_visible(timeout=120_000)  # Circuit runs smollm2
            if "scene" in room:  # the slider comes with three steps, and the result of the run after them
                expect(page.get_by_test_id("experiment-result")).to_be_attached(timeout=120_000)
            found += complaints(page, room)
            if size == WIDE:
                found += strange_terms(page, room)
            continue
        button, sign = DIALOGS[room]
        if button:
            page.get_by_test_id(button).first.click()
        expect(page.get_by_test_id(sign).first).to_be_visible()
        found += complaints(page, room, "document.querySelector('dialog[open]')")
        page.evaluate("document.querySelector('dialog[open]').close()")
    for room, sign in PRESENTED.items():
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        page.keyboard.press("p")
        expect(page.get_by_test_id(sign).first).to_be_visible()
        found += complaints(page, f"{room}, presented")
        page.keyboard.press("p")
    assert not found, "\n".join(found)
