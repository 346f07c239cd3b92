"""docs/reference/lessons.md is true: its functions and its page are a lesson that runs, asks and answers."""

import re
from pathlib import Path

from manyheads.lessons import shelf
from manyheads.lessons.lesson import read_lesson

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "lessons.md").read_text(encoding="utf-8")


def test_the_documents_example_is_a_lesson_that_runs(monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (text,) = re.findall(r"^````markdown\n(.*?)^````", PAGE, re.DOTALL | re.MULTILINE)
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
