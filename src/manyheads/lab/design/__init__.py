"""Designed heads: weights, not masks, of heads that attend to a chosen pattern, in a model of our own layers.

    lm = build([[previous(), None], [induction(), first()]], causal=True)

A design is a value (`HeadDesign`), made by the function that is named after its pattern; `build` puts designs and
random heads (None) into a small attention-only model, which is recorded, measured, labelled and edited like any other.
So it is known beforehand what each head does: to learn from, and to test tools that label heads
(`benchmarks.known_answers`). docs/reference/design.md explains how each is made, and what its sharpness guarantees.

`draw` makes one head from a picture instead: a grid of which token should look at which.
"""

from manyheads.lab.design.drawing import DrawnHead, arrived, draw, picture_of, split_words
from manyheads.lab.design.model import build
from manyheads.lab.design.patterns import (
    HeadDesign,
    first,
    induction,
    next,
    offset,
    previous,
    punctuation,
    random,
    same_token,
    separator,
    token_class,
    uniform,
)

__all__ = [
    "HeadDesign",
    "build",
    "DrawnHead",
    "draw",
    "picture_of",
    "split_words",
    "arrived",
    "previous",
    "next",
    "offset",
    "first",
    "separator",
    "same_token",
    "token_class",
    "punctuation",
    "uniform",
    "induction",
    "random",
]
