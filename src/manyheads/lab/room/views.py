"""Lessons for the page: the lessons of `manyheads.lab.lessons`, and what they compute, as answers of the server."""

from __future__ import annotations

import html
import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, TypeVar

from markdown_it import MarkdownIt
from markdown_it.token import Token

from manyheads.base import percent
from manyheads.errors import ManyHeadsError
from manyheads.lab.lessons import CellBlock, Lesson, ProseBlock, shelf
from manyheads.lab.lessons.answers import Verdict, points_left, solution_of, tries_of
from manyheads.lab.lessons.lesson import ENGLISH, CheckBlock, InterviewBlock, SceneBlock
from manyheads.lab.lessons.parameters import Parameter
from manyheads.lab.room import schema as bodies
from manyheads.lab.room.schema import Trained, TrainedWay
from manyheads.lab.training.presets.table import stored_report
from manyheads.studio import NotHere, ReportProgress

Value = TypeVar("Value")
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
_FORMULAS: Mapping[str, str] = json.loads((files("manyheads.lab.lessons") / "formulas.mathml.json").read_text("utf-8"))


def _code(renderer: object, tokens: Sequence[Token], index: int, options: object, env: object) -> str:
    """A formula's plain text as MathML, by itself on its line if it is a paragraph; any other code as code."""
    text = " ".join(tokens[index].content.split())
    if text not in _FORMULAS:
        return f"<code>{html.escape(tokens[index].content)}</code>"
    return _FORMULAS[text].replace("<math ", '<math display="block" ', 1) if len(tokens) == 1 else _FORMULAS[text]


MARKDOWN.add_render_rule("code_inline", _code)
MAX_SEED = 2**31  # a number that JavaScript and an address hold without loss

Load = Callable[[str], Any]
"""A model's name -> the loaded model. A server passes that of its workspace, so that models are loaded once."""


def entries() -> list[bodies.LessonEntry]:
    """Every lesson, first to last."""
    return [
        bodies.LessonEntry.of(page, num_checks=len(page.questions), points=page.questions)
        for page in shelf.lessons().values()
    ]


def lesson(slug: str, seed: int | None = None, language: str = ENGLISH, *, load: Load = shelf.load) -> bodies.Lesson:
    """One whole lesson, its facts computed; with a seed, its checks' inputs drawn at random.

    Where it is not there in that language, it is the English one. Errors: NotHere; LessonError for a language that no
    lesson has.
    """
    page = _page(slug, language)
    seed = secrets.randbelow(MAX_SEED) if seed is None and page.fresh else seed
    parts: list[bodies.Part] = []
    for part in page.parts:
        match part:
            case ProseBlock():
                parts.append(bodies.Prose(kind="prose", html=_html(part.text, load)))
            case CellBlock():
                parts.append(cell_body(part))
            case InterviewBlock():
                question, points = shelf.say(part.question, load), [shelf.say(point, load) for point in part.points]
                answer = _html(part.answer, load)
                parts.append(
                    bodies.Interview(
                        kind="interview", interview=part.name, question=question, points=points, html=answer
                    )
                )
            case CheckBlock():
                parts.append(check_body(page, part, {} if seed is None else shelf.draw(part, seed)))
            case SceneBlock():
                parts.append(bodies.LessonScene.of(part, kind="scene", scene=part.name))
    languages = [code for code, pages in shelf.LANGUAGES.items() if slug in pages]
    return bodies.Lesson.of(page, summary=shelf.say(page.summary, load), parts=parts, seed=seed, languages=languages)


def cell_body(cell: CellBlock) -> bodies.LiveCell:
    """A cell as the page gets it, not yet run."""
    function = shelf.CELLS[cell.run]
    return bodies.LiveCell.of(
        cell,
        kind="cell",
        cell=cell.name,
        parameters=[bodies.Parameter.of(parameter) for parameter in shelf.parameters_of(cell)],
        code=[
            bodies.Listing.of(listing, lines=[bodies.CodeLine.of(line) for line in listing.lines])
            for listing in function.code
        ],
        page_part=function.page_part,
        computed_by=cell.run if function.in_page else "",
    )


def check_body(page: Lesson, check: CheckBlock, changes: Mapping[str, str | int | float]) -> bodies.Check:
    """A question as the page gets it, made from these inputs; from the lesson's own where they say nothing."""
    inputs = shelf.inputs_of(check, changes)
    question, choices = shelf.ask(check, inputs)
    num_tries = tries_of(choices)
    return bodies.Check.of(
        check,
        kind="check",
        check=check.name,
        question=question,
        choices=list(choices),
        worth=[points_left(check.points, num_wrong, num_tries) for num_wrong in range(num_tries)],
        inputs=inputs,
        computed_by=check.run if check.cell and shelf.CELLS[page.cells[check.cell].run].in_page else "",
    )


def run_cell(
    slug: str, cell: str, ask: bodies.CellAsk, *, progress: ReportProgress, load: Load = shelf.load
) -> bodies.CellResult:
    """Run a live cell.

    Errors: NotHere; LessonError for parameters that do not fit; whatever the cell's work raises. A message calls the
    page's fields by their labels, not by the names that the command line has for them.
    """
    block = _entry(_page(slug).cells, cell, f"lesson {slug!r}", "cell")
    progress(f"running {block.title}", 0, 1)
    with named_by_labels(shelf.parameters_of(block)):
        result = shelf.run_cell(block, ask.parameters, load)
    progress(f"ran {block.title}", 1, 1)
    tables = [
        bodies.Shown.of(
            table,
            # A hidden score is -inf; JSON has none, and the page draws null as absent.
            values=[[value if math.isfinite(value) else None for value in row] for row in table.values.tolist()],
            row_labels=table.rows,
            column_labels=table.columns,
        )
        for table in result.shown
    ]
    return bodies.CellResult.of(result, lesson=slug, cell=cell, shown=tables)


@contextmanager
def named_by_labels(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Errors of the work within, with "d_model=513" in their words as “model width” = 513."""
    try:
        yield
    except ManyHeadsError as error:
        message = str(error)
        for parameter in parameters:
            name, label = re.escape(parameter.name), f"\u201c{parameter.label}\u201d"
            message = re.sub(rf"(?<![\w\u201c]){name}=", f"{label} = ", message)
            message = re.sub(rf"^{name}(?=[: ])", label, message)
        error.args = (message,)
        raise


def check(slug: str, check: str, ask: bodies.CheckAsk, language: str = ENGLISH, *, load: Load = shelf.load) -> Verdict:
    """Judge an answer, or give the hint or the solution.

    Errors: NotHere; LessonError for inputs that do not fit; whatever the check's work raises.
    """
    page = _page(slug, language)
    block = _entry(page.checks, check, f"lesson {slug!r}", "check")
    with named_by_labels(shelf.parameters_of(page.cells[block.cell]) if block.cell else ()):
        if ask.show == "verdict":
            return shelf.answer(
                page, block, ask.answer, load, inputs=ask.inputs, cell=ask.cell, num_wrong=ask.num_wrong
            )
        right = shelf.right_of(page, block, ask.inputs, ask.cell, load)
    return Verdict(
        False, 0, right.hint if ask.show == "hint" else "", solution="" if ask.show == "hint" else solution_of(right)
    )


def _page(slug: str, language: str = ENGLISH) -> Lesson:
    return _entry(shelf.lessons(language), slug, "the studio", "lesson")


def _entry(entries: Mapping[str, Value], name: str, where: str, kind: str) -> Value:
    """An entry by name. Raises NotHere with the names that there are."""
    if name not in entries:
        raise NotHere(f"{where} has no {kind} {name[:60]!r}. It has: {', '.join(entries) or 'none'}.")
    return entries[name]


def _html(text: str, load: Load) -> str:
    return MARKDOWN.render(shelf.say(text, load))


def trained() -> list[Trained]:
    """What becomes of nets that are trained as each scene has it, from the stored reports of two presets."""
    collapse, counts = stored_report("collapse"), stored_report("heads")
    ways, by_heads = collapse["found"]["ways"], counts["found"]["by_heads"]

    def way(words: str, scores: dict[str, Any]) -> TrainedWay:
        right, apart = scores["all_right"], scores.get("diversity")
        return TrainedWay(
            words=words,
            right=right["mean"],
            right_sd=right["sd"],
            diversity=None if apart is None else round(apart["mean"], 6),
        )

    task = f"a layer of {collapse['found']['heads']} heads that must find five relations"
    seeds = f"means over {collapse['found']['seeds']} seeds, {collapse['found']['parameters']:,} parameters each"
    free, tied, unmixed = (way(words, ways[name]) for name, words in (
        ("free", "trained free"), ("tied", "trained with one map for all"), ("unmixed", "trained without Wᴼ"),
    ))  # fmt: skip
    eight, four, alone = (
        way(f"trained with {count} head{'s' * (count > 1)}", by_heads[str(count)]) for count in (8, 4, 1)
    )
    return [
        Trained(
            scene="same",
            words=f"Trained with one map from the first step, {task} is right at {percent(tied.right)} of places, not "
            f"{percent(free.right)}. Their diversity is {tied.diversity:.3g}, not {free.diversity:.3g}.",
            ways=[free, way("trained free, run with one map", ways["averaged"]), tied],
            source=f"{collapse['command']}: {seeds}",
        ),
        Trained(
            scene="unmixed",
            words=f"Trained without Wᴼ, nothing is lost: {task} is right at {percent(unmixed.right)} of places, "
            f"with Wᴼ at {percent(free.right)}. Taken from a net that was trained with it, everything breaks.",
            ways=[free, way("trained free, run without Wᴼ", ways["skipped"]), unmixed],
            source=f"{collapse['command']}: {seeds}",
        ),
        Trained(
            scene="one",
            words=f"Trained with one head as wide as eight, a layer that must find five relations is right at "
            f"{percent(alone.right)} of places, with eight at {percent(eight.right)}.",
            ways=[eight, alone],
            source=f"{counts['command']}: {seeds}",
        ),
        Trained(
            scene="half",
            words=f"Trained with four heads twice as wide, a layer that must find five relations is right at "
            f"{percent(four.right)} of places, with eight at {percent(eight.right)}.",
            ways=[eight, four],
            source=f"{counts['command']}: {seeds}",
        ),
        Trained(scene="positions", words="No net was trained here without positions.", ways=[], source=""),
    ]
