"""`manyheads practice`: exercises listed, begun and judged; codes handed in, and the report of a class."""

import json
from pathlib import Path

import pytest

from manyheads.lab import practice
from manyheads.lab.practice import SolutionVerdict
from manyheads.lab.practice.judging import with_points
from tests.cli.conftest import assert_refused
from tests.lab.practice.solutions import SOLUTIONS

WRONG = SOLUTIONS["causal-mask"].source.replace(" / np.sqrt(q.shape[-1])", "")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Progress of its own for each test."""
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))


def test_exercises_are_listed_with_what_is_done(run):
    practice.judge("softmax", lambda scores: 0)
    assert [line[:2] for line in run("practice").lines[:10]] == ["  "] * 10
    with_points(practice.EXERCISES["softmax"], SolutionVerdict(True, 1, ""))
    ran = run("practice")
    assert [line.split()[line.startswith("ok")] for line in ran.lines[:10]] == list(practice.EXERCISES)
    assert ran.lines[0].startswith("ok softmax ") and max(map(len, ran.lines)) <= 100 and "…" not in ran.out
    entries = json.loads(run("practice", "--json").out)["exercises"]
    assert [entry["points"] for entry in entries] == [1] + [0] * 9
    assert sum(entry["possible_points"] for entry in entries) == 20


def test_task_is_printed_and_a_file_begun_that_is_never_written_over(run):
    for task in practice.EXERCISES.values():
        ran = run("practice", task.name)
        assert ran.code == 0 and f"def {task.signature}:" in ran.lines
        assert " ".join(task.task.split()) in " ".join(ran.out.split())
        compile(task.stub, "stub.py", "exec")
        assert f"def {task.signature}:" in task.stub and max(map(len, task.stub.splitlines())) <= 88
    ran = run("practice", "causal", "--start", "mine.py")
    assert ran.lines == ["wrote mine.py", "Judge it: manyheads practice causal-mask mine.py"]
    stub = Path("mine.py").read_text()
    assert stub == practice.EXERCISES["causal-mask"].stub
    document = json.loads(run("practice", "causal-mask", "--json").out)
    assert document["stub"] == stub and document["function"] == "causal_attention(q, k, v)"
    Path("mine.py").write_text("work of an evening")
    assert_refused(run("practice", "softmax", "--start", "mine.py"), "mine.py already exists, and stays as it is")
    assert Path("mine.py").read_text() == "work of an evening"
    assert_refused(run("practice", "softmax", "--start", "no/folder.py"), "cannot write no/folder.py: its folder")


def test_solution_is_judged_by_exit_code_words_and_document(run):
    Path("mine.py").write_text(f"print('q is \\x1b[31m red')\n{WRONG}")
    ran = run("practice", "causal-mask", "mine.py", "--seed", "7", "--seconds", "60")
    assert ran.code == 1 and ran.lines[1] == "The same inputs again: --seed 7"
    assert ran.lines[0].startswith("Not yet. Missing scale: divide the scores by the square root of d")
    assert "note: the solution printed:\n  q is " in ran.err and "\x1b" not in ran.err
    Path("mine.py").write_text(SOLUTIONS["causal-mask"].source)
    ran = run("practice", "causal-mask", "mine.py", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0 and document["right"] and document["points"] == 2 and document["mistakes"] == []
    assert run("practice").lines[2].startswith("ok causal-mask ")


def test_code_is_handed_in_and_the_class_reported(run):
    with_points(practice.EXERCISES["kv-cache"], SolutionVerdict(True, 2, ""))
    code = run("practice", "--code", "Anna Ada").out.strip()
    assert (
        code.startswith("Anna Ada:") and json.loads(run("practice", "--code", "Anna Ada", "--json").out)["code"] == code
    )
    assert practice.read_code(code).exercises == ("kv-cache",)
    flipped = code[:-1] + ("0" if code[-1] != "0" else "1")
    Path("codes.txt").write_text(f"{code}\n{flipped}\n")
    ran = run("learn", "--report", "codes.txt", "--out", "class.csv")
    assert ran.code == 0 and ran.lines[0].split()[:4] == ["name", "exercises", "questions", "points"]
    assert ran.lines[1].startswith("Anna Ada    1 of 10          0       2  softmax, ")
    assert ran.lines[2:] == [
        "broken: Anna Ada: the code does not fit its checksum and name. Copy the whole line once more.",
        "wrote class.csv",
    ]
    assert Path("class.csv").read_text().splitlines()[1].startswith("Anna Ada,1,0,2.0,False,")
    other = code.replace("Anna Ada", "Ben")
    document = json.loads(run("learn", "--report", code, other, "--json").out)
    assert [learner["name"] for learner in document["learners"]] == ["Anna Ada"] and len(document["broken"]) == 1


@pytest.mark.parametrize(("arguments", "words"), [
    (("practice", "nothing"), "there is no exercise 'nothing'. There are: softmax, "),
    (("practice", "softmax", "nothing.py"), "cannot read nothing.py: there is no such file"),
    (("practice", "softmax", "a.py", "--start", "b.py"), "give one of the two files"),
    (("practice", "--start", "b.py"), "--start needs an exercise"),
    (("practice", "--seed", "3"), "--seed needs an exercise"),
    (("practice", "softmax", "--code", "Anna"), "--code is about all exercises: give it alone"),
    (("practice", "--code", "a:b"), "'a:b' is not a name for a code"),
    (("learn", "--report"), "there is no code to report"),
    (("learn", "--report", "codes.txt"), "cannot read codes.txt"),
    (("learn", "--report", "Anna:0", "--seed", "3"), "--report takes codes and files with codes"),
    (("learn", "--report", "Anna:0", "--language", "de"), "--report takes codes and files with codes"),
    (("learn", "--out", "class.csv"), "--out goes with --report CODES"),
    (("learn", "--report", "Anna:0", "--out", "class.txt"), "cannot tell what kind of table 'class.txt' is"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(run, arguments, words):
    assert_refused(run(*arguments), words)
