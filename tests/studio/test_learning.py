"""The Learn room in a real Chromium: a lesson walked to its end, wrong answers included; points that stay, and go.

What is right is not written here: it is asked of the library, as the page asks it of the server.
"""

import json
import re
from importlib.resources import files
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from manyheads.lab.lessons import ProseBlock, shelf
from tests.studio.driving import assert_nothing_past_the_edge
from tests.studio.test_play import AT, READ, SIZES, collisions, ready, resize

LESSON = "masks"


@pytest.fixture
def learn(new_page, studio):
    """`learn("masks")`: the room, at that lesson."""

    def opened(slug, more=""):
        page = new_page()
        page.goto(f"{studio.address}#/learn?lesson={slug}{more}")
        expect(page.get_by_test_id("lesson")).to_be_visible()
        return page

    return opened


def right_of(slug, name, inputs=(), cell=()):
    page = shelf.lessons()[slug]
    return shelf.right_of(page, page.checks[name], dict(inputs), dict(cell), shelf.load)


def submit(page, name, given):
    """Answer a check, and wait for what is said; its words."""
    check = page.get_by_test_id(f"lesson-check-{name}")
    if check.locator("fieldset").count():
        check.get_by_label(given, exact=True).check()
    else:
        check.get_by_test_id("lesson-check-answer").fill(str(given))
    with page.expect_response(re.compile("/checks/")):
        check.get_by_test_id("lesson-check-submit").click()
    said = check.get_by_test_id("lesson-check-said")
    expect(said).to_be_visible()
    return said.inner_text()


def skip_all(page):
    """Skip every question until the whole lesson is open."""
    for _ in range(20):
        sections = page.locator("[data-testid^=lesson-check-]:has([data-testid=lesson-check-skip])")
        if not sections.count():
            break
        check = page.get_by_test_id(sections.first.get_attribute("data-testid"))
        check.get_by_test_id("lesson-check-skip").click()
        expect(check.get_by_test_id("lesson-check-skip")).to_have_count(0)
    expect(page.get_by_test_id("lesson-folded")).to_have_count(0)


@pytest.mark.slow  # every step of it has a test of its own below
def test_a_lesson_is_walked_to_its_end_wrong_answers_included_and_points_stay(learn):
    page, lesson = learn(LESSON), shelf.lessons()[LESSON]
    total = 0
    for name, check in lesson.checks.items():
        right = right_of(LESSON, name)
        mistake, why = next(each for each in right.mistakes.items() if each[0] != right.answer)
        assert "is not a number" in submit(page, name, "nonsense"), "no answer costs nothing"
        said = submit(page, name, mistake)
        assert said.startswith("Not yet.") and why in said, said
        if check.cell:
            cell = page.locator("section.cell", has=page.get_by_text("Run without predicting"))
            expect(cell).to_have_count(1)
            assert cell.get_by_test_id("lesson-cell-result").count() == 0, "its result would answer the second try"
        assert submit(page, name, f"{right.answer} {right.unit}").startswith("Right.")
        total += check.points / 2
        if check.cell:
            expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible()
            expect(page.get_by_test_id(f"lesson-check-{name}")).to_contain_text("Change something in the cell")
    points = f"{total:g} of {sum(lesson.questions.values())} points"
    expect(page.get_by_test_id("lesson-done")).to_have_text(f"6 of 6 answered · {points}")
    page.reload()
    expect(page.get_by_test_id("lesson-done")).to_have_text(f"6 of 6 answered · {points}")
    for at, box in enumerate(page.locator("section.cell").all()):
        box.get_by_test_id("lesson-cell-run").click()
        expect(box.get_by_test_id("lesson-cell-result")).to_be_visible()
        while box.get_by_test_id("lesson-cell-next").is_enabled():
            box.get_by_test_id("lesson-cell-next").click()
        assert at or box.locator(".where").inner_text() == "6 of 6"
    expect(page.get_by_test_id("lesson-points")).to_have_text(
        f"{total:g} points, kept in this browser; manyheads learn counts its own"
    )
    page.get_by_test_id("lesson-reset").click()
    page.get_by_test_id("lesson-reset-sure").click()
    expect(page.get_by_test_id("lesson-done")).to_contain_text("0 of 6 answered")
    page.reload()
    expect(page.get_by_test_id("lesson-points")).to_have_text(re.compile("^0 points"))


def test_the_address_of_a_lesson_opens_it(new_page, studio):
    page = new_page()
    page.goto(f"{studio.address}#/learn/masks")
    expect(page.get_by_test_id("lesson").locator("h1")).to_have_text(shelf.lessons()["masks"].title)
    assert page.get_by_test_id("unread").count() == 0


def test_lessons_are_listed_in_groups_of_which_one_is_open_and_say_what_they_are_about_when_pointed_at(learn):
    page, lessons = learn("masks"), shelf.lessons()
    shown = page.get_by_test_id("lesson-list").locator("ol")
    expect(shown).to_have_count(1)
    assert shown.locator("button").count() == sum(each.group == "Basics" for each in lessons.values())
    assert shown.locator("[title='For everyone']").count() == 3
    about = page.get_by_test_id("lesson-about")
    assert lessons["one-head"].summary not in page.get_by_test_id("lesson-list").inner_text()
    page.get_by_test_id("lesson-one-head").hover()
    expect(about).to_contain_text(lessons["one-head"].summary)
    page.get_by_test_id("lesson-why-many-heads").focus()
    expect(about).to_contain_text(lessons["why-many-heads"].summary)
    page.get_by_test_id("lesson-group-Circuits").click()
    expect(page.get_by_test_id("lesson-birth")).to_be_visible()
    expect(page.get_by_test_id("lesson-one-head")).to_have_count(0)
    page.get_by_test_id("lesson-birth").click()
    expect(page.get_by_test_id("lesson").locator("h1")).to_have_text(lessons["birth"].title)


def test_what_follows_a_question_is_folded_and_a_skipped_one_has_no_points(learn):
    page, lesson = learn("kv-cache"), shelf.lessons()["kv-cache"]
    first, *_ = lesson.checks.values()
    second = next(part for part in lesson.parts if isinstance(part, ProseBlock) and "same computation" in part.text)
    heading = second.text.splitlines()[0].removeprefix("## ")
    expect(page.get_by_test_id("lesson-folded")).to_be_visible()
    assert page.get_by_text(heading).count() == 0 and page.locator("section.cell").count() == 1, "its picture"
    right = right_of("kv-cache", first.name)
    check = page.get_by_test_id(f"lesson-check-{first.name}")
    check.get_by_test_id("lesson-check-hint").click()
    expect(check.get_by_test_id("lesson-check-said")).to_have_text(right.hint)
    expect(check.get_by_test_id("lesson-check-points")).to_have_text("1 point"), "a hint costs half of two"
    assert page.get_by_text(heading).count() == 0
    assert check.get_by_test_id("lesson-check-hint").count() == 0
    check.get_by_test_id("lesson-check-skip").click()
    expect(check.get_by_test_id("lesson-check-solution")).to_contain_text(right.words)
    expect(page.get_by_text(heading)).to_be_visible()
    expect(check.get_by_test_id("lesson-check-points")).to_have_text("solution shown: no points")
    assert submit(page, first.name, f"{right.answer:.0f}").startswith("Right.")
    expect(page.get_by_test_id("lesson-done")).to_contain_text("1 of 6 answered · 0 of 10 points")
    page.reload()
    expect(page.get_by_text(heading)).to_be_visible()
    expect(page.get_by_test_id(f"lesson-check-{first.name}").get_by_test_id("lesson-check-points")).to_have_text(
        "solution shown: no points"
    )


def test_the_second_wrong_answer_shows_the_solution(learn):
    page = learn("masks")
    name = "masked-row"
    right = right_of("masks", name)
    check = page.get_by_test_id(f"lesson-check-{name}")
    submit(page, name, "0.9")
    assert check.get_by_test_id("lesson-check-solution").count() == 0
    submit(page, name, "0.8")
    expect(check.get_by_test_id("lesson-check-solution")).to_contain_text(right.words)
    expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible(), "and the cell shows it"


def test_a_wide_lesson_has_text_and_questions_beside_their_cell(learn):
    page = learn("why-many-heads")
    for width, apart in ((1440, True), (1000, True), (960, False)):
        page.set_viewport_size({"width": width, "height": 800})
        beside = page.locator(".band.two").first
        text, cell = (beside.locator(each).first.bounding_box() for each in (".prose", "section.cell"))
        assert (cell["x"] >= text["x"] + text["width"]) == apart, width
        assert_nothing_past_the_edge(page, f"{width}")


@pytest.mark.slow
def test_a_map_with_many_columns_is_seen_whole(learn):
    """Which cycles heads read: the point is in the last columns."""
    page = learn("remaining-life")
    skip_all(page)
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        box = page.locator("section.cell").last
        expect(box.get_by_test_id("lesson-cell-result")).to_be_visible()
        scroll = box.locator(".scroll").last.evaluate("each => [each.scrollWidth, each.clientWidth]")
        assert scroll[0] <= scroll[1] + 1, "it is cut off at the side"
        row = box.locator("tbody tr").first.locator("td")
        last, first = (each.bounding_box() for each in (row.last, row.first))
        assert row.count() == 30 and abs(last["width"] - first["width"]) < 2
        assert last["x"] + last["width"] <= width


@pytest.mark.slow
def test_a_number_of_a_product_is_traced_to_its_row_and_column(learn):
    page = learn("whole-layer")
    box = page.locator("section.cell").first
    box.get_by_role("button", name="scores, head 1, 3 × 3").click()
    ran = shelf.run_cell(shelf.lessons()["whole-layer"].cells["whole-layer"], {}, shelf.load)
    q, k, scores = (ran.table(f"{name}, head 1").values for name in ("Q", "K", "scores"))
    box.locator("tbody tr").nth(2).locator("td").nth(1).hover()
    traced = box.get_by_test_id("lesson-traced")
    expect(traced).to_contain_text("Q, head 1 row token 2 · K, head 1 row token 1 = ")
    terms = re.findall(r"(−?[\d.]+) × (−?[\d.]+)", traced.inner_text())
    assert [[float(number.replace("−", "-")) for number in pair] for pair in terms] == [
        [pytest.approx(a, abs=6e-4), pytest.approx(b, abs=6e-4)] for a, b in zip(q[2], k[1], strict=True)
    ]
    assert traced.inner_text().endswith(f"then {round(scores[2, 1], 3):g}") or scores[2, 1] == 0
    line = box.get_by_test_id("lesson-code").locator(".line", has_text="concat = ")
    line.hover()
    expect(box.locator("figcaption strong")).to_have_text("concat"), "pointing at a line shows its value"


@pytest.mark.slow
def test_other_numbers_ask_the_same_with_another_answer(learn):
    page = learn("recap", "&seed=7")
    name = "recap-column"
    check = shelf.lessons()["recap"].checks[name]
    for _ in range(2):
        seed = int(re.search(r"seed=(\d+)", page.evaluate("location.hash"))[1])
        inputs = shelf.draw(check, seed)
        expect(page.get_by_test_id(f"lesson-check-{name}")).to_contain_text(shelf.ask(check, inputs)[0])
        assert submit(page, name, right_of("recap", name, inputs).answer).startswith("Right.")
        page.get_by_test_id("lesson-redraw").click()
        page.wait_for_function("seed => !(location.hash + '&').includes(`seed=${seed}&`)", arg=str(seed))  # 7 is not 73
        expect(page.get_by_test_id("lesson-check-said")).to_have_count(0)


@pytest.mark.slow  # the ticks of the next, and its answer's words
def test_an_interview_question_hides_its_answer_and_is_ticked(learn):
    page, lesson = learn("interview"), shelf.lessons()["interview"]
    first = next(iter(lesson.interviews.values()))
    asked = page.get_by_test_id(f"lesson-interview-{first.name}")
    assert asked.get_by_test_id("interview-answer").count() == 0
    asked.get_by_test_id("interview-show").click()
    expect(asked.get_by_test_id("interview-answer")).to_contain_text(shelf.say("{{bleu-eight-heads}}", shelf.load))
    boxes = asked.locator("input[type=checkbox]")
    for at in range(len(first.points)):
        expect(page.get_by_test_id("lesson-done")).to_contain_text(f"0 of {len(lesson.questions)} points")
        boxes.nth(at).check()
    expect(page.get_by_test_id("lesson-done")).to_contain_text(f"1 of {len(lesson.questions)} answered")
    expect(page.get_by_test_id("lesson-done")).to_contain_text(f"1 of {len(lesson.questions)} points")


@pytest.mark.slow
def test_half_made_ticks_are_kept_over_a_reload_and_forgotten_with_the_points(learn):
    page = learn("interview")
    asked = page.get_by_test_id(f"lesson-interview-{next(iter(shelf.lessons()['interview'].interviews))}")
    asked.get_by_test_id("interview-show").click()
    asked.locator("input[type=checkbox]").nth(1).check()
    page.reload()
    expect(asked).to_contain_text("1 of ")
    asked.get_by_test_id("interview-show").click()
    boxes = asked.locator("input[type=checkbox]")
    assert [box.is_checked() for box in boxes.all()].index(True) == 1
    expect(asked.locator("input:checked")).to_have_count(1)
    page.get_by_test_id("lesson-reset").click()
    page.get_by_test_id("lesson-reset-sure").click()
    expect(asked.locator("input:checked")).to_have_count(0)
    page.reload()
    expect(asked).to_contain_text("Answer it aloud first.")


def test_a_map_is_read_by_clicking_a_token_and_its_head_opens_whole(learn):
    page = learn("one-head")
    skip_all(page)
    box = page.locator("section.cell").last
    box.get_by_test_id("lesson-cell-run").click()
    box.get_by_role("button", name="weights", exact=True).click()
    cell = shelf.lessons()["one-head"].cells["sentence-head"]
    box.locator("th button", has_text="cat").first.click()
    expect(box.get_by_test_id("lesson-map-looks")).to_contain_text(re.compile(r"‘cat’ looks at .+ 0\.\d{3}"))
    row = box.locator("tbody tr").nth(1)
    row.locator("td").nth(2).click()
    expect(row.locator("th button")).to_have_attribute("aria-pressed", "true")
    page.get_by_test_id(f"lesson-open-{cell.values['head']}").click()
    expect(page.get_by_test_id("head-name")).to_have_text(cell.values["head"])
    assert "tired" in page.get_by_test_id("text-box").input_value()


@pytest.mark.slow
def test_a_prediction_shows_its_head_and_is_closed_once_its_cell_has_run(learn):
    page, lesson = learn("archetypes"), shelf.lessons()["archetypes"]
    page.set_viewport_size({"width": 1280, "height": 720})
    name = "archetype-looks"
    head = lesson.checks[name].values["head"]
    submit(page, name, "nothing of the kind")
    submit(page, name, "nothing of the kind")
    skip_all(page)
    box = page.locator("section.cell").first
    expect(box.get_by_test_id("lesson-cell-result")).to_be_visible()
    expect(box.locator("ol button.on")).to_have_text(head)
    scroll = box.locator(".scroll").evaluate("each => [each.scrollHeight, each.clientHeight]")
    assert scroll[0] <= scroll[1] + 1, "the whole map is seen"
    asked, last = page.get_by_test_id("lesson-check-beside-even"), page.locator("section.cell").last
    expect(asked).to_contain_text("Change something in the cell to predict again")
    expect(asked.get_by_test_id("lesson-check-submit")).to_be_disabled()
    last.locator("input[type=text]").last.fill("L2H9")
    expect(asked).not_to_contain_text("Change something in the cell")


def test_the_button_of_a_prediction_says_whether_its_cell_runs(learn):
    """Of two predictions the first runs nothing, as its result would answer the second; whichever is last runs it."""
    page, slug = learn("why-many-heads"), "why-many-heads"
    checks = [check for check in shelf.lessons()[slug].checks.values() if check.cell == "two-places"]
    buttons = [
        page.get_by_test_id(f"lesson-check-{check.name}").get_by_test_id("lesson-check-submit") for check in checks
    ]
    for button in buttons:
        expect(button).to_have_text("Predict")
    said = submit(page, checks[1].name, right_of(slug, checks[1].name).answer)
    assert said == "Right. The cell waits for your other prediction about it, then it runs and shows why."
    assert page.get_by_test_id("lesson-cell-result").count() == 0
    expect(buttons[0]).to_have_text("Predict, then run")
    assert submit(page, checks[0].name, right_of(slug, checks[0].name).answer).startswith("Right.")
    expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible()


@pytest.mark.slow
def test_one_prediction_of_a_cell_does_not_answer_the_next(learn):
    page, slug = learn("why-many-heads"), "why-many-heads"
    first, second = (each for each in shelf.lessons()[slug].checks.values() if each.cell == "two-places")
    right = right_of(slug, first.name)
    said = submit(page, first.name, right.answer)
    assert said.startswith("Right.") and "waits for your other prediction" in said and right.words not in said
    assert page.get_by_test_id("lesson-cell-result").count() == 0, "its result would answer the second"
    assert submit(page, second.name, right_of(slug, second.name).answer).startswith("Right.")
    expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible()
    expect(page.get_by_test_id(f"lesson-check-{first.name}")).to_contain_text(right.words)


@pytest.mark.slow
def test_four_archetypes_are_cards_with_arcs(learn):
    page = learn("four-archetypes")
    skip_all(page)
    kinds = page.get_by_test_id("lesson-kinds")
    ran = shelf.run_cell(shelf.lessons()["four-archetypes"].cells["four-archetypes"], {}, shelf.load)
    for card in ran.cards:
        kinds.get_by_test_id(f"lesson-kind-{card.head}").click()
        about, arcs = kinds.get_by_test_id("lesson-kind-about"), kinds.get_by_test_id("lesson-arcs")
        for words in (card.reason, card.scores, card.chance, card.next_question):
            expect(about).to_contain_text(words)
        assert arcs.locator("path.arc").count() == len(card.arcs)
        for arc in card.arcs:
            words = f"{card.tokens[arc.query]} looks at {card.tokens[arc.key]}, {100 * arc.weight:.0f} %"
            assert words in arcs.get_attribute("aria-label")
    page.set_viewport_size({"width": 390, "height": 844})
    assert_nothing_past_the_edge(page, "arcs beside the words")
    targets = page.get_by_test_id("lesson").locator(":is(button, a, input, select, summary, fieldset label):visible")
    sizes = targets.evaluate_all(
        "all => all.filter(one => one.type !== 'radio').map(one => [one.getBoundingClientRect().height, one.outerHTML])"
    )
    assert len(sizes) > 10 and not [html[:120] for height, html in sizes if height < 44]


@pytest.mark.slow
def test_a_layer_is_a_diagram_whose_step_lights_its_code_and_its_formula_is_typeset(learn):
    page = learn("whole-layer")
    box = page.locator("section.cell").first
    box.get_by_role("button", name="weights, head 1, 3 × 3").click()
    expect(box.locator("figcaption strong")).to_have_text("weights, head 1")
    code = box.get_by_test_id("lesson-code")
    assert (
        all("weights" in line for line in code.locator(".lit").all_inner_texts()) and code.locator(".lit").count() == 2
    )
    code.get_by_role("tab", name="NumPy").press("ArrowRight")
    expect(code.locator(".lit")).to_have_text(re.compile(r"weights = scores\.softmax\(-1\)"))
    assert page.locator("math[display=block] msqrt").count() == 1
    page.wait_for_function("document.fonts.check('16px \"Lesson Formulas\"')")
    assert page.locator("button button, a button, button a").count() == 0


# ------------------------------------------------------------------------------------------- a head is born, as a scene


@pytest.fixture
def born(learn):
    """The lesson's scene, open and still, its texts watched."""

    def opened(seed=""):
        page = learn("birth", seed)
        skip_all(page)
        ready(page)
        page.get_by_test_id("play-stage").scroll_into_view_if_needed()
        return page

    return opened


STORED = json.loads((files("manyheads.lab.lessons") / "pages/induction.json").read_text("utf-8"))


def test_the_scene_of_a_birth_has_every_number_of_the_stored_training(born):
    page = born()
    steps, curves, n = STORED["steps"], STORED["curves"], len(STORED["tokens"])
    head = STORED["numbers"]["induction_head"]
    for index in (6, 18):
        read = page.evaluate(READ, [0.4 + 0.5 * index])
        weights = np.full((n, n), np.nan)
        hidden = 0
        for words in read:
            if match := re.match(r"row (\d+), \w, at column (\d+), \w(?:: ([\d.]+)\nstep (\d+))?", words):
                if match[3] is None:
                    hidden += 1
                    continue
                assert int(match[4]) == steps[index]
                weights[int(match[1]) - 1, int(match[2]) - 1] = float(match[3])
        want = np.full((n, n), np.nan)
        want[np.tril_indices(n)] = np.array(STORED["maps"][head][index]) / 1000
        np.testing.assert_allclose(weights, want, atol=1e-4)
        assert hidden == n * (n - 1) // 2
    measured = dict.fromkeys(["loss_repeated", "loss_new", f"heads/{head}/induction", "heads/L0H1/previous_mass"])
    rows = (
        page.get_by_test_id("play-table")
        .locator("tr")
        .evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
    )
    assert [int(row[0]) for row in rows[1:]] == steps
    for name, column in zip(measured, (1, 2, 4, 6), strict=True):
        at = [STORED["measured"].index(step) for step in steps]
        np.testing.assert_allclose(
            [float(row[column]) for row in rows[1:]], np.array(curves[name])[at], atol=1e-4, err_msg=name
        )
    assert STORED["numbers"]["born_at_step"] == 310
    at_end = [text for text, *_ in page.evaluate(AT, [10.4])["texts"]]
    before = [text for text, *_ in page.evaluate(AT, [2])["texts"]]
    assert "310" in at_end and "310" not in before, "the step of its birth is marked once it is there"


def test_the_scene_of_a_birth_says_what_each_step_shows_and_a_curve_is_a_place_to_jump_to(born):
    page = born()
    said = {}
    for index, step in enumerate(STORED["steps"]):
        page.evaluate("t => document.querySelector('[data-testid=play-stage]').player.seek(t)", 0.4 + 0.5 * index)
        said[step] = page.get_by_test_id("play-headline").inner_text()
    assert said[200] == "Step 200: the head looks everywhere and nowhere."
    assert said[300] == "Step 300: a line appears. The head looks at what came after the last copy."
    assert said[600] == "Step 600: an induction head. Repeated text is now almost free to guess."
    assert all(len(words.split()) <= 15 for words in said.values())
    share = STORED["curves"]["heads/L1H1/induction"][STORED["measured"].index(300)]
    page.evaluate("t => document.querySelector('[data-testid=play-stage]').player.seek(t)", 0.4 + 0.5 * 6)
    expect(page.get_by_test_id("play-figures")).to_contain_text(f"L1H1 {100 * share:.0f} %")
    spot = page.evaluate(
        "() => document.querySelector('[data-testid=play-stage]').player.stage.spots"
        ".find(({ rect, words }) => words(rect.x, rect.y).startsWith('step 450')).rect"
    )
    box = page.get_by_test_id("play-stage").bounding_box()
    page.mouse.click(box["x"] + spot["x"] + spot["w"] / 2, box["y"] + spot["y"] + spot["h"] / 2)
    expect(page.get_by_test_id("play-headline")).to_contain_text("Step 450:")
    page.get_by_text("The numbers of step 450").click()
    cell = page.locator("details tbody tr").nth(15).locator("td").nth(6)
    flat = STORED["maps"]["L1H1"][9][15 * 16 // 2 + 6]
    assert float(cell.get_attribute("title")) == pytest.approx(flat / 1000)


@pytest.mark.slow
def test_no_text_of_the_scene_of_a_birth_overlaps_or_is_cut_off_in_six_sizes(born):
    page, wrong = born(), []
    for size in SIZES:
        resize(page, size)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_selector(f"[data-theme={theme}]")
            wrong += collisions(page, f"{size} {theme}")
            wrong += [words for t in (0, 1, 3.1, 3.4, 3.8, 5, 7) for words in collisions(page, f"{size} {theme}", [t])]
        assert_nothing_past_the_edge(page, f"{size}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_frame_of_the_scene_of_a_birth_is_cheap_and_it_plays_once_in_view(learn):
    page = learn("birth")
    skip_all(page)
    ready(page)
    page.get_by_test_id("player").evaluate("each => each.scrollIntoView({ block: 'center' })")
    page.wait_for_function("() => document.querySelector('[data-testid=play-stage]').player.t > 0.5")
    page.get_by_test_id("play-button").click()
    cost = page.evaluate("() => document.querySelector('[data-testid=play-stage]').player.cost(200)")
    assert np.median(cost) < 8, "milliseconds of script a frame; 4 on a machine that does nothing else"


@pytest.mark.slow
def test_a_reader_without_motion_sees_the_last_still_and_the_steps_in_words(new_page, studio):
    page = new_page(reduced_motion="reduce")
    page.goto(f"{studio.address}#/learn?lesson=birth")
    expect(page.get_by_test_id("lesson")).to_be_visible()
    skip_all(page)
    ready(page)
    page.get_by_test_id("player").evaluate("each => each.scrollIntoView({ block: 'center' })")
    expect(page.get_by_test_id("play-headline")).to_contain_text("Step 900:")
    expect(page.locator("ol.steps li")).to_have_count(3)


@pytest.mark.slow
def test_a_lesson_plays_its_scene_on_its_sentence(learn):
    for slug, scene in (("one-head", "word"), ("whole-layer", "layer")):
        page = learn(slug)
        skip_all(page)
        place = page.get_by_test_id(f"lesson-scene-{scene}")
        expect(place.get_by_test_id("player")).to_have_attribute("data-scene", scene)
        ready(page)
        page.evaluate(
            "() => { const { player } = document.querySelector('[data-testid=play-stage]');"
            " player.seek(player.scene.end); }"
        )
        said = "68 % of the look" if scene == "word" else "wrote 20 % of it"
        expect(place.get_by_test_id("play-headline")).to_contain_text(said)


@pytest.mark.slow  # test_access opens such an address
def test_an_address_that_names_no_lesson_shows_what_there_is(new_page, studio):
    page = new_page()
    for name in ("no-such", "<script>alert(1)</script>", ".", "a/b"):
        page.goto(f"{studio.address}#/learn?lesson={quote(name, safe='')}")
        expect(page.get_by_test_id("trouble")).to_contain_text(f"no lesson '{name}'")
        assert page.get_by_test_id("lesson").count() == 0
        expect(page.get_by_test_id("lesson-list")).to_be_visible()


@pytest.mark.slow
def test_a_narrow_page_has_one_column_and_nothing_past_its_edge(learn):
    page, lessons = learn("masks"), list(shelf.lessons().values())
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.locator(".prose").first.bounding_box()["width"] >= 300
    page.locator("section.cell").first.get_by_test_id("lesson-cell-run").click()
    expect(page.get_by_test_id("lesson-cell-result").first).to_be_visible()
    assert_nothing_past_the_edge(page, "a lesson whose cell has run")
    fold, first = page.get_by_test_id("lesson-fold"), page.get_by_test_id(f"lesson-{lessons[0].slug}")
    expect(fold).to_contain_text(shelf.lessons()["masks"].title)
    fold.click()
    expect(first).to_be_visible()
    assert_nothing_past_the_edge(page, "the list")
    first.click()
    expect(fold).to_contain_text(f"1 of {len(lessons)}: {lessons[0].title}")
    expect(first).to_have_count(0)
    assert_nothing_past_the_edge(page, "another lesson")


@pytest.mark.slow  # the narrow page runs a cell, too
def test_every_cell_can_be_run_as_it_stands_and_its_sliders_stop_there(learn):
    page, stepped = learn("counting"), shelf.lessons()["counting"].cells["attention-cost"]
    width = next(each for each in shelf.parameters_of(stepped) if each.step and each.step > 1)
    skip_all(page)
    box = page.locator("section.cell").first
    sliders = box.locator("input[type=range]")
    assert str(int(width.value)) in [slider.input_value() for slider in sliders.all()]
    box.get_by_test_id("lesson-cell-run").click()
    expect(box.get_by_test_id("lesson-cell-result")).to_be_visible()


@pytest.mark.slow  # the server's limits are in test_limits
def test_an_answer_that_is_too_long_is_said_in_plain_words(new_page, studio):
    page, name = new_page(forgive=("400",)), "recap-column"
    page.goto(f"{studio.address}#/learn?lesson=recap")
    check = page.get_by_test_id(f"lesson-check-{name}")
    check.get_by_test_id("lesson-check-answer").fill("7" * 1_001)
    check.get_by_test_id("lesson-check-submit").click()
    expect(check.get_by_role("alert")).to_contain_text("'answer' holds 1,001 characters, and takes at most 1,000")
