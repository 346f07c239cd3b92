"""Claims about the code in README.md and docs: what a reader types from a page works; what is not tried says why."""

from __future__ import annotations

import pytest

from tests.docs.pages import Command, blocks_of, commands_of, named, pages
from tests.docs.running import outcome_of, same_print

WITH_CODE = [page for page in pages() if any(each.language in ("python", "sh") for each in blocks_of(page))]
OURS = ("manyheads ", "import manyheads", "from manyheads", "$ manyheads")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_the_code_of_a_page_runs_from_top_to_bottom(page):
    found = outcome_of(page)
    for line, what, reason in found.skipped:
        print(f"not run: {named(page)}:{line} {what}: {reason}")
    assert not found.fault, found.fault


def test_code_says_its_language_so_that_it_is_run():
    for page in pages():
        for block in blocks_of(page):
            where = f"{named(page)}:{block.line}"
            if block.language not in ("python", "sh", "text", "markdown"):
                assert not any(line.startswith(OURS) for line in block.code.splitlines()), f"{where} is python or sh"
            assert not block.not_run or block.language in ("python", "sh"), f"{where} is not run anyway"


PAGE = """# A page

```python
print("one")
```

prints

    one

```sh
manyheads size --list   # a comment
make test
manyheads studio
manyheads train induction
manyheads look --model \\\\
    FOLDER
```

<!-- not run: no reason but this -->
```py
raise SystemExit("never")
```

````markdown
```python
raise SystemExit("text of a page in a page")
```
````
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        return page

    return written


def test_blocks_are_read_with_their_lines_reasons_and_prints(write):
    python, shell, skipped, inside = blocks_of(write(PAGE))
    assert (python.line, python.language, python.prints, python.not_run) == (4, "python", "one\n", "")
    assert [each.not_run for each in commands_of(shell)] == [
        "", "a line of another program", "it serves until Ctrl-C; tests/studio does that",
        "it trains for minutes; tests/lab/training trains less", "a name in capitals stands for yours",
    ]  # fmt: skip
    assert Command(12, "manyheads size --list   # a comment") == next(commands_of(shell))
    assert (skipped.language, skipped.not_run) == ("python", "no reason but this")
    assert inside.language == "markdown"


def test_a_page_runs_and_counts_what_was_not_run(write):
    found = outcome_of(write(PAGE))
    assert (found.fault, found.python, found.commands) == ("", 1, 1)
    assert [reason for _, _, reason in found.skipped][-1] == "no reason but this" and len(found.skipped) == 5


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "line 6, in <module>"),
        ("```sh\nmanyheads size no-such-model\n```\n", "`manyheads size no-such-model` ended with 2: manyheads: "),
        ('```python\nprint("one")\n```\n\n```text\ntwo\n```\n', "prints\none\n\nwhere the page shows\ntwo"),
        ("```python\nimport os\nos._exit(3)\n```\n", "the process ended with 3"),
    ],
    ids=("python", "command", "print", "death"),
)
def test_what_fails_is_told_with_its_place(write, text, fault):
    assert fault in outcome_of(write(text)).fault


def test_what_is_not_held_is_counted_and_not_compared(write):
    found = outcome_of(write("```python\nprint(1)\n```\n\n<!-- not held: of one machine -->\n```text\n2\n```\n"))
    assert (found.fault, found.skipped) == ("", [[2, "what it prints", "of one machine"]])


def test_prints_are_compared_but_for_the_last_figure_and_some_lines_may_be_shown():
    assert same_print("a 0.97, 12 b\n", "a 0.98, 12 b\n\n") and same_print("0.999999\n", "0.9999934\n")
    assert same_print("8e-07", "6e-07") and same_print("8.2e-03", "8.3e-03") and not same_print("8.2e-03", "8.4e-03")
    assert not same_print("a 0.97, 12 b", "a 0.97, 13 b") and not same_print("a 0.97", "a 0.99")
    assert not same_print("a 1", "b 1") and not same_print("a 1", "a 1 1") and not same_print("a", "")
    assert same_print("one\n...\nthree\n", "one\ntwo\nthree\nfour\n")
    assert not same_print("three\none\n", "one\ntwo\nthree\n") and not same_print("one\none\n", "one\ntwo\n")
