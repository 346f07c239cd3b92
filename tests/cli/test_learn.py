"""`manyheads learn`: listed, printed, run, answered; and walked through, with a wrong answer on the way."""

import io
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
from rich.console import Console

from manyheads.cli.learn.page import Walk, table_lines
from manyheads.lessons import Progress, matrix, shelf

from .conftest import assert_refused


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Progress of its own for each test."""
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def walk(slug, lines, *, load=shelf.load, seed=None):
    """What a reader sees who types these lines, and the progress he makes."""
    out, typed, progress = io.StringIO(), iter(lines), Progress()

    def read(prompt):
        out.write(prompt)
        try:
            line = next(typed)
        except StopIteration:
            raise EOFError from None
        out.write(f"{line}\n")
        return line

    console = Console(file=out, width=100, highlight=False, markup=False, emoji=False)
    Walk(shelf.lessons()[slug], console, load, progress, seed, read).go()
    return out.getvalue(), progress


# --------------------------------------------------------------------------------------------- listed, printed, in JSON


def test_lessons_are_listed_with_how_far_one_is(run):
    ran = run("learn")
    assert ran.code == 0 and [line.split()[1] for line in ran.lines[1:-3]] == list(shelf.lessons())
    assert ran.lines[-2] == "The studio's room Learn counts its own points, in the browser."
    run("learn", "masks", "--answer", "causal-cells", "36")
    (line,) = [line for line in run("learn").lines if " masks " in line]
    assert "1 of 6" in line and "1 of 10" in line
    listed = json.loads(run("learn", "--json").out)["lessons"]
    masks = next(each for each in listed if each["lesson"] == "masks")
    assert (masks["answered"], masks["points"], masks["questions"], masks["possible_points"]) == (1, 1, 6, 10)


@pytest.mark.turns(4)
def test_a_card_of_a_kind_of_head_draws_its_firmest_link(run):
    lines = run("learn", "four-archetypes").lines
    title = next(index for index, line in enumerate(lines) if line.startswith("Pronoun to what it means"))
    assert lines[title - 1] == "" and any("52 %" in line and "who" not in line for line in lines[title : title + 4])
    assert any(line.startswith("  [CLS] the researcher who") for line in lines[title : title + 6])


def test_without_a_terminal_the_whole_lesson_is_printed(run):
    ran = run("learn", "masks")
    page = shelf.lessons()["masks"]
    assert ran.code == 0 and page.title in ran.out and "36 of 64 cells can hold a weight" in ran.out.replace("\n", " ")
    flat = " ".join(ran.out.split())
    for check in page.checks.values():
        assert " ".join(shelf.ask(check)[0].split()) in flat
    for cell in page.cells.values():
        assert cell.title in ran.out and shelf.run_cell(cell, {}, shelf.load).words in flat
    assert page.sources[0] in flat and max(map(len, ran.lines)) <= 100
    assert re.findall(r"\d points?, check (\S+)", flat) == list(page.checks)
    assert all(f"cell {name}" in ran.out for name in page.cells)
    assert "To judge an answer: manyheads learn masks --answer CHECK VALUE" in ran.lines
    assert "nothing is read from stdin" in ran.err and "nothing is read" not in run("learn", "masks", "--json").err
    again = run("learn", str(list(shelf.lessons()).index("masks") + 1))
    assert again.out == ran.out == run("learn", "mas").out, "by number, and by the beginning of its name"


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


@pytest.mark.turns(4)
def test_a_printed_lesson_leaves_out_rows_of_long_tables_and_further_heads_unless_all_is_given(run):
    short, whole = (run("learn", "remaining-life", *more).out for more in ((), ("--all",)))
    left = "Left out: rows of long tables and heads 2 to 7. --all prints them."
    assert left in short and "Left out" not in whole
    assert "weights, head 1 " in short and "weights, head 2 " not in short and "weights, head 7 " in whole
    assert "cycle 5 " in short and "cycle 6 " not in short and whole.count("cycle 29") == 10


def test_a_printed_lesson_draws_for_a_pipe_what_can_be_judged_and_an_interview_has_its_model_answers(run):
    seed = re.search(r"Asked from seed (\d+)", run("learn", "recap").out)[1]
    printed = run("learn", "recap", "--seed", seed).out
    judged = run("learn", "recap", "--answer", "recap-column", "0", "--seed", seed).out
    assert " ".join(judged.splitlines()[0].split()) in " ".join(printed.split())
    out = run("learn", "interview").out
    last = list(shelf.lessons()["interview"].interviews.values())[-1].question
    assert out.index("Model answers") > out.index(shelf.say(last, shelf.load)[:30])


def test_small_tables_have_three_figures_wide_maps_percent_and_headings_keep_their_words():
    lines = table_lines(matrix("cache", "", np.array([[80, 85.9], [1.25, 1.342]]), ("MHA", "MQA"), ("GiB", "GB")), 80)
    assert lines[-2].plain.split() == ["MHA", "80.00", "85.90"] and lines[-1].plain.split() == ["MQA", "1.25", "1.34"]
    noise = matrix("out", "", np.array([[0.7, -1e-17], [-0.5, 3.0]]), ("a", "b"), ("d0", "d1"))
    rows = [line.plain.split() for line in table_lines(noise, 80)[-2:]]
    assert rows == [["a", "0.70", "0.00"], ["b", "-0.50", "3.00"]]
    words = "what it says of itself, at a length that no terminal has in one line, so that it goes on in the next one"
    names, heads = ("the same token elsewhere", "punctuation"), ("of its weight, %", "of what it moves, %")
    lines = [each.plain for each in table_lines(matrix("shares", words, np.ones((2, 2)), names, heads), 80)]
    assert max(map(len, lines)) <= 80 and not [line for line in lines if "…" in line]
    assert " ".join(lines[:2]) == f"shares (2 x 2) {words}"
    assert lines[2].split() == ["of", "its", "of", "what", "it"] and lines[3].split() == ["weight,", "%", "moves,", "%"]
    assert lines[4].startswith(names[0])
    weights = np.tril(np.full((24, 24), 1 / 24))
    weights[np.triu_indices(24, 1)] = -np.inf
    tokens = [f"token{at}" for at in range(24)]
    lines = [line.plain for line in table_lines(matrix("weights", "w", weights, tokens, tokens, as_map=True), 120)]
    assert "in percent, tokens by number" in lines[0] and lines[2].split()[:3] == ["0", "token0", "4"]
    narrow = [line.plain for line in table_lines(matrix("Q", "q", weights, tokens, tokens), 100)]
    assert "of it shown" in narrow[0] and max(map(len, narrow[1:])) <= 100


def test_one_prediction_of_a_cell_does_not_answer_the_next():
    page = shelf.lessons()["why-many-heads"]
    first, second = (check for check in page.checks.values() if check.cell == "two-places")
    rights = [shelf.right_of(page, check, {}, {}, shelf.load) for check in (first, second)]
    ran = shelf.run_cell(page.cells["two-places"], {}, shelf.load)
    out, progress = walk("why-many-heads", ["", f"{rights[0].answer}", "", str(rights[1].answer), "q"])
    between = out.split("Right. ")[1]
    assert (
        "another question about it is left" in between and rights[0].words not in between and ran.words not in between
    )
    assert ran.words in " ".join(out.split("Right. ")[2].split()), "after the last one it runs"
    assert len(progress.points["why-many-heads"]) == 2


def test_a_result_is_drawn_in_characters_with_the_code_of_each_step(run):
    out = run("learn", "whole-layer", "--run", "whole-layer").out
    assert "  +- head 1: Q 3x2 > K 3x2" in out and "  -> concat 3x4 > W_O 4x4 > out 3x4" in out
    assert "NumPy: out = concat @ w_o" in out and "PyTorch: weights = scores.softmax(-1)" in out
    out = run("learn", "birth", "--run", "birth").out
    (curve,) = (line for line in out.splitlines() if line.startswith("  repeated"))
    assert curve.split()[1][0] > curve.split()[1][-1] and "3 of 19 moments" in out and "step 900 (20 x 20)" in out
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
    assert wrong.code == 0 and "Not yet. That leaves the diagonal out" in wrong.out and not state.exists()
    right = json.loads(run("learn", "masks", "--answer", "causal-cells", "55", "tokens=10", "--json").out)
    assert right["right"] and right["points"] == 1 and "10 tokens" in right["question"]
    assert json.loads((state / "lessons.json").read_text())["points"] == {"masks": {"causal-cells": 1}}
    every = run("learn", "masks", "--answer", "masked-row", "0.072", "query=1", "kind=every token")
    assert "Right." in every.out, "of a prediction, the cell's values can be given, too"
    seeded = json.loads(run("learn", "recap", "--answer", "recap-column", "0", "--seed", "5", "--json").out)
    check = shelf.lessons()["recap"].checks["recap-column"]
    assert seeded["question"] == shelf.ask(check, shelf.draw(check, 5))[0]


def test_all_is_forgotten_when_it_is_meant(run, state):
    run("learn", "masks", "--answer", "causal-cells", "36")
    assert_refused(run("learn", "--reset"), "add --yes where nobody can be asked")
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
    (("masks", "--run", "x"), "lesson 'masks' has no cell 'x'. It has: masked-scores, "),
    (("masks", "--answer", "x", "1"), "lesson 'masks' has no check 'x'. It has: masked-row, "),
    (("masks", "tokens=3"), "NAME=VALUE goes with --run CELL or --answer"),
    (("masks", "--run", "masked-scores", "kind"), "'kind' is no NAME=VALUE"),
    (("masks", "--run", "masked-scores", "kind=x"), "kind='x' is no choice: use one of"),
    (("masks", "--answer", "causal-cells", "1", "tokens=x"), "tokens='x' is no whole number from 2 to 1,024"),
    (("masks", "--seed", "-1"), "--seed -1: give 0 or more"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(run, arguments, said):
    assert_refused(run("learn", *arguments), said)


# --------------------------------------------------------------------------------------------------------- step by step


def test_a_lesson_is_walked_to_its_end_with_a_wrong_answer_on_the_way():
    page = shelf.lessons()["masks"]
    answers = {name: shelf.right_of(page, each, {}, {}, shelf.load).answer for name, each in page.checks.items()}
    shown = len(shelf.run_cell(page.cells["masked-scores"], {}, shelf.load).shown)
    crossed = len(shelf.run_cell(page.cells["cross-attention"], {}, shelf.load).shown)
    lines = ["", "nonsense", "0.072", *[""] * shown]  # the prose; no number; wrong: the cell then runs
    lines += ["", f"{answers['masked-weight']:.3f}", "", "28", "36"]
    lines += ["", str(answers["window-cells"]), "", f"{answers['dropped-mask']:.1f} %", ""]
    lines += ["", *[""] * crossed, str(answers["cross-shape"])]
    out, progress = walk("masks", lines)
    assert "'nonsense' is no number" in out and "Not yet. That is its weight without the mask." in out
    assert "Not yet. That leaves the diagonal out: a token may look at itself." in out
    assert f"1 of {shown}> " in out and f"{shown} of {shown}> " in out
    assert "5 of 6 questions, 8 of 10 points." in out and page.sources[0] in out
    assert progress.of("masks", page.questions) == (5, 8) == Progress().of("masks", page.questions)


def test_steps_go_back_and_numbers_are_changed_on_the_way():
    lines = ["", "", "x=1 0 1 0; 0 3 0 1", "", "b", "x=1 2", "x=3 0 0 0; 0 1 0 1", "what", "wings=2", "s", "q"]
    out, _ = walk("one-head", lines)
    assert "x = 1 0 1 0; 0 3 0 1" not in out and "X (2 x 4)" in out
    before, after = out.split("X (2 x 4)")[0], out.split("X (2 x 4)")[-1]
    assert "Your answer (Enter skips)" in before
    assert "x has 2 columns, and w_q 4 rows" in out and "'what' means nothing here" in out
    assert "'wings' is no parameter" in out and "   3 " in after


def test_a_prediction_is_judged_by_what_is_in_the_cell_then_and_closed_once_it_has_run_with_the_same():
    out, progress = walk("one-head", ["", "", "", "b", "b", "token 2", "q"])
    assert "The cell has run with this already" in out and not progress.points
    out, _ = walk("one-head", ["", "", "x=1 2", "q"])
    assert "The cell is as it was before." in out
    changed = "x=0 3 0 0; 1 0 0 0; 1 0 0 0"
    out, progress = walk("one-head", ["", changed, "token 0", *[""] * 12, "q"])
    assert "Right." in out and progress.points == {"one-head": {"looks-most": 1}}
    out, progress = walk("one-head", ["", "token 2", "q"])
    assert "Right." in out


def test_choices_are_given_by_number_and_interview_points_are_ticked():
    page = shelf.lessons()["interview"]
    first = next(iter(page.interviews.values()))
    out, progress = walk("interview", ["", "", *["y"] * len(first.points), "", "y", "n"])
    assert f"{len(first.points)} of {len(first.points)} points made." in out and "bend" not in out
    assert progress.points == {"interview": {first.name: 1}}
    position = list(shelf.lessons()["one-head"].parts).index(shelf.lessons()["one-head"].checks["shifted-row"])
    assert position > 0
    out, progress = walk("one-head", ["", "", "s", "", "", "", "2", "1", "q"])
    assert "Not yet. Adding to all leaves every difference" in out and "shifted-row" in progress.points["one-head"]


@pytest.mark.turns(5)
def test_in_a_real_terminal_it_asks_and_ends_well(tmp_path):
    """A process on a terminal of its own: a prompt comes, Enter goes on, q ends; the list takes no torch."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "MANYHEADS_STATE": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "manyheads", "learn", "masks"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    seen, until = "", time.monotonic() + 60
    lines = iter(["", "b", "", "36", "q"])
    while time.monotonic() < until:
        if not select.select([ours], [], [], 0.5)[0]:
            continue
        try:
            seen += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # the terminal is closed when the process has ended
            break
        if seen.endswith("> ") or seen.endswith("(Enter) "):
            os.write(ours, f"{next(lines, 'q')}\n".encode())
            seen += "\n"
    assert process.wait(30) == 0, seen
    assert "Your answer (Enter skips)>" in seen and "Not yet." in seen and "0 of 6 questions" in seen
    os.close(ours)
