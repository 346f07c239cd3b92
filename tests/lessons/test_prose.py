"""What holds of every lesson's words: numbers are computed and not typed, and nothing in them needs the studio.

Numbers that may stand as they are: 0 and 1; 1,000 and 1,024; a year behind a name; the number of a place ("section
3.2", "token 0", "table 3"); digits within a name ("L2H4", "GPT-2", "Llama-2 70B"); a 95 % interval; the number of a
list's entry; and what stands in `code`, as long as it is inputs or a formula and no result of one. Every other number
is a fact or an input, computed when it is read.
"""

import re

import pytest

from manyheads.lessons import ProseBlock, shelf
from manyheads.lessons.parameters import DIMENSIONS

PLACES = ("section", "table", "figure", "equation", "chapter", "appendix", "page", "step", "part", "row", "column",
          "token", "head", "layer", "key", "query", "place", "lesson", "question", "example", "version")  # fmt: skip
NUMBER = r"\d[\d.,]*(?<![.,])"
ALLOWED = (
    rf"\b(?:{'|'.join(PLACES)})s? {NUMBER}(?:(?:, | and | or | to ){NUMBER})*",
    r"\b(?:[A-Z][\w-]+|al\.),? (?:19|20)\d\d\b",
    r"(?<![\w.,])(?:0|1|1,000|1,024)(?![\w%]|[.,]\d)",
    r"^\s*\d+\. ",
    r"\b[A-Z][\w-]+ \d+B\b",
    r"\b95 % (?:confidence )?interval",
    r"\b[A-Za-z]\w*-?\w*\d[\w-]*",
)
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


PAGES = list(shelf.lessons())


def texts_of(page):
    yield from ((part.text, "prose") for part in page.parts if isinstance(part, ProseBlock))
    yield from ((text, "head") for text in (page.title, page.summary))
    yield from ((cell.title, cell.name) for cell in page.cells.values())
    for check in page.checks.values():
        yield from ((text, check.name) for text in (check.question, *check.choices))
    for each in page.interviews.values():
        yield from ((text, each.name) for text in (each.question, *each.points, each.answer))


@pytest.mark.parametrize("slug", PAGES)
def test_every_number_of_a_page_is_computed_or_of_a_kind_that_may_stand(slug):
    for text, where in texts_of(shelf.lessons()[slug]):
        assert not typed_numbers(text), f"{slug}, {where}: compute {typed_numbers(text)}"


@pytest.mark.parametrize("slug", PAGES)
def test_a_page_speaks_of_nothing_that_only_the_studio_has(slug):
    for text, where in texts_of(shelf.lessons()[slug]):
        assert not re.search(r"\b[Cc]lick|Ask with other numbers|\b[Bb]utton|\b[Ss]lider", text), (slug, where)


@pytest.mark.parametrize(
    ("text", "found"),
    [
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
    ],
)
def test_numbers_that_are_typed_are_found(text, found):
    assert [each.rstrip(".,") for each in typed_numbers(text)] == found
