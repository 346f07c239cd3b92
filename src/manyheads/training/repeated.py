"""Texts of random tokens that repeat: the simplest data in which copying what came before is all there is to learn.

Each text is a block of different tokens, over and over, of a length of its own: a head that looks back by one fixed
distance cannot serve all of them, so the model has to match. Source: Olsson et al. 2022, section on repeated tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.training.runs import generator_of


@dataclass(frozen=True)
class RepeatedTokens:
    """`rows` texts of `length` tokens; blocks have `shortest` to `longest`. A batch follows from seed and step."""

    vocab_size: int
    length: int
    rows: int
    shortest: int
    longest: int
    seed: int

    def batch(self, step: int) -> dict[str, Int[Tensor, "b n"]]:
        generator = generator_of(self.seed, step)
        sizes = torch.randint(self.shortest, self.longest + 1, (self.rows,), generator=generator)
        order = torch.rand(self.rows, self.vocab_size, generator=generator).argsort(1)
        places = torch.arange(self.length)[None] % sizes[:, None]
        return {"ids": order.gather(1, places)}
