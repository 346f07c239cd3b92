"""Solutions in files: run in a process of their own, with a limit of time, and every way to fail is one message."""

import sys
from pathlib import Path

import pytest

from manyheads.errors import FileAccessError
from manyheads.lab import practice
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.practice import solution_file

from .solutions import SOLUTIONS

RIGHT = SOLUTIONS["causal-mask"].source


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to write into, and points of its own; what a solution changes in this process is put back."""
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, solution_file.MODULE, None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_solution_in_a_file_is_run_apart_whatever_stands_beside_it_and_what_it_prints_is_told():
    Path("helper.py").write_text("SMALL = -1e9\n")
    Path("random.py").write_text("raise RuntimeError('not the library')\n")
    source = RIGHT.replace("-np.inf", "SMALL").replace("import numpy", "from helper import SMALL\nimport numpy")
    lines = (
        "print('x' * 5000)\nimport sys\nprint('to stderr', file=sys.stderr)\nif __name__ == '__main__':\n    1 / 0\n"
    )
    Path("s.py").write_text(source + lines)
    verdict = practice.judge_file("causal-mask", "s.py", seed=5, keep=False)
    assert verdict.right and (verdict.points, verdict.seed, verdict.exercise) == (2, 5, "causal-mask"), verdict.words
    assert verdict.printed.startswith("xxx") and len(verdict.printed) < 2100
    assert sorted(path.name for path in Path().iterdir()) == ["helper.py", "random.py", "s.py"], "nothing is left"


def test_endless_loop_is_stopped_with_its_line_though_it_catches_everything():
    body = "    while True:\n        try:\n            pass\n        except:\n            pass\n"
    loop = f"def causal_attention(q, k, v):\n{body}"
    Path("s.py").write_text(loop)
    verdict = practice.judge_file("causal-mask", "s.py", seconds=0.5)
    assert (
        not verdict.right and "No answer within 0.5 seconds: is there an endless loop? It was at line " in verdict.words
    )
    assert verdict.words.endswith(" of s.py, in causal_attention.")


def test_process_that_ends_itself_is_told_by_its_code():
    Path("s.py").write_text("import os\n\ndef causal_attention(q, k, v):\n    os._exit(7)\n")
    verdict = practice.judge_file("causal-mask", "s.py")
    assert not verdict.right and "s.py ended its process with code 7, and no answer" in verdict.words


@pytest.mark.parametrize(("source", "words"), [
    ("def causal_attention(q, k, v)\n    pass\n", "s.py, line 1: SyntaxError: expected ':'."),
    ("import numpy\n\nx = 1 / 0\n", "s.py, line 3: ZeroDivisionError: division by zero."),
    ("import nothing_of_that_name\n", "s.py, line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'."),
    ("raise SystemExit\n", "s.py, line 1: SystemExit."),
    ("", "s.py has no function causal_attention: write def causal_attention(q, k, v)."),
    ("def causal_atention(q):\n    pass\ndef other():\n    pass\n",
     "It has causal_atention, other. Is causal_atention meant?"),
])  # fmt: skip
def test_file_without_a_function_that_runs_is_one_message_with_its_line(source, words):
    Path("s.py").write_text(source)
    with pytest.raises(LessonError) as refused:
        solution_file.function_in(Path("s.py").resolve(), practice.EXERCISES["causal-mask"])
    assert words in str(refused.value)


def test_what_is_no_file_with_a_solution_is_refused_before_anything_runs():
    Path("large.py").write_bytes(b"#" * (solution_file.MOST_BYTES + 1))
    for path, kind, words in (
        ("nothing.py", FileAccessError, "cannot read nothing.py: there is no such file"),
        (".", FileAccessError, "it is a folder"),
        ("large.py", LessonError, "large.py has more than 1,048,576 bytes"),
    ):
        with pytest.raises(kind, match=words):
            practice.judge_file("softmax", path)
    for seconds in (0, -1, float("nan"), 1e9, True):
        with pytest.raises(LessonError, match="is not a limit: give a number above 0, up to 3,600"):
            practice.judge_file("softmax", "large.py", seconds=seconds)
