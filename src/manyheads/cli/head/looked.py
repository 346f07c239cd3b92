"""TODO docstring of manyheads.cli.head.command.looked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
import typer
from manyheads.cli.terminal.console import emit_document
from manyheads.cli.arguments import PICTURE_ENDINGS
from manyheads.cli.arguments import Source
from manyheads.cli.arguments import check_output
from manyheads.cli.arguments import read_source
from manyheads.cli.arguments import source_note
from manyheads.cli.arguments import DEFAULT_MODEL
from manyheads.cli.arguments import AsJson
from manyheads.cli.arguments import ModelName
from manyheads.cli.arguments import NoCache
from manyheads.cli.arguments import TextFile
from manyheads.cli.arguments import TextWords
from manyheads.cli.arguments import to_file
from manyheads.cli.terminal.progress import Talk
from manyheads.cli.steps import label_heads
from manyheads.cli.steps import load_model
from manyheads.errors import HeadError
from manyheads.errors import ModelError
from manyheads.errors import TextError
from manyheads.spec import CROSS
from manyheads.cli.head.command import head



@dataclass(frozen=True)
class HeadLooked:
    """One head on one text: its label from the page, the layer's record of the text, the table of its statistics."""

    lm: Any
    model: str
    source: Source
    head: Any
    role: Any
    labels: Any
    layer: Any
    table: Any
    window: int
    num_windows: int
    written: tuple[str, ...]
    seconds: float


def head_of(lm: Any, name: str) -> Any:
    """The head by that name. Errors: HeadError, which says what the model has."""
    try:
        (found,) = lm.spec.select(name)
    except HeadError as error:
        if len(lm.spec.shape) != 1:
            raise
        (counts,) = lm.spec.shape.values()
        what = f"layers 0-{len(counts) - 1} and heads 0-{max(counts) - 1}"
        raise HeadError(f"{name}: {lm.name} has {what}.") from error
    return found
