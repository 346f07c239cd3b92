"""`manyheads learn`: lessons with live numbers, listed, printed, run and answered.

A lesson is printed as a plain page: its prose, its cells run as the page has them, its questions asked, the model
answers of an interview at the end. A cell is run with numbers of one's own by `--run`, a question is answered by
`--answer`; points that were reached are kept.
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float64
from numpy import ndarray
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from manyheads import lessons
from manyheads.base import nearest
from manyheads.cli.arguments import AsJson, DeviceName, DtypeName, ModelChoice, chosen_place, load_model
from manyheads.cli.terminal.console import clean, emit, emit_document, hanging, print_cut, shortened, stdout_console
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ManyHeadsError
from manyheads.lessons.cells import Panel, Ran, Table
from manyheads.lessons.lesson import Block, CellBlock, CheckBlock, InterviewBlock, Lesson, LessonError, ProseBlock
from manyheads.lessons.progress import Progress

MAX_SEED = 2**31
LESSON_HELP = "Its name or its number. Default: list the lessons."
INPUTS_HELP = "With --run or --answer: values that differ from those of the page, as in scale=none."
ANSWER_HELP = "Check this answer; of an interview question, how many of its points yours made."
SEED_HELP = "Draw the numbers of the questions from this seed."
ALL_HELP = "Print every table whole, and every head's."

LABEL, HEADING = 34, 12  # columns of a row's name, and of a line of a column's name
WHOLE, CUT = 16, 10  # a table of so many rows is printed whole; of a longer one, so many rows
NAMED = 6  # columns, at most, that each are of something else and have decimals of their own
FEW = 32  # numbers, at most, of which the smallest have three figures, too
NOTHING = 1e-9  # of the largest number: what is less is what rounding left
HEADS = 2  # of several heads' tables, those of so many heads are printed: the others are like them
OF_HEAD = re.compile(r", head (\d+)$")  # how the label of a table ends that is one head's

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
            if sys.stdin is None or not sys.stdin.isatty():  # a shell may have closed it
                raise LessonError("--reset forgets all points: add --yes where nobody can be asked.")
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
        _print_list(progress, as_json)
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
            _print_ran(ran, stdout_console(), complete)
        return
    if answered is not None:
        document = _judged(page, checks[answered[0]], answered[1], values, seed, load)
        if document["right"]:
            progress.reach(page.slug, answered[0], document["points"])
        if as_json:
            emit_document(document)
        else:
            emit(f"{document['question']}\n{document['words']}")
        if document["right"] and progress.trouble:
            talk.note(f"your points are not kept: {progress.trouble}")
        return
    if seed is None and page.fresh:  # a page that is to be fresh has a seed of its own each time
        seed = secrets.randbelow(MAX_SEED)
    if as_json:
        emit_document(_lesson_document(page, load, seed))
    else:
        _print_lesson(page, stdout_console(), load, seed, complete)


def _judged(
    page: Lesson, block: Block, answer: str, values: dict[str, str], seed: int | None, load: Load
) -> dict[str, Any]:
    """The verdict on an answer, as a document. `values`: inputs of the question, or of the cell that it is about."""
    assert isinstance(block, CheckBlock | InterviewBlock)
    document: dict[str, Any] = {"lesson": page.slug, "check": block.name}
    if isinstance(block, InterviewBlock):  # its points are the reader's to count: no program judges what was said aloud
        count = len(block.points)
        if not (answer.isascii() and answer.isdigit() and int(answer) <= count):
            raise LessonError(f"{answer[:60]!r} is no number of points: say how many your answer made, 0 to {count}.")
        right, words = int(answer) == count, f"{int(answer)} of {count} points made."
        document |= {"question": lessons.say(block.question, load), "choices": [], "answer": answer, "answered": True}
        return document | {"right": right, "points": int(right), "words": words}
    parameters = {parameter.name for parameter in lessons.parameters_of(block)}
    inputs = dict(lessons.draw(block, seed)) if seed is not None else {}
    inputs |= {key: value for key, value in values.items() if key in parameters or block.cell is None}
    cell = {key: value for key, value in values.items() if key not in parameters and block.cell is not None}
    verdict = lessons.answer(page, block, answer, load, inputs=inputs, cell=cell)
    question, choices = lessons.ask(block, inputs)
    document |= {"question": question, "choices": list(choices), "answer": answer, "answered": verdict.answered}
    return document | {"right": verdict.right, "points": verdict.points, "words": verdict.words}


# -------------------------------------------------------------------------------------------------------------- printed


def _print_list(progress: Progress, as_json: bool) -> None:
    """The lessons with how far one is."""
    entries: list[dict[str, Any]] = []
    for page in lessons.lessons().values():
        done, points = progress.of(page.slug, page.questions)
        counts = {"questions": len(page.questions), "answered": done, "points": points}
        about = {"lesson": page.slug, "title": page.title, "summary": page.summary, "minutes": page.minutes}
        entries.append({**about, **counts, "possible_points": sum(page.questions.values())})
    if as_json:
        emit_document({"lessons": entries})
        return
    lines = [Text(f"    {'lesson':<18}{'what':<52}  min  questions    points", style="dim")]
    for number, entry in enumerate(entries, 1):
        is_done = 0 < entry["questions"] == entry["answered"]
        counts = f"{entry['answered']} of {entry['questions']}", f"{entry['points']} of {entry['possible_points']}"
        lines.append(Text.assemble(
            ("ok", "green") if is_done else f"{number:>2}", "  ", (f"{entry['lesson']:<18}", "bold"),
            f"{shortened(entry['title'], 52):<52}  {entry['minutes']:>3}  {counts[0]:>9}  {counts[1]:>8}",
        ))  # fmt: skip
    apart = "The studio's room Learn counts its own points, in the browser."
    below = [Text(words, style="dim") for words in ("", apart, f"Begin: manyheads learn {entries[0]['lesson']}")]
    print_cut([*lines, *below], stdout_console())


def _print_lesson(page: Lesson, console: Console, load: Load, seed: int | None, complete: bool) -> None:
    """All of it: cells run as the page has them, questions asked; an interview's model answers at the end."""

    def said(text: str, style: str = "") -> Text:
        return Text(clean(lessons.say(text, load)), style=style)

    def prose(text: str) -> None:
        console.print(Markdown(lessons.say(text, load), hyperlinks=False))

    console.print(Text(page.title, style="bold"), said(page.summary, "dim"), sep="\n")
    for part in page.parts:
        console.print()
        match part:
            case ProseBlock():
                prose(part.text)
            case CellBlock():
                console.print(Text.assemble((part.title, "bold"), (f"   cell {part.name}", "dim")))
                for parameter in lessons.parameters_of(part):
                    value = parameter.value
                    written = f"{value:g}" if isinstance(value, float) else "; ".join(str(value).splitlines())
                    choices = f" ({' | '.join(parameter.choices)})" if parameter.choices else ""
                    label = Text(f"  {parameter.name} = {clean(written)}   ")
                    for line in hanging(label, f"{parameter.label}{choices}", console.width):
                        console.print(line)
                console.print()
                try:
                    _print_ran(lessons.run_cell(part, {}, load), console, complete)
                except ManyHeadsError as error:
                    console.print(Text(f"This cell cannot run here: {clean(str(error))}", style="yellow"))
            case CheckBlock():
                question, choices = lessons.ask(part, {} if seed is None else lessons.draw(part, seed))
                kind, points = "Predict: " if part.cell else "", f"{part.points} point{'s' * (part.points > 1)}"
                mark, about = ("? ", "cyan"), (f"   {points}, check {part.name}", "dim")
                console.print(Text.assemble(mark, (f"{kind}{clean(question)}", "bold"), about))
                for number, choice in enumerate(choices, 1):
                    console.print(Text(f"  {number}) {clean(choice)}"))
            case InterviewBlock():
                mark, about = ("? ", "cyan"), (f"   1 point, interview {part.name}", "dim")
                console.print(Text.assemble(mark, said(part.question, "bold"), about))
    if page.interviews:
        console.print("\nModel answers", style="bold")
    for interview in page.interviews.values():
        console.print()
        console.print(Text.assemble(("? ", "cyan"), said(interview.question, "bold")))
        prose(interview.answer)
        console.print("Points:")
        for number, point in enumerate(interview.points, 1):
            console.print(Text(f"  {number}) "), said(point), sep="")
    console.print("\nSources", style="bold")
    for source in page.sources:
        console.print(Text(f"- {source}"))
    emit("")
    option, seed_words = ("", "") if seed is None else (f" --seed {seed}", f"Asked from seed {seed}. ")
    if page.cells:
        emit(f"To run a cell: manyheads learn {page.slug} --run CELL NAME=VALUE")
    if page.checks:
        emit(f"{seed_words}To judge an answer: manyheads learn {page.slug}{option} --answer CHECK VALUE")
    if page.interviews:
        emit(f"To count the points that yours made: manyheads learn {page.slug} --answer INTERVIEW NUMBER")


def _print_ran(ran: Ran, console: Console, complete: bool) -> None:
    """A cell's result, unless `complete` without what nobody reads: some of a training's moments, of long tables the
    first and last rows, of wide ones columns, of many heads the first two."""
    console.print(Text(clean(ran.words)))
    for card in ran.cards:
        links = [f"{card.tokens[arc.query]} -> {card.tokens[arc.key]} {100 * arc.weight:.0f} %" for arc in card.arcs]
        shown_links = f"Here: {', '.join(links)}." if links else "No such link here."
        origin = "" if card.title == card.head else f"  {card.head}, {card.origin}"
        console.print()
        console.print(Text.assemble((card.title, "bold"), origin))
        for words in (f"{card.pattern} {shown_links}", card.reason, f"{card.scores} {card.chance}", card.next_question):
            console.print(Text(clean(words)))
    shown, left, is_cut = ran.shown, [], False
    if not complete:
        if ran.frames:
            shown = (shown[0], shown[len(shown) // 2], shown[-1])
            left.append(f"{len(ran.shown) - len(shown)} of {len(ran.shown)} moments")
        head_of = {table.label: int(match[1]) for table in shown if (match := OF_HEAD.search(table.label))}
        shown = [table for table in shown if head_of.get(table.label, 0) < HEADS]
        if hidden := sorted({head for head in head_of.values() if head >= HEADS}):
            several = len(hidden) > 1
            left.append(f"head{'s' * several} {hidden[0]}{f' to {hidden[-1]}' * several}")
    for table in [*(_curves(panel, complete) for panel in ran.chart), *shown]:
        lines, lacks = _table_lines(table, console.width, complete)
        is_cut |= lacks
        shape, part = (" x ".join(map(str, sizes)) for sizes in (table.shape, table.values.shape))
        whole = math.prod(table.shape) == table.values.size
        title = f" ({shape if whole else f'{part} of {shape}'}) {clean(table.words)}".rstrip()
        console.print()
        console.print(Text.assemble((clean(table.label), "bold cyan"), title))
        print_cut(map(Text, lines), console)
    if left := [*left, *["rows or columns of large tables"] * is_cut]:
        console.print()
        console.print(Text(f"Left out: {' and '.join(left)}. --all prints them.", style="dim"))
    for link in ran.links:  # how to go on with the heads that a cell names
        command = f"manyheads head {link.head} {shlex.quote(clean(link.text))}{ModelChoice(link.model).arguments}"
        console.print(Text(f"See all of it: {command}"))


def _curves(panel: Panel, complete: bool) -> Table:
    """Curves over a training as a table, a row a step, or for some of them."""
    values, x = np.array([curve.y for curve in panel.curves], np.float64).T, panel.curves[0].x
    steps = np.linspace(0, len(x) - 1, len(x) if complete else min(CUT, len(x))).round().astype(int)
    names = tuple(curve.name for curve in panel.curves)
    return Table(panel.title, "", values[steps], values.shape, tuple(f"step {x[step]:g}" for step in steps), names)


def _table_lines(table: Table, width: int, complete: bool) -> tuple[list[str], bool]:
    """A table's lines, as pandas writes it; and whether it has rows or columns that they lack, if not `complete`."""
    import pandas as pd  # here: --help is not to wait for it

    by_column = not table.as_map and len(table.columns) <= NAMED
    cells = np.hstack([_written(part) for part in np.hsplit(table.values, table.values.shape[1] if by_column else 1)])
    # Column names in lines, a word or some of them in each; they stand on the row below them.
    names = [textwrap.wrap(clean(name), HEADING, break_long_words=False) or [""] for name in table.columns]
    depth = 1 if table.as_map else max(map(len, names))
    headings = [
        ("",) * (depth - len(lines)) + tuple(shortened(line, HEADING) for line in lines[:depth]) for lines in names
    ]
    rows = [shortened(name, LABEL) for name in table.rows]
    frame = pd.DataFrame(cells, rows, pd.MultiIndex.from_tuples(headings))
    # Characters of Chinese or Japanese fill two columns of a terminal.
    with pd.option_context("display.unicode.east_asian_width", True):
        if complete:
            return frame.to_string(line_width=width, sparsify=False).splitlines(), False
        for count in range(len(headings), 0, -1):
            lines = frame.to_string(max_rows=WHOLE, min_rows=CUT, max_cols=count, sparsify=False).splitlines()
            if max(Text(line).cell_len for line in lines) <= width:
                break
    return lines, len(rows) > WHOLE or count < len(headings)


def _written(values: Float64[ndarray, "rows columns"]) -> ndarray:
    """Numbers in words, all with as many decimals as give the largest three figures; of few, the smallest too: 80.00
    and 1.25. A point is what may not be seen."""
    sizes = np.abs(values[np.isfinite(values)])
    sizes, places = sizes[sizes > NOTHING * sizes.max(initial=0.0)], 0
    if (sizes % 1).any():
        most, least = (2 - math.floor(math.log10(1.001 * size)) for size in (sizes.max(), sizes.min()))
        places = min(max(most, 0), 6)
        if values.size <= FEW and (np.abs(sizes - sizes.round(places)) > NOTHING).any():
            places = min(max(least, 0), places + 2, 6)

    def write(number: float) -> str:
        written = f"{number:,.{places}f}" if math.isfinite(number) else "."
        return written.lstrip("-") if set(written) <= set("-0.") else written  # no minus before a 0

    return np.array([[write(number) for number in row] for row in values.tolist()], dtype=object)


# ----------------------------------------------------------------------------------------------------------- plain data


def _lesson_document(page: Lesson, load: Load, seed: int | None) -> dict[str, Any]:
    """The lesson whole: its facts said, its cells run."""
    parts: list[dict[str, Any]] = []
    for part in page.parts:
        match part:
            case ProseBlock():
                parts.append({"kind": "prose", "markdown": lessons.say(part.text, load)})
            case CellBlock():
                parameters = {parameter.name: parameter.value for parameter in lessons.parameters_of(part)}
                try:
                    ran = lessons.run_cell(part, {}, load).to_dict()
                except ManyHeadsError as error:
                    ran = {"trouble": str(error)}
                about = {"kind": "cell", "cell": part.name, "title": part.title, "parameters": parameters}
                parts.append({**about, **ran})
            case InterviewBlock():
                points, question = [lessons.say(point, load) for point in part.points], lessons.say(part.question, load)
                about = {"kind": "interview", "name": part.name, "question": question, "points": points}
                parts.append({**about, "answer": lessons.say(part.answer, load)})
            case CheckBlock():
                inputs = lessons.inputs_of(part, {} if seed is None else lessons.draw(part, seed))
                question, choices = lessons.ask(part, inputs)
                parts.append({
                    "kind": "predict" if part.cell else "check", "check": part.name, "question": question,
                    "answer": part.answer, "choices": list(choices), "points": part.points, "inputs": dict(inputs),
                })  # fmt: skip
    facts = {"lesson": page.slug, "title": page.title, "summary": lessons.say(page.summary, load)}
    return {**facts, "minutes": page.minutes, "seed": seed, "parts": parts, "sources": list(page.sources)}
