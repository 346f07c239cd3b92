"""A lesson is a Markdown file with a head, blocks that run, and numbers in its prose that are computed.

    ---
    title: One head, step by step
    summary: What happens between a sentence and a map of attention.
    group: Basics
    order: 20
    sources:
    - Vaswani et al. 2017, section 3.2.1
    ---

    Prose, in Markdown. HTML in it is shown as it is written, never used; pictures are left out. A number that code
    could compute is never typed: {{example-row of=weights row=2}} asks a fact of that name, when the page is read.

    ```cell one-head
    title: The example, with your own numbers
    scale: none
    ```

    ```check sharper
    question: All scores of a row are multiplied by {factor}. Its weights ...
    answer: choice
    choices: stay as they are | become more even | become more uneven
    points: 2
    factor: 3
    ```

    ```predict looks-most
    cell: one-head
    question: Which token does token {token} look at most?
    answer: text
    token: 2
    ```

    ```scene word
    title: One word looks
    sentence: The animal didn't cross the street because it was too tired.
    head: L3H1
    word: it
    ```

    ```interview why-scale
    question: Why are scores divided by the root of the head's width?
    points:
    - a sum of more products varies more
    - a row of large scores falls to one token
    answer:
    A model answer, in Markdown, to the end of the block. It may hold facts as well.
    ```

`cell NAME` runs the function of that name: `title:` is what stands above it, every other line is a parameter's value to
begin with. A line `run: OTHER` runs another function, so that a page can have two of a kind; so it does in checks.
With `open: yes` the page runs it when it opens, and shows the step that its title names; with `wide: yes` it lies below
its text, not beside it.
`check NAME` asks a question; what is right is found by the function of that name, from the lines that are left: its
inputs. `{name}` in a question or a choice is that input, so that question and answer cannot drift apart.
`answer:` is number, choice or text; `choices:` are parted by |.
`predict NAME` is a check on a cell of the same page: it is judged by what that cell computes with what the reader has
in it at that moment, and the cell is then run and shown.
`interview NAME` is a question with a model answer, and the points that an answer should make, for the reader to tick.
`scene NAME` is a scene of the studio's player (word, layer), played on `sentence:` with `head:` and `word:`.
In the head, `group:` is one of GROUPS, under which the lesson is listed (Basics where none is given). `order:` is a
number: lessons are listed by it, and one without it comes last. `everyone: yes` marks a lesson for
everybody. `fresh: yes` draws the inputs of all checks again each time the lesson is opened.

A page in another language is a file of the same name in a folder of that language's code (pages/de/one-head.md): prose,
titles and questions are translated, blocks and their inputs stay, in the same order. `words:` in its head is a list of
"English = translated": choices and inputs, as a question shows them. Cells and verdicts stay in English.

Functions have their names in the tables CELLS, CHECKS and FACTS of the pages' modules (`shelf` finds them);
docs/reference/lessons.md shows how they are written. Why a format of our own: a lesson should be prose that anybody can
edit, and hold no number that code could compute. Why not YAML: titles, questions and sources are prose, with colons and
hyphens that YAML would need quotes for. Cost: a page is parsed in some milliseconds, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from manyheads.errors import ManyHeadsError

ANSWERS = ("number", "choice", "text")
GROUPS = ("Basics", "Real heads", "Cost", "Circuits", "Quiz")
SCENES = ("word", "layer")  # of the studio's player, which a page may place
WORDS_A_MINUTE = 200  # read with care
LAST = 10**6  # the order of a page that gives none
ENGLISH = "en"  # the language of the pages that are in no folder of another
_HEAD = re.compile(r"\A---\n(?P<head>.*?)\n---\n", re.DOTALL)
_BLOCK = re.compile(
    r"^```(?P<kind>cell|check|predict|interview|scene)(?P<name>[^\n]*)\n(?P<lines>.*?)^```[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_NAME = re.compile(r"[a-z][a-z0-9-]*")


class LessonError(ManyHeadsError, ValueError):
    """A lesson that cannot be read, or a parameter or an answer that does not fit one."""


@dataclass(frozen=True)
class ProseBlock:
    """Markdown as it is written, its facts still to be filled in."""

    text: str


@dataclass(frozen=True)
class CellBlock:
    """`run` is the function's name, `name` the cell's own on its page; `values` what its parameters begin with.

    `at_once`: whether the page runs it when it opens. `wide`: whether it needs the page's whole width.
    """

    name: str
    title: str
    run: str
    values: Mapping[str, str] = field(default_factory=dict)
    at_once: bool = False
    wide: bool = False


@dataclass(frozen=True)
class CheckBlock:
    """`values` are the inputs that question and answer are made from. `cell`: of a prediction, what it is about.

    `words`: of a translated page, how choices and inputs are called there.
    """

    name: str
    question: str
    answer: str
    choices: tuple[str, ...]
    points: int
    run: str
    values: Mapping[str, str] = field(default_factory=dict)
    cell: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InterviewBlock:
    """`points` is what an answer should say, each to be ticked; `answer` is Markdown."""

    name: str
    question: str
    points: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class SceneBlock:
    """A scene of the studio's player on a sentence: `head` and `word` are those that it begins with."""

    name: str
    title: str
    sentence: str
    head: str
    word: str


Block = ProseBlock | CellBlock | CheckBlock | InterviewBlock | SceneBlock


@dataclass(frozen=True)
class Lesson:
    """A page as it was read. The one of two lessons with the lower `order` comes first.

    `everyone`: whether it is one of those that everybody should take. `language`: the code of the language of its text.
    """

    slug: str
    title: str
    summary: str
    sources: tuple[str, ...]
    parts: tuple[Block, ...]
    fresh: bool = False
    order: int = LAST
    group: str = GROUPS[0]
    everyone: bool = False
    language: str = ENGLISH

    @property
    def cells(self) -> dict[str, CellBlock]:
        return {part.name: part for part in self.parts if isinstance(part, CellBlock)}

    @property
    def checks(self) -> dict[str, CheckBlock]:
        """The questions by name, predictions among them."""
        return {part.name: part for part in self.parts if isinstance(part, CheckBlock)}

    @property
    def interviews(self) -> dict[str, InterviewBlock]:
        return {part.name: part for part in self.parts if isinstance(part, InterviewBlock)}

    @property
    def minutes(self) -> int:
        """The time that words, cells and questions take, each at the rate that docs/reference/lessons.md gives."""
        cells_of_checks = {check.cell for check in self.checks.values()}
        pictures = [cell for cell in self.cells.values() if cell.at_once and cell.name not in cells_of_checks]
        texts = [cell.title for cell in pictures]
        for part in self.parts:
            match part:
                case ProseBlock():
                    texts.append(part.text)
                case CheckBlock():
                    texts += (part.question, *part.choices)
                case InterviewBlock():
                    texts += (part.question, *part.points, part.answer)
        words = re.sub(r"\{\{.*?\}\}", "fact", " ".join(texts), flags=re.DOTALL).split()  # a fact is read as one word
        seconds = 60 * len(words) / WORDS_A_MINUTE + 60 * (len(self.cells) - len(pictures)) + 45 * len(self.interviews)
        seconds += sum(40 if check.points == 1 else 60 for check in self.checks.values())
        return math.ceil(seconds / 60)

    @property
    def questions(self) -> dict[str, int]:
        """All that can be answered here, and the points it gives: a check's own, one for an interview question."""
        return {name: check.points for name, check in self.checks.items()} | dict.fromkeys(self.interviews, 1)


def read_lesson(slug: str, text: str, language: str = ENGLISH) -> Lesson:
    """The lesson that a file holds. Raises LessonError naming the lesson, and the line or block that is wrong."""
    text = text.replace("\r\n", "\n")
    head = _HEAD.match(text)
    if head is None:
        raise LessonError(f"lesson {slug!r} has no header: begin with a line ---, then title: and so on, then ---.")
    values, lists = _with_lists(f"lesson {slug!r}", head["head"], "sources", "words")
    words = dict(_pair(f"lesson {slug!r}", line, " = ") for line in lists["words"])
    _require(f"lesson {slug!r}", values, ("title", "summary"), ("fresh", "order", "group", "everyone"))
    order = values.get("order", str(LAST))
    if not order.isascii() or not order.isdigit():
        raise LessonError(f"lesson {slug!r}: order: {order!r} is not a whole number of 0 or more.")
    group = values.get("group", GROUPS[0])
    if group not in GROUPS:
        raise LessonError(f"lesson {slug!r}: group: {group[:40]!r} is unknown: use one of {', '.join(GROUPS)}.")
    parts: list[Block] = []
    position = head.end()
    for block in _BLOCK.finditer(text, position):
        parts += _prose(text[position : block.start()])
        made = _block(slug, block["kind"], block["name"].strip(), block["lines"])
        parts.append(replace(made, words=words) if isinstance(made, CheckBlock) else made)
        position = block.end()
    parts += _prose(text[position:])
    # a scene is named as the player knows it, and may be shown twice
    names = [part.name for part in parts if not isinstance(part, ProseBlock | SceneBlock)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LessonError(
            f"lesson {slug!r} has two blocks called {twice[0]!r}: give one another name (run: says what)."
        )
    fresh, everyone = (values.get(name, "no") == "yes" for name in ("fresh", "everyone"))
    lesson = Lesson(
        slug,
        values["title"],
        values["summary"],
        tuple(lists["sources"]),
        tuple(parts),
        fresh,
        int(order),
        group,
        everyone,
        language,
    )
    for check in lesson.checks.values():
        if check.cell is not None and check.cell not in lesson.cells:
            raise LessonError(f"lesson {slug!r}, predict {check.name!r}: no cell on this page is {check.cell!r}.")
    return lesson


def _block(slug: str, kind: str, name: str, text: str) -> Block:
    where = f"lesson {slug!r}, {kind} {name!r}"
    if not _NAME.fullmatch(name):
        raise LessonError(f"{where}: a name is small letters, digits and hyphens, as in ```{kind} one-head.")
    if kind == "interview":  # question:, then points: with a list, then answer:, whose text goes on to the end
        before, mark, answer = text.partition("\nanswer:")
        values, lists = _with_lists(where, before, "points")
        _require(where, values, ("question",), ())
        if not lists["points"] or not mark or not answer.strip():
            raise LessonError(
                f"{where} lacks points or an answer: it needs question:, points: with a list, and answer:."
            )
        return InterviewBlock(name, values["question"], tuple(lists["points"]), answer.strip())
    pairs = [_pair(where, line) for line in text.split("\n") if line.strip()]
    values = dict(pairs)
    if len(values) < len(pairs):
        raise LessonError(f"{where} says something twice: one line for each.")
    if kind == "cell":
        _require(where, values, ("title",), None)
        at_once, wide = (values.pop(line, "no") == "yes" for line in ("open", "wide"))
        return CellBlock(name, values.pop("title"), values.pop("run", name), values, at_once, wide)
    if kind == "scene":
        _require(where, values, ("title", "sentence", "head", "word"), ())
        if name not in SCENES:
            raise LessonError(f"{where}: the player has no such scene for a lesson. It has {', '.join(SCENES)}.")
        return SceneBlock(name, **values)
    _require(where, values, ("question", "answer", *(("cell",) if kind == "predict" else ())), None)
    question, answer, written = values.pop("question"), values.pop("answer"), values.pop("choices", "")
    choices = tuple(part.strip() for part in written.split("|") if part.strip())
    if answer not in ANSWERS or (answer == "choice") != (len(choices) > 1):
        raise LessonError(
            f"{where}: answer: is one of {', '.join(ANSWERS)}, and choices: (two or more) are for choice."
        )
    num_points = values.pop("points", "1")
    if not num_points.isascii() or not num_points.isdigit() or int(num_points) < 1:
        raise LessonError(f"{where}: points: {num_points!r} is not a whole number of 1 or more.")
    cell = values.pop("cell") if kind == "predict" else None
    return CheckBlock(name, question, answer, choices, int(num_points), values.pop("run", name), values, cell)


def _with_lists(where: str, text: str, *listed: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Lines 'name: value', and the entries below each of the lines `listed`, each behind a hyphen."""
    # A hyphen begins an entry only below its heading: prose may begin a line with one as well.
    values, entries, listing = {}, {name: [] for name in listed}, ""
    for line in filter(str.strip, text.split("\n")):
        if listing and line.lstrip().startswith("- "):
            entries[listing].append(line.lstrip()[2:].strip())
            continue
        name, value = _pair(where, line)
        listing = name if name in listed else ""
        if not listing:
            values[name] = value
    return values, entries


def _pair(where: str, line: str, mark: str = ":") -> tuple[str, str]:
    name, found_mark, value = line.partition(mark)
    if not found_mark or not name.strip():
        raise LessonError(f"{where}: {line[:60]!r} is not a line 'name{mark.rstrip()} value'.")
    return name.strip(), value.strip()


def _require(where: str, values: Mapping[str, str], needed: tuple[str, ...], optional: tuple[str, ...] | None) -> None:
    """Raises LessonError for lines that are missing, or, unless `optional` is None, unknown."""
    if missing := [name for name in needed if not values.get(name)]:
        raise LessonError(f"{where} lacks {', '.join(missing)}: it needs {', '.join(needed)}.")
    if optional is not None and (unknown := sorted(values.keys() - {*needed, *optional})):
        raise LessonError(
            f"{where} says {', '.join(unknown)}, which means nothing: it has {', '.join(needed + optional)}."
        )


def _prose(text: str) -> list[ProseBlock]:
    return [ProseBlock(text.strip() + "\n")] if text.strip() else []
