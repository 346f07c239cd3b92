"""What holds of every lesson on the shelf, whoever wrote it: answers follow inputs, cells run, facts have sources."""

import math
import re
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from manyheads.errors import ManyHeadsError
from manyheads.lab.lessons import Cell, CellBlock, Check, Predict, ProseBlock, Right, shelf
from manyheads.lab.lessons.answers import judge
from manyheads.lab.lessons.lesson import GROUPS, CheckBlock, LessonError
from manyheads.lab.lessons.parameters import DIMENSIONS, matrix_text, read_matrix
from manyheads.lab.lessons.shelf import fact_references
from manyheads.lab.room import CellAsk
from manyheads.lab.room import views as learning
from manyheads.lab.room.schema import CheckAsk, Lesson
from manyheads.studio import NotHere
from tests.refusals import refuses

DRAWS = 3  # of each check's inputs
ENDS = (".", "?", "!")
TRIED = 6  # values of an input, until one changes the answer
CHECKS = [(slug, name) for slug, page in shelf.lessons().items() for name in page.checks]
PREDICTIONS = [(slug, name) for slug, name in CHECKS if shelf.lessons()[slug].checks[name].cell]
PLAIN = [each for each in CHECKS if each not in PREDICTIONS]
CELLS = [(slug, name) for slug, page in shelf.lessons().items() for name in page.cells]
PAGES = list(shelf.lessons())
SENTENCES = (
    "A small dog ran home because it was cold.",
    "Yes",
    "The cat that I saw yesterday sat on the mat, and the cat slept.",
)


@pytest.fixture(scope="module")
def load(minilm):
    """Gives the one model that is loaded; any other as the lessons would have it."""
    return lambda name: minilm if name == "minilm" else shelf.load(name)


def others(parameter):
    """Some values that it may have, beside its own."""
    if parameter.others or parameter.choices:
        pool = (*parameter.others, *parameter.choices)
    elif parameter.kind == "number" and parameter.low is not None and parameter.high is not None:
        steps = [parameter.value + sign * (parameter.step or 1) * by for by in (1, 2, 4) for sign in (1, -1)]
        pool = (*steps, parameter.low, parameter.high)
        pool = tuple(each for each in pool if parameter.low <= each <= parameter.high)
    else:
        try:
            table = read_matrix(parameter.name, str(parameter.value))
            pool = (matrix_text(np.roll(table, 1, 1)), matrix_text(2 * table[::-1]))
        except LessonError:
            pool = SENTENCES if " " in str(parameter.value) else ("L4H3", "L0H2")
    return [each for each in dict.fromkeys(pool) if each != parameter.value][:TRIED]


def answer_of(page, check, inputs, cell, load):
    right = shelf.right_of(page, check, inputs, cell, load)
    return right.answer if isinstance(right.answer, str) else float(right.answer)


@pytest.fixture(scope="module")
def rights(load):
    """`rights(page, check, inputs)`: what is right. A cell that predictions are about runs once for all of them."""
    ran = {}

    def right(page, check, inputs):
        if check.cell is None:
            return shelf.right_of(page, check, inputs, {}, load)
        at = (page.slug, check.cell)
        if at not in ran:
            ran[at] = shelf.run_cell(page.cells[check.cell], {}, load)
        return shelf.CHECKS[check.run].find(shelf.inputs_of(check, inputs), ran[at])

    return right


def test_lessons_stand_in_groups_one_after_another_and_four_are_for_everyone():
    groups = [page.group for page in shelf.lessons().values()]
    assert list(dict.fromkeys(groups)) == list(GROUPS) == sorted(set(groups), key=groups.index)
    assert groups == sorted(groups, key=GROUPS.index), "a group's lessons stand together"
    marked = [page.slug for page in shelf.lessons().values() if page.everyone]
    assert marked == ["why-many-heads", "one-head", "whole-layer", "four-archetypes"]


# ------------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(("slug", "name"), PLAIN)
def test_an_answer_follows_what_the_question_is_made_from(slug, name, load):
    page = shelf.lessons()[slug]
    check = page.checks[name]
    first = answer_of(page, check, {}, {}, load)
    sound = shelf.CHECKS[check.run].sound or (lambda _: True)
    for parameter in shelf.parameters_of(check):
        asked = [{parameter.name: each} for each in others(parameter)]
        fit = [inputs for inputs in asked if sound(shelf.inputs_of(check, inputs))]
        if any(answer_of(page, check, inputs, {}, load) != first for inputs in fit):
            return
    raise AssertionError(f"no input of {name} changes its answer, {first!r}")


@pytest.mark.parametrize(("slug", "name"), PREDICTIONS)
def test_a_prediction_follows_what_is_in_its_cell(slug, name, load):
    page = shelf.lessons()[slug]
    check = page.checks[name]
    cell, find = page.cells[check.cell], shelf.CHECKS[check.run].find
    asked = [shelf.inputs_of(check, {}), *(shelf.draw(check, seed) for seed in range(DRAWS))]
    ran = shelf.run_cell(cell, {}, load)
    first = [find(inputs, ran).answer for inputs in asked]
    for parameter in shelf.parameters_of(cell):
        for each in others(parameter):
            try:
                ran = shelf.run_cell(cell, {parameter.name: each}, load)
                if [find(inputs, ran).answer for inputs in asked] != first:
                    return
            except ManyHeadsError:
                continue
    raise AssertionError(f"nothing in cell {check.cell} changes what is right to predict, {first}")


@pytest.mark.parametrize(("slug", "name"), CHECKS)
def test_what_is_right_can_be_given_and_what_is_wrong_is_explained(slug, name, load, rights):
    page = shelf.lessons()[slug]
    check = page.checks[name]
    for seed in (None, *range(DRAWS)):
        inputs = {} if seed is None else shelf.draw(check, seed)
        question, choices = shelf.ask(check, inputs)
        assert question and "{" not in question and len(set(choices)) == len(choices)
        right = rights(page, check, inputs)
        assert right.words.endswith(ENDS) and right.hint.endswith(ENDS) and "nan" not in right.words
        verdict_on = partial(judge, right, check.answer, choices, check.points)
        if isinstance(right.answer, str):
            assert not choices or right.answer in choices
            given = [right.answer, *right.also]
        else:
            three = f"{right.answer:.3g}" if abs(right.answer) < 100 else f"{right.answer:.0f}"
            given = [f"{right.answer!r} {right.unit}", f"{three} {right.unit}"]
        for each in given:
            assert verdict_on(each).right and verdict_on(each).points == check.points, each
        assert not verdict_on(f"-123456.7 {right.unit}").right
        for mistake, said in right.mistakes.items():
            assert said.endswith(ENDS), said
            if isinstance(mistake, str):
                assert check.answer == "text" or mistake in choices, f"{mistake!r} cannot be given"
                assert verdict_on(mistake).words == f"Not yet. {said}"
            else:
                verdict = verdict_on(f"{mistake} {right.unit}")
                assert verdict.right or verdict.words.removeprefix("Not yet. ") in right.mistakes.values(), verdict
    assert shelf.answer(page, check, given[0], load, inputs=inputs).right, "as a reader's answer is judged"


FIGURE = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?![\d.,]*\d)(?: (?:GiB|GB|KiB|%))?")
SMALL = 20  # a whole number below stands in any text, and says nothing


def figures_that_are_right(text, right, question):
    """The numbers of a text that would be judged right, but for small whole ones."""
    figures = [match[0] for match in FIGURE.finditer(text)]
    figures = [each for each in figures if not re.fullmatch(r"-?1?\d,?", each)]
    if float(right.answer).is_integer() and abs(right.answer) < SMALL:
        return []
    return [each for each in figures if judge(right, "number", (), 1, each, question).right]


TRANSLATED = [(code, slug) for code, pages in shelf.LANGUAGES.items() for slug in pages if code != "en"]


@pytest.mark.parametrize(("language", "slug"), TRANSLATED)
def test_a_translated_lesson_has_the_parts_of_the_english_one_in_their_order(language, slug):
    page, english = shelf.lessons(language)[slug], shelf.lessons()[slug]
    assert (page.language, english.language) == (language, "en")
    assert [type(part) for part in page.parts] == [type(part) for part in english.parts]
    shared = {
        "cells": ("name", "run", "values", "at_once", "wide"),
        "checks": ("name", "run", "values", "answer", "choices", "points", "cell"),
        "interviews": ("name",),
    }
    for blocks, fields in shared.items():
        for own, other in zip(getattr(page, blocks).values(), getattr(english, blocks).values(), strict=True):
            assert [getattr(own, field) for field in fields] == [getattr(other, field) for field in fields]
            texts = [(block.title if blocks == "cells" else block.question) for block in (own, other)]
            assert texts[0] != texts[1], "translated"
    for own, other in zip(shelf.texts_of(page), shelf.texts_of(english), strict=True):
        assert own != other and fact_references("here", own) == fact_references("here", other)
    for check in page.checks.values():
        assert set(check.choices) <= set(check.words), "choices are said in the language of the page"


def test_a_choice_of_a_translated_lesson_is_judged_as_the_english_one_and_other_lessons_stay_english(load):
    german = shelf.lessons("de")
    page, check = german["one-head"], german["one-head"].checks["shifted-row"]
    question, choices = shelf.ask(check)
    assert "plus 10" in question and choices[0] == "bleiben, wie sie sind"
    assert shelf.answer(page, check, choices[0], load).right
    wrong = shelf.answer(page, check, choices[1], load, num_wrong=1)
    assert not wrong.right and "leaves every difference" in wrong.words and wrong.solution.startswith(choices[0])
    assert not shelf.answer(page, check, "stay as they are", load).answered
    on_page = learning.lesson("one-head", language="de")
    assert (on_page.title, on_page.language, on_page.languages) == (page.title, "de", ["en", "de"])
    assert learning.check("one-head", check.name, CheckAsk(answer=choices[0]), "de").right
    assert list(german) == PAGES and german["masks"] == shelf.lessons()["masks"]
    refuses(LessonError, "language='fr' is a language that no lesson has: use one of en, de", shelf.lessons, "fr")


@pytest.mark.slow  # it runs every cell
@pytest.mark.parametrize("slug", [slug for slug in PAGES if not shelf.lessons()[slug].fresh])
def test_no_answer_is_readable_above_its_question(slug, load):
    """Neither in prose nor in what cells say that stand above it, an unpredicted one's own cell among them."""
    page, above = shelf.lessons()[slug], ""
    for part in page.parts:
        if isinstance(part, ProseBlock):
            above += shelf.say(part.text, load)
        elif isinstance(part, CellBlock):
            ran = shelf.run_cell(part, {}, load)
            above += f" {ran.words} " + " ".join(f"{card.scores} {card.chance}" for card in ran.cards)
        elif isinstance(part, CheckBlock):
            right, (question, choices) = shelf.right_of(page, part, {}, {}, load), shelf.ask(part)
            if part.answer == "number":
                assert not figures_that_are_right(above, right, question), question
            elif part.answer == "choice" and len(choices) > 2 and "L" not in str(right.answer):
                assert not (quoted := re.findall(r"'[^']+' looks at '[^']+'", question)) or quoted[0] not in above


@pytest.mark.parametrize(("slug", "name"), CHECKS)
def test_a_hint_is_not_the_answer(slug, name, load, rights):
    """Where two choices are all there is, it comes with the solution, and may say it."""
    check = shelf.lessons()[slug].checks[name]
    right, (question, choices) = rights(shelf.lessons()[slug], check, {}), shelf.ask(check)
    if len(choices) == 2:
        return
    assert right.hint != right.words
    for words in (right.hint, *right.mistakes.values()):
        if check.answer == "number":
            assert not figures_that_are_right(words, right, question), words
        elif len(str(right.answer)) > 3 and not str(right.answer).startswith("token"):  # 'the' is in any sentence
            assert str(right.answer).casefold() not in words.casefold(), words


def test_no_page_asks_the_same_twice(load, rights):
    for page in shelf.lessons().values():
        asked = {}
        for check in page.checks.values():
            right = rights(page, check, {})
            if isinstance(right.answer, int | float) and abs(right.answer) >= SMALL:
                assert asked.setdefault((float(right.answer), right.unit), check.name) == check.name, page.slug


def test_a_question_whose_answer_stands_above_it_would_be_seen():
    right = Right(85.899, "So it is.", "Divide.", unit="GB")
    assert figures_that_are_right("the first one is 85.9 GB, of 80 GiB", right, "How many GB?") == ["85.9 GB"]
    assert not figures_that_are_right("the first one is 25.8 GB", right, "How many GB?")


def test_what_is_drawn_makes_a_question_worth_asking():
    """Widths that heads divide, whole numbers of cases, nothing that is the same whatever one does."""
    for slug, page in shelf.lessons().items():
        for check in page.checks.values():
            sound = shelf.CHECKS[check.run].sound or (lambda _: True)
            assert sound(shelf.inputs_of(check, {})), f"{slug}, {check.name}: as its page has it"
            for seed in range(40):
                inputs = shelf.draw(check, seed)
                assert sound(inputs), (slug, check.name)
                if {"d_model", "heads"} <= set(inputs):
                    assert inputs["d_model"] % inputs["heads"] == 0, (slug, check.name, inputs)
                question = shelf.ask(check, inputs)[0]
                assert not re.search(r"(?<![\d.,])1 (?:KV )?(?:heads|texts|tokens|keys|layers)\b", question), question


def test_checks_are_many_and_every_function_is_asked_somewhere():
    asked = {check.run for page in shelf.lessons().values() for check in page.checks.values()}
    assert asked == set(shelf.CHECKS), set(shelf.CHECKS) - asked
    assert {type(each) for each in shelf.CHECKS.values()} <= {Check, Predict}
    assert all(isinstance(each, Cell) for each in shelf.CELLS.values())


# -------------------------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize(("slug", "name"), CELLS)
def test_a_cell_runs_as_its_page_has_it(slug, name, load):
    result = learning.run_cell(slug, name, CellAsk(), progress=lambda *_: None, load=load)
    assert result.words and "\n" not in result.words and result.shown and "nan" not in result.model_dump_json().lower()
    for shown in result.shown:
        assert math.prod(shown.shape) >= sum(map(len, shown.values)), shown.label
        assert len(shown.row_labels) == len(shown.values) and len(shown.column_labels) == len(shown.values[0])
    labels = [shown.label for shown in result.shown]
    assert len(set(labels)) == len(labels), "a prediction finds a table by its label"


@pytest.mark.parametrize(("slug", "name"), CELLS)
def test_a_cell_refuses_what_does_not_fit_in_one_sentence(slug, name, load):
    cell = shelf.lessons()[slug].cells[name]
    wrong = {"no-such-name": "1"}
    for each in shelf.parameters_of(cell):
        bad = {"number": ("many", math.nan, 1e300), "choice": ("no such choice",), "text": ("x" * 5000, " ", "<b>;")}
        for value in bad[each.kind]:
            told = refused(cell, {each.name: value}, load)
            assert told or (each.kind == "text" and len(value) < 5000), f"{each.name}={value!r} is taken"
    assert refused(cell, wrong, load)


def refused(cell, given, load):
    try:
        shelf.run_cell(cell, given, load)
    except ManyHeadsError as error:
        words = str(error)
        assert "\n" not in words and len(words) < 400 and words.rstrip().endswith((".", "'", ")")), words
        return True
    return False


# ------------------------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("slug", PAGES)
def test_every_fact_of_a_page_can_be_had_and_names_its_source(slug, load):
    page = shelf.lessons()[slug]
    for text in shelf.texts_of(page):
        said = shelf.say(text, load)
        assert "{{" not in said and shelf.MISSING not in said
        for name, inputs in fact_references(slug, text):
            written = " ".join(f'{key}="{value}"' for key, value in inputs.items())
            alone = shelf.say("{{" + f"{name} {written}" + "}}", load)
            assert alone and alone in said and not set(alone) & set("*_<>`|\n"), f"{name}: {alone!r}"
            if source := shelf.FACTS[name].source:
                cited = re.match(r".*? \d{4}", source)
                assert cited and any(each.startswith(cited[0]) for each in page.sources), f"{source} is not named"


@pytest.mark.parametrize("slug", PAGES)
def test_a_page_states_its_sources_and_what_it_takes(slug):
    page = shelf.lessons()[slug]
    assert page.sources and all(re.search(r"\b(19|20)\d\d\b|docs/|manyheads", each) for each in page.sources)
    assert 5 <= page.minutes <= 10
    assert len(page.questions) >= 4, "at least four questions a lesson"
    assert page.cells or slug in ("recap", "interview", "interview-models")
    lesson = learning.lesson(slug)
    assert Lesson.model_validate_json(lesson.model_dump_json()) == lesson


def test_every_page_of_the_package_is_on_the_shelf_and_in_order():
    pages = {path.stem for path in Path(str(files("manyheads.lab.lessons") / "pages")).glob("*.md")}
    orders = [page.order for page in shelf.lessons().values()]
    assert pages == set(shelf.lessons()) and orders == sorted(set(orders)), "no two pages have one place"
    assert PAGES[:3] == ["why-many-heads", "one-head", "whole-layer"] and PAGES[-1] == "interview-models"
    assert [entry.slug for entry in learning.entries()] == PAGES
    for entry in learning.entries():
        assert entry.num_checks == len(entry.points) and all(entry.points.values())
    assert len(shelf.lessons()["recap"].checks) >= 6 and shelf.lessons()["recap"].fresh
    assert sum(len(page.interviews) for page in shelf.lessons().values()) >= 7


# ---------------------------------------------------------------------------------------------- what the studio is told


def test_a_fresh_page_is_drawn_and_the_same_for_its_seed():
    first, again, other = (learning.lesson("recap", seed) for seed in (7, 7, 8))
    assert first == again != other and first.seed == 7
    assert learning.lesson("recap").seed is not None and learning.lesson("masks").seed is None
    for part in learning.lesson("recap", 7).parts:
        if part.kind == "check":
            check = shelf.lessons()["recap"].checks[part.check]
            right = shelf.right_of(shelf.lessons()["recap"], check, part.inputs, {}, shelf.load)
            said = learning.check("recap", part.check, CheckAsk(answer=str(right.answer), inputs=part.inputs))
            assert said.right, (part.question, right.answer, said)


def test_what_is_not_here_is_told_with_what_is():
    for ask, words in (
        (lambda: learning.lesson("two-heads"), f"the studio has no lesson 'two-heads'. It has: {PAGES[0]}"),
        (lambda: learning.lesson("../one-head"), "has no lesson"),
        (
            lambda: learning.run_cell("one-head", "x", CellAsk(), progress=lambda *_: None),
            "has no cell 'x'. It has: one-head, no-",
        ),
        (lambda: learning.check("one-head", "x", CheckAsk(answer="1")), "has no check 'x'. It has: looks-most, "),
        (lambda: learning.check("x", "x", CheckAsk(answer="1")), "has no lesson 'x'"),
    ):
        refuses(NotHere, re.escape(words), ask)


# ================================================================================================================ prose
# What holds of every lesson's words: numbers are computed and not typed, and nothing in them needs the studio.
#
# Numbers that may stand as they are: 0 and 1; 1,000 and 1,024; a year behind a name; the number of a place ("section
# 3.2", "token 0", "table 3"); digits within a name ("L2H4", "GPT-2", "Llama-2 70B"); a 95 % interval; the number of a
# list's entry; and what stands in `code`, as long as it is inputs or a formula and no result of one. Every other number
# is a fact or an input, computed when it is read.

PLACES = ("section", "table", "figure", "equation", "chapter", "appendix", "page", "step", "part", "row", "column",
          "token", "head", "layer", "key", "query", "place", "lesson", "question", "example", "version")  # fmt: skip
NUMBER = r"\d[\d.,]*(?<![.,])"
ALLOWED = (
    rf"\b(?:{'|'.join(PLACES)})s? {NUMBER}(?:(?:, | and | or | to ){NUMBER})*",
    r"\b(?:[A-Z][\w-]+|al\.),? (?:19|20)\d\d\b", r"(?<![\w.,])(?:0|1|1,000|1,024)(?![\w%]|[.,]\d)", r"^\s*\d+\. ",
    r"\b[A-Z][\w-]+ \d+B\b", r"\b95 % (?:confidence )?interval", r"\b[A-Za-z]\w*-?\w*\d[\w-]*",
)  # fmt: skip
UNITS = "|".join(sorted({re.escape(unit) for units in DIMENSIONS.values() for unit in units}, key=len, reverse=True))
VALUE = rf"[-+]?{NUMBER}\s*(?:{UNITS})"
INPUTS = re.compile(rf"(?:[A-Za-z_][\w ]*\s*=\s*[-+]?{NUMBER}\s*,?\s*)+")
RESULT = re.compile(rf".*\S\s*=\s*{VALUE}")


def typed_numbers(text: str) -> list[str]:
    """Every number of a text that should have been computed."""
    text = re.sub(r"\{\{.*?\}\}", " fact ", text, flags=re.DOTALL)
    text = re.sub(r"\{[a-z_]\w*\}", " input ", text)
    text = re.sub(r"^```.*?^```", " ", text, flags=re.DOTALL | re.MULTILINE)
    found = [code for code in re.findall(r"`([^`]*)`", text) if _result(" ".join(code.split()))]
    text = re.sub(r"`[^`]*`", " code ", " ".join(re.split(r"\n(?!\s*\d+\. |\n)", text)))
    for allowed in ALLOWED:
        text = re.sub(allowed, " ", text, flags=re.MULTILINE)
    return found + re.findall(r"\S*\d\S*", text)


def _result(code: str) -> bool:
    """Whether it is a number alone, or says what a formula comes to."""
    if re.fullmatch(VALUE, code):
        return True
    return RESULT.fullmatch(code) is not None and INPUTS.fullmatch(code) is None


def texts_of(page):
    yield from ((part.text, "prose") for part in page.parts if isinstance(part, ProseBlock))
    yield from ((text, "head") for text in (page.title, page.summary))
    yield from ((cell.title, cell.name) for cell in page.cells.values())
    for check in page.checks.values():
        yield from ((text, check.name) for text in (check.question, *check.choices))
    for each in page.interviews.values():
        yield from ((text, each.name) for text in (each.question, *each.points, each.answer))


@pytest.mark.parametrize("slug", PAGES)
def test_every_number_of_a_page_is_computed_and_it_speaks_of_nothing_that_only_the_studio_has(slug):
    for text, where in texts_of(shelf.lessons()[slug]):
        assert not typed_numbers(text), f"{slug}, {where}: compute {typed_numbers(text)}"
    for text, where in texts_of(shelf.lessons()[slug]):
        assert not re.search(r"\b[Cc]lick|Ask with other numbers|\b[Bb]utton|\b[Ss]lider", text), (slug, where)


@pytest.mark.parametrize(("text", "found"), [
    ("It has 12 heads.", ["12"]),
    ("It has {{n}} heads, and {heads} more; 0 or 1.", []),
    ("Since 2017 it is 5 %.", ["5"]),
    ("Vaswani et al. 2017, sections 3.2.1 and 3.2.2, table 3: L2H4 of GPT-2.", []),
    ("So `d = 64` and `softmax(Q K^T / sqrt(2))`, but `4 * 512 = 2048`.", ["4 * 512 = 2048"]),
    ("In code: `1,050,624`.", ["1,050,624"]),
    ("1. First, 10 GiB.\n2. Second", ["10"]),
    ("powers of 1,024, a row of 1.", []),
    ("token 0 and 1, heads 2, 3 and 4, then 5", ["5"]),
    ("about 0.5 of it, 10.7 GB", ["0.5", "10.7"]),
    ("Llama-2 70B, a 95 % interval; `2 n`, `d_model=512 tokens=128`; `2 n = 16`", ["2 n = 16"]),
    ("`80 GiB`, `9 * 3`, 70B", ["80 GiB", "70B"]),
])  # fmt: skip
def test_numbers_that_are_typed_are_found(text, found):
    assert [each.rstrip(".,") for each in typed_numbers(text)] == found


def test_a_cell_of_the_page_calls_its_fields_by_their_labels():
    def run(slug, cell, **changes):
        learning.run_cell(slug, cell, CellAsk(parameters=changes), progress=lambda *_: None)

    words = "\u201cmodel width\u201d = 65 is not a multiple of \u201cheads\u201d = 8: use one of"
    refuses(ManyHeadsError, words, run, "split-merge", "three-ways", d_model=65)
    refuses(ManyHeadsError, "\u201cX, one row a token\u201d has 2 columns", run, "whole-layer", "whole-layer", x="1 2")
