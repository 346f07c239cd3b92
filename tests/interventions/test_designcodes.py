"""Codes are as unlike as their bounds say: all pairs are tried, by arithmetic that knows nothing of their making."""

import numpy as np
import pytest

from manyheads.errors import ShapeError
from manyheads.interventions.design.weights import TOKEN_CODES, WIDTH, places, token_code


@pytest.mark.parametrize("code", TOKEN_CODES, ids=lambda code: f"{code.bits} bits")
def test_two_tokens_differ_in_as_many_places_as_the_code_says(code):
    """Differences of words are words: so the least distance of all pairs is the least weight of one word, not 0."""
    table = code.table(2**code.bits).numpy()
    assert np.allclose(np.abs(table[::97]), WIDTH**-0.5)
    bits = table < 0
    differing = (bits[1:] != bits[0]).sum(1)
    assert differing.min() == code.distance
    rng = np.random.default_rng()
    one, two = rng.integers(0, 2**code.bits, (2, 500))
    assert (bits[one ^ two] == (bits[one] ^ bits[two] ^ bits[0])).all()
    assert (table[one] * table[two]).sum(1)[one != two].max() <= code.high + 1e-6


@pytest.mark.parametrize("span", [2, 63, 511, 700])
def test_two_places_are_no_more_and_no_less_alike_than_said(span):
    codes = places(span)
    table = codes.table(span + 1).double().numpy()
    alike = table @ table.T
    assert np.allclose(alike.diagonal(), 1, atol=1e-6)
    others = alike[~np.eye(len(alike), dtype=bool)]
    assert abs(others.max() - codes.high) < 1e-6 and abs(others.min() - codes.low) < 1e-6
    assert 1 - 2 * others.max() + others.min() == pytest.approx(codes.room, abs=1e-5) and codes.room > 0


@pytest.mark.parametrize("offset", [-7, -1, 0, 1, 3])
def test_one_matrix_moves_every_place(offset):
    codes = places(300)
    table = codes.table(301).numpy()
    moved = table @ codes.turn(offset).numpy().T
    begin, end = max(0, -offset), len(table) - max(0, offset)
    assert np.abs(moved[begin:end] - table[begin + offset : end + offset]).max() < 1e-6


def test_what_has_no_code_is_refused():
    assert token_code(2**16) == TOKEN_CODES[0] and token_code(2**16 + 1) == TOKEN_CODES[1]
    with pytest.raises(ShapeError, match=r"the tokenizer has 262,145 tokens, and there are codes for 262,144: use"):
        token_code(2**18 + 1)
    with pytest.raises(ShapeError, match=r"100000 positions cannot be told apart .*: build with a smaller max_pos"):
        places(100_000)
