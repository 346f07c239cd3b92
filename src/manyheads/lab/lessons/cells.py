"""What a lesson runs: cells, which return tables of numbers, and facts, which return a few words for its prose.

A cell gets its parameters, read and checked, and a function that loads a model; it returns a sentence and tables of
numbers, each with its whole shape. Nothing is remembered between two runs. The cells themselves stand in `pages/`.

A result may also be drawn: as a diagram of its tables (`flow`), as kinds of heads on a sentence (`cards`), or as curves
over a training, of which each table is a moment (`chart`, `frames`). All of it is data, which the page draws, and of
which the terminal prints words and tables; so a result can be computed beforehand and kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Shaped
from numpy import ndarray

from manyheads.base import Json, brief
from manyheads.lab.lessons.parameters import Parameter, Values

MAX_COLUMNS = 8  # of a wide table that are shown: enough to see numbers, few enough to fit

Loader = Callable[[str], Any]
"""A model's name -> the loaded model."""


@dataclass(frozen=True, eq=False)
class Table:
    """One value of a run. `values` are rows of a matrix, perhaps its first columns; `shape` is the whole one's.

    `as_map`: rows are queries and columns keys, drawn as a map on which a query can be clicked; NaN or -inf is what
    may not be seen.
    """

    label: str
    words: str
    values: Float64[ndarray, "rows columns"]
    shape: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    as_map: bool = False


@dataclass(frozen=True)
class HeadLink:
    """A head to look at in the studio's Head room, or by `manyheads head`, on this text."""

    head: str
    text: str
    model: str = "minilm"


@dataclass(frozen=True)
class Arc:
    """A link of a sentence: the token that looks, the one that is looked at (both from 0), and the weight."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class KindCard:
    """A kind of head, on a sentence. `head` does it, or comes nearest; `origin` says whose it is.

    `arcs` are the links to draw; `scores`, `chance`: what the head does, and what chance does; `next_question`:
    what to ask before believing it.
    """

    title: str
    head: str
    origin: str
    tokens: tuple[str, ...]
    arcs: tuple[Arc, ...]
    pattern: str
    reason: str
    scores: str
    chance: str
    next_question: str


Flow = tuple[tuple[tuple[str, ...], ...], ...]
"""A diagram of a computation: stages one after the other, lanes side by side in each, labels of tables in each lane."""


@dataclass(frozen=True)
class Curve:
    """A line over a training. `bold` ones are what its panel is about."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bold: bool = True


@dataclass(frozen=True)
class Panel:
    """Curves over one y axis, which begins at 0; `top`: its end, None where the curves say."""

    title: str
    curves: tuple[Curve, ...]
    top: float | None = None


@dataclass(frozen=True)
class CodeLine:
    """A line of code, and the tables (by label) that it computes: "Q" is "Q, head 1" as well."""

    text: str
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The code of a cell in one library: it runs as it stands, given the cell's numbers."""

    name: str
    lines: tuple[CodeLine, ...]


def listing(name: str, written: str) -> Listing:
    """Code whose lines end in `#: label; label` where they compute a step.

    >>> listing("NumPy", "q = x @ w_q  #: Q").lines
    (CodeLine(text='q = x @ w_q', steps=('Q',)),)
    """
    lines = []
    for line in written.strip("\n").split("\n"):
        code, _, steps = line.partition("#:")
        lines.append(CodeLine(code.rstrip(), tuple(step.strip() for step in steps.split(";") if step.strip())))
    return Listing(name, tuple(lines))


@dataclass(frozen=True)
class Ran:
    """The result of a cell: a sentence, tables in the order of the computation, and heads to go on with.

    `found`: values by which a prediction is judged, where no table holds them whole. `flow`: the tables as a diagram.
    `cards`: kinds of heads. `chart`: curves, and `frames` the place of each table on their x axis: the tables are
    moments of one thing, to be played or leafed through. `headlines`: a sentence for each moment; `marked`: the cells
    (row, column) of the maps that they speak of, and `born`: the place on the x axis from which on they stand out.
    """

    words: str
    shown: tuple[Table, ...]
    links: tuple[HeadLink, ...] = ()
    found: Mapping[str, int | float | str] = field(default_factory=dict)
    flow: Flow = ()
    cards: tuple[KindCard, ...] = ()
    chart: tuple[Panel, ...] = ()
    frames: tuple[float, ...] = ()
    headlines: tuple[str, ...] = ()
    marked: tuple[tuple[int, int], ...] = ()
    born: float | None = None

    def __repr__(self) -> str:
        return brief(f"Ran({self.words})")

    def table(self, label: str) -> Table:
        """The table with that label, against which a prediction is judged. Raises KeyError."""
        return {table.label: table for table in self.shown}[label]

    def to_dict(self) -> Json:
        """The result as plain data, but for `found`; null is what may not be seen, and what is empty is left out."""
        tables = [
            {
                "label": table.label,
                "words": table.words,
                "shape": list(table.shape),
                "values": [[v if math.isfinite(v) else None for v in row] for row in table.values.tolist()],
                "rows": list(table.rows),
                "columns": list(table.columns),
                "as_map": table.as_map,
            }
            for table in self.shown
        ]
        links = [{"model": link.model, "head": link.head, "text": link.text} for link in self.links]
        cards, chart = [asdict(card) for card in self.cards], [asdict(panel) for panel in self.chart]
        drawn = {
            "flow": self.flow, "cards": cards, "chart": chart, "frames": self.frames, "headlines": self.headlines,
            "marked": self.marked, "born": self.born,
        }  # fmt: skip
        return {"words": self.words, "shown": tables, "links": links} | {
            name: part for name, part in drawn.items() if part not in (None, (), [])
        }


PagePart = Literal["", "draw-a-head"]


@dataclass(frozen=True)
class Cell:
    """A live cell. `run(values, load)` raises LessonError, or what its work raises, for what cannot be done.

    `code`: the same computation in other libraries, each line beside the table that it computes. `page_part`: a part of
    the page that stands in its place, computes the same and needs no server; "" for parameters and tables. `in_page`:
    whether a page without a server computes it: web/src/lib/lesson-cells has a function of its name as well.
    """

    run: Callable[[Values, Loader], Ran]
    parameters: tuple[Parameter, ...] = ()
    code: tuple[Listing, ...] = ()
    page_part: PagePart = ""
    in_page: bool = False


@dataclass(frozen=True)
class Fact:
    """A number (or a few words) of a lesson's prose: plain text. `source`: of one that we cite and cannot compute."""

    say: Callable[[Values, Loader], str]
    parameters: tuple[Parameter, ...] = ()
    source: str = ""


def cited(figure: str, source: str) -> Fact:
    """A published figure that we cannot compute. The lesson that shows it must name the source, "Author et al. year".

    >>> cited("25.8", "Vaswani et al. 2017, table 3").say(Values(), lambda name: None)
    '25.8'
    """
    return Fact(lambda values, load: figure, source=source)


def matrix(
    label: str,
    words: str,
    values: Shaped[ndarray, "rows columns"],
    rows: Sequence[str] | str,
    columns: Sequence[str] | str,
    *,
    as_map: bool = False,
) -> Table:
    """A table of these values, as a cell shows it.

    - `label`: its name, by which `Ran.table` finds it.
    - `words`: what it holds, in a few words.
    - `values`: numbers of any type, NaN or -inf where nothing may be seen.
    - `rows`: a name for each row; one word or letter is numbered ("token": token 0, token 1).
    - `columns`: likewise. The first MAX_COLUMNS numbered columns are shown, and all named ones.
    - `as_map`: whether it is drawn as a map, its rows queries and its columns keys.
    """
    labels = [
        numbered(names, size) if isinstance(names, str) else tuple(names)
        for names, size in zip((rows, columns), values.shape, strict=True)
    ]
    # Columns with names are kept whole: a prediction may need any of them.
    cut = slice(None) if not isinstance(columns, str) else slice(MAX_COLUMNS)
    shown = np.asarray(values[:, cut], np.float64)
    return Table(label, words, shown, values.shape, labels[0], labels[1][cut], as_map)


def quoted(token: str) -> str:
    """A token of a text in a sentence: 'cat'. What is only numbered stays as it is: token 2."""
    return token if re.fullmatch(r"[a-z]+ ?\d+", token) else f"'{token}'"


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Labels with numbers: token 0, token 1; d0, d1."""
    return tuple(f"{word} {index}" if len(word) > 1 else f"{word}{index}" for index in range(count))
