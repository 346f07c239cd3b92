"""`clark-syntax FILE`: which heads of a causal language model, and of an encoder, link the words of a relation.

FILE is a treebank (CoNLL-U). A head is chosen on every other sentence, and scored on the rest. Nothing is trained.
Source: Clark et al. 2019, What does BERT look at?, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from manyheads.base import few
from manyheads.corpora import as_corpus, open_corpus
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task
from manyheads.lab.training.charts import Chart, Line, Panel
from manyheads.measurement import measure
from manyheads.models import load
from manyheads.statistics import HeadTable
from manyheads.texts import Document

MODELS = (prose.MODEL, "minilm")
QUESTIONS = ("to_governor", "to_dependent")
CHANCES = ("mode", "rule")
PUBLISHED = {"det": "94.3 %", "obj": "86.8 %", "nmod:poss": "80.5 %", "case": "76.3 % (pobj)", "aux:pass": "94.1 %"}
"""BERT-base on the Penn Treebank, in Stanford Dependencies: the nearest of its relations."""
WIDEST = 0.25  # of the best head's 95 % interval: with fewer arcs a relation is left out
MARGIN = 0.05  # by which a head must beat what needs no attention


class Found(NamedTuple):
    """The head that links a relation best, and what needs no attention, on the sentences on which it was not chosen.

    `offset`: the word at the most frequent offset. `nearest`: the nearest word with its part of speech, NaN if none.
    """

    head: Head
    question: str
    score: float
    offset: float
    nearest: float

    @property
    def chance(self) -> float:
        return float(np.nanmax([self.offset, self.nearest]))


def run(task: Task) -> Result:
    assert task.file is not None
    documents = sentences(task.file)
    if task.quick:
        documents = documents[:80]
    statistics = [f"*.{question}.{kind}" for question in QUESTIONS for kind in ("given", *CHANCES)]
    by_model = {}
    for name in MODELS:
        tell = None if task.progress is None else task.progress(name)
        lm = load(name, device=task.device)
        halves = [measure(lm, as_corpus(documents[start::2]), statistics, progress=tell or False) for start in (0, 1)]
        by_model[name] = found_in(*halves)
    return Result(rows_of(by_model), chart(by_model), notes_of(by_model, len(documents)))


def sentences(path: Path) -> list[Document]:
    """The annotated sentences of a treebank. Errors: TextError where it has none."""
    documents = [document for document in open_corpus(path).open() if document.gold is not None]
    if not documents:
        raise TextError(f"{path} has no annotated sentence: give a treebank in CoNLL-U.")
    return documents


def found_in(choosing: HeadTable, scoring: HeadTable) -> dict[str, Found]:
    """Of each relation that both halves have, the best head, over what needs no attention, on the first."""
    out: dict[str, Found] = {}
    gains: dict[str, float] = {}
    for column in choosing.names:
        relation, question, kind = column.rsplit(".", 2)
        if kind != "given" or column not in scoring.names:
            continue
        mode, rule = (f"{relation}.{question}.{chance}" for chance in CHANCES)
        first, second = (np.asarray(half.column(column)) for half in (choosing, scoring))
        if mode not in choosing.names or np.isnan(first).all() or np.isnan(second).all():
            continue
        if not max(_width(choosing, column), _width(scoring, column)) <= WIDEST:
            continue
        best = int(np.nanargmax(first))
        by_half = [
            Found(choosing.heads[best], question, float(scores[best]), _highest(half, mode), _highest(half, rule))
            for half, scores in ((choosing, first), (scoring, second))
        ]
        if (gain := by_half[0].score - by_half[0].chance) > gains.get(relation, -np.inf):
            gains[relation] = gain
            out[relation] = by_half[1]
    return out


def _highest(half: HeadTable, column: str) -> float:
    return float(np.nanmax(half.column(column))) if column in half.names else float("nan")


def _width(half: HeadTable, column: str) -> float:
    """How wide the best head's interval is; NaN where it has none."""
    low, high = half.interval(column)
    return float((high - low)[int(np.nanargmax(half.column(column)))])


# ------------------------------------------------------------------------------------------------------ what it shows


def rows_of(by_model: Mapping[str, Mapping[str, Found]]) -> tuple[Row, ...]:
    """Exact numbers of this treebank, not of a sample."""
    rows = []
    for name, relations in by_model.items():
        beaten = [
            float(np.mean([one.score > chance(one) + MARGIN for one in relations.values()])) if relations else 0.0
            for chance in (lambda one: one.offset, lambda one: one.chance)
        ]
        rows += [
            Row(f"{name}: relations ({len(relations)}) whose best head beats a fixed offset by 5 points",
                "many; no head does well at all of them", (beaten[0],), Claim("over half", low=0.5), ".0%", exact=True),
            Row("... and also the nearest word of the right part of speech, which needs a tagger",
                "not compared", (beaten[1],), None, ".0%", exact=True),
        ]  # fmt: skip
        rows += [
            Row(f"{name}: {relation}, {one.head}, {WORDS[one.question]} (offset {one.offset:.1%}, "
                f"nearest {one.nearest:.1%})",
                published, (one.score,), None, ".1%", exact=True)
            for relation, published in PUBLISHED.items() if (one := relations.get(relation)) is not None
        ]  # fmt: skip
    return tuple(rows)


WORDS = {"to_governor": "dependent looks at governor", "to_dependent": "governor looks at dependent"}


def notes_of(by_model: Mapping[str, Mapping[str, Found]], count: int) -> tuple[str, ...]:
    return tuple(
        f"{name}, {count:,} sentences, half of them for choosing (in brackets the offset, the nearest word): "
        + few([
            f"{relation}, {WORDS[one.question]}, {one.score:.0%} by {one.head} ({one.offset:.0%}, {one.nearest:.0%})"
            for relation, one in sorted(relations.items(), key=lambda item: item[1].chance - item[1].score)
        ], 12)
        + "."
        for name, relations in by_model.items()
    )  # fmt: skip


def chart(by_model: Mapping[str, Mapping[str, Found]]) -> Chart:
    """How far the best head of each relation is above what needs no attention."""
    panels = []
    for name, relations in by_model.items():
        lines = []
        for words, gains in (
            ("a fixed offset", [one.score - one.offset for one in relations.values()]),
            ("nearest word too", [one.score - one.chance for one in relations.values()]),
        ):
            places = tuple(float(place) for place in range(1, len(gains) + 1))
            lines.append(Line(words, places, tuple(sorted(gains, reverse=True)), bold=words.startswith("a fixed")))
        panels.append(Panel(f"{name}: share of arcs that the best head links, minus that of", tuple(lines)))
    return Chart(
        "Heads that link the words of a relation", "on sentences on which they were not chosen", tuple(panels),
        "relations, the best first",
    )  # fmt: skip


REPRODUCTION = Reproduction(
    "clark-syntax",
    "heads that know a relation of grammar",
    "Clark et al. 2019, What Does BERT Look At? An Analysis of BERT's Attention (BlackboxNLP).",
    "Single heads of BERT link determiners to their noun (94.3 %), objects to their verb (86.8 %), possessives "
    "(80.5 %), objects of prepositions (76.3 %), far better than a fixed offset; no head is good at all relations "
    "(section 4.2).",
    "An arc is linked if, among words, a head's row looks most at the arc's other end. The head and the side that "
    "looks are chosen on every other sentence, by how far they are above what needs no attention: the word at the "
    "relation's most frequent offset on the sides that it sees, and the nearest word of the right part of speech, "
    "which the treebank gives. Scored is the rest. An arc counts where the one word can see the other: a causal head "
    "does not look ahead. Left out is a relation whose best head "
    f"has a 95 % interval wider than {WIDEST:.0%}.",
    (
        "smollm2 and minilm on Universal Dependencies, not BERT-base on the Penn Treebank: relations that share a name "
        "are not the same.",
        "The paper chooses and scores on the same sentences.",
    ),
    run,
    "a treebank in CoNLL-U, as manyheads reproduce clark-syntax en_ewt-ud-dev.conllu",
    sentences,
)
