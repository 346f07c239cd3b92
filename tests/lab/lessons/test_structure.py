"""What the lessons on the structure of multi-head attention claim: heads side by side, W_O, counts, the feed-forward.

Oracles: torch's own multi-head attention and matrix products, and closed formulas; none of it is the lessons' own code.
"""

import json
import math
import re
from importlib.resources import files

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyheads.errors import ShapeError
from manyheads.lab.commands.lesson_page import table_lines
from manyheads.lab.lessons import ProseBlock, shelf, stored
from manyheads.lab.lessons.cells import listing
from manyheads.lab.lessons.lesson import LessonError
from manyheads.lab.lessons.pages import feed_forward as feedforward
from manyheads.lab.lessons.pages import feed_forward as modelparts
from manyheads.lab.lessons.pages import four_archetypes, one_head, whole_layer
from manyheads.lab.lessons.pages import output_projection as mixing
from manyheads.lab.lessons.pages import output_projection as projection
from manyheads.lab.lessons.pages import shared as counts
from manyheads.lab.lessons.pages import split_merge as looptime
from manyheads.lab.lessons.pages import split_merge as splitting
from manyheads.lab.room import views as learning
from manyheads.reference import worked_example
from tests.refusals import refuses

SENTENCE = "A small dog ran home because it was cold."


@pytest.fixture(scope="module")
def load(minilm):
    return lambda name: {"minilm": minilm}[name]


def ran(slug, cell, load=shelf.load, **given):
    return shelf.run_cell(shelf.lessons()[slug].cells[cell], given, load)


def right(slug, check, load=shelf.load, cell=None, **inputs):
    page = shelf.lessons()[slug]
    return shelf.right_of(page, page.checks[check], inputs, cell or {}, load)


def said(fact, load=shelf.load, **inputs):
    written = " ".join(f'{name}="{value}"' for name, value in inputs.items())
    return shelf.say("{{" + f"{fact} {written}" + "}}", load)


# ------------------------------------------------------------------------------------------------------- why many heads


def test_one_head_cannot_tell_a_swap_and_two_can():
    found = ran("why-many-heads", "two-places", values="1 2\n5 5\n3 4")
    one, two = found.table("one head").values, found.table("two heads").values
    assert np.allclose(one[0], one[1]) and np.allclose(one[2], 0)
    assert np.abs(two[0] - two[1]).min() > 1.9 and one.shape == two.shape
    weights = torch.tensor([[6.0, 0, 6], [6, 0, 0], [0, 0, 6]], dtype=torch.float64).softmax(1)
    assert np.allclose(found.table("weights").values, weights)
    leaning = ran("why-many-heads", "two-places", lean=2).table("one head").values
    assert np.abs(leaning[2]).min() > 1, "with a lean the single head can tell"


def test_scores_of_a_narrow_head_have_no_higher_rank_than_its_width(fresh):
    for m, h, n in ((12, 3, 9), (12, 2, 5), (8, 8, 6)):
        answer = right("why-many-heads", "highest-rank", d_model=64 * m, heads=h, tokens=n).answer
        assert answer == min(n, 64 * m // h)
        q, k = torch.randn(2, n, m // h, generator=fresh, dtype=torch.float64)
        assert torch.linalg.matrix_rank(q @ k.T) == min(n, m // h)


def test_heads_of_a_token_are_the_models_own_rows(load, minilm):
    found = ran("why-many-heads", "heads-of-token", load, sentence=SENTENCE, token=3, layer=1)
    shown = found.table("weights").values
    with torch.no_grad():
        inputs = minilm.tokenizer(SENTENCE, return_tensors="pt")
        states = minilm.model(**inputs, output_hidden_states=True).hidden_states[1][0]
        own = minilm.model.encoder.layer[1].attention.self
        q, k = (layer(states).view(-1, 12, 32).transpose(0, 1) for layer in (own.query, own.key))
    rows = (q[:, 3:4] @ k.transpose(1, 2) / math.sqrt(32)).softmax(-1)[:, 0]
    assert np.allclose(shown[:, :12], 100 * rows.T, atol=1e-3)
    assert np.allclose(shown[:, 12], shown[:, :12].mean(1)) and np.allclose(shown.sum(0), 100, atol=1e-3)
    with pytest.raises(LessonError, match="there is no token 20"):
        ran("why-many-heads", "heads-of-token", load, sentence=SENTENCE, token=20)


def test_the_papers_figures_are_those_of_its_table_and_as_many_weights_are_not_1_time_as_many():
    assert said("bleu-by-heads") == "24.9 (1 head), 25.5 (4 heads), 25.8 (8 heads), 25.8 (16 heads), 25.4 (32 heads)"
    assert said("bleu-circulated").startswith("25.8, 27.1, 27.5, 28.0, 28.0 for 1, 2, 4, 8, 16")
    assert "that is 1" not in right("why-many-heads", "cost-ratio").words
    assert right("why-many-heads", "cost-ratio").words.endswith("h times 1 / h, the same number of weights.")


@pytest.mark.parametrize(("slug", "cell", "given", "words"), [
    ("counting", "attention-cost", {"d_model": 513}, "d_model=513 is not a multiple of heads=8: use one of"),
    ("counting", "attention-by-length", {"heads": 7}, "d_model=512 is not a multiple of heads=7: use one of"),
    ("split-merge", "three-ways", {"heads": 7}, "d_model=64 is not a multiple of heads=7: use one of"),
    ("kv-cache", "cache-table", {"kv_heads": 7}, "heads=64 is not a multiple of kv_heads=7: use one of"),
    ("kv-cache", "decode", {"kv_heads": 4}, r"heads=6 is not a multiple of kv_heads=4: use one of \[1, 2, 3, 6\]"),
])  # fmt: skip
def test_what_does_not_divide_is_told_in_the_cells_own_words(slug, cell, given, words):
    refuses(ShapeError, words, ran, slug, cell, **given)


# ------------------------------------------------------------------------------------------------ splitting and merging


def test_three_layouts_agree_and_reshape_alone_does_not():
    for seed, (m, h, n) in enumerate(((12, 3, 5), (64, 8, 10), (6, 1, 4))):
        gaps = (
            ran("split-merge", "three-ways", d_model=m, heads=h, tokens=n, seed=seed).table("difference").values[:, 0]
        )
        assert max(gaps[:3]) < 1e-12
        assert (gaps[3] > 0.1) == (h > 1), "with one head there is nothing to transpose"


def test_a_split_gives_each_head_its_columns_and_the_mistake_does_not():
    n, h, d = 3, 2, 5
    wide = 100 * torch.arange(n)[:, None] + torch.arange(h * d)
    found = ran("split-merge", "where-numbers-go", d_model=h * d, heads=h, tokens=n)
    want = wide.view(n, h, d).transpose(0, 1).reshape(h * n, d)
    assert np.array_equal(found.table(splitting.RIGHT).values, want)
    alone = found.table(splitting.ALONE)
    assert np.array_equal(alone.values, wide.view(h, n, d).reshape(h * n, d)) and alone.shape == tuple(want.shape)
    assert not np.array_equal(alone.values, want)
    with pytest.raises(ShapeError, match="d_model=8 is not a multiple of heads=3: use one of"):
        ran("split-merge", "where-numbers-go", heads=3)


def test_what_is_timed_says_the_same_and_is_torchs_attention():
    ways, gap = looptime.layouts(12, 3, 5, 2)
    assert gap < 1e-5 and len(ways) == 3
    made = torch.Generator().manual_seed(0)
    x, weights = torch.randn(2, 5, 12, generator=made), torch.randn(4, 12, 12, generator=made) * 12**-0.5
    w_q, w_k, w_v, w_o = weights
    want, _ = F.multi_head_attention_forward(
        *(x.transpose(0, 1),) * 3, 12, 3, torch.cat((w_q.T, w_k.T, w_v.T)), None, None, None, False, 0.0, w_o.T, None
    )  # fmt: skip
    for way in ways:
        assert torch.allclose(way(), want.transpose(0, 1), atol=1e-5)
    found = ran("split-merge", "loop-or-wide", d_model=64, heads=2, tokens=4)
    times = found.table("milliseconds").values
    assert (times > 0).all() and (times[:, 1] <= times[:, 0]).all() and (times[:, 0] <= times[:, 2]).all()
    assert found.words.startswith("On this machine, just now: ")
    for given in ({"d_model": 2048, "tokens": 2048}, {"d_model": 64, "heads": 64, "tokens": 1500}):
        refuses(LessonError, "products and .* scores a run", ran, "split-merge", "loop-or-wide", **given)


def test_torchs_conventions_are_as_the_lesson_says():
    assert (said("torch-default", of="need_weights"), said("torch-default", of="batch_first")) == ("True", "False")
    assert said("dropped-share", of="output") == "0 %" and said("dropped-share", of="weights") in (
        "49 %",
        "50 %",
        "51 %",
    )
    shape = {"heads": 6, "batch": 3, "tokens": 5}
    for call, count in (("nothing said", 75), ("average_attn_weights=False", 450), ("need_weights=False", 0)):
        assert right("split-merge", "weights-returned", call=call, **shape).answer == count
    dropped = ran("split-merge", "torch-layer", dropout=0.5, mode="in training")
    assert dropped.table("zeros").values[0, 0] > 20 and dropped.table("zeros").values[1, 0] == 0
    assert not np.allclose(dropped.table("row sums").values, 1)
    assert np.allclose(ran("split-merge", "torch-layer", dropout=0.5).table("row sums").values, 1)


# ------------------------------------------------------------------------------------------------ the output projection


def test_parts_of_heads_sum_to_the_product(fresh):
    heads, w_o = (torch.randn(*shape, generator=fresh, dtype=torch.float64) for shape in ((3, 2), (6, 5)))
    parts = projection.head_parts(heads.numpy(), w_o.numpy())
    assert np.allclose(parts.sum(0), heads.flatten() @ w_o) and np.allclose(parts[1], heads[1] @ w_o[2:4])
    alone = ran("output-projection", "sum-of-parts", kind="none: heads side by side")
    assert "each head can reach 2 of 4 columns" in alone.words
    unlike = ran("output-projection", "sum-of-parts", w_o="1 0 0 0; 0 1 0 0; 1 0 1 0; 0 1 0 1", kind="my own")
    assert "head 0 can reach 2 of 4 columns, head 1 can reach 4 of 4 columns" in unlike.words
    assert np.array_equal(alone.table("sum").values, alone.table("side by side").values)


def test_the_parts_of_a_real_layer_are_its_own_output(load, minilm):
    heads, w_o = mixing.layer_outputs(minilm, SENTENCE, 2)
    caught = {}
    dense = minilm.model.encoder.layer[2].attention.output.dense
    hook = dense.register_forward_hook(lambda module, given, out: caught.update(out=out))
    try:
        with torch.no_grad():
            minilm.model(**minilm.tokenizer(SENTENCE, return_tensors="pt"))
    finally:
        hook.remove()
    parts = np.einsum("hnf,hfm->hnm", heads, w_o)
    assert np.allclose(parts.sum(0), (caught["out"] - dense.bias).detach()[0], atol=1e-4)
    lost = ran("output-projection", "slice-zeroed", load, sentence=SENTENCE, layer=2, head=3).table("lost").values
    assert np.array_equal(lost[:, 0], 100.0 * (np.arange(12) == 3))
    own = 100 * (parts[:, :, 96:128] ** 2).sum((1, 2)) / (parts**2).sum((1, 2))
    assert np.allclose(lost[:, 1], own) and (lost[:, 1] > 1).all() and (lost[:, 1] < 30).all()


@pytest.mark.slow
def test_to_skip_the_projection_is_worse_than_to_remove_the_heads(load):
    change = ran("output-projection", "without-projection", load).table("change").values
    assert (change[:, 0] > change[:, 1]).all(), "as the page says of its sentence"
    assert (change[:, 1] > change[:, 2]).all() and (change > 0).all()


# ------------------------------------------------------------------------------------------------------------- counting


@pytest.mark.parametrize(("m", "h"), [(512, 8), (768, 12), (64, 1)])
def test_parameters_are_the_formulas(m, h):
    assert right("counting", "head-parameters", d_model=m, heads=h).answer == 3 * m * m // h
    assert right("counting", "torch-parameters", d_model=m, heads=h).answer == 4 * (m * m + m)
    by_head = ran("counting", "attention-cost", d_model=m, heads=h).table("by head").values[:, 0]
    assert by_head.tolist() == [3 * m * m // h, 3 * m * m, 4 * m * m, 4 * h * m * m]


def test_the_layer_of_the_documents_has_its_million_and_flops_are_those_that_torch_counts():
    assert said("torch-layer", d_model=512, heads=8) == "1,050,624" == f"{4 * (512**2 + 512):,}"
    from torch.utils.flop_counter import FlopCounterMode

    layer = torch.nn.MultiheadAttention(64, 4, bias=False, batch_first=True)
    x = torch.randn(1, 48, 64)
    with FlopCounterMode(display=False) as counter:
        layer(x, x, x)
    assert counter.get_total_flops() == sum(counts.flops(64, 4, 48, False)[1:])


def test_flops_are_the_formulas_and_heads_cancel():
    for h, n in ((8, 100), (2, 4096)):
        spent, projected, attended = counts.flops(512, h, n, False)
        assert projected == 8 * n * 512**2 and attended == 4 * n**2 * 512 and spent["scores"] * 2 == attended
        assert counts.flops(512, h, n, True)[2] == 2 * n * (n + 1) * 512
    for m in (64, 512, 4096):
        assert counts.even_tokens(m, causal=False) == 2 * m and counts.even_tokens(m, causal=True) == 4 * m - 1
    assert right("counting", "longer-text", times=3).answer == 9
    assert right("counting", "longer-text", times=3, part="the four projections").answer == 3


def test_the_length_of_equal_cost_is_exact_or_rounded():
    page = shelf.lessons()["counting"]
    said = {each: shelf.answer(page, page.checks["even-length"], each, shelf.load) for each in ("8191", "8192", "8193")}
    assert [each.right for each in said.values()] == [False, True, False]
    causal = {"mask": "itself and earlier ones"}
    verdict = shelf.answer(page, page.checks["even-length"], "16384", shelf.load, inputs=causal)
    assert not verdict.right and "n (n + 1) / 2" in verdict.words


# --------------------------------------------------------------------------------------------------------- feed-forward


@pytest.mark.parametrize("kind", [feedforward.CLASSIC, feedforward.GATED])
def test_a_block_is_torchs_and_keeps_tokens_apart(kind, fresh):
    x, w1, w3, w2 = (
        torch.randn(*shape, generator=fresh, dtype=torch.float64) for shape in ((3, 2), (2, 5), (2, 5), (5, 2))
    )
    written = {name: "\n".join(" ".join(map(repr, row)) for row in each.tolist())
               for name, each in {"x": x, "w1": w1, "w3": w3, "w2": w2}.items()}  # fmt: skip
    want = (F.silu(x @ w1) * (x @ w3) if kind == feedforward.GATED else F.relu(x @ w1)) @ w2
    found = ran("feed-forward", "feed-forward", kind=kind, **written).table("out").values
    assert np.allclose(found, want)
    moved = ran("feed-forward", "feed-forward", kind=kind, **written | {"x": written["x"].replace("\n", "\n0 0\n", 1)})
    assert np.allclose(moved.table("out").values[[0, 2, 3]], found), "another token changes nobody else"
    refuses(ShapeError, "w2 is", ran, "feed-forward", "feed-forward", kind=kind, **written | {"w2": "1 2"})


def test_a_change_stays_with_its_token_in_the_feed_forward_and_reaches_all_in_attention():
    assert right("feed-forward", "kept-apart", tokens=7).answer == 1
    assert right("feed-forward", "kept-apart", tokens=7, block="attention").answer == 7


def test_swiglu_keeps_the_count_at_eight_thirds():
    assert right("feed-forward", "classic-weights", d_model=1024).answer == 8 * 1024**2
    assert right("feed-forward", "swiglu-width", d_model=4096, multiple=256).answer == 11008
    page = shelf.lessons()["feed-forward"]
    for forgotten in ("5461", "5462"):
        verdict = shelf.answer(page, page.checks["swiglu-width"], forgotten, shelf.load)
        assert verdict.words == "Not yet. Round up to a multiple of 64."
    verdict = shelf.answer(page, page.checks["classic-weights"], f"{12 * 768**2}", shelf.load, inputs={"d_model": 768})
    assert "That has three matrices" in verdict.words, "also where SwiGLU has exactly as many as the classic block"
    for m in (768, 4096):
        weights = ran("feed-forward", "block-sizes", d_model=m, multiple=8).table("weights").values[:, 0]
        assert 0 <= weights[2] / weights[0] - 1 < 24 / (8 * m) and math.isclose(weights[1] / weights[0], 1.5)


def test_llama_2_70b_and_every_models_parts_are_all_of_it():
    assert said("part-of", model="llama-2-70b") == "704.6M"
    assert (
        3 * 8192 * 28672
        == 704_643_072
        == right("feed-forward", "model-feed", model="llama-2-70b", of="one layer").answer
    )
    assert right("feed-forward", "model-feed", model="llama-2-70b", of="the whole model").answer == 80 * 704_643_072
    assert round(80 * 704_643_072 / 1e9, 1) == 56.4
    for name in modelparts.MODELS:
        found = ran("feed-forward", "model-shares", model=name)
        assert np.allclose(found.table("shares").values.sum(0), 100), name
        assert (found.table("the model").values >= 0).all(), name


# ==================================================================================================== what lessons draw
# What lessons draw: code that computes what its cell shows, arcs, diagrams, a stored training, formulas.
#
# Oracles: the listings themselves run in NumPy and torch, the model's own eager maps, torch's layer.

FORMULAS = json.loads((files("manyheads.lab.lessons") / "formulas.json").read_text("utf-8"))


def run_listing(code, numbers):
    """The variables that a listing leaves; numbers as arrays of its own library."""
    make = np.asarray if code.name == "NumPy" else lambda value: torch.as_tensor(np.asarray(value))
    names = {name: value if isinstance(value, float) else make(value) for name, value in numbers.items()}
    exec("\n".join(line.text for line in code.lines), names)
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
    def computes(line, label):
        return any(label == step or label.startswith(f"{step}, ") for step in line.steps)

    for slug, page in shelf.lessons().items():
        for cell in page.cells.values():
            listings = shelf.CELLS[cell.run].code
            labels = [table.label for table in shelf.run_cell(cell, {}, shelf.load).shown] if listings else []
            for code in listings:
                for line in code.lines:
                    marked = [label for label in labels if computes(line, label)]
                    assert len({label.partition(", ")[0] for label in marked}) == len(line.steps), (slug, line)
                computed = [label for label in labels if any(computes(line, label) for line in code.lines)]
                last = {"weights V"} & {label.partition(", ")[0] for label in labels}
                assert {"weights"} | last <= {label.partition(", ")[0] for label in computed}
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
        refuses(ShapeError, words, ran, "whole-layer", "whole-layer", **given)
    refuses(ShapeError, "d_model=8 is not a multiple of heads=3", ran, "whole-layer", "random-layer", heads=3)


# ----------------------------------------------------------------------------------------------------------- real heads


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
    (line,) = (line for line in table_lines(models, 100, False)[0] if line.startswith("as MQA"))
    assert line.split()[-2:] == ["1.250", "67,802"], "each column has its own decimals"
    assert result.table("cache").values[:, 0].tolist() == [1024, 2048, 4096, 4096, 4096]


def test_the_engines_block_has_torchs_parameters():
    result = ran("remaining-life", "life-block")
    count = sum(each.numel() for each in torch.nn.MultiheadAttention(512, 8).parameters())
    assert f"{count:,} parameters" in result.words and count == 1_050_624
    assert result.table("weights, head 3").shape == (2, 30, 30), "each head's own maps, not those of all"
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
    typeset = json.loads((files("manyheads.lab.lessons") / "formulas.mathml.json").read_text("utf-8"))
    assert list(typeset) == list(FORMULAS), "npm run formulas"
    assert not set(FORMULAS) - codes, "used by a page"
    assert all(each.startswith("<math ") and each.endswith("</math>") for each in typeset.values())
    signs = ("^", "sqrt(", "softmax(")
    assert not [code for code in codes - set(FORMULAS) if any(sign in code for sign in signs)], (
        "a formula without its TeX"
    )


def test_a_formula_is_mathml_in_the_page_and_plain_in_the_terminal():
    html = "".join(part.html for part in learning.lesson("whole-layer").parts if part.kind == "prose")
    assert html.count('<math display="block"') == 2 and "<msqrt>" in html and "softmax(" not in html
    texts = [part.text for part in shelf.lessons()["whole-layer"].parts if isinstance(part, ProseBlock)]
    assert sum("softmax(Q_i K_i^T / sqrt(d_k)) V_i" in text for text in texts) == 1
    assert learning.MARKDOWN.render("`<b>` and `X`").startswith("<p><code>&lt;b&gt;</code> and <math ")
