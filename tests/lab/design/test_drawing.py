"""A head that is drawn: its fit is the least of its kind, its layer gives its map, and rules are painted as they say.

Oracles: the ridge problem with an unknown for each row's constant, solved whole by `lstsq`; NumPy's own SVD of the
scores; torch's Adam with torch's gradients; the layer that is sold, run. None of it is the library's fit.
"""

import math

import numpy as np
import pytest
import torch

from manyheads.errors import PlanError, ShapeError
from manyheads.lab import design
from manyheads.lab.design import drawing
from manyheads.lab.lessons.pages.draw_a_head import MAX_TOKENS, OTHER, PAINTED, READS, WIDTHS
from tests.refusals import refuses

TOKENS = ("Ants", "eat", "the", "cake", ",", "the", "ants")  # a word twice, and one twice but for its capital


def some_picture(fresh, rows=7, empty=(2,)):
    """Strengths from 0 to 1, half of them 0, some rows empty."""
    drawn = torch.rand(rows, rows, generator=fresh, dtype=torch.float64).numpy()
    drawn[drawn < 0.5] = 0
    drawn[:, 1] += 0.1  # no row is empty by chance
    drawn[list(empty)] = 0
    return drawn


def row_softmax(scores):
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def ridge_scores(x, wished):
    """Scores of the least w_i^2 (x_i W x_j + c_i - log(a_ij + e^-6))^2 + ridge |W|^2 over W and all c."""
    n, f = x.shape
    fade = (wished.sum(1) > 0) * (1 - drawing.FADE * np.arange(n) / n)
    rows, right = [], []
    for i in range(n):
        for j in range(n):
            rows.append(fade[i] * np.concatenate([np.outer(x[i], x[j]).ravel(), np.eye(n)[i]]))
            right.append(fade[i] * math.log(wished[i, j] + math.exp(-drawing.DEPTH)))
    penalty = math.sqrt(drawing.RIDGE) * np.eye(f * f, f * f + n)
    form = np.linalg.lstsq(np.vstack([rows, penalty]), np.concatenate([right, np.zeros(f * f)]), rcond=None)[0]
    return x @ form[: f * f].reshape(f, f) @ x.T, fade


def scores_of(head, tokens):
    x = head.features(tokens)
    return x @ head.query @ (x @ head.key).T / math.sqrt(head.query.shape[1])


def centred(scores):
    return scores - scores.mean(1, keepdims=True)


@pytest.mark.parametrize("reads", [("places",), ("kinds", "words"), drawing.FEATURES])
def test_a_wide_head_is_the_least_squares_answer(fresh, reads):
    wished = drawing.wished_rows(TOKENS, some_picture(fresh))
    head = design.draw(TOKENS, wished, width=11, reads=reads, steps=0)
    want, fade = ridge_scores(head.features(TOKENS), wished)
    painted = fade > 0
    assert np.allclose(centred(scores_of(head, TOKENS))[painted], centred(want)[painted], atol=1e-8)


@pytest.mark.parametrize("width", [1, 3])
def test_a_narrow_head_is_the_nearest_cut_of_the_wide_one(fresh, width):
    wished = drawing.wished_rows(TOKENS, some_picture(fresh, empty=()))
    wide, narrow = (design.draw(TOKENS, wished, width=d, steps=0) for d in (9, width))
    fade = (1 - drawing.FADE * np.arange(7) / 7)[:, None]
    u, s, v = np.linalg.svd(fade * centred(scores_of(wide, TOKENS)))
    assert np.allclose(fade * centred(scores_of(narrow, TOKENS)), (u[:, :width] * s[:width]) @ v[:width], atol=1e-8)
    assert narrow.query.shape == narrow.key.shape == (len(narrow.feature_names), width)


@pytest.mark.parametrize("width", [2, 5])
def test_training_is_torchs_adam_from_the_same_start(fresh, width):
    wished = drawing.wished_rows(TOKENS, some_picture(fresh))
    start, end = (design.draw(TOKENS, wished, width=width, steps=steps) for steps in (0, 23))
    x, want = torch.from_numpy(start.features(TOKENS)), torch.from_numpy(wished)
    halves = [torch.from_numpy(part / width**0.25).requires_grad_() for part in (start.query, start.key)]
    adam = torch.optim.Adam(halves, lr=drawing.RATE, betas=drawing.MOMENTS, eps=drawing.DAMPING)
    painted = want.sum(1) > 0
    for _ in range(23):
        adam.zero_grad()
        scores = x @ halves[0] @ (x @ halves[1]).T
        lost = -(want * scores.log_softmax(1)).sum(1)[painted].mean()
        (lost + drawing.DECAY / 2 * sum(half.square().sum() for half in halves)).backward()
        adam.step()
    got = torch.from_numpy(scores_of(end, TOKENS))
    with torch.no_grad():
        assert torch.allclose(got, x @ halves[0] @ (x @ halves[1]).T, atol=1e-8)
    assert not np.allclose(start.weights(TOKENS), end.weights(TOKENS), atol=1e-2)


def test_our_layer_with_these_weights_gives_the_map_that_is_shown(fresh):
    for width, reads in ((1, ("words",)), (3, ("places", "kinds")), (11, drawing.FEATURES)):
        head = design.draw(TOKENS, some_picture(fresh), width=width, reads=reads)
        for tokens in (TOKENS, design.split_words(OTHER)):
            x = torch.from_numpy(head.features(tokens))[None]
            with torch.no_grad():
                weights = head.layer()(x, x, x)[1]
            assert np.allclose(weights[0].numpy(), head.weights(tokens), atol=1e-9)
            assert np.allclose(head.weights(tokens).sum(1), 1)
            assert np.allclose(head.weights(tokens), row_softmax(scores_of(head, tokens)))


def test_features_are_what_they_are_called():
    head = design.draw(TOKENS, np.eye(7), width=2, steps=1)
    tokens = ("The", "zoo", "!")
    columns = dict(zip(head.feature_names, head.features(tokens).T, strict=True))
    assert len(columns) == len(head.feature_names) == 1 + 8 + 5 + 4
    assert columns["one"].tolist() == [1, 1, 1] and columns["'the'"].tolist() == [1, 0, 0]
    assert columns["is first"].tolist() == columns["is capital"].tolist() == [1, 0, 0]
    assert columns["is last"].tolist() == columns["is mark"].tolist() == [0, 0, 1]
    assert np.allclose(columns["sin of 8"], np.sin(np.pi / 4 * np.arange(3)) / 2)
    assert np.allclose(columns["cos of 4"], [0.5, 0, -0.5])
    assert "'zoo'" not in columns and head.vocabulary == ("ants", "eat", "the", "cake", ",")


def test_rules_paint_what_they_are_called():
    painted = {rule: np.argwhere(design.picture_of(rule, TOKENS)).tolist() for rule in drawing.RULES}
    assert painted["previous"] == [[q, q - 1] for q in range(1, 7)] and painted["next"] == [
        [q, q + 1] for q in range(6)
    ]
    assert painted["itself"] == [[q, q] for q in range(7)] and painted["first"] == [[q, 0] for q in range(7)]
    assert painted["same word"] == [[0, 6], [2, 5], [5, 2], [6, 0]]
    assert painted["marks"] == [[q, 4] for q in range(7)]
    assert painted["after a copy"] == [[5, 3], [6, 1]]
    assert design.split_words("It didn't, x-ray \u2014 1,5 _a") == (
        "It",
        "didn't",
        ",",
        "x-ray",
        "\u2014",
        "1",
        ",",
        "5",
        "_a",
    )


def test_what_arrives_is_the_share_of_painted_rows():
    wished = drawing.wished_rows(("a", "b", "c"), np.array([[0, 2, 2.0], [0, 0, 0], [0, 0, 3]]))
    assert wished.tolist() == [[0, 0.5, 0.5], [0, 0, 0], [0, 0, 1]]
    weights = np.array([[0.2, 0.7, 0.1], [1, 0, 0], [0.3, 0.3, 0.4]])
    assert design.arrived(wished, weights) == pytest.approx((0.5 + 0.1 + 0.4) / 2)
    assert math.isnan(design.arrived(np.zeros((2, 2)), np.eye(2)))


def test_the_lessons_claims_hold():
    """What the lesson's prose says in words: which rules travel, and what two numbers can do."""
    tokens, others = design.split_words(PAINTED), design.split_words(OTHER)

    def shares(rule, reads, width, steps=drawing.STEPS):
        head = design.draw(tokens, design.picture_of(rule, tokens), width=width, reads=reads, steps=steps)
        return [
            design.arrived(drawing.wished_rows(text, design.picture_of(rule, text)), head.weights(text))
            for text in (tokens, others)
        ]

    for reads in READS.values():
        for rule in ("same word", "after a copy"):
            assert max(shares(rule, reads, width)[1] for width in (2, 8, MAX_TOKENS)) < 0.25, (rule, reads)
    assert shares("previous", drawing.FEATURES, 2)[0] > 0.9 > 0.3 > shares("previous", drawing.FEATURES, 2, 0)[0]
    assert shares("previous", drawing.FEATURES, 1)[0] < 0.3
    assert min(shares("previous", ("places",), 4)) > 0.95
    assert shares("marks", ("places",), 8)[0] > 0.95 and shares("marks", ("places",), 8)[1] < 0.05
    assert min(*shares("marks", ("kinds",), 1), *shares("first", drawing.FEATURES, 1)) > 0.95
    assert shares("same word", drawing.FEATURES, 8)[0] > 0.95 and shares("after a copy", drawing.FEATURES, 8)[0] > 0.95
    widest = [shares(rule, drawing.FEATURES, MAX_TOKENS)[0] for rule in drawing.RULES]
    assert min(widest) > 0.95 and WIDTHS[-1] == MAX_TOKENS


def test_a_word_that_was_not_painted_is_no_word(fresh):
    head = design.draw(TOKENS, some_picture(fresh), width=4, reads=("words",))
    weights = head.weights(("the", "zebra", "yak", "the"))
    assert np.allclose(weights[1], weights[2]) and np.allclose(weights[:, 1], weights[:, 2])
    assert np.allclose(weights[0], weights[3]), "a head of words alone asks the same at both"


def test_what_cannot_be_drawn_is_refused():
    blank, eye = np.zeros((7, 7)), np.eye(7)
    for error, words, picture, given in (
        (ShapeError, r"the picture is \(6, 7\), and the sentence has 7 tokens", np.ones((6, 7)), {}),
        (PlanError, "the picture is empty: paint at least one cell", blank, {}),
        (PlanError, "the picture has numbers below 0", -eye, {}),
        (PlanError, "or that are not numbers", eye * math.nan, {}),
        (ShapeError, "width=0 is not a width", eye, {"width": 0}),
        (ShapeError, "width=True is not a width", eye, {"width": True}),
        (PlanError, "steps=-1 is not a number of training steps", eye, {"steps": -1}),
        (PlanError, r"reads=\['colours'\]: give at least one of places, words, kinds", eye, {"reads": ["colours"]}),
        (PlanError, "reads='words': give", eye, {"reads": "words"}),
        (PlanError, r"reads=\[\]: give", eye, {"reads": []}),
    ):
        refuses(error, words, design.draw, TOKENS, picture, **given)
    refuses(ShapeError, "a sentence of 1 tokens leaves nothing to choose", design.draw, ("a",), np.eye(1))
    refuses(
        PlanError, "rule='sideways' is not a rule: use one of previous, next", design.picture_of, "sideways", TOKENS
    )
    refuses(ShapeError, "there are no tokens", design.draw(TOKENS, eye, steps=0).weights, ())


@pytest.mark.parametrize("reads", [("words",), drawing.FEATURES])
def test_a_cut_does_not_depend_on_rounding(reads, fresh):
    """Words that come equally often ask for equally much: without the fade a narrow head could draw any of them."""
    tokens = ("ab", "cd", "ef", "ab", "cd", "ef")
    picture = design.picture_of("same word", tokens)
    moved = picture + 1e-11 * torch.rand(6, 6, generator=fresh, dtype=torch.float64).numpy()
    for width in (1, 2):
        first, second = (design.draw(tokens, asked, width=width, reads=reads, steps=5) for asked in (picture, moved))
        assert np.allclose(first.weights(tokens), second.weights(tokens), atol=1e-5), width


def test_a_head_names_itself_in_a_line():
    assert (
        repr(design.draw(("a", "b"), np.eye(2), width=1, reads=["words"]))
        == "DrawnHead(3 features, 1 wide, reads words)"
    )
