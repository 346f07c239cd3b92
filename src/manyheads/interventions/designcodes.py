"""Codes for tokens and for places: short vectors of length 1 of which two are never much alike.

A head attends to "the same token" or "one to the left" if its scores tell that key from every other. Among 64 numbers
there is room for a whole vocabulary only if the vectors are chosen with care: random ones are alike to 0.5 and more
somewhere, and then no bound on a head's weights could be given. Both codes here come with proven bounds.

- Tokens are the words of an extended BCH code, bits written as +-1/8: two of them differ in at least 24 of 64 places
  (22 in the larger code), so their product is at most 0.25 (0.3125).
- Places are 32 pairs (cos, sin) that turn by `2 pi f / P` a step, as sinusoidal positions do; so one fixed matrix, a
  rotation, takes every place to the place `offset` further on. The frequencies f are the 64 elements of a
  multiplicative group modulo the prime P, f and P - f being one pair. Then the likeness of two places takes only a
  handful of values (Gauss periods): for 512 places between -0.27 and 0.13; the best of 300 random draws came to 0.30.

Source: Lin and Costello 2004, appendix C, for the generator polynomials; Vaswani et al. 2017, section 3.5, for
positions that a matrix moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError

WIDTH = 64  # of a code, in numbers
MIN_ROOM = 0.05  # below it, scores would be 40 times the sharpness asked for, and float32 would blur them


@dataclass(frozen=True)
class TokenCode:
    """An extended BCH code for `2 ** bits` tokens. `distance`: in how many of 64 places two words differ at least."""

    bits: int
    generator: int
    distance: int

    @property
    def high(self) -> float:
        """The most that two different tokens are alike, 1 being the same."""
        return 1 - 2 * self.distance / WIDTH

    def table(self, num_tokens: int) -> Float[Tensor, "v 64"]:
        """A token's code is the sum, modulo 2, of the shifted generators that the bits of its id choose."""
        shifted = [self.generator << bit for bit in range(self.bits)]
        rows = torch.tensor([[word >> place & 1 for place in range(WIDTH - 1)] for word in shifted])
        rows = torch.cat([rows, rows.sum(1, keepdim=True) % 2], 1).float()
        chosen = (torch.arange(num_tokens)[:, None] >> torch.arange(self.bits) & 1).float()
        return (1 - 2 * (chosen @ rows % 2)) / math.sqrt(WIDTH)


TOKEN_CODES = (TokenCode(16, 0o6331141367235453, 24), TokenCode(18, 0o1363026512351725, 22))


def token_code(num_tokens: int) -> TokenCode:
    """The code that tells so many tokens apart best. Errors: ShapeError."""
    for code in TOKEN_CODES:
        if num_tokens <= 2**code.bits:
            return code
    raise ShapeError(
        f"the tokenizer has {num_tokens:,} tokens, and there are codes for {2 ** TOKEN_CODES[-1].bits:,}: use another."
    )


@dataclass(frozen=True)
class Places:
    """Codes of places. Two different ones, no more than `span` apart, are alike by `low` at least, `high` at most."""

    span: int
    period: int
    frequencies: tuple[int, ...]
    low: float
    high: float

    @property
    def spread(self) -> float:
        return self.high - self.low

    @property
    def room(self) -> float:
        """How far a place sticks out of the others, once their own differences are made up for. Above 0, or no use."""
        return 1 - self.high - self.spread

    def table(self, num_places: int) -> Float[Tensor, "n 64"]:
        angle = _angles(self.period, self.frequencies, torch.arange(num_places))
        return (torch.cat([angle.cos(), angle.sin()], 1) / math.sqrt(WIDTH // 2)).float()

    def turn(self, offset: int) -> Float[Tensor, "64 64"]:
        """The matrix that takes each place to the one `offset` further on."""
        angle = _angles(self.period, self.frequencies, torch.tensor([offset]))[0]
        cos, sin = angle.cos().diag(), angle.sin().diag()
        return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)]).float()


@lru_cache(maxsize=16)
def places(span: int) -> Places:
    """Codes that tell places apart over distances up to `span`. Errors: ShapeError where 64 numbers cannot."""
    period = next(p for p in range(WIDTH + 1, 100 * (span + WIDTH), WIDTH) if p > span and _is_prime(p))
    group = _group(period)
    frequencies = tuple(sorted({min(f, period - f) for f in group}))
    alike = _angles(period, frequencies, torch.arange(1, span + 1)).cos().mean(1)
    found = Places(span, period, frequencies, float(alike.min()), float(alike.max()))
    if found.room <= MIN_ROOM:
        raise ShapeError(
            f"{span} positions cannot be told apart sharply by {WIDTH} numbers (room {found.room:.2f}, and "
            f"{MIN_ROOM} is needed): build with a smaller max_positions."
        )
    return found


def _angles(period: int, frequencies: tuple[int, ...], steps: Tensor) -> Tensor:
    """In float64: at place 500 a float32 angle is off by a ten-thousandth of a turn."""
    return 2 * math.pi * (steps[:, None] * torch.tensor(frequencies) % period).double() / period


def _group(period: int) -> list[int]:
    """The 64 elements of the multiplicative group modulo `period` whose 64th power is 1."""
    roots = (pow(base, (period - 1) // WIDTH, period) for base in range(2, period))
    root = next(root for root in roots if pow(root, WIDTH // 2, period) == period - 1)
    return [pow(root, power, period) for power in range(WIDTH)]


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
