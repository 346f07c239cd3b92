"""`manyheads learn`: lessons with live numbers, walked through; or listed, printed, run and answered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO

import typer

from manyheads.cli.arguments import AsJson
from manyheads.cli.steps import load_model
from manyheads.cli.terminal.console import emit, emit_document, print_cut, stdout_console
from manyheads.cli.terminal.progress import Talk
from manyheads.lessons import Lesson, Progress
from manyheads.lessons.lesson import LessonError

MAX_SEED = 2**31
LESSON_HELP = "Its name or its number. None: the lessons are listed."
INPUTS_HELP = "With --run or --answer: what is to be other than on the page, as in scale=none."
SEED_HELP = "Draw the inputs of the questions from this seed."


def learn(
    lesson: Annotated[str | None, typer.Argument(metavar="LESSON", help=LESSON_HELP, show_default=False)] = None,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help=INPUTS_HELP, show_default=False)
    ] = None,
    cell: Annotated[str | None, typer.Option("--run", metavar="CELL", help="Run this cell, and nothing else.")] = None,
    answered: Annotated[
        tuple[str, str] | None,
        typer.Option("--answer", metavar="CHECK VALUE", help="Judge this answer.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED - 1, help=SEED_HELP, show_default=False)
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget all points.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --reset: do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Lessons whose every number is computed as you read: cells to run with your own numbers, questions, points.

    For example: manyheads learn one-head
    """
    from manyheads.lessons import lessons

    talk, progress = Talk(), Progress()
    if reset:
        _reset(talk, progress, yes)
        return
    if progress.trouble:
        talk.note(progress.trouble)
    if lesson is None:
        if cell or answered:
            raise LessonError("--run and --answer need a lesson: manyheads learn LESSON --run CELL.")
        _list(progress, as_json)
        return
    page = _page(lesson, lessons())
    inputs_given = _given(inputs or [])
    if inputs_given and not (cell or answered):
        raise LessonError("NAME=VALUE goes with --run CELL or --answer CHECK VALUE: add one of them.")
    load = _loader(talk)
    if cell is not None:
        _run(page, cell, inputs_given, load, as_json)
    elif answered is not None:
        _answer(talk, page, answered, inputs_given, seed, load, progress, as_json)
    elif not as_json and _is_terminal(sys.stdin) and _is_terminal(sys.stdout):
        from manyheads.cli.learn.walk import Walk

        Walk(page, stdout_console(), load, progress, _seed(page, seed)).go()
    else:
        _print(talk, page, load, seed, as_json)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits there; a shell may have closed it."""
    return stream is not None and stream.isatty()


def _page(asked: str, known: Any) -> Lesson:
    """By name, by number (from 1), or by the beginning of its name. Raises LessonError."""
    if asked in known:
        return known[asked]
    if asked.isascii() and asked.isdigit() and 1 <= int(asked) <= len(known):
        return list(known.values())[int(asked) - 1]
    begun = [slug for slug in known if slug.startswith(asked)]
    if len(begun) == 1:
        return known[begun[0]]
    raise LessonError(f"there is no lesson {asked[:60]!r}. There are: {', '.join(known)}.")


def _given(pairs: Sequence[str]) -> dict[str, str]:
    parted = [pair.partition("=") for pair in pairs]
    if wrong := [part[0] for part in parted if not part[1]]:
        raise LessonError(f"{wrong[0][:60]!r} is no NAME=VALUE: write it as in scale=none.")
    return {name: value for name, _, value in parted}


def _loader(talk: Talk) -> Callable[[str], Any]:
    """Loads a model once, and says that it does."""
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in loaded:
            loaded[name] = load_model(talk, name)
        return loaded[name]

    return load


def _seed(page: Lesson, asked: int | None) -> int | None:
    """A page that is to be fresh has a seed of its own each time."""
    if asked is None and page.fresh:
        import secrets

        return secrets.randbelow(MAX_SEED)
    return asked


# ------------------------------------------------------------------------------------------------ what can be asked for


def _list(progress: Progress, as_json: bool) -> None:
    from manyheads.cli.learn.page import entry_document, list_lines
    from manyheads.lessons import lessons

    if as_json:
        emit_document({"lessons": [entry_document(page, progress) for page in lessons().values()]})
        return
    console = stdout_console()
    print_cut(list_lines(list(lessons().values()), progress, console), console)


def _print(talk: Talk, page: Lesson, load: Callable[[str], Any], seed: int | None, as_json: bool) -> None:
    """The whole lesson, its cells run and its questions asked."""
    from manyheads.cli.learn.page import lesson_document, print_lesson

    seed = _seed(page, seed)
    if as_json:
        emit_document(lesson_document(page, load, seed))
    else:
        if not _is_terminal(sys.stdin):
            talk.note("nobody is at a terminal to be asked, so this is the whole lesson; nothing is read from stdin.")
        print_lesson(page, stdout_console(), load, seed)
        emit("")
        if page.cells:
            emit(f"To run a cell: manyheads learn {page.slug} --run CELL NAME=VALUE")
        if page.checks:
            drawn, seed_words = ("", "") if seed is None else (f" --seed {seed}", f"Asked from seed {seed}. ")
            emit(f"{seed_words}To judge an answer: manyheads learn {page.slug}{drawn} --answer CHECK VALUE")


def _run(page: Lesson, name: str, given: dict[str, str], load: Callable[[str], Any], as_json: bool) -> None:
    from manyheads.cli.learn.page import print_ran, ran_document
    from manyheads.lessons.shelf import run_cell

    ran = run_cell(_named(page.cells, name, page, "cell"), given, load)
    if as_json:
        emit_document({"lesson": page.slug, "cell": name, **ran_document(ran)})
    else:
        print_ran(ran, stdout_console())


def _answer(
    talk: Talk,
    page: Lesson,
    answered: tuple[str, str],
    given: dict[str, str],
    seed: int | None,
    load: Callable[[str], Any],
    progress: Progress,
    as_json: bool,
) -> None:
    """Judge an answer, and keep its points. What is given may be inputs of the question or of the cell it is about."""
    from manyheads.lessons import shelf

    name, value = answered
    check = _named(page.checks, name, page, "check")
    own_parameters = {value_given.name for value_given in shelf.parameters_of(check)}
    inputs = dict(shelf.draw(check, seed)) if seed is not None else {}
    inputs |= {key: value_given for key, value_given in given.items() if key in own_parameters or check.cell is None}
    cell = {
        key: value_given for key, value_given in given.items() if key not in own_parameters and check.cell is not None
    }
    verdict = shelf.answer(page, check, value, load, inputs=inputs, cell=cell)
    if verdict.right:
        progress.reach(page.slug, name, verdict.points)
        if progress.trouble:
            talk.note(f"your points are not kept: {progress.trouble}")
    question, choices = shelf.ask(check, inputs)
    if as_json:
        question_facts = {
            "lesson": page.slug,
            "check": name,
            "question": question,
            "choices": list(choices),
            "answer": value,
        }
        verdict_facts = {
            "answered": verdict.answered,
            "right": verdict.right,
            "points": verdict.points,
            "words": verdict.words,
        }
        emit_document({**question_facts, **verdict_facts})
    else:
        emit(question)
        emit(verdict.words)


def _named(known: Any, name: str, page: Lesson, kind: str) -> Any:
    if name not in known:
        raise LessonError(f"lesson {page.slug!r} has no {kind} {name[:60]!r}. It has: {', '.join(known) or 'none'}.")
    return known[name]


def _reset(talk: Talk, progress: Progress, yes: bool) -> None:
    """Raises LessonError where nobody is there to say yes."""
    points = sum(sum(point.values()) for point in progress.points.values())
    points_in_words = f"{points} point{'' if points == 1 else 's'}"
    if not yes:
        if not _is_terminal(sys.stdin):
            raise LessonError("--reset forgets all points: add --yes where nobody can be asked.")
        if input(f"Forget {points_in_words}? [y/N] ").strip().casefold() not in ("y", "yes"):
            talk.note("nothing was forgotten.")
            return
    progress.reset()
    talk.note(f"{points_in_words} forgotten ({progress.path}).")
