"""What a head says at a word is what the model's own modules compute there, and its sentence says it in words.

The oracle is the model's: eager maps, what the output projection read and gave (plain hooks), and NumPy on them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.circuits import NOT_KEPT, OTHERS, head_output, layer_output
from manyheads.errors import HeadError, RecordingError, ShapeError, TextError
from tests.circuits.test_attribution import loaded, seen
from tests.models.eager import eager_maps

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
