"""The site of cards in a real Chromium, from the disk: axe finds nothing wrong, maps answer, the search finds."""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

from manyheads.cards import write_cards
from tests.cards.test_cards import hostile, small
from tests.studio.chromium import chromium

__all__ = ["small"]  # a fixture
pytestmark = pytest.mark.slow
WIDE, PHONE = (1440, 900), (390, 844)


@pytest.fixture(scope="module")
def site(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    write_cards(folder, [*small[1], hostile()])
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def opened(site, browser):
    """Opens a page of the site, in a scheme and a size; what it logs is an error."""
    contexts, faults = [], []

    def open_page(name, scheme="light", size=WIDE):
        context = browser.new_context(color_scheme=scheme, viewport=dict(zip(("width", "height"), size, strict=True)))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append("a dialog opened"))
        page.goto(f"file://{site}/{name}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not faults


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_pages_are_for_readers_of_all_kinds(opened, site, scheme, size):
    names = ["index.html", *(f"heads/{page.name}" for page in (site / "heads").iterdir())]
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    for name in names:
        page = opened(name, scheme, size)
        # The page's own policy lets no script in that is not its own: axe comes past it.
        page.evaluate(axe)
        result = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")
        wrong = [f"{fault['id']}: {node['html'][:160]}" for fault in result["violations"] for node in fault["nodes"]]
        assert not wrong, f"{name}, {scheme}, {size}"
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_map_says_where_each_token_looks(opened, small):
    card = small[1][1]
    page = opened(f"heads/small-{str(card.head).lower()}.html")
    first = page.locator(".map").first
    query = len(card.maps[0].tokens) - 1
    row = card.maps[0].row(query)
    first.locator(".tokens span").nth(query).click()
    best = card.maps[0].tokens[row.index(max(row))]
    expect(first.locator(".said")).to_have_text(
        f"“{card.maps[0].tokens[query]}” looks at “{best}” with {100 * max(row):.1f}%"
    )
    cells = first.locator("canvas").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    # In the light, the darker the more: the largest weight of the row has the darkest cell.
    size = len(row)
    darkness = [-sum(cells[4 * (query * size + key) :][:3]) for key in range(size)]
    assert darkness.index(max(darkness)) == row.index(max(row))


def test_search_finds_by_head_role_token_and_effect(opened, small):
    page = opened("index.html")
    entries, search = page.locator(".heads li:visible"), page.get_by_role("searchbox")
    expect(entries).to_have_count(3)
    search.fill("L2H4")
    expect(entries).to_have_count(1)
    expect(page.get_by_role("status")).to_have_text("1 of 3 heads")
    expect(page.locator(".cell.out")).to_have_count(2)
    search.fill("onerror")
    expect(entries).to_have_count(1)
    search.fill("")
    page.locator("select[name=effect]").select_option("barely")
    barely = 1 + sum(card["lost"].facts[0].mark == "barely" for card in small[1])
    expect(entries).to_have_count(barely)
    page.locator("select[name=effect]").select_option("")
    page.locator("select[name=order]").select_option("loss")
    losses = [
        float(loss) for loss in page.locator("#small .heads li").evaluate_all("all => all.map(e => e.dataset.loss)")
    ]
    assert losses == sorted(losses, reverse=True) and len(losses) == 2
