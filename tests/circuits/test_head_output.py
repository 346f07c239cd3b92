"""What a head says at a word is what the model's own modules compute there, and its sentence says it in words.

The oracle is the model's: eager maps, what the output projection read and gave (plain hooks), and NumPy on them.
"""

import pytest

import manyheads as mh
from manyheads.circuits import head_output

ANIMAL = "The animal didn't cross the street because it was too tired."
VALUES = ("q", "k", "v", "lse")
TEXT = "the old cat sat on the table and a dog looked at it"


@pytest.fixture(scope="module")
def animal(minilm):
    return mh.record(minilm, ANIMAL, keep=VALUES)


def test_the_sentence_says_who_asked_and_who_answered(animal):
    said = head_output(animal, "L3H1", "it")
    assert said.sentence == '"it" asked and "animal" answered: 68 % of the look, 91 % of what this head says.'
    assert said.figures == "[CLS] takes 10 % of the look and says 0 % of the answer"
