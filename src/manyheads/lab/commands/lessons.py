"""`manyheads learn`: lessons with live numbers, listed, printed, run and answered.

A lesson is printed as a plain page: its prose, its cells run as the page has them, its questions asked, the model
answers of an interview at the end. A cell is run with numbers of one's own by `--run`, a question is answered by
`--answer`; points that were reached are kept. `--report` makes a class's table of the codes that its learners hand in.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from manyheads.base import nearest
from manyheads.cli import AsJson, DeviceName, DtypeName, ModelChoice, chosen_place, load_model
from manyheads.cli.terminal import (
    ProgressLine,
    clean,
    emit,
    emit_document,
    print_cut,
    print_whole,
    shortened,
    stdout_console,
)
from manyheads.lab import lessons
from manyheads.lab.lessons.lesson import ENGLISH, Block, CheckBlock, InterviewBlock, Lesson, LessonError
from manyheads.lab.lessons.progress import Progress

if TYPE_CHECKING:
    from manyheads.models import LoadedModel

MAX_SEED = 2**31
LESSON_HELP = "Its name or its number. Default: list the lessons."
INPUTS_HELP = "With --run or --answer: values that differ from those of the page, as in scale=none."
LANGUAGE_HELP = "Its text in this language, where it has been translated: de."
ANSWER_HELP = "Check this answer; for an interview question, how many of its points your answer made."
SEED_HELP = "Draw the numbers of the questions from this seed."
REPORT_HELP = "Make a class's table: what follows are progress codes, or files with one on each line."
OUT_HELP = "With --report: write the table: .parquet, .csv or .json."
ALL_HELP = "Print every table whole, with all heads."

Load = Callable[[str], Any]


def learn(
    lesson: Annotated[str | None, typer.Argument(metavar="LESSON", help=LESSON_HELP, show_default=False)] = None,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help=INPUTS_HELP, show_default=False)
    ] = None,
    cell: Annotated[str | None, typer.Option("--run", metavar="CELL", help="Run this cell, and nothing else.")] = None,
    answered: Annotated[
        tuple[str, str] | None,
        typer.Option("--answer", metavar="CHECK VALUE", help=ANSWER_HELP, show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED - 1, help=SEED_HELP, show_default=False)
    ] = None,
    language: Annotated[str, typer.Option("--language", metavar="CODE", help=LANGUAGE_HELP)] = ENGLISH,
    complete: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget all points.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --reset: do not ask.")] = False,
    report: Annotated[bool, typer.Option("--report", help=REPORT_HELP)] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help=OUT_HELP, show_default=False)] = None,
    as_json: AsJson = False,
    device: DeviceName = None,
    dtype: DtypeName = None,
) -> None:
    """Lessons whose numbers are all computed as you read: cells to run with your own numbers, questions, points.

    For example: manyheads learn one-head
    """
    talk = ProgressLine()
    if report:
        if (cell, answered, seed, device, dtype) != (None,) * 5 or complete or reset or language != ENGLISH:
            raise LessonError("--report takes codes and files with codes, --out and --json, and nothing else.")
        _report([*filter(None, [lesson]), *(inputs or [])], out, as_json)
        return
    if out is not None:
        raise LessonError("--out goes with --report CODES: it writes a class's table.")
    progress = Progress()
    if reset:
        points = sum(sum(points_of_page.values()) for points_of_page in progress.points.values())
        points_in_words = f"{points:g} point{'' if points == 1 else 's'}"
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():  # a shell may have closed it
                raise LessonError("--reset forgets all points: add --yes if nobody can be asked.")
            if input(f"Forget {points_in_words}? [y/N] ").strip().casefold() not in ("y", "yes"):
                talk.note("nothing was forgotten.")
                return
        progress.reset()
        talk.note(f"{points_in_words} forgotten ({progress.path}).")
        return
    if progress.trouble:
        talk.note(progress.trouble)
    if lesson is None:
        if cell or answered:
            raise LessonError("--run and --answer need a lesson: manyheads learn LESSON --run CELL.")
        _print_list(progress, language, as_json)
        return
    shelf = lessons.lessons(language)
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
    if page.language != language:
        talk.note(f"lesson {page.slug!r} is not available in {language!r}: this is the English one.")
    parted = [pair.partition("=") for pair in inputs or []]
    if wrong := [name for name, equals, _ in parted if not equals]:
        raise LessonError(f"{wrong[0][:60]!r} is not NAME=VALUE: write it as in scale=none.")
    values = {name: value for name, _, value in parted}
    if values and not (cell or answered):
        raise LessonError("NAME=VALUE goes with --run CELL or --answer CHECK VALUE: add one of them.")
    if (device, dtype) != (None, None):  # what a lesson shows before its first model needs neither
        chosen_place(device, dtype)
    loaded: dict[str, LoadedModel] = {}

    def load(name: str) -> LoadedModel:
        """Each model once, saying that it is loaded."""
        if name not in loaded:
            loaded[name] = load_model(talk, ModelChoice(name, device, dtype))
        return loaded[name]

    from manyheads.lab.commands.lesson_page import (  # --help is not to wait for NumPy
        lesson_document,
        print_lesson,
        print_ran,
    )

    checks = {**page.checks, **page.interviews}
    for kind, name, blocks in (("cell", cell, page.cells), ("check", answered and answered[0], checks)):
        if name is not None and name not in blocks:
            known = ", ".join(blocks) or "none"
            raise LessonError(f"lesson {page.slug!r} has no {kind} {name[:60]!r}. It has: {known}.")
    if cell is not None:
        ran = lessons.run_cell(page.cells[cell], values, load)
        if as_json:
            emit_document({"lesson": page.slug, "cell": cell, **ran.to_dict()})
        else:
            print_ran(ran, stdout_console(), complete)
        return
    if answered is not None:
        # other values make it another question, with tries of its own
        question_inputs = json.dumps([seed, values], sort_keys=True)
        num_wrong = progress.num_wrong(page.slug, answered[0], question_inputs)
        document = _judged(page, checks[answered[0]], answered[1], values, seed, load, num_wrong)
        if document["right"]:
            progress.reach(page.slug, answered[0], document["points"])
        elif document["answered"] and answered[0] in page.checks:
            progress.miss(page.slug, answered[0], question_inputs)
        if as_json:
            emit_document(document)
        else:
            emit(f"{document['question']}\n{document['words']}")
            if document["solution"]:
                emit(f"The solution: {document['solution']}")
            elif document["right"] and num_wrong:
                left = document["points"]
                why = "half of the points" if left else "no points, since the solution was shown"
                emit(f"After {num_wrong} wrong answer{'s' * (num_wrong > 1)}: {why}.")
        if document["right"] and progress.trouble:
            talk.note(f"your points are not kept: {progress.trouble}")
        return
    if seed is None and page.fresh:  # a page that is to be fresh has a seed of its own each time
        seed = secrets.randbelow(MAX_SEED)
    if as_json:
        emit_document(lesson_document(page, load, seed))
    else:
        print_lesson(page, stdout_console(), load, seed, complete)


def _report(sources: list[str], out: Path | None, as_json: bool) -> None:
    """A class's table of progress codes."""
    from manyheads.lab.practice import EXERCISES, class_report  # --help is not to wait for NumPy

    report = class_report(sources)
    if out is not None:
        report.save(out)
    if as_json:
        emit_document(report.to_dict())
        return
    width = max([4, *(len(clean(code.name)) for code in report.codes)])
    heads = ("name", "exercises", "questions", "points")
    lines = [Text(f"{heads[0]:<{width}}  {heads[1]:>9}  {heads[2]:>9}  {heads[3]:>6}  not done", style="dim")]
    for code in report.codes:
        left = ", ".join(name for name in EXERCISES if name not in code.exercises)
        count = f"{len(code.exercises)} of {len(EXERCISES)}"
        lines.append(Text(
            f"{clean(code.name):<{width}}  {count:>9}  {code.questions:>9}  {code.points:>6g}  {left or 'none'}"
        ))  # fmt: skip
    lines += [Text(f"broken: {clean(words)}", style="yellow") for words in report.broken]
    lines += [
        Text(f"one code under several names: {clean(', '.join(names))}", style="yellow") for names in report.copied
    ]
    print_whole([*lines, *([] if out is None else [f"wrote {clean(str(out))}"])])


def _judged(
    page: Lesson,
    block: Block,
    answer: str,
    values: dict[str, str],
    seed: int | None,
    load: Load,
    num_wrong: int,
) -> dict[str, Any]:
    """The verdict on an answer, as a document.

    - `page`, `block`: the lesson, and the question of it.
    - `answer`: what was written; of an interview question, a number of points.
    - `values`: inputs of the question, or of the cell that it is about.
    - `seed`: from which its inputs are drawn; None: the page's own.
    - `load`: gives a model by its name.
    - `num_wrong`: how many wrong answers there were before.
    """
    assert isinstance(block, CheckBlock | InterviewBlock)
    document: dict[str, Any] = {"lesson": page.slug, "check": block.name}
    if isinstance(block, InterviewBlock):  # its points are the reader's to count: no program judges what was said aloud
        count = len(block.points)
        if not (answer.isascii() and answer.isdigit() and int(answer) <= count):
            raise LessonError(
                f"{answer[:60]!r} is not a number of points: say how many your answer made, 0 to {count}."
            )
        right, words = int(answer) == count, f"{int(answer)} of {count} points made."
        document |= {"question": lessons.say(block.question, load), "choices": [], "answer": answer, "answered": True}
        return document | {"right": right, "points": int(right), "words": words, "solution": ""}
    parameters = {parameter.name for parameter in lessons.parameters_of(block)}
    inputs = dict(lessons.draw(block, seed)) if seed is not None else {}
    inputs |= {key: value for key, value in values.items() if key in parameters or block.cell is None}
    cell = {key: value for key, value in values.items() if key not in parameters and block.cell is not None}
    verdict = lessons.answer(page, block, answer, load, inputs=inputs, cell=cell, num_wrong=num_wrong)
    question, choices = lessons.ask(block, inputs)
    document |= {"question": question, "choices": list(choices), "answer": answer, "answered": verdict.answered}
    judged = {"right": verdict.right, "points": verdict.points, "words": verdict.words}
    return document | judged | {"solution": verdict.solution}


# -------------------------------------------------------------------------------------------------------------- printed


def _print_list(progress: Progress, language: str, as_json: bool) -> None:
    """The lessons with how far one is."""
    entries: list[dict[str, Any]] = []
    for page in lessons.lessons(language).values():
        done, points = progress.of(page.slug, page.questions)
        counts = {"questions": len(page.questions), "answered": done, "points": points}
        about = {"lesson": page.slug, "title": page.title, "summary": page.summary, "minutes": page.minutes}
        about |= {"group": page.group, "everyone": page.everyone}
        entries.append({**about, **counts, "possible_points": sum(page.questions.values())})
    if as_json:
        emit_document({"lessons": entries})
        return
    lines = [Text(f"    {'lesson':<18}{'what':<52}  min  questions    points", style="dim")]
    group = ""
    for number, entry in enumerate(entries, 1):
        if entry["group"] != group:
            group = entry["group"]
            lines.append(Text(group, style="dim"))
        is_done = 0 < entry["questions"] == entry["answered"]
        counts = f"{entry['answered']} of {entry['questions']}", f"{entry['points']:g} of {entry['possible_points']}"
        lines.append(Text.assemble(
            ("ok", "green") if is_done else f"{number:>2}", "* " if entry["everyone"] else "  ",
            (f"{entry['lesson']:<18}", "bold"),
            f"{shortened(entry['title'], 52):<52}  {entry['minutes']:>3}  {counts[0]:>9}  {counts[1]:>8}",
        ))  # fmt: skip
    apart = "The studio's room Learn counts its own points, in the browser."
    apart = f"* are for everyone. {apart}"
    begin = f"Begin: manyheads learn {entries[0]['lesson']}. Functions to write: manyheads practice"
    below = [Text(words, style="dim") for words in ("", apart, begin)]
    print_cut([*lines, *below], stdout_console())
