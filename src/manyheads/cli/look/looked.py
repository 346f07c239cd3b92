"""The value that `manyheads look` computes and its page and JSON show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manyheads.cli.arguments import (
    Source,
)


@dataclass(frozen=True)
class Looked:
    """All that one look found: the labels from the page, the table of your text, and what it took.

    `asked` are the statistics that were asked for; the table may hold more. `written` are the files, in words;
    `seconds` are those of the steps: loading the model, the labels, the text, and all.
    """

    lm: Any
    model: str
    source: Source
    labels: Any
    table: Any
    asked: tuple[str, ...]
    written: tuple[str, ...]
    seconds: dict[str, float]
    given: tuple[str, ...] = ()
    """The options that asked for files."""


SHOWN = ("entropy", "distance", "sink_mass", "duplicate_mass")
"""Statistics of your text that stand beside the roles unless others are asked for by name."""
