"""Lessons: their prose, live cells and questions, and what came of an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from manyheads.studio.schema.base import Number, Said, Told


class LessonEntry(Said):
    """A lesson of the list. `points`: what each of its questions gives, by the question's name."""

    slug: str
    title: str
    summary: str
    minutes: int
    num_checks: int
    points: dict[str, int]


class Parameter(Said):
    """Something of a cell that the reader may change.

    `fills`, of a choice: what other parameters are under each choice. One choice fills nothing, and is the reader's
    own: changing what another filled goes over to it.
    """

    name: str
    label: str
    kind: Literal["text", "number", "choice"]
    value: str | float
    low: Number
    high: Number
    step: Number
    choices: list[str]
    fills: dict[str, dict[str, str]] = {}


class Prose(Said):
    kind: Literal["prose"]
    html: str


class LiveCell(Said):
    """A live cell: `run` is a named experiment of ours, never code from the page."""

    kind: Literal["cell"]
    cell: str
    title: str
    parameters: list[Parameter]


class Check(Said):
    """A question, made from `inputs`, which go back with the answer. `cell`: of a prediction, the cell it is about."""

    kind: Literal["check"]
    check: str
    question: str
    answer: Literal["number", "choice", "text"]
    choices: list[str]
    points: int
    inputs: dict[str, str | float]
    cell: str | None


class Interview(Said):
    """A question with a model answer, and what an answer should say, for the reader to tick."""

    kind: Literal["interview"]
    question: str
    interview: str
    points: list[str]
    html: str


Part = Annotated[Prose | LiveCell | Check | Interview, Field(discriminator="kind")]


class Lesson(Said):
    """A lesson whole. `seed`: of the checks' inputs where they were drawn, else null: as its page has them."""

    slug: str
    title: str
    summary: str
    minutes: int
    parts: list[Part]
    sources: list[str]
    seed: int | None


Inputs = Annotated[dict[str, Annotated[str, Field(max_length=4_000)] | float], Field(max_length=20)]


class CellAsk(Told):
    parameters: Inputs = {}


class Shown(Said):
    """One value of a cell's answer. `values` are rows of a matrix, of which `shape` says the whole shape.

    `as_map`: rows are tokens that look, columns tokens that are looked at.
    """

    label: str
    words: str
    shape: list[int]
    values: list[list[Number]]
    row_labels: list[str]
    column_labels: list[str]
    as_map: bool = False


class HeadPlace(Said):
    """A head on a text, to be opened in the Head room."""

    model: str
    head: str
    text: str


class CellResult(Said):
    lesson: str
    cell: str
    words: str
    shown: list[Shown]
    links: list[HeadPlace] = []


class CheckAsk(Told):
    """An answer to a question with these inputs. `cell`: what is in the cell that a prediction is about."""

    answer: Annotated[str, Field(max_length=1_000)]
    inputs: Inputs = {}
    cell: Inputs = {}


class CheckResult(Said):
    """`answered`: whether it was an answer at all; what was none costs nothing."""

    right: bool
    points: int
    words: str
    answered: bool
