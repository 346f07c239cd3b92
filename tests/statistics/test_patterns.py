"""A pattern of one's own scores what the model's own eager maps say of the places it names, beside its chance."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.statistics.defined.own_pattern import pattern_statistics, targets

from ..models.tiny import WORDS, tiny_bert, tiny_gpt2, tiny_tokenizer


def vowels(pieces):
    """Every token looks at the tokens that begin with a vowel, itself left out; odd ones at nothing."""
    places = [at for at, piece in enumerate(pieces) if piece[:1] in "aeiou"]
    return [None if at % 2 else [place for place in places if place != at] for at in range(len(pieces))]


def before(pieces):
    return [None, *range(len(pieces) - 1)]


def texts_of(seed, count=9):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[:120], k=draw.randint(4, 17))) for _ in range(count)]


def eager_maps(model, ids):
    with torch.no_grad():
        model.set_attn_implementation("eager")
        return [layer[0].double().numpy() for layer in model(ids, output_attentions=True).attentions]


@pytest.mark.turns(4)
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2], ids=["bidirectional", "causal"])
@pytest.mark.sampled(1)
def test_a_pattern_scores_the_mean_weight_on_its_places(fresh, make):
    seed = int(torch.randint(1 << 30, (1,), generator=fresh))
    texts, tokenizer = texts_of(seed), tiny_tokenizer()
    lm = mh.load(make(seed=seed), tokenizer=tokenizer)
    table = mh.measure(lm, texts, pattern_statistics({"vowels": vowels, "before": before}))
    sums = {name: np.zeros((len(table.heads), 2)) for name in table.names}
    eager = make(seed=seed).eval()
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        maps = np.concatenate(eager_maps(eager, ids))
        pieces = ["" if at in (0, ids.shape[1] - 1) else text.split()[at - 1] for at in range(ids.shape[1])]
        named = [p or tokenizer.convert_ids_to_tokens(int(i)) for i, p in zip(ids[0], pieces, strict=True)]
        order = mh.record(lm, text).layers[0].tokens.relabelling[0].tolist()
        for name, pattern in (("vowels", vowels), ("before", before)):
            seen = lambda i, j: make is tiny_bert or j <= i  # noqa: E731
            plain = [[x] if isinstance(x, int) else list(x or ()) for x in pattern(named)]
            moved = [[x] if isinstance(x, int) else list(x or ()) for x in pattern([named[at] for at in order])]
            moved = [new if set(new) != set(old) else [] for new, old in zip(moved, plain, strict=True)]
            for suffix, places in (("", plain), (".relabelled", moved)):
                for i, where in enumerate(places):
                    where = [j for j in where if seen(i, j)]
                    if where:
                        sums[name + suffix] += np.stack([maps[:, i, where].sum(-1), np.ones(len(maps))], 1)
            for i, where in enumerate(plain):
                where = [j for j in where if seen(i, j)]
                if where:
                    width = i + 1 if make is tiny_gpt2 else len(named)
                    sums[f"{name}.uniform"] += [len(where) / width, 1]
    assert not sums["before.relabelled"].any(), "places alone do not change when words are shuffled"
    for name, both in sums.items():
        if both[:, 1].any():
            np.testing.assert_allclose(table.column(name), both[:, 0] / both[:, 1], atol=1e-5, err_msg=name)
    assert np.isnan(table.column("before.relabelled")).all()
    assert not np.allclose(table.column("vowels"), table.column("vowels.relabelled"), atol=1e-3)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (lambda pieces: [0], r"gave 1 answer for \d+ tokens"),
        (lambda pieces: None, r"gave a NoneType"),
        (lambda pieces: [-1 for _ in pieces], r"points at \[-1\].*places count from 0"),
        (lambda pieces: [len(pieces) for _ in pieces], r"points at"),
    ],
)
def test_a_pattern_that_names_no_places_is_refused(pattern, match):
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    with pytest.raises(StatisticError, match=match):
        mh.measure(lm, ["the cat sat"], pattern_statistics({"mine": pattern}))


def divides(pieces):
    return [at // abs(len(pieces) - 5) for at, _ in enumerate(pieces)]  # the third text has five tokens


def past_the_end(pieces):
    return [pieces.index(pieces[len(pieces)])]


def of_two(pieces, more):
    return more


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (divides, r"the pattern 'mine' \(test_patterns.py, line \d+\) failed on text 'the man saw': ZeroDivision"),
        (past_the_end, r"line \d+\) failed on text 'the cat': IndexError: list index"),
        (of_two, r"line \d+\) failed on text 'the cat': TypeError: .*missing 1 required"),
        (lambda pieces: [0.5 for _ in pieces], r"\(test_patterns.py, line \d+\) gave 0.5 for token 0"),
        (lambda pieces: ["ab" for _ in pieces], r"gave 'ab' for token 0"),
        (lambda pieces: "x" * len(pieces), r"gave a str for"),
        (lambda pieces: torch.zeros(len(pieces), 2, 2), r"gave \[\[0.0, 0.0\], \[0.0, 0.0\]\] for token 0"),
    ],
)
@pytest.mark.sampled(4)
def test_an_error_in_a_pattern_ends_the_run_and_is_said_with_file_line_and_text(pattern, match):
    """... though errors of texts alone end none: of these three texts, two may be fine."""
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    with pytest.raises(StatisticError, match=match):
        mh.measure(lm, iter(["the cat", "a dog", "the man saw"]), pattern_statistics({"mine": pattern}))


def test_whole_numbers_of_numpy_and_torch_are_places():
    assert targets("mine", lambda pieces: torch.tensor([1, 0]), ["a", "b"]) == [(1,), (0,)]
    assert targets("mine", lambda pieces: [np.int64(1), np.array([0, 1])], ["a", "b"]) == [(1,), (0, 1)]


@pytest.mark.parametrize("patterns", [{"mine": 3}, {"": vowels}])
def test_what_is_no_pattern_is_refused(patterns):
    with pytest.raises(StatisticError, match="give a name and a function"):
        pattern_statistics(patterns)
