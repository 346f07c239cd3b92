"""The arguments and options that several commands take, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_MODEL = "minilm"

TEXT_HELP = "What to read, in quotes; - reads it from stdin. None: a sentence of our own."
FILE_HELP = "Read the text from this file (UTF-8); - is stdin."
MODEL_HELP = "minilm or tiny-code (come with us), a folder, or a name on the Hugging Face hub."

TextWords = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_HELP, show_default=False)]
"""A list, so that a text without its quotes can be told from two arguments too many."""

TextFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help=FILE_HELP)]
ModelName = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of the page.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Measure the labels anew, and remember nothing.")]
