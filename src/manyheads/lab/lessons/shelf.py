"""The lessons that come with the library: their pages, and the functions that the pages name.

A lesson is `pages/<slug>.md`, and beside it, where it needs functions of its own, `pages/<slug_with_underscores>.py`
with the tables CELLS, CHECKS and FACTS, or those of them that it needs. Both are found by their names, so whoever adds
a lesson adds its files and nothing else; the `order:` in a page's head is its place. The tables of all pages are
joined: a recap may ask any lesson's question.

This is where a block of a page meets the function that it names: a cell is run, a question is filled with its inputs,
an answer is judged, and prose gets its numbers: `{{name}}`, or `{{name d_model=512 heads=8}}`, is replaced by the words
of the fact of that name. Cost: all pages are read and checked in some milliseconds, once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import numpy as np

from manyheads import models
from manyheads.base import one_of
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.lab.lessons.answers import Check, Predict, Right, Verdict, judge
from manyheads.lab.lessons.cells import Cell, Fact, Loader, Ran
from manyheads.lab.lessons.lesson import (
    ENGLISH,
    CellBlock,
    CheckBlock,
    Lesson,
    LessonError,
    ProseBlock,
    read_lesson,
)
from manyheads.lab.lessons.parameters import Parameter, Value, Values, draw_values, read_values, singular

MISSING = "a number that cannot be had here"
MAX_DRAWS = 200  # of inputs, until they make a question worth asking
PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
FACT = re.compile(r"\{\{(?P<reference>[^{}]+)\}\}")

_FILES = {entry.name: entry for entry in (files("manyheads.lab.lessons") / "pages").iterdir()}
PAGES = {name.removesuffix(".md"): entry for name, entry in sorted(_FILES.items()) if name.endswith(".md")}
"""Slug -> the page's file; `lessons()` has them in the shelf's order."""
LANGUAGES: Mapping[str, Mapping[str, Traversable]] = {ENGLISH: PAGES} | {
    code: {page.name.removesuffix(".md"): page for page in folder.iterdir()}
    for code, folder in sorted(_FILES.items())
    if re.fullmatch(r"[a-z]{2}", code)
}
"""Language -> slug -> the page's file: a folder of Markdown beside the English pages is another language."""


Entry = TypeVar("Entry")


def joined(table_name: str, modules: tuple[ModuleType, ...]) -> Mapping[str, Any]:
    """A table of all these pages. Raises LessonError for a name that two of them use."""
    table: dict[str, Any] = {}
    for module in modules:
        entries = getattr(module, table_name, {})
        if twice := sorted(table.keys() & entries.keys()):
            raise LessonError(f"{table_name} of {module.__name__}: {twice[0]!r} is another topic's name already.")
        table |= entries
    return MappingProxyType(table)


# Not every page has functions of its own: an interview asks for the facts of other pages.
_NAMES = [slug.replace("-", "_") for slug in PAGES]
_MODULES = tuple(import_module(f"manyheads.lab.lessons.pages.{name}") for name in _NAMES if f"{name}.py" in _FILES)
CELLS: Mapping[str, Cell] = joined("CELLS", _MODULES)
CHECKS: Mapping[str, Check | Predict] = joined("CHECKS", _MODULES)
FACTS: Mapping[str, Fact] = joined("FACTS", _MODULES)


@cache
def lessons(language: str = ENGLISH) -> Mapping[str, Lesson]:
    """Every lesson by its slug, in their order.

    Where a lesson is not there in the language it is the English one, as its `language` says. Raises LessonError for a
    language that no lesson has, or for a mistake in a page, which is our fault.
    """
    one_of("language", language, LANGUAGES, LessonError, "is a language that no lesson has")
    own = LANGUAGES[language]
    pages = [
        checked(
            read_lesson(slug, own.get(slug, page).read_text(encoding="utf-8"), language if slug in own else ENGLISH)
        )
        for slug, page in PAGES.items()
    ]
    return MappingProxyType({page.slug: page for page in sorted(pages, key=lambda page: (page.order, page.slug))})


@cache
def load(name: str) -> object:
    """A bundled model, loaded once. Raises ModelError where it is not installed."""
    return models.load(name)


def checked(lesson: Lesson) -> Lesson:
    """The lesson, if every cell, check and fact that it names exists and takes its inputs. Raises LessonError."""
    where = f"lesson {lesson.slug!r}"
    for cell in lesson.cells.values():
        _entry(where, "cell", cell.run, CELLS)
        # For its errors alone: a page whose values do not fit must fail when it is read, not when a reader comes to it.
        parameters_of(cell)
    for check in lesson.checks.values():
        function = _entry(where, "check", check.run, CHECKS)
        if isinstance(function, Predict) != (check.cell is not None):
            kind = "a prediction on a cell: write ```predict" if check.cell is None else "no prediction: write ```check"
            raise LessonError(f"{where}: {check.run!r} is {kind}.")
        ask(check)
    for text in texts_of(lesson):
        for name, inputs in fact_references(where, text):
            read_values(_entry(where, "fact", name, FACTS).parameters, inputs, f"fact {name!r}")
    return lesson


def texts_of(lesson: Lesson) -> list[str]:
    """All texts of a lesson that facts may stand in."""
    prose = [part.text for part in lesson.parts if isinstance(part, ProseBlock)]
    interviews = [
        text for block in lesson.interviews.values() for text in (block.question, *block.points, block.answer)
    ]
    return [lesson.summary, *prose, *interviews]


def _entry(where: str, kind: str, name: str, table: Mapping[str, Entry]) -> Entry:
    if name not in table:
        raise LessonError(f"{where}: no {kind} is called {name!r}. There are {', '.join(table) or 'none'}.")
    return table[name]


# ----------------------------------------------------------------------------------------------- cells and their inputs


def parameters_of(block: CellBlock | CheckBlock) -> tuple[Parameter, ...]:
    """What may be changed in a block, with the page's values to begin with. Raises LessonError for an unknown line."""
    parameters = (CELLS if isinstance(block, CellBlock) else CHECKS)[block.run].parameters
    values = read_values(parameters, block.values, _name_of(block))
    return tuple(replace(parameter, value=values[parameter.name]) for parameter in parameters)


def inputs_of(block: CellBlock | CheckBlock, changes: Mapping[str, Value]) -> Values:
    """The value of every parameter: the reader's change, else what the page has. Raises LessonError."""
    return read_values(parameters_of(block), changes, _name_of(block))


def _name_of(block: CellBlock | CheckBlock) -> str:
    return f"cell {block.name!r}" if isinstance(block, CellBlock) else f"check {block.name!r}"


@contextmanager
def _whole_package() -> Iterator[None]:
    """Where the part without torch is all that is installed, what needs more raises ModelError, which says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "manyheads"):
            raise
        raise ModelError(f"this needs {package}, which is not installed here: pip install manyheads") from error


def run_cell(cell: CellBlock, changes: Mapping[str, Value], load: Loader) -> Ran:
    """Run a cell with what the reader changed. Raises LessonError for values that do not fit, or as the cell."""
    with _whole_package():
        ran = CELLS[cell.run].run(inputs_of(cell, changes), load)
    return replace(ran, words=singular(ran.words))


# ------------------------------------------------------------------------------------------------------ facts in prose


def say(text: str, load: Loader) -> str:
    """A text of a lesson with its facts filled in. A fact whose model is missing says so in its place."""
    return fill_facts("a lesson", text, lambda name, inputs: _fact_words(name, tuple(sorted(inputs.items())), load))


@lru_cache(maxsize=512)
def _fact_words(name: str, inputs: tuple[tuple[str, str], ...], load: Loader) -> str:
    # a page without its model must still open: the missing number says why it is missing
    fact = _entry("a lesson", "fact", name, FACTS)
    try:
        with _whole_package():
            return fact.say(read_values(fact.parameters, dict(inputs), f"fact {name!r}"), load)
    except ModelError as error:
        return f"({MISSING}: {error})"


def fill_facts(where: str, text: str, words_of: Callable[[str, dict[str, str]], str]) -> str:
    """The text with the words `words_of(name, inputs)` for every fact. Raises LessonError, or as `words_of`."""
    return FACT.sub(lambda match: words_of(*_reference(where, match["reference"])), text)


def fact_references(where: str, text: str) -> list[tuple[str, dict[str, str]]]:
    """Every fact that a text refers to: its name and inputs. Raises LessonError."""
    return [_reference(where, match["reference"]) for match in FACT.finditer(text)]


def _reference(where: str, written: str) -> tuple[str, dict[str, str]]:
    try:
        name, *inputs = shlex.split(written)
    except ValueError as error:
        raise LessonError(f"{where}: {{{{{written[:60]}}}}} cannot be read: {error}.") from None
    pairs = [text.partition("=") for text in inputs]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise LessonError(f"{where}: {wrong[0][:40]!r} in {{{{{written[:60]}}}}} is not an input: write name=value.")
    return name, {key: value for key, _, value in pairs}


# -------------------------------------------------------------------------------------------------------------- checks


def ask(check: CheckBlock, inputs: Mapping[str, Value] | None = None) -> tuple[str, tuple[str, ...]]:
    """The question and its choices, made from the inputs. Raises LessonError for a place that no input fills."""
    values = inputs_of(check, inputs or {})

    def written(value: Value) -> str:
        """As a question has it: 4,096; 0.5; a text as it is, or as the page's language has it."""
        if isinstance(value, str):
            return check.words.get(value, value)
        return f"{int(value):,}" if value == int(value) else f"{value:g}"

    def fill(text: str) -> str:
        if lacking := [name for name in PLACE.findall(text) if name not in values]:
            raise LessonError(
                f"check {check.name!r}: {{{lacking[0]}}} is not an input. It has {', '.join(values) or 'none'}."
            )
        return singular(PLACE.sub(lambda match: written(values[match[1]]), text))

    return fill(check.question), tuple(fill(check.words.get(choice, choice)) for choice in check.choices)


def draw(check: CheckBlock, seed: int) -> Values:
    """New inputs for the same question, drawn by `seed`; the page's own inputs where no others are sound."""
    # The name is part of the seed, so that two questions of a page with like parameters do not get like numbers.
    name = int.from_bytes(check.name.encode()[:8], "little")
    rng, sound = np.random.Generator(np.random.PCG64([seed, name])), CHECKS[check.run].sound
    for _ in range(MAX_DRAWS):
        values = draw_values(parameters_of(check), rng)
        if sound is None or sound(values):
            return values
    return inputs_of(check, {})


def right_of(
    lesson: Lesson, check: CheckBlock, inputs: Mapping[str, Value], cell: Mapping[str, Value], load: Loader
) -> Right:
    """The right answer, computed now. `cell`: what the reader has in the cell that a prediction is about.

    Raises LessonError for inputs that do not fit, and for a right answer that nobody could give; or as the work does.
    """
    # inputs come from a reader and may make no question at all: refused before anything is computed
    values, function = inputs_of(check, inputs), CHECKS[check.run]
    where = f"check {check.name!r} cannot be asked with these inputs: take those of the page, or draw others."
    if function.sound is not None and not function.sound(values):
        raise LessonError(where)
    ran = run_cell(lesson.cells[str(check.cell)], cell, load) if isinstance(function, Predict) else None
    try:
        with _whole_package():
            right = function.find(values, load if ran is None else ran)  # type: ignore[arg-type]
    except (ValueError, LookupError, ArithmeticError) as error:
        # With the page's own inputs it is our fault, and must be seen; with the reader's it is no question.
        if isinstance(error, ManyHeadsError) or not (inputs or cell):
            raise
        raise LessonError(where) from error
    choices = ask(check, inputs)[1]
    if check.words:  # functions know the English choices
        called = dict(zip(ask(replace(check, words={}), inputs)[1], choices, strict=True))
        mistakes = {called.get(mistake, mistake): words for mistake, words in right.mistakes.items()}
        right = replace(right, answer=called.get(str(right.answer), right.answer), mistakes=mistakes)
    if (check.answer == "number") == isinstance(right.answer, str) or (choices and right.answer not in choices):
        raise LessonError(
            f"lesson {lesson.slug!r}, check {check.name!r}: {right.answer!r} is right, and cannot be given."
        )
    mistakes = {mistake: singular(words) for mistake, words in right.mistakes.items()}
    return replace(right, words=singular(right.words), hint=singular(right.hint), mistakes=mistakes)


def answer(
    lesson: Lesson,
    check: CheckBlock,
    written: str,
    load: Loader,
    *,
    inputs: Mapping[str, Value] | None = None,
    cell: Mapping[str, Value] | None = None,
    num_wrong: int = 0,
) -> Verdict:
    """Judge an answer to a check.

    - `lesson`: the page, as `lessons()` has it.
    - `check`: one of its checks or predictions.
    - `written`: what the reader typed.
    - `load`: gives a model by its name; `shelf.load` gives the bundled ones.
    - `inputs`: values of the question that differ from the page's, as `draw` gives them.
    - `cell`: of a prediction, the reader's values of the cell that it is about.
    - `num_wrong`: how many wrong answers there were before, each of which costs half of the points.

    Errors: as `right_of`.
    """
    right = right_of(lesson, check, inputs or {}, cell or {}, load)
    question, choices = ask(check, inputs)
    return judge(right, check.answer, choices, check.points, written, question, num_wrong)
