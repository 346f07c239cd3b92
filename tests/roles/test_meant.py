"""The pairs that an example may show are those that its statistic counts, and read as people read words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import manyheads as mh
from manyheads.models import read_texts
from manyheads.models.inputs.texts import rarity_table
from manyheads.recording import Sinks
from manyheads.roles.find import _best, _cells, pairs_of
from manyheads.statistics import STATISTICS
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_tokenizer

TEXT = "the cat saw the dog and the man saw the cat"


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2], ids=["bidirectional", "causal"])
def test_the_pairs_hold_all_that_the_statistic_counts(make):
    lm = mh.load(make(), tokenizer=tiny_tokenizer())
    names = [name for name, statistic in STATISTICS.items() if statistic.cells is not None and name.endswith("_mass")]
    assert len(names) > 20  # offsets, the local window, classes and matches
    table = mh.measure(lm, TEXT, names)
    reading = read_texts(lm, TEXT)
    rarity, _ = rarity_table(reading, lm.spec.vocab_size)
    layer = mh.record(lm, TEXT).layers[-1]
    tokens = replace(layer.tokens, rarity=rarity[layer.tokens.ids]).with_sinks(table.sinks)
    maps, seen = layer.weights().double(), layer.weights().max(0).values > 0
    for name in names:
        cells = _cells(name, tokens, 0) & seen
        rows = cells.any(-1).sum()
        mean = torch.where(cells, maps, 0.0).sum((1, 2)) / rows
        found = torch.from_numpy(table.column(name)[-len(mean) :])
        assert torch.allclose(mean, found, atol=1e-5) or (not rows and found.isnan().all()), name


def test_words_are_shown_where_there_are_any_and_special_tokens_where_they_are_meant():
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    tokens = mh.record(lm, "the cat saw").layers[0].tokens.with_sinks(Sinks(True, (), ("[CLS]",), ""))
    assert pairs_of("previous_mass", tokens, 0, {}) == ([2, 3], [1, 2])
    assert pairs_of("sink_mass", tokens, 0, {}) == ([1, 2, 3], [0, 0, 0])
    assert pairs_of("mine", tokens, 0, {"mine": lambda pieces: [None, [3, 2], 1, *[None] * (len(pieces) - 3)]}) == (
        [1, 1, 2], [3, 2, 1],
    )  # fmt: skip
    assert set(zip(*pairs_of("entropy", tokens, 0, {}), strict=True)) == {
        (i, j) for i in (1, 2, 3) for j in (1, 2, 3) if i != j
    }


def test_texts_with_few_questions_come_last_unless_they_alone_do_it():
    asked = torch.tensor([1.0, 4.0, 3.0, 9.0])
    assert [at for _, at in _best(torch.tensor([0.9, 0.8, 0.7, 0.1]) * asked, asked, 3)] == [1, 2, 0]
    assert _best(torch.tensor([0.0, 0.0]), torch.tensor([4.0, 0.0]), 3) == []
