"""`manyheads learn`: lessons with live numbers, walked through; or listed, printed, run and answered."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated, Any, TextIO

import typer

from manyheads import lessons
from manyheads.base import nearest
from manyheads.cli.arguments import AsJson, DeviceName, DtypeName, ModelChoice, chosen_place, load_model
from manyheads.cli.terminal.console import emit, emit_document, stdout_console
from manyheads.cli.terminal.progress import Talk
from manyheads.lessons.lesson import LessonError
from manyheads.lessons.progress import Progress

MAX_SEED = 2**31
LESSON_HELP = "Its name or its number. Default: list the lessons."
INPUTS_HELP = "With --run or --answer: values that differ from those of the page, as in scale=none."
SEED_HELP = "Draw the numbers of the questions from this seed."
ALL_HELP = "Print every table whole, and every head's."


def learn(
    lesson: Annotated[str | None, typer.Argument(metavar="LESSON", help=LESSON_HELP, show_default=False)] = None,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help=INPUTS_HELP, show_default=False)
    ] = None,
    cell: Annotated[str | None, typer.Option("--run", metavar="CELL", help="Run this cell, and nothing else.")] = None,
    answered: Annotated[
        tuple[str, str] | None,
        typer.Option("--answer", metavar="CHECK VALUE", help="Check this answer.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED - 1, help=SEED_HELP, show_default=False)
    ] = None,
    complete: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget all points.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --reset: do not ask.")] = False,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Lessons whose every number is computed as you read: cells to run with your own numbers, questions, points.

    For example: manyheads learn one-head
    """
    talk, progress = Talk(), Progress()
    if reset:
        points = sum(sum(points_of_page.values()) for points_of_page in progress.points.values())
        points_in_words = f"{points} point{'' if points == 1 else 's'}"
        if not yes:
            if not _is_terminal(sys.stdin):
                raise LessonError("--reset forgets all points: add --yes where nobody can be asked.")
            if input(f"Forget {points_in_words}? [y/N] ").strip().casefold() not in ("y", "yes"):
                talk.note("nothing was forgotten.")
                return
        progress.reset()
        talk.note(f"{points_in_words} forgotten ({progress.path}).")
        return
    # Lessons compute what they show, and import torch for it: --help is not to wait for that.
    from manyheads.cli.learn import page as pages

    if progress.trouble:
        talk.note(progress.trouble)
    if lesson is None:
        if cell or answered:
            raise LessonError("--run and --answer need a lesson: manyheads learn LESSON --run CELL.")
        pages.print_list(progress, as_json)
        return
    shelf = lessons.lessons()
    if lesson in shelf:
        slugs = [lesson]
    elif lesson.isascii() and lesson.isdigit() and 1 <= int(lesson) <= len(shelf):
        slugs = [list(shelf)[int(lesson) - 1]]
    else:  # the beginning of a name
        slugs = [slug for slug in shelf if slug.startswith(lesson)]
    if len(slugs) != 1:
        near = nearest(lesson, shelf, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise LessonError(f"there is no lesson {lesson[:60]!r}.{guess} There are: {', '.join(shelf)}.")
    page = shelf[slugs[0]]
    parted = [pair.partition("=") for pair in inputs or []]
    if wrong := [name for name, equals, _ in parted if not equals]:
        raise LessonError(f"{wrong[0][:60]!r} is no NAME=VALUE: write it as in scale=none.")
    values = {name: value for name, _, value in parted}
    if values and not (cell or answered):
        raise LessonError("NAME=VALUE goes with --run CELL or --answer CHECK VALUE: add one of them.")
    if (device, dtype) != (None, None):  # what a lesson shows before its first model needs neither
        chosen_place(device, dtype)
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        """Each model once, saying that it is loaded."""
        if name not in loaded:
            loaded[name] = load_model(talk, ModelChoice(name, device, dtype))
        return loaded[name]

    if cell is not None:
        pages.print_cell(page, cell, values, load, as_json, complete)
        return
    if answered is not None:
        trouble = pages.print_verdict(page, *answered, values, seed, load, progress, as_json)
        if trouble:
            talk.note(f"your points are not kept: {trouble}")
        return
    if seed is None and page.fresh:  # a page that is to be fresh has a seed of its own each time
        seed = secrets.randbelow(MAX_SEED)
    if as_json:
        emit_document(pages.lesson_document(page, load, seed))
    elif _is_terminal(sys.stdin) and _is_terminal(sys.stdout):
        pages.Walk(page, stdout_console(), load, progress, seed).go()
    else:
        if not _is_terminal(sys.stdin):
            talk.note("this is no interactive terminal, so the whole lesson is printed; nothing is read from stdin.")
        pages.print_lesson(page, stdout_console(), load, seed, complete)
        emit("")
        if page.cells:
            emit(f"To run a cell: manyheads learn {page.slug} --run CELL NAME=VALUE")
        if page.checks:
            option, seed_words = ("", "") if seed is None else (f" --seed {seed}", f"Asked from seed {seed}. ")
            emit(f"{seed_words}To judge an answer: manyheads learn {page.slug}{option} --answer CHECK VALUE")


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits there; a shell may have closed it."""
    return stream is not None and stream.isatty()
