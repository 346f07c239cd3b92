"""Batches of source code: windows of one long stream of modules, some with a stretch pasted in again further on.

Window number w begins at the fractional part of `w * golden ratio` of the stream: windows cover it evenly, never twice
the same, and any window can be had without those before it. So the data's position is one number. Early windows are
short, late ones as long as the model's positions (`Stage`): attention is dear in long ones, and what they teach beyond
short ones is little but necessary.

A share of the windows repeats itself: a stretch is pasted over a later place, or, of fewer, the whole window is random
tokens twice. There copying is all there is to learn, which is where induction heads come from (Olsson et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import PlanError
from manyheads.training.codetokens import BEGIN_ID, END_ID, SPECIAL_TOKENS
from manyheads.training.runs import generator_of

GOLDEN = 0.6180339887498949
PASTED_SHARE = 0.25  # of windows with a stretch pasted in again
RANDOM_SHARE = 0.05  # of windows of random tokens, twice
SHORTEST_PASTE = 8


@dataclass(frozen=True)
class Stage:
    """Up to this share of all steps, windows have this many tokens."""

    until: float
    length: int


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a stream of token ids, `tokens_a_step` tokens a batch, lengths by stage. Everything follows from
    `seed` and the step."""

    stream: Int[Tensor, "n"]
    vocab_size: int
    seed: int
    steps: int
    tokens_a_step: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        longest = max(stage.length for stage in self.stages)
        if len(self.stream) <= longest:
            raise PlanError(f"the stream has {len(self.stream)} tokens, and windows have {longest}: give more text.")

    def length_at(self, step: int) -> int:
        return next(stage.length for stage in self.stages if step < stage.until * self.steps or stage.until >= 1)

    def batch(self, step: int) -> dict[str, Int[Tensor, "b n"]]:
        """`ids`: begin, then `length` tokens, in every row."""
        length = self.length_at(step)
        rows = max(1, self.tokens_a_step // length)
        generator = generator_of(self.seed, step)
        most = max(self.tokens_a_step // min(stage.length for stage in self.stages), 1)
        windows = [self._window(step * most + row, length, generator) for row in range(rows)]
        return {"ids": torch.stack(windows)}

    def _window(self, number: int, length: int, generator: torch.Generator) -> Int[Tensor, "n"]:
        begin = int(((number + self.seed) * GOLDEN % 1.0) * (len(self.stream) - length))
        window = self.stream[begin : begin + length].clone()
        kind = float(torch.rand((), generator=generator))
        if kind < RANDOM_SHARE:
            window = random_twice(self.vocab_size, length, generator)
        elif kind < RANDOM_SHARE + PASTED_SHARE:
            paste(window, generator)
        return torch.cat([torch.tensor([BEGIN_ID]), window])


def paste(window: Int[Tensor, "n"], generator: torch.Generator) -> None:
    """Copy a stretch, an eighth of the window at most, over a later place that it does not touch."""
    span = _between(SHORTEST_PASTE, max(SHORTEST_PASTE, len(window) // 8), generator)
    source = _between(0, len(window) // 2 - span, generator)
    target = _between(source + span, len(window) - span, generator)
    window[target : target + span] = window[source : source + span].clone()


def random_twice(vocab_size: int, length: int, generator: torch.Generator) -> Int[Tensor, "n"]:
    """Random ordinary tokens, then the same again until the window is full; a block of an eighth to half of it."""
    block = _between(max(2, length // 8), length // 2, generator)
    ids = torch.randint(len(SPECIAL_TOKENS), vocab_size, (block,), generator=generator)
    return ids.repeat(-(-length // block))[:length]


def stream_of(encoded: Sequence[Sequence[int]]) -> Int[Tensor, "n"]:
    """Modules in the order given, `<|end|>` behind each."""
    return torch.cat([torch.tensor([*ids, END_ID]) for ids in encoded])


def _between(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(torch.randint(high - low + 1, (), generator=generator))
