"""`manyheads learn`: listed, printed, run and answered."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.cells import cell_len

from manyheads.lab.commands.lesson_page import table_lines
from manyheads.lab.lessons import matrix, shelf
from manyheads.lab.lessons.cells import Table
from manyheads.lab.lessons.lesson import GROUPS
from tests.cli.conftest import assert_refused


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Progress of its own for each test."""
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


# --------------------------------------------------------------------------------------------- listed, printed, in JSON


def test_lessons_are_listed_with_how_far_one_is(run):
    ran = run("learn")
    rows = [line.replace("*", " * ").split() for line in ran.lines[1:-3] if line.strip() not in GROUPS]
    assert ran.code == 0 and [row[2] if row[1] == "*" else row[1] for row in rows] == list(shelf.lessons())
    assert [row[2] for row in rows if row[1] == "*"] == [p.slug for p in shelf.lessons().values() if p.everyone]
    assert [line for line in ran.lines if line in GROUPS] == list(GROUPS)
    assert ran.lines[-2] == "* are for everyone. The studio's room Learn counts its own points, in the browser."
    run("learn", "masks", "--answer", "causal-cells", "36")
    (line,) = [line for line in run("learn").lines if " masks " in line]
    assert "1 of 6" in line and "1 of 10" in line
    listed = json.loads(run("learn", "--json").out)["lessons"]
    masks = next(each for each in listed if each["lesson"] == "masks")
    assert (masks["answered"], masks["points"], masks["questions"], masks["possible_points"]) == (1, 1, 6, 10)


def test_a_card_of_a_kind_of_head_is_printed_with_its_links_its_score_and_what_chance_gives(run):
    page = shelf.lessons()["four-archetypes"]
    ran = shelf.run_cell(page.cells["four-archetypes"], {}, shelf.load)
    flat = " ".join(run("learn", "four-archetypes", "--run", "four-archetypes").out.split())
    for card in ran.cards:
        for words in (card.title, card.pattern, card.reason, card.scores, card.chance, card.next_question):
            assert " ".join(words.split()) in flat
    assert "Here: who -> researcher 52 %." in flat


def test_a_lesson_is_printed_whole_its_cells_run_and_its_questions_asked(run):
    ran = run("learn", "masks")
    page = shelf.lessons()["masks"]
    assert ran.code == 0 and page.title in ran.out and "78 of 144 cells can hold a weight" in ran.out.replace("\n", " ")
    flat = " ".join(ran.out.split())
    for check in page.checks.values():
        assert " ".join(shelf.ask(check)[0].split()) in flat
    for cell in page.cells.values():
        assert cell.title in ran.out and shelf.run_cell(cell, {}, shelf.load).words in flat
    assert page.sources[0] in flat and max(map(len, ran.lines)) <= 100
    assert re.findall(r"\d points?, check (\S+)", flat) == list(page.checks)
    assert all(f"cell {name}" in ran.out for name in page.cells)
    assert "To judge an answer: manyheads learn masks --answer CHECK VALUE" in ran.lines
    assert ran.err == ""
    again = run("learn", str(list(shelf.lessons()).index("masks") + 1))
    assert again.out == ran.out == run("learn", "mas").out, "by number, and by the beginning of its name"


def test_a_lesson_in_german_is_printed_and_judged_and_another_says_that_it_is_english(run):
    ran = run("learn", "one-head", "--language", "de", "--answer", "shifted-row", "bleiben, wie sie sind")
    assert ran.code == 0 and "Jeder von ihnen wird verändert: plus 10" in ran.out and "Right." in ran.out
    ran = run("learn", "masks", "--language", "de", "--run", "cross-attention", "--json")
    assert ran.code == 0 and "lesson 'masks' is not available in 'de': this is the English one." in ran.err
    assert "Die Rechnung, Schritt für Schritt" in run("learn", "--language", "de").out
    assert_refused(run("learn", "one-head", "--language", "fr"), "use one of en, de")


def test_a_lesson_as_json_has_its_numbers_and_its_questions(run):
    document = json.loads(run("learn", "masks", "--json").out)
    kinds = [part["kind"] for part in document["parts"]]
    assert document["lesson"] == "masks" and document["seed"] is None
    assert {"prose", "cell", "check", "predict"} <= set(kinds)
    cell = next(part for part in document["parts"] if part.get("cell") == "masked-scores" and part["kind"] == "cell")
    weights = next(each for each in cell["shown"] if each["label"] == "weights")
    assert weights["values"][0] == [1, 0, 0, 0] and weights["as_map"] and weights["shape"] == [4, 4]
    drawn = [json.loads(run("learn", "recap", "--json", "--seed", seed).out) for seed in ("3", "3", "4")]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0]["seed"] == 3
    interview = json.loads(run("learn", "interview", "--json").out)
    assert all(part["points"] and part["answer"] for part in interview["parts"] if part["kind"] == "interview")


def test_a_printed_lesson_leaves_out_rows_of_long_tables_and_further_heads_unless_all_is_given(run):
    short, whole = (run("learn", "remaining-life", *more).out for more in ((), ("--all",)))
    left = "Left out: heads 2 to 7 and rows or columns of large tables. --all prints them."
    assert left in short and "Left out" not in whole
    assert "weights, head 1 " in short and "weights, head 2 " not in short and "weights, head 7 " in whole
    rows = [len(re.findall(rf"^cycle {cycle} ", out, re.MULTILINE)) for out in (short, whole) for cycle in (0, 15, 29)]
    # The picture that the lesson opens with names its first cycle in further tables.
    assert rows[0] >= rows[2] > 0 == rows[1] and rows[3] >= rows[4] == rows[5] > rows[0]


def test_a_printed_lesson_draws_for_a_pipe_what_can_be_judged_and_an_interview_has_its_model_answers(run):
    seed = re.search(r"Asked from seed (\d+)", run("learn", "recap").out)[1]
    printed = run("learn", "recap", "--seed", seed).out
    judged = run("learn", "recap", "--answer", "recap-column", "0", "--seed", seed).out
    assert " ".join(judged.splitlines()[0].split()) in " ".join(printed.split())
    out = run("learn", "interview").out
    last = list(shelf.lessons()["interview"].interviews.values())[-1].question
    assert out.index("Model answers") > out.index(shelf.say(last, shelf.load)[:30])


def lines_of(*parts, complete=False, width=80, **more):
    return table_lines(matrix("name", "words", *parts, **more), width, complete)[0]


def test_numbers_have_three_figures_and_headings_keep_their_words():
    lines = lines_of(np.array([[80, 85.9], [1.25, 1.342]]), ("MHA", "MQA"), ("GiB", "GB"))
    assert lines[-2].split() == ["MHA", "80.00", "85.90"] and lines[-1].split() == ["MQA", "1.25", "1.34"]
    noise = lines_of(np.array([[0.7, -1e-17], [-0.5, 3.0]]), ("a", "b"), ("d0", "d1"))
    assert [line.split() for line in noise[-2:]] == [["a", "0.700", "0"], ["b", "-0.500", "3"]]
    names, heads = ("the same token elsewhere", "punctuation"), ("of its weight, %", "of what it moves, %")
    lines = lines_of(np.ones((2, 2)), names, heads)
    assert [line.split() for line in lines[:2]] == [
        ["of", "its", "of", "what", "it"],
        ["weight,", "%", "moves,", "%"],
    ]
    assert lines[2].startswith(names[0]) and not [line for line in lines if "…" in line]


def test_tables_are_cut_to_the_terminal_unless_all_is_given():
    weights = np.tril(np.full((24, 24), 1 / 24))
    weights[np.triu_indices(24, 1)] = -np.inf
    tokens = [f"token{at}" for at in range(24)]
    for width in (60, 80, 100):
        lines, is_cut = table_lines(matrix("weights", "w", weights, tokens, tokens, as_map=True), width, False)
        assert is_cut and max(map(len, lines)) <= width < max(map(len, lines)) + 2 * len("  token23")
        assert len(lines) == 1 + 10 + 1 and "token0" in lines[1] and lines[-1].split()[-1] == "0.0417"
        assert lines[1].split()[:3] == ["token0", "0.0417", "."] and "..." in lines[0]
        whole, is_cut = table_lines(matrix("weights", "w", weights, tokens, tokens, as_map=True), width, True)
        assert not is_cut and max(map(len, whole)) <= width and "..." not in "".join(whole)
        assert sum(line.count("0.0417") for line in whole) == 24 * 25 / 2
    small, is_cut = table_lines(matrix("weights", "w", weights[:5, :5], tokens[:5], tokens[:5], as_map=True), 60, False)
    assert not is_cut and len(small) == 6
    wide = Table("w", "", np.ones((2, 2)), (2, 2), ("猫が", "b"), ("坐った", "c"))
    assert len({cell_len(line) for line in table_lines(wide, 60, False)[0]}) == 1, "two columns a character"


def test_a_training_is_printed_as_steps_of_its_curves_and_three_of_its_moments(run):
    short, whole = (run("learn", "birth", "--run", "birth", *more).out for more in ((), ("--all",)))
    assert "loss, nats a token (10 x 2 of 91 x 2)" in short and "loss, nats a token (91 x 2)" in whole
    steps = [re.findall(r"^step (\d+)  ", out, re.MULTILINE) for out in (short, whole)]
    assert steps[0][0] == steps[1][0] == "0" and steps[0][-1] == steps[1][-1] == "900" and len(steps[1]) == 3 * 91
    maps = [re.findall(r"^step (\d+) \(20 x 20\)", out, re.MULTILINE) for out in (short, whole)]
    assert maps[0] == ["0", "450", "900"] and len(maps[1]) == 19 and "16 of 19 moments" in short
    drawn = json.loads(run("learn", "birth", "--run", "birth", "--json").out)
    assert len(drawn["shown"]) == len(drawn["frames"]) == 19 and "flow" not in drawn


def test_a_cell_is_run_with_other_values_and_a_choice_given_as_the_page_numbers_it(run):
    document = json.loads(run("learn", "masks", "--run", "masked-scores", "--json", "kind=every token").out)
    assert "The mask hides 0 of 16 cells" in document["words"]
    ran = run("learn", "one-head", "--run", "one-head", "x=2 0 0 0; 0 1 0 1")
    assert ran.code == 0 and "X (2 x 4)" in ran.out and "weights (2 x 2)" in ran.out
    for given in ("2", "No", "n"):
        assert "Right." in run("learn", "why-many-heads", "--answer", "within", given).out, given


def test_an_answer_is_judged_and_its_points_kept(run, state):
    wrong = run("learn", "masks", "--answer", "causal-cells", "28")
    assert wrong.code == 0 and "Not yet. That leaves the diagonal out" in wrong.out
    assert json.loads((state / "lessons.json").read_text())["points"] == {}
    right = json.loads(run("learn", "masks", "--answer", "causal-cells", "55", "tokens=10", "--json").out)
    assert right["right"] and right["points"] == 1 and "10 tokens" in right["question"]
    assert json.loads((state / "lessons.json").read_text())["points"] == {"masks": {"causal-cells": 1}}
    every = run("learn", "masks", "--answer", "masked-row", "0.072", "query=1", "kind=every token")
    assert "Right." in every.out, "of a prediction, the cell's values can be given, too"
    seeded = json.loads(run("learn", "recap", "--answer", "recap-column", "0", "--seed", "5", "--json").out)
    check = shelf.lessons()["recap"].checks["recap-column"]
    assert seeded["question"] == shelf.ask(check, shelf.draw(check, 5))[0]


def test_a_wrong_answer_costs_half_of_the_points_and_the_solution_all_of_them(run, state):
    answered = lambda value, *more: run("learn", "masks", "--answer", "window-cells", value, *more)  # noqa: E731
    worth = shelf.lessons()["masks"].checks["window-cells"].points
    assert worth == 2 and "The solution" not in answered("3").out
    half = answered("21")
    assert "Right." in half.out and "After 1 wrong answer: half of the points." in half.out
    assert json.loads((state / "lessons.json").read_text())["points"] == {"masks": {"window-cells": 1}}
    (state / "lessons.json").unlink()
    answered("3")
    assert "The solution: 21." in answered("4").out
    late = json.loads(answered("21", "--json").out)
    assert late["right"] and late["points"] == 0, "an answer that was shown is worth nothing"
    other = json.loads(answered("27", "tokens=10", "--json").out)
    assert other["right"] and other["points"] == worth, "with other numbers it is another question"
    choice = json.loads(run("learn", "birth", "--answer", "without-head", "2", "--json").out)
    assert not choice["right"] and choice["solution"].startswith("it stays."), "of two choices one is left"


def test_progress_of_an_older_version_is_read(run, state):
    state.mkdir()
    (state / "lessons.json").write_text(json.dumps({"version": 1, "points": {"masks": {"causal-cells": 1}}}))
    assert "1 of 6" in run("learn").out
    run("learn", "masks", "--answer", "window-cells", "3")
    kept = json.loads((state / "lessons.json").read_text())
    assert kept["points"] == {"masks": {"causal-cells": 1}} and kept["wrong"]["masks"]["window-cells"][1] == 1


def test_all_is_forgotten_when_it_is_meant(run, state):
    run("learn", "masks", "--answer", "causal-cells", "36")
    assert_refused(run("learn", "--reset"), "add --yes if nobody can be asked")
    assert "1 of 6" in run("learn").out
    ran = run("learn", "--reset", "--yes")
    assert ran.code == 0 and "1 point forgotten" in ran.err and "1 of 6" not in run("learn").out


def test_a_home_that_cannot_be_written_is_one_sentence(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "file"))
    ran = run("learn", "masks", "--answer", "causal-cells", "36")
    assert ran.code == 0 and "Right." in ran.out
    assert [line for line in ran.err.splitlines() if "your points are not kept: cannot write" in line]
    assert_refused(run("learn", "--reset", "--yes"), "cannot write")


@pytest.mark.parametrize(("arguments", "said"), [
    (("nothing",), "there is no lesson 'nothing'. There are: "),
    (("one-hed",), "there is no lesson 'one-hed'. Did you mean 'one-head'? There are: "),
    (("--run", "x"), "need a lesson"),
    (("masks", "--device", "toaster"), "--device='toaster' cannot be used: "),
    (("masks", "--run", "x"), "lesson 'masks' has no cell 'x'. It has: mask-at-work, masked-scores, "),
    (("masks", "--answer", "x", "1"), "lesson 'masks' has no check 'x'. It has: masked-row, "),
    (("masks", "tokens=3"), "NAME=VALUE goes with --run CELL or --answer"),
    (("masks", "--run", "masked-scores", "kind"), "'kind' is not NAME=VALUE"),
    (("masks", "--run", "masked-scores", "kind=x"), "kind='x' is not a choice: use one of"),
    (("masks", "--answer", "causal-cells", "1", "tokens=x"), "tokens='x' is not a whole number from 2 to 1,024"),
    (("masks", "--seed", "-1"), "--seed -1: give 0 or more"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(run, arguments, said):
    assert_refused(run("learn", *arguments), said)


def test_an_interview_question_is_counted_by_its_points(run, state):
    page = shelf.lessons()["interview"]
    (name, first), count = next(iter(page.interviews.items())), len(next(iter(page.interviews.values())).points)
    out = " ".join(run("learn", "interview").out.split())
    assert f"1 point, interview {name}" in out and "--answer INTERVIEW NUMBER" in out
    assert all(" ".join(shelf.say(point, shelf.load).split()) in out for point in first.points)
    some = run("learn", "interview", "--answer", name, str(count - 1))
    assert some.lines == [shelf.say(first.question, shelf.load), f"{count - 1} of {count} points made."]
    assert not state.exists()
    right = json.loads(run("learn", "interview", "--answer", name, str(count), "--json").out)
    assert (right["right"], right["points"], right["words"]) == (True, 1, f"{count} of {count} points made.")
    assert json.loads((state / "lessons.json").read_text())["points"] == {"interview": {name: 1}}
    for given in (str(count + 1), "all", "-1"):
        assert_refused(run("learn", "interview", "--answer", name, given), f"'{given}' is not a number of points: say")


def test_in_a_real_terminal_a_lesson_is_printed_and_reset_asks(tmp_path):
    """A process on a terminal of its own: the page is printed and nothing is asked; --reset takes no for an answer."""
    for arguments, answer, seen_at_the_end in (
        (["masks"], "", "--answer CHECK VALUE"),
        (["--reset"], "n", "nothing was forgotten"),
    ):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "MANYHEADS_STATE": str(tmp_path), "TERM": "xterm", "COLUMNS": "120"}
        environment["NO_COLOR"] = "1"
        command = [sys.executable, "-m", "manyheads", "learn", *arguments]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
        os.close(theirs)
        seen, until = "", time.monotonic() + 60
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                seen += os.read(ours, 65536).decode(errors="replace")
            except OSError:  # the terminal is closed when the process has ended
                break
            if answer and seen.endswith("[y/N] "):
                os.write(ours, f"{answer}\n".encode())
                seen += "\n"
        assert process.wait(30) == 0, seen
        assert seen_at_the_end in seen
        os.close(ours)
