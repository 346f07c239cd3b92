"""A lesson step by step in the terminal: read, run, change a number, look at one table at a time, answer.

Everywhere: Enter goes on, b goes back, q ends; NAME=VALUE changes what is in a cell. What was got right is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from manyheads.cli.learn.page import (
    cell_lines,
    check_lines,
    code_lines,
    drawn_lines,
    link_lines,
    print_lines,
    prose,
    table_lines,
)
from manyheads.cli.terminal.console import clean, print_cut
from manyheads.errors import ManyHeadsError
from manyheads.lessons import shelf
from manyheads.lessons.cells import Ran
from manyheads.lessons.lesson import CellBlock, CheckBlock, InterviewBlock, Lesson, ProseBlock
from manyheads.lessons.parameters import read_values
from manyheads.lessons.progress import Progress

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
