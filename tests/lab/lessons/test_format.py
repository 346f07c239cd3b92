"""The format of a lesson: a page is read as it is written, mistakes have messages, and the documents' example runs."""

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.lab.lessons import CellBlock, ProseBlock, shelf
from manyheads.lab.lessons.lesson import CheckBlock, InterviewBlock, LessonError, read_lesson
from manyheads.lab.lessons.shelf import fact_references, fill_facts
from manyheads.lab.room import views as learning
from tests.refusals import refuses

DOCUMENTS = (Path(__file__).parents[3] / "docs" / "reference" / "lessons.md").read_text(encoding="utf-8")
HEAD = "---\ntitle: A title\nsummary: In short.\nsources:\n- One 2017, section 3\n- Two: a book\n---\n"
PAGE = f"""{HEAD}
Some *prose*, `q k`, and {{{{example-shape of=X}}}}.

```cell one-head
title: A cell
scale: none
x: 1 0 1 0; 0 2 0 1
```

More.

```python
print("no cell of ours")
```

```check shifted-row
run: changed-row
question: To each: {{operation}} {{amount}}. What happens?
answer: choice
choices: stay as they are | become more even
points: 3
amount: 4
```

```predict looks-most
cell: one-head
question: Where does token {{token}} look?
answer: text
```

```interview why
question: Why?
points:
- because
- and so
answer:
It is *so*.

- truly
```
"""


def test_a_page_is_prose_cells_checks_and_interview_questions_in_its_order():
    page = read_lesson("a-page", PAGE)
    assert (page.title, page.summary, page.fresh) == ("A title", "In short.", False)
    assert page.sources == ("One 2017, section 3", "Two: a book")
    prose, cell, more, check, predict, interview = page.parts
    assert prose == ProseBlock("Some *prose*, `q k`, and {{example-shape of=X}}.\n")
    assert cell == CellBlock("one-head", "A cell", "one-head", {"scale": "none", "x": "1 0 1 0; 0 2 0 1"})
    assert isinstance(more, ProseBlock) and "no cell of ours" in more.text
    question, choices = "To each: {operation} {amount}. What happens?", ("stay as they are", "become more even")
    assert check == CheckBlock("shifted-row", question, "choice", choices, 3, "changed-row", {"amount": "4"})
    where = "Where does token {token} look?"
    assert predict == CheckBlock("looks-most", where, "text", (), 1, "looks-most", {}, "one-head")
    assert interview == InterviewBlock("why", "Why?", ("because", "and so"), "It is *so*.\n\n- truly")
    assert page.questions == {"shifted-row": 3, "looks-most": 1, "why": 1}
    assert read_lesson("a-page", PAGE.replace("\n", "\r\n")) == page
    assert read_lesson("a-page", PAGE.replace("sources:", "fresh: yes\nsources:")).fresh
    assert read_lesson("a-page", PAGE.replace("sources:", "order: 7\nsources:")).order == 7 < page.order
    assert shelf.checked(page) is page


def test_minutes_are_counted_from_what_is_read_run_and_answered():
    """200 words, a cell: a minute; a question of a point, one of more, an interview answer: 40, 60 and 45 seconds."""
    seconds = lambda prose, page: 60 * read_lesson("a-page", f"{HEAD}{prose}\n{page}").minutes  # noqa: E731
    fill = "word " * (200 * 60)  # an hour
    ask = "```check {}\nquestion: Why?\nanswer: number\npoints: {}\n```\n"
    assert seconds(fill, "") == 3600 and seconds(fill + "{{a b=1 c=2}}", "") == 3660, (
        "a fact is a word, and begins a minute"
    )
    assert seconds(fill, "".join(f"```cell c{at}\ntitle: A\n```\n" for at in range(60))) == 7200
    assert seconds("", "".join(ask.format(f"q{at}", 1) for at in range(60))) == 2400 + 60, "60 words"
    assert seconds("", "".join(ask.format(f"q{at}", 3) for at in range(60))) == 3600 + 60
    asked = "```interview i{}\nquestion: Why?\npoints:\n- so\nanswer:\nThus.\n```\n"
    assert seconds("", "".join(map(asked.format, range(80)))) == 3600 + 120, "240 words are 72 seconds"


@pytest.mark.parametrize(("text", "here", "nowhere"), [
    ("<script>alert(1)</script>", "&lt;script&gt;", "<script"),
    ("a <img src=x onerror=alert(1)> b", "&lt;img", "<img"),
    ("![a picture](https://example.org/x.png)", "a picture", "<img"),
    ("[a link](javascript:alert(1))", "javascript", "href"),
    ("```html\n<b>bold</b>\n```", "&lt;b&gt;", "<b>"),
    ("a | b\n--|--\n<i>1</i> | 2", "<td>&lt;i&gt;", "<i>"),
])  # fmt: skip
def test_html_in_a_lesson_is_shown_and_never_used(text, here, nowhere):
    html = learning._html(read_lesson("a-page", f"{HEAD}\n{text}\n").parts[0].text, shelf.load)
    assert here in html and nowhere not in html


@pytest.mark.parametrize(("change", "words"), [
    (("---\ntitle", "title"), "has no head"),
    (("title: A title\n", ""), "lacks title: it needs title, summary"),
    (("sources:", "minutes: 5\nsources:"), "says minutes, which means nothing"),
    (("sources:", "order: first\nsources:"), "order: 'first' is not a whole number of 0 or more"),
    (("title: A cell\n", ""), "cell 'one-head' lacks title"),
    (("```cell one-head", "```cell One Head"), "a name is small letters, digits and hyphens"),
    (("scale: none", "scale"), "'scale' is not a line 'name: value'"),
    (("scale: none", "scale: none\nscale: none"), "says something twice"),
    (("answer: choice", "answer: number"), "choices: .* are for choice"),
    (("choices: stay as they are | become more even\n", ""), "choices: .* are for choice"),
    (("answer: choice", "answer: guess"), "answer: is one of number, choice, text"),
    (("points: 3", "points: 0"), "points: '0' is not a whole number of 1 or more"),
    (("```check shifted-row", "```check one-head"), "has two blocks called 'one-head'"),
    (("cell: one-head\n", ""), "predict 'looks-most' lacks cell"),
    (("cell: one-head", "cell: other"), "predict 'looks-most': no cell on this page is 'other'"),
    (("points:\n- because\n- and so\n", ""), "interview 'why' lacks points or an answer"),
    (("answer:\nIt is *so*.\n\n- truly\n", ""), "interview 'why' lacks points or an answer"),
    (("question: Why?\n", ""), "interview 'why' lacks question"),
])  # fmt: skip
def test_what_is_wrong_with_a_page_is_told(change, words):
    assert change[0] in PAGE
    refuses(LessonError, words, read_lesson, "a-page", PAGE.replace(*change))


@given(st.text(alphabet="-`:|\n #<>&{}abctitle cell check predict interview", max_size=200))
def test_any_page_is_read_or_refused(text):
    for page in (text, HEAD + text):
        try:
            read_lesson("any", page)
        except LessonError as error:
            assert "'any'" in str(error)


@pytest.mark.parametrize(("change", "words"), [
    (("```cell one-head", "```cell two-heads"), "no cell on this page|no cell is called 'two-heads'"),
    (("scale: none", "scale: much"), "scale='much' is not a choice: use one of"),
    (("scale: none", "wings: 2"), "'wings' is not a parameter of cell 'one-head'"),
    (("amount: 4", "amount: 400"), "amount='400' is not a number from 0.5 to 10"),
    (("amount: 4", "wings: 4"), "'wings' is not a parameter of check 'shifted-row': it has scores, operation, amount"),
    (("{amount}", "{wings}"), r"\{wings\} is not an input. It has scores, operation, amount"),
    (("run: changed-row\n", ""), "no check is called 'shifted-row'"),
    (("run: changed-row", "run: looks-most"), "'looks-most' is a prediction on a cell: write ```predict"),
    (("question: Where", "run: changed-row\nquestion: Where"), "'changed-row' is no prediction: write ```check"),
    (("{{example-shape of=X}}", "{{example-size}}"), "no fact is called 'example-size'"),
    (("{{example-shape of=X}}", "{{example-shape of=Z}}"), "of='Z' is not a choice"),
    (("{{example-shape of=X}}", "{{example-shape X}}"), "'X' in {{example-shape X}} is not an input"),
    (("{{example-shape of=X}}", "{{example-shape 'X}}"), "cannot be read: No closing quotation"),
    (("It is *so*.", "It is {{nothing}}."), "no fact is called 'nothing'"),
])  # fmt: skip
def test_a_page_that_asks_for_what_is_not_there_is_refused(change, words):
    assert change[0] in PAGE
    with pytest.raises(LessonError, match=words):
        shelf.checked(read_lesson("a-page", PAGE.replace(*change)))


def test_two_topics_cannot_use_one_name_nor_a_right_answer_be_one_that_cannot_be_given():
    page = read_lesson("a-page", PAGE.replace("choices: stay as they are |", "choices: go away |"))
    with pytest.raises(LessonError, match="'stay as they are' is right, and cannot be given"):
        shelf.answer(page, page.checks["shifted-row"], "go away", shelf.load)
    from manyheads.lab.lessons.pages import one_head as stepbystep

    refuses(LessonError, "'one-head' is another topic's name already", shelf.joined, "CELLS", (stepbystep, stepbystep))


def test_facts_are_asked_with_their_inputs_also_over_a_line():
    asked = 'A {{first a=1 b="two words"}} and {{second\nc=3}}; {not this}.'
    assert fact_references("here", asked) == [("first", {"a": "1", "b": "two words"}), ("second", {"c": "3"})]
    filled = fill_facts("here", asked, lambda name, inputs: name[0] + "".join(inputs.values()))
    assert filled == "A f1two words and s3; {not this}."


def test_a_fact_whose_model_is_missing_says_so_in_its_place(monkeypatch):
    from manyheads.errors import ModelError
    from manyheads.lab.lessons import Fact

    def fail(values, load):
        raise ModelError("there is none")

    monkeypatch.setattr(shelf, "FACTS", {"lost": Fact(fail)})
    assert shelf.say("It is {{lost}}.", lambda name: None) == "It is (a number that cannot be had here: there is none)."


def test_the_formats_own_description_is_a_page_of_it():
    text = inspect.getdoc(inspect.getmodule(read_lesson))
    example = "\n".join(line[4:] for line in text.split("\n") if line.startswith("    ") or not line.strip())
    page = read_lesson("example", example.strip("\n") + "\n")
    assert page.title and len(page.cells) == 1 and len(page.checks) == 2 and len(page.interviews) == 1 and page.sources
    for word in re.findall(r"^```(\w+) ", example, re.MULTILINE):
        assert f"`{word} NAME`" in text, f"{word} is not explained"


def test_the_documents_example_is_a_lesson_that_runs(monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENTS, re.DOTALL | re.MULTILINE)
    (text,) = re.findall(r"^````markdown\n(.*?)^````", DOCUMENTS, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(code, "docs/reference/lessons.md", "exec"), names)
    for table in ("CELLS", "CHECKS", "FACTS"):
        monkeypatch.setattr(shelf, table, names[table])
    lesson = shelf.checked(read_lesson("example", text))
    none = shelf.load
    assert shelf.say(lesson.parts[0].text, none).startswith(
        "A model of `d_model = 512` with `heads = 8` has heads that are 64"
    )
    assert shelf.run_cell(lesson.cells["share-heads"], {}, none).words == "Each head is 16 wide."
    predict, check = lesson.checks["share-split"], lesson.checks["share-parameters"]
    assert shelf.answer(lesson, predict, "16", none).right
    assert shelf.answer(lesson, predict, "32", none, cell={"heads": 2}).right
    assert (
        shelf.answer(lesson, check, "262,144 weights", none).right and shelf.answer(lesson, check, "262k", none).right
    )
    assert "they share its width" in shelf.answer(lesson, check, "2,097,152", none).words
    assert "one head's part" in shelf.answer(lesson, check, "2048", none, inputs={"d_model": 128}).words
    assert "64 columns" in shelf.say(lesson.interviews["share-why"].answer, none)
