"""The slow steps that commands share: a model loaded, its heads labelled. Each says what is going on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyheads import base, models, recording, roles
from manyheads.cli.arguments import DEFAULT_MODEL
from manyheads.cli.terminal.progress import Talk
from manyheads.errors import ModelError, TextError


def load_model(talk: Talk, name: str, *, reads: bool = True) -> Any:
    """The model by that name; `reads=False`: without a tokenizer where none lies beside it.

    One that may have to be fetched from the hub leaves the last line to the hub's bars.
    """

    local = name in models.BUNDLED or Path(name).exists() or name.startswith(("/", ".", "~")) or name.count("/") > 1
    with talk.step(f"loading {name}" if local else f"loading {name} (fetched from the hub the first time)", bar=local):
        from manyheads.models.loading.pretrained import OPTIONS, has_tokenizer_files

        folder = Path(name)
        if not reads and folder.is_dir() and not has_tokenizer_files(folder):
            return models.load(name, tokenizer=False)
        try:
            return models.load(name)
        except ModelError as error:
            if OPTIONS not in str(error):
                raise
            raise ModelError(str(error).replace(OPTIONS, "")) from error


def label_heads(talk: Talk, lm: Any, *, remember: bool = True) -> Any:
    """The model's `PageLabels`; without roles, and with the reason, where it cannot read the page."""

    try:
        with talk.step("reading the page that labels rest on (once for each model)") as progress:
            return roles.label_page(lm, progress=progress, remember=remember)
    except TextError as error:
        return roles.PageLabels(
            (), {}, recording.Sinks(), {}, 0, 0, f"this model cannot read the page that they rest on: {error}"
        )


def model_arguments(name: str) -> str:
    """What to add to a command so that it takes the same model."""
    import shlex

    return "" if name == DEFAULT_MODEL else f" --model {shlex.quote(name)}"


# ---------------------------------------------------------------------------------------------------------------------
# Several processes started by torchrun: the first speaks for all, the others say nothing but what goes wrong.


@contextmanager
def joined_ranks(talk: Talk) -> Iterator[int]:
    """This process's number among those that torchrun started; 0 where it is alone."""

    with base.torchrun() as (rank, world):
        if rank:
            talk.silence()
        elif world > 1:
            talk.note(f"{world} processes share the corpus")
        yield rank
