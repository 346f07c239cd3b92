"""What lessons draw: code that computes what its cell shows, arcs, diagrams, a stored training, formulas.

Oracles: the listings themselves run in NumPy and torch, the model's own eager maps, torch's layer.
"""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyheads.cli.learn.page import table_lines
from manyheads.errors import ShapeError
from manyheads.lessons import ProseBlock, shelf, stored
from manyheads.lessons.cells import listing
from manyheads.lessons.pages import four_archetypes, one_head, whole_layer
from manyheads.reference import worked_example
from manyheads.studio.views import lessons as learning

FORMULAS = json.loads((files("manyheads.lessons") / "formulas.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def load(minilm):
    return lambda name: {"minilm": minilm}[name]


def ran(slug, cell, load=shelf.load, **given):
    return shelf.run_cell(shelf.lessons()[slug].cells[cell], given, load)


def run_listing(code, numbers):
    """The variables that a listing leaves; numbers as arrays of its own library."""
    make = np.asarray if code.name == "NumPy" else lambda value: torch.as_tensor(np.asarray(value))
    names = {name: value if isinstance(value, float) else make(value) for name, value in numbers.items()}
    exec(code.source, names)
    return {name: np.asarray(value) for name, value in names.items() if isinstance(value, np.ndarray | torch.Tensor)}


# --------------------------------------------------------------------------------------------------- code and diagrams


@pytest.mark.parametrize("code", whole_layer.CELLS["whole-layer"].code, ids=lambda code: code.name)
def test_the_code_beside_a_layer_computes_what_the_cell_shows(code, fresh):
    x, w_o = (torch.randn(*shape, generator=fresh, dtype=torch.float64).numpy() for shape in ((5, 4), (4, 4)))
    result = ran("whole-layer", "whole-layer", x=exactly(x), w_o=exactly(w_o))
    _, weights = worked_example()
    left = run_listing(code, {"x": x, "w_q": weights.w_q, "w_k": weights.w_k, "w_v": weights.w_v, "w_o": w_o})
    assert np.allclose(left["out"], result.table("out").values) and np.allclose(
        left["concat"], result.table("concat").values
    )
    last = "weights" if code.name == "NumPy" else None  # the loop leaves the last head's, torch all of them
    maps = np.stack([result.table(f"weights, head {head}").values for head in range(2)])
    assert np.allclose(left["weights"], maps[-1] if last else maps)


@pytest.mark.parametrize("code", one_head.CELLS["one-head"].code, ids=lambda code: code.name)
def test_the_code_beside_a_head_computes_what_the_cell_shows(code, fresh):
    shapes = {"x": (5, 3), "w_q": (3, 2), "w_k": (3, 2), "w_v": (3, 4)}
    numbers = {
        name: torch.randn(*shape, generator=fresh, dtype=torch.float64).numpy() for name, shape in shapes.items()
    }
    written = {name: exactly(table) for name, table in numbers.items()}
    result = ran("one-head", "one-head", weights=one_head.OWN, mask=one_head.CAUSAL, **written)
    left = run_listing(code, numbers | {"scale": 2**-0.5, "visible": np.tri(5, dtype=bool)})
    for name, label in (("products", "Q K^T"), ("weights", "weights"), ("out", "weights V")):
        assert np.allclose(left[name], result.table(label).values), label


def exactly(table):
    return "\n".join(" ".join(map(repr, row)) for row in table.tolist())


def test_every_step_of_a_cell_with_code_has_lines_and_every_mark_a_step():
    for slug, page in shelf.lessons().items():
        for cell in page.cells.values():
            listings = shelf.CELLS[cell.run].code
            labels = [table.label for table in shelf.run_cell(cell, {}, shelf.load).shown] if listings else []
            for code in listings:
                for line in code.lines:
                    marked = [label for label in labels if line.computes(label)]
                    assert len({label.partition(", ")[0] for label in marked}) == len(line.steps), (slug, line)
                computed = [label for label in labels if any(line.computes(label) for line in code.lines)]
                assert {"weights", "weights V"} <= {label.partition(", ")[0] for label in computed}
    assert listing("x", "a = 1  #: Q; K\nb = 2").lines[0].steps == ("Q", "K")


def test_the_worked_example_is_followed_to_its_output():
    result = ran("whole-layer", "whole-layer", kind=whole_layer.MIXING)
    x, weights = worked_example()
    x, w_q, w_k, w_v = (torch.from_numpy(np.asarray(part)) for part in (x, weights.w_q, weights.w_k, weights.w_v))
    heads = F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v)
    w_o = torch.tensor([[float(value) for value in row.split()] for row in whole_layer.MIXED.split("\n")]).double()
    assert np.allclose(result.table("out").values, torch.cat(tuple(heads), 1) @ w_o)
    assert result.table("weights, head 0").values.round(3).tolist() == [
        [0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503],
    ]  # fmt: skip
    labels = [label for lanes in result.flow for lane in lanes for label in lane]
    assert sorted(labels) == sorted(table.label for table in result.shown), "the diagram has every value, once"
    for given, words in (
        ({"x": "1 2"}, "x has 2 columns"),
        ({"kind": whole_layer.OWN, "w_o": "1 2; 3 4"}, "need 4 rows of 4"),
    ):
        with pytest.raises(ShapeError, match=words):
            ran("whole-layer", "whole-layer", **given)
    with pytest.raises(ShapeError, match="d_model=8 is not a multiple of heads=3"):
        ran("whole-layer", "random-layer", heads=3)


# ----------------------------------------------------------------------------------------------------------- real heads


@pytest.mark.turns(4)
def test_arcs_are_the_strongest_links_of_the_models_own_maps(load, minilm):
    for sentence in (four_archetypes.SENTENCE, "She saw the dog that he lost"):
        result = ran("four-archetypes", "four-archetypes", load, sentence=sentence, verbs="won, cited saw lost")
        with torch.no_grad():
            inputs = minilm.tokenizer(sentence, return_tensors="pt")
            states = minilm.model(**inputs, output_hidden_states=True).hidden_states
        for card in result.cards:
            layer, head = map(int, card.head.removeprefix("L").split("H"))
            own = minilm.model.encoder.layer[layer].attention.self
            with torch.no_grad():
                q, k = (part(states[layer][0])[:, 32 * head : 32 * head + 32] for part in (own.query, own.key))
                rows = (q @ k.T * 32**-0.5).softmax(-1)
            for arc in card.arcs:
                assert arc.weight == pytest.approx(float(rows[arc.query, arc.key]), abs=1e-5)
            assert card.arcs or card.head == "L3H1"
        sink, previous = result.cards[3], result.cards[0]
        assert all(arc.key == 0 for arc in sink.arcs) and all(arc.key == arc.query - 1 for arc in previous.arcs)
        verbs = {card.tokens[arc.query] for card in result.cards[1:2] for arc in card.arcs}
        assert verbs <= {"won", "cited", "saw", "lost"}


@pytest.mark.turns(4)
def test_a_card_says_that_a_head_is_none_where_its_guess_does_better(load):
    cards = {card.head: card for card in ran("four-archetypes", "four-archetypes", load).cards}
    for kind in four_archetypes.KINDS:
        right, chance = four_archetypes.scores_of(kind, load)
        card = cards[kind.head]
        assert f"{right:.0f} %" in card.scores and f"{chance:.0f} %" in card.chance
        assert ("no such head" in card.scores) == (right <= chance) == (card.head == "L5H2")
    arcs = {
        (card.tokens[arc.query], card.tokens[arc.key]) for card in (cards["L5H2"], cards["L3H1"]) for arc in card.arcs
    }
    assert arcs == {("cited", "researcher"), ("won", "researcher"), ("who", "researcher")}


def test_real_models_and_their_cache_are_those_of_the_papers():
    result = ran("interview-models", "real-models")
    models = result.table("models")
    assert models.rows == ("GPT-2 small", "GPT-3 175B", "Llama 2 70B", "as MHA", "as MQA")
    assert models.values[:, :4].tolist() == [
        [768, 12, 12, 64], [12288, 96, 96, 128], [8192, 64, 8, 128], [8192, 64, 64, 128], [8192, 64, 1, 128],
    ]  # fmt: skip
    assert models.values[2:, 4].tolist() == [10, 80, 1.25] and "80 GiB with MHA, 10 GiB with GQA, 1.25" in result.words
    assert models.values[:3, 5].round().tolist() == [124, 174604, 68977]
    assert models.values[3, 5] - models.values[2, 5] == pytest.approx(80 * 2 * 8192 * (64 - 8) * 128 / 1e6)
    (line,) = (str(line) for line in table_lines(models, 100) if str(line).startswith("as MQA"))
    assert line.split()[-2:] == ["1.250", "67,802"], "each column has its own decimals"
    assert result.table("cache").values[:, 0].tolist() == [1024, 2048, 4096, 4096, 4096]


def test_the_engines_block_has_torchs_parameters():
    result = ran("remaining-life", "life-block")
    count = sum(each.numel() for each in torch.nn.MultiheadAttention(512, 8).parameters())
    assert result.found["parameters"] == count == 1_050_624
    assert result.table("states").shape == result.table("out").shape == (2, 30, 512)
    assert np.allclose(result.table("weights, head 7").values.sum(1), 1)


# ----------------------------------------------------------------------------------------------------- stored trainings


def test_a_stored_map_has_the_scores_of_its_curve_and_rows_of_one():
    training = stored.read_birth()
    n, half = len(training.tokens), len(training.tokens) // 2
    for head, maps in training.maps.items():
        rows = np.nan_to_num(maps)
        # each weight is rounded to a thousandth, so a row is off by half of one for each key at the most
        assert np.abs(rows.sum(2) - 1).max() <= 0.0005 * n + 1e-9, head
        assert np.isnan(maps[:, 0, 1]).all()
    last = np.nan_to_num(training.maps[training.numbers["induction_head"]][-1])
    # the first token of a text has none before it to be found by: from the second on it is a line
    assert all(last[half + place].argmax() == place + 1 for place in range(1, half - 1)), (
        "the token after the first copy"
    )
    born, steps = training.numbers["born_at_step"], training.measured
    curve = training.curves[f"heads/{training.numbers['induction_head']}/induction"]
    assert curve[steps.index(born - 10)] <= 0.5 < curve[steps.index(born)]


@pytest.mark.slow
def test_the_commands_store_what_the_lessons_read():
    fields = set(json.loads((stored.PAGES / "induction.json").read_text("utf-8")))
    again = stored.train_birth(steps=20)
    assert set(again) == fields and again["steps"] == [0] and again["measured"] == [0, 10, 20]
    assert set(stored.train_reading(quick=True)) == set(stored.read_reading())


# ------------------------------------------------------------------------------------------------------------- formulas


def test_every_formula_is_typeset_and_used():
    texts = "\n".join(text for page in shelf.lessons().values() for text in shelf.texts_of(page))
    codes = {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", texts)}
    typeset = json.loads((files("manyheads.lessons") / "formulas.mathml.json").read_text("utf-8"))
    assert list(typeset) == list(FORMULAS), "npm run formulas"
    assert not set(FORMULAS) - codes, "used by a page"
    assert all(each.startswith("<math ") and each.endswith("</math>") for each in typeset.values())
    signs = ("^", "sqrt(", "softmax(")
    assert not [code for code in codes - set(FORMULAS) if any(sign in code for sign in signs)], (
        "a formula without its TeX"
    )


def test_a_formula_is_mathml_in_the_page_and_plain_in_the_terminal():
    (first, *_) = [part for part in learning.lesson("whole-layer").parts if part.kind == "prose"]
    assert first.html.count('<math display="block"') == 2 and "<msqrt>" in first.html and "softmax(" not in first.html
    page = next(part for part in shelf.lessons()["whole-layer"].parts if isinstance(part, ProseBlock))
    assert "softmax(Q_i K_i^T / sqrt(d_k)) V_i" in page.text
    assert learning.MARKDOWN.render("`<b>` and `X`").startswith("<p><code>&lt;b&gt;</code> and <math ")
