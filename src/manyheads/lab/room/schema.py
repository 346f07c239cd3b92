"""Lessons: their prose, live cells and questions. The result of an answer is `manyheads.lab.lessons` Verdict itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from manyheads.lab.lessons.cells import HeadLink, KindCard, PagePart, Panel
from manyheads.studio.schema import AnswerBody, Number, RequestBody, SceneName


class LessonEntry(AnswerBody):
    """A lesson of the list. `points`: the points of each of its questions, by the question's name.

    `group`: under which it is listed; `everyone`: whether everybody should take it.
    """

    slug: str
    title: str
    group: str
    everyone: bool
    summary: str
    minutes: int
    num_checks: int
    points: dict[str, int]


class Parameter(AnswerBody):
    """A parameter of a cell, which the reader may change.

    `fills`, for a choice: the values that each choice sets for other parameters. One choice sets none: the page selects
    it as soon as the reader edits a value that another choice has set. `whole`: whether it is a whole number.
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
    whole: bool = False


class Prose(AnswerBody):
    kind: Literal["prose"]
    html: str


class CodeLine(AnswerBody):
    """A line of code. `steps`: labels of the values that it computes; "Q" stands for "Q, head 1" as well."""

    text: str
    steps: list[str]


class Listing(AnswerBody):
    """The code of a cell in the library `name`, to read."""

    name: str
    lines: list[CodeLine]


class LiveCell(AnswerBody):
    """A live cell: `cell` names an experiment of the library; the page never sends code. `at_once`: run when opened.

    `wide`: shown below its text, not beside it. `page_part`: the page's own part that computes it and stands in its
    place, "" where there is none. `computed_by`: the function by which a page without a server computes it, "" where it
    cannot.
    """

    kind: Literal["cell"]
    cell: str
    title: str
    parameters: list[Parameter]
    at_once: bool = False
    wide: bool = False
    code: list[Listing] = []
    page_part: PagePart = ""
    computed_by: str = ""


class Check(AnswerBody):
    """A question made from `inputs`, which the answer returns. `cell`: for a prediction, the cell that it is about.

    `worth`: what a right answer gives after no, one ... wrong answer; it ends where the solution is shown.
    `computed_by`: the function by which a page without a server judges a prediction, "" where it cannot, and for other
    questions.
    """

    kind: Literal["check"]
    check: str
    question: str
    answer: Literal["number", "choice", "text"]
    choices: list[str]
    points: int
    worth: list[float]
    inputs: dict[str, str | float]
    cell: str | None
    computed_by: str = ""


class Interview(AnswerBody):
    """A question with a model answer, and the points of a good answer, for the reader to tick."""

    kind: Literal["interview"]
    question: str
    interview: str
    points: list[str]
    html: str


class LessonScene(AnswerBody):
    """A place for a scene of the player, on this sentence: `head` and `word` are those that it begins with."""

    kind: Literal["scene"]
    scene: Literal["word", "layer"]
    title: str
    sentence: str
    head: str
    word: str


Part = Annotated[Prose | LiveCell | Check | Interview | LessonScene, Field(discriminator="kind")]


class Lesson(AnswerBody):
    """A whole lesson. `seed`: that of the checks' inputs where they were drawn, null where they are the page's own.

    `language`: of its text; `languages`: those that it can be had in.
    """

    slug: str
    title: str
    summary: str
    minutes: int
    parts: list[Part]
    sources: list[str]
    seed: int | None
    language: str = "en"
    languages: list[str] = ["en"]


Inputs = Annotated[dict[str, Annotated[str, Field(max_length=4_000)] | float], Field(max_length=20)]


class CellAsk(RequestBody):
    """The reader's parameters of a live cell."""

    parameters: Inputs = {}


class Shown(AnswerBody):
    """One value of a cell's result: rows of a matrix, perhaps its first ones; `shape` is that of the whole matrix.

    `as_map`: rows are query tokens, columns key tokens.
    """

    label: str
    words: str
    shape: list[int]
    values: list[list[Number]]
    row_labels: list[str]
    column_labels: list[str]
    as_map: bool = False


class CellResult(AnswerBody):
    """The result of a live cell. `links`: heads on a text, to open in the Head room.

    `flow`: stages of lanes of labels of `shown`, a diagram. `cards`: kinds of heads on a sentence. `chart`: curves, on
    whose x axis `frames` has a place for each value of `shown`, and `headlines` a sentence; `marked` are the cells that
    they speak of, which stand out from `born` on.
    """

    lesson: str
    cell: str
    words: str
    shown: list[Shown]
    links: list[HeadLink] = []
    flow: list[list[list[str]]] = []
    cards: list[KindCard] = []
    chart: list[Panel] = []
    frames: list[float] = []
    headlines: list[str] = []
    marked: list[tuple[int, int]] = []
    born: float | None


class CheckAsk(RequestBody):
    """An answer to a question with these inputs. `cell`: the parameters of the cell that a prediction is about.

    `num_wrong`: how many wrong answers, or looks at the hint, there were before. `show`: the verdict on the answer; or,
    whatever the answer, the hint or the solution.
    """

    answer: Annotated[str, Field(max_length=1_000)] = ""
    inputs: Inputs = {}
    cell: Inputs = {}
    num_wrong: Annotated[int, Field(ge=0, le=1_000)] = 0
    show: Literal["verdict", "hint", "solution"] = "verdict"


class TrainedWay(AnswerBody):
    """One way to train or run small nets, over seeds: the share of places at which all answers are right, its standard
    deviation, and the diversity of the heads' maps, null where that was not measured."""

    words: str
    right: float
    right_sd: float
    diversity: Number


class Trained(AnswerBody):
    """What becomes of nets that are *trained* as a scene has it: the first of `ways` is the one to compare with.

    From the stored report of a whole run of a training preset; `ways` is empty where `words` say that none was trained.
    """

    scene: SceneName
    words: str
    ways: list[TrainedWay]
    source: str
