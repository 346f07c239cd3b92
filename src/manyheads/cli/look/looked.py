"""TODO docstring of manyheads.cli.look.command.looked."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
import typer
from manyheads.cli.terminal.console import emit_document
from manyheads.cli.arguments import PICTURE_ENDINGS
from manyheads.cli.arguments import TABLE_ENDINGS
from manyheads.cli.arguments import Source
from manyheads.cli.arguments import check_output
from manyheads.cli.arguments import read_source
from manyheads.cli.arguments import source_note
from manyheads.cli.arguments import way_to_read
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
from manyheads.errors import ModelError
from manyheads.errors import TextError
import textwrap
from typing import TYPE_CHECKING, Any
from rich.console import Console
from rich.text import Text
from manyheads.cli.terminal.console import Column
from manyheads.cli.terminal.console import Row
from manyheads.cli.terminal.console import lay_out
from manyheads.cli.terminal.console import left_out
from manyheads.cli.terminal.console import rules_of
from manyheads.cli.terminal.console import clean
from manyheads.cli.terminal.console import print_sections
from manyheads.cli.terminal.console import shortened
from manyheads.cli.terminal.console import stdout_console
from manyheads.cli.look.page import CAVEAT
from manyheads.cli.role_words import UNLABELLED
from manyheads.cli.role_words import by_role
from manyheads.cli.role_words import example_head
from manyheads.cli.role_words import figure
from manyheads.cli.role_words import nearest_role
from manyheads.cli.role_words import role_of
from manyheads.cli.role_words import span
from manyheads.cli.role_words import unit_of
from manyheads.cli.steps import model_arguments
from manyheads.base.files import users_home



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
