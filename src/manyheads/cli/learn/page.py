"""A lesson as lines of a terminal, or as plain data: prose, tables of numbers, questions."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from manyheads.cli.steps import model_arguments
from manyheads.cli.terminal.console import Column, clean, lay_out, print_cut, shortened
from manyheads.errors import ManyHeadsError
from manyheads.lessons import CellBlock, Lesson, Progress, ProseBlock, Ran, shelf
from manyheads.lessons.cells import Table
from manyheads.lessons.lesson import CheckBlock, InterviewBlock

__all__ = [
    "cell_lines",
    "check_lines",
    "entry_document",
    "lesson_document",
    "link_lines",
    "list_lines",
    "print_lesson",
    "print_ran",
    "prose",
    "ran_document",
    "table_lines",
]


LABEL, MOST_LABEL = 16, 34  # columns of a row's name: as a rule, and at the most
HEADING = 10  # columns of a line of a column's name
SMALL = (8, 4)  # rows and columns of a table that is read number by number
NOTHING = 1e-9  # of the largest number: what is less is what rounding left
PERCENT = 3  # columns of a weight, where there is no room for more than percent
Load = Callable[[str], Any]


def list_lines(pages: Sequence[Lesson], progress: Progress, console: Console) -> list[Text]:
    """The lessons with how far one is."""
    columns = [Column(""), Column("lesson", right=False), Column("what", right=False, most=52), Column("min")]
    columns += [Column("questions"), Column("points")]
    rows = []
    for number, page in enumerate(pages, 1):
        done, points = progress.of(page.slug, page.questions)
        num_questions = len(page.questions)
        first = Text("ok", style="green") if num_questions and done == num_questions else Text(str(number))
        rows.append([
            first, Text(page.slug, style="bold"),
            Text(shortened(page.title, 52)), Text(str(page.minutes)), Text(f"{done} of {num_questions}"),
            Text(f"{points} of {sum(page.questions.values())}"),
        ])  # fmt: skip
    lines = lay_out(columns, rows, console.width)
    return [*lines, Text(""), Text("manyheads learn LESSON takes you through one.", style="dim")]


def prose(text: str, load: Load) -> Markdown:
    return Markdown(shelf.say(text, load), hyperlinks=False)


def print_lesson(page: Lesson, console: Console, load: Load, seed: int | None) -> None:
    """All of it: cells run as the page has them, questions not answered; an interview's model answers at the end."""
    console.print(Text(page.title, style="bold"))
    console.print(Text(shelf.say(page.summary, load), style="dim"))
    for part in page.parts:
        console.print()
        match part:
            case ProseBlock():
                console.print(prose(part.text, load))
            case CellBlock():
                for line in cell_lines(part, {}):
                    console.print(line)
                try:
                    print_ran(shelf.run_cell(part, {}, load), console)
                except ManyHeadsError as error:
                    console.print(Text(f"This cell cannot run here: {clean(str(error))}", style="yellow"))
            case CheckBlock():
                for line in check_lines(part, {} if seed is None else shelf.draw(part, seed)):
                    console.print(line)
            case InterviewBlock():
                console.print(Text(f"? {shelf.say(part.question, load)}", style="bold"))
    if page.interviews:
        console.print()
        console.print(Text("Model answers", style="bold"))
    for interview in page.interviews.values():
        console.print()
        console.print(Text(f"? {shelf.say(interview.question, load)}", style="bold"))
        console.print(prose(interview.answer, load))
    console.print()
    console.print(Text("Sources", style="bold"))
    for source in page.sources:
        console.print(Text(f"- {source}"))


def cell_lines(cell: CellBlock, changed: dict[str, str]) -> list[Text]:
    """What a cell is, the name that runs it, and what is in it."""
    lines = [Text.assemble((cell.title, "bold"), (f"   cell {cell.name}", "dim"))]
    for parameter in shelf.parameters_of(cell):
        value = changed.get(parameter.name, parameter.value)
        written = f"{value:g}" if isinstance(value, float) else str(value)
        choices = f"   ({' | '.join(parameter.choices)})" if parameter.choices else ""
        line = f"{parameter.name} = {clean('; '.join(written.splitlines()))}"
        lines.append(Text.assemble("  ", line, (f"   {parameter.label}{choices}", "dim")))
    return lines


def check_lines(check: CheckBlock, inputs: Any) -> list[Text]:
    question, choices = shelf.ask(check, inputs)
    points = f"{check.points} point{'s' * (check.points > 1)}"
    kind = "Predict: " if check.cell else ""
    lines = [
        Text.assemble(("? ", "cyan"), (f"{kind}{clean(question)}", "bold"), (f"   {points}, check {check.name}", "dim"))
    ]
    return lines + [Text(f"  {number}) {clean(choice)}") for number, choice in enumerate(choices, 1)]


def print_ran(ran: Ran, console: Console) -> None:
    console.print(Text(clean(ran.words)))
    for table in ran.shown:
        console.print()
        print_cut(table_lines(table, console.width), console)
    for line in link_lines(ran):
        console.print(line)


def link_lines(ran: Ran) -> list[Text]:
    """How to go on with the heads that a cell names."""
    import shlex

    return [
        Text(f"See all of it: manyheads head {link.head} {shlex.quote(clean(link.text))}{model_arguments(link.model)}")
        for link in ran.links
    ]


# ------------------------------------------------------------------------------------------------------------- a table


def table_lines(table: Table, width: int) -> list[Text]:
    """Its name, its shape and its numbers; what does not fit is said. A wide map is written in percent."""
    values, room_for_names = table.values.tolist(), LABEL if table.as_map else MOST_LABEL
    labels = [shortened(item, room_for_names) for item in table.rows]
    label = max(LABEL, *(Text(item).cell_len for item in labels)) + 2
    heads = [_wrapped(column) for column in table.columns]
    cells = _written(values)
    size = (
        max(4, *(len(item) for row in cells for item in row), *(Text(e).cell_len for head in heads for e in head)) + 2
    )
    note = ""
    if size * len(heads) > width - label and table.as_map:
        cells = [["." if not math.isfinite(item) else f"{100 * item:.0f}" for item in row] for row in values]
        labels = [f"{index:>2} {shortened(item, LABEL - 3)}" for index, item in enumerate(table.rows)]
        heads, size, note = [[str(index)] for index in range(len(heads))], PERCENT + 1, "in percent, tokens by number"
    fit = min(len(heads), (width - label) // size)
    if math.prod(table.shape) > len(cells) * fit:
        note = f"{note + '; ' if note else ''}{len(cells)} x {fit} of it shown"
    lines = _title_lines(table, note, width)
    depth = max(map(len, heads))
    for index in range(depth):  # headings stand on the row below them
        above = ([""] * (depth - len(head)) + head for head in heads[:fit])
        lines.append(Text(" " * label + "".join(_right(item[index], size) for item in above), style="dim"))
    for name, row, numbers in zip(labels, cells, values, strict=True):
        line = Text(f"{name}{' ' * (label - Text(name).cell_len)}")
        peak = max((number for number in numbers if math.isfinite(number)), default=None)
        for written, value in zip(row[:fit], numbers, strict=False):
            line.append(_right(written, size), style="bold" if table.as_map and value == peak else "")
        lines.append(line)
    return lines


def _title_lines(table: Table, note: str, width: int) -> list[Text]:
    shape = " x ".join(map(str, table.shape))
    title = f"{clean(table.label)} ({shape}) {clean(table.words)}{f'  [{note}]' if note else ''}"
    lines = [Text(line) for line in textwrap.wrap(title, width)]
    lines[0].stylize("bold cyan", 0, len(table.label))
    return lines


def _wrapped(name: str) -> list[str]:
    """A column's heading in lines, a word or some of them each."""
    return [shortened(line, HEADING) for line in textwrap.wrap(name, HEADING, break_long_words=False)] or [""]


def _right(text: str, size: int) -> str:
    return " " * (size - Text(text).cell_len) + text


def _written(values: list[list[float]]) -> list[list[str]]:
    """All with as many places as make the largest three figures; what is not visible is a point.

    In a small table as many as make the smallest three figures, too: 80.00 and 1.25.
    """
    small = bool(values) and len(values) <= SMALL[0] and len(values[0]) <= SMALL[1]
    places = _places([value for row in values for value in row], small)
    return [[_plain(value, places) for value in row] for row in values]


def _plain(value: float, places: int) -> str:
    """No minus before a 0."""
    if not math.isfinite(value):
        return "."
    written = f"{value:.{places}f}"
    return written if float(written) else written.lstrip("-")


def _places(numbers: Sequence[float], small: bool) -> int:
    sizes = [abs(number) for number in numbers if math.isfinite(number)]
    sizes = [size for size in sizes if size > NOTHING * max(sizes)]
    if all(size == int(size) for size in sizes):
        return 0
    most_digits, least = (2 - math.floor(math.log10(extreme)) for extreme in (max(sizes), min(sizes)))
    places = max(0, min(6, most_digits))
    exact = all(abs(size - round(size, places)) < 1e-9 for size in sizes)
    return places if exact or not small else max(0, min(6, least, most_digits + 2))


# ---------------------------------------------------------------------------------------------------------- plain data


def entry_document(page: Lesson, progress: Progress) -> dict[str, Any]:
    done, points = progress.of(page.slug, page.questions)
    counts = {"questions": len(page.questions), "answered": done, "points": points}
    return {
        "lesson": page.slug, "title": page.title, "summary": page.summary, "minutes": page.minutes, **counts,
        "possible_points": sum(page.questions.values()),
    }  # fmt: skip


def ran_document(ran: Ran) -> dict[str, Any]:
    tables = [
        {
            "label": part.label, "words": part.words, "shape": list(part.shape),
            "values": [[v if math.isfinite(v) else None for v in row] for row in part.values.tolist()],
            "rows": list(part.rows), "columns": list(part.columns), "as_map": part.as_map,
        }
        for part in ran.shown
    ]  # fmt: skip
    links = [{"model": link.model, "head": link.head, "text": link.text} for link in ran.links]
    return {"words": ran.words, "shown": tables, "links": links}


def lesson_document(page: Lesson, load: Load, seed: int | None) -> dict[str, Any]:
    """The lesson whole: its facts said, its cells run."""
    parts = [_part_document(part, load, seed) for part in page.parts]
    facts = {
        "lesson": page.slug,
        "title": page.title,
        "summary": shelf.say(page.summary, load),
        "minutes": page.minutes,
    }
    return {**facts, "seed": seed, "parts": parts, "sources": list(page.sources)}


def _part_document(part: Any, load: Load, seed: int | None) -> dict[str, Any]:
    match part:
        case ProseBlock():
            return {"kind": "prose", "markdown": shelf.say(part.text, load)}
        case CellBlock():
            parameters = {parameter.name: parameter.value for parameter in shelf.parameters_of(part)}
            try:
                ran = ran_document(shelf.run_cell(part, {}, load))
            except ManyHeadsError as error:
                ran = {"trouble": str(error)}
            return {"kind": "cell", "cell": part.name, "title": part.title, "parameters": parameters, **ran}
        case InterviewBlock():
            answer = {
                "points": [shelf.say(point, load) for point in part.points],
                "answer": shelf.say(part.answer, load),
            }
            return {"kind": "interview", "name": part.name, "question": shelf.say(part.question, load), **answer}
        case _:
            inputs = shelf.inputs_of(part, {} if seed is None else shelf.draw(part, seed))
            question, choices = shelf.ask(part, inputs)
            question_facts = {
                "question": question,
                "answer": part.answer,
                "choices": list(choices),
                "points": part.points,
            }
            return {
                "kind": "predict" if part.cell else "check",
                "check": part.name,
                **question_facts,
                "inputs": dict(inputs),
            }
