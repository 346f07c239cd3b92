"""Cells give numbers that hold, begin with what their page says, and refuse what they cannot do.

Oracles: torch's own softmax and scaled dot-product attention, and the worked example's figures, which are published.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyheads.errors import HeadError, ShapeError, TextError
from manyheads.lab.lessons import whole
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.parameters import (
    Parameter,
    draw_values,
    matrix_text,
    number,
    read_matrix,
    read_quantity,
    read_values,
    text,
)
from manyheads.lab.room import CellAsk
from manyheads.lab.room import views as learning
from manyheads.lab.room.schema import CellResult
from manyheads.studio.problems import Stopped
from tests.refusals import refuses

X, W_Q, W_K, W_V = (
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]],
    [[1, 0], [0, 1], [0, 0], [0, 0]],
    [[0, 1], [1, 0], [0, 0], [0, 0]],
    [[1, 0], [0, 0], [1, 0], [0, 0]],
)


def quiet(words, done, total):
    pass


def ran(cell="one-head", load=None, lesson="one-head", **parameters) -> CellResult:
    more = {} if load is None else {"load": load}
    return learning.run_cell(lesson, cell, CellAsk(parameters=parameters), progress=quiet, **more)


def table(result, label):
    (found,) = [each for each in result.shown if each.label == label]
    return np.array([[math.nan if value is None else value for value in row] for row in found.values])


# ------------------------------------------------------------------------------------------------------ the parameters


def test_tables_of_numbers_are_read_as_people_write_them():
    want = np.array([[1, 0.5], [-2, 3e2]])
    for written in ("1 0.5; -2 3e2", "1, 0.5\n-2, 300\n", " 1  .5 ;\n -2 300 ;"):
        assert np.array_equal(read_matrix("x", written), want), written
    assert np.array_equal(read_matrix("x", matrix_text(want)), want)


@pytest.mark.parametrize(("written", "words"), [
    ("", "write rows of the same length"),
    ("1 2; 3", "write rows of the same length"),
    ("1 two", "'two' is not a number"),
    ("nan 1", "numbers go from"),
    ("1e9 1", "numbers go from -1,000,000 to 1,000,000"),
    (" ".join("1" * 13), "up to 12 by 12"),
    ("1\n" * 13, "up to 12 by 12"),
    ("0,5 1 0", "'0,5' is unclear. Separate numbers by spaces, and write a half as 0.5"),
    ("1,0,0; 0,1,0", "'1,0,0;' is unclear"),
])  # fmt: skip
def test_what_is_no_table_is_told(written, words):
    refuses(LessonError, words, read_matrix, "x", written)


def test_numbers_stay_within_their_limits_and_a_comma_is_read_as_in_an_answer():
    limited = (number("size", "a size", 3.0, 1.0, 9.0, 1.0), Parameter("name", "a name", "text", "x"))
    assert read_values(limited, {"size": "4.5"}) == {"size": 4.5, "name": "x"}
    for wrong in ("ten", 10.0, math.nan, math.inf, -1e300, ""):
        refuses(LessonError, "is not a number from 1 to 9", read_values, limited, {"size": wrong})
    refuses(LessonError, "name has 2,001 characters", read_values, limited, {"name": "x" * 2_001})
    limited = (number("size", "a size", 3.0, 0.0, 9999.0, 1.0),)
    for written, value in (("0,5", 0.5), ("4,096", 4096), ("1 024", 1024), ("1,5e1", 15)):
        quantity = read_quantity(written)
        assert quantity is not None and read_values(limited, {"size": written})["size"] == quantity.value == value
    heads = (whole("heads", "heads", 8, 1, 128),)
    values = read_values(heads, {"heads": "16"})
    assert values == {"heads": 16} and values.whole("heads") == 16 and isinstance(values["heads"], int)
    assert read_values((whole("n", "n", 1, 1, 10_000),), {"n": "4,096"}) == {"n": 4096}
    for wrong in ("8.5", "8,5", "0", "129", "many", "8 GB", math.inf):
        refuses(LessonError, "is not a whole number from 1 to 128", read_values, heads, {"heads": wrong})


def test_what_is_drawn_is_within_the_limits_and_hangs_on_the_seed():
    parameters = (
        whole("heads", "heads", 8, 1, 128, others=(4, 16)), number("scale", "scale", 0.5, -1.0, 1.0, 0.25),
        whole("at", "at", 0, 2, 9, 3), Parameter("kind", "kind", "choice", "a", choices=("a", "b")),
        text("words", "words", "one", others=("two",)), text("fixed", "fixed", "as it is"),
    )  # fmt: skip
    seen = {name: set() for name in ("heads", "scale", "at", "kind", "words", "fixed")}
    for seed in range(60):
        values = draw_values(parameters, np.random.Generator(np.random.PCG64(seed)))
        assert values == draw_values(parameters, np.random.Generator(np.random.PCG64(seed)))
        for name, value in values.items():
            seen[name].add(value)
    assert seen["heads"] == {4, 8, 16} and seen["at"] == {2, 5, 8} and seen["kind"] == {"a", "b"}
    assert seen["scale"] == set(np.arange(-1, 1.01, 0.25)) and seen["words"] == {"one", "two"}
    assert seen["fixed"] == {"as it is"}


# ---------------------------------------------------------------------------------------------------------- the cells


def test_the_worked_example_comes_out_as_it_should():
    result = ran()
    x, w_q, w_k, w_v = (torch.tensor(each, dtype=torch.float64) for each in (X, W_Q, W_K, W_V))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    assert np.array_equal(table(result, "Q"), [[1, 0], [0, 1], [1, 1]])
    assert np.array_equal(table(result, "K"), [[0, 1], [1, 0], [1, 1]])
    assert np.array_equal(table(result, "V"), [[2, 0], [0, 0], [1, 0]])
    assert np.allclose(table(result, "scores"), q @ k.T / math.sqrt(2))
    assert np.allclose(
        table(result, "weights").round(3), [[0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503]]
    )
    assert np.allclose(table(result, "weights V"), F.scaled_dot_product_attention(q[None], k[None], v[None])[0])
    assert np.allclose(table(result, "row sums"), 1) and "with weight 0.503" in result.words


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_your_own_numbers_go_through_the_same_steps(causal, scaled, fresh):
    draw = lambda *shape: torch.randn(*shape, generator=fresh, dtype=torch.float64)  # noqa: E731
    x, w_q, w_k, w_v = draw(5, 7), draw(7, 2), draw(7, 2), draw(7, 3)
    written = {name: "\n".join(" ".join(map(repr, row)) for row in each.tolist()) for name, each in
               {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}.items()}  # fmt: skip
    choices = {"scale": "1 / sqrt(d)" if scaled else "none", "weights": "my own"}
    choices["mask"] = "only itself and earlier ones" if causal else "all tokens"
    result = ran(**written, **choices)
    q, k, v = (each[None] for each in (x @ w_q, x @ w_k, x @ w_v))
    scale = None if scaled else 1.0
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)[0]
    assert np.allclose(table(result, "weights V"), want, atol=1e-12)
    assert np.allclose(table(result, "weights").sum(1), 1)
    hidden = np.triu(np.ones((5, 5), bool), 1) & causal
    assert (np.isnan(table(result, "scores")) == hidden).all() and not table(result, "weights")[hidden].any()
    for shown in result.shown:
        assert shown.shape == [len(shown.values), len(shown.values[0])]
        assert (len(shown.row_labels), len(shown.column_labels)) == tuple(shown.shape)


def test_a_head_of_a_real_model_is_its_own_map(minilm):
    sentence = "The researcher who cited the paper won the prize."
    result = ran("sentence-head", load=lambda name: {"minilm": minilm}[name], sentence=sentence, head="L2H4")
    with torch.no_grad():
        inputs = minilm.tokenizer(sentence, return_tensors="pt")
        states = minilm.model(**inputs, output_hidden_states=True).hidden_states[2][0]
        own = minilm.model.encoder.layer[2].attention.self
        q, k, v = (layer(states)[:, 4 * 32 : 5 * 32].double() for layer in (own.query, own.key, own.value))
    weights = (q @ k.T / math.sqrt(32)).softmax(-1)
    assert np.allclose(table(result, "weights"), weights, atol=1e-5)
    assert np.allclose(table(result, "Q"), q[:, :8], atol=1e-5) and result.shown[0].shape == [len(q), 32]
    assert np.allclose(table(result, "weights V"), (weights @ v)[:, :8], atol=1e-4)
    assert "The model's own map of L2H4 is the same, to " in result.words
    assert result.shown[3].column_labels[0] == "[CLS]" == result.shown[3].row_labels[0]
    (link,) = result.links
    assert (link.model, link.head, link.text) == ("minilm", "L2H4", sentence)
    assert [each.label for each in result.shown if each.as_map] == ["weights"]


@pytest.mark.parametrize(("cell", "parameters", "kind", "words"), [
    ("one-head", {"x": "1 2 3"}, ShapeError, "“X, one row a token” has 3 columns, and w_q 4 rows"),
    ("one-head", {"weights": "my own", "w_q": "1; 2; 3; 4"}, ShapeError, r"“W_Q” is \(4, 1\), w_k \(4, 2\)"),
    ("one-head", {"x": "a b"}, LessonError, "'a' is not a number"),
    ("one-head", {"head": "L0H0"}, LessonError, "'head' is not a parameter of cell 'one-head': it has x, weights"),
    ("sentence-head", {"head": "L0"}, LessonError, "is 12 heads: name one"),
    ("sentence-head", {"head": "L9H1"}, HeadError, "there is no layer 9"),
    ("sentence-head", {"sentence": "word " * 30}, TextError, "has 32 tokens: give one of 24 at the most"),
    ("sentence-head", {"sentence": " "}, TextError, "the text is empty"),
])  # fmt: skip
def test_what_a_cell_cannot_do_is_told(cell, parameters, kind, words, minilm):
    refuses(kind, words, ran, cell, load=lambda name: minilm, **parameters)


def test_a_cell_begins_with_what_its_page_says_and_can_be_on_a_page_twice():
    first, second = ran(), ran("no-looking-ahead")
    assert not np.isnan(table(first, "scores")).any() and np.isnan(table(second, "scores")).sum() == 3
    parts = {part.cell: part for part in learning.lesson("one-head").parts if part.kind == "cell"}
    values = {each.name: each.value for each in parts["no-looking-ahead"].parameters}
    assert values["mask"] == "only itself and earlier ones" and values["scale"] == "1 / sqrt(d)"
    assert second.cell == "no-looking-ahead" and second.lesson == "one-head"


def test_a_cell_is_stopped_before_it_runs():
    def stop(words, done, total):
        raise Stopped("no more")

    with pytest.raises(Stopped):
        learning.run_cell("one-head", "one-head", CellAsk(parameters={"x": "no number"}), progress=stop)


# ------------------------------------------------------------------------------------------- choices that fill boxes


def test_a_chosen_head_fills_its_matrices_and_changed_ones_are_the_readers_own():
    (parameters,) = [
        part.parameters for part in learning.lesson("one-head").parts if part.kind == "cell" and part.cell == "one-head"
    ]
    known = {each.name: each for each in parameters}
    heads = list(known["weights"].fills)
    assert heads == known["weights"].choices[:2] and set(known["weights"].fills[heads[0]]) == {"w_q", "w_k", "w_v"}
    assert known["w_q"].value == known["weights"].fills[heads[0]]["w_q"] and not known["x"].fills
    assert np.array_equal(table(ran(), "W_Q"), W_Q)
    own = matrix_text(np.full((4, 2), 3.0))
    assert np.array_equal(table(ran(w_q=own), "W_Q"), np.full((4, 2), 3.0)), "an edit is not ignored"
    assert np.array_equal(table(ran(weights=heads[0], w_q=own), "W_Q"), W_Q), "a chosen head is that head"
    second = read_matrix("w_q", known["weights"].fills[heads[1]]["w_q"])
    assert np.array_equal(table(ran(weights=heads[1]), "W_Q"), second) and not np.array_equal(second, W_Q)


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize(
    "kind", ["every token", "itself and earlier ones", "itself and near earlier ones", "a mask of my own"]
)
def test_a_mask_hides_and_the_others_share(kind, fresh):
    scores = torch.randn(4, 5, generator=fresh, dtype=torch.float64)
    own = torch.tensor([[1, 0, 0, 0, 1], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 1, 1, 1]])
    ahead = torch.arange(5) - (torch.arange(4)[:, None] + 1)  # the queries are the last of the positions
    want = {
        "every token": ahead > -99,
        "itself and earlier ones": ahead <= 0,
        "itself and near earlier ones": (ahead <= 0) & (ahead > -2),
        "a mask of my own": own.bool(),
    }[kind]
    written = {
        "scores": "\n".join(" ".join(map(repr, row)) for row in scores.tolist()),
        "mask": matrix_text(own.numpy()),
    }
    result = ran("masked-scores", lesson="masks", kind=kind, **written)
    assert np.array_equal(table(result, "mask"), want)
    assert np.array_equal(np.isnan(table(result, "masked scores")), ~want)
    assert np.allclose(table(result, "weights"), scores.masked_fill(~want, -math.inf).softmax(-1))
    assert np.allclose(table(result, "without a mask"), scores.softmax(-1))


def test_a_token_that_may_look_at_nothing_has_no_weight_and_a_plain_softmax_is_nan():
    scores = {"scores": "1 2\n3 4", "kind": "a mask of my own", "mask": "0 0\n1 1"}
    result = ran("masked-scores", lesson="masks", **scores)
    assert not table(result, "weights")[0].any() and "token 0 may look at nothing" in result.words
    assert torch.full((2,), -math.inf).softmax(-1).isnan().all(), "as the lesson says of others"


def test_cross_attention_is_torchs_own(fresh):
    x, context = (torch.randn(n, 3, generator=fresh, dtype=torch.float64) for n in (4, 6))
    written = {name: "\n".join(" ".join(map(repr, row)) for row in each.tolist())
               for name, each in {"x": x, "context": context}.items()}  # fmt: skip
    result = ran("cross-attention", lesson="masks", **written)
    want = F.scaled_dot_product_attention(x[None], context[None], context[None])[0]
    assert np.allclose(table(result, "weights V"), want) and table(result, "weights").shape == (4, 6)
    assert "The map is 4 x 6" in result.words
    tied = ran("cross-attention", lesson="masks")
    assert np.allclose(*table(tied, "weights")[-1, [2, 3]]) and "alike, 0.279 each (read 2, read 3)" in tied.words
    refuses(
        ShapeError,
        "“X, being written” has 2 columns, context 3",
        ran,
        "cross-attention",
        lesson="masks",
        x="1 2",
        context="1 2 3",
    )
    with pytest.raises(LessonError, match="“the mask .where chosen.”: write 4 rows of 4 numbers"):
        ran("masked-scores", lesson="masks", kind="a mask of my own", mask="1 0")
