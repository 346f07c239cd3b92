"""What holds of every lesson's words: numbers are computed and not typed, and nothing in them needs the studio."""

import re

import pytest

from manyheads.lessons import ProseBlock, shelf

from .literals import typed_numbers

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
