"""What cells on the bundled model share: a head by its name and its map, a sentence that fits a page, a map's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.lessons.cells import Table
from manyheads.lessons.format import LessonError

__all__ = ["MAX_TOKENS", "MAX_UNSEEN", "MODEL", "SENTENCE", "looked_at", "map_of", "one_named", "require_short", "tie"]

MODEL = "minilm"
MAX_TOKENS = 24  # of a sentence: as many rows of a map as fit a page
MAX_UNSEEN = 64  # of a sentence of which no map is shown
SENTENCE = "The cat sat on the mat because it was tired."


def one_named(lm: Any, name: str) -> Head:
    """The head of that name. Raises LessonError for several or none, HeadError for one that there is not."""
    asked = tuple(lm.spec.select(name))
    if len(asked) != 1:
        raise LessonError(f"{name[:40]!r} is {len(asked)} heads: name one, as in 'L2H9'.")
    return asked[0]


def map_of(rec: Any, head: Head) -> Float64[ndarray, "q k"]:
    """A head's whole map of a recording's only text."""
    return np.asarray(rec.stacks[head.stack][head.layer].weights(head.index), np.float64)


def require_short(lm: Any, sentence: str, most: int = MAX_TOKENS) -> int:
    """How many tokens a sentence has. Raises TextError for too many to show, or none."""
    from manyheads.models.inputs.texts import read_texts

    count = len(read_texts(lm, sentence).pieces[0].ids)
    if count > most:
        raise TextError(f"the sentence has {count} tokens: give one of {most} at the most, so that it fits here.")
    return count


def looked_at(weights: Table, at: int) -> tuple[Float64[ndarray, "k"], list[int]]:
    """A token's row of a map, and which keys it is largest at: several where they tie. Raises LessonError."""
    if at >= len(weights.rows):
        raise LessonError(f"there is no token {at} in the cell now: it has {len(weights.rows)}.")
    row = weights.values[at]
    return row, [int(each) for each in np.flatnonzero(np.isclose(row, row.max()))]


def tie(weights: Table, tied: list[int]) -> tuple[str, tuple[str, ...]]:
    """What to say of keys that a row is largest at, where they are several; and all that they may be called."""
    said = f" It gives {len(tied)} tokens as much: any of them will do." if len(tied) > 1 else ""
    return said, tuple(each for at in tied for each in (weights.columns[at], str(at), f"token {at}"))
