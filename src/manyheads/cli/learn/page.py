"""A lesson in the terminal, printed whole, as plain data, or step by step: prose, tables of numbers, questions.

A `Walk` reads, runs, changes a number, looks at one table at a time, and takes answers. Everywhere: Enter goes on,
b goes back, q ends; NAME=VALUE changes what is in a cell. What was got right is kept.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from manyheads.cli.arguments import ModelChoice
from manyheads.cli.terminal.console import (
    LINK_COLOUR,
    Column,
    clean,
    emit,
    emit_document,
    lay_out,
    linked_sentence,
    print_cut,
    shortened,
    stdout_console,
)
from manyheads.errors import ManyHeadsError
from manyheads.lessons import shelf
from manyheads.lessons.cells import Listing, Ran, Table
from manyheads.lessons.lesson import CellBlock, CheckBlock, InterviewBlock, Lesson, LessonError, ProseBlock
from manyheads.lessons.parameters import read_values
from manyheads.lessons.progress import Progress

LABEL, MOST_LABEL = 16, 34  # columns of a row's name: as a rule, and at the most
HEADING = 10  # columns of a line of a column's name
SMALL = (8, 4)  # rows and columns of a table that is read number by number
NAMED = 6  # columns, at most, that each are of something else
WHOLE, FIRST = 16, 6  # rows of a table that is printed whole; of a longer one, the first so many
HEADS = 2  # of several heads' tables, those of so many heads are printed: the others are like them
OF_HEAD = re.compile(r", head (\d+)$")  # how the label of a table ends that is one head's
LOST = 0.05  # of a number, by which it may be off
NOTHING = 1e-9  # of the largest number: what is less is what rounding left
CURVE = 45  # characters of a curve
BARS = " ▁▂▃▄▅▆▇█"
PERCENT = 3  # columns of a weight, where there is no room for more than percent
Load = Callable[[str], Any]


def print_list(progress: Progress, as_json: bool) -> None:
    """The lessons with how far one is."""
    pages = shelf.lessons().values()
    if as_json:
        emit_document({"lessons": [entry_document(page, progress) for page in pages]})
        return
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
    console = stdout_console()
    lines = lay_out(columns, rows, console)
    apart = "The studio's room Learn counts its own points, in the browser."
    below = [Text(words, style="dim") for words in (apart, f"Begin: manyheads learn {next(iter(shelf.lessons()))}")]
    print_cut([*lines, Text(""), *below], console)


def print_cell(page: Lesson, name: str, values: dict[str, str], load: Load, as_json: bool, complete: bool) -> None:
    """One cell, run with these values in place of the page's. Errors: LessonError where there is none of that name."""
    cell = _named(page.cells, name, page, "cell")
    ran = shelf.run_cell(cell, values, load)
    if as_json:
        emit_document({"lesson": page.slug, "cell": name, **ran_document(ran)})
    else:
        print_ran(ran, stdout_console(), shelf.CELLS[cell.run].code, complete)


def print_verdict(
    page: Lesson,
    name: str,
    answer: str,
    values: dict[str, str],
    seed: int | None,
    load: Load,
    progress: Progress,
    as_json: bool,
) -> str:
    """Judge an answer, and keep its points; what is in the way of keeping them is returned, "" where nothing is.

    `values` may be inputs of the question, or of the cell that it is about.
    """
    check = _named(page.checks, name, page, "check")
    parameters = {parameter.name for parameter in shelf.parameters_of(check)}
    inputs = dict(shelf.draw(check, seed)) if seed is not None else {}
    inputs |= {key: value for key, value in values.items() if key in parameters or check.cell is None}
    cell = {key: value for key, value in values.items() if key not in parameters and check.cell is not None}
    verdict = shelf.answer(page, check, answer, load, inputs=inputs, cell=cell)
    if verdict.right:
        progress.reach(page.slug, name, verdict.points)
    question, choices = shelf.ask(check, inputs)
    if as_json:
        emit_document({
            "lesson": page.slug, "check": name, "question": question, "choices": list(choices), "answer": answer,
            "answered": verdict.answered, "right": verdict.right, "points": verdict.points, "words": verdict.words,
        })  # fmt: skip
    else:
        emit(question)
        emit(verdict.words)
    return progress.trouble if verdict.right else ""


def _named(blocks: Mapping[str, Any], name: str, page: Lesson, kind: str) -> Any:
    if name not in blocks:
        raise LessonError(f"lesson {page.slug!r} has no {kind} {name[:60]!r}. It has: {', '.join(blocks) or 'none'}.")
    return blocks[name]


def prose(text: str, load: Load) -> Markdown:
    return Markdown(shelf.say(text, load), hyperlinks=False)


def print_lesson(page: Lesson, console: Console, load: Load, seed: int | None, complete: bool = False) -> None:
    """All of it: cells run as the page has them, questions not answered; an interview's model answers at the end."""
    console.print(Text(page.title, style="bold"))
    console.print(Text(shelf.say(page.summary, load), style="dim"))
    for part in page.parts:
        console.print()
        match part:
            case ProseBlock():
                console.print(prose(part.text, load))
            case CellBlock():
                print_lines(cell_lines(part, {}), console)
                try:
                    print_ran(shelf.run_cell(part, {}, load), console, shelf.CELLS[part.run].code, complete)
                except ManyHeadsError as error:
                    console.print(Text(f"This cell cannot run here: {clean(str(error))}", style="yellow"))
            case CheckBlock():
                print_lines(check_lines(part, {} if seed is None else shelf.draw(part, seed)), console)
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
    print_lines([Text("Sources", style="bold"), *(Text(f"- {source}") for source in page.sources)], console)


def print_lines(lines: list[Text], console: Console) -> None:
    """Lines that are wrapped where the console ends: a lesson's words are read whole."""
    for line in lines:
        console.print(line)


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


def print_ran(ran: Ran, console: Console, code: Sequence[Listing] = (), complete: bool = False) -> None:
    """A cell's result, unless `complete` without what nobody reads: of a training's moments the first, the middle one
    and the last; of long tables the first rows; of many heads the first two. The walk has all of them."""
    console.print(Text(clean(ran.words)))
    print_lines(drawn_lines(ran, console), console)
    tables, left = ran.shown, []
    if ran.frames and not complete:
        tables = (tables[0], tables[len(tables) // 2], tables[-1])
        console.print(Text(f"{len(tables)} of {len(ran.shown)} moments:", style="dim"))
    if not complete:
        head_of = {table.label: int(match[1]) for table in tables if (match := OF_HEAD.search(table.label))}
        hidden_heads = sorted({head for head in head_of.values() if head >= HEADS})
        tables = [table for table in tables if head_of.get(table.label, 0) < HEADS]
        left += ["rows of long tables"] if any(len(table.rows) > WHOLE for table in tables) else []
        if hidden_heads:
            several = len(hidden_heads) > 1
            left.append(f"head{'s' * several} {hidden_heads[0]}{f' to {hidden_heads[-1]}' * several}")
    for table in tables:
        console.print()
        lines = table_lines(table, console.width, FIRST if len(table.rows) > WHOLE and not complete else None)
        print_cut([*lines, *code_lines(code, table.label)], console)
    if left:
        console.print()
        console.print(Text(f"Left out: {' and '.join(left)}. --all prints them.", style="dim"))
    print_lines(link_lines(ran), console)


def drawn_lines(ran: Ran, console: Console) -> list[Text]:
    """A result's diagram, cards and curves, in characters."""
    lines = [Text("")] if ran.flow or ran.cards or ran.chart else []
    shapes = {table.label: "x".join(map(str, table.shape)) for table in ran.shown}
    for stage, lanes in enumerate(ran.flow):
        for labels in lanes:
            # heads side by side hang on one line; a stage of one lane goes on from it
            joint = ("  " if stage == 0 else "-> ") if len(lanes) == 1 else "+- "
            steps = (f"{label if len(lanes) == 1 else label.partition(', ')[0]} {shapes[label]}" for label in labels)
            name = f"{labels[0].partition(', ')[2]}: " if len(lanes) > 1 else ""
            lines.append(Text.assemble(("  " * min(stage, 1)) + joint, (name, "bold"), " > ".join(steps)))
    for number, card in enumerate(ran.cards):
        origin = "" if card.title == card.head else f"  {card.head}, {card.origin}"
        lines += [Text("")] * (number > 0) + [Text.assemble((card.title, "bold"), origin)]
        lines += _indented(card.pattern, console)
        apart = [arc for arc in card.arcs if arc.query != arc.key]
        if apart:
            words = [SimpleNamespace(name=i, text=token, blank=1, aside=False) for i, token in enumerate(card.tokens)]
            firmest = max(apart, key=lambda arc: arc.weight)
            lines += linked_sentence(words, firmest, f"{100 * firmest.weight:.0f} %", LINK_COLOUR, console)
        arcs = ", ".join(
            f"{card.tokens[arc.query]} -> {card.tokens[arc.key]} {100 * arc.weight:.0f} %" for arc in card.arcs
        )
        for sentence in (clean(arcs) or "No such link here.", card.reason, card.scores, card.chance):
            lines += _indented(sentence, console)
        lines += _indented(card.next_question, console)
    for panel in ran.chart:
        top = panel.top or max(value for curve in panel.curves for value in curve.y)
        lines.append(
            Text(
                f"{panel.title}, from 0 to {top:.3g}, over steps {panel.curves[0].x[0]:g} to {panel.curves[0].x[-1]:g}"
            )
        )
        lines += [Text(f"  {curve.name:<10} {sparkline(curve.y, top)} {curve.y[-1]:.2f}") for curve in panel.curves]
    return lines


def _indented(sentence: str, console: Console) -> list[Text]:
    """A sentence of a card, each line of it below the card's title."""
    return [
        Text(line) for line in textwrap.wrap(sentence, console.width - 2, initial_indent="  ", subsequent_indent="  ")
    ]


def sparkline(values: Sequence[float], top: float) -> str:
    """A curve as one line of characters, each the mean of its part."""
    parts = [values[len(values) * i // CURVE : len(values) * (i + 1) // CURVE] for i in range(min(CURVE, len(values)))]
    return "".join(BARS[min(len(BARS) - 1, max(0, int(len(BARS) * sum(part) / len(part) / top)))] for part in parts)


def code_lines(code: Sequence[Listing], label: str) -> list[Text]:
    """The lines of code that compute a table, in each library."""
    return [
        Text(f"  {listing.name}: {line.text.strip()}", style="dim")
        for listing in code for line in listing.lines if line.computes(label)
    ]  # fmt: skip


def link_lines(ran: Ran) -> list[Text]:
    """How to go on with the heads that a cell names."""
    commands = (
        f"manyheads head {link.head} {shlex.quote(clean(link.text))}{ModelChoice(link.model).arguments}"
        for link in ran.links
    )
    return [Text(f"See all of it: {command}") for command in commands]


# ------------------------------------------------------------------------------------------------------------- a table


def table_lines(table: Table, width: int, most: int | None = None) -> list[Text]:
    """Its name, its shape and its numbers; what does not fit is said. A wide map is written in percent.

    `most`: how many of its rows; None for all.
    """
    values, room_for_names = table.values[:most].tolist(), LABEL if table.as_map else MOST_LABEL
    names = table.rows[:most]
    labels = [shortened(name, room_for_names) for name in names]
    label = max(LABEL, *(Text(name).cell_len for name in labels)) + 2
    # A column's heading in lines, a word or some of them in each.
    headings = [
        [shortened(line, HEADING) for line in textwrap.wrap(column, HEADING, break_long_words=False)] or [""]
        for column in table.columns
    ]
    cells = _written(values)
    lost = any(
        math.isfinite(number)
        and abs(float(cell.replace(",", "")) - number) > LOST * abs(number)
        and abs(number) > NOTHING
        for row, line in zip(values, cells, strict=True)
        for number, cell in zip(row, line, strict=True)
    )
    if lost and not table.as_map and len(table.columns) <= NAMED:  # columns of different things: 174604 and 1.25
        by_column = [_written([[number] for number in column]) for column in zip(*values, strict=True)]
        cells = [[column[row][0] for column in by_column] for row in range(len(values))]
    numbers_wide = (len(cell) for row in cells for cell in row)
    size = max(4, *numbers_wide, *(Text(line).cell_len for heading in headings for line in heading)) + 2
    note = ""
    if size * len(headings) > width - label and table.as_map:
        cells = [["." if not math.isfinite(number) else f"{100 * number:.0f}" for number in row] for row in values]
        labels = [f"{index:>2} {shortened(name, LABEL - 3)}" for index, name in enumerate(names)]
        headings, size = [[str(index)] for index in range(len(headings))], PERCENT + 1
        note = "in percent, tokens by number"
    fit = min(len(headings), (width - label) // size)
    if math.prod(table.shape) > len(cells) * fit:
        note = f"{note + '; ' if note else ''}{len(cells)} x {fit} of it shown"
    shape = " x ".join(map(str, table.shape))
    title = f"{clean(table.label)} ({shape}) {clean(table.words)}{f'  [{note}]' if note else ''}"
    lines = [Text(line) for line in textwrap.wrap(title, width)]
    lines[0].stylize("bold cyan", 0, len(table.label))
    depth = max(map(len, headings))
    for index in range(depth):  # headings stand on the row below them
        above = ([""] * (depth - len(heading)) + heading for heading in headings[:fit])
        lines.append(Text(" " * label + "".join(_right(heading[index], size) for heading in above), style="dim"))
    for name, row, numbers in zip(labels, cells, values, strict=True):
        line = Text(f"{name}{' ' * (label - Text(name).cell_len)}")
        peak = max((number for number in numbers if math.isfinite(number)), default=None)
        for written, value in zip(row[:fit], numbers, strict=False):
            line.append(_right(written, size), style="bold" if table.as_map and value == peak else "")
        lines.append(line)
    return lines


def _right(text: str, size: int) -> str:
    return " " * (size - Text(text).cell_len) + text


def _written(values: list[list[float]]) -> list[list[str]]:
    """All with as many places as make the largest three figures; what is not visible is a point.

    In a small table as many as make the smallest three figures, too: 80.00 and 1.25.
    """
    sizes = [abs(number) for row in values for number in row if math.isfinite(number)]
    sizes = [size for size in sizes if size > NOTHING * max(sizes)]
    places = 0
    if not all(size == int(size) for size in sizes):
        most_digits, least = (2 - math.floor(math.log10(extreme)) for extreme in (max(sizes), min(sizes)))
        places = max(0, min(6, most_digits))
        is_small = len(values) <= SMALL[0] and len(values[0]) <= SMALL[1]
        if is_small and not all(abs(size - round(size, places)) < 1e-9 for size in sizes):
            places = max(0, min(6, least, most_digits + 2))

    def write(number: float) -> str:
        written = f"{number:,.{places}f}" if math.isfinite(number) else "."
        return written.lstrip("-") if set(written) <= set("-0.") else written  # no minus before a 0

    return [[write(number) for number in row] for row in values]


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
    drawn = {"flow": ran.flow, "cards": [asdict(card) for card in ran.cards],
             "chart": [asdict(panel) for panel in ran.chart],
             "frames": ran.frames}  # fmt: skip
    return {
        "words": ran.words,
        "shown": tables,
        "links": links,
        **{name: value for name, value in drawn.items() if value},
    }


def lesson_document(page: Lesson, load: Load, seed: int | None) -> dict[str, Any]:
    """The lesson whole: its facts said, its cells run."""
    parts: list[dict[str, Any]] = []
    for part in page.parts:
        match part:
            case ProseBlock():
                parts.append({"kind": "prose", "markdown": shelf.say(part.text, load)})
            case CellBlock():
                parameters = {parameter.name: parameter.value for parameter in shelf.parameters_of(part)}
                try:
                    ran = ran_document(shelf.run_cell(part, {}, load))
                except ManyHeadsError as error:
                    ran = {"trouble": str(error)}
                about = {"kind": "cell", "cell": part.name, "title": part.title, "parameters": parameters}
                parts.append({**about, **ran})
            case InterviewBlock():
                points, question = [shelf.say(point, load) for point in part.points], shelf.say(part.question, load)
                about = {"kind": "interview", "name": part.name, "question": question, "points": points}
                parts.append({**about, "answer": shelf.say(part.answer, load)})
            case CheckBlock():
                inputs = shelf.inputs_of(part, {} if seed is None else shelf.draw(part, seed))
                question, choices = shelf.ask(part, inputs)
                parts.append({
                    "kind": "predict" if part.cell else "check", "check": part.name, "question": question,
                    "answer": part.answer, "choices": list(choices), "points": part.points, "inputs": dict(inputs),
                })  # fmt: skip
    summary = shelf.say(page.summary, load)
    facts = {"lesson": page.slug, "title": page.title, "summary": summary, "minutes": page.minutes}
    return {**facts, "seed": seed, "parts": parts, "sources": list(page.sources)}


ON, BACK = 1, -1
WAITS = "The reason comes when its cell has run: another question about it is left."


class Quit(Exception):
    """The reader has had enough."""


class Walk:
    """One lesson, from its first part to its end. `read(prompt)` gives a line; EOFError ends the walk."""

    def __init__(
        self,
        page: Lesson,
        console: Console,
        load: Callable[[str], Any],
        progress: Progress,
        seed: int | None = None,
        read: Callable[[str], str] = input,
    ) -> None:
        self.page, self.console, self.load, self.progress, self.seed = page, console, load, progress, seed
        self.read = read
        self.changed: dict[str, dict[str, str]] = {name: {} for name in page.cells}
        self.good: dict[str, dict[str, str]] = {name: {} for name in page.cells}  # what has run, to go back to
        self.shown: set[str] = set()  # cells and what was in them when they ran: no prediction any more
        self.ran: set[str] = set()  # cells that a prediction has just run
        self.is_trouble_said = False  # that points cannot be kept

    def go(self) -> None:
        self._say(self.page.title, "bold")
        self._say(f"{shelf.say(self.page.summary, self.load)}  ({self.page.minutes} min)", "dim")
        self._say("Enter goes on, b goes back, q ends. What is in a cell is changed with NAME=VALUE.", "dim")
        try:
            index = 0
            while index < len(self.page.parts):
                part = self.page.parts[index]
                self.console.print()
                match part:
                    case ProseBlock():
                        self.console.print(prose(part.text, self.load))
                        turn = self._turn(self._ask("(Enter) ")) or ON
                    case CellBlock():
                        turn = self._cell(part)
                    case CheckBlock():
                        turn = self._check(part)
                    case _:
                        turn = self._interview(part)
                index = max(0, index + turn)
        except (Quit, EOFError):
            self.console.print()
        else:
            self._say("Sources", "bold")
            for source in self.page.sources:
                self._say(f"- {source}")
        questions = self.page.questions
        done, points = self.progress.of(self.page.slug, questions)
        self._say(f"{done} of {len(questions)} questions, {points} of {sum(questions.values())} points.", "bold")

    # ----------------------------------------------------------------------------------------------------------- cells

    def _cell(self, cell: CellBlock) -> int:
        if cell.name in self.ran:
            self.ran.discard(cell.name)
            return ON
        self._show_cell(cell)
        while True:
            line = self._ask("Enter runs it, NAME=VALUE changes it, s skips> ")
            if line == "s":
                return ON
            if turn := self._turn(line):
                return turn
            if line and not self._change(cell, line):
                continue
            if (ran := self._run(cell)) is not None:
                return self._steps(cell, ran)

    def _show_cell(self, cell: CellBlock) -> None:
        print_lines(cell_lines(cell, self.changed[cell.name]), self.console)

    def _run(self, cell: CellBlock) -> Ran | None:
        try:
            ran = shelf.run_cell(cell, self.changed[cell.name], self.load)
        except ManyHeadsError as error:
            self._say(str(error), "yellow")
            self._take_back(cell)
            return None
        self.good[cell.name] = self.changed[cell.name]
        self.shown.add(self._content(cell))
        return ran

    def _take_back(self, cell: CellBlock) -> None:
        """What cannot run is not kept."""
        if self.changed[cell.name] != self.good[cell.name]:
            self.changed[cell.name] = self.good[cell.name]
            self._say("The cell is as it was before.", "dim")

    def _content(self, cell: CellBlock) -> str:
        values = read_values(shelf.parameters_of(cell), self.changed[cell.name])
        return f"{cell.name} {sorted((name, str(value)) for name, value in values.items())}"

    def _steps(self, cell: CellBlock, ran: Ran) -> int:
        """One table at a time, forwards and back."""
        code = shelf.CELLS[cell.run].code
        self._say(ran.words)
        print_lines(drawn_lines(ran, self.console), self.console)
        index = 0
        while index < len(ran.shown):
            self.console.print()
            table = ran.shown[index]
            print_cut([*table_lines(table, self.console.width), *code_lines(code, table.label)], self.console)
            line = self._ask(f"{index + 1} of {len(ran.shown)}> ")
            if line == "b":
                if index == 0:
                    return 0  # once more from the cell's beginning
                index -= 1
            elif not line:
                index += 1
            elif line == "s":
                break
            elif self._change(cell, line) and (rerun := self._run(cell)) is not None:
                ran, index = rerun, min(index, len(rerun.shown) - 1)
                self._say(ran.words)
        print_lines(link_lines(ran), self.console)
        return ON

    def _change(self, cell: CellBlock, line: str) -> bool:
        """Take NAME=VALUE, if it fits; what is wrong with it is said."""
        name, equals, value = line.partition("=")
        changed = {**self.changed[cell.name], name.strip(): value.strip()}
        if not equals:
            self._say(f"{line[:40]!r} means nothing here: Enter, b, s, q, or NAME=VALUE.", "yellow")
            return False
        try:
            read_values(shelf.parameters_of(cell), changed)
        except ManyHeadsError as error:
            self._say(str(error), "yellow")
            return False
        self.changed[cell.name] = changed
        return True

    # ---------------------------------------------------------------------------------------------------------- checks

    def _check(self, check: CheckBlock) -> int:
        inputs = shelf.inputs_of(check, {} if self.seed is None else shelf.draw(check, self.seed))
        about = self.page.cells.get(check.cell or "")
        if about is not None:
            self._show_cell(about)
        print_lines(check_lines(check, inputs), self.console)
        while True:
            line = self._ask("Your answer (Enter skips)> ")
            if not line:
                return ON
            if turn := self._turn(line):
                return turn
            if about is not None and "=" in line:
                if self._change(about, line):
                    self._show_cell(about)
                continue
            # A prediction is of what has not been seen yet.
            if about is not None and self._content(about) in self.shown:
                self._say("The cell has run with this already: change it (NAME=VALUE) to predict again.", "yellow")
                continue
            cell = self.changed.get(check.cell or "", {})
            try:
                verdict = shelf.answer(self.page, check, line, self.load, inputs=inputs, cell=cell)
            except ManyHeadsError as error:
                self._say(str(error), "yellow")
                if about is not None:
                    self._take_back(about)
                continue
            # Where the page asks for another prediction of the same cell, before the cell or after it, the result and
            # the reason of this verdict would answer it.
            checks = list(self.page.checks.values())
            later = checks[checks.index(check) + 1 :]
            waits = verdict.answered and any(following.cell == check.cell is not None for following in later)
            words = f"{verdict.words.partition('. ')[0]}. {WAITS}" if waits else verdict.words
            self._say(words, "green" if verdict.right else "yellow")
            if verdict.right:
                self._reach(check.name, verdict.points)
            if not verdict.answered:
                continue
            if waits:
                return ON
            if about is not None:
                ran = self._run(about)
                self.ran.add(about.name)
                return ON if ran is None else self._steps(about, ran) or ON
            if verdict.right:
                return ON

    def _interview(self, interview: InterviewBlock) -> int:
        self._say(shelf.say(interview.question, self.load), "bold")
        if turn := self._turn(self._ask("Answer aloud. Enter shows a model answer> ")):
            return turn
        self.console.print(prose(interview.answer, self.load))
        prompts = [f"Did you say: {clean(shelf.say(point, self.load))}? [y/N] " for point in interview.points]
        count = sum(self._ask(prompt).casefold() in ("y", "yes") for prompt in prompts)
        self._say(f"{count} of {len(prompts)} points made.")
        if count == len(prompts):
            self._reach(interview.name, 1)
        return ON

    def _reach(self, name: str, points: int) -> None:
        self.progress.reach(self.page.slug, name, points)
        if self.progress.trouble and not self.is_trouble_said:
            self.is_trouble_said = True
            self._say(f"Your points last as long as this lesson: {self.progress.trouble}", "yellow")

    # ---------------------------------------------------------------------------------------------------- lines in, out

    def _ask(self, prompt: str) -> str:
        """A line. Raises Quit for q."""
        line = self.read(prompt).strip()
        if line in ("q", "quit"):
            raise Quit
        return line

    def _turn(self, line: str) -> int:
        return BACK if line == "b" else 0

    def _say(self, words: str, style: str = "") -> None:
        self.console.print(Text(clean(words), style=style))
