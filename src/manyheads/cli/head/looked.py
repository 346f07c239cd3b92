"""The value that `manyheads head` computes and its page, picture and JSON show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manyheads.cli.arguments import (
    Source,
)
from manyheads.errors import HeadError


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
        (head,) = lm.spec.select(name)
    except HeadError as error:
        if len(lm.spec.shape) != 1:
            raise
        (counts,) = lm.spec.shape.values()
        bounds = f"layers 0-{len(counts) - 1} and heads 0-{max(counts) - 1}"
        raise HeadError(f"{name}: {lm.name} has {bounds}.") from error
    return head
