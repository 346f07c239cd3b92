"""Lessons for the page: what `manyheads.lessons` holds and runs, in the types that the server speaks."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

from markdown_it import MarkdownIt

from manyheads.lessons import CellBlock, ProseBlock, shelf
from manyheads.lessons import Lesson as Page
from manyheads.lessons.cells import Table
from manyheads.lessons.lesson import Block, CheckBlock, InterviewBlock
from manyheads.lessons.parameters import Parameter as Given
from manyheads.studio.jobs import Say
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.lessons import (
    CellAsk,
    CellResult,
    Check,
    CheckAsk,
    CheckResult,
    HeadPlace,
    Interview,
    Lesson,
    LessonEntry,
    LiveCell,
    Parameter,
    Part,
    Prose,
    Shown,
)

__all__ = ["check", "entries", "lesson", "run_cell"]


MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
MAX_SEED = 2**31  # a number that JavaScript and an address hold without loss

Load = Callable[[str], Any]


def entries() -> list[LessonEntry]:
    """Every lesson, first to last."""
    return [
        LessonEntry(
            slug=page.slug,
            title=page.title,
            summary=page.summary,
            minutes=page.minutes,
            num_checks=len(page.questions),
            points=page.questions,
        )
        for page in shelf.lessons().values()
    ]


def lesson(slug: str, seed: int | None = None, *, load: Load = shelf.load) -> Lesson:
    """One lesson whole, its facts computed; with a seed, its checks' inputs drawn. Raises NotHere."""
    page = _page(slug)
    seed = secrets.randbelow(MAX_SEED) if seed is None and page.fresh else seed
    return Lesson(
        slug=page.slug,
        title=page.title,
        summary=shelf.say(page.summary, load),
        minutes=page.minutes,
        parts=[_part(part, seed, load) for part in page.parts],
        sources=list(page.sources),
        seed=seed,
    )


def run_cell(slug: str, cell: str, ask: CellAsk, *, progress: Say, load: Load = shelf.load) -> CellResult:
    """Run a live cell. `load(name)` gives the model that some cells need: a server hands in its own.

    Errors: NotHere; LessonError for parameters that do not fit; whatever the cell's work raises.
    """
    block = _of(_page(slug).cells, cell, f"lesson {slug!r}", "cell")
    progress(f"running {block.title}", 0, 1)
    ran = shelf.run_cell(block, ask.parameters, load)
    progress(f"ran {block.title}", 1, 1)
    links = [HeadPlace(model=link.model, head=link.head, text=link.text) for link in ran.links]
    return CellResult(
        lesson=slug, cell=cell, words=ran.words, shown=[_shown(table) for table in ran.shown], links=links
    )


def check(slug: str, check: str, ask: CheckAsk, *, load: Load = shelf.load) -> CheckResult:
    """Judge an answer. Errors: NotHere; LessonError for inputs that do not fit; whatever the check's work raises."""
    page = _page(slug)
    block = _of(page.checks, check, f"lesson {slug!r}", "check")
    verdict = shelf.answer(page, block, ask.answer, load, inputs=ask.inputs, cell=ask.cell)
    return CheckResult(right=verdict.right, points=verdict.points, words=verdict.words, answered=verdict.answered)


def _page(slug: str) -> Page:
    return _of(shelf.lessons(), slug, "the studio", "lesson")


def _of(known: Any, name: str, where: str, kind: str) -> Any:
    """Raises NotHere naming what there is."""
    if name not in known:
        raise NotHere(f"{where} has no {kind} {name[:60]!r}. It has: {', '.join(known) or 'none'}.")
    return known[name]


def _part(part: Block, seed: int | None, load: Load) -> Part:
    match part:
        case ProseBlock():
            return Prose(kind="prose", html=_html(part.text, load))
        case CellBlock():
            parameters = [_parameter(each) for each in shelf.parameters_of(part)]
            return LiveCell(kind="cell", cell=part.name, title=part.title, parameters=parameters)
        case InterviewBlock():
            return Interview(
                kind="interview",
                interview=part.name,
                question=shelf.say(part.question, load),
                points=[shelf.say(point, load) for point in part.points],
                html=_html(part.answer, load),
            )
        case CheckBlock():
            inputs = shelf.inputs_of(part, {} if seed is None else shelf.draw(part, seed))
            question, choices = shelf.ask(part, inputs)
            return Check(
                kind="check",
                check=part.name,
                question=question,
                answer=part.answer,  # type: ignore[arg-type]
                choices=list(choices),
                points=part.points,
                inputs=inputs,
                cell=part.cell,
            )


def _html(text: str, load: Load) -> str:
    return MARKDOWN.render(shelf.say(text, load))


def _parameter(each: Given) -> Parameter:
    return Parameter(
        name=each.name,
        label=each.label,
        kind=each.kind,  # type: ignore[arg-type]
        value=each.value,
        low=each.low,
        high=each.high,
        step=each.step,
        choices=list(each.choices),
        fills={name: dict(values) for name, values in each.fills.items()},
    )


def _shown(table: Table) -> Shown:
    return Shown(
        label=table.label,
        words=table.words,
        shape=list(table.shape),
        values=[[value if math.isfinite(value) else None for value in row] for row in table.values.tolist()],
        row_labels=list(table.rows),
        column_labels=list(table.columns),
        as_map=table.as_map,
    )
