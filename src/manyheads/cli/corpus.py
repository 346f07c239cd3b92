"""The texts that an intervention is measured on: typed, from a file, or a part of our own page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from manyheads.cli.inputs import Source, read_source, source_note
from manyheads.cli.options import DEFAULT_MODEL
from manyheads.cli.progress import Talk
from manyheads.corpora.bundled_texts import reading_of

OWN_TEXTS = 64  # of the page: every few of them, so that all kinds are there


@dataclass(frozen=True)
class Texts:
    """Texts, and where they came from in words."""

    texts: list[str]
    origin: str


def given_texts(talk: Talk, words: Sequence[str], file: str | None, lines: bool, model: str = DEFAULT_MODEL) -> Texts:
    """What was typed or is in the file; where nothing was given, of the page that the model is shown.

    Errors: TextError, FileAccessError.
    """
    if not words and file is None:
        reading = reading_of(model)
        if note := source_note(words, file, model):
            talk.note(note.replace(f"{reading.sentence_is} is", "our own texts are"))
        texts = reading.spread(OWN_TEXTS)
        return Texts(texts, f"{len(texts)} {reading.texts_are}")
    source = read_source(words, file)
    if note := source_note(words, file):
        talk.note(note)
    texts = texts_in(source, lines)
    return Texts(texts, f"{len(texts)} {'text' if len(texts) == 1 else 'texts'} of {source.origin}")


def texts_in(source: Source, lines: bool) -> list[str]:
    """The texts of a source: its lines, or its paragraphs, whose own line breaks are blanks."""
    if lines:
        return [line.strip() for line in source.text.splitlines() if line.strip()]
    parts = re.split(r"\n\s*\n", source.text)
    return [" ".join(part.split()) for part in parts if part.strip()]
