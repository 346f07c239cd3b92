"""The figure of an attribution: a cell a head, ink for what adds and rust for what takes, bars with their numbers."""

import numpy as np
import pytest

import manyheads as mh
from manyheads.circuits import logit_attribution
from manyheads.errors import FileAccessError
from manyheads.figures import attribution, save_attribution
from manyheads.figures.palette import INK
from tests.figures.pictures import KINDS, assert_is_file_of, pixels, rgb, words_in
from tests.models.eager import draw
from tests.models.tiny import tiny_gpt2, tiny_tokenizer


@pytest.fixture
def result(fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    return logit_attribution(lm, "the old cat sat on the table", (7, 31))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(1)
def test_it_is_a_real_file_of_its_kind(result, kind, tmp_path):
    save_attribution(result, tmp_path / f"a{kind}")
    assert_is_file_of(kind, tmp_path / f"a{kind}")


def test_bars_are_the_largest_components_with_their_numbers(result, tmp_path):
    save_attribution(result, tmp_path / "a.svg")
    words = words_in(tmp_path / "a.svg")
    for index in np.argsort(-np.abs(result.values))[: attribution.BARS]:
        assert result.components[index] in words and f"{result.values[index]:+.2f}" in words
    assert {"L0", "L1", "L2", "0", "3"} <= set(words)


def test_the_largest_head_is_darkest_and_taking_is_rust(result, tmp_path):
    save_attribution(result, tmp_path / "a.png")
    image = pixels(tmp_path / "a.png")
    left, top, cell = attribution.MARGIN + 64, attribution.TOP, attribution.CELL
    colours = {
        head: image[top + cell * head.layer + cell // 2, left + cell * head.index + cell // 2][:3]
        for head in result.heads
    }
    largest = max(result.heads, key=lambda head: abs(result[head]))
    darkest = min(colours.values(), key=lambda colour: int(colour.sum()))
    expected = rgb(INK) if result[largest] > 0 else rgb(attribution.TAKES)
    assert np.abs(colours[largest].astype(int) - np.array(expected)).max() <= 24
    assert result[largest] < 0 or (colours[largest] == darkest).all()
    for head in result.heads:  # what takes is reddish, what adds is not
        red, _, blue = colours[head].astype(int)
        if abs(result[head]) > 0.3 * abs(result[largest]):
            assert (red - blue > 20) == (result[head] < 0)


def test_another_ending_is_refused(result, tmp_path):
    with pytest.raises(FileAccessError):
        save_attribution(result, tmp_path / "a.gif")
