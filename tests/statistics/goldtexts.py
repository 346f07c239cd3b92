"""Texts with people's annotation: sentences written down in a line, and those of a treebank's file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.recording import ROOT, Gold, GoldWord


class Text(NamedTuple):
    text: str
    gold: Gold | None


def annotated(line: str, blank: str = " ", **more: Any) -> Text:
    """ "The/DET/2/det dog/NOUN/0/root": forms, parts of speech, heads from 1, relations. "~" for no blank before."""
    text, words = "", []
    for each in line.split():
        form, pos, head, relation = each.rsplit("/", 3)
        text += "" if form.startswith("~") or not text else blank
        form = form.removeprefix("~")
        words.append(GoldWord(len(text), len(text) + len(form), pos, int(head) - 1, relation))
        text += form
    return Text(text, Gold(tuple(words), **more))


def sentences(path: Path) -> Iterator[list[tuple[str, list[list[str]], bool]]]:
    """A file's documents: of each sentence its text, its words' columns, and whether their forms follow in it."""
    document: list[Any] = []
    text, rows = "", []
    for line in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        if line.startswith("# newdoc") and document:
            yield document
            document = []
        if line.startswith("# text = "):
            text = line.removeprefix("# text = ")
        elif not line and rows:
            document.append((text, rows))
            text, rows = "", []
        elif line[:1].isdigit() and line.split("\t")[0].isdigit():
            rows.append(line.split("\t"))
    yield document


def gold_words(text: str, rows: Sequence[Sequence[str]], begin: int = 0, first: int = 0) -> list[GoldWord]:
    """Each form where it comes next in the text; none at all where one does not come."""
    out, at = [], 0
    for row in rows:
        at = text.find(row[1], at)
        if at < 0:
            return []
        head = int(row[6]) - 1
        head = head + first if head >= 0 else ROOT
        out.append(GoldWord(begin + at, begin + at + len(row[1]), row[3], head, row[7]))
        at += len(row[1])
    return out


def treebank(path: Path, count: int | None = None) -> list[Text]:
    """The first sentences of a treebank whose words stand in their text as they are written."""
    out = []
    for document in sentences(path):
        for text, rows in document:
            words = gold_words(text, rows)
            if words:
                out.append(Text(text, Gold(tuple(words))))
            if len(out) == count:
                return out
    return out
