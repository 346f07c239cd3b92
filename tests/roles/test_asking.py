"""What a question is called, which ones a model can be asked at all, and what tables say of every answer."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.roles import RULES
from manyheads.roles.find import check_resume, fixed_questions
from manyheads.roles.results import role_named
from manyheads.roles.rules import AHEAD, UNASKED, coreference_rules, syntax_rules
from tests.figures.test_roles import roles_of

NAMES = {f"{name}: {way}": f"Which {way} {name}?" for name in ("obj", "iobj", "ccomp") for way in ("up", "down")}


def test_a_question_is_named_by_a_part_and_all_that_it_may_mean_are_listed():
    assert role_named("up iobj", NAMES, {}) == "iobj: up"
    with pytest.raises(StatisticError, match="may mean several roles: did you mean " + ", ".join(map(repr, NAMES))):
        role_named("o", NAMES, {})
    with pytest.raises(StatisticError, match="give probes=True"):
        role_named("copying", NAMES, {})
    assert role_named("copying", NAMES, {"copying": "Which copies?"}) == "copying"


@pytest.mark.parametrize("listed", ["to comma", "to_comma"])
@pytest.mark.parametrize("asked", ["to comma", "to_comma", "To_Comma"])
def test_a_pattern_is_asked_by_its_functions_name_and_as_it_is_listed(listed, asked):
    assert role_named(asked, {**NAMES, listed: "Which?", "to comma or stop": "Which?"}, {}) == listed


def test_what_is_asked_of_any_text_is_known_before_one_is_read():
    known = fixed_questions(["mine"], passages=False)
    assert {"previous token", "sink", "first token", "mine"} <= known.keys() and "coreference" not in known
    assert "coreference" in fixed_questions([], passages=True)


def unasked(rules, causal):
    nothing = float("nan")
    found = roles_of(rules=rules, score=nothing, given=None, num_queries=0, holds=False)
    sites = tuple(replace(site, causal=causal) for site in found.tables[0].sites)
    return replace(found, tables=(replace(found.tables[0], sites=sites), found.tables[1]))


def test_a_causal_head_is_not_asked_what_comes_later():
    previous, following = RULES[:2]
    rules = (previous, following, *syntax_rules(["det"]), coreference_rules()[0])
    whys = [UNASKED, AHEAD, AHEAD, AHEAD, UNASKED]
    assert list(unasked(rules, True).unanswerable.values()) == whys
    found = unasked(rules, False)
    assert set(found.unanswerable.values()) == {UNASKED} and not found.answerable and found.num_tried == 0
    some = roles_of(rules=rules, num_queries=7)
    assert not some.unanswerable and some.num_tried == len(rules) * 6


def test_a_heads_label_is_found_by_its_name_too():
    found = roles_of(2, 3)
    assert found["L1H2"] is found[5] is found[Head("", 1, 2)]
    with pytest.raises(HeadError, match="there is no head L9H9 here, only L0H0 to L1H2"):
        found["L9H9"]
    with pytest.raises(HeadError, match="L2-9"):
        found["L2-9"]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_every_row_of_a_table_says_that_effect_was_not_measured(kind, tmp_path):
    found = roles_of(1, 2)
    found.save(tmp_path / f"t.{kind}")
    frame = getattr(pd, f"read_{kind}")(tmp_path / f"t.{kind}")
    assert set(frame["effect"]) == {"not measured"} and len(frame) == 2 * len(found.questions)
    if kind == "parquet":
        assert frame.attrs["notes"] == found.notes


def test_no_texts_and_plain_texts_where_gold_is_needed_are_said(minilm):
    with pytest.raises(TextError, match="texts=None: give a text"):
        mh.find_roles(minilm, None)
    for ask in (mh.compat.clark.syntax_accuracies, mh.compat.clark.coreference_accuracies):
        with pytest.raises(TextError, match="document 0 is of type str: give Documents with gold"):
            ask(minilm, iter(["plain text"]))


def test_a_folder_with_other_files_is_not_gone_on_with(tmp_path):
    check_resume(None)
    check_resume(tmp_path)
    for name in ("texts", "passages", "elsewhere"):
        (tmp_path / name).mkdir()
    check_resume(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileAccessError, match=r"holds notes.txt, which is no part of such a run"):
        check_resume(tmp_path)
    with pytest.raises(FileAccessError, match="is a file: name a folder"):
        check_resume(tmp_path / "notes.txt")


def test_questions_are_known_before_the_long_reading(minilm, monkeypatch):
    monkeypatch.setattr("manyheads.statistics.corpus_run.run.Worker.measure", lambda *_: pytest.fail("read"))

    def refuse(questions):
        assert {"previous token", "mine"} <= questions.keys()
        raise StatisticError("nobody asks that")

    with pytest.raises(StatisticError, match="nobody asks that"):
        mh.find_roles(minilm, ["a cat sat"], patterns={"mine": len}, on_questions=refuse)
