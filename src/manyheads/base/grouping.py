"""Query heads that share key/value heads: every key/value head serves equally many. Said once, for all who check it."""

from __future__ import annotations

from manyheads.errors import ShapeError

MOST_NAMED = 1024  # a damaged file may claim billions of heads, and nobody reads so many divisors


def check_groups(num_heads: int, num_kv_heads: int, whose: str = "") -> None:
    """Raise ShapeError unless `num_heads` is a multiple of `num_kv_heads`, both 1 or more. `whose` begins the error."""
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ShapeError(
            f"{whose}{': ' * bool(whose)}{num_heads=} is not a multiple of {num_kv_heads=}: every key/value head must "
            f"serve the same number of query heads. Use one of {divisors(num_heads)}."
        )


def divisors(number: int) -> list[int]:
    """The numbers that divide `number`, as far as anybody wants to read them.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    named = [part for part in range(1, min(number, MOST_NAMED) + 1) if number % part == 0]
    return named if number <= MOST_NAMED else [*named, number]
