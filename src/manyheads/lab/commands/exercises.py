"""`manyheads practice`: functions of attention to write, judged by running them beside the reference."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from manyheads.base import no_access
from manyheads.cli import AsJson
from manyheads.cli.terminal import (
    ProgressLine,
    clean,
    emit,
    emit_document,
    print_cut,
    print_whole,
    stdout_console,
)
from manyheads.errors import FileAccessError
from manyheads.lab.commands.lessons import MAX_SEED
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.progress import Progress

if TYPE_CHECKING:
    from manyheads.lab.practice import Exercise, SolutionVerdict

WRONG = 1  # the exit code
EXERCISE_HELP = "Its name, or how it begins. Default: list the exercises."
SOLUTION_HELP = "A Python file with the function: it is run, in a process of its own. Default: print the task."
START_HELP = "Write a file to begin with; an existing file stays as it is."
SECONDS_HELP = "How long the solution may take."
SEED_HELP = "Draw the inputs from this seed. Default: new inputs each time."
CODE_HELP = "Print a code with all points of the learner of this name, to hand in."


def practice(
    exercise: Annotated[str | None, typer.Argument(metavar="EXERCISE", help=EXERCISE_HELP, show_default=False)] = None,
    solution: Annotated[Path | None, typer.Argument(metavar="FILE", help=SOLUTION_HELP, show_default=False)] = None,
    start: Annotated[Path | None, typer.Option("--start", metavar="FILE", help=START_HELP, show_default=False)] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="N", help=SECONDS_HELP)] = 20,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED - 1, help=SEED_HELP, show_default=False)
    ] = None,
    code: Annotated[str | None, typer.Option("--code", metavar="NAME", help=CODE_HELP, show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Ten functions of attention to write, each judged by running it: known mistakes are named.

    Exit 1 where a solution is not right. Its file is run: judge files that you trust.

    For example: manyheads practice causal-mask solution.py
    """
    from manyheads.lab import practice as practising  # imports NumPy, for which --help is not to wait

    if code is not None:
        if (exercise, solution, start, seed) != (None,) * 4:
            raise LessonError("--code is about all exercises: give it alone.")
        learner = practising.progress_code(code)
        if as_json:
            emit_document(learner.to_dict())
        else:
            emit(str(learner))
        return
    if exercise is None:
        if start is not None or seed is not None:
            raise LessonError(f"{'--start' if start else '--seed'} needs an exercise: manyheads practice causal-mask.")
        _print_list(list(practising.EXERCISES.values()), as_json)
        return
    if solution is not None and start is not None:
        raise LessonError("give one of the two files: a solution to judge, or one to begin with --start.")
    if solution is None:
        _begin(practising.exercise_of(exercise), start, as_json)
        return
    talk = ProgressLine()
    with talk.step(f"running {solution.name}"):
        verdict = practising.judge_file(exercise, solution, seconds=seconds, seed=seed)
    if verdict.printed.strip():
        talk.note("the solution printed:")
        for line in verdict.printed.rstrip().splitlines():
            talk.console.print(Text(f"  {clean(line)}"), soft_wrap=True)
    if as_json:
        emit_document(verdict.to_dict())
    else:
        _print_verdict(verdict)
    if not verdict.right:
        raise typer.Exit(WRONG)


def _print_list(exercises: list[Exercise], as_json: bool) -> None:
    """The exercises, and which of them are done."""
    progress = Progress()
    entries = [(task, progress.points.get("practice", {}).get(task.name, 0)) for task in exercises]
    if as_json:
        emit_document({
            "exercises": [
                {
                    "exercise": task.name, "meaning": task.meaning, "function": task.signature,
                    "points": points, "possible_points": task.points,
                }
                for task, points in entries
            ]
        })  # fmt: skip
        return
    width = max(len(task.name) for task, _ in entries)
    lines = [
        Text.assemble(
            ("ok" if points else "  ", "green"),
            (f" {task.name:<{width}}  ", "bold"),
            f"{task.points} point{'s' if task.points > 1 else ' '}  {task.meaning}",
        )
        for task, points in entries
    ]
    lines += [Text(""), Text(f"Begin: manyheads practice {exercises[0].name} --start solution.py", style="dim")]
    print_cut(lines, stdout_console())
    if progress.trouble:
        ProgressLine().note(progress.trouble)


def _begin(task: Exercise, start: Path | None, as_json: bool) -> None:
    """Print the task, or write a file to begin with."""
    if start is not None:
        try:
            with open(start, "x", encoding="utf-8") as file:  # "x": never in the place of somebody's work
                file.write(task.stub)
        except FileExistsError:
            raise FileAccessError(f"{start} already exists, and stays as it is: name another file.") from None
        except (OSError, ValueError) as error:
            raise no_access("write", start, error) from error
    if as_json:
        document = {"exercise": task.name, "meaning": task.meaning, "task": task.task, "function": task.signature}
        emit_document({**document, "possible_points": task.points, "stub": task.stub})
        return
    if start is not None:
        print_whole([f"wrote {clean(str(start))}", f"Judge it: manyheads practice {task.name} {clean(str(start))}"])
        return
    console = stdout_console()
    points = f"{task.points} point{'s' * (task.points > 1)}"
    lines = [Text.assemble((task.name, "bold"), f"  {task.meaning} ({points})"), Text("")]
    lines += [Text(line) for paragraph in task.task.split("\n") for line in textwrap.wrap(paragraph, console.width)]
    lines += [Text(""), Text(f"def {task.signature}:", style="bold"), Text("")]
    lines += [Text(f"Write a file to begin with: manyheads practice {task.name} --start solution.py", style="dim")]
    lines += [Text(f"Judge it:                   manyheads practice {task.name} solution.py", style="dim")]
    print_cut(lines, console)


def _print_verdict(verdict: SolutionVerdict) -> None:
    """The verdict, and how the same inputs are drawn again."""
    if verdict.right:
        lines = [f"{clean(verdict.words)} {verdict.points} point{'s' * (verdict.points != 1)}."]
    else:
        lines = [clean(verdict.words), f"The same inputs again: --seed {verdict.seed}"]
    print_whole(lines)
