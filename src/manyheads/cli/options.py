"""The arguments and options that several commands take, each said once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

DEFAULT_MODEL = "minilm"

TEXT_HELP = "What to read, in quotes; - reads it from stdin. None: a sentence of our own."
FILE_HELP = "Read the text from this file (UTF-8); - is stdin."
MODEL_HELP = "minilm or tiny-code (come with us), a folder, or a name on the Hugging Face hub."
HEADS_HELP = "Which heads: 'L3H7', 'L3', 'L3H0-5', 'L*H7', 'encoder:L0H1', or several separated by commas."
TEXT_OR_OWN_HELP = "What to read, in quotes; - reads it from stdin. None: 64 texts of our own."
TEXTS_HELP = "Read texts from this file (UTF-8): paragraphs, parted by empty lines; - is stdin."

ModelName = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of the page.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Measure the labels anew, and remember nothing.")]
HeadNames = Annotated[str | None, typer.Argument(metavar="HEADS", help=HEADS_HELP, show_default=False)]
METRICS = ("auto", "loss", "kl", "cosine")
"""Those that need no labels: nobody types any. Here, so that `--help` and a misspelt one need no model."""
MetricName = Annotated[str, typer.Option("--metric", metavar="NAME", help="auto, loss, kl or cosine.")]

TextWords = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_HELP, show_default=False)]
"""A list, so that a text without its quotes can be told from two arguments too many."""

TextFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help=FILE_HELP)]
TextOrOwn = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help=TEXT_OR_OWN_HELP, show_default=False)]
TextsFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help=TEXTS_HELP)]
TextsAreLines = Annotated[bool, typer.Option("--lines", help="Each line of the file is a text.")]


def to_file(name: str, help: str) -> Any:
    """An option for a file to write."""
    return typer.Option(name, metavar="FILE", help=help)
