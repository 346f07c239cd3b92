"""The lessons that come with the library, in their order, each held to the cells, checks and facts that there are.

Here the topics' tables are joined, and here a block of a page meets the function that it names: a cell is run, a
question is filled with its inputs, an answer is judged, prose gets its numbers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from manyheads.errors import ManyHeadsError, ModelError
from manyheads.lessons.answers import Check, Predict, Right, Verdict, judged
from manyheads.lessons.cells import Cell, Fact, Loader, Ran
from manyheads.lessons.lesson import CellBlock, CheckBlock, Lesson, LessonError, ProseBlock, read_lesson
from manyheads.lessons.pages import (
    archetypes,
    counting,
    feed_forward,
    induction,
    interview,
    kv_cache,
    masks,
    one_head,
    output_projection,
    pruning,
    recap,
    split_merge,
    what_heads_learn,
    why_many_heads,
)  # fmt: skip
from manyheads.lessons.parameters import Parameter, Value, Values, drawn, read_values, singular

__all__ = [
    "CELLS",
    "CHECKS",
    "FACTS",
    "MISSING",
    "ORDER",
    "TOPICS",
    "answer",
    "ask",
    "checked",
    "draw",
    "inputs_of",
    "lessons",
    "load",
    "parameters_of",
    "right_of",
    "run_cell",
    "say",
    "asked_facts",
    "filled",
]


TOPICS = (
    why_many_heads, one_head, split_merge, output_projection, counting, masks, feed_forward, archetypes, kv_cache,
    induction, what_heads_learn, pruning, recap, interview,
)  # fmt: skip
"""A module or two a topic, each with the tables CELLS, CHECKS and FACTS, or those of them that it needs."""
MISSING = "a number that cannot be had here"
MAX_DRAWS = 200  # of inputs, until they make a question worth asking
PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")

_PAGES = files("manyheads.lessons") / "pages"
ORDER = (
    "why-many-heads", "one-head", "split-merge", "archetypes", "output-projection", "counting", "masks", "kv-cache",
    "feed-forward", "what-heads-learn", "pruning", "induction", "recap", "interview", "interview-models",
)  # fmt: skip
"""Which pages, first to last: pages/NAME.md."""


def joined(name: str, topics: tuple[ModuleType, ...] = TOPICS) -> Mapping[str, Any]:
    """A table of all topics. Raises LessonError for a name that two of them use."""
    table: dict[str, Any] = {}
    for topic in topics:
        own = getattr(topic, name, {})
        if twice := sorted(table.keys() & own.keys()):
            raise LessonError(f"{name} of {topic.__name__}: {twice[0]!r} is another topic's name already.")
        table |= own
    return MappingProxyType(table)


CELLS: Mapping[str, Cell] = joined("CELLS")
CHECKS: Mapping[str, Check | Predict] = joined("CHECKS")
FACTS: Mapping[str, Fact] = joined("FACTS")


@cache
def lessons() -> Mapping[str, Lesson]:
    """Every lesson by its name. Raises LessonError for a page that is not in order, which is our fault."""
    read = [checked(read_lesson(slug, (_PAGES / f"{slug}.md").read_text(encoding="utf-8"))) for slug in ORDER]
    return MappingProxyType({lesson.slug: lesson for lesson in read})


def checked(lesson: Lesson) -> Lesson:
    """The lesson, if all that it runs and asks is there. Raises LessonError."""
    where = f"lesson {lesson.slug!r}"
    for cell in lesson.cells.values():
        _known(where, "cell", cell.run, CELLS)
        parameters_of(cell)
    for check in lesson.checks.values():
        found = _known(where, "check", check.run, CHECKS)
        if isinstance(found, Predict) != (check.cell is not None):
            kind = "a prediction on a cell: write ```predict" if check.cell is None else "no prediction: write ```check"
            raise LessonError(f"{where}: {check.run!r} is {kind}.")
        ask(check)
    for text in _texts(lesson):
        for name, inputs in asked_facts(where, text):
            read_values(_known(where, "fact", name, FACTS).parameters, inputs, f"fact {name!r}")
    return lesson


def _texts(lesson: Lesson) -> list[str]:
    """All that facts may stand in."""
    prose = [part.text for part in lesson.parts if isinstance(part, ProseBlock)]
    models = [text for each in lesson.interviews.values() for text in (each.question, *each.points, each.answer)]
    return [lesson.summary, *prose, *models]


def _known(where: str, kind: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise LessonError(f"{where}: no {kind} is called {name!r}. There are {', '.join(table) or 'none'}.")
    return table[name]


# ------------------------------------------------------------------------------------------------- cells and the prose


def parameters_of(block: CellBlock | CheckBlock) -> tuple[Parameter, ...]:
    """What may be changed, as it is to begin with on this page. Raises LessonError for a line that fits none."""
    known = (CELLS if isinstance(block, CellBlock) else CHECKS)[block.run].parameters
    values = read_values(known, block.values, _called(block))
    return tuple(replace(each, value=values[each.name]) for each in known)


def inputs_of(block: CellBlock | CheckBlock, given: Mapping[str, Value]) -> Values:
    """The value of every parameter: what was given, else as the page has it. Raises LessonError."""
    return read_values(parameters_of(block), given, _called(block))


def run_cell(cell: CellBlock, given: Mapping[str, Value], load: Loader) -> Ran:
    """Run a cell with what the reader changed. Raises LessonError for values that do not fit, or as the cell."""
    ran = CELLS[cell.run].run(inputs_of(cell, given), load)
    return replace(ran, words=singular(ran.words))


def say(text: str, load: Loader) -> str:
    """A text of a lesson with its facts said. One that cannot be had here, its model missing, says so in its place."""
    return filled("a lesson", text, lambda name, inputs: _said(name, tuple(sorted(inputs.items())), load))


@lru_cache(maxsize=512)
def _said(name: str, inputs: tuple[tuple[str, str], ...], load: Loader) -> str:
    fact = _known("a lesson", "fact", name, FACTS)
    try:
        return fact.say(read_values(fact.parameters, dict(inputs), f"fact {name!r}"), load)
    except ModelError as error:
        return f"({MISSING}: {error})"


# ------------------------------------------------------------------------------------------------------------- checks


def ask(check: CheckBlock, given: Mapping[str, Value] | None = None) -> tuple[str, tuple[str, ...]]:
    """The question and its choices, made from the inputs. Raises LessonError for a place that no input fills."""
    values = inputs_of(check, given or {})

    def fill(text: str) -> str:
        if lacking := [name for name in PLACE.findall(text) if name not in values]:
            raise LessonError(
                f"check {check.name!r}: {{{lacking[0]}}} is no input. It has {', '.join(values) or 'none'}."
            )
        return singular(PLACE.sub(lambda found: _written(values[found[1]]), text))

    return fill(check.question), tuple(fill(each) for each in check.choices)


def draw(check: CheckBlock, seed: int) -> Values:
    """Other inputs for the same question, the same for the same seed; the page's own where no others are sound."""
    name = int.from_bytes(check.name.encode()[:8], "little")
    rng, sound = np.random.Generator(np.random.PCG64([seed, name])), CHECKS[check.run].sound
    for _ in range(MAX_DRAWS):
        values = drawn(parameters_of(check), rng)
        if sound is None or sound(values):
            return values
    return inputs_of(check, {})


def right_of(
    lesson: Lesson, check: CheckBlock, given: Mapping[str, Value], cell: Mapping[str, Value], load: Loader
) -> Right:
    """What is right, computed now. `cell`: what the reader has in the cell that a prediction is about.

    Raises LessonError for inputs that do not fit, and for a right answer that could not be given; or as the work does.
    """
    values, found = inputs_of(check, given), CHECKS[check.run]
    where = f"check {check.name!r} cannot be asked with these inputs: take those of the page, or draw others."
    if found.sound is not None and not found.sound(values):
        raise LessonError(where)
    ran = run_cell(lesson.cells[str(check.cell)], cell, load) if isinstance(found, Predict) else None
    try:
        right = found.find(values, load if ran is None else ran)  # type: ignore[arg-type]
    except (ValueError, LookupError, ArithmeticError) as error:
        if isinstance(error, ManyHeadsError) or not (given or cell):  # the page's own: our fault
            raise
        raise LessonError(where) from error
    choices = ask(check, given)[1]
    if (check.answer == "number") == isinstance(right.answer, str) or (choices and right.answer not in choices):
        raise LessonError(
            f"lesson {lesson.slug!r}, check {check.name!r}: {right.answer!r} is right, and cannot be given."
        )
    mistakes = {each: singular(said) for each, said in right.mistakes.items()}
    return replace(right, words=singular(right.words), hint=singular(right.hint), mistakes=mistakes)


def answer(
    lesson: Lesson,
    check: CheckBlock,
    given: str,
    load: Loader,
    *,
    inputs: Mapping[str, Value] | None = None,
    cell: Mapping[str, Value] | None = None,
) -> Verdict:
    """Judge an answer to a check with these inputs. Raises as `right_of`."""
    right = right_of(lesson, check, inputs or {}, cell or {}, load)
    question, choices = ask(check, inputs)
    return judged(right, check.answer, choices, check.points, given, question)


def _called(block: CellBlock | CheckBlock) -> str:
    return f"cell {block.name!r}" if isinstance(block, CellBlock) else f"check {block.name!r}"


def _written(value: Value) -> str:
    """As a question says it: 4,096; 0.5; a text as it is."""
    if isinstance(value, str):
        return value
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


@cache
def load(name: str) -> object:
    """A bundled model, loaded once. Raises ModelError where it is not installed."""
    from manyheads.models import load as load_model

    return load_model(name)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers in prose: `{{name}}`, or `{{name d_model=512 heads=8}}`, is filled in with what the fact of it says.


PLACE_OF_FACTS = re.compile(r"\{\{(?P<asked>[^{}]+)\}\}")


def filled(where: str, text: str, say: Callable[[str, dict[str, str]], str]) -> str:
    """The text with every fact said. `say(name, inputs)` gives its words. Raises LessonError, or as `say`."""
    return PLACE_OF_FACTS.sub(lambda found: say(*_asked(where, found["asked"])), text)


def asked_facts(where: str, text: str) -> list[tuple[str, dict[str, str]]]:
    """What a text asks for: each fact's name and inputs. Raises LessonError."""
    return [_asked(where, found["asked"]) for found in PLACE_OF_FACTS.finditer(text)]


def _asked(where: str, written: str) -> tuple[str, dict[str, str]]:
    try:
        name, *inputs = shlex.split(written)
    except ValueError as error:
        raise LessonError(f"{where}: {{{{{written[:60]}}}}} cannot be read: {error}.") from None
    pairs = [each.partition("=") for each in inputs]
    if wrong := [each[0] for each in pairs if not each[1]]:
        raise LessonError(f"{where}: {wrong[0][:40]!r} in {{{{{written[:60]}}}}} is no input: write name=value.")
    return name, {key: value for key, _, value in pairs}
