"""A head that is drawn in the page, in a real Chromium: its numbers are the library's, whatever is painted.

The page computes them by itself, so that it needs no server: `web/src/rooms/learn/drawing.ts`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from manyheads.lab import design
from manyheads.lab.design import drawing
from manyheads.lab.lessons import shelf
from manyheads.lab.lessons.pages import draw_a_head
from tests.studio.driving import assert_nothing_past_the_edge

SLUG = "draw-a-head"
TOKENS, OTHERS = design.split_words(draw_a_head.PAINTED), design.split_words(draw_a_head.OTHER)
MAP = "table => [...table.querySelectorAll('[data-value]')].map((cell) => Number(cell.dataset.value))"
FITTED = """(all) => all.map(({ tokens, others, picture, width, reads, steps }) => {
  const { draw, filled, weightsOf } = document.querySelector("[data-testid=draw-head]").fit;
  const n = tokens.length;
  const wished = filled(n, n, (row, column) => picture[row][column]);
  const heads = draw(tokens, wished, width, reads, steps);
  return heads.map((head) => [tokens, others].map((text) => [...weightsOf(head, text).data]));
})"""

WORDS = ("It", "is", "a", "dog", ",", "A", "\u2014", "no-one", "\u00dcber")
PAINTED = """all => all.filter((cell) => !cell.ariaLabel.endsWith("empty"))
  .map((cell) => [cell.dataset.row, cell.dataset.column].map(Number))"""


@pytest.fixture
def opened(new_page, studio):
    """`opened()`: the lesson, its head drawn at every width."""

    def open_lesson(**options):
        page = new_page(**options)
        page.goto(f"{studio.address}#/learn?lesson={SLUG}")
        ready(page)
        return page

    return open_lesson


def ready(page):
    expect(page.locator("[data-testid=draw-head][data-done=true]")).to_be_visible()


def cell_words(**values):
    page = shelf.lessons()[SLUG]
    return shelf.run_cell(page.cells[SLUG], values, shelf.load)


def map_of(page, testid, size):
    return np.array(page.get_by_test_id(testid).evaluate(MAP)).reshape(size, size)


def value_of(page, testid):
    return float(page.get_by_test_id(testid).get_attribute("data-value"))


def assert_as_the_library(page, **values):
    """Both maps, what arrives and the closing sentence are those of the lesson's cell with these values."""
    ready(page)
    ran = cell_words(**values)
    tokens, others = (design.split_words(str(values.get(name, text))) for name, text in
                      (("sentence", draw_a_head.PAINTED), ("other", draw_a_head.OTHER)))  # fmt: skip
    assert np.allclose(map_of(page, "draw-map", len(tokens)), ran.table("the head").values, atol=1e-6)
    assert np.allclose(map_of(page, "draw-elsewhere", len(others)), ran.table("elsewhere").values, atol=1e-6)
    shares = dict(zip(ran.table("arrives").rows, ran.table("arrives").values[:, 0], strict=True))
    assert value_of(page, "draw-share") == pytest.approx(shares["arrives"] / 100, abs=1e-6)
    if "on the other sentence" in shares:
        assert value_of(page, "draw-share-elsewhere") == pytest.approx(shares["on the other sentence"] / 100, abs=1e-6)
    assert page.get_by_test_id("draw-said").inner_text().replace("\u00a0", " ") == ran.words


def test_the_pages_head_is_the_librarys(opened):
    page = opened()
    assert_as_the_library(page)
    page.get_by_test_id("draw-width-8").check(force=True)
    page.get_by_test_id("draw-rule-marks").click()
    page.get_by_test_id("draw-reads-words").uncheck()
    page.get_by_test_id("draw-reads-kinds").uncheck()
    expect(page.get_by_test_id("draw-reads-places")).to_be_disabled()  # a head that reads nothing draws nothing
    assert_as_the_library(page, rule="marks", width=8, reads="places")


@pytest.mark.slow
def test_any_picture_gives_the_same_head_in_both_programs(opened, fresh):
    page, rng = opened(), np.random.default_rng(int(torch.randint(2**31, (1,), generator=fresh)))
    cases = []
    for size in (2, 5, 9, 14):
        tokens = [str(word) for word in rng.choice(WORDS, size)]
        picture = rng.random((size, size)) ** 2 * (rng.random((size, size)) < 0.4)
        picture[1, 0] = 1.0
        reads = [name for name in drawing.FEATURES if rng.random() < 0.7] or ["words"]
        width, steps = int(rng.choice([1, 2, 3, 24])), [0, 30, drawing.STEPS]
        case = {"tokens": tokens, "others": list(OTHERS), "picture": picture.tolist()}
        cases.append({**case, "width": width, "reads": reads, "steps": steps})
    for case, maps in zip(cases, page.evaluate(FITTED, cases), strict=True):
        for steps, both in zip(case["steps"], maps, strict=True):
            head = design.draw(
                case["tokens"], np.array(case["picture"]), width=case["width"], reads=case["reads"], steps=steps
            )
            for tokens, values in zip((case["tokens"], case["others"]), both, strict=True):
                assert np.allclose(np.reshape(values, (len(tokens),) * 2), head.weights(tokens), atol=1e-6), (
                    case,
                    steps,
                )


def test_the_page_has_the_librarys_constants():
    path = Path(__file__).parents[2] / "web/src/rooms/learn/drawing.generated.json"
    assert path.read_text(encoding="utf-8") == draw_a_head.page_numbers(), "run `make web`"


def test_a_picture_is_painted_by_mouse_and_by_keyboard(opened):
    page = opened()
    page.get_by_test_id("draw-clear").click()
    expect(page.get_by_test_id("draw-said")).to_have_text("Nothing is painted.")
    expect(page.get_by_test_id("draw-map")).to_have_count(0)

    def cell(row, column):
        return page.locator(f"[data-row='{row}'][data-column='{column}']")

    cell(5, 1).hover()
    page.mouse.down()
    cell(5, 3).hover()
    page.mouse.up()
    expect(cell(5, 3)).to_have_attribute("aria-label", "“mat” looks at “on”: full")
    strokes = page.locator("[data-row]").evaluate_all(PAINTED)
    assert [5, 1] in strokes and [5, 3] in strokes and all(row == 5 for row, _ in strokes)
    page.get_by_test_id("draw-brush").get_by_label("half").check(force=True)
    cell(9, 1).focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    expect(cell(8, 1)).to_be_focused()
    expect(cell(8, 1)).to_have_attribute("aria-label", "The second “the” looks at “cat”: half")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the same stroke again takes it away
    expect(cell(8, 2)).to_have_attribute("aria-label", "The second “the” looks at “sat”: empty")
    for column in {column for _, column in strokes} - {1}:
        cell(5, column).focus()
        page.keyboard.press("Delete")
    assert_as_the_library(page, rule=draw_a_head.OWN, picture="5>1 8>1=0.5")
    page.get_by_test_id("draw-rule-previous").click()
    cell(3, 7).click()
    expect(page.get_by_test_id("draw-rule-previous")).to_have_attribute("aria-pressed", "false")
    cell(3, 7).click()
    expect(page.get_by_test_id("draw-rule-previous")).to_have_attribute("aria-pressed", "true")


@pytest.mark.slow  # the fixed set has one case of each
def test_every_rule_and_every_moment_of_training_is_the_librarys(opened):
    page = opened()
    for rule in drawing.RULES:
        page.get_by_test_id(f"draw-rule-{rule.replace(' ', '-')}").click()
        page.get_by_test_id("draw-width-4").check(force=True)
        assert_as_the_library(page, rule=rule, width=4)
    page.get_by_test_id("draw-moment").fill("0")
    assert_as_the_library(page, rule=drawing.RULES[-1], width=4, how=draw_a_head.FITTED)
    page.get_by_test_id("draw-moment").fill("20")
    page.get_by_test_id("draw-other").fill("One two three.")
    assert_as_the_library(page, rule=drawing.RULES[-1], width=4, other="One two three.")
    page.get_by_test_id("draw-sentence").fill("A dog, a cat!")
    assert_as_the_library(page, rule=drawing.RULES[-1], width=4, other="One two three.", sentence="A dog, a cat!")


@pytest.mark.slow  # words of refusal are the cell's; a phone is looked at by test_access, too
def test_a_sentence_that_does_not_fit_is_refused_and_nothing_is_lost(opened):
    page = opened()
    before = map_of(page, "draw-map", len(TOKENS))
    page.get_by_test_id("draw-sentence").fill("alone")
    expect(page.get_by_role("alert")).to_contain_text("1 word or mark: write 2 to 24.")
    page.get_by_test_id("draw-other").fill("a " * 30)
    expect(page.get_by_role("alert").last).to_contain_text("30 words and marks: write 2 to 24.")
    assert np.array_equal(map_of(page, "draw-map", len(TOKENS)), before)


@pytest.mark.slow
def test_a_finger_paints_on_a_phone_and_nothing_moves_where_motion_is_reduced(browser, studio):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{studio.address}#/learn?lesson={SLUG}")
    ready(page)
    assert_nothing_past_the_edge(page, "a drawn head")
    page.get_by_test_id("draw-clear").tap()
    page.locator("[data-row='2'][data-column='5']").tap()
    expect(page.locator("[data-row='2'][data-column='5']")).to_have_attribute(
        "aria-label", "“sat” looks at “mat”: full"
    )
    ready(page)
    moment = page.get_by_test_id("draw-moment")
    assert moment.input_value() == "20"
    page.get_by_test_id("draw-play").tap()
    page.get_by_test_id("draw-play").tap()
    assert moment.input_value() == "1", "the next moment, and no motion"
    context.close()
