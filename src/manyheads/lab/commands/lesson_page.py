"""What `manyheads learn` prints of a lesson: the page, the result of a cell, and both as plain data."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from manyheads.cli import ModelChoice
from manyheads.cli.terminal import clean, emit, hanging, print_cut, shortened
from manyheads.errors import ManyHeadsError
from manyheads.lab import lessons
from manyheads.lab.lessons.cells import Panel, Ran, Table
from manyheads.lab.lessons.lesson import CellBlock, CheckBlock, InterviewBlock, Lesson, ProseBlock, SceneBlock

LABEL, HEADING = 34, 12  # columns of a row's name, and of a line of a column's name
WHOLE, CUT = 16, 10  # a table of so many rows is printed whole; of a longer one, so many rows
DOTS = "..."  # where rows or columns are left out
NAMED = 6  # columns, at most, that each are of something else and have decimals of their own
FEW = 32  # numbers, at most, of which the smallest have three figures, too
NOTHING = 1e-9  # of the largest number: what is less is what rounding left
HEADS = 2  # of several heads' tables, those of so many heads are printed: the others are like them
OF_HEAD = re.compile(r", head (\d+)$")  # how the label of a table ends that is one head's


Load = Callable[[str], Any]


def print_lesson(page: Lesson, console: Console, load: Load, seed: int | None, complete: bool) -> None:
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
                    print_ran(lessons.run_cell(part, {}, load), console, complete)
                except ManyHeadsError as error:
                    console.print(Text(f"This cell cannot run here: {clean(str(error))}", style="yellow"))
            case CheckBlock():
                question, choices = lessons.ask(part, {} if seed is None else lessons.draw(part, seed))
                kind, points = "Predict: " if part.cell else "", f"{part.points} point{'s' * (part.points > 1)}"
                mark, about = ("? ", "cyan"), (f"   {points}, check {part.name}", "dim")
                console.print(Text.assemble(mark, (f"{kind}{clean(question)}", "bold"), about))
                for number, choice in enumerate(choices, 1):
                    console.print(Text(f"  {number}) {clean(choice)}"))
            case SceneBlock():
                command = f"manyheads head {part.head} {shlex.quote(part.sentence)} --say {part.word}"
                console.print(Text.assemble((part.title, "bold"), "   plays in the studio's room Learn"))
                console.print(Text(f"What it says: {command}"))
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
        emit(f"To count the points that your answer made: manyheads learn {page.slug} --answer INTERVIEW NUMBER")


def print_ran(ran: Ran, console: Console, complete: bool) -> None:
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
        lines, lacks = table_lines(table, console.width, complete)
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


def table_lines(table: Table, width: int, complete: bool) -> tuple[list[str], bool]:
    """A table's lines; and whether it has rows or columns that they lack, if not `complete`."""
    by_column = not table.as_map and len(table.columns) <= NAMED
    cells = np.hstack([_written(part) for part in np.hsplit(table.values, table.values.shape[1] if by_column else 1)])
    # Column names in lines, a word or some of them in each; they stand on the row below them.
    names = [textwrap.wrap(clean(name), HEADING, break_long_words=False) or [""] for name in table.columns]
    depth = 1 if table.as_map else max(map(len, names))
    columns = [
        [*[""] * (depth - len(lines)), *(shortened(line, HEADING) for line in lines[:depth]), *cells[:, index]]
        for index, lines in enumerate(names)
    ]
    labels = [""] * depth + [shortened(name, LABEL) for name in table.rows]
    is_long = not complete and len(table.rows) > WHOLE
    labels, *columns = [_without_middle(lines, depth, is_long) for lines in (labels, *columns)]
    if complete:
        return _blocks(labels, columns, width), False
    gap = _without_middle([DOTS] * (depth + len(table.rows)), depth, is_long)
    for count in range(len(columns), 0, -1):
        front, back = columns[: (count + 1) // 2], columns[len(columns) - count // 2 :]
        lines = _side_by_side([labels, *(columns if count == len(columns) else [*front, gap, *back])])
        if cell_len(lines[0]) <= width:
            break
    return lines, is_long or count < len(columns)


def _without_middle(lines: list[str], depth: int, is_long: bool) -> list[str]:
    """A column of a long table: its heading and its first and last rows."""
    return [*lines[: depth + CUT // 2], DOTS, *lines[-CUT // 2 :]] if is_long else lines


def _side_by_side(columns: list[list[str]]) -> list[str]:
    """Columns beside each other, the first flush left; a character of Chinese or Japanese fills two places."""
    widths = [max(map(cell_len, column)) for column in columns]
    padded = [
        [
            cell + " " * (wide - cell_len(cell)) if place == 0 else " " * (wide - cell_len(cell)) + cell
            for cell in column
        ]
        for place, (column, wide) in enumerate(zip(columns, widths, strict=True))
    ]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def _blocks(labels: list[str], columns: list[list[str]], width: int) -> list[str]:
    """The whole of a wide table, as many columns at a time as fit, below each other."""
    lines: list[str] = []
    while columns:
        count = len(columns)
        while count > 1 and cell_len(_side_by_side([labels, *columns[:count]])[0]) > width:
            count -= 1
        lines += [*[""] * bool(lines), *_side_by_side([labels, *columns[:count]])]
        columns = columns[count:]
    return lines


def _written(values: Float64[ndarray, "rows columns"]) -> ndarray:
    """Numbers in words, all with the same number of decimals as give the largest three figures; of few, the smallest
    too: 80.00 and 1.25. A point is what may not be seen."""
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


def lesson_document(page: Lesson, load: Load, seed: int | None) -> dict[str, Any]:
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
            case SceneBlock():
                parts.append({"kind": "scene", "scene": part.name, "title": part.title, "sentence": part.sentence,
                              "head": part.head, "word": part.word})  # fmt: skip
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
    facts = {
        "lesson": page.slug,
        "language": page.language,
        "title": page.title,
        "summary": lessons.say(page.summary, load),
    }
    return {**facts, "minutes": page.minutes, "seed": seed, "parts": parts, "sources": list(page.sources)}
