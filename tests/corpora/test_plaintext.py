"""Paragraphs, lines and JSON objects: what is a text, what it is called, what is a problem."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.corpora.lines import Line
from manyheads.corpora.sources import json_documents, line_documents, paragraph_documents, text_of

LINES = st.lists(st.text(st.sampled_from("ab \t\r\u00a0é"), max_size=6), max_size=12)


def lines_of(lines, bad=()):
    return [Line(i, "" if i in bad else line, 10 * i, "broken" if i in bad else "") for i, line in enumerate(lines, 1)]


@given(LINES)
def test_paragraphs_are_what_empty_lines_part_with_single_blanks_inside(lines):
    parts = re.split(r"\n\s*\n", "\n".join(lines))
    wanted = [" ".join(part.split()) for part in parts if part.strip()]
    assert [each.text for each in paragraph_documents(lines_of(lines), "f")] == wanted


@given(LINES)
def test_lines_are_texts_without_the_blanks_around_them(lines):
    wanted = [(line.strip(), f"f:{i}", 10 * i) for i, line in enumerate(lines, 1) if line.strip()]
    assert [(each.text, each.name, each.at) for each in line_documents(lines_of(lines), "f")] == wanted


def test_a_paragraph_is_called_after_its_first_line_and_ends_with_its_last():
    found = list(paragraph_documents(lines_of(["", "a", " b ", "", "", "c"]), "page.txt"))
    assert [(each.text, each.name, each.at) for each in found] == [("a b", "page.txt:2", 30), ("c", "page.txt:6", 60)]


def test_a_line_that_cannot_be_read_spoils_its_own_text_alone():
    lines = lines_of(["a", "", "b", "?", "c", "", "d"], bad={4})
    found = list(paragraph_documents(lines, "f"))
    assert [(each.text, each.name, each.problem) for each in found] == [
        ("a", "f:1", ""),
        ("", "f:3", "broken"),
        ("d", "f:7", ""),
    ]
    assert [each.problem for each in line_documents(lines, "f")] == ["", "", "broken", "", ""]
    assert [each.problem for each in json_documents(lines_of(["{}"], bad={1}), "f", "text")] == ["broken"]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=9), max_size=6))
def test_texts_written_as_json_come_back_as_they_were(texts):
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(texts)]
    wanted = [(text, f"f:{i}") for i, text in enumerate(texts, 1) if text.strip()]
    found = json_documents(lines_of(rows), "f", "body")
    assert [(each.text, each.name) for each in found] == wanted


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "cut', "this line is not JSON (Unterminated string starting at, column 10)."),
        ("prose", "this line is not JSON (Expecting value, column 1)."),
        ("[" * 100_000, "this line is not JSON (maximum recursion depth exceeded"),
        ("1" * 5000, "this line is not JSON (Exceeds the limit"),
        ('["a"]', "this is no object with a field 'text', but a list."),
        ("7", "this is no object with a field 'text', but a number."),
        ('{"body": "a", "id": 1}', "there is no field 'text'. There is: 'body', 'id'."),
        ("{}", "there is no field 'text'. There is: none."),
        ('{"text": null}', "the field 'text' holds no text, but nothing (null)."),
        ('{"text": ["a"]}', "the field 'text' holds no text, but a list."),
        ('{"text": true}', "the field 'text' holds no text, but true or false."),
        ('{"text": "\\ud83d"}', "the field 'text' holds half a character (a lone surrogate)."),
    ],
)
def test_a_line_that_holds_no_text_is_a_problem_and_the_next_is_read(line, problem):
    bad, good = json_documents(lines_of([line, "", '{"text": "fine"}']), "f.jsonl", "text")
    assert bad.name == "f.jsonl:1" and bad.text == "" and bad.problem.startswith(problem)
    assert (good.name, good.text, good.problem) == ("f.jsonl:3", "fine", "")


def test_a_pair_of_surrogates_is_a_character():
    assert text_of(json.loads('{"t": "\\ud83d\\ude00"}'), "t") == ("\U0001f600", "")
